//! Random graphs, batches and questions, all from one seed.

use hopbine_proto::call::{
    Arrival, FetchRequest, FrontierEntity, HopOutput, HopRequest, Relations, ScanRequest, SeedMode,
    SeedRequest, With, WriteOp,
};
use hopbine_proto::filter::{Bounds, Condition, Filter, Scalar};
use hopbine_proto::graph::IdKind;
use hopbine_proto::score::ScoreMode;
use hopbine_proto::{EntityId, Fact, FactKey, KeyRange, Metric, Names, RelationId, name_id};
use std::collections::BTreeSet;
use std::sync::Arc;

/// SplitMix64 (Steele, Lea, Flood 2014).
pub struct Draw(pub u64);

impl Draw {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }
}

/// The graph that questions and writes are about.
#[derive(Clone, Copy)]
pub struct World {
    pub ids: IdKind,
    pub metric: Metric,
    pub dim: usize,
    /// Entities, their numbers running from 0, the last being `u64::MAX` in a graph of numbers.
    pub entities: u64,
}

impl World {
    pub fn name(number: u64) -> String {
        format!("entity {number}")
    }

    pub fn id(&self, number: u64) -> EntityId {
        match self.ids {
            IdKind::Names => name_id(&Self::name(number)),
            IdKind::U64 if number + 1 == self.entities => EntityId(u64::MAX),
            IdKind::U64 => EntityId(number),
        }
    }

    pub fn relation(&self, draw: &mut Draw) -> RelationId {
        RelationId(draw.one_of(&[0, 1, 2, 3, u32::MAX]))
    }

    pub fn key(&self, draw: &mut Draw) -> FactKey {
        let (entity, target) = (draw.below(self.entities), draw.below(self.entities));
        let (entity, target) = (self.id(entity), self.id(target));
        FactKey { entity, relation: self.relation(draw), target }
    }

    /// Few distinct values, so that equal distances are frequent.
    pub fn vector(&self, draw: &mut Draw) -> Arc<[f32]> {
        let coarse = draw.chance(50);
        let mut vector: Vec<f32> = (0..self.dim)
            .map(|_| match coarse {
                true => draw.below(3) as f32 - 1.0,
                false => draw.below(1 << 20) as f32 / (1 << 19) as f32 - 1.0,
            })
            .collect();
        if vector.iter().all(|value| *value == 0.0) {
            vector[0] = 1.0;
        }
        vector.into()
    }

    pub fn fact(&self, draw: &mut Draw) -> Fact {
        let (entity, target) = (draw.below(self.entities), draw.below(self.entities));
        let relation = self.relation(draw);
        let key = FactKey { entity: self.id(entity), relation, target: self.id(target) };
        let names = (self.ids == IdKind::Names).then(|| Names {
            entity: Self::name(entity).into(),
            target: Self::name(target).into(),
        });
        let payload = draw.chance(70).then(|| {
            let (n, tag) = (draw.below(10), draw.one_of(&["a", "b", "c"]));
            format!(r#"{{"n":{n},"tags":["{tag}","x"],"deep":{{"n":{n}}}}}"#).into()
        });
        let without = self.metric == Metric::Cosine && draw.chance(15);
        let embedding = (!without).then(|| self.vector(draw));
        Fact { key, names, embedding, payload }
    }

    /// A batch without a key twice; now and then a delete of a whole entity.
    pub fn batch(&self, draw: &mut Draw) -> Vec<WriteOp> {
        let mut ops = Vec::new();
        let mut keys = BTreeSet::new();
        let size = draw.one_of(&[1, 1, 2, 5, 12]);
        let deletes = draw.one_of(&[0, 20, 20, 60, 100]);
        for _ in 0..size {
            if draw.chance(deletes) {
                let key = self.key(draw);
                if draw.chance(4) {
                    let relation = draw.chance(50).then_some(key.relation);
                    ops.push(WriteOp::DeletePrefix { entity: key.entity, relation });
                } else if keys.insert(key) {
                    ops.push(WriteOp::Delete(key));
                }
                continue;
            }
            let mut fact = self.fact(draw);
            if let Some(names) = &mut fact.names
                && draw.chance(2)
            {
                // Two names of one id: as if their hashes collided.
                let forged = if draw.chance(50) { &mut names.entity } else { &mut names.target };
                *forged = "another name".into();
            }
            if keys.insert(fact.key) {
                ops.push(WriteOp::Upsert(fact));
            }
        }
        ops
    }

    pub fn relations(&self, draw: &mut Draw) -> Relations {
        match draw.below(4) {
            0 | 1 => Relations::Any,
            2 => Relations::Of(vec![self.relation(draw)]),
            _ => {
                let list: BTreeSet<_> = (0..draw.below(4)).map(|_| self.relation(draw)).collect();
                // Many relations that no fact has make the list too long for single ranges.
                let many = (10..10 + draw.one_of(&[0, 20])).map(RelationId);
                let mut list: Vec<_> = list.into_iter().chain(many).collect();
                list.sort();
                Relations::Of(list)
            }
        }
    }

    pub fn filter(&self, draw: &mut Draw) -> Option<Arc<Filter>> {
        let path = |text: &str| text.split('.').map(str::to_owned).collect::<Vec<_>>();
        let condition = |draw: &mut Draw| match draw.below(5) {
            0 => Condition::Relation({
                let list: BTreeSet<_> = (0..2).map(|_| self.relation(draw)).collect();
                list.into_iter().collect()
            }),
            1 => {
                let n = Scalar::Int(draw.below(10).into());
                Condition::Match { path: path("deep.n"), any_of: vec![n] }
            }
            2 => Condition::Match { path: path("tags"), any_of: vec![Scalar::Text("a".into())] },
            3 => Condition::Exists { path: path("n"), exists: draw.chance(50) },
            _ => {
                let bound = Some(Scalar::Int(draw.below(10).into()));
                Condition::Range {
                    path: path("n"),
                    bounds: Bounds { gte: bound, ..Bounds::default() },
                }
            }
        };
        if draw.chance(60) {
            return None;
        }
        let mut filter = Filter::default();
        for _ in 0..1 + draw.below(2) {
            let condition = condition(draw);
            match draw.below(3) {
                0 => filter.must.push(condition),
                1 => filter.should.push(condition),
                _ => filter.must_not.push(condition),
            }
        }
        Some(Arc::new(filter))
    }

    pub fn seed_request(&self, draw: &mut Draw) -> SeedRequest {
        SeedRequest {
            query: self.vector(draw),
            k: draw.one_of(&[0, 1, 3, 10, 64, 10_000]),
            relations: self.relations(draw),
            filter: self.filter(draw),
            mode: draw.one_of(&[
                SeedMode::Auto,
                SeedMode::Graph { ef: 16 },
                SeedMode::Scan,
                SeedMode::Exact,
            ]),
        }
    }

    pub fn hop_request(&self, draw: &mut Draw) -> HopRequest {
        let query = draw.chance(70).then(|| self.vector(draw));
        let return_to_start = draw.chance(30);
        let numbers = draw.one_of(&[1, 2, 5, 30]);
        let entities: BTreeSet<EntityId> =
            (0..numbers).map(|_| self.id(draw.below(self.entities + 2))).collect();
        let mut frontier = Vec::new();
        for entity in entities {
            let starts: BTreeSet<EntityId> =
                (0..1 + draw.below(4)).map(|_| self.id(draw.below(self.entities.min(4)))).collect();
            let mut arrivals: Vec<Arrival> = starts
                .into_iter()
                .map(|start| {
                    let prefix = if query.is_some() { draw.below(3) as f64 / 4.0 } else { 0.0 };
                    Arrival { start, prefix, tie: draw.below(1000) as u32 }
                })
                .collect();
            arrivals.sort_by(|a, b| a.prefix.total_cmp(&b.prefix).then(a.tie.cmp(&b.tie)));
            arrivals.dedup_by_key(|arrival| (arrival.prefix.to_bits(), arrival.tie));
            frontier.push(FrontierEntity { entity, arrivals: arrivals.into() });
        }
        HopRequest {
            frontier,
            relations: self.relations(draw),
            query,
            weight: draw.one_of(&[0.0, 0.5, 1.0]),
            filter: self.filter(draw),
            limit_per_entity: draw.one_of(&[1, 2, 7, 10_000]),
            limit_rows: draw.one_of(&[3, 1_000_000, 1_000_000, 1_000_000]),
            return_to_start,
            output: self.hop_output(draw),
        }
    }

    fn hop_output(&self, draw: &mut Draw) -> HopOutput {
        match draw.below(5) {
            0 | 1 => HopOutput::Targets {
                beam: draw.one_of(&[1, 3, 10, 4096]),
                starts: draw.one_of(&[1, 2, 3]),
            },
            2 => HopOutput::Facts {
                top_k: draw.one_of(&[1, 3, 10, 10_000]),
                score: draw.one_of(&[ScoreMode::Path, ScoreMode::Endpoint]),
            },
            3 => HopOutput::Page {
                limit: draw.one_of(&[1, 5, 100_000]),
                after: draw.chance(50).then(|| self.key(draw)),
            },
            _ => HopOutput::Keys {
                limit: draw.one_of(&[1, 5, 100_000]),
                after: draw.chance(50).then(|| self.key(draw)),
            },
        }
    }

    pub fn fetch_request(&self, draw: &mut Draw) -> FetchRequest {
        FetchRequest {
            keys: (0..draw.below(20)).map(|_| self.key(draw)).collect(),
            with: self.with(draw),
            query: draw.chance(50).then(|| self.vector(draw)),
        }
    }

    fn with(&self, draw: &mut Draw) -> With {
        With { payload: draw.chance(50), vector: draw.chance(50) }
    }

    pub fn range(&self, draw: &mut Draw) -> KeyRange {
        let key = self.key(draw);
        match draw.below(4) {
            0 => KeyRange::ALL,
            1 => KeyRange::entity(key.entity),
            2 => KeyRange::entity_relation(key.entity, key.relation),
            _ => {
                let other = self.key(draw);
                KeyRange { start: key.min(other), end: key.max(other).successor() }
            }
        }
    }

    pub fn scan_request(&self, draw: &mut Draw) -> ScanRequest {
        ScanRequest {
            range: self.range(draw),
            filter: self.filter(draw),
            limit: draw.one_of(&[0, 1, 7, 10_000]),
            with: self.with(draw),
        }
    }
}
