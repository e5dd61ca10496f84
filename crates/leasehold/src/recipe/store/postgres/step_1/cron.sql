-- The ledger of scheduled runs.
CREATE TABLE leasehold.schedule (name text COLLATE "C" PRIMARY KEY, token bigint NOT NULL, last_tick timestamptz NOT NULL,
 spec text NOT NULL) WITH (fillfactor = 50);
CREATE TABLE leasehold.run (
 name text COLLATE "C", tick timestamptz, upto timestamptz NOT NULL, ticks int NOT NULL DEFAULT 1, token bigint NOT NULL,
 state text NOT NULL CHECK (state IN ('running', 'ok', 'failed', 'lost', 'missed', 'skipped')), machine text,
 started_at timestamptz NOT NULL DEFAULT clock_timestamp(), ended_at timestamptz, code int, tail text, PRIMARY KEY (name, tick));
CREATE FUNCTION leasehold.cron_begin(n text, t timestamptz, tok bigint, who text, what text, missed_from timestamptz DEFAULT NULL,
 missed_upto timestamptz DEFAULT NULL, missed int DEFAULT 0, ahead interval DEFAULT '5 s', seen timestamptz DEFAULT '-infinity')
RETURNS text LANGUAGE plpgsql AS $$
BEGIN -- first | done | stale | early | again
 -- `seen`: the last tick that the caller read, NULL for none, from which it counted what was missed; -infinity: not compared
 IF t > clock_timestamp() + ahead THEN RETURN 'early'; END IF;
 INSERT INTO leasehold.schedule AS x VALUES (n, tok, t, what)
  ON CONFLICT (name) DO UPDATE SET token = excluded.token, last_tick = excluded.last_tick, spec = excluded.spec
  WHERE x.token <= excluded.token AND x.last_tick < excluded.last_tick AND (seen = '-infinity' OR x.last_tick = seen);
 IF NOT FOUND THEN
  RETURN (SELECT CASE WHEN last_tick >= t THEN 'done' WHEN token > tok THEN 'stale' ELSE 'again' END
   FROM leasehold.schedule WHERE name = n);
 END IF;
 UPDATE leasehold.run SET state = 'lost', ended_at = clock_timestamp() WHERE name = n AND state = 'running' AND token < tok;
 IF missed > 0 THEN
  INSERT INTO leasehold.run (name, tick, upto, ticks, token, state, machine, ended_at)
  VALUES (n, missed_from, missed_upto, missed, tok, CASE WHEN EXISTS (SELECT FROM leasehold.run r WHERE r.name = n
  AND r.ended_at > missed_from AND r.state IN ('ok', 'failed')) THEN 'skipped' ELSE 'missed' END, who, clock_timestamp());
 END IF;
 INSERT INTO leasehold.run (name, tick, upto, token, state, machine) VALUES (n, t, t, tok, 'running', who);
 RETURN 'first';
END $$;
CREATE FUNCTION leasehold.cron_finish(n text, t timestamptz, tok bigint, how text, exit_code int, last_words text) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
 UPDATE leasehold.run SET state = how, code = exit_code, tail = right(last_words, 4000), ended_at = clock_timestamp()
  WHERE name = n AND tick = t AND token = tok AND state = 'running';
 RETURN FOUND;
END $$;
