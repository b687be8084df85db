"""Catalogs of strangers: bounded in what is fetched and read for them."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from agent3.errors import TargetError
from agent3.gateway.catalogs import fetch_json, read_catalog
from agent3.security.outbound import Gate

CATALOG = "application/ai-catalog+json"


class Web:
    """A gate behind which every address answers the same; it counts."""

    def __init__(self, body: bytes):
        self.body = body
        self.asked = 0

    async def request(self, *_: Any, **__: Any) -> Any:
        self.asked += 1
        return SimpleNamespace(status=200, body=self.body)


def fetch(body: bytes) -> Any:
    return asyncio.run(fetch_json("https://x.test", cast("Gate", Web(body))))


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"[" * 100_000, "more than can be read: "),
        (b'{"a":' * 5_000 + b"1", "more than can be read: "),
        (b"[" + b"1," * 600_000 + b"1]", "more than can be read: "),
        (b"\xff", "did not answer with JSON"),
        (b"", "did not answer with JSON"),
    ],
)
def test_what_cannot_be_read_is_refused_in_our_words(body: bytes, why: str) -> None:
    with pytest.raises(TargetError, match=why):
        fetch(body)


def test_catalogs_of_catalogs_are_not_followed_without_end() -> None:
    entries = [{"name": f"n{at}", "type": CATALOG, "url": f"/{at}"} for at in range(200)]
    document = {"specVersion": "1.0", "entries": entries}
    web = Web(json.dumps(document).encode())
    found = asyncio.run(read_catalog(document, "https://x.test", cast("Gate", web), {}))
    assert web.asked <= 200
    assert len(found) <= 200
    assert all(entry.fault is not None for entry in found)
