//! `leasehold watch`: what is granted and what ends, as it happens. Never a lease_id.

use clap::Args;
use leasehold::engine::{Event, EventId, EventKind, Seen};
use serde::Serialize;

use super::target::{PrefixWatch, Target};
use leasehold_support::signals::Signals;
use leasehold_support::{exit, output, time};

const EXAMPLE: &str = "\
Example:
  leasehold watch seat-
  leasehold watch --json | jq -r 'select(.kind == \"lapsed\") | .resources[]'

With --json each line has the id of its event. A line `reset` says that there is a gap before it: look at the whole
with leasehold ls. It needs a server or an engine that can be watched, and goes on until Ctrl-C; a lost connection
is taken up again where it was lost.";

/// Follows what is granted, relabelled, released, lapsed and revoked, one line each.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub struct WatchArgs {
    /// Only names that begin so.
    #[arg(default_value = "")]
    prefix: String,
    /// Print one JSON object per line.
    #[arg(long)]
    json: bool,
}

/// A line of `--json`: the same as the data of HTTP's events.
#[derive(Debug, Serialize)]
struct WatchLineJson<'a> {
    id: String,
    kind: &'static str,
    /// Decimal text: JSON numbers end at 2^53, tokens do not.
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    holder: Option<&'a str>,
    #[serde(skip_serializing_if = "str::is_empty")]
    reason: &'a str,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    resources: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    at: Option<String>,
}

impl WatchArgs {
    /// Prints events until a signal comes.
    pub async fn execute(self, target: &Target) -> anyhow::Result<u8> {
        let mut signals = Signals::listen()?;
        let mut stream = target.watch(&self.prefix).await?;
        let done = tokio::select! {
            biased;
            // Asked to end, it has done what it was started for.
            _ = signals.next() => Ok(exit::DONE),
            never = self.print_events(&mut stream) => never.map(|()| exit::DONE),
        };
        stream.client.close().await?;
        done
    }

    async fn print_events(&self, stream: &mut PrefixWatch) -> anyhow::Result<()> {
        // The first reset only says where the watch begins.
        let mut began = false;
        loop {
            match stream.next().await? {
                Seen::Reset(_) if !began => {}
                Seen::Reset(id) => self.print_reset(id)?,
                Seen::Events(events) => events.iter().try_for_each(|event| self.print_event(event))?,
            }
            began = true;
        }
    }

    fn print_event(&self, event: &Event) -> anyhow::Result<()> {
        let at = time::rfc3339_ago(event.ago);
        if self.json {
            return output::json(&WatchLineJson {
                id: event.id.to_string(),
                kind: event.kind.word(),
                token: event.token.map(|token| token.to_string()),
                holder: Some(&event.holder),
                reason: &event.reason,
                resources: &event.resources,
                at: Some(at),
            });
        }
        let names: Vec<String> = event.resources.iter().map(|name| output::plain(name)).collect();
        let (kind, names) = (event.kind.word(), names.join(" "));
        let token = event.token.map_or_else(String::new, |token| format!(", token {token}"));
        let verb = if event.kind == EventKind::Granted { "to" } else { "of" };
        let holder = output::plain(&event.holder);
        let reason =
            if event.reason.is_empty() { String::new() } else { format!(": {}", output::plain(&event.reason)) };
        output::line(format!("{at}  {kind:<10}  {names}  {verb} {holder}{token}{reason}"))
    }

    fn print_reset(&self, id: EventId) -> anyhow::Result<()> {
        if self.json {
            let (reason, resources) = ("", &[][..]);
            let (token, holder, at) = (None, None, None);
            return output::json(&WatchLineJson {
                id: id.to_string(),
                kind: "reset",
                token,
                holder,
                reason,
                resources,
                at,
            });
        }
        let at = time::rfc3339_ago(std::time::Duration::ZERO);
        output::line(format!("{at}  reset       there is a gap before this line: see leasehold ls"))
    }
}
