//! A server that can no longer write its log ends by itself, and what it acknowledged is there.

#![cfg(target_os = "linux")]

mod common;

use common::{Server, good, in_bash, run};
use rustix::process::{Pid, Resource, Rlimit, prlimit};

/// The system is told to let the server write no byte to any file any more: the next write of the
/// raft log fails, as it would on a broken disk.
#[test]
fn a_server_whose_log_cannot_be_written_ends_by_itself_and_keeps_what_it_acknowledged() {
    let dir = tempfile::tempdir().expect("a folder");
    let data = dir.path().join("data");
    let data = data.to_str().expect("text");
    // Without the trap the signal for such a write would end the process first.
    let script = "trap '' XFSZ; exec \"$@\"";
    let serve = ["serve", "--data", data, "--http", "127.0.0.1:0"];
    let server = Server::started(in_bash(script, &serve));
    let url = ["--url", &server.url];
    good(&run(&[&["graph", "create", "g", "--dim", "2"], &url[..]].concat()));
    good(&run(&[&["facts", "put", "-g", "g", "--key", "a", "r", "b"], &url[..]].concat()));

    let pid = Pid::from_raw(server.pid() as i32).expect("a process");
    let nothing = Rlimit { current: Some(0), maximum: Some(0) };
    prlimit(Some(pid), Resource::Fsize, nothing).expect("it is our child");
    let put = run(&[&["facts", "put", "-g", "g", "--key", "c", "r", "d"], &url[..]].concat());
    assert!(!put.status.success(), "what is not in the log is not acknowledged");
    let (code, log) = server.end();
    assert_eq!(code, Some(1), "{log}");
    assert!(log.contains("the node cannot go on: raft log failed"), "{log}");

    good(&run(&["check", "--data", data]));
    let facts = good(&run(&["facts", "get", "-g", "g", "--key", "a", "r", "b", "--data", data]));
    assert!(facts.contains("\"a\""), "{facts}");
}
