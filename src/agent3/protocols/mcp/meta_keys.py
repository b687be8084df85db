"""Keys under which MCP details travel through the gateway's own model, in the ``meta`` of parts and calls.

The client writes them and the door reads them back, so that the answer of an MCP server can reach an MCP client
unchanged. Nothing here knows the SDK.
"""

from __future__ import annotations

from agent3.protocols.functions.client_requests import CLIENT, REQUEST

__all__ = ["ANNOTATIONS", "BLOCK", "ELICITATION", "PASSED", "REQUEST", "RESERVED", "STRUCTURED", "TASKS", "URI"]

URI = "io.agent3/uri"
"""In a part's ``meta``: makes it an embedded resource with this address."""
ANNOTATIONS = "io.agent3/annotations"
"""In a part's ``meta``: the protocol's annotations (audience, priority, lastModified)."""
BLOCK = "io.agent3/block"
"""In a part's ``meta``: everything of a server's content block except its payload, to be passed on unchanged."""
STRUCTURED = "io.agent3/structured"
"""In a part's ``meta``: its data is the structured content of the result and is not shown as a block."""
ELICITATION = "x-mcp-elicitation"
"""In the schema of a question that is a page to open: its id at the server, which says by it that the page is done
with."""
PASSED = CLIENT
"""In a call's ``meta``: what the MCP client said of its request; the server's answer is then passed on unchanged. In
the data of a failure of such a call: how the server put it, as ``error``, or as the ``meta`` of a result."""
RESERVED = "io.modelcontextprotocol/"
"""Prefix of the ``_meta`` keys that belong to the protocol."""
TASKS = "io.modelcontextprotocol/tasks"
"""The tasks extension (SEP-2663)."""
