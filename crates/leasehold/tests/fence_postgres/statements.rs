//! Every statement that can write: none of them gets around the fence.

use leasehold::fence::postgres::Remember;
use tokio_postgres::SimpleQueryMessage;

use crate::support::{ADA, BOB, Database, Fenced, options, outcome, under_token};

/// Statements that write to seat 14, or to a seat that is not there yet.
const WRITES: [&str; 12] = [
    "UPDATE seats SET owner = 'x' WHERE seat_id = 14",
    "UPDATE seats SET owner = 'x'",
    "DELETE FROM seats WHERE seat_id = 14",
    "DELETE FROM seats",
    "INSERT INTO seats VALUES (99, 'x')",
    "INSERT INTO seats VALUES (14, 'x') ON CONFLICT (seat_id) DO UPDATE SET owner = 'x'",
    "MERGE INTO seats s USING (VALUES (14)) v(n) ON s.seat_id = v.n WHEN MATCHED THEN UPDATE SET owner = 'x'",
    "MERGE INTO seats s USING (VALUES (14)) v(n) ON s.seat_id = v.n WHEN MATCHED THEN DELETE",
    "MERGE INTO seats s USING (VALUES (99)) v(n) ON s.seat_id = v.n WHEN NOT MATCHED THEN INSERT VALUES (v.n, 'x')",
    "WITH w AS (UPDATE seats SET owner = 'x' WHERE seat_id = 14 RETURNING *) SELECT count(*) FROM w",
    "UPDATE some_seats SET owner = 'x' WHERE seat_id = 14",
    "UPDATE seats SET seat_id = 99 WHERE seat_id = 14",
];

async fn with_view(fenced: Fenced) -> Database {
    let database = fenced.database().await;
    database.admin.batch_execute("CREATE VIEW some_seats AS SELECT seat_id, owner FROM seats").await.unwrap();
    database
}

/// Goal: every statement needs a token that is not stale, and changes nothing without one.
/// Method: all statements, in every store: none, malformed, stale, for another resource, current.
#[tokio::test]
async fn every_statement_needs_a_token_that_is_not_stale() {
    for fenced in Fenced::ALL {
        for write in WRITES {
            let database = with_view(fenced).await;
            // Bob has written everywhere, also to a seat that he deleted.
            let bob = "UPDATE seats SET owner = 'bob'; INSERT INTO seats VALUES (99, 'bob'); DELETE FROM seats WHERE seat_id = 99";
            assert_eq!(database.write(BOB, bob).await, "ok");
            let before = database.value("SELECT md5(string_agg(s::text, ',' ORDER BY seat_id)) FROM seats s").await;
            let table = [
                ("", "LH002"),
                ("forty", "LH004"),
                (ADA, "LH001"),
                ("42:cccccccccccccccc", "LH003"),
                ("99:cccccccccccccccc\tseat/1000", "LH006"),
            ];
            for (token, code) in table {
                assert_eq!(database.write(token, write).await, code, "{fenced:?}, {token}: {write}");
            }
            let client = database.client().await;
            assert_eq!(outcome(&client.batch_execute(write).await), "LH002", "{fenced:?}: {write}");
            let after = database.value("SELECT md5(string_agg(s::text, ',' ORDER BY seat_id)) FROM seats s").await;
            assert_eq!(before, after, "{fenced:?}: {write}");
            assert_eq!(database.write(BOB, write).await, "ok", "{fenced:?}: {write}");
        }
    }
}

/// Goal: TRUNCATE is refused, also as a part of a cascade and with a token.
#[tokio::test]
async fn truncate_is_refused() {
    for fenced in Fenced::ALL {
        let database = fenced.database().await;
        database.admin.batch_execute("CREATE TABLE parents (id int PRIMARY KEY)").await.unwrap();
        database.admin.batch_execute("ALTER TABLE seats ADD parent int REFERENCES parents").await.unwrap();
        assert_eq!(database.write(BOB, "TRUNCATE seats").await, "LH005", "{fenced:?}");
        assert_eq!(database.write(BOB, "TRUNCATE parents CASCADE").await, "LH005", "{fenced:?}");
        assert_eq!(database.value("SELECT count(*)::text FROM seats").await, "20");
    }
}

/// Goal: COPY is a write like any other.
#[tokio::test]
async fn copy_is_fenced() {
    let copy = r#"COPY seats (seat_id, owner) FROM PROGRAM 'printf "30\tx\n31\ty\n"'"#;
    for fenced in Fenced::ALL {
        let database = fenced.database().await;
        assert_eq!(
            database.write(BOB, "INSERT INTO seats VALUES (31, 'bob'); DELETE FROM seats WHERE seat_id = 31").await,
            "ok"
        );
        for (token, code) in [("", "LH002"), (ADA, "LH001"), (BOB, "ok")] {
            assert_eq!(database.write(token, copy).await, code, "{fenced:?} {token}");
        }
        assert_eq!(database.value("SELECT owner FROM seats WHERE seat_id = 31").await, "y");
    }
}

/// Goal: an INSERT that does nothing asks nothing and leaves no trace.
#[tokio::test]
async fn on_conflict_do_nothing_leaves_no_trace() {
    for fenced in [Fenced::Row, Fenced::Keyed] {
        let database = fenced.database().await;
        let nothing = "INSERT INTO seats VALUES (14, 'x') ON CONFLICT DO NOTHING";
        assert_eq!(database.write(BOB, nothing).await, "ok");
        assert_eq!(database.write(ADA, "UPDATE seats SET owner = 'ada' WHERE seat_id = 14").await, "ok", "{fenced:?}");
    }
}

/// Goal: a cascade from a table without a fence is a write to the fenced child.
#[tokio::test]
async fn cascades_are_fenced() {
    for fenced in Fenced::ALL {
        let database = Database::new(
            "CREATE TABLE halls (hall int PRIMARY KEY);
             CREATE TABLE seats (seat_id int PRIMARY KEY, owner text,
                hall int REFERENCES halls ON DELETE CASCADE ON UPDATE CASCADE);
             INSERT INTO halls VALUES (1), (2); INSERT INTO seats VALUES (14, 'x', 1), (15, 'y', 2)",
        )
        .await;
        database.install(&fenced.options()).await;
        assert_eq!(database.write(BOB, "UPDATE seats SET owner = 'bob'").await, "ok");
        for sql in ["DELETE FROM halls WHERE hall = 1", "UPDATE halls SET hall = 3 WHERE hall = 2"] {
            for (token, code) in [("", "LH002"), (ADA, "LH001"), (BOB, "ok")] {
                assert_eq!(database.write(token, sql).await, code, "{fenced:?} {token}: {sql}");
            }
        }
    }
}

/// Goal: an UPDATE that moves a row to another key is checked for both, and the old key keeps its fence.
#[tokio::test]
async fn a_changed_key_is_checked_on_both_sides() {
    for fenced in [Fenced::Row, Fenced::Keyed] {
        let database = fenced.database().await;
        assert_eq!(
            database.write(BOB, "INSERT INTO seats VALUES (50, 'bob'); DELETE FROM seats WHERE seat_id = 50").await,
            "ok"
        );
        let to_bobs = "UPDATE seats SET seat_id = 50 WHERE seat_id = 14";
        assert_eq!(database.write(ADA, to_bobs).await, "LH001", "{fenced:?}: the key that it comes to");
        assert_eq!(
            database.write("43:dddddddddddddddd", "UPDATE seats SET seat_id = 60 WHERE seat_id = 14").await,
            "ok"
        );
        assert_eq!(
            database.write(BOB, "INSERT INTO seats VALUES (14, 'bob')").await,
            "LH001",
            "{fenced:?}: the key it left"
        );
        assert_eq!(
            database.write(BOB, "UPDATE seats SET owner = 'bob' WHERE seat_id = 60").await,
            "LH001",
            "{fenced:?}"
        );
    }
}

/// Goal: a role that may only write the table can do so under a token, and can do nothing to the fence.
#[tokio::test]
async fn a_plain_role_writes_and_cannot_touch_the_fence() {
    for (at, fenced) in Fenced::ALL.into_iter().enumerate() {
        let database = fenced.database().await;
        let role = format!("clerk_{}_{at}", database.name);
        let grants = format!(
            "CREATE ROLE {role} LOGIN; GRANT SELECT, INSERT, UPDATE, DELETE ON seats TO {role};
             ALTER TABLE seats ENABLE ROW LEVEL SECURITY; CREATE POLICY all_rows ON seats USING (seat_id < 100)"
        );
        database.admin.batch_execute(&grants).await.unwrap();
        let client = database.client().await;
        client.batch_execute(&format!("SET SESSION AUTHORIZATION {role}")).await.unwrap();
        let write = "UPDATE seats SET owner = 'x' WHERE seat_id = 14";
        for (token, code) in [(BOB, "ok"), (ADA, "LH001"), ("", "LH002"), (BOB, "ok")] {
            assert_eq!(outcome(&under_token(&client, token, write).await), code, "{fenced:?} {token}");
        }
        for attack in [
            "DELETE FROM leasehold_fence.seen",
            "UPDATE leasehold_fence.fenced SET mode = 'observe'",
            "SELECT leasehold_fence.admit('', '=', 'billing', '9')",
            "SELECT leasehold_fence.admit_one('', 'billing', '9')",
            "ALTER TABLE seats DISABLE TRIGGER ALL",
            "DROP TRIGGER zz_leasehold_fence ON seats",
            "SET session_replication_role = replica",
        ] {
            assert_eq!(outcome(&under_token(&client, BOB, attack).await), "42501", "{fenced:?}: {attack}");
        }
    }
}

/// Goal: the fence of a row cannot be written by hand, and `session_replication_role` does not go around the triggers.
#[tokio::test]
async fn the_fence_of_a_row_cannot_be_set_by_hand() {
    let database = Fenced::Row.database().await;
    assert_eq!(database.write(BOB, "UPDATE seats SET owner = 'bob' WHERE seat_id = 14").await, "ok");
    let set = "UPDATE seats SET owner = 'x', leasehold_fence = '1' WHERE seat_id = 14";
    assert_eq!(database.write(ADA, set).await, "LH001");
    assert_eq!(database.write(BOB, set).await, "ok");
    assert_eq!(database.value("SELECT leasehold_fence FROM seats WHERE seat_id = 14").await, BOB);
    let insert = "INSERT INTO seats (seat_id, leasehold_fence) VALUES (77, '1')";
    assert_eq!(database.write(BOB, insert).await, "ok");
    assert_eq!(database.value("SELECT leasehold_fence FROM seats WHERE seat_id = 77").await, BOB);
    for fenced in Fenced::ALL {
        let database = fenced.database().await;
        let replica = "SET LOCAL session_replication_role = replica; UPDATE seats SET owner = 'x' WHERE seat_id = 14";
        assert_eq!(database.write("", replica).await, "LH002", "{fenced:?}");
    }
}

/// Goal: a token is gone with its transaction, and one round trip is enough for a write by autocommit.
#[tokio::test]
async fn a_token_lives_as_long_as_its_transaction() {
    let database = Fenced::Row.database().await;
    let client = database.client().await;
    under_token(&client, BOB, "UPDATE seats SET owner = 'bob' WHERE seat_id = 14").await.unwrap();
    assert_eq!(outcome(&client.batch_execute("UPDATE seats SET owner = 'x' WHERE seat_id = 14").await), "LH002");
    let sql = "UPDATE seats SET owner = 'y' FROM (SELECT set_config('leasehold.token', $1, true) OFFSET 0) f WHERE seat_id = $2";
    assert_eq!(client.execute(sql, &[&BOB, &14]).await.unwrap(), 1);
    assert_eq!(outcome(&client.execute(sql, &[&ADA, &14]).await), "LH001");
}

/// Goal: several resources in one statement: one refusal refuses all. Several leases: each speaks for its own.
#[tokio::test]
async fn several_resources_are_all_or_nothing() {
    for fenced in [Fenced::Row, Fenced::Keyed] {
        let database = fenced.database().await;
        assert_eq!(database.write(BOB, "UPDATE seats SET owner = 'bob' WHERE seat_id = 2").await, "ok");
        let both = "UPDATE seats SET owner = 'x' WHERE seat_id IN (1, 2)";
        assert_eq!(database.write(ADA, both).await, "LH001", "{fenced:?}");
        assert_eq!(database.value("SELECT owner FROM seats WHERE seat_id = 1").await, "free");
        let leases = "41:aaaaaaaaaaaaaaaa\tseat/1\n42:bbbbbbbbbbbbbbbb\tseat/2";
        assert_eq!(database.write(leases, both).await, "ok", "{fenced:?}");
        assert_eq!(database.write(leases, "UPDATE seats SET owner = 'x' WHERE seat_id = 3").await, "LH006");
    }
}

/// Goal: a refusal says all that a writer needs, in the fields of the error.
#[tokio::test]
async fn a_refusal_names_resource_tokens_and_table() {
    let database = Fenced::Row.database().await;
    assert_eq!(database.write(BOB, "UPDATE seats SET owner = 'bob' WHERE seat_id = 14").await, "ok");
    let client = database.client().await;
    let refused = under_token(&client, ADA, "UPDATE seats SET owner = 'x' WHERE seat_id = 14").await.unwrap_err();
    let answer = refused.as_db_error().unwrap();
    assert_eq!(answer.message(), "token 41 is stale: seat/14 has seen token 42");
    assert_eq!(answer.detail(), Some(r#"{"resource" : "seat/14", "presented" : "41", "highest" : "42"}"#));
    assert_eq!((answer.table(), answer.constraint()), (Some("public.seats"), Some("leasehold_fence")));
    assert!(answer.hint().is_some_and(|hint| hint.contains("Stop")));
}

/// Goal: tables that are fenced by the same name share their memory, with `check()` too.
#[tokio::test]
async fn tables_with_one_name_share_one_memory() {
    let database = Database::new("CREATE TABLE bills (n int); CREATE TABLE sums (n int)").await;
    for table in ["bills", "sums"] {
        database.install(&options(table, &[], "billing", Remember::Name)).await;
    }
    assert_eq!(database.write(BOB, "INSERT INTO bills VALUES (1)").await, "ok");
    assert_eq!(database.write(ADA, "INSERT INTO sums VALUES (1)").await, "LH001");
    assert_eq!(database.write("43", "SELECT leasehold_fence.check('billing')").await, "ok");
    assert_eq!(database.write(BOB, "INSERT INTO bills VALUES (1)").await, "LH001");
    let rows = database.admin.simple_query("SELECT * FROM leasehold_fence.seen").await.unwrap();
    assert_eq!(rows.iter().filter(|row| matches!(row, SimpleQueryMessage::Row(_))).count(), 1);
}
