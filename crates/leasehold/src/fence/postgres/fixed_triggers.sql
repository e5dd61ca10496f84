CREATE TRIGGER aa_leasehold_fence BEFORE INSERT OR UPDATE OR DELETE ON «table» FOR EACH STATEMENT
  WHEN (current_setting('leasehold.held_«g»', true) IS DISTINCT FROM current_setting('leasehold.token', true) OR coalesce(current_setting('leasehold.token', true), '') = '') EXECUTE FUNCTION leasehold_fence.«g»_name();
CREATE TRIGGER zz_leasehold_fence AFTER INSERT OR UPDATE OR DELETE ON «table» FOR EACH ROW
  WHEN (current_setting('leasehold.held_«g»', true) IS DISTINCT FROM current_setting('leasehold.token', true) OR coalesce(current_setting('leasehold.token', true), '') = '') EXECUTE FUNCTION leasehold_fence.«g»_name();
