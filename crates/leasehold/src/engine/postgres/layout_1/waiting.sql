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

