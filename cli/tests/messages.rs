//! What the binary says to someone who typed something else than it takes: the flag, what it takes,
//! and what to type instead.

mod common;

use common::{bad, errors, good, hopbine, run};
use std::ffi::OsStr;
use std::io::Read;
use std::net::TcpListener;
use std::os::unix::ffi::OsStrExt;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

#[test]
fn a_value_that_is_no_json_names_its_flag_and_shows_an_example() {
    let dir = tempfile::tempdir().expect("a folder");
    let data = dir.path().to_str().expect("text");
    good(&run(&["graph", "create", "g", "--dim", "2", "--data", data]));
    let search = ["search", "-g", "g", "--embedding"];
    let put = ["facts", "put", "-g", "g", "--key", "a", "r", "b"];
    let cases: [(Vec<&str>, &str, &str); 5] = [
        ([&search[..], &["[1,0]", "--filter", "year=1898"]].concat(), "--filter", "\"must\""),
        ([&search[..], &["1,2"]].concat(), "--embedding 1,2", "brackets"),
        ([&search[..], &["[1,2"]].concat(), "--embedding", "'[0.5"),
        ([&put[..], &["--payload", "hello"]].concat(), "--payload", "{\"text\": \"hello\"}"),
        ([&put[..], &["--embedding", "1,2"]].concat(), "--embedding", "'[0.5"),
    ];
    for (args, flag, example) in cases {
        let errors = bad(&run(&[&args[..], &["--data", data]].concat()), 2);
        assert!(errors.contains(flag) && errors.contains(example), "{args:?}: {errors}");
    }
}

#[test]
fn an_address_without_its_other_half_is_completed_or_explained() {
    let errors = bad(&run(&["graph", "list", "--url", "127.0.0.1:1"]), 4);
    assert!(errors.contains("http://127.0.0.1:1"), "{errors}");
    assert!(errors.contains("serve --data") && errors.contains("--data DIR opens"), "{errors}");
    let errors = bad(&run(&["serve", "--http", "7750", "--data", "not-made"]), 2);
    assert!(errors.contains("127.0.0.1:7750"), "{errors}");
}

#[test]
fn a_verb_that_only_reads_makes_no_data_folder_of_an_empty_one() {
    let dir = tempfile::tempdir().expect("a folder");
    let data = dir.path().to_str().expect("text");
    let verbs: [&[&str]; 4] = [
        &["graph", "list"],
        &["facts", "scan", "-g", "g"],
        &["search", "-g", "g", "--embedding", "[1]"],
        &["check"],
    ];
    for verb in verbs {
        let errors = bad(&run(&[verb, &["--data", data]].concat()), 3);
        assert!(errors.contains("no data in the folder") && errors.contains("import"), "{errors}");
        let left = std::fs::read_dir(dir.path()).expect("readable").count();
        assert_eq!(left, 0, "{verb:?}");
    }
    good(&run(&["graph", "create", "g", "--dim", "1", "--data", data]));
    good(&run(&["graph", "list", "--data", data]));
}

#[test]
fn a_graph_that_is_refused_leaves_no_data_folder() {
    let dir = tempfile::tempdir().expect("a folder");
    let data = dir.path().join("data");
    let data = data.to_str().expect("text");
    let cases: [(&str, i32, &str); 6] = [
        ("g --dim 0", 2, "/vector/dim"),
        ("g --dim 2 --embedder lexcial", 2, "lexcial"),
        ("g --dim 2 --boundaries 5", 2, "boundaries"),
        ("g --dim 2 --shards 100000", 2, "/shards/initial"),
        ("g --dim 2 --ef-search soon", 2, "--ef-search soon"),
        ("a/b --dim 2", 2, "a graph's name"),
    ];
    for (asked, code, words) in cases {
        let asked: Vec<&str> = asked.split(' ').collect();
        let create = [&["graph", "create"], &asked[..], &["--data", data]].concat();
        let wrong = bad(&run(&create), code);
        assert!(wrong.contains(words), "{asked:?}: {wrong}");
        assert!(!dir.path().join("data").exists(), "{asked:?}");
    }
    let wrong = bad(&run(&["bench", "butler_gate", "--runs", "0", "--data", data]), 2);
    assert!(wrong.contains("runs"), "{wrong}");
    assert!(!dir.path().join("data").exists());
    good(&run(&["graph", "create", "g", "--dim", "2", "--data", data]));
}

#[test]
fn a_server_whose_address_is_taken_makes_no_data_folder() {
    let dir = tempfile::tempdir().expect("a folder");
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = taken.local_addr().expect("bound").to_string();
    let data = dir.path().join("data");
    let serve = ["serve", "--http", &address, "--data", data.to_str().expect("text")];
    let wrong = bad(&run(&serve), 1);
    assert!(wrong.contains(&format!("listen on {address}")), "{wrong}");
    assert!(!data.exists());
}

/// Started at once, all find the address free: none may get as far as a folder and fail then.
#[test]
fn of_servers_that_start_at_one_address_one_serves_and_no_other_makes_a_data_folder() {
    let dir = tempfile::tempdir().expect("a folder");
    let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = free.local_addr().expect("bound").to_string();
    drop(free);
    let folders: Vec<_> = (0..8).map(|number| dir.path().join(format!("data{number}"))).collect();
    let start = |folder: &std::path::PathBuf| {
        let data = folder.to_str().expect("text");
        let mut serve = hopbine(&["serve", "--http", &address, "--data", data]);
        serve.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("started")
    };
    let mut servers: Vec<_> = folders.iter().map(start).collect();
    let began = Instant::now();
    let ended = |server: &mut Child| server.try_wait().expect("asked").is_some();
    while servers.iter_mut().map(|server| usize::from(ended(server))).sum::<usize>() < 7 {
        assert!(began.elapsed() < Duration::from_secs(60), "more than one serves");
        std::thread::sleep(Duration::from_millis(20));
    }
    for (mut server, folder) in servers.into_iter().zip(&folders) {
        if ended(&mut server) {
            let wrong = bad(&server.wait_with_output().expect("ended"), 1);
            assert!(wrong.contains(&format!("listen on {address}")), "{wrong}");
            assert!(!folder.exists(), "{}", folder.display());
            continue;
        }
        server.kill().expect("it serves");
        server.wait().expect("ended");
        assert!(folder.exists());
    }
}

#[test]
fn a_connection_that_breaks_before_the_answer_is_no_missing_server() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            // Something of the request is taken, nothing is said.
            let _ = stream.read(&mut [0; 16]);
        }
    });
    let put = ["facts", "put", "-g", "g", "--key", "a", "r", "b", "--url", &url];
    let wrong = bad(&run(&put), 6);
    assert!(wrong.contains("was lost") && wrong.contains("not known"), "{wrong}");
    let wrong = bad(&run(&["graph", "list", "--url", &url]), 4);
    assert!(wrong.contains("was lost") && !wrong.contains("not known"), "{wrong}");
}

#[test]
fn a_second_key_and_a_name_that_is_no_text_are_refused_and_not_passed_over() {
    let dir = tempfile::tempdir().expect("a folder");
    let data = dir.path().to_str().expect("text");
    let put = ["facts", "put", "-g", "g", "--key", "a", "r", "b", "--key", "c", "r", "d"];
    let wrong = bad(&run(&[&put[..], &["--data", data]].concat()), 2);
    assert!(wrong.contains("--key") && wrong.contains("multiple times"), "{wrong}");
    let odd = OsStr::from_bytes(b"odd\xff");
    let folder = hopbine(&["graph", "list", "--data"]).arg(odd).output();
    assert!(bad(&folder.expect("the binary starts"), 2).contains("UTF-8"));
    let variable = hopbine(&["graph", "list"]).env("HOPBINE_DATA", odd).output();
    let wrong = bad(&variable.expect("the binary starts"), 2);
    assert!(wrong.contains("HOPBINE_DATA") && wrong.contains("UTF-8"), "{wrong}");
    let foreign = hopbine(&["version"]).env("OTHER", odd).output();
    good(&foreign.expect("the binary starts"));
}

#[test]
fn a_verb_logs_when_it_is_told_to_and_not_otherwise() {
    let dir = tempfile::tempdir().expect("a folder");
    let data = dir.path().to_str().expect("text");
    let create = |name: &str, more: &[&str]| {
        let create = ["graph", "create", name, "--dim", "2", "--data", data];
        let output = run(&[&create[..], more].concat());
        good(&output);
        errors(&output)
    };
    assert_eq!(create("first", &[]), "");
    assert!(create("second", &["--log", "debug"]).contains("\"level\""));
    let wrong = bad(&run(&["graph", "list", "--data", data, "--log", "a=b=c"]), 2);
    assert!(wrong.contains("log"), "{wrong}");
}

#[test]
fn a_benchmark_says_how_many_chains_are_enough_and_which_formats_it_writes() {
    let errors = bad(&run(&["bench", "multihop", "--chains", "200"]), 2);
    assert!(errors.contains("278 at least"), "{errors}");
    let errors = bad(&run(&["bench", "butler_gate", "-o", "csv"]), 2);
    assert!(errors.contains("no CSV") && errors.contains("--json"), "{errors}");
}

#[test]
fn the_version_and_the_rule_of_distances_are_one_flag_away() {
    for flag in ["--version", "-V"] {
        let version = good(&run(&[flag]));
        assert_eq!(version.trim(), format!("hopbine {}", env!("CARGO_PKG_VERSION")));
    }
    let help = good(&run(&["rag", "--help"]));
    assert!(help.contains("seed weight x seed distance + sum"), "{help}");
}
