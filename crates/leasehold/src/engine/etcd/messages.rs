//! The part of etcd's gRPC API that the engine calls, written by hand.
//!
//! Code generated from etcd's `rpc.proto` would need protoc in every build. Names and tags are those of `rpc.proto`.
//! Fields that are neither set nor read are left out: protobuf omits a field at its default, and skips unknown fields.
//! A `oneof` is written as optional fields of which one is set: the bytes are the same.

use prost::Message;

/// A call of etcd: its path and the type of its response.
pub(super) trait EtcdRpc: Message + Clone + 'static {
    /// `/package.Service/Method`.
    const PATH: &'static str;
    type Response: Message + Default + 'static;
}

macro_rules! rpc {
    ($request:ty => $response:ty, $path:literal) => {
        impl EtcdRpc for $request {
            const PATH: &'static str = $path;
            type Response = $response;
        }
    };
}

rpc!(RangeCall => RangeReply, "/etcdserverpb.KV/Range");
rpc!(TxnCall => TxnReply, "/etcdserverpb.KV/Txn");
rpc!(LeaseGrantCall => LeaseGrantReply, "/etcdserverpb.Lease/LeaseGrant");
rpc!(LeaseRevokeCall => EmptyReply, "/etcdserverpb.Lease/LeaseRevoke");
rpc!(LeaseTimeToLiveCall => LeaseTimeToLiveReply, "/etcdserverpb.Lease/LeaseTimeToLive");
rpc!(LeaseKeepAliveCall => LeaseKeepAliveReply, "/etcdserverpb.Lease/LeaseKeepAlive");
rpc!(WatchCall => WatchReply, "/etcdserverpb.Watch/Watch");
rpc!(AuthenticateCall => AuthenticateReply, "/etcdserverpb.Auth/Authenticate");
rpc!(StatusCall => StatusReply, "/etcdserverpb.Maintenance/Status");
rpc!(AlarmCall => AlarmReply, "/etcdserverpb.Maintenance/Alarm");
rpc!(MemberListCall => MemberListReply, "/etcdserverpb.Cluster/MemberList");

#[derive(Clone, PartialEq, Message)]
pub(super) struct ReplyHeader {
    #[prost(uint64, tag = "1")]
    pub cluster_id: u64,
    #[prost(uint64, tag = "2")]
    pub member_id: u64,
    #[prost(int64, tag = "3")]
    pub revision: i64,
    /// Rises with each election.
    #[prost(uint64, tag = "4")]
    pub raft_term: u64,
}

/// The term that a reply tells; 0, which no leader has, where it tells none.
pub(super) fn term_of(header: Option<&ReplyHeader>) -> u64 {
    header.map_or(0, |header| header.raft_term)
}

/// `mvccpb.KeyValue`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct StoredKey {
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    #[prost(int64, tag = "2")]
    pub create_revision: i64,
    #[prost(int64, tag = "3")]
    pub mod_revision: i64,
    #[prost(bytes = "vec", tag = "5")]
    pub value: Vec<u8>,
    #[prost(int64, tag = "6")]
    pub lease: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct RangeCall {
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub range_end: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub limit: i64,
    #[prost(int64, tag = "4")]
    pub revision: i64,
    /// 1: ascending.
    #[prost(int32, tag = "5")]
    pub sort_order: i32,
    /// 2: by the revision at which the key was created.
    #[prost(int32, tag = "6")]
    pub sort_target: i32,
    #[prost(bool, tag = "8")]
    pub keys_only: bool,
    #[prost(bool, tag = "9")]
    pub count_only: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct RangeReply {
    #[prost(message, optional, tag = "1")]
    pub header: Option<ReplyHeader>,
    #[prost(message, repeated, tag = "2")]
    pub kvs: Vec<StoredKey>,
    #[prost(bool, tag = "3")]
    pub more: bool,
    /// Keys in the range, beyond the limit too.
    #[prost(int64, tag = "4")]
    pub count: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PutCall {
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub value: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub lease: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct DeleteRangeCall {
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct EmptyReply {}

/// A part of a transaction: exactly one field is set.
#[derive(Clone, PartialEq, Message)]
pub(super) struct TxnPart {
    #[prost(message, optional, tag = "1")]
    pub range: Option<RangeCall>,
    #[prost(message, optional, tag = "2")]
    pub put: Option<PutCall>,
    #[prost(message, optional, tag = "3")]
    pub delete: Option<DeleteRangeCall>,
    #[prost(message, optional, boxed, tag = "4")]
    pub txn: Option<Box<TxnCall>>,
}

/// The reply to one part.
#[derive(Clone, PartialEq, Message)]
pub(super) struct TxnPartReply {
    #[prost(message, optional, tag = "1")]
    pub range: Option<RangeReply>,
    #[prost(message, optional, boxed, tag = "4")]
    pub txn: Option<Box<TxnReply>>,
}

/// A condition. At most one of the revisions is set; none compares the version.
#[derive(Clone, PartialEq, Message)]
pub(super) struct TxnCondition {
    /// 0 equal, 1 greater, 2 less.
    #[prost(int32, tag = "1")]
    pub result: i32,
    /// 0 version, 1 create revision, 2 mod revision.
    #[prost(int32, tag = "2")]
    pub target: i32,
    #[prost(bytes = "vec", tag = "3")]
    pub key: Vec<u8>,
    #[prost(int64, optional, tag = "4")]
    pub version: Option<i64>,
    #[prost(int64, optional, tag = "5")]
    pub create_revision: Option<i64>,
    #[prost(int64, optional, tag = "6")]
    pub mod_revision: Option<i64>,
    #[prost(bytes = "vec", tag = "64")]
    pub range_end: Vec<u8>,
}

/// If all of `compare` hold, all of `success` are done, else all of `failure`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct TxnCall {
    #[prost(message, repeated, tag = "1")]
    pub compare: Vec<TxnCondition>,
    #[prost(message, repeated, tag = "2")]
    pub success: Vec<TxnPart>,
    #[prost(message, repeated, tag = "3")]
    pub failure: Vec<TxnPart>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TxnReply {
    #[prost(message, optional, tag = "1")]
    pub header: Option<ReplyHeader>,
    #[prost(bool, tag = "2")]
    pub succeeded: bool,
    #[prost(message, repeated, tag = "3")]
    pub responses: Vec<TxnPartReply>,
}

/// etcd chooses the id, because none is sent.
#[derive(Clone, PartialEq, Message)]
pub(super) struct LeaseGrantCall {
    /// In seconds.
    #[prost(int64, tag = "1")]
    pub ttl: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct LeaseGrantReply {
    #[prost(message, optional, tag = "1")]
    pub header: Option<ReplyHeader>,
    #[prost(int64, tag = "2")]
    pub id: i64,
    /// What was granted, at least what was asked for.
    #[prost(int64, tag = "3")]
    pub ttl: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct LeaseRevokeCall {
    #[prost(int64, tag = "1")]
    pub id: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct LeaseTimeToLiveCall {
    #[prost(int64, tag = "1")]
    pub id: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct LeaseTimeToLiveReply {
    /// Whole seconds, cut towards zero. -1: there is no such lease.
    #[prost(int64, tag = "3")]
    pub ttl: i64,
    /// What it was granted for.
    #[prost(int64, tag = "4")]
    pub granted_ttl: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct LeaseKeepAliveCall {
    #[prost(int64, tag = "1")]
    pub id: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct LeaseKeepAliveReply {
    /// 0: there is no such lease.
    #[prost(int64, tag = "3")]
    pub ttl: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct WatchCall {
    #[prost(message, optional, tag = "1")]
    pub create: Option<WatchCreateCall>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct WatchCreateCall {
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub range_end: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub start_revision: i64,
    #[prost(bool, tag = "6")]
    pub prev_kv: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct WatchReply {
    #[prost(message, optional, tag = "1")]
    pub header: Option<ReplyHeader>,
    #[prost(bool, tag = "3")]
    pub created: bool,
    #[prost(bool, tag = "4")]
    pub canceled: bool,
    /// Not 0: the history from the start revision on is gone.
    #[prost(int64, tag = "5")]
    pub compact_revision: i64,
    #[prost(string, tag = "6")]
    pub cancel_reason: String,
    #[prost(message, repeated, tag = "11")]
    pub events: Vec<KeyEvent>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct KeyEvent {
    /// 0 put, 1 delete.
    #[prost(int32, tag = "1")]
    pub kind: i32,
    #[prost(message, optional, tag = "2")]
    pub kv: Option<StoredKey>,
    #[prost(message, optional, tag = "3")]
    pub prev_kv: Option<StoredKey>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct AuthenticateCall {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub password: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct AuthenticateReply {
    #[prost(string, tag = "2")]
    pub token: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct StatusCall {}

#[derive(Clone, PartialEq, Message)]
pub(super) struct StatusReply {
    #[prost(message, optional, tag = "1")]
    pub header: Option<ReplyHeader>,
    #[prost(string, tag = "2")]
    pub version: String,
    #[prost(int64, tag = "3")]
    pub db_size: i64,
    #[prost(uint64, tag = "4")]
    pub leader: u64,
    #[prost(string, repeated, tag = "8")]
    pub errors: Vec<String>,
    #[prost(bool, tag = "10")]
    pub is_learner: bool,
}

/// Asks for the alarms that are on.
#[derive(Clone, PartialEq, Message)]
pub(super) struct AlarmCall {}

#[derive(Clone, PartialEq, Message)]
pub(super) struct AlarmReply {
    #[prost(message, repeated, tag = "2")]
    pub alarms: Vec<MemberAlarm>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct MemberAlarm {
    #[prost(uint64, tag = "1")]
    pub member_id: u64,
    /// 1 NOSPACE, 2 CORRUPT.
    #[prost(int32, tag = "2")]
    pub alarm: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct MemberListCall {}

#[derive(Clone, PartialEq, Message)]
pub(super) struct MemberListReply {
    #[prost(message, repeated, tag = "2")]
    pub members: Vec<ClusterMember>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ClusterMember {
    #[prost(uint64, tag = "1")]
    pub id: u64,
    #[prost(string, tag = "2")]
    pub name: String,
    #[prost(bool, tag = "5")]
    pub is_learner: bool,
}

impl RangeCall {
    /// One key.
    pub fn one(key: Vec<u8>) -> Self {
        Self { key, ..Self::default() }
    }

    /// The first `limit` keys of a range, in order of arrival.
    pub fn by_arrival((key, range_end): (Vec<u8>, Vec<u8>), limit: i64) -> Self {
        Self { key, range_end, limit, sort_order: 1, sort_target: 2, ..Self::default() }
    }

    /// How many keys there are, and the first `limit` of them in their own order, without values.
    pub fn keys((key, range_end): (Vec<u8>, Vec<u8>), limit: i64) -> Self {
        Self { key, range_end, limit, keys_only: true, ..Self::default() }
    }

    /// How many keys there are.
    pub fn count((key, range_end): (Vec<u8>, Vec<u8>)) -> Self {
        Self { key, range_end, count_only: true, ..Self::default() }
    }
}

impl TxnPart {
    pub fn range(range: RangeCall) -> Self {
        Self { range: Some(range), ..Self::default() }
    }

    /// Puts a key that ends with the lease.
    pub fn put(key: Vec<u8>, value: Vec<u8>, lease: i64) -> Self {
        Self { put: Some(PutCall { key, value, lease }), ..Self::default() }
    }

    pub fn delete(key: Vec<u8>) -> Self {
        Self { delete: Some(DeleteRangeCall { key }), ..Self::default() }
    }

    pub fn nested(txn: TxnCall) -> Self {
        Self { txn: Some(Box::new(txn)), ..Self::default() }
    }
}

impl TxnCondition {
    /// There is no such key.
    pub fn absent(key: Vec<u8>) -> Self {
        Self::created_at(key, 0)
    }

    /// The key was created at this revision.
    pub fn created_at(key: Vec<u8>, revision: i64) -> Self {
        Self { target: 1, key, create_revision: Some(revision), ..Self::default() }
    }

    /// The key exists.
    pub fn exists(key: Vec<u8>) -> Self {
        Self { result: 1, target: 1, key, create_revision: Some(0), ..Self::default() }
    }

    /// The key was last written at this revision.
    pub fn written_at(key: Vec<u8>, revision: i64) -> Self {
        Self { target: 2, key, mod_revision: Some(revision), ..Self::default() }
    }

    /// No key is in the range.
    pub fn empty((key, range_end): (Vec<u8>, Vec<u8>)) -> Self {
        Self { range_end, ..Self::created_at(key, 0) }
    }

    /// Every key of the range was created before this revision; an empty range is fine.
    pub fn all_created_before((key, range_end): (Vec<u8>, Vec<u8>), revision: i64) -> Self {
        Self { result: 2, target: 1, key, range_end, create_revision: Some(revision), ..Self::default() }
    }

    /// Every key of the range was created after this revision. The range must not be empty.
    pub fn all_created_after((key, range_end): (Vec<u8>, Vec<u8>), revision: i64) -> Self {
        Self { result: 1, target: 1, key, range_end, create_revision: Some(revision), ..Self::default() }
    }
}

impl TxnReply {
    /// The revision at which it was applied; for one that wrote nothing, the newest revision then.
    pub fn revision(&self) -> i64 {
        self.header.as_ref().map_or(0, |header| header.revision)
    }

    /// The range read by one of its parts.
    pub fn range(&self, at: usize) -> &[StoredKey] {
        self.responses.get(at).and_then(|part| part.range.as_ref()).map_or(&[], |range| &range.kvs)
    }

    /// The count of one of its ranges.
    pub fn count(&self, at: usize) -> usize {
        let count = self.responses.get(at).and_then(|part| part.range.as_ref()).map_or(0, |range| range.count);
        usize::try_from(count).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what goes out are the bytes of etcd's own messages.
    /// Method: bytes written down from `rpc.proto`: tag, length, value.
    #[test]
    fn a_transaction_has_the_bytes_of_etcd() {
        let range = (b"k/".to_vec(), b"k0".to_vec());
        let empty = TxnCondition::empty(range).encode_to_vec();
        assert_eq!(empty, [0x10, 1, 0x1a, 2, b'k', b'/', 0x28, 0, 0x82, 4, 2, b'k', b'0']);
        let alive = TxnCondition::exists(b"m".to_vec()).encode_to_vec();
        assert_eq!(alive, [0x08, 1, 0x10, 1, 0x1a, 1, b'm', 0x28, 0]);
        let put = TxnPart::put(b"k".to_vec(), b"v".to_vec(), 7).encode_to_vec();
        assert_eq!(put, [0x12, 8, 0x0a, 1, b'k', 0x12, 1, b'v', 0x18, 7]);
        assert_eq!(TxnPart::delete(b"k".to_vec()).encode_to_vec(), [0x1a, 3, 0x0a, 1, b'k']);
        let nested = TxnPart::nested(TxnCall { failure: vec![TxnPart::delete(b"k".to_vec())], ..TxnCall::default() });
        assert_eq!(nested.encode_to_vec(), [0x22, 7, 0x1a, 5, 0x1a, 3, 0x0a, 1, b'k']);
        let first = RangeCall::by_arrival((b"k/".to_vec(), b"k0".to_vec()), 1).encode_to_vec();
        assert_eq!(first, [0x0a, 2, b'k', b'/', 0x12, 2, b'k', b'0', 0x18, 1, 0x28, 1, 0x30, 2]);
    }

    /// Goal: fields that are left out do not disturb those that are read.
    #[test]
    fn a_reply_with_more_fields_is_read() {
        let header = [0x08, 9, 0x10, 9, 0x18, 42, 0x20, 3];
        let reply = [&[0x0a, 8][..], &header, &[0x10, 1, 0x1a, 0]].concat();
        let reply = TxnReply::decode(reply.as_slice()).expect("a reply");
        assert_eq!((reply.revision(), reply.succeeded, reply.responses.len()), (42, true, 1));
        assert_eq!(term_of(reply.header.as_ref()), 3);
        assert!(reply.range(0).is_empty() && reply.range(7).is_empty());
    }
}
