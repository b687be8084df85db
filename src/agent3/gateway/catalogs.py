"""AI catalogs: lists of agents and servers that a site publishes at ``/.well-known/ai-catalog.json``.

An entry names its kind by a media type and holds the description itself, or says where it is. Catalogs may hold others,
which are followed for a few levels and up to a bound. Others wrote it: ``strangers`` says what it may name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urljoin, urlsplit

from agent3 import jsonrpc
from agent3.errors import Agent3Error, ParseError, SetupError, TargetError, TooLarge
from agent3.security.outbound import Gate

__all__ = ["Entry", "Kind", "fetch_json", "is_catalog", "read_catalog"]

_MOST = 200
"""Entries of a catalog and all that it holds, and documents that are fetched for them."""
_SECONDS = 120.0
"""For all of them."""
_LIMITS = jsonrpc.Limits(body=16 << 20, nodes=500_000, lenient=True)
_LEVELS = 3
_CATALOG = "application/ai-catalog+json"


@dataclass(frozen=True, slots=True)
class Kind:
    """A media type that a protocol knows."""

    protocol: str
    asks: bool
    """Whether the protocol itself asks the address of such a description."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One agent of a catalog: its description, or the address at which it is or is described; else why neither."""

    name: str
    protocol: str = ""
    """By which its document is read."""
    document: Any = None
    url: str | None = None
    fault: SetupError | None = None


def is_catalog(document: Any) -> bool:
    """Whether a document is an AI catalog."""
    return isinstance(document, Mapping) and isinstance(document.get("entries"), list) and "specVersion" in document


async def read_catalog(
    document: Mapping[str, Any], base: str | None, gate: Gate, kinds: Mapping[str, Kind]
) -> list[Entry]:
    """The agents of a catalog and of those that it holds. ``base`` is where it came from, ``kinds`` what is known."""
    try:
        async with asyncio.timeout(_SECONDS):
            return await _read(document, base, gate, kinds, iter(range(_MOST)), 1)
    except TimeoutError:
        raise TargetError(f"The catalog and what it refers to could not be read in {_SECONDS:g} s.") from None


async def _read(
    document: Mapping[str, Any],
    base: str | None,
    gate: Gate,
    kinds: Mapping[str, Kind],
    fetches: Iterator[int],
    level: int,
) -> list[Entry]:
    found: list[Entry] = []
    for entry in document["entries"][:_MOST]:
        if not isinstance(entry, Mapping) or len(found) >= _MOST:
            continue
        name = str(entry.get("displayName") or entry.get("name") or entry.get("identifier") or "an entry")[:200]
        given = str(entry.get("type") or entry.get("mediaType") or "").partition(";")[0].strip().lower()
        found += await _read_entry(entry, name, given, base, gate, kinds, fetches, level)
    return found[:_MOST]


async def _read_entry(
    entry: Mapping[str, Any],
    name: str,
    media_type: str,
    base: str | None,
    gate: Gate,
    kinds: Mapping[str, Kind],
    fetches: Iterator[int],
    level: int,
) -> list[Entry]:
    kind, data, url = kinds.get(media_type), entry.get("data") or entry.get("inline"), entry.get("url")
    if kind is None and media_type != _CATALOG:
        return []  # a skill, a data set, a model: nothing that can be called
    if data is None and not isinstance(url, str):
        return [Entry(name, fault=SetupError(f"{name} has neither a url nor data in its catalog."))]
    address = None if data is not None else urljoin(base, str(url)) if base else str(url)
    if address is not None and urlsplit(address).scheme not in ("http", "https"):
        return [Entry(name, fault=SetupError(f"The address of {name} in the catalog is not http or https."))]
    if kind is not None and kind.asks and address is not None:
        return [Entry(name, url=address)]
    if data is None:
        assert address is not None
        if next(fetches, None) is None:
            return [
                Entry(name, fault=SetupError(f"{name} is left out: its catalog refers to more than {_MOST} documents."))
            ]
        try:
            data = await fetch_json(address, gate)
        except TargetError as error:
            if kind is None:
                return [Entry(name, fault=SetupError(error.message))]
            return [Entry(name, url=address)]  # some catalogs name the server itself in the place of its card
    if kind is not None:
        return [Entry(name, kind.protocol, document=data)]
    if level >= _LEVELS or not is_catalog(data):
        why = f"is more than {_LEVELS} levels deep" if level >= _LEVELS else "is not one"
        return [Entry(name, fault=SetupError(f"The catalog {name} {why}."))]
    return await _read(data, address or base, gate, kinds, fetches, level + 1)


async def fetch_json(url: str, gate: Gate) -> Any:
    """The JSON at an address; TargetError where there is none."""
    try:
        answer = await gate.request("GET", url, headers={"Accept": "application/json"}, follow=True)
    except TargetError:
        raise
    except Agent3Error as error:
        raise TargetError(error.message) from None
    if answer.status != 200:
        raise TargetError(f"{url} answered with HTTP status {answer.status}.")
    try:
        return await jsonrpc.decode_large(answer.body, _LIMITS)
    except ParseError:
        raise TargetError(f"{url} did not answer with JSON.") from None
    except TooLarge as error:
        raise TargetError(f"{url} answered with more than can be read: {error.message}") from None
