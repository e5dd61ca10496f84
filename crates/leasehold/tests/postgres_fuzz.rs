//! Random operations: the functions in PostgreSQL against the book, answer by answer.
//!
//! Both run under one clock that is set by hand (`now_us()` is replaced). The test does what the engine does for waiting
//! claims: it checks them when they are due, as replies and messages say, and gives them up when their patience ends.
//! What is granted is then read from the tables, so that a message that was not sent is a difference.
//!
//! `LEASEHOLD_FUZZ_SEED` repeats a run, `LEASEHOLD_FUZZ_OPERATIONS` makes it longer.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::print_stdout)] // a real server lives in real time

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::future::poll_fn;
use std::time::Duration;

use leasehold::engine::postgres::{SchemaName, migration_sql};
use leasehold_core::fact::fingerprint;
use leasehold_core::{
    Acquire, Book, Command, LeaseKey, Limits, Mode, Refusal, Reply, RequestId, Secret, Time, WaiterId, Want,
};
use leasehold_harness::postgres::Cluster;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio_postgres::{AsyncMessage, Client, NoTls};

const QUEUE_LIMIT: usize = 4;
const OPERATIONS_PER_TRIAL: usize = 120;
/// Claims never span two groups of names, so that operations on different groups in one batch have no order.
const GROUPS: [[&str; 3]; 3] = [["a1", "a2", "a3"], ["b1", "b2", "b3"], ["c1", "c2", "c3"]];

struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    fn pick<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len() as u64) as usize]
    }
}

/// What is known of one handle.
#[derive(Clone)]
struct Known {
    handle: u128,
    secret: u128,
    group: usize,
    asked: Asked,
    /// Waiters of the book, each with the process through which it waits.
    waiters: Vec<(WaiterId, i64)>,
    key: Option<LeaseKey>,
    /// When it must be checked, and when its patience ends, in microseconds.
    due: Option<u64>,
    patience: u64,
    /// What a message said of its grant: remaining and renewable.
    message: Option<(i64, i64, Option<i64>)>,
}

#[derive(Clone, Debug)]
struct Asked {
    wants: Vec<(String, Mode)>,
    ttl_ms: u64,
    wait_ms: u64,
    max_hold_ms: Option<u64>,
    delay_ms: u64,
    holder: String,
    request: Option<String>,
}

impl Asked {
    fn core_wants(&self) -> Vec<Want<'_>> {
        self.wants.iter().map(|(name, mode)| Want { name, mode: *mode }).collect()
    }

    fn fingerprint(&self) -> Option<i64> {
        self.request.as_ref()?;
        Some(fingerprint(&self.core_wants(), self.ttl_ms, self.max_hold_ms, self.delay_ms).cast_signed())
    }
}

enum Operation {
    Acquire { at: usize, asked: Asked, process: i64, waiter: WaiterId },
    Release { at: usize, wrong: bool },
    Renew { at: usize, ttl_ms: Option<u64> },
}

struct Trial {
    sql: Client,
    messages: UnboundedReceiver<String>,
    book: Book,
    dice: Dice,
    now_us: u64,
    unit_ms: u64,
    known: Vec<Known>,
    waiter_ids: u64,
    handles: u128,
    log: String,
    grants: usize,
}

fn text(bits: u128) -> String {
    let hex = format!("{bits:032x}");
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

/// A row of an answer, as text: what the two sides must agree on.
type Verdict = (String, Option<i64>, Option<i64>, Option<i64>, Option<String>, Option<String>, Option<i64>);

impl Trial {
    fn now(&self) -> Time {
        Time::from_nanos(self.now_us * 1000)
    }

    fn note(&mut self, line: std::fmt::Arguments<'_>) {
        let _ = writeln!(self.log, "{:>9} {line}", self.now_us - 1_000_000_000);
    }

    fn apply(&mut self, command: Command<'_>) -> (Reply, Vec<(WaiterId, Reply)>) {
        let outcome = self.book.apply(command, self.now());
        drop(self.book.take_tape(Vec::new()));
        (outcome.reply, outcome.effects.into_iter().map(|effect| (effect.waiter_id, effect.reply)).collect())
    }

    async fn set_clock(&mut self) {
        let now = self.now_us.to_string();
        self.sql.execute("SELECT set_config('leasehold.now', $1, false)", &[&now]).await.unwrap();
    }

    fn read_messages(&mut self) {
        while let Ok(message) = self.messages.try_recv() {
            let words: Vec<&str> = message.split(' ').collect();
            let handle = u128::from_str_radix(&words[1].replace('-', ""), 16).unwrap();
            let now = self.now_us;
            let Some(known) = self.known.iter_mut().find(|known| known.handle == handle) else { continue };
            match words[0] {
                "G" => {
                    known.message = Some((words[2].parse().unwrap(), words[3].parse().unwrap(), words[4].parse().ok()))
                }
                "L" => {
                    let us: i64 = words[2].parse().unwrap();
                    let due = u64::try_from(us).ok().map(|us| now + us);
                    known.due = match (known.due, due) {
                        (Some(one), Some(other)) => Some(one.min(other)),
                        (_, due) => due,
                    };
                }
                other => panic!("message {other}"),
            }
        }
    }

    /// One row for each handle that was asked about.
    async fn verdicts(&mut self, sql: &str) -> BTreeMap<u128, Verdict> {
        let rows = self.sql.query(sql, &[]).await.unwrap_or_else(|error| panic!("{error:?}\n{sql}\n{}", self.log));
        self.read_messages();
        rows.iter()
            .map(|row| {
                let handle = u128::from_str_radix(&row.get::<_, String>(0).replace('-', ""), 16).unwrap();
                (handle, (row.get(1), row.get(2), row.get(3), row.get(4), row.get(5), row.get(6), row.get(7)))
            })
            .collect()
    }

    /// Everything that the book says of waiters must be so in the tables, and nothing else.
    async fn compare_effects(&mut self, effects: Vec<(WaiterId, Reply)>) {
        let mut granted: BTreeMap<u128, (i64, Option<i64>)> = BTreeMap::new();
        for (waiter, reply) in effects {
            let Some(at) = self.known.iter().position(|known| known.waiters.iter().any(|(id, _)| *id == waiter)) else {
                panic!("an effect for nobody\n{}", self.log)
            };
            let known = &mut self.known[at];
            known.waiters.retain(|(id, _)| *id != waiter);
            match reply {
                Reply::Granted(grant) => {
                    known.key = Some(grant.lease);
                    granted.insert(known.handle, (micros(grant.remaining), grant.renewable.map(micros)));
                }
                Reply::Refused(Refusal::Held(_)) => {}
                other => panic!("effect {other:?}"),
            }
        }
        let waiting: Vec<String> =
            self.known.iter().filter(|known| !known.waiters.is_empty()).map(|known| text(known.handle)).collect();
        let rows = self
            .sql
            .query("SELECT handle::text FROM leasehold_engine.lease WHERE state = 'W' ORDER BY 1", &[])
            .await
            .unwrap();
        let mut expected = waiting.clone();
        expected.sort();
        let stored: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
        assert_eq!(stored, expected, "who waits\n{}", self.log);
        for (handle, (remaining, renewable)) in granted {
            self.grants += 1;
            let log = std::mem::take(&mut self.log);
            let known = self.known.iter_mut().find(|known| known.handle == handle).unwrap();
            let (_, told, cap) =
                known.message.take().unwrap_or_else(|| panic!("no message for {}\n{log}", text(handle)));
            assert_eq!((told, cap), (remaining, renewable), "{}\n{log}", text(handle));
            known.due = None;
            self.log = log;
        }
    }

    /// Moves the clock, stopping wherever the book has something due.
    async fn advance_to(&mut self, target_us: u64) {
        loop {
            let next = self.book.next_expiry().map_or(u64::MAX, |at| at.as_nanos().div_ceil(1000));
            let now = self.now_us;
            let due = self
                .known
                .iter()
                .filter(|known| !known.waiters.is_empty())
                .filter_map(|known| known.due)
                .filter(|due| *due > now)
                .min();
            let step = next.min(due.unwrap_or(u64::MAX)).max(self.now_us + u64::from(next <= self.now_us));
            if step > target_us {
                break;
            }
            self.now_us = step;
            self.settle().await;
        }
        if self.now_us < target_us {
            self.now_us = target_us;
            self.settle().await;
        }
    }

    async fn settle(&mut self) {
        self.set_clock().await;
        let mut effects = Vec::new();
        loop {
            let (reply, more) = self.apply(Command::Tick { budget: 64 });
            effects.extend(more);
            if reply == Reply::Ticked(false) {
                break;
            }
        }
        let now = self.now_us;
        // What the engine does: due claims are checked, and then those are given up whose patience is over.
        loop {
            let due: Vec<u128> = self
                .known
                .iter()
                .filter(|known| !known.waiters.is_empty() && known.due.is_some_and(|due| due <= now))
                .map(|known| known.handle)
                .collect();
            if due.is_empty() {
                break;
            }
            self.known.iter_mut().filter(|known| due.contains(&known.handle)).for_each(|known| known.due = None);
            let list = due.iter().map(|handle| format!("'{}'", text(*handle))).collect::<Vec<_>>().join(",");
            let sql = format!(
                "SELECT handle::text, verdict::text, token, remaining, renewable, NULL::text, NULL::text, NULL::bigint FROM leasehold_engine.check_waiters(ARRAY[{list}]::uuid[])"
            );
            for (handle, (verdict, token, remaining, renewable, ..)) in self.verdicts(&sql).await {
                let known = self.known.iter_mut().find(|known| known.handle == handle).unwrap();
                match verdict.as_str() {
                    "W" => {
                        let due = renewable.and_then(|us| u64::try_from(us).ok()).map(|us| now + us);
                        assert!(due != Some(now) || remaining <= Some(0), "a check at once, for ever\n{}", self.log);
                        known.due = due.filter(|due| *due > now);
                    }
                    "G" => known.message = Some((token.unwrap(), remaining.unwrap(), renewable)),
                    "N" => {}
                    other => panic!("{other}"),
                }
            }
        }
        let over: Vec<(u128, u128, Option<i64>, i64, String)> = self
            .known
            .iter()
            .filter(|known| !known.waiters.is_empty() && known.patience <= now)
            .map(|known| {
                (
                    known.handle,
                    known.secret,
                    known.asked.fingerprint(),
                    known.waiters[0].1,
                    known.asked.wants[0].0.clone(),
                )
            })
            .collect();
        for (handle, secret, print, process, first) in over {
            let answer = self.leave(handle, secret, print, process, false, &first).await;
            assert!(matches!(answer.as_str(), "H" | "G"), "{answer}\n{}", self.log);
        }
        self.compare_effects(effects).await;
    }

    async fn leave(
        &mut self,
        handle: u128,
        secret: u128,
        print: Option<i64>,
        process: i64,
        cancel: bool,
        first: &str,
    ) -> String {
        let print = print.map_or("NULL".into(), |print| format!("{print}"));
        let sql = format!(
            "SELECT verdict::text FROM leasehold_engine.leave('{}', '{}', {print}::bigint, {process}, {cancel}, 1000, '{first}')",
            text(handle),
            text(secret)
        );
        let row = self.sql.query_one(&sql, &[]).await.unwrap();
        self.read_messages();
        row.get(0)
    }

    fn draw_claim(&mut self, group: usize) -> (usize, Asked) {
        let unit = self.unit_ms;
        let mut names: Vec<&str> = GROUPS[group].to_vec();
        let count = if self.dice.one_in(3) { 2 + self.dice.below(2) } else { 1 };
        while names.len() as u64 > count {
            let gone = self.dice.below(names.len() as u64) as usize;
            names.remove(gone);
        }
        if self.dice.one_in(2) {
            names.reverse();
        }
        let wants = names
            .iter()
            .map(|name| {
                let mode = match self.dice.below(5) {
                    0 | 1 => Mode::Exclusive,
                    2 => Mode::Shared,
                    _ => {
                        Mode::Permits { count: 1 + self.dice.below(2) as u32, capacity: 2 + self.dice.below(2) as u32 }
                    }
                };
                ((*name).to_owned(), mode)
            })
            .collect();
        let who = ["ada", "bob", "cy", "dan"][self.dice.below(4) as usize].to_owned();
        let asked = Asked {
            wants,
            ttl_ms: unit * (1 + self.dice.below(12)),
            wait_ms: if self.dice.one_in(2) { unit * self.dice.below(15) } else { 0 },
            max_hold_ms: self.dice.one_in(4).then(|| unit * (1 + self.dice.below(20))),
            delay_ms: if self.dice.one_in(4) { unit * self.dice.below(6) } else { 0 },
            holder: who,
            request: self.dice.one_in(3).then(|| format!("r{group}{}", self.dice.below(12))),
        };
        // The same request again, mostly with the same body.
        if let Some(request) = &asked.request
            && let Some(at) = self.known.iter().position(|known| known.asked.request.as_ref() == Some(request))
        {
            let asked = if self.dice.one_in(8) {
                asked
            } else {
                Asked { wait_ms: asked.wait_ms, ..self.known[at].asked.clone() }
            };
            return (at, asked);
        }
        self.handles += 1;
        let handle = (u128::from(self.dice.below(u64::MAX)) << 64) | self.handles;
        let secret = !handle;
        self.known.push(Known {
            handle,
            secret,
            group,
            asked: asked.clone(),
            waiters: vec![],
            key: None,
            due: None,
            patience: 0,
            message: None,
        });
        (self.known.len() - 1, asked)
    }

    fn draw_operation(&mut self, group: usize) -> Operation {
        let leases: Vec<usize> = (0..self.known.len())
            .filter(|at| self.known[*at].group == group && self.known[*at].key.is_some())
            .collect();
        let kind = self.dice.below(10);
        if leases.is_empty() || kind < 5 {
            let (at, asked) = self.draw_claim(group);
            self.waiter_ids += 1;
            return Operation::Acquire {
                at,
                asked,
                process: 1 + self.dice.below(2) as i64,
                waiter: WaiterId(self.waiter_ids),
            };
        }
        // Mostly the newest: the old ones are over.
        let at = if self.dice.one_in(4) {
            *self.dice.pick(&leases)
        } else {
            leases[leases.len() - 1 - self.dice.below(leases.len().min(3) as u64) as usize]
        };
        if kind < 8 {
            Operation::Release { at, wrong: self.dice.one_in(20) }
        } else {
            let ttl_ms = self.dice.one_in(2).then(|| self.unit_ms * (1 + self.dice.below(12)));
            Operation::Renew { at, ttl_ms }
        }
    }

    async fn run_batch(&mut self) {
        let mut groups = vec![0, 1, 2];
        let count = 1 + self.dice.below(3) as usize;
        while groups.len() > count {
            let gone = self.dice.below(groups.len() as u64) as usize;
            groups.remove(gone);
        }
        let operations: Vec<Operation> = groups.into_iter().map(|group| self.draw_operation(group)).collect();
        let sql = self.batch_sql(&operations);
        let mut expected = Vec::new();
        let mut effects = Vec::new();
        for operation in &operations {
            let (reply, more) = self.apply_to_book(operation);
            expected.push(reply);
            effects.extend(more);
        }
        let verdicts = self.verdicts(&sql).await;
        for (operation, reply) in operations.iter().zip(expected) {
            let at = match operation {
                Operation::Acquire { at, .. } | Operation::Release { at, .. } | Operation::Renew { at, .. } => *at,
            };
            let verdict =
                verdicts.get(&self.known[at].handle).unwrap_or_else(|| panic!("no verdict\n{}", self.log)).clone();
            self.compare(operation, at, reply, &verdict);
        }
        self.compare_effects(effects).await;
    }

    fn apply_to_book(&mut self, operation: &Operation) -> (Reply, Vec<(WaiterId, Reply)>) {
        match operation {
            Operation::Acquire { at, asked, waiter, .. } => {
                let (known, asked) = (self.known[*at].clone(), asked.clone());
                self.note(format_args!("acquire {} {asked:?}", text(known.handle)));
                let wants = asked.core_wants();
                self.apply(Command::Acquire(Acquire {
                    waiter_id: *waiter,
                    wants: &wants,
                    ttl_ms: asked.ttl_ms,
                    wait_ms: asked.wait_ms,
                    max_hold_ms: asked.max_hold_ms,
                    delay_ms: asked.delay_ms,
                    holder: &asked.holder,
                    request: asked.request.as_ref().map(|id| RequestId { scope: "p", id }),
                    secret: Secret::new(known.secret.to_be_bytes()),
                    principal: "p",
                    value: None,
                }))
            }
            Operation::Release { at, wrong } => {
                let mut lease = self.known[*at].key.unwrap();
                if *wrong {
                    lease.secret = Secret::new([9; 16]);
                }
                self.note(format_args!("release {} wrong={wrong}", text(self.known[*at].handle)));
                self.apply(Command::Release { lease })
            }
            Operation::Renew { at, ttl_ms } => {
                let lease = self.known[*at].key.unwrap();
                self.note(format_args!("renew {} {ttl_ms:?}", text(self.known[*at].handle)));
                self.apply(Command::Renew { lease, ttl_ms: *ttl_ms })
            }
        }
    }

    fn batch_sql(&mut self, operations: &[Operation]) -> String {
        let null = || "NULL".to_owned();
        let mut columns: [Vec<String>; 10] = Default::default();
        let mut wants: [Vec<String>; 4] = Default::default();
        let (mut known_handles, mut alone) = (Vec::new(), Vec::new());
        let mut process = 1;
        for (number, operation) in operations.iter().enumerate() {
            let row: [String; 10] = match operation {
                Operation::Acquire { at, asked, process: through, .. } => {
                    process = *through;
                    let known = &self.known[*at];
                    let fast = matches!(&asked.wants[..], [(_, Mode::Exclusive)]);
                    if !fast {
                        for (name, mode) in &asked.wants {
                            let (count, capacity) = match mode {
                                Mode::Exclusive => (0, 0),
                                Mode::Shared => (-1, 0),
                                Mode::Permits { count, capacity } => (i64::from(*count), i64::from(*capacity)),
                            };
                            let row = [
                                (number + 1).to_string(),
                                format!("'{name}'"),
                                count.to_string(),
                                capacity.to_string(),
                            ];
                            wants.iter_mut().zip(row).for_each(|(column, value)| column.push(value));
                        }
                    }
                    if asked.request.is_some() {
                        alone.push(format!("'{}'", text(known.handle)));
                    }
                    let option = |value: Option<String>| value.unwrap_or_else(null);
                    [
                        if fast { "'f'" } else { "'a'" }.into(),
                        format!("'{}'", text(known.handle)),
                        format!("'{}'", text(known.secret)),
                        if fast { format!("'{}'", asked.wants[0].0) } else { null() },
                        asked.ttl_ms.to_string(),
                        asked.wait_ms.to_string(),
                        option(asked.max_hold_ms.map(|ms| ms.to_string())),
                        asked.delay_ms.to_string(),
                        option(asked.fingerprint().map(|print| print.to_string())),
                        format!("'{}'", asked.holder),
                    ]
                }
                Operation::Release { at, .. } | Operation::Renew { at, .. } => {
                    let known = &self.known[*at];
                    let single = known.asked.wants.len() == 1 && known.asked.request.is_none() && self.dice.one_in(2);
                    if !single {
                        known_handles.push(format!("'{}'", text(known.handle)));
                    }
                    let wrong = matches!(operation, Operation::Release { wrong: true, .. });
                    let secret = if wrong {
                        "'09090909-0909-0909-0909-090909090909'".into()
                    } else {
                        format!("'{}'", text(known.secret))
                    };
                    let (kind, span) = match operation {
                        Operation::Renew { ttl_ms, .. } => ("'n'", ttl_ms.map_or_else(null, |ttl| ttl.to_string())),
                        _ => ("'r'", null()),
                    };
                    let first = if single { format!("'{}'", known.asked.wants[0].0) } else { null() };
                    [
                        kind.into(),
                        format!("'{}'", text(known.handle)),
                        secret,
                        first,
                        span,
                        null(),
                        null(),
                        null(),
                        null(),
                        null(),
                    ]
                }
            };
            columns.iter_mut().zip(row).for_each(|(column, value)| column.push(value));
        }
        let types = ["\"char\"", "uuid", "uuid", "text", "bigint", "bigint", "bigint", "bigint", "bigint", "text"];
        let mut arguments: Vec<String> =
            columns.iter().zip(types).map(|(values, ty)| format!("ARRAY[{}]::{ty}[]", values.join(","))).collect();
        for (values, ty) in wants.iter().zip(["integer", "text", "integer", "integer"]) {
            arguments.push(format!("ARRAY[{}]::{ty}[]", values.join(",")));
        }
        arguments.push(format!("ARRAY[{}]::uuid[]", known_handles.join(",")));
        arguments.push(format!("ARRAY[{}]::uuid[]", alone.join(",")));
        format!(
            "SELECT handle::text, verdict::text, token, remaining, renewable, name, holder, queue::bigint FROM leasehold_engine.batch({}, {process}, {QUEUE_LIMIT})",
            arguments.join(", ")
        )
    }

    fn compare(&mut self, operation: &Operation, at: usize, reply: Reply, verdict: &Verdict) {
        let (word, token, remaining, renewable, name, holder, queue) = verdict.clone();
        let log = &self.log;
        let differ = || panic!("the book says {reply:?}, PostgreSQL says {verdict:?}\n{log}");
        match (&reply, word.as_str()) {
            (Reply::Granted(grant), "G" | "g") => {
                assert_eq!(
                    (grant.repeated, Some(micros(grant.remaining)), grant.renewable.map(micros)),
                    (word == "g", remaining, renewable),
                    "{verdict:?}\n{log}"
                );
                assert!(token.is_some());
                self.grants += usize::from(word == "G");
                self.known[at].key = Some(grant.lease);
                if let Operation::Acquire { asked, .. } = operation
                    && word == "G"
                {
                    self.known[at].asked = asked.clone();
                }
            }
            (Reply::Waiting, "W") => {
                let Operation::Acquire { asked, waiter, .. } = operation else { return differ() };
                let now = self.now_us;
                let known = &mut self.known[at];
                if known.waiters.is_empty() {
                    known.asked = asked.clone();
                    known.key = None;
                }
                // Which process it was in this batch: the last acquire decided for all of them.
                known.waiters.push((*waiter, 0));
                known.patience = now + u64::try_from(remaining.unwrap()).unwrap();
                known.due = renewable.and_then(|us| u64::try_from(us).ok()).map(|us| now + us);
            }
            (Reply::Refused(Refusal::Held(held)), "H") => {
                assert_eq!((Some(&held.resource), Some(held.queue_len as i64)), (name.as_ref(), queue), "{log}");
                assert_eq!(held.holder.is_some(), holder.is_some(), "{reply:?} {verdict:?}\n{log}");
                // Of several holders either side may show another one.
                if self.book.inspect(&held.resource, self.now()).is_some_and(|seen| seen.holders.len() == 1) {
                    assert_eq!((&held.holder, held.remaining.map(micros)), (&holder, remaining), "{log}");
                }
            }
            (Reply::Refused(Refusal::QueueFull(full)), "F") => assert_eq!(Some(full), name.as_ref(), "{log}"),
            (Reply::Renewed(renewed), "R") => {
                assert_eq!(
                    (Some(micros(renewed.remaining)), renewed.renewable.map(micros)),
                    (remaining, renewable),
                    "{log}"
                );
            }
            (Reply::Refused(Refusal::Mismatch), "M")
            | (Reply::Invalid(_), "I")
            | (Reply::Released(true), "1")
            | (Reply::Released(false), "0")
            | (Reply::Refused(Refusal::Stale), "S")
            | (Reply::Refused(Refusal::NotHeld), "N") => {}
            _ => differ(),
        }
    }

    async fn cancel_one(&mut self) {
        let waiting: Vec<usize> = (0..self.known.len()).filter(|at| !self.known[*at].waiters.is_empty()).collect();
        if waiting.is_empty() {
            return;
        }
        let at = *self.dice.pick(&waiting);
        let which = self.dice.below(self.known[at].waiters.len() as u64) as usize;
        let (waiter, _) = self.known[at].waiters.remove(which);
        self.note(format_args!("cancel {}", text(self.known[at].handle)));
        let (reply, effects) = self.apply(Command::Cancel { waiter_id: waiter });
        assert_eq!(reply, Reply::Cancelled(true));
        if self.known[at].waiters.is_empty() {
            let known = self.known[at].clone();
            // Both processes may have joined: each of them leaves.
            for process in [1, 2] {
                let answer = self
                    .leave(
                        known.handle,
                        known.secret,
                        known.asked.fingerprint(),
                        process,
                        true,
                        &known.asked.wants[0].0,
                    )
                    .await;
                assert!(matches!(answer.as_str(), "H" | "O"), "{answer}\n{}", self.log);
                if answer == "H" {
                    break;
                }
            }
            self.known[at].due = None;
        }
        self.compare_effects(effects).await;
    }

    async fn revoke_one(&mut self) {
        let group = *self.dice.pick(&[0_usize, 1, 2]);
        let name = *self.dice.pick(&GROUPS[group]);
        self.note(format_args!("revoke {name}"));
        let (reply, effects) = self.apply(Command::Revoke { name, reason: "a drill" });
        let row = self.sql.query_one("SELECT leasehold_engine.revoke($1, 'a drill')", &[&name]).await.unwrap();
        self.read_messages();
        assert_eq!(reply, Reply::Revoked(row.get::<_, i32>(0) as usize), "{}", self.log);
        self.compare_effects(effects).await;
    }

    async fn compare_views(&mut self) {
        let names: Vec<&str> = GROUPS.iter().flatten().copied().collect();
        let rows = self.sql.query("SELECT name, held::text, used::bigint, capacity, holders, labels, since, remaining, queue, waiters, waiting, head_count, head_capacity FROM leasehold_engine.show($1, 100)", &[&names]).await.unwrap();
        let mut shown = BTreeMap::new();
        for row in &rows {
            let list = |at: usize| row.get::<_, Option<Vec<i64>>>(at).unwrap_or_default();
            let labels = |at: usize| row.get::<_, Option<Vec<String>>>(at).unwrap_or_default();
            let mut holders: Vec<_> = labels(5).into_iter().zip(list(6)).zip(list(7)).collect();
            holders.sort();
            let waiters: Vec<_> = labels(9).into_iter().zip(list(10)).collect();
            let (held, used, capacity): (String, Option<i64>, i32) = (row.get(1), row.get(2), row.get(3));
            let mode = match held.as_str() {
                "x" => Mode::Exclusive,
                "s" => Mode::Shared,
                "p" => Mode::Permits { count: used.unwrap() as u32, capacity: capacity as u32 },
                _ => match row.get::<_, Option<i32>>(11).unwrap() {
                    0 => Mode::Exclusive,
                    -1 => Mode::Shared,
                    count => Mode::Permits { count: count as u32, capacity: row.get::<_, i32>(12) as u32 },
                },
            };
            shown.insert(row.get::<_, String>(0), (mode, holders, row.get::<_, i32>(8) as usize, waiters));
        }
        for name in names {
            let view = self.book.inspect(name, self.now()).map(|view| {
                let mut holders: Vec<_> =
                    view.holders.into_iter().map(|h| ((h.holder, micros(h.since)), micros(h.remaining))).collect();
                holders.sort();
                let waiters: Vec<_> = view.waiters.into_iter().map(|w| (w.holder, micros(w.waiting))).collect();
                (view.mode, holders, view.queue_len, waiters)
            });
            assert_eq!(shown.remove(name), view, "{name}\n{}", self.log);
        }
    }

    async fn run(&mut self) {
        for _ in 0..OPERATIONS_PER_TRIAL {
            let pause = *self.dice.pick(&[0, 0, 0, 1, 1, 2, 3, 7]);
            self.advance_to(self.now_us + pause * self.unit_ms * 1000).await;
            match self.dice.below(20) {
                0 | 1 => self.cancel_one().await,
                2 => self.revoke_one().await,
                3 | 4 => self.compare_views().await,
                _ => self.run_batch().await,
            }
        }
        self.compare_views().await;
        // Everything ends by itself.
        self.advance_to(self.now_us + 100 * self.unit_ms * 1000).await;
        self.compare_views().await;
        let row = self.sql.query_one("SELECT count(*) FROM leasehold_engine.queue", &[]).await.unwrap();
        assert_eq!(row.get::<_, i64>(0), 0);
    }
}

fn micros(span: Duration) -> i64 {
    assert_eq!(span.subsec_nanos() % 1000, 0);
    i64::try_from(span.as_micros()).unwrap()
}

async fn fresh_database(cluster: &Cluster) -> String {
    let database = cluster.database().await;
    let schema = SchemaName::new("leasehold_engine").unwrap();
    cluster.execute(&database, &migration_sql(&schema)).await;
    let now = "CREATE OR REPLACE FUNCTION leasehold_engine.now_us() RETURNS bigint LANGUAGE sql VOLATILE AS \
               $$ SELECT current_setting('leasehold.now')::bigint $$";
    cluster.execute(&database, now).await;
    database
}

async fn trial(cluster: &Cluster, database: &str, seed: u64, watched: bool) -> usize {
    let (sql, mut connection) = tokio_postgres::connect(&cluster.url(database), NoTls).await.unwrap();
    let (to, messages) = unbounded_channel();
    tokio::spawn(async move {
        while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
            if let AsyncMessage::Notification(note) = message
                && note.channel() == "leasehold_fuzz"
            {
                let _ = to.send(note.payload().to_owned());
            }
        }
    });
    let reset = format!(
        "LISTEN leasehold_fuzz; SELECT set_config('leasehold.now', '1000000000', false);
         TRUNCATE leasehold_engine.lease, leasehold_engine.resource, leasehold_engine.shared_holder, leasehold_engine.queue, leasehold_engine.process, leasehold_engine.event;
         UPDATE leasehold_engine.watch_state SET until = 0;
         INSERT INTO leasehold_engine.process VALUES (1, 'leasehold_fuzz', 4611686018427387904), (2, 'leasehold_fuzz', 4611686018427387904), (0, 'x', 0);
         {}",
        if watched { "UPDATE leasehold_engine.watch_state SET until = 4611686018427387904" } else { "" }
    );
    sql.batch_execute(&reset).await.unwrap();
    let limits = Limits { waiters_per_resource: QUEUE_LIMIT, ..Limits::default() };
    let mut book = Book::new(limits, seed);
    book.set_ceiling(u64::MAX);
    let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    for _ in 0..8 {
        dice.below(2);
    }
    let unit_ms = *dice.pick(&[1, 10]);
    let mut trial = Trial {
        sql,
        messages,
        book,
        dice,
        now_us: 1_000_000_000,
        unit_ms,
        known: vec![],
        waiter_ids: 0,
        handles: 0,
        log: String::new(),
        grants: 0,
    };
    trial.log = format!("seed {seed} watched {watched}\n");
    trial.run().await;
    trial.grants
}

fn from_environment(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().expect("a number"))
}

async fn fuzz(watched: bool) {
    let cluster = Cluster::start(&["fsync=off"]);
    let database = fresh_database(&cluster).await;
    let first = from_environment("LEASEHOLD_FUZZ_SEED", 1);
    let operations = from_environment("LEASEHOLD_FUZZ_OPERATIONS", 5_000);
    let trials = operations.div_ceil(OPERATIONS_PER_TRIAL as u64);
    let mut grants = 0;
    for seed in first..first + trials {
        grants += trial(&cluster, &database, seed, watched).await;
    }
    println!("{} operations, {grants} grants, watched {watched}: no difference", trials * OPERATIONS_PER_TRIAL as u64);
}

/// Goal: the functions in PostgreSQL decide as the book does.
/// Method: random operations against both, compared answer by answer.
#[tokio::test]
async fn the_functions_decide_as_the_book_does() {
    fuzz(false).await;
}

/// Goal: the same while somebody watches: then every operation goes one by one.
/// Method: the same operations, with a watch that never ends.
#[tokio::test]
async fn the_functions_decide_as_the_book_does_while_watched() {
    fuzz(true).await;
}
