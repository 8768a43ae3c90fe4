//! Why a verb ended without its result, and the exit code that says so to scripts.
//!
//! | code | meaning                                             |
//! |------|-----------------------------------------------------|
//! | 0    | done                                                |
//! | 1    | failed                                              |
//! | 2    | usage: flags, settings or a request that is wrong   |
//! | 3    | not found                                           |
//! | 4    | cannot connect, or a question's connection broke    |
//! | 5    | denied                                              |
//! | 6    | deadline passed, or the fate of a write is unknown  |
//! | 7    | data damaged                                        |
//! | 8    | conflict, a locked data folder included             |
//! | 130  | interrupted                                         |

use hopbine_node::NodeError;
use hopbine_proto::status::{Fault, Outcome, Problem, ShardOutcome};
use serde::Deserialize;
use std::fmt;
use std::io;
use std::time::Duration;

const WITHOUT_A_SERVER: &str =
    "hopbine serve --data DIR starts a server; --data DIR opens a data folder without one";
const LONGER: &str = "--timeout waits longer";

/// What ended a verb.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// Type it differently.
    #[error("{0}")]
    Usage(String),
    /// The engine refused; its problem document says why.
    #[error("{0}")]
    Refused(Box<Refusal>),
    /// Nobody answers at the URL.
    #[error("cannot connect to {url}: {reason}\n  hint: {}", WITHOUT_A_SERVER)]
    Connect {
        /// Where.
        url: String,
        /// What the system said.
        reason: String,
    },
    /// The connection broke while the answer was waited for.
    #[error("the connection to {url} was lost: {reason}{}", unknown(.changes))]
    Lost {
        /// Where.
        url: String,
        /// What the system said.
        reason: String,
        /// Whether the request was to change something.
        changes: bool,
    },
    /// Nothing, or not all of an answer, came in time.
    #[error("no answer from {place} within {waited:?}{}\n  hint: {}", unknown(.changes), LONGER)]
    Late {
        /// A URL, or what is in this process.
        place: String,
        /// The bound that has passed.
        waited: Duration,
        /// Whether the request was to change something.
        changes: bool,
    },
    /// Asked for by key, not there.
    #[error("{0}")]
    NotFound(String),
    /// Another process holds the data folder, or the thing exists in another form.
    #[error("{0}")]
    Conflict(String),
    /// Stored data fails its checks.
    #[error("{0}")]
    Damaged(String),
    /// Anything else.
    #[error("{0}")]
    Failed(String),
    /// The reader of standard output went away: nothing to say.
    #[error("standard output is closed")]
    ClosedOutput,
    /// The user pressed Ctrl-C.
    #[error("interrupted")]
    Interrupted,
}

/// A problem document as received.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Refusal {
    /// The contract's code; text, so that a newer server's codes can be shown too.
    pub code: String,
    /// What happened.
    pub detail: String,
    /// What to do about it.
    pub hint: Option<String>,
    /// Whether the same request may succeed later.
    pub retryable: bool,
    /// The server's name for the request, to be found in its log.
    pub request_id: String,
    /// The places that are wrong.
    pub errors: Vec<Fault>,
    /// Fate of each shard's part of a write.
    pub outcomes: Vec<ShardOutcome>,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.detail)?;
        for fault in &self.errors {
            let place = if fault.pointer.is_empty() { "the request" } else { &fault.pointer };
            write!(f, "\n  at {place}: {}", fault.detail)?;
        }
        for part in &self.outcomes {
            let fate = match part.outcome {
                Outcome::Applied => "applied",
                Outcome::Refused => "refused",
                Outcome::Unknown => "unknown",
            };
            write!(f, "\n  shard {}: {fate}", part.shard)?;
            if let Some(code) = part.code {
                write!(f, ", {code}")?;
            }
        }
        match &self.hint {
            Some(hint) => write!(f, "\n  hint: {hint}"),
            None => Ok(()),
        }
    }
}

/// What is not known of a request without an answer.
fn unknown(changes: &bool) -> &'static str {
    if *changes { ": whether the change was made is not known" } else { "" }
}

impl From<Problem> for Refusal {
    /// What the engine would answer, found before it was asked.
    fn from(problem: Problem) -> Self {
        let Problem { code, detail, hint, errors, outcomes, .. } = problem;
        let retryable = code.retryable();
        Self {
            code: code.to_string(),
            detail,
            hint,
            retryable,
            errors,
            outcomes,
            ..Self::default()
        }
    }
}

impl Failure {
    /// What a verb comes to that `ended` so and whose engine then `closed` so. That nobody reads
    /// its result hides no other failure.
    pub fn joined(ended: Result<(), Self>, closed: Result<(), Self>) -> Result<(), Self> {
        match (ended, closed) {
            (Ok(()) | Err(Self::ClosedOutput), Err(closed)) => Err(closed),
            (ended, _) => ended,
        }
    }

    /// What the process ends with.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::ClosedOutput => 0,
            Self::Failed(_) => 1,
            Self::Usage(_) => 2,
            Self::NotFound(_) => 3,
            Self::Connect { .. } | Self::Lost { changes: false, .. } => 4,
            Self::Late { .. } | Self::Lost { changes: true, .. } => 6,
            Self::Damaged(_) => 7,
            Self::Conflict(_) => 8,
            Self::Interrupted => 130,
            Self::Refused(refusal) => refusal.exit_code(),
        }
    }
}

impl Refusal {
    /// The exit code of a problem code; 1 for one that is not in the table.
    pub fn exit_code(&self) -> u8 {
        match self.code.as_str() {
            "invalid_request" | "unknown_field" | "dimension_mismatch" | "not_finite"
            | "bad_filter" => 2,
            "graph_not_found" | "fact_not_found" | "relation_not_found" => 3,
            "unauthenticated" | "permission_denied" => 5,
            "deadline_exceeded" | "outcome_unknown" => 6,
            "data_damaged" => 7,
            "graph_exists"
            | "idempotency_conflict"
            | "name_collision"
            | "operation_in_progress"
            | "precondition_failed" => 8,
            _ => 1,
        }
    }
}

impl From<NodeError> for Failure {
    fn from(error: NodeError) -> Self {
        match &error {
            NodeError::Locked { url: Some(url), .. } => {
                Self::Conflict(format!("{error}\n  hint: it serves there, use --url {url}"))
            }
            NodeError::Locked { url: None, .. } => {
                Self::Conflict(format!("{error}\n  hint: wait for it to end, or stop it"))
            }
            NodeError::Damaged { .. } => Self::Damaged(error.to_string()),
            NodeError::Config(_) => Self::Usage(error.to_string()),
            _ => Self::Failed(error.to_string()),
        }
    }
}

/// Failure of reading or writing a file that the user named.
pub fn file_failure(name: &str) -> impl FnOnce(io::Error) -> Failure {
    let name = name.to_owned();
    move |error| Failure::Failed(format!("{name}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hopbine_proto::status::Code;

    #[test]
    fn every_code_of_the_contract_has_its_exit_code() {
        let exit =
            |code: Code| Refusal { code: code.to_string(), ..Refusal::default() }.exit_code();
        for code in Code::ALL {
            let wanted = match code.http() {
                400 | 422 => 2,
                401 | 403 => 5,
                404 => 3,
                409 | 412 => 8,
                504 => 6,
                500 if *code == Code::DataDamaged => 7,
                _ => 1,
            };
            assert_eq!(exit(*code), wanted, "{code}");
        }
    }

    #[test]
    fn a_broken_connection_leaves_the_fate_of_a_change_open() {
        let lost = |changes| {
            let (url, reason) = ("http://h:1".to_owned(), "reset".to_owned());
            Failure::Lost { url, reason, changes }
        };
        assert_eq!((lost(false).exit_code(), lost(true).exit_code()), (4, 6));
        assert_eq!(lost(false).to_string(), "the connection to http://h:1 was lost: reset");
        assert!(lost(true).to_string().ends_with("not known"), "{}", lost(true));
    }

    #[test]
    fn a_reader_that_went_away_hides_no_failure() {
        let broken = || Err(Failure::Failed("sync".to_owned()));
        let code = |ended| Failure::joined(ended, broken()).expect_err("failed").exit_code();
        assert_eq!(code(Err(Failure::ClosedOutput)), 1);
        assert_eq!(code(Ok(())), 1);
        assert_eq!(code(Err(Failure::NotFound("x".to_owned()))), 3);
        let quiet = Failure::joined(Err(Failure::ClosedOutput), Ok(()));
        assert_eq!(quiet.expect_err("said").exit_code(), 0);
    }

    #[test]
    fn a_locked_folder_names_the_process_and_the_url_to_use() {
        let locked = |url: Option<&str>| {
            let url = url.map(str::to_owned);
            Failure::from(NodeError::Locked { dir: "d".into(), pid: 77, url })
        };
        let text = locked(Some("http://127.0.0.1:7640")).to_string();
        assert!(text.contains("77") && text.contains("--url http://127.0.0.1:7640"), "{text}");
        assert!(locked(None).to_string().contains("77"));
        assert_eq!(locked(None).exit_code(), 8);
    }

    #[test]
    fn a_refusal_shows_the_places_and_fates() {
        let refusal: Refusal = serde_json::from_str(
            r#"{"code":"not_finite","detail":"bad row","hint":"drop it","new_field":1,
                "errors":[{"pointer":"/facts/3","detail":"zero vector"}],
                "outcomes":[{"shard":7,"outcome":"unknown","code":"deadline_exceeded"}]}"#,
        )
        .expect("a document");
        let text = refusal.to_string();
        for part in ["not_finite: bad row", "/facts/3: zero vector", "shard 7: unknown", "drop it"]
        {
            assert!(text.contains(part), "{text}");
        }
    }
}
