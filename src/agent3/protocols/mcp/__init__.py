"""The Model Context Protocol, and the only room that knows its SDK.

``client`` reaches MCP servers, ``door`` serves MCP clients, ``library`` holds the documented classes, and ``protocol``
is what the gateway knows of all this. Imports point from ``protocol`` and ``library`` to ``door`` to ``client``.
"""
