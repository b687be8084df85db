"""The client side of MCP: other servers as agents of this gateway.

One call goes from the connector (calls and outcomes) to an upstream (sessions, eras) to a channel (HTTP or a program)
and, over HTTP, through the outbound gate; ``answers`` translates what comes back. Nothing here knows the door.
"""
