//! The state of a connection: its phase, and what blocks its next command.
//!
//! ```text
//!   Silent ──first byte──▶ Open ──client ends its side──▶ HalfClosed
//!      │                     │                                │
//!      └─────────────────────┴── QUIT, protocol error, ───────┘
//!                                end of a watch, shutdown,
//!                                end of the input
//!                                       │
//!                                       ▼
//!                                   Draining ──replies sent──▶ Dead
//! ```
//!
//! Any phase becomes `Dead` when the socket fails, a deadline passes, or a client leaves while its command waits.
//!
//! # Laws
//!
//! 1. A phase never goes back.
//! 2. A client that has ended its side does not wait: a command that could only wait for it is given up.

use leasehold_core::WaiterId;
use tokio::task::AbortHandle;

/// How far a connection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConnectionPhase {
    /// The client has not sent a byte.
    Silent,
    /// Bytes are read, and commands run.
    Open,
    /// The client sends no more. The commands it has sent still run.
    HalfClosed,
    /// No further command runs. The connection is closed when its replies are sent.
    Draining,
    /// The connection is closed at the end of the round.
    Dead,
}

/// What blocks the next command of a connection.
#[derive(Debug)]
pub enum BlockedBy {
    Nothing,
    /// Too many replies or bytes wait for the client or for the disk.
    FullBacklog,
    /// The last command waits in the queue of its resource.
    WaitQueue(WaiterId),
    /// The last command runs in a task.
    Task {
        task: AbortHandle,
        /// The command has no effect before its reply: see `OwnedCall::ABORTABLE`.
        abortable: bool,
    },
}

/// See the module.
#[derive(Debug)]
pub struct ConnectionState {
    phase: ConnectionPhase,
    blocked_by: BlockedBy,
}

impl ConnectionState {
    /// The state of a connection that was just accepted.
    pub const fn accepted() -> Self {
        Self { phase: ConnectionPhase::Silent, blocked_by: BlockedBy::Nothing }
    }

    pub const fn phase(&self) -> ConnectionPhase {
        self.phase
    }

    pub const fn blocked_by(&self) -> &BlockedBy {
        &self.blocked_by
    }

    pub fn is_dead(&self) -> bool {
        self.phase == ConnectionPhase::Dead
    }

    pub fn is_draining(&self) -> bool {
        self.phase == ConnectionPhase::Draining
    }

    /// Whether bytes of the client are read.
    pub fn reads_input(&self) -> bool {
        self.phase <= ConnectionPhase::Open
    }

    /// Whether the next command may run, if the backlog has room.
    pub fn runs_commands(&self) -> bool {
        self.phase <= ConnectionPhase::HalfClosed && !self.awaits_reply()
    }

    /// Whether the last command has no reply yet, and blocks the next one.
    pub const fn awaits_reply(&self) -> bool {
        matches!(self.blocked_by, BlockedBy::WaitQueue(_) | BlockedBy::Task { .. })
    }

    /// Whether the last command is given up when its client leaves: it only waits.
    pub const fn is_abortable(&self) -> bool {
        matches!(self.blocked_by, BlockedBy::WaitQueue(_) | BlockedBy::Task { abortable: true, .. })
    }

    pub const fn is_in_wait_queue(&self) -> bool {
        matches!(self.blocked_by, BlockedBy::WaitQueue(_))
    }

    pub const fn is_paused(&self) -> bool {
        matches!(self.blocked_by, BlockedBy::FullBacklog)
    }

    /// Bytes have arrived. Returns whether they are the first.
    pub fn bytes_arrived(&mut self) -> bool {
        let first = self.phase == ConnectionPhase::Silent;
        self.advance(ConnectionPhase::Open);
        first
    }

    /// The client has ended its side of the connection, or is gone.
    pub fn peer_closed(&mut self) {
        self.advance(ConnectionPhase::HalfClosed);
        if self.is_abortable() {
            self.kill();
        }
    }

    /// No complete command is left in the input. After the client's end there will be none.
    pub fn input_exhausted(&mut self) {
        if self.phase == ConnectionPhase::HalfClosed {
            self.start_draining();
        }
    }

    /// The connection is to be closed when its replies are sent.
    pub fn start_draining(&mut self) {
        self.advance(ConnectionPhase::Draining);
    }

    /// The connection is to be closed now.
    pub fn kill(&mut self) {
        self.advance(ConnectionPhase::Dead);
    }

    /// The last command waits in the queue of its resource.
    pub fn enter_wait_queue(&mut self, waiter_id: WaiterId) {
        self.block(BlockedBy::WaitQueue(waiter_id));
    }

    /// The last command runs in a task.
    pub fn start_task(&mut self, task: AbortHandle, abortable: bool) {
        self.block(BlockedBy::Task { task, abortable });
    }

    fn block(&mut self, by: BlockedBy) {
        self.blocked_by = by;
        if self.phase == ConnectionPhase::HalfClosed && self.is_abortable() {
            self.kill();
        }
    }

    /// The last command has its reply.
    pub fn unblock(&mut self) -> BlockedBy {
        std::mem::replace(&mut self.blocked_by, BlockedBy::Nothing)
    }

    /// The backlog is full: the next command waits.
    pub fn pause(&mut self) {
        debug_assert!(!self.awaits_reply());
        self.blocked_by = BlockedBy::FullBacklog;
    }

    /// The backlog has room again. Returns whether the connection was paused.
    pub fn resume(&mut self) -> bool {
        let paused = self.is_paused();
        if paused {
            self.blocked_by = BlockedBy::Nothing;
        }
        paused
    }

    /// Goes on to a later phase; stays if that phase is behind.
    fn advance(&mut self, phase: ConnectionPhase) {
        self.phase = self.phase.max(phase);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ConnectionPhase::{Dead, Draining, HalfClosed, Open, Silent};

    fn at(phase: ConnectionPhase) -> ConnectionState {
        ConnectionState { phase, blocked_by: BlockedBy::Nothing }
    }

    fn task() -> AbortHandle {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.spawn(std::future::pending::<()>()).abort_handle()
    }

    /// Goal: every transition from every phase, as the diagram has it.
    #[test]
    fn transitions_follow_the_diagram() {
        type Transition = (&'static str, fn(&mut ConnectionState), [ConnectionPhase; 5]);
        let table: [Transition; 5] = [
            ("bytes_arrived", |state| _ = state.bytes_arrived(), [Open, Open, HalfClosed, Draining, Dead]),
            ("peer_closed", ConnectionState::peer_closed, [HalfClosed, HalfClosed, HalfClosed, Draining, Dead]),
            ("input_exhausted", ConnectionState::input_exhausted, [Silent, Open, Draining, Draining, Dead]),
            ("start_draining", ConnectionState::start_draining, [Draining, Draining, Draining, Draining, Dead]),
            ("kill", ConnectionState::kill, [Dead; 5]),
        ];
        for (name, transition, expected) in table {
            for (before, after) in [Silent, Open, HalfClosed, Draining, Dead].into_iter().zip(expected) {
                let mut state = at(before);
                transition(&mut state);
                assert_eq!(state.phase(), after, "{name} from {before:?}");
            }
        }
    }

    /// Goal: only the first bytes are the first.
    #[test]
    fn first_bytes_are_told_apart() {
        let mut state = ConnectionState::accepted();
        assert!(state.bytes_arrived());
        assert!(!state.bytes_arrived());
    }

    /// Goal: which phases read, and which run commands.
    #[test]
    fn what_each_phase_does() {
        let phases = [Silent, Open, HalfClosed, Draining, Dead];
        assert_eq!(phases.map(|phase| at(phase).reads_input()), [true, true, false, false, false]);
        assert_eq!(phases.map(|phase| at(phase).runs_commands()), [true, true, true, false, false]);
    }

    /// Goal: a client that leaves while its command only waits is closed, in whichever order that happens; a task that
    /// has an effect is finished.
    #[test]
    fn a_wait_ends_with_its_client() {
        type Block = fn(&mut ConnectionState);
        let table: [(Block, ConnectionPhase); 3] = [
            (|state| state.enter_wait_queue(WaiterId(1)), Dead),
            (|state| state.start_task(task(), true), Dead),
            (|state| state.start_task(task(), false), HalfClosed),
        ];
        for (block, expected) in table {
            let mut left_later = at(Open);
            block(&mut left_later);
            assert!(!left_later.runs_commands());
            left_later.peer_closed();
            assert_eq!(left_later.phase(), expected);

            let mut left_before = at(HalfClosed);
            block(&mut left_before);
            assert_eq!(left_before.phase(), expected);
        }
    }

    /// Goal: a connection that drains still ends a wait when its client leaves.
    #[test]
    fn a_wait_ends_with_its_client_while_draining() {
        let mut state = at(Open);
        state.enter_wait_queue(WaiterId(1));
        state.start_draining();
        assert_eq!(state.phase(), Draining);
        state.peer_closed();
        assert!(state.is_dead());
    }

    /// Goal: a full backlog pauses commands until there is room, and is no wait for a reply.
    #[test]
    fn a_full_backlog_pauses() {
        let mut state = at(Open);
        state.pause();
        assert!(state.is_paused() && state.runs_commands() && !state.awaits_reply());
        state.peer_closed();
        assert_eq!(state.phase(), HalfClosed);
        assert!(state.resume() && !state.resume());
    }

    /// Goal: the reply unblocks, and gives back what blocked.
    #[test]
    fn a_reply_unblocks() {
        let mut state = at(Open);
        state.enter_wait_queue(WaiterId(7));
        assert!(matches!(state.unblock(), BlockedBy::WaitQueue(WaiterId(7))));
        assert!(state.runs_commands() && matches!(state.unblock(), BlockedBy::Nothing));
    }
}
