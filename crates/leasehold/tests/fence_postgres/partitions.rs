//! Partitioned tables: writes through the table and to a partition, rows that move, partitions that are added.

use leasehold::fence::HoleKind;
use leasehold::fence::postgres::Remember;

use crate::support::{ADA, BOB, Database, options};

const PARTITIONED: &str =
    "CREATE TABLE seats (seat_id int, owner text, PRIMARY KEY (seat_id)) PARTITION BY RANGE (seat_id);
    CREATE TABLE low PARTITION OF seats FOR VALUES FROM (0) TO (100);
    CREATE TABLE high PARTITION OF seats FOR VALUES FROM (100) TO (200) PARTITION BY RANGE (seat_id);
    CREATE TABLE high_one PARTITION OF high FOR VALUES FROM (100) TO (150);
    INSERT INTO seats VALUES (1, 'x'), (2, 'x'), (101, 'x')";

/// Goal: a partition is fenced like its table, however it is written.
#[tokio::test]
async fn partitions_are_fenced_with_their_table() {
    for (remember, keys, resource) in [
        (Remember::Row, &["seat_id"][..], "seat/{}"),
        (Remember::Name, &["seat_id"], "seat/{}"),
        (Remember::Name, &[], "all"),
    ] {
        let database = Database::new(PARTITIONED).await;
        database.install(&options("seats", keys, resource, remember)).await;
        assert_eq!(database.holes().await, []);
        assert_eq!(database.write(BOB, "UPDATE seats SET owner = 'bob'").await, "ok");
        for (relation, seat) in [("seats", 1), ("low", 1), ("high", 101), ("high_one", 101)] {
            let write = format!("UPDATE {relation} SET owner = 'x' WHERE seat_id = {seat}");
            for (token, code) in [("", "LH002"), (ADA, "LH001"), (BOB, "ok")] {
                assert_eq!(database.write(token, &write).await, code, "{resource} {relation} {token}");
            }
            assert_eq!(database.write(BOB, &format!("TRUNCATE {relation}")).await, "LH005", "{resource} {relation}");
        }
        // A row that moves to another partition.
        let moved = "UPDATE seats SET seat_id = 120 WHERE seat_id = 1";
        assert_eq!(database.write(ADA, moved).await, "LH001", "{resource}");
        assert_eq!(database.write(BOB, moved).await, "ok", "{resource}");
        assert_eq!(database.write(ADA, "INSERT INTO seats VALUES (1, 'ada')").await, "LH001", "{resource}");
        assert_eq!(
            database.write(ADA, "UPDATE seats SET owner = 'x' WHERE seat_id = 120").await,
            "LH001",
            "{resource}"
        );
    }
}

/// Goal: a partition that is added later is fenced but for TRUNCATE; `check` says so, and a second install mends it.
#[tokio::test]
async fn a_later_partition_is_fenced_and_its_truncate_is_found() {
    for remember in [Remember::Row, Remember::Name] {
        let database = Database::new(PARTITIONED).await;
        let seats = options("seats", &["seat_id"], "seat/{}", remember);
        database.install(&seats).await;
        database
            .admin
            .batch_execute("CREATE TABLE more PARTITION OF seats FOR VALUES FROM (200) TO (300)")
            .await
            .unwrap();
        for relation in ["seats", "more"] {
            assert_eq!(database.write("", &format!("INSERT INTO {relation} VALUES (201, 'x')")).await, "LH002");
        }
        assert_eq!(database.holes().await, [HoleKind::TruncateOpen], "{remember:?}");
        database.install(&seats).await;
        assert_eq!(database.holes().await, []);
        assert_eq!(database.write(BOB, "TRUNCATE more").await, "LH005");
    }
}

/// Goal: a table that is attached as a partition is fenced from that moment, its rows too; `check` finds its open TRUNCATE.
#[tokio::test]
async fn an_attached_partition_is_fenced() {
    for (remember, keys, resource) in [
        (Remember::Row, &["seat_id"][..], "seat/{}"),
        (Remember::Name, &["seat_id"], "seat/{}"),
        (Remember::Name, &[], "all"),
    ] {
        let database = Database::new(PARTITIONED).await;
        let seats = options("seats", keys, resource, remember);
        database.install(&seats).await;
        let column = if remember == Remember::Row { ", leasehold_fence text" } else { "" };
        let attach = format!(
            "CREATE TABLE more (seat_id int PRIMARY KEY, owner text{column}); INSERT INTO more VALUES (201, 'x');
             ALTER TABLE seats ATTACH PARTITION more FOR VALUES FROM (200) TO (300)"
        );
        database.admin.batch_execute(&attach).await.unwrap();
        for relation in ["seats", "more"] {
            let write = format!("UPDATE {relation} SET owner = 'y' WHERE seat_id = 201");
            for (token, code) in [("", "LH002"), (BOB, "ok"), (ADA, "LH001")] {
                assert_eq!(database.write(token, &write).await, code, "{resource} {relation} {token}");
            }
            let replica = format!("SET LOCAL session_replication_role = replica; {write}");
            assert_eq!(database.write("", &replica).await, "LH002", "{resource} {relation}: it fires always");
        }
        assert_eq!(database.holes().await, [HoleKind::TruncateOpen], "{resource}");
        database.install(&seats).await;
        assert_eq!(database.holes().await, [], "{resource}");
        // Detached it is a table of its own, without a fence. Where its column shows what it was, that is found.
        database.admin.batch_execute("ALTER TABLE seats DETACH PARTITION more").await.unwrap();
        let expected = if remember == Remember::Row { &[HoleKind::Unfenced][..] } else { &[] };
        assert_eq!(database.holes().await, expected, "{resource}");
    }
}

/// Goal: what cannot be fenced whole is not fenced at all.
#[tokio::test]
async fn a_partition_or_a_parent_of_others_is_refused() {
    let database = Database::new(PARTITIONED).await;
    let low = options("low", &["seat_id"], "seat/{}", Remember::Name);
    assert!(database.refuses_install(&low).await.contains("is a partition"));

    let database =
        Database::new("CREATE TABLE seats (seat_id int PRIMARY KEY); CREATE TABLE boxes (n int) INHERITS (seats)")
            .await;
    let seats = options("seats", &["seat_id"], "seat/{}", Remember::Name);
    assert!(database.refuses_install(&seats).await.contains("public\".\"boxes"));
    database.install(&options("boxes", &["seat_id"], "seat/{}", Remember::Name)).await;
    database.install(&seats).await;
    assert_eq!(database.holes().await, []);
    database.admin.batch_execute("CREATE TABLE lodges (n int) INHERITS (seats)").await.unwrap();
    assert_eq!(database.holes().await, [HoleKind::ChildUnfenced]);

    let database = Database::new("CREATE TABLE t (id int PRIMARY KEY); CREATE VIEW v AS SELECT * FROM t").await;
    assert!(database.refuses_install(&options("v", &["id"], "v/{}", Remember::Name)).await.contains("no table"));
}
