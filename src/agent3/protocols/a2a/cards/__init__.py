"""Agent cards: shown, read, signed, negotiated."""
