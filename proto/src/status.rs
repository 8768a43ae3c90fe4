//! Error codes and what each means to HTTP, gRPC and a retrying client.
//!
//! `Problem` is what a user sees; `CallError` is what a coordinator gets from a shard.

use crate::ids::{Epoch, LogIndex, NodeId, ShardId};
use crate::limits::PROBLEM_TEXT_BYTES_MAX;
use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! codes {
    ($(
        $(#[$doc:meta])*
        $variant:ident $text:literal $http:literal $grpc:literal $retry:literal
    )*) => {
        /// Every error code of the contract.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Code { $($(#[$doc])* $variant,)* }

        impl Code {
            /// All codes, in the order of the contract's table.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The code as clients see it.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }

            /// HTTP status.
            pub fn http(self) -> u16 {
                match self { $(Self::$variant => $http,)* }
            }

            /// gRPC status number.
            pub fn grpc(self) -> i32 {
                match self { $(Self::$variant => $grpc,)* }
            }

            /// Whether the same request may succeed later.
            pub fn retryable(self) -> bool {
                match self { $(Self::$variant => $retry,)* }
            }
        }
    };
}

codes! {
    /// The request is not well-formed or breaks a stated bound.
    InvalidRequest "invalid_request" 400 3 false
    /// A field that the contract does not know.
    UnknownField "unknown_field" 400 3 false
    /// A vector's length is not the graph's.
    DimensionMismatch "dimension_mismatch" 422 3 false
    /// NaN, infinity, or a zero vector under cosine.
    NotFinite "not_finite" 422 3 false
    /// A filter that cannot be understood.
    BadFilter "bad_filter" 400 3 false
    /// No key, or an unknown one.
    Unauthenticated "unauthenticated" 401 16 false
    /// The key does not allow this.
    PermissionDenied "permission_denied" 403 7 false
    /// No graph of this name.
    GraphNotFound "graph_not_found" 404 5 false
    /// No live fact under this key, no such entity, or no such path.
    FactNotFound "fact_not_found" 404 5 false
    /// No relation of this name.
    RelationNotFound "relation_not_found" 404 5 false
    /// The name is taken by a graph of another configuration.
    GraphExists "graph_exists" 409 6 false
    /// The idempotency key was used for another body.
    IdempotencyConflict "idempotency_conflict" 409 10 false
    /// Two names of one id.
    NameCollision "name_collision" 409 6 false
    /// A longer operation on the same thing is under way.
    OperationInProgress "operation_in_progress" 409 10 false
    /// `If-Match` does not name the current version, or is missing.
    PreconditionFailed "precondition_failed" 412 9 false
    /// The state behind the page token is gone.
    PageTokenExpired "page_token_expired" 410 9 false
    /// Larger than the stated bound.
    PayloadTooLarge "payload_too_large" 413 8 false
    /// Too much work waits; back off.
    Overloaded "overloaded" 429 8 true
    /// The query would exceed its memory bound.
    MemoryLimit "memory_limit" 429 8 true
    /// No space for new data.
    DiskFull "disk_full" 507 8 true
    /// No replica of a needed shard answers.
    ShardUnavailable "shard_unavailable" 503 14 true
    /// The group has no leader with a quorum.
    NoQuorum "no_quorum" 503 14 true
    /// The process is on its way out.
    ShuttingDown "shutting_down" 503 14 true
    /// The deadline passed; only idempotent calls may be repeated.
    DeadlineExceeded "deadline_exceeded" 504 4 true
    /// A write whose fate is not known; repeat with the same idempotency key.
    OutcomeUnknown "outcome_unknown" 504 2 true
    /// The peer speaks another version.
    VersionSkew "version_skew" 501 12 false
    /// Stored bytes fail their checksum.
    DataDamaged "data_damaged" 500 15 false
    /// A fault of the server itself; its log holds the reason under the request's id.
    Internal "internal" 500 13 false
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One place in a request that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// JSON pointer into the request body, such as `/facts/17/embedding`.
    pub pointer: String,
    /// What is wrong there: a lower-case phrase.
    pub detail: String,
}

/// What became of one shard's part of a write.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardOutcome {
    /// Whose part.
    pub shard: ShardId,
    /// Its fate.
    pub outcome: Outcome,
    /// Why, when refused or unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<Code>,
}

/// Fate of one shard's part of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Committed and applied.
    Applied,
    /// Not applied, and never will be.
    Refused,
    /// May be applied, now or later.
    Unknown,
}

/// An error as a user sees it. `detail` is a lower-case phrase with no full stop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// What kind.
    pub code: Code,
    /// What happened, with the values that matter.
    pub detail: String,
    /// What to do about it.
    pub hint: Option<String>,
    /// The places in the request that are wrong.
    pub errors: Vec<Fault>,
    /// When to try again.
    pub retry_after_ms: Option<u64>,
    /// Fate of each shard's part, for a write with a mixed result.
    pub outcomes: Vec<ShardOutcome>,
}

impl Problem {
    /// A problem of `code`. Its texts, and those added to it, end after `PROBLEM_TEXT_BYTES_MAX`.
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        Self {
            code,
            detail: bounded(detail.into()),
            hint: None,
            errors: Vec::new(),
            retry_after_ms: None,
            outcomes: Vec::new(),
        }
    }

    /// The same with advice.
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(bounded(hint.into()));
        self
    }

    /// The same with a place in the request body.
    pub fn at(mut self, pointer: impl Into<String>, detail: impl Into<String>) -> Self {
        let (pointer, detail) = (bounded(pointer.into()), bounded(detail.into()));
        self.errors.push(Fault { pointer, detail });
        self
    }

    /// The same with a time after which a retry makes sense.
    pub fn retry_after_ms(mut self, ms: u64) -> Self {
        self.retry_after_ms = Some(ms);
        self
    }
}

/// `text`, or its beginning when it is too long.
fn bounded(mut text: String) -> String {
    if text.len() > PROBLEM_TEXT_BYTES_MAX {
        text.truncate(text.floor_char_boundary(PROBLEM_TEXT_BYTES_MAX));
        text.push_str("...");
        text.shrink_to_fit();
    }
    text
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.detail)?;
        for fault in &self.errors {
            write!(f, " [{}: {}]", fault.pointer, fault.detail)?;
        }
        Ok(())
    }
}

impl std::error::Error for Problem {}

/// What a coordinator gets instead of a shard's answer; named by what to do next.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CallError {
    /// Refresh the shard map, then retry.
    #[error("request carries epoch {sent}, {shard} is at {current}")]
    StaleEpoch {
        /// Whose.
        shard: ShardId,
        /// The epoch of the request.
        sent: Epoch,
        /// The epoch of the replica.
        current: Epoch,
    },
    /// Ask `leader`, or any other replica when it is unknown, after a pause.
    #[error("not the leader of shard {shard}")]
    NotLeader {
        /// Whose.
        shard: ShardId,
        /// Who may be.
        leader: Option<NodeId>,
    },
    /// This replica has not applied what the request needs; wait or ask another.
    #[error("shard {shard} is at log index {applied}, the request needs {needed}")]
    Behind {
        /// Whose.
        shard: ShardId,
        /// What it has.
        applied: LogIndex,
        /// What was asked for.
        needed: LogIndex,
    },
    /// Nothing to repeat: tell the user.
    #[error(transparent)]
    Problem(#[from] Box<Problem>),
}

impl From<Problem> for CallError {
    fn from(problem: Problem) -> Self {
        Self::Problem(Box::new(problem))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_repeats_a_bounded_part_of_what_a_client_sent() {
        for long in ["x".repeat(1 << 20), "\u{20ac}".repeat(1 << 20)] {
            let problem =
                Problem::new(Code::InvalidRequest, &*long).at(&*long, &*long).hint(&*long);
            let hint = problem.hint.unwrap_or_default();
            for text in [&problem.detail, &hint, &problem.errors[0].pointer] {
                assert!(text.len() <= PROBLEM_TEXT_BYTES_MAX + 3 && text.ends_with("..."));
                assert!(long.starts_with(text.trim_end_matches('.')));
            }
        }
        let short = Problem::new(Code::InvalidRequest, "x".repeat(PROBLEM_TEXT_BYTES_MAX));
        assert!(!short.detail.ends_with('.'));
    }

    #[test]
    fn every_code_has_its_own_text_and_its_serde_name_is_that_text() {
        for code in Code::ALL {
            let json = serde_json::to_string(code).expect("codes serialise");
            assert_eq!(json, format!("\"{}\"", code.as_str()));
        }
        let distinct: std::collections::BTreeSet<_> =
            Code::ALL.iter().map(|code| code.as_str()).collect();
        assert_eq!(distinct.len(), Code::ALL.len());
    }
}
