"""The routes of stand-ins: which there are, where they are kept, and the agents with them.

``stand_ins`` says what a stand-in is and whether two capabilities fit. Here definitions are stored beside the agents,
taken from the settings, and put together with the agents of the directory whenever one of these changes.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping, Sequence
from typing import cast

import msgspec
from msgspec.structs import replace

from agent3.directory.stand_ins import MOST_FOR_ONE, Definition, attach, find_misfit, of_website, split_name
from agent3.env import REAL
from agent3.errors import Agent3Error, Corrupt, SetupError, TooLarge, ValidationError
from agent3.model import Agent, encode
from agent3.observe.logs import get as logger
from agent3.settings import StandInRoute
from agent3.storage import Database, Row, Transaction
from agent3.storage.audit import ACTOR, record_change
from agent3.storage.checksums import append_checksum, whole
from agent3.storage.counters import increase

__all__ = ["Routes"]

log = logger("directory")

_decoder: msgspec.json.Decoder[Definition] = msgspec.json.Decoder(Definition)
_MOST = 1_000
"""Stand-ins in all."""
_COLUMNS = ("agent", "capability", "by_agent", "by_capability")
_SELECT = f"SELECT {', '.join(_COLUMNS)}, place, body FROM routes ORDER BY place"


class Routes:
    """The stand-ins of one directory. ``refresh`` brings it up to date, ``announce`` tells that something changed, and
    ``agents`` are all agents by id, by their own routes alone.
    """

    def __init__(
        self,
        database: Database,
        settled: Sequence[StandInRoute],
        refresh: Callable[[], Awaitable[None]],
        announce: Callable[[], None],
        agents: Callable[[], Mapping[str, Agent]],
    ):
        self._database = database
        self._settled = tuple(settled)
        self._refresh = refresh
        self._announce = announce
        self._agents = agents
        self._defined: list[Definition] = []
        self._hosted: list[Definition] = []
        self._backed: dict[str, Agent] | None = None
        self._read: dict[tuple[str, ...], tuple[bytes, Definition | None]] = {}
        """What is stored, by its key, and what it says."""
        self._misfits: dict[tuple[str, ...], tuple[Definition, str | None]] = {}
        self._attached: dict[str, tuple[list[Definition], Agent]] = {}
        """What was worked out of the agents as they are: only those that change are looked at again."""
        self._said: set[str] = set()

    def host(self, definition: Definition) -> None:
        """Let one capability stand in for another for as long as this process lives, after all that are stored."""
        if definition not in self._hosted:
            self._hosted.append(definition)
            self.drop()

    async def load(self, changed: Collection[str] | None) -> set[str]:
        """Read what is stored: the directory has a new version, and these agents changed (None for any).

        The agents that are now given out with other stand-ins.
        """
        before = self._backed or {}
        known, self._read = self._read, {}
        for row in await self._database.all(_SELECT):
            key, body = tuple(row[name] for name in _COLUMNS), bytes(row["body"])
            read = known.get(key)
            self._read[key] = read if read is not None and read[0] == body else (body, _read_definition(row))
        self._defined = [definition for _, definition in self._read.values() if definition is not None]
        self.drop(changed)
        now = self.backed()
        return {one for one in before.keys() | now.keys() if before.get(one) is not now.get(one)}

    def drop(self, changed: Collection[str] | None = None) -> None:
        """Put together anew, when it is asked for, what these agents are part of (None for everything)."""
        self._backed = None
        if changed is None:
            self._misfits, self._attached = {}, {}
            return
        for key in [one for one in self._misfits if one[0] in changed or one[2] in changed]:
            del self._misfits[key]
            self._attached.pop(key[0], None)

    async def everything(self) -> list[tuple[Definition, str | None]]:
        """Every stand-in, in order, and why it is not used where that is so."""
        await self._refresh()
        agents = self._agents()
        found = [(definition, _misfit_now(definition, agents)) for definition in (*self._defined, *self._hosted)]
        for route in self._settled:
            try:
                definition = _from_settings(route, agents)
            except Agent3Error as error:
                unresolved = Definition(
                    "", route.capability, "", route.also, route.map, route.output or None, "settings"
                )
                found.append((unresolved, error.message))
            else:
                found.append((definition, _misfit_now(definition, agents)))
        return found

    async def define(self, definition: Definition) -> Definition:
        """Store that one capability stands in for another, the last of several; ValidationError says why it cannot."""
        await self._refresh()
        agents = self._agents()
        if why := _misfit_now(definition, agents):
            raise ValidationError(why)
        await self._write_routes([definition], replacing=None)
        return definition

    async def define_for_website(self, website: Agent) -> list[Definition]:
        """Store what the interface of a website says of whom it stands in for, in place of what it said before.

        It is pending until ``confirm``, unless the same was confirmed before; what an operator said counts for more.
        """
        await self._refresh()
        agents = self._agents()
        agents = ChainMap({website.id: website}, cast("MutableMapping[str, Agent]", agents))
        definitions = of_website(website, agents)
        for definition in definitions:
            if why := _misfit_now(definition, agents):
                raise SetupError(
                    f"{website.name!r} cannot stand in for {definition.agent}/{definition.capability}: {why}"
                )
        known = {one.key: one for one in self._defined}
        definitions = [one for one in definitions if known.get(one.key, one).origin == website.id]
        definitions = [one if known.get(one.key) == one else replace(one, pending=True) for one in definitions]
        await self._write_routes(definitions, replacing=website.id)
        return definitions

    async def find_pending(self, origins: Collection[str]) -> list[Definition]:
        """What these websites say of whom they stand in for, and nobody has confirmed."""
        await self._refresh()
        return [one for one in self._defined if one.pending and one.origin in origins]

    async def confirm(self, definition: Definition) -> Definition:
        """Use a pending one from now on."""
        return await self.define(replace(definition, pending=False))

    async def split_name(self, name: str) -> tuple[str, str]:
        """``AGENT.CAPABILITY`` in two; CapabilityNotFound where there is no such."""
        await self._refresh()
        return split_name(name, self._agents())

    async def undefine(self, agent: str, capability: str, by: tuple[str, str] | None = None) -> int:
        """Remove the stand-ins of a capability, or one of them; how many there were."""
        who = ACTOR.get()

        async def work(tx: Transaction) -> int:
            sql, given = "DELETE FROM routes WHERE agent = ? AND capability = ?", [agent, capability]
            if by is not None:
                sql, given = f"{sql} AND by_agent = ? AND by_capability = ?", [*given, *by]
            gone = await tx.run(sql, *given)
            if gone:
                await record_change(tx, REAL, "routes removed", ".".join(given), None, who)
            await increase(tx, "directory")
            return gone

        gone = await self._database.write(work)
        meant = (agent, capability, *(by or ()))
        left = [one for one in self._hosted if one.key[: len(meant)] != meant]
        gone, self._hosted = gone + len(self._hosted) - len(left), left
        self.drop()
        self._announce()
        return gone

    async def _write_routes(self, definitions: Sequence[Definition], replacing: str | None) -> None:
        """Store definitions, in place of all that came from ``replacing``. One that is there keeps its place."""
        who = ACTOR.get()

        async def work(tx: Transaction) -> None:
            known: dict[tuple[str, ...], int] = {}
            for row in await tx.all(_SELECT):
                found = _read_definition(row)
                key = tuple(row[name] for name in _COLUMNS)
                if replacing is not None and found is not None and found.origin == replacing:
                    await _delete_route(tx, key)
                else:
                    known[key] = row["place"]
            for definition in definitions:
                beside = [key for key in known if key[:2] == definition.key[:2] and key != definition.key]
                if len(beside) >= MOST_FOR_ONE or len(known) >= _MOST:
                    raise TooLarge(
                        f"At most {MOST_FOR_ONE} capabilities can stand in for one, and {_MOST} in total. Remove one."
                    )
                place = known.get(definition.key, max(known.values(), default=0) + 1)
                await _delete_route(tx, definition.key)
                await tx.run(
                    "INSERT INTO routes (agent, capability, by_agent, by_capability, place, body) "
                    "VALUES (?, ?, ?, ?, ?, ?)",
                    *definition.key,
                    place,
                    append_checksum(encode(definition)),
                )
                known[definition.key] = place
                await record_change(tx, REAL, "route stored", ".".join(definition.key), encode(definition), who)
            await increase(tx, "directory")

        await self._database.write(work)
        self._announce()

    def backed(self) -> Mapping[str, Agent]:
        """The agents that have stand-ins, with their routes. What does not fit is left out, and said once."""
        if self._backed is not None:
            return self._backed
        agents = self._agents() if self._defined or self._hosted or self._settled else {}
        usable: dict[str, list[Definition]] = {}
        definitions = [*self._defined, *self._hosted]
        for route in self._settled:
            try:
                definitions.append(_from_settings(route, agents))
            except Agent3Error as error:
                self._say_once(f"the stand-in {route.also} of {route.capability} is not used: {error.message}")
        for definition in definitions:
            known = self._misfits.get(definition.key)
            if known is None or known[0] != definition:
                known = self._misfits[definition.key] = definition, _misfit_now(definition, agents)
            if why := known[1]:
                name = f"{definition.agent}/{definition.capability}"
                self._say_once(f"{definition.by_agent}/{definition.by_capability} does not stand in for {name}: {why}")
            else:
                usable.setdefault(definition.agent, []).append(definition)
        for name, found in usable.items():
            if name not in self._attached or self._attached[name][0] != found:
                self._attached[name] = found, attach(agents[name], found, agents)
        self._attached = {name: self._attached[name] for name in usable}
        self._misfits = {one.key: self._misfits[one.key] for one in definitions}
        self._backed = {name: agent for name, (_, agent) in self._attached.items()}
        return self._backed

    def _say_once(self, text: str) -> None:
        if text not in self._said and len(self._said) < _MOST:
            self._said.add(text)
            log.warning("%s", text)


def _read_definition(row: Row) -> Definition | None:
    """A stored stand-in; None, and a line in the log, for one that cannot be read."""
    key = tuple(row[name] for name in _COLUMNS)
    try:
        found = _decoder.decode(whole(bytes(row["body"]), "It"))
        if found.key != key:
            raise Corrupt("It now does something else.")
    except (msgspec.MsgspecError, ValueError, TypeError, Corrupt) as error:
        log.error("the stand-in of %s/%s by %s/%s cannot be read and is ignored: %s", *key, error)
        return None
    return found


async def _delete_route(tx: Transaction, key: Sequence[str]) -> None:
    await tx.run("DELETE FROM routes WHERE agent = ? AND capability = ? AND by_agent = ? AND by_capability = ?", *key)


def _from_settings(route: StandInRoute, agents: Mapping[str, Agent]) -> Definition:
    ours, theirs = split_name(route.capability, agents), split_name(route.also, agents)
    return Definition(*ours, *theirs, dict(route.map), route.output or None, "settings")


def _misfit_now(definition: Definition, agents: Mapping[str, Agent]) -> str | None:
    """Why a stand-in is not used with the agents that there are."""
    if definition.pending:
        ours, theirs = definition.key[:2], definition.key[2:]
        return f"It needs your confirmation: agent3 route {'.'.join(ours)} --also {'.'.join(theirs)}"
    found = []
    for agent_id, name in ((definition.agent, definition.capability), (definition.by_agent, definition.by_capability)):
        agent = agents.get(agent_id)
        capability = None if agent is None else agent.capability(name)
        if capability is None:
            return f"Capability {agent_id}/{name} does not exist."
        found.append(capability)
    if definition.key[:2] == definition.key[2:]:
        return "A capability cannot stand in for itself."
    if not found[1].routes:
        return f"{definition.by_agent}/{definition.by_capability} cannot be called from here."
    return find_misfit(found[0], found[1], definition.input, definition.output)
