"""Upstreams: one MCP server with one credential, spoken to in the era it speaks.

An ``Upstream`` agrees on an era (modern first, then ``initialize``), keeps one long-lived connection, opens it anew
when it was lost, caches lists until the server says that they changed, and gives a conversation a connection of its
own where questions could not be told apart otherwise. ``Upstreams`` is the pool of them. Neither knows what a tool
or an outcome is.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace as changed
from typing import Any, Literal

from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, LATEST_HANDSHAKE_VERSION, LATEST_MODERN_VERSION

from agent3 import jsonrpc
from agent3._version import __version__
from agent3.env import REAL, Env
from agent3.errors import Agent3Error, CallTimeout, MalformedResponse, TargetError, Unavailable
from agent3.identity.secrets import Secret
from agent3.observe.logs import get as logger
from agent3.protocols.mcp.client.channels import (
    FOREVER,
    LEVELS,
    Authorization,
    Changing,
    Exchange,
    HTTPChannel,
    Refused,
    answer_to,
    params_of,
)
from agent3.protocols.mcp.client.processes import PREFIX, Command, PipeChannel, Restarts, Watchdog
from agent3.security.outbound import Gate, Policy, parse_url

__all__ = ["Session", "Upstream", "Upstreams", "place_of"]

log = logger("mcp")

Era = Literal["modern", "legacy"]
Powers = frozenset[str]
"""What a legacy session declares besides elicitation, for callers that can do it: ``sampling``, ``roots``."""
OnChange = Callable[[str], None]
OnNote = Callable[[str, str, dict[str, Any]], None]
"""Hears the address of a server, and the method and parameters of what it told unasked."""

_NONE: Powers = frozenset()
_INFO = {"name": "agent3", "version": __version__}
_ASKING: dict[str, Any] = {"elicitation": {"form": {}, "url": {}}}
_CAPABILITIES = {**_ASKING, "extensions": {"io.modelcontextprotocol/tasks": {}}}
_MODERN_META = {
    "io.modelcontextprotocol/protocolVersion": LATEST_MODERN_VERSION,
    "io.modelcontextprotocol/clientInfo": _INFO,
    "io.modelcontextprotocol/clientCapabilities": _CAPABILITIES,
}
_MODERN_CODES = frozenset({-32020, -32021, -32022, -32601, -32602, -32603, -32700})
"""Errors by which a modern server refuses a modern request; any other 4xx comes from somebody who is not one."""
_UNSUPPORTED = -32022
_PROBE = 10.0
"""Seconds that a server gets to say whether it is modern. Legacy programs may say nothing at all."""
_PAGES = 1_000
_LEGACY_TTL = 30.0
"""Seconds that a legacy list is served from memory; that era has no word for it."""
_EARS = 2.0
"""Seconds that a conversation waits for the stream on which a legacy server may ask."""
_OWN = 8
"""Connections of their own that conversations with one server may have at once."""


class Session:
    """A channel on which the era is agreed: puts the envelope around requests and the headers beside them."""

    def __init__(self, channel: HTTPChannel | PipeChannel, era: Era, version: str, hello: Mapping[str, Any]):
        self.channel = channel
        self.era = era
        self.version = version
        self.level: str | None = None
        """The least of log lines that a legacy server was asked for."""
        self.running: set[Exchange] = set()
        self.listening = asyncio.Event()
        """Set when the stream of what belongs to no request is open, or will not be."""
        self.watching: asyncio.Task[None] | None = None
        self.capabilities: dict[str, Any] = _table(hello, "capabilities")
        told = hello.get("instructions")
        self.instructions: str | None = told if isinstance(told, str) else None
        meta = _table(hello, "_meta")
        self.info: dict[str, Any] = _table(hello, "serverInfo") or _table(meta, "io.modelcontextprotocol/serverInfo")
        self._keys = itertools.count(1)
        self._base = {"MCP-Protocol-Version": version}

    @property
    def alive(self) -> bool:
        """Whether it can still take a request."""
        return self.channel.alive

    async def request(
        self,
        method: str,
        params: Mapping[str, Any],
        exchange: Exchange,
        *,
        name: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """The result of a request; Refused for an error of the server."""
        key = next(self._keys)
        meta = {**(_MODERN_META if self.era == "modern" else {}), **(params.get("_meta") or {}), "progressToken": key}
        body = jsonrpc.request(key, method, {**params, "_meta": meta})
        self.running.add(exchange)
        try:
            async with exchange:
                result = await self.channel.request(key, body, self._headed(method, name, headers), exchange)
        finally:
            self.running.discard(exchange)
        if not isinstance(result, dict):
            raise MalformedResponse(f"{self.channel.place} answered {method} with something that is not an object.")
        return result

    async def stray(self, message: dict[str, Any]) -> dict[str, Any] | None:
        """Take a message that came with no request: a question is answered if it is clear whose it is."""
        if "id" not in message:
            return None if self._overheard(message) else message
        able = [exchange for exchange in self.running if exchange.can_answer]
        body = await answer_to(message, able[0] if len(able) == 1 else None)
        await self.channel.tell(body, self._base)
        return None

    def _overheard(self, message: dict[str, Any]) -> bool:
        """Whether it is a log line of the one request that is under way; servers exist that do not say whose it is."""
        if message.get("method") != "notifications/message":
            return False
        working = [exchange for exchange in self.running if not exchange.standing]
        if len(working) == 1:
            working[0].heard("notifications/message", params_of(message))
        return True

    def headers(self) -> Mapping[str, str]:
        """Those of requests that carry no message."""
        return self._base

    def _headed(self, method: str, name: str | None, more: Mapping[str, str] | None) -> Mapping[str, str]:
        if self.era == "legacy":
            return self._base
        found = {**self._base, "Mcp-Method": method, **(more or {})}
        if name is not None:
            found["Mcp-Name"] = name
        return found


def _table(where: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = where.get(key)
    return value if isinstance(value, dict) else {}


class Upstream:
    """One server with one credential.

    Any number of requests may be under way at once, on one connection. A connection that was lost is opened anew;
    what was under way on it is repeated only where that is certain to be harmless. A legacy server, which is told once
    per session what can be asked of us, gets a session more for callers that can do more.
    """

    def __init__(
        self,
        address: str,
        open_channel: Callable[[], Awaitable[HTTPChannel | PipeChannel]],
        eras: dict[str, Era],
        on_change: OnChange | None = None,
        env: Env = REAL,
    ):
        self.address = address
        self.used = env.monotonic()
        self.busy = 0
        self.on_note: OnNote | None = None
        self._open_channel = open_channel
        self._eras = eras
        self._on_change = on_change
        self._env = env
        self._shared: dict[Powers, Session] = {}
        self._connecting = asyncio.Lock()
        self._apart = False
        self._spare: list[tuple[Powers, Session]] = []
        self._own = asyncio.Semaphore(_OWN)
        self._lists: dict[str, tuple[list[dict[str, Any]], float]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._leaving: set[asyncio.Task[None]] = set()
        self._closed = False

    async def session(self, powers: Powers = _NONE) -> Session:
        """The connection that all with these powers share, opened if need be."""
        found = self._shared.get(powers)
        if found is not None and found.alive:
            return found
        async with self._connecting:
            found = self._shared.get(powers)
            if found is None or not found.alive:
                found = self._shared[powers] = await self._connect(powers)
                found.watching = self._spawn(self._watch(found))
            return found

    async def request(
        self,
        method: str,
        params: Mapping[str, Any],
        exchange: Callable[[], Exchange],
        *,
        name: str | None = None,
        headers: Mapping[str, str] | None = None,
        harmless: bool = False,
    ) -> dict[str, Any]:
        """The result of a request. ``exchange`` makes a fresh one for each try.

        A session that the server no longer knows is opened anew, once. A request that it turned away with an HTTP
        error for that reason never ran, so it is sent again; one that may have run only if that is ``harmless``.
        """
        self.busy += 1
        try:
            for last in (False, True):
                session = await self._fitting(exchange)
                try:
                    return await self._send(session, method, params, exchange(), name, headers)
                except Refused as refused:
                    if last:
                        raise
                    self._consider(session, refused, harmless)
            raise AssertionError("unreachable")
        finally:
            self.busy -= 1
            self.used = self._env.monotonic()

    async def items(self, method: str, key: str, *, fresh: bool = False) -> list[dict[str, Any]]:
        """All pages of a list, from memory while they are good. ``key`` is where the page holds its items."""
        known = self._lists.get(method)
        if known is not None and not fresh and self._env.monotonic() < known[1]:
            return known[0]
        found: list[dict[str, Any]] = []
        cursor: str | None = None
        ttl = 0.0
        for _ in range(_PAGES):
            page = await self.request(method, {"cursor": cursor} if cursor else {}, Exchange, harmless=True)
            items, following = page.get(key), page.get("nextCursor")
            if not isinstance(items, list):
                raise MalformedResponse(f"{place_of(self.address)} answered {method} without a list of {key}.")
            found += [one for one in items if isinstance(one, dict)]
            ttl = self._ttl(page)
            if not isinstance(following, str) or not following or following == cursor:
                break
            cursor = following
        else:
            raise MalformedResponse(f"{place_of(self.address)} gives {method} in more than {_PAGES} pages.")
        if ttl > 0:
            self._lists[method] = found, self._env.monotonic() + ttl
        return found

    async def aclose(self) -> None:
        """Let go of everything; what is under way ends as unavailable."""
        self._closed = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        sessions = [*self._shared.values(), *(one for _, one in self._spare)]
        self._shared, self._spare = {}, []
        await asyncio.gather(*map(_farewell, sessions), *self._leaving)

    # Opening

    async def _connect(self, powers: Powers) -> Session:
        if self._closed:
            error = Unavailable("The gateway is stopping.")
            error.sent = False
            raise error
        known = self._eras.get(self.address)
        try:
            return await self._agree(await self._open_channel(), known, powers)
        except Unavailable:
            # Programs exist that end at a first message they do not know.
            if known is not None or not self.address.startswith(PREFIX):
                raise
            return await self._agree(await self._open_channel(), "legacy", powers)

    async def _agree(self, channel: HTTPChannel | PipeChannel, known: Era | None, powers: Powers) -> Session:
        try:
            session = await self._discover(channel) if known != "legacy" else None
            session = session or await self._initialize(channel, powers)
        except Refused as refused:
            await channel.aclose()
            self._eras.pop(self.address, None)
            raise _no_agreement(channel, refused) from None
        except BaseException as wrong:
            await channel.aclose()
            if isinstance(wrong, Agent3Error):
                wrong.sent = False  # the call itself never left
            raise
        self._eras[self.address] = session.era
        channel.on_stray = self._stray(session, channel)
        return session

    async def _discover(self, channel: HTTPChannel | PipeChannel) -> Session | None:
        """The modern session, or None for a server of before."""
        probe = Session(channel, "modern", LATEST_MODERN_VERSION, {})
        try:
            hello = await _greeting(probe)
        except Refused as refused:
            if refused.status is not None and refused.status >= 500:
                raise
            if refused.code == _UNSUPPORTED and not _speaks_legacy(refused.data):
                raise
            return None
        except CallTimeout:
            if isinstance(channel, PipeChannel):
                return None
            raise
        supported = hello.get("supportedVersions")
        if not isinstance(supported, list) or LATEST_MODERN_VERSION not in supported:
            return None
        return Session(channel, "modern", LATEST_MODERN_VERSION, hello)

    async def _initialize(self, channel: HTTPChannel | PipeChannel, powers: Powers) -> Session:
        if isinstance(channel, HTTPChannel):
            channel.legacy = True
        able = {**_ASKING, **{one: {} for one in sorted(powers)}}
        offer = {"protocolVersion": LATEST_HANDSHAKE_VERSION, "capabilities": able, "clientInfo": _INFO}
        opening = Session(channel, "legacy", LATEST_HANDSHAKE_VERSION, {})
        hello = await opening.request("initialize", offer, Exchange(idle=_PROBE * 3))
        version = hello.get("protocolVersion")
        if version not in HANDSHAKE_PROTOCOL_VERSIONS:
            raise Refused(None, f"it speaks MCP {version!r}, which is not known here")
        session = Session(channel, "legacy", str(version), hello)
        await channel.tell(jsonrpc.notification("notifications/initialized"), session.headers())
        return session

    # Using

    async def _fitting(self, exchange: Callable[[], Exchange]) -> Session:
        """The session on which such an exchange can be asked all that its caller can do."""
        session = await self.session()
        powers = exchange().powers if session.era == "legacy" else _NONE
        return await self.session(powers) if powers else session

    async def _send(
        self,
        session: Session,
        method: str,
        params: Mapping[str, Any],
        exchange: Exchange,
        name: str | None,
        headers: Mapping[str, str] | None,
    ) -> dict[str, Any]:
        if session.era == "legacy" and exchange.can_answer:
            if self._apart:
                async with self._own_line(exchange.powers) as own:
                    await _all_ears(own)
                    await _turn_up(own, exchange.level)
                    return await own.request(method, params, exchange, name=name, headers=headers)
            await _all_ears(session)
        await _turn_up(session, exchange.level)
        return await session.request(method, params, exchange, name=name, headers=headers)

    @asynccontextmanager
    async def _own_line(self, powers: Powers) -> AsyncIterator[Session]:
        """A session for one conversation alone; kept for the next one, unless something was wrong with it."""
        async with self._own:
            spare = next((one for one in self._spare if one[0] == powers), None)
            if spare is not None:
                self._spare.remove(spare)
            own = spare[1] if spare is not None else await self._connect(powers)
            if own.watching is None:
                own.watching = self._spawn(self._watch(own))
            good = False
            try:
                yield own
                good = True
            finally:
                if good and own.alive and not self._closed:
                    self._spare.append((powers, own))
                else:
                    _keep(self._leaving, _farewell(own))

    def _consider(self, session: Session, refused: Refused, harmless: bool) -> None:
        """Return if the request may be sent again on a new connection, else raise."""
        why = _stale(session, refused)
        if why is None:
            raise refused
        self._shared = {powers: one for powers, one in self._shared.items() if one is not session}
        self._lists.clear()
        if why == "era":
            self._eras.pop(self.address, None)
        _keep(self._leaving, _farewell(session))
        if refused.status is None and not harmless:
            raise Unavailable(
                f"{session.channel.place} lost the session in the middle of the call; whether it did the work is not "
                "known, so it was not repeated."
            )
        log.info("%s no longer knows the session; opening a new one", session.channel.place)

    def _stray(self, session: Session, channel: HTTPChannel | PipeChannel) -> Any:
        async def heard(message: dict[str, Any]) -> None:
            if len([one for one in session.running if one.can_answer]) > 1 and "id" in message:
                self._keep_apart(session)
            try:
                told = await session.stray(message)
            except (Agent3Error, Refused) as wrong:
                log.debug("%s: a stray message went nowhere: %s", session.channel.place, wrong)
                return
            if told is not None and self._shared.get(_NONE) is session:
                self._noted(told)

        return heard if isinstance(channel, HTTPChannel) else self._noted

    def _keep_apart(self, session: Session) -> None:
        if not self._apart:
            self._apart = True
            log.warning(
                "%s asked while several calls were under way, and does not say for which; from now on each call has "
                "a connection of its own",
                session.channel.place,
            )

    def _noted(self, message: dict[str, Any]) -> None:
        method = str(message.get("method"))
        if method.startswith("notifications/") and method.endswith("/list_changed"):
            self._forget()
        if self.on_note is not None:
            self.on_note(self.address, method, params_of(message))

    def _forget(self) -> None:
        self._lists.clear()
        if self._on_change is not None:
            self._on_change(self.address)

    def _ttl(self, page: Mapping[str, Any]) -> float:
        given = page.get("ttlMs")
        if isinstance(given, int | float) and not isinstance(given, bool):
            return min(float(given) / 1000, FOREVER)
        return _LEGACY_TTL if self._eras.get(self.address) == "legacy" else 0.0

    # Listening

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return _keep(self._tasks, work)

    async def _watch(self, session: Session) -> None:
        """Hear of changes for as long as the session lives; after a gap in the hearing, all may have changed."""
        if isinstance(session.channel, PipeChannel):
            session.channel.on_ambiguous = lambda: self._keep_apart(session)
        pause, before = 1.0, False
        try:
            while session.alive and _announces(session):
                began = self._env.monotonic()
                try:
                    if not await self._hear(session, before):
                        return
                    before = True
                except Refused:
                    return
                except Agent3Error as wrong:
                    log.debug("%s: not heard for a while: %s", session.channel.place, wrong)
                pause = 1.0 if self._env.monotonic() - began > 60 else min(60.0, pause * 2)
                await asyncio.sleep(pause)
        finally:
            session.listening.set()

    async def _hear(self, session: Session, again: bool) -> bool:
        """Listen until the stream ends; False if there is nothing more to be heard in this way."""
        channel = session.channel
        if session.era == "legacy":
            return isinstance(channel, HTTPChannel) and await channel.stray(session.headers(), session.listening.set)

        def note(method: str, params: dict[str, Any]) -> None:
            if method == "notifications/subscriptions/acknowledged" and again:
                self._forget()
            self._noted({"method": method, "params": params})

        wanted = {"toolsListChanged": True, "promptsListChanged": True, "resourcesListChanged": True}
        listening = Exchange(note, idle=FOREVER, ceiling=FOREVER, standing=True)
        await session.request("subscriptions/listen", {"notifications": wanted}, listening)
        return True


def _keep(tasks: set[asyncio.Task[None]], work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Do it beside, held in ``tasks`` until it is done."""
    task = asyncio.get_running_loop().create_task(work)
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    return task


async def _all_ears(session: Session) -> None:
    """Wait until a question could be heard. Servers exist that ask on the stream of no request, or nobody.

    Once only: a server that keeps the head of that stream back until it has something to say is not waited for again.
    """
    if _announces(session) and isinstance(session.channel, HTTPChannel) and not session.listening.is_set():
        with suppress(TimeoutError):
            async with asyncio.timeout(_EARS):
                await session.listening.wait()
        session.listening.set()


async def _turn_up(session: Session, level: str | None) -> None:
    """Have a legacy server tell as much as anybody wants to hear; whoever wants less is spared the rest at the door."""
    if session.era != "legacy" or level not in LEVELS or "logging" not in session.capabilities:
        return
    if session.level is not None and LEVELS.index(session.level) <= LEVELS.index(level):
        return
    session.level = level
    try:
        await session.request("logging/setLevel", {"level": level}, Exchange(idle=_EARS))
    except (Refused, Agent3Error) as wrong:
        log.debug("%s did not take the level %s: %s", session.channel.place, level, wrong)


async def _greeting(probe: Session) -> dict[str, Any]:
    """What a modern server says of itself. One that refuses our version and names it all the same is asked again."""
    try:
        return await probe.request("server/discover", {}, Exchange(idle=_PROBE))
    except Refused as refused:
        if refused.code != _UNSUPPORTED or probe.version not in _supported(refused.data):
            raise
    return await probe.request("server/discover", {}, Exchange(idle=_PROBE))


def _announces(session: Session) -> bool:
    """Whether the server may have something to tell that was not asked for."""
    if session.era == "legacy" and isinstance(session.channel, HTTPChannel):
        return session.channel.session is not None
    kinds = ("tools", "prompts", "resources")
    return any(_table(session.capabilities, kind).get("listChanged") for kind in kinds)


def _stale(session: Session, refused: Refused) -> Literal["session", "era"] | None:
    """Whether an error means that the server does not know us any more, and in what."""
    about_session = "session" in refused.message.lower()
    if session.era == "legacy":
        lost = refused.status == 404 or (about_session and (refused.status == 400 or refused.code == -32600))
        has_one = isinstance(session.channel, HTTPChannel) and session.channel.session is not None
        return "session" if lost and has_one else None
    turned_away = refused.status in (400, 404, 405, 406) and refused.code not in _MODERN_CODES
    return "era" if turned_away else None


def _speaks_legacy(data: Any) -> bool:
    supported = _supported(data)
    return not supported or any(one in HANDSHAKE_PROTOCOL_VERSIONS for one in supported)


def _supported(data: Any) -> list[Any]:
    found = data.get("supported") if isinstance(data, dict) else None
    return found if isinstance(found, list) else []


def _no_agreement(channel: HTTPChannel | PipeChannel, refused: Refused) -> TargetError:
    error = TargetError(f"{channel.place} is no MCP server that we can talk to: {refused.message[:300]}")
    error.sent = False
    return error


async def _farewell(session: Session) -> None:
    if session.watching is not None:
        session.watching.cancel()
    if isinstance(session.channel, HTTPChannel):
        await session.channel.end_session(session.headers())
    await session.channel.aclose()


class Upstreams:
    """The pool: one upstream for each server and credential, ended when unused for ``idle`` seconds.

    Two credentials never share anything but what is known of the address: its era, and how often its program
    crashed. ``policy`` bounds what may be reached over HTTP; addresses that the operator ``registered`` may be on
    this machine or in a private network.
    """

    def __init__(
        self,
        policy: Policy | None = None,
        *,
        idle: float = 600.0,
        on_change: OnChange | None = None,
        env: Env = REAL,
    ):
        self._policy = policy or Policy()
        self._idle = idle
        self.on_note: OnNote | None = None
        self._on_change = on_change
        self._env = env
        self._all: dict[tuple[Any, ...], tuple[Upstream, Gate | None]] = {}
        self._eras: dict[str, Era] = {}
        self._restarts: dict[str, Restarts] = {}
        self._authorizations: dict[str, Authorization] = {}
        self._watchdog = Watchdog()
        self._sweeper: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._closed = False

    def __len__(self) -> int:
        return len(self._all)

    def get(self, address: str, secret: Secret | None = None, where: Mapping[str, Any] | None = None) -> Upstream:
        """The upstream of an address and credential. ``where`` is the route's own word on how to give the secret.

        ``secret_env`` names the variable in which a program gets it, ``secret_header`` the header that carries it
        instead of ``Authorization: Bearer``; ``registered`` says that the operator chose the address.
        """
        how = where or {}
        key = (address, secret, how.get("secret_env"), how.get("secret_header"), bool(how.get("registered")))
        found = self._all.get(key)
        if found is None:
            if self._closed:
                raise Unavailable("The gateway is stopping.")
            found = self._all[key] = self._make(address, secret, how)
            self._sweep_later()
        found[0].used = self._env.monotonic()
        return found[0]

    def authorize(self, address: str, by: Authorization) -> None:
        """Reach an address with a credential that changes, where no secret is given; from its next connection on."""
        self._authorizations[address] = by

    def known(self, address: str) -> Era | None:
        """The era of an address, if somebody has talked to it."""
        return self._eras.get(address)

    async def aclose(self) -> None:
        """End all connections and programs."""
        self._closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)
        everything, self._all = list(self._all.values()), {}
        await asyncio.gather(*(_close(upstream, gate) for upstream, gate in everything), *self._closing)
        self._watchdog.close()

    # Inside

    def _make(self, address: str, secret: Secret | None, how: Mapping[str, Any]) -> tuple[Upstream, Gate | None]:
        if address.startswith(PREFIX):
            opener, gate = self._program(address, secret, how), None
        else:
            gate = Gate(self._opened_for(address) if how.get("registered") else self._policy)
            opener = _site(gate, address, _credential(secret, how), self._changing(address, secret))
        upstream = Upstream(address, opener, self._eras, self._on_change, self._env)
        upstream.on_note = self.on_note
        return upstream, gate

    def _changing(self, address: str, secret: Secret | None) -> Authorization | None:
        if secret is None:
            return self._authorizations.get(address)
        return secret.authorization if isinstance(secret, Changing) else None

    def _program(
        self, address: str, secret: Secret | None, how: Mapping[str, Any]
    ) -> Callable[[], Awaitable[HTTPChannel | PipeChannel]]:
        command = Command.parse(address)
        restarts = self._restarts.setdefault(address, Restarts(self._env.monotonic))
        extra = {str(how["secret_env"]): secret.reveal()} if secret is not None and how.get("secret_env") else {}

        async def start() -> PipeChannel:
            if (wait := restarts.wait()) > 0:
                error = Unavailable(
                    f"{command.name!r} keeps ending; it is left alone for {wait:.1f} s.", retry_after=wait
                )
                error.sent = False
                raise error
            channel = await PipeChannel.start(command, extra, self._watchdog)
            channel.on_crash = restarts.crashed
            return channel

        return start

    def _opened_for(self, address: str) -> Policy:
        url = parse_url(address, self._policy)
        host = f"[{url.host}]" if ":" in (url.host or "") else url.host
        return changed(self._policy, allow_hosts=self._policy.allow_hosts | {f"{host}:{url.port}"})

    def _sweep_later(self) -> None:
        if self._sweeper is None or self._sweeper.done():
            self._sweeper = asyncio.get_running_loop().create_task(self._sweep())

    async def _sweep(self) -> None:
        """Let go of what nobody uses; it comes back on demand."""
        while self._all:
            await asyncio.sleep(max(0.05, self._idle / 4))
            oldest = self._env.monotonic() - self._idle
            unused = [key for key, (one, _) in self._all.items() if not one.busy and one.used < oldest]
            for key in unused:
                upstream, gate = self._all.pop(key)
                log.info("%s was not used for %g s and is let go", place_of(upstream.address), self._idle)
                _keep(self._closing, _close(upstream, gate))  # on its own: whoever ends the sweeping may not end this


def place_of(address: str) -> str:
    """An address for people: never the path of a URL or the arguments of a program, which may hold a credential."""
    return Command.parse(address).name if address.startswith(PREFIX) else "/".join(address.split("/", 3)[:3])


def _credential(secret: Secret | None, how: Mapping[str, Any]) -> dict[str, str]:
    if secret is None or isinstance(secret, Changing):
        return {}
    header = how.get("secret_header")
    return {str(header): secret.reveal()} if header else {"Authorization": f"Bearer {secret.reveal()}"}


def _site(
    gate: Gate, address: str, headers: Mapping[str, str], authorization: Authorization | None
) -> Callable[[], Awaitable[HTTPChannel | PipeChannel]]:
    async def open_site() -> HTTPChannel:
        return HTTPChannel(gate, address, headers, authorization)

    return open_site


async def _close(upstream: Upstream, gate: Gate | None) -> None:
    await upstream.aclose()
    if gate is not None:
        await gate.aclose()
