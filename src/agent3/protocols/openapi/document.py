"""An OpenAPI document: read from bytes within bounds, and its references followed.

Versions 3.0, 3.1 and 3.2, as JSON or YAML. Only references within the document are followed: another file or address
that it names is not fetched, and what refers to one is treated as broken.
"""

from __future__ import annotations

import re
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
_LIMITS = Limits(body=MOST_BYTES, depth=200, nodes=2_000_000, string=1 << 20)
_MOST_HOPS = 32
_MARK = re.compile(rb"""^\s*\{?\s*["']?(?:openapi|swagger)["']?\s*:""", re.MULTILINE)
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
        raise BrokenReference("it refers in a circle")

    def at(self, reference: str) -> Any:
        """What stands at a reference."""
        if not reference.startswith("#"):
            raise BrokenReference(f"{reference[:100]!r} is outside of the document")
        node: Any = self.content
        for piece in reference[1:].split("/")[1:]:
            name = unquote(piece).replace("~1", "/").replace("~0", "~")
            if isinstance(node, Mapping) and name in node:
                node = node[name]
            elif isinstance(node, list) and name.isascii() and name.isdigit() and int(name[:9]) < len(node):
                node = node[int(name[:9])]
            else:
                raise BrokenReference(f"{reference[:100]!r} is not there")
        return node


def looks_like_openapi(content: bytes) -> bool:
    """Whether a text is meant as an OpenAPI document, by its first bytes and without reading all of it."""
    return _MARK.search(content[: 64 << 10]) is not None


def parse(content: bytes, where: str) -> Document:
    """The document in some bytes. MalformedResponse where it is none, TooLarge beyond the bounds.

    It takes seconds for a large one: not for the event loop.
    """
    if len(content) > MOST_BYTES:
        raise TooLarge(f"The document of {where} has {len(content)} bytes; at most {MOST_BYTES} are read.")
    try:
        if content.lstrip()[:1] in (b"{", b"["):
            found = msgspec.json.decode(content)
        elif looks_like_openapi(content):
            found = msgspec.yaml.decode(content)
            # An alias of YAML may make a value contain itself, or millions of others. This is before any copy.
            check_shape(found, _LIMITS, "document")
            found = msgspec.to_builtins(found, str_keys=True)
        else:
            raise MalformedResponse(f"{where} answered with something that is not an OpenAPI document.")
    except (msgspec.DecodeError, UnicodeError, RecursionError, TypeError, ValueError) as error:
        raise MalformedResponse(f"{where} has no OpenAPI document that can be read: {str(error)[:200]}") from None
    return read(found, where)


def read(content: Any, where: str) -> Document:
    """The document in a value that was parsed already."""
    if not isinstance(content, dict) or not ("openapi" in content or "swagger" in content):
        raise MalformedResponse(f"{where} answered with something that is not an OpenAPI document.")
    if "openapi" not in content:
        raise MalformedResponse(
            f"{where} has a document of Swagger {str(content['swagger'])[:10]}. Convert it to OpenAPI 3, with a tool "
            "such as swagger2openapi, and add the file."
        )
    if GATEWAY in content:
        raise MalformedResponse(f"{where} is an agent3 gateway. Add it by its MCP address, which ends with /mcp.")
    version = str(content["openapi"])
    if not _VERSION.fullmatch(version):
        raise MalformedResponse(f"{where} has a document of OpenAPI {version[:20]!r}; 3.0, 3.1 and 3.2 are known.")
    check_shape(content, _LIMITS, "document")
    return Document(content, version)
