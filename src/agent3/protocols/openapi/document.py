"""An OpenAPI document: read from bytes within bounds, and its references followed.

Versions 3.0, 3.1 and 3.2, as JSON or YAML. Only references within the document are followed: another file or address
that it names is not fetched, and what refers to one is treated as broken.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

import msgspec

from agent3.errors import MalformedResponse, TooLarge
from agent3.schema.bounds import Limits, check_shape

__all__ = ["MOST_BYTES", "BrokenReference", "Document", "looks_like_openapi", "parse"]

GATEWAY = "x-agent3-gateway"
"""Stands in the document of a gateway's own REST: called through itself, it would call itself without end."""
MOST_BYTES = 16 << 20
"""Bytes of a document. The largest public ones have about ten million."""
_LIMITS = Limits(body=MOST_BYTES, depth=200, nodes=500_000, string=1 << 20)
_PIECE = 128 << 10
"""Bytes that are decoded at once: while they are, no other thread runs, the event loop included."""
_YAML_SECONDS = 60.0
_TOO_MUCH = 3
_READ_YAML = f"""
import contextlib, resource, sys
import msgspec
for kind, most in ((resource.RLIMIT_CPU, {_YAML_SECONDS:.0f}), (resource.RLIMIT_AS, {2 << 30})):
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(kind, (most, most))
try:
    found = msgspec.json.encode(msgspec.to_builtins(msgspec.yaml.decode(sys.stdin.buffer.read()), str_keys=True))
except MemoryError:
    sys.exit({_TOO_MUCH})
except Exception as error:
    sys.exit(str(error)[:200])
if len(found) > {2 * MOST_BYTES}:
    sys.exit({_TOO_MUCH})
sys.stdout.buffer.write(found)
"""
_MOST_HOPS = 32
_MARK = re.compile(rb"""^[ \t]*+(?:\{\s*+)?["']?(?:openapi|swagger)["']?\s*+:""", re.MULTILINE)
_VERSION = re.compile(r"3\.([012])(?:\.\d+)?(?:-.*)?")


class BrokenReference(Exception):
    """A reference that leads nowhere, in a circle, or out of the document."""


class Document:
    """What a service says of itself. ``nullable`` and other words of 3.0 mean something only where ``old`` is true."""

    def __init__(self, content: dict[str, Any], version: str):
        self.content = content
        self.version = version
        self.old = version.startswith("3.0")

    def follow(self, node: Any) -> Any:
        """The node, or what it refers to; BrokenReference where that is nothing."""
        for _ in range(_MOST_HOPS):
            if not isinstance(node, Mapping) or not isinstance(node.get("$ref"), str):
                return node
            node = self.at(node["$ref"])
        raise BrokenReference("it contains a circular reference")

    def at(self, reference: str) -> Any:
        """What stands at a reference."""
        if not reference.startswith("#"):
            raise BrokenReference(f"{reference[:100]!r} is outside the document")
        node: Any = self.content
        for piece in reference[1:].split("/")[1:]:
            name = unquote(piece).replace("~1", "/").replace("~0", "~")
            if isinstance(node, Mapping) and name in node:
                node = node[name]
            elif isinstance(node, list) and name.isascii() and name.isdigit() and int(name[:9]) < len(node):
                node = node[int(name[:9])]
            else:
                raise BrokenReference(f"{reference[:100]!r} does not exist")
        return node


def looks_like_openapi(content: bytes) -> bool:
    """Whether a text is meant as an OpenAPI document, by its first bytes and without reading all of it."""
    return _MARK.search(content[: 64 << 10]) is not None


def parse(content: bytes, where: str) -> Document:
    """The document in some bytes. MalformedResponse where it is none, TooLarge beyond the bounds.

    It takes seconds for a large one: not for the event loop.
    """
    if len(content) > MOST_BYTES:
        raise TooLarge(f"The document of {where} has {len(content)} bytes; the maximum is {MOST_BYTES}.")
    try:
        if content.lstrip()[:1] not in (b"{", b"["):
            if not looks_like_openapi(content):
                raise MalformedResponse(f"{where} did not answer with an OpenAPI document.")
            content = _yaml_to_json(content)
        if content.count(b",") > 1.5 * _LIMITS.nodes:  # those between values; the rest may stand in texts
            raise TooLarge(f"The document of {where} has too many values; the maximum is {_LIMITS.nodes}.")
        found = _decode(content)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise MalformedResponse(f"{where} has no readable OpenAPI document: {str(error)[:200]}") from None
    return read(found, where)


def _yaml_to_json(content: bytes) -> bytes:
    """In a process of its own: while libyaml reads, no thread runs here, and brackets without end crash it."""
    try:
        done = subprocess.run(  # noqa: S603 - our own script
            [sys.executable, "-P", "-c", _READ_YAML],
            input=content,
            env={"PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            timeout=2 * _YAML_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ValueError("reading it takes too long") from None
    if done.returncode in (_TOO_MUCH, -signal.SIGKILL, -signal.SIGXCPU):
        raise TooLarge("The document is too large to be read.")
    if done.returncode:
        why = done.stderr.decode("utf-8", "replace").strip() if done.returncode > 0 else "it is nested without end"
        raise ValueError(why[-200:])
    return done.stdout


def _decode(content: bytes | msgspec.Raw) -> Any:
    """The value of some JSON, of which what is large is decoded piece by piece."""
    if len(memoryview(content)) <= _PIECE:
        return msgspec.json.decode(content)
    first = bytes(memoryview(content)[:64]).lstrip()[:1]
    if first == b"{":
        return {key: _decode(one) for key, one in msgspec.json.decode(content, type=dict[str, msgspec.Raw]).items()}
    if first == b"[":
        return [_decode(one) for one in msgspec.json.decode(content, type=list[msgspec.Raw])]
    return msgspec.json.decode(content)


def read(content: Any, where: str) -> Document:
    """The document in a value that was parsed already."""
    if not isinstance(content, dict) or not ("openapi" in content or "swagger" in content):
        raise MalformedResponse(f"{where} did not answer with an OpenAPI document.")
    if "openapi" not in content:
        raise MalformedResponse(
            f"{where} has a document of Swagger {str(content['swagger'])[:10]}. Convert it to OpenAPI 3, for "
            "example with swagger2openapi, and add the file."
        )
    if GATEWAY in content:
        raise MalformedResponse(f"{where} is an agent3 gateway. Add it by its MCP address, which ends with /mcp.")
    version = str(content["openapi"])
    if not _VERSION.fullmatch(version):
        raise MalformedResponse(f"{where} has a document of OpenAPI {version[:20]!r}; supported are 3.0, 3.1 and 3.2.")
    check_shape(content, _LIMITS, "document")
    return Document(content, version)
