"""The client side of A2A: calls to agents elsewhere, in every generation and binding of the protocol.

``A2AConnector`` serves the gateway, ``A2AClient`` and ``SyncA2AClient`` serve programs. Their layers, from the top:
connector and client, then ``peers`` (interfaces, credentials, broken connections), then ``bindings`` (one exchange).
``translation`` turns cards into agents, calls into messages, and tasks into outcomes.
"""
