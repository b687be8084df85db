"""One codec for each generation of A2A: its wire on one side, the shapes of ``agent3.protocols.a2a.wire.types`` on the other.

``CODECS`` speak JSON-RPC, ``RESTS`` the bindings of REST, and ``generation_of`` tells which of them a request means.
A codec reads and writes for both ends: ``request``, ``result``, ``item`` and ``error`` for a server, ``ask``, ``read``,
``read_item`` and ``read_error`` for a client. They hold no task and reach no network.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from agent3.errors import Agent3Error
from agent3.protocols.a2a.wire import v01, v03, v10
from agent3.protocols.a2a.wire.errors import Profile, VersionNotSupported
from agent3.protocols.a2a.wire.routes import Match, Route
from agent3.protocols.a2a.wire.types import Generation, Item, Request
from agent3.protocols.a2a.wire.v01 import V01
from agent3.protocols.a2a.wire.v03 import V03
from agent3.protocols.a2a.wire.v03_rest import Rest03
from agent3.protocols.a2a.wire.v10 import V10, Value
from agent3.protocols.a2a.wire.v10_rest import Rest10

__all__ = [
    "CODECS",
    "METHODS",
    "RESTS",
    "Codec",
    "Match",
    "RestCodec",
    "Route",
    "Value",
    "choose",
    "generation_of",
    "rest_codecs",
    "version_of",
]


class Codec(Protocol):
    """A generation on JSON-RPC."""

    generation: Generation

    def request(self, method: str, params: Any) -> Request:
        """What is asked; ``params`` is JSON in bytes (or ``msgspec.Raw``), or decoded."""

    def result(self, request: Request, value: Value) -> bytes:
        """The JSON of ``result``."""

    def item(self, item: Item, request: Request) -> bytes:
        """The JSON of ``result`` of one event of a stream."""

    def error(self, wrong: Agent3Error) -> dict[str, Any]:
        """The JSON-RPC error object."""

    def ask(self, request: Request) -> tuple[str, dict[str, Any]]:
        """The method and params of a request."""

    def read(self, request: Request, result: Any) -> Value:
        """What a request was answered with; ``result`` is JSON in bytes, or decoded."""

    def read_item(self, result: Any) -> Item:
        """One event of a stream."""

    def read_error(self, error: Any) -> Agent3Error:
        """The error that a decoded JSON-RPC error object stands for."""


class RestCodec(Protocol):
    """A generation on REST."""

    generation: Generation
    routes: tuple[Route, ...]

    def match(self, http: str, path: str) -> Match:
        """The route of a raw path. MethodNotFound, MethodNotAllowed."""

    def request(self, route: Route, values: Mapping[str, str], query: Mapping[str, str], body: bytes) -> Request:
        """What is asked."""

    def result(self, request: Request, value: Value) -> bytes:
        """The body of an answer."""

    def item(self, item: Item, request: Request) -> bytes:
        """The data of one event."""

    def error(self, wrong: Agent3Error) -> tuple[int, dict[str, Any]]:
        """HTTP status and body."""

    def ask(self, request: Request) -> tuple[str, str, dict[str, str], bytes | None]:
        """HTTP method, path, query and body of a request."""

    def read(self, request: Request, result: Any) -> Value:
        """What a request was answered with."""

    def read_item(self, result: Any) -> Item:
        """One event of a stream."""

    def read_error(self, status: int, body: Any) -> Agent3Error:
        """The error that a status and its decoded body stand for."""


CODECS: Final[dict[Generation, Codec]] = {"0.1": V01(), "0.3": V03(), "1.0": V10()}


def rest_codecs(profile: Profile = "1.0.1") -> dict[Generation, RestCodec]:
    """The REST bindings, with the statuses of a profile. 0.1 has none."""
    return {"0.3": Rest03(), "1.0": Rest10(profile)}


RESTS: Final[dict[Generation, RestCodec]] = rest_codecs()


def _methods() -> dict[str, Generation | None]:
    """Each method's generation; None for the names that 0.1 and 0.3 share."""
    tables: tuple[tuple[Generation, Mapping[str, Any]], ...] = (
        ("0.1", v01.METHODS),
        ("0.3", v03.METHODS),
        ("1.0", v10.METHODS),
    )
    owners: dict[str, list[Generation]] = {}
    for generation, table in tables:
        for name in table:
            owners.setdefault(name, []).append(generation)
    return {name: found[0] if len(found) == 1 else None for name, found in owners.items()}


METHODS: Final[dict[str, Generation | None]] = _methods()

_VERSIONS: Final[dict[str, Generation]] = {"1.0": "1.0", "0.3": "0.3", "0.2": "0.3", "0.1": "0.1"}
_NUMBER: Final = re.compile(r"(\d{1,3}\.\d{1,3})(?:\.\d{1,3})?")


def version_of(header: str | None) -> Generation | None:
    """The generation that ``A2A-Version`` names; None where it is empty. VersionNotSupported.

    Only major and minor count: a patch number that should not be there is read over.
    """
    known = _VERSIONS.get(header or "")
    if known is not None:
        return known
    text = (header or "").strip()
    if not text:
        return None
    number = _NUMBER.fullmatch(text)
    generation = _VERSIONS.get(number[1]) if number else None
    if generation is None:
        raise VersionNotSupported(
            f"A2A {text[:20]!r} is not spoken here; send A2A-Version: 1.0, 0.3 or 0.1",
            data={"supported": ", ".join(_VERSIONS)},
        )
    return generation


def generation_of(
    method: str,
    version_header: str | None,
    known: Callable[[str], Generation | None] = lambda method: None,
    *,
    lenient: bool = False,
) -> Generation:
    """The generation that a JSON-RPC request means.

    A name that one generation alone has decides, whatever the header says; but a name of 1.0 needs the header 1.0:
    without it the specification has it be 0.3, which has no such name, so it is VersionNotSupported unless ``lenient``.
    For the names that several share, the header decides, else what ``known`` says (the generation of the task, or the
    last one heard from this caller), else 0.3. A name that nobody has is left to the codec to refuse.
    """
    asked = version_of(version_header)
    owner = METHODS.get(method)
    if owner is None:
        return asked or known(method) or "0.3"
    if owner == "1.0" and asked != "1.0" and not (lenient and asked is None):
        said = f"A2A-Version says {asked}" if asked else "A2A-Version is missing, which means 0.3"
        raise VersionNotSupported(
            f"{method!r} is a method of A2A 1.0, and {said}; send A2A-Version: 1.0", data={"supported": "1.0"}
        )
    return owner


def choose(
    method: str, version_header: str | None, known: Callable[[str], Generation | None] = lambda method: None
) -> Codec:
    """The codec of a JSON-RPC request, by ``generation_of``."""
    return CODECS[generation_of(method, version_header, known)]
