//! The limits on how the code reads, as a test: width, function and file length, headers, calls
//! that must not be in pure code, and the arrows between crates.
//!
//! It reads the tree as text with a small tokenizer (strings, comments and nesting are known, the
//! grammar is not). The list of exceptions at the end may only shrink.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

const CRATES: &[&str] =
    &["proto", "raft", "shard-store", "node", "coordinator", "cli", "bench", "chaos-tests"];
const CORE: &[&str] = &["proto", "raft", "shard-store", "node", "coordinator"];
const COLUMNS_MAX: usize = 100;
const FUNCTION_LINES_MAX: usize = 70;
const FILE_LINES_MAX: usize = 500;

/// Names of files and folders that may touch the outside world.
const EDGES: &[&str] = &["main", "driver", "client", "server", "disk"];

/// What only an edge may name.
const OUTSIDE: &[&str] = &[
    "std::fs",
    "std::net",
    "std::thread",
    "tokio::",
    "memmap2",
    "Instant::now",
    "SystemTime",
    "thread_rng",
    "rand::",
    "getrandom",
];

/// Allowed arrows between our crates.
const ARROWS: &[(&str, &[&str])] = &[
    ("proto", &[]),
    ("raft", &["proto"]),
    ("shard-store", &["proto"]),
    ("node", &["raft", "shard-store", "proto"]),
    ("coordinator", &["proto"]),
    ("bench", &["coordinator", "shard-store", "proto"]),
    ("cli", &["node", "coordinator", "bench", "proto"]),
    ("chaos-tests", &["node", "coordinator", "raft", "shard-store", "bench", "proto"]),
];

/// `(rule, file)` pairs that are let through. May only shrink.
const EXCEPTIONS: &[(&str, &str)] = &[];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace is above").to_owned()
}

fn rust_files() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders: Vec<PathBuf> = CRATES.iter().map(|name| root().join(name)).collect();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a crate folder is there") {
            let path = entry.expect("readable").path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if path.is_dir() && name != "target" && name != "data" && name != "fuzz" {
                folders.push(path);
            } else if name.ends_with(".rs") {
                found.push(path);
            }
        }
    }
    found.sort();
    assert!(found.len() > 20, "the tree has files to read");
    found
}

/// The text with the inside of strings and comments blanked, so that words and braces in them do
/// not count. Line breaks stay.
fn code_only(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    let blank = |c: char| if c == '\n' { '\n' } else { ' ' };
    while at < chars.len() {
        let rest = &chars[at..];
        let len = match rest {
            ['/', '/', ..] => rest.iter().position(|c| *c == '\n').unwrap_or(rest.len()),
            ['/', '*', ..] => block_comment(rest),
            ['r', '"' | '#', ..] if !previous_is_word(&chars, at) => raw_string(rest),
            ['"', ..] => string(rest),
            ['\'', ..] => char_literal(rest),
            _ => 0,
        };
        if len == 0 {
            out.push(chars[at]);
            at += 1;
        } else {
            out.extend(rest[..len].iter().map(|c| blank(*c)));
            at += len;
        }
    }
    out
}

fn previous_is_word(chars: &[char], at: usize) -> bool {
    at > 0 && (chars[at - 1].is_alphanumeric() || chars[at - 1] == '_')
}

fn block_comment(rest: &[char]) -> usize {
    let end = rest.windows(2).skip(2).position(|pair| pair == ['*', '/']);
    end.map_or(rest.len(), |end| end + 4)
}

fn raw_string(rest: &[char]) -> usize {
    let hashes = rest[1..].iter().take_while(|c| **c == '#').count();
    if rest.get(1 + hashes) != Some(&'"') {
        return 0;
    }
    let mut at = 2 + hashes;
    while at < rest.len() {
        let closes = rest[at] == '"' && rest[at + 1..].iter().take(hashes).all(|c| *c == '#');
        at += 1;
        if closes {
            return (at + hashes).min(rest.len());
        }
    }
    rest.len()
}

fn string(rest: &[char]) -> usize {
    let mut at = 1;
    while at < rest.len() {
        match rest[at] {
            '\\' => at += 2,
            '"' => return at + 1,
            _ => at += 1,
        }
    }
    rest.len()
}

fn char_literal(rest: &[char]) -> usize {
    match rest {
        ['\'', '\\', ..] => {
            rest.iter().skip(2).position(|c| *c == '\'').map_or(0, |end| end + 3).min(rest.len())
        }
        ['\'', _, '\'', ..] => 3,
        _ => 0,
    }
}

/// Line (from 0) where the trailing test module begins, or the number of lines.
fn test_part(lines: &[&str]) -> usize {
    lines.iter().position(|line| line.starts_with("#[cfg(test)]")).unwrap_or(lines.len())
}

struct Source {
    name: String,
    text: String,
    code: String,
}

impl Source {
    fn read(path: &Path) -> Self {
        let text = std::fs::read_to_string(path).expect("a source file is UTF-8");
        let name = path.strip_prefix(root()).expect("below the root").display().to_string();
        let code = code_only(&text);
        Self { name, text, code }
    }

    fn crate_name(&self) -> &str {
        self.name.split('/').next().unwrap_or_default()
    }

    fn is_test(&self) -> bool {
        let mut parts = self.name.split('/');
        parts.any(|part| matches!(part, "tests" | "tests.rs" | "benches" | "examples"))
            || self.name.ends_with("_tests.rs")
    }

    fn is_edge(&self) -> bool {
        let edge = |part: &str| EDGES.contains(&part.trim_end_matches(".rs"));
        // A build script runs where the product is built, not in it.
        self.name.ends_with("/build.rs") || self.name.split('/').skip(1).any(edge)
    }

    /// The lines of code outside the trailing test module.
    fn product_lines(&self) -> Vec<&str> {
        let lines: Vec<&str> = self.code.lines().collect();
        let end = test_part(&lines);
        lines[..end].to_vec()
    }
}

fn excepted(rule: &str, file: &str) -> bool {
    EXCEPTIONS.contains(&(rule, file))
}

fn report(rule: &str, findings: Vec<String>) {
    assert!(findings.is_empty(), "{rule}:\n  {}", findings.join("\n  "));
}

/// `(first line, lines)` of every function body, found by counting braces from `fn`.
fn functions(code: &str) -> Vec<(usize, usize)> {
    let lines: Vec<&str> = code.lines().collect();
    let mut found = Vec::new();
    for (start, line) in lines.iter().enumerate() {
        let is_fn = line.split_whitespace().any(|word| word == "fn");
        if !is_fn || line.trim_start().starts_with("type ") {
            continue;
        }
        let (mut depth, mut opened) = (0usize, false);
        'lines: for (offset, line) in lines[start..].iter().enumerate() {
            for c in line.chars() {
                match c {
                    '{' => (depth, opened) = (depth + 1, true),
                    '}' => depth = depth.saturating_sub(1),
                    ';' if !opened => break 'lines,
                    _ => {}
                }
                if opened && depth == 0 {
                    found.push((start + 1, offset + 1));
                    break 'lines;
                }
            }
        }
    }
    found
}

#[test]
fn no_line_is_wider_than_a_hundred_columns() {
    let mut findings = Vec::new();
    for source in rust_files().iter().map(|path| Source::read(path)) {
        for (i, line) in source.text.lines().enumerate() {
            if line.chars().count() > COLUMNS_MAX && !excepted("columns", &source.name) {
                findings.push(format!("{}:{}", source.name, i + 1));
            }
        }
    }
    report("wider than 100 columns", findings);
}

#[test]
fn no_function_is_longer_than_seventy_lines() {
    let mut findings = Vec::new();
    for source in rust_files().iter().map(|path| Source::read(path)) {
        for (line, length) in functions(&source.code) {
            if length > FUNCTION_LINES_MAX && !excepted("function", &source.name) {
                findings.push(format!("{}:{line} has {length} lines", source.name));
            }
        }
    }
    report("functions longer than 70 lines", findings);
}

#[test]
fn no_file_is_longer_than_five_hundred_lines_without_tests() {
    let mut findings = Vec::new();
    for source in rust_files().iter().map(|path| Source::read(path)) {
        let length = source.product_lines().len();
        if length > FILE_LINES_MAX && !source.is_test() && !excepted("file", &source.name) {
            findings.push(format!("{} has {length} lines", source.name));
        }
    }
    report("files longer than 500 lines", findings);
}

#[test]
fn every_file_opens_with_its_purpose() {
    let sources = rust_files();
    let sources = sources.iter().map(|path| Source::read(path));
    let silent = sources.filter(|source| !source.text.starts_with("//! "));
    report("no `//!` header", silent.map(|source| source.name).collect());
}

#[test]
fn decisions_are_pure_and_edges_are_named() {
    let mut findings = Vec::new();
    for source in rust_files().iter().map(|path| Source::read(path)) {
        if !CORE.contains(&source.crate_name()) || source.is_test() || source.is_edge() {
            continue;
        }
        for (i, line) in source.product_lines().iter().enumerate() {
            for word in OUTSIDE {
                if line.contains(word) && !excepted("outside", &source.name) {
                    findings.push(format!("{}:{} names {word}", source.name, i + 1));
                }
            }
        }
    }
    report("the outside world in pure code", findings);
}

#[test]
fn unsafe_lives_in_disk_and_kernel_files_and_gives_its_reason() {
    let mut findings = Vec::new();
    for source in rust_files().iter().map(|path| Source::read(path)) {
        let allowed = source.name.split('/').any(|part| {
            let part = part.trim_end_matches(".rs");
            part == "disk" || part == "kernel"
        });
        let text: Vec<&str> = source.text.lines().collect();
        for (i, line) in source.code.lines().enumerate() {
            let is_block = line.contains("unsafe {") || line.contains("unsafe impl");
            let is_fn = line.contains("unsafe fn");
            if !is_block && !is_fn {
                continue;
            }
            if !allowed && !excepted("unsafe", &source.name) {
                findings.push(format!("{}:{} is not a disk or kernel file", source.name, i + 1));
            }
            let before = &text[i.saturating_sub(12)..=i];
            let said =
                before.iter().any(|line| line.contains("SAFETY") || line.contains("# Safety"));
            if !said && !source.is_test() {
                findings.push(format!("{}:{} gives no reason", source.name, i + 1));
            }
        }
    }
    report("unsafe code", findings);
}

#[test]
fn no_product_code_unwraps_or_leaves_work_undone() {
    let mut findings = Vec::new();
    for source in rust_files().iter().map(|path| Source::read(path)) {
        if source.is_test() {
            continue;
        }
        for (i, line) in source.product_lines().iter().enumerate() {
            for word in [".unwrap()", "todo!(", "unimplemented!(", "dbg!("] {
                if line.contains(word) {
                    findings.push(format!("{}:{} has {word}", source.name, i + 1));
                }
            }
        }
    }
    report("unfinished code", findings);
}

#[test]
fn no_test_is_switched_off_and_no_note_is_left_without_an_issue() {
    let (note, fix, off) =
        (["TO", "DO"].concat(), ["FIX", "ME"].concat(), ["#[ig", "nore"].concat());
    let mut findings = Vec::new();
    for source in rust_files().iter().map(|path| Source::read(path)) {
        for (i, line) in source.text.lines().enumerate() {
            let open_note = line.contains(&note) && !line.contains('#');
            if open_note || line.contains(&fix) || line.contains(&off) {
                findings.push(format!("{}:{}", source.name, i + 1));
            }
        }
    }
    report("switched-off tests or open notes", findings);
}

#[test]
fn the_crates_depend_only_along_the_arrows() {
    let mut findings = Vec::new();
    for (from, allowed) in ARROWS {
        let manifest = std::fs::read_to_string(root().join(from).join("Cargo.toml"));
        let manifest = manifest.expect("every crate has a manifest");
        let product = manifest.split("[dev-dependencies]").next().unwrap_or_default();
        let named: BTreeSet<&str> = product
            .lines()
            .filter_map(|line| line.trim().strip_prefix("hopbine-"))
            .filter_map(|rest| rest.split(['.', ' ', '=']).next())
            .collect();
        for to in named {
            if !allowed.contains(&to) {
                findings.push(format!("{from} -> {to}"));
            }
        }
    }
    report("arrows that are not on the map", findings);
}

#[test]
fn the_reader_of_code_knows_strings_comments_and_functions() {
    let text =
        "fn a() {\n  let s = \"} \\\" {\"; // }\n  let r = r#\"}\"#; /* } */\n  let c = '{';\n}\n";
    assert_eq!(functions(&code_only(text)), [(1, 5)]);
    assert_eq!(functions(&code_only("fn declared();\nfn b() {}\n")), [(2, 1)]);
    assert!(!code_only("let x = \"tokio::spawn\";").contains("tokio::"));
    assert!(code_only("fn f<'a>(x: &'a str) { tokio::spawn(x) }").contains("tokio::"));
}
