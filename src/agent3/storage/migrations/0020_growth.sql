-- What a long history is read by. Nothing reads jobs_owner_updated. Tasks are listed and counted from one index alone.

DROP INDEX jobs_owner_updated;
DROP INDEX jobs_owner_kind;
CREATE INDEX jobs_tasks ON jobs (owner, kind, updated DESC, id DESC, status, detail, agent) WHERE kind IS NOT NULL;
CREATE INDEX dead_letters_agent ON dead_letters (agent, id);
CREATE INDEX dead_letters_code ON dead_letters (code, id);
CREATE INDEX dead_letters_waiting ON dead_letters (at) WHERE replayed IS NULL;
