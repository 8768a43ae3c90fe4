//! A pull parser: the caller says which shape comes next, and reads straight into its own types.

use super::refusal::{Read, Refusal, unknown_field};
use super::room::Room;
use hopbine_proto::graph::IdKind;
use hopbine_proto::status::Code;
use std::borrow::Cow;

/// Levels of nesting. Well inside the 128 that readers of stored payloads accept.
pub const DEPTH_MAX: u32 = 64;

/// What kind of value comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `{`
    Object,
    /// `[`
    Array,
    /// `"`
    Text,
    /// A digit or a minus.
    Number,
    /// `true` or `false`.
    Boolean,
    /// `null`
    Null,
    /// No value starts like this.
    None,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Object => "an object",
            Self::Array => "an array",
            Self::Text => "a string",
            Self::Number => "a number",
            Self::Boolean => "a boolean",
            Self::Null => "null",
            Self::None => "no value",
        }
    }
}

/// A place in a JSON text.
pub struct Cursor<'a> {
    pub(super) text: &'a str,
    pub(super) at: usize,
    depth: u32,
    ids: IdKind,
    /// Counts what is made of the text.
    pub room: Room,
}

/// Reads `body` as one JSON value of the shape that `shape` expects, whatever it takes.
pub fn read<'a, T>(body: &'a [u8], shape: impl FnOnce(&mut Cursor<'a>) -> Read<T>) -> Read<T> {
    read_ids(body, IdKind::Names, shape)
}

/// The same in a graph whose ids are of the kind `ids`.
pub fn read_ids<'a, T>(
    body: &'a [u8],
    ids: IdKind,
    shape: impl FnOnce(&mut Cursor<'a>) -> Read<T>,
) -> Read<T> {
    read_within(&mut Room::default(), body, ids, shape)
}

/// The same, but `memory_limit` when it takes more than there is room for.
pub fn read_within<'a, T>(
    room: &mut Room,
    body: &'a [u8],
    ids: IdKind,
    shape: impl FnOnce(&mut Cursor<'a>) -> Read<T>,
) -> Read<T> {
    let text = std::str::from_utf8(body).map_err(|error| {
        let at = error.valid_up_to();
        Refusal::new(Code::InvalidRequest, format!("the body is not UTF-8 at byte {at}"))
    })?;
    let mut cursor = Cursor { text, at: 0, depth: 0, ids, room: std::mem::take(room) };
    let value = cursor.only_value(shape);
    *room = cursor.room;
    value
}

impl<'a> Cursor<'a> {
    /// The one value of the text.
    fn only_value<T>(&mut self, shape: impl FnOnce(&mut Self) -> Read<T>) -> Read<T> {
        self.skip_space();
        if self.at == self.text.len() {
            return Err(Refusal::new(Code::InvalidRequest, "the body is empty")
                .hint("send one JSON object with Content-Type: application/json"));
        }
        let value = shape(self)?;
        self.skip_space();
        if self.at < self.text.len() {
            return Err(self.syntax("more text after the JSON value"));
        }
        Ok(value)
    }

    /// How strings in the place of ids are meant: names, or numbers above 2^53.
    pub fn ids(&self) -> IdKind {
        self.ids
    }

    pub(super) fn byte(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    pub(super) fn skip_space(&mut self) {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.byte() {
            self.at += 1;
        }
    }

    /// A fault in the text itself.
    pub(super) fn syntax(&self, what: &str) -> Refusal {
        Refusal::new(Code::InvalidRequest, format!("not valid JSON at byte {}: {what}", self.at))
    }

    /// Kind of the next value, at which the cursor then stands.
    pub fn kind(&mut self) -> Kind {
        self.skip_space();
        match self.byte() {
            Some(b'{') => Kind::Object,
            Some(b'[') => Kind::Array,
            Some(b'"') => Kind::Text,
            Some(b'-' | b'0'..=b'9') => Kind::Number,
            Some(b't' | b'f') => Kind::Boolean,
            Some(b'n') => Kind::Null,
            _ => Kind::None,
        }
    }

    /// A fault: the next value is not what the contract expects here.
    pub fn unexpected(&mut self, expected: &str) -> Refusal {
        match self.kind() {
            Kind::None => self.syntax(&format!("expected {expected}")),
            found => Refusal::new(
                Code::InvalidRequest,
                format!("expected {expected}, found {}", found.name()),
            ),
        }
    }

    pub(super) fn expect(&mut self, kind: Kind, expected: &str) -> Read<()> {
        if self.kind() == kind { Ok(()) } else { Err(self.unexpected(expected)) }
    }

    pub(super) fn enter(&mut self) -> Read<()> {
        self.depth += 1;
        self.at += 1;
        if self.depth > DEPTH_MAX {
            let detail = format!("nested deeper than {DEPTH_MAX} levels");
            return Err(Refusal::new(Code::InvalidRequest, detail));
        }
        self.skip_space();
        Ok(())
    }

    pub(super) fn leave(&mut self) {
        self.at += 1;
        self.depth -= 1;
    }

    /// Whether another element follows; steps over the comma or the closing byte.
    #[inline]
    pub(super) fn another(&mut self, close: u8) -> Read<bool> {
        self.skip_space();
        match self.byte() {
            Some(b',') => {
                self.at += 1;
                self.skip_space();
                Ok(true)
            }
            Some(byte) if byte == close => {
                self.leave();
                Ok(false)
            }
            _ => Err(self.syntax(&format!("expected ',' or '{}'", close as char))),
        }
    }

    /// An object whose fields are all among `fields` (at most 64); `visit` gets a field's name and
    /// must read its value. A field may appear once; a null one counts as absent.
    pub fn object(
        &mut self,
        fields: &[&'static str],
        mut visit: impl FnMut(&'static str, &mut Self) -> Read<()>,
    ) -> Read<()> {
        let mut seen = 0u64;
        self.entries(|name, cursor| {
            let Some(place) = fields.iter().position(|field| *field == name) else {
                return Err(unknown_field(name, fields));
            };
            if seen & (1 << place) != 0 {
                return Err(Refusal::new(Code::InvalidRequest, format!("{name} is given twice")));
            }
            seen |= 1 << place;
            if cursor.kind() == Kind::Null { cursor.null() } else { visit(fields[place], cursor) }
        })
    }

    /// An object with any fields; `visit` must read each value.
    pub fn entries(&mut self, mut visit: impl FnMut(&str, &mut Self) -> Read<()>) -> Read<()> {
        self.expect(Kind::Object, "an object")?;
        self.enter()?;
        if self.byte() == Some(b'}') {
            self.leave();
            return Ok(());
        }
        loop {
            if self.byte() != Some(b'"') {
                return Err(self.syntax("expected a field name in double quotes"));
            }
            let name = self.text_here()?;
            self.skip_space();
            if self.byte() != Some(b':') {
                return Err(self.syntax("expected ':'").within(name));
            }
            self.at += 1;
            visit(&name, self).map_err(|refusal| refusal.within(&name))?;
            if !self.another(b'}')? {
                return Ok(());
            }
        }
    }

    /// An array; `visit` gets each place and must read the value there.
    pub fn array(&mut self, mut visit: impl FnMut(usize, &mut Self) -> Read<()>) -> Read<()> {
        self.expect(Kind::Array, "an array")?;
        self.enter()?;
        if self.byte() == Some(b']') {
            self.leave();
            return Ok(());
        }
        for place in 0.. {
            visit(place, self).map_err(|refusal| refusal.within(place))?;
            if !self.another(b']')? {
                break;
            }
        }
        Ok(())
    }

    /// An array of values that `each` reads, at most `most` of them.
    pub fn list<T>(
        &mut self,
        most: usize,
        mut each: impl FnMut(&mut Self) -> Read<T>,
    ) -> Read<Vec<T>> {
        let mut list = Vec::new();
        self.array(|place, cursor| {
            if place == most {
                let detail = format!("more than {most} elements");
                return Err(Refusal::new(Code::InvalidRequest, detail));
            }
            cursor.room.take(size_of::<T>())?;
            list.push(each(cursor)?);
            Ok(())
        })?;
        // It has doubled on its way, and stays as long as the request.
        list.shrink_to_fit();
        Ok(list)
    }

    /// A string.
    pub fn string(&mut self) -> Read<Cow<'a, str>> {
        self.expect(Kind::Text, "a string")?;
        self.text_here()
    }

    /// A string that stays.
    pub fn owned(&mut self) -> Read<String> {
        let text = self.string()?;
        self.room.take(text.len())?;
        let mut text = text.into_owned();
        text.shrink_to_fit();
        Ok(text)
    }

    /// `true` or `false`.
    pub fn boolean(&mut self) -> Read<bool> {
        self.expect(Kind::Boolean, "true or false")?;
        let value = self.byte() == Some(b't');
        self.word(if value { "true" } else { "false" })?;
        Ok(value)
    }

    /// `null`
    pub fn null(&mut self) -> Read<()> {
        self.expect(Kind::Null, "null")?;
        self.word("null")
    }

    fn word(&mut self, word: &str) -> Read<()> {
        if !self.text.as_bytes()[self.at..].starts_with(word.as_bytes()) {
            return Err(self.syntax(&format!("expected {word}")));
        }
        self.at += word.len();
        Ok(())
    }

    /// A whole number from 0 to `most`, written without fraction or exponent.
    pub fn whole(&mut self, most: u64) -> Read<u64> {
        self.expect(Kind::Number, &format!("a whole number from 0 to {most}"))?;
        let text = self.number()?;
        text.parse().ok().filter(|number| *number <= most).ok_or_else(|| {
            let detail = format!("expected a whole number from 0 to {most}, found {text}");
            Refusal::new(Code::InvalidRequest, detail)
        })
    }

    /// A number as it is written.
    pub fn numeral(&mut self) -> Read<&'a str> {
        self.expect(Kind::Number, "a number")?;
        self.number()
    }

    /// A finite number.
    pub fn float(&mut self) -> Read<f64> {
        self.expect(Kind::Number, "a number")?;
        let text = self.number()?;
        text.parse().ok().filter(|number: &f64| number.is_finite()).ok_or_else(|| too_large(text))
    }

    /// Any value as it is written, checked to be JSON.
    pub fn raw(&mut self) -> Read<&'a str> {
        self.skip_space();
        let start = self.at;
        self.skip_value()?;
        Ok(&self.text[start..self.at])
    }

    fn skip_value(&mut self) -> Read<()> {
        match self.kind() {
            Kind::Object => self.entries(|_, cursor| cursor.skip_value()),
            Kind::Array => self.array(|_, cursor| cursor.skip_value()),
            Kind::Text => self.text_here().map(drop),
            Kind::Number => self.float().map(drop),
            Kind::Boolean => self.boolean().map(drop),
            Kind::Null => self.null(),
            Kind::None => Err(self.syntax("expected a value")),
        }
    }
}

fn too_large(text: &str) -> Refusal {
    Refusal::new(Code::InvalidRequest, format!("{text} is beyond the range of f64"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::Value;

    fn raw(body: &[u8]) -> Read<&str> {
        read(body, |cursor| cursor.raw())
    }

    fn depth(value: &Value) -> u32 {
        match value {
            Value::Array(list) => 1 + list.iter().map(depth).max().unwrap_or(0),
            Value::Object(map) => 1 + map.values().map(depth).max().unwrap_or(0),
            _ => 0,
        }
    }

    /// Texts made of the pieces that a JSON parser has to tell apart.
    fn soup() -> impl Strategy<Value = String> {
        let pieces = vec![
            "{",
            "}",
            "[",
            "]",
            ",",
            ":",
            "\"a\"",
            "\"",
            "\\u00e9",
            "\\ud800",
            "\\udc00",
            "\\n",
            "1",
            "0",
            "-",
            ".",
            "e",
            "+",
            "1e400",
            "true",
            "false",
            "null",
            " ",
            "\n",
            "\u{1}",
            "é",
            "\"\\ud83d\\ude00\"",
        ];
        proptest::collection::vec(proptest::sample::select(pieces), 0..12)
            .prop_map(|pieces| pieces.concat())
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            "\\PC{0,6}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                proptest::collection::btree_map("\\PC{0,3}", inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    fn agrees_with_serde(text: &str) {
        let theirs = serde_json::from_str::<Value>(text);
        match raw(text.as_bytes()) {
            Ok(ours) => {
                let value = theirs.unwrap_or_else(|error| panic!("accepted {text:?}: {error}"));
                assert_eq!(serde_json::from_str::<Value>(ours).expect("a value"), value);
            }
            Err(refusal) => {
                let deep = theirs.as_ref().is_ok_and(|value| depth(value) > DEPTH_MAX);
                assert!(theirs.is_err() || deep, "refused {text:?}: {refusal:?}");
            }
        }
    }

    proptest! {
        #[test]
        fn what_passes_is_json_to_another_parser_and_the_other_way_round(
            text in soup(),
            value in any_json(),
            cut in any::<prop::sample::Index>(),
        ) {
            agrees_with_serde(&text);
            let whole = value.to_string();
            agrees_with_serde(&whole);
            let ends = (0..=whole.len()).filter(|end| whole.is_char_boundary(*end));
            let ends: Vec<_> = ends.collect();
            agrees_with_serde(&whole[..*cut.get(&ends)]);
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = raw(&bytes);
            let _ = read(&bytes, |cursor| cursor.floats(0, 8));
            let any = |_, cursor: &mut Cursor<'_>| cursor.raw().map(drop);
            let _ = read(&bytes, |cursor| cursor.object(&["a"], any));
        }

        #[test]
        fn strings_read_back_as_written(text in "\\PC{0,12}|[\\x00-\\x7f]{0,12}") {
            let json = serde_json::to_string(&text).expect("strings serialise");
            let ours = read(json.as_bytes(), |cursor| cursor.string()).expect("a string");
            prop_assert_eq!(ours, text);
        }
    }

    #[test]
    fn nesting_is_bounded() {
        let nested = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        assert!(raw(nested(DEPTH_MAX as usize).as_bytes()).is_ok());
        assert!(raw(nested(DEPTH_MAX as usize + 1).as_bytes()).is_err());
        assert!(raw("[".repeat(10_000_000).as_bytes()).is_err());
    }

    #[test]
    fn a_fault_names_its_place() {
        let body = br#"{"facts": [{"a/b": 1}, {"a/b": {"~": [1, 1e999]}}]}"#;
        let refusal = raw(body).expect_err("1e999 is no f64");
        assert_eq!(refusal.pointer(), "/facts/1/a~1b/~0/1");
    }

    #[test]
    fn fields_are_known_and_given_once() {
        let two = |body: &str| {
            let mut found = Vec::new();
            let fields = ["top_k", "ann_k"];
            read(body.as_bytes(), |cursor| {
                cursor.object(&fields, |name, cursor| {
                    found.push((name, cursor.whole(10)?));
                    Ok(())
                })
            })
            .map(|()| found)
            .map_err(hopbine_proto::status::Problem::from)
        };
        assert_eq!(two(r#"{"ann_k": 3, "top_k": null}"#), Ok(vec![("ann_k", 3)]));
        let unknown = two(r#"{"topk": 3}"#).expect_err("unknown");
        assert_eq!(
            (unknown.code, unknown.errors[0].pointer.as_str()),
            (Code::UnknownField, "/topk")
        );
        assert_eq!(unknown.hint.as_deref(), Some("did you mean \"top_k\"?"));
        let twice = two(r#"{"top_k": 3, "top_k": 4}"#).expect_err("twice");
        assert_eq!(
            (twice.code, twice.errors[0].pointer.as_str()),
            (Code::InvalidRequest, "/top_k")
        );
        for wrong in ["11", "-1", "1.0", "1e0", "\"1\"", "[]", "01", "18446744073709551616"] {
            let problem = two(&format!("{{\"top_k\": {wrong}}}")).expect_err(wrong);
            assert_eq!(problem.errors[0].pointer, "/top_k", "{wrong}");
        }
    }
}
