//! What the tests of a node share: the contexts of calls, and writing.
#![allow(dead_code, reason = "each test binary uses its own part")]

use hopbine_node::Node;
use hopbine_proto::call::{
    Freshness, Idempotency, ReadContext, Wait, WriteBatch, WriteContext, WriteOp, WriteReply,
};
use hopbine_proto::graph::GraphInfo;
use hopbine_proto::status::{CallError, Code};
use hopbine_proto::{EntityId, LogIndex, RequestId, shard_map};
use std::sync::Arc;
use std::time::Duration;

/// Time enough for any call on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// A strong read of the shard that owns `entity`.
pub fn read_at(node: &Node, graph: &GraphInfo, entity: u64, request: u128) -> ReadContext {
    let shard = &graph.shards[shard_map::owner(&graph.shards, EntityId(entity))];
    ReadContext {
        graph: graph.id,
        shard: shard.id,
        epoch: shard.epoch,
        request: RequestId(request),
        freshness: Freshness::Strong,
        min_index: LogIndex(0),
        deadline: node.clock().monotonic() + PATIENCE,
    }
}

/// A write to the shard that owns the first entity of `ops`.
fn write_at(node: &Node, graph: &GraphInfo, ops: &[WriteOp]) -> WriteContext {
    let shard = &graph.shards[shard_map::owner(&graph.shards, ops[0].entity())];
    WriteContext {
        graph: graph.id,
        shard: shard.id,
        epoch: shard.epoch,
        deadline: node.clock().monotonic() + PATIENCE,
        wait: Wait::Committed,
    }
}

/// Tries once to write `ops`, all of one shard.
pub async fn write_once(
    node: &Node,
    graph: &GraphInfo,
    ops: Vec<WriteOp>,
) -> Result<WriteReply, CallError> {
    let at = write_at(node, graph, &ops);
    node.write(at, WriteBatch { ops: Arc::new(ops), idempotency: None }).await
}

/// The same as soon as there is room for them.
pub async fn write(
    node: &Node,
    graph: &GraphInfo,
    ops: Vec<WriteOp>,
    idempotency: Option<Idempotency>,
) -> Result<WriteReply, CallError> {
    let (at, ops) = (write_at(node, graph, &ops), Arc::new(ops));
    loop {
        let batch = WriteBatch { ops: ops.clone(), idempotency };
        match node.write(at.clone(), batch).await {
            // Nothing was written: the flush lags behind on a busy machine.
            Err(CallError::Problem(problem))
                if problem.code == Code::Overloaded && node.clock().monotonic() < at.deadline =>
            {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            outcome => return outcome,
        }
    }
}
