//! Bodies of the calls under `facts/`.

use super::values::{
    CALL, CallFields, FACT_PARTS, entity, filter, invalid, keys, prefix, relation, required,
    take_row, take_text, with,
};
use crate::request::{
    CountRequest, DeleteRequest, FactInput, GetRequest, KeyRef, ScanRequest, WithParts,
    WriteRequest,
};
use crate::server::json::{Cursor, Read, Room, read_within};
use hopbine_proto::graph::IdKind;
use hopbine_proto::limits;
use serde_json::value::RawValue;

/// Fields of a fact.
pub const FACT: &[&str] = &["entity", "relation", "target", "embedding", "payload"];
/// Fields of an upsert.
pub const UPSERT: &[&str] = &["facts", "with", CALL[0], CALL[1], CALL[2]];
/// Fields of `facts/write`.
pub const WRITE: &[&str] = &["upsert", "delete", "with", CALL[0], CALL[1], CALL[2]];
/// Fields of `facts/get`.
pub const GET: &[&str] = &["keys", "with", CALL[0], CALL[1], CALL[2]];
/// Fields of `facts/delete`.
pub const DELETE: &[&str] = &["keys", "prefix", "with", CALL[0], CALL[1], CALL[2]];
/// Fields of `facts/scan`.
pub const SCAN: &[&str] =
    &["prefix", "filter", "page_size", "page_token", "with", CALL[0], CALL[1], CALL[2]];
/// Fields of `facts/count`.
pub const COUNT: &[&str] = &["prefix", "filter", CALL[0], CALL[1], CALL[2]];

/// What a write's body says besides the write: options, and whether it wants versions.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct WriteFields {
    /// Options.
    pub call: CallFields,
    /// Whether the reply names the versions that were replaced.
    pub versions: bool,
}

impl WriteFields {
    fn read(&mut self, name: &str, cursor: &mut Cursor<'_>) -> Read<()> {
        if name != "with" {
            return self.call.read(name, cursor);
        }
        self.versions = with(cursor, &["version"])?.version;
        Ok(())
    }
}

/// One fact. `components` is the length of the vector before it and becomes that of its own, so
/// that vectors of one batch are allocated once.
fn fact(cursor: &mut Cursor<'_>, components: &mut usize) -> Read<FactInput> {
    let (mut subject, mut kind, mut object) = (None, None, None);
    let (mut embedding, mut payload) = (None, None);
    take_row(cursor)?;
    cursor.object(FACT, |name, cursor| {
        match name {
            "entity" => subject = Some(entity(cursor)?),
            "relation" => kind = Some(relation(cursor)?),
            "target" => object = Some(entity(cursor)?),
            "embedding" => {
                let floats = cursor.floats(*components, limits::DIM_MAX)?;
                *components = floats.len();
                embedding = Some(floats.into());
            }
            _ => payload = Some(raw_payload(cursor)?),
        }
        Ok(())
    })?;
    let key = KeyRef {
        entity: required(subject, "entity")?,
        relation: required(kind, "relation")?,
        target: required(object, "target")?,
    };
    Ok(FactInput { key, embedding, payload })
}

/// A payload by itself; `null` is none.
pub fn payload_text(cursor: &mut Cursor<'_>) -> Read<Option<Box<RawValue>>> {
    let raw = raw_payload(cursor)?;
    Ok((raw.get() != "null").then_some(raw))
}

fn raw_payload(cursor: &mut Cursor<'_>) -> Read<Box<RawValue>> {
    let text = cursor.raw()?;
    take_text(cursor, 1, text)?;
    RawValue::from_string(text.to_owned()).map_err(|error| invalid(error.to_string()))
}

fn facts(cursor: &mut Cursor<'_>) -> Read<Vec<FactInput>> {
    let mut components = 0;
    cursor.list(usize::MAX, |cursor| fact(cursor, &mut components))
}

/// `PUT .../facts` as one JSON object.
pub fn upsert(cursor: &mut Cursor<'_>) -> Read<(Vec<FactInput>, WriteFields)> {
    let (mut batch, mut fields) = (None, WriteFields::default());
    cursor.object(UPSERT, |name, cursor| {
        match name {
            "facts" => batch = Some(facts(cursor)?),
            _ => fields.read(name, cursor)?,
        }
        Ok(())
    })?;
    Ok((required(batch, "facts")?, fields))
}

/// `PUT .../facts` as one JSON object a line; blank lines count for nothing. Faults carry the
/// pointer that they would have in a JSON batch of the same facts.
pub fn upsert_lines(body: &[u8], ids: IdKind) -> Read<Vec<FactInput>> {
    upsert_lines_within(&mut Room::default(), body, ids)
}

/// The same, but `memory_limit` when it takes more than there is room for.
pub fn upsert_lines_within(room: &mut Room, body: &[u8], ids: IdKind) -> Read<Vec<FactInput>> {
    let mut components = 0;
    let mut facts = Vec::new();
    for line in body.split(|byte| *byte == b'\n') {
        if line.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        room.take(size_of::<FactInput>())?;
        let fact = read_within(room, line, ids, |cursor| fact(cursor, &mut components));
        facts.push(fact.map_err(|refusal| refusal.within(facts.len()).within("facts"))?);
    }
    facts.shrink_to_fit();
    Ok(facts)
}

/// `POST .../facts/write`
pub fn write(cursor: &mut Cursor<'_>) -> Read<(WriteRequest, WriteFields)> {
    let (mut request, mut fields) = (WriteRequest::default(), WriteFields::default());
    cursor.object(WRITE, |name, cursor| {
        match name {
            "upsert" => request.upsert = facts(cursor)?,
            "delete" => request.delete = keys(cursor)?,
            _ => fields.read(name, cursor)?,
        }
        Ok(())
    })?;
    Ok((request, fields))
}

/// `POST .../facts/delete`
pub fn delete(cursor: &mut Cursor<'_>) -> Read<(DeleteRequest, WriteFields)> {
    let (mut by_key, mut by_prefix, mut fields) = (None, None, WriteFields::default());
    cursor.object(DELETE, |name, cursor| {
        match name {
            "keys" => by_key = Some(keys(cursor)?),
            "prefix" => by_prefix = Some(prefix(cursor)?),
            _ => fields.read(name, cursor)?,
        }
        Ok(())
    })?;
    match (by_key, by_prefix) {
        (Some(keys), None) => Ok((DeleteRequest::Keys(keys), fields)),
        (None, Some(prefix)) => Ok((DeleteRequest::Prefix(prefix), fields)),
        (None, None) => Err(invalid("keys or prefix is missing")),
        (Some(_), Some(_)) => Err(invalid("keys and prefix exclude each other").within("prefix")),
    }
}

/// `POST .../facts/get`
pub fn get(cursor: &mut Cursor<'_>) -> Read<(GetRequest, CallFields)> {
    let (mut wanted, mut parts, mut call) = (None, WithParts::PAYLOAD, CallFields::default());
    cursor.object(GET, |name, cursor| {
        match name {
            "keys" => wanted = Some(keys(cursor)?),
            "with" => parts = with(cursor, FACT_PARTS)?,
            _ => call.read(name, cursor)?,
        }
        Ok(())
    })?;
    Ok((GetRequest { keys: required(wanted, "keys")?, with: parts }, call))
}

/// `POST .../facts/scan`
pub fn scan(cursor: &mut Cursor<'_>) -> Read<(ScanRequest, CallFields)> {
    let (mut request, mut call) = (ScanRequest::default(), CallFields::default());
    cursor.object(SCAN, |name, cursor| {
        match name {
            "prefix" => request.prefix = Some(prefix(cursor)?),
            "filter" => request.filter = Some(filter(cursor)?),
            "page_size" => request.page_size = Some(cursor.whole(u64::MAX)?),
            "page_token" => request.page_token = Some(cursor.owned()?),
            "with" => request.with = with(cursor, FACT_PARTS)?,
            _ => call.read(name, cursor)?,
        }
        Ok(())
    })?;
    Ok((request, call))
}

/// `POST .../facts/count`
pub fn count(cursor: &mut Cursor<'_>) -> Read<(CountRequest, CallFields)> {
    let (mut request, mut call) = (CountRequest::default(), CallFields::default());
    cursor.object(COUNT, |name, cursor| {
        match name {
            "prefix" => request.prefix = Some(prefix(cursor)?),
            "filter" => request.filter = Some(filter(cursor)?),
            _ => call.read(name, cursor)?,
        }
        Ok(())
    })?;
    Ok((request, call))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Memory;
    use crate::request::EntityRef;
    use crate::server::HttpConfig;
    use crate::server::json::{read, read_ids};
    use hopbine_proto::status::{Code, Problem};

    fn fault(body: &str) -> (Code, String) {
        let problem: Problem = read(body.as_bytes(), upsert).expect_err(body).into();
        (problem.code, problem.errors[0].pointer.clone())
    }

    #[test]
    fn a_bad_row_names_itself() {
        let row = r#"{"entity": 1, "relation": 2, "target": 3, "embedding": [1, 2]}"#;
        let batch = |bad: &str| format!("{{\"facts\": [{row}, {row}, {bad}]}}");
        let cases = [
            (
                r#"{"entity": 1, "relation": 2, "target": 3, "embedding": [1, null]}"#,
                Code::NotFinite,
                "/facts/2/embedding/1",
            ),
            (
                r#"{"entity": 1, "relation": 2, "target": 3, "embedding": [1, "x"]}"#,
                Code::InvalidRequest,
                "/facts/2/embedding/1",
            ),
            (
                r#"{"entity": 1, "relation": 2, "target": -3}"#,
                Code::InvalidRequest,
                "/facts/2/target",
            ),
            (
                r#"{"entity": 1.5, "relation": 2, "target": 3}"#,
                Code::InvalidRequest,
                "/facts/2/entity",
            ),
            (r#"{"entity": 1, "relation": 2}"#, Code::InvalidRequest, "/facts/2/target"),
            (r#"{"entity": 1, "relation": 2, "tarket": 3}"#, Code::UnknownField, "/facts/2/tarket"),
            (r#"{"payload": {"a": [1e999]}}"#, Code::InvalidRequest, "/facts/2/payload/a/0"),
            (r#"{"payload": "\ud800"}"#, Code::InvalidRequest, "/facts/2/payload"),
            ("7", Code::InvalidRequest, "/facts/2"),
        ];
        for (bad, code, pointer) in cases {
            assert_eq!(fault(&batch(bad)), (code, pointer.to_owned()), "{bad}");
            let lines = format!("{row}\n\r\n{row}\n{bad}\n");
            let problem: Problem =
                upsert_lines(lines.as_bytes(), IdKind::U64).expect_err(bad).into();
            assert_eq!(
                (problem.code, problem.errors[0].pointer.as_str()),
                (code, pointer),
                "{bad}"
            );
        }
    }

    #[test]
    fn ids_beyond_2_to_the_53_are_exact_and_payloads_stay_as_written() {
        let body = br#"{"facts": [{"entity": 18446744073709551615, "relation": 4294967295,
            "target": "9007199254740993", "payload": {"b": 1.10, "a": 12345678901234567890}}]}"#;
        let (facts, _) = read_ids(body, IdKind::U64, upsert).expect("a batch");
        assert_eq!(facts[0].key.entity, EntityRef::Number(u64::MAX));
        assert_eq!(facts[0].key.target, EntityRef::Number(9_007_199_254_740_993));
        let (named, _) = read(body, upsert).expect("a batch");
        assert_eq!(named[0].key.target, EntityRef::Name("9007199254740993".into()));
        let payload = facts[0].payload.as_ref().map(|payload| payload.get());
        assert_eq!(payload, Some(r#"{"b": 1.10, "a": 12345678901234567890}"#));
    }

    #[test]
    fn a_write_of_the_largest_size_finds_room_whatever_its_facts_look_like() {
        let most = HttpConfig::default().requests_bytes_max;
        let components = ["0.0123456"; 384].join(",");
        for fact in [
            format!(r#"{{"entity":"ab","relation":"r","target":"cd","embedding":[{components}]}}"#),
            r#"{"entity":"a","relation":"r","target":"b"}"#.to_owned(),
            r#"{"entity":1,"relation":1,"target":1}"#.to_owned(),
            r#"{"entity":1,"relation":1,"target":1,"embedding":[0],"payload":0}"#.to_owned(),
        ] {
            let memory = Memory::of_requests(most);
            let mut room = Room::new(memory.hold());
            let text = format!(r#"{{"facts":[{}]}}"#, [&*fact; 100].join(","));
            let read = read_within(&mut room, text.as_bytes(), IdKind::Names, upsert);
            assert_eq!(read.expect("a batch").0.len(), 100);
            room.settle();
            let largest = memory.bytes() * (limits::WRITE_BYTES_MAX / text.len());
            assert!(largest < most / 2, "{largest} bytes of {fact}");
        }
    }

    #[test]
    fn a_null_embedding_or_payload_is_none() {
        let body = br#"{"facts": [{"entity": 1, "relation": 1, "target": 1,
            "embedding": null, "payload": null}]}"#;
        let (facts, _) = read(body, upsert).expect("a batch");
        assert!(facts[0].embedding.is_none() && facts[0].payload.is_none());
    }
}
