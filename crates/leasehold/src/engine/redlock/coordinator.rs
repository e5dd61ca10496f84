//! Asks the nodes, all at once, and hands out their answers as they come.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::node::{ChangeId, LeaseKeys, Node, NodeError, NodeReply, NodeRequest, Standing};
use super::owed::OwedReleases;
use super::vote::VoteRules;
use crate::clock::{Clock, Time, until};
use crate::engine::redis::claim_text::to_hex;

/// Where random bits come from.
pub(super) type RandomBits = Arc<dyn Fn(&mut [u8]) + Send + Sync>;

/// All nodes, and what is owed to each of them.
pub(super) struct Coordinator {
    pub nodes: Vec<Arc<dyn Node>>,
    pub rules: VoteRules,
    pub clock: Arc<dyn Clock>,
    pub runtime: Handle,
    /// Acquires and what goes on after an answer.
    pub tasks: TaskTracker,
    pub closed: CancellationToken,
    pub random: RandomBits,
    owed: Vec<Arc<OwedReleases>>,
    /// Names this process to the nodes.
    process: Arc<str>,
    last_change: AtomicU64,
}

/// Answers to one request, as they come.
pub(super) struct Round {
    from: mpsc::UnboundedReceiver<NodeVote>,
    open: usize,
}

/// The number of a node, and its answer.
pub(super) type NodeVote = (usize, Result<NodeReply, NodeError>);

impl Coordinator {
    /// Begins to send what will be owed.
    pub fn start(
        nodes: Vec<Arc<dyn Node>>,
        rules: VoteRules,
        clock: Arc<dyn Clock>,
        runtime: Handle,
        random: RandomBits,
    ) -> Arc<Self> {
        let (closed, owed) = (CancellationToken::new(), nodes.iter().map(|_| Arc::default()).collect::<Vec<_>>());
        for (node, owed) in nodes.iter().zip(&owed) {
            runtime.spawn(OwedReleases::run(Arc::clone(owed), node.clone(), clock.clone(), closed.clone()));
        }
        let mut bits = [0; 8];
        random(&mut bits);
        let (process, last_change) = (to_hex(&bits).into(), AtomicU64::new(0));
        let tasks = TaskTracker::new();
        Arc::new(Self { nodes, rules, clock, runtime, tasks, closed, random, owed, process, last_change })
    }

    /// Every node.
    pub fn everybody(&self) -> Vec<usize> {
        (0..self.nodes.len()).collect()
    }

    /// The nodes whose votes count for a lease that keeps keys for so long, and why others' do not.
    pub fn voters(&self, keys_live_ms: u64) -> (Vec<usize>, Vec<(usize, Standing)>) {
        let (mut voters, mut others) = (Vec::new(), Vec::new());
        for (at, node) in self.nodes.iter().enumerate() {
            match node.standing(keys_live_ms) {
                Standing::Votes => voters.push(at),
                other => others.push((at, other)),
            }
        }
        (voters, others)
    }

    /// Without those that missed an answer a moment ago, if the others are enough.
    pub fn without_suspects(&self, voters: Vec<usize>) -> Vec<usize> {
        let fine: Vec<usize> = voters.iter().copied().filter(|at| !self.nodes[*at].is_suspect()).collect();
        if fine.len() >= self.rules.quorum { fine } else { voters }
    }

    /// Asks these nodes at once. Every request is driven to its end, whether or not the answers are waited for.
    pub fn ask_nodes(&self, asked: &[usize], request: &NodeRequest) -> Round {
        let (to, from) = mpsc::unbounded_channel();
        for at in asked.iter().copied() {
            let (answer, to) = (self.nodes[at].ask(request.clone()), to.clone());
            self.runtime.spawn(async move {
                // Nobody may be waiting any more.
                let _ = to.send((at, answer.await));
            });
        }
        Round { from, open: asked.len() }
    }

    /// Has this sent to a node until it answers, but not after `until`.
    pub fn owe(&self, at: usize, lease: &LeaseKeys, request: NodeRequest, until: Time) {
        self.owed[at].add(owed_key(lease), request, until);
    }

    /// Whether its owner released it and a node has not confirmed that yet.
    pub fn is_being_released(&self, lease: &LeaseKeys) -> bool {
        let key = owed_key(lease);
        self.owed.iter().any(|owed| owed.has_release(&key))
    }

    /// How many releases are owed in all.
    pub fn owed_count(&self) -> usize {
        self.owed.iter().map(|owed| owed.len()).sum()
    }

    /// Completes when no release is owed to any node that can be reached.
    pub async fn wait_until_paid(&self) {
        for (node, owed) in self.nodes.iter().zip(&self.owed) {
            if node.is_reachable() {
                owed.wait_until_paid().await;
            }
        }
    }

    /// A number for a change of a lease, above all earlier ones.
    pub fn next_change(&self) -> ChangeId {
        ChangeId { process: self.process.clone(), number: self.last_change.fetch_add(1, Ordering::Relaxed) + 1 }
    }

    /// Random bits.
    pub fn draw<const N: usize>(&self) -> [u8; N] {
        let mut bits = [0; N];
        (self.random)(&mut bits);
        bits
    }
}

fn owed_key(lease: &LeaseKeys) -> String {
    format!("{}{}", lease.handle, lease.secret)
}

impl Round {
    /// The next answer; none when all have come, or the time is over.
    pub async fn next(&mut self, clock: &dyn Clock, deadline: Time) -> Option<NodeVote> {
        if self.open == 0 {
            return None;
        }
        let vote = until(clock, deadline, self.from.recv()).await.flatten()?;
        self.open -= 1;
        Some(vote)
    }
}
