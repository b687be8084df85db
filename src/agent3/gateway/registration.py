"""``agent3 add``: finds out what it was given, asks it what it can do, and puts it into the directory.

It takes a URL, a command, JSON or a file; the protocols say what of that is theirs. Nothing is stored that was not
reached, and no secret that was given: a value that looks like one must be a reference. The tokens of a sign-in are the
exception: they exist nowhere else, so they are kept, encrypted.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
import shlex
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import Any
from urllib.parse import urlsplit

from msgspec.structs import replace

from agent3.calls.prices import Prices
from agent3.directory import Directory
from agent3.errors import (
    AccessError,
    Agent3Error,
    AgentNotFound,
    CallTimeout,
    Conflict,
    LoopDetected,
    NotFound,
    SecurityError,
    SetupError,
    TargetError,
    TargetRefused,
    Unavailable,
)
from agent3.gateway.cards import shown
from agent3.gateway.catalogs import Kind, fetch_json, is_catalog, read_catalog
from agent3.gateway.pins import MODE, Mode
from agent3.gateway.protocol import Found, Given, Protocol
from agent3.gateway.strangers import admit_described, check_listed, check_name, needs_secret
from agent3.identity.kept_secrets import KeptSecrets, kept_in, kept_reference
from agent3.identity.logins import Logins
from agent3.identity.loopback_redirect import Landing
from agent3.identity.oauth import origin_of
from agent3.identity.secret_refs import check_query, references_in
from agent3.identity.secrets import Vault
from agent3.identity.sign_ins import SCHEME, Plan, SignInEntry, SignIns, SignInWish, references_of
from agent3.model import Agent, Route, agent_id, own_routes, place_of
from agent3.security.outbound import Gate, Policy

__all__ = ["Added", "OnProgress", "Registration", "named_credential"]

_COMMENT = re.compile(r'"(?:\\.|[^"\\])*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
_LAST_COMMA = re.compile(r'"(?:\\.|[^"\\])*"|,(?=\s*[}\]])', re.DOTALL)
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,30})://")


OnProgress = Callable[[str, str], None]
"""Takes the name of what is being added, and what happens meanwhile in one line."""


@dataclass(frozen=True)
class Added:
    """What became of one thing to add: the agent, or why not."""

    name: str
    agent: Agent | None = None
    error: Agent3Error | None = None

    @property
    def is_itself(self) -> bool:
        """Whether it is this gateway, which stands in the files of its clients and is left out."""
        return isinstance(self.error, LoopDetected)


def named_credential(credential: str | None) -> tuple[str | None, str | None]:
    """``NAME=REFERENCE`` in two; a reference alone has no name."""
    if credential is None:
        return None, None
    name, found, reference = credential.partition("=")
    if found and ":" not in name:
        return name, reference
    return None, credential


class Registration:
    """Adds agents to a directory, and removes them."""

    def __init__(
        self,
        directory: Directory,
        protocols: Mapping[str, Protocol],
        sign_ins: SignIns,
        kept: KeptSecrets,
        prices: Prices,
        policy: Policy,
        logins: Logins,
    ):
        self._directory = directory
        self._protocols = protocols
        self._sign_ins = sign_ins
        self._kept = kept
        self._prices = prices
        self._policy = policy
        self._logins = logins
        self.is_taken: Callable[[str], Awaitable[bool]] | None = None
        """Whether a running gateway has an agent of this id that is not in the database: it would hide a stored one."""

    async def add(
        self,
        what: str,
        name: str | None = None,
        credential: str | None = None,
        *,
        choices: Mapping[str, str] | None = None,
        changes: Mode | None = None,
        vault: Vault | None = None,
        sign_in: SignInWish | None = None,
        on_progress: OnProgress | None = None,
    ) -> Agent:
        """Add one agent and give it as it was stored; adding it again brings it up to date.

        ``credential`` is a reference (``env:NAME``), with the header or variable it goes into before it where that is
        not the usual one (``X-API-Key=env:NAME``). ``choices`` are those that its protocol offers, by name;
        ``changes`` is what a later change of its description does, if that is not what the settings say. Raises what
        kept it from being added. ``on_progress`` hears of what takes long, such as a program that installs itself.
        """
        found = self._choose(await self._read(what, name, credential), choices or {})
        if len(found) != 1:
            names = ", ".join(sorted(thing.name or "" for _, thing in found))
            where = "The given document" if what.lstrip().startswith("{") else what
            raise SetupError(f"{where} contains several servers: {names}. Choose one with --name, or add all of them.")
        protocol, thing = found[0]
        return await self._add(protocol, _with_progress(thing, on_progress), vault or self._sign_ins, sign_in, changes)

    async def add_all(
        self,
        what: str,
        name: str | None = None,
        credential: str | None = None,
        *,
        choices: Mapping[str, str] | None = None,
        changes: Mode | None = None,
        vault: Vault | None = None,
        sign_in: SignInWish | None = None,
        on_progress: OnProgress | None = None,
        on_added: Callable[[Added], None] | None = None,
        elsewhere: bool = False,
    ) -> list[Added]:
        """Add everything that ``what`` holds; one that cannot be added does not keep the others out.

        For somebody ``elsewhere`` only addresses are added, without references to secrets of this machine.
        """
        if elsewhere and not what.strip().startswith(("http://", "https://")):
            raise _only_here("A program, a file or a document")
        results = []
        for protocol, thing in self._choose(await self._read(what, name, credential), choices or {}):
            found = _with_progress(thing, on_progress)
            try:
                if elsewhere and found.fault is None and needs_secret(found.route):
                    raise _only_here("A reference to a secret of this machine")
                agent = await self._add(protocol, found, vault or self._sign_ins, sign_in, changes)
                results.append(Added(_label(found), agent=agent))
            except Agent3Error as error:
                results.append(Added(_label(found), error=error))
            if on_added is not None:
                on_added(results[-1])
        return results

    async def remove(self, name: str) -> None:
        """Take a stored agent out of the directory, with its sign-in and whatever else was kept for it: a new agent of
        its id starts without prices, ratings or spent budgets.

        AgentNotFound when there is none.
        """
        agent = await self._find(name)
        await self._directory.remove(name)
        await self._prices.refresh()
        for user in await self._logins.of_agent(name):
            await self._drop_login(await self._logins.forget(user, name))
        if agent is not None:
            await self._forget(agent)

    # What was given

    async def _read(self, what: str, name: str | None, credential: str | None) -> list[tuple[Protocol | None, Found]]:
        """What there is to add; the protocol is still to be found out for a URL."""
        text = what.strip()
        if not text:
            raise SetupError(
                "Nothing to add. Give a URL, a command, or a file such as a client's mcpServers, an agent "
                "card or a website interface."
            )
        if text.startswith(("http://", "https://")):
            if urlsplit(text).path.endswith("/ai-catalog.json"):
                return await self._read_catalog(None, text, name)
            header, reference = named_credential(credential)
            meta = {"secret_header": header} if header else {}
            return [(None, _as_named(Found(Route("", check_query(text), credential=reference, meta=meta), name)))]
        file, document = await asyncio.to_thread(_open, text)
        if is_catalog(document):
            return await self._read_catalog(document, None, name)
        given = Given(text, file, document, name, credential)
        for protocol in self._protocols.values():
            if found := protocol.read(given):
                return [(protocol, _as_named(thing)) for thing in found]
        if scheme := _SCHEME.match(text):
            raise SetupError(f"{scheme[1]!r} addresses are not supported. Give http:// or https://, or a command.")
        if document is not None:
            raise SetupError(f'{given.where} contains no MCP servers; they must be under "mcpServers".')
        raise SetupError(f"Cannot add {text[:100]!r}: it is not a known kind of address, command or file.")

    def _choose(
        self, found: list[tuple[Protocol | None, Found]], choices: Mapping[str, str]
    ) -> list[tuple[Protocol | None, Found]]:
        """The same with the choices in their routes; SetupError where a protocol does not offer one."""
        if not choices:
            return found
        made: list[tuple[Protocol | None, Found]] = []
        for protocol, thing in found:
            offered = [one for one in self._protocols.values() if choices.keys() <= one.choices]
            if protocol not in offered and (protocol is not None or len(offered) != 1):
                options = ", ".join(f"--{name}" for name in choices)
                raise SetupError(f"{options} does not apply to {_label(thing)}.")
            route = thing.route
            if protocol is None:  # a URL: the choice says what it is
                protocol, route = offered[0], replace(route, protocol=offered[0].name)
            made.append((protocol, dataclasses.replace(thing, route=replace(route, meta={**route.meta, **choices}))))
        return made

    async def _read_catalog(
        self, document: Any, url: str | None, name: str | None
    ) -> list[tuple[Protocol | None, Found]]:
        """What an AI catalog lists; with a name, only the entry of that name.

        Others wrote it. The person named the host of the catalog, and no other.
        """
        gate = Gate(self._policy if url is None else self._policy.registering(url))
        try:
            if url is not None:
                document = await fetch_json(url, gate)
                if not is_catalog(document):
                    raise SetupError(f"{shown(url)} is not an AI catalog.")
            kinds = {
                media_type: Kind(protocol.name, asks)
                for protocol in self._protocols.values()
                for media_type, asks in protocol.media_types.items()
            }
            entries = await read_catalog(document, url, gate, kinds)
        finally:
            await gate.aclose()
        if name is not None and len(entries) > 1:
            entries = [entry for entry in entries if entry.name == name]
        if not entries:
            raise SetupError("The catalog lists no agent or server that can be called.")
        found: list[tuple[Protocol | None, Found]] = []
        for entry in entries:
            protocol = self._protocols.get(entry.protocol)
            try:
                things: Sequence[Found] = ()
                if entry.fault is not None:
                    raise entry.fault
                if entry.url is not None:
                    things = [Found(Route("", check_query(entry.url)), entry.name)]
                elif protocol is not None:
                    things = protocol.read(Given(entry.name, None, entry.document, entry.name, fetched=True))
                if not things:
                    raise SetupError(f"The catalog entry {entry.name} has an unknown type.")
            except SetupError as error:
                things = [Found(Route("", ""), entry.name, fault=error)]
            found += [(protocol, _as_listed(thing, url)) for thing in things]
        return found

    # Asking what it is

    async def _add(
        self,
        protocol: Protocol | None,
        found: Found,
        vault: Vault,
        sign_in: SignInWish | None = None,
        changes: Mode | None = None,
    ) -> Agent:
        if found.fault is not None:
            raise found.fault
        if sign_in is not None:
            return await self._add_signed_in(protocol, found, vault, sign_in, changes)
        undo = partial(self._kept.put_back, await self._kept.keep(found.secrets) if found.secrets else {})
        try:
            protocol, agent = await self._ask(protocol, found, vault)
        except BaseException as error:
            await undo()
            if isinstance(error, TargetRefused):
                raise _how_to_sign_in(error, found) from None
            raise
        return await _to_its_end(self._store(protocol, agent, found.name, undo, changes))

    async def _ask(self, protocol: Protocol | None, found: Found, vault: Vault) -> tuple[Protocol, Agent]:
        """What it says of itself. A URL is tried by every protocol that may be meant, the likeliest first."""
        if protocol is not None:
            return protocol, await _register(protocol, found, vault)
        address = found.route.address
        likely = [(one.likelihood(address), one) for one in self._protocols.values()]
        ranked = [one for chance, one in sorted(likely, key=lambda pair: -pair[0]) if chance > 0]
        policy = self._policy.registering(address) if found.route.meta.get("registered") else self._policy
        unlikely = [one for one in ranked if await one.is_unlikely(address, policy)]
        candidates = [*(one for one in ranked if one not in unlikely), *unlikely]
        first: TargetError | None = None
        clearest: tuple[tuple[bool, int], TargetError] | None = None
        for candidate in candidates:
            route = replace(found.route, protocol=candidate.name)
            try:
                agent = await _register(candidate, dataclasses.replace(found, route=route), vault)
            except LoopDetected:
                raise
            except TargetError as error:
                error.data.setdefault("protocol", candidate.name)
                if first is None and isinstance(error, Unavailable) and not error.sent:
                    raise  # there is nobody at all, so asking in another way is of no use
                first = first or error
                # The likelier guess counts, unless only another one says what is missing.
                said = not isinstance(error, TargetRefused), ranked.index(candidate)
                if clearest is None or said < clearest[0]:
                    clearest = said, error
                continue
            except (SetupError, SecurityError):
                if first is None:
                    raise
                continue
            if isinstance(first, TargetRefused) and not candidate.speaks_at(agent, address):
                raise first  # a site that refuses one of its addresses may well show the card of another
            for other in candidates[candidates.index(candidate) + 1 :]:
                if other.knows_better(agent):
                    route = replace(found.route, protocol=other.name)
                    with suppress(TargetError, SetupError, SecurityError):
                        return other, await _register(other, dataclasses.replace(found, route=route), vault)
            return candidate, agent
        if clearest is None:
            raise SetupError(f"No protocol of this gateway recognizes {shown(address)}.")
        raise _with_hint(clearest[1], address)

    # Storing

    async def _store(
        self,
        protocol: Protocol,
        agent: Agent,
        name: str | None,
        undo: Callable[[], Awaitable[object]],
        changes: Mode | None,
    ) -> Agent:
        """Put it into the directory, in place of the one of its id and source. What fails leaves that one as it was,
        and ``undo`` takes back what was kept for the new one.
        """
        if name is not None:
            agent = replace(agent, id=agent_id(name), name=name)
        check_name(agent)
        try:
            before = await self._find(agent.id)
            if before is not None and before.source != agent.source:
                origin = before.source or "here"
                raise Conflict(f"Agent {agent.id!r} already exists, from {origin}. Choose another --name.")
            if before is None and self.is_taken is not None and await self.is_taken(agent.id):
                raise Conflict(
                    f"The running gateway already has an agent {agent.id!r} of its own. Choose another --name."
                )
            mode = changes or (before.meta.get(MODE) if before is not None else None)
            if mode is not None:
                agent = replace(agent, meta={**agent.meta, MODE: mode})
            await self._directory.add(agent)
            try:
                await protocol.on_added(agent)
            except BaseException:
                await (self._directory.remove(agent.id) if before is None else self._directory.add(before))
                raise
        except BaseException:
            await undo()
            raise
        if before is not None:
            await self._forget(before)
        return agent

    async def _find(self, agent: str) -> Agent | None:
        try:
            return await self._directory.get(agent)
        except AgentNotFound:
            return None

    async def _forget(self, gone: Agent) -> None:
        """Delete what was kept for an agent that was removed or replaced, and that no other agent uses."""
        references, kept = references_of(gone), kept_in(gone)
        if references or kept:
            async for agent in self._directory.each():
                references, kept = references - references_of(agent), kept - kept_in(agent) if kept else kept
            for reference in references:
                await self._sign_ins.forget(reference)
            await self._kept.put_back(dict.fromkeys(kept))
        for protocol in self._protocols.values():
            await protocol.on_removed(gone)

    # Signing in

    async def _add_signed_in(
        self, protocol: Protocol | None, found: Found, vault: Vault, wish: SignInWish, changes: Mode | None
    ) -> Agent:
        """Add what asks for a sign-in, with one. What does not come to its end leaves nothing behind."""
        route = found.route
        if route.credential is not None:
            raise SetupError("Use either --sign-in or --credential, not both.")
        if route.address.startswith("stdio:"):
            raise SetupError("A program cannot be signed in to. Pass its secret with --credential NAME=env:NAME.")
        if references_in(route):
            raise SetupError("--sign-in does not support addresses with references in them. Give the plain address.")
        refusal: TargetRefused | None = None
        if protocol is None:
            try:
                protocol, agent = await self._ask(None, found, vault)
            except TargetRefused as error:
                if error.data.get("status") != 401:
                    raise
                refusal, protocol = error, self._protocols[str(error.data["protocol"])]
            found = dataclasses.replace(found, route=replace(route, protocol=protocol.name))
        entry = await protocol.sign_in(found, wish, refusal)
        if entry is None:
            raise _asks_for_none(route.address)
        reference, agent = await self._sign_in(protocol, found, vault, wish, entry)
        undo = partial(self._sign_ins.forget, reference)
        return await _to_its_end(self._store(protocol, agent, found.name, undo, changes))

    async def _sign_in(
        self, protocol: Protocol, found: Found, vault: Vault, wish: SignInWish, entry: SignInEntry
    ) -> tuple[str, Agent]:
        """A new sign-in, and what there is behind it. What does not come to its end leaves nothing behind."""
        plan = Plan(
            entry.route.address,
            wish.way,
            wish.client_id,
            wish.secret or "",
            wish.issuer,
            name=found.name,
            flow=entry.flow,
            protocol=protocol.name,
        )
        async with Landing(wish.guide, wish.seconds) as landing:
            reference = await self._sign_ins.begin(replace(plan, redirect=landing.redirect), landing.send)
            try:
                if entry.gate is not None:
                    await self._sign_ins.obtain(reference, entry.gate)
                signed = dataclasses.replace(found, route=replace(entry.route, credential=reference))
                agent = await _register(protocol, signed, vault)
                if not self._sign_ins.finish(reference):
                    raise _asks_for_none(found.route.address)
            except BaseException:
                await self._sign_ins.forget(reference)
                raise
        return reference, agent

    # Users

    async def login(self, name: str, user: str, secret: str | None, wish: SignInWish) -> str:
        """Let one user reach an agent with a credential of their own: a secret, or a sign-in; which of them it was.

        AgentNotFound, or SetupError for an agent that is reached without a credential.
        """
        agent = await self._directory.get(name)
        routes = [route for capability in agent.capabilities for route in own_routes(capability)]
        route = next((one for one in routes if one.credential is not None), None)
        if route is None:
            raise SetupError(
                f"{agent.id} was added without a credential, so users cannot sign in to it. Add it again "
                "with --credential or --sign-in."
            )
        if secret is not None:
            reference = kept_reference(f"login.{agent.id}.{token_hex(8)}")
            await self._kept.keep({reference: secret})
            way = "secret"
        else:
            protocol = self._protocols[route.protocol]
            found = Found(_bare_route(agent, route), agent.name)
            try:
                await _register(protocol, found, self._sign_ins)
                refusal = None
            except TargetRefused as error:
                refusal = error
            entry = await protocol.sign_in(found, wish, refusal)
            if entry is None:
                raise SetupError(
                    f"{agent.id} does not use sign-in. To store a secret instead: agent3 login {agent.id} --key"
                )
            reference, _ = await self._sign_in(protocol, found, self._sign_ins, wish, entry)
            way = "sign-in"
        await self._drop_login(await self._logins.keep(user, agent.id, route, reference))
        return way

    async def logout(self, name: str, user: str) -> None:
        """Forget what a user logged in with; NotFound where they did not."""
        reference = await self._logins.forget(user, name)
        if reference is None:
            raise NotFound(f"{user} is not logged in to {name!r}. See agent3 vault list.")
        await self._drop_login(reference)

    async def _drop_login(self, reference: str | None) -> None:
        if reference is None:
            return
        if reference.startswith(SCHEME):
            await self._sign_ins.forget(reference)
        else:
            await self._kept.put_back({reference: None})


def _bare_route(agent: Agent, route: Route) -> Route:
    """How an agent was added, without a credential: by the address that it was given, where that is known."""
    given = agent.meta.get("route")
    address = str(given["address"]) if isinstance(given, dict) and "address" in given else route.address
    meta = {name: value for name, value in route.meta.items() if name in ("registered", "origins")}
    return Route(route.protocol, address, meta=meta)


async def _to_its_end(work: Coroutine[Any, Any, Agent]) -> Agent:
    """Whoever leaves meanwhile finds all of it done, or none."""
    doing = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(doing)
    except asyncio.CancelledError:
        await asyncio.gather(doing, return_exceptions=True)
        raise


def _as_named(found: Found) -> Found:
    """What the person named: its host may be on this machine or in a private network."""
    meta = {**found.route.meta, "registered": True}
    return dataclasses.replace(found, route=replace(found.route, meta=meta))


def _as_listed(found: Found, catalog: str | None) -> Found:
    """What others named in a catalog, which is at an address that the person named, unless it was given by hand."""
    try:
        if found.fault is None:
            check_listed(found.route, _label(found))
    except SetupError as error:
        return Found(Route("", ""), found.name, fault=error)
    return _as_named(found) if catalog and origin_of(catalog) == origin_of(found.route.address) else found


async def _register(protocol: Protocol, found: Found, vault: Vault) -> Agent:
    """The agent as it describes itself; SecurityError where that claims what only the person may name."""
    agent = await protocol.register(found, vault)
    return await asyncio.to_thread(admit_described, agent, found.route)


def _only_here(what: str) -> AccessError:
    return AccessError(
        f"{what} can be added only on the gateway's own machine, with agent3 add. Give an address: https://…"
    )


def _label(found: Found) -> str:
    return found.name or shown(found.route.address)


def _with_progress(found: Found, on_progress: OnProgress | None) -> Found:
    return found if on_progress is None else dataclasses.replace(found, tell=partial(on_progress, _label(found)))


def _json(text: str, where: str) -> Any:
    """``where`` is how people know it: never its content, which may hold what must not be told."""
    try:
        return json.loads(text)
    except ValueError as error:
        try:
            # With comments and a comma behind the last item, as editors allow them in their files.
            plain = _COMMENT.sub(lambda match: match[0] if match[0].startswith('"') else "", text)
            return json.loads(_LAST_COMMA.sub(lambda match: match[0] if match[0] != "," else "", plain))
        except ValueError:
            raise SetupError(f"{where} is not JSON: {error}.") from None


def _open(text: str) -> tuple[Path | None, Any]:
    """The file that a text names, and the document in it or in the text itself, where there are such."""
    if text.startswith("{"):
        return None, _json(text, "The given document")
    try:
        path = Path(text).expanduser()
    except RuntimeError:  # of an unknown user
        return None, None
    if path.suffix not in (".json", ".yaml", ".yml"):
        return None, None
    return path, _json(_content(path), text[:100]) if path.suffix == ".json" else None


def _content(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise SetupError(f"Cannot read {file}: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise SetupError(f"{file} is not a text file.") from None


def _with_hint(error: TargetError, address: str) -> TargetError:
    """The failure, and what to do if something answers there, but like a website for people."""
    if not isinstance(error, TargetRefused | Unavailable | CallTimeout):
        error.message = (
            f"{error.message.rstrip('.')}. If it is an ordinary website, create an interface for it first: "
            f"agent3 web learn {shown(address)} --out site.yaml, then: agent3 add site.yaml"
        )
        error.args = (error.message,)
    return error


def _asks_for_none(address: str) -> SetupError:
    return SetupError(f"{shown(address)} does not require a sign-in. Add it without --sign-in.")


def _how_to_sign_in(error: TargetRefused, found: Found) -> TargetRefused:
    """A refusal for want of a credential, with what to type."""
    if error.data.get("status") != 401 or found.route.credential is not None:
        return error
    named = f" --name {shlex.quote(found.name)}" if found.name is not None else ""
    again = f"agent3 add {shlex.quote(found.route.address)}{named}"
    text = f"{place_of(found.route.address)} requires authentication (HTTP 401)."
    if error.data.get("signIn", True):
        text += f" To sign in: {again} --sign-in\nTo use a key from an environment variable:"
    else:
        text += " To use a key from an environment variable:"
    return TargetRefused(f"{text} {again} --credential env:NAME", data=error.data)
