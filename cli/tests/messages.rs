//! What the binary says to someone who typed something else than it takes: the flag, what it takes,
//! and what to type instead.

mod common;

use common::{bad, good, run};

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
