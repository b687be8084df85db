"""The tools of an ``MCPServer`` for other programs: as an ASGI app, on a port, over standard input and output.

A mounted app gets no lifespan of its own, so the endpoint opens its door with the first request in a loop and closes it
with that loop at the latest. What listens on its own port does so in the bridge's loop, where the tools run: there a
call crosses no thread.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import unquote

import mcp_types as wire
from mcp.shared.exceptions import MCPError
from msgspec.structs import replace
from starlette.responses import JSONResponse
from starlette.types import Message, Receive, Scope, Send

from agent3 import bridge
from agent3.calls.outcomes import error_of
from agent3.errors import CapabilityNotFound, TargetError
from agent3.gateway import Gateway
from agent3.listener import Authenticate, Listening, at_this_machine, names_of, run_http, run_http_async
from agent3.model import LOCAL, Answer, Done, Failed, Needs, Outcome, Part, Principal, Working, encode
from agent3.protocols.mcp.door.door import LOOPBACK_HOSTS, LOOPBACK_ORIGINS, DoorOptions, MCPDoor
from agent3.protocols.mcp.door.fast_lane import FastLane
from agent3.protocols.mcp.door.gateway_tools import JobTasks
from agent3.protocols.mcp.door.toolset import (
    Caller,
    Completion,
    CompletionResult,
    FilledPrompt,
    Prompt,
    Resource,
    ResourceTemplate,
    Task,
    Tool,
    describe_client,
)
from agent3.protocols.mcp.library.catalogue import Version
from agent3.protocols.mcp.library.offer_runner import OfferRunner
from agent3.protocols.mcp.library.offers import ARTIFACTS, to_prompt
from agent3.protocols.mcp.library.tool_runner import DEPRECATED, ToolRunner

__all__ = ["Endpoint", "Listening", "ServedTools", "names_of", "run_http", "run_http_async", "run_stdio", "serve_stdio"]

_DOOR = "mcp"
"""What the ledger calls this door."""
_MOST_INLINE = 4 * 1_048_576
"""Bytes up to which images and audio are put into the result itself: a client cannot show a link to a model."""
MAX_BODY = 1_048_576
"""Bytes of one request over HTTP."""


# The tools, as a tool set of the door


class ServedTools:
    """The tools of a server as a tool set. Calls run in the core's loop, wherever they come from."""

    def __init__(self, runner: ToolRunner):
        self._runner = runner
        self._offers = OfferRunner(runner)
        self._tools: dict[Version, tuple[tuple[Version, ...], Tool]] = {}

    async def tools(self, principal: Principal) -> Sequence[Tool]:
        """The newest versions of the tools that this caller has."""
        return [self._tool(version) for version in self._runner.list_versions(principal)]

    def fingerprint(self, principal: Principal) -> tuple[Any, ...]:
        """A value that stays the same as long as ``tools`` gives the same."""
        return self._runner.fingerprint(principal)

    async def call(self, name: str, arguments: dict[str, Any], caller: Caller) -> Outcome:
        """One call; images and audio come inline, large ones too.

        It may bring the answers to an earlier call, as ``how_to_answer`` says.
        """
        if "metadata" in arguments or "agent3_metadata" in arguments:
            match arguments.get(self._answer_argument(name)):
                case {"job": str(job), "answers": dict(answers)}:
                    given = {str(key): _parse_answer(value) for key, value in answers.items()}
                    return await self.answer(job, given, caller)
        versions = self._runner.catalogue.versions(name.partition("@")[0])
        try:
            outcome = await self._runner.call(
                name,
                arguments,
                caller.principal,
                traceparent=caller.traceparent,
                listener=caller.listener,
                door=_DOOR,
                meta=describe_client(caller),
                detach="tasks" in caller.can and bool(versions) and versions[0].definition.task is True,
            )
        except CapabilityNotFound as error:
            if "versions" not in error.data:
                raise
            # The tool exists, only this version does not: the door would not recognise it as unknown.
            text = f"Unknown tool: {name[:100]}. {error.message}"
            raise MCPError(wire.INVALID_PARAMS, text, error.data) from None
        return await self._with_media(outcome, caller.principal)

    async def answer(self, state: str, answers: dict[str, Answer], caller: Caller) -> Outcome:
        outcome = await self._runner.answer(
            state, answers, caller.principal, caller.listener, door=_DOOR, follows="tasks" in caller.can
        )
        return await self._with_media(outcome, caller.principal)

    def how_to_answer(self, tool: str, needs: Needs) -> str:
        """What a client that cannot elicit is told to do: answers come with the arguments of the same tool."""
        answers = {question.id: "<your answer>" for question in needs.questions}
        given = encode({self._answer_argument(tool): {"job": needs.job, "answers": answers}}).decode()
        return f'Ask the user, then answer by calling "{tool}" with the arguments {given}'

    # Resources

    async def resources(self, principal: Principal) -> Sequence[Resource]:
        """Those that the caller may read. Large results are not listed: they are linked where they arise."""
        return self._offers.list_resources(principal)

    async def templates(self, principal: Principal) -> Sequence[ResourceTemplate]:
        """Families of resources, and large results by the handle in their link."""
        large = ResourceTemplate(
            uri_template=f"{ARTIFACTS}{{id}}", name="artifact", description="A large result of a tool"
        )
        return [*self._offers.list_templates(principal), large]

    async def read(self, uri: str, caller: Caller) -> Done | Needs:
        """A resource, or a large result for the caller of the tool."""
        if not uri.startswith(ARTIFACTS):
            work = self._offers.read(uri, caller.principal, resumed=caller.resumed, **_options(caller))
            return _done(await work)
        body, kind = await self._runner.artifact(unquote(uri.removeprefix(ARTIFACTS)), caller.principal)
        if kind.startswith("text/") or kind == "application/json":
            return Done((Part(text=body.decode("utf-8", "replace"), media_type=kind),))
        return Done((Part(raw=body, media_type=kind),))

    async def watch(self, uri: str, principal: Principal) -> None:
        """A client wants to hear when a resource changes. What never changes cannot be waited for."""
        self._offers.find_resource(uri, principal)

    # Prompts

    async def prompts(self, principal: Principal) -> Sequence[Prompt]:
        """Those that the caller has."""
        return self._offers.list_prompts(principal)

    async def prompt(self, name: str, arguments: dict[str, str], caller: Caller) -> FilledPrompt | Needs:
        """A prompt, filled in."""
        work = self._offers.fill(name, arguments, caller.principal, resumed=caller.resumed, **_options(caller))
        outcome = _done(await work)
        return outcome if isinstance(outcome, Needs) else to_prompt(outcome)

    async def complete(self, completion: Completion, principal: Principal) -> Sequence[str] | CompletionResult:
        """Values for an argument that is being typed."""
        return await self._offers.complete(completion, principal, door=_DOOR)

    # Calls that go on, as tasks

    async def task(self, job: str, caller: Caller) -> Task:
        """How a call that goes on stands; its result as that of a call that did not."""

        async def look(gateway: Gateway, agent: str) -> Task:
            return await JobTasks(gateway, _DOOR, agent).task(job, caller)

        found = await self._runner.use_gateway(look)
        return replace(found, outcome=await self._with_media(found.outcome, caller.principal))

    async def update(self, job: str, answers: dict[str, Answer], caller: Caller) -> None:
        """Answer a call that goes on."""

        async def take(gateway: Gateway, agent: str) -> None:
            await JobTasks(gateway, _DOOR, agent).update(job, answers, caller)

        await self._runner.use_gateway(take)

    async def cancel(self, job: str, caller: Caller) -> None:
        """Cancel it."""

        async def stop(gateway: Gateway, agent: str) -> None:
            await JobTasks(gateway, _DOOR, agent).cancel(job, caller)

        await self._runner.use_gateway(stop)

    def _answer_argument(self, tool: str) -> str:
        """The argument that answers come in: one that the tool itself does not have."""
        versions = self._runner.catalogue.versions(tool.partition("@")[0])
        taken = any("metadata" in (version.definition.to_schema().get("properties") or {}) for version in versions)
        return "agent3_metadata" if taken else "metadata"

    async def _with_media(self, outcome: Outcome, principal: Principal) -> Outcome:
        """The outcome with images and audio in place of references to them, up to a bound."""
        if not isinstance(outcome, Done) or all(part.artifact is None for part in outcome.parts):
            return outcome
        parts: list[Part] = []
        for part in outcome.parts:
            kind = part.media_type or ""
            fits = part.meta.get("size", _MOST_INLINE + 1) <= _MOST_INLINE
            if part.artifact is not None and fits and kind.startswith(("image/", "audio/")):
                body, _ = await self._runner.artifact(part.artifact, principal)
                meta = {key: value for key, value in part.meta.items() if key != "size"}
                part = Part(raw=body, media_type=kind, name=part.name, meta=meta)
            parts.append(part)
        return replace(outcome, parts=tuple(parts))

    def _tool(self, version: Version) -> Tool:
        """The same object as long as the tool has not changed: the door compares by identity."""
        versions = self._runner.catalogue.versions(version.name)
        known = self._tools.get(version)
        if known is not None and known[0] is versions:
            return known[1]
        if len(self._tools) > 2 * len(self._runner.list_versions(LOCAL)) + 1_000:
            self._tools.clear()
        definition = version.definition
        hints = {
            "readOnlyHint": definition.read_only,
            "idempotentHint": definition.idempotent,
            "destructiveHint": definition.consequential,
        }
        meta: dict[str, Any] = {
            "io.agent3/version": version.version,
            "io.agent3/digest": version.digest,
            "io.agent3/versions": [other.version for other in versions],
        }
        description = definition.description
        if (deprecated := definition.deprecated) is not None:
            meta[DEPRECATED] = deprecated.model_dump(exclude_none=True)
            since = f" since {deprecated.since}" if deprecated.since else ""
            until = f", removed on {deprecated.sunset}" if deprecated.sunset else ""
            instead = f" Use {deprecated.replacement} instead." if deprecated.replacement else ""
            description = f"{description}\n\nDeprecated{since}{until}.{instead}".strip()
        tool = Tool(
            name=version.name,
            title=definition.title,
            description=description,
            input_schema=definition.to_schema(),
            output_schema=definition.returns,
            annotations={hint: True for hint, is_set in hints.items() if is_set},
            requires=frozenset(definition.requires),
            meta=meta,
        )
        self._tools[version] = (versions, tool)
        return tool


def _options(caller: Caller) -> dict[str, Any]:
    """What the runner has to know of a request for a resource or a prompt."""
    return {
        "traceparent": caller.traceparent,
        "listener": caller.listener,
        "door": _DOOR,
        "meta": describe_client(caller),
    }


def _done(outcome: Outcome) -> Done | Needs:
    """The outcome of a read or a prompt; a failure is raised, for these have no result that says so."""
    if isinstance(outcome, Failed):
        raise error_of(outcome)
    if isinstance(outcome, Working):
        raise TargetError("This continues as a job, which is not possible for a resource or a prompt.")
    return outcome


def _parse_answer(value: Any) -> Answer:
    """An answer in plain JSON: the value itself, or ``{"action": "decline"}`` for a refusal."""
    match value:
        case {"action": "accept" | "decline" | "cancel" as action, **rest} if set(rest) <= {"data"}:
            return Answer(action, rest.get("data"), exact=True)
    return Answer(data=value, exact=True)


# The app


class _OpenDoor:
    """A door that is open in one loop. Its own task opens and closes it, because a cancel scope must be left by the
    task that entered it."""

    def __init__(self, runner: ToolRunner, door: MCPDoor):
        self._runner = runner
        self._door = door
        self.lane = FastLane(door)
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._leave = asyncio.Event()
        # In a context of its own: it outlives the request that happens to be the first.
        self.task = asyncio.get_running_loop().create_task(self._run(), context=contextvars.Context())

    async def _run(self) -> None:
        stop_watching = self._runner.watch(self._door.notify_change)
        try:
            async with self._door.running():
                self.opened.set_result(None)
                await self._leave.wait()
        except Exception as error:
            if self.opened.done():
                raise
            self.opened.set_exception(error)
        finally:
            stop_watching()

    async def close(self) -> None:
        """End all requests and wait until the door is closed."""
        self._leave.set()
        await asyncio.wait([self.task])


_HINTS = {
    400: "Send JSON as application/json.",
    403: "Pages of other sites may not call this server; its author can allow one: allowed_origins=.",
    413: f"A request may have at most {MAX_BODY} bytes.",
    421: "This is not an allowed name of this server; its author can add it: allowed_hosts=.",
}
"""What to do about a refusal of the SDK, by its status."""


class _JSONRefusals:
    """Turns refusals that the SDK makes in plain text into JSON-RPC errors, the only kind that MCP clients read."""

    def __init__(self, send: Send):
        self._send = send
        self._start: Message | None = None
        self._body = b""

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start" and message["status"] >= 400:
            kinds = (value for name, value in message["headers"] if name.lower() == b"content-type")
            if not next(kinds, b"").startswith(b"application/json"):
                self._start = message
                return
        if self._start is None:
            await self._send(message)
            return
        self._body += message.get("body", b"")
        if message.get("more_body", False):
            return
        status = self._start["status"]
        text = f"{self._body.decode('utf-8', 'replace').rstrip('.')}. {_HINTS.get(status, '')}".rstrip()
        error = {"code": wire.INVALID_REQUEST, "message": text}
        body = encode({"jsonrpc": "2.0", "id": None, "error": error})
        replaced = (b"content-type", b"content-length")
        headers = [header for header in self._start["headers"] if header[0].lower() not in replaced]
        headers += [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})


class Endpoint:
    """The ASGI app of a server. Alone it takes part in the lifespan; mounted, it needs none.

    ``lifespan`` is for an app around that wants to close it in order: ``Starlette(…, lifespan=endpoint.lifespan)``.
    """

    def __init__(
        self,
        runner: ToolRunner,
        path: str = "/mcp",
        principal: Authenticate | None = None,
        allowed_hosts: Sequence[str] = (),
        allowed_origins: Sequence[str] = (),
    ):
        self.path = "/" + path.strip("/")
        self._runner = runner
        self._principal = principal or (runner.security.principal if runner.security else at_this_machine)
        self._hosts = [*LOOPBACK_HOSTS, *allowed_hosts]
        self._origins = [*LOOPBACK_ORIGINS, *allowed_origins]
        self._doors: dict[asyncio.AbstractEventLoop, _OpenDoor] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._take_part_in_lifespan(receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1000})
            return
        # Mounted, the path still begins with where that is; as a route of its own it does not.
        root, path = scope.get("root_path", ""), scope["path"]
        mount, below = (root, path.removeprefix(root)) if root and path.startswith(root) else ("", path)
        if "/" + below.strip("/") != self.path:
            text = f"Not found; MCP is at {mount}{self.path}."
            await JSONResponse({"error": text}, 404)(scope, receive, send)
            return
        door = self._doors.get(asyncio.get_running_loop()) or self._open()
        if not door.opened.done():
            await asyncio.shield(door.opened)
        await door.lane(scope, receive, _JSONRefusals(send))

    @asynccontextmanager
    async def lifespan(self, app: Any = None) -> AsyncIterator[None]:
        """Serve during a block; leaving it ends all requests."""
        door = self._open()
        try:
            await door.opened
            yield
        finally:
            await door.close()

    def _open(self) -> _OpenDoor:
        """Open the door of this loop; those of loops that are closed are forgotten."""
        loop = asyncio.get_running_loop()
        self._doors = {other: door for other, door in self._doors.items() if not other.is_closed()}
        made = _make_door(
            self._runner,
            principal=self._principal,
            allowed_hosts=self._hosts,
            allowed_origins=self._origins,
            max_body=MAX_BODY,
        )
        door = self._doors[loop] = _OpenDoor(self._runner, made)
        door.task.add_done_callback(lambda _: self._doors.pop(loop, None))
        return door

    async def _take_part_in_lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        door = self._open()
        try:
            await door.opened
        except Exception as error:  # noqa: BLE001 - the server around is told, and ends
            await send({"type": "lifespan.startup.failed", "message": f"{self._runner.name}: {error}"})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await door.close()
        await send({"type": "lifespan.shutdown.complete"})


def _make_door(runner: ToolRunner, **options: Any) -> MCPDoor:
    tools = ServedTools(runner)
    return MCPDoor(
        tools,
        DoorOptions(
            name=runner.name,
            version=runner.version,
            instructions=runner.description or None,
            hint=tools.how_to_answer,
            **options,
        ),
    )


# Over standard input and output


async def serve_stdio(runner: ToolRunner) -> None:
    """Serve the host at standard input and output until it closes its end."""
    door = _make_door(runner)
    stop_watching = runner.watch(door.notify_change)
    try:
        await door.stdio()
    finally:
        stop_watching()


def run_stdio(runner: ToolRunner) -> None:
    """Likewise from a program's main thread. Ctrl-C ends the process: the thread that reads cannot be interrupted."""
    try:
        bridge.get_shared().spawn(serve_stdio(runner)).result()
    except KeyboardInterrupt:
        os._exit(130)
