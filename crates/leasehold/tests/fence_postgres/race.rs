//! Random stale and current writers, against each other and against kills. `LEASEHOLD_FENCE_RACE` is how many answers.
//!
//! Every admitted write leaves a row of history in the same transaction, with a number that is drawn after the fenced write:
//! in the order of these numbers the tokens of a resource must never fall. A refusal as stale must name a higher token that
//! somebody had shown before. A commit that was acknowledged is in the history, whatever was killed after it.
//!
//! Three kinds of kills, each counted: clients whose connection is cut inside of a transaction or at its COMMIT, backends that
//! are terminated, and servers that end at once and recover.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::fence::FenceRefusal;
use leasehold::fence::postgres::{InstallOptions, install, refusal_from_sql};
use leasehold_harness::postgres::Cluster;
use tokio_postgres::{Client, NoTls};

use crate::support::Fenced;

const RESOURCES: usize = 6;
const WRITERS: u64 = 8;

fn wanted_answers() -> u64 {
    std::env::var("LEASEHOLD_FENCE_RACE").ok().and_then(|text| text.parse().ok()).unwrap_or(800)
}

/// What the race has counted.
#[derive(Default)]
struct Tally {
    answers: AtomicU64,
    committed: AtomicU64,
    refused: AtomicU64,
    again: AtomicU64,
    deadlocks: AtomicU64,
    unknown: AtomicU64,
    /// Clients that were cut off before COMMIT, and while it was under way.
    cut_before: AtomicU64,
    cut_at_commit: AtomicU64,
    terminated: AtomicU64,
    crashes: AtomicU64,
}

/// A connection, and the task that a cut ends: the socket closes without a word, as that of a killed process does.
struct Connected {
    client: Client,
    task: tokio::task::AbortHandle,
}

struct Race {
    url: String,
    fenced: Fenced,
    /// The newest token that was granted, for each resource.
    granted: [AtomicI64; RESOURCES],
    tally: Tally,
    wrong: Mutex<Vec<String>>,
    /// The numbers of the rows of history whose COMMIT was answered.
    acknowledged: Mutex<Vec<i64>>,
    stop: AtomicBool,
    with_kills: bool,
}

/// Numbers without a crate: enough for choices.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}

impl Race {
    async fn connect(&self) -> Option<Connected> {
        let (client, connection) = tokio_postgres::connect(&self.url, NoTls).await.ok()?;
        let task = tokio::spawn(async move { drop(connection.await) }).abort_handle();
        Some(Connected { client, task })
    }

    /// The table of a resource, the condition for one of its rows, and what an upsert conflicts with. A resource that is
    /// remembered by name has several rows, so that no lock on a row keeps its writers in order.
    fn target(&self, resource: usize, dice: &mut Dice) -> (String, [String; 2], &'static str) {
        let part = dice.roll(4).to_string();
        match self.fenced {
            Fenced::Row => ("seats".into(), [resource.to_string(), "0".into()], "seat_id"),
            Fenced::Keyed => ("seats".into(), [resource.to_string(), part], "seat_id, part"),
            Fenced::OneName => (format!("seats{resource}"), ["14".into(), part], "seat_id, part"),
        }
    }

    async fn write_for_ever(self: Arc<Self>, seed: u64) {
        let mut dice = Dice(0x9E37_79B9_7F4A_7C15 ^ seed.wrapping_mul(0xD134_2543_DE82_EF95));
        let mut connected = None;
        while !self.stop.load(Ordering::Relaxed) {
            let Some(client) = connected.take() else {
                connected = self.connect().await;
                if connected.is_none() {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                continue;
            };
            if self.write_once(&client, &mut dice).await {
                connected = Some(client);
            }
        }
    }

    /// One write. False: the connection is of no more use.
    async fn write_once(&self, connected: &Connected, dice: &mut Dice) -> bool {
        let resource = dice.roll(RESOURCES as u64) as usize;
        let granted = &self.granted[resource];
        // A new holder now and then; otherwise the current one, or one of those before it.
        let token = match dice.roll(10) {
            0..=2 => granted.fetch_add(1, Ordering::SeqCst) + 1,
            3..=6 => granted.load(Ordering::SeqCst),
            _ => (granted.load(Ordering::SeqCst) - 1 - dice.roll(3) as i64).max(1),
        };
        let done = self.transact(connected, resource, token, dice).await;
        self.tally.answers.fetch_add(1, Ordering::Relaxed);
        let error = match done {
            Ok(written) => {
                self.tally.committed.fetch_add(1, Ordering::Relaxed);
                self.acknowledged.lock().unwrap().extend(written);
                return true;
            }
            Err(error) => error,
        };
        if let Some(refusal) = refusal_from_sql(&error) {
            self.judge_refusal(resource, token, &refusal);
        } else {
            match error.code().map(|code| code.code().to_owned()).as_deref() {
                Some("40001" | "23505") => {
                    self.tally.again.fetch_add(1, Ordering::Relaxed);
                }
                Some("40P01") => {
                    self.tally.deadlocks.fetch_add(1, Ordering::Relaxed);
                }
                _ => {
                    self.tally.unknown.fetch_add(1, Ordering::Relaxed);
                    return false;
                }
            }
        }
        connected.client.batch_execute("ROLLBACK").await.is_ok()
    }

    /// Commits. Now and then the client is killed before, or in the middle of it: then nobody knows what came of it.
    async fn commit_or_die(&self, connected: &Connected, dice: &mut Dice) -> Result<(), tokio_postgres::Error> {
        let commit = connected.client.batch_execute("COMMIT");
        match dice.roll(60) {
            0 if self.with_kills => {
                self.tally.cut_before.fetch_add(1, Ordering::Relaxed);
                connected.task.abort();
                commit.await
            }
            1 if self.with_kills => {
                self.tally.cut_at_commit.fetch_add(1, Ordering::Relaxed);
                let task = connected.task.clone();
                let pause = Duration::from_micros(dice.roll(800));
                tokio::spawn(async move {
                    tokio::time::sleep(pause).await;
                    task.abort();
                });
                commit.await
            }
            _ => commit.await,
        }
    }

    async fn transact(
        &self,
        connected: &Connected,
        resource: usize,
        token: i64,
        dice: &mut Dice,
    ) -> Result<Option<i64>, tokio_postgres::Error> {
        let level = ["READ COMMITTED", "READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"][dice.roll(4) as usize];
        let client = &connected.client;
        let (table, [seat, part], key) = self.target(resource, dice);
        let row = format!("seat_id = {seat} AND part = {part}");
        let insert = format!("INSERT INTO {table} (seat_id, part, owner) VALUES ({seat}, {part}, 'x')");
        let write = match dice.roll(5) {
            0 => format!("DELETE FROM {table} WHERE {row}; {insert}"),
            1 => format!("{insert} ON CONFLICT ({key}) DO UPDATE SET owner = 'up'"),
            _ => format!("UPDATE {table} SET owner = '{token}' WHERE {row}"),
        };
        client.batch_execute(&format!("BEGIN ISOLATION LEVEL {level}; SELECT count(*) FROM {table}")).await?;
        if dice.roll(4) == 0 {
            tokio::time::sleep(Duration::from_millis(dice.roll(20))).await;
        }
        let mark = format!("{token}:{token:016x}");
        client.execute("SELECT set_config('leasehold.token', $1, true)", &[&mark]).await?;
        // An UPDATE whose row was deleted and made again meanwhile touches nothing, and so it asks the fence nothing.
        let written = if write.starts_with("UPDATE") {
            client.execute(&write, &[]).await?
        } else {
            client.batch_execute(&write).await?;
            1
        };
        let mut noted = None;
        if written > 0 {
            let history = "INSERT INTO history (resource, token) VALUES ($1, $2) RETURNING n";
            noted = Some(client.query_one(history, &[&(resource as i32), &token]).await?.get(0));
        }
        if dice.roll(4) == 0 {
            tokio::time::sleep(Duration::from_millis(dice.roll(30))).await;
        }
        self.commit_or_die(connected, dice).await.map(|()| noted)
    }

    fn judge_refusal(&self, resource: usize, token: i64, refusal: &FenceRefusal) {
        self.tally.refused.fetch_add(1, Ordering::Relaxed);
        let newest = self.granted[resource].load(Ordering::SeqCst);
        let right = matches!(refusal, FenceRefusal::Stale { presented, highest, .. }
            if presented.get() as i64 == token && highest.get() as i64 > token && highest.get() as i64 <= newest);
        if !right {
            self.wrong.lock().unwrap().push(format!("resource {resource}, token {token}: {refusal:?}"));
        }
    }
}

impl Tally {
    fn had_all_kills(&self) -> bool {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        [&self.cut_before, &self.cut_at_commit, &self.terminated].iter().all(|counter| load(counter) > 2)
            && load(&self.crashes) > 1
    }

    fn report_line(&self) -> String {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        format!(
            "{} answers, {} committed, {} refused, {} to run again, {} deadlocks, {} unknown; {} clients cut before COMMIT and {} at it, {} \
             backends terminated, {} servers crashed",
            load(&self.answers),
            load(&self.committed),
            load(&self.refused),
            load(&self.again),
            load(&self.deadlocks),
            load(&self.unknown),
            load(&self.cut_before),
            load(&self.cut_at_commit),
            load(&self.terminated),
            load(&self.crashes)
        )
    }
}

/// Terminates a backend of the race that is inside of a transaction. How many it were.
async fn terminate_one(url: &str) -> u64 {
    let Ok((client, connection)) = tokio_postgres::connect(url, NoTls).await else { return 0 };
    tokio::spawn(async move { drop(connection.await) });
    let sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()
        AND pid <> pg_backend_pid() AND xact_start IS NOT NULL ORDER BY random() LIMIT 1";
    client.query(sql, &[]).await.map_or(0, |rows| rows.len() as u64)
}

/// How many writes were admitted after a newer one.
async fn count_stale(client: &Client) -> i64 {
    let sql = "SELECT count(*) FROM (SELECT token, max(token) OVER (PARTITION BY resource ORDER BY n
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before FROM history) h WHERE token < before";
    client.query_one(sql, &[]).await.unwrap().get(0)
}

/// How many commits that were acknowledged are not in the history.
async fn count_lost(client: &Client, race: &Race) -> i64 {
    let acknowledged = race.acknowledged.lock().unwrap().clone();
    let sql = "SELECT count(*) FROM unnest($1::bigint[]) a WHERE NOT EXISTS (SELECT FROM history h WHERE h.n = a)";
    client.query_one(sql, &[&acknowledged]).await.unwrap().get(0)
}

async fn prepare(cluster: &Cluster, fenced: Fenced) -> String {
    let database = cluster.database().await;
    let mut client = cluster.client(&database).await;
    let seats = |table: &str, unique: &str| {
        format!(
            "CREATE TABLE {table} (seat_id int NOT NULL, part int NOT NULL, owner text, UNIQUE ({unique}));
             INSERT INTO {table} SELECT s, p, 'free' FROM generate_series(0, 14) s, generate_series(0, 3) p
             WHERE p = 0 OR '{unique}' <> 'seat_id';"
        )
    };
    let mut sql = seats("seats", if fenced == Fenced::Row { "seat_id" } else { "seat_id, part" });
    sql.extend((0..RESOURCES).map(|at| seats(&format!("seats{at}"), "seat_id, part")));
    sql += "CREATE TABLE history (n bigint GENERATED ALWAYS AS IDENTITY, resource int, token bigint)";
    client.batch_execute(&sql).await.unwrap();
    if fenced == Fenced::OneName {
        for at in 0..RESOURCES {
            let chosen =
                InstallOptions { table: format!("seats{at}"), resource: Some(format!("one/{at}")), ..fenced.options() };
            install(&mut client, &chosen).await.unwrap();
        }
    } else {
        install(&mut client, &fenced.options()).await.unwrap();
    }
    database
}

/// Races, with backends terminated and the server crashed meanwhile. Says how many stale writes were admitted.
async fn run_race(
    cluster: &Cluster,
    database: &str,
    fenced: Fenced,
    wanted: u64,
    with_kills: bool,
) -> (i64, Arc<Race>) {
    let race = Arc::new(Race {
        url: cluster.url(database),
        fenced,
        granted: Default::default(),
        tally: Tally::default(),
        wrong: Mutex::default(),
        acknowledged: Mutex::default(),
        stop: AtomicBool::new(false),
        with_kills,
    });
    for granted in &race.granted {
        granted.store(1, Ordering::SeqCst);
    }
    let writers: Vec<_> = (1..=WRITERS).map(|seed| tokio::spawn(race.clone().write_for_ever(seed))).collect();
    let answers = || race.tally.answers.load(Ordering::Relaxed);
    // A long race crashes the server every 20,000 answers, a short one twice; and no race ends before it had its kills.
    let crash_every = (wanted / 3).clamp(1, 20_000);
    while answers() < wanted || with_kills && !race.tally.had_all_kills() {
        tokio::time::sleep(Duration::from_millis(if with_kills { 100 } else { 10 })).await;
        if !with_kills {
            continue;
        }
        if answers() / crash_every > race.tally.crashes.load(Ordering::Relaxed) {
            cluster.crash();
            cluster.start_server();
            race.tally.crashes.fetch_add(1, Ordering::Relaxed);
        } else {
            let terminated = terminate_one(&race.url).await;
            race.tally.terminated.fetch_add(terminated, Ordering::Relaxed);
        }
    }
    race.stop.store(true, Ordering::Relaxed);
    for writer in writers {
        writer.await.unwrap();
    }
    let client = cluster.client(database).await;
    let stale = count_stale(&client).await;
    assert_eq!(count_lost(&client, &race).await, 0, "{fenced:?}: acknowledged commits that are not there");
    let wrong = race.wrong.lock().unwrap().len();
    println!("{fenced:?}: {}: {stale} stale, {wrong} wrongly refused", race.tally.report_line());
    (stale, race)
}

/// Goal: over random writers and kills no stale write is admitted and no current one refused, in every store.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_stale_write_is_admitted_in_a_race() {
    let cluster = Cluster::start(&["max_connections=100", "fsync=off"]);
    for fenced in Fenced::ALL {
        let database = prepare(&cluster, fenced).await;
        let (stale, race) = run_race(&cluster, &database, fenced, wanted_answers(), true).await;
        assert_eq!(stale, 0, "{fenced:?}");
        assert_eq!(*race.wrong.lock().unwrap(), [""; 0], "{fenced:?}");
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        assert!(
            load(&race.tally.committed) > 50 && load(&race.tally.refused) > 50,
            "{fenced:?}: a race that tries nothing"
        );
        assert!(race.tally.had_all_kills(), "{fenced:?}: {}", race.tally.report_line());
    }
}

/// Goal: the race sees a fence that checks without a lock.
/// Method: the same race, with a plain SELECT in place of the lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_race_sees_a_check_without_a_lock() {
    let cluster = Cluster::start(&["max_connections=100", "fsync=off"]);
    let database = prepare(&cluster, Fenced::Keyed).await;
    let client = cluster.client(&database).await;
    let guard: String = client.query_one("SELECT guard FROM leasehold_fence.fenced", &[]).await.unwrap().get(0);
    let planted = format!(
        "CREATE TABLE unlocked (seat int, token bigint);
         CREATE OR REPLACE FUNCTION leasehold_fence.{guard}_name() RETURNS trigger LANGUAGE plpgsql AS $$
         DECLARE shown bigint := split_part(current_setting('leasehold.token', true), ':', 1)::bigint; own int; kept bigint;
         BEGIN
           own := CASE WHEN TG_OP = 'INSERT' THEN NEW.seat_id ELSE OLD.seat_id END;
           SELECT max(u.token) INTO kept FROM unlocked u WHERE u.seat = own;
           IF kept > shown THEN RAISE EXCEPTION USING ERRCODE = 'LH001', MESSAGE = 'stale',
             DETAIL = json_build_object('resource', own::text, 'presented', shown::text, 'highest', kept::text)::text; END IF;
           INSERT INTO unlocked VALUES (own, shown);
           RETURN NULL;
         END $$"
    );
    client.batch_execute(&planted).await.unwrap();
    let (stale, _) = run_race(&cluster, &database, Fenced::Keyed, 600, false).await;
    assert!(stale > 0, "the race would not see a fence without its lock");
}
