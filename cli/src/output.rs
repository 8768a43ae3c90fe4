//! Results on standard output: a table for people, JSON, JSON lines or CSV for programs. All else
//! that is said goes to standard error.
//!
//! JSON and JSON lines are the engine's own bytes; a table or CSV shows chosen columns. A result
//! that could not be written is a failure, unless its reader went away; a word on standard error
//! that could not be written is none. `println!` and `eprintln!` would panic at either.

use crate::failure::Failure;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;

/// How results are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// Aligned columns.
    Table,
    /// The whole reply.
    Json,
    /// One result a line.
    Jsonl,
    /// Comma-separated with a heading (RFC 4180).
    Csv,
}

/// One column of a table.
pub struct Column {
    /// The heading.
    pub title: &'static str,
    /// What to show of one result.
    pub cell: fn(&Value) -> Cell,
}

/// One value of a table.
pub enum Cell {
    /// As it is.
    Text(String),
    /// A distance: short in a table, all of it in CSV; `-` and nothing when there is none.
    Distance(Option<f64>),
}

/// Standard output in one format.
pub struct Output {
    format: Format,
    bold: bool,
}

/// A result of several replies: one heading, whatever the number of pages.
pub struct Pages<'a> {
    output: &'a Output,
    list: &'a str,
    columns: &'a [Column],
    /// Of each column so far, in characters.
    widths: Vec<usize>,
    headed: bool,
}

impl Output {
    /// `format`, or the default: a table on a terminal, JSON elsewhere.
    pub fn new(format: Option<Format>) -> Self {
        let terminal = io::stdout().is_terminal();
        let format = format.unwrap_or(if terminal { Format::Table } else { Format::Json });
        let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self { format, bold: terminal && !plain }
    }

    /// How results are written.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Whether emphasis may be shown: on a terminal, unless `NO_COLOR` is set.
    pub fn emphasis(&self) -> bool {
        self.bold
    }

    /// Writes a reply whose results are the list `list`, and says so when it is not all of them.
    pub fn rows(&self, body: &[u8], list: &str, columns: &[Column]) -> Result<(), Failure> {
        let next = self.pages(list, columns).page(body)?;
        self.tell_of_next(list, next.as_deref(), "");
        Ok(())
    }

    /// Says how to get the page after one that was written, if there is one; `or` is another way.
    /// JSON shows the token by itself.
    pub fn tell_of_next(&self, list: &str, next: Option<&str>, or: &str) {
        if let Some(token) = next.filter(|_| self.format != Format::Json) {
            tell(format!("more {list} follow: --page-token {token}{or}"));
        }
    }

    /// Begins a result of several replies, each with a part of the list `list`.
    pub fn pages<'a>(&'a self, list: &'a str, columns: &'a [Column]) -> Pages<'a> {
        let widths = columns.iter().map(|column| column.title.len()).collect();
        Pages { output: self, list, columns, widths, headed: false }
    }

    /// Writes a reply that is one object.
    pub fn object(&self, body: &[u8]) -> Result<(), Failure> {
        match self.format {
            Format::Json | Format::Jsonl => self.lines([body]),
            Format::Table | Format::Csv => {
                let reply: Value = serde_json::from_slice(body).map_err(unreadable)?;
                let mut rows = Vec::new();
                flatten("", &reply, &mut rows);
                let columns = [
                    Column { title: "field", cell: |row| Cell::Text(plain(&row[0])) },
                    Column { title: "value", cell: |row| Cell::Text(plain(&row[1])) },
                ];
                self.pages("", &columns).table(&rows)
            }
        }
    }

    /// Writes lines. Fails with `ClosedOutput` when nobody reads them any more.
    pub fn lines(&self, lines: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Result<(), Failure> {
        write_lines(lines)
    }
}

/// Writes lines to standard output. Fails with `ClosedOutput` when nobody reads them any more.
pub fn write_lines(lines: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Result<(), Failure> {
    let written = || {
        // The library's own standard output takes a descriptor that cannot be written to for one
        // that swallows everything.
        let mut out = io::BufWriter::new(File::from(io::stdout().as_fd().try_clone_to_owned()?));
        for line in lines {
            out.write_all(line.as_ref())?;
            out.write_all(b"\n")?;
        }
        out.flush()
    };
    written().map_err(unwritten)
}

/// Why standard output did not take all of a result.
pub fn unwritten(error: io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::BrokenPipe => Failure::ClosedOutput,
        _ => Failure::Failed(format!("standard output: {error}")),
    }
}

/// Writes a line to standard error. Who closed it does not want to know, and the work goes on.
pub fn tell(line: impl Display) {
    // In one piece, so that it stays whole among the lines of other threads and processes.
    let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
}

impl Pages<'_> {
    /// Writes the next reply. Returns the token of the page after it, `None` for the last.
    pub fn page(&mut self, body: &[u8]) -> Result<Option<String>, Failure> {
        match self.output.format {
            Format::Json => self.output.lines([body])?,
            Format::Jsonl => {
                self.output.lines(elements(body, self.list)?.iter().map(|raw| raw.get()))?;
            }
            Format::Table | Format::Csv => {
                let reply: Value = serde_json::from_slice(body).map_err(unreadable)?;
                let none = Vec::new();
                self.table(reply[self.list].as_array().unwrap_or(&none))?;
            }
        }
        let page: Page = serde_json::from_slice(body).map_err(unreadable)?;
        Ok(page.next_page_token)
    }

    /// Writes rows as a table or as CSV.
    fn table(&mut self, rows: &[Value]) -> Result<(), Failure> {
        let columns = self.columns;
        let titles: Vec<String> = columns.iter().map(|c| c.title.to_owned()).collect();
        let heading = (!std::mem::replace(&mut self.headed, true)).then_some(titles);
        let cells = |shown: fn(Cell) -> String| {
            rows.iter().map(move |row| columns.iter().map(|c| shown((c.cell)(row))).collect())
        };
        if self.output.format == Format::Csv {
            let all: Vec<Vec<String>> = heading.into_iter().chain(cells(csv)).collect();
            return self.output.lines(all.iter().map(|fields| fields.join(",")));
        }
        let cells: Vec<Vec<String>> = cells(shown).collect();
        // Columns only grow, so that a page is aligned with those before it where it can be.
        for (i, width) in self.widths.iter_mut().enumerate() {
            let widest = cells.iter().map(|row| row[i].chars().count()).max().unwrap_or(0);
            *width = widest.max(*width);
        }
        let heading = heading.map(|titles| {
            let heading = self.aligned(&titles);
            if self.output.bold { format!("\x1b[1m{heading}\x1b[0m") } else { heading }
        });
        self.output.lines(heading.into_iter().chain(cells.iter().map(|row| self.aligned(row))))
    }

    fn aligned(&self, row: &[String]) -> String {
        let padded = row.iter().zip(&self.widths).map(|(text, width)| {
            let gap = width - text.chars().count();
            format!("{text}{}", " ".repeat(gap))
        });
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    }
}

/// What a reply says of the pages after it; nothing, when it has none.
#[derive(Deserialize)]
struct Page {
    #[serde(default)]
    next_page_token: Option<String>,
}

/// The elements of the list `list` of a reply, byte for byte.
pub fn elements<'a>(body: &'a [u8], list: &str) -> Result<Vec<&'a RawValue>, Failure> {
    let mut reply: BTreeMap<&str, &RawValue> = serde_json::from_slice(body).map_err(unreadable)?;
    let Some(raw) = reply.remove(list) else {
        return Err(Failure::Failed(format!("the reply has no list {list:?}")));
    };
    serde_json::from_str(raw.get()).map_err(unreadable)
}

/// A reply that is not what the contract says.
pub fn unreadable(error: serde_json::Error) -> Failure {
    Failure::Failed(format!("the reply cannot be read: {error}"))
}

/// A string as it is, anything else as JSON.
pub fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// A result's path as `A -relation-> B -relation-> C`; its fact when the path has no step.
pub fn path_text(result: &Value) -> String {
    let none = Vec::new();
    let steps = result["path"].as_array().filter(|steps| !steps.is_empty()).unwrap_or(&none);
    let mut text = String::new();
    let fact = std::slice::from_ref(&result["fact"]);
    for step in if steps.is_empty() { fact } else { steps } {
        if text.is_empty() {
            text.push_str(&plain(&step["entity"]));
        }
        text.push_str(&format!(" -{}-> {}", plain(&step["relation"]), plain(&step["target"])));
    }
    text
}

/// What a person reads of a payload: its `text`, else all of it, else nothing.
pub fn payload_text(fact: &Value) -> String {
    match &fact["payload"] {
        Value::Null => String::new(),
        payload => payload["text"].as_str().map_or_else(|| plain(payload), str::to_owned),
    }
}

fn shown(cell: Cell) -> String {
    match cell {
        // One line a row, and a stored text has no say in how a terminal shows it.
        Cell::Text(text) => text.replace(char::is_control, " "),
        Cell::Distance(Some(distance)) => distance_text(distance),
        Cell::Distance(None) => "-".to_owned(),
    }
}

/// Four decimals, or three digits with an exponent where they would all be zeros.
pub fn distance_text(distance: f64) -> String {
    if distance != 0.0 && distance.abs() < 5e-5 {
        return format!("{distance:.2e}");
    }
    // Adding 0 makes a negative zero positive.
    format!("{:.4}", distance + 0.0)
}

/// The shortest text that gives the same number again, with an exponent when it is tiny.
fn every_digit(distance: f64) -> String {
    if distance != 0.0 && distance.abs() < 1e-5 {
        return format!("{distance:e}");
    }
    (distance + 0.0).to_string()
}

fn csv(cell: Cell) -> String {
    let text = match cell {
        Cell::Text(text) => text,
        Cell::Distance(distance) => distance.map_or_else(String::new, every_digit),
    };
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text
    }
}

fn flatten(prefix: &str, value: &Value, rows: &mut Vec<Value>) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (name, inner) in fields {
                let dot = if prefix.is_empty() { "" } else { "." };
                flatten(&format!("{prefix}{dot}{name}"), inner, rows);
            }
        }
        leaf => rows.push(serde_json::json!([prefix, leaf])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_path_is_shown_whole() {
        let result = json!({"fact": {"entity": "b", "relation": "s", "target": 7}, "path": [
            {"entity": "a", "relation": "r", "target": "b"},
            {"entity": "b", "relation": "s", "target": 7}]});
        assert_eq!(path_text(&result), "a -r-> b -s-> 7");
        let seed = json!({"fact": {"entity": "a", "relation": "r", "target": "b"}, "path": []});
        assert_eq!(path_text(&seed), "a -r-> b");
    }

    #[test]
    fn csv_quotes_what_needs_it_and_keeps_every_digit() {
        assert_eq!(csv(Cell::Text("a \"b\", c".to_owned())), "\"a \"\"b\"\", c\"");
        assert_eq!(csv(Cell::Distance(Some(0.1 + 0.2))), "0.30000000000000004");
        assert_eq!(csv(Cell::Distance(None)), "");
        assert_eq!(shown(Cell::Distance(Some(0.30000000000000004))), "0.3000");
    }

    #[test]
    fn a_tiny_distance_is_short_and_not_nothing() {
        for (distance, table, all) in [
            (-2.220446049250313e-16, "-2.22e-16", "-2.220446049250313e-16"),
            (4.9e-5, "4.90e-5", "0.000049"),
            (5e-5, "0.0001", "0.00005"),
            (-0.0, "0.0000", "0"),
            (0.25, "0.2500", "0.25"),
            (-7.0, "-7.0000", "-7"),
        ] {
            assert_eq!(shown(Cell::Distance(Some(distance))), table);
            assert_eq!(csv(Cell::Distance(Some(distance))), all);
        }
    }

    #[test]
    fn a_stored_text_cannot_move_the_cursor_of_a_terminal() {
        let text = "red\u{1b}[2Jfox\r\n\u{9b}é".to_owned();
        assert_eq!(shown(Cell::Text(text.clone())), "red [2Jfox   é");
        assert!(csv(Cell::Text(text)).contains('\u{1b}'), "for programs it is as it is");
    }

    #[test]
    fn a_reply_has_a_next_page_or_none() {
        let next = |text: &str| serde_json::from_str::<Page>(text).expect("ours").next_page_token;
        assert_eq!(next(r#"{"results": [], "next_page_token": "t"}"#), Some("t".to_owned()));
        assert_eq!(next(r#"{"results": [], "next_page_token": null}"#), None);
        assert_eq!(next(r#"{"graphs": []}"#), None);
    }

    #[test]
    fn list_elements_keep_their_bytes() {
        let body = br#"{"partial": false, "results": [ {"b":1, "a" : 2.50}, 3 ]}"#;
        let raw: Vec<_> =
            elements(body, "results").expect("a list").iter().map(|raw| raw.get()).collect();
        assert_eq!(raw, ["{\"b\":1, \"a\" : 2.50}", "3"]);
        assert!(elements(body, "facts").is_err());
    }
}
