//! The evidence: orders, audit, invariants and seat states of the event, read over HTTP.

use std::time::Duration;

use anyhow::Context;

use super::api_types::{ApiAuditEntry, ApiAuditPage, ApiAvailability, ApiInvariants, ApiSeatState};
use super::buyer_log::BuyerLog;
use super::http_client::{HttpClient, HttpRequest};
use super::rehearsal_event::RehearsalEvent;

/// Audit entries are numbered after commit, so the audit lags. It is polled until it has every order, or until this
/// many polls return nothing: longer than numbering pauses when a server dies.
const AUDIT_POLL_EVERY: Duration = Duration::from_millis(200);
const MAX_EMPTY_AUDIT_POLLS: usize = 60;

/// A line of the sales report: one sold seat, or sold places of an area.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportLine {
    pub order_id: String,
    pub buyer: String,
    /// The id of a seat or an area.
    pub piece: String,
    pub qty: u32,
    pub token: u64,
}

/// What the event says of itself.
#[derive(Debug, Default)]
pub struct Evidence {
    pub lines: Vec<ReportLine>,
    pub entries: Vec<ApiAuditEntry>,
    pub invariants: Vec<super::api_types::ApiCheck>,
}

impl Evidence {
    /// Reads everything. The audit is read until it has every order that buyers were told of.
    ///
    /// # Errors
    ///
    /// A request failed.
    pub async fn read(client: &mut HttpClient, event: &RehearsalEvent, log: &BuyerLog) -> anyhow::Result<Self> {
        let mut evidence = Self { lines: read_report(client, event).await?, ..Self::default() };
        let mut empty_polls = 0;
        while empty_polls < MAX_EMPTY_AUDIT_POLLS {
            let since = evidence.entries.last().map_or(0, |entry| entry.seq);
            let news = read_audit(client, event, since).await?;
            empty_polls = if news.is_empty() { empty_polls + 1 } else { 0 };
            evidence.entries.extend(news);
            if evidence.has_all(log) {
                break;
            }
            // Even after the stop signal: without the evidence there is no proof.
            sleep(AUDIT_POLL_EVERY).await;
        }
        evidence.invariants = read_invariants(client, event).await?;
        Ok(evidence)
    }

    /// Whether the audit has every order that buyers were told of, and every order of the report.
    fn has_all(&self, log: &BuyerLog) -> bool {
        let known: std::collections::HashSet<&str> =
            self.entries.iter().filter_map(|e| e.order_id.as_deref()).collect();
        log.orders.iter().all(|order| known.contains(order.order_id.as_str()))
            && self.lines.iter().all(|line| known.contains(line.order_id.as_str()))
    }
}

#[allow(clippy::disallowed_methods, reason = "somebody waits for a server in real time")]
async fn sleep(span: Duration) {
    tokio::time::sleep(span).await;
}

/// Reads the sales report as CSV, which has all columns.
async fn read_report(client: &mut HttpClient, event: &RehearsalEvent) -> anyhow::Result<Vec<ReportLine>> {
    let path = event.path("/report?format=csv");
    let response = client.send_required(HttpRequest::get(&path), "read the report").await?;
    parse_report(&response.body)
}

fn parse_report(csv: &[u8]) -> anyhow::Result<Vec<ReportLine>> {
    let mut reader = csv::Reader::from_reader(csv);
    let headers = reader.headers().context("read the report")?.clone();
    let column = |name: &str| {
        headers.iter().position(|header| header == name).with_context(|| format!("the report has no column {name}"))
    };
    let (order, buyer, piece) = (column("order_id")?, column("buyer")?, column("seat")?);
    let (qty, token) = (column("qty")?, column("token")?);
    let mut lines = Vec::new();
    for row in reader.records() {
        let row = row.context("read the report")?;
        let text = |column: usize| row.get(column).unwrap_or_default().to_owned();
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

async fn read_audit(client: &mut HttpClient, event: &RehearsalEvent, since: u64) -> anyhow::Result<Vec<ApiAuditEntry>> {
    let mut all = Vec::new();
    let mut since = since;
    loop {
        let path = event.path(&format!("/audit?limit=1000&since={since}"));
        let page: ApiAuditPage = client.get_json(&path, "read the audit").await?;
        all.extend(page.entries);
        match page.next {
            Some(next) => since = next,
            None => return Ok(all),
        }
    }
}

async fn read_invariants(
    client: &mut HttpClient,
    event: &RehearsalEvent,
) -> anyhow::Result<Vec<super::api_types::ApiCheck>> {
    let mut invariants: ApiInvariants = client.get_json(&event.path("/invariants"), "read the invariants").await?;
    if !invariants.ok && invariants.checks.iter().all(|check| check.ok) {
        let detail = "the server says that not all is well, and not what".into();
        invariants.checks.push(super::api_types::ApiCheck { name: "invariants".into(), ok: false, detail });
    }
    Ok(invariants.checks)
}

/// Reads the state of every seat. Staff keys also see hold ids.
///
/// # Errors
///
/// The request failed.
pub async fn read_seat_states(client: &mut HttpClient, event: &RehearsalEvent) -> anyhow::Result<Vec<ApiSeatState>> {
    let now: ApiAvailability = client.get_json(&event.path("/availability?detail=1"), "look at the seats").await?;
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
        let lines = parse_report(text.as_bytes()).unwrap();
        assert_eq!(lines.len(), 2);
        assert_eq!((lines[0].buyer.as_str(), lines[0].piece.as_str(), lines[0].token), ("b, \"x\"", "A-1", 41));
        assert_eq!((lines[1].qty, lines[1].token), (3, 42));
        for bad in ["", "order_id,buyer\r\n", "order_id,buyer,seat,qty,token\r\no,b,s,1,x\r\n"] {
            assert!(parse_report(bad.as_bytes()).is_err(), "{bad:?}");
        }
    }
}
