"""The MCP protocol in front of a tool set: both eras, over Streamable HTTP and stdio.

The official low-level server does the protocol; this room alone knows it. ``MCPDoor`` connects it to a ``ToolSet``: the
handlers translate requests and outcomes, and the transports are served here. The door knows nothing of agents,
directories or storage.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from mcp.server.caching import CacheableMethod, CacheHint
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp.server.stdio import stdio_server
from mcp.server.transport_security import TransportSecuritySettings
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from agent3._version import __version__
from agent3.env import REAL, Env
from agent3.errors import Agent3Error
from agent3.model import LOCAL, Needs, Principal, encode
from agent3.protocols.mcp.door.handlers import Hint, RequestHandlers, to_icons
from agent3.protocols.mcp.door.list_changes import Kind
from agent3.protocols.mcp.door.questions import StateTokens
from agent3.protocols.mcp.door.requests import add_principal
from agent3.protocols.mcp.door.resumption import SessionEvents, SessionManager
from agent3.protocols.mcp.door.stdio import CheckedInput
from agent3.protocols.mcp.door.toolset import Caller, Capabilities, Tool, ToolSet

__all__ = [
    "LOOPBACK_HOSTS",
    "LOOPBACK_ORIGINS",
    "Caller",
    "DoorOptions",
    "MCPDoor",
    "Tool",
    "ToolSet",
    "how_to_answer",
    "refusal",
]

LOOPBACK_HOSTS = ("127.0.0.1", "127.0.0.1:*", "localhost", "localhost:*", "[::1]", "[::1]:*")
LOOPBACK_ORIGINS = tuple(f"{scheme}://{host}" for scheme in ("http", "https") for host in LOOPBACK_HOSTS)
CACHEABLE: tuple[CacheableMethod, ...] = (
    "tools/list",
    "prompts/list",
    "resources/list",
    "resources/templates/list",
    "resources/read",
)


def how_to_answer(tool: str, needs: Needs) -> str:
    """The default hint for clients that cannot elicit: call the tool again, with the answers."""
    answers = {question.id: "<your answer>" for question in needs.questions}
    metadata = encode({"job": needs.job, "answers": answers}).decode()
    return f'Ask the person, then answer by calling "{tool}" again with the same arguments and "metadata": {metadata}'


@dataclass(frozen=True, kw_only=True)
class DoorOptions:
    """How a door presents itself, whom it serves, and its bounds."""

    name: str = "agent3"
    version: str = __version__
    instructions: str | None = None
    about: Mapping[str, Any] = field(default_factory=dict)
    """What else the server says of itself, by the protocol's names: title, description, websiteUrl, icons."""
    principal: Callable[[Scope], Principal] = lambda _: LOCAL
    """Reads who calls from the ASGI scope; may raise ``AccessError``. Over stdio it is always ``LOCAL``."""
    allowed_hosts: Sequence[str] = LOOPBACK_HOSTS
    """Accepted Host headers. A trailing ``:*`` stands for any port; ``"*"`` turns off this check and that of Origin."""
    allowed_origins: Sequence[str] = LOOPBACK_ORIGINS
    key: bytes | None = None
    """Signs what a modern client carries between two turns. Replicas must share it; by default it is random."""
    answer_within: float = 86_400.0
    """Seconds for which a question can be answered."""
    list_ttl: float = 30.0
    """Seconds for which clients may cache lists."""
    page_size: int = 500
    max_body: int = 1 << 20
    resumable: bool = True
    """Whether legacy clients can resume a lost stream."""
    retry: float = 1.0
    """Seconds that a legacy client waits before it resumes a lost stream."""
    hint: Hint = how_to_answer


class MCPDoor:
    """One MCP server: ``asgi()`` for HTTP, to be used within ``running()``, and ``stdio()``."""

    def __init__(self, toolset: ToolSet, options: DoorOptions | None = None, *, env: Env = REAL):
        options = options or DoorOptions()
        self.toolset = toolset
        self.capabilities = Capabilities.of(toolset)
        self.principal = options.principal
        self.max_body = options.max_body
        self._options = options
        tokens = StateTokens(options.key or env.random_bytes(32), options.answer_within, env)
        self.handlers = RequestHandlers(
            toolset, self.capabilities, tokens, page_size=options.page_size, hint=options.hint
        )
        self._changes = self.handlers.changes
        self._manager: SessionManager | None = None
        about = options.about
        cache_hint = CacheHint(ttl_ms=int(options.list_ttl * 1000), scope="private")
        self._server = _Server(
            options.name,
            version=options.version,
            instructions=options.instructions,
            title=about.get("title"),
            description=about.get("description"),
            website_url=about.get("websiteUrl"),
            icons=to_icons(about.get("icons") or ()),
            cache_hints=dict.fromkeys(CACHEABLE, cache_hint),
            # Without it the SDK runs tools/list inside every tools/call, to compare headers with arguments.
            get_tool_input_schema=self.handlers.schema_with_headers,
        )
        # Not by the constructor, whose parameters for legacy methods warn of deprecation at every start.
        self.handlers.register(self._server)
        self.info: dict[str, Any] = self._server.server_info_stamp

    def asgi(self) -> _Endpoint:
        """The ASGI app of one path: POST for both eras, GET and DELETE for legacy sessions."""
        return _Endpoint(self)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Serve HTTP during a block: to be entered by the lifespan of the app around. Leaving it ends all requests."""
        # The SDK's manager runs only once, so each run gets its own.
        manager = SessionManager(
            self._server,
            make_store=SessionEvents if self._options.resumable else None,
            retry_interval=int(self._options.retry * 1000),
            security_settings=TransportSecuritySettings(
                enable_dns_rebinding_protection="*" not in self._options.allowed_hosts,
                allowed_hosts=list(self._options.allowed_hosts),
                allowed_origins=list(self._options.allowed_origins),
            ),
            max_request_body_size=self.max_body,
        )
        async with manager.run(), self._changes.running():
            self._manager = manager
            try:
                yield
            finally:
                self._manager = None

    async def stdio(self) -> None:
        """Serve the host at standard input and output until it closes its end; prints go to stderr meanwhile."""
        async with stdio_server() as (incoming, outgoing), self._changes.running():
            checked = CheckedInput(incoming, outgoing)
            await self._server.run(checked, outgoing, self._server.create_initialization_options())

    def notify_change(self, kind: Kind, uri: str | None = None) -> None:
        """Notify clients of both eras that a list changed, or with ``uri`` that one resource did. From any thread."""
        if kind == "tools":
            self.handlers.forget_tools()
        self._changes.publish(kind, uri)

    def answers_to(self, host: str) -> bool:
        """Whether a Host header names this server."""
        allowed = self._options.allowed_hosts
        return "*" in allowed or host in allowed or f"{host.rsplit(':', 1)[0]}:*" in allowed

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One HTTP request."""
        if self._manager is None:
            await Response("The MCP endpoint is not running", 503)(scope, receive, send)
            return
        try:
            principal = self.principal(scope)
        except Agent3Error as error:
            response = refusal(error)
            if error.http_status == 401:
                response.headers["WWW-Authenticate"] = "Bearer"
            if error.retry_after is not None:
                response.headers["Retry-After"] = str(max(1, round(error.retry_after)))
            await response(scope, receive, send)
            return
        await self._manager.handle_request(add_principal(scope, principal), receive, send)


def refusal(error: Agent3Error) -> Response:
    """The answer to a request that is refused before its message is read."""
    fault = {"code": error.rpc_code, "message": error.message, "data": error.to_dict()}
    body = encode({"jsonrpc": "2.0", "id": None, "error": fault})
    return Response(body, error.http_status, media_type="application/json")


class _Endpoint:
    """An instance rather than a function, because Starlette's Route takes functions for views of a request."""

    def __init__(self, door: MCPDoor):
        self._door = door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._door.serve(scope, receive, send)


class _Server(Server[Any]):
    """The SDK's server, which also tells legacy clients that lists may change. Tasks are for modern clients only."""

    def create_initialization_options(
        self,
        notification_options: NotificationOptions | None = None,
        experimental_capabilities: dict[str, dict[str, Any]] | None = None,
        extensions: dict[str, dict[str, Any]] | None = None,
    ) -> InitializationOptions:
        changing = NotificationOptions(prompts_changed=True, resources_changed=True, tools_changed=True)
        made = super().create_initialization_options(changing, experimental_capabilities, extensions)
        return made.model_copy(update={"capabilities": made.capabilities.model_copy(update={"extensions": None})})
