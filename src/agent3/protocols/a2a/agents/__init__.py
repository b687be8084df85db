"""The documented classes of A2A."""
