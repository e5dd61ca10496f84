//! All nodes of one lease, changed together: one request where there is one node, one transaction where there are more.

use zookeeper_client::{self as zk, Client, CreateMode, CreateOptions, MultiWriteError, MultiWriteResult, Stat};

/// How a change of all nodes of a lease went.
#[derive(Clone, Copy, Debug)]
pub(super) enum NodeChange {
    /// It happened. The stat of the first node, where the server gives one.
    Done(Option<Stat>),
    /// A node is not there: the lease or the place is over.
    Gone,
    /// The first node has another version.
    Changed,
}

/// A node and what it is to hold.
pub(super) type NodeData = (String, Vec<u8>);

/// Deletes the nodes, the first one only at this version. What is gone already is left out, and the answer is that a node
/// was gone.
pub(super) async fn delete_nodes(
    client: &Client,
    paths: &[String],
    version: Option<i32>,
) -> Result<NodeChange, zk::Error> {
    if let [path] = paths {
        return match client.delete(path, version).await {
            Ok(()) => Ok(NodeChange::Done(None)),
            Err(zk::Error::NoNode) => Ok(NodeChange::Gone),
            Err(zk::Error::BadVersion) => Ok(NodeChange::Changed),
            Err(error) => Err(error),
        };
    }
    let mut left: Vec<(usize, &String)> = paths.iter().enumerate().collect();
    while !left.is_empty() {
        let mut writer = client.new_multi_writer();
        for (at, path) in &left {
            writer.add_delete(path, version.filter(|_| *at == 0))?;
        }
        match writer.commit().await {
            Ok(_) => break,
            Err(MultiWriteError::OperationFailed { index, source: zk::Error::NoNode }) => {
                left.remove(index);
            }
            Err(MultiWriteError::OperationFailed { source: zk::Error::BadVersion, .. }) => {
                return Ok(NodeChange::Changed);
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(if left.len() < paths.len() { NodeChange::Gone } else { NodeChange::Done(None) })
}

/// Deletes what is left of a lease that is over because one of its nodes was removed.
///
/// Each alone, at any version: nobody can renew a lease that is not whole, and no other lease has these names.
pub(super) async fn delete_rest(client: &Client, paths: &[String]) -> Result<(), zk::Error> {
    // All are sent before the first is waited for.
    let deletes: Vec<_> = paths.iter().map(|path| client.delete(path, None)).collect();
    let mut result = Ok(());
    for delete in deletes {
        match delete.await {
            Ok(()) | Err(zk::Error::NoNode) => {}
            Err(error) => result = Err(error),
        }
    }
    result
}

/// Writes the nodes if the first one has this version: all of ours are written together with it. What somebody else wrote
/// into another one is written over.
pub(super) async fn write_nodes(client: &Client, nodes: &[NodeData], version: i32) -> Result<NodeChange, zk::Error> {
    if let [(path, data)] = nodes {
        return match client.set_data(path, data, Some(version)).await {
            Ok(stat) => Ok(NodeChange::Done(Some(stat))),
            Err(error) => read_failure(error),
        };
    }
    let mut writer = client.new_multi_writer();
    for (at, (path, data)) in nodes.iter().enumerate() {
        writer.add_set_data(path, data, Some(version).filter(|_| at == 0))?;
    }
    match writer.commit().await {
        Ok(results) => Ok(NodeChange::Done(results.first().and_then(|result| match result {
            MultiWriteResult::SetData { stat } => Some(*stat),
            _ => None,
        }))),
        Err(error) => read_failure(error.into()),
    }
}

/// Puts other nodes with the same numbers in the place of these, in one transaction: nobody sees a gap.
pub(super) async fn swap_nodes(
    client: &Client,
    from: &[String],
    to: &[NodeData],
    options: &CreateOptions<'_>,
    request: Option<&NodeData>,
) -> Result<NodeChange, zk::Error> {
    let mut writer = client.new_multi_writer();
    for (path, data) in to {
        writer.add_create(path, data, options)?;
    }
    for path in from {
        writer.add_delete(path, None)?;
    }
    if let Some((path, data)) = request {
        writer.add_set_data(path, data, None)?;
    }
    // The stat of a node made in a transaction is not valid in 3.8: it is asked for.
    let (commit, first) = (writer.commit(), client.check_stat(&to[0].0));
    match commit.await {
        Ok(_) => Ok(NodeChange::Done(first.await.ok().flatten())),
        Err(error) => read_failure(error.into()),
    }
}

fn read_failure(error: zk::Error) -> Result<NodeChange, zk::Error> {
    match error {
        zk::Error::NoNode => Ok(NodeChange::Gone),
        zk::Error::BadVersion => Ok(NodeChange::Changed),
        error => Err(error),
    }
}

/// Makes a node and those above it; what is there stays.
pub(super) async fn make_path(client: &Client, path: &str, options: &CreateOptions<'_>) -> Result<(), zk::Error> {
    match client.create(path, &[], options).await {
        Ok(_) | Err(zk::Error::NodeExists) => return Ok(()),
        Err(zk::Error::NoNode) => {}
        Err(error) => return Err(error),
    }
    client.mkdir(path, options).await
}

/// How the nodes of leases are made.
pub(super) const fn node_mode(ephemeral: bool, numbered: bool) -> CreateMode {
    match (ephemeral, numbered) {
        (true, true) => CreateMode::EphemeralSequential,
        (true, false) => CreateMode::Ephemeral,
        (false, true) => CreateMode::PersistentSequential,
        (false, false) => CreateMode::Persistent,
    }
}
