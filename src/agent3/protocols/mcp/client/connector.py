"""The connector of protocol ``mcp``: any MCP server becomes an Agent, its tools capabilities, a call a ``tools/call``.

Speaks to servers of both eras over HTTP and as programs (upstream.py); turns calls into requests and answers into
outcomes (answers.py). A route's address is a URL or ``stdio:`` and a command in JSON, its target the tool.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from mcp.shared.inbound import encode_header_value, find_invalid_x_mcp_header, mcp_param_headers, x_mcp_header_map
from msgspec.structs import replace

from agent3.calls.outcomes import failed_by
from agent3.env import REAL, Env
from agent3.errors import Agent3Error, Interrupted, ValidationError
from agent3.identity.secrets import Secret
from agent3.model import Agent, Answer, Call, Capability, Failed, Hints, Outcome, Route
from agent3.observe.logs import get as logger
from agent3.protocols.mcp.client.answers import (
    asked_of,
    error_of,
    event_of,
    outcome_of,
    response_of,
    responses_of,
    task_of,
    url_needs,
)
from agent3.protocols.mcp.client.channels import FOREVER, Exchange, Refused
from agent3.protocols.mcp.client.processes import PREFIX
from agent3.protocols.mcp.client.upstream import OnChange, Session, Upstream, Upstreams, place_of
from agent3.protocols.mcp.door.toolset import PASSED, Caller
from agent3.security.outbound import Policy

__all__ = ["Heard", "MCPConnector", "client_meta", "passing", "power_of", "said_to"]

log = logger("mcp")

KEY_META = "io.agent3/idempotency-key"
"""Under which a call's key is told to the server, so that it can recognise a repetition."""

Heard = Callable[[str, dict[str, Any]], None]
"""Takes the method and the parameters of something that a server told."""

_POWERS = frozenset({"sampling", "roots"})
_ASKABLE = ("form", "url", *_POWERS)
_REJECTED = -1
"""The code for a person's no to sampling."""
_MOST_EVENTS = 10_000
"""What one call may tell on its way; further words only show that it is alive."""


class MCPConnector:
    """Reaches MCP servers. One for each gateway; it belongs to the event loop it is used in.

    A call may be silent for ``idle`` seconds (longer if its caller gave it more time), and each word of progress
    starts that clock anew, up to ``ceiling`` seconds. Connections and programs that nobody used for ``unused`` seconds
    are ended, and come back on demand. ``on_change`` hears the address of a server that says that its lists changed.
    """

    def __init__(
        self,
        policy: Policy | None = None,
        *,
        idle: float = 20.0,
        ceiling: float = 300.0,
        unused: float = 600.0,
        on_change: OnChange | None = None,
        env: Env = REAL,
    ):
        self.upstreams = Upstreams(policy, idle=unused, on_change=on_change, env=env)
        self.upstreams.on_note = self._noted
        self._idle = idle
        self._ceiling = ceiling
        self._listeners: dict[str, list[Heard]] = {}
        self._headed: dict[tuple[str, str | None], tuple[Any, dict[tuple[str, ...], str]]] = {}

    async def describe(
        self, address: str, *, secret: Secret | None = None, route: Route | None = None, registered: bool = False
    ) -> Agent:
        """The server as an agent, every tool a capability. An error if it cannot be reached, never an empty list.

        ``registered`` is the operator's word for the address. ``route`` is the pattern for the routes of its tools,
        where they need a credential.
        """
        pattern = route or Route("mcp", address)
        if registered:
            pattern = replace(pattern, meta={**pattern.meta, "registered": True})
        upstream = self.upstreams.get(address, secret, pattern.meta)
        session = await self._reach(upstream)
        tools = await self._list(upstream) if "tools" in session.capabilities or not session.capabilities else []
        found = [one for tool in tools if (one := _capability(tool, pattern, session, self._ceiling)) is not None]
        return _agent(address, pattern, session, tuple(found))

    async def call(self, call: Call) -> Outcome:
        """One turn of a tool. Cancelling it cancels the tool."""
        assert call.route is not None
        try:
            return await self._turn(call, call.route)
        except Refused as refused:
            return url_needs(refused) or failed_by(error_of(refused, call.agent, passed=PASSED in call.meta))
        except Agent3Error as wrong:
            return failed_by(wrong)

    async def request(
        self, route: Route, method: str, params: Mapping[str, Any], *, secret: Secret | None = None, **listening: Any
    ) -> dict[str, Any]:
        """Any other request to the server of a route, such as ``prompts/get``; errors of ours for those of the server.

        ``hear`` and ``ask`` are who listens and who is asked meanwhile.
        """
        upstream = self.upstreams.get(route.address, secret, route.meta)
        name = params.get("name") or params.get("uri")
        try:
            return await upstream.request(
                method,
                params,
                lambda: Exchange(idle=self._idle, ceiling=self._ceiling, **listening),
                name=encode_header_value(name) if isinstance(name, str) else None,
                harmless=True,
            )
        except Refused as refused:
            raise error_of(refused, place_of(route.address), passed=True) from None

    async def items(self, route: Route, method: str, key: str, *, secret: Secret | None = None) -> list[dict[str, Any]]:
        """A whole list of the server of a route, such as ``prompts/list`` by ``prompts``, cached as it allows."""
        try:
            return await self.upstreams.get(route.address, secret, route.meta).items(method, key)
        except Refused as refused:
            raise error_of(refused, place_of(route.address), passed=True) from None

    def listen(self, address: str, heard: Heard) -> Callable[[], None]:
        """Hear what the server at an address tells unasked, whenever it is connected; the answer ends the hearing."""
        self._listeners.setdefault(address, []).append(heard)

        def leave() -> None:
            left = [one for one in self._listeners.get(address, ()) if one is not heard]
            if left:
                self._listeners[address] = left
            else:
                self._listeners.pop(address, None)

        return leave

    async def connect(self, route: Route, *, secret: Secret | None = None) -> None:
        """Be connected to the server of a route, and stay so for a while, to hear what it tells."""
        await self.upstreams.get(route.address, secret, route.meta).session()

    async def watch(self, route: Route, uris: Sequence[str], heard: Heard, *, secret: Secret | None = None) -> None:
        """Ask the server of a route to tell of changes of some resources.

        A modern server tells ``heard`` that it will, then what changes, until its stream ends and this returns. A
        legacy one promises it and this returns; it tells those who ``listen``, for as long as its session lives.
        """
        upstream = self.upstreams.get(route.address, secret, route.meta)
        try:
            if (await upstream.session()).era == "modern":
                wanted = {"notifications": {"resourceSubscriptions": list(uris)}}
                await upstream.request(
                    "subscriptions/listen",
                    wanted,
                    lambda: Exchange(heard, idle=FOREVER, ceiling=FOREVER, standing=True),
                    harmless=True,
                )
                return
            for uri in uris:
                await upstream.request("resources/subscribe", {"uri": uri}, Exchange, harmless=True)
        except Refused as refused:
            raise error_of(refused, place_of(route.address), passed=True) from None

    async def aclose(self) -> None:
        """End all connections and programs."""
        await self.upstreams.aclose()

    # Inside

    def _noted(self, address: str, method: str, params: dict[str, Any]) -> None:
        for heard in list(self._listeners.get(address, ())):
            heard(method, params)

    async def _reach(self, upstream: Upstream) -> Session:
        return await upstream.session()

    async def _list(self, upstream: Upstream) -> list[dict[str, Any]]:
        try:
            return await upstream.items("tools/list", "tools", fresh=True)
        except Refused as refused:
            raise error_of(refused, place_of(upstream.address)) from None

    async def _turn(self, call: Call, route: Route) -> Outcome:
        upstream = self.upstreams.get(route.address, call.secret, route.meta)
        state = call.state if isinstance(call.state, dict) else {}
        if state.get("task"):
            return await self._task(call, upstream, state["task"])
        if call.entry == "cancel":
            return Failed("canceled", "The job was cancelled.")
        if call.entry == "attach":
            raise Interrupted(f"{call.agent}/{call.capability} was interrupted. Call it again.")
        if call.entry == "answer" and not state and not _may_replay(call):
            raise Interrupted(
                f"{call.agent}/{call.capability} was interrupted while it waited for an answer, and may not be "
                "repeated unasked. Call it again."
            )
        return await self._tool(call, route, upstream, state)

    async def _tool(self, call: Call, route: Route, upstream: Upstream, state: Mapping[str, Any]) -> Outcome:
        if call.input is not None and not isinstance(call.input, dict):
            raise ValidationError(f"{call.agent}/{call.capability} takes an object, got {type(call.input).__name__}.")
        name = route.target or call.capability
        params: dict[str, Any] = {"name": name, "arguments": call.input or {}, "_meta": _meta(call)}
        if state.get("mcp") == "input":
            params["inputResponses"] = responses_of(call)
            if state.get("state") is not None:
                params["requestState"] = state["state"]
        result = await upstream.request(
            "tools/call",
            params,
            lambda: self._exchange(call),
            name=encode_header_value(name),
            headers=self._param_headers(call, route, params["arguments"]),
            harmless=call.idempotent or call.key is not None,
        )
        return outcome_of(result, call)

    async def _task(self, call: Call, upstream: Upstream, task: str) -> Outcome:
        """The next step with a task that runs at the server."""

        async def ask(method: str, **more: Any) -> dict[str, Any]:
            return await upstream.request(
                method, {"taskId": task, **more}, lambda: self._exchange(call), name=encode_header_value(task)
            )

        if call.entry == "cancel":
            await ask("tasks/cancel")
            return Failed("canceled", "The task was cancelled.")
        if call.entry == "answer":
            await ask("tasks/update", inputResponses=responses_of(call))
        return task_of(await ask("tasks/get"), call)

    def _exchange(self, call: Call) -> Exchange:
        left = itertools.count(_MOST_EVENTS, -1)

        def hear(method: str, params: dict[str, Any]) -> None:
            if (event := event_of(method, params)) is not None and next(left) > 0:
                call.emit(event)

        idle = max(self._idle, 0.9 * (call.timeout or 0.0))
        able = _can_ask(call)
        return Exchange(
            hear,
            _Asking(call) if able else None,
            idle=idle,
            ceiling=max(self._ceiling, idle),
            powers=_POWERS.intersection(call.meta[PASSED]["can"]) if able and PASSED in call.meta else frozenset(),
            level=_level(call),
        )

    def _param_headers(self, call: Call, route: Route, arguments: Mapping[str, Any]) -> dict[str, str] | None:
        """The arguments that the tool's schema wants to see in headers too."""
        capability: Capability | None = call.live.capability if call.live is not None else None
        if capability is None:
            return None
        key = route.address, route.target
        known = self._headed.get(key)
        if known is None or known[0] is not capability.input_schema:
            known = self._headed[key] = capability.input_schema, x_mcp_header_map(capability.input_schema)
        return mcp_param_headers(known[1], arguments) if known[1] else None


class _Asking:
    """Puts the questions of a legacy server to the caller: those of a replayed call are answered from memory."""

    def __init__(self, call: Call):
        self._call = call
        self._count = 0

    async def __call__(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        if not _may_ask(self._call, power_of(method, params)):
            raise Refused(-32601, f"The client does not offer {method}")
        self._count += 1
        question = asked_of(f"q{self._count}", {"method": method, "params": params}, self._call)
        answer: Answer | None = self._call.answers.get(question.id) or await self._call.live.ask(question)
        return said_to(method, answer)


def power_of(method: str, params: Mapping[str, Any]) -> str:
    """What a client must be able to do to answer a request of a legacy server; nothing that any can, where unknown."""
    if method == "elicitation/create":
        return str(params.get("mode") or "form")
    return {"sampling/createMessage": "sampling", "roots/list": "roots"}.get(method, "")


def said_to(method: str, answer: Answer | None) -> dict[str, Any]:
    """What a legacy server is told that asked something; Refused for a no, where the protocol has no other word."""
    if method == "elicitation/create":
        return response_of(answer)
    if answer is None or answer.action != "accept" or not isinstance(answer.data, dict):
        told = answer.data if answer is not None and isinstance(answer.data, dict) else {}
        raise Refused(told.get("code", _REJECTED), str(told.get("message") or f"The client declined {method}"))
    return answer.data


def _can_ask(call: Call) -> bool:
    return call.live is not None and call.live.ask is not None and any(_may_ask(call, one) for one in _ASKABLE)


def _may_ask(call: Call, power: str) -> bool:
    """Whether the client can be asked so: what it said that it can do, or else what a person can."""
    passed = call.meta.get(PASSED)
    return power in (passed["can"] if passed is not None else ("form", "url"))


def passing(caller: Caller) -> dict[str, Any]:
    """The ``meta`` of a call for an MCP client: the server hears of it, and its answer is passed on unchanged."""
    said = {"can": sorted(caller.can), "level": caller.level, "meta": caller.meta}
    return {PASSED: {key: one for key, one in said.items() if one or key == "can"}}


def client_meta(said: Mapping[str, Any]) -> dict[str, Any]:
    """The ``_meta`` of a request that is passed on for a client."""
    meta = dict(said.get("meta") or {})
    meta["io.modelcontextprotocol/clientCapabilities"] = _capabilities(said["can"])
    if said.get("level"):
        meta["io.modelcontextprotocol/logLevel"] = said["level"]
    return meta


def _capabilities(can: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {power: {} for power in ("sampling", "roots") if power in can}
    asking: dict[str, Any] = {power: {} for power in ("form", "url") if power in can}
    if asking:
        found["elicitation"] = asking
    if "tasks" in can:
        found["extensions"] = {"io.modelcontextprotocol/tasks": {}}
    return found


def _may_replay(call: Call) -> bool:
    capability: Capability | None = call.live.capability if call.live is not None else None
    return call.idempotent or (capability is not None and capability.hints.replay)


def _meta(call: Call) -> dict[str, Any]:
    passed = call.meta.get(PASSED)
    found: dict[str, Any] = {} if passed is None else client_meta(passed)
    if call.traceparent is not None:
        found["traceparent"] = call.traceparent
    if call.key is not None:
        found[KEY_META] = call.key
    if passed is None and (level := _level(call)):
        found["io.modelcontextprotocol/logLevel"] = level
    return found


def _level(call: Call) -> str | None:
    """The least of log lines that somebody wants to see; None where nobody looks."""
    if (passed := call.meta.get(PASSED)) is not None:
        level: str | None = passed.get("level")
        return level
    return "info" if call.live.heard else None


# Describing


def _agent(address: str, pattern: Route, session: Session, capabilities: tuple[Capability, ...]) -> Agent:
    info = session.info
    name = str(info.get("title") or info.get("name") or place_of(address))
    return Agent(
        id=agent_id(str(info.get("name") or place_of(address))),
        name=name,
        description=str(info.get("description") or session.instructions or "")[:2_000],
        version=str(info.get("version") or "1"),
        provider=_maybe(info.get("websiteUrl")),
        tags=("mcp",),
        capabilities=capabilities,
        source=_source(address),
        meta={"route": msgspec.to_builtins(pattern)},
        card={
            "protocol": "mcp",
            "protocolVersion": session.version,
            "serverInfo": info,
            "capabilities": session.capabilities,
            **({"instructions": session.instructions} if session.instructions else {}),
        },
    )


def _source(address: str) -> str:
    """Where it comes from, fit to be shown: no query, and of a command only what tells it from others."""
    if not address.startswith(PREFIX):
        return address.split("?", 1)[0]
    return f"{place_of(address)}#{hashlib.sha256(address.encode()).hexdigest()[:12]}"


def _maybe(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def agent_id(name: str) -> str:
    """A name as an id: small letters, digits, ``.``, ``_`` and ``-``."""
    found = re.sub(r"[^a-z0-9._-]+", "-", name.lower()).strip("-.")
    return found[:64] or "mcp-server"


def _capability(tool: Mapping[str, Any], pattern: Route, session: Session, ceiling: float) -> Capability | None:
    """A tool as a capability, its schemas as they came; None, and a warning, for one that cannot be called."""
    name, schema = tool.get("name"), tool.get("inputSchema")
    if not isinstance(name, str) or not name or not isinstance(schema, dict):
        log.warning("%s lists a tool without name or schema; it is left out", session.channel.place)
        return None
    if fault := find_invalid_x_mcp_header(schema):
        log.warning("%s: the tool %r is left out: %s", session.channel.place, name, fault)
        return None
    output = tool.get("outputSchema")
    annotations = tool.get("annotations") if isinstance(tool.get("annotations"), dict) else {}
    meta = {key: tool[key] for key in ("annotations", "icons", "_meta", "execution") if tool.get(key)}
    return Capability(
        name=name,
        title=_maybe(tool.get("title")) or _maybe((annotations or {}).get("title")),
        description=str(tool.get("description") or ""),
        input_schema=schema,
        output_schema=output if isinstance(output, dict) else None,
        examples=tuple(schema.get("examples") or ()) if isinstance(schema.get("examples"), list) else (),
        hints=_hints(annotations or {}),
        routes=(replace(pattern, target=name),),
        timeout=ceiling,
        interactive=session.era == "legacy",
        meta=meta,
    )


def _hints(annotations: Mapping[str, Any]) -> Hints:
    read_only = annotations.get("readOnlyHint") is True
    return Hints(
        read_only=read_only,
        idempotent=annotations.get("idempotentHint") is True,
        consequential=not read_only and annotations.get("destructiveHint") is True,
    )
