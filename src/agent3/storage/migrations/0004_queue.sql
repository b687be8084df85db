-- Durable queues (agent3.queue). A message is in one state:
--   new      put inside somebody's transaction, not yet counted and lined up
--   ready    may be taken     delayed  may be taken when it is due     leased   taken until it is due
--   waiting  behind another of its context
--   done     kept for a while after its end     dead     given up
-- Of a context one message at most is ready, delayed or leased: its head. The unique index holds that, whoever errs.

CREATE TABLE queues (
    name TEXT PRIMARY KEY,
    depth BIGINT NOT NULL
);

CREATE TABLE queue_messages (
    seq {serial},
    id TEXT NOT NULL,
    queue TEXT NOT NULL,
    context TEXT,
    priority BIGINT NOT NULL,
    state TEXT NOT NULL,
    due DOUBLE PRECISION NOT NULL,
    token BIGINT NOT NULL DEFAULT 0,
    attempts BIGINT NOT NULL DEFAULT 0,
    put DOUBLE PRECISION NOT NULL,
    history TEXT,
    body {blob} NOT NULL
);
CREATE UNIQUE INDEX queue_messages_heads ON queue_messages (queue, context)
    WHERE context IS NOT NULL AND state IN ('ready', 'delayed', 'leased');
CREATE INDEX queue_messages_ready ON queue_messages (queue, priority DESC, seq) WHERE state = 'ready';
CREATE INDEX queue_messages_waiting ON queue_messages (queue, context, seq) WHERE state = 'waiting';
CREATE INDEX queue_messages_new ON queue_messages (queue, context, seq) WHERE state = 'new';
CREATE INDEX queue_messages_leased ON queue_messages (queue, due) WHERE state = 'leased';
CREATE INDEX queue_messages_delayed ON queue_messages (queue, due) WHERE state = 'delayed';
CREATE INDEX queue_messages_done ON queue_messages (queue, due) WHERE state = 'done';
CREATE INDEX queue_messages_dead ON queue_messages (queue, seq) WHERE state = 'dead';

CREATE TABLE queue_keys (
    queue TEXT NOT NULL,
    key TEXT NOT NULL,
    id TEXT NOT NULL,
    hash TEXT NOT NULL,
    expires DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (queue, key)
);
CREATE INDEX queue_keys_expires ON queue_keys (queue, expires);
