-- Calls that wait for somebody's yes, and who said what. What is asked for stands in the job.

CREATE TABLE approvals (
    id TEXT PRIMARY KEY,
    job TEXT NOT NULL,
    owner TEXT NOT NULL,
    tenant TEXT,
    agent TEXT NOT NULL,
    capability TEXT NOT NULL,
    why TEXT NOT NULL,
    approvers TEXT NOT NULL,
    itself INTEGER NOT NULL,
    asked DOUBLE PRECISION NOT NULL,
    expires DOUBLE PRECISION NOT NULL,
    status TEXT NOT NULL,
    decided DOUBLE PRECISION,
    decided_by TEXT,
    reason TEXT,
    settled DOUBLE PRECISION
);
CREATE INDEX approvals_job ON approvals (job);
CREATE INDEX approvals_asked ON approvals (asked);
CREATE INDEX approvals_open ON approvals (expires) WHERE settled IS NULL;

-- Agents that an operator has stopped: no call of them is let in.

CREATE TABLE stopped_agents (
    id TEXT PRIMARY KEY,
    at DOUBLE PRECISION NOT NULL,
    who TEXT NOT NULL,
    reason TEXT NOT NULL
);
