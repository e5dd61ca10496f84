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

-- The next token. The sequence keeps the order of tokens; the clock keeps it if the sequence was set back.
-- setval runs only where the sequence is a million behind, so that no nextval beside it can be undone. It is not undone with its
-- transaction, and so its lock need not wait for the commit: it ends with a subtransaction that is rolled back, even by an error.
CREATE FUNCTION @.next_token(v_now bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE v_token bigint := nextval('@.token'); v_line bigint := ('x' || @.history())::bit(32)::bigint;
BEGIN
 IF v_token >= v_now - 1000000 AND (SELECT last_value FROM @.timeline) = v_line THEN RETURN v_token; END IF;
 BEGIN
  PERFORM pg_advisory_xact_lock(@K # 1, 1);
  IF (SELECT last_value FROM @.timeline) <> v_line THEN
 -- A promoted standby: tokens that were given out after its history ended are not known here.
   PERFORM setval('@.token', greatest(nextval('@.token') + 1000000, v_now));
   PERFORM setval('@.timeline', v_line);
  ELSIF nextval('@.token') < v_now - 1000000 THEN
   PERFORM setval('@.token', v_now);
  END IF;
  RAISE EXCEPTION 'raised' USING ERRCODE = 'LH104';
 EXCEPTION WHEN SQLSTATE 'LH104' THEN NULL;
 END;
 RETURN nextval('@.token');
END $$;

-- What is written in this session must survive a crash, and be seen by whoever has the locks next.
CREATE FUNCTION @.check_session() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
 IF current_setting('synchronous_commit') IN ('off', 'local') THEN
  RAISE EXCEPTION 'leasehold needs synchronous_commit' USING ERRCODE = 'LH102';
 END IF;
END $$;

-- Gives this transaction something to commit. Its commit then waits for the disk and for the synchronous standbys, and so for
-- everything that was committed before it and is told here: an earlier commit may be visible although no standby has it.
CREATE FUNCTION @.wait_for_standbys() RETURNS void LANGUAGE sql AS $$ SELECT pg_logical_emit_message(true, 'leasehold', '') $$;

CREATE FUNCTION @.log_event(v_kind "char", l @.lease, v_reason text, v_now bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE n bigint;
BEGIN
 UPDATE @.watch_state SET last = last + 1 WHERE until > v_now RETURNING last INTO n;
 IF FOUND THEN
  INSERT INTO @.event VALUES (n, v_kind, l.token, l.label, l.names, v_reason, v_now, l.handle, l.ends);
  PERFORM pg_notify('leasehold_events_@N', '');
 END IF;
END $$;

-- Ends by time what is over on one name (its lock is held), and returns the state of the name. due: when it changes next by time.
CREATE FUNCTION @.settle_name(v_name text, v_now bigint, watched boolean,
  OUT held "char", OUT holder uuid, OUT used bigint, OUT capacity integer, OUT queue integer, OUT due bigint)
LANGUAGE plpgsql AS $$
DECLARE l @.lease; r @.resource; u record; was "char"; was_capacity integer;
BEGIN
 SELECT * INTO r FROM @.resource t WHERE t.name = v_name;
 IF NOT FOUND THEN
  held := '-'; used := 0; capacity := 0; queue := 0; RETURN;
 END IF;
 was := r.held; was_capacity := r.capacity;
 used := 0; due := NULL;
 IF r.held = 'x' THEN
  SELECT * INTO l FROM @.lease t WHERE t.handle = r.holder;
  IF watched AND FOUND AND l.state = 'L' AND l.ends <= v_now AND NOT l.lapse_logged THEN
   PERFORM @.log_event('X', l, '', v_now);
   UPDATE @.lease t SET lapse_logged = true WHERE t.handle = l.handle;
  END IF;
  IF l.handle IS NULL OR l.state <> 'L' OR l.ends + l.delay * 1000::bigint <= v_now THEN
   r.held := '-'; r.holder := NULL;
  ELSE
   due := CASE WHEN l.ends > v_now THEN l.ends ELSE l.ends + l.delay * 1000::bigint END;
   IF l.delay > 0 AND l.ends > v_now THEN due := l.ends + l.delay * 1000::bigint; END IF;
  END IF;
 ELSIF r.held IN ('s', 'p') THEN
  FOR u IN SELECT c.handle AS h, c.count AS n, t AS lease FROM @.shared_holder c LEFT JOIN @.lease t ON t.handle = c.handle WHERE c.name = v_name LOOP
   l := u.lease;
   IF watched AND l.handle IS NOT NULL AND l.state = 'L' AND l.ends <= v_now AND NOT l.lapse_logged THEN
    PERFORM @.log_event('X', l, '', v_now);
    UPDATE @.lease t SET lapse_logged = true WHERE t.handle = l.handle;
   END IF;
   IF l.handle IS NULL OR l.state <> 'L' OR l.ends + l.delay * 1000::bigint <= v_now THEN
    DELETE FROM @.shared_holder c WHERE c.name = v_name AND c.handle = u.h;
   ELSE
    used := used + greatest(u.n, 1);
    due := least(due, l.ends + l.delay * 1000::bigint);
   END IF;
  END LOOP;
  IF used = 0 THEN r.held := '-'; END IF;
 END IF;
 IF r.queue = 0 AND r.held IN ('-', 'x') THEN r.capacity := 0; END IF;
 IF r.held <> was OR r.capacity <> was_capacity THEN
  UPDATE @.resource t SET held = r.held, holder = r.holder, capacity = r.capacity WHERE t.name = v_name;
 END IF;
 held := r.held; holder := r.holder; capacity := r.capacity; queue := r.queue;
END $$;

-- Whether holders (held, used) and earlier claims (x, s, p added up) leave room for n permits of the capacity (0: exclusive, -1: shared).
CREATE FUNCTION @.has_room(held "char", used bigint, x bigint, s bigint, p bigint, n integer, capacity integer) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
 SELECT x = 0 AND CASE
  WHEN n = 0 THEN held = '-' AND s = 0 AND p = 0
  WHEN n < 0 THEN held IN ('-', 's') AND p = 0
  ELSE held IN ('-', 'p') AND s = 0 AND used + p + n <= capacity END
$$;

-- Takes the names of a granted claim. Their locks are held.
CREATE FUNCTION @.take_names(l @.lease, v_now bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
 FOR i IN 1 .. cardinality(l.names) LOOP
  INSERT INTO @.resource AS t (name, held, holder, capacity, used)
  VALUES (l.names[i], CASE WHEN l.counts[i] = 0 THEN 'x' WHEN l.counts[i] < 0 THEN 's' ELSE 'p' END::"char",
      CASE WHEN l.counts[i] = 0 THEN l.handle END, l.capacities[i], v_now)
  ON CONFLICT (name) DO UPDATE SET held = excluded.held, holder = excluded.holder,
   capacity = CASE WHEN excluded.capacity > 0 THEN excluded.capacity ELSE t.capacity END, used = excluded.used;
  IF l.counts[i] <> 0 THEN
   INSERT INTO @.shared_holder VALUES (l.names[i], l.handle, l.counts[i]);
  END IF;
 END LOOP;
END $$;

-- Frees the names of an ended lease, where they are still its own. Their locks are held.
CREATE FUNCTION @.free_names(l @.lease, v_now bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
 FOR i IN 1 .. cardinality(l.names) LOOP
  IF l.counts[i] = 0 THEN
   UPDATE @.resource t SET held = '-', holder = NULL, used = v_now, capacity = CASE WHEN queue = 0 THEN 0 ELSE capacity END
   WHERE t.name = l.names[i] AND t.holder = l.handle;
  ELSE
   DELETE FROM @.shared_holder c WHERE c.name = l.names[i] AND c.handle = l.handle;
  END IF;
 END LOOP;
END $$;

-- Removes a waiting claim from the queues of its names. Their locks are held.
CREATE FUNCTION @.leave_queue(l @.lease) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
 DELETE FROM @.queue t WHERE t.name = ANY (l.names) AND t.arrival = l.arrival;
 UPDATE @.resource t SET queue = queue - 1,
  capacity = CASE WHEN queue = 1 AND held IN ('-', 'x') THEN 0 ELSE capacity END WHERE t.name = ANY (l.names);
END $$;

-- Locks names without waiting. False: another transaction has one of them.
CREATE FUNCTION @.try_lock_names(v_names text[]) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
 FOR i IN 1 .. cardinality(v_names) LOOP
  IF NOT pg_try_advisory_xact_lock(@K, hashtext(v_names[i])) THEN RETURN false; END IF;
 END LOOP;
 RETURN true;
END $$;

-- Sends a message to the processes in which a claim waits.
CREATE FUNCTION @.notify_waiter(l @.lease, v_text text) RETURNS void LANGUAGE sql AS $$
 SELECT pg_notify(p.channel, v_text) FROM @.process p WHERE p.id = ANY (l.processes)
$$;

-- Whether one of these processes lives. If nobody at all was seen for 10 s, the server was away or its clock was set: whoever lived then
-- has 10 s from now, once, to be seen again.
CREATE FUNCTION @.lives(v_processes bigint[], v_now bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE v_newest bigint;
BEGIN
 IF EXISTS (SELECT FROM @.process t WHERE t.id = ANY (v_processes) AND t.seen > v_now - 10000000) THEN RETURN true; END IF;
 SELECT max(t.seen) INTO v_newest FROM @.process t;
 IF v_newest <= v_now - 10000000 THEN
 -- In order, as everybody does it: no deadlock.
  PERFORM FROM @.process t WHERE NOT t.revived AND t.seen > v_newest - 10000000 AND t.seen <= v_now - 10000000 ORDER BY t.id FOR UPDATE;
  UPDATE @.process t SET seen = v_now, revived = true
  WHERE NOT t.revived AND t.seen > v_newest - 10000000 AND t.seen <= v_now - 10000000;
 END IF;
 RETURN EXISTS (SELECT FROM @.process t WHERE t.id = ANY (v_processes) AND t.seen > v_now - 10000000);
END $$;

-- Re-examines the queues of these names and grants what has become possible. Locks that are not held are only tried: no deadlock.
CREATE FUNCTION @.serve_queues(todo text[], v_now bigint, watched boolean) RETURNS void LANGUAGE plpgsql AS $$
DECLARE v_name text; r record; o record; w record; e record; l @.lease; ok boolean;
 x bigint; s bigint; p bigint; ox bigint; os bigint; op bigint; head uuid; budget integer := 64; changed text[] := '{}'; -- names whose queue got shorter in this call
BEGIN
 WHILE cardinality(todo) > 0 LOOP
  v_name := todo[cardinality(todo)];
  todo := trim_array(todo, 1);
  CONTINUE WHEN NOT EXISTS (SELECT FROM @.queue t WHERE t.name = v_name);
  IF NOT pg_try_advisory_xact_lock(@K, hashtext(v_name)) THEN
 -- Another transaction has the name, perhaps with a snapshot before our change: the head of that queue must check again.
   SELECT q.* INTO l FROM @.queue t JOIN @.lease q ON q.handle = t.handle WHERE t.name = v_name ORDER BY t.arrival LIMIT 1;
   IF FOUND THEN PERFORM @.notify_waiter(l, 'L ' || l.handle || ' 0'); END IF;
   CONTINUE;
  END IF;
  SELECT * INTO r FROM @.settle_name(v_name, v_now, watched);
  x := 0; s := 0; p := 0; head := NULL;
  FOR w IN SELECT t.handle, t.arrival, t.count, t.capacity FROM @.queue t WHERE t.name = v_name ORDER BY t.arrival LOOP
   EXIT WHEN (r.held = 'x' OR x > 0) AND head IS NOT NULL;
   SELECT * INTO l FROM @.lease t WHERE t.handle = w.handle;
   IF l.patience <= v_now OR NOT @.lives(l.processes, v_now) THEN
    IF @.try_lock_names(l.names) THEN
     PERFORM @.leave_queue(l);
     DELETE FROM @.lease t WHERE t.handle = l.handle;
     todo := todo || array_remove(l.names, v_name);
     changed := changed || l.names;
    END IF;
    CONTINUE;
   END IF;
   ok := x = 0 AND @.has_room(r.held, r.used, x, s, p, w.count, w.capacity);
   IF ok AND budget = 0 THEN
 -- Enough for one transaction: the heads of what is left check by themselves.
    PERFORM @.notify_waiter(l, 'L ' || l.handle || ' 0');
    PERFORM @.wake_heads(todo || changed, 0);
    RETURN;
   END IF;
   IF ok AND cardinality(l.names) > 1 THEN
    IF NOT @.try_lock_names(l.names) THEN
     PERFORM @.notify_waiter(l, 'L ' || l.handle || ' 0');
     ok := false;
    ELSE
     FOR i IN 1 .. cardinality(l.names) LOOP
      CONTINUE WHEN l.names[i] = v_name;
      SELECT * INTO o FROM @.settle_name(l.names[i], v_now, watched);
      SELECT count(*) FILTER (WHERE t.count = 0), count(*) FILTER (WHERE t.count < 0), coalesce(sum(t.count) FILTER (WHERE t.count > 0), 0)
      INTO ox, os, op FROM @.queue t JOIN @.lease q ON q.handle = t.handle
      WHERE t.name = l.names[i] AND t.arrival < l.arrival AND q.patience > v_now
       AND EXISTS (SELECT FROM @.process z WHERE z.id = ANY (q.processes) AND z.seen > v_now - 10000000);
      ok := @.has_room(o.held, o.used, ox, os, op, l.counts[i], l.capacities[i]);
      EXIT WHEN NOT ok;
     END LOOP;
    END IF;
   END IF;
   IF ok THEN
    budget := budget - 1;
    changed := changed || l.names;
    PERFORM @.leave_queue(l);
    l.state := 'L'; l.token := @.next_token(v_now); l.granted := v_now;
    l.cap_at := v_now + l.max_hold * 1000;
    l.ends := least(v_now + l.ttl * 1000::bigint, l.cap_at);
    UPDATE @.lease t SET state = 'L', token = l.token, granted = l.granted, cap_at = l.cap_at, ends = l.ends, processes = NULL WHERE t.handle = l.handle;
    PERFORM @.take_names(l, v_now);
    IF watched THEN PERFORM @.log_event('G', l, '', v_now); END IF;
 -- A message comes even from a commit whose wait for a standby was cancelled: then the waiter checks, which waits for the standby.
    PERFORM @.notify_waiter(l, CASE WHEN current_setting('synchronous_standby_names') <> '' THEN 'L ' || l.handle || ' 0'
     ELSE 'G ' || l.handle || ' ' || l.token || ' ' || (l.ends - v_now) || ' ' || coalesce((l.cap_at - v_now)::text, '-') END);
    todo := todo || array_remove(l.names, v_name);
    SELECT * INTO r FROM @.settle_name(v_name, v_now, watched);
   ELSE
    head := coalesce(head, l.handle);
    IF w.count = 0 THEN x := x + 1; ELSIF w.count < 0 THEN s := s + 1; ELSE p := p + w.count; END IF;
   END IF;
  END LOOP;
 -- The new head of the queue watches the time.
  IF head IS NOT NULL AND v_name = ANY (changed) THEN
   SELECT * INTO l FROM @.lease t WHERE t.handle = head;
   PERFORM @.notify_waiter(l, 'L ' || head || ' ' || CASE WHEN r.due IS NULL THEN -1 ELSE greatest(r.due - v_now, 0) END);
  END IF;
 END LOOP;
END $$;

-- What blocks a name, for a refusal: the holder that is shown, and how long it has.
CREATE FUNCTION @.find_blocker(v_name text, v_now bigint, OUT label text, OUT token bigint, OUT remaining bigint, OUT queue integer)
LANGUAGE plpgsql AS $$
BEGIN
 SELECT l.label, l.token, l.ends - v_now INTO label, token, remaining
 FROM (SELECT r.holder AS handle FROM @.resource r WHERE r.name = v_name AND r.held = 'x'
    UNION ALL SELECT c.handle FROM @.shared_holder c WHERE c.name = v_name) h
 JOIN @.lease l ON l.handle = h.handle WHERE l.state = 'L' AND l.ends > v_now ORDER BY l.token LIMIT 1;
 SELECT r.queue INTO queue FROM @.resource r WHERE r.name = v_name;
 queue := coalesce(queue, 0);
END $$;

-- The first statement of every writing function: checks, gate, locks, and then the clock.
-- Never call it in the statement that reads what the locks protect: that statement's snapshot would be older than the locks.
-- v_names: names of claims. v_known: handles whose names are locked. v_alone: handles that are locked themselves.
CREATE FUNCTION @.begin_write(v_names text[], v_known uuid[], v_alone uuid[], OUT now bigint, OUT watched boolean) LANGUAGE plpgsql AS $$
DECLARE v_until bigint;
BEGIN
 IF current_setting('transaction_isolation') <> 'read committed' THEN
  RAISE EXCEPTION 'leasehold needs read committed' USING ERRCODE = 'LH101';
 END IF;
 PERFORM @.check_session();
 -- Behind a pooler nobody has set it.
 IF current_setting('lock_timeout') = '0' THEN PERFORM set_config('lock_timeout', '2000', true); END IF;
 PERFORM pg_advisory_xact_lock_shared(@K # 1, 0);
 IF cardinality(v_known) > 0 THEN
  v_names := v_names || (SELECT array_agg(n) FROM @.lease l, unnest(l.names) n WHERE l.handle = ANY (v_known));
 END IF;
 IF cardinality(v_alone) > 0 THEN v_names := v_names || v_alone::text[]; END IF;
 PERFORM pg_advisory_xact_lock(@K, h) FROM (SELECT DISTINCT hashtext(n) AS h FROM unnest(v_names) n ORDER BY 1) s;
 -- From here on every statement sees all that was committed before the locks were granted.
 SELECT until INTO v_until FROM @.watch_state;
 now := @.now_us();
 watched := v_until > now;
 IF watched THEN
  PERFORM FROM @.watch_state FOR UPDATE;
  now := @.now_us();
  UPDATE @.meta SET history = @.history() WHERE history <> @.history();
  IF FOUND THEN
 -- A promoted standby: watchers may know events that are lost. They get a new run.
   UPDATE @.watch_state SET until = 0;
   watched := false;
  END IF;
 END IF;
END $$;

-- Many callers, one statement, one commit. No handle comes twice in a batch.
CREATE FUNCTION @.batch(
  p_kinds "char"[], -- f a claim on one exclusive name that no other claim of this batch names · a any other claim · r release · n renew · l relabel
  p_handles uuid[], p_secrets uuid[],
  p_firsts text[], -- f: the name · r, n, l: the name if it is known and the only one, else null
  p_spans bigint[], -- ms. f, a: ttl · n: ttl or null (the last one) · r: ban or null
  p_waits bigint[], p_holds bigint[], p_delays bigint[], p_fingerprints bigint[], p_labels text[], -- f, a (p_labels: also l)
  p_ats integer[], p_names text[], p_counts integer[], p_capacities integer[], -- a: wants of all of them
  p_known uuid[], -- handles of r, n and l without a name in p_firsts
  p_alone uuid[], -- handles of claims with a request id
  p_self bigint, p_most integer)
RETURNS TABLE (handle uuid, verdict "char", token bigint, remaining bigint, renewable bigint, proof uuid, name text, holder text, queue integer)
LANGUAGE plpgsql @SAFE @BY_KEY
AS $$
#variable_conflict use_column
DECLARE
 v_now bigint; v_watched boolean; v_i integer; l @.lease; r record; v_found boolean; v_done uuid[] := '{}'; v_n integer;
 v_names text[]; v_counts integer[]; v_capacities integer[]; x bigint; s bigint; p bigint; v_blocked text; v_bad text;
 v_left integer := cardinality(p_kinds); v_told boolean := false; -- of something that an earlier transaction did
BEGIN
 SELECT t.now, t.watched INTO v_now, v_watched FROM @.begin_write(p_firsts || p_names, p_known, p_alone) t;

 IF NOT v_watched AND 'r' = ANY (p_kinds) THEN
 -- Releases of one exclusive name for which nobody waits.
  RETURN QUERY
  WITH d AS (
   UPDATE @.lease t SET state = 'R', ended = v_now FROM unnest(p_kinds, p_handles, p_secrets, p_spans) u(k, h, c, b)
   WHERE u.k = 'r' AND u.b IS NULL AND t.handle = u.h AND t.secret = u.c AND t.state = 'L' AND t.ends > v_now AND t.single
    AND EXISTS (SELECT FROM @.resource q WHERE q.name = t.names[1] AND q.holder = t.handle AND q.queue = 0)
   RETURNING t.handle, t.names[1] AS n),
  f AS (UPDATE @.resource q SET held = '-', holder = NULL, used = v_now FROM d WHERE q.name = d.n)
  SELECT d.handle, '1'::"char", NULL::bigint, NULL::bigint, NULL::bigint, NULL::uuid, NULL::text, NULL::text, NULL::integer FROM d;
  GET DIAGNOSTICS v_n = ROW_COUNT;
  v_left := v_left - v_n;
  IF v_left > 0 AND v_n > 0 THEN
   SELECT array_agg(t.handle) INTO v_done FROM unnest(p_kinds, p_handles) u(k, h) JOIN @.lease t ON t.handle = u.h
   WHERE u.k = 'r' AND t.state = 'R' AND t.xmin = pg_current_xact_id()::xid;
  END IF;
 END IF;
 IF NOT v_watched AND v_left > 0 AND 'f' = ANY (p_kinds) THEN
 -- Claims on one exclusive name that is free.
  PERFORM @.next_token(v_now);
  RETURN QUERY
  WITH c AS MATERIALIZED (
   SELECT u.* FROM unnest(p_kinds, p_handles, p_secrets, p_firsts, p_spans, p_holds, p_delays, p_fingerprints, p_labels) u(k, h, c, n, t, m, d, f, l)
   WHERE u.k = 'f'
    AND NOT EXISTS (SELECT FROM @.resource q WHERE q.name = u.n AND (q.held <> '-' OR q.queue > 0))
    AND NOT EXISTS (SELECT FROM @.lease t WHERE t.handle = u.h)),
  q AS (
   INSERT INTO @.resource (name, held, holder, used) SELECT c.n, 'x', c.h, v_now FROM c
   ON CONFLICT (name) DO UPDATE SET held = 'x', holder = excluded.holder, used = excluded.used),
  g AS (
   INSERT INTO @.lease AS t (handle, secret, state, single, token, granted, ends, cap_at, ttl, delay, max_hold, fingerprint, label, names, counts, capacities)
   SELECT c.h, c.c, 'L', true, nextval('@.token'), v_now, least(v_now + c.t * 1000, v_now + c.m * 1000), v_now + c.m * 1000,
      c.t, c.d, c.m, c.f, c.l, ARRAY[c.n], '{0}', '{0}' FROM c
   RETURNING t.handle, t.token, t.ends, t.cap_at)
  SELECT g.handle, 'G'::"char", g.token, g.ends - v_now, g.cap_at - v_now, NULL::uuid, NULL::text, NULL::text, NULL::integer FROM g;
  GET DIAGNOSTICS v_n = ROW_COUNT;
  v_left := v_left - v_n;
  IF v_left > 0 THEN
   IF v_n > 0 THEN
    SELECT v_done || array_agg(t.handle) INTO v_done FROM unnest(p_kinds, p_handles) u(k, h) JOIN @.lease t ON t.handle = u.h
    WHERE u.k = 'f' AND t.state = 'L' AND t.xmin = pg_current_xact_id()::xid;
   END IF;
 -- Those who do not wait, on a name that somebody has.
   SELECT array_agg(u.h) INTO v_names FROM unnest(p_kinds, p_handles, p_firsts, p_waits) u(k, h, n, w)
   JOIN @.resource q ON q.name = u.n JOIN @.lease t ON t.handle = q.holder
   WHERE u.k = 'f' AND u.w = 0 AND q.held = 'x' AND t.state = 'L' AND t.ends > v_now AND NOT u.h = ANY (v_done)
    AND NOT EXISTS (SELECT FROM @.lease z WHERE z.handle = u.h);
   IF cardinality(v_names) > 0 THEN
    RETURN QUERY SELECT u.h, 'H'::"char", t.token, t.ends - v_now, NULL::bigint, NULL::uuid, u.n, t.label, q.queue
    FROM unnest(p_handles, p_firsts) u(h, n) JOIN @.resource q ON q.name = u.n JOIN @.lease t ON t.handle = q.holder
    WHERE u.h = ANY (v_names::uuid[]);
    v_left := v_left - cardinality(v_names);
    v_done := v_done || v_names::uuid[];
   END IF;
  END IF;
 END IF;
 IF v_left = 0 THEN RETURN; END IF;

 -- Everything else, one by one.
 FOR v_i IN SELECT i FROM generate_subscripts(p_kinds, 1) i WHERE NOT p_handles[i] = ANY (v_done) ORDER BY i LOOP
  handle := p_handles[v_i];
  token := NULL; remaining := NULL; renewable := NULL; proof := NULL; name := NULL; holder := NULL; queue := NULL;
  SELECT * INTO l FROM @.lease t WHERE t.handle = p_handles[v_i];
  v_found := FOUND;

  IF p_kinds[v_i] IN ('r', 'n', 'l') THEN
   IF NOT v_found THEN
    IF p_kinds[v_i] = 'r' AND p_spans[v_i] IS NOT NULL THEN
     INSERT INTO @.lease (handle, secret, state, single, ended, ttl, delay, label, names, counts, capacities)
     VALUES (p_handles[v_i], p_secrets[v_i], 'X', false, v_now + p_spans[v_i] * 1000, 0, 0, '', '{}', '{}', '{}');
    END IF;
    verdict := 'N'; RETURN NEXT; CONTINUE;
   END IF;
   IF l.secret <> p_secrets[v_i] OR l.state IN ('W', 'X') THEN
    verdict := 'N'; RETURN NEXT; CONTINUE;
   END IF;
   IF l.state = 'R' THEN
    v_told := true; verdict := CASE p_kinds[v_i] WHEN 'r' THEN '0' ELSE 'S' END; RETURN NEXT; CONTINUE;
   END IF;
   IF l.state = 'V' OR l.ends <= v_now OR NOT @.still_holds(l) THEN
    IF v_watched AND l.state = 'L' AND NOT l.lapse_logged THEN
     PERFORM @.log_event('X', l, '', v_now);
     UPDATE @.lease t SET lapse_logged = true WHERE t.handle = l.handle;
    END IF;
    PERFORM @.serve_queues(l.names, v_now, v_watched);
    v_told := true; verdict := 'S'; RETURN NEXT; CONTINUE;
   END IF;
   IF p_kinds[v_i] = 'r' THEN
    UPDATE @.lease t SET state = 'R', ended = v_now WHERE t.handle = l.handle;
    PERFORM @.free_names(l, v_now);
    IF v_watched THEN PERFORM @.log_event('R', l, '', v_now); END IF;
    PERFORM @.serve_queues(l.names, v_now, v_watched);
    verdict := '1'; RETURN NEXT; CONTINUE;
   END IF;
   IF p_kinds[v_i] = 'l' THEN
    l.label := p_labels[v_i];
    UPDATE @.lease t SET label = l.label WHERE t.handle = l.handle;
    IF v_watched THEN PERFORM @.log_event('B', l, '', v_now); END IF;
    verdict := 'R'; remaining := l.ends - v_now; renewable := l.cap_at - v_now; RETURN NEXT; CONTINUE;
   END IF;
   l.ttl := coalesce(p_spans[v_i], l.ttl);
   x := l.ends;
   l.ends := least(v_now + l.ttl * 1000::bigint, l.cap_at);
   UPDATE @.lease t SET ttl = l.ttl, ends = l.ends WHERE t.handle = l.handle;
   IF l.ends < x THEN PERFORM @.wake_heads(l.names, l.ends + l.delay * 1000::bigint - v_now); END IF;
   verdict := 'R'; remaining := l.ends - v_now; renewable := l.cap_at - v_now; RETURN NEXT; CONTINUE;
  END IF;

 -- An acquire that was here before.
  IF v_found THEN
   IF l.state = 'W' AND l.patience <= v_now THEN
    IF @.try_lock_names(l.names) THEN
     PERFORM @.leave_queue(l);
     DELETE FROM @.lease t WHERE t.handle = l.handle;
     PERFORM @.serve_queues(l.names, v_now, v_watched);
     PERFORM @.wake_heads(l.names, 0);
     v_found := false;
    END IF;
   ELSIF l.state = 'X' AND l.ended <= v_now THEN
    DELETE FROM @.lease t WHERE t.handle = l.handle;
    v_found := false;
   END IF;
  END IF;
  IF v_found THEN
   IF l.state = 'X' THEN verdict := 'X';
   ELSIF l.fingerprint IS DISTINCT FROM p_fingerprints[v_i] THEN verdict := 'M';
   ELSIF l.fingerprint IS NULL AND l.secret <> p_secrets[v_i] THEN verdict := 'C';
   ELSIF l.state = 'W' THEN
    l.patience := greatest(l.patience, v_now + p_waits[v_i] * 1000);
    UPDATE @.lease t SET patience = l.patience,
     processes = CASE WHEN p_self = ANY (t.processes) THEN t.processes ELSE t.processes || p_self END WHERE t.handle = l.handle;
    verdict := 'W'; proof := l.secret; remaining := l.patience - v_now; renewable := @.next_due(l, v_now);
   ELSE
    v_told := true; verdict := 'g'; token := l.token; proof := l.secret;
    remaining := CASE WHEN l.state = 'L' AND @.still_holds(l) THEN greatest(l.ends - v_now, 0) ELSE 0 END;
    renewable := CASE WHEN remaining > 0 THEN l.cap_at - v_now END;
   END IF;
   RETURN NEXT; CONTINUE;
  END IF;

  IF p_kinds[v_i] = 'f' THEN
   v_names := ARRAY[p_firsts[v_i]]; v_counts := '{0}'; v_capacities := '{0}';
  ELSE
   SELECT array_agg(u.n ORDER BY u.i), array_agg(u.c ORDER BY u.i), array_agg(u.m ORDER BY u.i) INTO v_names, v_counts, v_capacities
   FROM unnest(p_ats, p_names, p_counts, p_capacities) WITH ORDINALITY u(a, n, c, m, i) WHERE u.a = v_i;
  END IF;
 -- Waiting claims come first: something may have ended by time.
  PERFORM @.serve_queues(v_names, v_now, v_watched);
  v_blocked := NULL; v_bad := NULL;
  FOR i IN 1 .. cardinality(v_names) LOOP
   SELECT * INTO r FROM @.settle_name(v_names[i], v_now, v_watched);
   IF v_capacities[i] > 0 AND r.capacity > 0 AND r.capacity <> v_capacities[i] THEN
    v_bad := v_names[i]; queue := r.capacity; EXIT;
   END IF;
   CONTINUE WHEN v_blocked IS NOT NULL;
   x := 0; s := 0; p := 0;
   IF r.queue > 0 AND v_counts[i] = 0 THEN
 -- Whoever waits is in the way.
    x := EXISTS (SELECT FROM @.queue t JOIN @.lease q ON q.handle = t.handle WHERE t.name = v_names[i] AND q.patience > v_now
     AND EXISTS (SELECT FROM @.process z WHERE z.id = ANY (q.processes) AND z.seen > v_now - 10000000))::integer;
   ELSIF r.queue > 0 THEN
    SELECT count(*) FILTER (WHERE t.count = 0), count(*) FILTER (WHERE t.count < 0), coalesce(sum(t.count) FILTER (WHERE t.count > 0), 0)
    INTO x, s, p FROM @.queue t JOIN @.lease q ON q.handle = t.handle
    WHERE t.name = v_names[i] AND q.patience > v_now
     AND EXISTS (SELECT FROM @.process z WHERE z.id = ANY (q.processes) AND z.seen > v_now - 10000000);
   END IF;
   IF NOT @.has_room(r.held, r.used, x, s, p, v_counts[i], v_capacities[i]) THEN v_blocked := v_names[i]; END IF;
  END LOOP;
  IF v_bad IS NOT NULL THEN
   verdict := 'I'; name := v_bad; RETURN NEXT; CONTINUE;
  END IF;
  l := NULL;
  l.handle := p_handles[v_i]; l.secret := p_secrets[v_i]; l.single := cardinality(v_names) = 1 AND v_counts[1] = 0; l.lapse_logged := false;
  l.ttl := p_spans[v_i]; l.delay := p_delays[v_i]; l.max_hold := p_holds[v_i]; l.fingerprint := p_fingerprints[v_i]; l.label := p_labels[v_i];
  l.names := v_names; l.counts := v_counts; l.capacities := v_capacities;
  IF v_blocked IS NULL THEN
   l.state := 'L'; l.token := @.next_token(v_now); l.granted := v_now; l.cap_at := v_now + l.max_hold * 1000;
   l.ends := least(v_now + l.ttl * 1000::bigint, l.cap_at);
   INSERT INTO @.lease SELECT l.*;
   PERFORM @.take_names(l, v_now);
   IF v_watched THEN PERFORM @.log_event('G', l, '', v_now); END IF;
   verdict := 'G'; token := l.token; remaining := l.ends - v_now; renewable := l.cap_at - v_now; RETURN NEXT; CONTINUE;
  END IF;
  IF p_waits[v_i] = 0 THEN
   verdict := 'H'; name := v_blocked;
   SELECT t.label, t.token, t.remaining, t.queue INTO holder, token, remaining, queue FROM @.find_blocker(v_blocked, v_now) t;
   RETURN NEXT; CONTINUE;
  END IF;
  SELECT t.name INTO v_bad FROM @.resource t WHERE t.name = ANY (v_names) AND t.queue >= p_most LIMIT 1;
  IF FOUND THEN
   verdict := 'F'; name := v_bad; RETURN NEXT; CONTINUE;
  END IF;
  l.state := 'W'; l.arrival := nextval('@.arrival'); l.since := v_now; l.patience := v_now + p_waits[v_i] * 1000; l.processes := ARRAY[p_self];
  INSERT INTO @.lease SELECT l.*;
  FOR i IN 1 .. cardinality(v_names) LOOP
   INSERT INTO @.queue VALUES (v_names[i], l.arrival, l.handle, v_counts[i], v_capacities[i]);
   INSERT INTO @.resource AS t (name, held, capacity, queue, used) VALUES (v_names[i], '-', v_capacities[i], 1, v_now)
   ON CONFLICT (name) DO UPDATE SET queue = t.queue + 1, capacity = CASE WHEN excluded.capacity > 0 THEN excluded.capacity ELSE t.capacity END;
  END LOOP;
  verdict := 'W'; proof := l.secret; remaining := l.patience - v_now; renewable := @.next_due(l, v_now);
  RETURN NEXT;
 END LOOP;
 IF v_told THEN PERFORM @.wait_for_standbys(); END IF;
END $$;

-- Whether every name is still this lease's.
CREATE FUNCTION @.still_holds(l @.lease) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
 FOR i IN 1 .. cardinality(l.names) LOOP
  IF l.counts[i] = 0 THEN
   IF NOT EXISTS (SELECT FROM @.resource t WHERE t.name = l.names[i] AND t.holder = l.handle) THEN RETURN false; END IF;
  ELSIF NOT EXISTS (SELECT FROM @.shared_holder t WHERE t.name = l.names[i] AND t.handle = l.handle) THEN RETURN false;
  END IF;
 END LOOP;
 RETURN true;
END $$;

-- In how many microseconds a name of this waiting claim next changes by time, if the claim is the head of its queue. -1: it gets a message.
CREATE FUNCTION @.next_due(l @.lease, v_now bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE v bigint; r record;
BEGIN
 FOR i IN 1 .. cardinality(l.names) LOOP
  CONTINUE WHEN EXISTS (SELECT FROM @.queue t WHERE t.name = l.names[i] AND t.arrival < l.arrival);
  SELECT * INTO r FROM @.settle_name(l.names[i], v_now, false);
  IF r.due IS NOT NULL THEN v := least(v, greatest(r.due - v_now, 0)); END IF;
 END LOOP;
 RETURN coalesce(v, -1);
END $$;

-- The heads of these queues must check in v_us microseconds: the end of a holder came nearer, or the head changed.
CREATE FUNCTION @.wake_heads(v_names text[], v_us bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE l @.lease; n text;
BEGIN
 FOREACH n IN ARRAY v_names LOOP
  SELECT q.* INTO l FROM @.queue t JOIN @.lease q ON q.handle = t.handle WHERE t.name = n ORDER BY t.arrival LIMIT 1;
  IF FOUND THEN PERFORM @.notify_waiter(l, 'L ' || l.handle || ' ' || v_us); END IF;
 END LOOP;
END $$;

-- A process says that it lives. The claims of a process that was not seen for 10 s do not wait any more.
CREATE FUNCTION @.heartbeat(p_self bigint, p_channel text) RETURNS void LANGUAGE plpgsql @SAFE AS $$
BEGIN
 PERFORM @.lives(ARRAY[p_self], @.now_us()); -- before we are seen: the others have their 10 s as well
 INSERT INTO @.process VALUES (p_self, p_channel, @.now_us()) ON CONFLICT (id) DO UPDATE SET seen = excluded.seen, revived = false;
END $$;

-- As many of these handles as have 500 names together, and at least one: the table of locks has its bounds.
CREATE FUNCTION @.limit_names(v_handles uuid[]) RETURNS uuid[] LANGUAGE sql AS $$
 SELECT coalesce(array_agg(s.h ORDER BY s.i), '{}') FROM (SELECT u.h, u.i,
   sum(coalesce(cardinality(l.names), 0)) OVER (ORDER BY u.i) - coalesce(cardinality(l.names), 0) AS before
  FROM unnest(v_handles) WITH ORDINALITY u(h, i) LEFT JOIN @.lease l ON l.handle = u.h) s
 WHERE s.before < 500
$$;

-- Re-examines the queues of waiting claims. Each is G, W (and when to check again) or N (forgotten: acquire again).
CREATE FUNCTION @.check_waiters(p_handles uuid[])
RETURNS TABLE (handle uuid, verdict "char", token bigint, remaining bigint, renewable bigint)
LANGUAGE plpgsql @SAFE @BY_KEY AS $$
#variable_conflict use_column
DECLARE v_now bigint; v_watched boolean; l @.lease; h uuid; v_told boolean := false; v_all uuid[] := p_handles;
BEGIN
 p_handles := @.limit_names(p_handles);
 SELECT t.now, t.watched INTO v_now, v_watched FROM @.begin_write('{}', p_handles, '{}') t;
 PERFORM @.serve_queues((SELECT array_agg(DISTINCT n) FROM @.lease t, unnest(t.names) n WHERE t.handle = ANY (p_handles) AND t.state = 'W'), v_now, v_watched);
 FOREACH h IN ARRAY v_all LOOP
  handle := h; token := NULL; remaining := NULL; renewable := NULL;
  SELECT * INTO l FROM @.lease t WHERE t.handle = h;
  IF NOT FOUND THEN verdict := 'N';
  ELSIF l.state = 'W' THEN
   verdict := 'W'; remaining := l.patience - v_now;
   renewable := CASE WHEN h = ANY (p_handles) THEN @.next_due(l, v_now) ELSE 0 END; -- those that were too many come again at once
  ELSE
   v_told := true;
   verdict := 'G'; token := l.token; remaining := CASE WHEN l.state = 'L' THEN greatest(l.ends - v_now, 0) ELSE 0 END;
   renewable := CASE WHEN remaining > 0 THEN l.cap_at - v_now END;
  END IF;
  RETURN NEXT;
 END LOOP;
 IF v_told THEN PERFORM @.wait_for_standbys(); END IF;
END $$;

-- A waiting acquire is given up. p_cancel: the caller went away; otherwise its patience is over.
CREATE FUNCTION @.leave(p_handle uuid, p_secret uuid, p_fingerprint bigint, p_self bigint, p_cancel boolean, p_ban bigint, p_first text)
RETURNS TABLE (verdict "char", token bigint, remaining bigint, renewable bigint, name text, holder text, queue integer)
LANGUAGE plpgsql @SAFE @BY_KEY AS $$
#variable_conflict use_column
DECLARE v_now bigint; v_watched boolean; l @.lease; r record; v_blocked text;
BEGIN
 SELECT t.now, t.watched INTO v_now, v_watched FROM @.begin_write(ARRAY[p_first], ARRAY[p_handle], ARRAY[p_handle]) t;
 SELECT * INTO l FROM @.lease t WHERE t.handle = p_handle;
 IF FOUND AND l.fingerprint IS NOT DISTINCT FROM p_fingerprint THEN
  IF l.state = 'W' THEN
   IF p_cancel AND cardinality(l.processes) > 1 THEN
    UPDATE @.lease t SET processes = array_remove(t.processes, p_self) WHERE t.handle = p_handle;
    verdict := 'O'; remaining := l.patience - v_now; RETURN NEXT; RETURN;
   END IF;
   IF NOT p_cancel AND l.patience > v_now + 2000 THEN
    verdict := 'O'; remaining := l.patience - v_now; RETURN NEXT; RETURN;
   END IF;
   v_blocked := l.names[1];
   FOR i IN 1 .. cardinality(l.names) LOOP
    SELECT * INTO r FROM @.settle_name(l.names[i], v_now, v_watched);
    IF NOT @.has_room(r.held, r.used, 0, 0, 0, l.counts[i], l.capacities[i])
     OR EXISTS (SELECT FROM @.queue t WHERE t.name = l.names[i] AND t.arrival < l.arrival) THEN
     v_blocked := l.names[i]; EXIT;
    END IF;
   END LOOP;
   PERFORM @.leave_queue(l);
   IF p_cancel AND p_fingerprint IS NULL THEN
 -- An earlier try may still be on its way: it must not be granted.
    UPDATE @.lease t SET state = 'X', single = false, ended = v_now + p_ban * 1000, names = '{}', counts = '{}', capacities = '{}',
     arrival = NULL, since = NULL, patience = NULL, processes = NULL WHERE t.handle = p_handle;
   ELSE
    DELETE FROM @.lease t WHERE t.handle = p_handle;
   END IF;
   verdict := 'H'; name := v_blocked;
   SELECT t.label, t.token, t.remaining, t.queue INTO holder, token, remaining, queue FROM @.find_blocker(v_blocked, v_now) t;
   PERFORM @.serve_queues(l.names, v_now, v_watched);
   PERFORM @.wake_heads(l.names, 0); -- the new head watches the time
   RETURN NEXT; RETURN;
  END IF;
  IF l.state = 'L' AND p_cancel AND p_fingerprint IS NULL AND l.ends > v_now AND @.still_holds(l) THEN
   UPDATE @.lease t SET state = 'R', ended = v_now WHERE t.handle = l.handle;
   PERFORM @.free_names(l, v_now);
   IF v_watched THEN PERFORM @.log_event('R', l, '', v_now); END IF;
   PERFORM @.serve_queues(l.names, v_now, v_watched);
   verdict := 'E'; RETURN NEXT; RETURN;
  END IF;
  PERFORM @.wait_for_standbys();
  verdict := 'G'; token := l.token; remaining := CASE WHEN l.state = 'L' THEN greatest(l.ends - v_now, 0) ELSE 0 END;
  renewable := CASE WHEN remaining > 0 THEN l.cap_at - v_now END;
  RETURN NEXT; RETURN;
 END IF;
 IF NOT FOUND AND p_cancel AND p_fingerprint IS NULL THEN
  INSERT INTO @.lease (handle, secret, state, single, ended, ttl, delay, label, names, counts, capacities)
  VALUES (p_handle, p_secret, 'X', false, v_now + p_ban * 1000, 0, 0, '', '{}', '{}', '{}');
 END IF;
 PERFORM @.settle_name(p_first, v_now, v_watched);
 verdict := 'H'; name := p_first;
 SELECT t.label, t.token, t.remaining, t.queue INTO holder, token, remaining, queue FROM @.find_blocker(p_first, v_now) t;
 RETURN NEXT;
END $$;

CREATE FUNCTION @.revoke(p_name text, p_reason text) RETURNS integer
LANGUAGE plpgsql @SAFE @BY_KEY AS $$
DECLARE v_now bigint; v_watched boolean; l @.lease; n integer := 0; v_names text[]; v_held uuid[]; v_again uuid[];
BEGIN
 -- Whose other names are locked with it: read, lock, read again.
 SELECT array_agg(h) INTO v_held FROM (SELECT r.holder AS h FROM @.resource r WHERE r.name = p_name AND r.holder IS NOT NULL
  UNION SELECT c.handle FROM @.shared_holder c WHERE c.name = p_name) s;
 SELECT t.now, t.watched INTO v_now, v_watched FROM @.begin_write(ARRAY[p_name], coalesce(v_held, '{}'), '{}') t;
 SELECT array_agg(h) INTO v_again FROM (SELECT r.holder AS h FROM @.resource r WHERE r.name = p_name AND r.holder IS NOT NULL
  UNION SELECT c.handle FROM @.shared_holder c WHERE c.name = p_name) s;
 v_names := ARRAY[p_name];
 FOR l IN SELECT t.* FROM @.lease t WHERE t.handle = ANY (v_again) ORDER BY t.token LOOP
  IF NOT @.try_lock_names(l.names) THEN
   RAISE EXCEPTION 'busy' USING ERRCODE = 'LH103'; -- no effect; the engine asks again
  END IF;
  IF l.state = 'L' AND l.ends > v_now THEN
   UPDATE @.lease t SET state = 'V', ended = v_now WHERE t.handle = l.handle;
   IF v_watched THEN PERFORM @.log_event('V', l, p_reason, v_now); END IF;
   n := n + 1;
  ELSIF l.state = 'L' THEN
   IF v_watched AND NOT l.lapse_logged THEN PERFORM @.log_event('X', l, '', v_now); END IF;
 -- its delay ends with it; it stays lapsed
   UPDATE @.lease t SET delay = 0, lapse_logged = true WHERE t.handle = l.handle;
  END IF;
  PERFORM @.free_names(l, v_now);
  v_names := v_names || array_remove(l.names, p_name);
 END LOOP;
 PERFORM @.serve_queues(v_names, v_now, v_watched);
 RETURN n;
END $$;

-- One name, or a page of names. Read only: nothing is locked and nothing is collected.
CREATE FUNCTION @.show(p_names text[], p_most integer)
RETURNS TABLE (name text, held "char", used bigint, capacity integer, holders bigint, labels text[], tokens bigint[], since bigint[], remaining bigint[],
       queue integer, waiters text[], waiting bigint[], head_count integer, head_capacity integer)
LANGUAGE sql STABLE @SAFE SET enable_seqscan = off AS $$
 SELECT r.name, CASE WHEN h.busy > 0 THEN r.held ELSE '-' END::"char", h.sum, r.capacity, h.live, h.labels, h.tokens, h.since, h.remaining,
    w.queue::integer, w.labels, w.waiting, w.head_count, w.head_capacity
 FROM (SELECT @.now_us() AS now) n, @.resource r
 CROSS JOIN LATERAL (
  SELECT count(*) AS busy, count(*) FILTER (WHERE l.ends > n.now) AS live, sum(greatest(m.count, 0)) AS sum,
     (array_agg(l.label ORDER BY l.token) FILTER (WHERE l.ends > n.now))[1:p_most] AS labels,
     (array_agg(l.token ORDER BY l.token) FILTER (WHERE l.ends > n.now))[1:p_most] AS tokens,
     (array_agg(n.now - l.granted ORDER BY l.token) FILTER (WHERE l.ends > n.now))[1:p_most] AS since,
     (array_agg(l.ends - n.now ORDER BY l.token) FILTER (WHERE l.ends > n.now))[1:p_most] AS remaining
  FROM (SELECT r.holder AS handle, 0 AS count WHERE r.held = 'x' UNION ALL SELECT c.handle, c.count FROM @.shared_holder c WHERE c.name = r.name) m
  JOIN @.lease l ON l.handle = m.handle AND l.state = 'L' AND l.ends + l.delay * 1000::bigint > n.now) h
 CROSS JOIN LATERAL (
  SELECT count(*) AS queue, (array_agg(l.label ORDER BY t.arrival))[1:100] AS labels, (array_agg(n.now - l.since ORDER BY t.arrival))[1:100] AS waiting,
     (array_agg(t.count ORDER BY t.arrival))[1] AS head_count, (array_agg(t.capacity ORDER BY t.arrival))[1] AS head_capacity
  FROM @.queue t JOIN @.lease l ON l.handle = t.handle WHERE t.name = r.name AND l.patience > n.now
   AND EXISTS (SELECT FROM @.process z WHERE z.id = ANY (l.processes) AND z.seen > n.now - 10000000)) w
 WHERE r.name = ANY (p_names) AND (h.busy > 0 OR w.queue > 0)
$$;
CREATE FUNCTION @.list(p_prefix text, p_after text, p_most integer) RETURNS TABLE (name text)
LANGUAGE sql STABLE @SAFE SET enable_seqscan = off AS $$
 SELECT r.name FROM @.resource r
 WHERE r.name > p_after COLLATE "C" AND r.name >= p_prefix COLLATE "C" AND starts_with(r.name, p_prefix)
  AND (r.held <> '-' OR r.queue > 0)
 ORDER BY r.name COLLATE "C" LIMIT p_most
$$;

-- Begins or continues to watch. A new run if nobody watched in the last ten minutes. The gate waits for batches that saw no watcher.
CREATE FUNCTION @.begin_watch(p_run bigint, OUT run bigint, OUT last bigint, OUT first bigint)
LANGUAGE plpgsql @SAFE AS $$
DECLARE v_now bigint := @.now_us(); d @.watch_state;
BEGIN
 SELECT * INTO d FROM @.watch_state;
 IF d.until > v_now + 300000000 AND EXISTS (SELECT FROM @.meta t WHERE t.history = @.history()) THEN
  run := d.run; last := d.last;
 ELSE
  PERFORM pg_advisory_xact_lock(@K # 1, 0);
  SELECT * INTO d FROM @.watch_state FOR UPDATE;
  UPDATE @.meta t SET history = @.history() WHERE t.history <> @.history();
  IF FOUND OR d.until <= v_now THEN
   DELETE FROM @.event;
 -- What is over already is no event.
   UPDATE @.lease SET lapse_logged = true WHERE state = 'L' AND NOT lapse_logged AND ends <= v_now;
   d.run := p_run; d.last := 0;
  END IF;
  UPDATE @.watch_state t SET run = d.run, last = d.last, until = v_now + 600000000;
  run := d.run; last := d.last;
 END IF;
 SELECT coalesce(min(number), last + 1) INTO first FROM @.event;
END $$;

-- Leases that may be over: logs their lapse and serves their queues. Returns when those that are not over end.
CREATE FUNCTION @.expire(p_handles uuid[]) RETURNS TABLE (handle uuid, ends bigint)
LANGUAGE plpgsql @SAFE @BY_KEY AS $$
#variable_conflict use_column
DECLARE v_now bigint; v_watched boolean; l @.lease; v_all uuid[] := p_handles;
BEGIN
 p_handles := @.limit_names(p_handles);
 SELECT t.now, t.watched INTO v_now, v_watched FROM @.begin_write('{}', p_handles, '{}') t;
 RETURN QUERY SELECT u.h, 0::bigint FROM unnest(v_all) u(h) WHERE NOT u.h = ANY (p_handles); -- too many at once: they come again
 FOR l IN SELECT t.* FROM @.lease t WHERE t.handle = ANY (p_handles) AND t.state = 'L' ORDER BY t.ends, t.token LOOP
  IF l.ends > v_now THEN
   handle := l.handle; ends := l.ends - v_now; RETURN NEXT;
  ELSE
   IF v_watched AND NOT l.lapse_logged THEN
    PERFORM @.log_event('X', l, '', v_now);
    UPDATE @.lease t SET lapse_logged = true WHERE t.handle = l.handle;
   END IF;
   PERFORM @.serve_queues(l.names, v_now, v_watched);
  END IF;
 END LOOP;
END $$;

-- Whether a sweep is due: one a minute, by whichever process asks first.
CREATE FUNCTION @.begin_sweep() RETURNS boolean LANGUAGE plpgsql @SAFE AS $$
DECLARE v_now bigint := @.now_us();
BEGIN
 UPDATE @.meta t SET swept = v_now WHERE t.swept NOT BETWEEN v_now - 50000000 AND v_now;
 RETURN FOUND;
END $$;

-- One step of a sweep: forgets names that nobody used for a minute, endings older than p_memory (milliseconds), claims whose patience
-- ended a minute ago, bans that are over, old events, dead processes. Each table is read from a place onwards, ten times p_most rows, so
-- that a step is short whatever there is; at most p_most names are locked. Returns the places to go on from; null: that table is done.
-- Tokens rise with time: endings are looked for from the lowest token up to the first lease that is younger than p_memory.
CREATE FUNCTION @.sweep(p_name text, p_token bigint, p_handle uuid, p_most integer, p_memory bigint,
  OUT next_name text, OUT next_token bigint, OUT next_handle uuid, OUT removed integer)
LANGUAGE plpgsql @SAFE @BY_KEY AS $$
DECLARE v_now bigint := @.now_us(); v_old bigint := v_now - p_memory * 1000; v_watched boolean; v_rows integer := 0; v_n integer;
 v_names text[] := '{}'; v_ended uuid[] := '{}'; v_waiting uuid[] := '{}'; r record; l @.lease;
BEGIN
 removed := 0;
 -- Looks, without any lock.
 FOR r IN SELECT t.name, t.queue = 0 AND t.used < v_now - 60000000 AND NOT CASE t.held
   WHEN '-' THEN false
   WHEN 'x' THEN EXISTS (SELECT FROM @.lease q WHERE q.handle = t.holder AND q.state = 'L' AND q.ends + q.delay * 1000::bigint > v_now)
   ELSE EXISTS (SELECT FROM @.shared_holder c JOIN @.lease q ON q.handle = c.handle
    WHERE c.name = t.name AND q.state = 'L' AND q.ends + q.delay * 1000::bigint > v_now) END AS over
  FROM @.resource t WHERE t.name > p_name ORDER BY t.name LIMIT p_most * 10 LOOP
  v_rows := v_rows + 1;
  IF r.over THEN v_names := v_names || r.name; END IF;
  IF v_rows = p_most * 10 OR cardinality(v_names) = p_most THEN next_name := r.name; EXIT; END IF;
 END LOOP;
 v_rows := 0;
 FOR l IN SELECT * FROM @.lease t WHERE t.token > p_token ORDER BY t.token LIMIT p_most * 10 LOOP
  EXIT WHEN l.granted > v_old;
  v_rows := v_rows + 1;
  IF l.ended < v_old OR l.state = 'L' AND l.ends + l.delay * 1000::bigint < v_old THEN v_ended := v_ended || l.handle; END IF;
  IF v_rows = p_most * 10 THEN next_token := l.token; END IF;
 END LOOP;
 v_rows := 0;
 FOR l IN SELECT * FROM @.lease t WHERE t.token IS NULL AND t.handle > p_handle ORDER BY t.handle LIMIT p_most * 10 LOOP
  v_rows := v_rows + 1;
  IF l.state = 'X' AND l.ended < v_now THEN v_ended := v_ended || l.handle; END IF;
  IF l.state = 'W' AND l.patience < v_now - 60000000 THEN
   v_waiting := v_waiting || l.handle;
   v_names := v_names || l.names;
  END IF;
  IF v_rows = p_most * 10 OR cardinality(v_names) >= 2 * p_most THEN next_handle := l.handle; EXIT; END IF;
 END LOOP;

 -- Then takes locks, where nobody else has them, and looks again.
 SELECT t.now, t.watched INTO v_now, v_watched FROM @.begin_write('{}', '{}', '{}') t;
 FOR i IN 1 .. cardinality(v_waiting) LOOP
  SELECT * INTO l FROM @.lease t WHERE t.handle = v_waiting[i] AND t.state = 'W';
  CONTINUE WHEN NOT FOUND OR NOT @.try_lock_names(l.names);
  SELECT * INTO l FROM @.lease t WHERE t.handle = v_waiting[i] AND t.state = 'W' AND t.patience < v_now - 60000000;
  CONTINUE WHEN NOT FOUND;
  PERFORM @.leave_queue(l);
  DELETE FROM @.lease t WHERE t.handle = l.handle;
  PERFORM @.wake_heads(l.names, 0);
  removed := removed + 1;
 END LOOP;
 FOR i IN 1 .. cardinality(v_names) LOOP
  CONTINUE WHEN NOT pg_try_advisory_xact_lock(@K, hashtext(v_names[i]));
  PERFORM @.settle_name(v_names[i], v_now, v_watched);
  DELETE FROM @.resource t WHERE t.name = v_names[i] AND t.queue = 0 AND t.held = '-' AND t.used < v_now - 60000000;
  GET DIAGNOSTICS v_n = ROW_COUNT;
  removed := removed + v_n;
 END LOOP;
 -- No lock of a name: what is over stays over. A lapse that watchers do not know of is not forgotten yet.
 DELETE FROM @.lease t WHERE t.handle = ANY (ARRAY(SELECT q.handle FROM @.lease q WHERE q.handle = ANY (v_ended)
  AND (q.state IN ('R', 'V') AND q.ended < v_old OR q.state = 'X' AND q.ended < v_now
   OR q.state = 'L' AND q.ends + q.delay * 1000::bigint < v_old AND (q.lapse_logged OR NOT v_watched)) FOR UPDATE SKIP LOCKED));
 GET DIAGNOSTICS v_n = ROW_COUNT;
 removed := removed + v_n;
 DELETE FROM @.event t WHERE t.number = ANY (ARRAY(SELECT e.number FROM @.event e
  WHERE e.number < (SELECT w.last - 16384 FROM @.watch_state w) ORDER BY e.number LIMIT p_most * 10));
 DELETE FROM @.process t WHERE t.seen < v_now - 3600000000;
END $$;

-- The events after a number, with the run and the newest number as of the same snapshot. One row without a number if there are none.
CREATE FUNCTION @.read_events(p_after bigint, p_most integer)
RETURNS TABLE (run bigint, last bigint, number bigint, kind "char", token bigint, label text, names text[], reason text, ago bigint, handle uuid, ends_in bigint)
LANGUAGE sql STABLE @SAFE SET enable_seqscan = off AS $$
 SELECT w.run, w.last, e.number, e.kind, e.token, e.label, e.names, e.reason, greatest(n.now - e.at, 0), e.handle, e.ends - n.now
 FROM (SELECT @.now_us() AS now) n CROSS JOIN @.watch_state w
 LEFT JOIN LATERAL (SELECT * FROM @.event t WHERE t.number > p_after ORDER BY t.number LIMIT p_most) e ON true ORDER BY e.number
$$;

-- A token for the holder of an advisory lock, on the same connection. It counts when the transaction is committed, and that waits for
-- the disk: a bare nextval may return a number that another session has logged and nobody has flushed.
CREATE FUNCTION @.advisory_token() RETURNS bigint LANGUAGE plpgsql @SAFE AS $$
BEGIN
 PERFORM @.check_session();
 PERFORM @.wait_for_standbys();
 RETURN @.next_token(@.now_us());
END $$;

-- Below which token none will come. With a floor: first makes every later token higher than it. A step is always over a million ahead
-- of the sequence or of the floor, so that no nextval beside it can be undone. The lock is as in next_token. With or without a floor
-- the commit flushes what others logged.
CREATE FUNCTION @.raise_floor(p_floor bigint) RETURNS bigint LANGUAGE plpgsql @SAFE AS $$
DECLARE v_last bigint;
BEGIN
 PERFORM @.check_session();
 PERFORM @.wait_for_standbys();
 IF p_floor IS NOT NULL THEN
  BEGIN
   PERFORM pg_advisory_xact_lock(@K # 1, 1);
   v_last := nextval('@.token');
   IF v_last <= p_floor THEN
    PERFORM setval('@.token', CASE WHEN p_floor - v_last > 1000000 THEN p_floor ELSE p_floor + 1000000 END);
   END IF;
   RAISE EXCEPTION 'raised' USING ERRCODE = 'LH104';
  EXCEPTION WHEN SQLSTATE 'LH104' THEN NULL;
  END;
 END IF;
 SELECT last_value INTO v_last FROM @.token;
 RETURN v_last;
END $$;

-- Live leases in order of handle, for a watcher that must notice their ends.
CREATE FUNCTION @.live(p_after uuid, p_most integer) RETURNS TABLE (handle uuid, ends_in bigint)
LANGUAGE sql STABLE @SAFE SET enable_seqscan = off AS $$
 SELECT l.handle, l.ends - n.now FROM (SELECT @.now_us() AS now) n, @.lease l
 WHERE l.handle > p_after AND l.state = 'L' AND NOT l.lapse_logged ORDER BY l.handle LIMIT p_most
$$;

-- What a client must know before it asks anything else.
CREATE FUNCTION @.layout(OUT layout integer, OUT history text, OUT now bigint) LANGUAGE sql STABLE @SAFE AS $$
 SELECT m.layout, m.history, @.now_us() FROM @.meta m
$$;

-- Functions are the interface: an application needs USAGE on the schema and EXECUTE on some of them, and reads no table.
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA @ FROM PUBLIC;
ALTER TABLE @.lease SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000);
