CREATE SEQUENCE IF NOT EXISTS leasehold_fence.«g»_rejected START 1;
GRANT SELECT ON SEQUENCE leasehold_fence.«g»_rejected TO PUBLIC;
CREATE OR REPLACE FUNCTION leasehold_fence.«g»_name() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $fence$
DECLARE shown text := current_setting('leasehold.token', true); head text;
BEGIN
  head := leasehold_fence.pick('«g»', «name», shown);
  IF head IS NOT NULL THEN
    PERFORM leasehold_fence.admit_one('«g»', «name», head);
    PERFORM set_config('leasehold.held_«g»', shown, true);  -- the rest of this transaction needs no further look
  END IF;
  RETURN NULL;
END $fence$;
