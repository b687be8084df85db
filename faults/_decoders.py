"""Every decoder of what strangers send, as a function of bytes: it answers, or refuses with an error of ours."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any

from agent3 import jsonrpc
from agent3.calls.audit import Broken, read_lines
from agent3.env import REAL
from agent3.errors import Agent3Error
from agent3.identity.data_keys import DataCipher
from agent3.identity.secret_box import unseal
from agent3.identity.secret_detection import holds_secret
from agent3.identity.secret_refs import check_query, check_words
from agent3.model import Capability
from agent3.observe import logs, traces
from agent3.protocols.openapi.document import parse as parse_openapi
from agent3.schema import compile as compile_schema
from agent3.security.sanitize import clean_html, clean_text
from agent3.security.sensitive import find_sensitive
from agent3.sentences import find_refusal, free_text, read
from agent3.sentences.phrases import match_phrases

__all__ = ["ASIDE", "DECODERS", "LONGEST", "decode"]

LONGEST = 4_096
"""Bytes of one case: worst cases of size have a test of their own."""
PIZZA = Capability(
    name="order_pizza",
    description="Order a pizza",
    input_schema={
        "type": "object",
        "properties": {
            "size": {"enum": ["small", "large"]},
            "count": {"type": "integer"},
            "when": {"type": "string", "format": "date"},
            "note": {"type": "string"},
        },
        "required": ["size"],
    },
)
_NOW = datetime(2026, 1, 5)  # noqa: DTZ001 - the local time of who wrote it
_CIPHER = DataCipher(bytes(32))


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def _json(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return _text(raw)


def _feed_events(raw: bytes) -> None:
    parser = jsonrpc.SSEParser()
    for start in range(0, len(raw), 7):
        parser.feed(raw[start : start + 7])


def _check_schema(raw: bytes) -> None:
    value = _json(raw)
    schema = value if isinstance(value, dict) else {"properties": {"a": {"pattern": _text(raw)}}}
    compile_schema(schema).check({"a": _text(raw)})


def _match_phrases(raw: bytes) -> None:
    phrase, _, message = _text(raw).partition("\n")
    for _ in match_phrases(Capability(name="x", phrases=(phrase, "{a} to {b}{c} of {d}")), message):
        pass


def _find_sensitive(raw: bytes) -> None:
    value = _json(raw)
    schema = value if isinstance(value, dict) else {"$ref": _text(raw)}
    found = find_sensitive(Capability(name="x", input_schema={**schema, "format": "password"}))
    assert found is not None
    found.hide_input(value)
    found.hide_in_message(_text(raw), value)


DECODERS: dict[str, Callable[[bytes], Any]] = {
    "json": jsonrpc.decode,
    "events": _feed_events,
    "html": lambda raw: clean_html(_text(raw)),
    "text": lambda raw: clean_text(_text(raw)),
    "sentence": lambda raw: read(PIZZA, _text(raw), _NOW),
    "free text": lambda raw: free_text(PIZZA, _text(raw)),
    "refusal": lambda raw: find_refusal(PIZZA, _text(raw)),
    "phrase": _match_phrases,
    "openapi": lambda raw: parse_openapi(b"{" + raw, "it"),
    "schema": _check_schema,
    "sensitive": _find_sensitive,
    "log line": lambda raw: logs.scrub(_text(raw)),
    "trace": lambda raw: traces.parse(_text(raw)),
    "retry-after": lambda raw: jsonrpc.parse_retry_after(_text(raw), REAL.now(), 60.0),
    "address": lambda raw: check_query(f"https://{_text(raw)}"),
    "command": lambda raw: check_words(_text(raw).split()),
    "secret": lambda raw: holds_secret(*(_text(raw).partition("=")[::2])),
    "sealed text": lambda raw: unseal([bytes(32)], _text(raw), "place"),
    "sealed envelope": lambda raw: unseal([bytes(32)], f"2.{_text(raw)}", "place"),
    "stored bytes": lambda raw: _CIPHER.decrypt((b"\x00a3e2" if len(raw) % 2 else b"\x00a3e1") + raw),
    "audit export": lambda raw: read_lines(
        [b'{"agent3_audit": 1, "keys": []}', *raw.splitlines()], lambda _: lambda *_: None, None
    ),
}


ASIDE = frozenset({"sentence"})
"""Those that run in a thread of their own, beside the loop."""


def decode(name: str, raw: bytes) -> None:
    """One case; whatever it raises beyond a refusal is a fault."""
    try:
        DECODERS[name](raw[:LONGEST])
    except (Agent3Error, Broken):
        pass
