//! `import jsonl` and the graph it loads into: made only for facts that were understood, and used
//! as it is when it is what the command line says.

mod common;

use common::{bad, errors, good, run, run_with};
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

fn graphs(data: &Path) -> usize {
    graph(data, "list -o jsonl").lines().count()
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
        assert_eq!(graphs(dir.path()), 0, "{line}");
    }
    let reply = good(&import(dir.path(), "--dim 2", NUMBERS));
    let reply: Value = serde_json::from_str(&reply).expect("JSON");
    assert_eq!(reply["upserted"], 1);
    assert!(graph(dir.path(), "list -o csv").contains("g,2,cosine,u64,"));
}

#[test]
fn a_file_without_facts_makes_no_graph() {
    let dir = tempfile::tempdir().expect("a folder");
    let output = import(dir.path(), "--dim 2", "\n \n");
    let reply: Value = serde_json::from_str(&good(&output)).expect("JSON");
    assert_eq!(reply["upserted"], 0);
    assert!(errors(&output).contains("no graph"), "{}", errors(&output));
    assert_eq!(graphs(dir.path()), 0);
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
