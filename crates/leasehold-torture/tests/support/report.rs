//! What a client process says of its operations, one line when it asks and one when it is answered:
//!
//! ```text
//! ? 0 1200 7 acquire a,b 600 6000 7-1     number, moment, client; names, ttl and wait in ms, request id or -
//! ! 0 1300 granted 17 599000000 false     number, moment; token, nanoseconds left, whether it may be a repeated answer
//! ```
//!
//! A process that is stopped or killed leaves what it said so far.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::time::Duration;

use leasehold_core::{Mode, Token};
use leasehold_torture::history::{AcquireRequest, Op, OpId, OpKind, OpOutcome};

use super::recorder::granted;

pub fn invoke_line(id: OpId, op: &Op) -> String {
    let what = match &op.kind {
        OpKind::Acquire(ask) => {
            assert!(ask.wants.iter().all(|(_, mode)| *mode == Mode::Exclusive), "the report has no modes");
            let names: Vec<&str> = ask.wants.iter().map(|(name, _)| name.as_str()).collect();
            let (ttl, wait, request) = (ask.ttl.as_millis(), ask.wait.as_millis(), ask.request.as_deref());
            format!("acquire {} {ttl} {wait} {}", names.join(","), request.unwrap_or("-"))
        }
        OpKind::Renew { token, .. } => format!("renew {token}"),
        OpKind::Release { token } => format!("release {token}"),
        other => panic!("the report has no {other:?}"),
    };
    format!("? {id} {} {} {what}\n", op.invoke, op.client)
}

pub fn answer_line(id: OpId, ret: u64, outcome: OpOutcome) -> String {
    let what = match outcome {
        OpOutcome::Granted { token, remaining, repeated, .. } => {
            format!("granted {token} {} {repeated}", remaining.as_nanos())
        }
        OpOutcome::Renewed { remaining } => format!("renewed {}", remaining.as_nanos()),
        OpOutcome::Released(now) => format!("released {now}"),
        OpOutcome::Held => "held".into(),
        OpOutcome::Stale => "stale".into(),
        OpOutcome::NotHeld => "not_held".into(),
        OpOutcome::Failed => "failed".into(),
        OpOutcome::Unknown => "unknown".into(),
        other => panic!("the report has no {other:?}"),
    };
    format!("! {id} {ret} {what}\n")
}

/// Reads a report while it is written.
pub struct ReportReader {
    file: File,
    /// What was read after the last whole line.
    rest: String,
    ops: Vec<Op>,
    /// The operation that was asked and has no line of an answer yet. The process does one at a time.
    outstanding: Option<OpId>,
}

impl ReportReader {
    pub fn open(path: &Path) -> Self {
        let file = File::open(path).expect("the report is there");
        Self { file, rest: String::new(), ops: Vec::new(), outstanding: None }
    }

    /// The operations so far.
    pub fn ops(&mut self) -> &[Op] {
        self.file.read_to_string(&mut self.rest).expect("it can be read");
        let whole = self.rest.rfind('\n').map_or(0, |end| end + 1);
        let lines: String = self.rest.drain(..whole).collect();
        for line in lines.lines() {
            self.read_line(line).unwrap_or_else(|| panic!("not a line of a report: {line}"));
        }
        &self.ops
    }

    /// The operation that is under way.
    pub fn outstanding(&mut self) -> Option<(OpId, &Op)> {
        self.ops();
        self.outstanding.map(|id| (id, &self.ops[id]))
    }

    pub fn into_ops(mut self) -> Vec<Op> {
        self.ops();
        assert_eq!(self.outstanding, None, "the process came to its end");
        self.ops
    }

    fn read_line(&mut self, line: &str) -> Option<()> {
        let words: Vec<&str> = line.split(' ').collect();
        match words.as_slice() {
            ["?", id, invoke, client, what @ ..] => {
                assert_eq!(id.parse::<OpId>().ok()?, self.ops.len(), "nothing is missing: {line}");
                self.outstanding = Some(self.ops.len());
                self.ops.push(Op {
                    client: client.parse().ok()?,
                    kind: read_kind(what)?,
                    invoke: invoke.parse().ok()?,
                    ret: None,
                    outcome: OpOutcome::Unknown,
                    epoch: 0,
                    untouched: true,
                    full: false,
                });
            }
            ["!", id, ret, what @ ..] => {
                let id = id.parse::<OpId>().ok()?;
                assert_eq!(self.outstanding.take(), Some(id), "one at a time: {line}");
                let outcome = read_outcome(what)?;
                let ret = ret.parse().ok()?;
                self.ops[id].outcome = outcome;
                self.ops[id].ret = (!matches!(outcome, OpOutcome::Unknown)).then_some(ret);
            }
            _ => return None,
        }
        Some(())
    }
}

fn read_token(text: &str) -> Option<Token> {
    text.parse().ok().and_then(Token::new)
}

fn read_kind(words: &[&str]) -> Option<OpKind> {
    Some(match words {
        ["acquire", names, ttl, wait, request] => OpKind::Acquire(AcquireRequest {
            wants: names.split(',').map(|name| (name.to_owned(), Mode::Exclusive)).collect(),
            ttl: Duration::from_millis(ttl.parse().ok()?),
            wait: Duration::from_millis(wait.parse().ok()?),
            max_hold: None,
            delay: Duration::ZERO,
            request: (*request != "-").then(|| (*request).to_owned()),
            principal: String::new(),
            value: None,
        }),
        ["renew", token] => OpKind::Renew { token: read_token(token)?, ttl: None },
        ["release", token] => OpKind::Release { token: read_token(token)? },
        _ => return None,
    })
}

fn read_outcome(words: &[&str]) -> Option<OpOutcome> {
    Some(match words {
        ["granted", token, remaining, repeated] => {
            let remaining = Duration::from_nanos(remaining.parse().ok()?);
            granted(read_token(token)?, remaining, repeated.parse().ok()?)
        }
        ["renewed", remaining] => OpOutcome::Renewed { remaining: Duration::from_nanos(remaining.parse().ok()?) },
        ["released", now] => OpOutcome::Released(now.parse().ok()?),
        ["held"] => OpOutcome::Held,
        ["stale"] => OpOutcome::Stale,
        ["not_held"] => OpOutcome::NotHeld,
        ["failed"] => OpOutcome::Failed,
        ["unknown"] => OpOutcome::Unknown,
        _ => return None,
    })
}
