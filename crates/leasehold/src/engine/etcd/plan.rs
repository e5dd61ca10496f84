//! The transactions that decide, put together: one per verb.
//!
//! | | if | then | else |
//! | --- | --- | --- | --- |
//! | acquire | the queues are empty; marker; no ending; no request | put keys `held` | read, or put keys `waiting` |
//! | promote | own keys are as they came; marker | put keys `held` | read |
//! | renew | own keys as seen; no ending; marker | put keys in a later bucket | read |
//! | release | keys exist; no ending | delete keys, put the ending | read |
//! | lapse | first key as seen, or all that are closed | delete keys or close them, put the ending | |
//! | resolve | first key absent; no ending | put the ending `cancelled` | read |

use std::sync::Arc;

use super::keys::KeyLayout;
use super::messages::{RangeCall, TxnCall, TxnCondition, TxnPart};
use super::values::{ContenderState, ContenderValue, RequestValue};
use crate::engine::Mode;
use crate::engine::consensus::lease_id::{ModeLetter, PublicId};

/// Conditions, and parts of a branch, that etcd takes in one transaction.
const MAX_PARTS: usize = 128;
/// With more resources a promotion has no room for conditions on the queues.
pub(super) const MAX_GUARDED: usize = 60;
/// How many contenders a refused try reads at once.
pub(super) const FEW: i64 = 8;

/// One resource of a claim, and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PlannedWant {
    pub name: String,
    pub mode: Mode,
    pub key: Vec<u8>,
}

/// The keys of one lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LeasePlan {
    pub public: PublicId,
    pub wants: Arc<[PlannedWant]>,
    pub ended: Vec<u8>,
    pub request: Option<Vec<u8>>,
}

impl LeasePlan {
    pub fn new(
        layout: &KeyLayout,
        public: PublicId,
        wants: impl IntoIterator<Item = (String, Mode)>,
        request: Option<Vec<u8>>,
    ) -> Self {
        let planned = wants.into_iter().map(|(name, mode)| {
            let key = layout.contender(&name, mode, public);
            PlannedWant { name, mode, key }
        });
        Self { public, wants: planned.collect(), ended: layout.ended(public), request }
    }

    /// A lease of which only one key is known: enough to look at it, and to end it if it is the only one.
    pub fn by_key(layout: &KeyLayout, public: PublicId, name: &str, key: Vec<u8>) -> Self {
        let want = PlannedWant { name: name.to_owned(), mode: Mode::Exclusive, key };
        Self { public, wants: Arc::new([want]), ended: layout.ended(public), request: None }
    }

    pub fn first(&self) -> &PlannedWant {
        &self.wants[0]
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.wants.iter().map(|want| want.name.as_str())
    }

    /// Puts all keys with this value, attached to an etcd lease.
    fn put_keys(&self, value: &ContenderValue, lease: i64) -> Vec<TxnPart> {
        let several = self.wants.len() > 1;
        let letter = ModeLetter::from_mode(self.first().mode).to_char();
        let parts = self.wants.iter().enumerate().map(|(at, want)| {
            let mut value = value.clone();
            value.mode = want.mode.into();
            (value.names, value.first) = match (several, at) {
                (false, _) => (None, None),
                (true, 0) => (Some(self.wants.iter().map(|w| (w.name.clone(), w.mode.into())).collect()), None),
                (true, _) => (None, Some(format!("{letter}{}", self.first().name))),
            };
            TxnPart::put(want.key.clone(), value.to_bytes(), lease)
        });
        parts.collect()
    }

    fn delete_keys(&self) -> Vec<TxnPart> {
        self.wants.iter().map(|want| TxnPart::delete(want.key.clone())).collect()
    }

    /// The process lives, nothing ended this lease, and nobody used the request id.
    fn fresh(&self, marker: &[u8]) -> Vec<TxnCondition> {
        let mut conditions = vec![TxnCondition::exists(marker.to_vec()), TxnCondition::absent(self.ended.clone())];
        conditions.extend(self.request.clone().map(TxnCondition::absent));
        conditions
    }

    /// What tells why [`LeasePlan::fresh`] does not hold.
    fn read_fresh(&self, marker: &[u8]) -> Vec<TxnPart> {
        let keys = [marker.to_vec(), self.ended.clone()].into_iter().chain(self.request.clone());
        keys.map(|key| TxnPart::range(RangeCall::one(key))).collect()
    }

    /// Grants, if `free` holds for the queues; else does what `otherwise` says.
    pub fn acquire(
        &self,
        marker: &[u8],
        free: Vec<TxnCondition>,
        held: &PutLease<'_>,
        otherwise: Vec<TxnPart>,
    ) -> TxnCall {
        let mut compare = self.fresh(marker);
        compare.extend(free);
        TxnCall { compare, success: self.put_lease(held), failure: otherwise }
    }

    /// The same, or a place in every queue. None: it does not fit in one transaction.
    pub fn acquire_or_line_up(
        &self,
        layout: &KeyLayout,
        marker: &[u8],
        held: &PutLease<'_>,
        waiting: &PutLease<'_>,
    ) -> Option<TxnCall> {
        let line_up = self.line_up(layout, marker, waiting);
        let inner = longest_list(&line_up);
        let whole = self.acquire(marker, self.nobody_is_in_the_way(layout), held, vec![TxnPart::nested(line_up)]);
        (longest_list(&whole) + inner <= MAX_PARTS).then_some(whole)
    }

    /// Grants if the queues are empty, else reads them. None: it does not fit in one transaction.
    pub fn acquire_or_look(&self, layout: &KeyLayout, marker: &[u8], held: &PutLease<'_>) -> Option<TxnCall> {
        let whole = self.acquire(marker, self.nobody_is_in_the_way(layout), held, self.look(layout, marker));
        (longest_list(&whole) <= MAX_PARTS).then_some(whole)
    }

    fn put_lease(&self, put: &PutLease<'_>) -> Vec<TxnPart> {
        let mut parts = self.put_keys(put.value, put.lease);
        if let (Some(key), Some((value, lease))) = (&self.request, put.request) {
            parts.push(TxnPart::put(key.clone(), value.to_bytes(), lease));
        }
        parts
    }

    /// The queues hold nobody who is in the way.
    pub fn nobody_is_in_the_way(&self, layout: &KeyLayout) -> Vec<TxnCondition> {
        let ranges = self.wants.iter().flat_map(|want| layout.conflicts(&want.name, want.mode));
        ranges.map(TxnCondition::empty).collect()
    }

    /// Nobody came to the queues after a revision.
    pub fn nobody_came_since(&self, layout: &KeyLayout, revision: i64) -> Vec<TxnCondition> {
        let ranges = self.names().map(|name| layout.queue(name));
        ranges.map(|range| TxnCondition::all_created_before(range, revision + 1)).collect()
    }

    /// After a try that was not granted: marker, ending, request, then the first few of each queue.
    pub fn look(&self, layout: &KeyLayout, marker: &[u8]) -> Vec<TxnPart> {
        let mut parts = self.read_fresh(marker);
        parts.extend(self.names().map(|name| TxnPart::range(RangeCall::by_arrival(layout.queue(name), FEW))));
        parts
    }

    /// How many parts of [`LeasePlan::look`] come before the queues.
    pub fn parts_before_queues(&self) -> usize {
        2 + usize::from(self.request.is_some())
    }

    /// Takes a place in every queue.
    pub fn line_up(&self, layout: &KeyLayout, marker: &[u8], waiting: &PutLease<'_>) -> TxnCall {
        let mut success = self.put_lease(waiting);
        let counts = self.names().map(|name| TxnPart::range(RangeCall::count(layout.queue(name))));
        success.extend(counts.take(MAX_PARTS.saturating_sub(success.len())));
        TxnCall { compare: self.fresh(marker), success, failure: self.read_fresh(marker) }
    }

    /// From waiting to held. `guard`: etcd checks once more that everybody else came later. Only for exclusive resources:
    /// a condition on a range cannot ask for other modes.
    pub fn promote(
        &self,
        layout: &KeyLayout,
        marker: &[u8],
        arrival: i64,
        held: &PutLease<'_>,
        guard: bool,
    ) -> TxnCall {
        let mut compare = vec![TxnCondition::exists(marker.to_vec())];
        // Waiting keys are never written again, so a promotion that comes twice has one effect.
        compare.extend(self.wants.iter().map(|want| TxnCondition::written_at(want.key.clone(), arrival)));
        if guard && self.wants.len() <= MAX_GUARDED {
            let alone = self.wants.iter().filter(|want| want.mode == Mode::Exclusive);
            let ranges = alone.map(|want| layout.queue(&want.name));
            compare.extend(ranges.map(|range| TxnCondition::all_created_after(range, arrival - 1)));
        }
        let failure = vec![
            TxnPart::range(RangeCall::one(self.first().key.clone())),
            TxnPart::range(RangeCall::one(marker.to_vec())),
        ];
        TxnCall { compare, success: self.put_lease(held), failure }
    }

    /// Puts the keys anew. `seen`: the revision at which they were last written.
    pub fn rewrite(&self, marker: &[u8], seen: i64, put: &PutLease<'_>) -> TxnCall {
        // Each of them: where somebody deleted one, its resource may be another holder's by now.
        let mut compare: Vec<_> =
            self.wants.iter().map(|want| TxnCondition::written_at(want.key.clone(), seen)).collect();
        compare.extend([TxnCondition::absent(self.ended.clone()), TxnCondition::exists(marker.to_vec())]);
        let mut failure = self.look_at_lease();
        failure.push(TxnPart::range(RangeCall::one(marker.to_vec())));
        TxnCall { compare, success: self.put_lease(put), failure }
    }

    /// First key and ending.
    pub fn look_at_lease(&self) -> Vec<TxnPart> {
        let keys = [self.first().key.clone(), self.ended.clone()];
        keys.into_iter().map(|key| TxnPart::range(RangeCall::one(key))).collect()
    }

    /// Ends the lease by an order: its owner's or an operator's. Without an ending to put, it only deletes.
    pub fn end(&self, ending: Option<(Vec<u8>, i64)>) -> TxnCall {
        // The keys of a lease come and go together, so the first one speaks for all.
        let compare = vec![TxnCondition::exists(self.first().key.clone()), TxnCondition::absent(self.ended.clone())];
        let mut success = self.delete_keys();
        success.extend(ending.map(|(value, lease)| TxnPart::put(self.ended.clone(), value, lease)));
        TxnCall { compare, success, failure: self.look_at_lease() }
    }

    /// Ends the lease because its time is over. `closed`: what keeps the resources closed, and its bucket.
    pub fn lapse(&self, seen: i64, ending: (Vec<u8>, i64), closed: Option<(&ContenderValue, i64)>) -> TxnCall {
        let mut success = match closed {
            Some((value, lease)) => self.put_keys(value, lease),
            None => self.delete_keys(),
        };
        success.push(TxnPart::put(self.ended.clone(), ending.0, ending.1));
        // What is put again must be there: the resource of a key that somebody deleted may be another holder's by now.
        let puts = if closed.is_some() { self.wants.len() } else { 1 };
        let seen_keys = self.wants.iter().take(puts).map(|want| TxnCondition::written_at(want.key.clone(), seen));
        let compare = seen_keys.chain([TxnCondition::absent(self.ended.clone())]).collect();
        TxnCall { compare, success, failure: self.look_at_lease() }
    }

    /// The same where etcd has no space to remember it.
    pub fn lapse_unremembered(&self, seen: i64) -> TxnCall {
        let compare =
            vec![TxnCondition::written_at(self.first().key.clone(), seen), TxnCondition::absent(self.ended.clone())];
        TxnCall { compare, success: self.delete_keys(), failure: self.look_at_lease() }
    }

    /// The delay after a lapse is over.
    pub fn reopen(&self, seen: i64) -> TxnCall {
        let compare = vec![TxnCondition::written_at(self.first().key.clone(), seen)];
        TxnCall { compare, success: self.delete_keys(), failure: Vec::new() }
    }

    /// Leaves the queues, and reads the first of each. One that is sent again has no second effect: the same request may
    /// wait anew by then.
    pub fn leave(&self, layout: &KeyLayout) -> TxnCall {
        let looks = self.names().map(|name| TxnPart::range(RangeCall::by_arrival(layout.queue(name), FEW)));
        let looks: Vec<TxnPart> = looks.collect();
        let mut success = self.delete_keys();
        success.extend(self.request.clone().map(TxnPart::delete));
        let room = MAX_PARTS.saturating_sub(success.len());
        success.extend(looks.iter().take(room).cloned());
        TxnCall { compare: vec![TxnCondition::exists(self.first().key.clone())], success, failure: looks }
    }

    /// Deletes what is left of a place in the queues of which a key is gone. No try uses these keys again. The request goes
    /// only as it came: it may be another try's by now.
    pub fn delete_place(&self, arrival: i64) -> TxnCall {
        let compare = self.request.clone().map(|key| TxnCondition::written_at(key, arrival));
        let mut success = self.delete_keys();
        success.extend(self.request.clone().map(TxnPart::delete));
        TxnCall { compare: compare.into_iter().collect(), success, failure: self.delete_keys() }
    }

    /// Deletes what is left of a lease of which a key is gone. Its request stays: a repeat is told that the lease is over.
    pub fn delete_rest(&self) -> TxnCall {
        TxnCall { success: self.delete_keys(), ..TxnCall::default() }
    }

    /// How many parts of the reply to [`LeasePlan::leave`] come before the queues.
    pub fn parts_before_left_queues(&self, left_now: bool) -> usize {
        if left_now { self.wants.len() + usize::from(self.request.is_some()) } else { 0 }
    }

    /// Finds out what became of an acquire, and makes sure that nothing becomes of it later.
    pub fn resolve(&self, ending: (Vec<u8>, i64)) -> TxnCall {
        let compare = vec![TxnCondition::absent(self.first().key.clone()), TxnCondition::absent(self.ended.clone())];
        let success = vec![TxnPart::put(self.ended.clone(), ending.0, ending.1)];
        TxnCall { compare, success, failure: self.look_at_lease() }
    }
}

/// etcd counts the longest of the three lists, and takes it off what a transaction inside may have.
fn longest_list(txn: &TxnCall) -> usize {
    txn.compare.len().max(txn.success.len()).max(txn.failure.len())
}

/// What is put under the keys of a lease, and where.
#[derive(Clone, Copy)]
pub(super) struct PutLease<'a> {
    pub value: &'a ContenderValue,
    /// The etcd lease of the keys.
    pub lease: i64,
    /// The request id and its own etcd lease.
    pub request: Option<(&'a RequestValue, i64)>,
}

/// The wants of a lease, as its first key tells them.
pub(super) fn stored_wants(name: &str, value: &ContenderValue) -> Vec<(String, Mode)> {
    match &value.names {
        Some(names) => names.iter().map(|(name, mode)| (name.clone(), (*mode).into())).collect(),
        None => vec![(name.to_owned(), value.mode.into())],
    }
}

/// The same value in another state. The token stays with it.
pub(super) fn closed_value(value: &ContenderValue, token: u64, early: u64) -> ContenderValue {
    ContenderValue { state: ContenderState::Closed, token: Some(token), early, ..value.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(count: usize, request: bool) -> (KeyLayout, LeasePlan) {
        let layout = KeyLayout::new("p/");
        let wants = (0..count).map(|n| (format!("seat {n}"), Mode::Shared));
        let request = request.then(|| layout.request("ada", "r1"));
        let plan = LeasePlan::new(&layout, PublicId([3; 16]), wants, request);
        (layout, plan)
    }

    fn value() -> ContenderValue {
        ContenderValue {
            v: 1,
            holder: "ada".into(),
            state: ContenderState::Held,
            mode: Mode::Shared.into(),
            ttl: 1,
            early: 2,
            delay: 0,
            cap: None,
            sure: None,
            token: None,
            names: None,
            first: None,
            request: None,
            at: 0,
            renewed: 0,
        }
    }

    /// What etcd counts of a transaction and those inside it.
    fn counted(txn: &TxnCall) -> usize {
        let nested = txn.failure.iter().filter_map(|part| part.txn.as_ref());
        longest_list(txn) + nested.map(|inner| counted(inner)).max().unwrap_or(0)
    }

    /// Goal: no claim makes a transaction that etcd refuses for its size.
    #[test]
    fn every_transaction_fits() {
        for (count, request, in_one) in [(1, false, true), (31, true, true), (64, false, false), (64, true, false)] {
            let (layout, plan) = plan(count, request);
            let value = value();
            let asked = RequestValue::new(1, &leasehold_core::Secret::new([0; 16]), ModeLetter::Shared, "a", true);
            let put = PutLease { value: &value, lease: 5, request: Some((&asked, 6)) };
            let both = plan.acquire_or_line_up(&layout, b"m", &put, &put);
            assert_eq!(both.is_some(), in_one, "{count}");
            let tried = plan.acquire_or_look(&layout, b"m", &put);
            assert_eq!(tried.is_some(), in_one, "{count}");
            let all = [
                plan.acquire(b"m", plan.nobody_came_since(&layout, 9), &put, plan.look(&layout, b"m")),
                plan.line_up(&layout, b"m", &put),
                plan.promote(&layout, b"m", 9, &put, true),
                plan.rewrite(b"m", 9, &put),
                plan.end(Some((Vec::new(), 1))),
                plan.lapse(9, (Vec::new(), 1), Some((&value, 2))),
                plan.leave(&layout),
                plan.delete_place(9),
                plan.delete_rest(),
                plan.resolve((Vec::new(), 1)),
            ];
            for txn in all.into_iter().chain(both).chain(tried) {
                assert!(counted(&txn) <= MAX_PARTS, "{count} resources: {}", counted(&txn));
            }
        }
    }

    /// Goal: what arrives late has no effect: a renewal after a newer one, a promotion or a leave that came before, an
    /// acquire that was called off.
    /// Method: the conditions of each transaction.
    #[test]
    fn a_late_transaction_has_no_effect() {
        let (layout, plan) = plan(2, true);
        let value = value();
        let put = PutLease { value: &value, lease: 5, request: None };
        let first = plan.first().key.clone();
        let not_ended = TxnCondition::absent(plan.ended.clone());
        let alive = TxnCondition::exists(b"m".to_vec());
        let seen = TxnCondition::written_at(first.clone(), 9);
        let renewal = plan.rewrite(b"m", 9, &put).compare;
        let second = TxnCondition::written_at(plan.wants[1].key.clone(), 9);
        assert!([&seen, &second, &not_ended, &alive].into_iter().all(|one| renewal.contains(one)), "{renewal:?}");
        let promotion = plan.promote(&layout, b"m", 9, &put, false).compare;
        assert!([&seen, &alive].into_iter().all(|one| promotion.contains(one)), "{promotion:?}");
        let acquire = plan.acquire(b"m", Vec::new(), &put, Vec::new()).compare;
        let unused = TxnCondition::absent(plan.request.clone().expect("it has a request"));
        assert!([&not_ended, &alive, &unused].into_iter().all(|one| acquire.contains(one)), "{acquire:?}");
        let lined_up = plan.line_up(&layout, b"m", &put).compare;
        assert!([&not_ended, &alive, &unused].into_iter().all(|one| lined_up.contains(one)), "{lined_up:?}");
        assert_eq!(plan.leave(&layout).compare, [TxnCondition::exists(first.clone())]);
        let resolved = plan.resolve((Vec::new(), 1)).compare;
        assert_eq!(resolved, [TxnCondition::absent(first), not_ended]);
    }

    /// Goal: only the first key has the names of all; the others say which one that is.
    #[test]
    fn the_first_key_has_the_names() {
        let (_, plan) = plan(3, false);
        let parts = plan.put_keys(&value(), 5);
        let values: Vec<ContenderValue> =
            parts.iter().map(|part| ContenderValue::parse(&part.put.as_ref().unwrap().value, b"k").unwrap()).collect();
        assert_eq!(stored_wants("seat 0", &values[0]).len(), 3);
        assert_eq!(values[1].first.as_deref(), Some("sseat 0"));
        assert!(values.iter().all(ContenderValue::is_several) && values[2].names.is_none());
        let (_, alone) = self::plan(1, false);
        let alone = alone.put_keys(&value(), 5);
        let alone = ContenderValue::parse(&alone[0].put.as_ref().unwrap().value, b"k").unwrap();
        assert_eq!((alone.is_several(), stored_wants("n", &alone)), (false, vec![("n".into(), Mode::Shared)]));
    }
}
