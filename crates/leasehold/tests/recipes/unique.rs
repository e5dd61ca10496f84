//! A unique constraint as control flow, on real databases.

use leasehold::recipe::unique::{self, UniqueInsert};
use leasehold_harness::postgres::Cluster;

const TABLE: &str = "CREATE TABLE sale (seat int PRIMARY KEY, buyer text NOT NULL, receipt text UNIQUE)";

/// Goal: law 1: of all who want a seat, one gets it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_many_is_first() {
    let cluster = Cluster::start(&[]);
    let database = cluster.database().await;
    cluster.execute(&database, TABLE).await;
    let mut buyers = Vec::new();
    for buyer in 0..8 {
        let client = cluster.client(&database).await;
        buyers.push(tokio::spawn(async move {
            let mut first = 0;
            for seat in 0..50 {
                let name = format!("buyer {buyer}");
                let insert = unique::insert(&client, "public.sale", &["seat"], &[("seat", &seat), ("buyer", &name)])
                    .await
                    .unwrap();
                first += usize::from(insert == UniqueInsert::First);
            }
            first
        }));
    }
    let mut sold = 0;
    for buyer in buyers {
        sold += buyer.await.unwrap();
    }
    assert_eq!(sold, 50);
}

/// Goal: laws 2 and 3: *taken* leaves the transaction usable, and another constraint is an error, not *taken*.
#[tokio::test]
async fn taken_is_an_answer_and_other_constraints_are_errors() {
    let cluster = Cluster::start(&[]);
    let database = cluster.database().await;
    cluster.execute(&database, TABLE).await;
    let mut client = cluster.client(&database).await;
    let tx = client.transaction().await.unwrap();
    let sold = unique::insert(&tx, "sale", &["seat"], &[("seat", &14), ("buyer", &"ada"), ("receipt", &"r1")]).await;
    assert_eq!(sold.unwrap(), UniqueInsert::First);
    let again = unique::insert(&tx, "sale", &["seat"], &[("seat", &14), ("buyer", &"bob")]).await;
    assert_eq!(again.unwrap(), UniqueInsert::Taken);
    let next = unique::insert(&tx, "sale", &["seat"], &[("seat", &15), ("buyer", &"bob")]).await;
    assert_eq!(next.unwrap(), UniqueInsert::First, "the transaction goes on");
    tx.commit().await.unwrap();
    let other =
        unique::insert(&client, "sale", &["seat"], &[("seat", &16), ("buyer", &"eve"), ("receipt", &"r1")]).await;
    assert_eq!(other.unwrap_err().code().unwrap().code(), "23505");
    let missing = unique::insert(&client, "sale", &["seat"], &[("seat", &16)]).await;
    assert_eq!(missing.unwrap_err().code().unwrap().code(), "23502");
}

/// Goal: the same on SQLite, where `INSERT OR IGNORE` would swallow a missing value.
#[test]
fn on_sqlite_a_missing_value_is_an_error() {
    let connection = rusqlite::Connection::open_in_memory().unwrap();
    connection.execute_batch(TABLE).unwrap();
    let insert = |row: &[(&str, &dyn rusqlite::ToSql)]| unique::insert_sqlite(&connection, "sale", &["seat"], row);
    assert_eq!(insert(&[("seat", &14), ("buyer", &"ada")]).unwrap(), UniqueInsert::First);
    assert_eq!(insert(&[("seat", &14), ("buyer", &"bob")]).unwrap(), UniqueInsert::Taken);
    assert!(insert(&[("seat", &15)]).is_err());
    let buyer: String = connection.query_row("SELECT buyer FROM sale", [], |row| row.get(0)).unwrap();
    assert_eq!(buyer, "ada");
}
