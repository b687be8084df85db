-- Large results in the database itself, or noted here when their bytes are in an object store.

CREATE TABLE blobs (
    sha256 TEXT PRIMARY KEY,
    data {blob},
    put_at DOUBLE PRECISION NOT NULL,
    going BIGINT NOT NULL DEFAULT 0
);
