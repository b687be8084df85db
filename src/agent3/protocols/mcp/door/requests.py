"""What one request says of itself: its era, who sent it, what its client can do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mcp_types as wire
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError as WireError
from starlette.types import Scope

from agent3.errors import Agent3Error
from agent3.model import LOCAL, Principal
from agent3.protocols.mcp.door.toolset import PASSED, Era

__all__ = [
    "TASKS",
    "Context",
    "era_of",
    "lacking",
    "meta_of",
    "owned",
    "powers_in",
    "powers_of",
    "principal_of",
    "protocol_error",
    "session_of",
]

Context = ServerRequestContext[Any, Any]

PRINCIPAL = "agent3.principal"
"""The key in the ASGI scope under which the door leaves who calls."""
TASKS = "io.modelcontextprotocol/tasks"


def owned(scope: Scope, principal: Principal) -> Scope:
    """The scope with its principal, also in the form in which the SDK ties a legacy session to who opened it.

    Headers lose the blanks at their end, which RFC 9110 does not count to the value and httptools leaves there.
    """
    token = AccessToken(token="", client_id=principal.id, scopes=[], subject=principal.tenant)
    headers = [(name, value.strip(b" \t")) for name, value in scope["headers"]]
    return {**scope, "headers": headers, PRINCIPAL: principal, "user": AuthenticatedUser(token)}


def era_of(ctx: Context) -> Era:
    """The era of the connection or request."""
    return "modern" if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS else "legacy"


def principal_of(ctx: Context) -> Principal:
    """Who calls; over stdio always the person at this machine."""
    principal = ctx.request.scope[PRINCIPAL] if ctx.request is not None else LOCAL
    assert isinstance(principal, Principal)
    return principal


def session_of(ctx: Context) -> str:
    """What tells legacy connections apart; over stdio there is only one."""
    return str(ctx.request.headers.get("mcp-session-id", "")) if ctx.request is not None else ""


def powers_of(ctx: Context) -> frozenset[str]:
    """What the client can do for us: form, url, sampling, roots, tasks. Asking a legacy one also needs a way back."""
    capabilities = ctx.session.client_capabilities
    if capabilities is None:
        return frozenset()
    if era_of(ctx) == "legacy":
        return _asking(capabilities) if ctx.session.can_send_request else frozenset()
    return _declared(capabilities)


def powers_in(capabilities: Mapping[str, Any]) -> frozenset[str]:
    """Likewise from what a modern request declares; nothing where that has not the protocol's form."""
    try:
        return _declared(wire.ClientCapabilities.model_validate(capabilities, by_name=False))
    except WireError:
        return frozenset()


def _declared(capabilities: wire.ClientCapabilities) -> frozenset[str]:
    follows = {"tasks"} if TASKS in (capabilities.extensions or {}) else set()
    return _asking(capabilities) | follows


def _asking(capabilities: wire.ClientCapabilities) -> frozenset[str]:
    """An empty elicitation capability means forms."""
    elicitation = capabilities.elicitation
    able = {
        "sampling": capabilities.sampling is not None,
        "roots": capabilities.roots is not None,
        "url": elicitation is not None and elicitation.url is not None,
        "form": elicitation is not None and (elicitation.form is not None or elicitation.url is None),
    }
    return frozenset(name for name, can in able.items() if can)


def meta_of(ctx: Context) -> dict[str, Any]:
    """The request's ``_meta`` without the protocol's own keys."""
    own = ("progress_token", "progressToken")
    meta = ctx.meta or {}
    return {key: value for key, value in meta.items() if key not in own and not _reserved(key)}


def _reserved(key: str) -> bool:
    return key.startswith("io.modelcontextprotocol/")


def protocol_error(error: Agent3Error) -> MCPError:
    """A refusal where no result exists that could carry it; the error of a server is passed on as it came."""
    told = error.data.get(PASSED)
    if isinstance(told, dict) and isinstance(told.get("error"), dict):
        return MCPError(told["error"]["code"], told["error"]["message"], told["error"].get("data"))
    return MCPError(error.rpc_code, error.message, error.to_dict())


def lacking(powers: frozenset[str], what: str) -> MCPError:
    """What a client is told that cannot do what is needed."""
    wanted: dict[str, Any] = {}
    for power in sorted(powers):
        if power == "tasks":
            wanted["extensions"] = {TASKS: {}}
        elif power in ("form", "url"):
            wanted.setdefault("elicitation", {})[power] = {}
        else:
            wanted[power] = {}
    text = f"{what} needs a client that declares: {', '.join(sorted(powers))}"
    return MCPError(wire.MISSING_REQUIRED_CLIENT_CAPABILITY, text, {"requiredCapabilities": wanted})
