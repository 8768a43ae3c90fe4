//! Whether the process is fit to serve, as its owner sees it.

use std::time::Duration;

/// One condition of readiness.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// Short lower-case name, such as `shards`.
    pub name: &'static str,
    /// Why it does not hold, and for how long; `None` when it holds.
    pub failed: Option<(String, Duration)>,
}

impl Check {
    /// A condition that holds.
    pub fn ok(name: &'static str) -> Self {
        Self { name, failed: None }
    }

    /// A condition that does not hold for `reason`, since `age` ago.
    pub fn failed(name: &'static str, reason: impl Into<String>, age: Duration) -> Self {
        Self { name, failed: Some((reason.into(), age)) }
    }
}

/// What the embedding process knows of its readiness: own data loaded, catalogue reachable, own
/// shards caught up once since the start, disk writable.
pub trait Health: Send + Sync {
    /// The conditions, always the same ones in the same order. Cheap; never waits.
    fn checks(&self) -> Vec<Check>;
}

/// Nothing to wait for: always ready.
#[derive(Debug, Default)]
pub struct AlwaysReady;

impl Health for AlwaysReady {
    fn checks(&self) -> Vec<Check> {
        Vec::new()
    }
}

/// The text of `/readyz`: whether all hold, and one line per check (only the failed ones unless
/// `verbose`).
pub fn report(checks: &[Check], verbose: bool) -> (bool, String) {
    let ready = checks.iter().all(|check| check.failed.is_none());
    let mut text = String::new();
    for check in checks {
        match &check.failed {
            Some((reason, age)) => {
                let seconds = age.as_secs();
                text += &format!("[-]{} failed: {reason}, since {seconds} s\n", check.name);
            }
            None if verbose => text += &format!("[+]{} ok\n", check.name),
            None => {}
        }
    }
    text += if ready { "ready\n" } else { "not ready\n" };
    (ready, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_check_is_shown_and_a_good_one_on_request() {
        let wait = Duration::from_secs(12);
        let checks = [Check::ok("disk"), Check::failed("shards", "2 of 3 loaded", wait)];
        let failed = "[-]shards failed: 2 of 3 loaded, since 12 s\nnot ready\n";
        assert_eq!(report(&checks, false), (false, failed.to_owned()));
        assert_eq!(report(&checks, true), (false, format!("[+]disk ok\n{failed}")));
        assert_eq!(report(&checks[..1], false), (true, "ready\n".to_owned()));
    }
}
