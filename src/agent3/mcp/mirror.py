"""One MCP server shown as itself: its resources, prompts and completions, and news of what changes there.

What the server says is put into the words of ``agent3.mcp.offers``, cleaned, and given to a door, which tells it to
clients of either era. Tools are not here: they are called through the steps of the call core.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, Literal

from msgspec.structs import replace

from agent3.errors import Agent3Error, CallTimeout, MalformedResponse, TargetError, TooLarge
from agent3.mcp.answers import block_of, needs_of, responses_of
from agent3.mcp.connector import Heard, MCPConnector, client_meta, passing
from agent3.mcp.offers import (
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
from agent3.model import Call, Done, Needs, Part, Route
from agent3.observe.logs import get as logger
from agent3.security.sanitize import clean_part, clean_value
from agent3.security.secrets import Secret

__all__ = ["Mirror"]

log = logger("mcp")

Find = Callable[[], Awaitable[Secret | None]]

ROUNDS = 10
"""How often one read or prompt may ask for more."""
WATCHED = 1_000
"""Resources of one server that clients may wait for."""
_PATIENCE = 10.0
"""Seconds that a server has to promise that it will tell of changes."""
_LATEST = 60.0
"""Longest pause before a lost stream of news is opened again."""
_OWN_META = "io.modelcontextprotocol/"


class Mirror:
    """The server of a route. ``secret`` finds its credential, each time anew; ``heard`` takes its news."""

    def __init__(self, connector: MCPConnector, route: Route, secret: Find, heard: Heard):
        self._connector = connector
        self._route = route
        self._secret = secret
        self._heard = heard
        self._watched: set[str] = set()
        self._watching: asyncio.Task[None] | None = None

    async def connect(self) -> None:
        """Be connected, so that news is heard."""
        await self._connector.connect(self._route, secret=await self._secret())

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
        result = await self._conversed("resources/read", {"uri": uri}, caller)
        if isinstance(result, Needs):
            return result
        found = result.get("contents")
        if not isinstance(found, list):
            raise MalformedResponse(f"The server answered a read of {uri[:200]!r} without contents.")
        return Done(tuple(clean_part(_contents(one, uri)) for one in found), meta=_meta(result))

    async def watch(self, uri: str) -> None:
        """Let it tell when a resource changes, for as long as this mirror stands."""
        if uri in self._watched:
            return
        if len(self._watched) >= WATCHED:
            raise TooLarge(f"{WATCHED} resources of this server are waited for already. Read this one now and then.")
        self._watched.add(uri)
        try:
            await self._watch_anew()
        except BaseException:
            self._watched.discard(uri)
            raise

    async def aclose(self) -> None:
        """Wait for no more news."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])

    # Prompts

    async def prompts(self) -> list[Prompt]:
        """All that it lists."""
        return [_prompt(one) for one in await self._items("prompts/list", "prompts") if _named(one, "name")]

    async def prompt(self, name: str, arguments: Mapping[str, str], caller: Caller) -> Prompted | Needs:
        """A prompt of it, filled in."""
        params = {"name": name, **({"arguments": dict(arguments)} if arguments else {})}
        result = await self._conversed("prompts/get", params, caller)
        if isinstance(result, Needs):
            return result
        messages = result.get("messages")
        if not isinstance(messages, list):
            raise MalformedResponse(f"The server answered the prompt {name[:200]!r} without messages.")
        about = result.get("description")
        told = clean_value(about) if isinstance(about, str) else None
        return Prompted(tuple(map(_message, messages)), told, meta=_meta(result))

    async def complete(self, completion: Completion) -> Completed:
        """What it proposes for an argument."""
        ref = {"type": "ref/prompt", "name": completion.name}
        if completion.kind == "resource":
            ref = {"type": "ref/resource", "uri": completion.name}
        params: dict[str, Any] = {"ref": ref, "argument": {"name": completion.argument, "value": completion.value}}
        if completion.given:
            params["context"] = {"arguments": completion.given}
        found = (await self._request("completion/complete", params)).get("completion")
        values = found.get("values") if isinstance(found, dict) else None
        if not isinstance(found, dict) or not isinstance(values, list):
            raise MalformedResponse("The server answered a completion without values.")
        total = found.get("total")
        known = total if isinstance(total, int) else None
        return Completed(tuple(clean_value(str(one)) for one in values), known, bool(found.get("hasMore")))

    # Inside

    async def _request(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        return await self._connector.request(self._route, method, params, secret=await self._secret())

    async def _items(self, method: str, key: str) -> list[dict[str, Any]]:
        found = await self._connector.items(self._route, method, key, secret=await self._secret())
        return [clean_value(one) for one in found]

    async def _conversed(self, method: str, params: dict[str, Any], caller: Caller) -> dict[str, Any] | Needs:
        """The result, or what is asked for it. Asked again from the top, it gives the answers that the caller has.

        The state that a server wants back lives only inside one of these, so that clients need not carry it.
        """
        said = passing(caller)
        sent = {**params, "_meta": client_meta(said[PASSED])}
        asking = Call(id="", principal=caller.principal, agent="The server", capability=method, meta=said)
        for _ in range(ROUNDS):
            result = await self._request(method, sent)
            if result.get("resultType", "complete") != "input_required":
                return result
            needs = needs_of(result, asking, {"state": result.get("requestState")})
            if any(one.id not in caller.answers for one in needs.questions):
                return needs
            sent |= {"inputResponses": _responses(asking, needs, caller), "requestState": needs.state["state"]}
        raise TargetError(f"The server asked more than {ROUNDS} times before it answered {method}.")

    async def _watch_anew(self) -> None:
        await self.aclose()
        promised: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._watching = asyncio.get_running_loop().create_task(self._follow(promised))
        try:
            async with asyncio.timeout(_PATIENCE):
                await promised
        except TimeoutError:
            raise CallTimeout("The server did not promise in time to tell of changes.") from None

    async def _follow(self, promised: asyncio.Future[None]) -> None:
        """Keep the stream of news open; after a gap everything that is waited for may have changed."""

        def heard(method: str, params: dict[str, Any]) -> None:
            if method != "notifications/subscriptions/acknowledged":
                self._heard(method, params)
            elif not promised.done():
                promised.set_result(None)
            else:
                self._all_may_have_changed()

        pause = 1.0
        while True:
            try:
                uris = sorted(self._watched)
                await self._connector.watch(self._route, uris, heard, secret=await self._secret())
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

    def _all_may_have_changed(self) -> None:
        for uri in sorted(self._watched):
            self._heard("notifications/resources/updated", {"uri": uri})


def _responses(asking: Call, needs: Needs, caller: Caller) -> dict[str, Any]:
    return responses_of(replace(asking, state=needs.state, answers=caller.answers))


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


def _message(one: Any) -> Message:
    found = one if isinstance(one, dict) else {}
    role: Literal["user", "assistant"] = "assistant" if found.get("role") == "assistant" else "user"
    return Message(role, clean_part(block_of(found.get("content"), "The server")))


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
    kept = {key: one for key, one in _table(result, "_meta").items() if not key.startswith(_OWN_META)}
    return {} if not kept else dict(clean_value(kept))


def _text(one: Mapping[str, Any], key: str) -> str | None:
    value = one.get(key)
    return value if isinstance(value, str) else None


def _table(one: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = one.get(key)
    return value if isinstance(value, dict) else {}


def _icons(one: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    value = one.get("icons")
    return tuple(each for each in value if isinstance(each, dict)) if isinstance(value, list) else ()
