"""The agents of the gateway for others that speak JSON lines, on a port of its own.

It only translates: the gateway's doorkeeper judges who calls, and the rules what may be called, as at every door.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import msgspec
from starlette.types import Scope

from agent3 import errors, model
from agent3.gateway import Caller, CallRequest, response
from agent3.gateway.protocol import Services
from agent3.observe.logs import get as logger
from agent3_jsonlines import wire

__all__ = ["JSONLinesDoor"]

log = logger("jsonl")

_requests: msgspec.json.Decoder[wire.AnyRequest] = msgspec.json.Decoder(wire.AnyRequest)


class JSONLinesDoor:
    """A port at which the agents of the gateway answer. It belongs to the event loop that opens it."""

    name = "JSON lines"
    port: int
    _server: asyncio.Server

    def __init__(self, services: Services, judge: Callable[[Scope], Awaitable[None]]):
        self._settings = services.settings.server
        self._doorkeeper = services.doorkeeper
        self._gateway = services.gateway
        self._judge = judge
        self._running: set[asyncio.Task[None]] = set()

    async def open(self, port: int) -> None:
        """Listen at the address of the gateway. SetupError where the port is taken."""
        host = self._settings.host
        try:
            self._server = await asyncio.start_server(self._serve, host, port, limit=self._settings.max_body)
        except (OSError, OverflowError) as error:
            raise errors.SetupError(f"JSON lines cannot listen on {host}:{port}: {error}.") from None
        self.port = self._server.sockets[0].getsockname()[1]

    async def aclose(self) -> None:
        """Take no new connections, let running calls finish for a while, and cancel the rest."""
        self._server.close()
        if self._running:
            await asyncio.wait(self._running, timeout=self._settings.shutdown_seconds)
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, which is one request."""
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        try:
            try:
                last = await self._reply(reader, writer)
            except errors.Agent3Error as error:
                last = wire.Error(error.code, error.message, error.retryable, error.retry_after)
            except Exception:
                log.exception("a request failed")
                last = wire.Error("internal", "Internal error. See the log of the gateway.")
            if last is not None:
                writer.write(wire.encode(last))
                await writer.drain()
        except ConnectionError:
            log.debug("a caller hung up")
        finally:
            writer.close()

    async def _reply(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> wire.AnyReply | None:
        """The last line of an answer; None for a caller that hung up. Lines before it are written as they come."""
        try:
            # A web page can make a browser send HTTP to this port. That is no JSON, so it is refused here.
            async with asyncio.timeout(self._settings.body_seconds):
                request = await wire.read_message(reader, _requests)
        except TimeoutError:
            raise errors.TooSlow("No request came in time.") from None
        except ValueError as error:
            raise errors.ParseError(f"Send one request as one line of JSON: {error}.") from None
        if request is None:
            return None
        caller = await self._identify(request, writer)
        work = asyncio.ensure_future(self._answer(request, caller))
        hung_up = asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait((work, hung_up), return_when=asyncio.FIRST_COMPLETED)
            return await work if work.done() else None
        finally:
            work.cancel()
            hung_up.cancel()
            await asyncio.wait((work, hung_up))

    async def _identify(self, request: wire.AnyRequest, writer: asyncio.StreamWriter) -> Caller:
        """Who calls, judged as if the key had come in a header of HTTP; Unauthenticated for an unknown one."""
        scope: Scope = {
            "type": "http",
            "method": "POST",
            "path": "/",
            "query_string": b"",
            "headers": [(b"authorization", b"Bearer " + request.key.encode())] if request.key else [],
            "client": writer.get_extra_info("peername"),
        }
        await self._judge(scope)
        return Caller(self._doorkeeper(scope), "jsonl", partial(_write_event, writer))

    async def _answer(self, request: wire.AnyRequest, caller: Caller) -> wire.AnyReply:
        outcome: model.Outcome
        match request:
            case wire.Hello(agent=""):
                found = await self._gateway.find_agents(caller, "", 50)
                return wire.Card("agent3", agents=[agent["id"] for agent in found["agents"]])
            case wire.Hello(agent=agent):
                return _to_card(await self._gateway.select(caller, agent))
            case wire.Call():
                call = CallRequest(agent=request.agent, capability=request.capability, input=request.input)
                outcome = await self._gateway.call(caller, call)
            case wire.Answer():
                # The state that went out with the questions is the id of the job. Only its owner can continue it.
                outcome = await self._gateway.reply(caller, str(request.state), request.answers)
        while isinstance(outcome, model.Working) and outcome.job is not None:
            outcome = await self._gateway.wait(caller, outcome.job, 30.0)
        if isinstance(outcome, model.Needs):
            questions = [wire.Question(question.id, question.text, question.schema) for question in outcome.questions]
            return wire.Questions(outcome.job, questions)
        if isinstance(outcome, model.Failed):
            return wire.Error(outcome.code, outcome.message, outcome.retryable, outcome.retry_after)
        return wire.Result(response(outcome, 0.0)["result"])


def _to_card(agent: dict[str, Any]) -> wire.Card:
    capabilities = [
        wire.Capability(
            capability["name"],
            capability["description"],
            capability["inputSchema"],
            capability["outputSchema"],
            idempotent=bool(capability["hints"].get("idempotent") or capability["hints"].get("read_only")),
        )
        for capability in agent["capabilities"]
    ]
    return wire.Card(agent["name"], agent["description"], agent["version"], capabilities)


def _write_event(writer: asyncio.StreamWriter, event: model.Event) -> None:
    """Tell the caller what happens meanwhile. A listener must not wait: ``calls.event_bytes`` bounds what piles up."""
    if event.kind == "artifact" and (text := model.text_of(event.parts)):
        writer.write(wire.encode(wire.Piece(text)))
    elif event.kind in ("status", "progress") and event.text:
        writer.write(wire.encode(wire.Status(event.text)))
