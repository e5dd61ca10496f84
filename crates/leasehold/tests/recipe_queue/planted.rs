//! Planted bugs: a function of the store is replaced by its own text with one thing wrong, and what watches over it must see
//! it. Each scenario also runs on the true text, where nothing may be found.

use std::time::Duration;

use leasehold::recipe::Store;
use leasehold::recipe::store::migration_sql;
use tokio_postgres::Client;

use crate::judge::{INSTALL, Verdict, judge};
use crate::suite;
use crate::support::cluster;
use crate::worker::connect;

/// A database with a store and the judge, and sessions of two workers.
struct Scene {
    database: String,
    ada: Client,
    bob: Client,
}

impl Scene {
    async fn set(planted: Option<(&str, &str, &str)>) -> Self {
        let database = cluster().database().await;
        let url = cluster().url(&database);
        let store = Store::open(&url).await.unwrap();
        store.queue("plain").open().await.unwrap();
        if let Some((function, good, bad)) = planted {
            cluster().execute(&database, &with_bug(function, good, bad)).await;
        }
        cluster().execute(&database, INSTALL).await;
        let ada = connect(&format!("{url}?application_name=ada")).await.unwrap();
        let bob = connect(&format!("{url}?application_name=bob")).await.unwrap();
        Self { database, ada, bob }
    }

    async fn push(&self) {
        let push = "INSERT INTO judge.pushed VALUES (1); SELECT leasehold.queue_push('plain', '1')";
        self.ada.batch_execute(push).await.unwrap();
    }

    async fn verdict(&self) -> Verdict {
        judge(&cluster().client(&self.database).await, false).await
    }
}

/// The text of a function of the store, with one thing changed.
fn with_bug(function: &str, good: &str, bad: &str) -> String {
    let all = migration_sql();
    let head = format!("CREATE FUNCTION leasehold.{function}(");
    let start = all.find(&head).unwrap_or_else(|| panic!("{function} is in the schema"));
    let body = all[start..].find("$$").unwrap() + 2;
    let end = start + body + all[start + body..].find("$$").unwrap();
    let end = end + all[end..].find(';').unwrap() + 1;
    let text = &all[start..end];
    assert!(text.contains(good), "{function} has no {good:?} to break");
    text.replace(good, bad).replacen("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION", 1)
}

/// Takes the job: the token.
async fn take(client: &Client, worker: &str, visible: &str) -> Option<(i64, i64)> {
    let sql = format!("SELECT job_id, token FROM leasehold.queue_turn('plain', 1, '{{}}', 0, '{visible}', '{worker}')");
    client.query_opt(&sql, &[]).await.unwrap().map(|row| (row.get(0), row.get(1)))
}

/// Lets what is over lapse, and makes it ready now.
async fn lapse(client: &Client) {
    tokio::time::sleep(Duration::from_millis(80)).await;
    client.query("SELECT leasehold.queue_sweep('plain', '0')", &[]).await.unwrap();
    client
        .batch_execute("UPDATE leasehold.job SET ready_at = clock_timestamp() - interval '1 s' WHERE token = 0")
        .await
        .unwrap();
}

/// ada takes a job and sleeps; bob takes it over; ada wakes up and ends it by this statement.
async fn end_late(planted: Option<(&str, &str, &str)>, end: &str) -> Verdict {
    let scene = Scene::set(planted).await;
    scene.push().await;
    let (job, token) = take(&scene.ada, "ada", "50 ms").await.unwrap();
    lapse(&scene.bob).await;
    let taken = take(&scene.bob, "bob", "30 s").await.unwrap();
    assert!(taken.0 == job && taken.1 > token);
    scene.ada.batch_execute(&format!("SET judge.shown = '{token}'")).await.unwrap();
    let _ = scene.ada.query(end, &[&job, &token]).await;
    scene.verdict().await
}

const ACK: &str = "SELECT leasehold.queue_ack(ARRAY[$1::bigint], $2::bigint)";
const FINISH: &str = "SELECT leasehold.queue_finish($1::bigint, $2::bigint)";

/// Planted: ack by id alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ack_by_id_alone_is_caught() {
    assert_eq!(end_late(None, ACK).await.violations, Vec::<String>::new());
    let verdict = end_late(Some(("queue_ack", " AND j.token = tok AND tok > 0", "")), ACK).await;
    assert!(verdict.violations.iter().any(|found| found.contains("ended by a stale worker")), "{verdict:?}");
}

/// Planted: finish without the token.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_finish_without_the_token_is_caught() {
    assert_eq!(end_late(None, FINISH).await.violations, Vec::<String>::new());
    let any_token = "leasehold.queue_ack(ARRAY[id], (SELECT token FROM leasehold.job WHERE job_id = id))";
    let verdict = end_late(Some(("queue_finish", "leasehold.queue_ack(ARRAY[id], tok)", any_token)), FINISH).await;
    assert!(verdict.violations.iter().any(|found| found.contains("ended by a stale worker")), "{verdict:?}");
}

/// ada claims, slowly where `sql` makes it so; meanwhile bob has the job once. Then ada has it.
async fn overtake(sql: Option<&str>) -> Verdict {
    let scene = Scene::set(None).await;
    if let Some(sql) = sql {
        cluster().execute(&scene.database, sql).await;
    }
    let bob = async {
        tokio::time::sleep(Duration::from_millis(150)).await;
        let push = "INSERT INTO judge.pushed VALUES (1); SELECT leasehold.queue_push('plain', '1')";
        scene.bob.batch_execute(push).await.unwrap();
        take(&scene.bob, "bob", "50 ms").await.expect("bob is first");
        lapse(&scene.bob).await;
    };
    let (taken, ()) = tokio::join!(take(&scene.ada, "ada", "30 s"), bob);
    assert_eq!(taken.is_some(), sql.is_some(), "only a slow claim finds the job");
    if taken.is_none() {
        take(&scene.ada, "ada", "30 s").await.expect("now there is one");
    }
    scene.verdict().await
}

/// Planted: a token drawn before the row is locked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_drawn_before_the_lock_is_caught() {
    assert_eq!(overtake(None).await.violations, Vec::<String>::new());
    let draw = "tok := nextval('leasehold.recipe_token');";
    let slow =
        "IF current_setting('application_name') = 'ada' THEN PERFORM pg_sleep(1); END IF; t := clock_timestamp();";
    // Slow in both, so that only the place of the draw differs.
    let true_draw = with_bug("queue_turn", "t := clock_timestamp();", slow);
    assert_eq!(overtake(Some(&true_draw)).await.violations, Vec::<String>::new());
    assert!(true_draw.contains(draw), "the text of queue_turn has changed");
    let early = true_draw.replace(draw, "").replace("IF current_setting", &format!("{draw} IF current_setting"));
    let verdict = overtake(Some(&early)).await;
    assert!(verdict.violations.iter().any(|found| found.contains("lower token")), "{verdict:?}");
}

/// ada works on a job with a dedupe id, and has read its state; bob changes the state and asks for the job again; ada ends it.
async fn ask_again(planted: Option<(&str, &str, &str)>) -> Verdict {
    let scene = Scene::set(planted).await;
    let change = "BEGIN; UPDATE judge.state SET version = version + 1; \
                  SELECT leasehold.queue_push('plain', '-1', dedupe => 'd0'); COMMIT";
    scene.ada.batch_execute("INSERT INTO judge.state VALUES (0, 0)").await.unwrap();
    scene.ada.batch_execute(change).await.unwrap();
    let (job, token) = take(&scene.ada, "ada", "30 s").await.unwrap();
    scene.ada.batch_execute("INSERT INTO judge.seen SELECT * FROM judge.state").await.unwrap();
    scene.bob.batch_execute(change).await.unwrap();
    scene.ada.query(ACK, &[&job, &token]).await.unwrap();
    scene.verdict().await
}

/// Planted: an ack that forgets what was asked for again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_that_no_run_sees_is_caught() {
    assert_eq!(ask_again(None).await.violations, Vec::<String>::new());
    let verdict = ask_again(Some(("queue_ack", "FROM gone WHERE again)", "FROM gone WHERE false)"))).await;
    assert!(verdict.violations.iter().any(|found| found.contains("was seen by no run")), "{verdict:?}");
}

/// Planted: NOTIFY lost. The test of waking must fail.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_notify_is_caught() {
    let scene = Scene::set(Some(("queue_push", "PERFORM pg_notify(ch, q);", "NULL;"))).await;
    let url = cluster().url(&scene.database);
    // A thread of its own: what fails there is the test of waking.
    let woken = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        runtime.block_on(async { suite::a_sleeping_worker_is_woken(&Store::open(&url).await.unwrap()).await });
    });
    assert!(woken.join().is_err(), "a push that rings nobody was not noticed");
}
