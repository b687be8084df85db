-- What retention finds old rows by, a piece at a time.

CREATE INDEX a2a_replies_old ON a2a_replies (at);
CREATE INDEX budget_spent_period ON budget_spent (period) WHERE period > 0;
