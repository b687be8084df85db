"""Every decoder of what strangers send, as a function of bytes: it answers, or refuses with an error of ours."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from typing import Any, cast

from agent3 import jsonrpc
from agent3.calls import webhooks
from agent3.calls.audit import Broken, read_lines
from agent3.definitions import AgentCard
from agent3.directory.choice import Choices, index_capabilities
from agent3.env import REAL
from agent3.errors import Agent3Error
from agent3.gateway.protocol import Given
from agent3.identity.data_keys import DataCipher
from agent3.identity.nonces import Nonces
from agent3.identity.secret_box import unseal
from agent3.identity.secret_detection import holds_secret
from agent3.identity.secret_refs import check_query, check_words
from agent3.identity.signed_requests import Key, Verifier
from agent3.identity.signed_requests import Request as SignedRequest
from agent3.model import ANONYMOUS, Call, Capability, Question
from agent3.observe import logs, traces
from agent3.protocols.a2a.wire import CODECS
from agent3.protocols.a2a.wire.operations import METHODS as A2A_METHODS
from agent3.protocols.a2a.wire.types import Generation
from agent3.protocols.functions.plans import parse_plan
from agent3.protocols.mcp.client.answers import notification_to_event, result_to_outcome, unwrap_result
from agent3.protocols.mcp.client_files import read_servers
from agent3.protocols.mcp.door.odd_requests import mend_body
from agent3.protocols.nlweb.ask import door
from agent3.protocols.nlweb.ask.wire import fold
from agent3.protocols.nlweb.authoring.files import parse as parse_interface
from agent3.protocols.nlweb.commands import join_follow_up
from agent3.protocols.nlweb.visit.robots import Rules
from agent3.protocols.openapi.document import parse as parse_openapi
from agent3.schema import compile as compile_schema
from agent3.schema.coercion import from_words
from agent3.security.arguments import fits
from agent3.security.sanitize import clean_html, clean_text
from agent3.security.sensitive import find_sensitive
from agent3.sentences import find_refusal, free_text, read
from agent3.sentences.phrases import match_phrases
from agent3.server.compression import unpack

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
_CALL = Call(id="1", principal=ANONYMOUS, agent="a", capability="c")
_VERIFIER = Verifier([Key("me", bytes(32), ANONYMOUS)], Nonces(cast("Any", None)))
_WEBHOOK = "whsec_" + "A" * 32


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


def _read_a2a(generation: Generation, raw: bytes) -> None:
    """As a request of each method, and as what a peer answers and streams."""
    codec, sent = CODECS[generation], None
    value = jsonrpc.decode(raw)
    for method in A2A_METHODS[generation]:
        with suppress(Agent3Error):
            sent = codec.read_request(method, value)
    with suppress(Agent3Error):
        codec.read_item(value)
    if sent is not None:
        codec.read_result(sent, value)


def _read_mcp_result(raw: bytes) -> None:
    value = jsonrpc.decode(raw)
    for given in (value, {"content": value}, {"content": [value], "structuredContent": value}):
        if isinstance(given, dict):
            with suppress(Agent3Error):
                result_to_outcome(unwrap_result(given, None), _CALL)
    notification_to_event("notifications/message", value if isinstance(value, dict) else {"data": value})


def _ask(raw: bytes) -> None:
    value = jsonrpc.decode(raw)
    if isinstance(value, dict):
        with suppress(Agent3Error):
            door._parse_ask(value)
        fold([value])
    door.parse_answers(_text(raw), (Question("q", "?", {"type": "boolean"}), Question("r", "?", {"type": "array"})))


def _unpack(raw: bytes) -> None:
    for encoding in ("gzip", "deflate", "zstd"):
        with suppress(Agent3Error):
            unpack(raw, encoding, 65_536)


def _check_signature(raw: bytes) -> None:
    first, _, second = _text(raw).partition("\n")
    headers = {"signature-input": first, "signature": second, "content-digest": second, "host": "x"}
    with suppress(Agent3Error):
        _VERIFIER.check(SignedRequest("POST", "x", "/", "", headers))
    webhooks.verify(_WEBHOOK, {webhooks.ID: first, webhooks.TIMESTAMP: "1", webhooks.SIGNATURE: second}, raw, now=1.0)


def _read_client_file(raw: bytes) -> None:
    value = _json(raw)
    for document in (
        value,
        {"mcpServers": value},
        {"mcpServers": {"a": value}},
        {"mcpServers": {"a": {"args": [value]}}},
    ):
        with suppress(Agent3Error):
            read_servers(Given("a.json", None, document, None, None))


def _match_arguments(raw: bytes) -> None:
    value = _json(raw)
    for every in (False, True):
        fits({"a": "> 1", "a.b": "x*", "type": "!= y"}, value, every=every)


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
    "a2a 0.1": lambda raw: _read_a2a("0.1", raw),
    "a2a 0.3": lambda raw: _read_a2a("0.3", raw),
    "a2a 1.0": lambda raw: _read_a2a("1.0", raw),
    "agent card": lambda raw: AgentCard.from_wire(jsonrpc.decode(raw)),
    "mcp request": mend_body,
    "mcp result": _read_mcp_result,
    "ask": _ask,
    "packed body": _unpack,
    "signature": _check_signature,
    "client file": _read_client_file,
    "website interface": lambda raw: parse_interface(raw, "yaml"),
    "robots": lambda raw: Rules.parse(_text(raw)).allows("https://x.test/a?b"),
    "arguments": _match_arguments,
    "plan": lambda raw: parse_plan(_json(raw) if isinstance(_json(raw), list) else [{"id": "a", "input": _json(raw)}]),
    "query": lambda raw: index_capabilities([PIZZA]).rank(_text(raw)),
    "chosen capability": lambda raw: Choices([PIZZA]).choose([PIZZA], _text(raw), 0.0),
    "follow-up": lambda raw: join_follow_up(_text(raw), ["order a pizza"]),
    "answer": lambda raw: [from_words({"type": kind}, _text(raw)) for kind in ("boolean", "number", "array", "object")],
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
