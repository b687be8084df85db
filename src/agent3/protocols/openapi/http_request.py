"""From the input of a call to an HTTP request: the path, the query, headers, cookies and the body of an operation."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec

from agent3.errors import ValidationError
from agent3.protocols.openapi.operations import Body, Operation
from agent3.protocols.openapi.styles import to_pairs, to_path, to_text

__all__ = ["Fetch", "File", "Request", "build_request"]


class File(NamedTuple):
    """A file that a caller gave."""

    content: bytes
    name: str | None = None
    media_type: str | None = None


class Request(NamedTuple):
    """A request that only lacks who sends it."""

    method: str
    url: str
    headers: dict[str, str]
    body: bytes | None = None


Fetch = Callable[[str], Awaitable[File]]
"""The artifact of an id, as the caller may read it."""


async def build_request(operation: Operation, server: str, given: Any, *, fetch: Fetch, boundary: str) -> Request:
    """The request for some input, which fits the schema. ValidationError for what no request can say."""
    values: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
    path = operation.path
    pairs: list[tuple[str, str]] = []
    cookies: list[tuple[str, str]] = []
    headers = {"Accept": operation.accept} if operation.accept else {}
    pieces: dict[str, str] = {}
    for parameter in operation.parameters:
        value = values.get(parameter.key)
        if value is None:
            continue
        if parameter.json:
            value = msgspec.json.encode(value).decode()
        if parameter.place == "path":
            pieces[parameter.name] = to_path(parameter.name, value, parameter.style, parameter.explode)
        elif parameter.place == "query":
            pairs += to_pairs(parameter.name, value, parameter.style, parameter.explode, reserved=parameter.reserved)
        elif parameter.place == "cookie":
            cookies += to_pairs(parameter.name, value, parameter.style, parameter.explode)
        else:
            headers[parameter.name] = _header(parameter.name, value, parameter.explode)
    if missing := sorted(set(re.findall(r"\{([^{}]*)\}", path)) - set(pieces)):
        raise ValidationError(f"Parameter {missing[0]!r} is part of the path and is required.")
    path = re.sub(r"\{([^{}]*)\}", lambda match: pieces[match[1]], path)
    if any(segment in (".", "..") for segment in path.split("/")):
        raise ValidationError("A path parameter must not be . or .., which would lead to another path.")
    if cookies:
        headers["Cookie"] = "; ".join(f"{name}={value}" for name, value in cookies)
    query = "&".join(f"{name}={value}" for name, value in pairs)
    body: bytes | None = None
    if operation.body is not None and (written := await _body(operation.body, values, fetch, boundary)) is not None:
        headers["Content-Type"], body = written
    return Request(operation.method, f"{server}{quote(path, safe=_KEPT)}{'?' if query else ''}{query}", headers, body)


_KEPT = "/%!$&'()*+,;=:@~"
"""Of a path, after its parameters are written into it: what is encoded stays so."""


def _header(name: str, value: Any, explode: bool) -> str:
    if isinstance(value, dict):
        present = {each: one for each, one in value.items() if one is not None}
        pieces = (
            [f"{each}={to_text(one)}" for each, one in present.items()]
            if explode
            else [piece for each, one in present.items() for piece in (each, to_text(one))]
        )
        text = ",".join(pieces)
    elif isinstance(value, list):
        text = ",".join(to_text(one) for one in value if one is not None)
    else:
        text = to_text(value)
    if not text.isascii() or not text.isprintable():
        raise ValidationError(
            f"Parameter {name!r} is sent as a header, which may contain printable ASCII characters only."
        )
    return text


async def _body(body: Body, values: Mapping[str, Any], fetch: Fetch, boundary: str) -> tuple[str, bytes] | None:
    """The body with its type; None where nothing of it was given."""
    if body.whole is not None:
        if body.whole not in values:
            return None
        value = values[body.whole]
        if body.whole in body.files:
            file = await _file(body.whole, value, fetch)
            return (file.media_type or _whole_type(body.media_type)), file.content
        if body.media_type.endswith("json"):
            return body.media_type, msgspec.json.encode(value)
        return f"{body.media_type}; charset=utf-8", to_text(value).encode()
    given = {name: values[key] for key, name in body.fields.items() if key in values}
    if body.media_type == "multipart/form-data":
        files = {body.fields[key] for key in body.files}
        return await _multipart(body, given, files, fetch, boundary)
    if body.media_type == "application/x-www-form-urlencoded":
        pairs: list[tuple[str, str]] = []
        for name, value in given.items():
            if value is None:
                continue
            how = body.encoding.get(name, {})
            if "json" in str(how.get("contentType", "")) and "style" not in how:
                pairs.append((quote(name, safe=""), quote(msgspec.json.encode(value).decode(), safe="")))
            else:
                style = str(how.get("style", "form"))
                pairs += to_pairs(name, value, style, bool(how.get("explode", style == "form")))
        return body.media_type, "&".join(f"{name}={value}" for name, value in pairs).encode()
    return body.media_type, msgspec.json.encode(given)


async def _multipart(
    body: Body, given: Mapping[str, Any], files: set[str], fetch: Fetch, boundary: str
) -> tuple[str, bytes]:
    pieces: list[bytes] = []

    def add(name: str, content: bytes, media_type: str | None, file: str | None = None) -> None:
        head = f'Content-Disposition: form-data; name="{_quote_name(name)}"'
        head += f'; filename="{_quote_name(file)}"' if file is not None else ""
        head += f"\r\nContent-Type: {media_type}" if media_type else ""
        pieces.append(f"--{boundary}\r\n{head}\r\n\r\n".encode() + content + b"\r\n")

    for name, value in given.items():
        declared = body.encoding.get(name, {}).get("contentType")
        kind = str(declared) if declared and "," not in str(declared) and "*" not in str(declared) else None
        for one in value if isinstance(value, list) else [value]:
            if one is None:
                continue
            if name in files:
                file = await _file(name, one, fetch)
                media_type = file.media_type or kind or "application/octet-stream"
                add(name, file.content, _media_type(name, media_type), file.name or name)
            elif isinstance(one, dict | list):
                add(name, msgspec.json.encode(one), kind or "application/json")
            else:
                add(name, to_text(one).encode(), kind)
    content = b"".join([*pieces, f"--{boundary}--\r\n".encode()])
    return f"multipart/form-data; boundary={boundary}", content


async def _file(name: str, value: Any, fetch: Fetch) -> File:
    given: Mapping[str, Any] = value if isinstance(value, Mapping) else {}
    file_name, media_type = given.get("name"), given.get("media_type")
    if media_type is not None:
        _media_type(name, media_type)
    if "artifact" in given:
        found = await fetch(str(given["artifact"]))
        return File(found.content, file_name or found.name, media_type or found.media_type)
    if "text" in given:
        return File(str(given["text"]).encode(), file_name, media_type or "text/plain; charset=utf-8")
    try:
        return File(base64.b64decode(str(given.get("data", "")), validate=True), file_name, media_type)
    except (binascii.Error, ValueError):
        raise ValidationError(f"The data of parameter {name!r} is not base64.") from None


def _media_type(name: str, text: str) -> str:
    if not re.fullmatch(r"[\w.+-]{1,100}/[\w.+-]{1,100}(;[ -~]{0,200})?", text):
        raise ValidationError(f"Parameter {name!r}: {text[:60]!r} is not a media type.")
    return text


def _whole_type(kind: str) -> str:
    return "application/octet-stream" if "*" in kind else kind


def _quote_name(text: str) -> str:
    """A name inside of quotes, as browsers write it (HTML standard, multipart/form-data encoding)."""
    return text.replace("\r", "%0D").replace("\n", "%0A").replace('"', "%22")
