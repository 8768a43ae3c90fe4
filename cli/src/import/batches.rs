//! Cuts a stream of JSON lines into batches.
//!
//! A batch ends at its bound of rows or bytes, or before a line whose key it already has: so a
//! key that occurs twice in a file means what it says, the later line wins.

use super::place;
use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{BufRead, Read as _};

/// Bytes of one line at most: the engine takes no larger write.
const LINE_BYTES_MAX: usize = hopbine_proto::limits::WRITE_BYTES_MAX;
/// Some editors begin every file with it; it is no part of the first line.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// Some consecutive facts of a file.
#[derive(Debug)]
pub struct Batch {
    /// The lines as they are, each with its line break.
    pub body: Bytes,
    /// Of each fact: its line number from 1, and where it begins in `body`.
    pub lines: Vec<(u64, usize)>,
    /// Hash of each fact's key.
    pub keys: HashSet<u64>,
    /// Facts without a vector.
    pub bare: u64,
    /// Bytes of the stream read when the batch ended.
    pub read: u64,
}

impl Batch {
    /// The text of fact `row`, without its line break.
    pub fn line(&self, row: usize) -> Option<&str> {
        let (_, start) = *self.lines.get(row)?;
        let end = self.lines.get(row + 1).map_or(self.body.len(), |(_, next)| *next);
        std::str::from_utf8(&self.body[start..end]).ok().map(str::trim_end)
    }
}

/// A line that is no fact at all, or a stream that cannot be read.
#[derive(Debug, PartialEq)]
pub struct BadLine {
    /// From 1.
    pub line: u64,
    /// From 1, bytes.
    pub column: usize,
    /// A lower-case phrase.
    pub reason: String,
}

/// The batches of a stream, and at most one `BadLine` at the end.
pub struct Batches<R> {
    stream: R,
    rows_max: usize,
    bytes_max: usize,
    line_number: u64,
    read: u64,
    /// A line read but not yet in a batch.
    kept: Option<Line>,
    fault: Option<BadLine>,
    ended: bool,
    /// What is done to every line before it joins a batch.
    change: Option<Change>,
}

/// A change of a line; fails with the column and the reason.
pub type Change = Box<dyn Fn(&str) -> Result<String, (usize, String)> + Send>;

/// A line with a fact on it.
struct Line {
    /// From 1.
    number: u64,
    /// As it is sent, with a line break.
    bytes: Vec<u8>,
    /// Hash of the fact's key.
    key: u64,
    /// Whether the fact has no vector.
    bare: bool,
}

/// The part of a fact that is read here; the engine checks the rest.
#[derive(Deserialize)]
struct Parts<'a> {
    #[serde(borrow)]
    entity: Option<&'a RawValue>,
    #[serde(borrow)]
    relation: Option<&'a RawValue>,
    #[serde(borrow)]
    target: Option<&'a RawValue>,
    #[serde(borrow)]
    embedding: Option<&'a RawValue>,
}

impl<R: BufRead> Batches<R> {
    /// Batches of at most `rows_max` facts and, beyond the first fact, `bytes_max` bytes.
    pub fn new(stream: R, rows_max: usize, bytes_max: usize) -> Self {
        Self {
            stream,
            rows_max,
            bytes_max,
            line_number: 0,
            read: 0,
            kept: None,
            fault: None,
            ended: false,
            change: None,
        }
    }

    /// The same with `change` done to every line.
    pub fn changed(mut self, change: Option<Change>) -> Self {
        self.change = change;
        self
    }

    /// The next line with a fact on it.
    fn next_fact(&mut self) -> Option<Line> {
        while !self.ended {
            let mut line = Vec::new();
            let mut bounded = (&mut self.stream).take(LINE_BYTES_MAX as u64 + 1);
            let read = bounded.read_until(b'\n', &mut line);
            self.line_number += 1;
            let line_number = self.line_number;
            let bad = |column, reason| BadLine { line: line_number, column, reason };
            match read {
                Err(error) => self.fault = Some(bad(1, error.to_string())),
                Ok(0) => {}
                Ok(length) if length > LINE_BYTES_MAX => {
                    let reason = format!("the line is longer than {LINE_BYTES_MAX} bytes");
                    self.fault = Some(bad(LINE_BYTES_MAX, reason));
                }
                Ok(length) => {
                    self.read += length as u64;
                    if line_number == 1 && line.starts_with(BYTE_ORDER_MARK) {
                        line.drain(..BYTE_ORDER_MARK.len());
                    }
                    if line.iter().all(u8::is_ascii_whitespace) {
                        continue;
                    }
                    match self.ready(line) {
                        Ok(line) => return Some(line),
                        Err((column, reason)) => self.fault = Some(bad(column, reason)),
                    }
                }
            }
            self.ended = true;
        }
        None
    }
}

impl<R> Batches<R> {
    /// The line that was read last, as it is sent.
    fn ready(&self, mut bytes: Vec<u8>) -> Result<Line, (usize, String)> {
        if bytes.last() != Some(&b'\n') {
            bytes.push(b'\n');
        }
        let text = std::str::from_utf8(&bytes)
            .map_err(|error| (error.valid_up_to() + 1, "not UTF-8".to_owned()))?;
        place::object(text)?;
        let changed = self.change.as_ref().map(|change| change(text)).transpose()?;
        let (key, bare) = known(changed.as_deref().unwrap_or(text))?;
        let bytes = changed.map_or(bytes, String::into_bytes);
        Ok(Line { number: self.line_number, bytes, key, bare })
    }
}

impl<R: BufRead> Iterator for Batches<R> {
    type Item = Result<Batch, BadLine>;

    fn next(&mut self) -> Option<Self::Item> {
        let (mut body, mut lines, mut keys) = (Vec::new(), Vec::new(), HashSet::new());
        let mut bare = 0;
        while lines.len() < self.rows_max {
            let Some(line) = self.kept.take().or_else(|| self.next_fact()) else { break };
            let full = body.len() + line.bytes.len() > self.bytes_max && !lines.is_empty();
            if full || keys.contains(&line.key) {
                self.kept = Some(line);
                break;
            }
            keys.insert(line.key);
            bare += u64::from(line.bare);
            lines.push((line.number, body.len()));
            body.extend_from_slice(&line.bytes);
        }
        if lines.is_empty() {
            return self.fault.take().map(Err);
        }
        Some(Ok(Batch { body: Bytes::from(body), lines, keys, bare, read: self.read }))
    }
}

/// The hash of a fact's key, and whether the fact has no vector.
fn known(line: &str) -> Result<(u64, bool), (usize, String)> {
    let fact: Parts = serde_json::from_str(line).map_err(|error| place::syntax(&error))?;
    let mut hasher = DefaultHasher::new();
    for part in [fact.entity, fact.relation, fact.target] {
        // A number and its decimal string are the same id.
        let text = part.map(RawValue::get).unwrap_or_default();
        let plain: Result<Cow<str>, _> = serde_json::from_str(text);
        plain.unwrap_or(Cow::Borrowed(text)).hash(&mut hasher);
    }
    Ok((hasher.finish(), fact.embedding.is_none()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn cut(text: &str, rows: usize, bytes: usize) -> Vec<Result<Batch, BadLine>> {
        Batches::new(text.as_bytes(), rows, bytes).collect()
    }

    fn fact(entity: &str) -> String {
        format!("{{\"entity\":{entity},\"relation\":\"r\",\"target\":\"t\"}}\n")
    }

    #[test]
    fn a_repeated_key_begins_a_new_batch_so_that_the_later_line_wins() {
        let text = [fact("1"), fact("2"), fact("\"1\""), fact("3")].concat();
        let sizes: Vec<usize> =
            cut(&text, 10, 1 << 20).iter().map(|b| b.as_ref().expect("good").lines.len()).collect();
        assert_eq!(sizes, [2, 2]);
    }

    #[test]
    fn a_bad_line_comes_after_all_good_ones_and_names_its_place() {
        let text = format!("{}\n  \n{}{{\"entity\": 1,, }}\n{}", fact("1"), fact("2"), fact("3"));
        let got = cut(&text, 10, 1 << 20);
        assert_eq!(got.len(), 2);
        let batch = got[0].as_ref().expect("good");
        assert_eq!(batch.lines.iter().map(|(n, _)| *n).collect::<Vec<_>>(), [1, 4]);
        assert_eq!(batch.line(1).expect("there"), fact("2").trim_end());
        let bad = got[1].as_ref().expect_err("bad");
        assert_eq!((bad.line, bad.column), (5, 14));
        for text in ["7\n", "[]\n", "\"x\"\n", "{\"entity\":1} x"] {
            assert!(cut(text, 1, 1).pop().expect("one").is_err(), "{text}");
        }
        let got = Batches::new(&b"{\"entity\": \"\xff\"}"[..], 1, 1).next().expect("one");
        assert_eq!(got.expect_err("not UTF-8").column, 13);
    }

    #[test]
    fn a_file_without_facts_has_no_batch() {
        assert!(cut("", 1, 1).is_empty());
        assert!(cut("\n \r\n", 1, 1).is_empty());
        assert!(cut("\u{feff}\n", 1, 1).is_empty());
    }

    #[test]
    fn a_byte_order_mark_is_no_part_of_the_first_line() {
        let got = cut(&format!("\u{feff}{}", fact("1")), 1, 1).pop().expect("one");
        assert_eq!(got.expect("good").body, fact("1"));
        assert!(cut(&format!("{}\u{feff}{}", fact("1"), fact("2")), 9, 999)[1].is_err());
    }

    #[test]
    fn facts_without_a_vector_are_counted() {
        let line = |more: &str, n: u8| {
            format!("{{\"entity\":{n},\"relation\":\"r\",\"target\":\"t\"{more}}}\n")
        };
        let text = [
            line("", 1),
            line(",\"embedding\":[1]", 2),
            line(",\"embedding\":null", 3),
            line(",\"payload\":{\"embedding\":[1]}", 4),
        ];
        let got = cut(&text.concat(), 9, 999).pop().expect("one").expect("good");
        assert_eq!((got.lines.len(), got.bare), (4, 3));
    }

    #[test]
    fn a_file_that_is_one_list_is_told_what_a_line_is() {
        for (text, column) in [("[{\"entity\":1},\n", 1), (" [\n", 2)] {
            let bad = cut(text, 1, 1).pop().expect("one").expect_err("no object");
            assert_eq!((bad.line, bad.column), (1, column));
            assert!(bad.reason.contains("each line must be one JSON object"), "{}", bad.reason);
        }
        let bad = cut("{\n\"entity\": 1}\n", 1, 1).pop().expect("one").expect_err("half");
        assert!(bad.reason.contains("one line"), "{}", bad.reason);
    }

    proptest! {
        #[test]
        fn batches_hold_every_line_once_in_order_within_their_bounds(
            ids in proptest::collection::vec(0u8..20, 0..40),
            rows in 1usize..8,
            bytes in 1usize..400,
            end in any::<bool>(),
        ) {
            let mut text: String = ids.iter().map(|id| fact(&id.to_string())).collect();
            if !end {
                text.truncate(text.trim_end().len());
            }
            let mut joined = Vec::new();
            let mut next = 1;
            for batch in cut(&text, rows, bytes) {
                let batch = batch.expect("good lines only");
                prop_assert!(batch.lines.len() <= rows && !batch.lines.is_empty());
                prop_assert!(batch.body.len() <= bytes || batch.lines.len() == 1);
                prop_assert_eq!(batch.keys.len(), batch.lines.len());
                for (number, _) in &batch.lines {
                    prop_assert_eq!(*number, next);
                    next += 1;
                }
                joined.extend_from_slice(&batch.body);
            }
            if !end && !text.is_empty() {
                text.push('\n');
            }
            prop_assert_eq!(String::from_utf8(joined).expect("UTF-8"), text);
        }
    }
}
