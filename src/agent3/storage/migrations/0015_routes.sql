-- Capabilities that stand in for others while those are down, in the order of "place". "body" is JSON with its checksum:
-- how names of the one become those of the other, and who said so.

CREATE TABLE routes (
    agent TEXT NOT NULL,
    capability TEXT NOT NULL,
    by_agent TEXT NOT NULL,
    by_capability TEXT NOT NULL,
    place INTEGER NOT NULL,
    body {blob} NOT NULL,
    PRIMARY KEY (agent, capability, by_agent, by_capability)
);
