"""The agent-to-agent protocol: wire, door, peer and documented classes."""
