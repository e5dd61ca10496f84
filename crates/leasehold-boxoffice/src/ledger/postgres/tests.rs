//! The suite, and what only this ledger promises. Every test has a PostgreSQL of its own.

mod crowds;
mod faults;
mod tls;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use leasehold_harness::postgres::Cluster;

use super::{Postgres, PostgresOptions};
use crate::error::Error;
use crate::layout::{Layout, Seat};
use crate::ledger::Ledger;
use crate::ledger::suite::{LAWS, LedgerSubject, SuiteFuture, run_alone};
use crate::model::check::invariants;
use crate::model::*;

/// The server of this process.
pub(super) fn cluster() -> &'static Cluster {
    static CLUSTER: OnceLock<Cluster> = OnceLock::new();
    CLUSTER.get_or_init(|| Cluster::start(&["max_connections=200"]))
}

pub(super) async fn open(cluster: &Cluster, database: &str) -> Arc<Postgres> {
    Postgres::open(&cluster.url(database), PostgresOptions::default()).await.unwrap()
}

/// Sets the clock of a ledger by hand: from now on it is this moment there, until another is set.
pub(crate) async fn set_moment(cluster: &Cluster, database: &str, millis: u64) {
    let sql = format!(
        "CREATE OR REPLACE FUNCTION leasehold_boxoffice.moment() RETURNS bigint LANGUAGE sql VOLATILE
         AS 'SELECT {millis}::bigint'"
    );
    cluster.execute(database, &sql).await;
}

/// A database of its own for each ledger, under a clock set by hand.
struct InDatabase {
    name: Mutex<String>,
    moment: AtomicU64,
}

impl InDatabase {
    async fn open(&self) -> Arc<dyn Ledger> {
        let name = self.name.lock().unwrap().clone();
        let ledger = open(cluster(), &name).await;
        set_moment(cluster(), &name, self.moment.load(Ordering::SeqCst)).await;
        ledger
    }
}

impl LedgerSubject for InDatabase {
    fn fresh(&self) -> SuiteFuture<'_, Arc<dyn Ledger>> {
        Box::pin(async {
            let name = cluster().database().await;
            *self.name.lock().unwrap() = name;
            self.open().await
        })
    }

    fn advance_time(&self, millis: u64) -> SuiteFuture<'_, ()> {
        Box::pin(async move {
            let moment = self.moment.fetch_add(millis, Ordering::SeqCst) + millis;
            let name = self.name.lock().unwrap().clone();
            set_moment(cluster(), &name, moment).await;
        })
    }

    fn unit_ms(&self) -> u64 {
        1000
    }

    fn reopen(&self) -> SuiteFuture<'_, Arc<dyn Ledger>> {
        Box::pin(self.open())
    }
}

/// Goal: PostgreSQL keeps every law of the suite, as SQLite does.
/// Method: one server for all laws, since each start of one takes seconds; two laws at a time, each in a database of
/// its own. All that are broken are named.
#[test]
fn every_law_of_the_suite_is_kept() {
    cluster();
    let next = AtomicU64::new(0);
    let broken = Mutex::new(Vec::new());
    let work = || {
        while let Some(law) = LAWS.get(usize::try_from(next.fetch_add(1, Ordering::SeqCst)).unwrap()) {
            let subject = InDatabase { name: Mutex::default(), moment: AtomicU64::new(1_000_000) };
            let kept = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run_alone(law.name, &subject)));
            if kept.is_err() {
                broken.lock().unwrap().push(law.name);
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(work);
        scope.spawn(work);
    });
    let broken = broken.into_inner().unwrap();
    assert!(broken.is_empty(), "{} of {} laws are broken: {broken:#?}", broken.len(), LAWS.len());
}

/// Seats `A-1` to `A-n`, at 100 each, for whoever wants up to twenty.
pub(super) async fn make_event(ledger: &dyn Ledger, seats: u32) -> EventId {
    let seat = |number: u32| {
        let (id, section, row) = (format!("A-{number}"), "stalls".into(), "A".into());
        Seat { id, section, row, number, price: 100 }
    };
    let layout = Layout { seats: (1..=seats).map(seat).collect(), areas: vec![] };
    let settings = EventSettings { per_buyer: 20, ..EventSettings::named("Gala") };
    let command = NewEvent { event_id: "ev".into(), settings, layout };
    ledger.create_event(LedgerCall::by("staff"), command).await.unwrap().value.event_id
}

/// A hold of this name and token.
pub(super) fn opening(name: &str, token: u64, buyer: &str, seats: &[u64]) -> OpenHold {
    let mut ids: Vec<String> = seats.iter().map(|number| format!("A-{number}")).collect();
    ids.sort();
    ids.dedup();
    OpenHold {
        event_id: "ev".into(),
        layout_version: 1,
        hold_id: name.into(),
        buyer: buyer.into(),
        key_hash: "key".into(),
        sealed_key: "sealed".into(),
        seats: ids.into_iter().map(|id| Priced { id, price: 100 }).collect(),
        areas: vec![],
        lease: LeaseRef { token, id: format!("lease {token}") },
        payment_ref: None,
    }
}

pub(super) fn call(key: &str) -> LedgerCall {
    LedgerCall { actor: "ada".into(), idem: Some(Idem::derive("ada", key, b"body")) }
}

pub(super) fn confirming(hold: &str) -> Confirm {
    Confirm {
        hold_id: hold.into(),
        access: Access::Staff,
        payment_ref: format!("pi {hold}"),
        tokens: vec![],
        proof: PaymentProof::Key { amount: None },
        callback: None,
    }
}

pub(super) fn releasing(hold: &str) -> ReleaseHold {
    ReleaseHold { hold_id: hold.into(), access: Access::Staff }
}

/// Numbers everything, and looks at every invariant.
pub(super) async fn check(ledger: &dyn Ledger) {
    while !ledger.sequence(1000).await.unwrap().is_empty() {}
    let dump = ledger.dump(&"ev".into()).await.unwrap().unwrap();
    let broken: Vec<_> = invariants(&dump).into_iter().filter(|check| !check.ok).collect();
    assert!(broken.is_empty(), "{broken:#?}");
}

/// Goal: servers that start at the same moment on an empty database make one set of tables.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_that_start_at_once_take_turns() {
    let database = cluster().database().await;
    let mut starts = tokio::task::JoinSet::new();
    for _ in 0..6 {
        let url = cluster().url(&database);
        starts.spawn(async move { Postgres::open(&url, PostgresOptions::default()).await });
    }
    let ledgers = starts.join_all().await;
    let ledgers: Vec<_> = ledgers.into_iter().map(|started| started.unwrap()).collect();
    make_event(&*ledgers[0], 3).await;
    for ledger in &ledgers {
        assert_eq!(ledger.events().await.unwrap().len(), 1);
    }
    let client = cluster().client(&database).await;
    let sql = "SELECT version FROM leasehold_boxoffice.schema_version";
    assert_eq!(client.query_one(sql, &[]).await.unwrap().get::<_, i64>(0), super::schema::MIGRATIONS.len() as i64);
}

/// Goal: a database of an older version becomes one of this, with all that is in it.
#[tokio::test]
async fn an_older_database_is_brought_up_to_date() {
    let database = cluster().database().await;
    let client = cluster().client(&database).await;
    let make = "CREATE SCHEMA leasehold_boxoffice; SET search_path TO leasehold_boxoffice";
    client.batch_execute(make).await.unwrap();
    client.batch_execute(super::schema::MIGRATIONS[0]).await.unwrap();
    let old = r#"CREATE TABLE schema_version (id INTEGER PRIMARY KEY, version BIGINT NOT NULL);
        INSERT INTO schema_version VALUES (1, 1);
        INSERT INTO hold_seats VALUES ('ev', 'A-1', 'h_1', 41);
        INSERT INTO sold_seats VALUES ('ev', 'A-2', 'o_1', 43, 100);
        INSERT INTO money VALUES ('pi', 'ev', 'refund_due', 7, 'BODY')"#;
    // A name that looks like a field is none, and a zero in a note is in nobody's way.
    let body = r#"{"payment_ref":"\"hold_id\":\"h_9\"","hold_id":"h_1","event_id":"ev","buyer":"ada","amount":100,
        "state":"refund_due","offer":null,"received_at":7,"steps":[{"at":7,"state":"refund_due","note":"a\u0000b"}]}"#;
    client.batch_execute(&old.replace("BODY", body)).await.unwrap();
    let ledger = open(cluster(), &database).await;
    // A server of the version before is still at work.
    client.batch_execute(&format!("INSERT INTO money VALUES ('pi_2', 'ev', 'refund_due', 7, '{body}')")).await.unwrap();
    let amounts = async |hold: &str| {
        let rows = ledger.money_of_hold(&hold.into()).await.unwrap();
        rows.iter().map(|row| row.amount).collect::<Vec<_>>()
    };
    assert_eq!((amounts("h_1").await, amounts("h_9").await), (vec![100, 100], vec![]));
    assert_eq!(ledger.highest_token().await.unwrap(), 43, "what is sold is remembered with its token");
    // The fence has LH001; what is not as decided is LH201 from now on.
    let wrong = client.query_one("SELECT exactly(1, 2, 'holds')", &[]).await.unwrap_err();
    assert_eq!(wrong.code().unwrap().code(), super::error::NOT_AS_DECIDED);
}

fn why(opened: Result<Arc<Postgres>, Error>) -> String {
    match opened.err().unwrap() {
        Error::Unavailable { source, .. } => source.to_string(),
        Error::Invalid(why) => why,
        other => panic!("{other:?}"),
    }
}

/// Goal: what cannot be a ledger is refused with a sentence that says what to change, and never with a password in it.
#[tokio::test]
async fn what_cannot_be_a_ledger_is_refused() {
    let database = cluster().database().await;
    let (url, options) = (cluster().url(&database), PostgresOptions::default());
    for (setting, value) in [("synchronous_commit", "off"), ("synchronous_commit", "local")] {
        let client = cluster().client(&database).await;
        client.batch_execute(&format!("ALTER DATABASE {database} SET {setting} = {value}")).await.unwrap();
        let refused = why(Postgres::open(&url, options.clone()).await);
        assert!(refused.contains(&format!("{setting} is {value}")) && refused.contains("set synchronous_commit = on"));
        client.batch_execute(&format!("ALTER DATABASE {database} RESET {setting}")).await.unwrap();
    }
    let ledger = open(cluster(), &database).await;
    ledger.close().await.unwrap();
    let client = cluster().client(&database).await;
    client.batch_execute("UPDATE leasehold_boxoffice.schema_version SET version = 99").await.unwrap();
    assert!(why(Postgres::open(&url, options.clone()).await).contains("newer version"));
    let secret = "postgres://ada:hunter2@127.0.0.1:1/none";
    assert!(!format!("{:?}", Postgres::open(secret, options.clone()).await.err().unwrap()).contains("hunter2"));
    let secret = "postgres://ada:hunter2@127.0.0.1:none/none";
    assert!(!format!("{:?}", Postgres::open(secret, options.clone()).await.err().unwrap()).contains("hunter2"));
}

/// Goal: a server whose settings are weakened while we run gets no new session, and those there are stay durable.
#[tokio::test]
async fn weakened_settings_are_noticed_by_every_connection() {
    let cluster = Cluster::start(&[]);
    let database = cluster.database().await;
    let ledger = open(&cluster, &database).await;
    make_event(&*ledger, 3).await;
    let client = cluster.client(&database).await;
    cluster.change_setting("synchronous_commit = off").await;
    let sql = "SELECT setting FROM pg_settings WHERE name = 'synchronous_commit'";
    loop {
        let fresh = cluster.client(&database).await;
        if fresh.query_one(sql, &[]).await.unwrap().get::<_, String>(0) == "off" {
            break;
        }
    }
    // The session there is goes on.
    ledger.open_hold(LedgerCall::by("ada"), opening("h_1", 1, "ada", &[1])).await.unwrap();
    let kill = "SELECT pg_terminate_backend(pid, 30000) FROM pg_stat_activity WHERE application_name LIKE 'leasehold%'";
    client.query(kill, &[]).await.unwrap();
    let refused = loop {
        // The first may still meet a session that has just ended.
        match ledger.open_hold(LedgerCall::by("ada"), opening("h_2", 2, "ada", &[2])).await {
            Err(Error::Unavailable { source, .. }) if source.to_string().contains("synchronous_commit") => {
                break source;
            }
            Err(Error::Unavailable { .. }) => {}
            other => panic!("{other:?}"),
        }
    };
    assert!(refused.to_string().contains("synchronous_commit is off"), "{refused}");
}

/// Goal: the unique constraint stands whatever the code above it does.
/// Method: the rows of a double sale are written by hand, past every decision.
#[tokio::test]
async fn the_table_itself_refuses_a_double_sale() {
    let database = cluster().database().await;
    let ledger = open(cluster(), &database).await;
    make_event(&*ledger, 3).await;
    ledger.open_hold(LedgerCall::by("ada"), opening("h_1", 1, "ada", &[1])).await.unwrap();
    ledger.confirm(LedgerCall::by("ada"), confirming("h_1")).await.unwrap();
    let client = cluster().client(&database).await;
    let sql = "INSERT INTO leasehold_boxoffice.sold_seats VALUES ('ev', 'A-1', 'o_2', 2, 1)";
    let twice = client.execute(sql, &[]).await.unwrap_err();
    assert_eq!(twice.code(), Some(&tokio_postgres::error::SqlState::UNIQUE_VIOLATION));
    // A seat that was sold behind our back, while it is held: the constraint ends the sale, and we say so.
    ledger.open_hold(LedgerCall::by("bob"), opening("h_2", 2, "bob", &[2, 3])).await.unwrap();
    let trigger = "CREATE FUNCTION leasehold_boxoffice.sneak() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN INSERT INTO leasehold_boxoffice.sold_seats VALUES ('ev', 'A-2', 'o_x', 9, 1); RETURN NULL; END $$;
        CREATE TRIGGER sneak AFTER INSERT ON leasehold_boxoffice.sold_seats FOR EACH ROW
            WHEN (NEW.seat_id = 'A-3') EXECUTE FUNCTION leasehold_boxoffice.sneak()";
    client.batch_execute(trigger).await.unwrap();
    let refused = ledger.confirm(LedgerCall::by("bob"), confirming("h_2")).await;
    assert!(matches!(&refused, Err(Error::Corrupt { law, .. }) if law.contains("constraint")), "{refused:?}");
    assert_eq!(ledger.orders(&"ev".into(), None, 10).await.unwrap().len(), 1, "nothing of it was stored");
    client.batch_execute("DROP TRIGGER sneak ON leasehold_boxoffice.sold_seats").await.unwrap();
    ledger.confirm(LedgerCall::by("bob"), confirming("h_2")).await.unwrap();
    check(&*ledger).await;
}

/// Goal: the moment is the server's clock, and a stepped clock does what the documentation says, and sells nothing twice.
#[tokio::test]
async fn the_clock_is_the_servers() {
    let database = cluster().database().await;
    let ledger = open(cluster(), &database).await;
    make_event(&*ledger, 3).await;
    let client = cluster().client(&database).await;
    let sql = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint";
    let before: i64 = client.query_one(sql, &[]).await.unwrap().get(0);
    let now = ledger.now().await.unwrap();
    let after: i64 = client.query_one(sql, &[]).await.unwrap().get(0);
    assert!((before - 1..=after).contains(&i64::try_from(now.0).unwrap()), "{before} {now:?} {after}");
    let ada = ledger.open_hold(LedgerCall::by("ada"), opening("h_1", 1, "ada", &[1])).await.unwrap();
    assert!(ada.now >= now && ada.value.hold.opened_at == ada.now);
    let step = async |to: Moment| set_moment(cluster(), &database, to.0).await;
    // A step forward: over early, by as much.
    step(ada.value.hold.expires_at).await;
    ledger.open_hold(LedgerCall::by("bob"), opening("h_2", 2, "bob", &[1])).await.unwrap();
    let refused = ledger.confirm(LedgerCall::by("ada"), confirming("h_1")).await;
    assert_eq!(refused.unwrap_err().refusal(), Some(&Refusal::Ended(HoldState::Lapsed)));
    // And back: what ended stays ended, and bob's hold lives longer, by as much.
    step(ada.now).await;
    let refused = ledger.confirm(LedgerCall::by("ada"), confirming("h_1")).await;
    assert_eq!(refused.unwrap_err().refusal(), Some(&Refusal::Ended(HoldState::Lapsed)));
    let (bob, seen) = ledger.hold(&"h_2".into()).await.unwrap();
    assert!(bob.unwrap().expires_at.since(seen) > 300_000);
    ledger.confirm(LedgerCall::by("bob"), confirming("h_2")).await.unwrap();
    check(&*ledger).await;
}

/// Goal: the number of round trips is what the module says: two for a new hold, three for what names a hold, and a
/// crowd shares them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn round_trips_are_few() {
    let database = cluster().database().await;
    let ledger = open(cluster(), &database).await;
    make_event(&*ledger, 200).await;
    let mut before = ledger.round_trips();
    let mut took = || {
        let now = ledger.round_trips();
        std::mem::replace(&mut before, now).abs_diff(now)
    };
    ledger.open_hold(call("k"), opening("h_1", 1, "ada", &[1, 2, 3, 4, 5])).await.unwrap();
    assert_eq!(took(), 2, "opening a hold");
    let renew = RenewHold { hold_id: "h_1".into(), access: Access::Staff, tokens: vec![1] };
    ledger.renew(LedgerCall::by("ada"), renew).await.unwrap();
    assert_eq!(took(), 3, "renewing");
    ledger.confirm(LedgerCall::by("ada"), confirming("h_1")).await.unwrap();
    assert_eq!(took(), 3, "selling");
    ledger.snapshot(&"ev".into()).await.unwrap();
    assert_eq!(took(), 1, "a picture");
    ledger.open_hold(LedgerCall::by("bob"), opening("h_2", 2, "bob", &[1])).await.unwrap_err();
    assert_eq!(took(), 2, "a refusal");
    let crowd: Vec<_> = (11..=110)
        .map(|n| ledger.open_hold(LedgerCall::by("crowd"), opening(&format!("h_{n}"), n, &format!("b{n}"), &[n])))
        .collect();
    for answer in crowd {
        answer.await.unwrap();
    }
    let round_trips = took();
    assert!(round_trips < 100, "a hundred holds took {round_trips} round trips");
    check(&*ledger).await;
}

/// How long a test waits for what must come.
pub(super) const TEST_TIMEOUT: Duration = Duration::from_secs(30);
