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
