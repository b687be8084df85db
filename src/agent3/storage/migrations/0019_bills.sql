-- What is reserved on budgets for a job, what its turns took, and whether any of it was sent; NULL in an earlier release.

ALTER TABLE jobs ADD COLUMN bill {blob};

-- The stand-in that answered in place of the agent that was asked; NULL where that agent did itself.
ALTER TABLE calls ADD COLUMN served_by TEXT;
