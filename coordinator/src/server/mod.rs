//! The outside surface: translation only, no decision about an answer is made here.
//!
//! `connections.rs` sockets and shutdown, over `bounded_writes.rs`, in `places.rs` → `http.rs`
//! dispatch → `head.rs` what HTTP asks of every head → `routes.rs` the endpoints → `gate.rs`
//! admission → `body.rs` the body → `decode/` over `json/` into a request → `calls/` the engine →
//! `encode/` the reply, or `problem.rs` the error. `grpc/` is the same over the other protocol.
//! Beside them `health.rs`, `metrics.rs` with `sizes.rs`, and `openapi.rs`, the published
//! description.

pub mod body;
pub mod bounded_writes;
pub mod calls;
pub mod connections;
pub mod decode;
pub mod encode;
pub mod gate;
pub mod grpc;
pub mod head;
pub mod health;
pub mod http;
pub mod json;
pub mod metrics;
pub mod openapi;
pub mod places;
pub mod problem;
pub mod routes;
pub mod sizes;

pub use connections::{Listeners, serve, serve_all};
pub use health::{AlwaysReady, Check, Health};
pub use http::{HttpConfig, Surface, router};
