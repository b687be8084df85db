"""Adding agents from outside: finds out what it was given, asks it what it can do, and puts it into the directory.

Takes the URL of an MCP server, a command that runs one, or a client's JSON file (``{"mcpServers": {…}}``); the URL of
an A2A agent, of its site or of its card, or the card as a JSON file; the interface of a website as a YAML or JSON
file, or a website that answers questions. Nothing is stored that was not reached, and no secret that was given: a value
that looks like one must be a reference. The tokens of a sign-in are the exception: nobody else has them, so they are
kept, sealed.
"""

from __future__ import annotations

import asyncio
import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from msgspec.structs import replace

from agent3.definitions import AgentCard, NLWebInterface
from agent3.directory.stand_ins import keep_stand_ins, stand_in, withdraw
from agent3.errors import (
    Agent3Error,
    AgentNotFound,
    CallTimeout,
    Conflict,
    SetupError,
    TargetError,
    TargetRefused,
    Unavailable,
)
from agent3.gateway.cards import shown
from agent3.identity.loopback_redirect import Guide, Landing
from agent3.identity.secrets import Vault
from agent3.model import Agent, Route
from agent3.protocols.a2a.cards.cards import interfaces
from agent3.protocols.a2a.peer import sign_in as flows
from agent3.protocols.a2a.peer.connector import A2AConnector
from agent3.protocols.mcp.client.connector import agent_id
from agent3.protocols.mcp.client.processes import PREFIX, Command
from agent3.protocols.mcp.client.upstream import place_of
from agent3.protocols.nlweb.authoring.files import load as load_interface
from agent3.protocols.nlweb.connector import agent_of
from agent3.protocols.nlweb.visit.secret_grants import Grants
from agent3.protocols.nlweb.websites import forget_website
from agent3.security.outbound import Gate
from agent3.server.build import Server, build
from agent3.server.renewal import describe
from agent3.server.secret_refs import check_query, check_words, holds_secret, names_secret, variable
from agent3.server.sign_ins import Flow, Plan, Way, references_of
from agent3.settings import Settings

__all__ = ["Added", "SigningIn", "add", "add_all", "add_here", "remove", "remove_here", "renew"]

_SECRET = re.compile(r"key|token|secret|passw|credential|auth", re.IGNORECASE)
_AGENT = re.compile(r"\.json$|/\.well-known/|/a2a/?$")
"""Paths at which an A2A agent is likelier than an MCP server."""
_SOMEWHERE = Route("nlweb", "an interface")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,30})://")


@dataclass(frozen=True)
class Added:
    """What became of one thing to add: the agent, or why not."""

    name: str
    agent: Agent | None = None
    error: Agent3Error | None = None


@dataclass(frozen=True)
class SigningIn:
    """The wish to sign in to what is added: a person by their browser, or a machine by its secret.

    ``secret`` is a reference. A person has so many ``seconds`` to agree.
    """

    way: Way
    guide: Guide
    client_id: str | None = None
    secret: str | None = None
    issuer: str | None = None
    seconds: float = 300.0


@dataclass(frozen=True)
class _Found:
    """One server to be added: how it is reached, and what the operator calls it."""

    route: Route
    name: str | None = None
    card: Mapping[str, Any] | None = None
    """The card of an A2A agent that was given by hand."""
    interface: NLWebInterface | None = None
    """The interface of a website."""


async def add(
    server: Server,
    what: str,
    name: str | None = None,
    credential: str | None = None,
    *,
    vault: Vault | None = None,
    signing_in: SigningIn | None = None,
) -> Agent:
    """Add one agent and give it as it was stored; adding it again brings it up to date.

    ``credential`` is a reference (``env:NAME``), with the header or variable it goes into before it where that is not
    the usual one (``X-API-Key=env:NAME``). Raises what kept it from being added.
    """
    found = _read(what, name, credential)
    if len(found) != 1:
        names = ", ".join(sorted(one.name or "" for one in found))
        where = "The JSON that was given" if what.lstrip().startswith("{") else what
        raise SetupError(f"{where} holds several servers: {names}. Choose one by --name, or add all of them.")
    return await _add(server, found[0], vault or server.sign_ins, signing_in)


async def add_all(
    server: Server,
    what: str,
    name: str | None = None,
    credential: str | None = None,
    *,
    vault: Vault | None = None,
    signing_in: SigningIn | None = None,
) -> list[Added]:
    """Add everything that ``what`` holds; one that cannot be added does not keep the others out."""
    results = []
    for one in _read(what, name, credential):
        label = one.name or shown(one.route.address)
        try:
            results.append(Added(label, agent=await _add(server, one, vault or server.sign_ins, signing_in)))
        except Agent3Error as wrong:
            results.append(Added(label, error=wrong))
    return results


async def remove(server: Server, agent: str) -> None:
    """Take a stored agent out of the directory, and what was kept for it; AgentNotFound when there is none.

    That is its sign-in, or of a website the sessions of all callers and what healing knows of its elements.
    """
    try:
        there = await server.directory.get(agent)
    except AgentNotFound:
        there = None
    await server.directory.remove(agent)
    await withdraw(server.directory, agent)
    if there is not None:
        await _forget(server, references_of(there))
        await forget_website(server.database, server.directory, there)


def add_here(
    settings: Settings,
    what: str,
    name: str | None = None,
    credential: str | None = None,
    signing_in: SigningIn | None = None,
) -> list[Added]:
    """``add_all`` for the command line, on the database of the settings; a running gateway sees it at once."""

    async def work() -> list[Added]:
        async with build(settings, take_over=False) as server:
            return await add_all(server, what, name, credential, signing_in=signing_in)

    return asyncio.run(work())


def remove_here(settings: Settings, agent: str) -> None:
    """``remove`` likewise."""

    async def work() -> None:
        async with build(settings, take_over=False) as server:
            await remove(server, agent)

    asyncio.run(work())


async def renew(server: Server, address: str, *, vault: Vault | None = None) -> list[Agent]:
    """Ask a server again what it can do, and store it for every agent that is reached there; those that changed.

    One that cannot be reached keeps what it had, and is marked so.
    """
    return await server.renewals.renew(address, vault)


async def _add(server: Server, found: _Found, vault: Vault, signing_in: SigningIn | None = None) -> Agent:
    if found.interface is not None:
        return await _add_website(server, found.interface, found.name)
    if signing_in is not None:
        return await _add_signed_in(server, found, vault, signing_in)
    if found.card is not None:
        return await _stored(server, _a2a(server).describe_card(found.card, found.route), found.name)
    try:
        agent = await _first_that_answers(server, found.route, vault)
    except TargetRefused as wrong:
        raise _how_to_sign_in(wrong, found) from None
    return await _stored(server, agent, found.name)


async def _add_website(server: Server, interface: NLWebInterface, name: str | None) -> Agent:
    """The website of an interface, which may stand in for another agent too."""
    if name is not None:
        interface = interface.model_copy(update={"interface_id": agent_id(name), "name": name})
    described = agent_of(interface)
    Grants.read(server.settings.web.secrets).require(interface)
    agent = await _stored(server, described, None)
    try:
        await stand_in(server.directory, agent)
    except Agent3Error:
        await server.directory.remove(agent.id)
        raise
    return agent


async def _stored(server: Server, agent: Agent, name: str | None) -> Agent:
    if name is not None:
        agent = replace(agent, id=agent_id(name), name=name)
    before = await _check_free(server, agent)
    agent = agent if before is None else keep_stand_ins(agent, before)
    await server.directory.add(agent)
    if before is not None:
        await _forget(server, references_of(before))
        await forget_website(server.database, server.directory, before)
    return agent


async def _check_free(server: Server, agent: Agent) -> Agent | None:
    """The agent that is to be replaced, if there is one."""
    try:
        there = await server.directory.get(agent.id)
    except AgentNotFound:
        return None
    if there.source != agent.source:
        raise Conflict(f"There is an agent {agent.id!r} already, from {there.source or 'here'}. Give another --name.")
    return there


async def _first_that_answers(server: Server, route: Route, vault: Vault) -> Agent:
    """Find out what it is: an MCP server, one below the address of its site, an A2A agent, or a site that answers.

    An address that looks like a card's or an agent's is asked for its card first.
    """
    if route.address.startswith(PREFIX):
        return await _describe(server, route, vault)
    ways = [_mcp_server, _a2a_agent]
    if _AGENT.search(urlsplit(route.address).path):
        ways.reverse()
    try:
        return await ways[0](server, route, vault)
    except TargetError as wrong:
        if _settles(wrong):
            raise
        try:
            agent = await ways[1](server, route, vault)
        except TargetError as other:
            if (site := await _website(server, route)) is not None:
                return site
            raise _with_a_way(_the_clearer(wrong, other), route.address) from None
        if isinstance(wrong, TargetRefused) and not _speaks_at(agent, route.address):
            raise
        return agent


def _settles(wrong: TargetError) -> bool:
    """Whether an error says that there is nobody at all, so that asking in another way is no use."""
    return isinstance(wrong, Unavailable) and not wrong.sent


def _the_clearer(wrong: TargetError, other: TargetError) -> TargetError:
    """Of two failures that of the likelier guess, unless only the other one says what is missing."""
    return other if isinstance(other, TargetRefused) and not isinstance(wrong, TargetRefused) else wrong


def _with_a_way(wrong: TargetError, address: str) -> TargetError:
    """The failure, and what to do if somebody answers there, but like a website for people."""
    if not isinstance(wrong, TargetRefused | Unavailable | CallTimeout):
        wrong.message = (
            f"{wrong.message.rstrip('.')}. Is it an ordinary website? Then make an interface of it: "
            f"agent3 web learn {shown(address)} --out site.yaml, and: agent3 add site.yaml"
        )
        wrong.args = (wrong.message,)
    return wrong


def _speaks_at(agent: Agent, address: str) -> bool:
    """Whether the card is of the very address that was given: a site that refuses one may show the card of another."""
    offered = {one.url.rstrip("/") for one, _ in interfaces(AgentCard.from_wire(agent.card))}
    return address.partition("?")[0].rstrip("/") in offered


async def _website(server: Server, route: Route) -> Agent | None:
    """A site that answers questions by itself; None if this one does not."""
    connector = server.core.connectors.get("nlweb")
    if connector is None or route.credential is not None:
        return None
    try:
        return await connector.describe(route.address)
    except (TargetError, SetupError):
        return None


async def _a2a_agent(server: Server, route: Route, vault: Vault) -> Agent:
    try:
        return await _describe(server, replace(route, protocol="a2a"), vault)
    except TargetRefused as refused:
        refused.data["protocol"] = "a2a"
        raise


async def _mcp_server(server: Server, route: Route, vault: Vault) -> Agent:
    """People give the address of a site as often as that of its endpoint."""
    try:
        return await _describe(server, route, vault)
    except TargetError as wrong:
        if urlsplit(route.address).path not in ("", "/"):
            raise
        endpoint = _endpoint(route.address)
        try:
            return await _describe(server, replace(route, address=endpoint), vault)
        except TargetRefused as refused:
            if refused.data.get("status") != 401:
                raise wrong from None
            refused.data["address"] = endpoint
            raise
        except TargetError:
            raise wrong from None


def _endpoint(site: str) -> str:
    bare, question, query = site.partition("?")
    return f"{bare.rstrip('/')}/mcp{question}{query}"


async def _describe(server: Server, route: Route, vault: Vault) -> Agent:
    return await describe(server.core.connectors, route, vault)


# Signing in


class _Entry(NamedTuple):
    """What asks for a sign-in. ``flow`` is that of an agent's card, and ``gate`` the one through which it goes."""

    route: Route
    flow: Flow | None = None
    gate: Gate | None = None


async def _add_signed_in(server: Server, found: _Found, vault: Vault, wish: SigningIn) -> Agent:
    """Add what asks for a sign-in, with one. What does not come to its end leaves nothing behind."""
    _check_wish(found.route)
    entry = await _that_asks(server, found, vault, wish)
    route = entry.route
    plan = Plan(
        route.address, wish.way, wish.client_id, wish.secret or "", wish.issuer, name=found.name, flow=entry.flow
    )
    async with Landing(wish.guide, wish.seconds) as landing:
        reference = await server.sign_ins.begin(replace(plan, redirect=landing.redirect), landing.send)
        try:
            if entry.gate is not None:
                await server.sign_ins.obtain(reference, entry.gate)
            agent = await _signed_in(server, found, replace(route, credential=reference), vault)
            if not server.sign_ins.ended(reference):
                raise _asks_for_none(route.address)
            return await _stored(server, agent, found.name)
        except BaseException:
            await server.sign_ins.forget(reference)
            raise


async def _signed_in(server: Server, found: _Found, route: Route, vault: Vault) -> Agent:
    if found.card is not None:
        return _a2a(server).describe_card(found.card, route)
    return await _describe(server, route, vault)


def _check_wish(route: Route) -> None:
    if route.address.startswith(PREFIX):
        raise SetupError("A program is not signed in to. Give its secret by --credential NAME=env:NAME.")
    if route.credential is not None:
        raise SetupError("--sign-in gets a credential, --credential gives one. Say one or the other.")
    if "env:" in route.address or "${" in route.address:
        raise SetupError("--sign-in is for addresses without references in them. Give the plain address.")


async def _that_asks(server: Server, found: _Found, vault: Vault, wish: SigningIn) -> _Entry:
    """What wants a sign-in: the address that was given or its endpoint, which says so, or an agent by its card."""
    if found.card is not None:
        return await _by_card(server, found.route, found.card, wish)
    try:
        agent = await _first_that_answers(server, found.route, vault)
    except TargetRefused as wrong:
        if wrong.data.get("status") != 401 or wrong.data.get("protocol") == "a2a":
            raise
        return _Entry(replace(found.route, address=str(wrong.data.get("address", found.route.address))))
    if all(route.protocol == "a2a" for one in agent.capabilities for route in one.routes):
        return await _by_card(server, replace(found.route, protocol="a2a"), None, wish)
    raise _asks_for_none(found.route.address)


async def _by_card(server: Server, route: Route, card: Mapping[str, Any] | None, wish: SigningIn) -> _Entry:
    flow, gate = await _a2a(server).sign_in_of(route.address, card)
    if flow is None:
        raise _asks_for_none(route.address)
    if wish.way == "machine":
        raise SetupError(
            "A machine signs in to an A2A agent by --credential env:NAME, with CLIENT:SECRET as the value of NAME."
        )
    if wish.issuer:
        flow = await flows.of_issuer(flow, gate, wish.issuer)
    flows.check(flow, wish.issuer, wish.secret is not None)
    return _Entry(route, flow, gate)


def _a2a(server: Server) -> A2AConnector:
    connector = server.core.connectors["a2a"]
    assert isinstance(connector, A2AConnector)
    return connector


def _asks_for_none(address: str) -> SetupError:
    return SetupError(f"{shown(address)} does not ask for a sign-in. Add it without --sign-in.")


def _how_to_sign_in(wrong: TargetRefused, found: _Found) -> TargetRefused:
    """A refusal for want of a credential, with what to type."""
    if wrong.data.get("status") != 401 or found.route.credential is not None:
        return wrong
    named = f" --name {shlex.quote(found.name)}" if found.name is not None else ""
    again = f"agent3 add {shlex.quote(found.route.address)}{named}"
    if wrong.data.get("protocol") == "a2a":
        return TargetRefused(
            f"{place_of(found.route.address)} wants to know who you are (HTTP 401). With a key that it gave you in an "
            f"environment variable, type: {again} --credential env:NAME",
            data=wrong.data,
        )
    return TargetRefused(
        f"{place_of(found.route.address)} wants to know who you are (HTTP 401). To sign in, type: {again} --sign-in\n"
        f"With a key that it gave you in an environment variable: {again} --credential env:NAME",
        data=wrong.data,
    )


async def _forget(server: Server, references: set[str]) -> None:
    """Delete sign-ins that no agent uses any more."""
    used = {one for agent in await server.directory.everything() for one in references_of(agent)} if references else ()
    for one in references.difference(used):
        await server.sign_ins.forget(one)


# What was given


def _read(what: str, name: str | None, credential: str | None) -> list[_Found]:
    text = what.strip()
    if not text:
        raise SetupError(
            "Nothing was given to add. Give a URL, a command, or a file with mcpServers, an agent card or a website's "
            "interface."
        )
    if text.startswith(("http://", "https://")):
        return [_Found(_at_url(text, credential), name)]
    if scheme := _SCHEME.match(text):
        raise SetupError(f"{scheme[1]!r} addresses are not known here; give http:// or https://, or a command.")
    if text.startswith("{"):
        return _from_config(text, "The JSON that was given", name, credential)
    if (file := Path(text).expanduser()).suffix in (".yaml", ".yml"):
        return [_Found(_SOMEWHERE, name, interface=load_interface(file))]
    if file.suffix == ".json":
        return _from_config(_content(file), text[:100], name, credential)
    return [_Found(_at_command(_split(text), {}, None, credential), name)]


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as wrong:
        raise SetupError(f"The command cannot be read: {wrong}. Check its quotes.") from None


def _content(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError as wrong:
        raise SetupError(f"{file} cannot be read: {wrong.strerror}.") from None
    except UnicodeDecodeError:
        raise SetupError(f"{file} is not a text file.") from None


def _from_config(text: str, where: str, name: str | None, credential: str | None) -> list[_Found]:
    """``where`` is how people know it: never its content, which may hold what must not be told."""
    try:
        body = json.loads(text)
    except ValueError as wrong:
        raise SetupError(f"{where} is not JSON: {wrong}.") from None
    servers = body.get("mcpServers") or body.get("servers") if isinstance(body, dict) else None
    if isinstance(body, dict) and not servers and _is_card(body):
        return [_Found(_at_card(body, where, credential), name, body)]
    if isinstance(body, dict) and not servers and {"base_url", "actions"} <= set(body):
        return [_Found(_SOMEWHERE, name, interface=NLWebInterface.from_document(body))]
    if not isinstance(servers, dict) or not servers:
        raise SetupError(f'{where} holds no MCP servers; they stand under "mcpServers".')
    if name is not None and len(servers) > 1:
        if name not in servers:
            raise SetupError(f"{where} holds no server {name!r}; it holds {', '.join(sorted(servers))}.")
        servers = {name: servers[name]}
    return [_Found(_configured(key, entry, credential), name or key) for key, entry in servers.items()]


def _is_card(body: Mapping[str, Any]) -> bool:
    return "name" in body and ("supportedInterfaces" in body or ("url" in body and "skills" in body))


def _at_card(body: Mapping[str, Any], where: str, credential: str | None) -> Route:
    """The route to the agent of a card, which is where the card says that it is."""
    offered = interfaces(AgentCard.from_wire(body))
    if not offered:
        raise SetupError(f"{where} is a card without an address at which A2A is spoken.")
    return replace(_at_url(offered[0][0].url, credential), protocol="a2a")


def _configured(key: str, entry: Any, credential: str | None) -> Route:
    if isinstance(entry, dict) and isinstance(entry.get("url"), str):
        return _at_url(entry["url"], credential or _header_credential(key, entry.get("headers") or {}))
    if isinstance(entry, dict) and isinstance(entry.get("command"), str):
        arguments = [str(one) for one in entry.get("args") or ()]
        environment = _variables(key, entry.get("env") or {})
        return _at_command([entry["command"], *arguments], environment, entry.get("cwd"), credential)
    raise SetupError(f'The server {key!r} has neither a "url" nor a "command".')


def _header_credential(key: str, headers: Mapping[str, Any]) -> str | None:
    """The one header that the route can carry, as a reference."""
    if not headers:
        return None
    if len(headers) > 1:
        raise SetupError(f"The server {key!r} wants several headers; give the one that counts as --credential.")
    header, value = next(iter(headers.items()))
    bearer = header.lower() == "authorization" and str(value).lower().startswith("bearer ")
    reference = variable(str(value)[7:] if bearer else str(value))
    if reference is None:
        raise SetupError(
            f"The server {key!r} holds the secret of its header {header!r} itself. Put it into an environment "
            f'variable and write "{"Bearer " if bearer else ""}${{NAME}}" in its place.'
        )
    return f"env:{reference}" if bearer else f"{header}=env:{reference}"


def _variables(key: str, given: Mapping[str, Any]) -> dict[str, str]:
    found = {}
    for name, value in given.items():
        reference = variable(str(value))
        named = _SECRET.search(name) or names_secret(name)
        if reference is None and (named or holds_secret(name, str(value))):
            raise SetupError(
                f"The server {key!r} holds the secret {name} itself, and secrets are not stored. Set {name} in the "
                f'environment of the gateway and write "{name}": "${{{name}}}".'
            )
        found[name] = f"env:{reference}" if reference is not None else str(value)
    return found


def _at_url(url: str, credential: str | None) -> Route:
    header, reference = _named(credential)
    return Route("mcp", check_query(url), credential=reference, meta={"secret_header": header} if header else {})


def _at_command(words: list[str], environment: dict[str, str], folder: str | None, credential: str | None) -> Route:
    # The gateway may run elsewhere than whoever adds the command.
    command = Command(words[0], tuple(check_words(words[1:])), environment, folder or str(Path.cwd()))
    name, reference = _named(credential)
    if reference is not None and name is None:
        name = variable(reference)
        if name is None:
            raise SetupError("Say in which variable the program gets the credential: --credential NAME=REFERENCE.")
    return Route("mcp", command.address, credential=reference, meta={"secret_env": name} if name else {})


def _named(credential: str | None) -> tuple[str | None, str | None]:
    """``NAME=REFERENCE`` in two; a reference alone has no name."""
    if credential is None:
        return None, None
    name, found, reference = credential.partition("=")
    if found and ":" not in name:
        return name, reference
    return None, credential
