//! `hopbine explain`: how a question is answered, as a tree of stages with their share of the time.

use crate::failure::{Failure, file_failure};
use crate::output::{Format, plain, unreadable};
use crate::progress::grouped;
use crate::question;
use crate::rag::{self, Rag};
use crate::session::{Body, Session};
use clap::Args;
use serde_json::Value;
use std::io::Read;

/// What the verb takes.
pub const FORMS: &str = "\
The flags of rag make the request, or --file holds the body of one as the HTTP interface takes it:
  hopbine explain --graph papers --text 'who wrote on graphs' --path wrote,cites
  hopbine explain --graph papers --endpoint search --file request.json --mode plan
A bar is a stage's share of the whole time. docs/explain.md says what each number counts.";

/// A body as a file holds it, for those who wrote something else.
const BODY_EXAMPLE: &str = r#"'{"query": {"text": "radium"}, "k": 5}'"#;
/// Letters of a bar that is the whole time.
const BAR: usize = 20;

/// Flags of the verb.
#[derive(Args, Debug)]
pub struct Explain {
    #[command(flatten)]
    rag: Rag,
    /// plan: what would be done, and nothing is; analyze: do it and measure
    #[arg(long, value_parser = ["plan", "analyze"], default_value = "analyze")]
    mode: String,
    /// File with the body of a request, or - for standard input, instead of the flags of rag
    #[arg(long, value_name = "FILE", conflicts_with_all = ["text", "embedding", "from", "path"])]
    file: Option<String>,
    /// The call that the file is meant for [default: graph_rag]
    #[arg(long, value_name = "CALL", requires = "file")]
    #[arg(value_parser = ["graph_rag", "search", "expand", "rerank"])]
    endpoint: Option<String>,
}

/// Asks and writes the explanation.
pub async fn run(session: &Session, args: &Explain) -> Result<(), Failure> {
    let request = match &args.file {
        Some(name) => Value::Object(body_of(name)?),
        None => Value::Object(rag::request(session, &args.rag).await?),
    };
    let mut body = Body::new();
    body.insert("request".to_owned(), request);
    let endpoint = args.endpoint.as_deref().unwrap_or("graph_rag");
    body.insert("endpoint".to_owned(), Value::from(endpoint));
    body.insert("mode".to_owned(), Value::from(args.mode.as_str()));
    let reply = session.post(args.rag.graph(), "/explain", body).await?;
    if session.output.format() != Format::Table {
        return session.output.object(&reply);
    }
    let explanation: Value = serde_json::from_slice(&reply).map_err(unreadable)?;
    session.output.lines(tree(&explanation, session.output.emphasis()))
}

fn body_of(name: &str) -> Result<Body, Failure> {
    let mut text = String::new();
    if name == "-" {
        std::io::stdin().read_to_string(&mut text).map_err(file_failure("standard input"))?;
    } else {
        text = std::fs::read_to_string(name).map_err(file_failure(name))?;
    }
    match question::parse("--file", &text, BODY_EXAMPLE)? {
        Value::Object(body) => Ok(body),
        _ => Err(Failure::Usage(format!("--file {name}: expected a JSON object"))),
    }
}

/// The lines of an explanation.
fn tree(explanation: &Value, emphasis: bool) -> Vec<String> {
    let list = |name: &str| explanation[name].as_array().cloned().unwrap_or_default();
    let strong = |text: String| if emphasis { format!("\x1b[1m{text}\x1b[0m") } else { text };
    let total = explanation["total_ms"].as_f64();
    let plan = &explanation["plan"];
    let mut heading = format!(
        "{} reads, {} asked first",
        plain(&plan["consistency"]),
        count(plan["fan_out"].as_u64().unwrap_or_default(), "shard")
    );
    heading.push_str(&match total {
        Some(ms) => format!(", {ms:.3} ms in all"),
        None => ", nothing was searched".to_owned(),
    });
    let mut lines = vec![strong(heading)];
    let stages = list("stages");
    let width = stages.iter().map(|stage| plain(&stage["stage"]).len()).max().unwrap_or(0);
    for (place, stage) in stages.iter().enumerate() {
        let last = place + 1 == stages.len();
        lines.push(stage_line(stage, width, total, branch(last)));
        lines.extend(shard_lines(stage, if last { "   " } else { "│  " }));
    }
    for node in list("nodes") {
        lines.push(node_line(&node));
    }
    for warning in list("warnings") {
        let code = strong(format!("warning: {}", plain(&warning["code"])));
        lines.push(format!("{code}: {}", clean(&warning["message"])));
        lines.push(format!("  hint: {}", clean(&warning["hint"])));
    }
    lines
}

fn branch(last: bool) -> &'static str {
    if last { "└─ " } else { "├─ " }
}

/// A text on one line, which has no say in how a terminal shows it.
fn clean(text: &Value) -> String {
    plain(text).replace(char::is_control, " ")
}

fn stage_line(stage: &Value, width: usize, total: Option<f64>, branch: &str) -> String {
    let name = plain(&stage["stage"]);
    let mut line = format!("{branch}{name:width$}");
    if let (Some(ms), Some(total)) = (stage["ms"].as_f64(), total) {
        line.push_str(&format!("  {ms:>9.3} ms  {}", bar(ms, total)));
    }
    let mut parts = Vec::new();
    let shards = stage["shards"].as_u64().unwrap_or_default();
    if shards > 0 {
        parts.push(count(shards, "shard"));
    }
    parts.extend(numbers(stage));
    if !parts.is_empty() {
        line.push_str(&format!("  {}", parts.join(", ")));
    }
    line.trim_end().to_owned()
}

/// A stage's share of the whole time.
fn bar(ms: f64, total: f64) -> String {
    let share = if total > 0.0 { (ms / total).clamp(0.0, 1.0) } else { 0.0 };
    let full = (share * BAR as f64).round() as usize;
    format!("{}{}", "█".repeat(full), "░".repeat(BAR - full))
}

/// What a stage or a shard counted, without what is nothing.
fn numbers(of: &Value) -> Vec<String> {
    let mut parts = Vec::new();
    let segments = &of["segments"];
    if let Some(total) = segments["total"].as_u64() {
        parts.push(match segments["read"].as_u64() {
            Some(read) => format!("{} of {}", grouped(read), count(total, "segment")),
            None => count(total, "segment"),
        });
    }
    for (field, what) in [
        ("blocks_read", "block"),
        ("codes_scored", "code"),
        ("vectors_scored", "vector"),
        ("seeds", "seed"),
        ("rows", "row"),
    ] {
        if let Some(number) = of[field].as_u64().filter(|number| *number > 0) {
            parts.push(count(number, what));
        }
    }
    if let Some(ef) = of["ef"].as_u64() {
        parts.push(format!("ef {ef}"));
    }
    if let Some(read) = of["rows_read"].as_u64() {
        parts.push(format!("{} read", count(read, "row")));
    }
    if let Some(kept) = of["rows_kept"].as_u64() {
        parts.push(format!("{} kept", grouped(kept)));
    }
    if let Some(cut) = of["cut"].as_u64().filter(|cut| *cut > 0) {
        parts.push(format!("{} cut", grouped(cut)));
    }
    if let Some(why) = of["why"].as_str() {
        parts.push(why.replace(',', " and "));
    }
    if let Some(rows) = of["estimated_rows"].as_u64() {
        parts.push(format!("at most {}", count(rows, "row")));
    }
    parts
}

/// The shards of a stage, where they tell more than their sum.
fn shard_lines(stage: &Value, indent: &str) -> Vec<String> {
    let (none, mut lines) = (Vec::new(), Vec::new());
    let shards = stage["by_shard"].as_array().unwrap_or(&none);
    let runs = |shard: &Value| shard["runs"].as_array().cloned().unwrap_or_default();
    if shards.len() < 2 && shards.iter().all(|shard| runs(shard).is_empty()) {
        return lines;
    }
    for (place, shard) in shards.iter().enumerate() {
        let last = place + 1 == shards.len();
        let told = numbers(shard).join(", ");
        lines.push(format!("{indent}{}shard {}: {told}", branch(last), plain(&shard["shard"])));
        let inner = if last { "   " } else { "│  " };
        let runs = runs(shard);
        for (place, run) in runs.iter().enumerate() {
            let name = match run["segment"].as_u64() {
                Some(id) => format!("segment {id}"),
                None => "not sealed".to_owned(),
            };
            let way = run["way"].as_str().unwrap_or("ruled out");
            let told = numbers(run).join(", ");
            let branch = branch(place + 1 == runs.len());
            lines.push(format!("{indent}{inner}{branch}{name}: {way}, {told}"));
        }
    }
    lines
}

fn node_line(node: &Value) -> String {
    let mut line = match node["node"].as_u64() {
        Some(id) => format!("node {id}, shard {}", plain(&node["shard"])),
        None => format!("shard {}", plain(&node["shard"])),
    };
    if let (Some(ms), Some(network)) = (node["ms"].as_f64(), node["network_ms"].as_f64()) {
        line.push_str(&format!(": {ms:.3} ms there, {network:.3} ms on the way"));
    }
    line.push_str(&format!(", at index {}", plain(&node["applied_index"])));
    if let Some(behind) = node["stale_by"].as_u64().filter(|behind| *behind > 0) {
        line.push_str(&format!(", {} behind", count(behind, "entry")));
    }
    line
}

/// A number of things.
fn count(number: u64, what: &str) -> String {
    let many = match what.strip_suffix('y') {
        Some(stem) => format!("{stem}ies"),
        None => format!("{what}s"),
    };
    format!("{} {}", grouped(number), if number == 1 { what } else { &many })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_analysis_is_a_tree_with_bars_and_its_warnings_below() {
        let segments = json!({"total": 3, "read": 2, "pruned": 1});
        let explanation = json!({
            "plan": {"stages": ["route"], "consistency": "bounded", "fan_out": 1},
            "stages": [
                {"stage": "route", "ms": 1.0, "shards": 0},
                {"stage": "ann", "ms": 5.0, "shards": 1, "segments": segments, "vectors_scored": 32,
                 "ef": 128, "seeds": 64, "by_shard": [
                    {"shard": 7, "segments": segments, "runs": [
                        {"segment": null, "rows": 1200, "way": "tail scan", "codes_scored": 1200},
                        {"segment": 4, "rows": 9, "way": "graph ef=128", "ef": 128},
                        {"segment": 3, "rows": 1}]}]},
                {"stage": "expand:1", "ms": 4.0, "shards": 1, "rows_read": 30, "rows_kept": 10,
                 "cut": 20, "why": "beam,limit_rows"}],
            "nodes": [{"node": 1, "shard": 7, "ms": 1.5, "network_ms": 0.5, "applied_index": 9,
                       "stale_by": 1}],
            "total_ms": 10.0,
            "warnings": [{"code": "hub", "message": "a\nb", "hint": "do"}]});
        let expected = [
            "bounded reads, 1 shard asked first, 10.000 ms in all",
            "├─ route         1.000 ms  ██░░░░░░░░░░░░░░░░░░",
            "├─ ann           5.000 ms  ██████████░░░░░░░░░░  1 shard, 2 of 3 segments, \
             32 vectors, 64 seeds, ef 128",
            "│  └─ shard 7: 2 of 3 segments",
            "│     ├─ not sealed: tail scan, 1,200 codes, 1,200 rows",
            "│     ├─ segment 4: graph ef=128, 9 rows, ef 128",
            "│     └─ segment 3: ruled out, 1 row",
            "└─ expand:1      4.000 ms  ████████░░░░░░░░░░░░  1 shard, 30 rows read, 10 kept, \
             20 cut, beam and limit_rows",
            "node 1, shard 7: 1.500 ms there, 0.500 ms on the way, at index 9, 1 entry behind",
            "warning: hub: a b",
            "  hint: do",
        ];
        assert_eq!(tree(&explanation, false), expected);
        assert!(tree(&explanation, true)[0].starts_with("\x1b[1m"));
    }

    #[test]
    fn a_plan_has_no_times() {
        let explanation = json!({
            "plan": {"stages": ["route"], "consistency": "strong", "fan_out": 2},
            "stages": [{"stage": "expand:1", "shards": 2, "segments": {"total": 1},
                        "estimated_rows": 1}],
            "nodes": [], "warnings": []});
        let expected = [
            "strong reads, 2 shards asked first, nothing was searched",
            "└─ expand:1  2 shards, 1 segment, at most 1 row",
        ];
        assert_eq!(tree(&explanation, false), expected);
    }
}
