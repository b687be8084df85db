-- Nonces of signed requests, each until a copy of its request would be too old to be taken anyway.

CREATE TABLE nonces (
    id TEXT PRIMARY KEY,
    client TEXT NOT NULL,
    expires DOUBLE PRECISION NOT NULL
);
CREATE INDEX nonces_expires ON nonces (expires);
