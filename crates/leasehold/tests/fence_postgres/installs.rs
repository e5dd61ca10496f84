//! Installs: what is printed, what is repeated, under traffic, side by side, on a subscriber.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use leasehold::fence::HoleKind;
use leasehold::fence::postgres::{FenceMode, InstallOptions, Remember, examine, install, plan_install, remove};

use crate::support::{ADA, BOB, Database, Fenced, PATIENCE, SEATS, cluster, options, outcome, under_token};

const WRITE: &str = "UPDATE seats SET owner = 'x' WHERE seat_id = 14";

/// Goal: a plan changes nothing, and its text, run by hand, is the install.
#[tokio::test]
async fn a_plan_changes_nothing_and_is_the_install() {
    for fenced in Fenced::ALL {
        let database = Database::new(SEATS).await;
        let plan = plan_install(&database.admin, &fenced.options()).await.unwrap();
        assert_eq!(database.value("SELECT to_regnamespace('leasehold_fence')::text").await, "none");
        database.admin.batch_execute(&plan.sql_text()).await.unwrap();
        assert_eq!(database.holes().await, [], "{fenced:?}");
        assert_eq!(database.write(BOB, WRITE).await, "ok");
        assert_eq!(database.write(ADA, WRITE).await, "LH001");
        let again = database.install(&fenced.options()).await;
        assert_eq!(again.statements, [""; 0], "{fenced:?}: nothing to do");
        assert_eq!(again.guard, plan.guard);
    }
}

/// Goal: observing counts, logs and lets pass; enforcing afterwards takes no lock on the table, if no row has to be lifted.
#[tokio::test]
async fn observing_lets_pass_and_enforcing_needs_no_lock() {
    for fenced in Fenced::ALL {
        let database = Database::new(SEATS).await;
        let observe = InstallOptions { mode: FenceMode::Observe, ..fenced.options() };
        database.install(&observe).await;
        assert_eq!(database.write("", WRITE).await, "ok", "{fenced:?}");
        assert_eq!(database.write(BOB, WRITE).await, "ok", "{fenced:?}");
        assert_eq!(database.write(ADA, WRITE).await, "ok", "{fenced:?}: seen, and let pass");
        assert_eq!(
            database.write("", "INSERT INTO seats VALUES (70, 'x'); DELETE FROM seats WHERE seat_id = 70").await,
            "ok"
        );
        let table = examine(&database.admin, true).await.unwrap().tables.remove(0);
        assert!(table.rejected >= 4, "{fenced:?}: {table:?}");
        assert_eq!(table.highest.map(leasehold::Token::get), Some(42), "{fenced:?}: the fence did not fall");

        let busy = database.client().await;
        busy.batch_execute(
            "BEGIN; SELECT set_config('leasehold.token', '43', true); LOCK TABLE seats IN ROW EXCLUSIVE MODE",
        )
        .await
        .unwrap();
        let report = database.install(&fenced.options()).await;
        assert_eq!((report.attempts, report.statements.len()), (1, 1), "{fenced:?}: {report:?}");
        busy.batch_execute("ROLLBACK").await.unwrap();
        assert_eq!(database.write(ADA, WRITE).await, "LH001", "{fenced:?}");
    }
}

/// Goal: what came while a fence only observed does not let a stale writer in once it enforces.
/// Method: Bob deletes a row and makes another one; a stale writer, and one that shows nothing, make them again while it
/// observes. A row that nobody touched stays as it was.
#[tokio::test]
async fn rows_that_came_while_observing_are_lifted() {
    for fenced in [Fenced::Row, Fenced::Keyed] {
        let database = Database::new(SEATS).await;
        database.install(&InstallOptions { mode: FenceMode::Observe, ..fenced.options() }).await;
        assert_eq!(database.write(BOB, "DELETE FROM seats WHERE seat_id IN (1, 2, 3)").await, "ok");
        assert_eq!(database.write(ADA, "INSERT INTO seats VALUES (1, 'ada')").await, "ok", "{fenced:?}: observed");
        assert_eq!(database.write("", "INSERT INTO seats VALUES (2, 'nobody')").await, "ok", "{fenced:?}: observed");
        assert_eq!(
            database.write("", "UPDATE seats SET seat_id = 3 WHERE seat_id = 4").await,
            "ok",
            "{fenced:?}: moved"
        );
        let below = database.holes().await.contains(&HoleKind::RowsBelow);
        assert_eq!(below, fenced == Fenced::Row, "{fenced:?}");
        database.install(&fenced.options()).await;
        assert_eq!(database.holes().await, [], "{fenced:?}");
        for seat in 1..=3 {
            let write = format!("UPDATE seats SET owner = 'late' WHERE seat_id = {seat}");
            assert_eq!(database.write(ADA, &write).await, "LH001", "{fenced:?}: seat {seat}");
            assert_eq!(database.write("7", &write).await, "LH001", "{fenced:?}: seat {seat}");
            assert_eq!(database.write(BOB, &write).await, "ok", "{fenced:?}: seat {seat}");
        }
        assert_eq!(database.write(ADA, "UPDATE seats SET owner = 'x' WHERE seat_id = 5").await, "ok", "{fenced:?}");
    }
}

/// Goal: rows are lifted under the user's own triggers and constraints; where these undo it, nothing is installed.
#[tokio::test]
async fn rows_are_lifted_whatever_hangs_on_the_table() {
    let function = |body: &str| {
        format!("CREATE FUNCTION user_trigger() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body} END $$;")
    };
    let deferred = function("RETURN NULL;")
        + "CREATE CONSTRAINT TRIGGER late AFTER INSERT OR UPDATE ON seats DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
            EXECUTE FUNCTION user_trigger();";
    let child = "CREATE TABLE vip () INHERITS (seats); ALTER TABLE vip ADD PRIMARY KEY (seat_id); INSERT INTO vip VALUES (14, 'vip')";
    let undone = function("RETURN NULL;")
        + "CREATE TRIGGER a_before BEFORE UPDATE ON seats FOR EACH ROW EXECUTE FUNCTION user_trigger();";
    for (extra, lifted) in [(deferred.as_str(), true), (child, true), (undone.as_str(), false)] {
        let database = Fenced::Row.database().await;
        assert_eq!(database.write(BOB, "DELETE FROM seats WHERE seat_id = 14").await, "ok");
        remove(&mut database.client().await, "seats", false).await.unwrap();
        database.admin.batch_execute("INSERT INTO seats VALUES (14, 'free')").await.unwrap();
        database.admin.batch_execute(extra).await.unwrap();
        if extra == child {
            database.install(&InstallOptions { table: "vip".into(), ..Fenced::Row.options() }).await;
        }
        let installed = install(&mut database.client().await, &Fenced::Row.options()).await;
        assert_eq!(installed.is_ok(), lifted, "{extra}: {installed:?}");
        if lifted {
            assert!(!database.holes().await.contains(&HoleKind::RowsBelow), "{extra}");
            assert_eq!(
                database.write(ADA, "UPDATE ONLY seats SET owner = 'x' WHERE seat_id = 14").await,
                "LH001",
                "{extra}"
            );
        }
    }
}

/// Goal: who still writes while a fence observes is waited for before it enforces, where that may leave a row that remembers
/// too little.
#[tokio::test]
async fn observed_writers_are_waited_for() {
    let database = Database::new(SEATS).await;
    database.install(&InstallOptions { mode: FenceMode::Observe, ..Fenced::Row.options() }).await;
    assert_eq!(database.write(BOB, "DELETE FROM seats WHERE seat_id = 14").await, "ok");
    let writer = database.client().await;
    writer.batch_execute("BEGIN; INSERT INTO seats VALUES (14, 'nobody')").await.unwrap();
    let old = database.client().await;
    old.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM leasehold_fence.fenced")
        .await
        .unwrap();
    let commit = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_secs(1)).await;
        writer.batch_execute("COMMIT").await.unwrap();
    });
    let report = database.install(&Fenced::Row.options()).await;
    commit.await.unwrap();
    assert!(report.attempts > 1, "it waited: {report:?}");
    assert_eq!(database.holes().await, []);
    assert_eq!(database.write(ADA, WRITE).await, "LH001");
    // A snapshot from before knows only that it observes.
    let late = old.batch_execute("UPDATE seats SET owner = 'late' WHERE seat_id = 3").await;
    assert_eq!(outcome(&late), "40001");
}

/// Goal: the columns that a trigger compares are those of the keys, also after columns were renamed.
#[tokio::test]
async fn a_column_that_took_the_name_of_a_key_is_found() {
    let database = Fenced::Row.database().await;
    let swap = "ALTER TABLE seats ADD COLUMN new_id int; ALTER TABLE seats DISABLE TRIGGER zz_leasehold_fence;
        UPDATE seats SET new_id = seat_id; ALTER TABLE seats ENABLE ALWAYS TRIGGER zz_leasehold_fence;
        ALTER TABLE seats ALTER COLUMN new_id SET NOT NULL, ADD UNIQUE (new_id);
        ALTER TABLE seats RENAME COLUMN seat_id TO old_id; ALTER TABLE seats RENAME COLUMN new_id TO seat_id";
    database.admin.batch_execute(swap).await.unwrap();
    assert_eq!(database.holes().await, [HoleKind::TriggerChanged]);
    database.install(&Fenced::Row.options()).await;
    assert_eq!(database.holes().await, []);
}

/// Goal: where two rows may have one name, the name remembers, not the rows.
#[tokio::test]
async fn rows_that_share_a_name_share_its_memory() {
    let sql = "CREATE TABLE places (a int, b int, owner text, PRIMARY KEY (a, b));
        INSERT INTO places VALUES (1, 23, 'free'), (12, 3, 'free')";
    let database = Database::new(sql).await;
    let by_row = options("places", &["a", "b"], "x/{a}{b}", Remember::Row);
    assert!(database.refuses_install(&by_row).await.contains("one name"));
    let report = database.install(&InstallOptions { remember: None, ..by_row }).await;
    assert_eq!(report.store, Remember::Name);
    assert_eq!(database.write(BOB, "UPDATE places SET owner = 'bob' WHERE a = 1").await, "ok");
    assert_eq!(database.write(ADA, "UPDATE places SET owner = 'ada' WHERE a = 12").await, "LH001");
}

/// Goal: the counters are real numbers: refused writes survive their rollback, admitted rows are counted from the install.
#[tokio::test]
async fn refused_and_admitted_writes_are_counted() {
    for fenced in Fenced::ALL {
        let database = fenced.database().await;
        let one_connection = database.client().await;
        for _ in 0..3 {
            assert_eq!(outcome(&under_token(&one_connection, BOB, WRITE).await), "ok");
        }
        for _ in 0..5 {
            assert_eq!(outcome(&under_token(&one_connection, ADA, WRITE).await), "LH001");
        }
        drop(one_connection);
        let deadline = Instant::now() + PATIENCE;
        loop {
            let table = examine(&database.admin, true).await.unwrap().tables.remove(0);
            assert_eq!(table.rejected, 5, "{fenced:?}");
            // The statistics of a session come with a delay.
            if table.admitted >= 3 {
                // Rows of before may come late, too.
                assert!(table.admitted <= 8 + 20, "{fenced:?}: {table:?}");
                break;
            }
            assert!(Instant::now() < deadline, "{fenced:?}: {table:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// Goal: a fence comes to a busy table: writers are held up briefly, and none of them fails for it.
/// Method: writers that show a token from the start, and a transaction that keeps the table for two seconds.
#[tokio::test]
async fn a_fence_is_installed_under_traffic() {
    for fenced in [Fenced::Row, Fenced::Keyed] {
        let database = Arc::new(Database::new(SEATS).await);
        let (stop, written) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let writers: Vec<_> = (1..=4)
            .map(|seat| {
                let (database, stop, written) = (database.clone(), stop.clone(), written.clone());
                tokio::spawn(async move {
                    let client = database.client().await;
                    let mut longest = Duration::ZERO;
                    while !stop.load(Ordering::Relaxed) {
                        let began = Instant::now();
                        let sql = format!("UPDATE seats SET owner = owner || 'x' WHERE seat_id = {seat}");
                        under_token(&client, BOB, &sql).await.unwrap_or_else(|error| panic!("{error:?}"));
                        longest = longest.max(began.elapsed());
                        written.fetch_add(1, Ordering::Relaxed);
                    }
                    longest
                })
            })
            .collect();
        let holder = database.client().await;
        holder.batch_execute("BEGIN; SELECT set_config('leasehold.token', '42', true); UPDATE seats SET owner = 'h' WHERE seat_id = 20").await.unwrap();
        let release = tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(2)).await;
            holder.batch_execute("COMMIT").await.unwrap();
        });
        let report = database.install(&fenced.options()).await;
        release.await.unwrap();
        let before = written.load(Ordering::Relaxed);
        while written.load(Ordering::Relaxed) < before + 20 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        stop.store(true, Ordering::Relaxed);
        for writer in writers {
            let longest = writer.await.unwrap();
            println!("{fenced:?}: installed at attempt {}, longest write {longest:?}", report.attempts);
        }
        assert!(report.attempts > 1, "{fenced:?}: the table was held");
        assert_eq!(database.write(ADA, "UPDATE seats SET owner = 'x' WHERE seat_id = 1").await, "LH001", "{fenced:?}");
    }
}

/// Goal: installs side by side do not hurt each other, on other tables and on one table.
#[tokio::test]
async fn installs_run_side_by_side() {
    let tables: String = (0..6).map(|at| format!("CREATE TABLE t{at} (id int PRIMARY KEY);")).collect();
    let database = Arc::new(Database::new(&tables).await);
    let installs: Vec<_> = [0, 1, 2, 3, 4, 5, 0, 0, 0]
        .into_iter()
        .map(|at| {
            let database = database.clone();
            tokio::spawn(async move {
                let chosen = options(&format!("t{at}"), &["id"], &format!("t{at}/{{}}"), Remember::Row);
                install(&mut database.client().await, &chosen).await.unwrap().guard
            })
        })
        .collect();
    let mut guards = Vec::new();
    for install in installs {
        guards.push(install.await.unwrap());
    }
    assert!(guards[6..].iter().all(|guard| *guard == guards[0]), "{guards:?}");
    assert_eq!(database.holes().await, []);
    assert_eq!(database.value("SELECT count(*)::text FROM leasehold_fence.fenced").await, "6");
}

/// Goal: what cannot be fenced gets a sentence that says what to do.
#[tokio::test]
async fn bad_installs_get_a_sentence() {
    let database = Database::new(SEATS).await;
    let seats = Fenced::Row.options();
    for (chosen, part) in [
        (InstallOptions { table: "nowhere".into(), ..seats.clone() }, "no table nowhere"),
        (InstallOptions { keys: vec!["nowhere".into()], ..seats.clone() }, "no column nowhere"),
        (InstallOptions { keys: Vec::new(), resource: None, ..seats.clone() }, "--key"),
        (InstallOptions { resource: Some("seat/{owner}".into()), ..seats.clone() }, "not in --key"),
        (InstallOptions { resource: Some("billing".into()), ..seats.clone() }, "one name for the whole table"),
        (InstallOptions { resource: Some("a\tb".into()), ..seats.clone() }, "control characters"),
    ] {
        let sentence = database.refuses_install(&chosen).await;
        assert!(sentence.contains(part), "{sentence}");
    }
    let named = InstallOptions { resource: None, remember: None, ..seats };
    assert_eq!(database.install(&named).await.resource, "seats/{}");
}

/// Goal: on a subscriber replicated writes pass, and local ones are fenced. A subscription to a table that was fenced before
/// it would stand still: that is found, and a second install mends it.
#[tokio::test]
async fn a_subscriber_is_fenced_against_local_writes_only() {
    let (publisher, subscriber) =
        (Database::new(SEATS).await, Database::new("CREATE TABLE seats (seat_id int PRIMARY KEY, owner text)").await);
    let slot = format!("slot_{}", subscriber.name);
    publisher.admin.batch_execute("CREATE PUBLICATION p FOR TABLE seats").await.unwrap();
    let make_slot = format!("SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')");
    publisher.admin.batch_execute(&make_slot).await.unwrap();
    let source = format!("host=127.0.0.1 port={} user=postgres dbname={}", cluster().port(), publisher.name);
    // In one cluster the slot must be made first, or the subscription would wait for itself.
    let subscribe = format!(
        "CREATE SUBSCRIPTION {slot} CONNECTION '{source}' PUBLICATION p WITH (create_slot = false, slot_name = '{slot}')"
    );
    subscriber.install(&Fenced::Keyed.options()).await;
    subscriber.admin.batch_execute(&subscribe).await.unwrap();
    assert_eq!(subscriber.holes().await, [HoleKind::TriggerChanged], "the apply worker would be refused");
    let report = subscriber.install(&Fenced::Keyed.options()).await;
    assert!(report.notes.iter().any(|note| note.contains("subscription")), "{:?}", report.notes);
    let arrived = async |owner: &str| {
        let deadline = Instant::now() + PATIENCE;
        while subscriber.value("SELECT owner FROM seats WHERE seat_id = 14").await != owner {
            assert!(Instant::now() < deadline, "{owner} never came");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    arrived("free").await;
    assert_eq!(subscriber.holes().await, []);
    publisher.admin.batch_execute("UPDATE seats SET owner = 'ada' WHERE seat_id = 14").await.unwrap();
    arrived("ada").await;
    assert_eq!(subscriber.write("", WRITE).await, "LH002");
    let end = format!(
        "ALTER SUBSCRIPTION {slot} DISABLE; ALTER SUBSCRIPTION {slot} SET (slot_name = NONE); DROP SUBSCRIPTION {slot}"
    );
    for statement in end.split(';') {
        subscriber.admin.batch_execute(statement).await.unwrap();
    }
    let drop_slot = format!("SELECT pg_drop_replication_slot('{slot}')");
    while publisher.admin.batch_execute(&drop_slot).await.is_err() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
