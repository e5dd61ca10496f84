//! Installs, keys, what is remembered, and holes.

use leasehold::Token;
use leasehold::fence::HoleKind;
use leasehold::fence::sqlite::{
    SqliteFence, SqliteInstallOptions, examine, highest_token, install, plan_install, remove,
};
use rusqlite::Connection;

use crate::{ADA, BOB, fenced_seats, options, write};

const WRITE: &str = "UPDATE seats SET owner = 'x' WHERE seat_id = 14";

fn holes(connection: &Connection) -> Vec<HoleKind> {
    examine(connection).unwrap().holes.iter().map(|hole| hole.kind).collect()
}

/// Goal: a plan changes nothing, its text run by hand is the install, and a second install has nothing to do.
#[test]
fn a_plan_changes_nothing_and_is_the_install() {
    let mut connection = Connection::open_in_memory().unwrap();
    connection.execute_batch("CREATE TABLE seats (seat_id INTEGER PRIMARY KEY, owner TEXT)").unwrap();
    let chosen = options("SEATS", &["seat_id"], "it's {}");
    let plan = plan_install(&connection, &chosen).unwrap();
    let count = |connection: &Connection| -> i64 {
        connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0)).unwrap()
    };
    assert_eq!((plan.table.as_str(), count(&connection)), ("seats", 1));
    connection.execute_batch(&plan.sql_text()).unwrap();
    assert_eq!(install(&mut connection, &chosen).unwrap().statements, [""; 0]);
    let again = SqliteInstallOptions { table: "seats".into(), ..SqliteInstallOptions::default() };
    assert_eq!(install(&mut connection, &again).unwrap().resource, "it's {}", "as before");
    assert_eq!(holes(&connection), []);
}

/// Goal: the text of a key is the same for the same value, in composites two rows never have one name.
#[test]
fn keys_have_one_text() {
    let mut connection = Connection::open_in_memory().unwrap();
    connection
        .execute_batch(
            r#"CREATE TABLE "a b" ("k'1" TEXT, k2 BLOB, PRIMARY KEY ("k'1", k2)) WITHOUT ROWID;
               CREATE TABLE n (id INTEGER PRIMARY KEY); CREATE TABLE r (id REAL PRIMARY KEY); CREATE TABLE t (id, UNIQUE (id))"#,
        )
        .unwrap();
    install(&mut connection, &options("a b", &["k'1", "k2"], "x/{}")).unwrap();
    for table in ["n", "r", "t"] {
        install(&mut connection, &options(table, &["id"], &format!("{table}/{{}}"))).unwrap();
    }
    let fence = SqliteFence::attach(&connection).unwrap();
    for (resource, sql) in [
        ("x/a%2Fb/ff", r#"INSERT INTO "a b" VALUES ('a/b', x'FF')"#),
        ("x/a%25/", r#"INSERT INTO "a b" VALUES ('a%', x'')"#),
        ("n/1", "INSERT INTO n VALUES (NULL)"),
        ("n/-5", "INSERT INTO n VALUES (-5)"),
        ("r/1.0", "INSERT INTO r VALUES (1)"),
        ("t/", "INSERT INTO t VALUES (NULL)"),
        ("t/Straße", "INSERT INTO t VALUES ('Straße')"),
    ] {
        assert_eq!(write(&fence, &mut connection, &format!("7\t{resource}"), sql), "ok", "{sql}");
    }
}

/// Goal: what is remembered outlives a removal, unless it is forgotten.
#[test]
fn a_removed_fence_is_remembered_unless_forgotten() {
    let (mut connection, fence) = fenced_seats();
    assert_eq!(write(&fence, &mut connection, BOB, WRITE), "ok");
    remove(&mut connection, "seats", false).unwrap();
    connection.execute(WRITE, []).unwrap();
    install(&mut connection, &options("seats", &["seat_id"], "seat/{}")).unwrap();
    assert_eq!(write(&fence, &mut connection, ADA, WRITE), "LH001");
    assert_eq!(highest_token(&connection).unwrap(), Token::new(42));
    remove(&mut connection, "seats", true).unwrap();
    install(&mut connection, &options("seats", &["seat_id"], "seat/{}")).unwrap();
    assert_eq!(write(&fence, &mut connection, ADA, WRITE), "ok");
    assert_eq!(remove(&mut connection, "halls", false).unwrap_err().to_string(), "halls is not fenced");
}

/// Goal: the highest token of a file counts every place that keeps tokens of leases, and no table of a user's own.
#[test]
fn the_highest_token_counts_every_place() {
    let (mut connection, fence) = fenced_seats();
    let highest = |connection: &_| highest_token(connection).unwrap().map_or(0, Token::get);
    connection.execute_batch("CREATE TABLE holds (title TEXT); CREATE TABLE tokens (word TEXT)").unwrap();
    assert_eq!(write(&fence, &mut connection, BOB, WRITE), "ok");
    assert_eq!(highest(&connection), 42);
    connection.execute_batch("DROP TABLE holds; DROP TABLE tokens").unwrap();
    for (table, token) in [
        ("CREATE TABLE leasehold_schedule (token INTEGER); INSERT INTO leasehold_schedule VALUES (50)", 50),
        ("CREATE TABLE hold_seats (token INTEGER); INSERT INTO hold_seats VALUES (60)", 60),
        ("CREATE TABLE sold_seats (token INTEGER); INSERT INTO sold_seats VALUES (70)", 70),
        ("CREATE TABLE tokens (highest INTEGER); INSERT INTO tokens VALUES (80)", 80),
        (
            r#"CREATE TABLE holds (live INTEGER, body TEXT); INSERT INTO holds VALUES
                (1, '{"leases":[{"token":3},{"token":90}]}'), (1, '{"leases":[]}'), (0, '{"leases":[{"token":999}]}')"#,
            90,
        ),
    ] {
        connection.execute_batch(table).unwrap();
        assert_eq!(highest(&connection), token, "{table}");
    }
}

/// Goal: who forgets its own memory does not forget that of another table with the same names.
#[test]
fn forgetting_leaves_what_other_tables_remember() {
    for (resource, other) in [("seat/{}", "seat/{}"), ("{}", "seat/{}"), ("hall", "hall"), ("seat/{}", "seat/14")] {
        let (mut connection, fence) = fenced_seats();
        connection.execute_batch("CREATE TABLE boxes (id INTEGER PRIMARY KEY); INSERT INTO boxes VALUES (14)").unwrap();
        install(&mut connection, &options("seats", &["seat_id"], resource)).unwrap();
        install(&mut connection, &options("boxes", &["id"], other)).unwrap();
        assert_eq!(write(&fence, &mut connection, BOB, "UPDATE boxes SET id = 14"), "ok");
        assert!(!remove(&mut connection, "seats", true).unwrap(), "{resource} {other}: not its own to forget");
        assert_eq!(write(&fence, &mut connection, ADA, "UPDATE boxes SET id = 14"), "LH001", "{resource} {other}");
        assert!(remove(&mut connection, "boxes", true).unwrap(), "{resource} {other}");
    }
    let (mut connection, fence) = fenced_seats();
    connection.execute_batch("CREATE TABLE boxes (id INTEGER PRIMARY KEY); INSERT INTO boxes VALUES (14)").unwrap();
    install(&mut connection, &options("boxes", &["id"], "box/{}")).unwrap();
    assert_eq!(write(&fence, &mut connection, BOB, "UPDATE boxes SET id = 14"), "ok");
    assert!(remove(&mut connection, "seats", true).unwrap());
    assert_eq!(write(&fence, &mut connection, ADA, "UPDATE boxes SET id = 14"), "LH001");
}

/// Goal: triggers that are gone or changed, renamed tables and keys are found, and a second install mends them.
#[test]
fn holes_are_found_and_mended() {
    let seats = options("seats", &["seat_id"], "seat/{}");
    for event in ["insert", "update", "delete"] {
        let (mut connection, fence) = fenced_seats();
        assert_eq!(holes(&connection), []);
        connection.execute_batch(&format!("DROP TRIGGER zz_leasehold_{event}_seats")).unwrap();
        assert_eq!(holes(&connection), [HoleKind::TriggerMissing], "{event}");
        let weaker = format!("CREATE TRIGGER zz_leasehold_{event}_seats AFTER {event} ON seats BEGIN SELECT 1; END");
        connection.execute_batch(&weaker).unwrap();
        assert_eq!(holes(&connection), [HoleKind::TriggerChanged], "{event}");
        install(&mut connection, &seats).unwrap();
        assert_eq!(holes(&connection), [], "{event}");
        assert_eq!(write(&fence, &mut connection, BOB, WRITE), "ok");
        assert_eq!(write(&fence, &mut connection, ADA, WRITE), "LH001");
    }
    let (mut connection, fence) = fenced_seats();
    connection.execute_batch("UPDATE leasehold_fenced SET version = 0").unwrap();
    assert_eq!(holes(&connection), [HoleKind::OtherVersion]);
    install(&mut connection, &seats).unwrap();
    assert_eq!(write(&fence, &mut connection, BOB, WRITE), "ok");
    connection.execute_batch("ALTER TABLE seats RENAME TO chairs").unwrap();
    assert_eq!(holes(&connection), [HoleKind::TableGone]);
    assert_eq!(write(&fence, &mut connection, ADA, "UPDATE chairs SET owner = 'x' WHERE seat_id = 14"), "LH001");
    install(&mut connection, &options("chairs", &["seat_id"], "seat/{}")).unwrap();
    remove(&mut connection, "seats", false).unwrap();
    assert_eq!(holes(&connection), []);
    connection.execute_batch("ALTER TABLE chairs RENAME COLUMN seat_id TO chair").unwrap();
    assert!(holes(&connection).contains(&HoleKind::KeyMissing));
    install(&mut connection, &options("chairs", &["chair"], "seat/{}")).unwrap();
    assert_eq!(holes(&connection), []);
    assert_eq!(write(&fence, &mut connection, ADA, "UPDATE chairs SET owner = 'x' WHERE chair = 14"), "LH001");
}

/// Goal: the trap of a second unique index is named, and an engine below the fence is.
#[test]
fn traps_are_named() {
    let (mut connection, fence) = fenced_seats();
    let notes = |connection: &Connection| examine(connection).unwrap().notes.join("\n");
    assert!(!notes(&connection).contains("second unique index"));
    connection.execute_batch("CREATE UNIQUE INDEX by_owner ON seats (owner) WHERE owner <> 'free'").unwrap();
    assert!(notes(&connection).contains("second unique index"));
    assert_eq!(write(&fence, &mut connection, BOB, "UPDATE seats SET owner = 'x' WHERE seat_id = 14"), "ok");
    for (floor, count) in [(41, 1), (42, 0)] {
        let mut found = examine(&connection).unwrap();
        found.compare_with_floor(Token::new(floor).unwrap());
        assert_eq!(found.holes.len(), count, "{floor}");
    }
}

/// Goal: what cannot be fenced gets a sentence.
#[test]
fn bad_installs_get_a_sentence() {
    let (mut connection, _) = fenced_seats();
    connection
        .execute_batch("CREATE VIEW v AS SELECT * FROM seats; CREATE VIRTUAL TABLE words USING fts5 (text)")
        .unwrap();
    for (chosen, part) in [
        (options("nowhere", &["a"], "{}"), "no table nowhere"),
        (options("v", &["seat_id"], "{}"), "no table v"),
        (options("words", &["text"], "{}"), "virtual"),
        (options("leasehold_seen", &["resource"], "{}"), "memory of the fence"),
        (options("seats", &["nowhere"], "{}"), "no column nowhere"),
        (options("seats", &[], "seat/{}"), ""),
    ] {
        match install(&mut connection, &chosen) {
            Err(error) => assert!(error.to_string().contains(part), "{error}"),
            Ok(report) => assert_eq!(report.resource, "seat/{}", "keys as before"),
        }
    }
}
