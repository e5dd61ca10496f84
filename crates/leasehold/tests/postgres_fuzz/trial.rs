//! One trial: the book and the tables under one clock, and how a moment of it is compared.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use leasehold_core::{Book, Command, Refusal, Reply, Time, WaiterId};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio_postgres::Client;

use super::GROUPS;
use super::operations::{Dice, Known};

pub(super) const OPERATIONS_PER_TRIAL: usize = 120;

pub(super) struct Trial {
    pub(super) sql: Client,
    pub(super) messages: UnboundedReceiver<String>,
    pub(super) book: Book,
    pub(super) dice: Dice,
    pub(super) now_us: u64,
    pub(super) unit_ms: u64,
    pub(super) known: Vec<Known>,
    pub(super) waiter_ids: u64,
    pub(super) handles: u128,
    pub(super) log: String,
    pub(super) grants: usize,
}

pub(super) fn text(bits: u128) -> String {
    let hex = format!("{bits:032x}");
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

/// A row of an answer, as text: what the two sides must agree on.
pub(super) type Verdict = (String, Option<i64>, Option<i64>, Option<i64>, Option<String>, Option<String>, Option<i64>);

impl Trial {
    pub(super) fn now(&self) -> Time {
        Time::from_nanos(self.now_us * 1000)
    }

    pub(super) fn note(&mut self, line: std::fmt::Arguments<'_>) {
        let _ = writeln!(self.log, "{:>9} {line}", self.now_us - 1_000_000_000);
    }

    pub(super) fn apply(&mut self, command: Command<'_>) -> (Reply, Vec<(WaiterId, Reply)>) {
        let outcome = self.book.apply(command, self.now());
        drop(self.book.take_tape(Vec::new()));
        (outcome.reply, outcome.effects.into_iter().map(|effect| (effect.waiter_id, effect.reply)).collect())
    }

    pub(super) async fn set_clock(&mut self) {
        let now = self.now_us.to_string();
        self.sql.execute("SELECT set_config('leasehold.now', $1, false)", &[&now]).await.unwrap();
    }

    pub(super) fn read_messages(&mut self) {
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
    pub(super) async fn verdicts(&mut self, sql: &str) -> BTreeMap<u128, Verdict> {
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
    pub(super) async fn compare_effects(&mut self, effects: Vec<(WaiterId, Reply)>) {
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
    pub(super) async fn advance_to(&mut self, target_us: u64) {
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

    pub(super) async fn settle(&mut self) {
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

    pub(super) async fn leave(
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

    pub(super) async fn cancel_one(&mut self) {
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

    pub(super) async fn revoke_one(&mut self) {
        let group = *self.dice.pick(&[0_usize, 1, 2]);
        let name = *self.dice.pick(&GROUPS[group]);
        self.note(format_args!("revoke {name}"));
        let (reply, effects) = self.apply(Command::Revoke { name, reason: "a drill" });
        let row = self.sql.query_one("SELECT leasehold_engine.revoke($1, 'a drill')", &[&name]).await.unwrap();
        self.read_messages();
        assert_eq!(reply, Reply::Revoked(row.get::<_, i32>(0) as usize), "{}", self.log);
        self.compare_effects(effects).await;
    }

    pub(super) async fn run(&mut self) {
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

pub(super) fn micros(span: Duration) -> i64 {
    assert_eq!(span.subsec_nanos() % 1000, 0);
    i64::try_from(span.as_micros()).unwrap()
}
