"""Jobs: what the turns of one conversation share."""
