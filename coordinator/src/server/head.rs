//! What HTTP itself asks of the head of every request, whatever it is for.

use super::problem::Refused;
use axum::http::request::Parts;
use axum::http::{StatusCode, Version, header};
use hopbine_proto::status::{Code, Problem};

/// Refuses a request that does not say once for which host it is meant (RFC 9112, 3.2; HTTP/1.0
/// need not), and one that expects what no server here does (RFC 9110, 10.1.1): 417.
pub fn check(parts: &Parts) -> Result<(), Refused> {
    let hosts = parts.headers.get_all(header::HOST).iter().count();
    if hosts > 1 || (hosts == 0 && parts.version == Version::HTTP_11) {
        let detail = format!("a request has one Host header, not {hosts}");
        return Err(Problem::new(Code::InvalidRequest, detail).into());
    }
    for value in parts.headers.get_all(header::EXPECT) {
        let known = |one: &[u8]| one.is_empty() || one.eq_ignore_ascii_case(b"100-continue");
        if !value.as_bytes().split(|byte| *byte == b',').all(|one| known(one.trim_ascii())) {
            let text = String::from_utf8_lossy(value.as_bytes());
            let problem = Problem::new(Code::InvalidRequest, format!("cannot do Expect: {text}"))
                .hint("only 100-continue is understood");
            return Err(Refused::with_status(problem, StatusCode::EXPECTATION_FAILED));
        }
    }
    Ok(())
}
