"""RF-013's validation criteria for MCP, as the document words them; its bounds in seconds are its own."""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Callable

import pytest

from agent3 import MCPClient, MCPRateLimiter, MCPServer, ToolDefinition, ToolParameter, ValidationError
from agent3.errors import RateLimited, Unauthenticated
from agent3.observe.performance import MCPPerformanceMonitor
from agent3.protocols.mcp import MCPSecurityManager
from tests.support import processor_clock

KEY = "an api key of thirty-two bytes, or more"
ORDER = {
    "customer": {"name": "Ada", "addresses": [{"street": f"{n} Long Road", "zip": f"{n:05}"} for n in range(50)]},
    "lines": [{"sku": f"sku-{n}", "count": n, "price": n * 1.5, "tags": ["a", "b", "c"]} for n in range(200)],
}


def shop() -> MCPServer:
    server = MCPServer(name="shop")
    for number in range(50):
        parameter = ToolParameter(name="text", type="string", required=True)
        server.register_tool(ToolDefinition(name=f"echo_{number}", parameters=[parameter]), lambda text: text)

    @server.tool
    def total(order: dict[str, object]) -> float:
        """What an order costs."""
        return sum(line["count"] * line["price"] for line in order["lines"])  # type: ignore[attr-defined]

    return server


@pytest.mark.requirement("RF-013-V1", "RT-014-P01", "RT-014-P02", "RT-014-P03")
def test_discovery_and_invocation_over_http_keep_the_documented_times() -> None:
    server = shop()
    with server.listening() as url, MCPClient() as client:
        client.connect_to_server(url)
        took = {}
        works: dict[str, Callable[[], object]] = {
            "list_tools": client.list_tools,
            "invoke_tool_simple": lambda: client.invoke_tool("echo_7", {"text": "hello"}),
            "invoke_tool_complex": lambda: client.invoke_tool("total", {"order": ORDER}),
        }
        for name, work in works.items():
            began = processor_clock.time()
            work()
            took[name] = processor_clock.time() - began
        assert client.invoke_tool("total", {"order": ORDER})["result"] == sum(n * n * 1.5 for n in range(200))
    server.close()
    targets = MCPPerformanceMonitor.LATENCY_TARGETS
    assert {name: seconds for name, seconds in took.items() if seconds >= targets[name]} == {}


@pytest.mark.requirement("RF-013-V1")
def test_validation_authentication_and_rate_limits_are_in_force() -> None:
    security = MCPSecurityManager(KEY, {"ann": ["double"]})
    server = MCPServer(name="guarded", security=security, rate_limiter=MCPRateLimiter(2))
    server.register_tool(
        ToolDefinition(name="double", parameters=[ToolParameter(name="x", type="number", required=True)]),
        lambda x: 2 * x,
    )
    try:
        with pytest.raises(Unauthenticated):
            server.authenticate("ann", "0" * 64, str(int(time.time())))
        now = str(int(time.time()))
        signature = hmac.new(KEY.encode(), f"ann:{now}".encode(), hashlib.sha256).hexdigest()
        client = MCPClient(principal=server.authenticate("ann", signature, now))
        client.connect_to_server(server)
        with pytest.raises(ValidationError, match="x"):
            client.invoke_tool("double", {"x": True})
        assert client.invoke_tool("double", {"x": 2})["result"] == 4
        with pytest.raises(RateLimited) as refused:
            client.invoke_tool("double", {"x": 2})
        assert refused.value.retry_after
    finally:
        server.close()
