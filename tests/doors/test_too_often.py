"""Who is told to come back later is told when: by the gateway's own limits, and by an agent's, over every protocol."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from agent3 import LocalAgent
from agent3.model import Agent, Capability, Price, Route
from agent3.settings import Budget, Calls, Outbound, Rate, Settings
from tests.support.gateway import Hosted, hosted

OPEN = Outbound(allow_loopback=True)


@pytest.fixture(scope="module")
def busy() -> Iterator[str]:
    """A server that answers everything with 429, and to come back in seven seconds."""

    class Busy(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_response(429)
            self.send_header("Retry-After", "7")
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_GET = do_DELETE = do_POST

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Busy)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(scope="module")
def gateway(busy: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosted]:
    settings = Settings(calls=Calls(retries=0), outbound=OPEN)
    with hosted(tmp_path_factory.mktemp("busy"), [], settings) as found:
        for protocol, meta in (
            ("mcp", {}),
            ("a2a", {"interfaces": [{"url": f"{busy}/a2a", "binding": "JSONRPC", "generation": "1.0"}]}),
            ("openapi", {"operation": {"method": "get", "path": "/x"}}),
        ):
            capability = Capability(name="do", routes=(Route(protocol, f"{busy}/{protocol}", "do", meta=meta),))
            found.run(found.server.directory.add(Agent(id=protocol, name=protocol, capabilities=(capability,))))
        yield found


@pytest.mark.parametrize("protocol", ["mcp", "a2a", "openapi"])
def test_an_agents_429_is_rate_limited_with_its_own_time(gateway: Hosted, protocol: str) -> None:
    told = gateway.call(protocol, capability="do", input={})
    assert (told.status, told.json["errorCode"]) == (429, "rate_limited"), told.json
    assert (told.headers["retry-after"], told.json["metadata"]["retryAfter"]) == ("7", 7.0)


def test_a_rate_and_a_budget_say_when_to_come_back(tmp_path: Path) -> None:
    agent = LocalAgent("shop")

    @agent.capability(price=Price(call=1.0))
    async def buy() -> str:
        return "bought"

    @agent.capability
    async def look() -> str:
        return "seen"

    rates, budgets = (Rate(per_minute=1, capability="look"),), (Budget(usd=1.0, action="refuse"),)
    with hosted(tmp_path, [agent], Settings(rates=rates, budgets=budgets)) as door:
        for name, status in (("look", 429), ("buy", 402)):
            assert door.call("shop", capability=name, input={}).status == 200
            told = door.call("shop", capability=name, input={})
            assert told.status == status
            assert 0 < int(told.headers["retry-after"]) <= 86_400
