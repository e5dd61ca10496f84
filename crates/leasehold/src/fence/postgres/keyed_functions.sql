CREATE SEQUENCE IF NOT EXISTS leasehold_fence.«g»_rejected START 1;
GRANT SELECT ON SEQUENCE leasehold_fence.«g»_rejected TO PUBLIC;
CREATE OR REPLACE FUNCTION leasehold_fence.«g»_name() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $fence$
DECLARE shown text := current_setting('leasehold.token', true); r text; t bigint; m text; k_token bigint; k_lease text;
BEGIN
  IF TG_OP = 'INSERT' THEN r := «new»; ELSE r := «old»; END IF;
  LOOP
    IF shown ~ '^[1-9][0-9]{0,17}(:[0-9a-f]{16})?$' THEN  -- the usual case of admit(), in place: see there
      t := split_part(shown, ':', 1); m := split_part(shown, ':', 2);
      SELECT x.token, x.lease INTO k_token, k_lease FROM leasehold_fence.seen x WHERE x.scope = '' AND x.resource = r;
      IF k_token = t AND k_lease = m THEN
        PERFORM FROM leasehold_fence.seen x WHERE x.scope = '' AND x.resource = r AND x.token = t AND x.lease = m FOR SHARE;
      ELSIF k_token < t THEN
        UPDATE leasehold_fence.seen x SET token = t, lease = m WHERE x.scope = '' AND x.resource = r AND x.token < t;
      END IF;
      IF NOT FOUND OR k_token IS NULL OR k_token > t OR k_token = t AND k_lease <> m THEN PERFORM leasehold_fence.admit('«g»', '', r, leasehold_fence.pick('«g»', r, shown)); END IF;
    ELSE PERFORM leasehold_fence.admit('«g»', '', r, leasehold_fence.pick('«g»', r, shown));
    END IF;
    EXIT WHEN TG_OP <> 'UPDATE' OR r = «new»;
    r := «new»;
  END LOOP;
  RETURN NULL;
END $fence$;
