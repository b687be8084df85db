"""An ``MCPServer`` for other programs: as an ASGI app, on a port of its own, over standard input and output.

An app that is mounted gets no lifespan of its own, so the endpoint starts by itself with the first request in a loop,
and ends with that loop at the latest. What listens on its own port does so in the bridge's loop, where the tools run:
there a call crosses no thread.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import unquote

import mcp_types as wire
from mcp.shared.exceptions import MCPError
from msgspec.structs import replace
from starlette.responses import JSONResponse
from starlette.types import Message, Receive, Scope, Send

from agent3 import bridge
from agent3.errors import CapabilityNotFound, NotFound
from agent3.listener import Listening, Who, at_this_machine, names_of, run_http, run_http_async
from agent3.model import Answer, Done, Needs, Outcome, Part, Principal, encode
from agent3.protocols.mcp.door.door import LOOPBACK_HOSTS, LOOPBACK_ORIGINS, MCPDoor
from agent3.protocols.mcp.door.fast_lane import FastLane
from agent3.protocols.mcp.door.toolset import Caller, Resource, Template, Tool
from agent3.protocols.mcp.library.catalogue import Version
from agent3.protocols.mcp.library.server import DEPRECATED, MCPServer

__all__ = [
    "Endpoint",
    "Listening",
    "ServedTools",
    "names_of",
    "run_http",
    "run_http_async",
    "run_stdio",
    "stdio",
]

_NAME = "mcp"
"""What the ledger calls this door."""
_ARTIFACTS = "agent3://artifacts/"
_IN_PLACE = 4 * 1_048_576
"""Bytes up to which an image or a sound is shown in the result itself: a client cannot show a link to a model."""
MAX_BODY = 1_048_576
"""Bytes of one request over HTTP."""


# The tools, as a door opens to them


class ServedTools:
    """The tools of a server as a tool set. Its answers come from the core's loop, wherever it is asked."""

    def __init__(self, server: MCPServer):
        self._server = server
        self._shown: dict[Version, tuple[tuple[Version, ...], Tool]] = {}

    async def tools(self, principal: Principal) -> Sequence[Tool]:
        """The newest versions of the tools that this caller has."""
        return [self._tool(one) for one in self._server.offered(principal)]

    def fingerprint(self, principal: Principal) -> tuple[Any, ...]:
        """The same as long as ``tools`` gives the same."""
        return self._server.fingerprint(principal)

    async def call(self, name: str, arguments: dict[str, Any], caller: Caller) -> Outcome:
        """One call; images and sounds come in place, also large ones.

        It may bring the answers to an earlier call, as ``how_to_answer`` says.
        """
        if (going_on := self._going_on(name, arguments)) is not None:
            return await self.answer(*going_on, caller)
        try:
            outcome = await self._server.call_tool_async(
                name, arguments, caller.principal, traceparent=caller.traceparent, listener=caller.listener, door=_NAME
            )
        except CapabilityNotFound as unknown:
            raise _unknown(name, unknown) if "versions" in unknown.data else unknown from None
        return await self._in_place(outcome, caller.principal)

    async def answer(self, state: str, answers: dict[str, Answer], caller: Caller) -> Outcome:
        """The next turn; ``state`` is the job."""
        outcome = await self._server.answer_async(state, answers, caller.principal, caller.listener, door=_NAME)
        return await self._in_place(outcome, caller.principal)

    def how_to_answer(self, tool: str, needs: Needs) -> str:
        """What a client that cannot elicit is told to do: its answers come with the arguments of the same tool."""
        answers = {question.id: "<your answer>" for question in needs.questions}
        given = encode({self._room_for_answers(tool): {"job": needs.job, "answers": answers}}).decode()
        return f'Ask the person, then answer by calling "{tool}" with the arguments {given}'

    def _room_for_answers(self, tool: str) -> str:
        """The argument that answers come in; one that the tool does not have itself."""
        family = self._server.versions(tool.partition("@")[0])
        taken = any("metadata" in (one.definition.to_schema().get("properties") or {}) for one in family)
        return "agent3_metadata" if taken else "metadata"

    def _going_on(self, tool: str, arguments: Mapping[str, Any]) -> tuple[str, dict[str, Answer]] | None:
        """The job and the answers that a call brings; None for a call that begins something."""
        if "metadata" not in arguments and "agent3_metadata" not in arguments:
            return None
        given = arguments.get(self._room_for_answers(tool))
        match given:
            case {"job": str(job), "answers": dict(answers)}:
                return job, {str(key): _answer(one) for key, one in answers.items()}
        return None

    async def resources(self, principal: Principal) -> Sequence[Resource]:
        """None are listed: large results are linked where they arise."""
        return []

    async def templates(self, principal: Principal) -> Sequence[Template]:
        """Large results, by the handle in their link."""
        return [Template(uri_template=f"{_ARTIFACTS}{{id}}", name="artifact", description="A large result of a tool")]

    async def read(self, uri: str, caller: Caller) -> Done | Needs:
        """A large result, for whoever called the tool."""
        if not uri.startswith(_ARTIFACTS):
            raise NotFound(f"There is no resource {uri[:100]!r}.")
        body, kind = await self._server.artifact_async(unquote(uri.removeprefix(_ARTIFACTS)), caller.principal)
        return Done((_read(body, kind),))

    async def _in_place(self, outcome: Outcome, principal: Principal) -> Outcome:
        if not isinstance(outcome, Done) or all(part.artifact is None for part in outcome.parts):
            return outcome
        return replace(outcome, parts=tuple([await self._shown_part(part, principal) for part in outcome.parts]))

    async def _shown_part(self, part: Part, principal: Principal) -> Part:
        kind = part.media_type or ""
        fits = part.meta.get("size", _IN_PLACE + 1) <= _IN_PLACE
        if part.artifact is None or not fits or not kind.startswith(("image/", "audio/")):
            return part
        body, _ = await self._server.artifact_async(part.artifact, principal)
        meta = {key: value for key, value in part.meta.items() if key != "size"}
        return Part(raw=body, media_type=kind, name=part.name, meta=meta)

    def _tool(self, version: Version) -> Tool:
        """The same object as long as nothing of the tool has changed: the door remembers it by that."""
        family = self._server.versions(version.name)
        known = self._shown.get(version)
        if known is None or known[0] is not family:
            if len(self._shown) > 2 * len(self._server.offered()) + 1_000:
                self._shown.clear()
            known = self._shown[version] = (family, _tool(version, family))
        return known[1]


def _answer(said: Any) -> Answer:
    """An answer in plain JSON: the value itself, or ``{"action": "decline"}`` for a no."""
    match said:
        case {"action": "accept" | "decline" | "cancel" as action, **rest} if set(rest) <= {"data"}:
            return Answer(action, rest.get("data"))
    return Answer(data=said)


def _unknown(name: str, refusal: CapabilityNotFound) -> MCPError:
    """What the protocol says of a tool that is not there, where it is only this version that is not."""
    return MCPError(wire.INVALID_PARAMS, f"Unknown tool: {name[:100]}. {refusal.message}", refusal.data)


def _tool(version: Version, family: Sequence[Version]) -> Tool:
    definition = version.definition
    told = {"readOnlyHint": definition.read_only, "idempotentHint": definition.idempotent}
    annotations = {key: True for key, said in told.items() if said}
    if definition.consequential:
        annotations["destructiveHint"] = True
    meta: dict[str, Any] = {
        "io.agent3/version": version.version,
        "io.agent3/digest": version.digest,
        "io.agent3/versions": [one.version for one in family],
    }
    if definition.deprecated is not None:
        meta[DEPRECATED] = definition.deprecated.model_dump(exclude_none=True)
    return Tool(
        name=version.name,
        title=definition.title,
        description=_description(version),
        input_schema=definition.to_schema(),
        output_schema=definition.returns,
        annotations=annotations,
        meta=meta,
    )


def _description(version: Version) -> str:
    deprecated = version.definition.deprecated
    if deprecated is None:
        return version.definition.description
    since = f" since {deprecated.since}" if deprecated.since else ""
    until = f", gone from {deprecated.sunset}" if deprecated.sunset else ""
    instead = f" Use {deprecated.replacement} instead." if deprecated.replacement else ""
    return f"{version.definition.description}\n\nDeprecated{since}{until}.{instead}".strip()


def _read(body: bytes, kind: str) -> Part:
    if kind.startswith("text/") or kind == "application/json":
        return Part(text=body.decode("utf-8", "replace"), media_type=kind)
    return Part(raw=body, media_type=kind)


# The app


class _Room:
    """A door that is open in one loop, kept so by a task of its own: it must be closed by whoever opened it."""

    def __init__(self, server: MCPServer, door: MCPDoor):
        self._server = server
        self._door = door
        self.lane = FastLane(door)
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._leave = asyncio.Event()
        # In a context of its own: it outlives the request that happens to be the first.
        self.task = asyncio.get_running_loop().create_task(self._keep(), context=contextvars.Context())

    async def _keep(self) -> None:
        end = self._server.watch(lambda: self._door.changed("tools"))
        try:
            async with self._door.running():
                self.opened.set_result(None)
                await self._leave.wait()
        except Exception as wrong:
            if self.opened.done():
                raise
            self.opened.set_exception(wrong)
        finally:
            end()

    async def close(self) -> None:
        """End all requests and wait until the door is closed."""
        self._leave.set()
        await asyncio.wait([self.task])


class _Worded:
    """Sends on what the door says. Refusals that the SDK makes in plain text become errors of JSON-RPC: clients of the
    protocol read nothing else."""

    def __init__(self, send: Send):
        self._send = send
        self._start: Message | None = None
        self._body = b""

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start" and _is_wordless(message):
            self._start = message
        elif self._start is None:
            await self._send(message)
        else:
            self._body += message.get("body", b"")
            if not message.get("more_body", False):
                await self._refuse(self._start["status"], self._start["headers"])

    async def _refuse(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        fault = {"code": wire.INVALID_REQUEST, "message": _words(status, self._body.decode("utf-8", "replace"))}
        body = encode({"jsonrpc": "2.0", "id": None, "error": fault})
        kept = [one for one in headers if one[0].lower() not in (b"content-type", b"content-length")]
        told = [*kept, (b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await self._send({"type": "http.response.start", "status": status, "headers": told})
        await self._send({"type": "http.response.body", "body": body})


def _is_wordless(start: Message) -> bool:
    """Whether an answer refuses in something else than JSON."""
    kinds = (value for name, value in start["headers"] if name.lower() == b"content-type")
    return start["status"] >= 400 and not next(kinds, b"").startswith(b"application/json")


def _words(status: int, said: str) -> str:
    """What was wrong, and what to do about it."""
    hints = {
        400: "Send JSON as application/json.",
        403: "Pages of other sites may not call; the server's author can allow one: allowed_origins=.",
        413: f"A request has at most {MAX_BODY} bytes.",
        421: "Call the server by a name that it knows; its author can add one: allowed_hosts=.",
    }
    return " ".join([f"{said.rstrip('.')}.", *([hints[status]] if status in hints else [])])


class Endpoint:
    """The ASGI app of a server. Alone it takes part in the lifespan; mounted, it needs none.

    ``lifespan`` is for an app around that wants to end it in good order: ``Starlette(…, lifespan=endpoint.lifespan)``.
    """

    def __init__(
        self,
        server: MCPServer,
        path: str = "/mcp",
        principal: Who | None = None,
        allowed_hosts: Sequence[str] = (),
        allowed_origins: Sequence[str] = (),
    ):
        self.path = "/" + path.strip("/")
        self._server = server
        self._principal = principal or (server.security.principal if server.security else at_this_machine)
        self._hosts = [*LOOPBACK_HOSTS, *allowed_hosts]
        self._origins = [*LOOPBACK_ORIGINS, *allowed_origins]
        self._rooms: dict[asyncio.AbstractEventLoop, _Room] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = scope["type"]
        if kind == "http" and self._is_here(scope):
            room = self._rooms.get(asyncio.get_running_loop()) or self._open()
            if not room.opened.done():
                await asyncio.shield(room.opened)
            await room.lane(scope, receive, _Worded(send))
        elif kind == "http":
            place = self._mounted_at(scope)[0] + self.path
            await JSONResponse({"error": f"There is nothing here; MCP is at {place}."}, 404)(scope, receive, send)
        elif kind == "lifespan":
            await self._live(receive, send)
        else:
            await send({"type": "websocket.close", "code": 1000})

    @asynccontextmanager
    async def lifespan(self, app: Any = None) -> AsyncIterator[None]:
        """Serve meanwhile; leaving it ends all requests."""
        room = self._open()
        try:
            await room.opened
            yield
        finally:
            await room.close()

    def _open(self) -> _Room:
        """The room of this loop; those of loops that are gone are forgotten."""
        loop = asyncio.get_running_loop()
        self._rooms = {one: room for one, room in self._rooms.items() if not one.is_closed()}
        room = self._rooms[loop] = _Room(self._server, self._door())
        room.task.add_done_callback(lambda _: self._rooms.pop(loop, None))
        return room

    def _door(self) -> MCPDoor:
        server, tools = self._server, ServedTools(self._server)
        return MCPDoor(
            tools,
            name=server.name,
            version=server.version,
            instructions=server.description or None,
            principal=self._principal,
            allowed_hosts=self._hosts,
            allowed_origins=self._origins,
            max_body=MAX_BODY,
            hint=tools.how_to_answer,
        )

    def _is_here(self, scope: Scope) -> bool:
        return ("/" + self._mounted_at(scope)[1].strip("/")) == self.path

    def _mounted_at(self, scope: Scope) -> tuple[str, str]:
        """Where it is mounted, and the path below. Mounted, the path still begins with where that is; as a route of its
        own, it does not."""
        path: str = scope["path"]
        root: str = scope.get("root_path", "")
        return (root, path.removeprefix(root)) if root and path.startswith(root) else ("", path)

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        room = self._open()
        try:
            await room.opened
        except Exception as wrong:  # noqa: BLE001 - the server around is told, and ends
            await send({"type": "lifespan.startup.failed", "message": f"{self._server.name}: {wrong}"})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await room.close()
        await send({"type": "lifespan.shutdown.complete"})


# Over standard input and output


async def stdio(server: MCPServer) -> None:
    """Serve the host at standard input and output until it closes its end."""
    tools = ServedTools(server)
    door = MCPDoor(
        tools,
        name=server.name,
        version=server.version,
        instructions=server.description or None,
        hint=tools.how_to_answer,
    )
    end = server.watch(lambda: door.changed("tools"))
    try:
        await door.stdio()
    finally:
        end()


def run_stdio(server: MCPServer) -> None:
    """Likewise, from a program's main thread. Ctrl-C ends the process: the thread that reads cannot be called back."""
    try:
        bridge.shared().spawn(stdio(server)).result()
    except KeyboardInterrupt:
        os._exit(130)
