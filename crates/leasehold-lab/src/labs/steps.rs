//! Steps that several labs share. Each gives an order, and records what came of it.

use std::time::Duration;

use anyhow::bail;

use crate::order::{AcquireOrder, ActorOrder, ActorOutcome, ActorReply};
use crate::seat::{SEAT, SeatStore};
use crate::stage::{ActorProcess, LabLine, Stage};
use crate::timeline::WriteFate;

/// A lease that was granted.
#[derive(Clone, Debug)]
pub struct TakenLease {
    pub token: u64,
    /// `token:mark`, as a fence wants it.
    pub shown: String,
    /// Before it was asked for: no earlier than this was it granted.
    pub asked_ns: u64,
    pub at_ns: u64,
}

/// A lock that an actor takes by one command.
pub struct RedisLock<'a> {
    pub port: u16,
    pub value: &'a str,
    /// Without it the lock has no expiry.
    pub ttl_ms: Option<u64>,
}

/// Whether an actor may write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriterStanding {
    /// It holds the seat.
    Holder,
    /// It held the seat.
    TooLate,
    /// Another holds it too.
    SecondHolder,
}

/// What an actor that holds the seat believes.
pub const HOLDS_SEAT: &str = "holds seat/14";

/// What `SET NX` answers when another has the key.
const NOT_SET: &str = "(nil)";

/// The ttl of leases that are not meant to lapse.
const LEASE_TTL: Duration = Duration::from_secs(10);

/// The name of the lock in Redis.
pub const LOCK_KEY: &str = "lock:seat/14";

/// Takes a lease with a token on the seat; it is an error if there is none.
pub async fn take_lease(
    stage: &mut Stage,
    actor: &mut ActorProcess,
    url: &str,
    ttl: Duration,
    wait: Duration,
) -> anyhow::Result<TakenLease> {
    let asked_ns = stage.clock().now().as_nanos();
    let reply = actor.ask(acquire_order(url, ttl, wait)).await?;
    let ActorOutcome::Granted { token: Some(token), mark } = reply.outcome else {
        bail!("{} did not get the lease: {}", actor.name(), outcome_text(&reply.outcome));
    };
    let does = format!("takes {SEAT} for {} s", ttl.as_secs_f64());
    let line = LabLine::new(actor.name(), does).believes(HOLDS_SEAT).good(format!("granted, token {token}"));
    stage.record.add(line.at(reply.at_ns))?;
    stage.record.begin_belief(actor.name(), reply.at_ns);
    Ok(TakenLease { token, shown: format!("{token}:{mark}"), asked_ns, at_ns: reply.at_ns })
}

/// Tries to take the lease at once. True if the engine said that another holds it.
pub async fn is_refused(stage: &mut Stage, actor: &mut ActorProcess, url: &str) -> anyhow::Result<bool> {
    let reply = actor.ask(acquire_order(url, Duration::from_secs(5), Duration::ZERO)).await?;
    let (line, refused) = match &reply.outcome {
        ActorOutcome::Refused { .. } => {
            (LabLine::new(actor.name(), format!("asks for {SEAT}")).good("refused: ada holds it"), true)
        }
        other => (LabLine::new(actor.name(), format!("asks for {SEAT}")).bad(outcome_text(other)), false),
    };
    stage.record.add(line.at(reply.at_ns))?;
    if matches!(reply.outcome, ActorOutcome::Granted { .. }) {
        stage.record.begin_belief(actor.name(), reply.at_ns);
    }
    Ok(refused)
}

/// The order for a fenced lease on the seat.
pub fn acquire_order(url: &str, ttl: Duration, wait: Duration) -> ActorOrder {
    let millis = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
    ActorOrder::Acquire(AcquireOrder {
        url: url.to_owned(),
        name: SEAT.to_owned(),
        ttl_ms: millis(ttl),
        wait_ms: millis(wait),
        fenced: true,
    })
}

/// The embedded engine under `kill -9`: ada still holds her lease afterwards, and the next token is higher.
pub async fn restart_embedded(stage: &mut Stage) -> anyhow::Result<()> {
    let store = stage.seat_store("embedded").await?;
    store.create_seats(true).await?;
    let mut server = stage.start_server().await?;
    let (mut ada, mut bob) = (stage.start_actor("ada")?, stage.start_actor("bob")?);
    let url = server.url();
    let hers = take_lease(stage, &mut ada, &url, LEASE_TTL, Duration::ZERO).await?;
    server.kill_and_restart(stage).await?;
    stage.record.add(LabLine::new("lab", "kills the server (kill -9), and starts it again"))?;
    let refused = is_refused(stage, &mut bob, &url).await?;
    stage.record.expect(refused, "after the restart ada still holds the lease");
    write_seat(stage, &mut ada, &store, Some(&hers.shown)).await?;
    release_lease(stage, &mut ada).await?;
    let his = take_lease(stage, &mut bob, &url, LEASE_TTL, Duration::ZERO).await?;
    stage.record.expect(his.token > hers.token, "bob's token is higher than ada's");
    let wrote = write_seat(stage, &mut bob, &store, Some(&his.shown)).await?;
    stage.record.expect(wrote, "the newest holder is admitted");
    let late = ada.ask(write_order(&ada, &store, Some(&hers.shown))).await?;
    let late_write = record_write(stage, &ada, &late, WriterStanding::TooLate)?;
    stage.record.expect(!late_write, "the holder before is refused");
    Ok(())
}

/// Reads the seat, and believes what it read.
pub async fn read_seat(stage: &mut Stage, actor: &mut ActorProcess, store: &SeatStore) -> anyhow::Result<()> {
    let reply = actor.ask(ActorOrder::ReadSeat { store: store.clone() }).await?;
    let ActorOutcome::Seat { owner } = &reply.outcome else {
        bail!("{} could not read the seat: {}", actor.name(), outcome_text(&reply.outcome));
    };
    let line = LabLine::new(actor.name(), format!("reads the seat: {owner}")).believes(HOLDS_SEAT);
    stage.record.add(line.at(reply.at_ns))
}

/// The order by which an actor sells the seat to itself.
pub fn write_order(actor: &ActorProcess, store: &SeatStore, shown: Option<&str>) -> ActorOrder {
    ActorOrder::WriteSeat { store: store.clone(), owner: actor.name().to_owned(), shown: shown.map(str::to_owned) }
}

/// Records what became of a write. True if it was admitted.
pub fn record_write(
    stage: &mut Stage,
    actor: &ActorProcess,
    reply: &ActorReply,
    standing: WriterStanding,
) -> anyhow::Result<bool> {
    let line = LabLine::new(actor.name(), format!("writes: owner = {}", actor.name())).believes(HOLDS_SEAT);
    let (line, fate) = match &reply.outcome {
        ActorOutcome::Admitted => match standing {
            WriterStanding::Holder => (line.good("admitted"), WriteFate::Admitted),
            WriterStanding::TooLate => (line.bad("ADMITTED, though it is too late"), WriteFate::WronglyAdmitted),
            WriterStanding::SecondHolder => (line.bad("ADMITTED, over the other"), WriteFate::WronglyAdmitted),
        },
        ActorOutcome::Fenced { code, why } => (line.good(format!("fenced, {code}: {why}")), WriteFate::Fenced),
        other => bail!("{} could not write: {}", actor.name(), outcome_text(other)),
    };
    stage.record.mark_write(actor.name(), reply.at_ns, fate);
    stage.record.add(line.at(reply.at_ns))?;
    Ok(fate != WriteFate::Fenced)
}

/// Writes at once, and records it.
pub async fn write_seat(
    stage: &mut Stage,
    actor: &mut ActorProcess,
    store: &SeatStore,
    shown: Option<&str>,
) -> anyhow::Result<bool> {
    let reply = actor.ask(write_order(actor, store, shown)).await?;
    record_write(stage, actor, &reply, WriterStanding::Holder)
}

/// The actor asks its guard, and learns that the lease is lost. True if it does.
pub async fn learn_of_loss(stage: &mut Stage, actor: &mut ActorProcess) -> anyhow::Result<bool> {
    let reply = actor.ask(ActorOrder::Check).await?;
    let lost = reply.outcome == ActorOutcome::Lost;
    let line = LabLine::new(actor.name(), "asks its guard about the lease");
    let line = if lost { line.believes("nothing").verdict("lost: it learns it now") } else { line.bad("still held") };
    stage.record.add(line.at(reply.at_ns))?;
    if lost {
        stage.record.end_belief(actor.name(), Some(reply.at_ns));
    }
    Ok(lost)
}

/// Releases a lease.
pub async fn release_lease(stage: &mut Stage, actor: &mut ActorProcess) -> anyhow::Result<()> {
    let reply = actor.ask(ActorOrder::Release).await?;
    if reply.outcome != (ActorOutcome::Released { ended: true }) {
        bail!("{} could not release: {}", actor.name(), outcome_text(&reply.outcome));
    }
    stage.record.end_belief(actor.name(), Some(reply.at_ns));
    stage.record.add(LabLine::new(actor.name(), format!("releases {SEAT}")).at(reply.at_ns))
}

/// Reads in the end who owns the seat.
pub async fn judge_owner(stage: &mut Stage, store: &SeatStore, rightful: &str, lost: &str) -> anyhow::Result<String> {
    let owner = store.read_owner().await?;
    let line = LabLine::new("lab", format!("reads the seat: {owner}"));
    let line = if owner == rightful { line.good("as it should be") } else { line.bad(lost) };
    stage.record.add(line)?;
    Ok(owner)
}

/// Stops the process of an actor before its next step.
pub fn freeze_actor(stage: &mut Stage, actor: &ActorProcess, next: &str) -> anyhow::Result<()> {
    actor.freeze()?;
    stage.record.begin_pause(actor.name(), "stopped");
    let line = LabLine::new(actor.name(), format!("is stopped before it {next} (SIGSTOP)")).believes(HOLDS_SEAT);
    stage.record.add(line)
}

/// Lets it go on.
pub fn thaw_actor(stage: &mut Stage, actor: &ActorProcess) -> anyhow::Result<()> {
    actor.thaw()?;
    stage.record.end_pause(actor.name());
    stage.record.add(LabLine::new(actor.name(), "goes on (SIGCONT)").believes(HOLDS_SEAT))
}

/// Sends one command to a Redis: what it answered, and when.
pub async fn ask_redis(actor: &mut ActorProcess, port: u16, words: &[&str]) -> anyhow::Result<(String, u64)> {
    let words = words.iter().map(|word| (*word).to_owned()).collect();
    let reply = actor.ask(ActorOrder::Redis { port, words }).await?;
    let text = match reply.outcome {
        ActorOutcome::Value { text } => text,
        other => outcome_text(&other),
    };
    Ok((text, reply.at_ns))
}

/// Takes a lock by `SET NX`. True if Redis gave it. `beside` is another actor that believes to hold it already.
pub async fn set_lock(
    stage: &mut Stage,
    actor: &mut ActorProcess,
    lock: &RedisLock<'_>,
    beside: Option<&str>,
) -> anyhow::Result<bool> {
    let ttl = lock.ttl_ms.map(|ms| ms.to_string());
    let mut words = vec!["SET", LOCK_KEY, lock.value, "NX"];
    if let Some(ttl) = &ttl {
        words.extend(["PX", ttl.as_str()]);
    }
    let (text, at_ns) = ask_redis(actor, lock.port, &words).await?;
    let granted = text == "OK";
    let line = LabLine::new(actor.name(), words.join(" ")).at(at_ns);
    let line = match (granted, beside) {
        (true, None) => line.believes(HOLDS_SEAT).good("OK"),
        (true, Some(other)) => line.believes(HOLDS_SEAT).bad(format!("OK, and {other} believes to hold it too")),
        (false, _) if text == NOT_SET => line.verdict("(nil): refused"),
        // Nobody said no: nobody could be asked.
        (false, _) => line.verdict(format!("could not ask: {text}")),
    };
    stage.record.add(line)?;
    if granted {
        stage.record.begin_belief(actor.name(), at_ns);
    }
    Ok(granted)
}

/// An outcome that was not foreseen, in words.
pub fn outcome_text(outcome: &ActorOutcome) -> String {
    match outcome {
        ActorOutcome::Granted { .. } => "granted".into(),
        ActorOutcome::Refused { why } | ActorOutcome::Fenced { why, .. } | ActorOutcome::Failed { why } => why.clone(),
        ActorOutcome::Value { text } => text.clone(),
        other => format!("{other:?}"),
    }
}
