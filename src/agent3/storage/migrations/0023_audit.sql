-- The audit chain. audit is its spine: every change of configuration, the opening and the signed heads of segments, and
-- what was removed from them. Rows of calls are linked in segments, one for each process; those without are older.

CREATE TABLE audit (
    number BIGINT PRIMARY KEY,
    at DOUBLE PRECISION NOT NULL,
    kind TEXT NOT NULL,
    what TEXT NOT NULL,
    who TEXT,
    salt TEXT,
    who_digest TEXT NOT NULL,
    detail TEXT NOT NULL,
    link TEXT NOT NULL,
    key TEXT,
    signature TEXT
);
CREATE INDEX audit_kind ON audit (kind, what);
ALTER TABLE calls ADD COLUMN segment BIGINT;
ALTER TABLE calls ADD COLUMN sequence BIGINT;
ALTER TABLE calls ADD COLUMN link TEXT;
CREATE UNIQUE INDEX calls_chain ON calls (segment, sequence) WHERE segment IS NOT NULL;
