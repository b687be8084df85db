"""One MCP server passed through to MCP clients: its resources, prompts and completions, and news of their changes.

What the server says is translated to the types of ``toolset``, cleaned, and stripped of the secrets that the server was
given. The door then tells it to clients of either era. Tools are not here: they are called through the call core.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, NamedTuple, TypeVar

from msgspec.structs import replace

from agent3.errors import (
    Agent3Error,
    CallTimeout,
    MalformedResponse,
    SecurityError,
    TargetError,
    TooLarge,
    Unavailable,
)
from agent3.identity.redaction import redact_error, redact_outcome, redact_value
from agent3.identity.secret_refs import OpenRoute, open_route
from agent3.identity.secrets import Secret, Vault
from agent3.model import Call, Done, Needs, Part, Question, Route
from agent3.observe.logs import get as logger
from agent3.observe.metrics import METRICS
from agent3.protocols.mcp.client.answers import (
    block_to_part,
    decode_base64,
    encode_responses,
    notification_to_event,
    request_to_question,
    requests_to_needs,
)
from agent3.protocols.mcp.client.channels import OnNotification, ServerError, spawn
from agent3.protocols.mcp.client.connector import (
    MCPConnector,
    client_meta,
    encode_answer,
    feature_of,
    is_owned,
)
from agent3.protocols.mcp.door.toolset import (
    Caller,
    Completion,
    CompletionResult,
    FilledPrompt,
    Prompt,
    PromptArgument,
    PromptMessage,
    Resource,
    ResourceTemplate,
    describe_client,
)
from agent3.protocols.mcp.meta_keys import PASSED, RESERVED, URI
from agent3.security.foreign_words import find_bad_question
from agent3.security.sanitize import clean_outcome, clean_value

__all__ = ["Passthrough"]

log = logger("mcp")

T = TypeVar("T")
OutcomeT = TypeVar("OutcomeT", Done, Needs)
ErrorT = TypeVar("ErrorT", bound=Agent3Error)

ROUNDS = 10
"""How often one read or prompt may ask for more input."""
MOST_WATCHED = 1_000
"""Resources of one server that clients may watch."""
MOST_WATCHED_BY_CLIENT = 200
"""How many of these one client may watch."""
_ACKNOWLEDGED_WITHIN = 10.0
"""Seconds that a server has to agree to a subscription."""
_LONGEST_PAUSE = 60.0
"""Seconds before a lost subscription is opened again, at most."""
_FEATURES = frozenset({"sampling", "roots"})
_ASKABLE = _FEATURES | {"form", "url"}


class _Subscribing(NamedTuple):
    """A subscription that is being negotiated and that several callers wait for. The task gives the refusals."""

    uris: frozenset[str]
    refusals: asyncio.Task[dict[str, Agent3Error]]


class Passthrough:
    """The server of a route. Its secrets come from the vault each time; ``on_notification`` takes its notifications."""

    def __init__(self, connector: MCPConnector, route: Route, vault: Vault, on_notification: OnNotification):
        self._connector = connector
        self._route = route
        self._vault = vault
        self._on_notification = on_notification
        self._watched: dict[str, Counter[str]] = {}
        """Who watches a resource, and how often; by its address."""
        self._in_sessions: set[tuple[str, str]] = set()
        """The resource and the watcher of each subscription in the sessions of a legacy server."""
        self._subscribed: frozenset[str] = frozenset()
        self._subscribing: _Subscribing | None = None
        self._stream: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False

    async def connect(self) -> None:
        """Connect, so that notifications are heard."""
        await self._with_secrets(lambda opened: self._connector.connect(opened.route, secret=opened.secret))

    async def aclose(self) -> None:
        """Stop watching, now and later."""
        self._closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # Resources

    async def resources(self) -> list[Resource]:
        found = []
        for item in await self._items("resources/list", "resources"):
            if _is_named(item, "uri"):
                size = item.get("size")
                known = size if isinstance(size, int) else None
                found.append(Resource(uri=item["uri"], size=known, **_common_fields(item, item["uri"])))
        return found

    async def templates(self) -> list[ResourceTemplate]:
        items = await self._items("resources/templates/list", "resourceTemplates")
        return [
            ResourceTemplate(uri_template=item["uriTemplate"], **_common_fields(item, item["uriTemplate"]))
            for item in items
            if _is_named(item, "uriTemplate")
        ]

    async def read(self, uri: str, caller: Caller) -> Done | Needs:
        async def request(opened: OpenRoute) -> Done | Needs:
            result = await self._converse("resources/read", {"uri": uri}, caller, opened)
            if isinstance(result, Needs):
                return result
            contents = result.get("contents")
            if not isinstance(contents, list):
                raise MalformedResponse(f"The server answered a read of {uri[:200]!r} without contents.")
            parts = tuple(_contents_to_part(item, uri) for item in contents)
            return _redact_outcome(Done(parts, meta=_own_meta(result)), opened.hidden)

        return await self._with_secrets(request)

    # Prompts

    async def prompts(self) -> list[Prompt]:
        found = []
        for item in await self._items("prompts/list", "prompts"):
            if not _is_named(item, "name"):
                continue
            given = item.get("arguments")
            arguments = tuple(
                PromptArgument(
                    name=argument["name"],
                    title=_text(argument, "title"),
                    description=_text(argument, "description"),
                    required=argument.get("required") is True,
                )
                for argument in (given if isinstance(given, list) else [])
                if isinstance(argument, dict) and _is_named(argument, "name")
            )
            prompt = Prompt(
                name=item["name"],
                title=_text(item, "title"),
                description=_text(item, "description"),
                arguments=arguments,
                icons=_icons(item),
                meta=_table(item, "_meta"),
            )
            found.append(prompt)
        return found

    async def prompt(self, name: str, arguments: Mapping[str, str], caller: Caller) -> FilledPrompt | Needs:
        params = {"name": name, **({"arguments": dict(arguments)} if arguments else {})}

        async def request(opened: OpenRoute) -> FilledPrompt | Needs:
            result = await self._converse("prompts/get", params, caller, opened)
            if isinstance(result, Needs):
                return result
            given = result.get("messages")
            if not isinstance(given, list):
                raise MalformedResponse(f"The server answered the prompt {name[:200]!r} without messages.")
            messages = [message if isinstance(message, dict) else {} for message in given]
            parts = tuple(block_to_part(message.get("content")) for message in messages)
            safe = _redact_outcome(Done(parts, meta=_own_meta(result)), opened.hidden)
            roles: list[Literal["user", "assistant"]]
            roles = ["assistant" if message.get("role") == "assistant" else "user" for message in messages]
            description = clean_value(redact_value(_text(result, "description"), opened.hidden))
            return FilledPrompt(tuple(map(PromptMessage, roles, safe.parts)), description, meta=safe.meta)

        return await self._with_secrets(request)

    async def complete(self, completion: Completion) -> CompletionResult:
        """What it proposes for an argument."""
        ref = {"type": "ref/prompt", "name": completion.name}
        if completion.kind == "resource":
            ref = {"type": "ref/resource", "uri": completion.name}
        params: dict[str, Any] = {"ref": ref, "argument": {"name": completion.argument, "value": completion.value}}
        if completion.given:
            params["context"] = {"arguments": completion.given}

        async def request(opened: OpenRoute) -> CompletionResult:
            result = await self._connector.request(opened.route, "completion/complete", params, secret=opened.secret)
            found = _table(clean_value(redact_value(result, opened.hidden)), "completion")
            values, total = found.get("values"), found.get("total")
            if not isinstance(values, list):
                raise MalformedResponse("The server answered a completion without values.")
            known = total if isinstance(total, int) else None
            return CompletionResult(tuple(map(str, values)), known, bool(found.get("hasMore")))

        return await self._with_secrets(request)

    # Requests

    async def _with_secrets(self, request: Callable[[OpenRoute], Awaitable[T]]) -> T:
        """Make a request with the server's credential; errors are stripped of secrets and hidden characters."""
        opened = await open_route(self._route, self._vault)
        try:
            return await request(opened)
        except Agent3Error as error:
            raise redact_error(error, opened.hidden) from None
        except Exception as error:  # noqa: BLE001 - whatever is raised may quote what the server said
            kind = CallTimeout if isinstance(error, TimeoutError) else TargetError
            raise redact_error(kind(f"The server failed: {type(error).__name__}: {error}"), opened.hidden) from None

    async def _items(self, method: str, key: str) -> list[dict[str, Any]]:
        async def request(opened: OpenRoute) -> list[dict[str, Any]]:
            items = await self._connector.items(opened.route, method, key, secret=opened.secret)
            return [clean_value(redact_value(item, opened.hidden)) for item in items]

        return await self._with_secrets(request)

    async def _converse(
        self, method: str, params: dict[str, Any], caller: Caller, opened: OpenRoute
    ) -> dict[str, Any] | Needs:
        """The result, or the questions that are open. Called again, it replays the answers that the caller has.

        The state that a server wants back lives only within one of these calls, so clients need not carry it.
        """
        meta = describe_client(caller)
        sent = {**params, "_meta": client_meta(meta[PASSED])}
        call = Call(id="", principal=caller.principal, agent="The server", capability=method, meta=meta)
        for _ in range(ROUNDS):
            result = await self._request(method, sent, call, caller, opened)
            if isinstance(result, Needs):
                return _redact_outcome(result, opened.hidden)
            if result.get("resultType", "complete") != "input_required":
                return result
            needs = requests_to_needs(result, call, {"state": result.get("requestState")})
            if any(question.id not in caller.answers for question in needs.questions):
                return _redact_outcome(replace(needs, state=None), opened.hidden)
            answered = replace(call, state=needs.state, answers=caller.answers)
            sent["inputResponses"] = encode_responses(answered)
            sent.pop("requestState", None)
            if needs.state["state"] is not None:
                sent["requestState"] = needs.state["state"]
        raise TargetError(f"The server asked more than {ROUNDS} times before it answered {method}.")

    async def _request(
        self, method: str, params: Mapping[str, Any], call: Call, caller: Caller, opened: OpenRoute
    ) -> dict[str, Any] | Needs:
        """The result of one request. A legacy server that asks meanwhile gets the answers that the caller has.

        At the first open question the request is abandoned: it only reads, and is made again with the answer.
        """
        replay = _AnswerReplay(call, caller)

        def tell(method: str, params: dict[str, Any]) -> None:
            if (event := notification_to_event(method, clean_value(redact_value(params, opened.hidden)))) is not None:
                caller.listener(event)

        request = asyncio.ensure_future(
            self._connector.request(
                opened.route,
                method,
                params,
                secret=opened.secret,
                era=caller.era,
                on_notification=tell,
                on_request=replay if caller.can & _ASKABLE else None,
                features=caller.can & _FEATURES,
                level=caller.level,
                caller=call.principal.id,
                owned=is_owned(call.principal),
            )
        )
        try:
            waiting: list[asyncio.Future[Any]] = [request, replay.open_question]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            return await request if request.done() else Needs((replay.open_question.result(),))
        finally:
            request.cancel()
            replay.open_question.cancel()
            await asyncio.wait([request])

    async def clean(self, notes: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """The parameters of some notifications, stripped of secrets and hidden characters."""

        async def clean(opened: OpenRoute) -> list[dict[str, Any]]:
            return [clean_value(redact_value(params, opened.hidden)) for params in notes]

        return await self._with_secrets(clean)

    # Watching resources

    async def watch(self, uri: str, client: str, *, owned: bool = False) -> None:
        """Have changes of a resource notified until ``unwatch`` is called as often, or this is closed.

        Any number of callers may begin at once; one subscription at a modern server serves them all. A legacy one is
        told in the sessions of the client, which may be its own (``owned``).
        """
        if self._closed:
            raise Unavailable("This server is no longer offered here. Connect again.")
        clients = self._watched.get(uri, Counter())
        own = sum(client in others for others in self._watched.values())
        if client not in clients and own >= MOST_WATCHED_BY_CLIENT:
            raise TooLarge(
                f"You already watch {own} resources of this server, the maximum. Read this one from time to "
                "time instead."
            )
        if not clients and len(self._watched) >= MOST_WATCHED:
            raise TooLarge(
                f"{MOST_WATCHED} resources of this server are already watched, the maximum. Read this one "
                "from time to time instead."
            )
        self._watched.setdefault(uri, Counter())[client] += 1
        try:
            if await self._watch_in_sessions(uri, client, owned):
                return
            # Callers that come while the server is being asked join the next round.
            while uri not in self._subscribed:
                if self._subscribing is None:
                    uris = frozenset(self._watched)
                    self._subscribing = _Subscribing(uris, spawn(self._tasks, self._subscribe(uris)))
                    self._subscribing.refusals.add_done_callback(lambda _: setattr(self, "_subscribing", None))
                uris, refusals = self._subscribing
                await asyncio.wait([refusals])
                if refusals.cancelled():
                    raise Unavailable("This server is no longer offered here. Connect again.")
                if (refusal := refusals.result().get(uri)) is not None:
                    raise refusal
                if uri in uris:
                    return
        except BaseException:
            self.unwatch(uri, client)
            raise

    def unwatch(self, uri: str, client: str) -> None:
        """Take back one ``watch`` of a client; without one this does nothing."""
        clients = self._watched.get(uri, Counter())
        if client not in clients:
            return
        clients[client] -= 1
        if not clients[client]:
            del clients[client]
            if (uri, client) in self._in_sessions:
                self._in_sessions.discard((uri, client))
                spawn(self._tasks, self._unsubscribe(uri, client))
        if not clients:
            del self._watched[uri]
        if not self._watched:
            self._replace_stream(None, frozenset())

    async def _watch_in_sessions(self, uri: str, client: str, owned: bool) -> bool:
        """Subscribe in the sessions of a client; False if the server has none."""
        if (uri, client) in self._in_sessions:
            return True

        async def subscribe(opened: OpenRoute) -> bool:
            return await self._connector.subscribe(opened.route, uri, client, owned=owned, secret=opened.secret)

        if not await self._with_secrets(subscribe):
            return False
        if (uri, client) in self._in_sessions or client not in self._watched.get(uri, ()):
            await self._unsubscribe(uri, client)  # it asked twice at once, or has left meanwhile
        else:
            self._in_sessions.add((uri, client))
        return True

    async def _unsubscribe(self, uri: str, client: str) -> None:
        async def unsubscribe(opened: OpenRoute) -> None:
            self._connector.unsubscribe(opened.route, uri, client, secret=opened.secret)

        with suppress(Agent3Error):
            await self._with_secrets(unsubscribe)

    async def _subscribe(self, uris: frozenset[str]) -> dict[str, Agent3Error]:
        """Subscribe to all of these together, or to each new one alone if that is refused; gives the refusals."""
        new = uris - self._subscribed
        try:
            await self._open_stream(uris)
            return {}
        except Agent3Error as error:
            if error.retryable or len(new) == 1:
                return dict.fromkeys(new, error)
        refusals: dict[str, Agent3Error] = {}
        for uri in sorted(new):
            try:
                await self._open_stream(self._subscribed | {uri})
            except Agent3Error as error:
                refusals[uri] = error
        return refusals

    async def _open_stream(self, uris: frozenset[str]) -> None:
        """Open a subscription. The one before it ends only when this one is acknowledged, so that no news is missed."""
        acknowledged: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        stream = spawn(self._tasks, self._follow(uris, acknowledged))
        await asyncio.wait([acknowledged, stream], timeout=_ACKNOWLEDGED_WITHIN, return_when=asyncio.FIRST_COMPLETED)
        if not acknowledged.done():
            stream.cancel()
            raise CallTimeout("The server did not agree in time to report changes.")
        acknowledged.result()
        self._replace_stream(stream, uris)
        if not self._watched:  # all watchers have left meanwhile
            self._replace_stream(None, frozenset())

    def _replace_stream(self, stream: asyncio.Task[None] | None, uris: frozenset[str]) -> None:
        if self._stream is not None:
            self._stream.cancel()
        self._stream, self._subscribed = stream, uris

    async def _follow(self, uris: frozenset[str], acknowledged: asyncio.Future[None]) -> None:
        """Keep a subscription open; after a gap everything that is watched may have changed."""

        def take(method: str, params: dict[str, Any]) -> None:
            if method != "notifications/subscriptions/acknowledged":
                self._on_notification(method, params)
            elif not acknowledged.done():
                acknowledged.set_result(None)
            else:
                for uri in sorted(self._watched):
                    self._on_notification("notifications/resources/updated", {"uri": uri})

        async def subscribe(opened: OpenRoute) -> None:
            await self._connector.watch(opened.route, wanted, take, secret=opened.secret)

        pause, wanted = 1.0, sorted(uris)
        while wanted:
            try:
                await self._with_secrets(subscribe)
            except Agent3Error as error:
                if not acknowledged.done():
                    acknowledged.set_exception(error)
                    return
                log.debug("the subscription to resources was interrupted: %s", error)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
            wanted = sorted(uri for uri in uris if uri in self._watched)


class _AnswerReplay:
    """Answers a legacy server with what the caller has answered before; ``open_question`` is the first still open."""

    def __init__(self, call: Call, caller: Caller):
        self.open_question: asyncio.Future[Question] = asyncio.get_running_loop().create_future()
        self._call = call
        self._caller = caller
        self._count = 0

    async def __call__(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        if feature_of(method, params) not in self._caller.can:
            raise ServerError(-32601, f"The client does not offer {method}")
        self._count += 1
        question = request_to_question(f"q{self._count}", {"method": method, "params": params}, self._call)
        if question.id not in self._caller.answers:
            if not self.open_question.done():
                self.open_question.set_result(question)
            await asyncio.Event().wait()  # until the request is abandoned
        return encode_answer(method, self._caller.answers[question.id])


# Cleaning


def _redact_outcome(outcome: OutcomeT, secrets: Sequence[Secret]) -> OutcomeT:
    safe = redact_outcome(clean_outcome(outcome), secrets)
    if isinstance(safe, Needs) and (why := find_bad_question(safe)):
        METRICS.questions_refused.inc()
        raise SecurityError(f"A question of the server was not shown: {why}.")
    assert isinstance(safe, type(outcome))
    return safe


# Reading the server's JSON


def _is_named(item: Mapping[str, Any], key: str) -> bool:
    if isinstance(item.get(key), str) and isinstance(item.get("name", ""), str):
        return True
    log.warning("a server lists an item without %s; it is ignored", key)
    return False


def _common_fields(item: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {
        "name": item.get("name") or name,
        "title": _text(item, "title"),
        "description": _text(item, "description"),
        "media_type": _text(item, "mimeType"),
        "annotations": _table(item, "annotations"),
        "icons": _icons(item),
        "meta": _table(item, "_meta"),
    }


def _contents_to_part(item: Any, uri: str) -> Part:
    blob = item.get("blob") if isinstance(item, dict) else None
    if not isinstance(item, dict) or not isinstance(item.get("text") if blob is None else blob, str):
        raise MalformedResponse(f"The server answered a read of {uri[:200]!r} with unreadable contents.")
    meta = {**_table(item, "_meta"), URI: item.get("uri") if isinstance(item.get("uri"), str) else uri}
    if blob is None:
        return Part(text=item["text"], media_type=_text(item, "mimeType"), meta=meta)
    try:
        raw = decode_base64(blob)
    except ValueError:
        raise MalformedResponse(f"The server answered a read of {uri[:200]!r} with invalid base64.") from None
    return Part(raw=raw, media_type=_text(item, "mimeType"), meta=meta)


def _own_meta(result: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in _table(result, "_meta").items() if not key.startswith(RESERVED)}


def _text(item: Mapping[str, Any], key: str) -> str | None:
    value = item.get(key)
    return value if isinstance(value, str) else None


def _table(item: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = item.get(key)
    return value if isinstance(value, dict) else {}


def _icons(item: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    value = item.get("icons")
    return tuple(icon for icon in value if isinstance(icon, dict)) if isinstance(value, list) else ()
