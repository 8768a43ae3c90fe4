//! Gives a line the vector of its own words, for graphs with a built-in embedder.

use super::place;
use hopbine_coordinator::embed::Lexical;
use serde_json::Value;

/// `line` with the vector of the payload's field `field` (a dotted path) as its `embedding`.
/// A line that has an embedding stays as it is, and so does one whose text is empty, or has only
/// stop words: such a text has no vector, and one made up would be found where it has no part.
/// Fails with `(column, reason)` when it is no JSON object, or has neither embedding nor text.
pub fn embedded(line: &str, field: &str, lexical: &Lexical) -> Result<String, (usize, String)> {
    let fact: Value = serde_json::from_str(line).map_err(|error| place::syntax(&error))?;
    let Some(end) = line.rfind('}').filter(|_| fact.is_object()) else {
        return Err((1, "not a JSON object".to_owned()));
    };
    let given = fact.get("embedding");
    if given.is_some_and(|given| !given.is_null()) {
        return Ok(line.to_owned());
    }
    let found = field.split('.').fold(&fact["payload"], |value, name| &value[name]);
    let Some(text) = found.as_str() else { return Err(without_text(line, field, found)) };
    if text.trim().is_empty() {
        return Ok(line.to_owned());
    }
    let vector = lexical.embed(text);
    if vector.iter().all(|component| *component == 0.0) {
        return Ok(line.to_owned());
    }
    let vector = Value::from(vector);
    if given.is_some() {
        // The vector takes the place of a null: a field may be there only once.
        let at = place::column(line, "/embedding").unwrap_or(1) - 1;
        return Ok(format!("{}{vector}{}", &line[..at], &line[at + "null".len()..]));
    }
    // A fact has at least its payload here, so that a comma is right.
    Ok(format!("{},\"embedding\":{vector}}}{}", &line[..end], &line[end + 1..]))
}

/// Where the words of a line are missing, and what was found instead.
fn without_text(line: &str, field: &str, found: &Value) -> (usize, String) {
    let mut pointer = "/payload".to_owned();
    for name in field.split('.') {
        pointer.push('/');
        pointer.push_str(&name.replace('~', "~0").replace('/', "~1"));
    }
    let column = place::column(line, &pointer).unwrap_or(1);
    let what = if found.is_null() { "the payload has no such text" } else { "it is no text" };
    (column, format!("--embed {field}: {what}, and the fact has no embedding of its own"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hopbine_coordinator::embed::Tokenizer;
    use serde_json::json;

    #[test]
    fn a_line_gets_the_vector_of_its_text_and_keeps_the_rest() {
        let lexical = Lexical::new(Tokenizer::Generic, 8);
        let line = "{\"entity\":\"a\",\"payload\":{\"n\":1.50,\"deep\":{\"text\":\"red fox\"}}}\n";
        let got = embedded(line, "deep.text", &lexical).expect("an object");
        let vector: Vec<f32> = lexical.embed("red fox");
        let fact: Value = serde_json::from_str(&got).expect("JSON");
        assert_eq!(fact["embedding"], json!(vector));
        assert!(got.starts_with(line.trim_end().trim_end_matches('}')) && got.ends_with("}\n"));
    }

    #[test]
    fn a_line_with_a_vector_or_without_a_word_that_counts_stays_as_it_is() {
        let lexical = Lexical::new(Tokenizer::Generic, 8);
        for line in [
            "{\"payload\":{\"text\":\"fox\"},\"embedding\":[1]}",
            "{\"entity\":\"a\",\"embedding\":[1]}",
            "{\"payload\":{\"text\":\"of the\"}}",
            "{\"payload\":{\"text\":\"\"}}",
            "{\"payload\":{\"text\":\" \\t\\u00a0 \"},\"embedding\":null}",
        ] {
            assert_eq!(embedded(line, "text", &lexical).expect("an object"), line);
        }
        assert!(embedded("[1]", "text", &lexical).is_err());
        assert_eq!(embedded("{\"a\":}", "text", &lexical).expect_err("no JSON").0, 6);
    }

    #[test]
    fn a_line_with_neither_text_nor_vector_is_refused_at_its_place() {
        let lexical = Lexical::new(Tokenizer::Generic, 8);
        for (line, column, words) in [
            ("{\"payload\":{\"text\":7}}", 20, "it is no text"),
            ("{\"payload\":{\"txt\":\"fox\"}}", 12, "no such text"),
            ("{\"payload\":\"fox\",\"embedding\":null}", 12, "no such text"),
            ("{\"entity\":\"a\"}", 1, "no such text"),
        ] {
            let (at, reason) = embedded(line, "text", &lexical).expect_err(line);
            assert_eq!(at, column, "{line}");
            assert!(reason.contains("--embed text") && reason.contains(words), "{reason}");
        }
    }

    #[test]
    fn a_null_in_the_place_of_the_vector_gives_way_to_it() {
        let lexical = Lexical::new(Tokenizer::Generic, 8);
        let line = "{\"embedding\": null, \"payload\":{\"text\":\"fox\"}}";
        let got = embedded(line, "text", &lexical).expect("an object");
        let vector = json!(lexical.embed("fox"));
        assert_eq!(got, line.replace("null", &vector.to_string()));
    }
}
