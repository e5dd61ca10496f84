-- Idempotency keys: one row for each (scope, key), with the newest token and the answer. The limits are those of the library
-- (once/request.rs): callers by SQL meet them here, as LH400.
CREATE TABLE leasehold.once (
 scope text COLLATE "C", key text COLLATE "C", token bigint NOT NULL, until timestamptz NOT NULL, expires_at timestamptz NOT NULL,
 asked bytea NOT NULL, status int, answer bytea, PRIMARY KEY (scope, key)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000);
CREATE INDEX once_age ON leasehold.once (expires_at);
CREATE FUNCTION leasehold.once_begin(scope text, key text, asked bytea, ttl interval DEFAULT '30 s', keep interval DEFAULT '24 h',
 OUT outcome text, OUT token bigint, OUT status int, OUT answer bytea, OUT remaining interval) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE o leasehold.once; t timestamptz := clock_timestamp(); s ALIAS FOR $1; k ALIAS FOR $2; a ALIAS FOR $3;
BEGIN -- first | replay | in_flight | mismatch
 IF (octet_length(s) BETWEEN 1 AND 128) IS NOT TRUE THEN
  RAISE EXCEPTION 'a scope has 1 to 128 bytes, and this has %', coalesce(octet_length(s)::text, 'none: it is null')
   USING ERRCODE = 'LH400';
 ELSIF (octet_length(k) BETWEEN 1 AND 255) IS NOT TRUE THEN
  RAISE EXCEPTION 'a key has 1 to 255 bytes, and this has %', coalesce(octet_length(k)::text, 'none: it is null')
   USING ERRCODE = 'LH400';
 ELSIF (octet_length(a) <= 1024) IS NOT TRUE THEN
  RAISE EXCEPTION 'what is asked is a digest: 1024 bytes at most, and not null' USING ERRCODE = 'LH400';
 ELSIF (ttl BETWEEN '1 ms' AND '1 h') IS NOT TRUE THEN
  RAISE EXCEPTION 'the ttl of a try is 1 ms to 1 h, not %', coalesce(ttl::text, 'null') USING ERRCODE = 'LH400';
 ELSIF (keep BETWEEN '1 ms' AND '30 days') IS NOT TRUE THEN
  RAISE EXCEPTION 'an answer is kept for 1 ms to 30 days, not %', coalesce(keep::text, 'null') USING ERRCODE = 'LH400';
 END IF;
 LOOP
  INSERT INTO leasehold.once AS x (scope, key, token, until, expires_at, asked)
  VALUES (s, k, nextval('leasehold.recipe_token'), t + ttl, t + greatest(keep, ttl), a)
  ON CONFLICT (scope, key) DO UPDATE
   SET token = nextval('leasehold.recipe_token'), until = excluded.until, expires_at = excluded.expires_at,
    asked = excluded.asked, status = NULL, answer = NULL
  WHERE (x.status IS NULL AND x.until <= clock_timestamp() AND x.asked = excluded.asked)
   OR (x.expires_at <= clock_timestamp() AND (x.status IS NOT NULL OR x.until <= clock_timestamp()))
  RETURNING x.token INTO token;
  IF FOUND THEN
   -- The token of a new row was drawn before the row was ours: it may have waited for a transaction that was rolled back,
   -- and others had tokens meanwhile. Then it gets a new one.
   IF pg_sequence_last_value('leasehold.recipe_token') <> token THEN
    UPDATE leasehold.once x SET token = nextval('leasehold.recipe_token') WHERE x.scope = s AND x.key = k
    RETURNING x.token INTO token;
   END IF;
   outcome := 'first';
   RETURN;
  END IF;
  SELECT * INTO o FROM leasehold.once x WHERE x.scope = s AND x.key = k;
  CONTINUE WHEN NOT FOUND; -- expired and swept in between
  IF o.asked <> a THEN outcome := 'mismatch';
  ELSIF o.status IS NOT NULL THEN outcome := 'replay'; status := o.status; answer := o.answer;
  ELSE outcome := 'in_flight'; remaining := greatest(o.until - clock_timestamp(), '0'); END IF;
  RETURN;
 END LOOP;
END $$;
-- how: finish | renew | abandon; false: stale, nothing written
CREATE FUNCTION leasehold.once_end(how text, s text, k text, tok bigint, st int DEFAULT NULL, an bytea DEFAULT NULL,
 ttl interval DEFAULT NULL) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
 IF (how IN ('finish', 'renew', 'abandon')) IS NOT TRUE THEN
  RAISE EXCEPTION 'a try ends by finish or abandon, or goes on by renew, not by %', coalesce(how, 'null') USING ERRCODE = 'LH400';
 ELSIF how = 'finish' AND st IS NULL THEN
  RAISE EXCEPTION 'finish needs a status: without one there is no answer to keep' USING ERRCODE = 'LH400';
 ELSIF octet_length(an) > 1048576 THEN
  RAISE EXCEPTION 'an answer has at most 1 MiB, and this has % bytes', octet_length(an) USING ERRCODE = 'LH400';
 ELSIF how = 'renew' AND (ttl BETWEEN '1 ms' AND '1 h') IS NOT TRUE THEN
  RAISE EXCEPTION 'renew needs a ttl of 1 ms to 1 h, not %', coalesce(ttl::text, 'null') USING ERRCODE = 'LH400';
 END IF;
 IF how = 'finish' THEN -- no answer is an empty one: a replay has bytes
  UPDATE leasehold.once x SET status = st, answer = coalesce(an, '')
  WHERE x.scope = s AND x.key = k AND x.token = tok AND x.status IS NULL;
 ELSE
  UPDATE leasehold.once x SET until = CASE how WHEN 'renew' THEN clock_timestamp() + ttl ELSE '-infinity' END
  WHERE x.scope = s AND x.key = k AND x.token = tok AND x.status IS NULL AND x.until > clock_timestamp();
 END IF;
 RETURN FOUND;
END $$;
