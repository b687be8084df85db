-- What rows were when they were written, so that one whose bytes have changed since is found when it is read: a CRC-32 of
-- the columns that never change afterwards, and of feedback the rating once more. NULL in rows of an earlier version.

ALTER TABLE feedback ADD COLUMN checksum BIGINT;
ALTER TABLE deliveries ADD COLUMN checksum BIGINT;
ALTER TABLE artifacts ADD COLUMN checksum BIGINT;
