"""The hotel server of the demo: ``python -m agent3.demo.hotels PORT`` serves it over MCP until its input ends."""

from __future__ import annotations

from typing import Any

from agent3.demo.child import serve_until_input_ends
from agent3.protocols.mcp.library.server import MCPServer

__all__ = ["server"]

server = MCPServer(name="hotels")

_HOTELS = {
    "lisbon": [("Casa do Rio", 3, 78.0), ("Hotel Miradouro", 4, 112.0)],
    "rome": [("Albergo Trastevere", 3, 95.0), ("Palazzo Verde", 5, 240.0)],
}


@server.tool(read_only=True)
def find_hotels(city: str, nights: int = 1) -> list[dict[str, Any]]:
    """Find hotels in a city, with the price of the whole stay.

    Args:
        city: Name of the city.
        nights: How many nights.
    """
    return [
        {"name": name, "stars": stars, "price": price * nights} for name, stars, price in _HOTELS.get(city.lower(), ())
    ]


if __name__ == "__main__":
    serve_until_input_ends(lambda port: server.listening(port=port))
