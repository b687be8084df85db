-- Messages between agents (agent3.a2a), and artifacts that others may read.

-- Answers that came and were not yet read, by the message they answer.
CREATE TABLE a2a_replies (
    agent TEXT NOT NULL,
    message TEXT NOT NULL,
    body {blob} NOT NULL,
    at DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (agent, message)
);
CREATE INDEX a2a_replies_at ON a2a_replies (agent, at);

-- Who wants to hear of which topics (a pattern with *), and by which capability.
CREATE TABLE a2a_subscriptions (
    topic TEXT NOT NULL,
    agent TEXT NOT NULL,
    capability TEXT NOT NULL,
    at DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (topic, agent, capability)
);
CREATE INDEX a2a_subscriptions_agent ON a2a_subscriptions (agent);

-- Whom an owner lets read an artifact, and until when.
CREATE TABLE artifact_readers (
    artifact TEXT NOT NULL,
    reader TEXT NOT NULL,
    until DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (artifact, reader)
);
CREATE INDEX artifact_readers_until ON artifact_readers (until);

-- What links to an artifact are signed with. Without its row no link to it is good any more.
CREATE TABLE artifact_links (
    artifact TEXT PRIMARY KEY,
    key {blob} NOT NULL,
    until DOUBLE PRECISION NOT NULL
);
CREATE INDEX artifact_links_until ON artifact_links (until);
