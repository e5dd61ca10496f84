//! Calls of etcd that its own lock clients make, written by hand: no build needs protoc. Names and tags are those of
//! `rpc.proto` and `v3lock.proto`.
#![allow(dead_code, reason = "each test uses some")]

use prost::Message;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

/// One connection to one member.
pub struct EtcdConnection(Grpc<Channel>);

impl EtcdConnection {
    pub fn new(endpoint: &str) -> Self {
        Self(Grpc::new(Endpoint::from_shared(format!("http://{endpoint}")).expect("an address").connect_lazy()))
    }

    /// A lease of so many seconds.
    pub async fn grant_lease(&mut self, ttl: i64) -> i64 {
        let granted: GrantResponse = call(&mut self.0, "/etcdserverpb.Lease/LeaseGrant", GrantRequest { ttl }).await;
        granted.id
    }

    /// Go's concurrency.Mutex, run by the server itself. Its key, and the revision at which it was alone.
    pub async fn lock(&mut self, name: &str, lease: i64) -> (Vec<u8>, u64) {
        let lock: LockResponse =
            call(&mut self.0, "/v3lockpb.Lock/Lock", LockRequest { name: name.into(), lease }).await;
        let revision = lock.header.and_then(|header| u64::try_from(header.revision).ok());
        (lock.key, revision.expect("a revision"))
    }

    pub async fn unlock(&mut self, key: Vec<u8>) {
        let _: UnlockResponse = call(&mut self.0, "/v3lockpb.Lock/Unlock", UnlockRequest { key }).await;
    }

    /// Puts a key if there is none; says whether there was none.
    pub async fn put_if_absent(&mut self, key: &str, lease: i64) -> bool {
        let absent = Compare { target: 1, key: key.into(), create_revision: Some(0) };
        let put = RequestOp { put: Some(PutRequest { key: key.into(), value: b"theirs".to_vec(), lease }) };
        let request = TxnRequest { compare: vec![absent], success: vec![put] };
        let done: TxnResponse = call(&mut self.0, "/etcdserverpb.KV/Txn", request).await;
        done.succeeded
    }
}

#[derive(Clone, PartialEq, Message)]
struct GrantRequest {
    #[prost(int64, tag = "1")]
    ttl: i64,
}

#[derive(Clone, PartialEq, Message)]
struct GrantResponse {
    #[prost(int64, tag = "2")]
    id: i64,
}

/// `v3lockpb.LockRequest`: the server itself runs Go's concurrency.Mutex on this lease.
#[derive(Clone, PartialEq, Message)]
struct LockRequest {
    #[prost(bytes = "vec", tag = "1")]
    name: Vec<u8>,
    #[prost(int64, tag = "2")]
    lease: i64,
}

#[derive(Clone, PartialEq, Message)]
struct ResponseHeader {
    #[prost(int64, tag = "3")]
    revision: i64,
}

#[derive(Clone, PartialEq, Message)]
struct LockResponse {
    #[prost(message, optional, tag = "1")]
    header: Option<ResponseHeader>,
    #[prost(bytes = "vec", tag = "2")]
    key: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct UnlockRequest {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct UnlockResponse {
    #[prost(message, optional, tag = "1")]
    header: Option<ResponseHeader>,
}

async fn call<Q, A>(grpc: &mut Grpc<Channel>, path: &'static str, request: Q) -> A
where
    Q: Message + 'static,
    A: Message + Default + 'static,
{
    grpc.ready().await.expect("a connection");
    let codec = ProstCodec::<Q, A>::default();
    let answer = grpc.unary(tonic::Request::new(request), path.parse().expect("a path"), codec).await;
    answer.expect("etcd answers").into_inner()
}

#[derive(Clone, PartialEq, Message)]
struct TxnRequest {
    #[prost(message, repeated, tag = "1")]
    compare: Vec<Compare>,
    #[prost(message, repeated, tag = "2")]
    success: Vec<RequestOp>,
}

#[derive(Clone, PartialEq, Message)]
struct TxnResponse {
    #[prost(bool, tag = "2")]
    succeeded: bool,
}

/// Its result is `EQUAL` (0), which protobuf omits.
#[derive(Clone, PartialEq, Message)]
struct Compare {
    /// 1: the revision of the key's creation.
    #[prost(int32, tag = "2")]
    target: i32,
    #[prost(bytes = "vec", tag = "3")]
    key: Vec<u8>,
    #[prost(int64, optional, tag = "5")]
    create_revision: Option<i64>,
}

#[derive(Clone, PartialEq, Message)]
struct RequestOp {
    #[prost(message, optional, tag = "2")]
    put: Option<PutRequest>,
}

#[derive(Clone, PartialEq, Message)]
struct PutRequest {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
    #[prost(int64, tag = "3")]
    lease: i64,
}
