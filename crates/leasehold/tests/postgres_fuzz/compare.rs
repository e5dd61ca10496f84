//! What the two sides must agree on: answers, and what is shown of every name.

use std::collections::BTreeMap;

use leasehold_core::{Mode, Refusal, Reply};

use super::GROUPS;
use super::operations::Operation;
use super::trial::{Trial, Verdict, micros};

impl Trial {
    pub(super) fn compare(&mut self, operation: &Operation, at: usize, reply: Reply, verdict: &Verdict) {
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

    pub(super) async fn compare_views(&mut self) {
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
}
