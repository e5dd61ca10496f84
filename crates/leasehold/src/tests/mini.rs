//! A book of exclusive leases in memory, under a clock set by hand. It says yes and no, and waits in no
//! particular order: just enough of an engine to hold a guard against.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use leasehold_core::Time;
use tokio::sync::Notify;

use crate::clock::Clock;
use crate::engine::{
    Answer, Claim, Engine, EventId, Finding, Grant, Holding, Keys, LeaseId, Mode, Promises, Query, Renewal, Resource,
    Token, Watch,
};
use crate::error::{Error, Refusal};
use crate::testkit::ManualClock;

pub(super) struct Mini {
    clock: ManualClock,
    promises: Promises,
    rows: Mutex<BTreeMap<u64, MiniLease>>,
    floor: Mutex<u64>,
    freed: Notify,
}

struct MiniLease {
    claim: Claim,
    granted_at: Time,
    expires_at: Time,
    released: bool,
    revoked: bool,
}

impl MiniLease {
    fn live(&self, now: Time) -> bool {
        !self.released && !self.revoked && now < self.expires_at
    }

    fn cap(&self) -> Time {
        self.claim.max_hold.map_or(Time::NEVER, |span| self.granted_at.plus(span))
    }

    fn renewal(&self, now: Time) -> Renewal {
        Renewal { remaining: self.expires_at.since(now), renewable: self.claim.max_hold.map(|_| self.cap().since(now)) }
    }
}

impl Mini {
    pub(super) fn fenced(clock: ManualClock) -> Self {
        let promises = Promises {
            engine: "mini",
            durable: false,
            fencing: true,
            fair: false,
            never_early: true,
            outlives_process: false,
        };
        Self { clock, promises, rows: Mutex::default(), floor: Mutex::default(), freed: Notify::new() }
    }

    pub(super) fn unfenced(clock: ManualClock) -> Self {
        let fenced = Self::fenced(clock);
        Self { promises: Promises { fencing: false, ..fenced.promises }, ..fenced }
    }

    /// Breaks its promise: says fencing, gives no token.
    pub(super) fn liar(clock: ManualClock) -> Self {
        let fenced = Self::fenced(clock);
        Self { promises: Promises { engine: "liar", ..fenced.promises }, ..fenced }
    }

    fn decide(&self, claim: &Claim) -> Result<Grant, Refusal> {
        let now = self.clock.now();
        let mut rows = self.rows.lock().unwrap();
        let same = rows.iter().find(|(_, row)| claim.request.is_some() && row.claim.request == claim.request);
        if let Some((number, row)) = same {
            let mut grant = self.grant(*number, row, now);
            if !row.live(now) {
                grant.remaining = Duration::ZERO;
            }
            return Ok(grant);
        }
        let wanted = |row: &MiniLease| row.claim.wants.iter().any(|a| claim.wants.iter().any(|b| a.name == b.name));
        if let Some(other) = rows.values().find(|row| row.live(now) && wanted(row)) {
            return Err(Refusal::Held {
                resource: claim.wants[0].name.clone(),
                holder: Some(other.claim.holder.clone()),
                remaining: Some(other.expires_at.since(now)),
                queue_len: 0,
            });
        }
        let last = rows.last_key_value().map_or(0, |(number, _)| *number);
        let number = last.max(*self.floor.lock().unwrap()) + 1;
        let row = MiniLease { claim: claim.clone(), granted_at: now, expires_at: now, released: false, revoked: false };
        let row = MiniLease { expires_at: now.plus(claim.ttl).min(row.cap()), ..row };
        let grant = self.grant(number, &row, now);
        rows.insert(number, row);
        Ok(grant)
    }

    fn grant(&self, number: u64, row: &MiniLease, now: Time) -> Grant {
        let Renewal { remaining, renewable } = row.renewal(now);
        let token = Token::new(number).filter(|_| self.promises.fencing && self.promises.engine != "liar");
        Grant { lease_id: LeaseId::new(number.to_string()), token, remaining, renewable }
    }

    fn with_row<T>(
        &self,
        lease: &LeaseId,
        change: impl FnOnce(&mut MiniLease, Time) -> Result<T, Refusal>,
    ) -> Result<T, Error> {
        let now = self.clock.now();
        let mut rows = self.rows.lock().unwrap();
        let row = lease.expose().parse().ok().and_then(|number: u64| rows.get_mut(&number));
        Ok(change(row.ok_or(Refusal::NotHeld)?, now)?)
    }

    fn names(&self) -> Vec<Resource> {
        let now = self.clock.now();
        let rows = self.rows.lock().unwrap();
        let mut found: Vec<Resource> = Vec::new();
        for (number, row) in rows.iter().filter(|(_, row)| row.live(now)) {
            let holding = Holding {
                holder: row.claim.holder.clone(),
                token: Token::new(*number),
                since: now.since(row.granted_at),
                remaining: row.expires_at.since(now),
            };
            found.extend(row.claim.wants.iter().map(|want| Resource {
                name: want.name.clone(),
                mode: Mode::Exclusive,
                holders: vec![holding.clone()],
                holders_total: 1,
                waiters: Vec::new(),
                queue_len: 0,
            }));
        }
        found.sort_by(|a, b| a.name.cmp(&b.name));
        found
    }
}

impl Engine for Mini {
    fn promises(&self) -> Promises {
        self.promises
    }

    fn acquire(&self, claim: Claim) -> Answer<'_, Grant> {
        Box::pin(async move {
            let give_up = self.clock.now().plus(claim.wait);
            loop {
                let freed = self.freed.notified();
                match self.decide(&claim) {
                    Err(Refusal::Held { .. }) if self.clock.now() < give_up => tokio::select! {
                        () = freed => {}
                        () = self.clock.sleep_until(give_up) => {}
                    },
                    decided => return Ok(decided?),
                }
            }
        })
    }

    fn renew<'a>(&'a self, lease: &'a LeaseId, ttl: Option<Duration>) -> Answer<'a, Renewal> {
        Box::pin(async move {
            self.with_row(lease, |row, now| {
                if !row.live(now) {
                    return Err(Refusal::Stale);
                }
                row.expires_at = now.plus(ttl.unwrap_or(row.claim.ttl)).min(row.cap());
                Ok(row.renewal(now))
            })
        })
    }

    fn relabel<'a>(&'a self, lease: &'a LeaseId, holder: &'a str) -> Answer<'a, ()> {
        Box::pin(async move {
            self.with_row(lease, |row, now| {
                if !row.live(now) {
                    return Err(Refusal::Stale);
                }
                row.claim.holder = holder.to_owned();
                Ok(())
            })
        })
    }

    fn release<'a>(&'a self, lease: &'a LeaseId) -> Answer<'a, bool> {
        Box::pin(async move {
            let ended = self.with_row(lease, |row, now| {
                if row.released {
                    return Ok(false);
                }
                row.released = row.live(now);
                if row.released { Ok(true) } else { Err(Refusal::Stale) }
            });
            self.freed.notify_waiters();
            ended
        })
    }

    fn revoke<'a>(&'a self, name: &'a str, _reason: &'a str) -> Answer<'a, usize> {
        Box::pin(async move {
            let now = self.clock.now();
            let mut rows = self.rows.lock().unwrap();
            let on_it = rows.values_mut().filter(|row| row.live(now));
            let on_it = on_it.filter(|row| row.claim.wants.iter().any(|want| want.name == name));
            Ok(on_it.map(|row| row.revoked = true).count())
        })
    }

    fn inspect<'a>(&'a self, name: &'a str) -> Answer<'a, Option<Resource>> {
        Box::pin(async move { Ok(self.names().into_iter().find(|resource| resource.name == name)) })
    }

    /// At most two a page, whatever is asked for, so that clients must go on by themselves.
    fn list(&self, query: Query) -> Answer<'_, Vec<Resource>> {
        Box::pin(async move {
            let after = |name: &str| query.after.as_deref().is_none_or(|after| name > after);
            let found = self.names().into_iter();
            Ok(found.filter(|r| r.name.starts_with(&query.prefix) && after(&r.name)).take(2).collect())
        })
    }

    fn raise_floor(&self, floor: Option<Token>) -> Answer<'_, Token> {
        Box::pin(async move {
            let last = self.rows.lock().unwrap().last_key_value().map_or(1, |(number, _)| *number);
            let mut kept = self.floor.lock().unwrap();
            *kept = floor.map_or(0, Token::get).max(*kept);
            Ok(Token::new(last.max(*kept)).unwrap())
        })
    }

    fn identity(&self) -> Answer<'_, Option<String>> {
        Box::pin(async { Ok(None) })
    }

    fn examine(&self) -> Answer<'_, Vec<Finding>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn watch(&self, _since: Option<EventId>) -> Answer<'_, Watch> {
        Box::pin(async { Err(Error::Invalid("the reference engine cannot be watched".into())) })
    }

    fn keys(&self) -> Option<&dyn Keys> {
        None
    }

    fn close(&self) -> Answer<'_, ()> {
        Box::pin(async { Ok(()) })
    }
}
