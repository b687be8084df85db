-- What old rows and abandoned jobs are found by.

CREATE INDEX jobs_expires ON jobs (expires);
CREATE INDEX jobs_working ON jobs (node, lease) WHERE status = 'working';
CREATE INDEX job_aliases_job ON job_aliases (job);
