-- What a message was when it was put (a CRC-32 of its id, context and body), so that one whose bytes have changed since
-- is found when it is taken and never handed out. NULL in messages that an earlier version put.

ALTER TABLE queue_messages ADD COLUMN checksum BIGINT;
