"""The documented MCP security: who a client is, which tools it has, what it may send, and how often.

Three plain classes that stand alone, and ``GuardedTools``, which puts them around any tool set at an MCP door. A
gateway does the same with its doorkeeper, rules and steps; this is for servers of your own.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from threading import Lock
from typing import Any, Protocol, TypeVar

from agent3 import schema
from agent3.definitions import ToolDefinition
from agent3.env import REAL, Env
from agent3.errors import CapabilityNotFound, RateLimited, SetupError, Unauthenticated, ValidationError
from agent3.identity.signed_requests import WINDOW, secret_bytes
from agent3.model import Answer, Outcome, Principal
from agent3.observe.logs import get as logger
from agent3.observe.metrics import METRICS, Metrics
from agent3.protocols.mcp.door.toolset import Caller, Tool, ToolSet
from agent3.security.access import Access
from agent3.settings import Rule

__all__ = ["GuardedTools", "MCPInputValidator", "MCPRateLimiter", "MCPSecurityManager", "rate_limit_error"]

log = logger("mcp")

LONGEST_SHOWN = 100
"""Characters of a client's or tool's name that are logged or quoted."""


class _Named(Protocol):
    @property
    def name(self) -> str: ...


T = TypeVar("T", bound=str | _Named)


# Who, and which tools


class MCPSecurityManager:
    """Authenticates clients by a shared key and says which tools they have. Safe from any thread.

    All clients share the one key, so anyone who has it can sign as any of them: the names keep honest programs apart,
    no others. For clients that do not trust each other give a server ``principal=``, or let a gateway serve, where each
    client has a key of its own.

    ``permissions`` maps a client to its tools, both with ``*`` and ``?``: ``{"desk": ["search_*"], "*": ["ping"]}``.
    ``rules`` are those of the settings, or the gateway's own Access; ``server`` is the agent they name. Without either
    no client has any tool. SetupError for a key of fewer than 16 bytes.
    """

    def __init__(
        self,
        api_key: str,
        permissions: Mapping[str, Iterable[str]] | None = None,
        rules: Sequence[Rule] | Access | None = None,
        *,
        server: str = "mcp",
        metrics: Metrics = METRICS,
        env: Env = REAL,
    ):
        if permissions is not None and rules is not None:
            raise SetupError("MCPSecurityManager takes either permissions or rules, not both.")
        self.api_key = api_key
        self._secret = secret_bytes(api_key, "The api_key of MCPSecurityManager")
        self._permissions = {client: tuple(tools) for client, tools in (permissions or {}).items()}
        self._access = Access(rules) if isinstance(rules, Sequence) else rules
        self._server = server
        self._metrics = metrics
        self._env = env

    def authenticate_client(self, client_id: str, signature: str, timestamp: str) -> bool:
        """Whether the signature is the HMAC-SHA256, in hexadecimal, of ``client_id:timestamp``, within 300 seconds.

        Compared in constant time. Anything malformed is False, never an exception; every False is logged and counted
        in ``mcp_auth_failures_total``.
        """
        if not all(isinstance(value, str) for value in (client_id, signature, timestamp)):
            fault = "client id, signature and timestamp must be text"
        elif not re.fullmatch("[0-9]{1,15}", timestamp):
            fault = "the timestamp is not a number of seconds"
        elif abs(int(self._env.now()) - int(timestamp)) > WINDOW:
            fault = f"Request timestamp too old: {timestamp}"
        else:
            message = f"{client_id}:{timestamp}".encode("utf-8", "surrogatepass")
            expected = hmac.new(self._secret, message, hashlib.sha256).hexdigest().encode()
            if hmac.compare_digest(signature.encode("utf-8", "surrogatepass"), expected):
                return True
            fault = "wrong signature"
        self._metrics.mcp_auth_failures.inc()
        log.warning("Client %s was not authenticated: %s", _shorten(client_id), fault)
        return False

    def authorize_tool_access(self, client_id: str, tool_name: str) -> bool:
        """Whether the client has the tool."""
        return tool_name in self._get_client_permissions(client_id)

    def visible(self, client_id: str, tools: Iterable[T]) -> list[T]:
        """Those of the tools, given by name or as anything with a ``name``, that ``authorize_tool_access`` allows."""
        permitted = self._get_client_permissions(client_id)
        return [tool for tool in tools if (tool if isinstance(tool, str) else tool.name) in permitted]

    def principal(self, scope: Mapping[str, Any]) -> Principal:
        """Who calls, from the headers X-Client-Id, X-Timestamp and X-Signature of an ASGI scope; for ``MCPDoor``.

        Always Unauthenticated for other machines: this signature does not cover the request, and any reader of it can
        use it for five minutes. For a network door see docs/reference/signing.md.
        """
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        given = [headers.get(name, "") for name in (b"x-client-id", b"x-signature", b"x-timestamp")]
        peer = (scope.get("client") or ("", 0))[0]
        if not peer.startswith("127.") and peer != "::1":
            raise Unauthenticated("This signature is accepted on loopback only. See docs/reference/signing.md.")
        if not self.authenticate_client(*given):
            raise Unauthenticated("Send X-Client-Id, X-Timestamp and X-Signature, the HMAC-SHA256 of ID:TIMESTAMP.")
        return Principal(given[0], "client")

    def _get_client_permissions(self, client_id: str) -> Container[str]:
        """The tools of a client, to be tested with ``in``: the one place that listing and calling both use."""
        if (access := self._access) is not None:
            principal = Principal(client_id, "client")
            return _PermittedTools(lambda tool: access.allows(principal, self._server, tool, "mcp"))
        granted = [tools for client, tools in self._permissions.items() if fnmatchcase(client_id, client)]
        patterns = [pattern for tools in granted for pattern in tools]
        return _PermittedTools(lambda tool: any(fnmatchcase(tool, pattern) for pattern in patterns))


class _PermittedTools:
    """The tools that pass a test, for ``in``."""

    def __init__(self, test: Callable[[str], bool]):
        self._test = test

    def __contains__(self, tool: object) -> bool:
        return isinstance(tool, str) and self._test(tool)


def _shorten(text: object) -> str:
    return repr(text)[: LONGEST_SHOWN + 2]


# What may be sent


class MCPInputValidator:
    """Checks the parameters of an invocation before the tool is called; every fault is a ValidationError."""

    MAX_PARAM_LENGTH = 10_000
    """Characters of a text, also inside arrays and objects."""
    MAX_PARAMS_COUNT = 50
    """Parameters of one invocation."""

    def validate_tool_invocation(self, tool_def: ToolDefinition, parameters: Mapping[str, Any]) -> None:
        """Count, length, presence, type and enum, in this order; the first fault is raised.

        A tool that states its input as a schema is checked against that, with every fault in ``errors``.
        """
        if len(parameters) > self.MAX_PARAMS_COUNT:
            raise ValidationError(f"Too many parameters: {len(parameters)}")
        for key, value in parameters.items():
            longest = max(len(key), _longest_text(value))
            if longest > self.MAX_PARAM_LENGTH:
                raise ValidationError(f"Parameter '{key[:LONGEST_SHOWN]}' too long: {longest} chars")
        if tool_def.input_schema is not None:
            schema.compile(tool_def.input_schema).check(dict(parameters))
            return
        for definition in tool_def.parameters:
            name = definition.name
            if name not in parameters:
                if definition.required:
                    raise ValidationError(f"Missing required parameter: {name}")
                continue
            value = parameters[name]
            if not self._validate_type(value, definition.type):
                got = type(value).__name__
                raise ValidationError(f"Parameter '{name}' has invalid type. Expected {definition.type}, got {got}")
            # True == 1 in Python, but not in JSON.
            if definition.enum and not any(
                isinstance(value, bool) == isinstance(choice, bool) and bool(value == choice)
                for choice in definition.enum
            ):
                raise ValidationError(f"Parameter '{name}' must be one of {definition.enum}")

    def _validate_type(self, value: Any, expected_type: str) -> bool:
        """Unknown types allow anything. A boolean is a number in Python only; 2.0 is an integer in JSON Schema."""
        if expected_type in ("number", "integer"):
            whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
            return not isinstance(value, bool) and (whole or (expected_type == "number" and isinstance(value, float)))
        wanted = _TYPES.get(expected_type)
        return wanted is None or isinstance(value, wanted)


_TYPES: dict[str, type | tuple[type, ...]] = {
    "string": str,
    "boolean": bool,
    "array": (list, tuple),
    "object": dict,
    "null": type(None),
}


def _longest_text(value: Any) -> int:
    """The length of the longest text in a value, keys included. Not recursive, and safe for circular values."""
    longest = 0
    waiting, seen = [value], set()
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            longest = max(longest, len(item))
        elif isinstance(item, (dict, list, tuple)) and id(item) not in seen:
            seen.add(id(item))
            waiting.extend(item)
            if isinstance(item, dict):
                waiting.extend(item.values())
    return longest


# How often


class MCPRateLimiter:
    """At most ``requests_per_minute`` in any sixty seconds, for each client. Safe from any thread.

    A sliding window, not a bucket, so that sixty per minute are sixty in every minute. Refused requests do not count,
    so nobody is locked out. It uses the monotonic clock and remembers ``max_clients``; the idlest go first.
    """

    def __init__(self, requests_per_minute: int = 60, *, max_clients: int = 10_000, env: Env = REAL):
        if requests_per_minute < 1:
            raise SetupError(f"requests_per_minute must be at least 1, got {requests_per_minute}.")
        self.requests_per_minute = requests_per_minute
        self._max_clients = max_clients
        self._env = env
        self._lock = Lock()
        self._taken: OrderedDict[str, deque[float]] = OrderedDict()

    def allow_request(self, client_id: str) -> bool:
        """Whether the request may be made now; if so, it counts."""
        now = self._env.monotonic()
        with self._lock:
            taken = self._taken.setdefault(client_id, deque())
            self._taken.move_to_end(client_id)
            while taken and taken[0] <= now - 60.0:
                taken.popleft()
            if len(self._taken) > self._max_clients:
                self._taken.popitem(last=False)
            if len(taken) < self.requests_per_minute:
                taken.append(now)
                return True
        log.warning("Rate limit exceeded for client %s", _shorten(client_id))
        return False

    def retry_after(self, client_id: str) -> float:
        """Seconds until ``allow_request`` will say yes; 0.0 if it would now."""
        now = self._env.monotonic()
        with self._lock:
            taken = self._taken.get(client_id, ())
            recent = [at for at in taken if at > now - 60.0]
        return 0.0 if len(recent) < self.requests_per_minute else recent[0] + 60.0 - now

    @property
    def request_history(self) -> dict[str, list[datetime]]:
        """A copy of the requests that count, by client, in local time; a client without any has an empty list."""
        now, wall = self._env.monotonic(), datetime.fromtimestamp(self._env.now())  # noqa: DTZ006 - as documented
        history: dict[str, list[datetime]] = defaultdict(list)
        with self._lock:
            for client, taken in self._taken.items():
                history[client] = [wall - timedelta(seconds=now - at) for at in taken if at > now - 60.0]
        return history


def rate_limit_error(limiter: MCPRateLimiter, client: str) -> RateLimited:
    """The error for a client whose request was not allowed."""
    wait = limiter.retry_after(client)
    text = f"Rate limit exceeded for client {client}. Try again in {wait:.1f} s."
    return RateLimited(text, retry_after=wait)


# Together, at a door


class GuardedTools:
    """A tool set behind the three classes. A client cannot tell a tool it may not call from one that does not exist.

    ``definitions`` are those of the tools whose parameters the validator checks; others pass to the steps behind.
    """

    def __init__(
        self,
        inner: ToolSet,
        security: MCPSecurityManager,
        limiter: MCPRateLimiter | None = None,
        definitions: Iterable[ToolDefinition] = (),
        validator: MCPInputValidator | None = None,
    ):
        self._inner = inner
        self._security = security
        self._limiter = limiter or MCPRateLimiter()
        self._definitions = {definition.name: definition for definition in definitions}
        self._validator = validator or MCPInputValidator()

    async def tools(self, principal: Principal) -> Sequence[Tool]:
        return self._security.visible(principal.id, await self._inner.tools(principal))

    async def call(self, name: str, arguments: dict[str, Any], caller: Caller) -> Outcome:
        """Authorize, limit, validate, then call."""
        client = caller.principal.id
        if not self._security.authorize_tool_access(client, name):
            raise CapabilityNotFound(f"Unknown tool {name[:LONGEST_SHOWN]!r}.")
        if not self._limiter.allow_request(client):
            raise rate_limit_error(self._limiter, client)
        if definition := self._definitions.get(name):
            self._validator.validate_tool_invocation(definition, arguments)
        return await self._inner.call(name, arguments, caller)

    async def answer(self, state: str, answers: dict[str, Answer], caller: Caller) -> Outcome:
        return await self._inner.answer(state, answers, caller)
