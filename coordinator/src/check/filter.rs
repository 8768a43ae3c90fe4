//! The JSON form of a filter: `{"must": [C...], "should": [C...], "must_not": [C...]}`.
//!
//! Whatever cannot be understood is `bad_filter` with the place of the fault; nothing is guessed. A
//! filter that names more values than are allowed is `invalid_request`. In every object a field
//! that is null counts as absent, and one that is not known is refused, null or not.

use crate::names::{self, invalid, problem_at};
use crate::request::RelationRef;
use hopbine_proto::filter::{Bounds, Condition, Filter, Scalar};
use hopbine_proto::graph::{GraphInfo, IdKind};
use hopbine_proto::limits::{FILTER_CONDITIONS_MAX, FILTER_DEPTH_MAX, FILTER_VALUES_MAX};
use hopbine_proto::status::{Code, Problem};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The filter behind its JSON form; `pointer` is its place in the request. A filter without any
/// condition is `None`.
pub fn filter(
    graph: &GraphInfo,
    value: &Value,
    pointer: &str,
) -> Result<Option<Arc<Filter>>, Problem> {
    let mut parser = Parser { graph, conditions: 0, values: 0 };
    let filter = parser.filter(&fields(value, &FILTER_FIELDS, pointer)?, pointer, 1)?;
    Ok((parser.conditions > 0).then(|| Arc::new(filter)))
}

struct Parser<'a> {
    graph: &'a GraphInfo,
    conditions: usize,
    values: usize,
}

fn bad(pointer: impl Into<String>, detail: impl Into<String>) -> Problem {
    problem_at(Code::BadFilter, pointer, detail)
}

/// The fields of an object that are there.
type Fields<'v> = BTreeMap<&'v str, &'v Value>;

/// The fields of `value`, which are all among `known`, without those that are null.
fn fields<'v>(value: &'v Value, known: &[&str], pointer: &str) -> Result<Fields<'v>, Problem> {
    let object = value.as_object().ok_or_else(|| bad(pointer, "must be an object"))?;
    if let Some(name) = object.keys().find(|name| !known.contains(&name.as_str())) {
        let detail = format!("{name:?} is not known here, only {}", known.join(", "));
        return Err(bad(format!("{pointer}/{}", escaped(name)), detail));
    }
    let there = object.iter().filter(|(_, value)| !value.is_null());
    Ok(there.map(|(name, value)| (name.as_str(), value)).collect())
}

/// `name` as one step of a JSON pointer.
fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

/// What a filter may have.
const FILTER_FIELDS: [&str; 3] = ["must", "should", "must_not"];
/// What a condition may have.
const CONDITION_FIELDS: [&str; 8] =
    ["must", "should", "must_not", "relation", "key", "match", "range", "exists"];
/// What a range may have.
const RANGE_FIELDS: [&str; 4] = ["gt", "gte", "lt", "lte"];

impl Parser<'_> {
    fn filter(
        &mut self,
        fields: &Fields<'_>,
        pointer: &str,
        depth: usize,
    ) -> Result<Filter, Problem> {
        if depth > FILTER_DEPTH_MAX {
            return Err(bad(pointer, format!("filters nest at most {FILTER_DEPTH_MAX} deep")));
        }
        only(fields, &FILTER_FIELDS, pointer)?;
        let mut filter = Filter::default();
        for (name, list) in fields {
            let place = format!("{pointer}/{name}");
            let into = match *name {
                "must" => &mut filter.must,
                "should" => &mut filter.should,
                _ => &mut filter.must_not,
            };
            let list = list.as_array().ok_or_else(|| bad(&place, "must be a list"))?;
            for (i, condition) in list.iter().enumerate() {
                into.push(self.condition(condition, &format!("{place}/{i}"), depth)?);
            }
        }
        Ok(filter)
    }

    fn condition(
        &mut self,
        value: &Value,
        pointer: &str,
        depth: usize,
    ) -> Result<Condition, Problem> {
        self.conditions += 1;
        if self.conditions > FILTER_CONDITIONS_MAX {
            let detail = format!("a filter has at most {FILTER_CONDITIONS_MAX} conditions");
            return Err(bad(pointer, detail));
        }
        let fields = fields(value, &CONDITION_FIELDS, pointer)?;
        if is_filter(value, &fields) {
            return Ok(Condition::Nested(self.filter(&fields, pointer, depth + 1)?));
        }
        if let Some(relations) = fields.get("relation") {
            only(&fields, &["relation"], pointer)?;
            return self.relation(relations, &format!("{pointer}/relation"));
        }
        let Some(key) = fields.get("key") else {
            let detail = "a condition has a key or a relation that is not null, \
                          or is a filter itself: must, should, must_not";
            return Err(bad(pointer, detail));
        };
        let path = path(key, &format!("{pointer}/key"))?;
        self.field_condition(path, &fields, pointer)
    }

    fn field_condition(
        &mut self,
        path: Vec<String>,
        fields: &Fields<'_>,
        pointer: &str,
    ) -> Result<Condition, Problem> {
        let tests: Vec<(&str, &Value)> =
            fields.iter().map(|(name, value)| (*name, *value)).filter(|t| t.0 != "key").collect();
        let [(name, value)] = tests[..] else {
            let detail = "a key needs exactly one of match, range and exists that is not null";
            return Err(bad(pointer, detail)
                .hint("facts without the key, or with null under it, pass \"exists\": false"));
        };
        let place = format!("{pointer}/{name}");
        match name {
            "match" => Ok(Condition::Match { path, any_of: self.any_of(value, &place)? }),
            "range" => {
                let (bounds, values) = bounds(value, &place)?;
                self.count_values(values, &place)?;
                Ok(Condition::Range { path, bounds })
            }
            _ => match value.as_bool() {
                Some(exists) => Ok(Condition::Exists { path, exists }),
                None => Err(bad(place, "must be true or false")),
            },
        }
    }

    fn any_of(&mut self, value: &Value, pointer: &str) -> Result<Vec<Scalar>, Problem> {
        let Value::Array(list) = value else {
            self.count_values(1, pointer)?;
            return Ok(vec![scalar(value, pointer)?]);
        };
        self.count_values(list.len(), pointer)?;
        let values = list.iter().enumerate();
        values.map(|(i, value)| scalar(value, &format!("{pointer}/{i}"))).collect()
    }

    /// Refuses the condition whose values are too many together with those before it.
    fn count_values(&mut self, more: usize, pointer: &str) -> Result<(), Problem> {
        self.values += more;
        if self.values > FILTER_VALUES_MAX {
            let detail = format!("a filter names at most {FILTER_VALUES_MAX} values in all");
            return Err(invalid(pointer, detail));
        }
        Ok(())
    }

    fn relation(&self, value: &Value, pointer: &str) -> Result<Condition, Problem> {
        let list = match value {
            Value::Array(list) => &list[..],
            one => {
                let place = || pointer.to_owned();
                let id = names::relation_id(self.graph, &self.relation_ref(one, place)?, place)?;
                return Ok(Condition::Relation(vec![id]));
            }
        };
        let mut relations = Vec::with_capacity(list.len());
        for (i, relation) in list.iter().enumerate() {
            relations.push(self.relation_ref(relation, || format!("{pointer}/{i}"))?);
        }
        Ok(Condition::Relation(names::relation_ids(self.graph, &relations, pointer)?))
    }

    fn relation_ref(
        &self,
        value: &Value,
        place: impl Fn() -> String,
    ) -> Result<RelationRef, Problem> {
        match (value.as_str(), value.as_u64()) {
            (Some(name), _) => Ok(RelationRef::Name(name.into())),
            (_, Some(number)) => Ok(RelationRef::Number(number)),
            _ if self.graph.config.ids == IdKind::U64 => Err(bad(place(), names::RELATION_NUMBERS)),
            _ => Err(bad(place(), "a relation of this graph is a name")),
        }
    }
}

/// Whether a condition is a filter itself. Without any field it is one that lets everything pass,
/// as at the top; what names a key or a relation and leaves it null is none at either place.
fn is_filter(condition: &Value, fields: &Fields<'_>) -> bool {
    let is_list = |name: &str| FILTER_FIELDS.contains(&name);
    let only_lists = || condition.as_object().is_some_and(|all| all.keys().all(|n| is_list(n)));
    fields.keys().any(|name| is_list(name)) || only_lists()
}

/// Refuses fields other than `known`.
fn only(fields: &Fields<'_>, known: &[&str], pointer: &str) -> Result<(), Problem> {
    match fields.keys().find(|name| !known.contains(name)) {
        None => Ok(()),
        Some(name) => {
            let detail = format!("does not go together with {}", known.join(", "));
            Err(bad(format!("{pointer}/{name}"), detail))
        }
    }
}

fn path(key: &Value, pointer: &str) -> Result<Vec<String>, Problem> {
    let text = key.as_str().ok_or_else(|| bad(pointer, "must be a string"))?;
    let path: Vec<String> = text.split('.').map(str::to_owned).collect();
    if path.iter().any(String::is_empty) {
        return Err(bad(pointer, "a key is names joined by dots, none of them empty"));
    }
    Ok(path)
}

fn scalar(value: &Value, pointer: &str) -> Result<Scalar, Problem> {
    Scalar::from_json(value).ok_or_else(|| bad(pointer, "must be a string, a number or a boolean"))
}

/// The bounds of a range, and how many there are.
fn bounds(value: &Value, pointer: &str) -> Result<(Bounds, usize), Problem> {
    let fields = fields(value, &RANGE_FIELDS, pointer)?;
    if fields.is_empty() {
        return Err(bad(pointer, "a range needs one of gt, gte, lt and lte that is not null"));
    }
    let mut bounds = Bounds::default();
    for (name, value) in &fields {
        let into = match *name {
            "gt" => &mut bounds.gt,
            "gte" => &mut bounds.gte,
            "lt" => &mut bounds.lt,
            _ => &mut bounds.lte,
        };
        *into = Some(scalar(value, &format!("{pointer}/{name}"))?);
    }
    Ok((bounds, fields.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hopbine_proto::graph::{GraphConfig, IdKind};
    use hopbine_proto::{GraphId, RelationId};
    use proptest::prelude::*;
    use serde_json::json;
    use std::collections::BTreeMap;

    fn parse(value: Value) -> Result<Option<Arc<Filter>>, Problem> {
        let graph = GraphInfo {
            id: GraphId(1),
            name: "g".into(),
            config: GraphConfig::new(4, IdKind::U64),
            version: 1,
            relations: BTreeMap::new(),
            shards: Vec::new(),
        };
        filter(&graph, &value, "/filter")
    }

    #[test]
    fn every_kind_of_condition_is_understood() {
        let filter = parse(json!({
            "must": [{"key": "a.b", "match": ["x", 1]}, {"relation": [3, 1, 3]}],
            "should": [{"key": "n", "range": {"gt": 1, "lte": 2.5}}],
            "must_not": [{"must": [{"key": "c", "exists": true}]}],
        }))
        .expect("a good filter")
        .expect("conditions");
        assert_eq!(filter.size(), (5, 2));
        let relations = vec![RelationId(1), RelationId(3)];
        assert_eq!(filter.must[1], Condition::Relation(relations));
    }

    #[test]
    fn a_filter_without_conditions_is_none() {
        assert_eq!(parse(json!({})), Ok(None));
        assert_eq!(parse(json!({"must": []})), Ok(None));
    }

    #[test]
    fn a_filter_without_conditions_lets_everything_pass_at_every_level() {
        for empty in [json!({}), json!({"must": []}), json!({"should": null})] {
            assert_eq!(parse(empty.clone()), Ok(None));
            for (list, passes) in [("must", true), ("should", true), ("must_not", false)] {
                let filter = parse(json!({list: [empty]})).expect("a filter").expect("nested");
                assert_eq!(filter.matches(RelationId(1), &Value::Null), passes, "{list} {empty}");
            }
        }
    }

    #[test]
    fn a_field_that_is_null_counts_as_absent_at_every_level() {
        let plain = json!({"must": [
            {"key": "a", "match": 1},
            {"must_not": [{"relation": 3}]},
            {"key": "n", "range": {"lt": 5}},
            {"relation": [1]},
        ]});
        let with_nulls = json!({"should": null, "must": [
            {"key": "a", "match": 1, "range": null, "exists": null, "must": null, "relation": null},
            {"must_not": [{"relation": 3, "key": null}], "must": null, "key": null, "match": null},
            {"key": "n", "range": {"lt": 5, "gt": null}, "relation": null},
            {"relation": [1], "key": null, "exists": null},
        ]});
        assert_eq!(parse(with_nulls).expect("a filter"), parse(plain).expect("a filter"));
        assert_eq!(parse(json!({"must": null})), Ok(None));
        let untested = json!({"must": [{"key": "a", "match": null}]});
        let absent = json!({"must": [{"key": "a"}]});
        let refused = parse(untested).expect_err("no test");
        assert_eq!(refused, parse(absent).expect_err("no test"));
        assert!(refused.hint.is_some_and(|hint| hint.contains("exists")));
    }

    #[test]
    fn a_field_that_is_not_known_is_refused_by_name_null_or_not() {
        for value in [json!(null), json!(1)] {
            for (filter, pointer) in [
                (json!({"muss": value}), "/muss"),
                (json!({"must": [{"key": "a", "exists": true, "x/y": value}]}), "/must/0/x~1y"),
                (json!({"must": [{"must": [], "x": value}]}), "/must/0/x"),
                (json!({"must": [{"relation": 1, "x": value}]}), "/must/0/x"),
                (json!({"must": [{"key": "a", "range": {"ge": value}}]}), "/must/0/range/ge"),
            ] {
                let problem = parse(filter).expect_err(pointer);
                assert_eq!(problem.code, Code::BadFilter);
                assert_eq!(problem.errors[0].pointer, format!("/filter{pointer}"));
                assert!(problem.detail.contains("is not known here"), "{problem}");
            }
        }
        let mixed = parse(json!({"must": [{"must": [], "key": "a"}]})).expect_err("both");
        assert_eq!(mixed.errors[0].pointer, "/filter/must/0/key");
    }

    #[test]
    fn every_fault_names_its_place() {
        let deep = (0..FILTER_DEPTH_MAX).fold(json!({}), |inner, _| json!({"must": [inner]}));
        let many = vec![json!({"relation": 1}); FILTER_CONDITIONS_MAX + 1];
        for (value, pointer) in [
            (json!(1), "/filter"),
            (json!({"mus~t/": []}), "/filter/mus~0t~1"),
            (json!({"must": {}}), "/filter/must"),
            (json!({"must": [1]}), "/filter/must/0"),
            (json!({"must": [{"key": null}]}), "/filter/must/0"),
            (json!({"must": [{"relation": null}]}), "/filter/must/0"),
            (json!({"must": [{"match": 1}]}), "/filter/must/0"),
            (json!({"must": [{"key": 1}]}), "/filter/must/0/key"),
            (json!({"must": [{"key": "a..b", "exists": true}]}), "/filter/must/0/key"),
            (json!({"must": [{"key": "a"}]}), "/filter/must/0"),
            (json!({"must": [{"key": "a", "match": 1, "exists": true}]}), "/filter/must/0"),
            (json!({"must": [{"key": "a", "match": null}]}), "/filter/must/0/match"),
            (json!({"must": [{"key": "a", "match": [1, {}]}]}), "/filter/must/0/match/1"),
            (json!({"must": [{"key": "a", "range": {}}]}), "/filter/must/0/range"),
            (json!({"must": [{"key": "a", "range": {"ge": 1}}]}), "/filter/must/0/range/ge"),
            (json!({"must": [{"key": "a", "range": {"gt": []}}]}), "/filter/must/0/range/gt"),
            (json!({"must": [{"key": "a", "exists": 1}]}), "/filter/must/0/exists"),
            (json!({"must": [{"key": "a", "like": 1}]}), "/filter/must/0/like"),
            (json!({"must": [{"relation": [1], "key": "a"}]}), "/filter/must/0/key"),
            (json!({"must": [{"relation": [1.5]}]}), "/filter/must/0/relation/0"),
            (deep, "/filter/must/0/must/0/must/0/must/0/must/0/must/0/must/0/must/0"),
            (json!({"must": many}), "/filter/must/256"),
        ] {
            let problem = parse(value.clone()).expect_err(&value.to_string());
            let place = problem.errors[0].pointer.as_str();
            // A test that is null counts as absent: the condition without it is what is wrong.
            assert!(pointer.starts_with(place), "{value}: {problem}");
            assert_eq!(problem.code, Code::BadFilter, "{value}");
        }
    }

    #[test]
    fn the_values_of_a_whole_filter_are_bounded() {
        let half = vec![json!(1); FILTER_VALUES_MAX / 2];
        let range = |bounds: Value| json!({"key": "n", "range": bounds});
        let full = vec![
            json!({"key": "a", "match": half}),
            json!({"key": "b", "match": &half[1..]}),
            json!({"must": [range(json!({"gt": 1}))]}),
        ];
        assert!(parse(json!({"must": full})).is_ok());
        for (more, pointer) in [
            (json!({"key": "c", "match": 1}), "/filter/must/3/match"),
            (json!({"key": "c", "match": ["x"]}), "/filter/must/3/match"),
            (range(json!({"lt": 1})), "/filter/must/3/range"),
        ] {
            let mut over = full.clone();
            over.push(more);
            let problem = parse(json!({"must": over})).expect_err(pointer);
            assert_eq!(problem.code, Code::InvalidRequest);
            assert_eq!(problem.errors[0].pointer, pointer);
        }
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let names = "must|should|must_not|key|match|range|exists|relation|gt|x";
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            "[a.]{0,4}".prop_map(Value::from),
        ];
        leaf.prop_recursive(6, 40, 4, move |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                proptest::collection::btree_map(names, inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn any_json_is_a_filter_or_a_named_fault(value in any_json()) {
            if let Err(problem) = parse(value) {
                prop_assert!(!problem.errors.is_empty());
            }
        }
    }
}
