-- The fence in a database, once for all tables. Every statement may be run again.

CREATE SCHEMA IF NOT EXISTS leasehold_fence;
REVOKE ALL ON SCHEMA leasehold_fence FROM PUBLIC;
GRANT USAGE ON SCHEMA leasehold_fence TO PUBLIC;

CREATE TABLE IF NOT EXISTS leasehold_fence.seen (
  scope    text COLLATE "C" NOT NULL,  -- '=' fixed names and check(); '' names made of keys; else the guard whose rows keep their own
  resource text COLLATE "C" NOT NULL,
  token    bigint NOT NULL CHECK (token > 0),
  lease    text COLLATE "C" NOT NULL,  -- mark of the lease, '' when none was shown
  PRIMARY KEY (scope, resource)
) WITH (fillfactor = 70);

CREATE TABLE IF NOT EXISTS leasehold_fence.fenced (
  guard     text PRIMARY KEY,          -- 'g' and 12 hex digits; names functions and sequences
  rel       regclass NOT NULL UNIQUE,  -- follows a rename, is dumped by name
  store     text NOT NULL CHECK (store IN ('row', 'name')),
  template  text NOT NULL,
  keys      text[] NOT NULL,
  mode      text NOT NULL CHECK (mode IN ('observe', 'enforce')),
  version   int NOT NULL,
  rows_before bigint NOT NULL DEFAULT 0,  -- rows written before the fence came, as the statistics count them
  installed timestamptz NOT NULL DEFAULT now()
);
REVOKE ALL ON leasehold_fence.seen, leasehold_fence.fenced FROM PUBLIC;
GRANT SELECT ON leasehold_fence.seen, leasehold_fence.fenced TO PUBLIC;

-- Every refusal goes through here: counted (a sequence outlives the rollback), then raised or, in observe mode, logged.
CREATE OR REPLACE FUNCTION leasehold_fence.refuse(guard text, code text, resource text, presented text, highest text)
RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $fence$
DECLARE
  f leasehold_fence.fenced;
  p text := split_part(coalesce(presented, ''), ':', 1);
  h text := split_part(coalesce(highest, ''), ':', 1);
  say text; hint text;
BEGIN
  SELECT * INTO f FROM leasehold_fence.fenced x WHERE x.guard = refuse.guard;
  IF f.mode = 'observe' AND current_setting('transaction_isolation') <> 'read committed' THEN
    -- the snapshot may be from before it enforced: then this is a serialization failure, and the writer comes again
    PERFORM FROM leasehold_fence.fenced x WHERE x.guard = refuse.guard FOR SHARE;
  END IF;
  CASE code
    WHEN 'LH001' THEN say := format('token %s is stale: %s has seen token %s', p, resource, h);
      hint := 'A later holder has written. Stop: the lease is gone.';
    WHEN 'LH002' THEN say := format('%s is fenced and no token was shown', resource);
      hint := 'Take a lease, then in the same transaction: SELECT set_config(''leasehold.token'', ''<token>:<mark>'', true)';
    WHEN 'LH003' THEN say := format('token %s of %s belongs to another lease', p, resource);
      hint := 'Two engines hand out the same tokens, or one was restored without "leasehold fence floor"; or the mark of the lease was not shown.';
    WHEN 'LH004' THEN say := 'the setting leasehold.token is malformed';
      hint := 'Write <token>:<mark>, a decimal from 1 to 9223372036854775807 and 16 hex digits.';
    WHEN 'LH005' THEN say := format('TRUNCATE of a fenced table is refused (%s)', resource);
      hint := 'Use DELETE under a token, or "leasehold fence remove" first.';
    WHEN 'LH006' THEN say := format('no lease shown covers %s', resource);
      hint := 'The setting leasehold.token names other resources only.';
  END CASE;
  IF f.guard IS NOT NULL THEN
    PERFORM nextval(format('leasehold_fence.%I', f.guard || '_rejected')::regclass);
  END IF;
  IF f.mode = 'observe' THEN
    RAISE LOG 'leasehold fence would refuse: %', say
      USING DETAIL = format('code=%s table=%s user=%s application=%s', code, f.rel, session_user, current_setting('application_name'));
    RETURN;
  END IF;
  RAISE EXCEPTION USING ERRCODE = code, MESSAGE = say, HINT = hint, CONSTRAINT = 'leasehold_fence',
    TABLE = coalesce(f.rel::text, ''),
    DETAIL = json_build_object('resource', resource, 'presented', nullif(p, ''), 'highest', nullif(h, ''))::text;
END $fence$;

-- Which 'token:mark' of the setting speaks for this resource; NULL when it refused and only observes.
-- The setting: lines of  token[:mark][<TAB>resource…]  — a line without resources speaks for all.
CREATE OR REPLACE FUNCTION leasehold_fence.pick(guard text, resource text, shown text)
RETURNS text LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $fence$
DECLARE line text; head text;
BEGIN
  IF shown IS NULL OR shown = '' THEN
    PERFORM leasehold_fence.refuse(guard, 'LH002', resource, NULL, NULL); RETURN NULL;
  END IF;
  FOREACH line IN ARRAY string_to_array(shown, E'\n') LOOP
    head := split_part(line, E'\t', 1);
    IF head !~ '^[1-9][0-9]{0,18}(:[0-9a-f]{16})?$' OR split_part(head, ':', 1)::numeric > 9223372036854775807 THEN
      PERFORM leasehold_fence.refuse(guard, 'LH004', resource, NULL, NULL); RETURN NULL;
    END IF;
    IF strpos(line, E'\t') = 0 OR strpos(line || E'\t', E'\t' || resource || E'\t') > 0 THEN RETURN head; END IF;
  END LOOP;
  PERFORM leasehold_fence.refuse(guard, 'LH006', resource, NULL, NULL); RETURN NULL;
END $fence$;

-- The rule, for a fence that is kept in the row: what the row is to remember, or a refusal.
CREATE OR REPLACE FUNCTION leasehold_fence.decide(guard text, resource text, shown text, kept text)
RETURNS text LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $fence$
DECLARE head text := leasehold_fence.pick(guard, resource, shown); t bigint; k bigint;
BEGIN
  IF head IS NULL THEN RETURN kept; END IF;
  IF kept IS NULL OR head = kept THEN RETURN head; END IF;
  t := split_part(head, ':', 1)::bigint; k := split_part(kept, ':', 1)::bigint;
  IF t > k OR t = k AND split_part(kept, ':', 2) = '' THEN RETURN head; END IF;
  PERFORM leasehold_fence.refuse(guard, CASE WHEN t < k THEN 'LH001' ELSE 'LH003' END, resource, head, kept);
  RETURN kept;
END $fence$;

-- The rule, for a fence that is a row of "seen": admits and holds the order until the transaction ends, or refuses.
CREATE OR REPLACE FUNCTION leasehold_fence.admit(guard text, scope text, resource text, head text)
RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $fence$
DECLARE
  t bigint := split_part(head, ':', 1)::bigint;
  m text := split_part(head, ':', 2);
  k record;
BEGIN
  IF head IS NULL THEN RETURN; END IF;
  LOOP
    SELECT x.token, x.lease INTO k FROM leasehold_fence.seen x WHERE x.scope = admit.scope AND x.resource = admit.resource;
    -- A stale writer leaves here, without a lock: two of them that held share locks and then wanted to write would deadlock.
    IF k.token > t OR k.token = t AND k.lease <> m AND k.lease <> '' THEN
      PERFORM leasehold_fence.refuse(guard, CASE WHEN k.token > t THEN 'LH001' ELSE 'LH003' END, resource, head, k.token || ':' || k.lease);
      RETURN;
    END IF;
    IF k.token = t AND k.lease = m THEN
      -- Equal: a share lock. Transactions of one lease do not wait for each other; a later holder waits for all of them.
      PERFORM FROM leasehold_fence.seen x
        WHERE x.scope = admit.scope AND x.resource = admit.resource AND x.token = t AND x.lease = m FOR SHARE;
    ELSE
      INSERT INTO leasehold_fence.seen AS x VALUES (scope, resource, t, m)
        ON CONFLICT ON CONSTRAINT seen_pkey DO UPDATE SET token = excluded.token, lease = excluded.lease
        WHERE x.token < excluded.token OR x.token = excluded.token AND x.lease = '';
    END IF;
    EXIT WHEN FOUND;  -- otherwise somebody raised it between the two statements: once more
  END LOOP;
END $fence$;

-- The same for one name that many transactions of one lease share at once: share locks on one row would make a multixact
-- for each of them. A lock in memory instead, for whom it is enough: read committed sees what was committed before it locked.
CREATE OR REPLACE FUNCTION leasehold_fence.admit_one(guard text, resource text, head text)
RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $fence$
DECLARE
  t bigint := split_part(head, ':', 1)::bigint;
  m text := split_part(head, ':', 2);
  spot bigint := hashtextextended(resource, 5497641);
  k_token bigint; k_lease text;
BEGIN
  IF head IS NULL THEN RETURN; END IF;
  SELECT x.token, x.lease INTO k_token, k_lease FROM leasehold_fence.seen x WHERE x.scope = '=' AND x.resource = admit_one.resource;
  IF k_token = t AND k_lease = m AND current_setting('transaction_isolation') = 'read committed' THEN
    PERFORM pg_advisory_xact_lock_shared(spot);
    PERFORM FROM leasehold_fence.seen x WHERE x.scope = '=' AND x.resource = admit_one.resource AND x.token = t AND x.lease = m;
    IF FOUND THEN RETURN; END IF;
  ELSIF k_token < t OR k_token = t AND k_lease = '' OR k_token IS NULL THEN
    PERFORM pg_advisory_xact_lock(spot);  -- who raises waits for both kinds of sharers
  END IF;
  PERFORM leasehold_fence.admit(guard, '=', resource, head);
END $fence$;
REVOKE ALL ON FUNCTION leasehold_fence.admit, leasehold_fence.admit_one FROM PUBLIC;

-- For hand-written transactions: SELECT leasehold_fence.check('billing/2026-11', '42:9f3a…'); then write.
CREATE OR REPLACE FUNCTION leasehold_fence.check(resource text, shown text DEFAULT current_setting('leasehold.token', true))
RETURNS void LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $fence$
  SELECT leasehold_fence.admit_one('', resource, leasehold_fence.pick('', resource, shown))
$fence$;

-- The text of a key whose type prints by the settings of the session (float, interval, ranges and arrays of dates, money,
-- regclass): every session must compute the same name. Types with a text of their own do not come here.
CREATE OR REPLACE FUNCTION leasehold_fence.key_text(key anyelement) RETURNS text LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp SET TimeZone = 'UTC' SET DateStyle = 'ISO, YMD' SET IntervalStyle = 'postgres'
SET extra_float_digits = 1 SET bytea_output = 'hex' SET lc_monetary = 'C' SET quote_all_identifiers = off AS $fence$
BEGIN
  RETURN key::text;
END $fence$;

CREATE OR REPLACE FUNCTION leasehold_fence.no_truncate() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $fence$
BEGIN
  PERFORM leasehold_fence.refuse(TG_ARGV[0], 'LH005', TG_RELID::regclass::text, NULL, NULL);
  RETURN NULL;
END $fence$;
GRANT EXECUTE ON FUNCTION leasehold_fence.refuse, leasehold_fence.pick, leasehold_fence.decide, leasehold_fence.check, leasehold_fence.key_text TO PUBLIC;
