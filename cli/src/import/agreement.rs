//! Whether a graph that is there is what the command line says it should be.

use crate::failure::Failure;
use crate::output::plain;
use crate::session::Body;
use serde_json::Value;

/// Compares every setting in `said` with the graph's configuration `there`; what is not said is
/// left open. Fails with `Conflict` naming each that differs.
pub fn check(graph: &str, said: &Body, there: &Value) -> Result<(), Failure> {
    let mut differ = Vec::new();
    compare("", &Value::Object(said.clone()), there, &mut differ);
    if differ.is_empty() {
        return Ok(());
    }
    let text = format!("the graph {graph} is there, and not as asked:\n  {}", differ.join("\n  "));
    Err(Failure::Conflict(text))
}

fn compare(place: &str, said: &Value, there: &Value, differ: &mut Vec<String>) {
    match said {
        Value::Object(fields) => {
            let dot = if place.is_empty() { "" } else { "." };
            for (name, inner) in fields {
                compare(&format!("{place}{dot}{name}"), inner, &there[name], differ);
            }
        }
        said if same(said, there) => {}
        said => differ.push(format!("{place} is {there}, the command line says {said}")),
    }
}

/// A number above 2^53 comes back as its decimal string.
fn same(said: &Value, there: &Value) -> bool {
    match (said, there) {
        (Value::Array(said), Value::Array(there)) => {
            said.len() == there.len() && said.iter().zip(there).all(|(a, b)| same(a, b))
        }
        (Value::Number(said), Value::Number(there)) if said.is_f64() || there.is_f64() => {
            said.as_f64() == there.as_f64()
        }
        _ => plain(said) == plain(there),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn refusal(said: Value, there: &Value) -> Option<String> {
        let Value::Object(said) = said else { panic!("an object") };
        check("g", &said, there).err().map(|failure| failure.to_string())
    }

    #[test]
    fn only_what_is_said_is_compared_and_by_value() {
        let there = json!({"vector": {"dim": 2, "metric": "l2"}, "embedder": null, "ids": "u64",
            "index": {"recall_target": 1.0},
            "shards": {"boundaries": [5, "18446744073709551615"]}});
        for said in [
            json!({}),
            json!({"vector": {}}),
            json!({"vector": {"dim": 2}}),
            json!({"index": {"recall_target": 1}}),
            json!({"shards": {"boundaries": [5, u64::MAX]}}),
        ] {
            assert_eq!(refusal(said.clone(), &there), None, "{said}");
        }
        for (said, words) in [
            (json!({"vector": {"dim": 3}}), "vector.dim is 2, the command line says 3"),
            (json!({"embedder": "lexical"}), "embedder is null, the command line says"),
            (json!({"shards": {"boundaries": [5]}}), "shards.boundaries is [5,"),
            (json!({"shards": {"initial": 4}}), "shards.initial is null"),
        ] {
            let text = refusal(said, &there).expect("they differ");
            assert!(text.contains(words), "{text}");
        }
    }
}
