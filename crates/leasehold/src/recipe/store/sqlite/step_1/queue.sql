-- Jobs, dead letters, and lanes of queues by key. Times are milliseconds since 1970, spans are milliseconds, levels are a
-- JSON array. Ids of jobs never come twice: AUTOINCREMENT.
CREATE TABLE leasehold_queue (
    queue_id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE,
    keyed INTEGER NOT NULL DEFAULT 0,
    in_order INTEGER NOT NULL DEFAULT 1,
    levels TEXT NOT NULL DEFAULT '[1]',
    visible INTEGER NOT NULL DEFAULT 30000,
    max_attempts INTEGER NOT NULL DEFAULT 20,
    backoff_base INTEGER NOT NULL DEFAULT 1000,
    backoff_cap INTEGER NOT NULL DEFAULT 3600000,
    paused INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE leasehold_job (
    job_id INTEGER PRIMARY KEY AUTOINCREMENT,
    token INTEGER NOT NULL DEFAULT 0, -- 0: waits
    ready_at INTEGER NOT NULL,
    made_at INTEGER NOT NULL,
    until INTEGER,
    queue_id INTEGER NOT NULL,
    priority INTEGER NOT NULL DEFAULT 1,
    attempt INTEGER NOT NULL DEFAULT 0,
    max_attempts INTEGER NOT NULL,
    again INTEGER NOT NULL DEFAULT 0,
    key TEXT,
    dedupe TEXT,
    worker TEXT,
    error TEXT,
    body TEXT NOT NULL
) STRICT;
CREATE INDEX leasehold_job_ready ON leasehold_job (queue_id, priority, ready_at) WHERE token = 0 AND key IS NULL;
CREATE INDEX leasehold_job_taken ON leasehold_job (queue_id, until) WHERE until IS NOT NULL;
CREATE INDEX leasehold_job_lane ON leasehold_job (queue_id, key, job_id) WHERE key IS NOT NULL;
CREATE UNIQUE INDEX leasehold_job_dedupe ON leasehold_job (queue_id, dedupe) WHERE dedupe IS NOT NULL;
CREATE TABLE leasehold_dead_job (
    job_id INTEGER PRIMARY KEY,
    token INTEGER NOT NULL,
    ready_at INTEGER NOT NULL,
    made_at INTEGER NOT NULL,
    until INTEGER,
    queue_id INTEGER NOT NULL,
    priority INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    max_attempts INTEGER NOT NULL,
    again INTEGER NOT NULL,
    key TEXT,
    dedupe TEXT,
    worker TEXT,
    error TEXT,
    body TEXT NOT NULL,
    died_at INTEGER NOT NULL
) STRICT;
CREATE INDEX leasehold_dead_job_age ON leasehold_dead_job (queue_id, died_at);
CREATE TABLE leasehold_lane (
    queue_id INTEGER NOT NULL,
    key TEXT NOT NULL,
    token INTEGER NOT NULL,
    until INTEGER NOT NULL,
    worker TEXT,
    PRIMARY KEY (queue_id, key)
) STRICT, WITHOUT ROWID;
