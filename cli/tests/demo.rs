//! The demo, run as a newcomer runs it.

mod common;

use common::{good, hopbine};
use std::time::{Duration, Instant};

#[test]
fn the_demo_answers_three_questions_with_whole_paths_in_five_seconds() {
    let began = Instant::now();
    let output = hopbine(&["demo"]).output().expect("the binary starts");
    let took = began.elapsed();
    let text = good(&output);
    let questions = ["\n1. ", "\n2. ", "\n3. "];
    assert!(questions.iter().all(|mark| text.contains(mark)), "{text}");
    let whole = |line: &&str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let distance = words.first().is_some_and(|word| word.parse::<f64>().is_ok());
        distance && line.matches(" -").count() >= 2 && line.matches("-> ").count() >= 2
    };
    assert!(text.lines().filter(whole).count() >= 3, "whole paths with their distance: {text}");
    assert_eq!(text.matches("by vector search alone").count(), 3, "{text}");
    assert_eq!(text.matches("answer: ").count(), 3, "{text}");
    assert_eq!(text.matches(" ms").count() / 3, text.matches(" ms").count().div_ceil(3), "{text}");
    assert!(!text.contains('\x1b'), "no colour when piped: {text}");
    assert!(took < Duration::from_secs(5), "{took:?}");
}

#[test]
fn a_reader_that_leaves_early_is_no_error() {
    let script = format!("{} demo | head -1", env!("CARGO_BIN_EXE_hopbine"));
    let output =
        std::process::Command::new("bash").args(["-o", "pipefail", "-c", &script]).output();
    let output = output.expect("bash is there");
    assert_eq!(output.status.code(), Some(0), "{}", common::errors(&output));
    assert_eq!(common::errors(&output), "");
}
