-- What ended in each day since 1970: the sums of its hours in call_stats, added up once all of them are counted for good.

CREATE TABLE call_days (
    day BIGINT NOT NULL,
    principal TEXT NOT NULL,
    agent TEXT NOT NULL,
    capability TEXT NOT NULL,
    calls BIGINT NOT NULL,
    failed BIGINT NOT NULL,
    refused BIGINT NOT NULL,
    seconds DOUBLE PRECISION NOT NULL,
    tokens BIGINT NOT NULL,
    cost DOUBLE PRECISION NOT NULL,
    b0 BIGINT NOT NULL, b1 BIGINT NOT NULL, b2 BIGINT NOT NULL, b3 BIGINT NOT NULL,
    b4 BIGINT NOT NULL, b5 BIGINT NOT NULL, b6 BIGINT NOT NULL, b7 BIGINT NOT NULL,
    b8 BIGINT NOT NULL, b9 BIGINT NOT NULL, b10 BIGINT NOT NULL, b11 BIGINT NOT NULL,
    b12 BIGINT NOT NULL, b13 BIGINT NOT NULL, b14 BIGINT NOT NULL, b15 BIGINT NOT NULL,
    PRIMARY KEY (day, principal, agent, capability)
);
CREATE INDEX call_days_principal ON call_days (principal, day);
