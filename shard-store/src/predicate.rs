//! A request's filter, applied to rows.

use crate::error::StoreError;
use crate::run::Run;
use hopbine_proto::RelationId;
use hopbine_proto::call::Relations;
use hopbine_proto::filter::{Condition, Filter};
use hopbine_proto::payload::parse_payload;
use serde_json::Value;

/// A filter, and whether it needs the payload.
pub(crate) struct RowPredicate<'r> {
    filter: &'r Filter,
    needs_payload: bool,
}

impl<'r> RowPredicate<'r> {
    pub fn new(filter: &'r Filter) -> Self {
        Self { filter, needs_payload: filter.needs_payload() }
    }

    /// Whether facts of this relation can pass at all, whatever their payload.
    pub fn relation_may_pass(&self, relation: RelationId) -> bool {
        if !self.needs_payload {
            return self.filter.matches(relation, &Value::Null);
        }
        self.filter.must.iter().all(|condition| match condition {
            Condition::Relation(list) => list.binary_search(&relation).is_ok(),
            _ => true,
        })
    }

    /// Whether a row whose relation may pass needs no further test.
    pub fn decided_by_relation(&self) -> bool {
        !self.needs_payload
    }

    /// Whether a visible row passes. Reads and parses its payload when the filter needs it.
    pub fn holds(&self, run: &Run, row: u32, relation: RelationId) -> Result<bool, StoreError> {
        if !self.needs_payload {
            return Ok(self.filter.matches(relation, &Value::Null));
        }
        if !self.relation_may_pass(relation) {
            return Ok(false);
        }
        // The door lets only valid JSON in; text that is none counts as no payload.
        let payload = run.payload(row)?;
        let value = payload.and_then(|text| parse_payload(&text));
        Ok(self.filter.matches(relation, &value.unwrap_or(Value::Null)))
    }
}

/// Whether facts of `relation` are asked for at all.
pub(crate) fn relation_wanted(
    relations: &Relations,
    predicate: Option<&RowPredicate<'_>>,
    relation: RelationId,
) -> bool {
    relations.contains(relation)
        && predicate.is_none_or(|predicate| predicate.relation_may_pass(relation))
}
