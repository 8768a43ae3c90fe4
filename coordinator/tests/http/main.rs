//! The HTTP and gRPC surfaces over a world in memory: replies to the letter, a test per error code,
//! bodies of any kind, bounds of memory and time, real connections, one by one and too many of
//! them, the examples of the reference page, the published description.

mod api;
mod bodies;
mod bounds;
mod codes;
mod crowds;
mod documents;
#[path = "../fake/mod.rs"]
mod fake;
mod grpc;
mod life;
mod replies;
mod transcode;
