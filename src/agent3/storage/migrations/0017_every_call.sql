-- Every call seen: how the ledger is read, statistics of it, bodies, prices, budgets and reputation.

ALTER TABLE calls ADD COLUMN estimated BIGINT;
ALTER TABLE calls ADD COLUMN user_agent TEXT;

-- Rows are written when a turn ends, so what is new since a moment is found by its end.
CREATE INDEX calls_ended ON calls ((at + seconds));
-- Most calls are a job and a trace of their own, found by their id: only the others need an entry.
CREATE INDEX calls_job ON calls (job, turn) WHERE job <> id;
CREATE INDEX calls_trace ON calls (trace, at) WHERE trace <> id;

-- What ended in each hour since 1970, by who called what. b0 to b15 count the seconds of those that ran, in the buckets
-- of agent3_call_seconds. An empty agent stands for names that do not exist.
CREATE TABLE call_stats (
    hour BIGINT NOT NULL,
    principal TEXT NOT NULL,
    agent TEXT NOT NULL,
    capability TEXT NOT NULL,
    calls BIGINT NOT NULL,
    failed BIGINT NOT NULL,
    refused BIGINT NOT NULL,
    seconds DOUBLE PRECISION NOT NULL,
    tokens BIGINT NOT NULL,
    cost DOUBLE PRECISION NOT NULL,
    b0 BIGINT NOT NULL, b1 BIGINT NOT NULL, b2 BIGINT NOT NULL, b3 BIGINT NOT NULL,
    b4 BIGINT NOT NULL, b5 BIGINT NOT NULL, b6 BIGINT NOT NULL, b7 BIGINT NOT NULL,
    b8 BIGINT NOT NULL, b9 BIGINT NOT NULL, b10 BIGINT NOT NULL, b11 BIGINT NOT NULL,
    b12 BIGINT NOT NULL, b13 BIGINT NOT NULL, b14 BIGINT NOT NULL, b15 BIGINT NOT NULL,
    PRIMARY KEY (hour, principal, agent, capability)
);
CREATE INDEX call_stats_principal ON call_stats (principal, hour);

CREATE TABLE call_bodies (
    id TEXT PRIMARY KEY,
    at DOUBLE PRECISION NOT NULL,
    kind TEXT NOT NULL,
    request TEXT,
    response TEXT
);
CREATE INDEX call_bodies_at ON call_bodies (at);

-- Prices that the operator set; capability * stands for all of an agent.
CREATE TABLE prices (
    agent TEXT NOT NULL,
    capability TEXT NOT NULL,
    call DOUBLE PRECISION NOT NULL,
    second DOUBLE PRECISION NOT NULL,
    tokens DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (agent, capability)
);

-- What was spent of each budget: by day since 1970, 0 for budgets without a day.
CREATE TABLE budget_spent (
    key TEXT NOT NULL,
    period BIGINT NOT NULL,
    usd DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (key, period)
);

-- What each caller met at an agent (decayed: see agent3.directory.reputation), and what all of it comes to.
CREATE TABLE agent_use (
    agent TEXT NOT NULL,
    principal TEXT NOT NULL,
    good DOUBLE PRECISION NOT NULL,
    bad DOUBLE PRECISION NOT NULL,
    seconds DOUBLE PRECISION NOT NULL,
    at DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (agent, principal)
);
CREATE INDEX agent_use_recent ON agent_use (agent, at);
CREATE INDEX agent_use_at ON agent_use (at);
CREATE TABLE reputation (
    agent TEXT PRIMARY KEY,
    voices BIGINT NOT NULL,
    stars DOUBLE PRECISION,
    callers BIGINT NOT NULL,
    success DOUBLE PRECISION NOT NULL,
    seconds DOUBLE PRECISION NOT NULL,
    at DOUBLE PRECISION NOT NULL
);
CREATE INDEX feedback_principal ON feedback (agent, principal);
INSERT INTO reputation (agent, voices, stars, callers, success, seconds, at)
SELECT agent, COUNT(*), AVG(rating), 0, 0.5, 0.0, MAX(at) FROM feedback
WHERE agent IS NOT NULL AND rating BETWEEN 1 AND 5 GROUP BY agent;
