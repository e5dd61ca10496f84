-- The engine in PostgreSQL, layout 1: tables and functions. See ARCHITECTURE.md and the header of mod.rs.
--
-- @. stands for the quoted schema and a dot, @K for a class of advisory locks (a hash of the schema's name), @N for the same as text,
-- @SAFE for SECURITY DEFINER with a safe search_path, @BY_KEY for planner settings: every statement finds its rows by key, and the planner
-- must not learn otherwise from an empty table. Run in one transaction by the owner.
--
-- Locks: every writing function first takes the gate (@K # 1, 0) shared, then the locks (@K, hash of name) of all its names in order, and
-- then reads. Locks that turn out to be needed later are only tried. (@K # 1, 1) is for raising tokens.

CREATE SCHEMA IF NOT EXISTS @;

CREATE TABLE @.meta (
 one     boolean PRIMARY KEY DEFAULT true CHECK (one),
 layout  integer NOT NULL, -- of these tables and functions
 history text    NOT NULL, -- the timeline of the watch
 swept   bigint  NOT NULL DEFAULT 0 -- when the last sweep began
);
CREATE TABLE @.watch_state ( -- whether anybody watches
 one   boolean PRIMARY KEY DEFAULT true CHECK (one),
 run   bigint NOT NULL,
 last  bigint NOT NULL, -- number of the newest event
 until bigint NOT NULL -- somebody watches until this moment
) WITH (fillfactor = 10);
CREATE TABLE @.lease ( -- a lease, a waiting claim, an ending, or a ban
 handle  uuid     PRIMARY KEY,
 secret  uuid     NOT NULL,
 state   "char"   NOT NULL, -- W waiting · L live (lapsed when ends <= now) · R released · V revoked · X banned
 single  boolean  NOT NULL, -- one name, exclusive
 lapse_logged boolean NOT NULL DEFAULT false, -- an event says that it lapsed
 token   bigint   UNIQUE, -- null until granted
 granted bigint, ends bigint, cap_at bigint, -- microseconds; no renewal goes past cap_at, null: no cap
 ended   bigint, -- when it was released or revoked, or the ban is over
 ttl     integer  NOT NULL, delay integer NOT NULL, max_hold bigint, -- milliseconds
 fingerprint bigint, -- of the claim; null without a request id
 label   text     NOT NULL,
 names   text[] COLLATE "C" NOT NULL, counts integer[] NOT NULL, capacities integer[] NOT NULL,
 arrival bigint, since bigint, patience bigint, processes bigint[] -- only while waiting
) WITH (fillfactor = 50); -- each row is updated about once, on its own page
-- Waiting claims and bans, for the sweep. It has no column that a renewal or a release changes: those stay on their page.
CREATE INDEX ON @.lease (handle) WHERE token IS NULL;
CREATE TABLE @.resource ( -- a name in use, or used a moment ago
 name     text COLLATE "C" PRIMARY KEY,
 held     "char"  NOT NULL, -- - free · x · s · p
 holder   uuid, -- of x
 capacity integer NOT NULL DEFAULT 0,
 queue    integer NOT NULL DEFAULT 0,
 used     bigint  NOT NULL -- when it was last taken or freed
) WITH (fillfactor = 60);
CREATE TABLE @.shared_holder ( -- holders of s and p
 name text COLLATE "C", handle uuid, count integer NOT NULL, PRIMARY KEY (name, handle)
);
CREATE TABLE @.queue ( -- a waiting claim, once for each of its names
 name text COLLATE "C", arrival bigint, handle uuid NOT NULL, count integer NOT NULL, capacity integer NOT NULL,
 PRIMARY KEY (name, arrival)
);
CREATE TABLE @.process ( -- an engine that has waiters
 id bigint PRIMARY KEY, channel text NOT NULL, seen bigint NOT NULL,
 revived boolean NOT NULL DEFAULT false -- counted as seen by somebody else, once
) WITH (fillfactor = 50);
CREATE TABLE @.event (
 number bigint PRIMARY KEY, kind "char" NOT NULL, token bigint, label text NOT NULL, names text[] NOT NULL,
 reason text NOT NULL, at bigint NOT NULL, handle uuid, ends bigint
);
CREATE SEQUENCE @.token CACHE 1;
CREATE SEQUENCE @.arrival CACHE 1;
CREATE SEQUENCE @.timeline CACHE 1; -- its value: the timeline for which the tokens were raised. A table would keep a row lock until commit

CREATE FUNCTION @.now_us() RETURNS bigint LANGUAGE sql VOLATILE AS
$$ SELECT (date_part('epoch', clock_timestamp()) * 1e6)::bigint $$;

CREATE FUNCTION @.history() RETURNS text LANGUAGE sql VOLATILE AS
$$ SELECT left(pg_walfile_name(pg_current_wal_lsn()), 8) $$;

SELECT setval('@.token', @.now_us());
SELECT setval('@.timeline', ('x' || @.history())::bit(32)::bigint);
INSERT INTO @.meta (layout, history) VALUES (1, @.history());
INSERT INTO @.watch_state (run, last, until) VALUES (0, 0, 0);

