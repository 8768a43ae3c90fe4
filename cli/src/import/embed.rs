//! Gives a line the vector of its own words, for graphs with a built-in embedder.

use super::place;
use hopbine_coordinator::embed::Lexical;
use serde_json::Value;

/// `line` with the vector of the payload's field `field` (a dotted path) as its `embedding`.
/// A line that has an embedding, or no text there, or only stop words, stays as it is.
/// Fails with `(column, reason)` when it is no JSON object.
pub fn embedded(line: &str, field: &str, lexical: &Lexical) -> Result<String, (usize, String)> {
    let fact: Value = serde_json::from_str(line).map_err(|error| place::syntax(&error))?;
    let Some(end) = line.rfind('}').filter(|_| fact.is_object()) else {
        return Err((1, "not a JSON object".to_owned()));
    };
    let text = field.split('.').fold(&fact["payload"], |value, name| &value[name]);
    let (None, Some(text)) = (fact.get("embedding"), text.as_str()) else {
        return Ok(line.to_owned());
    };
    let vector = lexical.embed(text);
    if vector.iter().all(|component| *component == 0.0) {
        return Ok(line.to_owned());
    }
    let vector = Value::from(vector);
    // A fact has at least its payload here, so that a comma is right.
    Ok(format!("{},\"embedding\":{vector}}}{}", &line[..end], &line[end + 1..]))
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
    fn a_line_without_text_or_with_a_vector_stays_as_it_is() {
        let lexical = Lexical::new(Tokenizer::Generic, 8);
        for line in [
            "{\"payload\":{\"text\":7}}",
            "{\"entity\":\"a\"}",
            "{\"payload\":{\"text\":\"fox\"},\"embedding\":[1]}",
            "{\"payload\":{\"text\":\"of the\"}}",
        ] {
            assert_eq!(embedded(line, "text", &lexical).expect("an object"), line);
        }
        assert!(embedded("[1]", "text", &lexical).is_err());
        assert_eq!(embedded("{\"a\":}", "text", &lexical).expect_err("no JSON").0, 6);
    }
}
