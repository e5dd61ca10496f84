//! `LEASE …`: [`acquire`] (ACQUIRE), [`own`] (RENEW, RELABEL, RELEASE), [`inspect`] (GET, LIST), [`operate`] (REVOKE, PROMISES,
//! FLOOR, ENGINE). WATCH is in `resp::watch`.

pub mod acquire;
pub mod inspect;
pub mod operate;
pub mod own;

use leasehold::clock::Time;
use leasehold_core::Reply as EngineReply;

use super::CommandError;
use super::args::printable_start;
use super::inline::ReplyContext;
use super::table::subcommands;
use crate::resp::codec::frame::CommandArgs;
use crate::resp::codec::reply::LeaseLife;
use crate::resp::watch::WatchCommand;

subcommands! {
    /// Parses and runs a `LEASE` command.
    pub fn dispatch(dispatcher, args) {
        b"ACQUIRE" => dispatcher.inline(acquire::AcquireCommand::parse(args)?);
        b"RENEW" => dispatcher.inline(own::RenewCommand::parse(args)?);
        b"RELABEL" => dispatcher.spawned(own::RelabelCommand::parse(args)?);
        b"RELEASE" => dispatcher.inline(own::ReleaseCommand::parse(args)?);
        b"GET" => dispatcher.spawned(inspect::InspectCommand::parse(args)?);
        b"LIST" => dispatcher.spawned(inspect::ListCommand::parse(args)?);
        b"REVOKE" => dispatcher.spawned(operate::RevokeCommand::parse(args)?);
        b"WATCH" => dispatcher.watch(WatchCommand::parse(args)?);
        b"PROMISES" => dispatcher.spawned(operate::PromisesCommand::parse(args)?);
        b"FLOOR" => dispatcher.spawned(operate::FloorCommand::parse(args)?);
        b"ENGINE" => dispatcher.spawned(operate::EngineCommand::parse(args)?);
    }
    else unknown_lease_command
}

fn unknown_lease_command(subcommand: &[u8]) -> CommandError {
    let known: Vec<_> = SUBCOMMANDS.iter().map(|name| String::from_utf8_lossy(name)).collect();
    format!("LEASE {} is not known: {}", printable_start(subcommand), known.join(", ")).into()
}

/// Which argument names the resource that a `LEASE` command looks up first on the inline path. Only ACQUIRE looks one
/// up by name. `args` begin with `LEASE`.
pub fn first_name_index(args: CommandArgs<'_>) -> Option<usize> {
    let subcommand = args.get(1)?;
    if !subcommand.eq_ignore_ascii_case(b"ACQUIRE") {
        return None;
    }
    acquire::first_name_index(args.from(2)).map(|index| index + 2)
}

/// What the engine's reply to an inline `LEASE` command becomes.
#[derive(Debug)]
pub enum LeaseReply {
    /// The lease.
    Acquire {
        /// When the command ran.
        began: Time,
        /// The command has a request id: its client can ask for the same lease again.
        has_request_id: bool,
        /// The command said `FULL`.
        full: bool,
    },
    /// How long the lease lives now.
    Renew { full: bool },
    /// 1 if this command ended the lease, 0 if it had ended before.
    Release,
}

impl LeaseReply {
    /// Writes the reply, or gives a reply back that is a refusal.
    pub fn write(self, reply: EngineReply, context: &mut ReplyContext<'_>) -> Result<(), EngineReply> {
        match (self, reply) {
            (Self::Acquire { began, full, .. }, EngineReply::Granted(granted)) => {
                context.service.metrics.record_grant(context.now.since(began));
                let life = LeaseLife::new(granted.remaining, granted.renewable, full);
                context.writer().granted(&granted.lease.expose(), Some(granted.lease.token), life);
            }
            (Self::Renew { full }, EngineReply::Renewed(renewed)) => {
                context.writer().renewed(LeaseLife::new(renewed.remaining, renewed.renewable, full));
            }
            (Self::Release, EngineReply::Released(ended_now)) => context.writer().integer(ended_now.into()),
            (_, other) => return Err(other),
        }
        Ok(())
    }
}

/// A lease id. Bytes that are not text become an id that nobody has.
fn parse_lease_id(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap_or_default()
}
