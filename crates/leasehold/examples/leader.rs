//! Leader election: several workers campaign for one name, one leads, and another takes over when it resigns.
//!
//! `cargo run --package leasehold --example leader`, or with a server: `… -- leasehold://127.0.0.1:7401`

#![allow(clippy::print_stdout, clippy::disallowed_methods, reason = "an example shows what it does, and waits")]

use std::time::Duration;

use leasehold::recipe::election::Leader;
use leasehold::{Leasehold, Token};
use tokio::task::JoinSet;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The term of a leader. The guard renews the lease at a third of it.
const TERM: Duration = Duration::from_secs(10);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let directory = tempfile::tempdir()?;
    let url = std::env::args().nth(1).unwrap_or_else(|| format!("embedded:{}", directory.path().display()));
    let leasehold = Leasehold::open(&url).await?;

    let mut terms: Vec<(String, Token)> = Vec::new();
    let campaigns: JoinSet<_> =
        ["ada", "bob", "cleo"].map(|worker| campaign(leasehold.clone(), worker)).into_iter().collect();
    for term in campaigns.join_all().await {
        terms.push(term?);
    }
    terms.sort_by_key(|(_, token)| *token);
    println!("terms, by token: {terms:?}");
    assert_eq!(terms.len(), 3, "each led once");
    assert!(terms.windows(2).all(|pair| pair[0].1 < pair[1].1), "every term has a token of its own");
    leasehold.close().await?;
    Ok(())
}

/// Stands in line, leads, and resigns.
async fn campaign(leasehold: Leasehold, worker: &'static str) -> Result<(String, Token), Failure> {
    let leader = leasehold.election("reports").value(worker).ttl(TERM).campaign().await?;
    println!("{worker} leads, token {}", leader.token());
    let token = leader.token();
    // Dropped when the term is lost, before another can lead.
    leader.run(async |term| lead(term).await).await?;
    leader.resign().await?;
    Ok((worker.to_owned(), token))
}

/// Works until the work is done, or until renewal is overdue: `danger` comes first, in time to stop.
async fn lead(term: &Leader) {
    tokio::select! {
        () = tokio::time::sleep(Duration::from_millis(20)) => {}
        () = term.danger() => println!("stepping down: the lease could not be renewed in time"),
    }
}
