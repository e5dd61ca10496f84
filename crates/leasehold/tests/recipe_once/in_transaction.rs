//! `once` in a transaction of the caller: key, work and answer commit together.

use std::sync::{Arc, Mutex};

use leasehold::recipe::once::{self, Answer, Begun, OnceRequest, sqlite};
use leasehold::recipe::{RecipeError, RecipeRefusal};

use crate::{Place, millis};

fn replay(text: &str) -> Begun {
    Begun::Replay(Answer { status: 201, body: text.into(), replayed: true })
}

fn first_of(begun: Begun) -> once::First {
    match begun {
        Begun::First(first) => first,
        other => panic!("{other:?}"),
    }
}

/// Goal: whoever calls by SQL meets the limits of the library, as LH400 with a sentence. What is within them is taken. Most of
/// all, no ttl makes two first tries at once.
#[tokio::test]
async fn limits_hold_for_callers_by_sql() {
    let place = Place::postgres().await;
    drop(place.store().await);
    let Place::Postgres { cluster, database } = &place else { unreachable!() };
    let client = cluster.client(database).await;
    for (call, sentence) in [
        (r"once_begin('s', 'k', '\x00', ttl => '-1 s')", "the ttl of a try is 1 ms to 1 h, not -00:00:01"),
        (r"once_begin('s', 'k', '\x00', ttl => '0')", "the ttl of a try is 1 ms to 1 h"),
        (r"once_begin('s', 'k', '\x00', ttl => '61 min')", "the ttl of a try is 1 ms to 1 h"),
        (r"once_begin('s', 'k', '\x00', ttl => NULL)", "the ttl of a try is 1 ms to 1 h, not null"),
        (r"once_begin('s', 'k', '\x00', keep => '-1 s')", "an answer is kept for 1 ms to 30 days"),
        (r"once_begin('s', 'k', '\x00', keep => '31 days')", "an answer is kept for 1 ms to 30 days, not 31 days"),
        (r"once_begin('s', 'k', '\x00', keep => NULL)", "an answer is kept for 1 ms to 30 days, not null"),
        (r"once_begin('s', repeat('k', 256), '\x00')", "a key has 1 to 255 bytes, and this has 256"),
        (r"once_begin('s', '', '\x00')", "a key has 1 to 255 bytes"),
        (r"once_begin('s', NULL, '\x00')", "a key has 1 to 255 bytes, and this has none"),
        (r"once_begin(repeat('s', 129), 'k', '\x00')", "a scope has 1 to 128 bytes, and this has 129"),
        (r"once_begin('', 'k', '\x00')", "a scope has 1 to 128 bytes"),
        ("once_begin('s', 'k', NULL)", "what is asked is a digest"),
        ("once_begin('s', 'k', repeat('x', 1025)::bytea)", "what is asked is a digest: 1024 bytes at most"),
        (
            "once_end('finish', 's', 'k', 1, 0, repeat('x', 1048577)::bytea)",
            "at most 1 MiB, and this has 1048577 bytes",
        ),
        ("once_end('renew', 's', 'k', 1, ttl => '61 min')", "renew needs a ttl of 1 ms to 1 h"),
    ] {
        let refused = client.query(&format!("SELECT * FROM leasehold.{call}"), &[]).await;
        let refused = refused.err().unwrap_or_else(|| panic!("{call} was taken"));
        let answer = refused.as_db_error().unwrap();
        assert_eq!(answer.code().code(), "LH400", "{call}: {answer}");
        assert!(answer.message().contains(sentence), "{call}: {answer}");
    }
    for call in [
        r"once_begin(repeat('s', 128), repeat('k', 255), '\x00', ttl => '1 h', keep => '30 days')",
        r"once_begin('s', 'short', '\x00', ttl => '1 ms', keep => '1 ms')",
        "once_end('finish', 's', 'k', 1, 0, repeat('x', 1048576)::bytea)",
        "once_end('renew', 's', 'k', 1, ttl => '1 h')",
    ] {
        client.query(&format!("SELECT * FROM leasehold.{call}"), &[]).await.unwrap_or_else(|no| panic!("{call}: {no}"));
    }
}

/// Goal: `once_end` called by SQL does what it is told, or says what is wrong: a word that it does not know ends nothing, and a
/// finish without an answer stores an empty one.
#[tokio::test]
async fn by_sql_a_try_ends_by_a_word_that_is_known() {
    let place = Place::postgres().await;
    let store = place.store().await;
    let Place::Postgres { cluster, database } = &place else { unreachable!() };
    let client = cluster.client(database).await;
    let begin = "SELECT token FROM leasehold.once_begin('s', 'k', '\\x00')";
    let token: i64 = client.query_one(begin, &[]).await.unwrap().get(0);
    for (arguments, sentence) in [
        (format!("'complete', 's', 'k', {token}, 0"), "not by complete"),
        (format!("NULL, 's', 'k', {token}, 0"), "not by null"),
        (format!("'finish', 's', 'k', {token}"), "finish needs a status"),
        (format!("'renew', 's', 'k', {token}"), "renew needs a ttl of 1 ms to 1 h"),
        (format!("'renew', 's', 'k', {token}, ttl => '-1 s'"), "renew needs a ttl of 1 ms to 1 h"),
    ] {
        let refused = client.query_one(&format!("SELECT leasehold.once_end({arguments})"), &[]).await.unwrap_err();
        let answer = refused.as_db_error().unwrap();
        assert_eq!(answer.code().code(), "LH400", "{arguments}: {answer}");
        assert!(answer.message().contains(sentence), "{arguments}: {answer}");
    }
    let again = "SELECT outcome FROM leasehold.once_begin('s', 'k', '\\x00')";
    assert_eq!(client.query_one(again, &[]).await.unwrap().get::<_, String>(0), "in_flight", "nothing ended it");
    // The library's request, so that the library reads the replay.
    let request = OnceRequest::new("s", "other", "b");
    let first = first_of(store.once_begin(&request).await.unwrap());
    let finish = format!("SELECT leasehold.once_end('finish', 's', 'other', {}, 7)", first.token());
    assert!(client.query_one(&finish, &[]).await.unwrap().get::<_, bool>(0));
    let empty = Answer { status: 7, body: Vec::new(), replayed: true };
    assert_eq!(store.once_begin(&request).await.unwrap(), Begun::Replay(empty));
}

/// Goal: a rolled back first try leaves nothing, and a second one waits for the end of the first.
/// Method: PostgreSQL; the second begins while the first is open, once before a rollback and once before a commit.
#[tokio::test]
async fn on_postgres_a_second_request_waits_for_the_first() {
    let place = Place::postgres().await;
    place.store().await;
    let Place::Postgres { cluster, database } = &place else { unreachable!() };
    let mut one = cluster.client(database).await;
    for commits in [false, true] {
        let key = if commits { "committed" } else { "rolled back" };
        let tx = one.transaction().await.unwrap();
        let first = first_of(once::begin(&tx, "s", key, "b").await.unwrap());
        first.finish(&tx, 201, b"first").await.unwrap();
        let mut other = cluster.client(database).await;
        let second = tokio::spawn(async move {
            let tx = other.transaction().await.unwrap();
            let begun = once::begin(&tx, "s", key, "b").await.unwrap();
            tx.commit().await.unwrap();
            begun
        });
        tokio::time::sleep(millis(150)).await;
        assert!(!second.is_finished(), "it waits");
        if commits {
            tx.commit().await.unwrap();
            assert_eq!(second.await.unwrap(), replay("first"));
        } else {
            tx.rollback().await.unwrap();
            first_of(second.await.unwrap());
        }
    }
}

/// Goal: tokens of a key rise with every try, even when many wait for one that is rolled back.
/// Method: eight requests wait for a first; it rolls back, and so does each that follows it.
#[tokio::test]
async fn on_postgres_tokens_rise_over_roll_backs() {
    let place = Place::postgres().await;
    place.store().await;
    let Place::Postgres { cluster, database } = &place else { unreachable!() };
    for round in 0..6 {
        let key = format!("key-{round}");
        let mut one = cluster.client(database).await;
        let tx = one.transaction().await.unwrap();
        let tokens = Arc::new(Mutex::new(vec![first_of(once::begin(&tx, "s", &key, "b").await.unwrap()).token()]));
        let mut waiting = tokio::task::JoinSet::new();
        for _ in 0..8 {
            let (mut client, key, tokens) = (cluster.client(database).await, key.clone(), tokens.clone());
            waiting.spawn(async move {
                let tx = client.transaction().await.unwrap();
                let first = first_of(once::begin(&tx, "s", &key, "b").await.unwrap());
                tokens.lock().unwrap().push(first.token());
                tx.rollback().await.unwrap();
            });
        }
        tokio::time::sleep(millis(100)).await;
        tx.rollback().await.unwrap();
        waiting.join_all().await;
        let tokens = tokens.lock().unwrap().clone();
        assert!(tokens.len() == 9 && tokens.is_sorted(), "{tokens:?}");
    }
}

/// Goal: `lock_timeout` turns the wait into "in flight", without a time.
#[tokio::test]
async fn on_postgres_a_lock_timeout_is_in_flight() {
    let place = Place::postgres().await;
    let store = place.store().await;
    let Place::Postgres { cluster, database } = &place else { unreachable!() };
    let mut one = cluster.client(database).await;
    let tx = one.transaction().await.unwrap();
    let first = first_of(once::begin(&tx, "s", "k", "b").await.unwrap());
    let mut other = cluster.client(database).await;
    other.batch_execute("SET lock_timeout = 200").await.unwrap();
    let second = other.transaction().await.unwrap();
    let refused = once::begin(&second, "s", "k", "b").await;
    let is_in_flight = |error: &RecipeError| error.refusal() == Some(&RecipeRefusal::InFlight { remaining: None });
    assert!(refused.as_ref().is_err_and(is_in_flight), "{refused:?}");
    // In two phases too: a connection of the store waits 5 s for a lock.
    let refused = store.once("s", "k", "b").run(async |_| Ok(Answer::new(0, ""))).await;
    assert!(refused.as_ref().is_err_and(is_in_flight), "{refused:?}");
    first.finish(&tx, 201, b"first").await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(store.once("s", "k", "b").run(async |_| panic!()).await.unwrap().body, b"first");
}

/// Goal: a first try that was taken over fails with its transaction: nothing of its work is kept.
#[tokio::test]
async fn a_stale_finish_fails_the_transaction() {
    let place = Place::postgres().await;
    let store = place.store().await;
    let Place::Postgres { cluster, database } = &place else { unreachable!() };
    let mut client = cluster.client(database).await;
    // Begun in a transaction that ended: as in two phases, with the caller's own connection.
    let slow = first_of(once::begin(&client, "s", "k", "b").await.unwrap());
    place.pass(std::time::Duration::from_secs(31)).await;
    assert!(matches!(store.once_begin(&once::OnceRequest::new("s", "k", "b")).await.unwrap(), Begun::First(_)));
    let tx = client.transaction().await.unwrap();
    let refused = slow.finish(&tx, 201, b"slow").await;
    assert!(matches!(&refused, Err(RecipeError::Refused(RecipeRefusal::Stale { .. }))), "{refused:?}");
}

/// Goal: in a file of SQLite, key, work and answer commit together or not at all; without a transaction it is refused.
#[tokio::test]
async fn on_sqlite_the_work_and_the_answer_commit_together() {
    let place = Place::sqlite();
    let store = place.store().await;
    let mut db = place.open_file();
    db.execute_batch("CREATE TABLE stock (left_over INTEGER); INSERT INTO stock VALUES (9)").unwrap();
    let refused = sqlite::begin(&db, "s", "k", "b");
    assert!(matches!(refused, Err(RecipeError::Invalid(_))), "{refused:?}");
    for commits in [false, true, true] {
        let tx = db.transaction().unwrap();
        match sqlite::begin(&tx, "s", "k", "b").unwrap() {
            Begun::First(first) => {
                tx.execute("UPDATE stock SET left_over = left_over - 1", []).unwrap();
                sqlite::finish(&tx, first, 201, b"sold").unwrap();
            }
            other => assert_eq!(other, replay("sold")),
        }
        if commits { tx.commit().unwrap() } else { tx.rollback().unwrap() }
    }
    let left: i64 = db.query_row("SELECT left_over FROM stock", [], |row| row.get(0)).unwrap();
    assert_eq!(left, 8);
    assert_eq!(store.once("s", "k", "b").run(async |_| panic!()).await.unwrap().body, b"sold");
    let tx = db.transaction().unwrap();
    assert_eq!(sqlite::begin(&tx, "s", "k", "other").unwrap(), Begun::Mismatch);
    let refused = sqlite::finish(&tx, once::First::from_parts("s", "k", 1), 201, b"stale");
    assert!(matches!(refused, Err(RecipeError::Refused(RecipeRefusal::Stale { .. }))), "{refused:?}");
}

/// Goal: a role without the tables is told what to do.
#[tokio::test]
async fn a_database_without_the_store_says_what_to_do() {
    let place = Place::postgres().await;
    let Place::Postgres { cluster, database } = &place else { unreachable!() };
    let client = cluster.client(database).await;
    let refused = once::begin(&client, "s", "k", "b").await.unwrap_err().to_string();
    assert!(refused.contains("leasehold migrate --store"), "{refused}");
    let db = rusqlite::Connection::open_in_memory().unwrap();
    db.execute_batch("BEGIN").unwrap();
    let refused = sqlite::begin(&db, "s", "k", "b").unwrap_err().to_string();
    assert!(refused.contains("leasehold migrate --store"), "{refused}");
}
