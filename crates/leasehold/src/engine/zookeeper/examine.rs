//! What an operator should know of the ensemble and of what is below the chroot.

use std::collections::HashSet;

use zookeeper_client::{self as zk, Client, MultiReadResult};

use crate::engine::{Finding, Promise};

use super::node_name::{NodeForm, QueueNode, blind_client, contenders, parse_child};
use super::options::ZookeeperLayout;
use super::shared::ZookeeperShared;

/// Resources that are looked at.
const NAMES_EXAMINED: usize = 1000;
const NAMES_AT_ONCE: usize = 100;
/// A number from which on an operator should know that they end.
const WORRYING_NUMBER: i32 = 2_000_000_000;

impl ZookeeperShared {
    pub async fn examine_ensemble(&self, client: &Client) -> Result<Vec<Finding>, zk::Error> {
        let mut found = vec![self.lease_finding()];
        found.push(Finding::note(
            "forceSync",
            "not readable by clients",
            "With forceSync=no a server answers before it has synced its log: leave it at yes, on every server.",
        ));
        let (sync, list) = (client.sync(self.paths.root()), client.list_children(self.paths.root()));
        sync.await?;
        let names: Vec<String> = list.await?.iter().filter_map(|child| self.paths.resource(child)).collect();
        let mut strangers = HashSet::new();
        for chunk in names[..names.len().min(NAMES_EXAMINED)].chunks(NAMES_AT_ONCE) {
            let mut reader = client.new_multi_reader();
            for name in chunk {
                reader.add_get_children(&self.paths.directory(name))?;
            }
            let mut heads = Vec::new();
            for (name, result) in chunk.iter().zip(reader.commit().await?) {
                if let MultiReadResult::Children { children } = result {
                    found.extend(self.directory_findings(name, &children, &mut strangers));
                    heads.extend(contenders(&children).into_iter().next().map(|node| (name, node)));
                }
            }
            found.extend(self.overwritten_findings(client, &heads).await?);
        }
        if self.is_minded() {
            let servers = client.list_children(&self.paths.servers()).await?.len();
            let sentence =
                "So many processes end minded leases. While there is none, a lease that is over stays closed.";
            found.push(Finding::note("servers", servers.to_string(), sentence));
        }
        Ok(found)
    }

    /// Whose data was written over: of each queue the first node.
    async fn overwritten_findings(
        &self,
        client: &Client,
        heads: &[(&String, QueueNode)],
    ) -> Result<Vec<Finding>, zk::Error> {
        let mut reader = client.new_multi_reader();
        for (name, node) in heads {
            reader.add_get_data(&format!("{}/{}", self.paths.directory(name), node.name))?;
        }
        let mut found = Vec::new();
        for ((name, node), result) in heads.iter().zip(reader.commit().await?) {
            if let MultiReadResult::Data { data, stat } = result
                && Self::is_overwritten(node, &data, &stat)
            {
                let sentence = "Somebody wrote over the data of this lease: Curator's Revoker does that. If its server lives, \
                                its next renewal or its end repairs that. Otherwise it stays until two days after a \
                                server saw it: `leasehold revoke` ends it now.";
                found.push(Finding::warning(format!("lease on {name}"), "data of another client", "a lease", sentence));
            }
        }
        Ok(found)
    }

    fn lease_finding(&self) -> Finding {
        let session = self.pool.session_timeout();
        if self.is_minded() {
            let sentence = "A lease lives for its ttl, whatever becomes of the process that took it.";
            return Finding::note("lease", "minded", sentence);
        }
        let sentence = format!(
            "A lease ends with the session of its process, and is at most {} long: `leasehold serve` opens lease=minded.",
            seconds(self.longest_ttl())
        );
        let found = format!("session, {} session timeout", seconds(session));
        Finding::denies(&[Promise::OutlivesProcess], "lease", found, "minded", sentence)
    }

    /// Who else uses a resource, and whether they see us.
    fn directory_findings(
        &self,
        name: &str,
        children: &[String],
        strangers: &mut HashSet<&'static str>,
    ) -> Vec<Finding> {
        let mut found = Vec::new();
        let queue = contenders(children);
        if let Some(sentence) = blind_client(&queue, self.options.layout) {
            let layout = match self.options.layout {
                ZookeeperLayout::Curator => "curator",
                ZookeeperLayout::Kazoo => "kazoo",
                ZookeeperLayout::Both => "both",
            };
            let setting = format!("clients of {name}");
            found.push(Finding::warning(setting, format!("layout={layout}"), "clients that see each other", sentence));
        }
        if let Some(node) = queue.iter().find(|node| !(0..WORRYING_NUMBER).contains(&node.number)) {
            let sentence = "ZooKeeper gives no number past 2147483647, and clients other than ours then hold together. Ours replace \
                            the directory as soon as it is empty: let everybody leave it once.";
            let (setting, wanted) = (format!("numbers of {name}"), format!("below {WORRYING_NUMBER}"));
            found.push(Finding::warning(setting, node.number.to_string(), wanted, sentence));
        }
        if queue.iter().any(|node| node.form == NodeForm::Other) && strangers.insert("other") {
            let sentence = "These nodes count as exclusive contenders. Check that their client sees ours.";
            found.push(Finding::warning(format!("nodes of {name}"), "names of an unknown client", "", sentence));
        }
        if children.iter().any(|child| parse_child(child).is_none()) && strangers.insert("ignored") {
            let sentence = "Children that end in no number are ignored here. Curator counts every child.";
            found.push(Finding::warning(format!("children of {name}"), "names without a number", "none", sentence));
        }
        found
    }
}

/// A span in whole seconds where it is one.
pub(super) fn seconds(span: std::time::Duration) -> String {
    if span.subsec_millis() == 0 { format!("{} s", span.as_secs()) } else { format!("{} ms", span.as_millis()) }
}
