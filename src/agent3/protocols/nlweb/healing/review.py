"""Heals as people see them, accept them and take them back; and what is shown of them about a website."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import agent3.protocols.nlweb.healing.records as records
from agent3.env import REAL, Env
from agent3.errors import NotFound
from agent3.model import Agent
from agent3.protocols.nlweb.healing.records import Change, ElementRecord, Heal, State
from agent3.protocols.nlweb.healing.stores import Store

__all__ = ["Heals", "list_heals"]

_MOST_SHOWN = 20
_SHOWN = ("id", "action", "selector", "healed", "element", "state", "score", "wins", "changed")


class Heals:
    """The heals of a store, as people see and change them."""

    def __init__(self, store: Store, env: Env = REAL):
        self._store = store
        self._env = env

    async def find(self, interface: str | None = None, state: State | None = None) -> list[dict[str, Any]]:
        """All heals, of one interface or in one state if given, the latest change first."""
        rows = [
            _describe(known, heal)
            for known in await self._store.all(interface)
            for heal in known.heals
            if state in (None, heal.state)
        ]
        return sorted(rows, key=lambda row: -float(row["changed"]))

    async def accept(self, names: Sequence[str], by: str) -> list[dict[str, Any]]:
        """These are right: they serve from now on, also actions with consequences. NotFound changes none of them."""
        return await self._change_each(names, lambda name: records.accept(name, self._env.now(), by))

    async def revert(self, names: Sequence[str], by: str) -> list[dict[str, Any]]:
        """These are wrong: they are never made again. NotFound changes none of them."""
        return await self._change_each(names, lambda name: records.revert(name, self._env.now(), by))

    async def _change_each(self, names: Sequence[str], change: Callable[[str], Change]) -> list[dict[str, Any]]:
        known = {heal.id: record.where for record in await self._store.all() for heal in record.heals}
        if strange := [name for name in names if name not in known]:
            raise NotFound(f"Unknown heal {strange[0]!r}. See agent3 web heals list.")
        rows = []
        for name in names:
            changed = await self._store.change(known[name], change(name))
            heal = changed.find_heal(name)
            assert heal is not None
            rows.append(_describe(changed, heal))
        return rows


async def list_heals(store: Store, agent: Agent) -> list[dict[str, Any]]:
    """What was healed on a website, the latest change first; who accepted or reverted it is not for every caller."""
    body = agent.card.get("interface")
    if agent.card.get("protocol") != "nlweb" or not isinstance(body, dict):
        return []
    rows = await Heals(store).find(str(body.get("interface_id")))
    return [{key: row[key] for key in _SHOWN} for row in rows[:_MOST_SHOWN]]


def _describe(known: ElementRecord, heal: Heal) -> dict[str, Any]:
    last = heal.notes[-1]
    return {
        "id": heal.id,
        "interface": known.where.interface,
        "action": known.where.action,
        "selector": known.where.selector,
        "healed": heal.selector,
        "element": {"role": heal.print.role, "name": heal.print.name},
        "state": heal.state,
        "score": heal.score,
        "margin": heal.margin,
        "wins": heal.wins,
        "losses": heal.losses,
        "changed": last.at,
        "by": last.by,
        "history": [{"at": note.at, "what": note.what, "by": note.by} for note in heal.notes],
    }
