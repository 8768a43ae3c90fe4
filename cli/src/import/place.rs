//! Where in a line of JSON a fault lies: the column of a JSON pointer, from 1, in bytes.

use serde_json::value::RawValue;
use std::borrow::Cow;
use std::collections::HashMap;

/// Column of the value at `pointer` inside `line`, or of its nearest enclosing value that exists.
/// `None` when `line` is no JSON.
pub fn column(line: &str, pointer: &str) -> Option<usize> {
    let mut at: &RawValue = serde_json::from_str(line).ok()?;
    for part in pointer.split('/').skip(1) {
        match child(at, part) {
            Some(inner) => at = inner,
            None => break,
        }
    }
    Some(at.get().as_ptr() as usize - line.as_ptr() as usize + 1)
}

fn child<'a>(value: &'a RawValue, part: &str) -> Option<&'a RawValue> {
    let text = value.get();
    if text.starts_with('[') {
        let elements: Vec<&RawValue> = serde_json::from_str(text).ok()?;
        return elements.get(part.parse::<usize>().ok()?).copied();
    }
    let name = part.replace("~1", "/").replace("~0", "~");
    let fields: HashMap<Cow<'a, str>, &'a RawValue> = serde_json::from_str(text).ok()?;
    fields.get(name.as_str()).copied()
}

/// Refuses a line that does not begin as an object does, with `(column, reason)`.
pub fn object(line: &str) -> Result<(), (usize, String)> {
    let text = line.trim_start();
    let more = match text.chars().next() {
        Some('{') => return Ok(()),
        Some('[') => ", and this one begins a list: write one fact a line, without [ and commas",
        _ => "",
    };
    let reason = format!("each line must be one JSON object{more}");
    Err((line.len() - text.len() + 1, reason))
}

/// What is wrong with a line that is no JSON object of a fact: `(column, reason)`.
pub fn syntax(error: &serde_json::Error) -> (usize, String) {
    if error.is_eof() {
        let reason = "the line ends within its JSON object: a fact takes one line";
        return (error.column().max(1), reason.to_owned());
    }
    let text = error.to_string();
    let reason = text.rsplit_once(" at line ").map_or(text.as_str(), |(reason, _)| reason);
    (error.column().max(1), reason.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pointer_has_its_column() {
        let line = r#" {"entity": "a", "embedding": [0.5,  null], "a/b": {"c": 1}}"#;
        let at = |pointer: &str| column(line, pointer).map(|column| &line[column - 1..]);
        assert!(at("/embedding/1").expect("there").starts_with("null"));
        assert!(at("/entity").expect("there").starts_with("\"a\""));
        assert!(at("/a~1b/c").expect("there").starts_with("1}"));
        assert!(at("/embedding/7").expect("nearest").starts_with("[0.5"));
        assert!(at("/target").expect("nearest").starts_with("{\"entity\""));
        assert!(at("").expect("whole").starts_with("{\"entity\""));
        assert_eq!(column("{", "/a"), None);
    }

    #[test]
    fn a_syntax_fault_has_its_column_and_a_reason_without_it() {
        let error = serde_json::from_str::<&RawValue>("{\"a\": 1,, }").expect_err("no JSON");
        let (column, reason) = syntax(&error);
        assert_eq!(column, 9);
        assert!(!reason.contains("line"), "{reason}");
    }
}
