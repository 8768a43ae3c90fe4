//! Answers of `graph_rag`, `search`, `expand` and `rerank`.

use super::Json;
use super::facts::{fact, key_fields, parts};
use crate::reply::{Coverage, HopCoverage, PathStep, RerankReply, ResultOut, RetrievalReply};

/// What differs between the calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shape {
    /// Whether results have a path.
    pub path: bool,
    /// Whether the token stands in the body too.
    pub token: bool,
    /// Whether the answer is a page.
    pub page: bool,
    /// Whether hops show the log indexes that they read.
    pub indexes: bool,
}

/// Writes an answer.
pub fn answer(json: &mut Json, reply: &RetrievalReply, shape: Shape) {
    json.object(|json| {
        json.name("results").array(&reply.results, |json, result| one(json, result, shape));
        json.field("partial", &reply.partial);
        coverage(json.name("coverage"), &reply.coverage, shape);
        if shape.page {
            json.field("next_page_token", &reply.next_page_token);
        }
        if shape.token {
            json.field("consistency_token", &reply.consistency_token);
        }
        if let Some(explain) = &reply.explain {
            json.field("explain", explain);
        }
    });
}

fn one(json: &mut Json, result: &ResultOut, shape: Shape) {
    json.object(|json| {
        json.field("distance", &result.distance);
        fact(json.name("fact"), &result.fact);
        if shape.path {
            json.name("path").array(&result.path, step);
        }
    });
}

fn step(json: &mut Json, step: &PathStep) {
    json.object(|json| {
        key_fields(json, &step.fact.key);
        json.field("distance", &step.distance);
        parts(json, &step.fact);
    });
}

fn coverage(json: &mut Json, coverage: &Coverage, shape: Shape) {
    json.object(|json| {
        json.field("shards", &coverage.shards);
        json.field("answered", &coverage.answered);
        json.field("missing", &coverage.missing);
        json.name("hops").array(&coverage.hops, |json, line| hop(json, line, shape));
    });
}

fn hop(json: &mut Json, line: &HopCoverage, shape: Shape) {
    json.object(|json| {
        json.field("hop", &line.hop);
        json.field("frontier", &line.frontier);
        json.field("read", &line.read);
        json.field("kept", &line.kept);
        json.field("cut", &line.cut);
        if let Some(why) = &line.why {
            json.field("why", why);
        }
        if shape.indexes {
            json.name("indexes").array(&line.indexes, |json, (shard, index)| {
                json.object(|json| {
                    json.field("shard", shard);
                    json.field("index", index);
                });
            });
        }
    });
}

/// The reply of `rerank`.
pub fn rerank(reply: &RerankReply) -> Json {
    let mut json = Json::default();
    json.object(|json| {
        json.name("results").array(&reply.results, |json, line| {
            json.object(|json| {
                json.field("index", &line.index);
                json.field("distance", &line.distance);
            });
        });
        if let Some(explain) = &reply.explain {
            json.field("explain", explain);
        }
    });
    json
}
