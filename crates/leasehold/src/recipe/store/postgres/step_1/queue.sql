-- Jobs, dead letters, lanes of queues by key, and sleeping workers. The limits are those of the library (queue/limits.rs): callers
-- by SQL meet them here, as LH400.
CREATE TABLE leasehold.queue (
 queue_id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text COLLATE "C" NOT NULL UNIQUE,
 keyed boolean NOT NULL DEFAULT false, in_order boolean NOT NULL DEFAULT true,
 levels smallint[] NOT NULL DEFAULT '{1}', visible interval NOT NULL DEFAULT '30 s', max_attempts smallint NOT NULL DEFAULT 20,
 backoff_base interval NOT NULL DEFAULT '1 s', backoff_cap interval NOT NULL DEFAULT '1 h',
 paused boolean NOT NULL DEFAULT false, swept_at timestamptz NOT NULL DEFAULT '-infinity') WITH (fillfactor = 50);
CREATE TABLE leasehold.job (
 job_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, token bigint NOT NULL DEFAULT 0, -- 0: waits
 ready_at timestamptz NOT NULL, made_at timestamptz NOT NULL DEFAULT clock_timestamp(), until timestamptz,
 queue_id int NOT NULL, priority smallint NOT NULL DEFAULT 1, attempt smallint NOT NULL DEFAULT 0, max_attempts smallint NOT NULL,
 again boolean NOT NULL DEFAULT false, key text COLLATE "C", dedupe text COLLATE "C", worker text, error text, body jsonb NOT NULL
) WITH (fillfactor = 85, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000,
  autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 100000);
CREATE INDEX job_ready ON leasehold.job (queue_id, priority, ready_at) WHERE token = 0 AND key IS NULL;
CREATE INDEX job_taken ON leasehold.job (queue_id, job_id) WHERE token > 0;
CREATE INDEX job_lane ON leasehold.job (queue_id, key, job_id) WHERE key IS NOT NULL;
CREATE UNIQUE INDEX job_dedupe ON leasehold.job (queue_id, dedupe) WHERE dedupe IS NOT NULL;
CREATE TABLE leasehold.dead_job (LIKE leasehold.job, died_at timestamptz NOT NULL, PRIMARY KEY (job_id));
CREATE INDEX dead_job_age ON leasehold.dead_job (queue_id, died_at);
CREATE TABLE leasehold.lane (queue_id int, key text COLLATE "C", token bigint NOT NULL, until timestamptz NOT NULL, worker text,
 PRIMARY KEY (queue_id, key)) WITH (fillfactor = 50);
CREATE UNLOGGED TABLE leasehold.sleeper (queue_id int, channel text COLLATE "C", until timestamptz NOT NULL,
 PRIMARY KEY (queue_id, channel)) WITH (fillfactor = 50);
CREATE FUNCTION leasehold.queue_of(q text) RETURNS leasehold.queue LANGUAGE plpgsql STABLE AS $$
DECLARE s leasehold.queue;
BEGIN
  SELECT * INTO s FROM leasehold.queue WHERE name = q;
 IF NOT FOUND THEN RAISE EXCEPTION 'no queue %', q USING ERRCODE = 'LH404'; END IF;
 RETURN s;
END $$;
CREATE FUNCTION leasehold.queue_push(q text, body jsonb, delay interval DEFAULT '0', priority int DEFAULT 1, key text DEFAULT NULL,
 dedupe text DEFAULT NULL, max_attempts int DEFAULT NULL, OUT job_id bigint, OUT fresh boolean) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE s leasehold.queue := leasehold.queue_of(q); ch text; k ALIAS FOR $5; d ALIAS FOR $6; waits boolean := true;
BEGIN
 IF s.keyed AND k IS NULL THEN
  RAISE EXCEPTION 'queue % is by key: a job needs a key', q USING ERRCODE = 'LH400';
 ELSIF NOT s.keyed AND k IS NOT NULL THEN
  RAISE EXCEPTION 'queue % is not by key: a job takes no key', q USING ERRCODE = 'LH400';
 ELSIF s.keyed AND d IS NOT NULL THEN
  RAISE EXCEPTION 'queue % is by key: a job takes no dedupe id', q USING ERRCODE = 'LH400';
 ELSIF ($4 = ANY (s.levels)) IS NOT TRUE THEN
  RAISE EXCEPTION 'queue % has no level %: its levels are %', q, coalesce($4::text, 'null'), array_to_string(s.levels, ', ')
   USING ERRCODE = 'LH400';
 ELSIF octet_length(k) NOT BETWEEN 1 AND 512 THEN
  RAISE EXCEPTION 'a key has 1 to 512 bytes, and this has %', octet_length(k) USING ERRCODE = 'LH400';
 ELSIF octet_length(d) NOT BETWEEN 1 AND 512 THEN
  RAISE EXCEPTION 'a dedupe id has 1 to 512 bytes, and this has %', octet_length(d) USING ERRCODE = 'LH400';
 ELSIF ($3 BETWEEN '0' AND '366 days') IS NOT TRUE THEN
  RAISE EXCEPTION 'a job is delayed by 0 to 366 days, not by %', coalesce($3::text, 'null') USING ERRCODE = 'LH400';
 ELSIF $7 NOT BETWEEN 1 AND 1000 THEN
  RAISE EXCEPTION 'a job is tried 1 to 1000 times, not %', $7 USING ERRCODE = 'LH400';
 ELSIF $2 IS NULL THEN
  RAISE EXCEPTION 'a job has a body: of nothing it is the JSON null, and this is the NULL of SQL' USING ERRCODE = 'LH400';
 END IF;
 -- as it will be read, with a space behind each comma and colon: 1e308 is stored with all its digits
 IF octet_length($2::text) > 1048576 THEN
  RAISE EXCEPTION 'a job has at most 1 MiB when it is written out, and this has % bytes', octet_length($2::text)
   USING ERRCODE = 'LH400';
 END IF;
 LOOP
  INSERT INTO leasehold.job AS j (queue_id, priority, ready_at, max_attempts, key, dedupe, body)
  VALUES (s.queue_id, $4, clock_timestamp() + delay, coalesce($7, s.max_attempts), k, d, $2)
  ON CONFLICT (queue_id, dedupe) WHERE dedupe IS NOT NULL DO NOTHING RETURNING j.job_id INTO job_id;
  fresh := FOUND;
  EXIT WHEN fresh;
  -- a worker that has it may have read the old state: once more after it
  UPDATE leasehold.job j SET again = true WHERE j.queue_id = s.queue_id AND j.dedupe = d AND j.token > 0 AND NOT j.again
  RETURNING j.job_id INTO job_id;
  waits := NOT FOUND;
  EXIT WHEN FOUND;
  -- locked: nobody takes or ends it before this transaction is visible, or its change would be lost
  SELECT j.job_id, j.token = 0 INTO job_id, waits FROM leasehold.job j
  WHERE j.queue_id = s.queue_id AND j.dedupe = d AND (j.token = 0 OR j.again) FOR SHARE;
  EXIT WHEN FOUND; -- else it was taken or ended meanwhile: once more
 END LOOP;
 -- the doorbell: one sleeper, if there is any. Who passed over a locked job may sleep. A new job that is delayed rings too: the
 -- sleeper does not know of it, and sleeps anew until it is ready
 IF waits AND (fresh OR delay <= '0') THEN
  SELECT w.channel INTO ch FROM leasehold.sleeper w
  WHERE w.queue_id = s.queue_id AND w.until > clock_timestamp() ORDER BY random() LIMIT 1;
  IF FOUND THEN PERFORM pg_notify(ch, q); END IF;
 END IF;
END $$;
-- Ends those of `ids` that `tok` has; returns the others: stale, or `locked` by a transaction that is open, and not ended. Without
-- `wait` such a transaction is not waited for. Only a push with a dedupe id locks what a worker has.
CREATE FUNCTION leasehold.queue_ack(ids bigint[], tok bigint, wait boolean DEFAULT true)
RETURNS TABLE (job_id bigint, locked boolean) LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE ended bigint[]; free bigint[] := ids;
BEGIN
 WITH gone AS (DELETE FROM leasehold.job j WHERE j.job_id = ANY (ids) AND j.token = tok AND tok > 0
  AND NOT j.again AND (wait OR j.dedupe IS NULL) RETURNING j.job_id)
  SELECT array_agg(job_id) INTO ended FROM gone;
 IF cardinality(ended) = cardinality(ids) THEN RETURN; END IF;
 IF NOT wait THEN
  free := ARRAY(SELECT j.job_id FROM leasehold.job j WHERE j.job_id = ANY (ids) AND j.token = tok AND tok > 0
   FOR UPDATE SKIP LOCKED);
 END IF;
 WITH gone AS (
  DELETE FROM leasehold.job j WHERE j.job_id = ANY (free) AND j.token = tok AND tok > 0 RETURNING j.*
 ), back AS ( -- asked for again while it ran: waits once more, as a new job
  INSERT INTO leasehold.job (queue_id, priority, ready_at, max_attempts, dedupe, body)
  SELECT queue_id, priority, clock_timestamp(), max_attempts, dedupe, body FROM gone WHERE again)
  SELECT ended || array_agg(job_id) INTO ended FROM gone;
 RETURN QUERY SELECT i, EXISTS (SELECT FROM leasehold.job j WHERE j.job_id = i AND j.token = tok AND tok > 0)
  FROM unnest(ids) i WHERE i <> ALL (coalesce(ended, '{}'));
END $$;
-- in the transaction of the effects: a stale worker's fails as a whole
CREATE FUNCTION leasehold.queue_finish(id bigint, tok bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
 IF EXISTS (SELECT FROM leasehold.queue_ack(ARRAY[id], tok)) THEN
  RAISE EXCEPTION 'delivery % of job % is stale', tok, id USING ERRCODE = 'LH409';
 END IF;
END $$;
-- acks `done` without waiting, claims up to n; a row with token 0 names one of `done` that was stale, one with -1 one that is locked
CREATE FUNCTION leasehold.queue_turn(q text, n int, done bigint[] DEFAULT '{}', done_token bigint DEFAULT 0,
 visible interval DEFAULT NULL, worker text DEFAULT NULL, since timestamptz DEFAULT '-infinity', levels smallint[] DEFAULT NULL)
RETURNS TABLE (job_id bigint, token bigint, attempt smallint, ready_at timestamptz, made_at timestamptz, body jsonb)
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE s leasehold.queue; t timestamptz; p smallint; w ALIAS FOR $6; tok bigint; picked tid[] := '{}';
BEGIN
 IF cardinality(done) > 0 THEN
  RETURN QUERY SELECT d.id, -d.locked::int::bigint, 0::smallint, NULL::timestamptz, NULL::timestamptz, NULL::jsonb
  FROM leasehold.queue_ack(done, done_token, false) d(id, locked);
 END IF;
 s := leasehold.queue_of(q);
 IF (n <= 1000) IS NOT TRUE THEN RAISE EXCEPTION 'one turn takes 1000 jobs at most' USING ERRCODE = 'LH400'; END IF;
 IF octet_length(w) > 256 THEN
  RAISE EXCEPTION 'the label of a worker has at most 256 bytes, and this has %', octet_length(w) USING ERRCODE = 'LH400';
 END IF;
 IF $5 NOT BETWEEN '1 ms' AND '12 h' THEN
  RAISE EXCEPTION 'a delivery lasts 1 ms to 12 h, not %', $5 USING ERRCODE = 'LH400';
 END IF;
 IF n <= 0 OR s.paused THEN RETURN; END IF;
 t := clock_timestamp();
 FOREACH p IN ARRAY coalesce($8, s.levels) LOOP
  picked := picked || ARRAY(
  SELECT c.ctid FROM leasehold.job c
  WHERE c.queue_id = s.queue_id AND c.priority = p AND c.token = 0 AND c.key IS NULL
  AND c.ready_at <= t AND c.ready_at >= since
  ORDER BY c.ready_at LIMIT n - cardinality(picked) FOR UPDATE SKIP LOCKED);
  EXIT WHEN cardinality(picked) >= n;
 END LOOP;
 IF cardinality(picked) = 0 THEN RETURN; END IF;
 tok := nextval('leasehold.recipe_token'); -- only now that the rows are locked
 RETURN QUERY
 UPDATE leasehold.job j
  SET token = tok, attempt = j.attempt + 1, until = clock_timestamp() + coalesce($5, s.visible), worker = w
  WHERE j.ctid = ANY (picked) AND j.token = 0
 RETURNING j.job_id, j.token, j.attempt, j.ready_at, j.made_at, j.body;
END $$;
-- Returns those that `tok` still has. `locked`: not extended, because a transaction that is open has the row; to be asked again
CREATE FUNCTION leasehold.queue_extend(ids bigint[], tok bigint, visible interval)
RETURNS TABLE (job_id bigint, locked boolean) LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE extended bigint[];
BEGIN
 IF (visible BETWEEN '1 ms' AND '12 h') IS NOT TRUE THEN
  RAISE EXCEPTION 'a delivery lasts 1 ms to 12 h, not %', coalesce(visible::text, 'null') USING ERRCODE = 'LH400';
 END IF;
 WITH free AS (SELECT j.job_id FROM leasehold.job j WHERE j.job_id = ANY (ids) AND j.token = tok AND tok > 0
   AND j.until > clock_timestamp() FOR UPDATE SKIP LOCKED),
  done AS (UPDATE leasehold.job j SET until = clock_timestamp() + visible FROM free WHERE j.job_id = free.job_id AND j.token = tok
   RETURNING j.job_id)
  SELECT array_agg(job_id) INTO extended FROM done;
 RETURN QUERY SELECT i, false FROM unnest(extended) i;
 IF cardinality(extended) = cardinality(ids) THEN RETURN; END IF;
 RETURN QUERY SELECT j.job_id, true FROM leasehold.job j WHERE j.job_id = ANY (ids) AND j.token = tok AND tok > 0
  AND j.until > clock_timestamp() AND j.job_id <> ALL (coalesce(extended, '{}'));
END $$;
-- waits again or is buried; the caller has locked the row. `j.attempt` is stored: the caller may have corrected it
CREATE FUNCTION leasehold.job_settle(j leasehold.job, s leasehold.queue, why text, after interval, kill boolean) RETURNS text
LANGUAGE plpgsql AS $$
BEGIN
 IF kill OR j.attempt >= j.max_attempts THEN
  DELETE FROM leasehold.job WHERE job_id = j.job_id;
  IF j.again THEN -- asked for again while it ran: that one was not tried yet
   INSERT INTO leasehold.job (queue_id, priority, ready_at, max_attempts, dedupe, body)
   VALUES (j.queue_id, j.priority, clock_timestamp(), j.max_attempts, j.dedupe, j.body);
  END IF;
  j.error := left(why, 2000);
  INSERT INTO leasehold.dead_job SELECT (j).*, clock_timestamp();
  RETURN 'dead';
 END IF;
 UPDATE leasehold.job SET token = 0, until = NULL, worker = NULL, again = false, attempt = j.attempt, error = left(why, 2000),
  ready_at = clock_timestamp() + coalesce(after, -- as seconds: an interval would overflow
   least(extract(epoch FROM s.backoff_cap)::float8,
    extract(epoch FROM s.backoff_base)::float8 * power(2::float8, least(greatest(j.attempt, 1) - 1, 30)))
   * (0.5 + random() / 2) * interval '1 s')
  WHERE job_id = j.job_id;
 RETURN 'retry';
END $$;
-- what a delivery that failed may say: with the limits of the library
CREATE FUNCTION leasehold.check_nack(after interval, tries int) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
 IF after NOT BETWEEN '0' AND '366 days' THEN
  RAISE EXCEPTION 'a job is delayed by 0 to 366 days, not by %', after USING ERRCODE = 'LH400';
 ELSIF (tries BETWEEN -1 AND 1) IS NOT TRUE THEN
  RAISE EXCEPTION 'a delivery adds -1, 0 or 1 to the tries of its job, not %', coalesce(tries::text, 'null') USING ERRCODE = 'LH400';
 END IF;
END $$;
-- `tries`: added to the number of tries; -1: this was none. Without `wait`: 55P03 at once if an open transaction has the job
CREATE FUNCTION leasehold.queue_nack(id bigint, tok bigint, why text DEFAULT NULL, after interval DEFAULT NULL,
 kill boolean DEFAULT false, tries int DEFAULT 0, wait boolean DEFAULT true) RETURNS text LANGUAGE plpgsql AS $$
DECLARE j leasehold.job; s leasehold.queue; -- retry | dead | stale
BEGIN
 PERFORM leasehold.check_nack(after, tries);
 IF NOT wait THEN PERFORM FROM leasehold.job WHERE job_id = id AND token = tok AND tok > 0 FOR UPDATE NOWAIT; END IF;
  SELECT * INTO j FROM leasehold.job WHERE job_id = id AND token = tok AND tok > 0 FOR UPDATE;
 IF NOT FOUND THEN RETURN 'stale'; END IF;
 j.attempt := greatest(j.attempt + tries, 0);
  SELECT * INTO s FROM leasehold.queue WHERE queue_id = j.queue_id;
 RETURN leasehold.job_settle(j, s, why, after, kill);
END $$;
-- at most one sweep per `often`, whoever calls
CREATE FUNCTION leasehold.queue_sweep(q text, often interval DEFAULT '1 s', OUT lapsed int) LANGUAGE plpgsql AS $$
DECLARE s leasehold.queue; j leasehold.job; t timestamptz := clock_timestamp(); p smallint;
BEGIN
 lapsed := 0;
 UPDATE leasehold.queue SET swept_at = t WHERE queue_id =
  (SELECT queue_id FROM leasehold.queue WHERE name = q AND swept_at <= t - often FOR NO KEY UPDATE SKIP LOCKED) RETURNING * INTO s;
 IF NOT FOUND THEN RETURN; END IF;
 FOR j IN SELECT * FROM leasehold.job WHERE queue_id = s.queue_id AND token > 0 AND until <= t
  LIMIT 1000 FOR UPDATE SKIP LOCKED LOOP
  PERFORM leasehold.job_settle(j, s, 'lapsed under ' || coalesce(j.worker, 'a worker'), random() * interval '1 s', false);
  lapsed := lapsed + 1;
 END LOOP;
 IF NOT s.keyed AND random() < 0.05 THEN -- a push that was not committed when its level was removed: on to the last one
  LOOP
   SELECT j2.priority INTO p FROM leasehold.job j2 WHERE j2.queue_id = s.queue_id AND j2.token = 0 AND j2.key IS NULL
    AND (p IS NULL OR j2.priority > p) ORDER BY j2.priority LIMIT 1;
   EXIT WHEN NOT FOUND;
   CONTINUE WHEN p = ANY (s.levels);
   UPDATE leasehold.job SET priority = s.levels[cardinality(s.levels)] WHERE job_id IN (SELECT j2.job_id FROM leasehold.job j2
    WHERE j2.queue_id = s.queue_id AND j2.priority = p AND j2.token = 0 AND j2.key IS NULL LIMIT 1000 FOR UPDATE SKIP LOCKED);
  END LOOP;
 END IF;
 IF s.keyed AND random() < 0.01 THEN DELETE FROM leasehold.lane WHERE queue_id = s.queue_id AND until < t - interval '1 h'; END IF;
END $$;
-- dead letters wait again; one whose dedupe id is in use stays
CREATE FUNCTION leasehold.queue_revive(ids bigint[]) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE d leasehold.dead_job; levels smallint[]; revived bigint := 0;
BEGIN
 FOR d IN SELECT * FROM leasehold.dead_job WHERE job_id = ANY (ids) ORDER BY job_id FOR UPDATE LOOP
  SELECT q.levels INTO levels FROM leasehold.queue q WHERE q.queue_id = d.queue_id;
  INSERT INTO leasehold.job (queue_id, priority, ready_at, max_attempts, key, dedupe, body)
  VALUES (d.queue_id, CASE WHEN d.priority = ANY (levels) THEN d.priority ELSE levels[cardinality(levels)] END,
   clock_timestamp(), d.max_attempts, d.key, d.dedupe, d.body)
  ON CONFLICT (queue_id, dedupe) WHERE dedupe IS NOT NULL DO NOTHING;
  CONTINUE WHEN NOT FOUND;
  DELETE FROM leasehold.dead_job WHERE job_id = d.job_id;
  revived := revived + 1;
 END LOOP;
 RETURN revived;
END $$;
-- queue by key --
CREATE FUNCTION leasehold.lane_claim(q text, keys int, per_key int, visible interval DEFAULT NULL, worker text DEFAULT NULL,
 after text DEFAULT '') RETURNS TABLE (key text, token bigint, job_id bigint, attempt smallint, made_at timestamptz, body jsonb)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
 s leasehold.queue := leasehold.queue_of(q); t timestamptz; w ALIAS FOR $5; cur text := after; head leasehold.job;
 tok bigint; ids bigint[]; steps int := 0; taken int := 0; wrapped boolean := false; lane_until timestamptz;
BEGIN
 IF (keys <= 1000 AND per_key BETWEEN 1 AND 1000) IS NOT TRUE THEN
  RAISE EXCEPTION 'one claim takes 1000 keys at most, and 1 to 1000 jobs of each' USING ERRCODE = 'LH400';
 END IF;
 IF octet_length(w) > 256 THEN
  RAISE EXCEPTION 'the label of a worker has at most 256 bytes, and this has %', octet_length(w) USING ERRCODE = 'LH400';
 END IF;
 IF $4 NOT BETWEEN '1 ms' AND '12 h' THEN
  RAISE EXCEPTION 'a claim on a key lasts 1 ms to 12 h, not %', $4 USING ERRCODE = 'LH400';
 END IF;
 WHILE taken < keys AND steps < 200 AND NOT s.paused LOOP
  steps := steps + 1; t := clock_timestamp();
  SELECT * INTO head FROM leasehold.job j
  WHERE j.queue_id = s.queue_id AND j.key > cur AND j.key IS NOT NULL ORDER BY j.key, j.job_id LIMIT 1;
  IF NOT FOUND THEN
   EXIT WHEN wrapped OR after = '';
   wrapped := true; cur := ''; CONTINUE;
  END IF;
  cur := head.key;
  EXIT WHEN wrapped AND cur COLLATE "C" > after COLLATE "C"; -- as the index goes, whatever the database's language
  CONTINUE WHEN s.in_order AND head.ready_at > t;
  CONTINUE WHEN NOT s.in_order AND NOT EXISTS
   (SELECT FROM leasehold.job j WHERE j.queue_id = s.queue_id AND j.key = cur AND j.ready_at <= t);
  SELECT l.until INTO lane_until FROM leasehold.lane l WHERE l.queue_id = s.queue_id AND l.key = cur;
  IF FOUND THEN
   CONTINUE WHEN lane_until > t;
   -- whoever has a transaction open on one key holds up that key alone
   PERFORM FROM leasehold.lane l WHERE l.queue_id = s.queue_id AND l.key = cur AND l.until <= t FOR UPDATE SKIP LOCKED;
   CONTINUE WHEN NOT FOUND;
  END IF;
  INSERT INTO leasehold.lane AS l VALUES (s.queue_id, cur, nextval('leasehold.recipe_token'), t + coalesce($4, s.visible), w)
  ON CONFLICT (queue_id, key) DO UPDATE
   SET token = nextval('leasehold.recipe_token'), until = excluded.until, worker = excluded.worker
  WHERE l.until <= clock_timestamp() RETURNING l.token INTO tok;
  CONTINUE WHEN NOT FOUND;
  -- the lane is ours: what is read from here on nobody else can deliver or end
  LOOP
   ids := CASE WHEN s.in_order THEN ARRAY(SELECT f.job_id FROM (
     SELECT j.job_id, bool_and(j.ready_at <= t) OVER (ORDER BY j.job_id) AS all_before
     FROM leasehold.job j WHERE j.queue_id = s.queue_id AND j.key = cur ORDER BY j.job_id LIMIT per_key) f
    WHERE f.all_before ORDER BY f.job_id)
   ELSE ARRAY(SELECT j.job_id FROM leasehold.job j
    WHERE j.queue_id = s.queue_id AND j.key = cur AND j.ready_at <= t ORDER BY j.job_id LIMIT per_key) END;
   EXIT WHEN cardinality(ids) = 0;
   SELECT * INTO head FROM leasehold.job j WHERE j.job_id = ids[1] FOR UPDATE;
   CONTINUE WHEN NOT FOUND;
   EXIT WHEN head.attempt < head.max_attempts;
   -- tried often enough under workers that died
   PERFORM leasehold.job_settle(head, s, coalesce(head.error, 'lapsed'), NULL, true);
  END LOOP;
  IF cardinality(ids) = 0 THEN
   UPDATE leasehold.lane l SET token = 0, until = clock_timestamp() WHERE l.queue_id = s.queue_id AND l.key = cur AND l.token = tok;
   CONTINUE;
  END IF;
  taken := taken + 1;
  RETURN QUERY UPDATE leasehold.job j SET attempt = j.attempt + (j.job_id = ids[1])::int -- only the head was surely tried
  WHERE j.job_id = ANY (ids) RETURNING j.key, tok, j.job_id, j.attempt, j.made_at, j.body;
 END LOOP;
 IF taken < keys AND steps >= 200 THEN -- token 0: go on after this key
  RETURN QUERY SELECT cur, 0::bigint, NULL::bigint, NULL::smallint, NULL::timestamptz, NULL::jsonb;
 END IF;
END $$;
-- 55P03 if a transaction that is open has the key: it is not waited for
CREATE FUNCTION leasehold.lane_must_be_free(queue int, k text, tok bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
 PERFORM FROM leasehold.lane l WHERE l.queue_id = queue AND l.key = k AND l.token = tok FOR UPDATE NOWAIT;
END $$;
-- `free`: the claim on the key too
CREATE FUNCTION leasehold.lane_ack(q text, k text, tok bigint, ids bigint[], free boolean DEFAULT true, wait boolean DEFAULT true)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE s leasehold.queue := leasehold.queue_of(q);
BEGIN
 IF NOT wait THEN PERFORM leasehold.lane_must_be_free(s.queue_id, k, tok); END IF;
 PERFORM FROM leasehold.lane l WHERE l.queue_id = s.queue_id AND l.key = k AND l.token = tok AND tok > 0 FOR UPDATE;
 IF NOT FOUND THEN RAISE EXCEPTION 'delivery % of key % is stale', tok, k USING ERRCODE = 'LH409'; END IF;
 DELETE FROM leasehold.job j WHERE j.job_id = ANY (ids) AND j.queue_id = s.queue_id AND j.key = k;
 IF free THEN
  UPDATE leasehold.lane l SET token = 0, until = clock_timestamp() WHERE l.queue_id = s.queue_id AND l.key = k;
 END IF;
END $$;
-- `tries`: added to the number of tries, of which the claim counted one for the first job only
CREATE FUNCTION leasehold.lane_nack(q text, k text, tok bigint, id bigint, why text DEFAULT NULL, after interval DEFAULT NULL,
 kill boolean DEFAULT false, tries int DEFAULT 0, wait boolean DEFAULT true) RETURNS text LANGUAGE plpgsql AS $$
DECLARE s leasehold.queue := leasehold.queue_of(q); j leasehold.job; -- retry | dead | stale
BEGIN
 PERFORM leasehold.check_nack(after, tries);
 IF NOT wait THEN PERFORM leasehold.lane_must_be_free(s.queue_id, k, tok); END IF;
 UPDATE leasehold.lane l SET token = 0, until = clock_timestamp()
  WHERE l.queue_id = s.queue_id AND l.key = k AND l.token = tok AND tok > 0;
 IF NOT FOUND THEN RETURN 'stale'; END IF;
  SELECT * INTO j FROM leasehold.job WHERE job_id = id AND queue_id = s.queue_id AND key = k FOR UPDATE;
 IF NOT FOUND THEN RETURN 'stale'; END IF;
 j.attempt := greatest(j.attempt + tries, 0);
 RETURN leasehold.job_settle(j, s, why, after, kill);
END $$;
-- true: extended, false: stale; 55P03 as above
CREATE FUNCTION leasehold.lane_extend(q text, k text, tok bigint, visible interval) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
 IF (visible BETWEEN '1 ms' AND '12 h') IS NOT TRUE THEN
  RAISE EXCEPTION 'a claim on a key lasts 1 ms to 12 h, not %', coalesce(visible::text, 'null') USING ERRCODE = 'LH400';
 END IF;
 PERFORM leasehold.lane_must_be_free((leasehold.queue_of(q)).queue_id, k, tok);
 UPDATE leasehold.lane l SET until = clock_timestamp() + visible WHERE l.queue_id = (leasehold.queue_of(q)).queue_id
  AND l.key = k AND l.token = tok AND tok > 0 AND l.until > clock_timestamp();
 RETURN FOUND;
END $$;
