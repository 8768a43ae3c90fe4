//! Facts, and the replies of the calls under `facts/` and `entities/`.

use super::Json;
use crate::reply::{
    CountReply, EntityReply, FactOut, FactVersion, GetReply, ScanReply, WriteReply,
};
use crate::request::{EntityRef, KeyRef, RelationRef};

/// Writes an entity or target as its user writes it.
pub fn entity(json: &mut Json, entity: &EntityRef) {
    match entity {
        EntityRef::Name(name) => json.value(&**name),
        EntityRef::Number(number) => json.id(*number),
    }
}

/// Writes a relation as its user writes it.
pub fn relation(json: &mut Json, relation: &RelationRef) {
    match relation {
        RelationRef::Name(name) => json.value(&**name),
        RelationRef::Number(number) => json.id(*number),
    }
}

/// Writes the three fields of a key.
pub fn key_fields(json: &mut Json, key: &KeyRef) {
    entity(json.name("entity"), &key.entity);
    relation(json.name("relation"), &key.relation);
    entity(json.name("target"), &key.target);
}

/// Writes a version as the field `version`.
pub fn version(json: &mut Json, version: &FactVersion) {
    json.object(|json| {
        json.field("shard", &version.shard);
        json.field("epoch", &version.epoch);
        json.field("index", &version.index);
    });
}

/// Writes the parts of a fact besides its key.
pub fn parts(json: &mut Json, fact: &FactOut) {
    if let Some(embedding) = &fact.embedding {
        json.name("embedding").array(embedding.iter(), |json, component| json.value(component));
    }
    if let Some(payload) = &fact.payload {
        json.name("payload").raw(payload);
    }
    if let Some(written) = &fact.version {
        version(json.name("version"), written);
    }
}

/// Writes a fact.
pub fn fact(json: &mut Json, fact: &FactOut) {
    json.object(|json| {
        key_fields(json, &fact.key);
        parts(json, fact);
    });
}

/// Which counts a write's reply shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counts {
    /// `upserted` and `replaced`.
    Upsert,
    /// `deleted` and `not_found`.
    Delete,
    /// All four.
    Write,
}

/// The reply of a write.
pub fn write(reply: &WriteReply, counts: Counts, versions: bool) -> Json {
    let mut json = Json::with_capacity(128);
    json.object(|json| {
        if counts != Counts::Delete {
            json.field("upserted", &reply.upserted);
            json.field("replaced", &reply.replaced);
        }
        if counts != Counts::Upsert {
            json.field("deleted", &reply.deleted);
            json.field("not_found", &reply.not_found);
        }
        if versions {
            json.name("versions").array(&reply.versions, version);
            json.name("replaced_versions").array(&reply.replaced_versions, |json, (key, old)| {
                json.object(|json| {
                    key_fields(json, key);
                    version(json.name("version"), old);
                });
            });
        }
    });
    json
}

/// The reply of `facts/get`.
pub fn get(reply: &GetReply) -> Json {
    let mut json = Json::with_capacity(reply.text_bytes());
    json.object(|json| {
        json.name("facts").array(&reply.facts, fact);
        json.name("not_found").array(&reply.not_found, |json, key| {
            json.object(|json| key_fields(json, key));
        });
    });
    json
}

/// The reply of `facts/scan`.
pub fn scan(reply: &ScanReply) -> Json {
    let mut json = Json::with_capacity(reply.text_bytes());
    json.object(|json| {
        json.name("facts").array(&reply.facts, fact);
        json.field("next_page_token", &reply.next_page_token);
    });
    json
}

/// The reply of `facts/count`.
pub fn count(reply: &CountReply) -> Json {
    let mut json = Json::default();
    json.object(|json| json.field("count", &reply.count));
    json
}

/// The reply of `entities/{id}`.
pub fn entity_reply(reply: &EntityReply) -> Json {
    let mut json = Json::with_capacity(reply.text_bytes());
    json.object(|json| {
        entity(json.name("entity"), &reply.entity);
        json.name("degrees").array(&reply.degrees, |json, (kind, facts)| {
            json.object(|json| {
                relation(json.name("relation"), kind);
                json.field("facts", facts);
            });
        });
        json.name("facts").array(&reply.facts, fact);
    });
    json
}
