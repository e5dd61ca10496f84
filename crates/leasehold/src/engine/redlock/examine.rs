//! What an operator should know of the nodes.

use std::sync::Arc;

use super::node::{Node as _, Standing};
use super::options::RedlockOptions;
use super::redis_node::{RedlockNode, SharedNode};
use crate::engine::{Finding, FindingKind, Promise};

/// Reads the settings of every node.
pub(super) async fn findings(nodes: &[Arc<RedlockNode>], options: &RedlockOptions, owed: usize) -> Vec<Finding> {
    let mut found = vec![always_denied(), not_durable(), not_fair(), clock_denial()];
    found.extend(size_finding(nodes.len()));
    let mut durable = 0;
    for node in nodes {
        durable += usize::from(node.is_durable() == Some(true));
        found.extend(node_findings(node).await);
    }
    let quorum = nodes.len() / 2 + 1;
    let longest = format!("{} ms", options.quarantine.as_millis());
    let sentence = if durable >= quorum {
        format!("{durable} of {} nodes keep every lease over a restart, so a lease may be of any length.", nodes.len())
    } else {
        format!(
            "Only {durable} of {} nodes keep every lease over a restart, so no lease, with its delay, may be longer than {longest}.",
            nodes.len()
        )
    };
    found.push(Finding::note("quarantine", longest, sentence));
    if owed > 0 {
        let sentence =
            "These releases were not confirmed by a node yet. They are repeated until it answers or they lapse.";
        found.push(Finding::warning("owed releases", owed.to_string(), "0", sentence));
    }
    found
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
