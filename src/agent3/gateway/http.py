"""Answers over HTTP that doors have in common: JSON, and the one form of an error."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from agent3.errors import Agent3Error
from agent3.model import encode

__all__ = ["error_response", "json_response", "retry_after"]

_LONGEST_WAIT = 86_400.0


def json_response(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Any model object or JSON value as a response."""
    return Response(encode(body), status, headers, "application/json")


def error_response(error: Agent3Error) -> Response:
    """The one form of an error, with its status and the headers that belong to it."""
    headers = {"WWW-Authenticate": "Bearer"} if error.http_status == 401 else {}
    if error.retry_after is not None:
        headers["Retry-After"] = retry_after(error.retry_after)
    body = {"error": {**error.to_dict(), "nextStep": error.next_step}}
    return json_response(body, error.http_status, headers)


def retry_after(seconds: float) -> str:
    """The header's value: at least one second and at most a day, whatever number a target gave."""
    return str(round(max(1.0, min(seconds, _LONGEST_WAIT))))
