CREATE TRIGGER zz_leasehold_fence AFTER INSERT OR UPDATE OR DELETE ON «table» FOR EACH ROW EXECUTE FUNCTION leasehold_fence.«g»_name();
