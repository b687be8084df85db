-- The jobs of one caller that wait for an answer, to count them.

CREATE INDEX jobs_waiting ON jobs (owner) WHERE status = 'needs';
