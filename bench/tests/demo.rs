//! The demo's questions have the answers that `questions.json` says, found by their path; and the
//! sentence with the answer is not among the nearest ones, which is what the demo is about.

use hopbine_bench::plain::{Column, Plain, Question, Starts};
use hopbine_coordinator::embed::{Lexical, Tokenizer};
use hopbine_proto::call::{Relations, WriteOp};
use hopbine_proto::score::ScoreMode;
use hopbine_proto::{EntityId, Fact, FactKey, Metric, name_id, relation_name_id};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Deserialize)]
struct DemoFact {
    entity: String,
    relation: String,
    target: String,
    payload: DemoPayload,
}

#[derive(Deserialize)]
struct DemoPayload {
    text: String,
}

#[derive(Deserialize)]
struct DemoQuestion {
    text: String,
    relation_path: Vec<String>,
    answers: Vec<String>,
}

struct Demo {
    plain: Plain,
    lexical: Lexical,
    names: BTreeMap<EntityId, String>,
}

fn facts() -> Vec<DemoFact> {
    let lines = include_str!("../../cli/demo/facts.jsonl").lines();
    lines.map(|line| serde_json::from_str(line).expect("a fact a line")).collect()
}

fn questions() -> Vec<DemoQuestion> {
    serde_json::from_str(include_str!("../../cli/demo/questions.json")).expect("questions")
}

fn demo() -> Demo {
    let lexical = Lexical::new(Tokenizer::Generic, 384);
    let (mut plain, mut names) = (Plain::new(Metric::Cosine), BTreeMap::new());
    for fact in facts() {
        let key = FactKey {
            entity: name_id(&fact.entity),
            relation: relation_name_id(&fact.relation),
            target: name_id(&fact.target),
        };
        names.insert(key.entity, fact.entity);
        names.insert(key.target, fact.target);
        let embedding = Some(lexical.embed(&fact.payload.text).into());
        plain.write(&[WriteOp::Upsert(Fact { key, names: None, embedding, payload: None })]);
    }
    Demo { plain, lexical, names }
}

impl Demo {
    /// Targets of the best `top_k` results along `path`; of the nearest facts without a path.
    fn ask(&self, text: &str, path: &[String], top_k: usize) -> Vec<String> {
        let hop = |name: &String| (Relations::Of(vec![relation_name_id(name)]), 1.0);
        let question = Question {
            query: Some(self.lexical.embed(text).into()),
            starts: Starts::Nearest {
                ann_k: 64,
                relations: Relations::Any,
                column: Column::Entity,
                weight: 1.0,
            },
            hops: path.iter().map(hop).collect(),
            filter: None,
            limit_per_entity: 10_000,
            beam: 4_096,
            return_to_start: false,
            score: ScoreMode::Path,
            top_k,
            after: None,
        };
        let found = self.plain.answer(&question);
        found.iter().map(|found| self.names[&found.key.target].clone()).collect()
    }
}

#[test]
fn every_question_is_answered_by_its_path_and_not_by_search_alone() {
    let demo = demo();
    assert_eq!(questions().len(), 3);
    for question in questions() {
        let count = question.answers.len();
        let found = demo.ask(&question.text, &question.relation_path, count);
        assert_eq!(found, question.answers, "{}", question.text);
        let nearest = demo.ask(&question.text, &[], 10);
        let answers: BTreeSet<&String> = question.answers.iter().collect();
        assert!(nearest.iter().all(|target| !answers.contains(target)), "{nearest:?}");
    }
}

#[test]
fn no_fact_comes_twice_and_no_two_names_share_an_id() {
    let (mut keys, mut ids) = (BTreeSet::new(), BTreeMap::new());
    for fact in facts() {
        for name in [&fact.entity, &fact.target] {
            let known = ids.entry(name_id(name)).or_insert_with(|| name.clone());
            assert_eq!(known, name);
        }
        assert!(keys.insert((fact.entity, fact.relation, fact.target)));
    }
    assert_eq!(keys.len(), 2_062);
}
