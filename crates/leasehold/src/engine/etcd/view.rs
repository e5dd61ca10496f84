//! What everybody may see: who holds, who waits. And an operator's revoke.

use std::sync::Arc;
use std::time::Duration;

use super::failure::EtcdFailure;
use super::keys::KeyRange;
use super::members::CallKind;
use super::messages::{RangeCall, TxnCall, TxnCondition, TxnPart};
use super::owner::CallTries;
use super::paging::{NameScan, shown_name};
use super::queue_line::{ContenderKind, QueueContender, QueueLine};
use super::shared::{EtcdShared, draw_call_name};
use super::values::{ContenderState, EndedValue, StoredEnd};
use crate::engine::consensus::ended::HowEnded;
use crate::engine::{Holding, Query, Resource, Waiting};
use crate::error::Error;

/// Contenders of one queue that are read for a look.
const LOOK_LIMIT: i64 = 1000;
/// Holders and waiters that are shown.
const MAX_SHOWN: usize = 100;
/// Keys in one page of a scan.
const SCAN_KEYS: i64 = 1000;
/// Pages that are read to find one missing name.
const MAX_PAGES_PER_NAME: usize = 20;
/// Queues that are read at once.
const QUEUES_AT_ONCE: usize = 32;
/// Contenders of a queue that are read with others.
const FEW_CONTENDERS: i64 = 32;

impl EtcdShared {
    /// One resource; none when nothing is known of it.
    pub async fn show_one(self: &Arc<Self>, name: &str) -> Result<Option<Resource>, EtcdFailure> {
        let line = self.read_line(name, Some(LOOK_LIMIT)).await?;
        let line =
            if self.end_those_over(name, &line).await? { self.read_line(name, Some(LOOK_LIMIT)).await? } else { line };
        Ok(self.show_line(name, &line).await)
    }

    /// Ends leases that are certainly over: they are shown no more. Whether there were any.
    async fn end_those_over(self: &Arc<Self>, name: &str, line: &QueueLine) -> Result<bool, EtcdFailure> {
        let mut any = false;
        for contender in line.contenders.iter().filter(|one| one.state().is_some()).take(MAX_SHOWN) {
            any |= self.lapse_if_over(name, contender).await?;
        }
        Ok(any)
    }

    async fn show_line(self: &Arc<Self>, name: &str, line: &QueueLine) -> Option<Resource> {
        let first = line.contenders.first()?;
        let (holders, waiters) = line.split();
        let wall = self.wall_millis();
        let elapsed = |at: i64| Duration::from_millis(u64::try_from(wall.saturating_sub(at)).unwrap_or(0));
        let came = |contender: &QueueContender| contender.value().map_or(wall, |(_, value)| value.at);
        let mode = holders.first().or(waiters.first()).map_or(first.mode, |one| one.mode);
        let (holders_total, queue_len) = (holders.len(), waiters.len() + line.unread);
        let mut shown = Vec::with_capacity(holders.len().min(MAX_SHOWN));
        for contender in holders.into_iter().take(MAX_SHOWN) {
            shown.push(Holding {
                holder: contender.label().to_owned(),
                token: contender.token(self),
                since: elapsed(came(contender)),
                remaining: self.shown_remaining(contender).await.unwrap_or_default(),
            });
        }
        let waiting = |one: &&QueueContender| Waiting { holder: one.label().to_owned(), waiting: elapsed(came(one)) };
        let waiters = waiters.iter().take(MAX_SHOWN).map(waiting).collect();
        Some(Resource { name: name.to_owned(), mode, holders: shown, holders_total, waiters, queue_len })
    }

    /// One page of resources, in order of their names.
    pub async fn list_page(self: &Arc<Self>, query: &Query) -> Result<Vec<Resource>, EtcdFailure> {
        if query.limit == 0 {
            return Ok(Vec::new());
        }
        let names = self.list_names(query).await?;
        let mut resources = Vec::with_capacity(names.len());
        for some in names.chunks(QUEUES_AT_ONCE) {
            let looks = some.iter().map(|name| RangeCall::by_arrival(self.layout.queue(name), FEW_CONTENDERS));
            let txn = TxnCall { success: looks.map(TxnPart::range).collect(), ..TxnCall::default() };
            let reply = self.txn_again(txn).await?;
            for (at, name) in some.iter().enumerate() {
                let line = QueueLine::parse(&self.layout, name, reply.range(at), reply.count(at), reply.revision())?;
                let shown = match line.unread {
                    0 => self.show_line(name, &line).await,
                    _ => self.show_one(name).await?,
                };
                resources.extend(shown);
            }
        }
        Ok(resources)
    }

    async fn list_names(&self, query: &Query) -> Result<Vec<String>, EtcdFailure> {
        let mut scan = NameScan::new(&self.layout, query);
        let (mut from, end) = scan.range();
        'pages: loop {
            let keys = self.read_keys(&(from, end.clone())).await?;
            for kv in &keys.kvs {
                if !scan.take_key(kv) {
                    break 'pages;
                }
            }
            match keys.kvs.last() {
                Some(last) if keys.more => from = after_key(&last.key),
                _ => break,
            }
        }
        let mut there = Vec::new();
        for (name, rest) in scan.missing() {
            if self.has_contender(&name, rest).await? {
                there.push(name);
            }
        }
        Ok(scan.finish(there))
    }

    async fn read_keys(&self, range: &KeyRange) -> Result<super::messages::RangeReply, EtcdFailure> {
        let (key, range_end) = range.clone();
        let call = RangeCall { key, range_end, limit: SCAN_KEYS, keys_only: true, ..RangeCall::default() };
        self.members.call(call, CallKind::Read).await
    }

    async fn has_contender(&self, name: &str, rest: KeyRange) -> Result<bool, EtcdFailure> {
        let (mut from, end) = rest;
        for _ in 0..MAX_PAGES_PER_NAME {
            let keys = self.read_keys(&(from, end.clone())).await?;
            if keys.kvs.iter().any(|kv| shown_name(&self.layout, kv).as_deref() == Some(name)) {
                return Ok(true);
            }
            match keys.kvs.last() {
                Some(last) if keys.more => from = after_key(&last.key),
                _ => return Ok(false),
            }
        }
        Ok(false)
    }

    /// Ends every lease on a resource, and counts them. Waiters stay.
    pub async fn revoke_all(self: &Arc<Self>, name: &str, reason: &str, attempt: &str) -> Result<usize, Error> {
        let read = self.read_line(name, None).await;
        let line = read.map_err(|failure| failure.into_read_error(attempt.to_owned()))?;
        let holders: Vec<QueueContender> = line.split().0.into_iter().cloned().collect();
        let closed = line.contenders.iter().filter(|one| one.state() == Some(ContenderState::Closed)).cloned();
        let closed: Vec<QueueContender> = closed.collect();
        let call = draw_call_name();
        let mut count = 0;
        for contender in holders.iter().chain(&closed) {
            let mut tries = CallTries::new();
            loop {
                match self.revoke_one(name, contender, reason, &call).await {
                    Ok(ended) => break count += usize::from(ended),
                    Err(failure) => tries.next(self, failure, attempt).await?,
                }
            }
        }
        Ok(count)
    }

    async fn revoke_one(
        self: &Arc<Self>,
        name: &str,
        contender: &QueueContender,
        reason: &str,
        call: &str,
    ) -> Result<bool, EtcdFailure> {
        match (&contender.kind, contender.state()) {
            // It is about to be granted: a claim that waits is not revoked.
            (_, Some(ContenderState::Waiting)) => Ok(false),
            (ContenderKind::Foreign(_), _) => {
                // Its owner is not told by anybody.
                let compare = vec![TxnCondition::created_at(contender.key.clone(), contender.arrival)];
                let success = vec![TxnPart::delete(contender.key.clone())];
                let reply = self.txn(TxnCall { compare, success, failure: Vec::new() }).await?;
                self.mirrors.remove_key(name, &contender.key);
                Ok(reply.succeeded)
            }
            (_, Some(ContenderState::Closed)) => {
                if let Some((plan, _)) = self.plan_of(name, contender).await? {
                    self.txn_again(plan.reopen(contender.written)).await?;
                    self.freed(&plan);
                }
                Ok(false)
            }
            _ => {
                if self.lapse_if_over(name, contender).await? {
                    return Ok(false);
                }
                let Some((plan, _)) = self.plan_of(name, contender).await? else {
                    return self.delete_orphan(name, contender).await;
                };
                let ending = EndedValue::new(StoredEnd::Revoked, reason, call, self.wall_millis());
                let reply = self.put_ending(&plan, &ending).await?;
                if reply.succeeded {
                    self.ended.insert(plan.public, HowEnded::Stale);
                    self.freed(&plan);
                    return Ok(true);
                }
                let mine = reply.range(1).first().map(|kv| EndedValue::parse(&kv.value, &kv.key));
                Ok(matches!(mine, Some(Ok(ending)) if ending.by == call))
            }
        }
    }
}

/// The key right after another.
fn after_key(key: &[u8]) -> Vec<u8> {
    [key, &[0]].concat()
}
