-- Jobs as tasks (agent3.a2a): what they are listed by, and who is told of them.

-- "kind" is what the door that took the call names it, "detail" what the outcome adds to the status: the code of a
-- failure, "authorization" where that is what is needed, or the kind of a result.
ALTER TABLE jobs ADD COLUMN kind TEXT;
ALTER TABLE jobs ADD COLUMN agent TEXT;
ALTER TABLE jobs ADD COLUMN context TEXT;
ALTER TABLE jobs ADD COLUMN detail TEXT;
CREATE INDEX jobs_owner_kind ON jobs (owner, kind, updated DESC, id DESC) WHERE kind IS NOT NULL;
CREATE INDEX jobs_owner_context ON jobs (owner, context, updated DESC, id DESC) WHERE context IS NOT NULL;

-- Where to tell of a task. What is secret of it is in "sealed".
CREATE TABLE a2a_pushes (
    job TEXT NOT NULL,
    id TEXT NOT NULL,
    number BIGINT NOT NULL,
    url TEXT NOT NULL,
    scheme TEXT,
    token BIGINT NOT NULL,
    generation TEXT NOT NULL,
    sealed TEXT NOT NULL,
    created DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (job, id)
);
