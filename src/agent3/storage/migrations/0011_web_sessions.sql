-- What a browser carries from one visit of a website to the next, for each caller: cookies and local storage, in
-- "sealed". "expires" is when it is of no use any more.

CREATE TABLE web_sessions (
    principal TEXT NOT NULL,
    site TEXT NOT NULL,
    expires DOUBLE PRECISION NOT NULL,
    updated DOUBLE PRECISION NOT NULL,
    sealed TEXT NOT NULL,
    PRIMARY KEY (principal, site)
);
CREATE INDEX web_sessions_by_expiry ON web_sessions (expires);
