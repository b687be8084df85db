"""The server side of MCP: tool sets for MCP clients.

``toolset`` is what a tool set offers, ``door`` serves it through the SDK, ``fast_lane`` answers its regular requests
without the SDK. ``gateway_tools`` and ``agent_tools`` are the tool sets of the gateway, and ``passthrough`` shows an
upstream server as itself.
"""
