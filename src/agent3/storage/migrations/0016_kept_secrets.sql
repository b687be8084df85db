-- Secrets that came with what was added, such as in a client's file, sealed with the gateway's own secret.

CREATE TABLE kept_secrets (
    id TEXT PRIMARY KEY,
    sealed TEXT NOT NULL,
    kept DOUBLE PRECISION NOT NULL
);
