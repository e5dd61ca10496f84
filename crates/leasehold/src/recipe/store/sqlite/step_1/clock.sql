-- The clock of the file, which also gives tokens. It is the wall clock, and never goes back.
CREATE TABLE leasehold_clock (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    token INTEGER NOT NULL,
    at INTEGER NOT NULL
) STRICT;
INSERT INTO leasehold_clock VALUES (1, 0, 0);
