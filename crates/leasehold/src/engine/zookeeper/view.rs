//! What everybody may see: who has a resource and who waits. And an operator's revoke.

use std::time::Duration;

use zookeeper_client::{self as zk, Client, MultiReadResult, Stat};

use crate::engine::consensus::ended::HowEnded;
use crate::engine::consensus::lease_id::PublicId;
use crate::engine::{Holding, Query, Resource, Waiting};
use crate::error::{Error, Refusal};

use super::failure::failed_write;
use super::node_name::{NodeForm, NodeStep, QueueNode, contenders, has_turn, parse_child};
use super::node_set::{NodeChange, delete_nodes, delete_rest};
use super::record::{NodeRecord, NodeState};
use super::shared::{FoundNode, ZookeeperShared, or_empty};

/// Nodes that one request reads.
const READS_AT_ONCE: usize = 200;
/// As many holders and waiters of one resource as other engines show.
const SHOWN: usize = 1000;
const SHOWN_IN_LISTS: usize = 100;
/// Names whose queues one request of a list reads.
const NAMES_AT_ONCE: usize = 100;
/// How often a queue whose nodes change their names is read again.
const READ_ROUNDS: usize = 6;
/// Holders that a refusal reads to count those who wait.
const READ_FOR_REFUSAL: usize = 16;

/// What a node in a queue is.
enum NodeRole {
    Holder,
    Waiter,
    /// A delay keeps it closed.
    Closed,
}

/// A node in a queue, as it was read.
struct SeenNode {
    node: QueueNode,
    role: NodeRole,
    /// None: it is not ours, or somebody wrote over it.
    record: Option<NodeRecord>,
    is_overwritten: bool,
    stat: Stat,
}

impl ZookeeperShared {
    /// The data of these nodes; none for one that is gone.
    async fn read_nodes(&self, client: &Client, paths: &[String]) -> Result<Vec<Option<(Vec<u8>, Stat)>>, zk::Error> {
        let mut read = Vec::with_capacity(paths.len());
        for chunk in paths.chunks(READS_AT_ONCE) {
            let mut reader = client.new_multi_reader();
            for path in chunk {
                reader.add_get_data(path)?;
            }
            for result in reader.commit().await? {
                read.push(match result {
                    MultiReadResult::Data { data, stat } => Some((data, stat)),
                    _ => None,
                });
            }
        }
        Ok(read)
    }

    /// The first nodes of a queue, with what they are. The queue is read again while nodes change their names.
    async fn see(
        &self,
        client: &Client,
        name: &str,
        queue: &mut Vec<QueueNode>,
        before: Option<i32>,
        most: usize,
    ) -> Result<Vec<SeenNode>, zk::Error> {
        for round in 1.. {
            let seen = self.read_queue(client, name, queue, most).await?;
            if seen.len() == queue.len().min(most) || round == READ_ROUNDS {
                return Ok(seen);
            }
            *queue = self.fresh_queue(client, name).await?;
            if let Some(number) = before {
                queue.retain(|node| node.number.wrapping_sub(number) < 0);
            }
        }
        unreachable!("the rounds end")
    }

    async fn read_queue(
        &self,
        client: &Client,
        name: &str,
        queue: &[QueueNode],
        most: usize,
    ) -> Result<Vec<SeenNode>, zk::Error> {
        let directory = self.paths.directory(name);
        let paths: Vec<String> = queue.iter().take(most).map(|node| format!("{directory}/{}", node.name)).collect();
        let read = self.read_nodes(client, &paths).await?;
        let mut seen = Vec::with_capacity(read.len());
        for (at, read) in read.into_iter().enumerate() {
            let Some((data, stat)) = read else { continue };
            let node = queue[at].clone();
            let record = node.key.as_ref().and_then(|_| NodeRecord::parse(&data));
            let turn = has_turn(queue, at);
            let role = match &record {
                Some(record) if record.state == NodeState::Closed => NodeRole::Closed,
                // A claim on several resources holds none while it waits for one.
                Some(record) if record.waits(node.step) && record.is_several() => NodeRole::Waiter,
                _ if turn => NodeRole::Holder,
                _ => NodeRole::Waiter,
            };
            let is_overwritten = Self::is_overwritten(&node, &data, &stat);
            seen.push(SeenNode { node, role, record, is_overwritten, stat });
        }
        Ok(seen)
    }

    fn label(seen: &SeenNode) -> String {
        match (&seen.record, seen.node.form) {
            (Some(record), _) => record.holder.clone(),
            (None, _) if seen.is_overwritten => "(a lease of Leasehold whose data somebody wrote over)".into(),
            (None, NodeForm::Kazoo) => "(a kazoo client)".into(),
            (None, NodeForm::Curator) => "(a Curator client)".into(),
            (None, _) => "(a ZooKeeper client)".into(),
        }
    }

    /// What is left of a holder's time. For people: nothing is decided by it.
    fn remaining(&self, seen: &SeenNode) -> Option<Duration> {
        let (record, now) = (seen.record.as_ref()?, self.now());
        if seen.node.step == Some(NodeStep::Waiting) {
            return Some(record.ttl());
        }
        let minded = PublicId::from_hex(&record.id).filter(|_| record.server == self.server);
        let minded = minded.and_then(|id| self.table.get(&id));
        let end = minded.and_then(|lease| lease.end()).or_else(|| record.known_end(&*self.options.clock));
        Some(end.map_or_else(
            || record.ttl().saturating_sub(age_of(u64::try_from(seen.stat.mtime).unwrap_or(0))),
            |end| end.since(now),
        ))
    }

    /// The refusal for whoever comes behind these.
    pub async fn held_by(
        &self,
        client: &Client,
        name: &str,
        before: &[QueueNode],
        number: Option<i32>,
    ) -> Result<Error, zk::Error> {
        let mut queue = before.to_vec();
        let seen = self.see(client, name, &mut queue, number, READ_FOR_REFUSAL).await?;
        let in_queue = |role: &NodeRole| matches!(role, NodeRole::Waiter);
        let unread = (seen.len()..queue.len()).filter(|at| !has_turn(&queue, *at)).count();
        let holder = seen.iter().find(|seen| matches!(seen.role, NodeRole::Holder));
        self.note_held(name);
        Ok(Refusal::Held {
            resource: name.to_owned(),
            holder: holder.map(Self::label),
            remaining: holder.and_then(|holder| self.remaining(holder)),
            queue_len: seen.iter().filter(|seen| in_queue(&seen.role)).count() + unread,
        }
        .into())
    }

    /// One resource; none when nobody has it or waits for it and no delay keeps it closed.
    async fn show(
        &self,
        client: &Client,
        name: &str,
        queue: &[QueueNode],
        most: usize,
    ) -> Result<Option<Resource>, zk::Error> {
        let mut queue = queue.to_vec();
        let seen = self.see(client, name, &mut queue, None, most).await?;
        let Some(first) = seen.first() else { return Ok(None) };
        let mut shown = Resource {
            name: name.to_owned(),
            mode: first.node.mode,
            holders: Vec::new(),
            holders_total: 0,
            waiters: Vec::new(),
            queue_len: 0,
        };
        for seen in &seen {
            let (label, since) = (Self::label(seen), since(seen));
            match seen.role {
                NodeRole::Holder => {
                    let waits = seen.record.as_ref().is_none_or(|record| record.waits(seen.node.step));
                    let token = seen.record.as_ref().filter(|_| !waits);
                    let token = token.and_then(|record| record.token(seen.stat.mzxid, self.options.token_base));
                    let remaining = self.remaining(seen).unwrap_or_default();
                    shown.holders.push(Holding { holder: label, token, since, remaining });
                    shown.holders_total += 1;
                }
                NodeRole::Waiter => {
                    shown.waiters.push(Waiting { holder: label, waiting: since });
                    shown.queue_len += 1;
                }
                NodeRole::Closed => {}
            }
        }
        for at in most.min(queue.len())..queue.len() {
            if has_turn(&queue, at) {
                shown.holders_total += 1;
            } else {
                shown.queue_len += 1;
            }
        }
        Ok(Some(shown))
    }

    pub async fn show_one(&self, name: &str) -> Result<Option<Resource>, Error> {
        let attempt = format!("inspect {name}");
        let show = |client: Client| async move {
            let queue = self.fresh_queue(&client, name).await?;
            self.show(&client, name, &queue, SHOWN).await
        };
        self.read(&attempt, name, show).await
    }

    pub async fn list_page(&self, query: &Query) -> Result<Vec<Resource>, Error> {
        let attempt = format!("list {}", query.prefix);
        self.read(&attempt, &query.prefix, |client| async move { self.read_page(&client, query).await }).await
    }

    async fn read_page(&self, client: &Client, query: &Query) -> Result<Vec<Resource>, zk::Error> {
        let (sync, list) = (client.sync(self.paths.root()), client.list_children(self.paths.root()));
        sync.await?;
        let mut names: Vec<String> = list.await?.iter().filter_map(|child| self.paths.resource(child)).collect();
        names.retain(|name| name.starts_with(&query.prefix) && query.after.as_ref().is_none_or(|after| name > after));
        names.sort_unstable();
        let mut page = Vec::new();
        for chunk in names.chunks(NAMES_AT_ONCE) {
            let mut reader = client.new_multi_reader();
            for name in chunk {
                reader.add_get_children(&self.paths.directory(name))?;
            }
            for (name, result) in chunk.iter().zip(reader.commit().await?) {
                let MultiReadResult::Children { children } = result else { continue };
                let shown = self.show(client, name, &contenders(&children), SHOWN_IN_LISTS).await?;
                page.extend(shown);
                if page.len() >= query.limit {
                    return Ok(page);
                }
            }
        }
        Ok(page)
    }

    /// Ends every lease on a resource. Says how many.
    pub async fn revoke_all(&self, name: &str) -> Result<usize, Error> {
        let attempt = format!("revoke {name}");
        let see = |client: Client| async move {
            let mut queue = self.fresh_queue(&client, name).await?;
            self.see(&client, name, &mut queue, None, usize::MAX).await
        };
        let seen = self.read(&attempt, name, see).await?;
        let client = self.client(&attempt, name).await?;
        let mut ended = 0;
        for seen in seen.into_iter().filter(|seen| !matches!(seen.role, NodeRole::Waiter)) {
            // One that waits has its turn, and is about to take it: it is nobody's lease yet.
            if seen.record.as_ref().is_some_and(|record| record.waits(seen.node.step)) {
                continue;
            }
            let counts = !matches!(seen.role, NodeRole::Closed);
            let happened =
                self.revoke_node(&client, name, seen).await.map_err(|error| failed_write(&attempt, error))?;
            ended += usize::from(happened && counts);
        }
        Ok(ended)
    }

    async fn revoke_node(&self, client: &Client, name: &str, seen: SeenNode) -> Result<bool, zk::Error> {
        let directory = self.paths.directory(name);
        let path = format!("{directory}/{}", seen.node.name);
        let Some(record) = seen.record else {
            // Its owner is not told: it is a client of another kind, or not known any more.
            let mut paths = vec![path];
            if seen.node.twin {
                let children = or_empty(client.list_children(&directory).await)?;
                let is_twin = |child: &&String| {
                    **child != seen.node.name && parse_child(child).is_some_and(|node| node.key == seen.node.key)
                };
                paths.extend(children.iter().filter(is_twin).map(|child| format!("{directory}/{child}")));
            }
            return Ok(matches!(delete_nodes(client, &paths, None).await?, NodeChange::Done(_)));
        };
        let public = PublicId::from_hex(&record.id).unwrap_or(PublicId([0; 16]));
        let minded = self.table.get(&public);
        let first = record.first.clone().unwrap_or_else(|| name.to_owned());
        let paths = if record.first.is_some() {
            match self.find_first(client, &first, public).await? {
                Some(found) => self.find_paths(client, &found, &first).await?.paths,
                None => vec![path],
            }
        } else {
            let found = FoundNode { node: seen.node, path, record, stat: seen.stat };
            self.find_paths(client, &found, &first).await?.paths
        };
        let done = match delete_nodes(client, &paths, None).await? {
            NodeChange::Done(_) => true,
            // One of several had been removed before, and the others went now.
            NodeChange::Gone => paths.len() > 1,
            NodeChange::Changed => false,
        };
        if done {
            self.ended.insert(public, HowEnded::Stale);
            if let Some(lease) = minded {
                let mut nodes = lease.nodes.lock().await;
                if nodes.paths.len() > paths.len() {
                    // Its first node was missing, and only this process knew where the others are.
                    delete_rest(client, &nodes.paths).await?;
                }
                self.note_end(&lease, &mut nodes, HowEnded::Stale);
            }
        }
        Ok(done)
    }
}

fn age_of(wall_ms: u64) -> Duration {
    Duration::from_millis(ZookeeperShared::wall_ms().saturating_sub(wall_ms))
}

/// Since when it holds or waits, by the wall clock.
fn since(seen: &SeenNode) -> Duration {
    let at = seen.record.as_ref().map_or_else(|| u64::try_from(seen.stat.ctime).unwrap_or(0), |record| record.at);
    age_of(at)
}
