-- Deliveries of webhooks (agent3.calls.outbox). While one waits, and when it is dead, its state is that of its message
-- in the queue; this table says whose it is, and keeps what is known of it after its message is gone.

CREATE TABLE deliveries (
    id TEXT PRIMARY KEY,
    subject TEXT NOT NULL,
    event TEXT NOT NULL,
    url TEXT NOT NULL,
    created DOUBLE PRECISION NOT NULL,
    delivered DOUBLE PRECISION,
    attempts BIGINT NOT NULL DEFAULT 0,
    ended TEXT
);
CREATE INDEX deliveries_subject ON deliveries (subject, created);

-- Only the messages of this queue are ever looked for by their id.
CREATE INDEX queue_messages_webhooks ON queue_messages (id) WHERE queue = 'webhooks';
