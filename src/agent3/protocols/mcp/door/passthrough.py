"""One MCP server shown as itself: its resources, prompts and completions, and news of what changes there.

What the server says is put into the words of ``agent3.protocols.mcp.door.toolset``, cleaned, freed of the secrets that the server was
given, and handed to a door, which tells it to clients of either era. Tools are not here: they are called through the
steps of the call core.
"""

from __future__ import annotations

import asyncio
import base64
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, NamedTuple, TypeVar

from msgspec.structs import replace

from agent3.errors import Agent3Error, CallTimeout, MalformedResponse, TargetError, TooLarge, Unavailable
from agent3.identity.secrets import Secret, redact, redact_outcome
from agent3.model import Call, Done, Needs, Part, Question, Route
from agent3.observe.logs import get as logger
from agent3.protocols.mcp.client.answers import asked_of, block_of, needs_of, responses_of
from agent3.protocols.mcp.client.channels import Refused
from agent3.protocols.mcp.client.connector import Heard, MCPConnector, client_meta, passing, power_of, said_to
from agent3.protocols.mcp.door.toolset import (
    PASSED,
    URI,
    Caller,
    Completed,
    Completion,
    Message,
    Prompt,
    PromptArgument,
    Prompted,
    Resource,
    Template,
)
from agent3.security.sanitize import clean_outcome, clean_text, rewrite_value

__all__ = ["Keys", "Mirror", "purged"]

log = logger("mcp")

T = TypeVar("T")
Wrong = TypeVar("Wrong", bound=Agent3Error)

ROUNDS = 10
"""How often one read or prompt may ask for more."""
WATCHED = 1_000
"""Resources of one server that clients may wait for."""
WATCHED_BY_ONE = 200
"""And how many of these one client may."""
_PATIENCE = 10.0
"""Seconds that a server has to promise that it will tell of changes."""
_LATEST = 60.0
"""Longest pause before a lost stream of news is opened again."""
_OWN_META = "io.modelcontextprotocol/"
_POWERS = frozenset({"sampling", "roots"})
_ASKABLE = _POWERS | {"form", "url"}


class Keys(NamedTuple):
    """What a server is given, and all that must not come back from it: that, and the secrets of its address."""

    secret: Secret | None = None
    hidden: tuple[Secret, ...] = ()


Find = Callable[[], Awaitable[Keys]]


class _Round(NamedTuple):
    """One question to the server that several wait for: which resources it is about, and what became of it."""

    uris: frozenset[str]
    refused: asyncio.Task[dict[str, Agent3Error]]


class Mirror:
    """The server of a route. ``keys`` finds its credential, each time anew; ``heard`` takes its news."""

    def __init__(self, connector: MCPConnector, route: Route, keys: Find, heard: Heard):
        self._connector = connector
        self._route = route
        self._keys = keys
        self._heard = heard
        self._watched: dict[str, Counter[str]] = {}
        self._promised: frozenset[str] = frozenset()
        self._round: _Round | None = None
        self._stream: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False

    async def connect(self) -> None:
        """Be connected, so that news is heard."""
        await self._guarded(lambda keys: self._connector.connect(self._route, secret=keys.secret))

    # Resources

    async def resources(self) -> list[Resource]:
        """All that it lists."""
        return [_resource(one) for one in await self._items("resources/list", "resources") if _named(one, "uri")]

    async def templates(self) -> list[Template]:
        """All families that it lists."""
        found = await self._items("resources/templates/list", "resourceTemplates")
        return [_template(one) for one in found if _named(one, "uriTemplate")]

    async def read(self, uri: str, caller: Caller) -> Done | Needs:
        """What it has at an address."""

        async def asked(keys: Keys) -> Done | Needs:
            result = await self._conversed("resources/read", {"uri": uri}, caller, keys)
            return result if isinstance(result, Needs) else _redacted(_contents_of(result, uri), keys.hidden)

        return await self._guarded(asked)

    async def watch(self, uri: str, client: str) -> None:
        """Let it tell when a resource changes, until ``unwatch`` is said as often, or this mirror is closed.

        Any number may begin at once: one promise of the server serves them all.
        """
        self._admit(uri, client)
        try:
            await self._have_promised(uri)
        except BaseException:
            self.unwatch(uri, client)
            raise

    def unwatch(self, uri: str, client: str) -> None:
        """A client that waited for a resource does so no longer; one that did not is no matter."""
        waiting = self._watched.get(uri, Counter())
        if client not in waiting:
            return
        waiting[client] -= 1
        if not waiting[client]:
            del waiting[client]
        if not waiting:
            del self._watched[uri]
        if not self._watched:
            self._replace_stream(None, frozenset())

    async def aclose(self) -> None:
        """Wait for no more news, now and later."""
        self._closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # Prompts

    async def prompts(self) -> list[Prompt]:
        """All that it lists."""
        return [_prompt(one) for one in await self._items("prompts/list", "prompts") if _named(one, "name")]

    async def prompt(self, name: str, arguments: Mapping[str, str], caller: Caller) -> Prompted | Needs:
        """A prompt of it, filled in."""
        params = {"name": name, **({"arguments": dict(arguments)} if arguments else {})}

        async def asked(keys: Keys) -> Prompted | Needs:
            result = await self._conversed("prompts/get", params, caller, keys)
            return result if isinstance(result, Needs) else _prompted(result, name, keys.hidden)

        return await self._guarded(asked)

    async def complete(self, completion: Completion) -> Completed:
        """What it proposes for an argument."""
        ref = {"type": "ref/prompt", "name": completion.name}
        if completion.kind == "resource":
            ref = {"type": "ref/resource", "uri": completion.name}
        params: dict[str, Any] = {"ref": ref, "argument": {"name": completion.argument, "value": completion.value}}
        if completion.given:
            params["context"] = {"arguments": completion.given}

        async def asked(keys: Keys) -> Completed:
            result = await self._request("completion/complete", params, keys)
            return _completed(_safe(result, keys.hidden))

        return await self._guarded(asked)

    # Inside

    async def _guarded(self, ask: Callable[[Keys], Awaitable[T]]) -> T:
        """Ask it something with its credential. What goes wrong is told without that, and without hidden characters."""
        keys = await self._keys()
        try:
            return await ask(keys)
        except Agent3Error as wrong:
            raise purged(wrong, keys.hidden) from None
        except Exception as wrong:  # noqa: BLE001 - whatever is raised may quote what the server said
            kind = CallTimeout if isinstance(wrong, TimeoutError) else TargetError
            raise purged(kind(f"The server failed: {type(wrong).__name__}: {wrong}"), keys.hidden) from None

    async def _request(self, method: str, params: Mapping[str, Any], keys: Keys) -> dict[str, Any]:
        return await self._connector.request(self._route, method, params, secret=keys.secret)

    async def _items(self, method: str, key: str) -> list[dict[str, Any]]:
        async def asked(keys: Keys) -> list[dict[str, Any]]:
            found = await self._connector.items(self._route, method, key, secret=keys.secret)
            return [_safe(one, keys.hidden) for one in found]

        return await self._guarded(asked)

    async def _conversed(
        self, method: str, params: dict[str, Any], caller: Caller, keys: Keys
    ) -> dict[str, Any] | Needs:
        """The result, or what is asked for it. Asked again from the top, it gives the answers that the caller has.

        The state that a server wants back lives only inside one of these, so that clients need not carry it.
        """
        said = passing(caller)
        sent = {**params, "_meta": client_meta(said[PASSED])}
        asking = Call(id="", principal=caller.principal, agent="The server", capability=method, meta=said)
        for _ in range(ROUNDS):
            result = await self._answered(method, sent, asking, caller, keys)
            if isinstance(result, Needs):
                return _redacted(result, keys.hidden)
            if result.get("resultType", "complete") != "input_required":
                return result
            needs = needs_of(result, asking, {"state": result.get("requestState")})
            if any(one.id not in caller.answers for one in needs.questions):
                return _redacted(replace(needs, state=None), keys.hidden)
            sent |= {"inputResponses": _responses(asking, needs, caller), "requestState": needs.state["state"]}
        raise TargetError(f"The server asked more than {ROUNDS} times before it answered {method}.")

    async def _answered(
        self, method: str, params: Mapping[str, Any], asking: Call, caller: Caller, keys: Keys
    ) -> dict[str, Any] | Needs:
        """The result, where a legacy server that asks meanwhile hears what the caller has answered before.

        At the first question that is open the request is given up: it only reads, and comes again with the answer.
        """
        asked = _Asked(asking, caller)
        request = asyncio.ensure_future(
            self._connector.request(
                self._route,
                method,
                params,
                secret=keys.secret,
                ask=asked if caller.can & _ASKABLE else None,
                powers=caller.can & _POWERS,
                level=caller.level,
            )
        )
        try:
            waiting: list[asyncio.Future[Any]] = [request, asked.open]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            return await request if request.done() else Needs((asked.open.result(),))
        finally:
            request.cancel()
            asked.open.cancel()
            await asyncio.wait([request])

    # News

    def _admit(self, uri: str, client: str) -> None:
        """Count one who waits, within what all and what one may."""
        if self._closed:
            raise Unavailable("This server is not shown here any more. Come again.")
        mine = sum(client in waiting for waiting in self._watched.values())
        known = self._watched.get(uri, Counter())
        if client not in known and mine >= WATCHED_BY_ONE:
            raise TooLarge(f"You wait for {mine} resources of this server already. Read this one now and then.")
        if not known and len(self._watched) >= WATCHED:
            raise TooLarge(f"{WATCHED} resources of this server are waited for already. Read this one now and then.")
        self._watched.setdefault(uri, Counter())[client] += 1

    async def _have_promised(self, uri: str) -> None:
        """Return when the server tells of this resource; who comes while it is being asked waits for the next round."""
        while uri not in self._promised:
            if self._round is None:
                uris = frozenset(self._watched)
                self._round = _Round(uris, self._spawn(self._ask_for(uris)))
                self._round.refused.add_done_callback(lambda _: setattr(self, "_round", None))
            uris, refused = self._round
            await asyncio.wait([refused])
            if refused.cancelled():
                raise Unavailable("This server is not shown here any more. Come again.")
            if (wrong := refused.result().get(uri)) is not None:
                raise wrong
            if uri in uris:
                return

    async def _ask_for(self, uris: frozenset[str]) -> dict[str, Agent3Error]:
        """Have it promise all of these together, or each new one alone where one of them is refused; the refusals."""
        new = uris - self._promised
        try:
            await self._open(uris)
            return {}
        except Agent3Error as wrong:
            if wrong.retryable or len(new) == 1:
                return dict.fromkeys(new, wrong)
        refused: dict[str, Agent3Error] = {}
        for uri in sorted(new):
            try:
                await self._open(self._promised | {uri})
            except Agent3Error as wrong:
                refused[uri] = wrong
        return refused

    async def _open(self, uris: frozenset[str]) -> None:
        """Open a stream of news. The one before it ends when this one is promised, so that none is missed."""
        promised: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        stream = self._spawn(self._follow(uris, promised))
        await asyncio.wait([promised, stream], timeout=_PATIENCE, return_when=asyncio.FIRST_COMPLETED)
        if not promised.done():
            stream.cancel()
            raise CallTimeout("The server did not promise in time to tell of changes.")
        promised.result()
        self._replace_stream(stream, uris)
        if not self._watched:  # whoever wanted it has gone meanwhile
            self._replace_stream(None, frozenset())

    def _replace_stream(self, stream: asyncio.Task[None] | None, uris: frozenset[str]) -> None:
        if self._stream is not None:
            self._stream.cancel()
        self._stream, self._promised = stream, uris

    async def _follow(self, uris: frozenset[str], promised: asyncio.Future[None]) -> None:
        """Keep the stream of news open; after a gap everything that is waited for may have changed."""

        def heard(method: str, params: dict[str, Any]) -> None:
            if method != "notifications/subscriptions/acknowledged":
                self._heard(method, params)
            elif not promised.done():
                promised.set_result(None)
            else:
                self._all_may_have_changed()

        pause, wanted = 1.0, sorted(uris)
        while wanted:
            try:
                await self._guarded(lambda keys: self._tell(wanted, heard, keys))  # noqa: B023 - awaited here
                if not promised.done():  # a legacy server, which tells those who listen
                    promised.set_result(None)
                    return
            except Agent3Error as wrong:
                if not promised.done():
                    promised.set_exception(wrong)
                    return
                log.debug("news of resources is not heard for a while: %s", wrong)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LATEST)
            wanted = sorted(uri for uri in uris if uri in self._watched)

    async def _tell(self, uris: Sequence[str], heard: Heard, keys: Keys) -> None:
        await self._connector.watch(self._route, uris, heard, secret=keys.secret)

    def _all_may_have_changed(self) -> None:
        for uri in sorted(self._watched):
            self._heard("notifications/resources/updated", {"uri": uri})

    def _spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


class _Asked:
    """Answers what a legacy server asks from what the caller said before; ``open`` is the first that it did not."""

    def __init__(self, asking: Call, caller: Caller):
        self.open: asyncio.Future[Question] = asyncio.get_running_loop().create_future()
        self._asking = asking
        self._caller = caller
        self._count = 0

    async def __call__(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        if power_of(method, params) not in self._caller.can:
            raise Refused(-32601, f"The client does not offer {method}")
        self._count += 1
        question = asked_of(f"q{self._count}", {"method": method, "params": params}, self._asking)
        if question.id not in self._caller.answers:
            if not self.open.done():
                self.open.set_result(question)
            await asyncio.Event().wait()  # until the request is given up
        return said_to(method, self._caller.answers[question.id])


def _responses(asking: Call, needs: Needs, caller: Caller) -> dict[str, Any]:
    return responses_of(replace(asking, state=needs.state, answers=caller.answers))


# Nothing secret and nothing hidden


def purged(wrong: Wrong, secrets: Sequence[Secret]) -> Wrong:
    """The error without hidden characters and without the secrets, in its words and in its data."""
    wrong.message = _safe(wrong.message, secrets)
    wrong.args = (wrong.message,)
    wrong.data = _safe(wrong.data, secrets)
    return wrong


def _safe(value: T, secrets: Sequence[Secret]) -> T:
    """A JSON value likewise. Cleaned first: a character that nobody sees must not keep a secret from being found."""
    safe: T = rewrite_value(value, lambda text: redact(clean_text(text), secrets))
    return safe


Said = TypeVar("Said", Done, Needs)


def _redacted(said: Said, secrets: Sequence[Secret]) -> Said:
    safe = redact_outcome(clean_outcome(said), secrets)
    assert isinstance(safe, type(said))
    return safe


# The protocol's words in ours


def _named(item: Mapping[str, Any], key: str) -> bool:
    if isinstance(item.get(key), str) and isinstance(item.get("name", ""), str):
        return True
    log.warning("a server lists something without %s, which is left out", key)
    return False


def _resource(one: Mapping[str, Any]) -> Resource:
    size = one.get("size")
    return Resource(uri=one["uri"], size=size if isinstance(size, int) else None, **_described(one, one["uri"]))


def _template(one: Mapping[str, Any]) -> Template:
    return Template(uri_template=one["uriTemplate"], **_described(one, one["uriTemplate"]))


def _described(one: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {
        "name": one.get("name") or name,
        "title": _text(one, "title"),
        "description": _text(one, "description"),
        "media_type": _text(one, "mimeType"),
        "annotations": _table(one, "annotations"),
        "icons": _icons(one),
        "meta": _table(one, "_meta"),
    }


def _prompt(one: Mapping[str, Any]) -> Prompt:
    arguments = one.get("arguments")
    given = arguments if isinstance(arguments, list) else []
    return Prompt(
        name=one["name"],
        title=_text(one, "title"),
        description=_text(one, "description"),
        arguments=tuple(_argument(each) for each in given if isinstance(each, dict) and _named(each, "name")),
        icons=_icons(one),
        meta=_table(one, "_meta"),
    )


def _argument(one: Mapping[str, Any]) -> PromptArgument:
    return PromptArgument(
        name=one["name"],
        title=_text(one, "title"),
        description=_text(one, "description"),
        required=one.get("required") is True,
    )


def _prompted(result: Mapping[str, Any], name: str, secrets: Sequence[Secret]) -> Prompted:
    messages = result.get("messages")
    if not isinstance(messages, list):
        raise MalformedResponse(f"The server answered the prompt {name[:200]!r} without messages.")
    said = [one if isinstance(one, dict) else {} for one in messages]
    parts = tuple(block_of(one.get("content"), "The server") for one in said)
    safe = _redacted(Done(parts, meta=_meta(result)), secrets)
    roles: list[Literal["user", "assistant"]]
    roles = ["assistant" if one.get("role") == "assistant" else "user" for one in said]
    about = _safe(_text(result, "description"), secrets)
    return Prompted(tuple(map(Message, roles, safe.parts)), about, meta=safe.meta)


def _completed(result: Mapping[str, Any]) -> Completed:
    found = result.get("completion")
    values = found.get("values") if isinstance(found, dict) else None
    if not isinstance(found, dict) or not isinstance(values, list):
        raise MalformedResponse("The server answered a completion without values.")
    total = found.get("total")
    known = total if isinstance(total, int) else None
    return Completed(tuple(map(str, values)), known, bool(found.get("hasMore")))


def _contents_of(result: Mapping[str, Any], uri: str) -> Done:
    found = result.get("contents")
    if not isinstance(found, list):
        raise MalformedResponse(f"The server answered a read of {uri[:200]!r} without contents.")
    return Done(tuple(_contents(one, uri) for one in found), meta=_meta(result))


def _contents(one: Any, uri: str) -> Part:
    if not isinstance(one, dict) or not isinstance(one.get("blob", one.get("text")), str):
        raise MalformedResponse(f"The server answered a read of {uri[:200]!r} with contents that cannot be read.")
    meta = {**_table(one, "_meta"), URI: one.get("uri") if isinstance(one.get("uri"), str) else uri}
    if "blob" not in one:
        return Part(text=one["text"], media_type=_text(one, "mimeType"), meta=meta)
    with suppress(ValueError):
        raw = base64.b64decode(one["blob"], validate=True)
        return Part(raw=raw, media_type=_text(one, "mimeType"), meta=meta)
    raise MalformedResponse(f"The server answered a read of {uri[:200]!r} with bytes that are not base64.")


def _meta(result: Mapping[str, Any]) -> dict[str, Any]:
    return {key: one for key, one in _table(result, "_meta").items() if not key.startswith(_OWN_META)}


def _text(one: Mapping[str, Any], key: str) -> str | None:
    value = one.get(key)
    return value if isinstance(value, str) else None


def _table(one: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = one.get(key)
    return value if isinstance(value, dict) else {}


def _icons(one: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    value = one.get("icons")
    return tuple(each for each in value if isinstance(each, dict)) if isinstance(value, list) else ()
