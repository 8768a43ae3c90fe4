//! Wire to valid types and back: the only file here that knows prost and tonic.
//!
//! What comes off the wire is checked here and trusted inside.

use crate::status::{Code, Fault, Problem, ShardOutcome};
use std::collections::HashMap;
use std::time::Duration;
use tonic_types::{ErrorDetails, StatusExt};

/// Messages of `schema/hopbine/v1`, as generated.
#[allow(missing_docs, clippy::all)]
pub mod v1 {
    tonic::include_proto!("hopbine.v1");

    /// The schemas themselves, for clients that ask what there is.
    pub const FILE_DESCRIPTOR_SET: &[u8] = tonic::include_file_descriptor_set!("hopbine");
}

/// Who the reasons of error details belong to.
pub const ERROR_DOMAIN: &str = "hopbine";
/// Bytes of each text and number of faults in a status: it travels in the head of a response, of
/// which clients take 8 KiB.
const STATUS_TEXT_BYTES_MAX: usize = 256;
const STATUS_FAULTS_MAX: usize = 4;
const OUTCOMES_BYTES_MAX: usize = 1_024;
/// Pause before a retry when the problem names none.
const RETRY_AFTER_DEFAULT: Duration = Duration::from_secs(1);

/// The components behind little-endian f32 bytes. `invalid_request` when the length is not a
/// multiple of four; whether they are finite and as many as the graph's is the caller's check.
pub fn embedding(bytes: &[u8]) -> Result<Vec<f32>, Problem> {
    let (components, rest) = bytes.as_chunks::<4>();
    if !rest.is_empty() {
        let detail = format!("an embedding of {} bytes is no list of f32", bytes.len());
        return Err(Problem::new(Code::InvalidRequest, detail));
    }
    Ok(components.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
}

/// The bytes of `embedding`, in the wire's order.
pub fn embedding_bytes(components: &[f32]) -> Vec<u8> {
    components.iter().flat_map(|component| component.to_le_bytes()).collect()
}

/// A problem as a gRPC status. Its details are those of `google.rpc`: `ErrorInfo` with the code as
/// its reason and `retryable`, `hint`, `outcomes` (JSON, as over HTTP) and `sequence` beside it,
/// `BadRequest` with the places that are wrong, `RetryInfo`, and `RequestInfo`.
pub fn status(problem: &Problem, request_id: &str, sequence: Option<u64>) -> tonic::Status {
    let mut about = HashMap::from([("retryable".into(), problem.code.retryable().to_string())]);
    if let Some(hint) = &problem.hint {
        about.insert("hint".into(), brief(hint));
    }
    if !problem.outcomes.is_empty() {
        about.insert("outcomes".into(), first_outcomes(&problem.outcomes));
    }
    if let Some(sequence) = sequence {
        about.insert("sequence".into(), sequence.to_string());
    }
    let mut details = ErrorDetails::with_error_info(problem.code.as_str(), ERROR_DOMAIN, about);
    details.set_request_info(request_id, "");
    for fault in problem.errors.iter().take(STATUS_FAULTS_MAX) {
        details.add_bad_request_violation(brief(&fault.pointer), brief(&fault.detail));
    }
    if problem.code.retryable() {
        let pause = problem.retry_after_ms.map_or(RETRY_AFTER_DEFAULT, Duration::from_millis);
        details.set_retry_info(Some(pause));
    }
    let code = tonic::Code::from(problem.code.grpc());
    tonic::Status::with_error_details(code, brief(&problem.detail), details)
}

/// The problem that a status of ours tells of; `None` for one that is not ours.
pub fn problem(status: &tonic::Status) -> Option<Problem> {
    let details = status.get_error_details();
    let info = details.error_info().filter(|info| info.domain == ERROR_DOMAIN)?;
    let code = Code::ALL.iter().find(|code| code.as_str() == info.reason)?;
    let mut problem = Problem::new(*code, status.message());
    problem.hint = info.metadata.get("hint").cloned();
    if let Some(outcomes) = info.metadata.get("outcomes") {
        problem.outcomes = serde_json::from_str(outcomes).unwrap_or_default();
    }
    if let Some(pause) = details.retry_info().and_then(|info| info.retry_delay) {
        problem.retry_after_ms = Some(pause.as_millis() as u64);
    }
    let faults = details.bad_request().into_iter().flat_map(|bad| &bad.field_violations);
    problem.errors = faults
        .map(|fault| Fault { pointer: fault.field.clone(), detail: fault.description.clone() })
        .collect();
    Some(problem)
}

/// As many outcomes as a head has room for, from the first.
fn first_outcomes(mut outcomes: &[ShardOutcome]) -> String {
    loop {
        let text = serde_json::to_string(outcomes).unwrap_or_default();
        if text.len() <= OUTCOMES_BYTES_MAX {
            return text;
        }
        outcomes = &outcomes[..outcomes.len() / 2];
    }
}

/// `text`, or its beginning when it is too long for a head.
fn brief(text: &str) -> String {
    if text.len() <= STATUS_TEXT_BYTES_MAX {
        return text.to_owned();
    }
    format!("{}...", &text[..text.floor_char_boundary(STATUS_TEXT_BYTES_MAX)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::ShardId;
    use crate::status::Outcome;

    #[test]
    fn a_problem_comes_back_from_its_status() {
        for code in Code::ALL {
            let mut told = Problem::new(*code, "why").hint("what to do").at("/facts/1", "wrong");
            let outcome = ShardOutcome { shard: ShardId(3), outcome: Outcome::Applied, code: None };
            told.outcomes.push(outcome);
            let status = status(&told, "r1", Some(7));
            assert_eq!(i32::from(status.code()), code.grpc());
            let details = status.get_error_details();
            let about = &details.error_info().expect("an ErrorInfo").metadata;
            assert_eq!(about["retryable"], code.retryable().to_string());
            assert_eq!(about["sequence"], "7");
            assert_eq!(details.request_info().expect("an id").request_id, "r1");
            told.retry_after_ms = code.retryable().then_some(1_000);
            assert_eq!(problem(&status), Some(told));
        }
        assert_eq!(problem(&tonic::Status::internal("not ours")), None);
    }

    #[test]
    fn a_status_fits_into_a_head() {
        let long = "\u{20ac}".repeat(1 << 20);
        let mut told = Problem::new(Code::InvalidRequest, &*long).hint(&*long);
        for _ in 0..99 {
            told = told.at(&*long, &*long);
            let outcome = ShardOutcome { shard: ShardId(3), outcome: Outcome::Applied, code: None };
            told.outcomes.push(outcome);
        }
        let status = status(&told, "r1", None);
        // In a head the details take four thirds of that, a message up to three times its bytes.
        assert!(status.details().len() < 4_500, "{}", status.details().len());
        assert!(status.message().len() < 300);
    }

    #[test]
    fn embeddings_come_back_to_the_bit_and_broken_ones_are_refused() {
        let components = [0.0f32, -0.0, 1.5, f32::MIN_POSITIVE, f32::MAX];
        let back = embedding(&embedding_bytes(&components)).expect("whole");
        let bits = |components: &[f32]| components.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&back), bits(&components));
        let problem = embedding(&[1, 2, 3]).expect_err("cut short");
        assert_eq!(problem.code, Code::InvalidRequest);
    }
}
