"""The documented classes of MCP."""
