//! Operations of many callers as one statement: the arrays that `batch` takes, and the verdicts it returns.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use leasehold_core::fact::fingerprint;
use leasehold_postgres::tokio_postgres::types::Type;
use leasehold_postgres::tokio_postgres::{Error as SqlError, Row};

use super::connection::EngineConnection;
use super::ids::Bits;
use super::sql_error::SqlFailure;
use super::statements::Sql;
use crate::engine::from_book::{millis, wants};
use crate::engine::{Claim, Mode};

/// A claim in the words of the server. The same in every try.
#[derive(Debug)]
pub(super) struct ServerClaim {
    pub names: Vec<String>,
    counts: Vec<i32>,
    capacities: Vec<i32>,
    pub ttl_ms: i64,
    max_hold_ms: Option<i64>,
    delay_ms: i64,
    pub fingerprint: Option<i64>,
    label: String,
}

impl ServerClaim {
    /// The claim was checked against the limits: every number fits.
    pub fn new(claim: &Claim) -> Self {
        let to_count = |number: u32| i32::try_from(number).unwrap_or(i32::MAX);
        let modes = claim.wants.iter().map(|want| match want.mode {
            Mode::Exclusive => (0, 0),
            Mode::Shared => (-1, 0),
            Mode::Permits { count, capacity } => (to_count(count), to_count(capacity)),
        });
        let (counts, capacities) = modes.unzip();
        let print = || {
            let max_hold = claim.max_hold.map(millis);
            fingerprint(&wants(claim), millis(claim.ttl), max_hold, millis(claim.delay)).cast_signed()
        };
        Self {
            names: claim.wants.iter().map(|want| want.name.clone()).collect(),
            counts,
            capacities,
            ttl_ms: to_bigint(millis(claim.ttl)),
            max_hold_ms: claim.max_hold.map(|span| to_bigint(millis(span))),
            delay_ms: to_bigint(millis(claim.delay)),
            fingerprint: claim.request.as_ref().map(|_| print()),
            label: claim.holder.clone(),
        }
    }

    /// One exclusive name: the server has a short way for it.
    pub fn is_single(&self) -> bool {
        matches!(self.counts[..], [0])
    }
}

pub(super) fn to_bigint(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// One operation of a batch.
#[derive(Clone, Debug)]
pub(super) struct WriteOperation {
    pub handle: Bits,
    pub secret: Bits,
    pub kind: OperationKind,
}

#[derive(Clone, Debug)]
pub(super) enum OperationKind {
    /// `gone`: its caller went away, so that it need not be sent. `sent`: a writer has taken it.
    Acquire {
        claim: Arc<ServerClaim>,
        wait_ms: i64,
        gone: Arc<AtomicBool>,
        sent: Arc<AtomicBool>,
    },
    Release,
    Renew {
        ttl_ms: Option<i64>,
    },
    Relabel {
        label: Arc<str>,
    },
}

/// What the server decided about one operation. The letters are those of `layout_1/batch.sql`.
#[derive(Clone, Debug)]
pub(super) struct Verdict {
    pub word: u8,
    pub token: Option<i64>,
    pub remaining: Option<i64>,
    pub renewable: Option<i64>,
    pub proof: Option<Bits>,
    pub name: Option<String>,
    pub holder: Option<String>,
    pub queue: Option<i32>,
}

impl Verdict {
    pub fn from_row(row: &Row) -> Result<(Bits, Self), SqlError> {
        let word: i8 = row.try_get(1)?;
        let verdict = Self {
            word: word.cast_unsigned(),
            token: row.try_get(2)?,
            remaining: row.try_get(3)?,
            renewable: row.try_get(4)?,
            proof: row.try_get(5)?,
            name: row.try_get(6)?,
            holder: row.try_get(7)?,
            queue: row.try_get(8)?,
        };
        Ok((row.try_get(0)?, verdict))
    }
}

/// The columns of a batch, one row for each operation, and the wants of claims beside them.
#[derive(Default)]
struct BatchColumns<'a> {
    kinds: Vec<i8>,
    handles: Vec<Bits>,
    secrets: Vec<Bits>,
    firsts: Vec<Option<&'a str>>,
    spans: Vec<Option<i64>>,
    waits: Vec<Option<i64>>,
    holds: Vec<Option<i64>>,
    delays: Vec<Option<i64>>,
    fingerprints: Vec<Option<i64>>,
    labels: Vec<Option<&'a str>>,
    ats: Vec<i32>,
    names: Vec<&'a str>,
    counts: Vec<i32>,
    capacities: Vec<i32>,
    known: Vec<Bits>,
    alone: Vec<Bits>,
}

impl<'a> BatchColumns<'a> {
    fn add_row(&mut self, operation: &'a WriteOperation, letter: u8, first: Option<&'a str>) {
        self.kinds.push(letter.cast_signed());
        self.handles.push(operation.handle);
        self.secrets.push(operation.secret);
        self.firsts.push(first);
        let (mut span, mut label) = (None, None);
        let (mut wait, mut hold, mut delay, mut print) = (None, None, None, None);
        match &operation.kind {
            OperationKind::Acquire { claim, wait_ms, .. } => {
                (span, wait, hold) = (Some(claim.ttl_ms), Some(*wait_ms), claim.max_hold_ms);
                (delay, print, label) = (Some(claim.delay_ms), claim.fingerprint, Some(claim.label.as_str()));
            }
            OperationKind::Release => {}
            OperationKind::Renew { ttl_ms } => span = *ttl_ms,
            OperationKind::Relabel { label: new } => label = Some(&**new),
        }
        self.spans.push(span);
        self.waits.push(wait);
        self.holds.push(hold);
        self.delays.push(delay);
        self.fingerprints.push(print);
        self.labels.push(label);
    }

    fn add_acquire(&mut self, operation: &'a WriteOperation, claim: &'a ServerClaim, fast: bool) {
        self.add_row(
            operation,
            if fast { b'f' } else { b'a' },
            claim.names.first().filter(|_| fast).map(String::as_str),
        );
        if !fast {
            let at = i32::try_from(self.kinds.len()).unwrap_or(i32::MAX);
            for ((name, count), capacity) in claim.names.iter().zip(&claim.counts).zip(&claim.capacities) {
                self.ats.push(at);
                self.names.push(name);
                self.counts.push(*count);
                self.capacities.push(*capacity);
            }
        }
        if claim.fingerprint.is_some() {
            // Two claims with one request id need not share a name: the handle itself is locked.
            self.alone.push(operation.handle);
        }
    }

    fn add_owned(&mut self, operation: &'a WriteOperation, letter: u8, first: Option<&'a str>) {
        self.add_row(operation, letter, first);
        if first.is_none() {
            self.known.push(operation.handle);
        }
    }
}

/// Runs operations in one transaction. No handle comes twice. `single_names`: the only name of a lease, where it is known.
pub(super) async fn run_batch(
    connection: &EngineConnection,
    operations: &[WriteOperation],
    single_names: &HashMap<Bits, Arc<str>>,
    process: i64,
    queue_limit: i32,
) -> Result<HashMap<Bits, Verdict>, SqlFailure> {
    let mut named = HashSet::new();
    let mut twice = HashSet::new();
    for operation in operations {
        if let OperationKind::Acquire { claim, .. } = &operation.kind {
            twice.extend(claim.names.iter().filter(|name| !named.insert(name.as_str())).map(String::as_str));
        }
    }
    let mut columns = BatchColumns::default();
    for operation in operations {
        let first = single_names.get(&operation.handle).map(|name| &**name);
        match &operation.kind {
            OperationKind::Acquire { claim, .. } => {
                let fast = claim.is_single() && !twice.contains(claim.names[0].as_str());
                columns.add_acquire(operation, claim, fast);
            }
            OperationKind::Release => columns.add_owned(operation, b'r', first),
            OperationKind::Renew { .. } => columns.add_owned(operation, b'n', first),
            OperationKind::Relabel { .. } => columns.add_owned(operation, b'l', first),
        }
    }
    let rows = connection
        .query(
            Sql::Batch,
            &[
                (&columns.kinds, Type::CHAR_ARRAY),
                (&columns.handles, Type::UUID_ARRAY),
                (&columns.secrets, Type::UUID_ARRAY),
                (&columns.firsts, Type::TEXT_ARRAY),
                (&columns.spans, Type::INT8_ARRAY),
                (&columns.waits, Type::INT8_ARRAY),
                (&columns.holds, Type::INT8_ARRAY),
                (&columns.delays, Type::INT8_ARRAY),
                (&columns.fingerprints, Type::INT8_ARRAY),
                (&columns.labels, Type::TEXT_ARRAY),
                (&columns.ats, Type::INT4_ARRAY),
                (&columns.names, Type::TEXT_ARRAY),
                (&columns.counts, Type::INT4_ARRAY),
                (&columns.capacities, Type::INT4_ARRAY),
                (&columns.known, Type::UUID_ARRAY),
                (&columns.alone, Type::UUID_ARRAY),
                (&process, Type::INT8),
                (&queue_limit, Type::INT4),
            ],
        )
        .await?;
    let verdicts: Result<HashMap<Bits, Verdict>, SqlError> = rows.iter().map(Verdict::from_row).collect();
    // The batch was committed, whatever it says.
    verdicts.map_err(|error| SqlFailure::Unknown(super::sql_error::Cause::new(error.to_string())))
}
