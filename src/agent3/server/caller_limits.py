"""How many requests a client may have under way, and how often it may send what is no call.

Calls are charged where they are run (see ``calls.steps.limit``). Everything else that a client can ask for, in whatever
protocol, is counted here: reads, lists, waits, new sessions, streams. So one client cannot lock out another.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress

from starlette.types import ASGIApp, Receive, Scope, Send

from agent3.errors import Agent3Error, RateLimited
from agent3.gateway.http import error_response
from agent3.identity.doorkeeper import Doorkeeper
from agent3.observe.metrics import Metrics
from agent3.security.limits import COUNTED, ReadMeter
from agent3.settings import Limits

__all__ = ["CallerLimits"]


class CallerLimits:
    """An ASGI app around the doors, inside of what verifies who calls. All doors count in ``under_way``."""

    def __init__(
        self,
        app: ASGIApp,
        doorkeeper: Doorkeeper,
        limits: Limits,
        meter: ReadMeter,
        metrics: Metrics,
        under_way: Counter[str],
    ):
        self._app = app
        self._doorkeeper = doorkeeper
        self._most = limits.requests
        self._meter = meter
        self._refused = metrics.connections_closed
        self._under_way = under_way

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self._doorkeeper.knows_all:
            await self._app(scope, receive, send)
            return
        principal = None
        if self._doorkeeper.has_credential(scope):
            with suppress(Agent3Error):  # a door says so in the words of its protocol, or is open to all
                principal = self._doorkeeper(scope)
        if principal is None or principal.kind == "local":
            await self._app(scope, receive, send)
            return
        who = principal.id
        if self._most and self._under_way[who] >= self._most:
            self._refused.inc(("client_requests",))
            text = f"Client {who} already has {self._most} requests in progress, the maximum. Wait for some to end."
            await error_response(RateLimited(text, retry_after=1.0))(scope, receive, send)
            return
        if wait := self._meter.take(principal):
            self._refused.inc(("client_rate",))
            text = f"Client {who} sends requests too often. Try again in {wait:.1f} s."
            await error_response(RateLimited(text, retry_after=wait))(scope, receive, send)
            return
        self._under_way[who] += 1
        scope[COUNTED] = True
        try:
            await self._app(scope, receive, send)
        finally:
            self._under_way[who] -= 1
            if not self._under_way[who]:
                del self._under_way[who]
