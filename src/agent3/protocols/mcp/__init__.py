"""The Model Context Protocol: door, client and documented classes."""
