//! Runs the stories of `retrieval/*.txt`: events in, actions out.
//!
//! Lines that begin with `>` are what the machine must do; all others say how the story is set up
//! (`shards`, `plan`) or what happens next. A fact is written `entity-relation->target`, a way
//! `prefix/distance fact from start`. With HOPBINE_TRANSCRIPTS=write the stories are rewritten to
//! what the machine does, to be read before they are committed.

use hopbine_coordinator::reply::{Coverage, ResultOut};
use hopbine_coordinator::request::{SeedOn, WithParts};
use hopbine_coordinator::retrieval::{
    Action, Answer, Event, Hop, Output, Plan, Retrieval, Starts, Task,
};
use hopbine_proto::call::*;
use hopbine_proto::graph::{GraphConfig, GraphInfo, IdKind};
use hopbine_proto::score::ScoreMode;
use hopbine_proto::shard_map::{ShardDescriptor, ranges};
use hopbine_proto::status::{Code, Problem};
use hopbine_proto::*;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;

#[test]
fn every_story_goes_as_it_is_told() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/retrieval");
    let mut told = 0;
    for entry in std::fs::read_dir(folder).expect("the folder of stories") {
        let path = entry.expect("an entry").path();
        let text = std::fs::read_to_string(&path).expect("a readable story");
        let played = play(&text);
        if std::env::var("HOPBINE_TRANSCRIPTS").is_ok_and(|mode| mode == "write") {
            std::fs::write(&path, &played).expect("a writable story");
        } else {
            assert_eq!(played, text, "{} went another way:\n{played}", path.display());
        }
        told += 1;
    }
    assert!(told >= 8, "only {told} stories were found");
}

/// The story with its actions replaced by what the machine does.
fn play(text: &str) -> String {
    let mut out = String::new();
    let mut graph = None;
    let mut machine: Option<Retrieval> = None;
    for line in text.lines().filter(|line| !line.starts_with('>')) {
        writeln!(out, "{line}").expect("text");
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let actions = match word {
            "#" | "" => continue,
            "shards" => {
                graph = Some(shards(rest));
                continue;
            }
            "plan" => {
                let graph = graph.clone().expect("shards come before the plan");
                let (begun, actions) = Retrieval::start(plan(rest), graph);
                machine = Some(begun);
                actions
            }
            _ => machine.as_mut().expect("a plan comes first").step(event(word, rest)),
        };
        for action in actions {
            writeln!(out, "> {}", shown(&action)).expect("text");
        }
    }
    out
}

fn shards(starts: &str) -> Arc<GraphInfo> {
    let starts: Vec<u64> = starts.split(' ').map(number).collect();
    let descriptors = ranges(&starts[1..]).into_iter().zip(1..);
    Arc::new(GraphInfo {
        id: GraphId(1),
        name: "story".into(),
        config: GraphConfig::new(2, IdKind::U64),
        version: 1,
        relations: BTreeMap::new(),
        shards: descriptors
            .map(|(range, id)| ShardDescriptor {
                id: ShardId(id),
                range,
                epoch: Epoch(1),
                replicas: Vec::new(),
            })
            .collect(),
    })
}

fn plan(text: &str) -> Plan {
    let fields: BTreeMap<&str, &str> =
        text.split(' ').map(|field| field.split_once('=').unwrap_or((field, ""))).collect();
    let get = |name: &str, other: u64| fields.get(name).map_or(other, |value| number(value));
    let query: Arc<[f32]> = [1.0, 0.0].as_slice().into();
    let starts = match fields.get("from") {
        Some(list) => Starts::Entities(list.split(',').map(|e| EntityId(number(e))).collect()),
        None => Starts::Seeds {
            ask: Arc::new(SeedRequest {
                query: query.clone(),
                k: get("seeds", 1) as u32,
                relations: Relations::Any,
                filter: None,
                mode: SeedMode::Exact,
            }),
            on: SeedOn::Entity,
            weight: 1.0,
        },
    };
    let top_k = get("top", 10) as u32;
    let paged = fields.contains_key("page");
    Plan {
        query: (!paged).then_some(query),
        starts,
        hops: vec![Hop { relations: Relations::Any, weight: 1.0 }; get("hops", 0) as usize],
        filter: None,
        limit_per_entity: 100,
        beam: get("beam", 100) as u32,
        limit_rows: 1_000,
        return_to_start: fields.contains_key("may_return"),
        output: match paged {
            true => Output::Page { limit: get("page", 1) as u32, after: None },
            false => Output::Top { top_k, score: ScoreMode::Path },
        },
        with: WithParts { payload: fields.contains_key("payload"), ..WithParts::default() },
        allow_partial: fields.contains_key("allow_partial"),
    }
}

fn number(text: &str) -> u64 {
    text.parse().unwrap_or_else(|_| panic!("{text:?} is no number"))
}

fn fraction(text: &str) -> f64 {
    text.parse().unwrap_or_else(|_| panic!("{text:?} is no number"))
}

fn key(text: &str) -> FactKey {
    let parts = text.split_once('-').and_then(|(e, rest)| Some((e, rest.split_once("->")?)));
    let (entity, (relation, target)) = parts.unwrap_or_else(|| panic!("{text:?} is no fact"));
    FactKey::new(number(entity), number(relation) as u32, number(target))
}

fn task(text: &str) -> Task {
    match text {
        "seeds" => Task::Seeds,
        "hop" => Task::Hop,
        "whole-hop" => Task::WholeHop,
        "results" => Task::Results,
        "paths" => Task::Paths,
        _ => panic!("{text:?} is no task"),
    }
}

fn task_name(task: Task) -> &'static str {
    match task {
        Task::Seeds => "seeds",
        Task::Hop => "hop",
        Task::WholeHop => "whole-hop",
        Task::Results => "results",
        Task::Paths => "paths",
    }
}

fn event(word: &str, rest: &str) -> Event {
    if word == "deadline" {
        return Event::Deadline;
    }
    let (shard, what) = rest.split_once(' ').unwrap_or((rest, ""));
    let shard = ShardId(number(shard.trim_end_matches(':')));
    match word {
        "again" => Event::Again(shard, task(what)),
        "lost" => {
            let (what, why) = what.split_once(": ").expect("a reason");
            let code = Code::ALL.iter().find(|code| code.as_str() == why).expect("a code");
            Event::Lost(shard, task(what), Problem::new(*code, "it said so"))
        }
        "seeds" => {
            let seed = |text: &str| {
                let (distance, fact) = text.split_once(' ').expect("a distance and a fact");
                Seed { distance: fraction(distance), key: key(fact) }
            };
            let seeds = list(what).map(seed).collect();
            let reply = SeedReply { seeds, index: LogIndex(3), ..SeedReply::default() };
            Event::Seeds(shard, reply)
        }
        "results" | "paths" => {
            let row = |text: &str| {
                let (fact, payload) = text.split_once(' ').unwrap_or((text, ""));
                (payload != "gone").then(|| Row {
                    fact: Fact {
                        key: key(fact),
                        names: None,
                        embedding: None,
                        payload: (!payload.is_empty()).then(|| payload.into()),
                    },
                    version: LogIndex(2),
                    distance: None,
                })
            };
            let rows = list(what).map(row).collect();
            let reply = FetchReply { rows, work: Work::default(), index: LogIndex(3) };
            Event::Rows(shard, task(word), reply)
        }
        _ => Event::Hop(shard, task(word), hop_reply(what)),
    }
}

fn list(text: &str) -> impl Iterator<Item = &str> {
    text.split(", ").filter(|item| !item.is_empty())
}

/// `ways | read 3 kept 2 targets 4 cut_beam 1 truncated`. The ways stand for targets and for last
/// facts alike; the machine looks at what it asked for.
fn hop_reply(text: &str) -> HopReply {
    let (ways, account) = text.split_once(" | ").unwrap_or((text, ""));
    let mut reply = HopReply { index: LogIndex(3), ..HopReply::default() };
    for way in list(ways) {
        let words: Vec<&str> = way.split(' ').collect();
        let (prefix, distance) = words[0].split_once('/').expect("prefix/distance");
        let step = Step {
            key: key(words[1]),
            distance: (distance != "none").then(|| fraction(distance)),
            prefix: fraction(prefix),
            start: EntityId(number(words[3])),
            tie: words.get(5).map_or(0, |tie| number(tie) as u32),
        };
        reply.facts.push(step);
        let target = step.key.target;
        match reply.targets.iter_mut().find(|known| known.target == target) {
            Some(known) => known.steps.push(step),
            None => reply.targets.push(TargetReply { target, steps: vec![step].into() }),
        }
    }
    let mut words = account.split(' ');
    while let Some(word) = words.next().filter(|word| !word.is_empty()) {
        let mut value = || number(words.next().expect("a count"));
        match word {
            "read" => reply.counts.read = value(),
            "kept" => reply.counts.kept = value(),
            "targets" => reply.counts.targets = value(),
            "cut_beam" => reply.counts.cut_beam = value(),
            "truncated" => reply.counts.truncated = true,
            _ => panic!("{word:?} is no count"),
        }
    }
    reply
}

fn fact_text(key: FactKey) -> String {
    format!("{}-{}->{}", key.entity, key.relation, key.target)
}

fn shown(action: &Action) -> String {
    match action {
        Action::AskSeeds(shard, ask) => format!("ask {shard} for its {} best seeds", ask.k),
        Action::AskHop(shard, task, ask) => {
            let frontier: Vec<String> = ask.frontier.iter().map(from_text).collect();
            let output = match ask.output {
                HopOutput::Targets { beam, starts } => {
                    format!("{beam} targets by {starts} starts")
                }
                HopOutput::Facts { top_k, .. } => format!("{top_k} facts"),
                HopOutput::Page { limit, .. } => format!("{limit} facts in key order"),
                HopOutput::Keys { limit, .. } => format!("{limit} keys in order"),
            };
            format!("{} {shard} from {} for {output}", task_name(*task), frontier.join(", "))
        }
        Action::AskRows(shard, task, ask) => {
            let keys: Vec<String> = ask.keys.iter().map(|key| fact_text(*key)).collect();
            format!("{} {shard} of {}", task_name(*task), keys.join(", "))
        }
        Action::Fail(problem) => format!("fail {problem}"),
        Action::Finish(answer) => answer_text(answer),
    }
}

fn from_text(from: &FrontierEntity) -> String {
    let arrivals: Vec<String> = from
        .arrivals
        .iter()
        .map(|arrival| format!("{} from {} tie {}", arrival.prefix, arrival.start, arrival.tie))
        .collect();
    format!("{} ({})", from.entity, arrivals.join("; "))
}

fn answer_text(answer: &Answer) -> String {
    let mut text = String::from(if answer.partial { "finish, partial" } else { "finish" });
    for result in &answer.results {
        write!(text, "\n>   {}", result_text(result)).expect("text");
    }
    write!(text, "\n>   {}", coverage_text(&answer.coverage)).expect("text");
    if let Some(key) = answer.more_after {
        write!(text, "\n>   more after {}", fact_text(key)).expect("text");
    }
    text
}

fn result_text(result: &ResultOut) -> String {
    let score = result.distance.map_or("none".to_owned(), |score| score.to_string());
    let path: Vec<String> = result.path.iter().map(|step| fact_text(step.fact.id)).collect();
    let payload = result.fact.payload.as_deref().unwrap_or_default();
    let text = format!("{score} {} by {} {payload}", fact_text(result.fact.id), path.join(" "));
    text.trim_end().to_owned()
}

fn coverage_text(coverage: &Coverage) -> String {
    let mut text = format!("{} of {} shards", coverage.answered, coverage.shards);
    for hop in &coverage.hops {
        let why = hop.why.as_deref().unwrap_or("whole");
        write!(text, "; hop {}: read {} cut {} {why}", hop.hop, hop.read, hop.cut).expect("text");
    }
    text
}
