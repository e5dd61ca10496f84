//! Bodies on their way through the gate. Both directions stream.
//!
//! # Laws
//!
//! 1. A body that did not come whole is never passed on as a whole one.
//! 2. A fenced request leaves when its answer has come whole, and not because its client lost interest.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Bytes, HttpBody};
use hyper::body::{Frame, Incoming, SizeHint};
use leasehold_support::sync::lock;
use tokio::time::{Instant, Sleep, sleep_until};

use super::fences::Flight;
use super::metrics::GateMetrics;
use super::upstream::{Upstream, UpstreamConnection};
use crate::http::PhaseTracker;

type BodyError = Box<dyn std::error::Error + Send + Sync>;
type BodyPoll = Poll<Option<Result<Frame<Bytes>, BodyError>>>;

/// A timer that costs nothing while bytes come.
struct IdleTimer {
    limit: Duration,
    timer: Option<Pin<Box<Sleep>>>,
}

impl IdleTimer {
    const fn new(limit: Duration) -> Self {
        Self { limit, timer: None }
    }

    fn bytes_came(&mut self) {
        self.timer = None;
    }

    fn is_over(&mut self, cx: &mut Context<'_>) -> bool {
        let limit = self.limit;
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(Instant::now() + limit)));
        timer.as_mut().poll(cx).is_ready()
    }
}

/// How much of a request was handed over to its connection.
pub struct SendProgress {
    whole: AtomicBool,
    last_part: Mutex<Instant>,
}

impl SendProgress {
    /// Nothing was handed over yet.
    pub fn new() -> Arc<Self> {
        Arc::new(Self { whole: AtomicBool::new(false), last_part: Mutex::new(Instant::now()) })
    }

    /// When the last part was handed over: the time limit for the answer counts from there, not from the beginning of a
    /// long body.
    pub fn last_part(&self) -> Instant {
        *lock(&self.last_part)
    }

    /// Whether all of it was.
    pub fn is_whole(&self) -> bool {
        self.whole.load(Ordering::SeqCst)
    }

    fn handed_over(&self, is_end: bool) {
        *lock(&self.last_part) = Instant::now();
        if is_end {
            self.whole.store(true, Ordering::SeqCst);
        }
    }
}

/// The body of a request, from the client to the upstream.
pub struct RequestBody {
    incoming: Incoming,
    phases: Arc<PhaseTracker>,
    progress: Arc<SendProgress>,
    idle: IdleTimer,
}

impl RequestBody {
    /// The body. It fails when nothing of it comes for as long as `idle_limit`.
    pub fn new(
        incoming: Incoming,
        phases: Arc<PhaseTracker>,
        progress: Arc<SendProgress>,
        idle_limit: Duration,
    ) -> Self {
        progress.handed_over(incoming.is_end_stream());
        Self { incoming, phases, progress, idle: IdleTimer::new(idle_limit) }
    }
}

impl HttpBody for RequestBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> BodyPoll {
        match Pin::new(&mut self.incoming).poll_frame(cx) {
            Poll::Ready(None) => {
                // hyper 1.12 reports that the connection was dropped; older versions ended the body as if it were whole.
                if self.phases.is_closed() {
                    return Poll::Ready(Some(Err("the client went away in the middle of the body".into())));
                }
                self.progress.handed_over(true);
                Poll::Ready(None)
            }
            Poll::Ready(Some(frame)) => {
                self.idle.bytes_came();
                self.progress.handed_over(frame.is_ok() && self.incoming.is_end_stream());
                Poll::Ready(Some(frame.map_err(Into::into)))
            }
            Poll::Pending if self.idle.is_over(cx) => {
                Poll::Ready(Some(Err("nothing of the body came for too long".into())))
            }
            Poll::Pending => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

/// A request that the upstream has begun to answer.
pub struct Answering {
    /// The upstream.
    pub upstream: Arc<Upstream>,
    /// The connection that the answer comes by.
    pub connection: UpstreamConnection,
    /// None for a request that is not fenced.
    pub flight: Option<Flight>,
    /// How much of the request was handed over.
    pub progress: Arc<SendProgress>,
    /// How long nothing of the answer may come.
    pub idle_limit: Duration,
    /// Counts what is not answered.
    pub metrics: Arc<GateMetrics>,
}

impl Answering {
    /// The answer has come whole.
    pub fn finish(self) {
        if self.progress.is_whole() && !self.connection.has_unsent_bytes() {
            let Self { upstream, connection, flight, .. } = self;
            // First: what is back in the pool must not be cut with this request.
            drop(flight);
            upstream.keep_idle(connection);
            return;
        }
        // The upstream answered before it had the whole request: the rest of it must not follow later.
        self.break_off();
    }

    /// The answer will not come whole. The request leaves when its connection is closed.
    pub fn break_off(self) {
        let Self { connection, flight, .. } = self;
        tokio::spawn(close_and_leave(connection, flight));
    }
}

/// Closes a connection; then its request leaves.
pub async fn close_and_leave(connection: UpstreamConnection, flight: Option<Flight>) {
    connection.close().await;
    if let Some(flight) = flight {
        flight.leave_closed().await;
    }
}

/// The body of an answer, from the upstream to the client.
pub struct AnswerBody {
    /// None when the answer has ended, well or not.
    open: Option<OpenAnswer>,
    idle: IdleTimer,
}

/// An answer that has not come whole.
struct OpenAnswer {
    incoming: Incoming,
    answering: Answering,
}

impl OpenAnswer {
    fn is_cut(&self) -> bool {
        self.answering.flight.as_ref().is_some_and(Flight::is_cut)
    }

    /// hyper ends a body in the same way when its connection was closed by us.
    fn ended_well(&self) -> bool {
        !self.is_cut() && self.incoming.size_hint().exact().is_none_or(|left| left == 0)
    }

    fn break_off(self) {
        self.answering.metrics.count_unanswered();
        self.answering.break_off();
    }

    /// Reads what is left, for nobody.
    async fn read_to_end(mut self) {
        loop {
            match std::future::poll_fn(|cx| Pin::new(&mut self.incoming).poll_frame(cx)).await {
                Some(Ok(_)) => {}
                None if self.ended_well() => return self.answering.finish(),
                None | Some(Err(_)) => return self.break_off(),
            }
        }
    }
}

impl AnswerBody {
    /// The body of this answer.
    pub fn new(incoming: Incoming, answering: Answering) -> Self {
        let idle = IdleTimer::new(answering.idle_limit);
        if incoming.is_end_stream() {
            answering.finish();
            return Self { open: None, idle };
        }
        Self { open: Some(OpenAnswer { incoming, answering }), idle }
    }

    fn finish(&mut self) {
        if let Some(open) = self.open.take() {
            open.answering.finish();
        }
    }

    fn break_off(&mut self) {
        if let Some(open) = self.open.take() {
            open.break_off();
        }
    }
}

impl HttpBody for AnswerBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> BodyPoll {
        let Self { open: Some(open), idle } = &mut *self else { return Poll::Ready(None) };
        match Pin::new(&mut open.incoming).poll_frame(cx) {
            Poll::Ready(None) if open.ended_well() => {
                self.finish();
                Poll::Ready(None)
            }
            Poll::Ready(None) => {
                self.break_off();
                Poll::Ready(Some(Err("the answer was cut off".into())))
            }
            Poll::Ready(Some(Ok(frame))) => {
                idle.bytes_came();
                if open.incoming.is_end_stream() {
                    self.finish();
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(error))) => {
                self.break_off();
                Poll::Ready(Some(Err(error.into())))
            }
            Poll::Pending if idle.is_over(cx) => {
                if let Some(flight) = &open.answering.flight {
                    flight.cut_if_allowed();
                }
                // hyper drops this body now, and what is left is read for nobody.
                Poll::Ready(Some(Err("nothing of the answer came for too long".into())))
            }
            Poll::Pending => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.open.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        self.open.as_ref().map_or_else(|| SizeHint::with_exact(0), |open| open.incoming.size_hint())
    }
}

impl Drop for AnswerBody {
    /// The client went away. A fenced request stays until the upstream has answered it: nobody but the upstream knows
    /// when its effect is complete.
    fn drop(&mut self) {
        match self.open.take() {
            Some(open) if open.answering.flight.is_some() => drop(tokio::spawn(open.read_to_end())),
            Some(open) => open.answering.break_off(),
            None => {}
        }
    }
}
