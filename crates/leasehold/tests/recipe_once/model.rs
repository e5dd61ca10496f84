//! Random sequences of calls beside a model that is a dozen lines, on both databases.

use std::collections::HashMap;

use leasehold::recipe::Store;
use leasehold::recipe::once::{Answer, Begun, First, OnceEnd, OnceRequest};

use crate::{Dice, Place, secs};

const MINUTE: u64 = 60;

/// One key, as the model has it. Times are seconds of the model.
struct ModelRow {
    token: i64,
    until: u64,
    expires: u64,
    body: &'static str,
    answer: Option<String>,
}

#[derive(Default)]
struct Model {
    now: u64,
    rows: HashMap<String, ModelRow>,
}

#[derive(Debug, PartialEq, Eq)]
enum Expected {
    First,
    Replay(String),
    InFlight(u64),
    Mismatch,
}

impl Model {
    fn begin(&self, key: &str, body: &str) -> Expected {
        let Some(row) = self.rows.get(key) else { return Expected::First };
        let lapsed = row.answer.is_none() && row.until <= self.now;
        let expired = row.expires <= self.now && (row.answer.is_some() || lapsed);
        if expired || (lapsed && row.body == body) {
            return Expected::First;
        }
        match &row.answer {
            _ if row.body != body => Expected::Mismatch,
            Some(answer) => Expected::Replay(answer.clone()),
            None => Expected::InFlight(row.until - self.now),
        }
    }

    /// The row of a try that may still write: it has the newest token and no answer.
    fn newest(&mut self, key: &str, token: i64) -> Option<&mut ModelRow> {
        self.rows.get_mut(key).filter(|row| row.token == token && row.answer.is_none())
    }
}

/// One run of calls. Says how many tries were taken over and how many late ends were refused: both must happen.
async fn run_calls(place: &Place, store: &Store, dice: &mut Dice, calls: u64) -> (u64, u64) {
    let scope = format!("scope-{}", dice.below(u64::MAX));
    let mut model = Model::default();
    let mut tries: Vec<(String, First)> = Vec::new();
    let (mut highest, mut taken_over, mut refused) = (0, 0, 0);
    for call in 0..calls {
        let key = format!("k{}", dice.below(3));
        let some_try = (!tries.is_empty()).then(|| tries[dice.below(tries.len() as u64) as usize].clone());
        match (dice.below(8), some_try) {
            (0..=2, _) | (_, None) => {
                let body = ["a", "a", "a", "b"][dice.below(4) as usize];
                let (ttl, keep) =
                    ([10, 20][dice.below(2) as usize] * MINUTE, [15, 40][dice.below(2) as usize] * MINUTE);
                let request = OnceRequest::new(&scope, &key, body).ttl(secs(ttl)).keep(secs(keep));
                let expected = model.begin(&key, body);
                match store.once_begin(&request).await.unwrap() {
                    Begun::First(first) => {
                        assert_eq!(expected, Expected::First, "call {call}");
                        assert!(first.token() > highest, "tokens rise: {first:?} after {highest}");
                        highest = first.token();
                        let (until, expires) = (model.now + ttl, model.now + keep.max(ttl));
                        let row = ModelRow { token: first.token(), until, expires, body, answer: None };
                        taken_over += u64::from(model.rows.insert(key.clone(), row).is_some());
                        tries.push((key, first));
                    }
                    Begun::Replay(Answer { status: 7, body, replayed: true }) => {
                        assert_eq!(expected, Expected::Replay(String::from_utf8(body).unwrap()), "call {call}");
                    }
                    Begun::InFlight { remaining } => {
                        let Expected::InFlight(left) = expected else { panic!("call {call}: {expected:?}") };
                        assert!(
                            remaining <= secs(left) && remaining + secs(MINUTE) > secs(left),
                            "{remaining:?} {left}"
                        );
                    }
                    Begun::Mismatch => assert_eq!(expected, Expected::Mismatch, "call {call}"),
                    other => panic!("call {call}: {other:?}"),
                }
            }
            (3 | 4, Some((key, first))) => {
                let text = format!("answer {call}");
                let end = OnceEnd::Finish { status: 7, body: text.as_bytes() };
                let row = model.newest(&key, first.token());
                assert_eq!(store.once_end(&first, end).await.unwrap(), row.is_some(), "call {call}");
                refused += u64::from(row.is_none());
                if let Some(row) = row {
                    row.answer = Some(text);
                }
            }
            (5, Some((key, first))) => {
                let now = model.now;
                let row = model.newest(&key, first.token()).filter(|row| row.until > now);
                let end = OnceEnd::Renew { ttl: secs(10 * MINUTE) };
                assert_eq!(store.once_end(&first, end).await.unwrap(), row.is_some(), "call {call}");
                if let Some(row) = row {
                    row.until = now + 10 * MINUTE;
                }
            }
            (6, Some((key, first))) => {
                let now = model.now;
                let row = model.newest(&key, first.token()).filter(|row| row.until > now);
                assert_eq!(store.once_end(&first, OnceEnd::Abandon).await.unwrap(), row.is_some(), "call {call}");
                if let Some(row) = row {
                    row.until = 0;
                }
            }
            _ => {
                let span = [3, 7, 11][dice.below(3) as usize] * MINUTE;
                model.now += span;
                place.pass(secs(span)).await;
            }
        }
    }
    (taken_over, refused)
}

/// Goal: every answer is that of the model, whatever the order of calls.
/// `LEASEHOLD_ONCE_MODEL` is how many runs of 60 calls.
#[tokio::test]
async fn calls_answer_as_the_model_does() {
    let runs = std::env::var("LEASEHOLD_ONCE_MODEL").ok().and_then(|text| text.parse().ok()).unwrap_or(12_u64);
    for place in Place::both().await {
        let store = place.store().await;
        let (mut taken_over, mut refused) = (0, 0);
        for seed in 1..=runs {
            let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            // Time is moved for all keys at once: only this run's are looked at.
            let counts = run_calls(&place, &store, &mut dice, 60).await;
            (taken_over, refused) = (taken_over + counts.0, refused + counts.1);
        }
        println!("{runs} runs: {taken_over} taken over, {refused} late ends refused");
        assert!(taken_over > runs && refused > runs, "the runs exercise what they are for");
    }
}
