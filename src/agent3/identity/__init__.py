"""Who calls us, and how we sign in elsewhere: keys, tokens, signatures, secrets and references to them."""
