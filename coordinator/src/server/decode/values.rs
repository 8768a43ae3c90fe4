//! Values that several calls share: ids, keys, questions, durations, sizes, parts, call options.

use crate::names::{ENTITY_NAMES, ENTITY_NUMBERS, RELATION_NAMES, RELATION_NUMBERS};
use crate::request::{
    CallOptions, EntityRef, Explain, HopRelations, KeyRef, Origin, PrefixRef, Query, RelationRef,
    WithParts,
};
use crate::server::json::{Cursor, Kind, Read, Refusal, nearest};
use hopbine_proto::call::Freshness;
use hopbine_proto::graph::{EfSearch, IdKind};
use hopbine_proto::limits;
use hopbine_proto::score::ScoreMode;
use hopbine_proto::status::Code;
use serde_json::Value;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// Fields of a key.
pub const KEY: &[&str] = &["entity", "relation", "target"];
/// Fields of a prefix.
pub const PREFIX: &[&str] = &["entity", "relation"];
/// Fields of a `graph_rag` question.
pub const QUERY: &[&str] = &["embedding", "text", "entities"];
/// Fields of any other question.
pub const QUERY_WITHOUT_ENTITIES: &[&str] = &["embedding", "text"];
/// Parts of facts in a retrieval's reply.
pub const PARTS: &[&str] = &["payload", "vector", "path_payloads", "version"];
/// Parts of facts in any other reply.
pub const FACT_PARTS: &[&str] = &["payload", "vector", "version"];
/// Fields that a call takes besides its own.
pub const CALL: &[&str] = &["consistency", "max_staleness", "timeout"];

/// What the text of an [`Arc`] takes besides its bytes: counters, and what allocators add.
const NAME_BYTES: usize = 32;
/// What a fact or a key comes to besides its texts and its vector, which all its forms share, and
/// its place in the list that is read: an operation in key order, one in its shard's part, one in
/// the batch that is sent, and the key as it was given.
const ROW_BYTES: usize = 320;
/// A value of a filter: as a tree, and as what is compared with facts.
const VALUE_BYTES: usize = 2 * size_of::<Value>();
/// An object of a filter: the first node of its map has place for eleven fields.
const OBJECT_BYTES: usize = 640;
/// A field of such an object besides its value: its name, and its share of half-full nodes.
const FIELD_BYTES: usize = 96;
/// A step of a key, which is cut at its dots.
const STEP_BYTES: usize = 80;

/// Takes room for so many copies of a text that stay as long as its request.
pub fn take_text(cursor: &mut Cursor<'_>, copies: usize, text: &str) -> Read<()> {
    cursor.room.take(copies * (NAME_BYTES + text.len()))
}

/// Takes room for what becomes of a fact or a key.
pub fn take_row(cursor: &mut Cursor<'_>) -> Read<()> {
    cursor.room.take(ROW_BYTES)
}

/// A value that the contract does not allow here.
pub fn invalid(detail: impl Into<String>) -> Refusal {
    Refusal::new(Code::InvalidRequest, detail)
}

/// The value of a field that must be there.
pub fn required<T>(value: Option<T>, name: &str) -> Read<T> {
    value.ok_or_else(|| invalid(format!("{name} is missing")).within(name))
}

/// One of `words`; the place of it.
pub fn word(cursor: &mut Cursor<'_>, words: &[&'static str]) -> Read<&'static str> {
    let text = cursor.string()?;
    words.iter().find(|word| **word == text).copied().ok_or_else(|| {
        let refusal = invalid(format!("expected one of {}, found {text:?}", words.join(", ")));
        match nearest(&text, words) {
            Some(near) => refusal.hint(format!("did you mean {near:?}?")),
            None => refusal,
        }
    })
}

/// An entity or target: a name, or a number, which may be a decimal string.
pub fn entity(cursor: &mut Cursor<'_>) -> Read<EntityRef> {
    match cursor.kind() {
        Kind::Text => {
            let text = cursor.string()?;
            take_text(cursor, 1, &text)?;
            Ok(entity_text(&text, cursor.ids()))
        }
        Kind::Number => {
            Ok(EntityRef::Number(number(cursor, u64::MAX, ENTITY_NUMBERS, ENTITY_NAMES)?))
        }
        _ => Err(cursor.unexpected("an id: a string or a whole number")),
    }
}

/// An entity or target as a string. One that is no number stays a name, which the engine refuses
/// in a `u64` graph.
pub fn entity_text(text: &str, ids: IdKind) -> EntityRef {
    match decimal(text, ids) {
        Some(number) => EntityRef::Number(number),
        None => EntityRef::Name(text.into()),
    }
}

/// A relation: a name, or a number, which may be a decimal string.
pub fn relation(cursor: &mut Cursor<'_>) -> Read<RelationRef> {
    match cursor.kind() {
        Kind::Text => {
            let text = cursor.string()?;
            take_text(cursor, 1, &text)?;
            Ok(match decimal(&text, cursor.ids()) {
                Some(number) => RelationRef::Number(number),
                None => RelationRef::Name(text.into()),
            })
        }
        Kind::Number => {
            let most = u32::MAX.into();
            Ok(RelationRef::Number(number(cursor, most, RELATION_NUMBERS, RELATION_NAMES)?))
        }
        _ => Err(cursor.unexpected("a relation: a string or a whole number")),
    }
}

/// A JSON number in the place of an id; what it must be instead, in a graph of either kind, when it
/// is not a whole one from 0 to `most`.
fn number(cursor: &mut Cursor<'_>, most: u64, numbers: &str, names: &str) -> Read<u64> {
    let text = cursor.numeral()?;
    let number = text.parse().ok().filter(|number| *number <= most);
    number.ok_or_else(|| match cursor.ids() {
        IdKind::U64 => invalid(format!("{numbers}, found {text}")),
        IdKind::Names => invalid(names),
    })
}

/// The number that a string stands for in a `u64` graph: digits without sign or leading zero.
fn decimal(text: &str, ids: IdKind) -> Option<u64> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let canonical = text == "0" || !text.starts_with('0');
    if ids == IdKind::U64 && digits && canonical { text.parse().ok() } else { None }
}

/// A list of relations.
pub fn relations(cursor: &mut Cursor<'_>) -> Read<Vec<RelationRef>> {
    cursor.list(limits::RELATIONS_MAX, relation)
}

/// One element of a relation path.
pub fn hop(cursor: &mut Cursor<'_>) -> Read<HopRelations> {
    if cursor.kind() == Kind::Array {
        return relations(cursor).map(HopRelations::Of);
    }
    match relation(cursor)? {
        RelationRef::Name(name) if &*name == "*" => Ok(HopRelations::Any),
        one => Ok(HopRelations::Of(vec![one])),
    }
}

/// A relation path.
pub fn path(cursor: &mut Cursor<'_>) -> Read<Vec<HopRelations>> {
    cursor.list(limits::HOPS_MAX, hop)
}

/// The key of a fact.
pub fn key(cursor: &mut Cursor<'_>) -> Read<KeyRef> {
    take_row(cursor)?;
    let (mut subject, mut kind, mut object) = (None, None, None);
    cursor.object(KEY, |name, cursor| {
        match name {
            "entity" => subject = Some(entity(cursor)?),
            "relation" => kind = Some(relation(cursor)?),
            _ => object = Some(entity(cursor)?),
        }
        Ok(())
    })?;
    Ok(KeyRef {
        entity: required(subject, "entity")?,
        relation: required(kind, "relation")?,
        target: required(object, "target")?,
    })
}

/// A list of keys.
pub fn keys(cursor: &mut Cursor<'_>) -> Read<Vec<KeyRef>> {
    cursor.list(limits::KEYS_MAX, key)
}

/// An entity, or an entity and a relation.
pub fn prefix(cursor: &mut Cursor<'_>) -> Read<PrefixRef> {
    let (mut subject, mut kind) = (None, None);
    cursor.object(PREFIX, |name, cursor| {
        match name {
            "entity" => subject = Some(entity(cursor)?),
            _ => kind = Some(relation(cursor)?),
        }
        Ok(())
    })?;
    Ok(PrefixRef { entity: required(subject, "entity")?, relation: kind })
}

/// A question with the given fields.
pub fn query(cursor: &mut Cursor<'_>, fields: &[&'static str]) -> Read<Query> {
    let mut query = Query::default();
    cursor.object(fields, |name, cursor| {
        match name {
            "embedding" => {
                query.embedding = Some(cursor.floats(limits::DIM_MAX, limits::DIM_MAX)?.into());
            }
            "text" => {
                let text = cursor.owned()?;
                if text.len() > limits::QUERY_TEXT_BYTES_MAX {
                    let most = limits::QUERY_TEXT_BYTES_MAX;
                    return Err(invalid(format!("the text is longer than {most} bytes")));
                }
                query.text = Some(text);
            }
            _ => query.entities = cursor.list(limits::FROM_MAX, entity)?,
        }
        Ok(())
    })?;
    Ok(query)
}

/// JSON values of one filter: its conditions with all that they name, twice over. As a tree a value
/// takes many times the bytes of its text.
const FILTER_NODES_MAX: usize = 2 * (limits::FILTER_VALUES_MAX + limits::RELATIONS_MAX);

/// A filter as JSON; fields given twice are refused, since only one of them could count.
pub fn filter(cursor: &mut Cursor<'_>) -> Read<Value> {
    let mut left = FILTER_NODES_MAX;
    filter_node(cursor, &mut left)
}

/// One value of a filter that may have `left` of them.
fn filter_node(cursor: &mut Cursor<'_>, left: &mut usize) -> Read<Value> {
    *left = left.checked_sub(1).ok_or_else(|| {
        Refusal::new(Code::BadFilter, format!("a filter has at most {FILTER_NODES_MAX} values"))
    })?;
    cursor.room.take(VALUE_BYTES)?;
    match cursor.kind() {
        Kind::Object => {
            cursor.room.take(OBJECT_BYTES)?;
            let mut map = serde_json::Map::new();
            cursor.entries(|name, cursor| {
                cursor.room.take(FIELD_BYTES + name.len())?;
                if map.contains_key(name) {
                    return Err(Refusal::new(Code::BadFilter, format!("{name} is given twice")));
                }
                map.insert(name.to_owned(), filter_node(cursor, left)?);
                Ok(())
            })?;
            Ok(Value::Object(map))
        }
        Kind::Array => {
            let mut list = Vec::new();
            cursor.array(|_, cursor| {
                list.push(filter_node(cursor, left)?);
                Ok(())
            })?;
            list.shrink_to_fit();
            Ok(Value::Array(list))
        }
        kind => {
            let text = cursor.raw()?;
            if kind == Kind::Text {
                take_text(cursor, 2, text)?;
                // A dot may be written as an escape.
                let steps = text.bytes().filter(|byte| matches!(byte, b'.' | b'\\')).count();
                cursor.room.take(steps * STEP_BYTES)?;
            }
            serde_json::from_str(text).map_err(|error| invalid(error.to_string()))
        }
    }
}

/// `"auto"` or a beam.
pub fn ef_search(cursor: &mut Cursor<'_>) -> Read<EfSearch> {
    match cursor.kind() {
        Kind::Text => word(cursor, &["auto"]).map(|_| EfSearch::Auto),
        Kind::Number => {
            let beam = cursor.whole(limits::EF_MAX.into())?;
            Ok(EfSearch::Fixed(beam as u32))
        }
        _ => Err(cursor.unexpected("\"auto\" or a whole number")),
    }
}

/// `"path"` or `"endpoint"`.
pub fn score_mode(cursor: &mut Cursor<'_>) -> Read<ScoreMode> {
    Ok(match word(cursor, &["path", "endpoint"])? {
        "path" => ScoreMode::Path,
        _ => ScoreMode::Endpoint,
    })
}

/// A list of parts among `known`.
pub fn with(cursor: &mut Cursor<'_>, known: &[&'static str]) -> Read<WithParts> {
    let mut parts = WithParts::default();
    cursor.array(|_, cursor| {
        add_part(&mut parts, word(cursor, known)?);
        Ok(())
    })?;
    Ok(parts)
}

/// Adds the part of this name.
pub fn add_part(parts: &mut WithParts, name: &str) {
    match name {
        "payload" => parts.payload = true,
        "vector" => parts.vector = true,
        "path_payloads" => parts.path_payloads = true,
        _ => parts.version = true,
    }
}

/// A whole number followed by one of `units`.
fn quantity(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let (_, factor) = units.iter().find(|(name, _)| *name == unit.trim_start())?;
    number.parse::<u64>().ok()?.checked_mul(*factor)
}

/// A duration such as `500ms`, `2s` or `1m`.
pub fn parse_duration(text: &str) -> Read<Duration> {
    let ms = quantity(text, &[("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000)]);
    ms.map(Duration::from_millis).ok_or_else(|| {
        invalid(format!("{text:?} is no duration")).hint("write \"500ms\", \"2s\" or \"1m\"")
    })
}

/// A duration in a body.
pub fn duration(cursor: &mut Cursor<'_>) -> Read<Duration> {
    match cursor.kind() {
        Kind::Text => parse_duration(&cursor.string()?),
        _ => Err(cursor.unexpected("a duration such as \"2s\"")),
    }
}

/// A size such as `"512MiB"`, or a number of bytes; at most `most` bytes.
pub fn size(cursor: &mut Cursor<'_>, most: u64) -> Read<u64> {
    if cursor.kind() == Kind::Number {
        return cursor.whole(most);
    }
    if cursor.kind() != Kind::Text {
        return Err(cursor.unexpected("a size such as \"512MiB\""));
    }
    let text = cursor.string()?;
    let units = [("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("TiB", 1 << 40)];
    let bytes = quantity(&text, &units).filter(|bytes| *bytes <= most);
    bytes.ok_or_else(|| {
        invalid(format!("{text:?} is no size up to {most} bytes")).hint("write \"512MiB\"")
    })
}

/// How a call is to be carried out, as far as its body or its query string says.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CallFields {
    /// `consistency`
    pub consistency: Option<&'static str>,
    /// `max_staleness`
    pub max_staleness: Option<Duration>,
    /// `timeout`
    pub timeout: Option<Duration>,
    /// `allow_partial`
    pub allow_partial: Option<bool>,
    /// `explain`
    pub explain: Option<Explain>,
}

const LEVELS: &[&str] = &["strong", "bounded", "eventual"];

impl CallFields {
    /// Reads the field called `name`.
    pub fn read(&mut self, name: &str, cursor: &mut Cursor<'_>) -> Read<()> {
        match name {
            "consistency" => self.consistency = Some(word(cursor, LEVELS)?),
            "max_staleness" => self.max_staleness = Some(duration(cursor)?),
            "timeout" => self.timeout = Some(duration(cursor)?),
            "explain" => {
                self.explain = Some(match word(cursor, &["none", "plan", "analyze"])? {
                    "none" => Explain::None,
                    "plan" => Explain::Plan,
                    _ => Explain::Analyze,
                });
            }
            _ => self.allow_partial = Some(cursor.boolean()?),
        }
        Ok(())
    }

    /// The same from the query string; `false` when `name` is none of the fields.
    pub fn parse(&mut self, name: &str, value: &str) -> Read<bool> {
        match name {
            "consistency" => {
                let level = LEVELS.iter().find(|level| **level == value).copied();
                let unknown = || invalid(format!("expected one of {}", LEVELS.join(", ")));
                self.consistency = Some(level.ok_or_else(unknown)?);
            }
            "max_staleness" => self.max_staleness = Some(parse_duration(value)?),
            "timeout" => self.timeout = Some(parse_duration(value)?),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// These fields, and those of `outer` where these are silent.
    pub fn or(self, outer: Self) -> Self {
        Self {
            consistency: self.consistency.or(outer.consistency),
            max_staleness: self.max_staleness.or(outer.max_staleness),
            timeout: self.timeout.or(outer.timeout),
            allow_partial: self.allow_partial.or(outer.allow_partial),
            explain: self.explain.or(outer.explain),
        }
    }

    /// The options of a read, with the token of its header.
    pub fn options(self, token: Option<String>) -> Read<CallOptions> {
        let default = CallOptions::default();
        let consistency = match (self.consistency, self.max_staleness) {
            (None | Some("bounded"), Some(max_staleness)) => Freshness::Bounded { max_staleness },
            (_, Some(_)) => {
                return Err(invalid("max_staleness goes with \"consistency\": \"bounded\" only")
                    .within("max_staleness"));
            }
            (Some("strong"), None) => Freshness::Strong,
            (Some("eventual"), None) => Freshness::Eventual,
            (_, None) => default.consistency,
        };
        Ok(CallOptions {
            consistency,
            token,
            token_in: Origin::Body,
            timeout: self.timeout.unwrap_or(default.timeout),
            allow_partial: self.allow_partial.unwrap_or(default.allow_partial),
            explain: self.explain.unwrap_or_default(),
            request_id: None,
            patient: false,
            request_bytes: 0,
        })
    }
}

/// A list of distinct strings.
pub fn names(cursor: &mut Cursor<'_>) -> Read<Vec<String>> {
    let mut seen = BTreeSet::new();
    cursor.list(1_024, |cursor| {
        let name: Arc<str> = cursor.string()?.into();
        // As it is compared, as it is kept, and once more when the configuration is.
        take_text(cursor, 3, &name)?;
        if seen.insert(name.clone()) {
            Ok(name.to_string())
        } else {
            Err(invalid(format!("{name:?} is given twice")))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Memory;
    use crate::server::json::{Room, read_within};
    use hopbine_proto::status::Problem;

    #[test]
    fn durations_and_sizes_have_units() {
        for (text, ms) in [("500ms", 500), ("2s", 2_000), ("1m", 60_000), ("1 m", 60_000)] {
            assert_eq!(parse_duration(text).expect(text), Duration::from_millis(ms));
        }
        for text in
            ["", "2", "s", "-1s", "1.5s", "1d", "99999999999999999999s", "9999999999999999h"]
        {
            assert!(parse_duration(text).is_err(), "{text}");
        }
        let read_size = |text: &str| {
            crate::server::json::read(text.as_bytes(), |cursor| size(cursor, 1 << 40)).ok()
        };
        assert_eq!(read_size("\"512MiB\""), Some(512 << 20));
        assert_eq!(read_size("4096"), Some(4_096));
        assert_eq!(read_size("\"2TiB\""), None);
        assert_eq!(read_size("\"512MB\""), None);
    }

    #[test]
    fn a_filter_of_too_many_values_is_not_read_to_its_end() {
        let list = |values: usize| format!("[{}0]", "0,".repeat(values - 1));
        let parse = |text: &str| crate::server::json::read(text.as_bytes(), filter);
        assert!(parse(&list(FILTER_NODES_MAX - 1)).is_ok());
        let refused = parse(&list(FILTER_NODES_MAX)).expect_err("too many");
        let problem: Problem = refused.into();
        assert_eq!(problem.code, Code::BadFilter);
    }

    #[test]
    fn a_body_is_given_up_before_it_takes_more_than_there_is_room_for() {
        let memory = Memory::of_requests(1 << 20);
        let many = |value: &str| format!("[{}0]", value.repeat(100_000));
        let dots = format!(r#"{{"must": [{{"key": "a", "match": "{}"}}]}}"#, "a.".repeat(100_000));
        for text in [many("0,"), many("{\"\":0},"), many("[],"), many("\"\\u0061\","), dots] {
            let mut room = Room::new(memory.hold());
            let read = read_within(&mut room, text.as_bytes(), IdKind::Names, filter);
            let problem = Problem::from(read.expect_err("no room"));
            assert_eq!((problem.code, problem.errors.len()), (Code::MemoryLimit, 0));
            assert!(problem.retry_after_ms.is_some());
            assert!(((1 << 18)..=(1 << 20)).contains(&memory.bytes()), "{}", memory.bytes());
            drop(room);
            assert_eq!(memory.bytes(), 0, "given back");
        }
        let mut room = Room::new(memory.hold());
        let list = read_within(&mut room, b"[1, 2]", IdKind::Names, filter);
        room.settle();
        assert_eq!((list.is_ok(), memory.bytes()), (true, 3 * VALUE_BYTES));
    }

    #[test]
    fn a_staleness_bound_belongs_to_bounded_reads() {
        let five = Some(Duration::from_secs(5));
        let fields =
            |consistency| CallFields { consistency, max_staleness: five, ..CallFields::default() };
        assert!(fields(Some("strong")).options(None).is_err());
        let options = fields(None).options(None).expect("bounded is the default");
        assert_eq!(
            options.consistency,
            Freshness::Bounded { max_staleness: Duration::from_secs(5) }
        );
    }
}
