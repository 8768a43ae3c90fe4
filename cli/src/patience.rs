//! How long a verb waits for one whole answer, from connecting to the last byte.
//!
//! | call                          | without `timeout`                  | with it          |
//! |-------------------------------|------------------------------------|------------------|
//! | a question                    | `ANSWER`, 30 s                     | it and `GRACE`   |
//! | a change                      | `CHANGE`, 120 s                    | it and `GRACE`   |
//! | a request with its own bound  | that and `CHANGE`, whatever is set | the same         |
//!
//! The engine ends a request by itself and says why; the client's bound is for a server that says
//! nothing, so it comes a little later.

use hopbine_coordinator::check;
use hopbine_coordinator::server::decode::values::parse_duration;
use hopbine_proto::status::Problem;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// What a question may take when nothing is said. The engine's own bound is 2 s; the rest is for
/// a slow network and a reply of many megabytes.
pub const ANSWER: Duration = Duration::from_secs(30);
/// What a change may take when nothing is said. The engine gives it 30 s once its body is there,
/// and the body 60 s.
pub const CHANGE: Duration = Duration::from_secs(120);
/// Time for the engine's own word that a timeout has passed to arrive.
const GRACE: Duration = Duration::from_secs(1);

/// The setting `timeout`: what the engine takes, 1 ms to 600 s.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Timeout(Duration);

/// How long the answer to one request is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// This long, unless the setting `timeout` says otherwise.
    Usual(Duration),
    /// The request itself says how long it may take: that, and what a change may take besides.
    Own(Duration),
}

impl Timeout {
    /// Reads a whole number with a unit, such as `500ms`, `2s` or `1m`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let time = parse_duration(text).map_err(|refusal| {
            let Problem { detail, hint, .. } = refusal.into();
            hint.map_or(detail.clone(), |hint| format!("{detail}: {hint}"))
        })?;
        check::timeout(time).map_err(|problem| format!("{text:?} {}", problem.detail))?;
        Ok(Self(time))
    }
}

impl TryFrom<String> for Timeout {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Self::parse(&text)
    }
}

impl From<Timeout> for String {
    fn from(timeout: Timeout) -> Self {
        timeout.to_string()
    }
}

/// As the engine reads it, in a body or a query string.
impl fmt::Display for Timeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}ms", self.0.as_millis())
    }
}

impl Patience {
    /// The bound of a request under this setting.
    pub fn bound(self, timeout: Option<Timeout>) -> Duration {
        match (self, timeout) {
            (Self::Own(time), _) => time + CHANGE,
            (Self::Usual(_), Some(timeout)) => timeout.0 + GRACE,
            (Self::Usual(time), None) => time,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hopbine_coordinator::request::{CallOptions, WriteOptions};

    #[test]
    fn a_timeout_is_what_the_engine_takes_and_is_sent_in_its_terms() {
        for (text, sent) in [("500ms", "500ms"), ("2s", "2000ms"), ("10m", "600000ms")] {
            assert_eq!(Timeout::parse(text).expect(text).to_string(), sent);
        }
        for text in ["", "5", "soon", "1.5s", "-1s", "0s", "601s", "1h", "99999999999999999999s"] {
            let why = Timeout::parse(text).expect_err(text);
            assert!(why.contains(&format!("{text:?}")), "{why}");
        }
    }

    #[test]
    fn the_client_gives_up_after_the_engine_would_have() {
        let two = Timeout::parse("2s").ok();
        assert!(ANSWER > CallOptions::default().timeout);
        assert!(CHANGE > WriteOptions::default().timeout);
        assert_eq!(Patience::Usual(ANSWER).bound(None), ANSWER);
        assert_eq!(Patience::Usual(ANSWER).bound(two), Duration::from_secs(3));
        assert_eq!(Patience::Own(ANSWER).bound(two), ANSWER + CHANGE);
    }
}
