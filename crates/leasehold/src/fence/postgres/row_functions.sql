CREATE SEQUENCE IF NOT EXISTS leasehold_fence.«g»_rejected START 1;
GRANT SELECT ON SEQUENCE leasehold_fence.«g»_rejected TO PUBLIC;
CREATE OR REPLACE FUNCTION leasehold_fence.«g»_row() RETURNS trigger LANGUAGE plpgsql AS $fence$
BEGIN  -- no pinned path: names and operators are qualified instead, which is faster
  IF (CASE WHEN pg_catalog.current_setting('leasehold.token', true) OPERATOR(pg_catalog.~) '^[1-9][0-9]{0,17}(:[0-9a-f]{16})?$'
    THEN (pg_catalog.split_part(pg_catalog.current_setting('leasehold.token', true), ':', 1)::pg_catalog.int8
      OPERATOR(pg_catalog.>) pg_catalog.split_part(OLD.leasehold_fence, ':', 1)::pg_catalog.int8) IS NOT FALSE
    ELSE false END)
  THEN NEW.leasehold_fence := pg_catalog.current_setting('leasehold.token', true);
  ELSE NEW.leasehold_fence := leasehold_fence.decide('«g»', «old», pg_catalog.current_setting('leasehold.token', true), OLD.leasehold_fence);
  END IF;
  RETURN NEW;
END $fence$;
CREATE OR REPLACE FUNCTION leasehold_fence.«g»_new() RETURNS trigger LANGUAGE plpgsql AS $fence$
BEGIN  -- whether this resource was seen before is asked afterwards, by _memory
  NEW.leasehold_fence := leasehold_fence.decide('«g»', «new», pg_catalog.current_setting('leasehold.token', true), NULL);
  RETURN NEW;
END $fence$;
CREATE OR REPLACE FUNCTION leasehold_fence.«g»_memory() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $fence$
DECLARE shown text := current_setting('leasehold.token', true); head text; k record;
BEGIN
  IF TG_OP <> 'INSERT' THEN  -- the row leaves this resource: its fence must outlive it
    head := leasehold_fence.decide('«g»', «old», shown, OLD.leasehold_fence);
    PERFORM leasehold_fence.admit('«g»', '«g»', «old», head);
  END IF;
  IF TG_OP <> 'DELETE' THEN  -- a row comes to this resource: was there one before?
    head := leasehold_fence.pick('«g»', «new», shown);
    IF head IS NULL THEN RETURN NULL; END IF;
    IF current_setting('transaction_isolation') = 'read committed' THEN
      SELECT x.token, x.lease INTO k FROM leasehold_fence.seen x WHERE x.scope = '«g»' AND x.resource = «new»;
      IF FOUND THEN PERFORM leasehold_fence.decide('«g»', «new», head, k.token || CASE k.lease WHEN '' THEN '' ELSE ':' || k.lease END); END IF;
    ELSE  -- the snapshot is old: only a write meets what it cannot see
      PERFORM leasehold_fence.admit('«g»', '«g»', «new», head);
    END IF;
  END IF;
  RETURN NULL;
END $fence$;
