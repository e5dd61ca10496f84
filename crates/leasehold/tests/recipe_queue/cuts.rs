//! A worker process that is killed between any two statements of a delivery.
//!
//! Afterwards another worker does the job: its effect is there once, and whatever the dead one still had to say is refused.

use std::os::unix::process::ExitStatusExt as _;
use std::time::Duration;

use leasehold::recipe::Store;
use leasehold::recipe::queue::{Delivery, Nack};
use leasehold_harness::{Signal, send_signal};
use tokio::task::LocalSet;
use tokio_postgres::Client;

use crate::support::{cluster, quick, wait_for};
use crate::worker::{connect, start};

/// Deliveries of the one that dies last 300 ms, those of others as long as the queue says. `«q»`, `«job»` and `«token»` are filled in.
const CLAIM: &str = "SELECT job_id, token FROM leasehold.queue_turn('«q»', 1, '{}', 0, '300 ms', 'dies')";
const CLAIM_KEY: &str = "SELECT job_id, token FROM leasehold.lane_claim('«q»', 1, 1, '300 ms', 'dies') WHERE token > 0";
const EFFECT: &str = "INSERT INTO effect VALUES («job», «token»)";
const FINISH: &str = "SELECT leasehold.queue_finish(«job», «token»)";
const ACK: &str = "SELECT leasehold.queue_ack(ARRAY[«job»::bigint], «token»)";
const ACK_KEY: &str = "SELECT leasehold.lane_ack('«q»', 'one', «token», ARRAY[«job»::bigint])";

/// What a worker says, statement by statement; the last one ends the job, or would.
struct DeliveryForm {
    name: &'static str,
    statements: &'static [&'static str],
    /// The last word of the dead one, said late.
    end: &'static str,
    by_key: bool,
}

const FORMS: [DeliveryForm; 5] = [
    DeliveryForm {
        name: "finish",
        statements: &[CLAIM, "BEGIN", EFFECT, FINISH, "COMMIT"],
        end: FINISH,
        by_key: false,
    },
    DeliveryForm {
        name: "ack",
        statements: &[CLAIM, "SELECT leasehold.queue_extend(ARRAY[«job»::bigint], «token», '300 ms')", ACK],
        end: FINISH,
        by_key: false,
    },
    DeliveryForm {
        name: "nack",
        statements: &[CLAIM, "BEGIN", "SELECT leasehold.queue_nack(«job», «token»)", "COMMIT"],
        end: FINISH,
        by_key: false,
    },
    DeliveryForm {
        name: "key",
        statements: &[CLAIM_KEY, "BEGIN", EFFECT, ACK_KEY, "COMMIT"],
        end: ACK_KEY,
        by_key: true,
    },
    DeliveryForm {
        name: "key-extend",
        statements: &[CLAIM_KEY, "SELECT leasehold.lane_extend('«q»', 'one', «token», '300 ms')", ACK_KEY],
        end: ACK_KEY,
        by_key: true,
    },
];

fn fill(sql: &str, queue: &str, job: i64, token: i64) -> String {
    sql.replace("«q»", queue).replace("«job»", &job.to_string()).replace("«token»", &token.to_string())
}

/// In a process of its own: works on the one job of a queue, and kills itself before its n-th statement. The queue is called
/// `FORM-N`.
pub async fn work_until_killed(url: &str, queue: &str) {
    let (form, cut) = queue.rsplit_once('-').unwrap();
    let form = FORMS.iter().find(|candidate| candidate.name == form).unwrap();
    let client = connect(url).await.unwrap();
    let (mut job, mut token) = (0, 0);
    for (at, sql) in form.statements.iter().enumerate() {
        if at.to_string() == cut {
            send_signal(std::process::id(), Signal::KILL);
        }
        let sql = fill(sql, queue, job, token);
        if at == 0 {
            let row = client.query_one(&sql, &[]).await.unwrap();
            (job, token) = (row.get(0), row.get(1));
            client.execute("INSERT INTO claimed VALUES ($1, $2, $3)", &[&queue, &job, &token]).await.unwrap();
        } else {
            client.batch_execute(&sql).await.unwrap();
        }
    }
}

/// Does what is left, with its effect in the transaction that ends the job.
async fn rescue(url: String, queue: String) {
    let store = Store::open(&url).await.unwrap();
    let queue = store.queue(&queue).open_existing().await.unwrap();
    let done = std::sync::atomic::AtomicBool::new(false);
    let handler = async |job: Delivery<i64>| {
        let mut client = connect(&url).await.map_err(Nack::later)?;
        let tx = client.transaction().await.map_err(Nack::later)?;
        let sql = "INSERT INTO effect VALUES ($1, $2)";
        tx.execute(sql, &[&job.job_id(), &job.token()]).await.map_err(Nack::later)?;
        job.finish(tx).await.map_err(Nack::later)?;
        done.store(true, std::sync::atomic::Ordering::SeqCst);
        Ok(())
    };
    let ended = wait_for("the job of the dead", || done.load(std::sync::atomic::Ordering::SeqCst));
    queue.work(1, handler).poll(Duration::from_millis(200)).until(ended).await.unwrap();
}

async fn count(client: &Client, sql: &str) -> i64 {
    client.query_one(&format!("SELECT count(*) FROM {sql}"), &[]).await.unwrap().get(0)
}

/// Goal: wherever a worker dies, its job is done once, and its own token ends nothing any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_death_between_any_two_statements_loses_and_repeats_nothing() {
    let database = cluster().database().await;
    let url = cluster().url(&database);
    let store = Store::open(&url).await.unwrap();
    let client = cluster().client(&database).await;
    let tables = "CREATE TABLE effect (job_id bigint, token bigint); CREATE TABLE claimed (queue text, job_id bigint, token bigint)";
    client.batch_execute(tables).await.unwrap();
    let (rescuers, mut handles, mut deaths) = (LocalSet::new(), Vec::new(), 0);
    for form in &FORMS {
        for cut in 0..form.statements.len() {
            let name = format!("{}-{cut}", form.name);
            let builder = quick(&store, &name);
            let queue = if form.by_key { builder.by_key() } else { builder }.open().await.unwrap();
            let push = queue.push(&1);
            if form.by_key { push.key("one") } else { push }.await.unwrap();
            let died = start("cut", &url, &name, 1).wait().unwrap();
            assert_eq!(died.signal(), Some(Signal::KILL.as_raw()), "{name}");
            deaths += 1;
            handles.push(rescuers.spawn_local(rescue(url.clone(), name)));
        }
    }
    rescuers.await;
    for handle in handles {
        handle.await.unwrap();
    }
    assert_eq!(count(&client, "leasehold.job").await + count(&client, "leasehold.dead_job").await, 0);
    assert_eq!(count(&client, "effect").await, deaths);
    assert_eq!(count(&client, "(SELECT DISTINCT job_id FROM effect) e").await, deaths);
    // All but those who died before their claim.
    let claimed = client.query("SELECT queue, job_id, token FROM claimed", &[]).await.unwrap();
    assert_eq!(claimed.len() as i64, deaths - FORMS.len() as i64);
    for row in &claimed {
        let (queue, job, token): (String, i64, i64) = (row.get(0), row.get(1), row.get(2));
        let form = FORMS.iter().find(|form| queue.rsplit_once('-').unwrap().0 == form.name).unwrap();
        let late = client.batch_execute(&fill(form.end, &queue, job, token)).await.unwrap_err();
        assert_eq!(late.code().map(|code| code.code()), Some("LH409"), "{queue}: {late}");
    }
}
