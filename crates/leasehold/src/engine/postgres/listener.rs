//! The listening connection: messages about waiting claims, and about events.
//!
//! A message is one line: `G handle token remaining renewable` for a grant, `L handle microseconds` for a claim that is
//! now the head of its queue. Nothing depends on them alone: whatever they say late or not at all, the next check finds.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::mpsc::unbounded_channel;
use tokio::sync::oneshot;

use super::connection::ConnectionRoute;
use super::ids::Bits;
use super::shared::PostgresShared;
use super::sql_error::SqlFailure;
use super::wait_registry::WaitAnswer;
use crate::clock::Clock as _;

/// A connection that hears nothing for ever looks like one on which nothing happens: it is asked.
const PROBE_EVERY: Duration = Duration::from_secs(5);

/// Listens until the engine stops. `ready` hears whether the first try succeeded.
pub(super) async fn run_listener(
    shared: Arc<PostgresShared>,
    mut ready: Option<oneshot::Sender<Result<(), SqlFailure>>>,
) {
    let mut round = 0;
    while !shared.stopped.is_cancelled() {
        let ended = listen_once(&shared, &mut ready, &mut round).await;
        shared.service.listening.store(false, Ordering::SeqCst);
        shared.waiting.pulse_changed.notify_one();
        if let (Some(ready), Err(failure)) = (ready.take(), ended) {
            // Whoever wants to wait tries again.
            let _ = ready.send(Err(failure));
            return;
        }
        tokio::select! {
            () = shared.stopped.cancelled() => return,
            () = shared.backoff(round) => round += 1,
        }
    }
}

/// From LISTEN until the connection ends.
async fn listen_once(
    shared: &Arc<PostgresShared>,
    ready: &mut Option<oneshot::Sender<Result<(), SqlFailure>>>,
    round: &mut u32,
) -> Result<(), SqlFailure> {
    let (to, mut messages) = unbounded_channel();
    let connection = shared.connector.open(ConnectionRoute::Messages, Some(to)).await?;
    connection.execute(&format!("LISTEN \"{}\"", shared.channel)).await?;
    shared.service.listening.store(true, Ordering::SeqCst);
    *round = 0;
    match ready.take() {
        Some(ready) => drop(ready.send(Ok(()))),
        // Messages may have been lost meanwhile.
        None => {
            let _ = shared.send_heartbeat().await;
            shared.waiting.make_all_due(shared.clock().now());
        }
    }
    loop {
        let probe = shared.real_clock.sleep_until(shared.real_clock.now().plus(PROBE_EVERY));
        tokio::select! {
            biased;
            () = shared.stopped.cancelled() => return Ok(()),
            message = messages.recv() => match message {
                Some(message) => read_message(shared, message.payload()),
                None => return Ok(()),
            },
            () = probe => {
                if !shared.waiting.is_empty() {
                    connection.execute("SELECT 1").await?;
                }
            }
        }
    }
}

fn read_message(shared: &PostgresShared, text: &str) {
    let mut words = text.split(' ');
    let (Some(kind), Some(handle)) = (words.next(), words.next().and_then(Bits::from_uuid_text)) else { return };
    let mut number = || words.next().and_then(|word| word.parse::<i64>().ok());
    let now = shared.clock().now();
    match kind {
        "G" if shared.options().verify_grants => shared.waiting.message_due(handle, Some(now)),
        "G" => {
            let (Some(token), Some(remaining)) = (number(), number()) else { return };
            let answer = WaitAnswer::Granted { token, remaining, renewable: number() };
            shared.waiting.message_granted(handle, answer);
        }
        "L" => {
            let micros = number().and_then(|micros| u64::try_from(micros).ok());
            shared.waiting.message_due(handle, micros.map(|micros| now.plus(Duration::from_micros(micros))));
        }
        _ => {}
    }
}
