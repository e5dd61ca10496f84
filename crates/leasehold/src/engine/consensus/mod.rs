//! What the engines on etcd and ZooKeeper share: the text of lease ids, and the memory of endings.
//!
//! Both keep their contenders in one total order and decide by [`super::admission`]. Both find a lease by the name in its
//! id, so that every process finds it without an index.

pub(crate) mod ended;
pub(crate) mod lease_id;
