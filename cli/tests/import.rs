//! `import jsonl` and the graph it loads into: made only for facts that were understood, with its
//! data folder, and used as it is when it is what the command line says. Facts get the vectors of
//! their words, and those that have none are told of.

mod common;

use common::{Server, bad, errors, good, run, run_with};
use serde_json::Value;
use std::path::Path;

fn import(data: &Path, more: &str, lines: &str) -> std::process::Output {
    let data = data.to_str().expect("text");
    let args: Vec<&str> = more.split_whitespace().collect();
    run_with(
        &[&["import", "jsonl", "-", "--data", data, "--graph", "g"], &args[..]].concat(),
        lines,
    )
}

fn graph(data: &Path, args: &str) -> String {
    let data = data.to_str().expect("text");
    let args: Vec<&str> = args.split_whitespace().collect();
    good(&run(&[&["graph"], &args[..], &["--data", data]].concat()))
}

/// Everything in a data folder; none when there is none.
fn entries(data: &Path) -> usize {
    std::fs::read_dir(data).map_or(0, Iterator::count)
}

const NUMBERS: &str = "{\"entity\":1,\"relation\":1,\"target\":2,\"embedding\":[1,2]}\n";

#[test]
fn nothing_is_created_before_the_first_fact_was_understood() {
    let dir = tempfile::tempdir().expect("a folder");
    let cases = [
        ("{\"entity\":1,,}\n", "-:1:13"),
        ("[]\n", "-:1:"),
        ("{\"entity\":1,\"relation\":1}\n", "target"),
        ("{\"entity\":1,\"relation\":1,\"target\":2,\"colour\":3}\n", "colour"),
        (
            "{\"entity\":1,\"relation\":1,\"target\":2,\"embedding\":[1,2,3]}\n",
            "dimension_mismatch",
        ),
        ("{\"entity\":1,\"relation\":1,\"target\":2,\"embedding\":[0,0]}\n", "not_finite"),
        ("{\"entity\":1,\"relation\":1,\"target\":-2}\n", "-:1:35"),
        ("{\"entity\":\"a\",\"relation\":1,\"target\":2}\n", "relation"),
        ("\n\n{\"entity\":1,\"relation\":1,\"target\":2,\"embedding\":[1,null]}\n", "-:3:"),
    ];
    for (line, words) in cases {
        let wrong = bad(&import(dir.path(), "--dim 2", &format!("{line}{NUMBERS}")), 1);
        assert!(wrong.contains(words), "{line}: {wrong}");
        assert!(!wrong.contains("created"), "{line}: {wrong}");
        assert_eq!(entries(dir.path()), 0, "{line}");
    }
    let reply = good(&import(dir.path(), "--dim 2", NUMBERS));
    let reply: Value = serde_json::from_str(&reply).expect("JSON");
    assert_eq!(reply["upserted"], 1);
    assert!(graph(dir.path(), "list -o csv").contains("g,2,cosine,u64,"));
}

#[test]
fn an_import_that_is_refused_leaves_neither_a_graph_nor_a_data_folder() {
    let dir = tempfile::tempdir().expect("a folder");
    let data = dir.path().join("data");
    let second_is_wrong =
        format!("{NUMBERS}{}", NUMBERS.replace("[1,2]", "[1,2,3]").replace(":1,", ":7,"));
    let cases: [(&str, &str, i32, &str); 7] = [
        ("", NUMBERS, 3, "--dim N"),
        ("--dim 2 --metric manhattan", NUMBERS, 2, "--metric"),
        ("--dim 2 --embedder lexcial", NUMBERS, 2, "lexcial"),
        ("--dim 2 --embed text", NUMBERS, 2, "--embedder lexical"),
        ("--dim 2 --shards 2", NUMBERS, 2, "boundaries"),
        ("--dim 2 --recall-target 7", NUMBERS, 2, "recall_target"),
        ("--dim 2", &second_is_wrong, 1, "-:2:"),
    ];
    let remote = tempfile::tempdir().expect("a folder");
    let server = Server::start(remote.path(), &[]);
    for (more, lines, code, words) in cases {
        let wrong = bad(&import(&data, more, lines), code);
        assert!(wrong.contains(words), "{more}: {wrong}");
        assert!(!data.exists(), "{more}");
        let more: Vec<&str> = more.split_whitespace().collect();
        let args = ["import", "jsonl", "-", "--graph", "g", "--url", &server.url];
        let wrong = bad(&run_with(&[&args[..], &more[..]].concat(), lines), code);
        assert!(wrong.contains(words), "{more:?}: {wrong}");
        let list = server.json("GET", "/v1/graphs", &Value::Null);
        assert_eq!(list["graphs"], Value::Array(Vec::new()), "{more:?}");
    }
    let data_text = data.to_str().expect("text");
    bad(&run(&["import", "jsonl", "not-there", "-g", "g", "--data", data_text]), 1);
    assert!(!data.exists());
}

#[test]
fn a_file_without_facts_makes_no_graph() {
    let dir = tempfile::tempdir().expect("a folder");
    let output = import(dir.path(), "--dim 2", "\n \n");
    let reply: Value = serde_json::from_str(&good(&output)).expect("JSON");
    assert_eq!(reply["upserted"], 0);
    assert!(errors(&output).contains("no graph"), "{}", errors(&output));
    assert_eq!(entries(dir.path()), 0);
    bad(&import(dir.path(), "", "\n"), 3);
    graph(dir.path(), "create g --dim 2");
    good(&import(dir.path(), "--dim 2", "\n"));
}

#[test]
fn a_graph_that_is_there_is_used_when_it_is_what_the_command_line_says() {
    let dir = tempfile::tempdir().expect("a folder");
    let made = "create g --dim 2 --ids u64 --embedder lexical --metric l2 --boundaries 5,9 --m 16 \
                --ef-search 77 --recall-target 0.95 --payload-index year,source";
    graph(dir.path(), made);
    for said in [
        "",
        "--dim 2",
        "--ids u64",
        "--dim 2 --ids u64 --metric l2 --embedder lexical",
        "--dim 2 --boundaries 5,9 --m 16 --ef-construction 200 --ef-search 77",
        "--recall-target 0.95 --payload-index year,source",
    ] {
        let output = import(dir.path(), said, NUMBERS);
        good(&output);
        assert!(!errors(&output).contains("created"), "{said}: {}", errors(&output));
    }
    let refused = [
        ("--dim 8", "vector.dim", "2", "8"),
        ("--dim 2 --ids names", "ids", "\"u64\"", "\"names\""),
        ("--ids names", "ids", "\"u64\"", "\"names\""),
        ("--metric cosine", "vector.metric", "\"l2\"", "\"cosine\""),
        ("--dim 2 --embedder lexical-code", "embedder", "\"lexical\"", "\"lexical-code\""),
        ("--boundaries 5", "shards.boundaries", "[5,9]", "[5]"),
        ("--m 24", "index.m", "16", "24"),
        ("--ef-search auto", "index.ef_search", "77", "\"auto\""),
        ("--recall-target 0.99", "index.recall_target", "0.95", "0.99"),
        ("--vector-required", "vector.required", "false", "true"),
        ("--payload-index year", "payload_index", "[\"year\",\"source\"]", "[\"year\"]"),
    ];
    for (said, key, is, asked) in refused {
        let wrong = bad(&import(dir.path(), said, NUMBERS), 8);
        let words = format!("{key} is {is}, the command line says {asked}");
        assert!(wrong.contains(&words), "{said}: {wrong}");
    }
    let wrong = bad(&import(dir.path(), "--dim 8 --metric cosine", NUMBERS), 8);
    assert!(wrong.contains("vector.dim") && wrong.contains("vector.metric"), "{wrong}");
    let stats: Value = serde_json::from_str(&graph(dir.path(), "show g --stats")).expect("JSON");
    assert_eq!(stats["facts"], 1);
}

/// A fact about `entity` with this payload.
fn worded(entity: &str, payload: &str) -> String {
    format!(
        "{{\"entity\":\"{entity}\",\"relation\":\"r\",\"target\":\"t\",\"payload\":{payload}}}\n"
    )
}

fn found(data: &Path, words: &str) -> usize {
    let data = data.to_str().expect("text");
    let args = ["search", "-g", "g", "--text", words, "--data", data, "-o", "jsonl"];
    good(&run(&args)).lines().count()
}

#[test]
fn a_graph_that_is_there_says_itself_how_words_become_vectors() {
    let dir = tempfile::tempdir().expect("a folder");
    let facts = [worded("a", r#"{"txt":"red fox"}"#), worded("b", r#"{"txt":"blue whale"}"#)];
    let facts = facts.concat();
    let wrong = bad(&import(dir.path(), "--embed txt", &facts), 3);
    assert!(wrong.contains("--dim N"), "{wrong}");
    let wrong = bad(&import(dir.path(), "--embed txt --dim 16", &facts), 2);
    assert!(wrong.contains("--embedder lexical"), "{wrong}");
    graph(dir.path(), "create g --dim 16 --embedder lexical");
    let output = import(dir.path(), "--embed txt", &facts);
    good(&output);
    assert!(errors(&output).contains("2 facts durable and searchable"), "{}", errors(&output));
    assert!(!errors(&output).contains("no vector"), "{}", errors(&output));
    assert_eq!(found(dir.path(), "a red fox"), 2);
    good(&import(dir.path(), "--embed txt --dim 16 --embedder lexical", &facts));
    bad(&import(dir.path(), "--embed txt --dim 8", &facts), 8);
    let other = dir.path().join("other");
    graph(&other, "create g --dim 16");
    let wrong = bad(&import(&other, "--embed txt", &facts), 2);
    assert!(wrong.contains("no embedder"), "{wrong}");
}

#[test]
fn a_line_without_the_words_to_embed_is_a_bad_line() {
    let dir = tempfile::tempdir().expect("a folder");
    let create = "--dim 2 --embedder lexical --embed text";
    let with_its_own = worded("b", "{},\"embedding\":[1,2]");
    for (payload, column, words) in
        [("{\"txt\":\"fox\"}", 53, "no such text"), ("{\"text\":7}", 61, "no text")]
    {
        let lines = format!("{with_its_own}{}", worded("a", payload));
        let wrong = bad(&import(dir.path(), create, &lines), 1);
        assert!(wrong.contains(&format!("-:2:{column}: --embed text: ")), "{wrong}");
        assert!(wrong.contains(words) && wrong.contains("loaded 1 facts"), "{wrong}");
    }
    let output = import(dir.path(), create, &worded("c", r#"{"text":"of the"}"#));
    good(&output);
    assert!(errors(&output).contains("stop words"), "{}", errors(&output));
}

#[test]
fn a_fact_whose_text_is_empty_is_loaded_without_a_vector_and_counted() {
    let dir = tempfile::tempdir().expect("a folder");
    let lines = [
        worded("a", r#"{"text":"red fox"}"#),
        worded("b", r#"{"text":""}"#),
        worded("c", "{\"text\":\" \\n \"}"),
        worded("d", r#"{"text":"blue whale"}"#),
    ];
    let output = import(dir.path(), "--dim 8 --embedder lexical --embed text", &lines.concat());
    let reply: Value = serde_json::from_str(&good(&output)).expect("JSON");
    assert_eq!((&reply["upserted"], &reply["without_vector"]), (&4.into(), &2.into()));
    let told = errors(&output);
    assert!(told.contains("2 of 4 facts have no vector"), "{told}");
    assert!(told.contains("text of their payloads is empty"), "{told}");
    assert_eq!(found(dir.path(), "red fox"), 2);
}

#[test]
fn facts_without_a_vector_are_told_of_with_what_to_do() {
    let dir = tempfile::tempdir().expect("a folder");
    let lines = [worded("a", r#"{"text":"red fox"}"#), worded("b", r#"{"text":"blue whale"}"#)];
    let lines = lines.concat();
    let output = import(dir.path(), "--dim 4 --embedder lexical", &lines);
    let reply: Value = serde_json::from_str(&good(&output)).expect("JSON");
    assert_eq!((&reply["upserted"], &reply["without_vector"]), (&2.into(), &2.into()));
    let told = errors(&output);
    assert!(told.contains("warning: 2 of 2 facts have no vector"), "{told}");
    assert!(told.contains("--embed text") && told.contains("0 of them searchable"), "{told}");
    assert_eq!(found(dir.path(), "red fox"), 0);
    let some = format!("{lines}{}", worded("c", "{},\"embedding\":[1,2,3,4]"));
    let told = errors(&import(dir.path(), "", &some));
    assert!(told.contains("2 of 3 facts have no vector") && !told.contains("warning"), "{told}");
    let plain = dir.path().join("plain");
    let told = errors(&import(&plain, "--dim 2", &lines));
    assert!(told.contains("\"embedding\"") && !told.contains("warning"), "{told}");
}

#[test]
fn a_byte_order_mark_is_skipped_and_a_list_is_told_what_a_line_is() {
    let dir = tempfile::tempdir().expect("a folder");
    good(&import(dir.path(), "--dim 2", &format!("\u{feff}{NUMBERS}")));
    let wrong = bad(&import(dir.path(), "", &format!("[{}]\n", NUMBERS.trim())), 1);
    assert!(wrong.contains("-:1:1: each line must be one JSON object"), "{wrong}");
}
