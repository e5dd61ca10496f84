//! Commands: one file for each group, with its parsing, access rule, execution and replies.
//!
//! ```text
//!   CommandArgs ──▶ table::dispatch ──▶ Dispatcher
//!                                        ├─ connection: the connection answers by itself
//!                                        ├─ inline:     the embedded engine decides, on the event loop's thread
//!                                        └─ spawned:    a tokio task asks the service
//! ```
//!
//! A new command is one type in the file of its group and one line in [`table`].
//!
//! # Laws
//!
//! 1. Every call passes the access check of the service once: [`Dispatcher::inline`] asks for it, and so does every
//!    method of the service that [`OwnedCall::execute`] uses.
//! 2. The inline path boxes nothing, and parsing `SET` allocates nothing.
//!
//! # Not here
//!
//! Which of the two paths a call takes, and when replies leave (`event_loop`).

pub mod args;
pub mod connection;
pub mod inline;
pub mod keys;
pub mod lease;
pub mod script;
pub mod spawned;
pub mod table;

use std::borrow::Cow;

use crate::service::{Caller, Denial, Service, Verb};
use connection::ConnectionCommand;
use inline::{InlineContext, InlineOutcome};

use super::codec::reply::ReplyWriter;
use super::watch::WatchCommand;

/// Why a command cannot run as it is written.
#[derive(Debug, PartialEq, Eq)]
pub struct CommandError {
    /// The first word of the error reply.
    pub word: &'static str,
    /// What is wrong, in one sentence.
    pub sentence: Cow<'static, str>,
}

impl CommandError {
    /// The reply when the arguments do not fit the command.
    pub fn usage(usage: &str) -> Self {
        format!("the command is written {usage}").into()
    }
}

impl From<String> for CommandError {
    fn from(sentence: String) -> Self {
        Self { word: "INVALID", sentence: sentence.into() }
    }
}

impl From<&'static str> for CommandError {
    fn from(sentence: &'static str) -> Self {
        Self { word: "INVALID", sentence: sentence.into() }
    }
}

/// Runs a command that was parsed. One method for each way to run one.
pub trait Dispatcher {
    /// A command that the connection answers by itself.
    fn connection(self, command: ConnectionCommand<'_>);
    /// A call that an embedded engine decides on this thread. Any other engine is asked by a task.
    fn inline<'a>(self, call: impl InlineCall<'a>);
    /// A call that a task always executes.
    fn spawned<'a>(self, call: impl ServiceCall<'a>);
    /// The one command whose task outlives its reply.
    fn watch(self, call: WatchCommand<'_>);
}

/// A call of the service, with arguments that lie in the input buffer of the connection.
pub trait ServiceCall<'a> {
    /// The same call for a tokio task.
    type Owned: OwnedCall;

    /// What the caller must be allowed to do.
    fn verb(&self) -> Verb;

    /// The resources that the call names. A caller may be limited to some names.
    fn names(&self) -> impl Iterator<Item = &'a str>;

    /// Copies the arguments out of the input buffer. `holder` is the label of a lease whose command gives none.
    fn into_owned(self, holder: &str) -> Self::Owned;
}

/// A call that the embedded engine can decide without waiting.
pub trait InlineCall<'a>: ServiceCall<'a> {
    /// Gives the call to the engine. The access check has passed.
    fn decide(&self, context: &mut InlineContext<'_, '_>) -> InlineOutcome;
}

/// A call that a tokio task executes.
pub trait OwnedCall: Send + 'static {
    /// Whether the call has no effect before its reply, so that its task may be aborted when the client leaves. Any
    /// other task runs to its end: an effect without its line in the audit log would be worse.
    const ABORTABLE: bool = false;

    /// Asks the service and writes the reply.
    fn execute(
        self,
        service: &Service,
        caller: &Caller,
        reply: &mut ReplyWriter<'_>,
    ) -> impl Future<Output = Result<(), Denial>> + Send;
}
