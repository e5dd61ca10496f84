//! A pooler in transaction mode: a local token never leaks to the next client of a connection.

use leasehold_harness::pgbouncer::Pooler;

use crate::support::{BOB, Fenced, cluster, outcome};

/// Goal: through PgBouncer a token speaks for its own transaction only.
/// Method: many clients over few connections, writes with a token between writes without one; then a session SET, to show
/// why it is forbidden.
#[tokio::test]
async fn a_local_token_does_not_leak_through_a_pooler() {
    let database = Fenced::Row.database().await;
    let pooler = Pooler::start(cluster().port());
    let url = cluster().url_through(pooler.port(), "postgres", &database.name);
    let mut clients = Vec::new();
    for _ in 0..5 {
        let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(async move { drop(connection.await) });
        clients.push(client);
    }
    let write = "UPDATE seats SET owner = 'x' WHERE seat_id = 14";
    let fenced = format!("BEGIN; SELECT set_config('leasehold.token', '{BOB}', true); {write}; COMMIT");
    for round in 0..40 {
        let with = outcome(&clients[round % 5].batch_execute(&fenced).await);
        assert_eq!(with, "ok", "round {round}");
        for without in 1..=3 {
            let stranger = outcome(&clients[(round + without) % 5].batch_execute(write).await);
            assert_eq!(stranger, "LH002", "round {round}");
        }
    }
    // Never SET: it stays with a connection that strangers get next.
    clients[0].batch_execute(&format!("SET leasehold.token = '{BOB}'")).await.unwrap();
    let mut leaked = 0;
    for round in 0..20 {
        leaked += u32::from(clients[1 + round % 4].batch_execute(write).await.is_ok());
    }
    println!("a session SET admitted {leaked} of 20 writes of strangers");
    assert!(leaked > 0, "this is why the documentation forbids it");
}
