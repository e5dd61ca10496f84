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

