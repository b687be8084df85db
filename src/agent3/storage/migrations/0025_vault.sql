-- The vault's secrets are rows of kept_secrets, by the id vault:NAME.

-- What users signed in to agents with: used for their calls in place of what the agent was added with.
CREATE TABLE logins (
    principal TEXT NOT NULL,
    agent TEXT NOT NULL,
    place TEXT NOT NULL,
    reference TEXT NOT NULL,
    created DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (principal, agent)
);
CREATE INDEX logins_agent ON logins (agent);

-- The keys that encrypt what is stored, sealed with the master key. A database with one is encrypted.
CREATE TABLE data_keys (
    id TEXT PRIMARY KEY,
    sealed TEXT NOT NULL,
    created DOUBLE PRECISION NOT NULL
);
