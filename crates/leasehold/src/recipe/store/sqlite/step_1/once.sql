-- Idempotency keys: one row for each (scope, key), with the newest token and the answer.
CREATE TABLE leasehold_once (
    scope TEXT NOT NULL,
    key TEXT NOT NULL,
    token INTEGER NOT NULL,
    until INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    asked BLOB NOT NULL,
    status INTEGER,
    answer BLOB,
    PRIMARY KEY (scope, key)
) STRICT;
CREATE INDEX leasehold_once_age ON leasehold_once (expires_at);
