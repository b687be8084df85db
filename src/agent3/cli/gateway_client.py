"""How commands reach a gateway: a running one over REST (``Remote``), or one in this process (``Local``)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote, urlencode

from agent3.client.plain_http import check_address, default_key, request
from agent3.errors import NotFound
from agent3.settings import Settings

if TYPE_CHECKING:
    from agent3.calls.approvals import Approvals
    from agent3.gateway import Caller
    from agent3.gateway.reports import Reports
    from agent3.gateway.routes import RouteBook
    from agent3.model import Principal
    from agent3.server.build import Server

__all__ = ["Gateway", "Local", "Remote"]


class Gateway(Protocol):
    """What the commands need from a gateway. Every method returns plain JSON and raises Agent3Error."""

    where: str

    def search(self, arguments: Mapping[str, Any]) -> dict[str, Any]: ...

    def list(self) -> dict[str, Any]: ...
    def show(self, agent: str) -> dict[str, Any]: ...
    def card(self, agent: str) -> dict[str, Any]: ...
    def changes(self, agent: str) -> dict[str, Any]: ...
    def call(self, arguments: Mapping[str, Any]) -> dict[str, Any]: ...
    def cancel(self, job: str) -> dict[str, Any]: ...
    def open_jobs(self, limit: int) -> dict[str, Any]: ...
    def routes(self, capability: str | None) -> dict[str, Any]: ...
    def add_route(self, body: Mapping[str, Any]) -> dict[str, Any]: ...
    def remove_route(self, capability: str, also: str | None) -> dict[str, Any]: ...
    def calls(self, query: Mapping[str, str]) -> dict[str, Any]: ...
    def record(self, call_id: str) -> dict[str, Any]: ...
    def stats(self, query: Mapping[str, str]) -> dict[str, Any]: ...
    def price(self, arguments: Mapping[str, Any]) -> dict[str, Any]: ...
    def approvals(self, *, waiting: bool, limit: int) -> dict[str, Any]: ...
    def approval(self, approval: str) -> dict[str, Any]: ...
    def decide(self, approval: str, *, approve: bool, reason: str) -> dict[str, Any]: ...


class Remote:
    """A running gateway. ``AGENT3_KEY`` is sent as the key."""

    def __init__(self, url: str, *, timeout: float = 3_600.0):
        self.where = check_address(url)
        self._key = default_key()
        self._timeout = timeout

    def search(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Find capabilities."""
        return self._post("/v1/search", arguments)

    def list(self) -> dict[str, Any]:
        """The agents, by id."""
        return self._get("/v1/agents")

    def show(self, agent: str) -> dict[str, Any]:
        """One agent in detail."""
        return self._get(f"/v1/agents/{quote(agent, safe='')}")

    def card(self, agent: str) -> dict[str, Any]:
        """Its raw card."""
        return self._get(f"/v1/agents/{quote(agent, safe='')}/card")

    def changes(self, agent: str) -> dict[str, Any]:
        """Changes of an agent that wait for approval."""
        return self._get(f"/v1/agents/{quote(agent, safe='')}/changes")

    def approve_changes(self, agent: str, shown: str) -> dict[str, Any]:
        """Approve the changes with this hash."""
        return self._post(f"/v1/agents/{quote(agent, safe='')}/approve", {"hash": shown})

    def remove(self, agent: str) -> None:
        """Remove an added agent."""
        request(self.where, "DELETE", f"/v1/agents/{quote(agent, safe='')}", key=self._key)

    def call(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Call an agent."""
        return self._post("/v1/call", arguments)

    def cancel(self, job: str) -> dict[str, Any]:
        """Cancel a job; returns its status."""
        return self._post(f"/v1/calls/{quote(job, safe='')}/cancel", {})

    def open_jobs(self, limit: int) -> dict[str, Any]:
        """The jobs that are working or wait for an answer."""
        return self._get(f"/v1/calls/open?limit={limit}")

    def routes(self, capability: str | None) -> dict[str, Any]:
        """Which capabilities stand in for others."""
        return self._get("/v1/routes" + ("" if capability is None else f"?capability={quote(capability, safe='')}"))

    def add_route(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Let one capability stand in for another."""
        return request(self.where, "PUT", "/v1/routes", dict(body), key=self._key)

    def remove_route(self, capability: str, also: str | None) -> dict[str, Any]:
        """Remove one stand-in of a capability, or all."""
        query = f"capability={quote(capability, safe='')}"
        query += "" if also is None else f"&also={quote(also, safe='')}"
        return request(self.where, "DELETE", f"/v1/routes?{query}", key=self._key)

    def calls(self, query: Mapping[str, str]) -> dict[str, Any]:
        """A page of calls."""
        return self._get(f"/v1/calls?{urlencode(query)}")

    def record(self, call_id: str) -> dict[str, Any]:
        """Everything recorded about a call."""
        return self._get(f"/v1/calls/{quote(call_id, safe='')}/record")

    def stats(self, query: Mapping[str, str]) -> dict[str, Any]:
        """Statistics of calls."""
        return self._get(f"/v1/calls/stats?{urlencode(query)}")

    def price(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Set a price."""
        return self._post("/v1/prices", arguments)

    def approvals(self, *, waiting: bool, limit: int) -> dict[str, Any]:
        """Calls that wait for approval."""
        return self._get(f"/v1/approvals?status={'waiting' if waiting else 'all'}&limit={limit}")

    def approval(self, approval: str) -> dict[str, Any]:
        """One of them."""
        return self._get(f"/v1/approvals/{quote(approval, safe='')}")

    def decide(self, approval: str, *, approve: bool, reason: str) -> dict[str, Any]:
        """Approve or deny it."""
        path = f"/v1/approvals/{quote(approval, safe='')}/{'approve' if approve else 'deny'}"
        return self._post(path, {"reason": reason} if reason else {})

    def _get(self, path: str) -> dict[str, Any]:
        return request(self.where, "GET", path, key=self._key, timeout=self._timeout)

    def _post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        return request(self.where, "POST", path, body, key=self._key, timeout=self._timeout)


class Local:
    """A gateway in this process, on the database of the settings. ``alone``: no running gateway was found."""

    def __init__(self, settings: Settings, demo: bool, *, alone: bool = False):
        self._settings = settings
        self._demo = demo
        self._alone = alone
        self.where = settings.storage.url or "the local database"

    def search(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Find capabilities."""
        return self._run("agent3_search", dict(arguments))

    def list(self) -> dict[str, Any]:
        """The agents, by id."""
        return self._run("", {})

    def show(self, agent: str) -> dict[str, Any]:
        """One agent in detail."""
        return self._run("agent3_select", {"agentId": agent})

    def card(self, agent: str) -> dict[str, Any]:
        """Its raw card."""
        return self._run("agent3_invoke", {"agentId": agent})

    def changes(self, agent: str) -> dict[str, Any]:
        """Changes of an agent that wait for approval."""
        from agent3.gateway.agent_book import AgentBook

        return self._use(lambda server, who: AgentBook(server.gateway, server.registration).changes(who, agent))

    def call(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Call an agent."""
        return self._run("agent3_call", dict(arguments))

    def cancel(self, job: str) -> dict[str, Any]:
        """Cancel a job; returns its status. A job that is working ends in the gateway that runs it."""
        return self._use(lambda server, who: server.gateway.cancel_any(who, job))

    def open_jobs(self, limit: int) -> dict[str, Any]:
        """The jobs that are working or wait for an answer."""
        return self._use(lambda server, who: server.gateway.open_jobs(who, limit))

    def calls(self, query: Mapping[str, str]) -> dict[str, Any]:
        """A page of calls."""
        return self._report(lambda reports, reader: reports.list(reader, query))

    def record(self, call_id: str) -> dict[str, Any]:
        """Everything recorded about a call."""
        return self._report(lambda reports, reader: reports.show(reader, call_id))

    def stats(self, query: Mapping[str, str]) -> dict[str, Any]:
        """Statistics of calls."""
        return self._report(lambda reports, reader: reports.stats(reader, query))

    def price(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Set a price."""
        from agent3.model import Price

        given = arguments.get("price")
        price = None if given is None else Price(**given)
        agent, capability = arguments["agentId"], arguments.get("capability")
        return self._report(lambda reports, reader: reports.price(reader, agent, capability, price))

    def _report(self, ask: Callable[[Reports, Principal], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
        from agent3.env import REAL
        from agent3.gateway.reports import Reports
        from agent3.model import LOCAL
        from agent3.terminal.database_work import run_on_database

        return run_on_database(self._settings, lambda database: ask(Reports(database, REAL), LOCAL))

    def approvals(self, *, waiting: bool, limit: int) -> dict[str, Any]:
        """Calls that wait for approval."""

        async def ask(approvals: Approvals, reader: Principal) -> dict[str, Any]:
            found = await approvals.list(reader, waiting=waiting, limit=limit)
            return {"approvals": found, "count": len(found)}

        return self._approve(ask)

    def approval(self, approval: str) -> dict[str, Any]:
        """One of them."""
        return self._approve(lambda approvals, reader: approvals.show(reader, approval))

    def decide(self, approval: str, *, approve: bool, reason: str) -> dict[str, Any]:
        """Approve or deny it. A running gateway continues the call within seconds, else the next that starts."""
        return self._approve(
            lambda approvals, reader: approvals.decide(reader, approval, approve=approve, reason=reason)
        )

    def _approve(self, ask: Callable[[Approvals, Principal], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
        from agent3.calls.approvals import Approvals
        from agent3.env import REAL
        from agent3.model import LOCAL
        from agent3.observe.metrics import METRICS
        from agent3.terminal.database_work import run_on_database

        return run_on_database(self._settings, lambda database: ask(Approvals(database, REAL, METRICS), LOCAL))

    def routes(self, capability: str | None) -> dict[str, Any]:
        """Which capabilities stand in for others."""
        return self._route(lambda book, caller: book.list(caller, capability))

    def add_route(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Let one capability stand in for another."""
        return self._route(lambda book, caller: book.put(caller, body))

    def remove_route(self, capability: str, also: str | None) -> dict[str, Any]:
        """Remove one stand-in of a capability, or all."""
        return self._route(lambda book, caller: book.remove(caller, capability, also))

    def _route(self, work: Callable[[RouteBook, Caller], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
        from agent3.gateway.routes import RouteBook

        return self._use(lambda server, who: work(RouteBook(server.gateway), who))

    def _run(self, verb: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Run one of the five verbs; without one, list the agents."""
        from agent3.gateway import Verbs

        async def work(server: Server, who: Caller) -> dict[str, Any]:
            if not verb:
                return await server.gateway.find_agents(who, limit=50)
            return await Verbs(server.gateway).answer(verb, arguments, who)

        try:
            return self._use(work)
        except NotFound as error:
            if self._alone:
                error.message += " No gateway is running. Start one with agent3 serve, or add --demo."
            raise

    def _use(self, work: Callable[[Server, Caller], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
        """Build the gateway, do something with it as the person at this machine, and close it."""
        # Loaded here: a command that speaks to a running gateway does not need all of this, and starts faster.
        import asyncio

        from agent3.gateway import Caller
        from agent3.model import LOCAL
        from agent3.server.build import build
        from agent3.server.demo import agents

        async def run() -> dict[str, Any]:
            async with build(self._settings, agents() if self._demo else (), take_over=False) as server:
                return await work(server, Caller(LOCAL, "cli"))

        return asyncio.run(run())
