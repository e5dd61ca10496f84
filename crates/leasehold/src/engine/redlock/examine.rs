//! What an operator should know of the nodes.

use std::sync::Arc;

use tokio::task::JoinSet;

use super::coordinator::Coordinator;
use super::node::{Node as _, Standing};
use super::options::RedlockOptions;
use super::redis_node::{RedlockNode, SharedNode};
use crate::engine::clock_offset::ClockOffset;
use crate::engine::{Finding, FindingKind, Promise};

/// What follows from clocks that are not kept.
const CLOCK_FOLLOWS: &str =
    "Each node ends leases by its own clock: when it is put right by a step, they end there early or late.";

/// What was found of one node.
struct NodeExam {
    address: String,
    durable: bool,
    offset: Option<ClockOffset>,
    findings: Vec<Finding>,
    /// Other lock clients: most of them use all nodes.
    others: Vec<Finding>,
}

/// Examines every node, all at once: some may not answer.
pub(super) async fn findings(
    nodes: &[Arc<RedlockNode>],
    options: &RedlockOptions,
    coordinator: &Coordinator,
) -> Vec<Finding> {
    let mut exams = JoinSet::new();
    for (at, node) in nodes.iter().enumerate() {
        let node = node.clone();
        exams.spawn_on(async move { (at, examine_node(&node).await) }, &coordinator.runtime);
    }
    let mut exams = exams.join_all().await;
    exams.sort_by_key(|(at, _)| *at);
    let exams: Vec<NodeExam> = exams.into_iter().map(|(_, exam)| exam).collect();
    let durable = exams.iter().filter(|exam| exam.durable).count();
    let mut found = vec![always_denied(), not_durable(), not_fair(), clock_denial()];
    found.extend(size_finding(nodes.len()));
    found.push(quarantine_note(nodes.len(), durable, options));
    found.extend(widest_gap(&exams));
    let mut others: Vec<Finding> = Vec::new();
    for exam in exams {
        let setting = format!("clock of {}", exam.address);
        found.extend(exam.offset.map(|offset| offset.finding(setting, CLOCK_FOLLOWS)));
        found.extend(exam.findings);
        others.extend(exam.others.into_iter().filter(|finding| !others.contains(finding)).collect::<Vec<_>>());
    }
    found.extend(others);
    let owed = coordinator.owed_count();
    if owed > 0 {
        let sentence =
            "These releases were not confirmed by a node yet. They are repeated until it answers or they lapse.";
        found.push(Finding::warning("owed releases", owed.to_string(), "0", sentence));
    }
    found
}

async fn examine_node(node: &Arc<RedlockNode>) -> NodeExam {
    let findings = node_findings(node).await;
    let (offset, others) = node.look_closer().await;
    let durable = node.is_durable() == Some(true);
    NodeExam { address: SharedNode(node.clone()).address().to_owned(), durable, offset, findings, others }
}

/// The two nodes whose clocks differ most.
fn widest_gap(exams: &[NodeExam]) -> Option<Finding> {
    let clocks: Vec<(&str, ClockOffset)> =
        exams.iter().filter_map(|exam| Some((exam.address.as_str(), exam.offset?))).collect();
    let pairs = clocks.iter().enumerate().flat_map(|(at, one)| clocks[at + 1..].iter().map(move |other| (one, other)));
    let gaps = pairs.map(|(one, other)| (format!("clocks of {} and {}", one.0, other.0), one.1.minus(other.1)));
    let (setting, gap) = gaps.max_by_key(|(_, gap)| gap.distance())?;
    Some(gap.finding(setting, CLOCK_FOLLOWS))
}

fn quarantine_note(nodes: usize, durable: usize, options: &RedlockOptions) -> Finding {
    let longest = format!("{} ms", options.quarantine.as_millis());
    let sentence = if durable > nodes / 2 {
        format!("{durable} of {nodes} nodes keep every lease over a restart, so a lease may be of any length.")
    } else {
        format!(
            "Only {durable} of {nodes} nodes keep every lease over a restart, so no lease, with its delay, may be longer than {longest}."
        )
    };
    Finding::note("quarantine", longest, sentence)
}

async fn node_findings(node: &Arc<RedlockNode>) -> Vec<Finding> {
    let shared = SharedNode(node.clone());
    let address = shared.address().to_owned();
    let mut found = Vec::new();
    match node.read_server().await {
        Err(error) => {
            let sentence = format!("{error}. It has no vote until it is back.");
            found.push(Finding::warning(address.clone(), "unusable", "a Redis server that answers", sentence));
        }
        // What denies a promise on one server is a reason to look here, where the promises are not made anyway.
        Ok(all) => found.extend(all.into_iter().filter_map(|finding| match finding.kind {
            FindingKind::Denies(promises) if promises.contains(&Promise::Durable) => {
                let setting = format!("{address} {}", finding.setting);
                let sentence =
                    format!("{} After a restart this node does not vote for the quarantine.", finding.sentence);
                Some(Finding::warning(setting, finding.found, finding.wanted, sentence))
            }
            FindingKind::Warning => Some(Finding {
                setting: format!("{address} {}", finding.setting),
                kind: FindingKind::Warning,
                ..finding
            }),
            FindingKind::Note => {
                Some(Finding { setting: format!("{address} {}", finding.setting), kind: FindingKind::Note, ..finding })
            }
            FindingKind::Denies(_) => None,
        })),
    }
    if let Standing::Quarantined { left } = shared.standing(0) {
        let (now, then) =
            (format!("started a moment ago, {} ms left", left.as_millis()), "a node that is up for longer");
        let sentence =
            "It may have forgotten leases when it was restarted, and does not vote until none of them can be live.";
        found.push(Finding::warning(format!("{address} quarantine"), now, then, sentence));
    }
    if shared.is_suspect() {
        let sentence = "It missed an answer a moment ago, and is not waited for while there are enough others.";
        found.push(Finding::warning(format!("{address} answers"), "late", "in time", sentence));
    }
    found
}

fn always_denied() -> Finding {
    Finding::denies(
        &[Promise::Fencing],
        "redlock",
        "independent nodes",
        "one system that orders all grants",
        "Redlock cannot issue fencing tokens: each node operates independently, there is no linearizable state, so nothing orders \
         the grants. A holder that was paused past its ttl cannot be refused.",
    )
}

fn not_durable() -> Finding {
    Finding::denies(
        &[Promise::Durable],
        "redlock",
        "a majority in memory",
        "one system that keeps every grant",
        "A lease is lost when a majority of nodes forgets it, and no node can tell.",
    )
}

fn not_fair() -> Finding {
    Finding::denies(
        &[Promise::Fair],
        "redlock",
        "random pauses",
        "one queue",
        "There is no queue over independent nodes: whoever waits tries again after a random pause.",
    )
}

fn clock_denial() -> Finding {
    Finding::denies(
        &[Promise::NeverEarly],
        "clock",
        "the wall clocks of the nodes",
        "clocks that never step",
        "Each node ends keys by its wall clock: when a majority of them steps forward, leases end before their time.",
    )
}

/// What so many nodes are worth.
fn size_finding(nodes: usize) -> Option<Finding> {
    let wanted = "3 or 5";
    let sentence = match nodes {
        1 => "One node is no majority of anything: redis:// does the same, with an order of arrival and with tokens where they are safe.".to_owned(),
        2 => "Both nodes must answer: two are less available than one.".to_owned(),
        even if even.is_multiple_of(2) => format!(
            "{} of {even} nodes must agree, so it bears no more failures than {} nodes do.",
            even / 2 + 1,
            even - 1
        ),
        _ => return None,
    };
    Some(Finding::warning("nodes", nodes.to_string(), wanted, sentence))
}
