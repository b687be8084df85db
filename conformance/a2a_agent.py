"""The agent under test for the official A2A kit: what it does is chosen by the id of the message, as the kit says.

Written as any agent is, with a ``LocalAgent`` and its context. It stands on the parts of a gateway: the durable core on
an embedded database, push notifications, the A2A endpoint, and gRPC on a port of its own. ``full`` declares all that an
A2A agent can do; ``minimal`` declares nothing, so that the kit asks how what is not there is refused; ``extension``
requires an extension, which only those tests of the kit survive that look for it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, TypeAlias

import uvicorn
from starlette.types import Scope

from agent3 import LocalAgent, SyncContext
from agent3 import a2a as library
from agent3.definitions import AgentCard, AgentExtension, AgentFeatures, AgentInterface
from agent3.errors import Rejected, Unauthenticated
from agent3.model import LOCAL, Done, Needs, Part, Principal, Question
from agent3.protocols.a2a import grpc
from agent3.protocols.a2a.agents.authoring import build_card
from agent3.protocols.a2a.agents.serving import AgentHost
from agent3.protocols.a2a.cards.extensions import Extensions
from agent3.protocols.a2a.door.endpoint import A2AEndpoint
from agent3.protocols.a2a.door.tasks import Engine
from agent3.protocols.a2a.protocol import A2A
from agent3.protocols.a2a.wire.errors import Profile as Table
from agent3.protocols.a2a.wire.types import Generation
from agent3.server.build import Server, build
from agent3.settings import Callbacks, Settings, Storage

__all__ = ["PROFILES", "SHIPPED", "Profile", "Shipped", "Table", "agent", "serve", "serve_shipped"]

Profile: TypeAlias = Literal["full", "minimal", "extension"]
Shipped: TypeAlias = Literal["library", "gateway"]
"""How the agent is served as it would be by anybody: by ``agent3.a2a.serve``, or by ``agent3 serve``."""
Behaviour: TypeAlias = Callable[[SyncContext], Any]

PROFILES: tuple[Profile, ...] = ("full", "minimal", "extension")
SHIPPED: tuple[Shipped, ...] = ("library", "gateway")
FEATURES: dict[Profile, AgentFeatures] = {
    "full": AgentFeatures(streaming=True, pushNotifications=True, extendedAgentCard=True),
    "minimal": AgentFeatures(),
    "extension": AgentFeatures(streaming=True),
}
_EXTENSION = AgentExtension(uri="urn:a2a:tck:required-extension", description="For the kit", required=True)
LINGER = 4.5
"""Seconds that a task stays busy for the tests that subscribe to it: more than twice the kit's patience."""
BUSY = 1.5
"""Seconds that a task of 0.3 is seen at work before it asks."""


def agent() -> LocalAgent:
    """The agent, with its only capability."""
    made = LocalAgent("TCK agent", agent_id="tck", description="Does what the id of a message asks for.")
    made.add(play, input_schema={"type": "object"}, replay=True, meta={"a2a": {"answer": "hybrid"}})
    return made


def play(ctx: SyncContext, **_: Any) -> Any:
    """Do what the id of the latest message asks for; the longest beginning that fits is meant."""
    fitting = [prefix for prefix in BEHAVIOURS if _message_id(ctx).startswith(prefix)]
    if not fitting and ctx.meta["a2a"]["generation"] != "1.0":
        return _converse(ctx)
    return BEHAVIOURS[max(fitting, key=len, default="tck-complete-task")](ctx)


def _message_id(ctx: SyncContext) -> str:
    """The id of the message of this turn: further ones have it on their parts."""
    if ctx.reply:
        return str(ctx.reply[0].meta.get("messageId", ""))
    first = ctx.meta["a2a"]["message"]
    return str(first["messageId"] if isinstance(first, dict) else first.message_id)


# What it can do


def _complete(ctx: SyncContext) -> Any:
    ctx.say("Hello from TCK")


def _text(ctx: SyncContext) -> Any:
    ctx.artifact("Generated text content", name="text")


def _file(ctx: SyncContext) -> Any:
    ctx.artifact(Part(raw=b"TCK file content", name="output.txt", media_type="text/plain"), name="file")


def _file_url(ctx: SyncContext) -> Any:
    ctx.artifact(
        Part(url="https://example.com/output.txt", name="output.txt", media_type="text/plain"), name="file-url"
    )


def _data(ctx: SyncContext) -> Any:
    ctx.artifact({"key": "value", "count": 42}, name="data")


def _message(ctx: SyncContext) -> Any:
    return Done((Part(text="Direct message response"),), meta={"a2a": "message"})


def _ask(ctx: SyncContext) -> Any:
    return Needs((Question(f"q-{_message_id(ctx)}", "What else?"),))


def _reject(ctx: SyncContext) -> Any:
    raise Rejected("rejected")


def _streams(text: str) -> Behaviour:
    def stream(ctx: SyncContext) -> None:
        ctx.artifact(text, name="streamed")

    return stream


def _chunks(ctx: SyncContext) -> Any:
    ctx.artifact("chunk-1 ", id="chunked", last=False)
    ctx.artifact("chunk-2", id="chunked", append=True)


def _linger(ctx: SyncContext) -> Any:
    ctx.status("working")
    _stay(ctx, LINGER)


def _stay(ctx: SyncContext, seconds: float) -> None:
    """Be at work for a while, unless nobody wants that any more."""
    until = time.monotonic() + seconds
    while not ctx.cancelled and time.monotonic() < until:
        time.sleep(0.02)


def _converse(ctx: SyncContext) -> Any:
    """0.3: its kit cancels tasks that it finds at work, and goes on with those that ask."""
    ctx.status("working")
    _stay(ctx, BUSY)
    return _ask(ctx)


BEHAVIOURS: dict[str, Behaviour] = {
    "tck-complete-task": _complete,
    "tck-artifact-text": _text,
    "tck-artifact-file": _file,
    "tck-artifact-file-url": _file_url,
    "tck-artifact-data": _data,
    "tck-message-response": _message,
    "tck-input-required": _ask,
    "tck-reject-task": _reject,
    "tck-stream-001": _streams("Stream hello from TCK"),
    "tck-stream-002": _complete,
    "tck-stream-003": _streams("Stream task lifecycle"),
    "tck-stream-ordering-001": _streams("Ordered output"),
    "tck-stream-artifact-text": _streams("Streamed text content"),
    "tck-stream-artifact-file": _file,
    "tck-stream-artifact-chunked": _chunks,
    "test-resubscribe-message-id": _linger,
}


UNDER_TEST = agent()


# How it is served


def _keep_at_home() -> None:
    """Have example.com be this machine: the kit names it for webhooks that nobody waits for, also without a network."""
    real = socket.getaddrinfo

    def resolved(host: Any, *more: Any, **options: Any) -> Any:
        return real("127.0.0.1" if host == "example.com" else host, *more, **options)

    socket.getaddrinfo = resolved


def serve_shipped(how: Shipped, port: int, grpc_port: int) -> None:
    """Serve it until SIGINT or SIGTERM with every default that is shipped, and nothing made easier for a kit."""
    if how == "library":
        library.serve(agent(), port=port, grpc_port=grpc_port)
        return
    with TemporaryDirectory(prefix="agent3-tck-") as folder:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("AGENT3_")}
        words = ["serve", "conformance.a2a_agent:UNDER_TEST", "--port", str(port), "--grpc", str(grpc_port)]
        command = [sys.executable, "-m", "agent3", *words]
        with subprocess.Popen(command, env={**kept, "AGENT3_DATA": folder}) as process:
            signal.signal(signal.SIGTERM, lambda *_: process.terminate())
            process.wait()


def serve(
    port: int,
    profile: Profile = "full",
    grpc_port: int | None = None,
    card: Generation = "1.0",
    table: Table = "1.0.0",
) -> None:
    """Serve it on loopback until SIGINT or SIGTERM, with a database that is forgotten.

    ``card`` is the generation whose card is shown where a client asks for none: the kit of 1.0 takes no card with
    fields that it does not know, and ours is by default one for all. ``table`` is that of the statuses: the kit knows
    those of 1.0.0, and ours are by default those of 1.0.1.
    """
    asyncio.run(_serve(port, profile, grpc_port, card, table))


async def _serve(port: int, profile: Profile, grpc_port: int | None, card: Generation, table: Table) -> None:
    os.environ.setdefault("AGENT3_TCK_SECRET", "whsec_" + "dGhlIGtpdCBkb2VzIG5vdCBjaGVjayBzaWduYXR1cmVz")
    _keep_at_home()
    under_test = agent()
    shown = _card(under_test, card, f"http://localhost:{port}", grpc_port)
    with TemporaryDirectory(prefix="agent3-tck-") as folder:
        async with build(_settings(Path(folder)), [under_test]) as server:
            endpoint = _endpoint(server, under_test, profile, card, shown, table)
            config = uvicorn.Config(endpoint, "localhost", port, log_config=None, access_log=False, lifespan="off")
            door = await _grpc(endpoint, grpc_port, f"http://localhost:{port}")
            try:
                await uvicorn.Server(config).serve()
            finally:
                if door is not None:
                    await door.aclose()


def _settings(folder: Path) -> Settings:
    # Nobody at example.com answers the question whether it wants to be notified, so we name it.
    told = Callbacks(
        secret="env:AGENT3_TCK_SECRET",
        allow_loopback=True,
        allow_hosts=("example.com",),
        schemes=("http", "https"),
    )
    return Settings(storage=Storage(url=f"sqlite:///{folder / 'tck.db'}"), callbacks=told)


class _Host(AgentHost):
    """The agent, whose extended card is for those who show a token."""

    async def card(self, principal: Principal | None, tenant: str | None = None, extended: bool = False) -> AgentCard:
        if extended and self.asks and (principal is None or principal.kind == "local"):
            raise Unauthenticated("The extended card needs authentication. Send any token: Authorization: Bearer …")
        return await super().card(principal, tenant, extended)

    asks = False


def _who(scope: Scope) -> Principal:
    """Whoever shows a token is a client; everybody else is at this machine."""
    shown = any(name == b"authorization" for name, _ in scope["headers"])
    return Principal("kit", "client") if shown else LOCAL


def _card(under_test: LocalAgent, generation: Generation, http: str, grpc_port: int | None) -> AgentCard:
    """The card. That of 0.3 names gRPC by a URL, as its specification has it and its kit reads it."""
    card = build_card(under_test.agent, ())
    if generation == "1.0":
        return card
    places = {"JSONRPC": http, "HTTP+JSON": http}
    if grpc_port is not None:
        places["GRPC"] = f"http://localhost:{grpc_port}"
    spoken = [AgentInterface(url=url, protocolBinding=one, protocolVersion="0.3") for one, url in places.items()]
    return card.model_copy(update={"interfaces": spoken})


def _endpoint(
    server: Server, under_test: LocalAgent, profile: Profile, written: Generation, card: AgentCard, table: Table
) -> A2AEndpoint:
    """The endpoint.

    The kit uses one id for many messages of a run, and wants a new task for each: so it gets one here.
    """
    host = _Host(server.gateway, under_test, lambda: card)
    host.asks = written == "0.3"
    a2a = server.protocols["a2a"]
    assert isinstance(a2a, A2A)
    pushes = a2a.pushes if profile == "full" else None
    engine = Engine(
        server.gateway,
        host,
        push=pushes,
        agent=under_test.id,
        fetch=server.core.artifacts.get,
        idempotent=False,
    )
    return A2AEndpoint(
        engine,
        host,
        principal=_who,
        features=FEATURES[profile],
        extensions=Extensions(_EXTENSION) if profile == "extension" else Extensions(),
        card_format=written,
        profile=table,
    )


async def _grpc(endpoint: A2AEndpoint, port: int | None, address: str) -> Any:
    async def itself() -> A2AEndpoint:
        return endpoint

    return None if port is None else await grpc.listen(itself, "localhost", port, address)
