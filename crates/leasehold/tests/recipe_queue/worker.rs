//! Worker processes of the torture: this test binary, started again. They are killed, stopped and cut off.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use leasehold::recipe::queue::calls::{FailedJob, LaneAsk, QueueCalls, SINCE_EVER, TurnAsk};
use leasehold::recipe::queue::{Delivery, Nack, Nacked};
use leasehold::recipe::{RecipeError, Store};
use rusqlite::Connection;
use tokio_postgres::{Client, NoTls};

pub const VISIBLE: Duration = Duration::from_millis(500);

/// A generator of numbers that gives the same for the same seed.
pub struct Chance(u64);

impl Chance {
    pub fn from_seed(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit
    }
}

/// Starts a worker of this kind: `library` or `hand`, plain, `-keyed` or `-deduped`; `sqlite`, `sqlite-hand`; `cut`.
pub fn start(kind: &str, url: &str, name: &str, seed: u64) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "worker::worker_process", "--ignored", "--nocapture"])
        .env("QUEUE_WORKER", kind)
        .env("QUEUE_WORKER_URL", url)
        .env("QUEUE_WORKER_NAME", name)
        .env("QUEUE_WORKER_SEED", seed.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
#[ignore = "a process of the torture, which starts it"]
fn worker_process() {
    let Ok(kind) = std::env::var("QUEUE_WORKER") else { return };
    leasehold_harness::end_with_parent().unwrap();
    let read = |name: &str| std::env::var(name).unwrap();
    let (url, name) = (read("QUEUE_WORKER_URL"), read("QUEUE_WORKER_NAME"));
    let chance = Chance::from_seed(read("QUEUE_WORKER_SEED").parse().unwrap());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        match kind.as_str() {
            "library" => work_by_library(&url, "plain", &name).await,
            "library-keyed" => work_by_library(&url, "keyed", &name).await,
            "library-deduped" => work_deduped_by_library(&url, &name).await,
            "sqlite" => tokio::join!(work_by_library(&url, "plain", &name), work_by_library(&url, "keyed", &name)).0,
            "sqlite-hand" => work_by_calls(&url, &name, chance).await,
            "cut" => crate::cuts::work_until_killed(&url, &name).await,
            hand => work_by_hand(&url, &name, chance, hand).await,
        }
    });
}

/// The library's own worker, for ever. Some jobs end by Ok, some in a transaction, some in a transaction of a task that the
/// worker cannot cut off, and some fail first.
async fn work_by_library(url: &str, queue: &str, name: &str) {
    loop {
        if let Ok(store) = Store::open(url).await
            && let Ok(queue) = store.queue(queue).open_existing().await
        {
            let handler = async |job: Delivery<i64>| {
                tokio::time::sleep(Duration::from_millis(job.job_id().unsigned_abs() % 61)).await;
                match job.body() % 4 {
                    0 => Ok(()),
                    1 => finish_with_effect(url, job).await,
                    2 if job.attempt() < 2 && job.key().is_none() => {
                        Err(Nack::after(Duration::from_millis(30), "once"))
                    }
                    2 => Ok(()),
                    // Not cut off with the handler: it may come late.
                    _ => {
                        let url = url.to_owned();
                        let late = tokio::spawn(async move {
                            tokio::time::sleep(Duration::from_millis(job.job_id().unsigned_abs() % 199)).await;
                            finish_with_effect(&url, job).await
                        });
                        late.await.unwrap_or_else(|error| Err(Nack::later(error)))
                    }
                }
            };
            let work = queue.work(3, handler).visible(VISIBLE).worker(name).poll(Duration::from_millis(300));
            let _ = work.until(std::future::pending()).await;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// What a job with a dedupe id is about: its body is below zero.
const fn state_of(body: i64) -> i64 {
    -1 - body
}

const READ_STATE: &str = "SELECT version FROM judge.state WHERE id = $1";
const SEE_STATE: &str = "INSERT INTO judge.seen VALUES ($1, $2)";

/// The library's own worker for jobs with a dedupe id, for ever: each run reads the state, takes its time, and says what it saw.
async fn work_deduped_by_library(url: &str, name: &str) {
    loop {
        if let Ok(store) = Store::open(url).await
            && let Ok(queue) = store.queue("deduped").open_existing().await
        {
            let handler = async |job: Delivery<i64>| {
                let mut client = connect(url).await.map_err(Nack::later)?;
                let id = state_of(*job.body());
                let version: i64 = client.query_one(READ_STATE, &[&id]).await.map_err(Nack::later)?.get(0);
                tokio::time::sleep(Duration::from_millis(job.token().unsigned_abs() % 131)).await;
                match job.token() % 3 {
                    0 if job.attempt() < 2 => Err(Nack::after(Duration::from_millis(20), "once")),
                    1 => {
                        let tx = client.transaction().await.map_err(Nack::later)?;
                        tx.execute(SEE_STATE, &[&id, &version]).await.map_err(Nack::later)?;
                        job.finish(tx).await.map_err(Nack::later)
                    }
                    _ => client.execute(SEE_STATE, &[&id, &version]).await.map(drop).map_err(Nack::later),
                }
            };
            let work = queue.work(2, handler).visible(VISIBLE).worker(name).poll(Duration::from_millis(200));
            let _ = work.until(std::future::pending()).await;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Writes an effect, and ends the job in the same transaction.
async fn finish_with_effect(url: &str, job: Delivery<i64>) -> Result<(), Nack> {
    let (id, token) = (job.job_id(), job.token());
    if let Some(file) = url.strip_prefix("sqlite:") {
        let file = file.to_owned();
        let finished = tokio::task::spawn_blocking(move || {
            let mut db = rusqlite::Connection::open(file).map_err(Nack::later)?;
            db.busy_timeout(Duration::from_secs(5)).map_err(Nack::later)?;
            let tx = db.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate).map_err(Nack::later)?;
            tx.execute("INSERT INTO judge_effect VALUES (?1, ?2)", [id, token]).map_err(Nack::later)?;
            let finished = job.finish_sqlite(tx);
            if finished.as_ref().is_err_and(|error| error.refusal().is_some()) {
                let _ = db.execute("INSERT INTO judge_refused VALUES (?1)", [id]);
            }
            finished.map_err(Nack::later)
        });
        return finished.await.unwrap_or_else(|error| Err(Nack::later(error)));
    }
    let mut client = connect(url).await.map_err(Nack::later)?;
    let tx = client.transaction().await.map_err(Nack::later)?;
    let sql = "INSERT INTO judge.effect VALUES ($1, $2)";
    tx.execute(sql, &[&id, &token]).await.map_err(Nack::later)?;
    let finished = job.finish(tx).await;
    if finished.as_ref().is_err_and(|error| error.refusal().is_some()) {
        let _ = client.batch_execute("INSERT INTO judge.refused VALUES ('finish')").await;
    }
    finished.map_err(Nack::later)
}

pub async fn connect(url: &str) -> Result<Client, tokio_postgres::Error> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(async move { drop(connection.await) });
    Ok(client)
}

/// A worker in any language: it calls the functions, does not extend, and is often late.
async fn work_by_hand(url: &str, name: &str, mut chance: Chance, kind: &str) {
    loop {
        if let Ok(mut client) = connect(url).await {
            loop {
                let worked = match kind {
                    "hand-keyed" => turn_keyed_by_hand(&mut client, name, &mut chance).await,
                    "hand-deduped" => turn_deduped_by_hand(&mut client, name, &mut chance).await,
                    _ => turn_by_hand(&mut client, name, &mut chance).await,
                };
                if worked.is_err() && client.is_closed() {
                    break;
                }
            }
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// The work: every third time longer than the delivery lasts.
async fn dawdle(chance: &mut Chance) {
    let limit = if chance.below(3) == 0 { 3 * VISIBLE.as_millis() as u64 } else { 60 };
    tokio::time::sleep(Duration::from_millis(chance.below(limit))).await;
}

/// Tells the judge which token this session shows from now on.
async fn show(client: &Client, token: i64) -> Result<(), tokio_postgres::Error> {
    client.execute("SELECT set_config('judge.shown', $1, false)", &[&token.to_string()]).await.map(drop)
}

async fn refused(client: &Client) -> Result<(), tokio_postgres::Error> {
    client.batch_execute("INSERT INTO judge.refused VALUES ('by hand')").await
}

async fn turn_by_hand(client: &mut Client, name: &str, chance: &mut Chance) -> Result<(), tokio_postgres::Error> {
    client.batch_execute("SET judge.shown = ''; SELECT leasehold.queue_sweep('plain', '200 ms')").await?;
    let take = "SELECT job_id, token FROM leasehold.queue_turn('plain', 3, '{}', 0, '500 ms', $1)";
    let rows = client.query(take, &[&name]).await?;
    let Some(token) = rows.first().map(|row| row.get::<_, i64>(1)) else {
        tokio::time::sleep(Duration::from_millis(20)).await;
        return Ok(());
    };
    let jobs: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
    dawdle(chance).await;
    show(client, token).await?;
    match chance.below(4) {
        0 => {
            let ack = "SELECT 1 FROM leasehold.queue_turn('plain', 0, $1, $2) WHERE token = 0";
            for _ in client.query(ack, &[&jobs, &token]).await? {
                refused(client).await?;
            }
        }
        1 => {
            for job in jobs {
                let tx = client.transaction().await?;
                tx.execute("INSERT INTO judge.effect VALUES ($1, $2)", &[&job, &token]).await?;
                match tx.execute("SELECT leasehold.queue_finish($1, $2)", &[&job, &token]).await {
                    Ok(_) => tx.commit().await?,
                    Err(error) => {
                        let stale = error.code().is_some_and(|code| code.code() == "LH409");
                        tx.rollback().await?;
                        if stale {
                            refused(client).await?;
                        }
                    }
                }
            }
        }
        2 => {
            let nack = "SELECT leasehold.queue_nack($1, $2, 'by hand', '20 ms')";
            for job in jobs {
                let word: String = client.query_one(nack, &[&job, &token]).await?.get(0);
                if word == "stale" {
                    refused(client).await?;
                }
            }
        }
        _ => {
            client.query("SELECT leasehold.queue_extend($1, $2, '500 ms')", &[&jobs, &token]).await?;
            dawdle(chance).await;
            for _ in client.query("SELECT leasehold.queue_ack($1, $2)", &[&jobs, &token]).await? {
                refused(client).await?;
            }
        }
    }
    Ok(())
}

async fn turn_deduped_by_hand(
    client: &mut Client,
    name: &str,
    chance: &mut Chance,
) -> Result<(), tokio_postgres::Error> {
    client.batch_execute("SET judge.shown = ''; SELECT leasehold.queue_sweep('deduped', '200 ms')").await?;
    let take =
        "SELECT job_id, token, body::text::bigint FROM leasehold.queue_turn('deduped', 1, '{}', 0, '500 ms', $1)";
    let Some(row) = client.query_opt(take, &[&name]).await? else {
        tokio::time::sleep(Duration::from_millis(20)).await;
        return Ok(());
    };
    let (job, token, id): (i64, i64, i64) = (row.get(0), row.get(1), state_of(row.get(2)));
    let version: i64 = client.query_one(READ_STATE, &[&id]).await?.get(0);
    dawdle(chance).await;
    show(client, token).await?;
    match chance.below(3) {
        0 => client.execute("SELECT leasehold.queue_nack($1, $2, 'by hand', '20 ms')", &[&job, &token]).await.map(drop),
        1 => {
            // Whatever is locked is asked for again, until it has ended or is stale.
            client.execute(SEE_STATE, &[&id, &version]).await?;
            let ack = "SELECT FROM leasehold.queue_ack(ARRAY[$1::bigint], $2, false) WHERE locked";
            while client.query_opt(ack, &[&job, &token]).await?.is_some() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            Ok(())
        }
        _ => {
            let tx = client.transaction().await?;
            tx.execute(SEE_STATE, &[&id, &version]).await?;
            match tx.execute("SELECT leasehold.queue_finish($1, $2)", &[&job, &token]).await {
                Ok(_) => tx.commit().await,
                Err(_) => tx.rollback().await,
            }
        }
    }
}

async fn turn_keyed_by_hand(client: &mut Client, name: &str, chance: &mut Chance) -> Result<(), tokio_postgres::Error> {
    client.batch_execute("SET judge.shown = ''").await?;
    let take =
        "SELECT key, token, job_id FROM leasehold.lane_claim('keyed', 1, 2, '500 ms', $1) WHERE token > 0 ORDER BY 3";
    let rows = client.query(take, &[&name]).await?;
    let Some((key, token)) = rows.first().map(|row| (row.get::<_, String>(0), row.get::<_, i64>(1))) else {
        tokio::time::sleep(Duration::from_millis(20)).await;
        return Ok(());
    };
    let jobs: Vec<i64> = rows.iter().map(|row| row.get(2)).collect();
    dawdle(chance).await;
    show(client, token).await?;
    let ack = "SELECT leasehold.lane_ack('keyed', $1, $2, $3, $4)";
    let acked = match chance.below(4) {
        0 => client.execute(ack, &[&key, &token, &jobs, &true]).await.map(drop),
        1 => {
            let tx = client.transaction().await?;
            for job in &jobs {
                tx.execute("INSERT INTO judge.effect VALUES ($1, $2)", &[job, &token]).await?;
            }
            match tx.execute(ack, &[&key, &token, &jobs, &true]).await {
                Ok(_) => tx.commit().await,
                Err(error) => tx.rollback().await.and(Err(error)),
            }
        }
        2 => {
            let nack = "SELECT leasehold.lane_nack('keyed', $1, $2, $3, 'by hand', '20 ms')";
            let word: String = client.query_one(nack, &[&key, &token, &jobs[0]]).await?.get(0);
            if word == "stale" { refused(client).await } else { Ok(()) }
        }
        _ => match client.execute(ack, &[&key, &token, &vec![jobs[0]], &false]).await {
            Ok(_) => {
                dawdle(chance).await;
                client.execute(ack, &[&key, &token, &jobs[1..].to_vec(), &true]).await.map(drop)
            }
            Err(error) => Err(error),
        },
    };
    if acked.as_ref().is_err_and(|error| error.code().is_some_and(|code| code.code() == "LH409")) {
        return refused(client).await;
    }
    acked
}

/// A turn that claims nothing and ends nothing.
pub fn turn_ask(worker: &str) -> TurnAsk {
    TurnAsk {
        jobs: 0,
        done: Vec::new(),
        done_token: 0,
        visible: Some(VISIBLE),
        worker: worker.to_owned(),
        since: SINCE_EVER,
        levels: None,
    }
}

/// A worker on SQLite that makes the calls one by one, does not extend, and is often late. It writes down which token it showed
/// and was told to be the right one.
async fn work_by_calls(url: &str, name: &str, mut chance: Chance) {
    let file = url.strip_prefix("sqlite:").unwrap();
    loop {
        if let Ok(store) = Store::open(url).await
            && let (Ok(plain), Ok(keyed)) = (store.queue_calls("plain"), store.queue_calls("keyed"))
            && let Ok(db) = Connection::open(file)
            && db.busy_timeout(Duration::from_secs(5)).is_ok()
        {
            loop {
                let worked = match chance.below(2) {
                    0 => turn_by_calls(&plain, &db, name, &mut chance).await,
                    _ => turn_keyed_by_calls(&keyed, &db, name, &mut chance).await,
                };
                if worked.is_err() {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// `taken`: the store said that the token is the right one.
fn note_shown(db: &Connection, how: &str, job: i64, token: i64, taken: bool) {
    let _ = if taken {
        db.execute("INSERT INTO judge_shown VALUES (?1, ?2, ?3)", (how, job, token))
    } else {
        db.execute("INSERT INTO judge_refused VALUES (?1)", [job])
    };
}

fn failed_job(job_id: i64, token: i64, key: Option<String>) -> FailedJob {
    let after = Some(Duration::from_millis(20));
    FailedJob { job_id, token, key, why: "by hand".into(), after, kill: false, tries: 0 }
}

async fn turn_by_calls(
    calls: &QueueCalls,
    db: &Connection,
    name: &str,
    chance: &mut Chance,
) -> Result<(), RecipeError> {
    let claimed = calls.turn(TurnAsk { jobs: 2, ..turn_ask(name) }).await?.jobs;
    let Some(token) = claimed.first().map(|job| job.token) else { return Ok(()) };
    let jobs: Vec<i64> = claimed.iter().map(|job| job.job_id).collect();
    dawdle(chance).await;
    match chance.below(3) {
        0 => {
            for job in jobs {
                let taken = calls.nack(failed_job(job, token, None)).await? != Nacked::Stale;
                note_shown(db, "nack", job, token, taken);
            }
        }
        how => {
            let stale = match how {
                1 => calls.ack(jobs.clone(), token).await?.stale,
                _ => calls.turn(TurnAsk { done: jobs.clone(), done_token: token, ..turn_ask(name) }).await?.stale,
            };
            for job in jobs {
                note_shown(db, "ack", job, token, !stale.contains(&job));
            }
        }
    }
    Ok(())
}

async fn turn_keyed_by_calls(
    calls: &QueueCalls,
    db: &Connection,
    name: &str,
    chance: &mut Chance,
) -> Result<(), RecipeError> {
    let visible = Some(VISIBLE);
    let ask = LaneAsk { keys: 1, jobs_per_key: 2, visible, worker: name.to_owned(), after: String::new() };
    let claimed = calls.lane_claim(ask).await?.jobs;
    let Some((key, token)) = claimed.first().and_then(|job| Some((job.key.clone()?, job.token))) else {
        return Ok(());
    };
    let jobs: Vec<i64> = claimed.iter().map(|job| job.job_id).collect();
    dawdle(chance).await;
    if chance.below(4) == 0 {
        // That a key was given back leaves no trace in its jobs: only what was refused counts.
        let stale = calls.nack(failed_job(jobs[0], token, Some(key))).await? == Nacked::Stale;
        if stale {
            note_shown(db, "nack", jobs[0], token, false);
        }
        return Ok(());
    }
    let acked = calls.lane_ack(&key, token, jobs.clone(), true).await;
    if let Err(error) = &acked
        && error.refusal().is_none()
    {
        return acked;
    }
    for job in jobs {
        note_shown(db, "ack", job, token, acked.is_ok());
    }
    Ok(())
}
