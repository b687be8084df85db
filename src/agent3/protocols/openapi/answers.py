"""From an HTTP response to an outcome: JSON, text and files as parts, errors with the words of the service."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from agent3.calls.outcomes import HTTP_STATUS
from agent3.errors import (
    Agent3Error,
    CallTimeout,
    Conflict,
    MalformedResponse,
    NotFound,
    ParseError,
    RateLimited,
    RequestError,
    TargetError,
    TargetRefused,
    TooLarge,
    Unavailable,
    ValidationError,
)
from agent3.jsonrpc import Limits, decode, parse_retry_after
from agent3.model import Done, Part
from agent3.security.outbound import Response

__all__ = ["error_of", "part_of", "result_of"]

_KINDS: Mapping[int, type[Agent3Error]] = {
    400: RequestError,
    401: TargetRefused,
    403: TargetRefused,
    404: NotFound,
    407: TargetRefused,
    408: CallTimeout,
    409: Conflict,
    410: NotFound,
    412: Conflict,
    413: TooLarge,
    422: ValidationError,
    423: Conflict,
    425: Unavailable,
    429: RateLimited,
    502: Unavailable,
    503: Unavailable,
    504: CallTimeout,
}
_JSON = re.compile(r"(?:application|text)/(?:[\w.+-]+\+)?json", re.IGNORECASE)
_LIMITS = Limits(body=64 << 20, nodes=500_000, lenient=True)
_MOST_TOLD = 8_000
"""Bytes of an error's body that are passed on."""
_HEADERS = ("content-type", "content-length", "last-modified", "etag", "location", "allow")


def result_of(response: Response, method: str) -> Done:
    """What a success gave. MalformedResponse where it is not what it claims to be."""
    meta = {HTTP_STATUS: response.status, "status": response.status}  # the second as in earlier versions
    if method == "HEAD":
        found = {name: response.headers[name] for name in _HEADERS if name in response.headers}
        return Done((Part(data={"status": response.status, "headers": found}),), meta=meta)
    if not response.body:
        location = response.headers.get("Location")
        return Done((Part(url=location),) if location and response.status in (201, 202) else (), meta=meta)
    return Done((part_of(response.body, response.headers),), meta=meta)


def part_of(body: bytes, headers: Mapping[str, str]) -> Part:
    """A body as a part, by its type."""
    given = headers.get("Content-Type", "")
    kind, _, parameters = given.partition(";")
    kind = kind.strip().lower()
    if _JSON.fullmatch(kind):
        try:
            return Part(data=decode(body, _LIMITS), media_type=kind)
        except (ParseError, TooLarge) as error:
            raise MalformedResponse(f"It answered with {kind} that cannot be read: {error.message}") from None
    if kind.startswith("text/") or kind.endswith(("xml", "yaml", "javascript")):
        charset = re.search(r"""charset\s*=\s*["']?([\w.:-]+)""", parameters)
        return Part(text=_decode(body, charset[1] if charset else "utf-8"), media_type=kind)
    if not kind:
        try:
            return Part(text=body.decode())
        except UnicodeDecodeError:
            kind = "application/octet-stream"
    name = re.search(r'filename="?([^";\r\n]{1,200})', headers.get("Content-Disposition", ""))
    return Part(raw=body, media_type=kind, name=name[1] if name else None)


def error_of(response: Response, agent: str, now: float) -> Agent3Error:
    """The error that a response of another status than success stands for, in the words of the service."""
    status = response.status
    told = _problem(response)
    words = _words(told) or f"it answered HTTP {status}"
    kind = _KINDS.get(status, TargetError)
    error = kind(
        f"{agent}: {words[:1_000]}" + ("" if f"HTTP {status}" in words else f" (HTTP {status})"),
        data={"status": status, HTTP_STATUS: status, **({"problem": told} if told is not None else {})},
        retry_after=parse_retry_after(response.headers.get("Retry-After"), now),
    )
    error.sent = True
    return error


def _problem(response: Response) -> Any:
    """The body of an error: JSON as such (RFC 9457 and all others), else its text where it is not a page."""
    if not response.body or len(response.body) > _MOST_TOLD:
        return None
    try:
        part = part_of(response.body, response.headers)
    except Agent3Error:
        return None
    if part.text is not None:
        return None if "<html" in part.text[:500].lower() else part.text.strip() or None
    return None if part.data is msgspec.UNSET else part.data


def _words(told: Any) -> str | None:
    """What a body says for people, in the forms that are usual."""
    if isinstance(told, str):
        return told
    if isinstance(told, list):
        return "; ".join(words for one in told[:5] if (words := _words(one))) or None
    if not isinstance(told, Mapping):
        return None
    if isinstance(told.get("msg"), str):  # one fault of FastAPI
        place = ".".join(str(step) for step in told.get("loc") or ())
        return f"{place}: {told['msg']}" if place else told["msg"]
    title, detail = told.get("title"), told.get("detail")
    if isinstance(title, str) and isinstance(detail, str) and detail != title:
        return f"{title.rstrip('.')}: {detail}"
    for key in ("detail", "message", "error_description", "error", "errors", "title", "reason", "description"):
        if words := _words(told.get(key)):
            return words
    return None


def _decode(body: bytes, charset: str) -> str:
    try:
        return body.decode(charset, "replace")
    except LookupError:
        return body.decode("utf-8", "replace")
