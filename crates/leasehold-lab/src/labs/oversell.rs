//! 32 buyers read that one unit is left, and all of them sell it; then five ways to sell it once.
//!
//! The best lock is often none: the last three ways ask the database alone.

use std::time::Duration;

use crate::order::{ActorOrder, ActorOutcome, BuyOrder, BuyWay};
use crate::seat::sqlite;
use crate::stage::{ActorProcess, LabLine, Stage};
use crate::timeline::{ActKind, WriteFate};

const BUYERS: usize = 32;
/// All buyers have their order by then.
const BARRIER: Duration = Duration::from_millis(200);
/// How many sales have a line of their own.
const MAX_SALE_LINES: usize = 4;

pub async fn play(stage: &mut Stage) -> anyhow::Result<String> {
    let server = stage.start_server().await?;
    let mut buyers = Vec::new();
    for number in 1..=BUYERS {
        buyers.push(stage.start_actor(&format!("buyer-{number:02}"))?);
    }
    // Each has answered once: none of them is still starting when the barrier opens.
    for buyer in &mut buyers {
        buyer.ask(ActorOrder::Check).await?;
    }
    let ways = [
        (BuyWay::Naive, "read, think for 2 ms, write"),
        (BuyWay::Lease, "the same, under a lease"),
        (BuyWay::FencedLease, "the same, under a lease, and the table is fenced"),
        (BuyWay::Optimistic, "the write names the version that was read, or begins again"),
        (BuyWay::Unique, "a unique constraint on the unit that is sold"),
        (BuyWay::WriteLock, "the database's write lock from read to write (FOR UPDATE on PostgreSQL)"),
    ];
    let mut oversold = 0;
    for (way, title) in ways {
        let kind = if way == BuyWay::Naive { ActKind::Failure } else { ActKind::Cure };
        stage.record.begin_act(kind, title)?;
        let sold = sell_last_unit(stage, &mut buyers, &server.url(), way).await?;
        if way == BuyWay::Naive {
            stage.record.expect(sold > 1, "the one unit is sold more than once");
            oversold = sold;
        } else {
            stage.record.expect(sold == 1, "the one unit is sold once");
        }
    }
    Ok(format!(
        "Seen: without protection {BUYERS} buyers sold the one unit {oversold} times; with a lease, a lease and a fence, a \
         version, a unique constraint or a write lock it was sold once each time."
    ))
}

async fn sell_last_unit(
    stage: &mut Stage,
    buyers: &mut [ActorProcess],
    url: &str,
    way: BuyWay,
) -> anyhow::Result<usize> {
    let file = stage.path(&format!("{way:?}.db"));
    sqlite::create_stock(&file, way == BuyWay::FencedLease, way == BuyWay::Unique)?;
    let begin_ns = stage.clock().now().plus(BARRIER).as_nanos();
    let order = BuyOrder { file: file.clone(), url: url.to_owned(), way, begin_ns };
    for buyer in &mut *buyers {
        buyer.send(&ActorOrder::Buy(order.clone())).await?;
    }
    let mut sales = Vec::new();
    let (mut tries, mut last_ns) = (0, begin_ns);
    for buyer in &mut *buyers {
        let reply = buyer.reply().await?;
        let ActorOutcome::Bought { sold, read_ns, tries: own } = reply.outcome else {
            anyhow::bail!("{} could not buy: {}", buyer.name(), super::steps::outcome_text(&reply.outcome));
        };
        tries += own;
        last_ns = last_ns.max(reply.at_ns);
        if sold {
            sales.push((reply.at_ns, read_ns, buyer.name().to_owned()));
        }
    }
    sales.sort();
    let line = LabLine::new("buyers", format!("all {BUYERS} begin")).believes("one unit is left");
    stage.record.add(line.at(begin_ns))?;
    record_sales(stage, &sales)?;
    let sold = sqlite::count_sales(&file)?;
    let took = Duration::from_nanos(last_ns.saturating_sub(begin_ns));
    let does = format!("counts: {sold} sold of 1, in {} ms, {tries} reads", took.as_millis());
    let line = LabLine::new("lab", does).at(last_ns);
    stage.record.add(if sold == 1 { line.good("as it should be") } else { line.bad("oversold, without an error") })?;
    stage.record.expect(sold == sales.len(), "each sale that a buyer believes in is in the table");
    Ok(sold)
}

fn record_sales(stage: &mut Stage, sales: &[(u64, u64, String)]) -> anyhow::Result<()> {
    for (index, (at_ns, read_ns, name)) in sales.iter().enumerate() {
        let fate = if index == 0 { WriteFate::Admitted } else { WriteFate::WronglyAdmitted };
        stage.record.begin_belief(name, *read_ns);
        stage.record.end_belief(name, Some(*at_ns));
        stage.record.mark_write(name, *at_ns, fate);
        if index < MAX_SALE_LINES {
            let line = LabLine::new(name, "sells the unit").believes("one unit is left").at(*at_ns);
            stage.record.add(if index == 0 { line.good("sold") } else { line.bad("SOLD AGAIN") })?;
        }
    }
    if let Some((last_ns, ..)) = sales.last().filter(|_| sales.len() > MAX_SALE_LINES) {
        let more = sales.len() - MAX_SALE_LINES;
        let line = LabLine::new("buyers", format!("{more} more sell it")).believes("one unit is left");
        stage.record.add(line.bad("SOLD AGAIN").at(*last_ns))?;
    }
    Ok(())
}
