//! Processes that are killed between any two statements, or stopped for longer than their ttl. A judge reads what triggers
//! recorded in the same transactions. `LEASEHOLD_ONCE_KEYS` is how many keys.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use leasehold::recipe::once::{Begun, OnceEnd, OnceRequest};
use leasehold_harness::Signal;

use crate::audit::{self, Verdict, answer_text, judge};
use crate::worker::{WorkerOrder, WorkerProcess, read_notes};
use crate::{Dice, Place, millis, secs};

const WORKERS: u64 = 5;

fn order_for(place: &Place, notes: PathBuf) -> WorkerOrder {
    let (url, form) = (place.url(), "both".to_owned());
    WorkerOrder { url, notes, seed: 1, form, keys: 1, requests: 1, cut: 0, planted: false }
}

fn told_in(notes: &std::path::Path) -> Vec<(String, String)> {
    let lines = read_notes(notes).into_iter().filter(|words| words[0] == "told");
    lines.map(|words| (words[1].clone(), words[2].clone())).collect()
}

/// Goal: wherever a process dies, the next one answers the key, once.
/// Method: both forms on both databases; the first process kills itself before its n-th step, for every n there is.
#[tokio::test]
async fn a_death_between_any_two_statements_leaves_one_answer() {
    for place in Place::both().await {
        place.store().await;
        audit::install(&place).await;
        let dir = tempfile::tempdir().unwrap();
        let mut deaths = 0;
        for (form, steps) in [("two phases", 3), ("transaction", 6)] {
            for cut in 1..=steps {
                place.execute("DELETE FROM leasehold.once; DELETE FROM audit; DELETE FROM effects").await;
                let notes = dir.path().join(format!("{form} {cut}"));
                let order = WorkerOrder { form: form.into(), cut, ..order_for(&place, notes.clone()) };
                let status = order.start().0.wait().unwrap();
                assert!(!status.success(), "{form} {cut}: it was to die");
                deaths += 1;
                // As often as it takes: the first tries are told that it is in flight, until the ttl is over.
                let next = WorkerOrder { cut: 0, requests: 60, ..order };
                assert!(next.start().0.wait().unwrap().success());
                let told = told_in(&notes);
                let verdict = judge(&place, &told).await;
                assert!(verdict.violations.is_empty() && verdict.keys == 1, "{form} {cut}: {verdict:?}");
                assert!(!told.is_empty(), "{form} {cut}");
            }
        }
        assert_eq!(deaths, 9);
    }
}

/// What came of a storm.
struct StormEnd {
    verdict: Verdict,
    told: usize,
    stale: usize,
    kills: u64,
    stops: u64,
}

/// Workers on the same keys, killed and stopped at random until every key has its answer.
async fn storm(place: &Place, keys: u64, planted: bool) -> StormEnd {
    place.store().await;
    audit::install(place).await;
    let dir = tempfile::tempdir().unwrap();
    let notes = dir.path().join("notes");
    let order = |seed: u64| {
        let seed = (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let form = if planted { "two phases" } else { "both" }.to_owned();
        WorkerOrder { seed, keys, form, requests: 1_000_000, planted, ..order_for(place, notes.clone()) }
    };
    let mut workers: Vec<WorkerProcess> = (0..WORKERS).map(|seed| order(seed).start()).collect();
    let (mut dice, mut kills, mut stops) = (Dice(0xbeef), 0, 0);
    let begun = Instant::now();
    loop {
        tokio::time::sleep(millis(20 + dice.below(80))).await;
        let at = dice.below(WORKERS) as usize;
        if dice.below(2) == 0 {
            kills += 1;
            workers[at] = order(WORKERS + kills).start();
        } else {
            // Longer than the ttl: it wakes up after it was taken over.
            stops += 1;
            workers[at].signal(Signal::STOP);
            tokio::time::sleep(millis(300)).await;
            workers[at].signal(Signal::CONT);
        }
        let answered = place.rows("SELECT key FROM leasehold.once WHERE status IS NOT NULL").await.len() as u64;
        if answered >= keys && kills >= 5 && stops >= 5 {
            break;
        }
        assert!(begun.elapsed() < secs(60 + keys * 4), "{answered} of {keys} keys after {:?}", begun.elapsed());
    }
    drop(workers);
    // What a killed process had open is rolled back before the rows are read.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let (told, lines) = (told_in(&notes), read_notes(&notes));
    let stale = lines.iter().filter(|words| words[0] == "stale").count();
    StormEnd { verdict: judge(place, &told).await, told: told.len(), stale, kills, stops }
}

fn storm_keys() -> u64 {
    std::env::var("LEASEHOLD_ONCE_KEYS").ok().and_then(|text| text.parse().ok()).unwrap_or(40)
}

/// Goal: kills and stops at random change no law.
#[tokio::test]
async fn kills_and_stops_leave_one_answer_for_each_key() {
    let keys = storm_keys();
    for place in Place::both().await {
        let end = storm(&place, keys, false).await;
        let StormEnd { verdict, told, stale, kills, stops } = end;
        println!(
            "{} keys, {} tries, {told} answers told, {stale} late finishes refused, {kills} kills, {stops} stops",
            verdict.keys, verdict.grants
        );
        assert!(verdict.violations.is_empty(), "{:#?}", verdict.violations);
        assert_eq!(verdict.keys as u64, keys);
        assert!(verdict.grants > verdict.keys, "some were taken over");
    }
}

/// Goal: the judge sees what it is for. A finish without the token, in the same storm, is flagged.
#[tokio::test]
async fn a_planted_finish_without_the_token_is_flagged() {
    for place in Place::both().await {
        // A storm has some late finishes as a rule. Keys are used up, so another storm needs another database.
        let mut flagged = storm(&place, 40, true).await.verdict.violations.len();
        for _ in 0..4 {
            if flagged == 0 {
                let another =
                    if matches!(place, Place::Sqlite { .. }) { Place::sqlite() } else { Place::postgres().await };
                flagged = storm(&another, 40, true).await.verdict.violations.len();
            }
        }
        assert!(flagged > 0, "five storms without a late finish");
        // And a late try that is certain.
        let store = place.store().await;
        let request = OnceRequest::new("s", "certain", "b").ttl(millis(1));
        let Begun::First(slow) = store.once_begin(&request).await.unwrap() else { panic!("it is new") };
        tokio::time::sleep(millis(20)).await;
        let Begun::First(next) = store.once_begin(&request).await.unwrap() else { panic!("it lapsed") };
        let late = answer_text("phases", slow.token());
        place
            .execute(&match &place {
                Place::Postgres { .. } => {
                    format!("UPDATE leasehold.once SET status = 0, answer = '{late}'::bytea WHERE key = 'certain'")
                }
                Place::Sqlite { .. } => {
                    format!(
                        "UPDATE leasehold.once SET status = 0, answer = CAST('{late}' AS BLOB) WHERE key = 'certain'"
                    )
                }
            })
            .await;
        assert!(!store.once_end(&next, OnceEnd::Finish { status: 0, body: b"phases 0" }).await.unwrap());
        let violations = judge(&place, &[]).await.violations;
        println!("{flagged} flagged in a storm, {} in all", violations.len());
        assert!(violations.iter().any(|violation| violation.starts_with("certain: answered by try")), "{violations:?}");
    }
}
