-- What changed in the directory since a version of it, so that a process reads that alone and not every agent again:
-- each write of an agent carries the version it made, and so does each removal. Rows of an earlier release have 0.

ALTER TABLE agents ADD COLUMN version BIGINT NOT NULL DEFAULT 0;
CREATE INDEX agents_version ON agents (version);

CREATE TABLE agents_removed (
    id TEXT PRIMARY KEY,
    version BIGINT NOT NULL
);
-- The sentence vectors of an agent's capabilities, which take longer to make than to read. They go with the agent.
CREATE TABLE agent_vectors (
    agent TEXT PRIMARY KEY,
    fingerprint TEXT NOT NULL,
    body {blob} NOT NULL
);
CREATE INDEX agents_removed_version ON agents_removed (version);
