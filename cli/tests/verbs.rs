//! Every verb as a real process: embedded and remote give the same output, exit codes are right.

mod common;

use common::{Server, bad, good, run, run_with};
use serde_json::Value;
use std::path::Path;

const FACTS: &str = include_str!("data/people.jsonl");

/// A folder with the facts in the graph `people`.
fn loaded() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a folder");
    let data = text(dir.path());
    let args = ["import", "jsonl", "-", "--graph", "people", "--dim", "4", "--data", data];
    let output = run_with(&args, FACTS);
    let reply: Value = serde_json::from_str(&good(&output)).expect("JSON");
    assert_eq!((&reply["upserted"], &reply["replaced"]), (&Value::from(4), &Value::from(0)));
    dir
}

fn text(path: &Path) -> &str {
    path.to_str().expect("text")
}

/// Output without what names the moment of a read.
fn steady(output: &std::process::Output) -> String {
    let text = good(output);
    match serde_json::from_str::<Value>(&text) {
        Ok(mut reply) if reply.is_object() => {
            reply.as_object_mut().expect("an object").remove("consistency_token");
            reply.to_string()
        }
        _ => text,
    }
}

const QUESTION: &[&str] = &["--graph", "people", "--embedding", "[1,0,0,1]"];

/// Every reading verb, in every format of output.
fn reads() -> Vec<Vec<&'static str>> {
    let mut all = Vec::new();
    for format in ["json", "jsonl", "csv", "table"] {
        let mut add = |verb: &[&'static str], more: &[&'static str]| {
            all.push([verb, more, &["-o", format]].concat());
        };
        add(&["rag", "--path", "found_by,born_in"], QUESTION);
        add(
            &["rag", "--path", "found_by|married,*", "--exact-seeds", "--return-to-start"],
            QUESTION,
        );
        add(&["rag", "--from", "radium", "--path", "found_by", "--top-k", "1"], QUESTION);
        add(&["rag", "--ann-k", "2"], QUESTION);
        add(&["search", "-k", "2", "--exact"], QUESTION);
        add(&["search", "--filter", r#"{"must":[{"key":"year","match":1898}]}"#], QUESTION);
        add(&["expand", "--from", "polonium", "--path", "found_by,*"], &["--graph", "people"]);
        add(&["expand", "--from", "polonium", "--path", "found_by,*"], QUESTION);
        add(
            &["facts", "get", "--key", "radium", "found_by", "Marie Curie"],
            &["--graph", "people"],
        );
        add(&["facts", "scan", "--entity", "Marie Curie"], &["--graph", "people"]);
        add(&["facts", "scan", "--page-size", "3", "--all"], &["--graph", "people"]);
        add(&["graph", "list"], &[]);
        add(&["graph", "show", "people"], &[]);
        add(&["graph", "show", "people", "--relations"], &[]);
    }
    all
}

#[test]
fn embedded_and_remote_verbs_write_the_same() {
    let dir = loaded();
    let data = text(dir.path());
    let embedded: Vec<String> = reads()
        .iter()
        .map(|args| steady(&run(&[args.as_slice(), &["--data", data]].concat())))
        .collect();
    let server = Server::start(dir.path(), &[]);
    for (args, wanted) in reads().iter().zip(embedded) {
        let output = run(&[args.as_slice(), &["--url", &server.url]].concat());
        assert_eq!(steady(&output), wanted, "{args:?}");
    }
    assert_eq!(server.terminate(), Some(0));
}

#[test]
fn answers_show_whole_paths() {
    let dir = loaded();
    let data = text(dir.path());
    let args = ["--path", "found_by,born_in", "-o", "table", "--data", data];
    let table = good(&run(&[&["rag"], QUESTION, &args].concat()));
    let row = table.lines().nth(1).expect("a row");
    assert!(row.contains("polonium -found_by-> Marie Curie -born_in-> Warsaw"), "{table}");
    let args = ["--path", "found_by,born_in", "-o", "csv", "--data", data];
    let csv = good(&run(&[&["rag"], QUESTION, &args].concat()));
    assert_eq!(csv.lines().next(), Some("distance,path,text"));
}

#[test]
fn a_negative_weight_is_a_value_and_a_flag_in_its_place_is_none() {
    let dir = loaded();
    let ask = |more: &[&str]| {
        let way = ["--path", "found_by", "--data", text(dir.path()), "-o", "csv"];
        run(&[&["rag"], QUESTION, &way, more].concat())
    };
    let joined = ["--seed-weight=-1", "--hop-weights=-0.5"];
    let apart = ["--seed-weight", "-1", "--hop-weights", "-0.5"];
    let answer = good(&ask(&joined));
    assert_eq!(good(&ask(&apart)), answer);
    assert_ne!(good(&ask(&[])), answer);
    let two = ["--path", "found_by,born_in", "--hop-weights", "-1,-1e-3"];
    let data = ["--data", text(dir.path())];
    good(&run(&[&["expand", "--from", "radium"], QUESTION, &two, &data].concat()));
    for flag in ["--seed-weight", "--hop-weights"] {
        let errors = bad(&ask(&[flag, "--exact-seeds"]), 2);
        assert!(errors.contains(flag), "{errors}");
    }
}

#[test]
fn the_relations_of_a_graph_are_shown_with_their_numbers_of_facts() {
    let dir = loaded();
    let show = ["graph", "show", "people", "--relations", "--data", text(dir.path())];
    let shown = good(&run(&[&show[..], &["-o", "csv"]].concat()));
    let mut lines: Vec<&str> = shown.lines().skip(1).collect();
    lines.sort_unstable();
    assert_eq!(shown.lines().next(), Some("relation,facts"));
    assert_eq!(lines, ["born_in,1", "found_by,2", "married,1"]);
    bad(&run(&[&show[..], &["--stats"]].concat()), 2);
}

#[test]
fn writing_verbs_do_the_same_embedded_and_remote() {
    let (here, there) = (loaded(), loaded());
    let server = Server::start(there.path(), &[]);
    let ways = [["--data", text(here.path())], ["--url", &server.url]];
    let steps = [
        ("facts put - --graph people", FACTS),
        (r#"facts put --graph people --key a r b --payload {"n":1.5}"#, ""),
        ("facts delete --graph people --key a r b", ""),
        ("facts delete --graph people --key a r b", ""),
        ("facts delete --graph people --entity Marie|Curie --relation married", ""),
        ("facts scan --graph people -o jsonl", ""),
        ("graph create numbers --dim 2 --ids u64 --boundaries 10,20 -o csv", ""),
        ("facts put --graph numbers --key 18446744073709551615 1 7", ""),
        ("expand --graph numbers --from 18446744073709551615 --path 1 -o jsonl", ""),
        ("graph drop numbers --confirm numbers", ""),
        ("graph list -o csv", ""),
    ];
    for (line, input) in steps {
        // A bar stands for a space within one argument.
        let args: Vec<String> = line.split(' ').map(|word| word.replace('|', " ")).collect();
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let outputs = ways.map(|way| steady_write(&run_with(&[&args[..], &way].concat(), input)));
        assert_eq!(outputs[0], outputs[1], "{line}");
    }
}

#[test]
fn a_payload_given_to_facts_put_is_kept_as_it_was_written() {
    let dir = loaded();
    let data = text(dir.path());
    let put = ["facts", "put", "--graph", "people", "--data", data, "--key", "a", "r", "b"];
    let payload = "{\"b\": 1.50,\n \"a\": 123456789012345678901234567890, \"a\": \"x\\ny\"}";
    good(&run(&[&put[..], &["--payload", payload]].concat()));
    let get = ["facts", "get", "--graph", "people", "--data", data, "--key", "a", "r", "b"];
    let shown = good(&run(&[&get[..], &["-o", "json"]].concat()));
    assert!(shown.contains(&payload.replace('\n', " ")), "{shown}");
}

/// Output of a write without the token and ids that the two folders have each their own of.
fn steady_write(output: &std::process::Output) -> String {
    let text = steady(output);
    text.lines().filter(|line| !line.starts_with("id,")).collect::<Vec<_>>().join("\n")
}

#[test]
fn exit_codes_say_what_went_wrong() {
    let dir = loaded();
    let data = text(dir.path());
    let cases: &[(&[&str], i32, &str)] = &[
        (&["rag", "--graph", "people", "--nonsense"], 2, "--nonsense"),
        (&["search", "--graph", "people", "--embedding", "[1,2]"], 2, "dimension_mismatch"),
        (&["search", "--graph", "people", "--embedding", "[1,2"], 2, "--embedding"),
        (&["search", "--graph", "people", "--text", "who"], 2, "invalid_request"),
        (
            &["rag", "--graph", "people", "--embedding", "[1,0,0,1]", "--path", "found_bi"],
            3,
            "found_by",
        ),
        (&["search", "--graph", "nobody", "--embedding", "[1]"], 3, "graph_not_found"),
        (&["facts", "get", "--graph", "people", "--key", "x", "found_by", "y"], 3, "no fact"),
        (&["graph", "create", "people", "--dim", "5"], 8, "graph_exists"),
        (&["graph", "list", "--url", "http://127.0.0.1:1"], 2, "--url"),
        (&["config", "show", "--set", "htp=1"], 2, "nearest is \"http\""),
        (&["config", "check", "/no/such/file"], 2, "/no/such/file"),
    ];
    for (args, code, words) in cases {
        let errors = bad(&run(&[*args, &["--data", data]].concat()), *code);
        assert!(errors.contains(words), "{args:?}: {errors}");
    }
    let errors = bad(&run(&["graph", "list", "--url", "http://127.0.0.1:1"]), 4);
    assert!(errors.contains("http://127.0.0.1:1"), "{errors}");
    let errors = bad(&run(&["serve", "--data", data, "--http", "0.0.0.0:0"]), 2);
    assert!(errors.contains("--insecure"), "{errors}");
}

#[test]
fn a_locked_folder_names_the_process_and_the_url() {
    let dir = loaded();
    let server = Server::start(dir.path(), &[]);
    let errors = bad(&run(&["graph", "list", "--data", text(dir.path())]), 8);
    assert!(errors.contains(&format!("process {}", server.pid())), "{errors}");
    assert!(errors.contains(&format!("--url {}", server.url)), "{errors}");
    server.kill();
    good(&run(&["graph", "list", "--data", text(dir.path())]));
}

#[test]
fn a_newer_or_foreign_folder_is_refused_by_name() {
    let dir = loaded();
    std::fs::write(dir.path().join("FORMAT"), "hopbine data folder\n99\n").expect("written");
    let errors = bad(&run(&["graph", "list", "--data", text(dir.path())]), 1);
    assert!(errors.contains("format 99"), "{errors}");
    let other = tempfile::tempdir().expect("a folder");
    std::fs::write(other.path().join("cat.jpg"), "meow").expect("written");
    let errors = bad(&run(&["graph", "list", "--data", text(other.path())]), 1);
    assert!(errors.contains("cat.jpg"), "{errors}");
}

#[test]
fn settings_have_four_sources_and_show_them() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("hopbine.toml");
    std::fs::write(&file, "timeout = \"3s\"\n[node]\nscrub_pause_ms = 7\n").expect("written");
    let file = text(&file);
    let shown = good(&run(&["config", "show", "--origin", "--config", file, "-o", "csv"]));
    assert!(shown.contains(&format!("node.scrub_pause_ms,7,file {file}")), "{shown}");
    assert!(shown.contains("http,127.0.0.1:7640,default"), "{shown}");
    good(&run(&["config", "check", file]));
    std::fs::write(file, "timeot = \"3s\"\n").expect("written");
    let errors = bad(&run(&["config", "check", file]), 2);
    assert!(errors.contains("\"timeot\", the nearest is \"timeout\""), "{errors}");
}

#[test]
fn config_check_refuses_every_value_that_a_verb_would_refuse() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("hopbine.toml");
    let file = text(&path);
    std::fs::write(dir.path().join("plain"), "no folder").expect("written");
    let plain = format!("data = {:?}", text(&dir.path().join("plain")));
    let cases: &[(&str, &str)] = &[
        ("timeout = \"bogus\"", "timeout"),
        ("timeout = \"11m\"", "timeout"),
        ("timeout = 3", "timeout"),
        ("http = \"nonsense\"", "http"),
        ("http = \"127.0.0.1\"", "http"),
        ("http = \"127.0.0.1:99999\"", "http"),
        ("http = \"0.0.0.0:7640\"", "insecure"),
        ("url = \"x\"", "url"),
        ("url = \"https://127.0.0.1:7640\"", "url"),
        ("url = \"http://127.0.0.1:99999\"", "url"),
        ("url = \"http://a b\"", "url"),
        ("url = \"http://127.0.0.1:7640/?a=b\"", "url"),
        ("log = \"a=b=c\"", "log"),
        ("output = \"xml\"", "output"),
        ("data = \"\"", "data"),
        (&plain, "data"),
        ("insecure = 1", "insecure"),
        ("[node]\nworker_reads_max = 0", "worker_reads_max"),
        ("[node]\nmemtable_bytes_max = -1", "memtable_bytes_max"),
    ];
    for (content, name) in cases {
        std::fs::write(file, format!("{content}\n")).expect("written");
        let errors = bad(&run(&["config", "check", file]), 2);
        assert!(errors.contains(name), "{content}: {errors}");
    }
    let both = "http = \"nonsense\"\nurl = \"x\"\n";
    std::fs::write(file, both).expect("written");
    let errors = bad(&run(&["config", "check", file]), 2);
    for part in ["http \"nonsense\"", "url \"x\"", file] {
        assert!(errors.contains(part), "{part}: {errors}");
    }
    let fine = "timeout = \"3s\"\nhttp = \"0.0.0.0:1\"\ninsecure = true\nurl = \"http://h:1/p/\"\n";
    std::fs::write(file, fine).expect("written");
    good(&run(&["config", "check", file]));
    std::fs::write(file, "").expect("written");
    good(&run(&["config", "check", file]));
}

#[test]
fn a_bad_line_is_named_and_what_was_loaded_is_said() {
    let dir = tempfile::tempdir().expect("a folder");
    let data = text(dir.path());
    let args = ["import", "jsonl", "-", "-g", "g", "--dim", "2", "--batch", "2", "--data", data];
    let line = |n: u32, vector: &str| {
        format!(
            "{{\"entity\":\"{n}\",\"relation\":\"r\",\"target\":\"t\",\"embedding\":{vector}}}\n"
        )
    };
    let good_lines: String = (0..4).map(|n| line(n, "[1,2]")).collect();
    let errors = bad(&run_with(&args, &format!("{good_lines}{{\"entity\" 1}}\n")), 1);
    assert!(errors.contains("-:5:11: "), "{errors}");
    assert!(errors.contains("loaded 4 facts, all of lines 1 to 4"), "{errors}");
    let input = format!("{good_lines}\n{}{}", line(5, "[1,2]"), line(6, "[1,null]"));
    let errors = bad(&run_with(&args, &input), 1);
    assert!(errors.contains("-:7:58: "), "{errors}");
    assert!(errors.contains("loaded 4 facts, all of lines 1 to 4"), "{errors}");
    let errors = bad(&run_with(&args, &line(7, "[1,2,3]")), 1);
    assert!(errors.contains("dimension_mismatch") && errors.contains("-:1:"), "{errors}");
    let other = ["import", "jsonl", "-", "-g", "nobody", "--data", data];
    let errors = bad(&run_with(&other, &line(1, "[1,2]")), 3);
    assert!(errors.contains("--dim"), "{errors}");
}

#[test]
fn the_later_line_of_a_key_wins() {
    let dir = tempfile::tempdir().expect("a folder");
    let data = text(dir.path());
    let line =
        |n: u32| format!("{{\"entity\":1,\"relation\":1,\"target\":{},\"payload\":{n}}}\n", n % 7);
    let lines: String = (0..500).map(line).collect();
    let args = ["import", "jsonl", "-", "-g", "g", "--dim", "2", "--batch", "5", "--data", data];
    let reply: Value = serde_json::from_str(&good(&run_with(&args, &lines))).expect("JSON");
    assert_eq!((&reply["upserted"], &reply["replaced"]), (&500.into(), &493.into()));
    let scan = ["facts", "scan", "-g", "g", "--data", data, "-o", "jsonl"];
    let facts = good(&run(&scan));
    for fact in facts.lines().map(|line| serde_json::from_str::<Value>(line).expect("a fact")) {
        let target = fact["target"].as_u64().expect("a number");
        let last = (493..500).find(|n| n % 7 == target).expect("one of the last seven");
        assert_eq!(fact["payload"], last);
    }
}

#[test]
fn a_scan_of_all_pages_has_one_heading() {
    let dir = loaded();
    let data = text(dir.path());
    let scan = |format: &str, size: &str| {
        let args = ["facts", "scan", "-g", "people", "--all", "--page-size", size];
        good(&run(&[args.as_slice(), &["-o", format, "--data", data]].concat()))
    };
    for format in ["csv", "jsonl"] {
        assert_eq!(scan(format, "1"), scan(format, "100"), "{format}");
    }
    assert_eq!(scan("csv", "1").lines().count(), 5);
    let table = scan("table", "1");
    assert_eq!(table.lines().count(), 5, "{table}");
    assert_eq!(table.matches("entity").count(), 1, "{table}");
}

#[test]
fn version_names_build_format_and_processor() {
    let about: Value = serde_json::from_str(&good(&run(&["version"]))).expect("JSON");
    assert_eq!(about["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(about["data_format"], 1);
    assert!(about["processor"].is_array(), "{about}");
}

#[test]
fn check_finds_a_sound_folder_sound_and_a_damaged_one_damaged() {
    let dir = loaded();
    let data = text(dir.path());
    good(&run(&["check", "--data", data]));
    let segment = largest(&dir.path().join("shards"));
    let mut bytes = std::fs::read(&segment).expect("readable");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0xff;
    std::fs::write(&segment, bytes).expect("written");
    let output = run(&["check", "--data", data]);
    bad(&output, 7);
    let shown = String::from_utf8_lossy(&output.stdout).into_owned() + &common::errors(&output);
    let name = segment.file_name().expect("a name").to_string_lossy().into_owned();
    assert!(shown.contains(&name), "{name}: {shown}");
    std::fs::remove_file(dir.path().join("FORMAT")).expect("removed");
    for verb in [&["check", "--data", data][..], &["graph", "list", "--data", data]] {
        assert!(bad(&run(verb), 7).contains("FORMAT"), "{verb:?}");
    }
}

/// The largest file below a folder.
fn largest(dir: &Path) -> std::path::PathBuf {
    let mut found = Vec::new();
    let mut folders = vec![dir.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("readable") {
            let entry = entry.expect("readable");
            let about = entry.metadata().expect("there");
            if about.is_dir() {
                folders.push(entry.path());
            } else {
                found.push((about.len(), entry.path()));
            }
        }
    }
    found.into_iter().max().expect("a file").1
}

#[test]
fn bench_measures_the_gate_workload_and_refuses_what_it_cannot_do() {
    let lines = good(&run(&["bench", "butler_gate", "--json", "--runs", "1"]));
    let cases: Vec<Value> =
        lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let timed = |line: &&Value| line["p50_ms"].is_number();
    assert!(cases.iter().filter(timed).count() > 2, "{lines}");
    for line in cases.iter().filter(|line| line["hit1_pct"].is_number()) {
        assert_eq!(line["hit1_pct"], 100.0, "{line}");
    }
    let errors = bad(&run(&["bench", "butler_gate", "--case", "none"]), 2);
    assert!(errors.contains("none"), "{errors}");
}

/// What the cases of a run say apart from times: results, quality, rows.
fn findings(lines: &str) -> Vec<Value> {
    let lines = lines.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let cases = lines.filter(|line| line["p50_ms"].is_number());
    cases
        .map(|line| {
            let kept = ["case", "params", "hit1_pct", "hitk_pct", "recall", "rows"];
            let mut kept: Vec<Value> = kept.iter().map(|name| line[*name].clone()).collect();
            kept.push(line["results_sha256"].clone());
            Value::from(kept)
        })
        .collect()
}

#[test]
fn bench_finds_the_same_in_process_in_a_folder_and_at_a_server_and_leaves_nothing() {
    let (here, there) = (loaded(), tempfile::tempdir().expect("a folder"));
    let server = Server::start(there.path(), &[]);
    let workloads: [&[&str]; 2] = [
        &["butler_gate", "--shards", "2"],
        &["synthetic", "--entities", "60", "--degree", "4", "--queries", "3"],
    ];
    for workload in workloads {
        let all = [&["bench"], workload, &["--exact-seeds", "--json", "--runs", "1"]].concat();
        let way = |more: &[&str]| findings(&good(&run(&[all.as_slice(), more].concat())));
        let plain = way(&[]);
        assert!(plain.len() > 2, "{workload:?}");
        assert_eq!(way(&["--url", &server.url]), plain);
        assert_eq!(way(&["--data", text(here.path())]), plain);
    }
    let left = server.json("GET", "/v1/graphs", &Value::Null);
    assert_eq!(left["graphs"], Value::Array(Vec::new()));
    let left = good(&run(&["graph", "list", "--data", text(here.path()), "-o", "csv"]));
    assert_eq!(left.lines().count(), 2, "the graph that was there before: {left}");
}

#[test]
fn bench_says_why_a_server_cannot_be_measured() {
    let errors = bad(&run(&["bench", "butler_gate", "--url", "http://127.0.0.1:1"]), 4);
    assert!(errors.contains("cannot connect"), "{errors}");
    let both = ["bench", "butler_gate", "--url", "http://127.0.0.1:1", "--data", "d"];
    assert!(bad(&run(&both), 2).contains("--data"));
    let scan = ["bench", "butler_gate", "--url", "http://127.0.0.1:1", "--index", "scan"];
    assert!(bad(&run(&scan), 2).contains("scan"));
}

#[test]
fn an_import_that_waits_for_the_index_leaves_no_flush_or_merge_on_any_shard() {
    let dir = tempfile::tempdir().expect("a folder");
    let server = Server::start(dir.path(), &["--set", "node.memtable_bytes_max=65536"]);
    let create = ["graph", "create", "g", "--dim", "32", "--ids", "u64", "--boundaries", "1000"];
    good(&run(&[create.as_slice(), &["--url", &server.url]].concat()));
    let mut chance = common::Chance(5);
    // Of the last batches, none touches the first shard.
    let lines: String = (0..3_000)
        .map(|number| {
            let vector: Vec<u64> = (0..32).map(|_| chance.below(1_000) + 1).collect();
            format!(
                "{{\"entity\":{number},\"relation\":1,\"target\":1,\"embedding\":{vector:?}}}\n"
            )
        })
        .collect();
    let args = ["import", "jsonl", "-", "-g", "g", "--batch", "200", "--url", &server.url];
    good(&run_with(&args, &lines));
    let stats = server.json("GET", "/v1/graphs/g/stats", &Value::Null);
    assert_eq!(stats["facts"], 3_000);
    for shard in stats["shards"].as_array().expect("a list") {
        assert!(!shard["segments"].as_array().expect("a list").is_empty(), "{shard}");
        assert_eq!(shard["frozen_memtables"], 0, "{shard}");
        assert_eq!(shard["compaction_due"], false, "{shard}");
    }
}

#[test]
fn a_question_is_explained_by_flags_or_from_a_file() {
    let dir = loaded();
    let data = text(dir.path());
    let flags = ["--graph", "people", "--data", data];
    let ask = ["--embedding", "[1,0,0,1]", "--path", "found_by,born_in"];
    let json = |args: &[&str]| -> Value {
        serde_json::from_str(&good(&run(args))).expect("an explanation")
    };
    let told = json(&[&["explain"][..], &flags, &ask, &["-o", "json"]].concat());
    let stages = ["route", "ann", "expand:1", "expand:2", "merge", "payload"];
    assert_eq!(told["plan"]["stages"], Value::from(&stages[..]));
    assert!(told["total_ms"].is_f64(), "{told}");
    let planned = json(&[&["explain", "--mode", "plan"][..], &flags, &ask].concat());
    assert_eq!(planned["plan"], told["plan"]);
    assert!(planned.get("total_ms").is_none(), "{planned}");
    let table = good(&run(&[&["explain", "-o", "table"][..], &flags, &ask].concat()));
    let first = table.lines().next().unwrap_or_default();
    assert!(first.starts_with("bounded reads, 1 shard asked first, "), "{table}");
    assert!(table.contains("█") && !table.contains("\u{1b}"), "{table}");
    let file = dir.path().join("request.json");
    std::fs::write(&file, r#"{"query": {"embedding": [1, 0, 0, 1]}, "k": 2}"#).expect("written");
    let by_file = ["explain", "--file", text(&file), "--endpoint", "search"];
    let told = json(&[&by_file[..], &flags].concat());
    assert_eq!(told["stages"][1]["seeds"], 2, "{told}");
    assert_eq!(told["plan"]["stages"].as_array().map(Vec::len), Some(4), "{told}");
    std::fs::write(&file, "[]").expect("written");
    bad(&run(&[&by_file[..], &flags].concat()), 2);
    bad(&run(&[&["explain", "--file", text(&file), "--text", "x"][..], &flags].concat()), 2);
}
