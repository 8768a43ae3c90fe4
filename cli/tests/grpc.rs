//! The gRPC surface of a real server.

mod common;

use common::{Server, bad, hopbine, run};
use hopbine_proto::convert::v1;
use hopbine_proto::convert::v1::fact_service_client::FactServiceClient;
use hopbine_proto::convert::v1::graph_service_client::GraphServiceClient;
use hopbine_proto::convert::v1::retrieval_service_client::RetrievalServiceClient;
use hopbine_proto::convert::{embedding_bytes, v1::upsert_stream_request::Message as Step};
use std::path::Path;
use tonic::transport::{Channel, Endpoint};

async fn connect(server: &Server) -> Channel {
    let address = server.grpc.as_deref().expect("the start line names it");
    let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address");
    endpoint.connect().await.expect("a connection")
}

fn name(name: &str) -> Option<v1::Id> {
    Some(v1::Id { id: Some(v1::id::Id::Name(name.to_owned())) })
}

fn fact(entity: &str, relation: &str, target: &str, embedding: &[f32]) -> v1::Fact {
    v1::Fact {
        entity: name(entity),
        relation: name(relation),
        target: name(target),
        embedding: Some(embedding_bytes(embedding).into()),
        payload: Some("{\"text\": \"of gRPC\"}".to_owned()),
        version: None,
    }
}

/// The targets along the path of the best answer.
async fn ask(channel: Channel) -> Vec<String> {
    let query = v1::Query {
        embedding: Some(embedding_bytes(&[1.0, 0.0, 0.0]).into()),
        ..Default::default()
    };
    let hop = |relation| v1::Hop { relations: name(relation).into_iter().collect() };
    let request = v1::GraphRagRequest {
        graph: "papers".into(),
        query: Some(query),
        relation_path: vec![hop("discovered"), hop("named_after")],
        ..Default::default()
    };
    let reply = RetrievalServiceClient::new(channel).graph_rag(request).await.expect("an answer");
    let path = reply.into_inner().results.remove(0).path.into_iter();
    path.map(|step| match step.fact.and_then(|fact| fact.target).and_then(|id| id.id) {
        Some(v1::id::Id::Name(name)) => name,
        other => panic!("no name: {other:?}"),
    })
    .collect()
}

#[tokio::test]
async fn a_load_over_grpc_is_there_after_a_kill() {
    let dir = tempfile::tempdir().expect("a folder");
    let server = Server::start(dir.path(), &[]);
    let channel = connect(&server).await;
    let config = v1::GraphConfig {
        vector: Some(v1::VectorConfig { dim: 3, ..Default::default() }),
        ..Default::default()
    };
    let create = v1::CreateGraphRequest { graph: "papers".into(), config: Some(config) };
    GraphServiceClient::new(channel.clone()).create(create).await.expect("made");
    let open =
        v1::OpenStream { graph: "papers".into(), stream: "first".into(), ..Default::default() };
    let chunk = |sequence, fact| Step::Chunk(v1::Chunk { sequence, facts: vec![fact] });
    let steps = [
        Step::Open(open),
        chunk(1, fact("Marie Curie", "discovered", "polonium", &[1.0, 0.0, 0.0])),
        chunk(2, fact("polonium", "named_after", "Poland", &[0.0, 3.0, 4.0])),
    ];
    let messages = steps.map(|step| v1::UpsertStreamRequest { message: Some(step) });
    let acks = FactServiceClient::new(channel.clone())
        .upsert_stream(futures::stream::iter(messages))
        .await;
    let mut acks = acks.expect("open").into_inner();
    for sequence in [1, 2] {
        let ack = acks.message().await.expect("a reply").expect("an acknowledgement");
        assert_eq!((ack.sequence, ack.upserted), (sequence, 1));
    }
    let expected = ["polonium", "Poland"];
    assert_eq!(ask(channel).await, expected);
    server.kill();
    let server = Server::start(dir.path(), &[]);
    assert_eq!(ask(connect(&server).await).await, expected);
    assert_eq!(server.terminate(), Some(0));
}

#[test]
fn grpc_can_be_off_and_a_taken_port_is_told_with_what_to_do() {
    let dir = tempfile::tempdir().expect("a folder");
    let server = Server::start(&dir.path().join("a"), &["--grpc", "off"]);
    assert_eq!(server.grpc, None);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    let data = dir.path().join("b");
    let data = data.to_str().expect("text");
    let serve = ["serve", "--data", data, "--http", "127.0.0.1:0", "--grpc", &address];
    let errors = bad(&run(&serve), 1);
    assert!(errors.contains(&address) && errors.contains("--grpc off"), "{errors}");
    assert!(!Path::new(data).exists(), "no folder is made for it");
    let mut beyond = hopbine(&["serve", "--data", data, "--http", "127.0.0.1:0"]);
    let output = beyond.args(["--grpc", "0.0.0.0:0"]).output().expect("the binary starts");
    assert!(bad(&output, 2).contains("--insecure"));
}
