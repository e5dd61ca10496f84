//! The part of etcd's gRPC API that the bench calls, written by hand.
//!
//! Code generated from etcd's `rpc.proto` would need protoc in every build with the feature. Names and tags are those
//! of `rpc.proto`. Fields that the bench neither sets nor reads are left out: protobuf omits a field at its default,
//! and skips unknown fields.

use anyhow::Context;
use hyper::http::uri::PathAndQuery;
use prost::Message;
use tonic::client::Grpc;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

/// A call of etcd: its path and the type of its response.
pub trait EtcdCall: Message + 'static {
    /// `/package.Service/Method`.
    const PATH: &'static str;
    type Response: Message + Default + 'static;
}

/// One channel to one or several members of a cluster.
pub struct EtcdChannel {
    grpc: Grpc<Channel>,
    /// From `Authenticate`, sent with every later call.
    token: Option<MetadataValue<Ascii>>,
}

impl EtcdChannel {
    /// A channel that spreads its calls over the endpoints. It connects at the first call.
    pub fn new(endpoints: &[String]) -> anyhow::Result<Self> {
        let endpoints = endpoints.iter().map(|endpoint| Endpoint::from_shared(endpoint.clone()));
        let endpoints: Vec<_> = endpoints.collect::<Result<_, _>>().context("an endpoint of etcd is no URL")?;
        let channel = match endpoints.as_slice() {
            [endpoint] => endpoint.connect_lazy(),
            several => Channel::balance_list(several.iter().cloned()),
        };
        Ok(Self { grpc: Grpc::new(channel), token: None })
    }

    /// Authenticates. The token of the response is sent with every later call.
    pub async fn authenticate(&mut self, name: &str, password: &str) -> anyhow::Result<()> {
        let request = AuthenticateRequest { name: name.to_owned(), password: password.to_owned() };
        let token = self.call(request).await?.token;
        self.token = Some(token.parse().context("the token of etcd cannot be sent as a header")?);
        Ok(())
    }

    /// Sends one request and returns its response.
    pub async fn call<C: EtcdCall>(&mut self, call: C) -> anyhow::Result<C::Response> {
        let mut request = tonic::Request::new(call);
        if let Some(token) = &self.token {
            request.metadata_mut().insert("authorization", token.clone());
        }
        self.grpc.ready().await?;
        let codec = ProstCodec::<C, C::Response>::default();
        Ok(self.grpc.unary(request, PathAndQuery::from_static(C::PATH), codec).await?.into_inner())
    }
}

/// `Auth.Authenticate`.
#[derive(Clone, PartialEq, Message)]
pub struct AuthenticateRequest {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub password: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct AuthenticateResponse {
    #[prost(string, tag = "2")]
    pub token: String,
}

impl EtcdCall for AuthenticateRequest {
    const PATH: &'static str = "/etcdserverpb.Auth/Authenticate";
    type Response = AuthenticateResponse;
}

/// `Lease.LeaseGrant`. etcd chooses the id, because none is sent.
#[derive(Clone, PartialEq, Message)]
pub struct LeaseGrantRequest {
    /// In seconds.
    #[prost(int64, tag = "1")]
    pub ttl: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct LeaseGrantResponse {
    #[prost(int64, tag = "2")]
    pub id: i64,
}

impl EtcdCall for LeaseGrantRequest {
    const PATH: &'static str = "/etcdserverpb.Lease/LeaseGrant";
    type Response = LeaseGrantResponse;
}

/// `Lease.LeaseRevoke`.
#[derive(Clone, PartialEq, Message)]
pub struct LeaseRevokeRequest {
    #[prost(int64, tag = "1")]
    pub id: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct LeaseRevokeResponse {}

impl EtcdCall for LeaseRevokeRequest {
    const PATH: &'static str = "/etcdserverpb.Lease/LeaseRevoke";
    type Response = LeaseRevokeResponse;
}

/// `KV.Txn`: if all of `compare` hold, all of `success` are done.
#[derive(Clone, PartialEq, Message)]
pub struct TxnRequest {
    #[prost(message, repeated, tag = "1")]
    pub compare: Vec<Compare>,
    #[prost(message, repeated, tag = "2")]
    pub success: Vec<RequestOp>,
}

#[derive(Clone, PartialEq, Message)]
pub struct TxnResponse {
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    #[prost(bool, tag = "2")]
    pub succeeded: bool,
}

impl EtcdCall for TxnRequest {
    const PATH: &'static str = "/etcdserverpb.KV/Txn";
    type Response = TxnResponse;
}

#[derive(Clone, PartialEq, Message)]
pub struct ResponseHeader {
    #[prost(int64, tag = "3")]
    pub revision: i64,
}

/// A condition on a key. Its result is `EQUAL` (0), which protobuf omits.
#[derive(Clone, PartialEq, Message)]
pub struct Compare {
    #[prost(enumeration = "CompareTarget", tag = "2")]
    target: i32,
    #[prost(bytes = "vec", tag = "3")]
    key: Vec<u8>,
    /// One of a `oneof`. Optional, because a field of a `oneof` is sent even when it is 0.
    #[prost(int64, optional, tag = "5")]
    create_revision: Option<i64>,
}

/// The field that a [`Compare`] tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
enum CompareTarget {
    Version = 0,
    Create = 1,
}

impl Compare {
    /// The key was created at this revision. 0: there is no such key.
    pub fn created_at(key: &str, revision: i64) -> Self {
        Self { target: CompareTarget::Create.into(), key: key.into(), create_revision: Some(revision) }
    }
}

/// A part of a transaction: one of a `oneof`, so exactly one field is set.
#[derive(Clone, PartialEq, Message)]
pub struct RequestOp {
    #[prost(message, optional, tag = "2")]
    put: Option<PutRequest>,
    #[prost(message, optional, tag = "3")]
    delete_range: Option<DeleteRangeRequest>,
}

impl RequestOp {
    /// Puts a key that ends with the lease.
    pub fn put(key: &str, value: &str, lease: i64) -> Self {
        Self { put: Some(PutRequest { key: key.into(), value: value.into(), lease }), delete_range: None }
    }

    /// Deletes one key.
    pub fn delete(key: &str) -> Self {
        Self { put: None, delete_range: Some(DeleteRangeRequest { key: key.into() }) }
    }
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

#[derive(Clone, PartialEq, Message)]
struct DeleteRangeRequest {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what goes out are the bytes of etcd's own messages.
    /// Method: bytes written down from `rpc.proto`: tag, length, value.
    #[test]
    fn a_transaction_has_the_bytes_of_etcd() {
        let free = Compare::created_at("k", 0);
        let put = RequestOp::put("k", "v", 7);
        let request = TxnRequest { compare: vec![free], success: vec![put] };
        let compare = [0x10, 1, 0x1a, 1, b'k', 0x28, 0];
        let put = [0x12, 8, 0x0a, 1, b'k', 0x12, 1, b'v', 0x18, 7];
        let expected = [&[0x0a, 7][..], &compare, &[0x12, 10], &put].concat();
        assert_eq!(request.encode_to_vec(), expected);
        assert_eq!(RequestOp::delete("k").encode_to_vec(), [0x1a, 3, 0x0a, 1, b'k']);
    }

    /// Goal: fields that are left out do not disturb those that are read.
    #[test]
    fn an_answer_with_more_fields_is_read() {
        let header = [0x08, 9, 0x10, 9, 0x18, 42, 0x20, 3];
        let answer = [&[0x0a, 8][..], &header, &[0x10, 1, 0x1a, 0]].concat();
        let answer = TxnResponse::decode(answer.as_slice()).expect("an answer");
        assert_eq!(answer, TxnResponse { header: Some(ResponseHeader { revision: 42 }), succeeded: true });
    }
}
