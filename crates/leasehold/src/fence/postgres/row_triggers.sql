ALTER TABLE «table» ADD COLUMN IF NOT EXISTS leasehold_fence text;
COMMENT ON COLUMN «table».leasehold_fence IS 'Leasehold: the highest fencing token that wrote this row, and the mark of its lease; memory of «g»';
CREATE TRIGGER zz_leasehold_fence BEFORE UPDATE ON «table» FOR EACH ROW
  WHEN ((OLD.leasehold_fence = NEW.leasehold_fence AND OLD.leasehold_fence = current_setting('leasehold.token', true)) IS NOT TRUE)
  EXECUTE FUNCTION leasehold_fence.«g»_row();
CREATE TRIGGER zz_leasehold_new BEFORE INSERT ON «table» FOR EACH ROW EXECUTE FUNCTION leasehold_fence.«g»_new();
CREATE TRIGGER zz_leasehold_memory AFTER INSERT OR DELETE ON «table» FOR EACH ROW EXECUTE FUNCTION leasehold_fence.«g»_memory();
CREATE TRIGGER zz_leasehold_moved AFTER UPDATE ON «table» FOR EACH ROW
  WHEN («moved») EXECUTE FUNCTION leasehold_fence.«g»_memory();
