//! A payload's JSON as a value to be tested: every key is an ordinary key.
//!
//! serde_json gives keys of its own a meaning when some crate of the build asks for raw values, and
//! would read a payload that happens to have one as another payload.

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use std::fmt;

/// The value of a JSON text; `None` when it is none.
pub fn parse_payload(text: &str) -> Option<Value> {
    serde_json::from_str::<Plain>(text).ok().map(|plain| plain.0)
}

struct Plain(Value);

impl<'de> Deserialize<'de> for Plain {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(PlainVisitor).map(Plain)
    }
}

struct PlainVisitor;

impl<'de> Visitor<'de> for PlainVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Value, A::Error> {
        let mut array = Vec::new();
        while let Some(Plain(element)) = elements.next_element()? {
            array.push(element);
        }
        Ok(Value::Array(array))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some((key, Plain(value))) = entries.next_entry::<String, Plain>()? {
            object.insert(key, value);
        }
        Ok(Value::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_reads_as_it_is_written_whatever_its_keys() {
        let text = r#"{"a":[1,-2,2.5,null,true,"x"],"b":{"c":18446744073709551615}}"#;
        let expected: Value = serde_json::from_str(text).expect("JSON");
        assert_eq!(parse_payload(text), Some(expected));
        for inner in [r#""{\"year\":5}""#, r#""}{""#, "7"] {
            let text = format!(r#"{{"year":1,"x":{{"$serde_json::private::RawValue":{inner}}}}}"#);
            let value = parse_payload(&text).expect("JSON");
            assert_eq!(value["year"], 1);
            assert!(value["x"]["$serde_json::private::RawValue"].is_string() || inner == "7");
        }
        assert_eq!(parse_payload("{"), None);
    }
}
