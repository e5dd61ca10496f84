//! The narrow alternatives to a lock, each with an assertion about what it shows. `leasehold advise` prints these lines.
//!
//! `cargo run --package leasehold --example recipes --features sqlite`

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leasehold::fence::Register;
use leasehold::recipe::flight::{Flights, MemoryCache};
use leasehold::recipe::optimistic::{Optimistic, Update};
use leasehold::recipe::several::SeveralEngines;
use leasehold::recipe::unique::UniqueInsert;
use leasehold::recipe::{row, unique};
use leasehold::{Leasehold, Token};
use rusqlite::Connection;

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let (one, two) = (tempfile::tempdir()?, tempfile::tempdir()?);
    let urls = [&one, &two].map(|dir| format!("embedded:{}", dir.path().display()));
    let leasehold = Leasehold::open(&urls[0]).await?;

    show_unique()?;
    show_optimistic_and_row().await?;
    show_single_flight(&leasehold).await?;
    show_election(&leasehold).await?;
    show_leases(&leasehold).await?;
    show_several(&urls, &leasehold).await?;
    leasehold.close().await?;
    Ok(())
}

/// A unique constraint decides who was first.
fn show_unique() -> Result<(), Failure> {
    let connection = Connection::open_in_memory()?;
    connection.execute_batch("CREATE TABLE sale (seat PRIMARY KEY, buyer NOT NULL)")?;
    let sold = unique::insert_sqlite(&connection, "sale", &["seat"], &[("seat", &14), ("buyer", &"ada")])?;
    assert_eq!(sold, UniqueInsert::First);
    let sold = unique::insert_sqlite(&connection, "sale", &["seat"], &[("seat", &14), ("buyer", &"bob")])?;
    assert_eq!(sold, UniqueInsert::Taken);
    println!("unique: ada has the seat, and bob is told so");
    Ok(())
}

/// Takes one from the stock, if nobody wrote since it was read. Says how many rows it changed.
fn sell_one(connection: &Connection) -> Result<usize, rusqlite::Error> {
    let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?));
    let (left, version): (i64, i64) = connection.query_row("SELECT left_over, version FROM stock", [], read)?;
    let write = "UPDATE stock SET left_over = ?1, version = version + 1 WHERE version = ?2";
    connection.execute(write, (left - 1, version))
}

/// Writers that compare a version, and writers that lock first.
async fn show_optimistic_and_row() -> Result<(), Failure> {
    let mut connection = Connection::open_in_memory()?;
    connection.execute_batch("CREATE TABLE stock (left_over, version); INSERT INTO stock VALUES (3, 0)")?;

    let writers = Optimistic::up_to(8);
    writers.write(async |_try| Ok::<_, rusqlite::Error>(Update::by_rows(sell_one(&connection)?, ()))).await?;
    assert_eq!((writers.report().attempts, writers.report().conflicts), (1, 0));

    row::locked_sqlite(&mut connection, Duration::from_millis(500), |tx| sell_one(tx))?;
    let left: i64 = connection.query_row("SELECT left_over FROM stock", [], |row| row.get(0))?;
    assert_eq!(left, 1);
    println!("optimistic and row: two were sold, {left} is left");
    Ok(())
}

/// Many ask for a page that expired, and one renders it.
async fn show_single_flight(leasehold: &Leasehold) -> Result<(), Failure> {
    let rendered = AtomicU32::new(0);
    let render = async |page: u32| {
        rendered.fetch_add(1, Ordering::SeqCst);
        tokio::task::yield_now().await;
        Ok::<_, std::io::Error>(format!("page {page}"))
    };
    let minute = Duration::from_secs(60);

    let flights = Flights::new(leasehold.clone(), MemoryCache::new());
    let ask = async || -> Result<String, Failure> {
        let page = flights.get("page:7", minute, async || render(7).await).stale_ok(5 * minute).await?;
        Ok(page)
    };
    let (first, second, third) = tokio::join!(ask(), ask(), ask());
    assert_eq!((first?, second?, third?), ("page 7".into(), "page 7".into(), "page 7".into()));
    assert_eq!(rendered.load(Ordering::SeqCst), 1);
    println!("single flight: three asked, one rendered");
    Ok(())
}

/// One leads, everybody sees who, and its token fences what it writes.
async fn show_election(leasehold: &Leasehold) -> Result<(), Failure> {
    let plan = Register::new(None);
    let write_plan = async |token: Token| println!("election: the leader writes with token {token}");

    let mut seen = leasehold.election("scheduler").observe();
    assert!(seen.next().await?.is_none());
    let leader = leasehold.election("scheduler").value("10.0.0.7:9000").campaign().await?;
    leader.run(async |term| write_plan(term.token()).await).await?;
    plan.write(&leader, Some("at noon"))?;
    leader.proclaim("10.0.0.7:9001").await?;
    let published = seen.next().await?.expect("somebody leads");
    assert_eq!((published.value.as_str(), published.token), ("10.0.0.7:9001", Some(leader.token())));
    leader.resign().await?;
    Ok(())
}

/// A job that runs one at a time, and a lease with a token.
async fn show_leases(leasehold: &Leasehold) -> Result<(), Failure> {
    let report = async || println!("acquire: the report runs");
    leasehold.acquire("nightly-report").run(async |_lease| report().await).await?;
    let lease = leasehold.acquire("billing").fenced().await?;
    assert!(lease.is_safe());
    lease.release().await?;
    Ok(())
}

/// Two engines, one order for everybody.
async fn show_several(urls: &[String; 2], first: &Leasehold) -> Result<(), Failure> {
    let second = Leasehold::open(&urls[1]).await?;
    let both = SeveralEngines::new().lease(&urls[1], &second, "till-1").lease(&urls[0], first, "shelf-3");
    let both = both.acquire_all_fenced().await?;
    assert_eq!((both.leases().len(), both.is_atomic(), both.is_live()), (2, false, true));
    both.release().await?;
    second.close().await?;
    println!("several: two leases on two engines, and both given back");
    Ok(())
}
