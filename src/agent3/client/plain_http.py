"""One plain request to a gateway, and how its answer is read: for commands, which start fast and ask once.

``Client`` sends through the outbound gate instead, and reads answers and errors by the same functions.
"""

from __future__ import annotations

import http.client
import json
import os
import ssl
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from agent3.errors import (
    AccessError,
    Agent3Error,
    NotFound,
    SetupError,
    Unauthenticated,
    Unavailable,
    ValidationError,
    by_code,
)
from agent3.secret import Secret
from agent3.security import via

__all__ = ["check_address", "default_key", "headers_of", "no_gateway", "read_answer", "read_error", "request"]


def check_address(url: str) -> str:
    """The address of a gateway without a slash at its end; SetupError for what is none."""
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # of urlsplit for an open bracket, of .port for one that is not a number
        valid = False
    if not valid:
        raise SetupError(f"{url!r} is not the address of a gateway. Use one such as http://127.0.0.1:8333")
    return url.rstrip("/")


def default_key() -> Secret | None:
    """The key of ``AGENT3_KEY``."""
    key = os.environ.get("AGENT3_KEY")
    return Secret(key) if key else None


def headers_of(key: Secret | None) -> dict[str, str]:
    """The headers of every request."""
    own = {"Content-Type": "application/json"}
    if way := via.outgoing(""):
        own[via.HEADER] = way
    return own if key is None else {**own, "Authorization": f"Bearer {key.reveal()}"}


def request(
    where: str, method: str, path: str, body: Any = None, *, key: Secret | None = None, timeout: float = 3_600.0
) -> dict[str, Any]:
    """The answer of a gateway to one request; proxies of the environment are not used. Raises what it refuses with."""
    parts = urlsplit(where)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=timeout)
    raw = None if body is None else json.dumps(body).encode()
    try:
        connection.request(method, parts.path.rstrip("/") + path, raw, headers_of(key))
        response = connection.getresponse()
        status, answer = response.status, response.read()
    except ssl.SSLCertVerificationError as error:
        raise Unavailable(
            f"The certificate of {where} is not trusted ({error.verify_message}). Set SSL_CERT_FILE to the "
            "file of its authority, or use a name that the certificate has."
        ) from error
    except (OSError, http.client.HTTPException) as error:
        raise no_gateway(where, str(error)) from None
    finally:
        connection.close()
    return read_answer(where, status, answer)


def no_gateway(where: str, why: str) -> Unavailable:
    """The error where nobody answers."""
    return Unavailable(f"No gateway answers at {where} ({why}). Start one with agent3 serve, or use another address.")


def read_answer(where: str, status: int, raw: bytes) -> dict[str, Any]:
    """The object that a gateway answered with; a refusal is raised as the error that it names."""
    try:
        answer = json.loads(raw)
    except ValueError:
        raise Unavailable(f"{where} answered {status} without JSON: is it an agent3 gateway?") from None
    if not isinstance(answer, dict):
        raise Unavailable(f"{where} answered {status} with JSON that is not an object.")
    if isinstance(refusal := answer.get("error"), dict) and "success" not in answer:
        raise read_error(refusal, where)
    return answer


def read_error(error: Mapping[str, Any], where: str) -> Agent3Error:
    """The error that a gateway answered with. Several may run here, so a refusal names the gateway."""
    kind = by_code(str(error.get("code")))
    message, data, retry_after = str(error.get("message")), error.get("data"), error.get("retry_after")
    if kind is ValidationError:
        return ValidationError(message, data=data)
    if kind is Unauthenticated:
        message = f"{message.partition('. ')[0]}. Set AGENT3_KEY to the key of a client of the gateway at {where}."
    elif issubclass(kind, NotFound | AccessError):
        message += f" The gateway is {where}."
    # Its constructor may take other arguments; the message is there already.
    decoded = kind.__new__(kind)
    Agent3Error.__init__(decoded, message, data=data, retry_after=retry_after)
    return decoded
