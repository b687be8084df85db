"""What one request says of itself: its era, who sent it, what its client can do, and which page of a list it wants."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import mcp_types as wire
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError as WireError
from starlette.types import Scope

from agent3.errors import Agent3Error, ValidationError
from agent3.model import LOCAL, Principal
from agent3.protocols.mcp.door.toolset import Era
from agent3.protocols.mcp.meta_keys import PASSED, RESERVED, TASKS

__all__ = ["DEPARTURE", "WHOLE", "Context", "add_principal", "client_features", "era_of", "meta_of",
           "missing_features_error", "paginate", "parse_features", "principal_of", "session_of", "strict_base64",
           "to_mcp_error"]  # fmt: skip

Context = ServerRequestContext[Any, Any]

PRINCIPAL = "agent3.principal"
"""The key in the ASGI scope under which the door leaves who calls."""
DEPARTURE = "agent3.mcp.departure"
"""The key in the ASGI scope for a coroutine function that returns when the client of a legacy session is gone."""
WHOLE = "agent3.whole"
"""The key in the ASGI scope of a request whose client takes no stream, and so cannot be asked while it waits."""


def add_principal(scope: Scope, principal: Principal) -> Scope:
    """The scope with its principal, also in the form by which the SDK ties a legacy session to who opened it.

    Headers lose their trailing blanks, which RFC 9110 does not count to the value and httptools leaves there.
    """
    token = AccessToken(token="", client_id=principal.id, scopes=[], subject=principal.tenant)
    headers = [(name, value.strip(b" \t")) for name, value in scope["headers"]]
    return {**scope, "headers": headers, PRINCIPAL: principal, "user": AuthenticatedUser(token)}


def era_of(ctx: Context) -> Era:
    return "modern" if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS else "legacy"


def principal_of(ctx: Context) -> Principal:
    """Who calls; over stdio always the person at this machine."""
    principal = ctx.request.scope[PRINCIPAL] if ctx.request is not None else LOCAL
    assert isinstance(principal, Principal)
    return principal


def session_of(ctx: Context) -> str:
    """The id of a legacy session; empty over stdio, where there is only one."""
    return str(ctx.request.headers.get("mcp-session-id", "")) if ctx.request is not None else ""


def meta_of(ctx: Context) -> dict[str, Any]:
    """The request's ``_meta`` without the protocol's own keys."""
    own = ("progress_token", "progressToken")
    return {key: value for key, value in (ctx.meta or {}).items() if key not in own and not key.startswith(RESERVED)}


def client_features(ctx: Context) -> frozenset[str]:
    """What the client can do for us: form, url, sampling, roots, tasks.

    A legacy client can only be asked while there is a stream to it, and does not follow tasks.
    """
    capabilities = ctx.session.client_capabilities
    if capabilities is None:
        return frozenset()
    if era_of(ctx) == "legacy":
        is_whole = ctx.request is not None and WHOLE in ctx.request.scope
        can_be_asked = ctx.session.can_send_request and not is_whole
        return _features(capabilities) - {"tasks"} if can_be_asked else frozenset()
    return _features(capabilities)


def parse_features(capabilities: Mapping[str, Any]) -> frozenset[str]:
    """Likewise from the capabilities that a request declares; none where they are malformed."""
    try:
        return _features(wire.ClientCapabilities.model_validate(capabilities, by_name=False))
    except WireError:
        return frozenset()


def _features(capabilities: wire.ClientCapabilities) -> frozenset[str]:
    elicitation = capabilities.elicitation
    able = {
        "sampling": capabilities.sampling is not None,
        "roots": capabilities.roots is not None,
        "url": elicitation is not None and elicitation.url is not None,
        # An empty elicitation capability means forms.
        "form": elicitation is not None and (elicitation.form is not None or elicitation.url is None),
        "tasks": TASKS in (capabilities.extensions or {}),
    }
    return frozenset(name for name, can in able.items() if can)


def to_mcp_error(error: Agent3Error) -> MCPError:
    """Our error as one of the protocol, where no result can carry it; an upstream server's is passed on unchanged."""
    passed = error.data.get(PASSED)
    if isinstance(passed, dict) and isinstance(passed.get("error"), dict):
        original = passed["error"]
        return MCPError(original["code"], original["message"], original.get("data"))
    return MCPError(error.rpc_code, error.message, error.to_dict())


def missing_features_error(features: frozenset[str], what: str) -> MCPError:
    """The refusal of a client that lacks features."""
    wanted: dict[str, Any] = {}
    for feature in sorted(features):
        if feature == "tasks":
            wanted["extensions"] = {TASKS: {}}
        elif feature in ("form", "url"):
            wanted.setdefault("elicitation", {})[feature] = {}
        else:
            wanted[feature] = {}
    text = f"{what} needs a client that declares: {', '.join(sorted(features))}"
    return MCPError(wire.MISSING_REQUIRED_CLIENT_CAPABILITY, text, {"requiredCapabilities": wanted})


T = TypeVar("T")


def paginate(items: Iterable[T], key: Callable[[T], str], cursor: str | None, size: int) -> tuple[list[T], str | None]:
    """One page in the order of the key, and the cursor of the next; ValidationError for an unknown cursor.

    A cursor is the last key shown, so that it survives items that come and go.
    """
    after: str | None = None
    if cursor:
        try:
            after = strict_base64(cursor).decode()
        except ValueError:
            raise ValidationError("Unknown cursor: list again from the start") from None
    rest = sorted((item for item in items if after is None or key(item) > after), key=key)
    page = rest[:size]
    following = base64.urlsafe_b64encode(key(page[-1]).encode()).decode() if len(rest) > len(page) else None
    return page, following


def strict_base64(text: str) -> bytes:
    """Decode base64 without the leniency of the standard library, which skips unknown characters; else ValueError."""
    return base64.b64decode(text, altchars=b"-_", validate=True)
