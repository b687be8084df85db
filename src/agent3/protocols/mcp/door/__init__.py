"""The MCP server side."""
