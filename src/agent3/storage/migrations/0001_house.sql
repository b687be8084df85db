-- The tables of the house. {blob} and {serial} become what the database at hand calls them.
-- A file here never changes once released: its checksum is kept, and a change is a new file.

CREATE TABLE calls (
    id TEXT PRIMARY KEY,
    job TEXT,
    turn BIGINT,
    at DOUBLE PRECISION,
    principal TEXT,
    tenant TEXT,
    agent TEXT,
    capability TEXT,
    route TEXT,
    door TEXT,
    entry TEXT,
    context TEXT,
    trace TEXT,
    status TEXT,
    code TEXT,
    message TEXT,
    seconds DOUBLE PRECISION,
    attempts BIGINT,
    hops BIGINT,
    cached BIGINT,
    tokens BIGINT,
    cost DOUBLE PRECISION,
    bytes_in BIGINT,
    bytes_out BIGINT
);
CREATE INDEX calls_at ON calls (at);
CREATE INDEX calls_agent_at ON calls (agent, at);
CREATE INDEX calls_principal_at ON calls (principal, at);

CREATE TABLE jobs (
    id TEXT PRIMARY KEY,
    owner TEXT NOT NULL,
    key TEXT,
    key_hash TEXT,
    status TEXT NOT NULL,
    turn BIGINT NOT NULL,
    call {blob} NOT NULL,
    route {blob},
    state {blob},
    outcome {blob},
    answers {blob},
    questions {blob},
    seq BIGINT NOT NULL DEFAULT 0,
    node TEXT,
    lease DOUBLE PRECISION,
    generation BIGINT NOT NULL DEFAULT 0,
    created DOUBLE PRECISION,
    updated DOUBLE PRECISION,
    expires DOUBLE PRECISION,
    UNIQUE (owner, key)
);
CREATE INDEX jobs_status_lease ON jobs (status, lease);
CREATE INDEX jobs_owner_updated ON jobs (owner, updated);

CREATE TABLE job_aliases (
    owner TEXT NOT NULL,
    alias TEXT NOT NULL,
    job TEXT NOT NULL,
    PRIMARY KEY (owner, alias)
);

CREATE TABLE job_events (
    job TEXT NOT NULL,
    seq BIGINT NOT NULL,
    turn BIGINT,
    kind TEXT,
    body {blob},
    at DOUBLE PRECISION,
    PRIMARY KEY (job, seq)
);

CREATE TABLE dead_letters (
    id TEXT PRIMARY KEY,
    at DOUBLE PRECISION,
    principal TEXT,
    agent TEXT,
    capability TEXT,
    code TEXT,
    message TEXT,
    attempts BIGINT,
    call {blob},
    outcome {blob},
    replayed DOUBLE PRECISION
);
CREATE INDEX dead_letters_at ON dead_letters (at);

CREATE TABLE agents (
    id TEXT PRIMARY KEY,
    body {blob} NOT NULL,
    added DOUBLE PRECISION,
    updated DOUBLE PRECISION
);

CREATE TABLE counters (
    name TEXT PRIMARY KEY,
    value BIGINT NOT NULL
);

CREATE TABLE feedback (
    id TEXT PRIMARY KEY,
    at DOUBLE PRECISION,
    agent TEXT,
    principal TEXT,
    call TEXT,
    rating BIGINT,
    comment TEXT
);
CREATE INDEX feedback_agent_at ON feedback (agent, at);

CREATE TABLE artifacts (
    id TEXT PRIMARY KEY,
    owner TEXT,
    sha256 TEXT,
    name TEXT,
    media_type TEXT,
    size BIGINT,
    job TEXT,
    created DOUBLE PRECISION,
    expires DOUBLE PRECISION
);
CREATE INDEX artifacts_sha256 ON artifacts (sha256);
CREATE INDEX artifacts_expires ON artifacts (expires);
