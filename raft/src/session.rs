//! Which commands were applied already, and what was answered: so that a retry applies once.
//!
//! Part of the machine's state: `check` and `record` are called at apply, in log order, and depend
//! on nothing but the commands seen, so all replicas and every replay agree. The table is bounded
//! in number (oldest first out) and in age, in leader-stamped log time. A retry that comes after
//! its record is gone is a new command: that window (`limits::SESSION_AGE_MAX`, while fewer than
//! `limits::SESSIONS_MAX` other callers came between) is part of the contract.

use crate::command::Command;
use crate::error::Malformed;
use bytes::Bytes;
use hopbine_proto::limits::{COUNTER_MAX, SESSION_AGE_MAX, SESSIONS_MAX};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What is known of a command before it is applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Check {
    /// Not seen: apply it, then `record` the reply.
    New,
    /// Applied before: give this reply again, change nothing.
    Repeat(Bytes),
    /// Its idempotency key was used for another batch: refuse.
    Conflict,
    /// Its client already went on to a later number; the reply is no longer kept. It was applied
    /// or overtaken: refuse, change nothing.
    Overtaken,
}

/// Who a record is kept for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
enum Caller {
    Key(u128),
    Client(u128),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    /// Hash of the batch for a key, the last number for a client.
    mark: u128,
    at_ms: u64,
    /// Order of recording; breaks ties of `at_ms`.
    serial: u64,
    reply: Bytes,
}

/// Bounds of a table; every replica of a group must use the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionLimits {
    /// Records kept.
    pub records_max: usize,
    /// Milliseconds of log time that a record is kept.
    pub age_ms_max: u64,
}

impl Default for SessionLimits {
    fn default() -> Self {
        Self { records_max: SESSIONS_MAX, age_ms_max: SESSION_AGE_MAX.as_millis() as u64 }
    }
}

/// The table of recent callers of one group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sessions {
    limits: SessionLimits,
    /// Log time: the largest leader stamp seen.
    now_ms: u64,
    next_serial: u64,
    records: BTreeMap<Caller, Record>,
    by_age: BTreeMap<(u64, u64), Caller>,
}

impl Sessions {
    /// An empty table.
    pub fn new(limits: SessionLimits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// Records kept now.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether nothing is kept.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Tells whether `command` was applied before. Call it at apply, before anything else.
    pub fn check(&mut self, command: &Command) -> Check {
        self.now_ms = self.now_ms.max(command.at_ms);
        self.drop_aged();
        if let Some(idempotency) = &command.idempotency
            && let Some(record) = self.records.get(&Caller::Key(idempotency.key))
        {
            let same = record.mark == idempotency.batch;
            return if same { Check::Repeat(record.reply.clone()) } else { Check::Conflict };
        }
        if let Some(sequence) = command.sequence
            && let Some(record) = self.records.get(&Caller::Client(sequence.client))
        {
            match u128::from(sequence.sequence).cmp(&record.mark) {
                std::cmp::Ordering::Less => return Check::Overtaken,
                std::cmp::Ordering::Equal => return Check::Repeat(record.reply.clone()),
                std::cmp::Ordering::Greater => {}
            }
        }
        Check::New
    }

    /// Keeps the reply to `command`, which `check` called new and which was applied.
    pub fn record(&mut self, command: &Command, reply: &Bytes) {
        if let Some(idempotency) = &command.idempotency {
            self.put(Caller::Key(idempotency.key), idempotency.batch, reply);
        }
        if let Some(sequence) = command.sequence {
            self.put(Caller::Client(sequence.client), sequence.sequence.into(), reply);
        }
        while self.records.len() > self.limits.records_max {
            self.drop_oldest();
        }
    }

    /// The table's bytes, equal for equal tables: for the manifest and for snapshots.
    pub fn encode(&self) -> Vec<u8> {
        let records: Vec<(&Caller, &Record)> = self.records.iter().collect();
        let table = (self.now_ms, self.next_serial, records);
        postcard::to_stdvec(&table).expect("plain data always encodes")
    }

    /// Reads what `encode` wrote.
    pub fn decode(limits: SessionLimits, bytes: &[u8]) -> Result<Self, Malformed> {
        let malformed = Malformed("session table");
        let (now_ms, next_serial, list): (u64, u64, Vec<(Caller, Record)>) =
            postcard::from_bytes(bytes).map_err(|_| malformed)?;
        if next_serial > COUNTER_MAX {
            return Err(malformed);
        }
        let mut table = Self { limits, now_ms, next_serial, ..Self::default() };
        for (caller, record) in list {
            let sound = record.serial < next_serial && record.at_ms <= now_ms;
            let twice = table.by_age.insert((record.at_ms, record.serial), caller).is_some();
            if !sound || twice || table.records.insert(caller, record).is_some() {
                return Err(malformed);
            }
        }
        Ok(table)
    }

    fn put(&mut self, caller: Caller, mark: u128, reply: &Bytes) {
        let serial = self.next_serial;
        self.next_serial += 1;
        let record = Record { mark, at_ms: self.now_ms, serial, reply: reply.clone() };
        self.by_age.insert((record.at_ms, serial), caller);
        if let Some(older) = self.records.insert(caller, record) {
            self.by_age.remove(&(older.at_ms, older.serial));
        }
    }

    fn drop_aged(&mut self) {
        while let Some((&(at_ms, _), _)) = self.by_age.first_key_value()
            && self.now_ms.saturating_sub(at_ms) > self.limits.age_ms_max
        {
            self.drop_oldest();
        }
    }

    fn drop_oldest(&mut self) {
        if let Some((_, caller)) = self.by_age.pop_first() {
            self.records.remove(&caller);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::ClientSequence;
    use hopbine_proto::Epoch;
    use hopbine_proto::call::Idempotency;
    use proptest::prelude::*;

    const LIMITS: SessionLimits = SessionLimits { records_max: 8, age_ms_max: 1_000 };

    fn keyed(at_ms: u64, key: u128, batch: u128) -> Command {
        let idempotency = Some(Idempotency { key, batch });
        Command { at_ms, idempotency, ..Command::new(Epoch(1), vec![]) }
    }

    fn numbered(at_ms: u64, client: u128, sequence: u64) -> Command {
        let sequence = Some(ClientSequence { client, sequence });
        Command { at_ms, sequence, ..Command::new(Epoch(1), vec![]) }
    }

    fn reply(text: &str) -> Bytes {
        Bytes::copy_from_slice(text.as_bytes())
    }

    #[test]
    fn a_retry_gets_the_first_reply_and_another_batch_is_a_conflict() {
        let mut sessions = Sessions::new(LIMITS);
        assert_eq!(sessions.check(&keyed(10, 7, 1)), Check::New);
        sessions.record(&keyed(10, 7, 1), &reply("one"));
        assert_eq!(sessions.check(&keyed(20, 7, 1)), Check::Repeat(reply("one")));
        assert_eq!(sessions.check(&keyed(20, 7, 2)), Check::Conflict);
        assert_eq!(sessions.check(&keyed(1_010, 7, 1)), Check::Repeat(reply("one")));
        assert_eq!(sessions.check(&keyed(1_011, 7, 1)), Check::New);
    }

    #[test]
    fn a_clients_older_number_is_overtaken() {
        let mut sessions = Sessions::new(LIMITS);
        sessions.record(&numbered(1, 5, 3), &reply("three"));
        assert_eq!(sessions.check(&numbered(1, 5, 3)), Check::Repeat(reply("three")));
        assert_eq!(sessions.check(&numbered(1, 5, 2)), Check::Overtaken);
        assert_eq!(sessions.check(&numbered(1, 5, 4)), Check::New);
        assert_eq!(sessions.check(&numbered(1, 6, 1)), Check::New);
    }

    #[test]
    fn a_leader_whose_clock_is_behind_does_not_turn_log_time_back() {
        let mut sessions = Sessions::new(LIMITS);
        sessions.check(&keyed(5_000, 1, 1));
        sessions.record(&keyed(5_000, 1, 1), &reply("a"));
        assert_eq!(sessions.check(&keyed(4_000, 2, 1)), Check::New);
        sessions.record(&keyed(4_000, 2, 1), &reply("b"));
        assert_eq!(sessions.check(&keyed(5_900, 2, 1)), Check::Repeat(reply("b")));
    }

    #[test]
    fn a_table_from_which_counting_on_would_overflow_is_refused() {
        let bytes = |next_serial: u64| {
            let records: Vec<(Caller, Record)> = Vec::new();
            postcard::to_stdvec(&(0u64, next_serial, records)).expect("plain data")
        };
        for refused in [u64::MAX, COUNTER_MAX + 1] {
            assert!(Sessions::decode(LIMITS, &bytes(refused)).is_err(), "{refused}");
        }
        let mut last = Sessions::decode(LIMITS, &bytes(COUNTER_MAX)).expect("a table");
        last.record(&keyed(1, 1, 1), &reply("one more"));
        assert_eq!(last.check(&keyed(1, 1, 1)), Check::Repeat(reply("one more")));
    }

    #[derive(Clone, Debug)]
    struct Step {
        wait_ms: u64,
        caller: u128,
        mark: u64,
        by_key: bool,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = (0u64..400, 0u128..14, 0u64..3, any::<bool>());
        let step =
            step.prop_map(|(wait_ms, caller, mark, by_key)| Step { wait_ms, caller, mark, by_key });
        proptest::collection::vec(step, 0..120)
    }

    fn command_of(step: &Step, at_ms: u64) -> Command {
        match step.by_key {
            true => keyed(at_ms, step.caller, step.mark.into()),
            false => numbered(at_ms, step.caller, step.mark),
        }
    }

    /// The plain model: a list in order of recording, searched and cut as the contract says.
    #[derive(Default)]
    struct Model(Vec<(bool, u128, u64, u64, Bytes)>);

    impl Model {
        fn check(&mut self, step: &Step, now: u64) -> Check {
            self.0.retain(|(_, _, _, at, _)| now - at <= LIMITS.age_ms_max);
            let known = self.0.iter().find(|r| r.0 == step.by_key && r.1 == step.caller);
            match known {
                None => Check::New,
                Some(r) if r.2 == step.mark => Check::Repeat(r.4.clone()),
                Some(_) if step.by_key => Check::Conflict,
                Some(r) if r.2 > step.mark => Check::Overtaken,
                Some(_) => Check::New,
            }
        }

        fn record(&mut self, step: &Step, now: u64, reply: Bytes) {
            self.0.retain(|r| (r.0, r.1) != (step.by_key, step.caller));
            self.0.push((step.by_key, step.caller, step.mark, now, reply));
            if self.0.len() > LIMITS.records_max {
                self.0.remove(0);
            }
        }
    }

    proptest! {
        #[test]
        fn the_table_agrees_with_a_plain_list_and_survives_every_restart(
            steps in steps(), restart_every in 1usize..9,
        ) {
            let (mut sessions, mut model, mut now) = (Sessions::new(LIMITS), Model::default(), 0);
            for (number, step) in steps.iter().enumerate() {
                now += step.wait_ms;
                let command = command_of(step, now);
                let answer = sessions.check(&command);
                prop_assert_eq!(&answer, &model.check(step, now));
                if answer == Check::New {
                    let text = reply(&number.to_string());
                    sessions.record(&command, &text);
                    model.record(step, now, text);
                }
                prop_assert_eq!(sessions.len(), model.0.len());
                if number % restart_every == 0 {
                    let bytes = sessions.encode();
                    let read = Sessions::decode(LIMITS, &bytes).expect("own bytes");
                    prop_assert_eq!(read.encode(), bytes);
                    sessions = read;
                }
            }
        }

        #[test]
        fn arbitrary_bytes_are_a_table_or_refused(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            let _ = Sessions::decode(LIMITS, &bytes);
        }
    }
}
