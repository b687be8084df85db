"""The agents of the gateway for others that speak JSON lines, on a port of its own.

It translates and does nothing else: who calls is judged by the gateway's doorkeeper, and what may be called by its
rules, as at every other door.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import msgspec
from starlette.types import Scope

from agent3.errors import Agent3Error, ParseError, SetupError, TooSlow
from agent3.gateway import Caller, CallRequest, response
from agent3.gateway.protocol import Services
from agent3.model import Done, Event, Failed, Needs, Outcome, Working, text_of
from agent3.observe.logs import get as logger
from agent3_jsonlines import wire

__all__ = ["JSONLinesDoor"]

log = logger("jsonl")

_requests: msgspec.json.Decoder[wire.AnyRequest] = msgspec.json.Decoder(wire.AnyRequest)


class JSONLinesDoor:
    """A port at which the agents of the gateway answer. It belongs to the event loop that opens it."""

    name = "JSON lines"

    def __init__(self, services: Services, judge: Callable[[Scope], Awaitable[None]]):
        self._services = services
        self._gateway = services.gateway
        self._judge = judge
        self._server: asyncio.Server | None = None
        self._running: set[asyncio.Task[None]] = set()
        self.port = 0

    async def open(self, port: int) -> None:
        """Listen beside HTTP, on the same address. SetupError where the port is taken."""
        settings = self._services.settings.server
        try:
            server = await asyncio.start_server(self._serve, settings.host, port, limit=settings.max_body)
        except (OSError, OverflowError) as error:
            raise SetupError(f"JSON lines cannot listen on {settings.host}:{port}: {error}.") from None
        self._server = server
        self.port = server.sockets[0].getsockname()[1]

    async def aclose(self) -> None:
        """Take no new connections, let running calls finish for a while, and cancel the rest."""
        if self._server is not None:
            self._server.close()
        if self._running:
            await asyncio.wait(self._running, timeout=self._services.settings.server.shutdown_seconds)
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection: one request."""
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        try:
            last = await self._reply(reader, writer)
            if last is not None:
                writer.write(wire.encode(last))
                await writer.drain()
        except ConnectionError:
            log.debug("a caller has hung up")
        finally:
            writer.close()

    async def _reply(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> wire.AnyReply | None:
        """The last line of the answer; None when the caller has gone. The lines before it are written on the way."""
        try:
            # The first line must be JSON, so that a web page cannot make a browser call: HTTP begins otherwise.
            async with asyncio.timeout(self._services.settings.server.body_seconds):
                request = await wire.read_message(reader, _requests)
            if request is None:
                return None
            caller = await self._identify(request, writer)
            work = asyncio.ensure_future(self._answer(request, caller))
            hung_up = asyncio.ensure_future(reader.read(1))
            try:
                await asyncio.wait((work, hung_up), return_when=asyncio.FIRST_COMPLETED)
                return await work if work.done() else None
            finally:
                for task in (work, hung_up):
                    task.cancel()
                await asyncio.wait((work, hung_up))
        except Agent3Error as error:
            return wire.Error(error.code, error.message, error.retryable, error.retry_after)
        except TimeoutError:
            return wire.Error(TooSlow.code, "No request came in time.")
        except ValueError as error:
            return wire.Error(ParseError.code, f"Send one request as one line of JSON: {error}")
        except Exception:
            log.exception("a request failed")
            return wire.Error("internal", "Internal error. The gateway's log has the details.")

    async def _identify(self, request: wire.AnyRequest, writer: asyncio.StreamWriter) -> Caller:
        """Who calls, judged as if the key had come in a header. Unauthenticated for anyone whom nobody knows."""
        scope: Scope = {
            "type": "http",
            "method": "POST",
            "path": "/",
            "query_string": b"",
            "headers": [(b"authorization", b"Bearer " + request.key.encode())] if request.key else [],
            "client": writer.get_extra_info("peername"),
        }
        await self._judge(scope)
        return Caller(self._services.doorkeeper(scope), "jsonl", partial(_write_event, writer))

    async def _answer(self, request: wire.AnyRequest, caller: Caller) -> wire.AnyReply:
        """The last line of the answer to a request."""
        outcome: Outcome
        match request:
            case wire.Hello(agent=""):
                found = await self._gateway.search(caller, "", 50)
                return wire.Card("agent3", agents=[agent["id"] for agent in found["agents"]])
            case wire.Hello(agent=agent):
                return await self._describe(caller, agent)
            case wire.Call():
                call = CallRequest(agent=request.agent, capability=request.capability, input=request.input)
                outcome = await self._gateway.call(caller, call)
            case wire.Answer():
                # The state that went out with the questions is the id of the job, which only its owner can continue.
                outcome = await self._gateway.reply(caller, str(request.state), request.answers, request.agent or None)
        while isinstance(outcome, Working) and outcome.job is not None:
            outcome = await self._gateway.wait(caller, outcome.job, 30.0)
        if isinstance(outcome, Needs):
            asked = [wire.Question(question.id, question.text, question.schema) for question in outcome.questions]
            return wire.Questions(outcome.job, asked)
        if isinstance(outcome, Failed):
            return wire.Error(outcome.code, outcome.message, outcome.retryable, outcome.retry_after)
        assert isinstance(outcome, Done)
        return wire.Result(response(outcome, 0.0)["result"])

    async def _describe(self, caller: Caller, agent: str) -> wire.Card:
        told = await self._gateway.select(caller, agent)
        capabilities = [
            wire.Capability(
                capability["name"],
                capability["description"],
                capability["inputSchema"],
                capability["outputSchema"],
                idempotent=bool(capability["hints"].get("idempotent") or capability["hints"].get("read_only")),
            )
            for capability in told["capabilities"]
        ]
        return wire.Card(told["name"], told["description"], told["version"], capabilities)


def _write_event(writer: asyncio.StreamWriter, event: Event) -> None:
    """Tell the caller what happens meanwhile.

    Listeners must not wait, so a slow reader is not waited for: what is kept for it is bounded by calls.event_bytes.
    """
    if event.kind == "artifact" and (text := text_of(event.parts)):
        writer.write(wire.encode(wire.Piece(text)))
    elif event.kind in ("status", "progress") and event.text:
        writer.write(wire.encode(wire.Status(event.text)))
