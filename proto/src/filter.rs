//! A predicate on payload fields and relations, applied to seeds and at every hop.
//!
//! A key is a path into the payload (`a.b`). A key that is not there matches nothing. A condition
//! on an array holds when it holds for any element. Values compare by type: a number never equals
//! a string. Integers compare exactly, an integer and a float as f64. A list of accepted values is
//! compared one after another; the door bounds it by `FILTER_VALUES_MAX`.

use crate::ids::RelationId;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::cmp::Ordering;

/// All of `must`, at least one of `should` when it is not empty, none of `must_not`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Filter {
    /// Every one must hold.
    pub must: Vec<Condition>,
    /// At least one must hold, unless the list is empty.
    pub should: Vec<Condition>,
    /// None may hold.
    pub must_not: Vec<Condition>,
}

/// One thing to test.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Condition {
    /// The value at `path` equals one of `any_of`.
    Match {
        /// Path into the payload.
        path: Vec<String>,
        /// Accepted values.
        any_of: Vec<Scalar>,
    },
    /// The value at `path` lies within all given bounds.
    Range {
        /// Path into the payload.
        path: Vec<String>,
        /// The bounds.
        bounds: Bounds,
    },
    /// Whether there is a value (null counts as none) at `path`.
    Exists {
        /// Path into the payload.
        path: Vec<String>,
        /// What is asked for.
        exists: bool,
    },
    /// The fact's relation is one of these, sorted.
    Relation(Vec<RelationId>),
    /// A filter within.
    Nested(Filter),
}

/// A value to compare with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Scalar {
    /// true or false.
    Bool(bool),
    /// A whole number, exact.
    Int(i128),
    /// Any other finite number.
    Float(f64),
    /// Text.
    Text(String),
}

/// Bounds of a range; absent ones do not bind.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Bounds {
    /// Greater than.
    pub gt: Option<Scalar>,
    /// Greater or equal.
    pub gte: Option<Scalar>,
    /// Less than.
    pub lt: Option<Scalar>,
    /// Less or equal.
    pub lte: Option<Scalar>,
}

impl Scalar {
    /// The scalar of a JSON value, or `None` for null, arrays and objects.
    pub fn from_json(value: &Value) -> Option<Self> {
        match value {
            Value::Bool(b) => Some(Self::Bool(*b)),
            Value::String(s) => Some(Self::Text(s.clone())),
            Value::Number(n) => match (n.as_i64(), n.as_u64(), n.as_f64()) {
                (Some(i), _, _) => Some(Self::Int(i.into())),
                (_, Some(u), _) => Some(Self::Int(u.into())),
                (_, _, Some(f)) if f.is_finite() => Some(Self::Float(f)),
                _ => None,
            },
            _ => None,
        }
    }

    /// Order within one type; `None` across types.
    fn compare(&self, other: &Self) -> Option<Ordering> {
        match (self, other) {
            (Self::Bool(a), Self::Bool(b)) => Some(a.cmp(b)),
            (Self::Text(a), Self::Text(b)) => Some(a.cmp(b)),
            (Self::Int(a), Self::Int(b)) => Some(a.cmp(b)),
            (Self::Int(a), Self::Float(b)) => (*a as f64).partial_cmp(b),
            (Self::Float(a), Self::Int(b)) => a.partial_cmp(&(*b as f64)),
            (Self::Float(a), Self::Float(b)) => a.partial_cmp(b),
            _ => None,
        }
    }
}

impl Bounds {
    fn hold(&self, value: &Scalar) -> bool {
        let within = |bound: &Option<Scalar>, accepted: fn(Ordering) -> bool| {
            bound.as_ref().is_none_or(|bound| value.compare(bound).is_some_and(accepted))
        };
        within(&self.gt, Ordering::is_gt)
            && within(&self.gte, Ordering::is_ge)
            && within(&self.lt, Ordering::is_lt)
            && within(&self.lte, Ordering::is_le)
    }
}

impl Filter {
    /// Whether a fact of `relation` with `payload` (null when it has none) passes.
    pub fn matches(&self, relation: RelationId, payload: &Value) -> bool {
        let holds = |condition: &Condition| condition.matches(relation, payload);
        self.must.iter().all(holds)
            && (self.should.is_empty() || self.should.iter().any(holds))
            && !self.must_not.iter().any(holds)
    }

    /// Whether the payload matters at all; otherwise `matches` may be given null.
    pub fn needs_payload(&self) -> bool {
        self.conditions().any(|condition| match condition {
            Condition::Relation(_) => false,
            Condition::Nested(filter) => filter.needs_payload(),
            _ => true,
        })
    }

    /// Number of conditions, nested ones included, and the depth of nesting (1 when flat).
    pub fn size(&self) -> (usize, usize) {
        self.conditions().fold((0, 1), |(count, depth), condition| match condition {
            Condition::Nested(filter) => {
                let (inner, inner_depth) = filter.size();
                (count + 1 + inner, depth.max(inner_depth + 1))
            }
            _ => (count + 1, depth),
        })
    }

    fn conditions(&self) -> impl Iterator<Item = &Condition> {
        self.must.iter().chain(&self.should).chain(&self.must_not)
    }
}

impl Condition {
    fn matches(&self, relation: RelationId, payload: &Value) -> bool {
        match self {
            Self::Match { path, any_of } => any_at(payload, path, &mut |value| {
                Scalar::from_json(value).is_some_and(|value| {
                    any_of.iter().any(|wanted| value.compare(wanted) == Some(Ordering::Equal))
                })
            }),
            Self::Range { path, bounds } => any_at(payload, path, &mut |value| {
                Scalar::from_json(value).is_some_and(|value| bounds.hold(&value))
            }),
            Self::Exists { path, exists } => {
                any_at(payload, path, &mut |value| !value.is_null()) == *exists
            }
            Self::Relation(relations) => relations.binary_search(&relation).is_ok(),
            Self::Nested(filter) => filter.matches(relation, payload),
        }
    }
}

/// Whether `test` holds for the value at `path`, or for any element where arrays are met.
fn any_at(value: &Value, path: &[String], test: &mut dyn FnMut(&Value) -> bool) -> bool {
    if let Value::Array(elements) = value {
        return elements.iter().any(|element| any_at(element, path, test));
    }
    match path.split_first() {
        None => test(value),
        Some((first, rest)) => value.get(first).is_some_and(|inner| any_at(inner, rest, test)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn path(text: &str) -> Vec<String> {
        text.split('.').map(str::to_owned).collect()
    }

    fn must(condition: Condition) -> Filter {
        Filter { must: vec![condition], ..Filter::default() }
    }

    fn holds(condition: Condition, payload: &Value) -> bool {
        must(condition).matches(RelationId(1), payload)
    }

    #[test]
    fn values_compare_by_type_and_arrays_by_any_element() {
        let payload = json!({"year": 1999, "tags": ["a", "b"], "deep": {"list": [{"n": 1.5}]}});
        let is = |key: &str, value: Value| {
            let any_of = vec![Scalar::from_json(&value).expect("a scalar")];
            holds(Condition::Match { path: path(key), any_of }, &payload)
        };
        assert!(is("year", json!(1999)) && is("year", json!(1999.0)));
        assert!(!is("year", json!("1999")));
        assert!(is("tags", json!("b")) && !is("tags", json!("c")));
        assert!(is("deep.list.n", json!(1.5)));
        assert!(!is("missing", json!(1)) && !is("year.below", json!(1999)));
    }

    #[test]
    fn big_integers_compare_exactly() {
        let payload = json!({"n": u64::MAX});
        let near = Scalar::Int(i128::from(u64::MAX) - 1);
        assert!(!holds(Condition::Match { path: path("n"), any_of: vec![near.clone()] }, &payload));
        let bounds = Bounds { gt: Some(near), ..Bounds::default() };
        assert!(holds(Condition::Range { path: path("n"), bounds }, &payload));
    }

    #[test]
    fn must_not_and_should_follow_their_lists() {
        let payload = json!({"a": 1});
        let a = Condition::Exists { path: path("a"), exists: true };
        let b = Condition::Exists { path: path("b"), exists: true };
        let filter = Filter { should: vec![b.clone(), a.clone()], ..Filter::default() };
        assert!(filter.matches(RelationId(0), &payload));
        let filter = Filter { should: vec![b], must_not: vec![], ..Filter::default() };
        assert!(!filter.matches(RelationId(0), &payload));
        let filter = Filter { must_not: vec![a], ..Filter::default() };
        assert!(!filter.matches(RelationId(0), &payload));
        assert!(Filter::default().matches(RelationId(0), &Value::Null));
    }

    #[test]
    fn a_relation_filter_needs_no_payload() {
        let filter = must(Condition::Relation(vec![RelationId(1), RelationId(3)]));
        assert!(!filter.needs_payload());
        assert!(filter.matches(RelationId(3), &Value::Null));
        assert!(!filter.matches(RelationId(2), &Value::Null));
        assert_eq!(must(Condition::Nested(filter)).size(), (2, 2));
    }
}
