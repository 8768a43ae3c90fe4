//! What each shard answered at each stage, kept only for a retrieval that explains itself.

use super::machine::{Event, Stage, Task};
use hopbine_proto::call::{HopCounts, Hub, RunWork, Work};
use hopbine_proto::{LogIndex, ShardId};
use std::collections::BTreeMap;
use std::time::Duration;

/// One answer of a shard.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// What it was asked.
    pub task: Task,
    /// The hop that it was part of, from 0.
    pub hop: Option<usize>,
    /// Who answered.
    pub shard: ShardId,
    /// From the first asking to the answer.
    pub waited: Duration,
    /// Log index of its view.
    pub index: LogIndex,
    /// What it took.
    pub work: Work,
    /// The same run by run, of a search for seeds.
    pub runs: Vec<RunWork>,
    /// What a hop read and dropped.
    pub counts: HopCounts,
    /// The largest entity that a hop cut.
    pub hub: Option<Hub>,
    /// Rows that it sent: seeds, targets, facts.
    pub rows: u64,
}

/// All answers of one retrieval, and the time between them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trace {
    /// In order of arrival.
    pub lines: Vec<Line>,
    asked: BTreeMap<(ShardId, Task), Duration>,
    merges: Vec<(Stage, Duration)>,
}

impl Trace {
    /// The trace of reads that are known already.
    pub fn of_lines(lines: Vec<Line>) -> Self {
        Self { lines, ..Self::default() }
    }

    /// `shard` is asked for `task` at `now`; asking again changes nothing.
    pub fn asked(&mut self, shard: ShardId, task: Task, now: Duration) {
        self.asked.entry((shard, task)).or_insert(now);
    }

    /// What happened at `now`, in `stage`.
    pub fn happened(&mut self, stage: Stage, event: &Event, now: Duration) {
        let (task, shard, index, work, rows) = match event {
            Event::Seeds(shard, reply) => {
                (Task::Seeds, *shard, reply.index, &reply.work, reply.seeds.len())
            }
            Event::Hop(shard, task, reply) => {
                let rows = reply.targets.len() + reply.facts.len() + reply.keys.len();
                (*task, *shard, reply.index, &reply.work, rows)
            }
            Event::Rows(shard, task, reply) => {
                (*task, *shard, reply.index, &reply.work, reply.rows.len())
            }
            Event::Again(..) | Event::Lost(..) | Event::Deadline => return,
        };
        let asked = self.asked.remove(&(shard, task)).unwrap_or(now);
        let (mut runs, mut counts, mut hub) = (Vec::new(), HopCounts::default(), None);
        match event {
            Event::Seeds(_, reply) => runs.clone_from(&reply.runs),
            Event::Hop(_, _, reply) => (counts, hub) = (reply.counts, reply.hub),
            _ => {}
        }
        let hop = match stage {
            Stage::Hop(hop) => Some(hop),
            _ => None,
        };
        let (waited, rows) = (now.saturating_sub(asked), rows as u64);
        let work = work.clone();
        self.lines.push(Line { task, hop, shard, waited, index, work, runs, counts, hub, rows });
    }

    /// The coordinator worked for `spent` in `stage`.
    pub fn merged(&mut self, stage: Stage, spent: Duration) {
        match self.merges.last_mut() {
            Some((last, sum)) if *last == stage => *sum += spent,
            _ => self.merges.push((stage, spent)),
        }
    }

    /// Milliseconds that the coordinator worked in `stage`.
    pub fn merge_ms(&self, stage: Stage) -> f64 {
        let of_stage = self.merges.iter().filter(|(known, _)| *known == stage);
        of_stage.map(|(_, spent)| spent.as_secs_f64() * 1e3).sum()
    }

    /// The answers to a task of these, in `hop`.
    pub fn of<'t>(
        &'t self,
        tasks: &'t [Task],
        hop: Option<usize>,
    ) -> impl Iterator<Item = &'t Line> {
        self.lines.iter().filter(move |line| tasks.contains(&line.task) && line.hop == hop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hopbine_proto::call::{HopReply, SeedReply};
    use hopbine_proto::status::{Code, Problem};

    #[test]
    fn an_answer_is_noted_with_its_stage_and_how_long_it_was_waited_for() {
        let (mut trace, ms) = (Trace::default(), Duration::from_millis);
        let (one, two) = (ShardId(1), ShardId(2));
        trace.asked(one, Task::Seeds, ms(1));
        trace.asked(one, Task::Seeds, ms(4));
        let again = Event::Again(one, Task::Seeds);
        trace.happened(Stage::Seeds, &again, ms(4));
        let work = Work { blocks_read: 3, ..Work::default() };
        let reply = SeedReply { work: work.clone(), ..SeedReply::default() };
        trace.happened(Stage::Seeds, &Event::Seeds(one, reply), ms(9));
        trace.asked(two, Task::Hop, ms(10));
        let counts = HopCounts { read: 7, ..HopCounts::default() };
        let reply = HopReply { counts, ..HopReply::default() };
        trace.happened(Stage::Hop(0), &Event::Hop(two, Task::Hop, reply), ms(12));
        let lost = Problem::new(Code::ShardUnavailable, "gone");
        trace.happened(Stage::Hop(0), &Event::Lost(one, Task::Hop, lost), ms(13));
        let told: Vec<_> =
            trace.lines.iter().map(|line| (line.task, line.hop, line.shard, line.waited)).collect();
        let seeds = (Task::Seeds, None, one, ms(8));
        assert_eq!(told, [seeds, (Task::Hop, Some(0), two, ms(2))]);
        assert_eq!((&trace.lines[0].work, trace.lines[1].counts), (&work, counts));
        assert_eq!(trace.of(&[Task::Hop, Task::WholeHop], Some(0)).count(), 1);
        assert_eq!(trace.of(&[Task::Hop], Some(1)).count(), 0);
    }

    #[test]
    fn the_work_between_answers_belongs_to_its_stage() {
        let mut trace = Trace::default();
        for (stage, ms) in [(Stage::Seeds, 1), (Stage::Seeds, 2), (Stage::Hop(0), 4)] {
            trace.merged(stage, Duration::from_millis(ms));
        }
        let spent = [Stage::Seeds, Stage::Hop(0), Stage::Hop(1)].map(|stage| trace.merge_ms(stage));
        assert_eq!(spent, [3.0, 4.0, 0.0]);
    }
}
