//! Standard output and standard error: what is not all of a result says so, what cannot be written
//! is no success, and nothing makes the binary panic or a server stop.

mod common;

use common::{Server, bad, errors, good, hopbine, in_bash, run, run_with};
use std::path::Path;
use std::process::Output;

const FACTS: &str = include_str!("data/people.jsonl");

fn text(path: &Path) -> &str {
    path.to_str().expect("text")
}

/// A folder with the facts in the graph `people`.
fn loaded() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a folder");
    let args = ["import", "jsonl", "-", "--graph", "people", "--dim", "4", "--data"];
    good(&run_with(&[&args[..], &[text(dir.path())]].concat(), FACTS));
    dir
}

/// Runs a script of bash in which `"$@"` is the binary with `args`.
fn bash(script: &str, args: &[&str]) -> Output {
    in_bash(script, args).output().expect("bash is there")
}

/// The token that standard error says to go on with.
fn token(output: &Output) -> Option<String> {
    let errors = errors(output);
    let (_, rest) = errors.split_once("follow: --page-token ")?;
    rest.split([',', '\n']).next().map(str::to_owned)
}

#[test]
fn every_verb_with_pages_says_how_to_go_on_unless_the_reply_shows_it() {
    let dir = loaded();
    let data = ["--data", text(dir.path())];
    let expand = ["expand", "-g", "people", "--from", "Marie Curie", "--path", "*"];
    let scan = ["facts", "scan", "-g", "people"];
    for (verb, what) in [(&expand[..], "more results"), (&scan[..], "more facts")] {
        for format in ["table", "csv", "jsonl"] {
            let page = |more: &[&str]| {
                let size = ["--page-size", "1", "-o", format];
                run(&[verb, &size, more, &data].concat())
            };
            let mut output = page(&[]);
            assert!(errors(&output).starts_with(what), "{}", errors(&output));
            let mut pages = vec![good(&output)];
            while let Some(next) = token(&output) {
                output = page(&["--page-token", &next]);
                pages.push(good(&output));
            }
            assert_eq!(errors(&output), "", "the last page");
            let whole = run(&[verb, &["-o", "jsonl"], &data].concat());
            let rows = good(&whole).lines().count();
            assert_eq!(errors(&whole), "", "a result of one page");
            let heading = usize::from(format != "jsonl");
            let shown: usize = pages.iter().map(|page| page.lines().count() - heading).sum();
            assert_eq!(shown, rows, "{verb:?} {format}: {pages:?}");
        }
        let json = run(&[verb, &["--page-size", "1", "-o", "json"], &data].concat());
        assert!(good(&json).contains("next_page_token") && errors(&json).is_empty());
    }
}

#[test]
fn a_partial_answer_says_in_words_what_it_lacks() {
    let dir = loaded();
    let from = ["rag", "-g", "people", "--from", "radium", "--from", "polonium"];
    let walk = ["--path", "found_by,born_in", "--limit-rows", "1", "-o", "csv"];
    let output = run(&[&from[..], &walk, &["--data", text(dir.path())]].concat());
    assert_eq!(good(&output).lines().count(), 2);
    let told = errors(&output);
    let words = "warning: the answer is partial: hop 1 reached --limit-rows, facts read: 1\n";
    assert_eq!(told, words);
}

#[test]
fn a_result_that_cannot_be_written_is_no_success() {
    let dir = loaded();
    let data = text(dir.path());
    let verbs: [&[&str]; 5] = [
        &["version"],
        &["--version"],
        &["rag", "--help"],
        &["graph", "list", "--data", data],
        &["check", "--data", data],
    ];
    for verb in verbs {
        let wrong = bad(&bash("exec \"$@\" >/dev/full", verb), 1);
        assert!(wrong.contains("standard output"), "{verb:?}: {wrong}");
    }
    // A descriptor that is open, but for reading only.
    let wrong = bad(&bash("exec \"$@\" 1</dev/null", &["version"]), 1);
    assert!(wrong.contains("standard output"), "{wrong}");
}

#[test]
fn a_reader_that_went_away_ends_a_verb_quietly_and_hides_no_finding() {
    let dir = loaded();
    let data = text(dir.path());
    let unread = |args: &[&str]| {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        hopbine(args).stdout(writer).output().expect("the binary starts")
    };
    for verb in [&["version"][..], &["rag", "--help"], &["graph", "list", "--data", data]] {
        let output = unread(verb);
        assert_eq!((output.status.code(), errors(&output).as_str()), (Some(0), ""), "{verb:?}");
    }
    let missing = ["facts", "get", "-g", "people", "--key", "a", "r", "b", "--data", data];
    bad(&unread(&missing), 3);
    std::fs::remove_file(dir.path().join("node-id")).expect("removed");
    bad(&unread(&["check", "--data", data]), 7);
}

#[test]
fn a_standard_error_that_takes_nothing_changes_no_exit_code() {
    let dir = loaded();
    let data = text(dir.path());
    let import = "exec \"$@\" < tests/data/people.jsonl";
    let load = ["import", "jsonl", "-", "-g", "people", "--data", data];
    let cases: [(&str, &[&str], i32); 6] = [
        ("exec \"$@\"", &["check", "--data", "not-there"], 3),
        ("exec \"$@\"", &["check", "--data", data], 0),
        ("exec \"$@\"", &["--nonsense"], 2),
        ("exec \"$@\"", &["facts", "scan", "-g", "people", "--page-size", "1", "--data", data], 0),
        ("exec \"$@\"", &["graph", "list", "--url", "http://127.0.0.1:1"], 4),
        (import, &load, 0),
    ];
    for (script, verb, code) in cases {
        for end in ["2>&-", "2>/dev/full", "2</dev/null"] {
            let output = bash(&format!("{script} {end}"), verb);
            assert_eq!(output.status.code(), Some(code), "{verb:?} {end}");
        }
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let broken = in_bash(script, verb).stderr(writer).output().expect("bash is there");
        assert_eq!(broken.status.code(), Some(code), "{verb:?}");
    }
}

#[test]
fn a_server_outlives_the_reader_of_its_log() {
    let dir = loaded();
    let serve = ["serve", "--data", text(dir.path()), "--http", "127.0.0.1:0", "--log", "debug"];
    for end in ["2>&-", "2>/dev/full", "2> >(exec true)"] {
        let server = Server::started(in_bash(&format!("exec \"$@\" {end}"), &serve));
        for _ in 0..3 {
            let list = good(&run(&["graph", "list", "-o", "csv", "--url", &server.url]));
            assert!(list.contains("people,4"), "{end}: {list}");
        }
        assert_eq!(server.terminate(), Some(0), "{end}");
    }
}
