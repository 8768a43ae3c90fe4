//! The gRPC surface: the calls of the HTTP contract as messages of `proto/schema`.
//!
//! `door.rs` admission, ids, times and panics of every call, over `flow.rs`, which watches for
//! readers that read nothing → `call.rs` one call with its message → `facts.rs` with `stream.rs`,
//! `graphs.rs`, `retrieval.rs` the services → `values.rs` messages into requests → the engine →
//! `encode.rs` replies into messages. Beside them `methods.rs`, the table of the calls.

pub mod call;
pub mod door;
pub mod encode;
pub mod facts;
pub mod flow;
pub mod graphs;
pub mod methods;
pub mod retrieval;
pub mod stream;
pub mod values;

use super::http::Surface;
use axum::Router;
use axum::middleware::from_fn_with_state;
use hopbine_proto::convert::v1;
use hopbine_proto::convert::v1::fact_service_server::FactServiceServer;
use hopbine_proto::convert::v1::graph_service_server::GraphServiceServer;
use hopbine_proto::convert::v1::retrieval_service_server::RetrievalServiceServer;
use std::sync::Arc;
use std::time::Duration;
use tonic::service::Routes;
use tonic_health::ServingStatus;
use tonic_health::server::health_reporter;
use tonic_reflection::server::Builder;

/// Bytes of one message, either way: what clients take unless they are told otherwise. Larger
/// batches are streamed.
pub const MESSAGE_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Bytes of a question about health or schemas, which pass no gate.
const QUESTION_BYTES_MAX: usize = 16 * 1024;
/// How often the health service looks whether the server is ready.
const HEALTH_LOOK: Duration = Duration::from_millis(500);

/// All services, for a server of any kind. Must be called on a runtime: the health service follows
/// the surface from there until the surface is gone.
pub fn router(surface: &Arc<Surface>) -> Router {
    let (reporter, health) = health_reporter();
    let weak = Arc::downgrade(surface);
    tokio::spawn(async move {
        while let Some(surface) = weak.upgrade() {
            let ready = surface.is_ready();
            drop(surface);
            let status = if ready { ServingStatus::Serving } else { ServingStatus::NotServing };
            for name in [""].iter().chain(methods::SERVICES) {
                reporter.set_service_status(name, status).await;
            }
            tokio::time::sleep(HEALTH_LOOK).await;
        }
    });
    let reflection = || {
        let builder = Builder::configure();
        let builder = builder.register_encoded_file_descriptor_set(v1::FILE_DESCRIPTOR_SET);
        builder.register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let known = "the schemas were compiled when this was built";
    let reflection =
        (reflection().build_v1().expect(known), reflection().build_v1alpha().expect(known));
    let facts = FactServiceServer::new(facts::Facts(surface.clone()));
    let graphs = GraphServiceServer::new(graphs::Graphs(surface.clone()));
    let retrieval = RetrievalServiceServer::new(retrieval::Retrievals(surface.clone()));
    let routes = Routes::default()
        .add_service(facts.max_decoding_message_size(MESSAGE_BYTES_MAX))
        .add_service(graphs.max_decoding_message_size(MESSAGE_BYTES_MAX))
        .add_service(retrieval.max_decoding_message_size(MESSAGE_BYTES_MAX))
        .add_service(health.max_decoding_message_size(QUESTION_BYTES_MAX))
        .add_service(reflection.0.max_decoding_message_size(QUESTION_BYTES_MAX))
        .add_service(reflection.1.max_decoding_message_size(QUESTION_BYTES_MAX));
    routes.into_axum_router().layer(from_fn_with_state(surface.clone(), door::answer))
}
