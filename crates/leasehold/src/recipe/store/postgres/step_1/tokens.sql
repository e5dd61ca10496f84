-- Tokens of deliveries and of first tries. They come from one sequence, and are drawn after the row is locked: drawn before,
-- a later grant could carry the lower one.
CREATE SEQUENCE leasehold.recipe_token CACHE 1;
