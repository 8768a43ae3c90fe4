//! The reference page and the published description say what the server does.

use super::api::Api;
use hopbine_coordinator::server::{openapi, routes};
use serde_json::Value;
use std::path::PathBuf;

fn document(name: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Whether `found` is what the page shows; the string `...` stands for anything.
fn shows(shown: &Value, found: &Value) -> bool {
    match (shown, found) {
        (Value::String(text), _) if text == "..." => true,
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| shows(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(name, a)| b.get(name).is_some_and(|b| shows(a, b)))
        }
        _ => shown == found,
    }
}

/// Fenced blocks of `kind` or `kind rest`, in order: the rest and the text.
fn blocks(page: &str) -> Vec<(&str, &str)> {
    let mut blocks = Vec::new();
    for block in page.split("\n```").skip(1).step_by(2) {
        let (kind, text) = block.split_once('\n').expect("a fence has a line of its own");
        blocks.push((kind, text));
    }
    blocks
}

#[tokio::test]
async fn every_example_of_the_reference_page_runs_as_shown() {
    let page = document("http.md");
    let api = Api::new();
    let mut last = None;
    let (mut requests, mut replies) = (0, 0);
    for (kind, text) in blocks(&page) {
        if kind == "http" {
            let (head, body) = text.split_once("\n\n").unwrap_or((text, ""));
            let mut lines = head.lines();
            let line = lines.next().expect("a request line");
            let headers: Vec<_> = lines.filter_map(|line| line.split_once(": ")).collect();
            let answer = api.send(line, &headers, body.trim().to_owned()).await;
            last = Some((line.to_owned(), answer));
            requests += 1;
        } else if let Some(status) = kind.strip_prefix("json ") {
            let (line, answer) = last.take().expect("a reply follows its request");
            assert_eq!(answer.status.as_str(), status, "{line}: {}", answer.body);
            let shown: Value = serde_json::from_str(text).expect(&line);
            let found = answer.json();
            assert!(shows(&shown, &found), "{line}: the page shows\n{shown:#}\nnot\n{found:#}");
            replies += 1;
        }
    }
    assert_eq!(requests, replies, "every example shows its reply");
    for route in routes::ROUTES {
        let named = page.contains(&format!("`{} {}`", route.method, route.path));
        assert!(named, "{} {} stands on the page", route.method, route.path);
    }
}

#[test]
fn the_published_description_is_current() {
    let published = document("openapi.json");
    assert!(
        published == openapi::document(),
        "docs/openapi.json is old: cargo run -p hopbine-coordinator --example openapi > \
         docs/openapi.json"
    );
}
