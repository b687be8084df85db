"""The documented MCP classes for programs without a gateway: ``MCPServer``, ``MCPClient``, and their security.

They run tools in a call core of their own, in memory unless told otherwise. ``serving`` and ``remotes`` load the SDK,
and are imported only in order to serve over a wire or to connect to servers elsewhere.
"""
