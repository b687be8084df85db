"""The switch: agents and clients that an operator has stopped, on every gateway of the database.

What is stopped is refused from the next look on, half a second at most; what runs then is cancelled, down to its
target. Stopping a client is done in ``identity/clients.py``; here it is only heard of.
"""

from __future__ import annotations

import asyncio
from typing import Any

from agent3.env import Env
from agent3.errors import AccessError, NotFound
from agent3.model import Call, Turn
from agent3.observe.logs import get as logger
from agent3.storage import Database, Transaction
from agent3.storage.audit import ACTOR, record_change
from agent3.storage.counters import increase

__all__ = ["LOOK_EVERY", "Stops"]

log = logger("calls")

LOOK_EVERY = 0.5
"""Seconds between two looks for what was stopped."""
_LONGEST_REASON = 500


class Stops:
    """What is stopped, and the calls that run and would have to be ended."""

    def __init__(self, database: Database, env: Env):
        self._database = database
        self._env = env
        self._versions: dict[str, int] = {}
        self.agents: dict[str, str] = {}
        """Stopped agents, with what callers are told."""
        self.clients: set[str] = set()
        """Clients that are stopped, or were removed while this process ran."""
        self._known: set[str] = set()
        self._running: dict[Turn, tuple[Call, asyncio.Task[Any]]] = {}
        self._ended: set[Turn] = set()

    async def refresh(self) -> None:
        """Take over what was changed since the last look, and end the calls that it concerns."""
        rows = await self._database.all("SELECT name, value FROM counters WHERE name IN ('stops', 'clients')")
        versions = {row["name"]: int(row["value"]) for row in rows}
        if versions == self._versions:
            return
        agents = await self._database.all("SELECT id, reason FROM stopped_agents")
        clients = await self._database.all("SELECT id, stopped FROM clients")
        self.agents = {row["id"]: row["reason"] for row in agents}
        there = {row["id"] for row in clients}
        removed = (self.clients | self._known) - there
        self.clients = {row["id"] for row in clients if row["stopped"] is not None} | removed
        self._known = there
        self._versions = versions
        # Once each: a second time would cut short what the first has a target do.
        running = self._running.items()
        ended = [turn for turn, (call, _) in running if turn not in self._ended and self.concerns(call)]
        for turn in ended:
            self._ended.add(turn)
            self._running[turn][1].cancel()
        if ended:
            log.warning("%d running calls were ended: their agent or client was stopped", len(ended))

    def concerns(self, call: Call) -> bool:
        """Whether a call may not go on, because its agent, what stands in for it now, or its caller is stopped."""
        if self._find_agent(call) is not None:
            return True
        return call.principal.kind == "client" and call.principal.id in self.clients

    def _find_agent(self, call: Call) -> str | None:
        if call.agent in self.agents:
            return call.agent
        # A conversation stays on its route, and what runs is on the one that was taken last.
        for route in (call.live.route, call.route):
            if route is not None and route.stand_in is not None and route.stand_in.agent in self.agents:
                return route.stand_in.agent
        return None

    def explain(self, call: Call) -> str:
        """Why, for its caller."""
        agent = self._find_agent(call)
        return f"Client {call.principal.id} was stopped by the operator." if agent is None else self._explain(agent)

    def _explain(self, agent: str) -> str:
        reason = self.agents[agent]
        return f"Agent {agent!r} was stopped by the operator{(f': {reason}' if reason else '')}."

    def require_started(self, agent: str) -> None:
        """AccessError for an agent that is stopped: for questions to it that are no calls."""
        if agent in self.agents:
            raise AccessError(self._explain(agent))

    # Calls that wait for something

    def watch(self, call: Call) -> None:
        """Know a call that runs and waits, so that it can be ended."""
        task = asyncio.current_task()
        if task is not None:
            self._running[call.live] = call, task

    def forget(self, call: Call) -> bool:
        """It is over; whether it was ended from here."""
        self._running.pop(call.live, None)
        if call.live not in self._ended:
            return False
        self._ended.discard(call.live)
        return True

    async def list_agents(self) -> list[dict[str, Any]]:
        """The stopped agents, the last first: id, at, who, reason."""
        rows = await self._database.all("SELECT id, at, who, reason FROM stopped_agents ORDER BY at DESC, id")
        return [dict(row) for row in rows]

    # Changing

    async def stop(self, agent: str, reason: str = "") -> None:
        """Refuse all calls of an agent from now on, and end those that run."""
        who, now = ACTOR.get(), self._env.now()

        async def work(tx: Transaction) -> None:
            await tx.run(
                "INSERT INTO stopped_agents (id, at, who, reason) VALUES (?, ?, ?, ?) "
                "ON CONFLICT (id) DO UPDATE SET reason = excluded.reason",
                *(agent, now, who, reason[:_LONGEST_REASON]),
            )
            await increase(tx, "stops")
            await record_change(tx, self._env, "agent stopped", agent, reason.encode() or None, who)

        await self._database.write(work)
        await self.refresh()

    async def start(self, agent: str) -> None:
        """Let an agent be called again; NotFound where it is not stopped."""
        who = ACTOR.get()

        async def work(tx: Transaction) -> None:
            if not await tx.run("DELETE FROM stopped_agents WHERE id = ?", agent):
                raise NotFound(f"Agent {agent[:100]!r} is not stopped.")
            await increase(tx, "stops")
            await record_change(tx, self._env, "agent started", agent, None, who)

        await self._database.write(work)
        await self.refresh()
