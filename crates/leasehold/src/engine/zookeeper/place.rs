//! The nodes of one acquire: made with the first request, found again when its reply was lost, moved, removed.

use std::time::Duration;

use leasehold_core::{Secret, fact};
use zookeeper_client::{self as zk, Acls, Client, MultiWriteError, MultiWriteResult, SessionState};

use crate::clock::Time;
use crate::engine::consensus::lease_id::{ModeLetter, NamedLease, PublicId, draw_secret};
use crate::engine::from_book::{millis, wants};
use crate::engine::{Claim, Token, Want};

use super::lease_table::node_data;
use super::node_name::{
    NodeKey, NodeStep, QueueNode, contenders, forms, has_turn, name_prefix, number_text, parse_child, position,
};
use super::node_set::{NodeChange, NodeData, delete_nodes, make_path, node_mode, swap_nodes, write_nodes};
use super::record::{NodeRecord, NodeState, RequestRecord, boot_text};
use super::requests::request_digest;
use super::sessions::settled;
use super::shared::{ZookeeperShared, or_empty};

/// How often a directory that is reaped meanwhile is made again.
const MAKE_ROUNDS: usize = 4;

/// What identifies an acquire, from its first try to the end of its lease.
pub(super) struct ClaimIds {
    pub secret: Secret,
    pub public: PublicId,
    pub key: NodeKey,
    pub letter: ModeLetter,
    /// Digest and fingerprint of its request.
    pub request: Option<(String, u64)>,
}

impl ClaimIds {
    pub fn new(claim: &Claim) -> Self {
        let secret = draw_secret();
        let letter = ModeLetter::from_mode(claim.wants[0].mode);
        let request = claim.request.as_ref().map(|id| {
            let print =
                fact::fingerprint(&wants(claim), millis(claim.ttl), claim.max_hold.map(millis), millis(claim.delay));
            (request_digest(&claim.principal, id), print)
        });
        let first = claim.wants[0].name.clone();
        let lease = NamedLease { token: Token::MIN, letter, several: false, first, secret };
        let public = ZookeeperShared::public_id(&lease);
        Self { secret: lease.secret, public, key: NodeKey::new(public), letter, request }
    }

    pub fn lease(&self, claim: &Claim, token: Token) -> NamedLease {
        let (several, first) = (claim.wants.len() > 1, claim.wants[0].name.clone());
        NamedLease { token, letter: self.letter, several, first, secret: Secret::new(*self.secret.expose()) }
    }
}

/// One node of an acquire.
#[derive(Clone, Debug)]
pub(super) struct PlacedNode {
    /// Which resource of the claim.
    pub want: usize,
    pub form: super::node_name::NodeForm,
    pub number: i32,
}

/// Where an acquire stands.
pub(super) struct QueuePlace {
    /// The session that made its nodes. Lists for decisions come from it: they are not older than the nodes.
    pub client: Client,
    pub nodes: Vec<PlacedNode>,
    pub step: NodeStep,
    pub version: i32,
    /// The zxid of the write that made or last moved the nodes.
    pub zxid: i64,
    /// When that write was sent.
    pub sent: Time,
    /// Its queues have not changed between that write and the lists that came with the place.
    pub is_unchanged: bool,
}

impl QueuePlace {
    /// Whether nodes that have their turn were granted by the write that made them, so that its zxid is the token.
    ///
    /// A node that was made has it only if its queues are as they were then. Otherwise somebody before it may have been
    /// granted by a later write, and have left: the token of that grant is higher.
    pub fn grants(&self) -> bool {
        match self.step {
            NodeStep::Holder => true,
            NodeStep::First => self.is_unchanged,
            NodeStep::Waiting => false,
        }
    }

    /// Whether nodes that were found again are those of a holder.
    pub fn is_granted(&self, queues: &[Vec<QueueNode>], key: &NodeKey) -> bool {
        let has_all = || queues.iter().all(|queue| position(queue, key).is_some_and(|at| has_turn(queue, at)));
        self.grants() && (self.step == NodeStep::Holder || has_all())
    }
}

/// How the first request went.
pub(super) enum PlaceResult {
    Placed(QueuePlace, Vec<Vec<QueueNode>>),
    /// The node of its request exists.
    RequestExists,
    /// The reply was lost: it may have happened.
    Unknown,
    /// Somebody else removed the nodes.
    Gone,
    Failed(zk::Error),
}

/// Everything that is needed to write the nodes of one acquire.
pub(super) struct PlaceWriter<'a> {
    pub shared: &'a ZookeeperShared,
    pub claim: &'a Claim,
    pub ids: &'a ClaimIds,
}

impl PlaceWriter<'_> {
    fn wants(&self) -> &[Want] {
        &self.claim.wants
    }

    fn directory(&self, want: usize) -> String {
        self.shared.paths.directory(&self.wants()[want].name)
    }

    fn path(&self, node: &PlacedNode, step: NodeStep) -> String {
        let prefix = name_prefix(node.form, &self.ids.key, step, self.wants()[node.want].mode);
        format!("{}/{prefix}{}", self.directory(node.want), number_text(node.number))
    }

    pub fn node_paths(&self, place: &QueuePlace) -> Vec<String> {
        place.nodes.iter().map(|node| self.path(node, place.step)).collect()
    }

    pub fn request_path(&self) -> Option<String> {
        self.ids.request.as_ref().map(|(digest, _)| self.shared.paths.request(digest))
    }

    /// What the nodes hold, if they were written now.
    pub fn record(&self, state: NodeState, now: Time) -> NodeRecord {
        let (claim, clock) = (self.claim, &*self.shared.options.clock);
        let cap = claim.max_hold.map(|most| now.plus(most));
        let end = now.plus(claim.ttl).min(cap.unwrap_or(Time::from_nanos(u64::MAX)));
        let names = if self.wants().len() > 1 { self.wants().iter().map(|w| w.name.clone()).collect() } else { vec![] };
        NodeRecord {
            v: 1,
            id: self.ids.public.to_hex(),
            holder: claim.holder.clone(),
            state,
            ttl: millis(claim.ttl),
            delay: millis(claim.delay),
            max_hold: claim.max_hold.map(millis),
            server: self.shared.server.clone(),
            token: None,
            boot: boot_text(clock),
            until: end.as_nanos(),
            cap: cap.map(Time::as_nanos),
            at: ZookeeperShared::wall_ms(),
            names,
            first: None,
            request: self.ids.request.as_ref().map(|(digest, _)| digest.clone()),
        }
    }

    /// `token`: where it is not the zxid of the write.
    pub fn request_data(&self, state: NodeState, token: Option<Token>) -> Option<NodeData> {
        let (digest, fingerprint) = self.ids.request.as_ref()?;
        let letter = self.ids.letter.to_char();
        let record = RequestRecord {
            v: 1,
            fingerprint: *fingerprint,
            secret: format!("{:032x}", u128::from_be_bytes(*self.ids.secret.expose())),
            first: self.wants()[0].name.clone(),
            letter: if self.wants().len() > 1 { letter.to_ascii_uppercase() } else { letter },
            state,
            server: self.shared.server.clone(),
            token: token.map(Token::get),
        };
        Some((self.shared.paths.request(digest), record.to_bytes()))
    }

    /// Makes the nodes and reads the queues, in one round trip where there is one node and no request.
    pub async fn place(&self, client: &Client) -> PlaceResult {
        for _ in 0..MAKE_ROUNDS {
            let one =
                self.wants().len() == 1 && forms(self.shared.options.layout).len() == 1 && self.ids.request.is_none();
            let placed = if one { self.place_one(client).await } else { self.place_several(client).await };
            let PlaceResult::Failed(zk::Error::NoNode) = placed else { return placed };
            if one && self.shared.directories.forget(&self.wants()[0].name) {
                // It was reaped: it is made again with the node.
                continue;
            }
            let (mode, acls) = (self.shared.directory_mode(), Acls::new(&self.shared.acls));
            for want in 0..self.wants().len() {
                if let Err(error) = make_path(client, &self.directory(want), &mode.with_acls(acls)).await {
                    return PlaceResult::Failed(error);
                }
            }
        }
        PlaceResult::Failed(zk::Error::NoNode)
    }

    async fn place_one(&self, client: &Client) -> PlaceResult {
        let name = &self.wants()[0].name;
        if !self.shared.directories.is_known(name) {
            let placed = self.place_in_new_directory(client).await;
            let is_there = match &placed {
                None | Some(PlaceResult::Placed(..)) => true,
                Some(_) => false,
            };
            if is_there {
                self.shared.directories.insert(name);
            }
            if let Some(placed) = placed {
                return placed;
            }
        }
        self.place_in_directory(client).await
    }

    /// Makes the directory of a resource and the node in it, in one transaction. None: the directory is there already.
    async fn place_in_new_directory(&self, client: &Client) -> Option<PlaceResult> {
        let (form, directory, acls) =
            (forms(self.shared.options.layout)[0], self.directory(0), Acls::new(&self.shared.acls));
        let prefix = name_prefix(form, &self.ids.key, NodeStep::First, self.wants()[0].mode);
        let sent = self.shared.now();
        let data = self.record(NodeState::Try, sent).to_bytes();
        let options = node_mode(!self.shared.is_minded(), true).with_acls(acls);
        let mut writer = client.new_multi_writer();
        let planned = writer
            .add_create(&directory, &[], &self.shared.directory_mode().with_acls(acls))
            .and_then(|()| writer.add_create(&format!("{directory}/{prefix}"), &data, &options));
        if let Err(error) = planned {
            return Some(PlaceResult::Failed(error));
        }
        let (commit, list) = (writer.commit(), client.get_children(&directory));
        let results = match commit.await {
            Ok(results) => results,
            Err(MultiWriteError::OperationFailed { index: 0, source: zk::Error::NodeExists }) => return None,
            Err(error) => {
                let error = zk::Error::from(error);
                let is_lost = super::failure::is_lost(&error);
                return Some(if is_lost { PlaceResult::Unknown } else { PlaceResult::Failed(error) });
            }
        };
        let made = match results.get(1) {
            Some(MultiWriteResult::Create { path, .. }) => path.rsplit('/').next().and_then(parse_child),
            _ => None,
        };
        let (Some(made), Ok((children, parent))) = (made, list.await) else { return Some(PlaceResult::Unknown) };
        let nodes = vec![PlacedNode { want: 0, form, number: made.number }];
        // The stat of a node made in a transaction is not valid in 3.8. That of the directory is, and has the same zxid.
        let (zxid, is_unchanged) = (parent.czxid, parent.pzxid == parent.czxid);
        let (client, step) = (client.clone(), NodeStep::First);
        let place = QueuePlace { client, nodes, step, version: 0, zxid, sent, is_unchanged };
        Some(PlaceResult::Placed(place, vec![contenders(&children)]))
    }

    async fn place_in_directory(&self, client: &Client) -> PlaceResult {
        let (form, directory) = (forms(self.shared.options.layout)[0], self.directory(0));
        let prefix = name_prefix(form, &self.ids.key, NodeStep::First, self.wants()[0].mode);
        let path = format!("{directory}/{prefix}");
        let sent = self.shared.now();
        let data = self.record(NodeState::Try, sent).to_bytes();
        let mode = node_mode(!self.shared.is_minded(), true);
        // Both are sent now: the list is not older than the node.
        let create = client.create(&path, &data, &mode.with_acls(Acls::new(&self.shared.acls)));
        let list = client.get_children(&directory);
        let (stat, number) = match create.await {
            Ok(created) => created,
            Err(error) if super::failure::is_lost(&error) => return PlaceResult::Unknown,
            Err(error) => return PlaceResult::Failed(error),
        };
        let Ok(number) = i32::try_from(number.into_i64()) else { return PlaceResult::Unknown };
        let nodes = vec![PlacedNode { want: 0, form, number }];
        let (client, zxid) = (client.clone(), stat.czxid);
        match list.await {
            Ok((children, parent)) => {
                let is_unchanged = parent.pzxid == zxid;
                let place = QueuePlace { client, nodes, step: NodeStep::First, version: 0, zxid, sent, is_unchanged };
                PlaceResult::Placed(place, vec![contenders(&children)])
            }
            // The node is there, and found again.
            Err(_) => PlaceResult::Unknown,
        }
    }

    async fn place_several(&self, client: &Client) -> PlaceResult {
        let sent = self.shared.now();
        let (ephemeral, acls) = (!self.shared.is_minded(), Acls::new(&self.shared.acls));
        let options = node_mode(ephemeral, true).with_acls(acls);
        let mut planned = Vec::new();
        for (want, wanted) in self.wants().iter().enumerate() {
            for form in forms(self.shared.options.layout) {
                let prefix = name_prefix(*form, &self.ids.key, NodeStep::First, wanted.mode);
                planned.push((want, *form, format!("{}/{prefix}", self.directory(want))));
            }
        }
        let prefixes: Vec<String> = planned.iter().map(|(_, _, path)| path.clone()).collect();
        let mut writer = client.new_multi_writer();
        for (path, data) in node_data(&prefixes, &self.record(NodeState::Try, sent)) {
            if let Err(error) = writer.add_create(&path, &data, &options) {
                return PlaceResult::Failed(error);
            }
        }
        if let Some((path, data)) = self.request_data(NodeState::Try, None) {
            let options = node_mode(ephemeral, false).with_acls(Acls::new(&self.shared.secret_acls));
            if let Err(error) = writer.add_create(&path, &data, &options) {
                return PlaceResult::Failed(error);
            }
        }
        let results = match writer.commit().await {
            Ok(results) => results,
            Err(MultiWriteError::OperationFailed { source: zk::Error::NodeExists, .. }) => {
                return PlaceResult::RequestExists;
            }
            Err(error) => {
                let error = zk::Error::from(error);
                return if super::failure::is_lost(&error) { PlaceResult::Unknown } else { PlaceResult::Failed(error) };
            }
        };
        let made = results.iter().filter_map(|result| match result {
            MultiWriteResult::Create { path, .. } => path.rsplit('/').next().and_then(parse_child),
            _ => None,
        });
        let nodes: Vec<PlacedNode> = planned
            .iter()
            .zip(made)
            .map(|((want, form, _), node)| PlacedNode { want: *want, form: *form, number: node.number })
            .collect();
        if nodes.len() != planned.len() {
            return PlaceResult::Unknown;
        }
        let (client, step) = (client.clone(), NodeStep::First);
        let place = QueuePlace { client, nodes, step, version: 0, zxid: 0, sent, is_unchanged: false };
        self.read_place(place).await
    }

    /// The zxid of the first node, and the queues.
    async fn read_place(&self, mut place: QueuePlace) -> PlaceResult {
        let client = place.client.clone();
        let first = self.path(&place.nodes[0], place.step);
        let stat = client.check_stat(&first);
        let directories: Vec<String> = (0..self.wants().len()).map(|want| self.directory(want)).collect();
        let lists: Vec<_> = directories.iter().map(|directory| client.get_children(directory)).collect();
        match stat.await {
            Ok(Some(stat)) => (place.zxid, place.version) = (stat.mzxid, stat.version),
            // It was there a moment ago. The others would be in the way for ever.
            Ok(None) => {
                let removed = self.remove(&place).await;
                return removed.map_or(PlaceResult::Unknown, |_| PlaceResult::Gone);
            }
            Err(_) => return PlaceResult::Unknown,
        }
        let mut queues = Vec::with_capacity(lists.len());
        place.is_unchanged = true;
        for list in lists {
            match list.await {
                Ok((children, parent)) => {
                    place.is_unchanged &= parent.pzxid == place.zxid;
                    queues.push(contenders(&children));
                }
                Err(zk::Error::NoNode) => queues.push(Vec::new()),
                Err(_) => return PlaceResult::Unknown,
            }
        }
        PlaceResult::Placed(place, queues)
    }

    /// Finds out what became of a request whose reply was lost. Final when the session answers again, or is over: what it
    /// had not done by then it never does. None: that is not so yet.
    pub async fn find_again(&self, client: &Client, sent: Time, by: Time) -> Option<Option<PlaceResult>> {
        loop {
            let clock = &*self.shared.options.clock;
            let usable = match settled(client, clock, by).await {
                SessionState::SyncConnected => client.clone(),
                state if state.is_terminated() => self.shared.pool.connected_by(0, by).await.ok()?,
                _ => return None,
            };
            match self.search(&usable, sent).await {
                Ok(found) => return Some(found),
                Err(_) if self.shared.now() >= by => return None,
                Err(_) => clock.sleep_until(self.shared.now().plus(Duration::from_millis(50)).min(by)).await,
            }
        }
    }

    async fn search(&self, client: &Client, sent: Time) -> Result<Option<PlaceResult>, zk::Error> {
        let mut nodes = Vec::new();
        let mut step = NodeStep::First;
        for want in 0..self.wants().len() {
            let directory = self.directory(want);
            let (sync, list) = (client.sync(&directory), client.list_children(&directory));
            sync.await?;
            let mut mine: Vec<QueueNode> = or_empty(list.await)?
                .iter()
                .filter_map(|child| parse_child(child))
                .filter(|node| node.key.as_ref() == Some(&self.ids.key))
                .collect();
            mine.sort_by_key(|node| node.form != super::node_name::NodeForm::Curator);
            step = mine.first().and_then(|node| node.step).unwrap_or(step);
            nodes.extend(mine.iter().map(|node| PlacedNode { want, form: node.form, number: node.number }));
        }
        if nodes.is_empty() {
            return Ok(None);
        }
        let is_whole = nodes.len() == self.wants().len() * forms(self.shared.options.layout).len();
        let place = QueuePlace { client: client.clone(), nodes, step, version: 0, zxid: 0, sent, is_unchanged: false };
        if !is_whole {
            // Somebody removed a node: with the others alone it must not become a lease.
            self.remove(&place).await?;
            return Ok(Some(PlaceResult::Gone));
        }
        Ok(Some(self.read_place(place).await))
    }

    /// Becomes a waiter: with a minded lease by other nodes, which end with the session.
    pub async fn become_waiting(&self, place: &mut QueuePlace) -> Result<NodeChange, zk::Error> {
        self.change_step(place, NodeStep::Waiting, NodeState::Waiting).await
    }

    /// Becomes a holder. The write that does it is the grant.
    pub async fn become_holder(&self, place: &mut QueuePlace) -> Result<NodeChange, zk::Error> {
        self.change_step(place, NodeStep::Holder, NodeState::Held).await
    }

    async fn change_step(
        &self,
        place: &mut QueuePlace,
        step: NodeStep,
        state: NodeState,
    ) -> Result<NodeChange, zk::Error> {
        let sent = self.shared.now();
        let record = self.record(state, sent);
        let from = self.node_paths(place);
        let request = self.request_data(state, None);
        let client = place.client.clone();
        let changed = if self.shared.is_minded() {
            let to: Vec<String> = place.nodes.iter().map(|node| self.path(node, step)).collect();
            let mode = node_mode(step == NodeStep::Waiting, false);
            let options = mode.with_acls(Acls::new(&self.shared.acls));
            swap_nodes(&client, &from, &node_data(&to, &record), &options, request.as_ref()).await?
        } else {
            let mut nodes = node_data(&from, &record);
            nodes.extend(request);
            write_nodes(&client, &nodes, place.version).await?
        };
        if let NodeChange::Done(stat) = changed {
            if self.shared.is_minded() {
                (place.step, place.version) = (step, 0);
            } else {
                place.version += 1;
            }
            place.sent = sent;
            // Without a stat the caller has to find it again.
            place.zxid = stat.map_or(0, |stat| stat.mzxid);
        }
        Ok(changed)
    }

    /// Removes everything: the nodes, and that of the request.
    pub async fn remove(&self, place: &QueuePlace) -> Result<NodeChange, zk::Error> {
        let mut paths = self.node_paths(place);
        paths.extend(self.request_path());
        delete_nodes(&place.client, &paths, None).await
    }
}
