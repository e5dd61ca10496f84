//! What the event says of itself: orders, audit, invariants, and what is held. Read over HTTP like everything else.

use std::time::Duration;

use anyhow::Context;

use super::api_types::{ApiAuditEntry, ApiAuditPage, ApiAvailability, ApiInvariants, ApiSeatState};
use super::buyer_log::BuyerLog;
use super::http_client::{HttpClient, HttpRequest};
use super::rehearsal_event::{RehearsalEvent, get, reach};

/// Numbers are given after commit: so often is looked until the audit has what was sold, and so many times without any
/// news, which is longer than the numbering rests when a server dies.
const LOOK: Duration = Duration::from_millis(200);
const LOOKS: usize = 60;

/// A line of the report: something that was sold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportLine {
    pub order_id: String,
    pub buyer: String,
    /// A seat or an area.
    pub piece: String,
    pub qty: u32,
    pub token: u64,
}

/// All of it.
#[derive(Debug, Default)]
pub struct Evidence {
    pub lines: Vec<ReportLine>,
    pub entries: Vec<ApiAuditEntry>,
    pub invariants: Vec<super::api_types::ApiCheck>,
}

impl Evidence {
    /// Reads it all, the audit once it has caught up with what buyers were told.
    ///
    /// # Errors
    ///
    /// The server does not show it.
    pub async fn read(desk: &mut HttpClient, venue: &RehearsalEvent, diary: &BuyerLog) -> anyhow::Result<Self> {
        let mut found = Self { lines: lines(desk, venue).await?, ..Self::default() };
        let mut in_vain = 0;
        while in_vain < LOOKS {
            let since = found.entries.last().map_or(0, |entry| entry.seq);
            let news = entries(desk, venue, since).await?;
            in_vain = if news.is_empty() { in_vain + 1 } else { 0 };
            found.entries.extend(news);
            if found.has_all(diary) {
                break;
            }
            // Also when somebody asked to stop: the proof is what it was all for.
            pause(LOOK).await;
        }
        found.invariants = invariants(desk, venue).await?;
        Ok(found)
    }

    /// Whether the audit knows of every order that buyers were told of, and of every one in the report.
    fn has_all(&self, diary: &BuyerLog) -> bool {
        let known: std::collections::HashSet<&str> =
            self.entries.iter().filter_map(|e| e.order_id.as_deref()).collect();
        diary.orders.iter().all(|told| known.contains(told.order_id.as_str()))
            && self.lines.iter().all(|line| known.contains(line.order_id.as_str()))
    }
}

#[allow(clippy::disallowed_methods, reason = "somebody waits for a server in real time")]
async fn pause(span: Duration) {
    tokio::time::sleep(span).await;
}

/// What is sold, as the report has it: as CSV, since that has all of it.
async fn lines(desk: &mut HttpClient, venue: &RehearsalEvent) -> anyhow::Result<Vec<ReportLine>> {
    let path = venue.path("/report?format=csv");
    let answer =
        reach(desk, HttpRequest { method: "GET", path: &path, ..HttpRequest::default() }, "read the report").await?;
    parse(&answer.body)
}

fn parse(csv: &[u8]) -> anyhow::Result<Vec<ReportLine>> {
    let mut reader = csv::Reader::from_reader(csv);
    let heads = reader.headers().context("read the report")?.clone();
    let place = |name: &str| {
        heads.iter().position(|head| head == name).with_context(|| format!("the report has no column {name}"))
    };
    let (order, buyer, piece) = (place("order_id")?, place("buyer")?, place("seat")?);
    let (qty, token) = (place("qty")?, place("token")?);
    let mut lines = Vec::new();
    for row in reader.records() {
        let row = row.context("read the report")?;
        let text = |place: usize| row.get(place).unwrap_or_default().to_owned();
        lines.push(ReportLine {
            order_id: text(order),
            buyer: text(buyer),
            piece: text(piece),
            qty: text(qty).parse().context("a count in the report is no number")?,
            token: text(token).parse().context("a token in the report is no number")?,
        });
    }
    Ok(lines)
}

async fn entries(desk: &mut HttpClient, venue: &RehearsalEvent, since: u64) -> anyhow::Result<Vec<ApiAuditEntry>> {
    let mut all = Vec::new();
    let mut since = since;
    loop {
        let path = venue.path(&format!("/audit?limit=1000&since={since}"));
        let page: ApiAuditPage = get(desk, &path, "read the audit").await?;
        all.extend(page.entries);
        match page.next {
            Some(next) => since = next,
            None => return Ok(all),
        }
    }
}

async fn invariants(desk: &mut HttpClient, venue: &RehearsalEvent) -> anyhow::Result<Vec<super::api_types::ApiCheck>> {
    let mut found: ApiInvariants = get(desk, &venue.path("/invariants"), "read the invariants").await?;
    if !found.ok && found.checks.iter().all(|check| check.ok) {
        let detail = "the server says that not all is well, and not what".into();
        found.checks.push(super::api_types::ApiCheck { name: "invariants".into(), ok: false, detail });
    }
    Ok(found.checks)
}

/// The state of every seat, with holds where staff may see them.
///
/// # Errors
///
/// The server does not show it.
pub async fn seats(desk: &mut HttpClient, venue: &RehearsalEvent) -> anyhow::Result<Vec<ApiSeatState>> {
    let now: ApiAvailability = get(desk, &venue.path("/availability?detail=1"), "look at the seats").await?;
    Ok(now.seats)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a report is read by the names of its columns, quotes and all.
    #[test]
    fn a_report_is_read_by_its_columns() {
        let text = "order_id,buyer,state,late,payment_ref,seat,qty,token,price\r\n\
                    o_1,\"b, \"\"x\"\"\",sold,false,pi,A-1,1,41,4500\r\no_1,b,sold,false,pi,floor,3,42,3000\r\n";
        let lines = parse(text.as_bytes()).unwrap();
        assert_eq!(lines.len(), 2);
        assert_eq!((lines[0].buyer.as_str(), lines[0].piece.as_str(), lines[0].token), ("b, \"x\"", "A-1", 41));
        assert_eq!((lines[1].qty, lines[1].token), (3, 42));
        for bad in ["", "order_id,buyer\r\n", "order_id,buyer,seat,qty,token\r\no,b,s,1,x\r\n"] {
            assert!(parse(bad.as_bytes()).is_err(), "{bad:?}");
        }
    }
}
