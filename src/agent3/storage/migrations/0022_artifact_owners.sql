-- How much is kept for each client is counted from one index alone.

CREATE INDEX artifacts_owner ON artifacts (owner, size);
