-- Keys that the house made for itself, such as the one that signs its agent cards. What is secret of one is in "sealed".

CREATE TABLE own_keys (
    name TEXT PRIMARY KEY,
    sealed TEXT NOT NULL,
    created DOUBLE PRECISION NOT NULL
);
