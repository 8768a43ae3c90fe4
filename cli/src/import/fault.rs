//! A refusal of the engine in the file's own terms: line and column, not a place in a request.

use super::batches::Batch;
use super::place;
use crate::failure::{Failure, Refusal};

/// What the engine said of `batch`, by the lines of `file`.
pub fn in_file(file: &str, batch: &Batch, refusal: Refusal) -> Failure {
    let mut places = Vec::new();
    for fault in &refusal.errors {
        let Some((row, rest)) = row_of(&fault.pointer) else { continue };
        let Some((line, _)) = batch.lines.get(row) else { continue };
        let text = batch.line(row).unwrap_or_default();
        let column = place::column(text, rest).unwrap_or(1);
        places.push(format!("{file}:{line}:{column}: {}", fault.detail));
    }
    if places.is_empty() {
        let first = batch.lines.first().map_or(0, |(line, _)| *line);
        let last = batch.lines.last().map_or(0, |(line, _)| *line);
        places.push(format!("{file}:{first}-{last}: {refusal}"));
    } else {
        places.insert(0, format!("{}: {}", refusal.code, refusal.detail));
    }
    match refusal.exit_code() {
        8 => Failure::Conflict(places.join("\n  ")),
        // A wrong fact in a file is not a wrong command line.
        _ => Failure::Failed(places.join("\n  ")),
    }
}

/// `/facts/17/embedding/3` as row 17 and `/embedding/3`.
fn row_of(pointer: &str) -> Option<(usize, &str)> {
    let rest = pointer.strip_prefix("/facts/")?;
    let end = rest.find('/').unwrap_or(rest.len());
    Some((rest[..end].parse().ok()?, &rest[end..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pointer_into_a_batch_names_its_row() {
        assert_eq!(row_of("/facts/17/embedding/3"), Some((17, "/embedding/3")));
        assert_eq!(row_of("/facts/0"), Some((0, "")));
        assert_eq!(row_of("/facts"), None);
        assert_eq!(row_of("/facts/x/y"), None);
    }
}
