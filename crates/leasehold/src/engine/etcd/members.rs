//! The members of the cluster, one of which is asked.
//!
//! # Laws
//!
//! 1. One connection to one member carries all calls. A member that fails or is silent is left for the next one.
//! 2. What was not sent, or was turned away by a member without a leader, goes to the next member. What may have been sent
//!    does so only if it changes nothing.
//!
//! A channel that spreads its calls keeps sending some of them to a member that is dead, so there is none here.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::{Stream, StreamExt as _, stream};
use tokio::sync::watch;
use tonic::client::Grpc;
use tonic::codec::Streaming;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

use super::failure::{EtcdFailure, StatusVerdict, read_status};
use super::messages::{
    AuthenticateCall, EtcdRpc, LeaseKeepAliveCall, LeaseKeepAliveReply, WatchCall, WatchCreateCall, WatchReply,
};
use super::options::{EtcdEngineOptions, show_member};
use super::tls;
use crate::clock::{Clock as _, SystemClock, until};
use crate::error::Error;

/// The longest that a member may take to answer one call.
const CALL_TIMEOUT: Duration = Duration::from_secs(2);
/// The longest that connecting to one member may take.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(800);
/// How long members without a leader are asked again.
const ELECTION_WAIT: Duration = Duration::from_secs(3);
const ELECTION_PAUSE: Duration = Duration::from_millis(60);
/// The longest reply: a queue of a thousand keys with the longest values.
const MAX_REPLY_BYTES: usize = 64 << 20;
/// An idle connection that was lost is noticed by the system.
const TCP_KEEPALIVE: Duration = Duration::from_secs(15);

const PATHS_ARE_PATHS: &str = "the paths of etcd's calls are constants";

/// Whether a call may be sent to another member when its outcome is unknown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum CallKind {
    /// It changes nothing.
    Read,
    /// Its caller finds out what happened.
    Write,
}

/// See the module.
pub(super) struct EtcdMembers {
    endpoints: Vec<(String, Endpoint)>,
    login: Option<(String, String)>,
    current: Mutex<CurrentMember>,
    connecting: tokio::sync::Mutex<()>,
    /// Changes whenever a member is left: streams over it are to be opened again.
    moved: watch::Sender<u64>,
    clock: SystemClock,
}

#[derive(Default)]
struct CurrentMember {
    at: usize,
    /// Rises whenever a member is left.
    generation: u64,
    channel: Option<Channel>,
    token: Option<MetadataValue<Ascii>>,
}

/// The member that is asked now.
#[derive(Clone)]
struct MemberChannel {
    channel: Channel,
    token: Option<MetadataValue<Ascii>>,
    generation: u64,
    name: String,
}

impl EtcdMembers {
    pub fn new(options: &EtcdEngineOptions) -> Result<Self, Error> {
        let endpoints = options.members.iter().map(|(host, port)| {
            let name = show_member(host, *port);
            let scheme = if options.tls.is_some() { "https" } else { "http" };
            let endpoint = Endpoint::from_shared(format!("{scheme}://{name}"))
                .map_err(|_| Error::Invalid("a host of the url is no host".into()))?
                .connect_timeout(CONNECT_TIMEOUT)
                .tcp_keepalive(Some(TCP_KEEPALIVE))
                .tcp_nodelay(true);
            let endpoint = match &options.tls {
                Some(files) => tls::with_tls(endpoint, files)?,
                None => endpoint,
            };
            Ok((name, endpoint))
        });
        Ok(Self {
            endpoints: endpoints.collect::<Result<_, Error>>()?,
            login: options.login.clone(),
            current: Mutex::default(),
            connecting: tokio::sync::Mutex::new(()),
            moved: watch::Sender::new(0),
            clock: SystemClock,
        })
    }

    /// Tells when the member is left that is asked now.
    pub fn watch_moves(&self) -> watch::Receiver<u64> {
        self.moved.subscribe()
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.endpoints.iter().map(|(name, _)| name.as_str())
    }

    fn lock(&self) -> MutexGuard<'_, CurrentMember> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One call, on the member that is asked now, or on the next ones where that is harmless.
    pub async fn call<C: EtcdRpc>(&self, request: C, kind: CallKind) -> Result<C::Response, EtcdFailure> {
        let give_up = self.clock.now().plus(ELECTION_WAIT);
        let (mut logins, mut tries) = (0, 0);
        loop {
            let member = self.connected().await?;
            let failure = match self.call_member(&member, request.clone()).await {
                Ok(reply) => return Ok(reply),
                Err(StatusVerdict::Login) if logins < 2 && self.login.is_some() => {
                    logins += 1;
                    self.forget_token(&member);
                    continue;
                }
                Err(StatusVerdict::Login) => EtcdFailure::Never("etcd does not accept the login of the url".into()),
                Err(StatusVerdict::NoLeader) => {
                    self.leave(&member);
                    if self.clock.now() < give_up {
                        self.clock.sleep_until(self.clock.now().plus(ELECTION_PAUSE)).await;
                        continue;
                    }
                    return Err(EtcdFailure::NoEffect("etcd has no leader".into()));
                }
                Err(StatusVerdict::Is(failure)) => failure,
            };
            tries += 1;
            match failure {
                EtcdFailure::NoEffect(_) if tries < self.endpoints.len() => self.leave(&member),
                EtcdFailure::NoEffect(cause) => {
                    self.leave(&member);
                    return Err(EtcdFailure::NoEffect(cause));
                }
                EtcdFailure::Unknown(_) if kind == CallKind::Read && tries <= self.endpoints.len() => {
                    self.leave(&member);
                }
                EtcdFailure::Unknown(cause) => {
                    self.leave(&member);
                    return Err(EtcdFailure::Unknown(cause));
                }
                other => return Err(other),
            }
        }
    }

    /// One call to one member by its place in the URL, over a connection of its own. For `doctor`.
    pub async fn ask_member<C: EtcdRpc>(&self, name: &str, request: C) -> Result<C::Response, EtcdFailure> {
        let found = self.endpoints.iter().find(|(known, _)| known == name);
        let (name, endpoint) = found.ok_or_else(|| EtcdFailure::NoEffect("no such member".into()))?;
        let channel = self.connect_one(name, endpoint).await?;
        let token = self.lock().token.clone();
        let member = MemberChannel { channel, token, generation: 0, name: name.clone() };
        self.call_member(&member, request).await.map_err(|verdict| match verdict {
            StatusVerdict::Is(failure) => failure,
            StatusVerdict::Login | StatusVerdict::NoLeader => EtcdFailure::NoEffect("etcd has no leader".into()),
        })
    }

    async fn call_member<C: EtcdRpc>(&self, member: &MemberChannel, request: C) -> Result<C::Response, StatusVerdict> {
        let silent = || StatusVerdict::Is(EtcdFailure::Unknown(format!("{} did not answer in time", member.name)));
        let unary = async {
            let mut grpc = Grpc::new(member.channel.clone()).max_decoding_message_size(MAX_REPLY_BYTES);
            let lost = |_| StatusVerdict::Is(EtcdFailure::NoEffect(format!("{} cannot be reached", member.name)));
            grpc.ready().await.map_err(lost)?;
            let codec = ProstCodec::<C, C::Response>::default();
            let reply = grpc.unary(member.request(request), C::PATH.parse().expect(PATHS_ARE_PATHS), codec).await;
            reply.map(tonic::Response::into_inner).map_err(|status| read_status(&status, &member.name))
        };
        until(&self.clock, self.clock.now().plus(CALL_TIMEOUT), unary).await.ok_or_else(silent)?
    }

    /// Prolongs an etcd lease. `Ok(false)`: it is gone.
    pub async fn keep_alive(&self, lease: i64) -> Result<bool, EtcdFailure> {
        let member = self.connected().await?;
        let beat = async {
            let calls = stream::iter([LeaseKeepAliveCall { id: lease }]);
            let mut replies: Streaming<LeaseKeepAliveReply> =
                open_stream::<LeaseKeepAliveCall, _>(&member, calls).await?;
            let reply = replies.message().await.map_err(|status| failure_of(read_status(&status, &member.name)))?;
            let reply = reply.ok_or_else(|| EtcdFailure::Unknown("the reply to a keepalive is missing".into()))?;
            Ok(reply.ttl > 0)
        };
        let silent = || Err(EtcdFailure::Unknown(format!("{} did not answer in time", member.name)));
        let result = until(&self.clock, self.clock.now().plus(CALL_TIMEOUT), beat).await.unwrap_or_else(silent);
        if matches!(result, Err(EtcdFailure::Unknown(_) | EtcdFailure::NoEffect(_))) {
            self.leave(&member);
        }
        result
    }

    /// Watches a range of keys from a revision on.
    pub async fn open_watch(&self, create: WatchCreateCall) -> Result<Streaming<WatchReply>, EtcdFailure> {
        let member = self.connected().await?;
        // The stream of calls stays open: its end would end the watch.
        let calls = stream::iter([WatchCall { create: Some(create) }]).chain(stream::pending());
        let opened = open_stream::<WatchCall, _>(&member, calls);
        let silent = || Err(EtcdFailure::Unknown(format!("{} did not answer in time", member.name)));
        let result = until(&self.clock, self.clock.now().plus(CALL_TIMEOUT), opened).await.unwrap_or_else(silent);
        if matches!(result, Err(EtcdFailure::Unknown(_) | EtcdFailure::NoEffect(_))) {
            self.leave(&member);
        }
        result
    }

    async fn connected(&self) -> Result<MemberChannel, EtcdFailure> {
        if let Some(member) = self.current_channel() {
            return Ok(member);
        }
        // Where members are silent, each of those before it takes seconds: nobody waits for all of them.
        let turn = until(&self.clock, self.clock.now().plus(ELECTION_WAIT), self.connecting.lock()).await;
        let Some(_one_at_a_time) = turn else {
            return Err(EtcdFailure::NoEffect("no member of etcd can be reached in time".into()));
        };
        let mut failure = EtcdFailure::NoEffect("the url names no member".into());
        for _ in 0..self.endpoints.len() {
            if let Some(member) = self.current_channel() {
                return Ok(member);
            }
            let at = self.lock().at;
            let (name, endpoint) = &self.endpoints[at % self.endpoints.len()];
            match self.connect_one(name, endpoint).await {
                Ok(channel) => {
                    let token = self.log_in(name, &channel).await;
                    match token {
                        Ok(token) => {
                            let mut current = self.lock();
                            (current.channel, current.token) = (Some(channel), token);
                        }
                        Err(never @ EtcdFailure::Never(_)) => return Err(never),
                        Err(other) => failure = self.skip(at, other),
                    }
                }
                Err(other) => failure = self.skip(at, other),
            }
        }
        self.current_channel().ok_or(failure)
    }

    /// The member at this place could not be reached.
    fn skip(&self, at: usize, failure: EtcdFailure) -> EtcdFailure {
        self.lock().at = (at + 1) % self.endpoints.len();
        match failure {
            // The login changes nothing.
            EtcdFailure::Unknown(cause) => EtcdFailure::NoEffect(cause),
            other => other,
        }
    }

    fn current_channel(&self) -> Option<MemberChannel> {
        let current = self.lock();
        let channel = current.channel.clone()?;
        if self.login.is_some() && current.token.is_none() {
            return None;
        }
        let name = self.endpoints[current.at % self.endpoints.len()].0.clone();
        Some(MemberChannel { channel, token: current.token.clone(), generation: current.generation, name })
    }

    async fn connect_one(&self, name: &str, endpoint: &Endpoint) -> Result<Channel, EtcdFailure> {
        let connected = until(&self.clock, self.clock.now().plus(CONNECT_TIMEOUT), endpoint.connect()).await;
        match connected {
            Some(Ok(channel)) => Ok(channel),
            Some(Err(error)) => Err(EtcdFailure::NoEffect(format!("{name} cannot be reached{}", tls::explain(&error)))),
            None => Err(EtcdFailure::NoEffect(format!("{name} cannot be reached in time"))),
        }
    }

    async fn log_in(&self, name: &str, channel: &Channel) -> Result<Option<MetadataValue<Ascii>>, EtcdFailure> {
        let Some((user, password)) = &self.login else { return Ok(None) };
        let member = MemberChannel { channel: channel.clone(), token: None, generation: 0, name: name.into() };
        let request = AuthenticateCall { name: user.clone(), password: password.clone() };
        let reply = self.call_member(&member, request).await.map_err(failure_of)?;
        let token = reply.token.parse();
        token.map(Some).map_err(|_| EtcdFailure::Never("the token of etcd cannot be sent as a header".into()))
    }

    fn forget_token(&self, member: &MemberChannel) {
        let mut current = self.lock();
        if current.generation == member.generation {
            (current.token, current.channel) = (None, None);
        }
    }

    /// Asks the next member from now on, unless that was done already.
    fn leave(&self, member: &MemberChannel) {
        let mut current = self.lock();
        if current.generation != member.generation {
            return;
        }
        current.channel = None;
        current.at = (current.at + 1) % self.endpoints.len();
        current.generation += 1;
        let generation = current.generation;
        drop(current);
        self.moved.send_replace(generation);
    }
}

impl MemberChannel {
    fn request<T>(&self, message: T) -> tonic::Request<T> {
        let mut request = tonic::Request::new(message);
        // A member that is cut off from the others says so, and does not answer from memory or wait.
        request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
        if let Some(token) = &self.token {
            request.metadata_mut().insert("authorization", token.clone());
        }
        request
    }
}

async fn open_stream<C: EtcdRpc, S: Stream<Item = C> + Send + 'static>(
    member: &MemberChannel,
    calls: S,
) -> Result<Streaming<C::Response>, EtcdFailure> {
    let mut grpc = Grpc::new(member.channel.clone()).max_decoding_message_size(MAX_REPLY_BYTES);
    let lost = |_| EtcdFailure::NoEffect(format!("{} cannot be reached", member.name));
    grpc.ready().await.map_err(lost)?;
    let codec = ProstCodec::<C, C::Response>::default();
    let opened = grpc.streaming(member.request(calls), C::PATH.parse().expect(PATHS_ARE_PATHS), codec).await;
    opened.map(tonic::Response::into_inner).map_err(|status| failure_of(read_status(&status, &member.name)))
}

fn failure_of(verdict: StatusVerdict) -> EtcdFailure {
    match verdict {
        StatusVerdict::Is(failure) => failure,
        StatusVerdict::NoLeader => EtcdFailure::NoEffect("etcd has no leader".into()),
        StatusVerdict::Login => EtcdFailure::NoEffect("the login is old".into()),
    }
}
