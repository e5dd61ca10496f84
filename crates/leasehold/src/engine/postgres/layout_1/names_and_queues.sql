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

