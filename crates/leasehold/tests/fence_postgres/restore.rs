//! Dumps: the whole one restores fence and memory, one of a single table leaves a table without a fence, and that is found.

use std::process::{Command, Output};

use leasehold::fence::HoleKind;

use crate::support::{ADA, BOB, Database, Fenced};

fn run(program: &str, arguments: &[&str], options: &str) -> Output {
    let output = Command::new(program).args(arguments).env("PGOPTIONS", options).output();
    output.unwrap_or_else(|error| panic!("{program} is needed (apt-get install postgresql-client-15): {error}"))
}

fn dump(database: &Database, arguments: &[&str], file: &str) {
    let url = database.url();
    let output = run("pg_dump", &[arguments, &["--file", file, "--dbname", &url]].concat(), "");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

const WRITE: &str = "UPDATE seats SET owner = 'x' WHERE seat_id = 14";

async fn used_database(fenced: Fenced) -> Database {
    let database = fenced.database().await;
    let sql = format!("{WRITE}; INSERT INTO seats VALUES (50, 'x'); DELETE FROM seats WHERE seat_id = 50");
    assert_eq!(database.write(BOB, &sql).await, "ok");
    database
}

/// Goal: a whole dump restores the fence with all that it remembers.
#[tokio::test]
async fn a_whole_dump_restores_fence_and_memory() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("dump.sql").display().to_string();
    for fenced in Fenced::ALL {
        let database = used_database(fenced).await;
        dump(&database, &[], &file);
        let restored = Database::new("").await;
        let output =
            run("psql", &["--quiet", "--set=ON_ERROR_STOP=1", "--dbname", &restored.url(), "--file", &file], "");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(restored.holes().await, [], "{fenced:?}");
        assert_eq!(restored.write(ADA, WRITE).await, "LH001", "{fenced:?}");
        assert_eq!(restored.write(ADA, "INSERT INTO seats VALUES (50, 'x')").await, "LH001", "{fenced:?}");
        assert_eq!(restored.write(BOB, WRITE).await, "ok", "{fenced:?}");
    }
}

/// Goal: a dump of the table alone restores without its triggers, which is found; installing again remembers the rows.
#[tokio::test]
async fn a_dump_of_one_table_loses_the_fence_and_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("dump.sql").display().to_string();
    let database = used_database(Fenced::Row).await;
    dump(&database, &["--table", "seats"], &file);
    let restored = Database::new("").await;
    let output = run("psql", &["--quiet", "--dbname", &restored.url(), "--file", &file], "");
    assert!(String::from_utf8_lossy(&output.stderr).contains("leasehold_fence"), "the triggers do not restore");
    restored.admin.batch_execute("UPDATE seats SET owner = 'unfenced' WHERE seat_id = 3").await.unwrap();
    assert_eq!(restored.holes().await, [HoleKind::Unfenced]);
    restored.install(&Fenced::Row.options()).await;
    assert_eq!(restored.holes().await, []);
    assert_eq!(restored.write(ADA, WRITE).await, "LH001", "the row remembers");
}

/// Goal: a table that is put back from an older dump, after it was dropped, is fenced by what was seen since the dump.
#[tokio::test]
async fn an_older_table_is_fenced_by_what_was_seen_since() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("dump.sql").display().to_string();
    let database = Fenced::Row.database().await;
    assert_eq!(database.write(ADA, WRITE).await, "ok");
    dump(&database, &["--table", "seats"], &file);
    assert_eq!(database.write("43", "DELETE FROM seats WHERE seat_id = 14").await, "ok");
    database.admin.batch_execute("DROP TABLE seats").await.unwrap();
    run("psql", &["--quiet", "--dbname", &database.url(), "--file", &file], "");
    assert_eq!(database.holes().await, [HoleKind::TableGone, HoleKind::Unfenced]);
    database.install(&Fenced::Row.options()).await;
    assert_eq!(database.holes().await, [], "it took over what is remembered of the first one");
    assert_eq!(database.write(ADA, WRITE).await, "LH001");
    assert_eq!(database.write(BOB, WRITE).await, "LH001");
    assert_eq!(database.write("43", WRITE).await, "ok");
}

/// Goal: data that is restored into a fenced table needs a token; a restore that disables triggers leaves weaker ones,
/// which is found.
#[tokio::test]
async fn a_restore_of_data_needs_a_token() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("data").display().to_string();
    let database = used_database(Fenced::Row).await;
    dump(&database, &["--data-only", "--table", "seats", "--format", "custom"], &file);
    let restored = Database::new("CREATE TABLE seats (seat_id int PRIMARY KEY, owner text)").await;
    restored.install(&Fenced::Row.options()).await;
    let url = restored.url();
    let refused = run("pg_restore", &["--data-only", "--dbname", &url, &file], "");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("no token was shown"), "{refused:?}");
    let admitted = run("pg_restore", &["--data-only", "--dbname", &url, &file], "-c leasehold.token=51");
    assert!(admitted.status.success(), "{}", String::from_utf8_lossy(&admitted.stderr));
    assert_eq!(restored.value("SELECT leasehold_fence FROM seats WHERE seat_id = 14").await, "51");
    assert_eq!(restored.write(BOB, WRITE).await, "LH001");

    let empty = Database::new("CREATE TABLE seats (seat_id int PRIMARY KEY, owner text)").await;
    empty.install(&Fenced::Row.options()).await;
    let around = run("pg_restore", &["--data-only", "--disable-triggers", "--dbname", &empty.url(), &file], "");
    assert!(around.status.success(), "{}", String::from_utf8_lossy(&around.stderr));
    assert_eq!(empty.holes().await, [HoleKind::TriggerDisabled]);
    empty.install(&Fenced::Row.options()).await;
    assert_eq!(empty.holes().await, []);
}
