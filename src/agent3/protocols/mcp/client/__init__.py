"""The MCP client side: the connector to other MCP servers."""
