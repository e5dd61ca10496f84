//! Operations as one batch: as the statement of the engine, and as commands of the book.

use leasehold_core::{Acquire, Command, Mode, Reply, RequestId, Secret, WaiterId};

use super::QUEUE_LIMIT;
use super::operations::{Asked, Known, Operation};
use super::trial::{Trial, text};

/// A secret that no lease has.
const WRONG_SECRET: u128 = 0x0909_0909_0909_0909_0909_0909_0909_0909;

impl Trial {
    pub(super) async fn run_batch(&mut self) {
        let mut groups = vec![0, 1, 2];
        let count = 1 + self.dice.below(3) as usize;
        while groups.len() > count {
            let gone = self.dice.below(groups.len() as u64) as usize;
            groups.remove(gone);
        }
        let operations: Vec<Operation> = groups.into_iter().map(|group| self.draw_operation(group)).collect();
        let sql = self.batch_sql(&operations);
        let mut expected = Vec::new();
        let mut effects = Vec::new();
        for operation in &operations {
            let (reply, more) = self.apply_to_book(operation);
            expected.push(reply);
            effects.extend(more);
        }
        let verdicts = self.verdicts(&sql).await;
        for (operation, reply) in operations.iter().zip(expected) {
            let at = match operation {
                Operation::Acquire { at, .. } | Operation::Release { at, .. } | Operation::Renew { at, .. } => *at,
            };
            let verdict =
                verdicts.get(&self.known[at].handle).unwrap_or_else(|| panic!("no verdict\n{}", self.log)).clone();
            self.compare(operation, at, reply, &verdict);
        }
        self.compare_effects(effects).await;
    }

    fn apply_to_book(&mut self, operation: &Operation) -> (Reply, Vec<(WaiterId, Reply)>) {
        match operation {
            Operation::Acquire { at, asked, waiter, .. } => {
                let (known, asked) = (self.known[*at].clone(), asked.clone());
                self.note(format_args!("acquire {} {asked:?}", text(known.handle)));
                let wants = asked.core_wants();
                self.apply(Command::Acquire(Acquire {
                    waiter_id: *waiter,
                    wants: &wants,
                    ttl_ms: asked.ttl_ms,
                    wait_ms: asked.wait_ms,
                    max_hold_ms: asked.max_hold_ms,
                    delay_ms: asked.delay_ms,
                    holder: &asked.holder,
                    request: asked.request.as_ref().map(|id| RequestId { scope: "p", id }),
                    secret: Secret::new(known.secret.to_be_bytes()),
                    principal: "p",
                    value: None,
                }))
            }
            Operation::Release { at, wrong } => {
                let mut lease = self.known[*at].key.unwrap();
                if *wrong {
                    lease.secret = Secret::new([9; 16]);
                }
                self.note(format_args!("release {} wrong={wrong}", text(self.known[*at].handle)));
                self.apply(Command::Release { lease })
            }
            Operation::Renew { at, ttl_ms } => {
                let lease = self.known[*at].key.unwrap();
                self.note(format_args!("renew {} {ttl_ms:?}", text(self.known[*at].handle)));
                self.apply(Command::Renew { lease, ttl_ms: *ttl_ms })
            }
        }
    }

    fn batch_sql(&mut self, operations: &[Operation]) -> String {
        let mut columns = SqlColumns { process: 1, ..SqlColumns::default() };
        for operation in operations {
            match operation {
                Operation::Acquire { at, asked, process, .. } => {
                    columns.process = *process;
                    columns.add_acquire(&self.known[*at], asked);
                }
                Operation::Release { at, wrong } => {
                    let secret = if *wrong { WRONG_SECRET } else { self.known[*at].secret };
                    let single = self.knows_single_name(*at);
                    columns.add_owned("'r'", &self.known[*at], secret, None, single);
                }
                Operation::Renew { at, ttl_ms } => {
                    let (secret, single) = (self.known[*at].secret, self.knows_single_name(*at));
                    columns.add_owned("'n'", &self.known[*at], secret, *ttl_ms, single);
                }
            }
        }
        columns.to_sql()
    }

    /// Whether the engine would know the only name of the lease: it forgets some.
    fn knows_single_name(&mut self, at: usize) -> bool {
        let asked = &self.known[at].asked;
        asked.wants.len() == 1 && asked.request.is_none() && self.dice.one_in(2)
    }
}

/// The arguments of `batch`, as text.
#[derive(Default)]
struct SqlColumns {
    rows: [Vec<String>; 10],
    wants: [Vec<String>; 4],
    known: Vec<String>,
    alone: Vec<String>,
    process: i64,
}

impl SqlColumns {
    fn add_row(&mut self, row: [String; 10]) {
        self.rows.iter_mut().zip(row).for_each(|(column, value)| column.push(value));
    }

    fn add_acquire(&mut self, known: &Known, asked: &Asked) {
        let fast = matches!(&asked.wants[..], [(_, Mode::Exclusive)]);
        for (name, mode) in asked.wants.iter().filter(|_| !fast) {
            let (count, capacity) = match mode {
                Mode::Exclusive => (0, 0),
                Mode::Shared => (-1, 0),
                Mode::Permits { count, capacity } => (i64::from(*count), i64::from(*capacity)),
            };
            let number = self.rows[0].len() + 1;
            let want = [number.to_string(), format!("'{name}'"), count.to_string(), capacity.to_string()];
            self.wants.iter_mut().zip(want).for_each(|(column, value)| column.push(value));
        }
        if asked.request.is_some() {
            self.alone.push(quoted(known.handle));
        }
        self.add_row([
            if fast { "'f'" } else { "'a'" }.into(),
            quoted(known.handle),
            quoted(known.secret),
            if fast { format!("'{}'", asked.wants[0].0) } else { "NULL".into() },
            asked.ttl_ms.to_string(),
            asked.wait_ms.to_string(),
            or_null(asked.max_hold_ms),
            asked.delay_ms.to_string(),
            or_null(asked.fingerprint()),
            format!("'{}'", asked.holder),
        ]);
    }

    fn add_owned(&mut self, kind: &str, known: &Known, secret: u128, span: Option<u64>, single: bool) {
        if !single {
            self.known.push(quoted(known.handle));
        }
        let first = if single { format!("'{}'", known.asked.wants[0].0) } else { "NULL".into() };
        let mut row = std::array::from_fn(|_| "NULL".to_owned());
        let given = [kind.into(), quoted(known.handle), quoted(secret), first, or_null(span)];
        row.iter_mut().zip(given).for_each(|(slot, value)| *slot = value);
        self.add_row(row);
    }

    fn to_sql(&self) -> String {
        let array = |(values, ty): (&Vec<String>, &str)| format!("ARRAY[{}]::{ty}[]", values.join(","));
        let types = ["\"char\"", "uuid", "uuid", "text", "bigint", "bigint", "bigint", "bigint", "bigint", "text"];
        let mut arguments: Vec<String> = self.rows.iter().zip(types).map(array).collect();
        arguments.extend(self.wants.iter().zip(["integer", "text", "integer", "integer"]).map(array));
        arguments.extend([(&self.known, "uuid"), (&self.alone, "uuid")].map(array));
        format!(
            "SELECT handle::text, verdict::text, token, remaining, renewable, name, holder, queue::bigint \
             FROM leasehold_engine.batch({}, {}, {QUEUE_LIMIT})",
            arguments.join(", "),
            self.process
        )
    }
}

fn quoted(bits: u128) -> String {
    format!("'{}'", text(bits))
}

fn or_null(number: Option<impl ToString>) -> String {
    number.map_or_else(|| "NULL".into(), |number| number.to_string())
}
