-- Sign-ins to servers that ask for OAuth. What is secret of one is in "sealed"; the rest is for people to see.
-- "until" is when its access token ends, "renews" whether it goes on after that, "version" tells what is newer.

CREATE TABLE sign_ins (
    id TEXT PRIMARY KEY,
    address TEXT NOT NULL,
    way TEXT NOT NULL,
    until DOUBLE PRECISION,
    renews BIGINT NOT NULL,
    version BIGINT NOT NULL,
    updated DOUBLE PRECISION NOT NULL,
    sealed TEXT NOT NULL
);
