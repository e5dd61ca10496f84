//! What the owner of a lease asks for: renew, relabel, release. Through any process, where leases do not end with one.

use std::sync::Arc;
use std::time::Duration;

use zookeeper_client::{self as zk, Client, Stat};

use crate::clock::Time;
use crate::engine::consensus::ended::HowEnded;
use crate::engine::consensus::lease_id::NamedLease;
use crate::engine::from_book::millis;
use crate::engine::{LeaseId, Renewal};
use crate::error::{Error, Refusal};

use super::failure::{failed_write, indeterminate, is_lost, unavailable};
use super::lease_table::{LeaseNodes, MindedLease};
use super::node_set::{NodeChange, delete_nodes, write_nodes};
use super::record::{NodeRecord, NodeState, boot_text};
use super::shared::{CONNECT_WAIT, RETRY_AFTER, RETRY_FOR, ZookeeperShared};

/// What is to be written.
pub(super) enum OwnerWrite {
    Renew(Option<Duration>),
    Relabel(String),
}

impl ZookeeperShared {
    /// The lease of an id, or why there is none.
    async fn find_lease(&self, attempt: &str, id: &LeaseId) -> Result<Arc<MindedLease>, Error> {
        self.refuse_closed(attempt)?;
        let named = NamedLease::parse(id).ok_or(Refusal::NotHeld)?;
        self.options.limits.check_name(&named.first).map_err(|_| Refusal::NotHeld)?;
        let public = Self::public_id(&named);
        if self.table.get(&public).is_none()
            && let Some(how) = self.ended.get(&public)
        {
            return Err(match how {
                // Only a release may tell it from another end.
                HowEnded::Released => Refusal::NotHeld.into(),
                HowEnded::Stale => Refusal::Stale.into(),
            });
        }
        self.locate(attempt, &named).await
    }

    pub async fn write_lease(&self, attempt: &str, id: &LeaseId, what: &OwnerWrite) -> Result<Renewal, Error> {
        let lease = self.find_lease(attempt, id).await?;
        let mut nodes = lease.nodes.lock().await;
        let by = self.now().plus(RETRY_FOR);
        // A write of this call whose reply was lost.
        let mut wrote: Option<(NodeRecord, Time)> = None;
        loop {
            // Whoever cannot be asked after a lost reply leaves open what that one did.
            let is_open = wrote.is_some();
            let or_unknown = |error| match error {
                Error::Unavailable { .. } if is_open => unknown(attempt),
                error => error,
            };
            let client = self.owner_client(attempt, &lease, &mut nodes).await.map_err(or_unknown)?;
            self.check_live(attempt, &lease, &mut nodes).await.map_err(or_unknown)?;
            let sent = self.now();
            let record = self.next_record(&nodes, &lease, what, sent);
            self.check_ttl_bound(Time::from_nanos(record.until).since(sent))?;
            let data = nodes.data(&record);
            match write_nodes(&client, &data, nodes.version).await {
                Ok(NodeChange::Done(stat)) => {
                    nodes.version = stat.map_or(nodes.version + 1, |stat| stat.version);
                    return self.note_write(&client, &lease, &mut nodes, record, sent, stat.map(held_ms)).await;
                }
                Ok(NodeChange::Gone) => {
                    self.end_broken(&client, &lease, &mut nodes).await;
                    return Err(Refusal::Stale.into());
                }
                Ok(NodeChange::Changed) => {
                    let stat = self.read_again(attempt, &lease, &mut nodes).await.map_err(or_unknown)?;
                    if let Some((record, sent)) = wrote.take_if(|(record, _)| is_same(record, &nodes.record)) {
                        return self.note_write(&client, &lease, &mut nodes, record, sent, stat.map(held_ms)).await;
                    }
                }
                Err(error) if is_lost(&error) && self.now() < by => {
                    wrote = Some((record, sent));
                    self.options.clock.sleep_until(self.now().plus(RETRY_AFTER)).await;
                }
                Err(error) => return Err(failed_write(attempt, error)),
            }
            if self.now() >= by {
                return Err(unknown(attempt));
            }
        }
    }

    /// The session to write by. A session lease is renewed by its own session: what that one wrote proves that it lives.
    async fn owner_client(
        &self,
        attempt: &str,
        lease: &Arc<MindedLease>,
        nodes: &mut LeaseNodes,
    ) -> Result<Client, Error> {
        let Some(session) = nodes.session.filter(|_| !nodes.over && self.table.get(&lease.public).is_some()) else {
            return self.client(attempt, &lease.first).await;
        };
        match self.pool.owner_by(session, self.now().plus(CONNECT_WAIT)).await {
            Ok(Some(client)) => Ok(client),
            Ok(None) => {
                self.note_end(lease, nodes, HowEnded::Stale);
                Err(Refusal::Stale.into())
            }
            Err(source) => Err(unavailable(attempt, source)),
        }
    }

    /// Whether the lease may still be changed by its owner.
    async fn check_live(&self, attempt: &str, lease: &Arc<MindedLease>, nodes: &mut LeaseNodes) -> Result<(), Error> {
        if !nodes.over && self.now() >= nodes.end && nodes.session.is_none() {
            // Over as far as this process knows; it may have been renewed through another.
            self.read_again(attempt, lease, nodes).await?;
        }
        if nodes.over {
            return Err(match self.ended.get(&lease.public) {
                Some(HowEnded::Released) => Refusal::NotHeld.into(),
                _ => Refusal::Stale.into(),
            });
        }
        if nodes.record.state == NodeState::Closed || self.now() >= nodes.end {
            return Err(Refusal::Stale.into());
        }
        if nodes.session.is_some() && self.table.get(&lease.public).is_none() {
            // It ends with the session of another process, whatever is written here.
            return Err(Refusal::NotHeld.into());
        }
        Ok(())
    }

    fn next_record(&self, nodes: &LeaseNodes, lease: &MindedLease, what: &OwnerWrite, sent: Time) -> NodeRecord {
        let mut record = nodes.record.clone();
        record.token = Some(lease.token.get());
        if record.state == NodeState::Try {
            record.state = NodeState::Held;
        }
        match what {
            OwnerWrite::Relabel(holder) => record.holder.clone_from(holder),
            OwnerWrite::Renew(ttl) => {
                record.ttl = ttl.map_or(record.ttl, millis);
                let end = sent.plus(record.ttl());
                record.until = nodes.cap.map_or(end, |cap| end.min(cap)).as_nanos();
                record.cap = nodes.cap.map(Time::as_nanos);
                record.boot = boot_text(&*self.options.clock);
                if self.is_minded() {
                    record.server.clone_from(&self.server);
                }
            }
        }
        record
    }

    /// A change was written: this process minds the lease from here on.
    async fn note_write(
        &self,
        client: &Client,
        lease: &Arc<MindedLease>,
        nodes: &mut LeaseNodes,
        record: NodeRecord,
        sent: Time,
        elapsed_ms: Option<i64>,
    ) -> Result<Renewal, Error> {
        let renewed = record.until != nodes.record.until || record.boot != nodes.record.boot;
        nodes.record = record;
        if renewed {
            nodes.end = Time::from_nanos(nodes.record.until);
            nodes.span = nodes.end.since(sent);
        }
        if let (Some(most), None, Some(elapsed)) = (nodes.record.max_hold, nodes.cap, elapsed_ms) {
            let left = most.saturating_sub(u64::try_from(elapsed).unwrap_or(0));
            let cap = sent.plus(Duration::from_millis(left));
            nodes.cap = Some(cap);
            nodes.end = nodes.end.min(cap);
            if left == 0 {
                let _ = delete_nodes(client, &nodes.paths, None).await;
                self.note_end(lease, nodes, HowEnded::Stale);
                return Err(Refusal::Stale.into());
            }
            self.write_cap(client, nodes, cap).await;
        }
        lease.note(nodes);
        if nodes.session.is_some() || self.is_minded() {
            self.table.insert(lease.clone(), nodes.end_at());
        }
        let now = self.now();
        Ok(Renewal { remaining: nodes.end.since(now), renewable: nodes.cap.map(|cap| cap.since(now)) })
    }

    /// Adds the cap to what was written: before the answer it was not known here. If that fails, the lease ends up to a ttl
    /// late in case this process dies.
    async fn write_cap(&self, client: &Client, nodes: &mut LeaseNodes, cap: Time) {
        if nodes.record.boot != boot_text(&*self.options.clock) {
            // A relabel leaves the moments of another machine as they are.
            return;
        }
        let (until, cap) = (nodes.record.until.min(cap.as_nanos()), Some(cap.as_nanos()));
        let record = NodeRecord { until, cap, ..nodes.record.clone() };
        if let Ok(NodeChange::Done(stat)) = write_nodes(client, &nodes.data(&record), nodes.version).await {
            nodes.version = stat.map_or(nodes.version + 1, |stat| stat.version);
            nodes.record = record;
        }
    }

    /// Somebody else has changed the nodes: what is there now.
    async fn read_again(
        &self,
        attempt: &str,
        lease: &Arc<MindedLease>,
        nodes: &mut LeaseNodes,
    ) -> Result<Option<Stat>, Error> {
        let Some(path) = nodes.paths.first() else { return Ok(None) };
        let read = |client: Client| async move { read_node(&client, path).await };
        let Some((data, stat)) = self.read(attempt, &lease.first, read).await? else {
            let client = self.client(attempt, &lease.first).await?;
            self.end_broken(&client, lease, nodes).await;
            return Err(Refusal::Stale.into());
        };
        self.note_read(lease, nodes, &data, stat);
        Ok(Some(stat))
    }

    /// The first node of a lease was read.
    pub fn note_read(&self, lease: &Arc<MindedLease>, nodes: &mut LeaseNodes, data: &[u8], stat: Stat) {
        nodes.version = stat.version;
        // Data that is not ours (Curator asks a holder to leave by it) leaves the lease as it is.
        if let Some(record) = NodeRecord::parse(data).filter(|record| record.id == nodes.record.id) {
            nodes.end = record.latest_end(&*self.options.clock, self.now());
            nodes.span = record.span();
            nodes.cap = record.known_cap(&*self.options.clock).or(nodes.cap);
            nodes.record = record;
        }
        lease.note(nodes);
    }

    pub async fn release_lease(&self, attempt: &str, id: &LeaseId) -> Result<bool, Error> {
        if let Some(named) = NamedLease::parse(id) {
            let public = Self::public_id(&named);
            self.refuse_closed(attempt)?;
            if self.table.get(&public).is_none() && self.ended.get(&public) == Some(HowEnded::Released) {
                return Ok(false);
            }
        }
        let lease = self.find_lease(attempt, id).await?;
        let mut nodes = lease.nodes.lock().await;
        if nodes.over && self.ended.get(&lease.public) == Some(HowEnded::Released) {
            return Ok(false);
        }
        if self.now() >= nodes.end && nodes.session.is_none() {
            self.check_live(attempt, &lease, &mut nodes).await?;
        }
        if nodes.over || nodes.record.state == NodeState::Closed || self.now() >= nodes.end {
            return Err(Refusal::Stale.into());
        }
        let by = self.now().plus(RETRY_FOR);
        let mut tried = false;
        loop {
            let client = match self.client(attempt, &lease.first).await {
                Err(_) if tried => return Err(unknown(attempt)),
                client => client?,
            };
            match delete_nodes(&client, &nodes.paths, None).await {
                Ok(NodeChange::Done(_)) => {
                    self.note_end(&lease, &mut nodes, HowEnded::Released);
                    return Ok(true);
                }
                // A try whose reply was lost has done it: before its end nobody else does.
                Ok(_) if tried && self.now() < nodes.end => {
                    self.note_end(&lease, &mut nodes, HowEnded::Released);
                    return Ok(true);
                }
                Ok(_) => {
                    let lapsed = self.now() >= nodes.end;
                    self.note_end(&lease, &mut nodes, HowEnded::Stale);
                    // Released through another process, or revoked there: that one knows.
                    return Err(if lapsed { Refusal::Stale.into() } else { Refusal::NotHeld.into() });
                }
                Err(error) if is_lost(&error) && self.now() < by => {
                    tried = true;
                    self.options.clock.sleep_until(self.now().plus(RETRY_AFTER)).await;
                }
                Err(error) => return Err(failed_write(attempt, error)),
            }
        }
    }

    /// Releases a lease that nobody will use. If that fails, it lapses.
    pub async fn release_unseen(&self, id: &LeaseId) {
        if let Some(named) = NamedLease::parse(id)
            && let Some(lease) = self.table.get(&Self::public_id(&named))
        {
            let mut nodes = lease.nodes.lock().await;
            if let Some(client) = self.pool.connected(self.slot(&lease.first))
                && !nodes.over
                && delete_nodes(&client, &nodes.paths, None).await.is_ok()
            {
                self.note_end(&lease, &mut nodes, HowEnded::Released);
            }
        }
    }
}

/// What is in a node after everything that was answered before.
pub(super) async fn read_node(client: &Client, path: &str) -> Result<Option<(Vec<u8>, Stat)>, zk::Error> {
    let (sync, read) = (client.sync(path), client.get_data(path));
    sync.await?;
    match read.await {
        Err(zk::Error::NoNode) => Ok(None),
        read => read.map(Some),
    }
}

/// How long a lease has been held, by the clock of the ensemble, when its node was written: that was made when the lease was
/// granted.
const fn held_ms(stat: Stat) -> i64 {
    stat.mtime.saturating_sub(stat.ctime)
}

fn unknown(attempt: &str) -> Error {
    indeterminate(attempt, "the connection was lost, and the ensemble does not answer yet".into())
}

/// Whether what was read is what was written.
fn is_same(wrote: &NodeRecord, read: &NodeRecord) -> bool {
    wrote.until == read.until && wrote.server == read.server && wrote.holder == read.holder && wrote.ttl == read.ttl
}
