-- The ledger of scheduled runs.
CREATE TABLE leasehold_schedule (
    name TEXT PRIMARY KEY NOT NULL,
    token INTEGER NOT NULL,
    last_tick INTEGER NOT NULL,
    spec TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE leasehold_run (
    name TEXT NOT NULL,
    tick INTEGER NOT NULL,
    upto INTEGER NOT NULL,
    ticks INTEGER NOT NULL DEFAULT 1,
    token INTEGER NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('running', 'ok', 'failed', 'lost', 'missed', 'skipped')),
    machine TEXT,
    started_at INTEGER NOT NULL,
    ended_at INTEGER,
    code INTEGER,
    tail TEXT,
    PRIMARY KEY (name, tick)
) STRICT, WITHOUT ROWID;
