//! The suite, and what only this ledger promises.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::clock::Time as BootTime;
use leasehold::testkit::ManualClock;

use super::Sqlite;
use crate::error::Error;
use crate::ledger::Ledger;
use crate::ledger::suite::{LedgerSubject, SuiteFuture};
use crate::model::{EventId, EventSettings, LedgerCall, Moment, MoneyRow, MoneyState, NewEvent};

/// SQLite in a directory of its own, under a clock set by hand.
struct InFile {
    clock: ManualClock,
    dirs: Mutex<Vec<tempfile::TempDir>>,
}

impl InFile {
    fn new() -> Self {
        Self { clock: ManualClock::new(), dirs: Mutex::default() }
    }

    fn path(&self) -> PathBuf {
        self.dirs.lock().unwrap().last().unwrap().path().join("ledger.db")
    }

    async fn open(&self) -> Arc<dyn Ledger> {
        Sqlite::open(self.path(), self.clock.shared()).await.unwrap()
    }
}

impl LedgerSubject for InFile {
    fn fresh(&self) -> SuiteFuture<'_, Arc<dyn Ledger>> {
        self.dirs.lock().unwrap().push(tempfile::tempdir().unwrap());
        Box::pin(self.open())
    }

    fn advance_time(&self, millis: u64) -> SuiteFuture<'_, ()> {
        self.clock.advance(Duration::from_millis(millis));
        Box::pin(async {})
    }

    fn unit_ms(&self) -> u64 {
        1000
    }

    fn reopen(&self) -> SuiteFuture<'_, Arc<dyn Ledger>> {
        Box::pin(self.open())
    }
}

mod suite {
    crate::ledger_tests!(super::InFile::new());
}

fn event(id: &str) -> NewEvent {
    NewEvent { event_id: id.into(), settings: EventSettings::named(id), layout: Default::default() }
}

/// Goal: after another boot time goes on where it was written down, however the new boot's clock stands.
#[tokio::test]
async fn another_boot_loses_no_time_that_was_proven_and_adds_none() {
    let subject = InFile::new();
    let ledger = subject.fresh().await;
    subject.advance_time(50_000).await;
    let kept = ledger.create_event(LedgerCall::by("staff"), event("ev")).await.unwrap().now;
    subject.advance_time(20_000).await;
    ledger.close().await.unwrap();
    subject.clock.set_boot([9; 16]);
    subject.clock.set(BootTime::from_millis(5_000));
    let ledger = subject.reopen().await;
    assert_eq!(ledger.now().await.unwrap(), kept, "the twenty seconds cannot be proven");
    subject.advance_time(1_000).await;
    assert_eq!(ledger.now().await.unwrap(), kept.plus(1_000));
    // The same boot id with a lower clock is another boot too.
    ledger.create_event(LedgerCall::by("staff"), event("ev2")).await.unwrap();
    ledger.close().await.unwrap();
    subject.clock.set(BootTime::from_millis(1));
    assert_eq!(subject.reopen().await.now().await.unwrap(), kept.plus(1_000));
}

/// Goal: the unique constraint stands whatever the code above it does.
/// Method: the rows of a double sale are written by hand, past every decision.
#[tokio::test]
async fn the_table_itself_refuses_a_double_sale() {
    let subject = InFile::new();
    let ledger = subject.fresh().await;
    ledger.create_event(LedgerCall::by("staff"), event("ev")).await.unwrap();
    let db = rusqlite::Connection::open(subject.path()).unwrap();
    let sell = |order: &str| {
        let sql = "INSERT INTO sold_seats (event_id, seat_id, order_id, token, price) VALUES ('ev', 'A-1', ?1, 1, 1)";
        db.execute(sql, [order])
    };
    sell("o_1").unwrap();
    let twice = sell("o_2").unwrap_err().to_string();
    assert!(twice.contains("UNIQUE constraint failed: sold_seats.event_id, sold_seats.seat_id"), "{twice}");
}

/// Goal: a file of an older version becomes one of this, with all that is in it.
#[tokio::test]
async fn an_older_file_is_brought_up_to_date() {
    let subject = InFile::new();
    subject.dirs.lock().unwrap().push(tempfile::tempdir().unwrap());
    let db = rusqlite::Connection::open(subject.path()).unwrap();
    db.execute_batch(super::schema::MIGRATIONS[0]).unwrap();
    db.execute_batch("CREATE TABLE schema_version (id INTEGER PRIMARY KEY, version INTEGER NOT NULL)").unwrap();
    db.execute_batch("INSERT INTO schema_version VALUES (1, 1)").unwrap();
    let money = money_of("h_1");
    let body = serde_json::to_string(&money).unwrap();
    db.execute("INSERT INTO money VALUES ('pi', 'ev', 'refund_due', 7, ?1)", [body]).unwrap();
    db.execute("INSERT INTO hold_seats VALUES ('ev', 'A-1', 'h_1', 41)", []).unwrap();
    db.execute("INSERT INTO sold_seats VALUES ('ev', 'A-2', 'o_1', 43, 100)", []).unwrap();
    drop(db);
    let ledger = Sqlite::open(subject.path(), subject.clock.shared()).await.unwrap();
    assert_eq!(ledger.highest_token().await.unwrap(), 43, "what is sold is remembered with its token");
    let db = rusqlite::Connection::open(subject.path()).unwrap();
    let held = "SELECT count(*) FROM hold_seats WHERE hold_id = 'h_1' AND token = 41";
    assert_eq!(db.query_row(held, [], |row| row.get::<_, u64>(0)).unwrap(), 1);
    assert_eq!(ledger.money_of_hold(&"h_1".into()).await.unwrap(), [money]);
    assert_eq!(ledger.money_of_hold(&"h_2".into()).await.unwrap(), []);
    ledger.close().await.unwrap();
}

/// Money as an older version has written it.
fn money_of(hold: &str) -> MoneyRow {
    MoneyRow {
        payment_ref: "pi".into(),
        part: String::new(),
        order_id: None,
        hold_id: hold.into(),
        event_id: "ev".into(),
        buyer: "ada".into(),
        amount: 100,
        more: 0,
        state: MoneyState::RefundDue,
        offer: None,
        received_at: Moment(7),
        steps: vec![],
        source: None,
    }
}

/// Goal: a file of a newer version, and a file that is none, are refused with a sentence.
#[tokio::test]
async fn a_file_that_cannot_be_ours_is_refused() {
    let subject = InFile::new();
    subject.fresh().await.close().await.unwrap();
    let db = rusqlite::Connection::open(subject.path()).unwrap();
    db.execute_batch("UPDATE schema_version SET version = 99").unwrap();
    drop(db);
    let newer = Sqlite::open(subject.path(), subject.clock.shared()).await.err().unwrap();
    assert!(
        matches!(&newer, Error::Unavailable { source, .. } if source.to_string().contains("newer version")),
        "{newer:?}"
    );
    std::fs::write(subject.path(), vec![7; 8192]).unwrap();
    let noise = Sqlite::open(subject.path(), subject.clock.shared()).await.err().unwrap();
    assert!(matches!(noise, Error::Corrupt { .. }), "{noise:?}");
}

/// Goal: one process at a time.
#[tokio::test]
async fn a_ledger_in_use_is_refused() {
    let subject = InFile::new();
    let ledger = subject.fresh().await;
    let second = Sqlite::open(subject.path(), subject.clock.shared()).await.err().unwrap();
    assert!(matches!(&second, Error::Unavailable { source, .. } if source.to_string().contains("another process")));
    ledger.close().await.unwrap();
    subject.reopen().await;
}

/// Goal: the file, which holds lease ids, is for its owner alone.
#[tokio::test]
async fn the_file_is_private() {
    use std::os::unix::fs::PermissionsExt as _;
    let subject = InFile::new();
    let ledger = subject.fresh().await;
    ledger.create_event(LedgerCall::by("staff"), event("ev")).await.unwrap();
    for entry in std::fs::read_dir(subject.path().parent().unwrap()).unwrap() {
        let entry = entry.unwrap();
        let mode = entry.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{:?}", entry.file_name());
    }
}

/// Goal: many requests share one commit.
/// Method: a crowd of writes that arrive while the writer is busy; far fewer commits than writes.
#[tokio::test(flavor = "multi_thread")]
async fn many_requests_share_a_commit() {
    let subject = InFile::new();
    subject.fresh().await.close().await.unwrap();
    let ledger = Sqlite::open(subject.path(), subject.clock.shared()).await.unwrap();
    let answers: Vec<_> =
        (0..200).map(|n| ledger.create_event(LedgerCall::by("staff"), event(&format!("ev{n}")))).collect();
    for answer in answers {
        answer.await.unwrap();
    }
    assert_eq!(ledger.events().await.unwrap().len(), 200);
    assert!(ledger.commits() < 150, "{} commits for 200 requests", ledger.commits());
    assert_eq!(ledger.event(&EventId::from("ev199")).await.unwrap().unwrap().settings.name, "ev199");
}

/// Goal: a figure, not a verdict: two-seat holds and releases of 64 buyers on a 20,000-seat event, by the machine's
/// clock. Run it by hand, in release: `cargo test --release -p leasehold-boxoffice -- --ignored --nocapture figure`.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
#[ignore = "a measurement, for a quiet machine"]
async fn figure_of_transactions_per_second() {
    use crate::layout::{Layout, Seat};
    use crate::model::{Access, LeaseRef, OpenHold, Priced, ReleaseHold};
    use leasehold::clock::{Clock, SystemClock};
    let dir = tempfile::tempdir().unwrap();
    let ledger = Sqlite::open(dir.path().join("ledger.db"), SystemClock::shared()).await.unwrap();
    let seat = |n: u32| Seat {
        id: format!("S-{n:05}"),
        section: "s".into(),
        row: format!("{}", n / 100),
        number: n % 100,
        price: 100,
    };
    let layout = Layout { seats: (0..20_000).map(seat).collect(), areas: vec![] };
    let settings = EventSettings::named("bench");
    ledger.create_event(LedgerCall::by("staff"), NewEvent { event_id: "ev".into(), settings, layout }).await.unwrap();
    let until = SystemClock.now().plus(Duration::from_secs(5));
    let mut tasks = tokio::task::JoinSet::new();
    for buyer in 0..64u64 {
        let ledger = ledger.clone();
        tasks.spawn(async move {
            let mut done = 0u64;
            while SystemClock.now() < until {
                let token = 1 + buyer + 64 * done;
                let first = (buyer * 300 + done * 2) % 20_000;
                let priced = |n: u64| Priced { id: format!("S-{:05}", n % 20_000), price: 100 };
                let hold_id = crate::model::HoldId(format!("h_{done:08}-{buyer}"));
                let command = OpenHold {
                    event_id: "ev".into(),
                    layout_version: 1,
                    hold_id: hold_id.clone(),
                    buyer: format!("b{buyer}").as_str().into(),
                    key_hash: String::new(),
                    sealed_key: String::new(),
                    seats: vec![priced(first), priced(first + 1)],
                    areas: vec![],
                    lease: LeaseRef { token, id: "lease".into() },
                    payment_ref: None,
                };
                if ledger.open_hold(LedgerCall::by("b"), command).await.is_ok() {
                    ledger.release(LedgerCall::by("b"), ReleaseHold { hold_id, access: Access::Staff }).await.unwrap();
                    done += 1;
                }
            }
            done
        });
    }
    let mut pairs = 0;
    while let Some(done) = tasks.join_next().await {
        pairs += done.unwrap();
    }
    println!("{} transactions per second, {} commits per second", pairs * 2 / 5, ledger.commits() / 5);
}

/// A clock that goes on by a second whenever it is read.
struct RestlessClock(std::sync::atomic::AtomicU64);

impl leasehold::clock::Clock for RestlessClock {
    fn now(&self) -> BootTime {
        BootTime::from_millis(self.0.fetch_add(1000, std::sync::atomic::Ordering::SeqCst))
    }

    fn boot(&self) -> [u8; 16] {
        [1; 16]
    }

    fn sleep_until(&self, _: BootTime) -> std::pin::Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(std::future::ready(()))
    }

    fn on_step(&self, _: Box<dyn Fn() + Send + Sync>) {}
}

/// Goal: time that passes while the clock is written down is not counted twice.
#[tokio::test]
async fn the_clock_is_kept_from_one_reading() {
    let db = rusqlite::Connection::open_in_memory().unwrap();
    db.execute_batch("CREATE TABLE clock (id INTEGER PRIMARY KEY, boot BLOB, boottime INTEGER, moment INTEGER)")
        .unwrap();
    let time = super::clock::LedgerClock::open(&db, Arc::new(RestlessClock(50_000.into()))).unwrap();
    time.persist(&db).unwrap();
    let kept: (u64, u64) =
        db.query_row("SELECT boottime, moment FROM clock", [], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
    assert_eq!(kept, (51_000, 1_000));
}

/// Goal: a request that panics undoes what was batched with it, and the ledger goes on.
#[tokio::test]
async fn a_panic_does_not_end_the_ledger() {
    let subject = InFile::new();
    subject.fresh().await.close().await.unwrap();
    let ledger = Sqlite::open(subject.path(), subject.clock.shared()).await.unwrap();
    let fell: Result<(), Error> = ledger
        .write("falling", |db, _| {
            db.execute("INSERT INTO callbacks VALUES ('half done')", [])?;
            panic!("on purpose")
        })
        .await;
    assert!(matches!(fell, Err(Error::Indeterminate { .. })), "{fell:?}");
    ledger.create_event(LedgerCall::by("staff"), event("ev")).await.unwrap();
    let db = rusqlite::Connection::open(subject.path()).unwrap();
    let left: u64 = db.query_row("SELECT count(*) FROM callbacks", [], |row| row.get(0)).unwrap();
    assert_eq!(left, 0);
}

/// Goal: a webhook is removed with all that is known of it, or not at all. Method: the table refuses the second half.
#[tokio::test]
async fn a_webhook_is_removed_whole() {
    let subject = InFile::new();
    let ledger = subject.fresh().await;
    let url = "https://example.com/".into();
    let webhook = crate::model::WebhookRow { id: "w".into(), event_id: None, url, secret: "s".into(), active: true };
    ledger.add_webhook(webhook.clone(), 1).await.unwrap();
    ledger.advance_webhook("w", &"ev".into(), 7).await.unwrap();
    let db = rusqlite::Connection::open(subject.path()).unwrap();
    db.execute_batch("CREATE TRIGGER no BEFORE DELETE ON webhooks BEGIN SELECT RAISE(FAIL, 'no'); END").unwrap();
    ledger.remove_webhook(&webhook).await.unwrap_err();
    assert_eq!(ledger.webhook_cursor("w", &"ev".into()).await.unwrap(), 7);
}

/// Goal: who follows events does not wait behind a crowd that reads. Method: all turns of the crowd are taken, and not
/// given back before the follower was answered.
#[tokio::test(flavor = "multi_thread")]
async fn who_follows_does_not_wait_behind_a_crowd() {
    let subject = InFile::new();
    subject.fresh().await.close().await.unwrap();
    let ledger = Sqlite::open(subject.path(), subject.clock.shared()).await.unwrap();
    ledger.create_event(LedgerCall::by("staff"), event("ev")).await.unwrap();
    let (open, gate) = std::sync::mpsc::channel::<()>();
    let gate = Arc::new(Mutex::new(gate));
    let reader = |_| {
        let (ledger, gate) = (ledger.clone(), gate.clone());
        tokio::spawn(async move {
            let wait = move |_: &rusqlite::Connection, _| {
                let _ = gate.lock().unwrap().recv();
                Ok(())
            };
            ledger.read("waiting", wait).await
        })
    };
    let mut crowd: Vec<_> = (0..2 * super::MAX_READS).map(reader).collect();
    while ledger.read_permits.available_permits() > 0 {
        tokio::task::yield_now().await;
    }
    let id: EventId = "ev".into();
    let follow = async {
        assert!(ledger.heads().await.unwrap().is_empty(), "nothing is numbered yet");
        assert!(ledger.audit(&id, crate::model::AuditQuery::default()).await.unwrap().is_empty());
        assert!(ledger.layout(&id).await.unwrap().is_some());
    };
    tokio::time::timeout(Duration::from_secs(30), follow).await.expect("it waits behind the crowd");
    // Nor behind those who read what happened, as every page does that was away.
    let away = |_| {
        let (ledger, gate) = (ledger.clone(), gate.clone());
        tokio::spawn(async move {
            let wait = move |_: &rusqlite::Connection, _| {
                let _ = gate.lock().unwrap().recv();
                Ok(())
            };
            ledger.read_entries("waiting", wait).await
        })
    };
    crowd.extend((0..2 * super::MAX_ENTRY_READS).map(away));
    while ledger.entry_permits.available_permits() > 0 {
        tokio::task::yield_now().await;
    }
    let follow = async {
        assert!(ledger.heads().await.unwrap().is_empty(), "nothing is numbered yet");
        assert!(ledger.layout(&id).await.unwrap().is_some());
    };
    tokio::time::timeout(Duration::from_secs(30), follow).await.expect("it waits behind the pages");
    drop(open);
    for read in crowd {
        read.await.unwrap().unwrap();
    }
}
