//! What is advised in the end: why, where it ends, and lines to copy. A test tries every line.

use serde::Serialize;

/// What to copy a line into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LineKind {
    Shell,
    Sql,
    Rust,
}

impl LineKind {
    pub fn heading(self) -> &'static str {
        match self {
            Self::Shell => "In a shell",
            Self::Sql => "In SQL",
            Self::Rust => "In Rust",
        }
    }
}

/// Something to copy.
#[derive(Debug, Serialize)]
pub struct CopyLine {
    pub kind: LineKind,
    pub text: &'static str,
    /// Shown only by a binary that has this command.
    #[serde(skip)]
    with: Option<&'static str>,
    /// Shown only by a binary that does not have this command.
    #[serde(skip)]
    without: Option<&'static str>,
}

/// A mechanism.
#[derive(Debug)]
pub struct Mechanism {
    pub name: &'static str,
    pub why: &'static str,
    pub limits: &'static [&'static str],
    lines: &'static [CopyLine],
}

impl Mechanism {
    /// The lines that a binary with these commands can run.
    pub fn lines_for(&self, has: impl Fn(&str) -> bool) -> Vec<&CopyLine> {
        let shown = |line: &&CopyLine| line.with.is_none_or(&has) && !line.without.is_some_and(&has);
        self.lines.iter().filter(shown).collect()
    }
}

const fn shell(text: &'static str) -> CopyLine {
    CopyLine { kind: LineKind::Shell, text, with: None, without: None }
}

const fn sql(text: &'static str) -> CopyLine {
    CopyLine { kind: LineKind::Sql, text, with: None, without: None }
}

const fn rust(text: &'static str) -> CopyLine {
    CopyLine { kind: LineKind::Rust, text, with: None, without: None }
}

impl CopyLine {
    const fn with(self, command: &'static str) -> Self {
        Self { with: Some(command), ..self }
    }

    const fn without(self, command: &'static str) -> Self {
        Self { without: Some(command), ..self }
    }
}

pub const ONCE: Mechanism = Mechanism {
    name: "once",
    why: "The first answer is stored under a key, and whoever asks again gets that answer. No lock is needed.",
    limits: &[
        "One effect only if the work is in the same transaction as the key, or the other side compares the key: pass it on.",
        "Keys are kept for a time. After that the same key runs again.",
    ],
    lines: &[
        shell("leasehold once order-17 -- ./charge.sh 17").with("once"),
        sql("CREATE TABLE IF NOT EXISTS answer (key text PRIMARY KEY, body text);").without("once"),
        sql("BEGIN;\n\
             INSERT INTO answer (key) VALUES ('order-17') ON CONFLICT (key) DO NOTHING RETURNING key; -- no row: answered before\n\
             UPDATE answer SET body = 'charged' WHERE key = 'order-17'; -- after the work, in the same transaction\n\
             COMMIT;")
        .without("once"),
        sql("SELECT body FROM answer WHERE key = 'order-17';").without("once"),
    ],
};

pub const UNIQUE: Mechanism = Mechanism {
    name: "unique",
    why: "A unique constraint decides who was first, in the database that has the rows. It cannot be forgotten by a client.",
    limits: &[
        "It is decided at the insert: work that happens before it may be for nothing.",
        "Do not catch error 23505 inside a PostgreSQL transaction: every later statement fails. ON CONFLICT tells it as no row.",
    ],
    lines: &[
        sql("CREATE TABLE IF NOT EXISTS sale (seat bigint PRIMARY KEY, buyer text NOT NULL);"),
        sql(
            "INSERT INTO sale (seat, buyer) VALUES (14, 'ada') ON CONFLICT (seat) DO NOTHING RETURNING seat; -- no row: taken",
        ),
        rust(
            "let sold = unique::insert_sqlite(&connection, \"sale\", &[\"seat\"], &[(\"seat\", &14), (\"buyer\", &\"ada\")])?;",
        ),
    ],
};

pub const OPTIMISTIC: Mechanism = Mechanism {
    name: "optimistic",
    why: "Writers seldom meet, so nobody waits for a lock: the write compares a version, and who was second tries again.",
    limits: &[
        "Above a quarter of conflicts it is slower than a lock on the row. Optimistic::report() says so.",
        "Tries are bounded: the last conflict is an error that the caller must handle.",
    ],
    lines: &[
        sql("ALTER TABLE stock ADD COLUMN version bigint NOT NULL DEFAULT 0;"),
        sql("SELECT left_over, version FROM stock WHERE item = 7;"),
        sql(
            "UPDATE stock SET left_over = left_over - 1, version = version + 1 WHERE item = 7 AND version = 0; -- 0 rows: try again",
        ),
        rust("let writers = Optimistic::up_to(8);"),
        rust(
            "writers.write(async |_try| Ok::<_, rusqlite::Error>(Update::by_rows(sell_one(&connection)?, ()))).await?;",
        ),
    ],
};

pub const ROW: Mechanism = Mechanism {
    name: "row",
    why: "Writers often meet, so each locks the row first, in a short transaction that ends in time whatever hangs.",
    limits: &[
        "lock_timeout counts for each lock: take several rows by one statement, in the order of their key.",
        "Never wait for a person or another service inside: every other writer of the row waits too.",
    ],
    lines: &[
        sql("BEGIN;\n\
             SET LOCAL lock_timeout = '500ms';\n\
             SET LOCAL statement_timeout = '500ms';\n\
             SET LOCAL idle_in_transaction_session_timeout = '500ms';\n\
             SELECT left_over FROM stock WHERE item = 7 FOR UPDATE;\n\
             UPDATE stock SET left_over = left_over - 1 WHERE item = 7;\n\
             COMMIT;"),
        rust("row::locked_sqlite(&mut connection, Duration::from_millis(500), |tx| sell_one(tx))?;"),
    ],
};

pub const ADVISORY: Mechanism = Mechanism {
    name: "advisory",
    why: "There is no row to lock, so the transaction locks a name that PostgreSQL keeps for it and frees at its end.",
    limits: &[
        "PostgreSQL only. Everybody must choose the same key for the same thing.",
        "It has no ttl: it lasts as long as the transaction, which must be short.",
    ],
    lines: &[sql("BEGIN;\n\
             SET LOCAL lock_timeout = '500ms';\n\
             SELECT pg_advisory_xact_lock(hashtextextended('import', 0));\n\
             UPDATE stock SET left_over = left_over + 1;\n\
             COMMIT;")],
};

pub const QUEUE: Mechanism = Mechanism {
    name: "queue",
    why: "Work is rows, and each worker takes other rows than its neighbours. Nobody needs a lock over all of them.",
    limits: &[
        "A job may be started twice: when its worker died, or was too slow. Its token tells which start is the valid one.",
        "Jobs come in about the order in which they were pushed, and no more.",
    ],
    lines: &[
        shell("leasehold queue push mail '{\"to\":\"ada@example.com\"}'").with("queue"),
        shell("leasehold queue work mail -j 4 -- ./send.sh").with("queue"),
        sql("CREATE TABLE IF NOT EXISTS job (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, key text, body jsonb NOT NULL);")
            .without("queue"),
        sql("BEGIN;\n\
             DELETE FROM job WHERE id = (SELECT id FROM job ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED) RETURNING body;\n\
             COMMIT; -- after the work: a worker that dies gives the job back")
        .without("queue"),
    ],
};

pub const QUEUE_BY_KEY: Mechanism = Mechanism {
    name: "queue by key",
    why: "Jobs of one key run one after the other, in order of arrival; jobs of different keys run side by side.",
    limits: &[
        "A job that fails holds up its key until it succeeds or is buried.",
        "A key with more work than one worker can do must be split by its owner.",
    ],
    lines: &[
        shell("leasehold queue make orders --by-key").with("queue"),
        shell("leasehold queue push orders '{\"order\":17}' --key customer-7").with("queue"),
        shell("leasehold queue work orders -j 4 -- ./send.sh").with("queue"),
        sql("CREATE TABLE IF NOT EXISTS job (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, key text, body jsonb NOT NULL);")
            .without("queue"),
        sql("BEGIN;\n\
             DELETE FROM job WHERE id = (SELECT id FROM job j\n\
             WHERE NOT EXISTS (SELECT FROM job e WHERE e.key = j.key AND e.id < j.id)\n\
             ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED) RETURNING key, body;\n\
             COMMIT; -- after the work: the first job of a key holds up the rest of it")
        .without("queue"),
    ],
};

pub const CRON: Mechanism = Mechanism {
    name: "cron",
    why: "Each tick is run by one machine of the fleet: the one that gets its lease. A ledger keeps every tick.",
    limits: &[
        "A run whose machine dies is reported as lost, and not repeated.",
        "A frozen machine wakes up and does not know it yet. If the run writes data, fence them with its token.",
        "Without a store, --at-most-once: a lease for each tick, and no history.",
    ],
    lines: &[
        shell("leasehold cron report --schedule \"0 3 * * *\" -- ./report.sh").with("cron"),
        shell("leasehold acquire \"cron/report@$(date -u +%FT%H)\" --ttl 2h --id-only >/dev/null && ./report.sh # from cron, on every machine")
            .without("cron"),
    ],
};

pub const SINGLE_FLIGHT: Mechanism = Mechanism {
    name: "single flight",
    why: "One computes the value when it expires, and the others wait for it or take the old one.",
    limits: &[
        "Two may compute at once after a pause or while the engine is away: that wastes work and no more.",
        "If an old value must not overwrite a newer one, the cache is data: fence its key.",
    ],
    lines: &[
        rust("let flights = Flights::new(leasehold.clone(), MemoryCache::new());"),
        rust("let page = flights.get(\"page:7\", minute, async || render(7).await).stale_ok(5 * minute).await?;"),
    ],
};

pub const ELECTION: Mechanism = Mechanism {
    name: "election",
    why: "One process leads, the others stand in line, and the command of the leader is ended before another can lead.",
    limits: &[
        "A frozen machine wakes up and does not know it yet. If the leader writes data, fence them with its token.",
        "When a leader dies, the next one leads after at most one ttl.",
    ],
    lines: &[
        shell("leasehold elect scheduler -- ./scheduler"),
        shell("leasehold inspect election/scheduler"),
        rust("let leader = leasehold.election(\"scheduler\").value(\"10.0.0.7:9000\").campaign().await?;"),
        rust("leader.run(async |term| write_plan(term.token()).await).await?;"),
        rust("leader.resign().await?;"),
    ],
};

pub const LEASE: Mechanism = Mechanism {
    name: "acquire",
    why: "One at a time, for as long as the command runs, and free again at most one ttl after a crash.",
    limits: &["No lease stops a process that is paused. If a double run does harm, answer the fifth question with no."],
    lines: &[
        shell("leasehold run nightly-report -- ./report.sh"),
        rust("leasehold.acquire(\"nightly-report\").run(async |_lease| report().await).await?;"),
    ],
};

pub const FENCE: Mechanism = Mechanism {
    name: "acquire and fence",
    why: "A second writer does harm, so the data itself refuses whoever does not hold the newest lease.",
    limits: &[
        "What leaves the data (an e-mail, a payment) is not fenced: give it a key of its own.",
        "The engine must promise fencing: leasehold doctor says whether yours does.",
    ],
    lines: &[
        shell("leasehold fence install --url \"$DATABASE\" --table charges --key id --resource billing"),
        shell(
            "leasehold run billing -- leasehold fence exec --url \"$DATABASE\" --sql 'UPDATE charges SET paid = 1 WHERE id = 7'",
        ),
        rust("let lease = leasehold.acquire(\"billing\").fenced().await?;"),
    ],
};

pub const GATE: Mechanism = Mechanism {
    name: "acquire behind a gate",
    why: "The service cannot compare a number, so a gate in front of it does, and passes on only what is not stale.",
    limits: &[
        "There must be no other way to the service than through the gate.",
        "Requests that only read need no token: see --unfenced.",
    ],
    lines: &[
        shell("leasehold gate --listen 127.0.0.1:7410 --upstream http://127.0.0.1:8080 --data ./gate-data &"),
        shell(
            "leasehold run billing -- sh -c 'curl -fsS -d paid=1 -H \"Fencing-Token: $LEASEHOLD_TOKEN\" -H \"Fencing-Lease: $LEASEHOLD_MARK\" -H \"Fencing-Resource: $LEASEHOLD_RESOURCE\" http://127.0.0.1:7410/charges/7'",
        ),
    ],
};
