//! Holes, case by case: each is made on purpose, shown to let a stale write through where it does, found, and mended.

use leasehold::Token;
use leasehold::fence::postgres::{FenceMode, InstallOptions, examine, execute_sql, highest_token, remove};
use leasehold::fence::{FenceError, HoleKind};

use crate::support::{ADA, BOB, Database, Fenced, cluster};

const WRITE: &str = "UPDATE seats SET owner = 'x' WHERE seat_id = 14";

/// Makes a hole, finds exactly it, and mends it by a second install.
async fn is_found_and_mended(fenced: Fenced, sql: &str, expected: &[HoleKind]) {
    let database = fenced.database().await;
    assert_eq!(database.holes().await, [], "{fenced:?}: whole before");
    database.admin.batch_execute(&sql.replace("@GUARD", &guard(&database).await)).await.unwrap();
    assert_eq!(database.holes().await, expected, "{fenced:?}: {sql}");
    database.install(&fenced.options()).await;
    assert_eq!(database.holes().await, [], "{fenced:?}: mended after {sql}");
    assert_eq!(database.write(BOB, WRITE).await, "ok");
    assert_eq!(database.write(ADA, WRITE).await, "LH001");
}

async fn guard(database: &Database) -> String {
    database.value("SELECT guard FROM leasehold_fence.fenced").await
}

/// Goal: a trigger that is gone, off, weaker or another one is found, each of them.
#[tokio::test]
async fn triggers_are_compared_with_what_they_should_be() {
    use HoleKind::{TriggerChanged, TriggerDisabled, TriggerMissing, TruncateOpen};
    for fenced in Fenced::ALL {
        let mut names = vec!["zz_leasehold_fence"];
        match fenced {
            Fenced::Row => names.extend(["zz_leasehold_new", "zz_leasehold_memory", "zz_leasehold_moved"]),
            Fenced::Keyed => {}
            Fenced::OneName => names.push("aa_leasehold_fence"),
        }
        for name in names {
            for state in ["DISABLE", "ENABLE", "ENABLE REPLICA"] {
                let sql = format!("ALTER TABLE seats {state} TRIGGER {name}");
                is_found_and_mended(fenced, &sql, &[TriggerDisabled]).await;
            }
            is_found_and_mended(fenced, &format!("DROP TRIGGER {name} ON seats"), &[TriggerMissing]).await;
        }
        is_found_and_mended(fenced, "DROP TRIGGER zz_leasehold_truncate ON seats", &[TruncateOpen]).await;
        let weaker = "DROP TRIGGER zz_leasehold_fence ON seats;
            CREATE TRIGGER zz_leasehold_fence AFTER INSERT ON seats FOR EACH ROW EXECUTE FUNCTION leasehold_fence.no_truncate();
            ALTER TABLE seats ENABLE ALWAYS TRIGGER zz_leasehold_fence";
        is_found_and_mended(fenced, weaker, &[TriggerChanged]).await;
    }
    // The same trigger, for UPDATE of one column only.
    let narrower = "DROP TRIGGER zz_leasehold_fence ON seats;
        CREATE TRIGGER zz_leasehold_fence AFTER INSERT OR UPDATE OF seat_id OR DELETE ON seats FOR EACH ROW
            EXECUTE FUNCTION leasehold_fence.@GUARD_name();
        ALTER TABLE seats ENABLE ALWAYS TRIGGER zz_leasehold_fence";
    is_found_and_mended(Fenced::Keyed, narrower, &[TriggerChanged]).await;
}

/// Goal: a trigger with another condition is found.
#[tokio::test]
async fn a_weaker_condition_is_found() {
    let never = |name: &str, kind: &str, function: &str| {
        format!(
            "DROP TRIGGER {name} ON seats;
             CREATE TRIGGER {name} {kind} ON seats FOR EACH ROW WHEN (false) EXECUTE FUNCTION leasehold_fence.@GUARD{function}();
             ALTER TABLE seats ENABLE ALWAYS TRIGGER {name}"
        )
    };
    for (fenced, sql) in [
        (Fenced::Row, never("zz_leasehold_fence", "BEFORE UPDATE", "_row")),
        (Fenced::Row, never("zz_leasehold_moved", "AFTER UPDATE", "_memory")),
        (Fenced::OneName, never("zz_leasehold_fence", "AFTER INSERT OR UPDATE OR DELETE", "_name")),
    ] {
        is_found_and_mended(fenced, &sql, &[HoleKind::TriggerChanged]).await;
    }
}

/// Goal: what is no fence in a row is found, named for what it is when it is written, and hides no other table.
#[tokio::test]
async fn a_malformed_fence_is_found() {
    let database = Fenced::Row.database().await;
    let spoil = "ALTER TABLE seats DISABLE TRIGGER zz_leasehold_fence; UPDATE seats SET leasehold_fence = '@' WHERE seat_id = 14;
        ALTER TABLE seats ENABLE ALWAYS TRIGGER zz_leasehold_fence";
    for value in ["what", "9223372036854775808"] {
        database.admin.batch_execute(&spoil.replace('@', value)).await.unwrap();
        assert_eq!(database.holes().await, [HoleKind::RowsMalformed], "{value}");
        let mut client = database.client().await;
        let written = execute_sql(&mut client, ADA.parse().unwrap(), WRITE).await;
        if value == "what" {
            assert!(matches!(written, Err(FenceError::Corrupt { .. })), "{written:?}");
        }
        assert!(matches!(highest_token(&client).await, Err(FenceError::Corrupt { .. })), "{value}");
        assert_eq!(database.write(ADA, "UPDATE seats SET owner = 'x' WHERE seat_id = 3").await, "ok");
    }
}

/// Goal: a function with another text is found, of one table and of the whole database.
#[tokio::test]
async fn changed_functions_are_found() {
    let changed = [HoleKind::FunctionChanged];
    for (fenced, function) in [(Fenced::Row, "row"), (Fenced::Keyed, "name"), (Fenced::OneName, "name")] {
        let sql = format!(
            "CREATE OR REPLACE FUNCTION leasehold_fence.@GUARD_{function}() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN RETURN NEW; END $$"
        );
        is_found_and_mended(fenced, &sql, &changed).await;
    }
    let open = "CREATE OR REPLACE FUNCTION leasehold_fence.decide(guard text, resource text, shown text, kept text)
        RETURNS text LANGUAGE sql AS $$ SELECT shown $$";
    is_found_and_mended(Fenced::Row, open, &changed).await;
    // The same text with other rights, or with names that a caller can replace.
    for altered in ["SECURITY INVOKER", "RESET search_path"] {
        let sql = format!("ALTER FUNCTION leasehold_fence.@GUARD_name() {altered}");
        is_found_and_mended(Fenced::Keyed, &sql, &changed).await;
    }
    let sql = "ALTER FUNCTION leasehold_fence.admit(text, text, text, text) RESET search_path";
    is_found_and_mended(Fenced::Keyed, sql, &changed).await;
}

/// Goal: the unique index that makes a row its own resource is missed when it is gone or checked late.
#[tokio::test]
async fn a_lost_unique_index_is_found() {
    let database = Fenced::Row.database().await;
    database.admin.batch_execute("ALTER TABLE seats DROP CONSTRAINT seats_pkey").await.unwrap();
    assert_eq!(database.holes().await, [HoleKind::KeysNotUnique]);
    database.admin.batch_execute("ALTER TABLE seats ADD UNIQUE (seat_id) DEFERRABLE").await.unwrap();
    assert_eq!(database.holes().await, [HoleKind::KeysNotUnique]);
    let by_name = InstallOptions { remember: None, ..Fenced::Row.options() };
    assert!(database.install(&by_name).await.notes[0].contains("by name"));
    assert_eq!(database.holes().await, []);
}

/// Goal: the column of the fence is not dropped by mistake; with CASCADE the loss is found.
#[tokio::test]
async fn a_dropped_column_is_found() {
    let database = Fenced::Row.database().await;
    let plain = database.admin.batch_execute("ALTER TABLE seats DROP leasehold_fence").await;
    assert_eq!(crate::support::outcome(&plain), "2BP01", "the trigger depends on it");
    database.admin.batch_execute("ALTER TABLE seats DROP leasehold_fence CASCADE").await.unwrap();
    assert_eq!(database.holes().await, [HoleKind::ColumnMissing, HoleKind::TriggerMissing]);
    database.install(&Fenced::Row.options()).await;
    assert_eq!(database.holes().await, []);
}

/// Goal: a trigger that fires after ours can undo the fence of a row: it is shown, and named.
#[tokio::test]
async fn a_later_trigger_is_found() {
    let database = Fenced::Row.database().await;
    let later = "CREATE FUNCTION undo() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN NEW.leasehold_fence := '1'; RETURN NEW; END $$;
        CREATE TRIGGER zzz_undo BEFORE UPDATE ON seats FOR EACH ROW EXECUTE FUNCTION undo()";
    database.admin.batch_execute(later).await.unwrap();
    assert_eq!(database.write(BOB, WRITE).await, "ok");
    assert_eq!(database.write(ADA, WRITE).await, "ok", "this is the hole");
    let found = examine(&database.admin, true).await.unwrap();
    assert_eq!(found.holes.len(), 1, "{found:?}");
    assert_eq!(found.holes[0].kind, HoleKind::LaterTrigger);
    assert!(found.holes[0].sentence.contains("zzz_undo"));
    database.admin.batch_execute("ALTER TRIGGER zzz_undo ON seats RENAME TO a_undo").await.unwrap();
    assert_eq!(database.holes().await, []);
    assert_eq!(database.write(BOB, WRITE).await, "ok");
    assert_eq!(database.write(ADA, WRITE).await, "LH001");
}

/// Goal: a fence of another version, and one that only observes, are named.
#[tokio::test]
async fn another_version_and_observing_are_holes() {
    let database = Fenced::Row.database().await;
    database.install(&InstallOptions { mode: FenceMode::Observe, ..Fenced::Row.options() }).await;
    assert_eq!(database.holes().await, [HoleKind::Observing]);
    database.install(&Fenced::Row.options()).await;
    database.admin.batch_execute("UPDATE leasehold_fence.fenced SET version = 0").await.unwrap();
    assert_eq!(database.holes().await, [HoleKind::OtherVersion]);
    database.install(&Fenced::Row.options()).await;
    assert_eq!(database.holes().await, []);
    database.admin.batch_execute("UPDATE leasehold_fence.fenced SET version = 99").await.unwrap();
    assert!(database.refuses_install(&Fenced::Row.options()).await.contains("later version"));
}

/// Goal: a table that was dropped and made anew is found, and what is left of its fence can be removed.
#[tokio::test]
async fn a_table_made_anew_is_found() {
    let database = Fenced::Keyed.database().await;
    let guard = guard(&database).await;
    let anew = "DROP TABLE seats; CREATE TABLE seats (seat_id int PRIMARY KEY, owner text)";
    database.admin.batch_execute(anew).await.unwrap();
    assert_eq!(database.holes().await, [HoleKind::TableGone]);
    database.install(&Fenced::Keyed.options()).await;
    assert_eq!(database.holes().await, [HoleKind::TableGone]);
    assert_eq!(remove(&mut database.client().await, &guard, false).await.unwrap().table, guard);
    assert_eq!(database.holes().await, []);
}

/// Goal: a token that is set for a role in advance is found: strangers would write under it.
#[tokio::test]
async fn a_token_set_in_advance_is_found() {
    let database = Fenced::Row.database().await;
    let role = format!("lazy_{}", database.name);
    let sql = format!("CREATE ROLE {role}; ALTER ROLE {role} IN DATABASE {} SET leasehold.token = '99'", database.name);
    database.admin.batch_execute(&sql).await.unwrap();
    assert_eq!(database.holes().await, [HoleKind::SettingFixed]);
    database.admin.batch_execute(&format!("ALTER ROLE {role} IN DATABASE {} RESET ALL", database.name)).await.unwrap();
    assert_eq!(database.holes().await, []);
}

/// Goal: an engine that may give out tokens which the fence has seen is named.
#[tokio::test]
async fn an_engine_below_the_fence_is_found() {
    let database = Fenced::Row.database().await;
    assert_eq!(database.write(BOB, WRITE).await, "ok");
    let whole = examine(&database.admin, true).await.unwrap();
    assert_eq!(whole.highest(), Token::new(42));
    for (floor, holes) in [(41, 1), (42, 0), (43, 0)] {
        let mut found = whole.clone();
        found.compare_with_floor(Token::new(floor).unwrap());
        assert_eq!(found.holes.len(), holes, "{floor}");
        assert!(found.holes.iter().all(|hole| hole.kind == HoleKind::EngineBelow));
    }
    // A name that no table has: hand-written transactions are refused as well.
    assert_eq!(database.write("", "SELECT leasehold_fence.check('billing', '50')").await, "ok");
    let mut found = examine(&database.admin, true).await.unwrap();
    found.compare_with_floor(Token::new(49).unwrap());
    assert_eq!(found.holes.len(), 1, "{found:?}");
}

/// Goal: the examination says who could take the fence away, and who could keep others waiting.
#[tokio::test]
async fn owners_and_patient_roles_are_named() {
    let database = Fenced::Row.database().await;
    let (owner, clerk) = (format!("owner_{}", database.name), format!("clerk_{}", database.name));
    let sql = format!(
        "CREATE ROLE {owner} LOGIN; CREATE ROLE {clerk} LOGIN; GRANT UPDATE ON seats TO {clerk};
         ALTER TABLE seats OWNER TO {owner}"
    );
    database.admin.batch_execute(&sql).await.unwrap();
    let notes = examine(&database.admin, false).await.unwrap().notes.join("\n");
    let (drops, waits) = notes.split_once('\n').unwrap();
    assert!(drops.contains(&owner) && drops.contains("postgres") && !drops.contains(&clerk), "{notes}");
    assert!(waits.contains("idle_in_transaction_session_timeout") && waits.contains(&clerk), "{notes}");
    let sql = format!("ALTER ROLE {clerk} SET idle_in_transaction_session_timeout = '10s'");
    cluster().execute(&database.name, &sql).await;
    let notes = examine(&database.admin, false).await.unwrap().notes.join("\n");
    assert!(!notes.contains(&clerk), "{notes}");
}
