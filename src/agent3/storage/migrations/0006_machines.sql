-- What several gateways on one database tell each other by it.

-- Jobs that somebody wants stopped, for the process that works on them.
CREATE TABLE job_stops (
    job TEXT PRIMARY KEY,
    asked DOUBLE PRECISION NOT NULL
);

-- Turns that were given to the process in whose memory the conversation waits, until it takes them.
CREATE TABLE job_handed (
    job TEXT PRIMARY KEY,
    generation BIGINT NOT NULL
);

-- Duties that one process at a time does: who, until when by the database's clock, and the how manieth holder it is.
CREATE TABLE leases (
    name TEXT PRIMARY KEY,
    holder TEXT NOT NULL,
    until DOUBLE PRECISION NOT NULL,
    token BIGINT NOT NULL
);

-- The token bucket of each caller, from which processes take what they spend.
CREATE TABLE limits (
    key TEXT PRIMARY KEY,
    tokens DOUBLE PRECISION NOT NULL,
    at DOUBLE PRECISION NOT NULL
);
CREATE INDEX limits_at ON limits (at);
