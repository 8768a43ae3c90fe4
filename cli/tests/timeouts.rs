//! `timeout` holds for every verb: a wrong one is refused, a right one reaches the server, and a
//! server that stays silent is given up on.

mod common;

use common::{Server, bad, good, hopbine, run};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

/// Long enough for a busy machine, far below what a verb waits by itself.
const SOON: Duration = Duration::from_secs(20);

/// One line of every verb that talks to a server; a bar stands for a space within one argument.
const ASKING: &[&str] = &[
    "search --graph g --embedding [1,2]",
    "search --graph g --embedding [1,2] --relations 7",
    "rag --graph g --embedding [1,2] --path r",
    "expand --graph g --from a --path r",
    "facts get --graph g --key a r b",
    "facts put --graph g --key a r b",
    "facts put --graph g --key 1 2 3 --payload 7",
    "facts delete --graph g --key a r b",
    "facts scan --graph g --all",
    "graph list",
    "graph show g",
    "graph show g --stats",
    "graph show g --relations",
    "graph create g --dim 2",
    "graph drop g --confirm g",
    "import jsonl /dev/null --graph g",
    "bench butler_gate",
];

/// Verbs that answer by themselves.
const ALONE: &[&str] = &["demo", "check", "version", "config show", "serve --http 127.0.0.1:0"];

fn words(line: &str) -> Vec<&str> {
    line.split(' ').collect()
}

fn refused(args: &[&str], environment: Option<&str>, place: &str, value: &str) {
    let mut command = hopbine(args);
    if let Some(value) = environment {
        command.env("HOPBINE_TIMEOUT", value);
    }
    let errors = bad(&command.output().expect("the binary starts"), 2);
    for part in ["timeout", place, value] {
        assert!(errors.contains(part), "{args:?} does not name {part}: {errors}");
    }
}

#[test]
fn every_verb_refuses_a_timeout_that_is_none() {
    let dir = tempfile::tempdir().expect("a folder");
    let data = dir.path().join("data");
    let data = data.to_str().expect("text");
    for line in ASKING.iter().chain(ALONE) {
        let args = [words(line).as_slice(), &["--data", data, "--timeout", "bogus"]].concat();
        refused(&args, None, "flag", "bogus");
    }
    for value in ["5", "1.5s", "0s", "11m", "-1s", "2s&wait=indexed"] {
        refused(&["version", &format!("--timeout={value}")], None, "flag", value);
    }
    refused(&["version"], Some("soon"), "environment HOPBINE_TIMEOUT", "soon");
    refused(&["version", "--set", "timeout=soon"], None, "flag", "soon");
    let file = dir.path().join("hopbine.toml");
    std::fs::write(&file, "timeout = \"soon\"\n").expect("written");
    let file = file.to_str().expect("text");
    refused(&["version", "--config", file], None, file, "soon");
    assert!(!std::path::Path::new(data).exists(), "nothing was opened");
}

/// A server that answers each request with `answer`, then nothing more on that connection, and
/// keeps what it was asked.
struct Puppet {
    url: String,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Puppet {
    fn start(answer: impl Fn(&str) -> String + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("bound"));
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (kept, answer) = (asked.clone(), Arc::new(answer));
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (kept, answer) = (kept.clone(), answer.clone());
                std::thread::spawn(move || converse(stream, &kept, &*answer));
            }
        });
        Self { url, asked }
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().expect("whole").clone()
    }
}

/// Reads whole requests (head, length, body) until the client goes away.
fn converse(mut stream: TcpStream, asked: &Mutex<Vec<String>>, answer: &dyn Fn(&str) -> String) {
    let (mut text, mut piece) = (String::new(), [0; 65_536]);
    while let Ok(read @ 1..) = stream.read(&mut piece) {
        text.push_str(&String::from_utf8_lossy(&piece[..read]));
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let length: usize = length.map_or(0, |length| length.parse().expect("a number"));
        if body.len() < length {
            continue;
        }
        asked.lock().expect("whole").push(text.clone());
        // A client that gave up is what most tests here are about.
        let _ = stream.write_all(answer(&text).as_bytes());
        text.clear();
    }
}

fn answer(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

fn start(line: &str, more: &[&str]) -> Child {
    let mut command = hopbine(&[words(line).as_slice(), more].concat());
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts")
}

/// Runs every line at once against `url` with a short timeout; each must end with 6, soon.
fn all_give_up(url: &str, lines: &[&str]) -> Vec<Output> {
    let began = Instant::now();
    let more = ["--url", url, "--timeout", "200ms"];
    let running: Vec<Child> = lines.iter().map(|line| start(line, &more)).collect();
    let ended = running.into_iter().zip(lines).map(|(child, line)| {
        let output = child.wait_with_output().expect("it ends");
        let errors = bad(&output, 6);
        assert!(errors.contains("no answer") && errors.contains(url), "{line}: {errors}");
        output
    });
    let ended = ended.collect();
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    ended
}

#[test]
fn every_verb_gives_up_on_a_server_that_says_nothing() {
    let silent = Puppet::start(|_| String::new());
    let ended = all_give_up(&silent.url, ASKING);
    for (line, output) in ASKING.iter().zip(ended) {
        let change = ["facts put --graph g --key a", "facts delete", "graph create", "graph drop"];
        if change.iter().any(|start| line.starts_with(start)) {
            let errors = common::errors(&output);
            assert!(errors.contains("not known"), "{line}: {errors}");
        }
    }
}

#[test]
fn a_server_that_stops_in_the_middle_of_an_answer_is_given_up_on() {
    let head = Puppet::start(|_| "HTTP/1.1 200 OK\r\ncontent-le".to_owned());
    all_give_up(&head.url, &["graph list", "search --graph g --embedding [1,2]"]);
    let body = Puppet::start(|_| "HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n{\"gra".to_owned());
    all_give_up(&body.url, &["graph list", "facts put --graph g --key a r b"]);
}

#[test]
fn a_listener_that_accepts_nothing_is_given_up_on() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    all_give_up(&url, &["graph list"]);
}

#[test]
fn a_server_that_falls_silent_after_its_first_answers_is_given_up_on() {
    let graph = r#"{"name":"g","config":{"ids":"u64","vector":{"dim":2}}}"#;
    let puppet =
        Puppet::start(
            move |asked| {
                if asked.starts_with("GET ") { answer(graph) } else { String::new() }
            },
        );
    all_give_up(
        &puppet.url,
        &["facts put --graph g --key 1 2 3", "facts get --graph g --key 1 2 3"],
    );
}

#[test]
fn an_import_that_waits_for_a_silent_server_ends_at_ctrl_c() {
    let graph = r#"{"name":"g","config":{"ids":"names","vector":{"dim":4}}}"#;
    let (heard, batches) = mpsc::channel();
    let speak = move |asked: &str| {
        if asked.starts_with("GET ") {
            return answer(graph);
        }
        heard.send(()).expect("the test listens");
        String::new()
    };
    let puppet = Puppet::start(speak);
    let child = start("import jsonl tests/data/people.jsonl --graph g", &["--url", &puppet.url]);
    batches.recv_timeout(SOON).expect("a batch is sent");
    let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(sent.expect("kill is there").success());
    let began = Instant::now();
    let errors = bad(&child.wait_with_output().expect("it ends"), 130);
    assert!(began.elapsed() < SOON && errors.contains("loaded 0 facts"), "{errors}");
}

#[test]
fn the_timeout_is_sent_where_the_call_takes_it() {
    let reply = r#"{"name":"g","config":{"ids":"u64"},"facts":[],"results":[],"not_found":[],
        "graphs":[],"relations":[],"partial":false,"next_page_token":null}"#;
    let puppet = Puppet::start(move |_| answer(reply));
    let in_body = "\"timeout\":\"90000ms\"";
    let in_query = "timeout=90000ms";
    let cases = [
        ("search --graph g --embedding [1,2]", in_body),
        ("rag --graph g --embedding [1,2] --path r", in_body),
        ("expand --graph g --from a --path r", in_body),
        ("facts get --graph g --key a r b", in_body),
        ("facts delete --graph g --key a r b", in_body),
        ("facts scan --graph g", in_body),
        ("facts put --graph g --key a r b", in_query),
        ("facts put --graph g --key a r b --wait indexed", in_query),
        ("graph show g --stats", in_query),
        ("graph show g --relations", in_query),
    ];
    for (line, wanted) in cases {
        let more = ["--url", &puppet.url, "--timeout", "90 s"];
        good(&run(&[words(line).as_slice(), &more].concat()));
        let asked = puppet.asked();
        let last = asked.last().expect("it asked");
        assert!(last.contains(wanted), "{line} sent {last}");
    }
}

#[test]
fn every_verb_works_with_a_timeout_at_a_real_server() {
    let dir = tempfile::tempdir().expect("a folder");
    let server = Server::start(dir.path(), &[]);
    for line in [
        "graph create g --dim 2",
        "graph show g",
        "graph show g --stats",
        "graph show g --relations",
        "graph list",
        "facts put --graph g --key a r b --embedding [1,2] --wait indexed",
        "facts get --graph g --key a r b",
        "facts scan --graph g --all",
        "search --graph g --embedding [1,2]",
        "rag --graph g --embedding [1,2] --path r",
        "expand --graph g --from a --path r",
        "facts delete --graph g --key a r b",
        "import jsonl tests/data/people.jsonl --graph people --dim 4",
        "graph drop g --confirm g",
        "bench butler_gate --runs 1",
        "demo",
    ] {
        let more: &[&str] = match line {
            "demo" => &["--timeout", "1 m"],
            _ => &["--url", &server.url, "--timeout", "1 m"],
        };
        good(&run(&[words(line).as_slice(), more].concat()));
    }
}
