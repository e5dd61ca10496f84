-- The ledger of scheduled runs.
CREATE TABLE leasehold.schedule (name text COLLATE "C" PRIMARY KEY, token bigint NOT NULL, last_tick timestamptz NOT NULL,
 spec text NOT NULL) WITH (fillfactor = 50);
CREATE TABLE leasehold.run (
 name text COLLATE "C", tick timestamptz, upto timestamptz NOT NULL, ticks int NOT NULL DEFAULT 1, token bigint NOT NULL,
 state text NOT NULL CHECK (state IN ('running', 'ok', 'failed', 'lost', 'missed', 'skipped')), machine text,
 started_at timestamptz NOT NULL DEFAULT clock_timestamp(), ended_at timestamptz, code int, tail text, PRIMARY KEY (name, tick));
-- gap_*: ranges of ticks that nobody began: the first, the last, how many. The caller knows the schedule and cuts at the end of
-- the last run; each range is one row. The counts say what was recorded: ticks that came before a run ended, other ticks, runs.
CREATE FUNCTION leasehold.cron_begin(n text, t timestamptz, tok bigint, who text, what text, gap_from timestamptz[] DEFAULT '{}',
 gap_upto timestamptz[] DEFAULT '{}', gap_ticks int[] DEFAULT '{}', ahead interval DEFAULT '5 s',
 seen timestamptz DEFAULT '-infinity', OUT outcome text, OUT skipped bigint, OUT missed bigint, OUT lost bigint)
LANGUAGE plpgsql AS $$
BEGIN -- first | done | stale | early | again
 skipped := 0; missed := 0; lost := 0;
 -- `seen`: the last tick that the caller read, NULL for none, from which it counted what was missed; -infinity: not compared
 IF t > clock_timestamp() + ahead THEN outcome := 'early'; RETURN; END IF;
 INSERT INTO leasehold.schedule AS x VALUES (n, tok, t, what)
  ON CONFLICT (name) DO UPDATE SET token = excluded.token, last_tick = excluded.last_tick, spec = excluded.spec
  WHERE x.token <= excluded.token AND x.last_tick < excluded.last_tick AND (seen = '-infinity' OR x.last_tick = seen);
 IF NOT FOUND THEN
  SELECT CASE WHEN last_tick >= t THEN 'done' WHEN token > tok THEN 'stale' ELSE 'again' END INTO outcome
  FROM leasehold.schedule WHERE name = n;
  RETURN;
 END IF;
 UPDATE leasehold.run SET state = 'lost', ended_at = clock_timestamp() WHERE name = n AND state = 'running' AND token < tok;
 GET DIAGNOSTICS lost = ROW_COUNT;
 -- by the last of its ticks: a tick that came after the run was in nobody's way
 WITH gap AS (
  INSERT INTO leasehold.run AS x (name, tick, upto, ticks, token, state, machine, ended_at)
  SELECT n, g.first, g.last, g.ticks, tok, CASE WHEN EXISTS (SELECT FROM leasehold.run r WHERE r.name = n
  AND r.ended_at > g.last AND r.state IN ('ok', 'failed')) THEN 'skipped' ELSE 'missed' END, who, clock_timestamp()
  FROM unnest(gap_from, gap_upto, gap_ticks) g(first, last, ticks) RETURNING x.state, x.ticks
 )
 SELECT coalesce(sum(ticks) FILTER (WHERE state = 'skipped'), 0), coalesce(sum(ticks) FILTER (WHERE state = 'missed'), 0)
  INTO skipped, missed FROM gap;
 INSERT INTO leasehold.run (name, tick, upto, token, state, machine) VALUES (n, t, t, tok, 'running', who);
 -- the newest 10,000 rows are kept. Which tick is next is told by leasehold.schedule alone
 DELETE FROM leasehold.run x WHERE x.name = n AND x.state <> 'running' AND x.tick IN
  (SELECT r.tick FROM leasehold.run r WHERE r.name = n ORDER BY r.tick DESC OFFSET 10000 LIMIT 100);
 outcome := 'first';
END $$;
CREATE FUNCTION leasehold.cron_finish(n text, t timestamptz, tok bigint, how text, exit_code int, last_words text) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
 UPDATE leasehold.run SET state = how, code = exit_code, tail = right(last_words, 4000), ended_at = clock_timestamp()
  WHERE name = n AND tick = t AND token = tok AND state = 'running';
 RETURN FOUND;
END $$;
