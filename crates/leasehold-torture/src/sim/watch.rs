//! Reads that wait for the disk, and watchers that get events when these are durable.

use std::collections::BTreeMap;

use leasehold_core::news::{EventKind, News};
use leasehold_core::wire::WireReader;
use leasehold_core::{End, Reply};

use super::Sim;
use crate::history::{OpKind, Recorded};
use crate::model::ReferenceModel;

/// Who has what, as a watcher makes it out of the news: the names by token.
pub(super) type HeldByToken = BTreeMap<u64, Vec<String>>;

/// One piece: what happened, to which lease, and the names.
type EventSummary = (EventKind, u64, Vec<String>);

impl Sim {
    /// Reads a resource: answered at once if all that it shows is durable, otherwise when it is.
    pub(super) fn read(&mut self) {
        let name = format!("r{}", self.rng.below(self.swarm.names));
        let Some(machine) = &self.machine else { return };
        let now = machine.clock.now();
        let seen = machine.group.book.inspect(&name, now);
        let mut saw: Vec<u64> = seen.map_or_else(Vec::new, |r| r.holders.iter().map(|h| h.token.get()).collect());
        saw.sort_unstable();
        let op = self.invoke(OpKind::Read { name, saw, at: now.as_nanos(), durable: self.durable_facts });
        let Some(machine) = &mut self.machine else { return };
        match machine.group.reply_when_durable(Reply::Ticked(false), || op) {
            Some(reply) => self.finish(op, reply),
            None => self.history.counts.late_reads += 1,
        }
    }

    /// A run of the engine begins: a watcher is reset, and reads the whole book.
    pub(super) fn begin_watch(&mut self) {
        self.durable = ReferenceModel::default();
        self.durable_facts = 0;
        for fact in self.log.iter().flat_map(|sealed| &sealed.recorded) {
            let _ = self.durable.follow(fact);
            self.durable_facts += 1;
        }
        self.told = held(&self.durable);
    }

    /// A batch is durable: its events are published, and must be its facts, in their order, each once.
    pub(super) fn publish(&mut self, facts: &[Recorded], (bytes, count): &(Vec<u8>, u64)) {
        let mut expected = Vec::new();
        for fact in facts {
            expected.extend(piece(&self.durable, fact));
            // Complaints about these were made when they were decided.
            let _ = self.durable.follow(fact);
            self.durable_facts += 1;
        }
        let news = decode(bytes);
        self.history.counts.news += news.len() as u64;
        if news != expected || news.len() as u64 != *count {
            let what = format!("{count} pieces of news were told, {news:?}; it happened {expected:?}");
            self.observe("watch_stream", what);
        }
        for (kind, token, names) in news {
            self.apply_event(kind, token, names);
        }
        self.compare_told();
    }

    fn apply_event(&mut self, kind: EventKind, token: u64, names: Vec<String>) {
        if kind == EventKind::Granted {
            self.told.insert(token, names);
            return;
        }
        if kind == EventKind::Relabelled {
            return;
        }
        if let Some(left) = self.told.get_mut(&token) {
            left.retain(|name| !names.contains(name));
            if left.is_empty() {
                self.told.remove(&token);
            }
        }
    }

    /// What the news add up to is what is held.
    pub(super) fn compare_told(&mut self) {
        let held = held(&self.durable);
        if self.told != held {
            let what = format!("the news add up to {:?}, held is {held:?}", self.told);
            self.observe("watch_stream", what);
        }
    }
}

fn held(model: &ReferenceModel) -> HeldByToken {
    let names = |wants: &[(String, _)]| wants.iter().map(|(name, _)| name.clone()).collect();
    model.leases.iter().filter(|(_, l)| !l.closing).map(|(token, lease)| (*token, names(&lease.wants))).collect()
}

/// The news that a fact is, by the model as it stood before it.
fn piece(model: &ReferenceModel, fact: &Recorded) -> Option<EventSummary> {
    let covered = |token: &u64| held(model).remove(token).unwrap_or_default();
    Some(match fact {
        Recorded::Granted { token, wants, .. } => {
            (EventKind::Granted, *token, wants.iter().map(|(name, _)| name.clone()).collect())
        }
        Recorded::Ended { token, how, .. } => {
            let kind = match how {
                End::Released => EventKind::Released,
                End::Lapsed => EventKind::Lapsed,
                End::Revoked => EventKind::Revoked,
            };
            (kind, *token, covered(token))
        }
        Recorded::Relabelled { token, .. } => (EventKind::Relabelled, *token, covered(token)),
        Recorded::Freed { token, name } => (EventKind::Released, *token, vec![name.clone()]),
        Recorded::Renewed { .. } | Recorded::Reopened { .. } | Recorded::Resumed { .. } => return None,
    })
}

fn decode(bytes: &[u8]) -> Vec<EventSummary> {
    let mut reader = WireReader::new(bytes);
    let mut pieces = Vec::new();
    while reader.left() > 0 {
        let Ok(news) = News::decode(&mut reader) else { break };
        pieces.push((news.kind, news.token.get(), news.names.iter().map(|name| (*name).to_owned()).collect()));
    }
    pieces
}
