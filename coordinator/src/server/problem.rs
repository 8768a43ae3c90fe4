//! Errors as `application/problem+json` (RFC 9457).
//!
//! Every code has one title and, as a rule, one status. Four refusals that HTTP itself defines
//! keep its status under `invalid_request`: 404 for a path that is no endpoint, 405 for a method
//! that it does not have (with `Allow`), 415 for a media type, 417 for an expectation.

use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode, header};
use hopbine_proto::status::{Code, Fault, Problem, ShardOutcome};
use serde::Serialize;

/// Pause before a retry when the problem names none, seconds.
const RETRY_AFTER_DEFAULT_S: u64 = 1;

/// A problem with what HTTP adds to it.
#[derive(Debug)]
pub struct Refused {
    /// What happened.
    pub problem: Box<Problem>,
    /// Status, where it is not the code's own.
    pub status: Option<StatusCode>,
    /// Methods of the path, when the method was the fault.
    pub allow: Option<String>,
}

impl From<Problem> for Refused {
    fn from(problem: Problem) -> Self {
        Self { problem: Box::new(problem), status: None, allow: None }
    }
}

impl Refused {
    /// A refusal with a status of HTTP's own.
    pub fn with_status(problem: Problem, status: StatusCode) -> Self {
        Self { problem: Box::new(problem), status: Some(status), allow: None }
    }

    /// The status of the response.
    pub fn status(&self) -> StatusCode {
        let own = StatusCode::from_u16(self.problem.code.http());
        self.status.or(own.ok()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }
}

/// Field order of the document.
#[derive(Serialize)]
struct Document<'a> {
    r#type: String,
    title: &'static str,
    status: u16,
    detail: &'a str,
    code: Code,
    retryable: bool,
    request_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<u64>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    errors: &'a [Fault],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    outcomes: &'a [ShardOutcome],
}

/// Appends the problem document of `refused` to `out`.
pub fn write(out: &mut Vec<u8>, refused: &Refused, request_id: &str) {
    let problem = &refused.problem;
    let document = Document {
        r#type: format!("urn:hopbine:problem:{}", problem.code),
        title: title(problem.code),
        status: refused.status().as_u16(),
        detail: &problem.detail,
        code: problem.code,
        retryable: problem.code.retryable(),
        request_id,
        hint: problem.hint.as_deref(),
        retry_after_ms: problem.retry_after_ms,
        errors: &problem.errors,
        outcomes: &problem.outcomes,
    };
    serde_json::to_writer(out, &document).expect("a document of strings and numbers serialises");
}

/// The response of `refused`.
pub fn response(refused: &Refused, request_id: &str) -> Response<Body> {
    let mut body = Vec::with_capacity(512);
    write(&mut body, refused, request_id);
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = refused.status();
    let headers = response.headers_mut();
    let json = HeaderValue::from_static("application/problem+json");
    headers.insert(header::CONTENT_TYPE, json);
    if refused.problem.code.retryable() {
        let seconds = refused.problem.retry_after_ms.map(|ms| ms.div_ceil(1000).max(1));
        let seconds = seconds.unwrap_or(RETRY_AFTER_DEFAULT_S);
        headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    if let Some(Ok(allow)) = refused.allow.as_deref().map(HeaderValue::from_str) {
        headers.insert(header::ALLOW, allow);
    }
    response
}

/// What a code means, for a person.
pub fn title(code: Code) -> &'static str {
    match code {
        Code::InvalidRequest => "The request is not valid",
        Code::UnknownField => "The request has an unknown field",
        Code::DimensionMismatch => "The vector does not have the graph's dimension",
        Code::NotFinite => "The vector is not finite, or zero under cosine",
        Code::BadFilter => "The filter cannot be understood",
        Code::Unauthenticated => "No key, or an unknown one",
        Code::PermissionDenied => "The key does not allow this",
        Code::GraphNotFound => "There is no such graph",
        Code::FactNotFound => "There is no such fact or entity",
        Code::RelationNotFound => "There is no such relation",
        Code::GraphExists => "The graph exists with another configuration",
        Code::IdempotencyConflict => "The idempotency key was used for another batch",
        Code::NameCollision => "Two names share one id",
        Code::OperationInProgress => "An operation on the same thing is under way",
        Code::PreconditionFailed => "The precondition does not hold",
        Code::PageTokenExpired => "The page token has expired",
        Code::PayloadTooLarge => "The request is too large",
        Code::Overloaded => "The server is overloaded",
        Code::MemoryLimit => "The request would need too much memory",
        Code::DiskFull => "The disk is full",
        Code::ShardUnavailable => "A shard does not answer",
        Code::NoQuorum => "There is no quorum",
        Code::ShuttingDown => "The server is shutting down",
        Code::DeadlineExceeded => "The deadline passed",
        Code::OutcomeUnknown => "The fate of the write is not known",
        Code::VersionSkew => "The other side speaks another version",
        Code::DataDamaged => "Stored data is damaged",
        Code::Internal => "The server failed",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;
    use std::collections::BTreeSet;

    #[test]
    fn every_code_has_a_title_of_its_own_and_keeps_its_contract() {
        let titles: BTreeSet<_> = Code::ALL.iter().map(|code| title(*code)).collect();
        assert_eq!(titles.len(), Code::ALL.len());
        for code in Code::ALL {
            let refused = Refused::from(Problem::new(*code, "why"));
            let mut body = Vec::new();
            write(&mut body, &refused, "r-1");
            let document: Value = serde_json::from_slice(&body).expect("a JSON document");
            assert_eq!(document["code"], code.as_str());
            assert_eq!(document["type"], format!("urn:hopbine:problem:{code}"));
            assert_eq!(document["status"], code.http());
            assert_eq!(document["retryable"], code.retryable());
            assert_eq!(document["request_id"], "r-1");
            let response = response(&refused, "r-1");
            let retry = response.headers().contains_key(header::RETRY_AFTER);
            assert_eq!(retry, code.retryable());
        }
    }

    #[test]
    fn a_pause_is_rounded_up_to_whole_seconds() {
        let problem = Problem::new(Code::Overloaded, "busy").retry_after_ms(1_001);
        let response = response(&problem.into(), "r");
        assert_eq!(response.headers()[header::RETRY_AFTER], "2");
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    }
}
