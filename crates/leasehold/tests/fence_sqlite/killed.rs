//! A race of processes on one file, one of which is killed every few moments and started again. `LEASEHOLD_FENCE_RACE` is how
//! many answers.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use leasehold::fence::sqlite::{SqliteFence, install};
use rusqlite::Connection;
use rustix::fs::{FlockOperation, flock};

use crate::Dice;
use crate::options;
use crate::race_judge::{RaceNote, RaceVerdict, RaceWrite, RaceWriter, judge, race_size};

/// The worker below, as the test binary knows it.
const WORKER: &str = "killed::a_writer_of_the_race";
const RESOURCES: u64 = 4;

/// Where the processes of a race meet.
struct RacePlace(PathBuf);

impl RacePlace {
    fn file(&self) -> PathBuf {
        self.0.join("race.sqlite")
    }

    /// One line at the end of the list that all processes write.
    fn note(&self, note: &RaceNote) {
        let list = fs::OpenOptions::new().append(true).create(true).open(self.0.join("notes"));
        list.and_then(|mut list| list.write_all(format!("{note}\n").as_bytes())).unwrap();
    }

    /// Grants the next lease on a resource.
    fn next_token(&self, resource: u64) -> u64 {
        let path = self.0.join(format!("token-{resource}"));
        let file = fs::OpenOptions::new().write(true).create(true).truncate(false).open(path).unwrap();
        flock(&file, FlockOperation::LockExclusive).unwrap();
        // The length is the counter: a process that is killed leaves the old one or the new one.
        let token = file.metadata().unwrap().len() + 1;
        file.set_len(token).unwrap();
        token
    }
}

fn open(path: &Path) -> Connection {
    let connection = Connection::open(path).unwrap();
    connection.busy_timeout(Duration::from_secs(30)).unwrap();
    connection
}

/// The write, and in the same transaction the line of history that judges it.
fn statements(write: &RaceWrite, dice: &mut Dice) -> String {
    let RaceWrite { resource, token, id } = write;
    let change = match dice.below(4) {
        0 => {
            format!("DELETE FROM seats WHERE seat_id = {resource}; INSERT INTO seats VALUES ({resource}, 'again')")
        }
        1 => format!("INSERT OR REPLACE INTO seats VALUES ({resource}, 'x')"),
        _ => format!("UPDATE seats SET owner = '{token}' WHERE seat_id = {resource}"),
    };
    format!("{change}; INSERT INTO history (resource, id) VALUES ({resource}, '{id}')")
}

/// A process of the race, until it is killed: started by the race, and by nobody else.
#[test]
#[ignore = "started by the race"]
fn a_writer_of_the_race() {
    let Ok(order) = std::env::var("LEASEHOLD_FENCE_WORKER") else { return };
    let words: Vec<&str> = order.split('|').collect();
    let (place, name, seed) = (RacePlace(words[0].into()), words[1], words[2].parse::<u64>().unwrap());
    let mut connection = open(&place.file());
    let fence = SqliteFence::attach(&connection).unwrap();
    let mut writer = RaceWriter::new(name, seed);
    for _ in 0..1_000_000 {
        let resource = writer.dice.below(RESOURCES);
        let write = writer.choose(resource, || place.next_token(resource));
        let sql = statements(&write, &mut writer.dice);
        let pause = Duration::from_micros(writer.dice.below(20) / 19 * 2_000);
        place.note(&RaceNote::Shown(write.clone()));
        let answer = fence.write_showing(write.setting(), &mut connection, |tx| {
            tx.execute_batch(&sql)?;
            // A kill may come between the write and its COMMIT.
            thread::sleep(pause);
            Ok(())
        });
        place.note(&RaceNote::from_answer(&write.id, &answer));
    }
}

struct Worker(Child);

impl Drop for Worker {
    fn drop(&mut self) {
        // SIGKILL: no handler runs, and no transaction is rolled back by its process.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start_worker(place: &RacePlace, number: u64) -> Worker {
    let order = format!("{}|p{number}|{}", place.0.display(), number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let child = Command::new(std::env::current_exe().unwrap())
        .args([WORKER, "--exact", "--ignored", "--nocapture"])
        .env("LEASEHOLD_FENCE_WORKER", order)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    Worker(child.unwrap())
}

/// Five processes, killed one after the other. What came of it, how many kills there were, and whether the file is whole.
fn run_race(journal: &str, size: u64, plant: &str) -> (RaceVerdict, u64, String) {
    let dir = tempfile::tempdir().unwrap();
    let place = RacePlace(dir.path().to_owned());
    let mut connection = open(&place.file());
    connection.pragma_update(None, "journal_mode", journal).unwrap();
    let tables = "CREATE TABLE seats (seat_id INTEGER PRIMARY KEY, owner TEXT);
        INSERT INTO seats VALUES (0, ''), (1, ''), (2, ''), (3, '');
        CREATE TABLE history (n INTEGER PRIMARY KEY, resource INTEGER, id TEXT)";
    connection.execute_batch(tables).unwrap();
    install(&mut connection, &options("seats", &["seat_id"], "seat/{}")).unwrap();
    connection.execute_batch(plant).unwrap();
    let read_notes = || fs::read_to_string(place.0.join("notes")).unwrap_or_default();
    let mut workers: Vec<Worker> = (0..5).map(|number| start_worker(&place, number)).collect();
    let (mut kills, mut done, mut stuck) = (0, 0, 0);
    let mut dice = Dice(0xdead);
    while done < size || kills < 10 {
        thread::sleep(Duration::from_millis(30 + dice.below(80)));
        let now = read_notes().lines().filter(|line| !line.starts_with("shown")).count() as u64;
        stuck = if now == done { stuck + 1 } else { 0 };
        assert!(stuck < 500, "no answers any more");
        done = now;
        kills += 1;
        let at = dice.below(workers.len() as u64) as usize;
        workers[at] = start_worker(&place, 5 + kills);
    }
    drop(workers);
    // The last line of a process that was killed may be cut: its write has no answer.
    let notes: Vec<RaceNote> = read_notes().lines().filter_map(|line| line.parse().ok()).collect();
    // Opened anew: what a killed process left in the journal is rolled back or kept by whoever comes next.
    let connection = open(&place.file());
    let mut histories: BTreeMap<u64, Vec<String>> = BTreeMap::new();
    let mut statement = connection.prepare("SELECT resource, id FROM history ORDER BY n").unwrap();
    let mut rows = statement.query([]).unwrap();
    while let Some(row) = rows.next().unwrap() {
        histories.entry(row.get(0).unwrap()).or_default().push(row.get(1).unwrap());
    }
    let whole = connection.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    (judge(&notes, &histories), kills, whole)
}

/// Goal: no stale write after a newer one, no current writer refused, nothing acknowledged lost, over kills of writers.
#[test]
fn a_race_of_processes_that_are_killed() {
    let size = race_size(700);
    for journal in ["WAL", "DELETE"] {
        let (verdict, kills, whole) = run_race(journal, size, "");
        println!("sqlite, {journal}, {kills} kills: {verdict:?}");
        verdict.assert_clean(size);
        assert_eq!(whole, "ok", "{journal}");
    }
}

/// Goal: the judge sees a fence without its UPDATE trigger.
#[test]
fn a_missing_trigger_is_flagged() {
    let (verdict, kills, _) = run_race("WAL", 800, "DROP TRIGGER zz_leasehold_update_seats");
    println!("sqlite, planted, {kills} kills: {verdict:?}");
    assert!(verdict.stale_admitted > 0, "{verdict:?}");
}
