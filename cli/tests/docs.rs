//! Every example of docs/cli.md and docs/retrieval.md, the first one of the README and the session
//! of docs/http.md is run, and its output is what the page says.

mod common;

use common::Server;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};

/// One command with the output that the page shows.
struct Example {
    command: String,
    shown: Vec<String>,
}

fn examples(page: &str) -> Vec<Example> {
    let mut found: Vec<Example> = Vec::new();
    let (mut inside, mut document) = (false, false);
    for line in page.lines() {
        if line.starts_with("```") {
            inside = line == "```console";
        } else if inside && document {
            let example = found.last_mut().expect("a document belongs to a command");
            example.command.push_str(&format!("\n{line}"));
            document = line != "END";
        } else if let (true, Some(command)) = (inside, line.strip_prefix("$ ")) {
            document = command.ends_with("<<'END'");
            found.push(Example { command: command.to_owned(), shown: Vec::new() });
        } else if inside {
            found.last_mut().expect("output follows a command").shown.push(line.to_owned());
        }
    }
    found
}

/// Whether `line` is `pattern`, where `...` stands for anything.
fn same(pattern: &str, line: &str) -> bool {
    match pattern.split_once("...") {
        None => pattern == line,
        Some((start, end)) => {
            line.len() >= start.len() + end.len() && line.starts_with(start) && line.ends_with(end)
        }
    }
}

/// Whether `lines` are what the page shows; a line `...` stands for any number of lines.
fn matches(shown: &[String], lines: &[&str]) -> bool {
    match shown.split_first() {
        None => lines.is_empty(),
        Some((first, rest)) if first == "..." => {
            (0..=lines.len()).any(|skipped| matches(rest, &lines[skipped..]))
        }
        Some((first, rest)) => {
            lines.first().is_some_and(|line| same(first, line)) && matches(rest, &lines[1..])
        }
    }
}

fn shell(command: &str, dir: &Path) -> String {
    let binary = Path::new(env!("CARGO_BIN_EXE_hopbine"));
    let folder = binary.parent().expect("a folder").display();
    let path = format!("{folder}:{}", std::env::var("PATH").unwrap_or_default());
    let mut bash = Command::new("bash");
    bash.args(["-c", command]).current_dir(dir).env("PATH", path).stdin(Stdio::null());
    // Tests run side by side: none may take the usual port.
    bash.env("HOPBINE_GRPC", "127.0.0.1:0");
    let output = bash.stderr(Stdio::inherit()).output().expect("bash is there");
    String::from_utf8(output.stdout).expect("text")
}

/// A page by its name below the root of the project.
fn page(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name);
    std::fs::read_to_string(path).expect("the page is there")
}

#[test]
fn the_examples_of_the_command_line_do_what_the_page_says() {
    let dir = tempfile::tempdir().expect("a folder");
    let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let port = free.expect("a free port").port().to_string();
    let examples = examples(&page("docs/cli.md"));
    assert!(examples.len() > 15, "{} examples", examples.len());
    let mut servers = Vec::new();
    for Example { command, shown } in examples {
        if let Some(serve) = command.strip_suffix(" &") {
            assert!(serve.starts_with("hopbine serve --data papers "), "{serve}");
            let address = format!("127.0.0.1:{port}");
            servers.push(Server::start_at(&dir.path().join("papers"), &address, &[]));
            continue;
        }
        let output = shell(&command.replace("7640", &port), dir.path());
        let output = output.replace(&port, "7640");
        let lines: Vec<&str> = output.lines().collect();
        assert!(matches(&shown, &lines), "$ {command}\nwrote\n{output}\nthe page shows {shown:#?}");
    }
    assert_eq!(servers.len(), 1);
}

#[test]
fn the_examples_of_retrieval_do_what_the_page_says() {
    let dir = tempfile::tempdir().expect("a folder");
    let examples = examples(&page("docs/retrieval.md"));
    assert!(examples.len() > 8, "{} examples", examples.len());
    for Example { command, shown } in examples {
        let output = shell(&command, dir.path());
        let lines: Vec<&str> = output.lines().collect();
        assert!(matches(&shown, &lines), "$ {command}\nwrote\n{output}\nthe page shows {shown:#?}");
    }
}

#[test]
fn the_example_of_the_readme_can_be_pasted_as_a_whole() {
    let page = page("README.md");
    let mut blocks = page.split("\n```");
    let script = blocks.find(|block| block.starts_with("sh\ncat > facts.jsonl"));
    let script = script.and_then(|block| block.strip_prefix("sh\n")).expect("the script");
    let shown = blocks.find_map(|block| block.strip_prefix("text\n")).expect("its output");
    let dir = tempfile::tempdir().expect("a folder");
    let output = shell(script, dir.path());
    let lines: Vec<&str> = output.lines().collect();
    let shown: Vec<String> = shown.lines().map(str::to_owned).collect();
    assert!(matches(&shown, &lines), "wrote\n{output}\nthe page shows {shown:#?}");
}

#[test]
fn the_session_of_the_http_page_can_be_pasted_as_a_whole() {
    if Command::new("curl").arg("--version").output().is_err() {
        eprintln!("no curl here: the session of docs/http.md was not run");
        return;
    }
    let page = page("docs/http.md");
    let mut blocks = page.split("\n```");
    let script = blocks.find_map(|block| block.strip_prefix("sh\n")).expect("the session");
    let shown = blocks.find_map(|block| block.strip_prefix("text\n")).expect("its output");
    let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let port = free.expect("a free port").port().to_string();
    let dir = tempfile::tempdir().expect("a folder");
    let output = shell(&script.replace("7640", &port), dir.path()).replace(&port, "7640");
    let lines: Vec<&str> = output.lines().collect();
    let shown: Vec<String> = shown.lines().map(str::to_owned).collect();
    assert!(matches(&shown, &lines), "wrote\n{output}\nthe page shows {shown:#?}");
}

#[test]
fn dots_stand_for_anything() {
    let shown = |lines: &[&str]| lines.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>();
    assert!(matches(&shown(&["a...c", "...", "z"]), &["abc", "x", "y", "z"]));
    assert!(!matches(&shown(&["a...c", "z"]), &["abc", "x", "z"]));
    assert!(!matches(&shown(&["a"]), &["a", "b"]));
    assert!(!matches(&shown(&["a  b"]), &["a b"]), "a page shows columns as they are");
}
