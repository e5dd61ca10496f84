//! Who may install, and what a fence is worth when several roles have to do with it.

use leasehold::fence::FenceError;
use leasehold::fence::postgres::{FenceMode, InstallOptions, Remember, examine, highest_token, install, plan_install};
use tokio_postgres::{Client, NoTls};

use crate::support::{ADA, BOB, Database, Fenced, SEATS, cluster, options, outcome, under_token};

const WRITE: &str = "UPDATE seats SET owner = 'x' WHERE seat_id = 14";

/// A role that can log in, and a connection of it.
async fn role(database: &Database, name: &str) -> (String, Client) {
    let role = format!("{name}_{}", database.name);
    database.admin.batch_execute(&format!("CREATE ROLE {role} LOGIN")).await.unwrap();
    let client = connect_as(database, &role).await;
    (role, client)
}

async fn connect_as(database: &Database, role: &str) -> Client {
    let target = format!("host=127.0.0.1 port={} user={role} dbname={}", cluster().port(), database.name);
    let (client, connection) = tokio_postgres::connect(&target, NoTls).await.unwrap();
    tokio::spawn(async move { drop(connection.await) });
    client
}

async fn refused_install(client: &mut Client, chosen: &InstallOptions) -> String {
    match install(client, chosen).await {
        Err(FenceError::Invalid(sentence)) => sentence,
        other => panic!("{other:?}"),
    }
}

/// Goal: who may not install is told so before anything is made, with what to do.
#[tokio::test]
async fn a_role_that_may_not_install_gets_a_sentence() {
    let database = Database::new(SEATS).await;
    let (clerk, mut client) = role(&database, "clerk").await;
    database.admin.batch_execute(&format!("GRANT ALL ON seats TO {clerk}")).await.unwrap();
    let seats = Fenced::Row.options();
    let sentence = refused_install(&mut client, &seats).await;
    assert!(sentence.contains("install as postgres") && sentence.contains(&clerk), "{sentence}");
    // The text can still be read, and run by another role.
    let plan = plan_install(&client, &seats).await.unwrap();
    assert!(plan.notes.iter().any(|note| note.contains("only the owner")), "{:?}", plan.notes);

    database.admin.batch_execute(&format!("ALTER TABLE seats OWNER TO {clerk}")).await.unwrap();
    let sentence = refused_install(&mut client, &seats).await;
    assert!(sentence.contains("GRANT CREATE ON DATABASE"), "{sentence}");
    assert_eq!(database.value("SELECT to_regnamespace('leasehold_fence')::text").await, "none");
    let grant = sentence.split_once("GRANT").map(|(_, rest)| format!("GRANT{rest}")).unwrap();
    database.admin.batch_execute(&grant).await.unwrap();
    install(&mut client, &seats).await.unwrap();
    assert_eq!(database.write(BOB, WRITE).await, "ok");
    assert_eq!(database.write(ADA, WRITE).await, "LH001");
}

/// Goal: a second installer is no second owner. Its fence refuses with our codes, counts, and observes, like the first.
/// Method: a plain role makes the schema; then a superuser, and a member of that role, each fence a table of their own.
#[tokio::test]
async fn a_second_installer_leaves_everything_to_the_first() {
    for fenced in Fenced::ALL {
        let database = Database::new("CREATE TABLE first (id int PRIMARY KEY)").await;
        let (dba, mut dba_client) = role(&database, "dba").await;
        let (member, mut member_client) = role(&database, "member").await;
        let (stranger, mut stranger_client) = role(&database, "stranger").await;
        let grants = format!(
            "GRANT CREATE ON DATABASE {} TO {dba}; ALTER TABLE first OWNER TO {dba}; GRANT {dba} TO {member};",
            database.name
        );
        database.admin.batch_execute(&grants).await.unwrap();
        install(&mut dba_client, &options("first", &["id"], "first/{}", Remember::Row)).await.unwrap();

        for (owner, client) in [("postgres", &mut database.client().await), (member.as_str(), &mut member_client)] {
            let sql = format!("DROP TABLE IF EXISTS seats; {SEATS}; ALTER TABLE seats OWNER TO {owner}");
            database.admin.batch_execute(&sql).await.unwrap();
            install(client, &fenced.options()).await.unwrap();
            let at = format!("{fenced:?} by {owner}");
            for (token, code) in [("", "LH002"), (BOB, "ok"), (ADA, "LH001"), ("42", "LH003"), ("42:x", "LH004")] {
                assert_eq!(database.write(token, WRITE).await, code, "{at}: {token}");
                assert_eq!(outcome(&under_token(client, token, WRITE).await), code, "{at}: {token}, the owner");
            }
            assert_eq!(database.write(BOB, "TRUNCATE seats").await, "LH005", "{at}");
            let found = examine(&dba_client, false).await.unwrap();
            let table = found.tables.iter().find(|table| table.table == "public.seats").unwrap();
            assert_eq!(table.rejected, 9, "{at}: {table:?}");
            install(client, &InstallOptions { mode: FenceMode::Observe, ..fenced.options() }).await.unwrap();
            assert_eq!(database.write(ADA, WRITE).await, "ok", "{at}: observed");
            let forget = leasehold::fence::postgres::remove(client, "seats", true).await.unwrap();
            assert!(forget.forgotten, "{at}");
        }

        // A text that the owner planned, and a superuser runs.
        let sql = format!("DROP TABLE seats; {SEATS}; ALTER TABLE seats OWNER TO {dba}");
        database.admin.batch_execute(&sql).await.unwrap();
        let plan = plan_install(&dba_client, &fenced.options()).await.unwrap();
        database.admin.batch_execute(&plan.sql_text()).await.unwrap();
        for (token, code) in [("", "LH002"), (BOB, "ok"), (ADA, "LH001")] {
            assert_eq!(database.write(token, WRITE).await, code, "{fenced:?}, planned by another role: {token}");
        }
        leasehold::fence::postgres::remove(&mut dba_client, "seats", true).await.unwrap();

        let sql = format!("DROP TABLE seats; {SEATS}; ALTER TABLE seats OWNER TO {stranger}");
        database.admin.batch_execute(&sql).await.unwrap();
        let sentence = refused_install(&mut stranger_client, &fenced.options()).await;
        assert!(sentence.contains(&format!("belongs to {dba}")), "{sentence}");
    }
}

/// Goal: a role that only watches sees holes and counters. What it cannot see it is told, and no engine is raised by half of
/// the rows.
#[tokio::test]
async fn a_role_that_does_not_see_all_rows_is_told() {
    let database = Fenced::Row.database().await;
    assert_eq!(database.write(BOB, WRITE).await, "ok");
    assert_eq!(database.write(ADA, WRITE).await, "LH001");
    let (watcher, client) = role(&database, "watcher").await;
    let told = async |part: &str| {
        let found = examine(&client, false).await.unwrap();
        assert_eq!((found.holes.len(), found.tables[0].rejected, found.tables[0].highest), (0, 1, None));
        assert!(!found.tables[0].is_highest_exact);
        assert!(found.notes.iter().any(|note| note.contains(part)), "{:?}", found.notes);
        for answer in [examine(&client, true).await.map(drop), highest_token(&client).await.map(drop)] {
            assert!(matches!(&answer, Err(FenceError::Invalid(sentence)) if sentence.contains(part)), "{answer:?}");
        }
    };
    told("may not read").await;
    let hide = format!("GRANT SELECT ON seats TO {watcher}; ALTER TABLE seats ENABLE ROW LEVEL SECURITY");
    database.admin.batch_execute(&hide).await.unwrap();
    told("row level security").await;
    database.admin.batch_execute("ALTER TABLE seats DISABLE ROW LEVEL SECURITY").await.unwrap();
    assert_eq!(examine(&client, true).await.unwrap().highest().map(leasehold::Token::get), Some(42));
    assert_eq!(highest_token(&client).await.unwrap()[0].highest.get(), 42);
}
