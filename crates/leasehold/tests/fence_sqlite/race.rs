//! Random stale and current writers on one file, each with a connection of its own. `LEASEHOLD_FENCE_RACE` is how many
//! answers.

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use leasehold::fence::sqlite::{SqliteFence, install};
use leasehold::fence::{FenceError, FenceRefusal};
use rusqlite::Connection;

use crate::options;

const RESOURCES: usize = 4;
const WRITERS: u64 = 5;

struct Race {
    granted: [AtomicI64; RESOURCES],
    answers: AtomicU64,
    committed: AtomicU64,
    refused: AtomicU64,
    wrong: Mutex<Vec<String>>,
    wanted: u64,
}

fn roll(state: &mut u64, sides: u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state % sides
}

impl Race {
    fn write_for_ever(&self, path: &Path, seed: u64) {
        let mut dice = 0x9E37_79B9_7F4A_7C15 ^ seed.wrapping_mul(0xD134_2543_DE82_EF95);
        let mut connection = open(path);
        let mut fence = SqliteFence::attach(&connection).unwrap();
        while self.answers.fetch_add(1, Ordering::Relaxed) < self.wanted {
            if roll(&mut dice, 50) == 0 {
                connection = open(path);
                fence = SqliteFence::attach(&connection).unwrap();
            }
            let resource = roll(&mut dice, RESOURCES as u64) as usize;
            let granted = &self.granted[resource];
            let token = match roll(&mut dice, 10) {
                0..=2 => granted.fetch_add(1, Ordering::SeqCst) + 1,
                3..=6 => granted.load(Ordering::SeqCst),
                _ => (granted.load(Ordering::SeqCst) - 1 - roll(&mut dice, 3) as i64).max(1),
            };
            let write = match roll(&mut dice, 4) {
                0 => format!(
                    "DELETE FROM seats WHERE seat_id = {resource}; INSERT INTO seats VALUES ({resource}, 'again')"
                ),
                1 => format!("INSERT OR REPLACE INTO seats VALUES ({resource}, 'x')"),
                _ => format!("UPDATE seats SET owner = '{token}' WHERE seat_id = {resource}"),
            };
            let sql = format!("{write}; INSERT INTO history (resource, token) VALUES ({resource}, {token})");
            let shown = format!("{token}:{token:016x}\tseat/{resource}").parse().unwrap();
            match fence.write_showing(shown, &mut connection, |tx| Ok(tx.execute_batch(&sql)?)) {
                Ok(()) => {
                    self.committed.fetch_add(1, Ordering::Relaxed);
                }
                Err(FenceError::Refused(refusal)) => self.judge_refusal(resource, token, &refusal),
                Err(error) => self.wrong.lock().unwrap().push(format!("{error:?}")),
            }
        }
    }

    fn judge_refusal(&self, resource: usize, token: i64, refusal: &FenceRefusal) {
        self.refused.fetch_add(1, Ordering::Relaxed);
        let newest = self.granted[resource].load(Ordering::SeqCst);
        let right = matches!(refusal, FenceRefusal::Stale { presented, highest, .. }
            if presented.get() as i64 == token && highest.get() as i64 > token && highest.get() as i64 <= newest);
        if !right {
            self.wrong.lock().unwrap().push(format!("resource {resource}, token {token}: {refusal:?}"));
        }
    }
}

fn open(path: &Path) -> Connection {
    let connection = Connection::open(path).unwrap();
    connection.busy_timeout(Duration::from_secs(30)).unwrap();
    connection.pragma_update(None, "synchronous", "OFF").unwrap();
    connection
}

/// Races on a fresh file. Says how many stale writes were admitted.
fn run_race(journal: &str, wanted: u64, plant: &str) -> (i64, Race) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("race.sqlite");
    let mut connection = open(&path);
    connection.pragma_update(None, "journal_mode", journal).unwrap();
    connection
        .execute_batch(
            "CREATE TABLE seats (seat_id INTEGER PRIMARY KEY, owner TEXT); INSERT INTO seats VALUES (0, ''), (1, ''), (2, ''), (3, '');
             CREATE TABLE history (n INTEGER PRIMARY KEY, resource INTEGER, token INTEGER)",
        )
        .unwrap();
    install(&mut connection, &options("seats", &["seat_id"], "seat/{}")).unwrap();
    connection.execute_batch(plant).unwrap();
    let race = Race {
        granted: [const { AtomicI64::new(1) }; RESOURCES],
        answers: AtomicU64::new(0),
        committed: AtomicU64::new(0),
        refused: AtomicU64::new(0),
        wrong: Mutex::default(),
        wanted,
    };
    thread::scope(|scope| {
        for seed in 1..=WRITERS {
            let (race, path) = (&race, &path);
            scope.spawn(move || race.write_for_ever(path, seed));
        }
    });
    let sql = "SELECT count(*) FROM (SELECT token, max(token) OVER (PARTITION BY resource ORDER BY n
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before FROM history) WHERE token < before";
    let stale = connection.query_row(sql, [], |row| row.get(0)).unwrap();
    let (committed, refused) = (race.committed.load(Ordering::Relaxed), race.refused.load(Ordering::Relaxed));
    println!(
        "{journal}: {wanted} answers, {committed} committed, {refused} refused: {stale} stale, {} wrong",
        race.wrong.lock().unwrap().len()
    );
    (stale, race)
}

fn wanted_answers() -> u64 {
    std::env::var("LEASEHOLD_FENCE_RACE").ok().and_then(|text| text.parse().ok()).unwrap_or(1500)
}

/// Goal: over random writers no stale write is admitted and no current one refused, in both kinds of journal.
#[test]
fn no_stale_write_is_admitted_in_a_race() {
    for journal in ["WAL", "DELETE"] {
        let (stale, race) = run_race(journal, wanted_answers(), "");
        assert_eq!(stale, 0, "{journal}");
        assert_eq!(*race.wrong.lock().unwrap(), [""; 0], "{journal}");
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        assert!(load(&race.committed) > 100 && load(&race.refused) > 100, "{journal}: a race that tries nothing");
    }
}

/// Goal: the race sees a fence without its UPDATE trigger.
#[test]
fn the_race_sees_a_missing_trigger() {
    let (stale, _) = run_race("WAL", 1000, "DROP TRIGGER zz_leasehold_update_seats");
    assert!(stale > 0, "the race would not see a fence without its UPDATE trigger");
}
