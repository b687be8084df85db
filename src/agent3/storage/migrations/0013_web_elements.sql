-- What is remembered of the elements that the steps of website interfaces act on: in "body", as JSON, the fingerprint,
-- and the heals with their states and history. An element is known by the action, selector and frame of its step.

CREATE TABLE web_elements (
    interface TEXT NOT NULL,
    action TEXT NOT NULL,
    selector TEXT NOT NULL,
    frame TEXT NOT NULL,
    updated DOUBLE PRECISION NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (interface, action, selector, frame)
);
CREATE INDEX web_elements_by_age ON web_elements (interface, updated);
