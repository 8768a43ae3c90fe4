//! JSON text, written front to back without a tree in between.

use serde::Serialize;

/// Largest number that every JSON reader keeps exact.
const EXACT_MAX: u64 = 1 << 53;

/// A JSON text in the making. Commas are put where two values meet.
#[derive(Debug, Default)]
pub struct Json {
    out: Vec<u8>,
}

impl Json {
    /// An empty text with room for `bytes`.
    pub fn with_capacity(bytes: usize) -> Self {
        Self { out: Vec::with_capacity(bytes) }
    }

    /// Bytes written so far.
    pub fn written(&self) -> usize {
        self.out.len()
    }

    /// The text.
    pub fn into_bytes(self) -> Vec<u8> {
        self.out
    }

    /// The bytes written so far, for a writer that appends one whole value.
    pub fn value_into(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        self.comma();
        write(&mut self.out);
    }

    // A value never ends in one of these bytes, so they mark the places that take no comma.
    fn comma(&mut self) {
        if !matches!(self.out.last(), None | Some(b'{' | b'[' | b':')) {
            self.out.push(b',');
        }
    }

    /// An object with what `fill` writes.
    pub fn object(&mut self, fill: impl FnOnce(&mut Self)) {
        self.comma();
        self.out.push(b'{');
        fill(self);
        self.out.push(b'}');
    }

    /// An array of what `each` writes per item.
    pub fn array<T>(
        &mut self,
        items: impl IntoIterator<Item = T>,
        mut each: impl FnMut(&mut Self, T),
    ) {
        self.comma();
        self.out.push(b'[');
        for item in items {
            each(self, item);
        }
        self.out.push(b']');
    }

    /// The name of the field whose value comes next.
    pub fn name(&mut self, name: &str) -> &mut Self {
        self.comma();
        self.out.push(b'"');
        self.out.extend_from_slice(name.as_bytes());
        self.out.extend_from_slice(b"\":");
        self
    }

    /// A number, string, boolean or null, or plain data of these. Floats parse back to the same
    /// bits.
    pub fn value(&mut self, value: &(impl Serialize + ?Sized)) {
        self.comma();
        serde_json::to_writer(&mut self.out, value).expect("plain values serialise");
    }

    /// A field with a plain value.
    pub fn field(&mut self, name: &str, value: &(impl Serialize + ?Sized)) {
        self.name(name).value(value);
    }

    /// A value that is JSON text already.
    pub fn raw(&mut self, text: &str) {
        self.comma();
        self.out.extend_from_slice(text.as_bytes());
    }

    /// An id: a number, or a decimal string above 2^53.
    pub fn id(&mut self, id: u64) {
        if id <= EXACT_MAX { self.value(&id) } else { self.value(&id.to_string()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    #[test]
    fn commas_stand_between_values_only() {
        let mut text = Json::default();
        text.object(|text| {
            text.name("a").array([1, 2], |text, item| text.value(&item));
            text.name("b").object(|_| {});
            text.name("c").array([(), ()], |text, ()| text.object(|text| text.field("d", "[")));
            text.name("e").raw("{\"x\": [1]}");
            text.field("f", &None::<f64>);
        });
        let value: Value = serde_json::from_slice(&text.into_bytes()).expect("JSON");
        assert_eq!(
            value,
            json!({"a": [1, 2], "b": {}, "c": [{"d": "["}, {"d": "["}], "e": {"x": [1]}, "f": null})
        );
    }

    proptest! {
        #[test]
        fn floats_parse_back_to_the_same_bits(bits: u64, small: u32) {
            let (wide, narrow) = (f64::from_bits(bits), f32::from_bits(small));
            let mut text = Json::default();
            text.array([()], |text, ()| text.value(&wide));
            let text = String::from_utf8(text.into_bytes()).expect("UTF-8");
            let inner = &text[1..text.len() - 1];
            if wide.is_finite() {
                prop_assert_eq!(inner.parse::<f64>().expect("a number").to_bits(), bits);
            }
            let mut text = Json::default();
            text.value(&narrow);
            let text = String::from_utf8(text.into_bytes()).expect("UTF-8");
            if narrow.is_finite() {
                prop_assert_eq!(text.parse::<f32>().expect("a number").to_bits(), small);
            }
        }

        #[test]
        fn ids_are_strings_where_a_reader_may_round_them(id: u64) {
            let mut text = Json::default();
            text.id(id);
            let value: Value = serde_json::from_slice(&text.into_bytes()).expect("JSON");
            let back = value.as_u64().or_else(|| value.as_str().and_then(|text| text.parse().ok()));
            prop_assert_eq!(back, Some(id));
            prop_assert_eq!(value.is_string(), id > 1 << 53);
        }
    }
}
