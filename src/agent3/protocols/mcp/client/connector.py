"""The connector of protocol ``mcp``: an MCP server becomes an Agent, its tools capabilities, a call a ``tools/call``.

The way of one call: ``MCPConnector.call`` builds the request, ``Upstream.request`` picks the session, a channel carries
it over the outbound gate or to a program, and answers.py turns the result into an outcome. A route's address is a URL,
or ``stdio:`` and a command in JSON; its target is the tool.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, TypeVar

import msgspec
from mcp.shared.inbound import encode_header_value, find_invalid_x_mcp_header, mcp_param_headers, x_mcp_header_map
from msgspec.structs import replace

from agent3.calls.outcomes import failed_by
from agent3.env import REAL, Env
from agent3.errors import Agent3Error, Declined, Interrupted, LoopDetected, TargetError, ValidationError
from agent3.identity.secret_refs import HEADERS, STORED
from agent3.identity.secrets import Secret
from agent3.model import (
    Agent,
    Answer,
    Call,
    Capability,
    Failed,
    Hints,
    Outcome,
    Principal,
    Route,
    Traits,
    Working,
    agent_id,
    one_line,
    place_of,
)
from agent3.observe.logs import get as logger
from agent3.protocols.mcp.client.answers import (
    encode_elicit_result,
    encode_responses,
    error_to_needs,
    handshake_task_to_outcome,
    notification_to_event,
    request_to_question,
    result_to_outcome,
    server_error_to_error,
    task_to_outcome,
    unwrap_result,
)
from agent3.protocols.mcp.client.channels import FOREVER, OnNotification, PendingRequest, ServerError, spawn
from agent3.protocols.mcp.client.processes import PREFIX
from agent3.protocols.mcp.client.upstream import FIRST_START, Era, OnChange, OnWait, Session, Upstream, Upstreams
from agent3.protocols.mcp.meta_keys import PASSED, TASKS
from agent3.schema import json_type
from agent3.schema.bounds import weigh
from agent3.security import via
from agent3.security.caller_scope import CallerScope
from agent3.security.outbound import Policy

OnNews = Callable[[str, dict[str, Any], str], None]
"""Takes the method and parameters of a notification that belongs to no request, and the caller in whose own session it
came; empty for a session that is shared."""

__all__ = ["MCPConnector", "OnNews", "client_meta", "encode_answer", "feature_of", "is_owned"]

log = logger("mcp")

T = TypeVar("T")

KEY_META = "io.agent3/idempotency-key"
"""The ``_meta`` key that tells the server the idempotency key of a call."""

_FEATURES = frozenset({"sampling", "roots"})
_DESCRIPTION = 300
"""Characters of the description of a server."""
_LARGE = 131_072
"""Bytes of an answer, roughly, that are read in the loop."""
_OTHER: Mapping[Era, Era] = {"modern": "legacy", "legacy": "modern"}
_CANNOT_ASK = re.compile("back-channel|server-initiated request|server-to-client request", re.IGNORECASE)
"""How servers of both eras say in the modern one that a tool asks by a request of its own."""
_CANNOT_ANSWER = re.compile("handler returned an invalid result|returned an input-required result", re.IGNORECASE)
"""How they say in the handshake era that a tool asks by its result."""
_AGAIN = "It was called in an era of the protocol in which it cannot ask. Call it again: the other era will be used."
_OTHER_PROGRAM = "If it asks in its result, add it again with --era modern."
_REJECTED = -1
"""The error code for a person's refusal of sampling."""
_VALUES = frozenset({"const", "default", "enum", "examples"})
"""Keywords of JSON Schema that hold values, which may be null."""
_MOST_EVENTS = 10_000
"""Events that one call may emit; further notifications only show that it is alive."""


class MCPConnector:
    """Reaches MCP servers. One for each gateway; it belongs to the event loop it is used in.

    A call may be silent for ``idle`` seconds (longer if its caller allows more), and each notification restarts that
    clock, up to ``ceiling`` seconds. Connections and programs that have not been used for ``unused`` seconds are closed
    and come back on demand. A program has ``first_start`` seconds to answer for the first time; a call does not wait
    for that longer than its own time, and the start goes on without it. ``on_change`` takes the address of a server
    that says that its lists changed.
    """

    traits: ClassVar[Traits] = Traits(asks_for_values=True, cost_standards=((100, "tools_per_hundred"),))

    def __init__(
        self,
        policy: Policy | None = None,
        *,
        idle: float = 20.0,
        ceiling: float = 300.0,
        unused: float = 600.0,
        first_start: float = FIRST_START,
        on_change: OnChange | None = None,
        env: Env = REAL,
        scope: CallerScope | None = None,
    ):
        self._scope = scope or CallerScope(env.random_bytes(32))
        self._stored: dict[str, str] = {}
        """The addresses that servers are known by outside, where secrets were put into them."""

        def notice_change(address: str) -> None:
            if on_change is not None:
                on_change(self._stored.get(address, address))

        def pass_on(address: str, method: str, params: dict[str, Any], caller: str) -> None:
            for on_news in list(self._listeners.get(self._stored.get(address, address), ())):
                on_news(method, params, caller)

        self.upstreams = Upstreams(policy, idle=unused, on_change=notice_change, env=env, first_start=first_start)
        self.upstreams.on_note = pass_on
        self._env = env
        self._gateway = "" if policy is None else policy.gateway
        self._idle = idle
        self._ceiling = ceiling
        self._listeners: dict[str, list[OnNews]] = {}
        self._asked: Counter[str] = Counter()
        """Addresses, as they are stored, that are being asked what they can do."""
        self._cancelling: set[asyncio.Task[None]] = set()
        self._param_headers: dict[tuple[str, str | None], tuple[Any, dict[tuple[str, ...], str]]] = {}

    async def describe(
        self,
        address: str,
        *,
        secret: Secret | None = None,
        route: Route | None = None,
        registered: bool = False,
        headers: Mapping[str, str] | None = None,
        on_wait: OnWait | None = None,
    ) -> Agent:
        """The server as an agent, each tool a capability. Raises if it cannot be reached; never an empty list instead.

        ``registered`` says that the operator chose the address. ``route`` is the pattern for the routes of its tools,
        with the address as it is stored, where they need a credential or references stand in the address; ``headers``
        are those of its ``meta`` with what their references stand for. ``on_wait``
        hears of a start that takes long.
        """
        pattern = route or Route("mcp", address)
        if registered:
            pattern = replace(pattern, meta={**pattern.meta, "registered": True})
        if address != pattern.address:
            self._stored[address] = pattern.address
        # The agent may have been removed a moment ago, and is about to come back.
        self._asked[pattern.address] += 1
        try:
            return await self._ask(address, secret, pattern, headers, on_wait)
        finally:
            self._asked[pattern.address] -= 1
            if not self._asked[pattern.address]:
                del self._asked[pattern.address]

    async def _ask(
        self,
        address: str,
        secret: Secret | None,
        pattern: Route,
        headers: Mapping[str, str] | None,
        on_wait: OnWait | None,
    ) -> Agent:
        upstream = self.upstreams.get(address, secret, {**pattern.meta, **({HEADERS: headers} if headers else {})})
        session = await upstream.session(on_wait=on_wait)
        tools: list[dict[str, Any]] = []
        if "tools" in session.capabilities or not session.capabilities:
            try:
                tools = await upstream.items("tools/list", "tools", fresh=True)
            except ServerError as error:
                raise server_error_to_error(error, place_of(address)) from None
            session = await upstream.session(on_wait=on_wait)  # a lost one was opened anew
        # Only tools ask. A server without any is not troubled with the other era.
        asks = session.era == "legacy" or (bool(tools) and await upstream.has_both_eras())
        own = self._gateway
        if own and any(isinstance(meta := tool.get("_meta"), dict) and meta.get(via.META) == own for tool in tools):
            raise LoopDetected(f"{place_of(address)} leads back to this gateway, and a gateway does not call itself.")
        capabilities = await _beside_if_large(
            tools, lambda: [_to_capability(tool, pattern, session, self._ceiling, asks) for tool in tools]
        )
        info, place = session.info, place_of(address)
        website = info.get("websiteUrl")
        return Agent(
            id=agent_id(str(info.get("name") or place), "mcp-server"),
            name=str(info.get("title") or info.get("name") or place),
            description=_describe(info, [tool.get("name") for tool in tools], place),
            version=str(info.get("version") or "1"),
            provider=website if isinstance(website, str) else None,
            tags=("mcp",),
            capabilities=tuple(capability for capability in capabilities if capability is not None),
            # Fit to be shown: no query, and of a command only what tells it from others.
            source=f"{place}#{hashlib.sha256(pattern.address.encode()).hexdigest()[:12]}"
            if address.startswith(PREFIX)
            else pattern.address.split("?", 1)[0],
            meta={"route": msgspec.to_builtins(pattern)},
            card={
                "protocol": "mcp",
                "protocolVersion": session.version,
                "eras": ["modern", "legacy"] if asks and session.era == "modern" else [session.era],
                "serverInfo": info,
                "capabilities": session.capabilities,
                **({"instructions": session.instructions} if session.instructions else {}),
            },
        )

    # Calls

    async def call(self, call: Call) -> Outcome:
        """One turn of a tool. Cancelling it cancels the tool."""
        route = call.route
        assert route is not None
        state = call.state if isinstance(call.state, dict) else {}
        is_back = call.entry == "answer" and state.get("mcp") == "again"
        try:
            if is_back and any(answer.action != "accept" for answer in call.answers.values()):
                raise Declined("The page that the server wants to be opened first was declined.")
            upstream = self._upstream(route, call.secret)
            if state.get("task"):
                return await self._continue_task(call, upstream, state["task"])
            if call.entry == "cancel":
                return Failed("canceled", "The job was cancelled.")
            if call.entry == "attach":
                raise Interrupted(f"{call.agent}/{call.capability} was interrupted. Call it again.")
            repeatable = call.idempotent or call.live.capability.hints.replay
            if call.entry == "answer" and not state and not repeatable:
                raise Interrupted(
                    f"{call.agent}/{call.capability} was interrupted while it waited for an answer, and cannot be "
                    "repeated safely. Call it again."
                )
            return await self._call_tool(call, route, upstream, state)
        except ServerError as error:
            passed = call.meta.get(PASSED)
            needs = error_to_needs(error)
            # A client that knows this error opens the page, and calls again once it is done with.
            if needs is None or (passed is not None and passed.get("era") == "legacy" and "url" in passed["can"]):
                return failed_by(server_error_to_error(error, call.agent, passed=passed is not None))
            if not is_back:
                return needs
            # It was opened. Asked again at once, the person would see it open again and again.
            pages = ", ".join(str(question.url) for question in needs.questions)
            text = f"{call.agent} answered: {error.message[:1_000].rstrip('.')}. Finish at {pages}, then call it again."
            return failed_by(TargetError(text))
        except Agent3Error as error:
            return failed_by(error)

    async def _call_tool(self, call: Call, route: Route, upstream: Upstream, state: Mapping[str, Any]) -> Outcome:
        if call.input is not None and not isinstance(call.input, dict):
            raise ValidationError(f"{call.agent}/{call.capability} takes an object, got {json_type(call.input)}.")
        passed = call.meta.get(PASSED)
        meta: dict[str, Any] = {} if passed is None else client_meta(passed)
        if call.traceparent is not None:
            meta["traceparent"] = call.traceparent
        if call.key is not None:
            meta[KEY_META] = call.key
        elif KEY_META in meta:
            # The word of an MCP client, such as another gateway, for a call that is no job here.
            meta[KEY_META] = self._scope.derive(call.principal, "key", str(meta[KEY_META]))
        if passed is None and (level := _wanted_level(call)):
            meta["io.modelcontextprotocol/logLevel"] = level
        name, arguments = route.target or call.capability, call.input or {}
        params: dict[str, Any] = {"name": name, "arguments": arguments, "_meta": meta}
        if state.get("mcp") == "input":
            params["inputResponses"] = encode_responses(call)
            if state.get("state") is not None:
                params["requestState"] = state["state"]
        # Arguments that the tool's schema wants in headers too; found once for each schema.
        key, schema = (route.address, route.target), call.live.capability.input_schema
        known = self._param_headers.get(key)
        if known is None or known[0] is not schema:
            known = self._param_headers[key] = schema, x_mcp_header_map(schema)
        headers = mcp_param_headers(known[1], arguments) if known[1] else None
        era = self._choose_era(call, upstream, name, state)

        async def send(era: Era) -> Outcome:
            as_task = await self._needs_task(call, upstream, era)
            result = await upstream.request(
                "tools/call",
                {**params, "task": {}} if as_task else params,
                partial(self._make_pending, call),
                name=encode_header_value(name),
                headers=headers,
                harmless=call.idempotent or call.key is not None,
                era=era,
                tool=name,
            )
            if as_task and isinstance(task := result.get("task"), dict):
                return handshake_task_to_outcome(task, call)
            wraps = era == "legacy" and upstream.known.both and passed is None

            def read() -> Outcome:
                schema = call.live.capability.output_schema
                return result_to_outcome(unwrap_result(result, schema) if wraps else result, call)

            return await _beside_if_large(result, read)

        refusal: ServerError | None = None
        try:
            outcome = await send(era)
            fault = outcome.message if isinstance(outcome, Failed) else ""
        except ServerError as error:
            fault, refusal, outcome = error.message, error, Failed("target_failed", error.message)
        if fault and self._learn(upstream, name, era, fault):
            if call.idempotent:
                return await send(_OTHER[era])
            if passed is None:
                raise TargetError(f"{call.agent} answered: {fault[:1_000].rstrip('.')}. {_AGAIN}")
        elif route.address.startswith(PREFIX) and passed is None and _CANNOT_ANSWER.search(fault):
            raise TargetError(f"{call.agent} answered: {fault[:1_000].rstrip('.')}. {_OTHER_PROGRAM}")
        if refusal is not None:
            raise refusal
        return outcome

    def _choose_era(self, call: Call, upstream: Upstream, tool: str, state: Mapping[str, Any]) -> Era:
        """The era for a call of a server that has both: the one in which the tool can ask, if that is known.

        An MCP client is served in its own, as if there were no gateway. For all others a modern tool is the better one:
        its questions outlive a restart. But most tools are written to ask in the handshake era, and one that finds out
        in the middle of its work that it cannot ask must not be run again. So it is modern where a repetition is
        harmless, or where the server shows that it is written for that era: it announces its tasks.
        """
        if state.get("mcp") == "input":
            return "modern"
        if (known := upstream.known.ways.get(tool)) is not None:
            return known
        if (passed := call.meta.get(PASSED)) is not None and passed.get("era") in ("modern", "legacy"):
            era: Era = passed["era"]
            return era
        return "modern" if call.live.ask is None or call.idempotent or upstream.known.tasks else "legacy"

    def _learn(self, upstream: Upstream, tool: str, era: Era, fault: str) -> bool:
        """Whether a fault says that a tool cannot ask in this era, and there is the other one."""
        pattern = _CANNOT_ASK if era == "modern" else _CANNOT_ANSWER
        if not upstream.known.both or not pattern.search(fault):
            return False
        upstream.known.ways[tool] = _OTHER[era]
        log.info("%s: the tool %s asks in the %s era", place_of(upstream.address), tool, _OTHER[era])
        return True

    async def _needs_task(self, call: Call, upstream: Upstream, era: Era) -> bool:
        """Whether a tool can only be called as a task of the handshake era, in which the client has to say so."""
        execution = call.live.capability.meta.get("execution")
        if not isinstance(execution, dict) or execution.get("taskSupport") != "required":
            return False
        return (await upstream.session_for(self._make_pending(call), era)).era == "legacy"

    async def _continue_task(self, call: Call, upstream: Upstream, task: str) -> Outcome:
        """The next step of a task of the server. Cancelling it cancels the task; running out of time does not.

        Nobody but the server works on it: a request that is given up would leave it as it is.
        """

        async def request(method: str, **more: Any) -> dict[str, Any]:
            return await upstream.request(
                method,
                {"taskId": task, **more},
                partial(self._make_pending, call),
                name=encode_header_value(task),
                era=call.state.get("era", "modern"),
            )

        async def cancel_quietly() -> None:
            try:
                await request("tasks/cancel")
            except (ServerError, Agent3Error) as error:
                log.info("%s: a task whose caller left could not be cancelled: %s", place_of(upstream.address), error)

        try:
            return await self._take_step(call, request)
        except asyncio.CancelledError:
            expires = call.live.expires
            in_time = expires is None or self._env.monotonic() < expires
            if call.entry != "cancel" and in_time and not call.live.handed_on:
                spawn(self._cancelling, cancel_quietly())
            raise

    async def _take_step(self, call: Call, request: Callable[..., Awaitable[dict[str, Any]]]) -> Outcome:
        if call.entry == "cancel":
            await request("tasks/cancel")
            return Failed("canceled", "The task was cancelled.")
        if call.state.get("era") == "legacy":
            outcome = handshake_task_to_outcome(await request("tasks/get"), call)
            # What it asks comes while the result is waited for.
            if isinstance(outcome, Working) and outcome.state["status"] in ("completed", "input_required", "failed"):
                result = await request("tasks/result")
                return await _beside_if_large(result, partial(result_to_outcome, result, call))
            return outcome
        if call.entry == "answer":
            await request("tasks/update", inputResponses=encode_responses(call))
        return task_to_outcome(await request("tasks/get"), call)

    def _make_pending(self, call: Call) -> PendingRequest:
        """A request for a call: its notifications become events, its questions go to the caller."""
        left = itertools.count(_MOST_EVENTS, -1)

        def emit(method: str, params: dict[str, Any]) -> None:
            if (event := notification_to_event(method, params)) is not None and next(left) > 0:
                call.emit(event)

        idle = max(self._idle, 0.9 * (call.timeout or 0.0))
        remaining = (call.live.expires or float("inf")) - self._env.monotonic()
        able = call.live.ask is not None and any(_can(call, feature) for feature in ("form", "url", *_FEATURES))
        return PendingRequest(
            emit,
            _QuestionRelay(call) if able else None,
            idle=idle,
            ceiling=max(self._ceiling, idle),
            features=_FEATURES.intersection(call.meta[PASSED]["can"]) if able and PASSED in call.meta else frozenset(),
            level=_wanted_level(call),
            # A little less than the call has, so that it ends by saying what it waited for.
            patience=max(0.0, min(0.9 * remaining, self._ceiling)),
            caller=call.principal.id,
            owned=is_owned(call.principal),
        )

    # Anything but calls

    async def request(
        self,
        route: Route,
        method: str,
        params: Mapping[str, Any],
        *,
        secret: Secret | None = None,
        era: Era = "modern",
        **options: Any,
    ) -> dict[str, Any]:
        """Any other request to the server of a route, such as ``prompts/get``; its errors come as ours.

        ``era`` is that of the client, for a server that has both. ``options`` are those of ``PendingRequest``.
        """
        upstream = self._upstream(route, secret)
        name = params.get("name") or params.get("uri")

        async def send(era: Era) -> dict[str, Any]:
            return await upstream.request(
                method,
                params,
                lambda: PendingRequest(idle=self._idle, ceiling=self._ceiling, **options),
                name=encode_header_value(name) if isinstance(name, str) else None,
                harmless=True,
                era=era,
            )

        try:
            try:
                return await send(era)
            except ServerError as error:
                pattern = _CANNOT_ASK if era == "modern" else _CANNOT_ANSWER
                if not upstream.known.both or not pattern.search(error.message):
                    raise
                return await send(_OTHER[era])
        except ServerError as error:
            raise server_error_to_error(error, place_of(route.address), passed=True) from None

    async def items(self, route: Route, method: str, key: str, *, secret: Secret | None = None) -> list[dict[str, Any]]:
        """A whole list of the server of a route, such as ``prompts/list`` with the key ``prompts``; may be cached."""
        try:
            return await self._upstream(route, secret).items(method, key)
        except ServerError as error:
            raise server_error_to_error(error, place_of(route.address), passed=True) from None

    def listen(self, address: str, on_news: OnNews) -> Callable[[], None]:
        """Hear the notifications of the server at an address whenever it is connected; call the result to stop."""
        self._listeners.setdefault(address, []).append(on_news)

        def leave() -> None:
            left = [listener for listener in self._listeners.get(address, ()) if listener is not on_news]
            if left:
                self._listeners[address] = left
            else:
                self._listeners.pop(address, None)

        return leave

    async def connect(self, route: Route, *, secret: Secret | None = None) -> None:
        """Connect to the server of a route for a while, in order to hear its notifications."""
        await self._upstream(route, secret).session()

    async def watch(
        self, route: Route, uris: Sequence[str], on_notification: OnNotification, *, secret: Secret | None = None
    ) -> None:
        """Subscribe to changes of some resources of the modern server of a route.

        It sends ``on_notification`` an acknowledgement and then the changes, until its stream ends and this returns.
        """
        try:
            await self._upstream(route, secret).request(
                "subscriptions/listen",
                {"notifications": {"resourceSubscriptions": list(uris)}},
                lambda: PendingRequest(on_notification, idle=FOREVER, ceiling=FOREVER, subscription=True),
                harmless=True,
            )
        except ServerError as error:
            raise server_error_to_error(error, place_of(route.address), passed=True) from None

    async def subscribe(
        self, route: Route, uri: str, caller: str, *, owned: bool, secret: Secret | None = None
    ) -> bool:
        """Subscribe to a resource in the sessions of a caller, whose changes go to those who ``listen``.

        False for a modern server, which has no sessions.
        """
        upstream = self._upstream(route, secret)
        if (await upstream.session()).era == "modern":
            return False
        try:
            await upstream.watch(uri, caller, owned)
        except ServerError as error:
            raise server_error_to_error(error, place_of(route.address), passed=True) from None
        return True

    def unsubscribe(self, route: Route, uri: str, caller: str, *, secret: Secret | None = None) -> None:
        """Take back one ``subscribe`` of a caller."""
        self._upstream(route, secret).unwatch(uri, caller)

    def connected(self) -> frozenset[str]:
        """The addresses, as they are stored, to which something is open."""
        return frozenset(self._stored.get(address, address) for address in self.upstreams.addresses())

    async def disconnect(self, addresses: Collection[str]) -> None:
        """End the programs and connections of these addresses, and what is under way there.

        Those that are being asked what they can do stay ``connected``: such an agent is being added.
        """
        closed = set(addresses).difference(self._asked)
        opened = self.upstreams.addresses()
        await self.upstreams.close({one for one in opened if self._stored.get(one, one) in closed})

    async def aclose(self) -> None:
        for cancelling in list(self._cancelling):
            cancelling.cancel()
        await asyncio.gather(*self._cancelling, return_exceptions=True)
        await self.upstreams.aclose()

    def _upstream(self, route: Route, secret: Secret | None) -> Upstream:
        if (stored := route.meta.get(STORED)) is not None:
            self._stored[route.address] = stored
        return self.upstreams.get(route.address, secret, route.meta)


def is_owned(principal: Principal) -> bool:
    """Whether requests go by a session of the caller's own. The local person runs the gateway, and shares its own."""
    return principal.kind != "local"


class _QuestionRelay:
    """Puts the questions of a legacy server to the caller. When a call is replayed, earlier answers are reused."""

    def __init__(self, call: Call):
        self._call = call
        self._count = 0

    async def __call__(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        if not _can(self._call, feature_of(method, params)):
            raise ServerError(-32601, f"The client does not offer {method}")
        self._count += 1
        question = request_to_question(f"q{self._count}", {"method": method, "params": params}, self._call)
        answer = self._call.answers.get(question.id)
        if answer is None:
            ask = self._call.live.ask
            assert ask is not None, "only a call that can ask relays questions"
            answer = await ask(question)
        return encode_answer(method, answer)


def feature_of(method: str, params: Mapping[str, Any]) -> str:
    """The feature a client needs to answer a request of a legacy server; empty for an unknown request."""
    if method == "elicitation/create":
        return str(params.get("mode") or "form")
    return {"sampling/createMessage": "sampling", "roots/list": "roots"}.get(method, "")


def encode_answer(method: str, answer: Answer | None) -> dict[str, Any]:
    """The result for a request of a legacy server; ServerError for a refusal, where no result can express one."""
    if method == "elicitation/create":
        return encode_elicit_result(answer)
    if answer is None or answer.action != "accept" or not isinstance(answer.data, dict):
        reason = answer.data if answer is not None and isinstance(answer.data, dict) else {}
        raise ServerError(reason.get("code", _REJECTED), str(reason.get("message") or f"The client declined {method}"))
    return answer.data


def _can(call: Call, feature: str) -> bool:
    """Whether the caller has a feature: what an MCP client declared, else what a person can do."""
    passed = call.meta.get(PASSED)
    return feature in (passed["can"] if passed is not None else ("form", "url"))


def _wanted_level(call: Call) -> str | None:
    """The lowest log level that the caller wants; None where nobody listens."""
    if (passed := call.meta.get(PASSED)) is not None:
        level: str | None = passed.get("level")
        return level
    return "info" if call.live.heard else None


def client_meta(passed: Mapping[str, Any]) -> dict[str, Any]:
    """The ``_meta`` of a request that is passed on for an MCP client."""
    can = passed["can"]
    capabilities: dict[str, Any] = {feature: {} for feature in ("sampling", "roots") if feature in can}
    elicitation: dict[str, Any] = {mode: {} for mode in ("form", "url") if mode in can}
    if elicitation:
        capabilities["elicitation"] = elicitation
    if "tasks" in can:
        capabilities["extensions"] = {TASKS: {}}
    meta = {**(passed.get("meta") or {}), "io.modelcontextprotocol/clientCapabilities": capabilities}
    if passed.get("level"):
        meta["io.modelcontextprotocol/logLevel"] = passed["level"]
    return meta


async def _beside_if_large(answer: Any, read: Callable[[], T]) -> T:
    """What is made of an answer: of a large one in a thread, beside the event loop."""
    return await asyncio.to_thread(read) if weigh(answer, _LARGE) >= _LARGE else read()


def _describe(info: Mapping[str, Any], tools: Sequence[Any], place: str) -> str:
    """What a server says of itself in one line, or what its name and its tools say.

    Never its instructions: they are written for a model that uses this server alone, and can be of any length.
    """
    if isinstance(given := info.get("description"), str) and given.strip():
        return one_line(given, _DESCRIPTION)
    name = str(info.get("title") or info.get("name") or place)
    listed = ", ".join(str(tool) for tool in tools if isinstance(tool, str)) or "none"
    return one_line(f"{name} tools: {listed}", _DESCRIPTION)


def _drop_nulls(schema: Any) -> Any:
    """The schema without keywords that are null: servers in Go write so what they leave out, such as ``required``."""
    if isinstance(schema, list):
        return [_drop_nulls(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: value if key in _VALUES else _drop_nulls(value)
        for key, value in schema.items()
        if value is not None or key in _VALUES
    }


def _to_capability(
    tool: Mapping[str, Any], pattern: Route, session: Session, ceiling: float, asks: bool
) -> Capability | None:
    """A tool as a capability, its schemas unchanged; None, and a warning, for one that cannot be called."""
    name, schema = tool.get("name"), _drop_nulls(tool.get("inputSchema"))
    if not isinstance(name, str) or not name or not isinstance(schema, dict):
        log.warning("%s lists a tool without a name or schema; it is ignored", session.channel.place)
        return None
    if fault := find_invalid_x_mcp_header(schema):
        log.warning("%s: ignoring tool %r: %s", session.channel.place, name, fault)
        return None
    given = tool.get("annotations")
    annotations: dict[str, Any] = given if isinstance(given, dict) else {}
    titles = (tool.get("title"), annotations.get("title"))
    examples, output = schema.get("examples"), _drop_nulls(tool.get("outputSchema"))
    read_only = annotations.get("readOnlyHint") is True
    return Capability(
        name=name,
        title=next((title for title in titles if isinstance(title, str) and title), None),
        description=str(tool.get("description") or ""),
        input_schema=schema,
        output_schema=output if isinstance(output, dict) else None,
        examples=tuple(examples) if isinstance(examples, list) else (),
        hints=Hints(
            read_only=read_only,
            idempotent=annotations.get("idempotentHint") is True,
            consequential=not read_only and annotations.get("destructiveHint") is True,
        ),
        routes=(replace(pattern, target=name),),
        timeout=ceiling,
        interactive=asks,
        meta={key: tool[key] for key in ("annotations", "icons", "_meta", "execution") if tool.get(key)},
    )
