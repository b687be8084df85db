-- Clients that were added with `agent3 client`, for all gateways on the database. Of a key only its SHA-256 is kept.
-- Up to two keys of a client are good at a time, while it changes from one to the other.

CREATE TABLE clients (
    id TEXT PRIMARY KEY,
    scopes TEXT NOT NULL,
    tenant TEXT,
    created DOUBLE PRECISION NOT NULL,
    stopped DOUBLE PRECISION
);
CREATE TABLE client_keys (
    digest TEXT PRIMARY KEY,
    client TEXT NOT NULL,
    created DOUBLE PRECISION NOT NULL,
    expires DOUBLE PRECISION
);
CREATE INDEX client_keys_client ON client_keys (client);
