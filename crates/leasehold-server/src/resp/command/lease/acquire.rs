//! `LEASE ACQUIRE`.

use std::time::Duration;

use leasehold::engine::{Claim, Mode, Want};
use leasehold_core::{Acquire as EngineClaim, RequestId, Want as EngineWant};

use super::LeaseReply;
use crate::resp::codec::frame::CommandArgs;
use crate::resp::codec::reply::{LeaseLife, ReplyWriter};
use crate::resp::command::args::{parse_names, parse_number, parse_small_number, parse_text};
use crate::resp::command::inline::{InlineContext, InlineOutcome};
use crate::resp::command::spawned::exclusive_claim;
use crate::resp::command::{CommandError, InlineCall, OwnedCall, ServiceCall};
use crate::service::metrics::AcquireOutcome;
use crate::service::{Caller, Denial, Service, Verb};

const USAGE: &str = "LEASE ACQUIRE ttl_ms [WAIT ms] [SHARED | PERMITS n CAPACITY m] [MAXHOLD ms] [DELAY ms] [HOLDER text] \
    [REQUEST id] [FULL] RESOURCES name [name …]";

/// `LEASE ACQUIRE`: acquires resources, all or none.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct AcquireCommand<'a> {
    wants: Vec<(&'a str, Mode)>,
    ttl_ms: u64,
    wait_ms: u64,
    max_hold_ms: Option<u64>,
    delay_ms: u64,
    /// None: the holder is the connection.
    holder: Option<&'a str>,
    request: Option<&'a str>,
    /// The reply says how far the lease can be renewed.
    full: bool,
}

impl<'a> AcquireCommand<'a> {
    pub fn parse(args: CommandArgs<'a>) -> Result<Self, CommandError> {
        let ttl_ms = parse_number(args.get(0).ok_or_else(|| CommandError::usage(USAGE))?, "ttl")?;
        let mut parsed = Self { ttl_ms, ..Self::default() };
        let (mut shared, mut permits, mut capacity) = (false, None, None);
        let mut at = 1;
        loop {
            let option = args.get(at).ok_or_else(|| CommandError::usage(USAGE))?.to_ascii_uppercase();
            let value = || args.get(at + 1).ok_or_else(|| CommandError::usage(USAGE));
            match option.as_slice() {
                b"WAIT" => parsed.wait_ms = parse_number(value()?, "wait")?,
                b"MAXHOLD" => parsed.max_hold_ms = Some(parse_number(value()?, "max_hold")?),
                b"DELAY" => parsed.delay_ms = parse_number(value()?, "delay")?,
                b"HOLDER" => parsed.holder = Some(parse_text(value()?, "a holder")?),
                b"REQUEST" => parsed.request = Some(parse_text(value()?, "a request id")?),
                b"PERMITS" => permits = Some(parse_small_number(value()?, "permits")?),
                b"CAPACITY" => capacity = Some(parse_small_number(value()?, "capacity")?),
                b"SHARED" | b"FULL" => {
                    shared |= option == b"SHARED";
                    parsed.full |= option == b"FULL";
                    at += 1;
                    continue;
                }
                b"RESOURCES" => break,
                b"EACH" if !shared && permits.is_none() && capacity.is_none() => {
                    parsed.wants = parse_each(args.from(at + 1))?;
                    return Ok(parsed);
                }
                _ => return Err(CommandError::usage(USAGE)),
            }
            at += 2;
        }
        let mode = common_mode(shared, permits, capacity)?;
        parsed.wants = parse_names(args.from(at + 1), USAGE)?.into_iter().map(|name| (name, mode)).collect();
        Ok(parsed)
    }
}

/// The mode in which every resource after `RESOURCES` is wanted.
fn common_mode(shared: bool, permits: Option<u32>, capacity: Option<u32>) -> Result<Mode, CommandError> {
    match (shared, permits, capacity) {
        (false, None, None) => Ok(Mode::Exclusive),
        (true, None, None) => Ok(Mode::Shared),
        (false, Some(count), Some(capacity)) => Ok(Mode::Permits { count, capacity }),
        (false, Some(_), None) | (false, None, Some(_)) => {
            Err("PERMITS and CAPACITY go together: PERMITS n CAPACITY m".into())
        }
        _ => Err("a resource is wanted SHARED or by PERMITS, not both".into()),
    }
}

/// Names with a mode each: `X`, `S`, or `n/m`.
fn parse_each(args: CommandArgs<'_>) -> Result<Vec<(&str, Mode)>, CommandError> {
    let usage = || CommandError::usage("LEASE ACQUIRE ttl_ms … EACH name X|S|n/m [name X|S|n/m …]");
    if args.len() == 0 || !args.len().is_multiple_of(2) {
        return Err(usage());
    }
    let mut wants = Vec::with_capacity(args.len() / 2);
    for at in (0..args.len()).step_by(2) {
        let (Some(name), Some(mode)) = (args.get(at), args.get(at + 1)) else { return Err(usage()) };
        let mode = match mode {
            b"X" | b"x" => Mode::Exclusive,
            b"S" | b"s" => Mode::Shared,
            permits => {
                let (count, capacity) = parse_text(permits, "a mode")?.split_once('/').ok_or_else(usage)?;
                Mode::Permits {
                    count: parse_small_number(count.as_bytes(), "permits")?,
                    capacity: parse_small_number(capacity.as_bytes(), "capacity")?,
                }
            }
        };
        wants.push((parse_text(name, "a name")?, mode));
    }
    Ok(wants)
}

/// Which argument is the first resource, without parsing the rest. `args` begin with the ttl.
pub fn first_name_index(args: CommandArgs<'_>) -> Option<usize> {
    let mut at = 1;
    loop {
        let option = args.get(at)?;
        if option.eq_ignore_ascii_case(b"RESOURCES") || option.eq_ignore_ascii_case(b"EACH") {
            return Some(at + 1);
        }
        let is_flag = option.eq_ignore_ascii_case(b"SHARED") || option.eq_ignore_ascii_case(b"FULL");
        at += if is_flag { 1 } else { 2 };
    }
}

impl<'a> ServiceCall<'a> for AcquireCommand<'a> {
    type Owned = OwnedAcquire;

    fn verb(&self) -> Verb {
        Verb::Acquire
    }

    fn names(&self) -> impl Iterator<Item = &'a str> {
        self.wants.iter().map(|(name, _)| *name)
    }

    fn into_owned(self, holder: &str) -> OwnedAcquire {
        let claim = Claim {
            wants: self.wants.iter().map(|(name, mode)| Want { name: (*name).into(), mode: *mode }).collect(),
            wait: Duration::from_millis(self.wait_ms),
            max_hold: self.max_hold_ms.map(Duration::from_millis),
            delay: Duration::from_millis(self.delay_ms),
            request: self.request.map(Into::into),
            ..exclusive_claim([], self.ttl_ms, self.holder.unwrap_or(holder))
        };
        OwnedAcquire { claim, full: self.full }
    }
}

impl<'a> InlineCall<'a> for AcquireCommand<'a> {
    fn decide(&self, context: &mut InlineContext<'_, '_>) -> InlineOutcome {
        let wants: Vec<EngineWant<'_>> =
            self.wants.iter().map(|(name, mode)| EngineWant { name, mode: *mode }).collect();
        let empty = context.empty_claim();
        let claim = EngineClaim {
            wants: &wants,
            ttl_ms: self.ttl_ms,
            wait_ms: self.wait_ms,
            max_hold_ms: self.max_hold_ms,
            delay_ms: self.delay_ms,
            holder: self.holder.unwrap_or(empty.holder),
            request: self.request.map(|id| RequestId { scope: empty.principal, id }),
            ..empty
        };
        let has_request_id = self.request.is_some();
        context.acquire(claim, LeaseReply::Acquire { began: context.now, has_request_id, full: self.full })
    }
}

/// [`AcquireCommand`] in a task. A task that is aborted leaves the queue of its resource.
pub struct OwnedAcquire {
    claim: Claim,
    full: bool,
}

impl OwnedCall for OwnedAcquire {
    const ABORTABLE: bool = true;

    async fn execute(self, service: &Service, caller: &Caller, reply: &mut ReplyWriter<'_>) -> Result<(), Denial> {
        let mut count_if_aborted = CountIfAborted(Some(service));
        let answer = service.acquire(caller, self.claim).await;
        count_if_aborted.0 = None;
        let grant = answer?;
        let life = LeaseLife::new(grant.remaining, grant.renewable, self.full);
        reply.granted(grant.lease_id.expose(), grant.token, life);
        Ok(())
    }
}

/// Counts an acquire whose task was aborted because its client left.
struct CountIfAborted<'a>(Option<&'a Service>);

impl Drop for CountIfAborted<'_> {
    fn drop(&mut self) {
        if let Some(service) = self.0 {
            service.metrics.record_refusal(AcquireOutcome::Left);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resp::tests::words::Words;

    fn first_name(words: &Words) -> Option<&[u8]> {
        first_name_index(words.args()).and_then(|index| words.args().get(index))
    }

    /// Goal: the name that is prefetched is the first that the parsed command looks up.
    #[test]
    fn first_name_is_the_first_that_is_parsed() {
        for line in [
            "30000 RESOURCES a b",
            "30000 WAIT 5 FULL resources a",
            "30000 SHARED HOLDER RESOURCES RESOURCES a",
            "30000 PERMITS 1 CAPACITY 2 REQUEST EACH RESOURCES a",
            "30000 each a X b S",
        ] {
            let words = Words::new(line);
            let parsed = AcquireCommand::parse(words.args()).unwrap();
            assert_eq!(parsed.names().next(), Some("a"), "{line}");
            assert_eq!(first_name(&words), Some(&b"a"[..]), "{line}");
        }
        for line in ["", "30000", "30000 RESOURCES", "30000 WAIT", "30000 WAIT RESOURCES"] {
            assert_eq!(first_name(&Words::new(line)), None, "{line}");
        }
    }
}
