"""Each decoder of foreign text gets its worst case: four times as much of it may not take much more than four times."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any

import pytest

from agent3 import jsonrpc
from agent3.directory import queries
from agent3.directory.meaning import encode_message
from agent3.errors import Agent3Error
from agent3.identity.secret_detection import holds_secret
from agent3.model import Capability
from agent3.observe import logs
from agent3.protocols.mcp.client.answers import content_to_parts
from agent3.protocols.nlweb.commands import join_follow_up
from agent3.protocols.openapi.document import looks_like_openapi
from agent3.schema import compile as compile_schema
from agent3.schema.coercion import from_words
from agent3.security.sanitize import clean_html, clean_text
from agent3.security.sensitive import find_sensitive
from agent3.sentences import find_refusal, free_text, read
from agent3.sentences.phrases import match_phrases

LINEAR, QUADRATIC = 4.0, 16.0
NOTABLE = 0.04
"""Seconds of CPU below which growth is not worth judging."""
TAGS = (
    "<div>",
    "<b>",
    "<ul><li>",
    "<b></p>",
    "<table><tr><td>",
    "<a><b><i><p>",
    "<svg>",
    "<select><option>",
    "<!--",
    "<",
)
WORDS = (
    "Order a pizza. ",
    "'a ",
    "“",
    "(",
    "no ",
    "a.",
    "a/",
    "1,",
    "\n",
    "don't do ",
    "if you can ",
    "http://",
    "a=",
    "\u2018",
    "9",
    "- ",
    " ,",
)
PIZZA = Capability(
    name="order_pizza",
    description="Order a pizza",
    input_schema={
        "type": "object",
        "properties": {"size": {"enum": ["small", "large"]}, "count": {"type": "integer"}, "note": {"type": "string"}},
        "required": ["size"],
    },
)
NOW = datetime(2026, 1, 5)


def repeat(word: str, size: int) -> str:
    return word * (size // len(word))


def repeat_bytes(piece: bytes, size: int) -> bytes:
    return piece * (size // len(piece))


def match_phrase(phrase: str, message: str) -> None:
    """What an agent says of itself, held against a message."""
    for _ in match_phrases(Capability(name="x", phrases=(phrase,)), message):
        pass


def feed_events(piece: bytes, many: int) -> None:
    parser = jsonrpc.SSEParser()
    parser.feed(b"data:" + b"x" * 1_000_000)
    for _ in range(many):
        parser.feed(piece)


def nested(depth: int) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        found = {"type": "object", "properties": {"a": found}}
    return found


def doubled(levels: int) -> dict[str, Any]:
    chain = {f"d{at}": {"allOf": [{"$ref": f"#/$defs/d{at + 1}"}] * 2} for at in range(levels)}
    return {"$ref": "#/$defs/d0", "$defs": {**chain, f"d{levels}": {"type": "string"}}}


def find_kinds(text: str) -> None:
    """What a query speaks of, such as dates."""
    for pattern, _ in queries._KINDS:
        pattern.search(text)


def encode_without_model(text: str) -> None:
    """A message up to where its vector is made, which takes a bounded number of characters."""
    with suppress(NotImplementedError):
        encode_message(NoModel(), text)


class NoModel:
    """Stands where an encoder would."""

    def encode(self, texts: list[str]) -> Any:
        raise NotImplementedError


def repeating(many: int, word: str = "v") -> dict[str, Any]:
    return {
        "content": [{"type": "text", "text": f"{word}{at:07}"} for at in range(many)],
        "structuredContent": {f"k{at}": f"v{at:07}" for at in range(many)},
    }


def hide_echoes(many: int, *, told: bool = True) -> None:
    hiding = find_sensitive(Capability(name="x", meta={"sensitive": True}), b"key")
    assert hiding is not None
    given = {f"k{at}": f"value {at:07}" for at in range(many)}
    if told:
        hiding.hide_echoes([f"nothing {at:07}" for at in range(many)], given)
    else:
        hiding.hide_in_message("nothing " * many, given)


def hide_alternatives(many: int) -> None:
    marked = {"type": "string", "format": "password"}
    schema = {"items": {"anyOf": [{"properties": {"a": marked}} for _ in range(many)]}}
    hiding = find_sensitive(Capability(name="x", input_schema=schema), b"key")
    assert hiding is not None
    hiding.hide_input([{"b": 1} for _ in range(many)])


def attributes(size: int) -> str:
    return "<p " + "".join(f"a{at}=1 " for at in range(size // 8)) + ">"


CASES: dict[str, tuple[Callable[[Any], Any], Callable[[int], Any], int]] = {
    **{f"html {tag}": (clean_html, partial(repeat, tag), 40_000) for tag in TAGS},
    "html attributes": (clean_html, attributes, 40_000),
    **{f"text {char!r}": (clean_text, partial(repeat, char), 100_000) for char in ("\r", "\ufe0f", "a\u200b")},
    **{
        f"{name} {word!r}": (take, partial(repeat, word), 2_000)
        for word in WORDS
        for name, take in (
            ("read", lambda text: read(PIZZA, text, NOW)),
            ("free text", lambda text: free_text(PIZZA, text)),
            ("refusal", lambda text: find_refusal(PIZZA, text)),
        )
    },
    "json depth": (jsonrpc.decode, lambda size: b"[" * size, 200_000),
    "json strings": (jsonrpc.decode, lambda size: b'"\\' * (size // 2), 200_000),
    "json digits": (jsonrpc.decode, lambda size: b"1" * size, 200_000),
    "json numbers": (jsonrpc.decode, lambda size: (b"1" * 63 + b" ") * (size // 64), 200_000),
    "events of one byte": (lambda many: feed_events(b"d", many), int, 5_000),
    "events of blank lines": (lambda many: feed_events(b"\r\n", many), int, 5_000),
    "schema depth": (compile_schema, nested, 200),
    "schema references": (lambda schema: compile_schema(schema).check("x"), doubled, 8),
    **{
        f"phrase {phrase[:9]!r} {word!r}": (partial(match_phrase, phrase), partial(repeat, word), 2_000)
        for phrase in ("{a}" * 9, "{a} to {b} to {c} to {d}!", " ".join(f"{{a{at}}}" for at in range(200)))
        for word in ("a ", " ", "to ", '"', "please ", "a, ")
    },
    **{f"openapi {piece!r}": (looks_like_openapi, partial(repeat_bytes, piece), 16_000) for piece in (b"\n", b"{\n")},
    "results that repeat": (content_to_parts, repeating, 1_000),
    "results that are not repeated": (content_to_parts, lambda many: repeating(many, "other"), 1_000),
    "sensitive echoes": (lambda many: hide_echoes(many), int, 300),
    "sensitive message": (lambda many: hide_echoes(many, told=False), int, 300),
    "sensitive alternatives": (hide_alternatives, int, 300),
    **{
        f"query {piece!r}": (find_kinds, partial(repeat, piece), 10_000)
        for piece in ("1,", "1.", "1,,", "a.", "a@", "a-", "a/", "-1.11", "1:", "$", ".", "word ")
    },
    **{
        f"meaning {piece!r}": (encode_without_model, partial(repeat, piece), 100_000)
        for piece in ("a", "1", "a.", "a@", "@", "a/", "/", ".", "-", "1a-", "_", "http://")
    },
    **{
        f"follow-up {piece!r}": (lambda text: join_follow_up(text, ["order a pizza"]), partial(repeat, piece), 20_000)
        for piece in (" ", ", ", "instead ", "too. ", "and ")
    },
    **{
        f"yes {piece!r}": (partial(from_words, {"type": "boolean"}), partial(repeat, piece), 20_000)
        for piece in (" ", ", ")
    },
    **{
        f"secret {piece!r}": (partial(holds_secret, "x"), partial(repeat, piece), 20_000)
        for piece in ("a", "://", ":", "://a:", "aA1", "?a=")
    },
    "log bearer": (logs.scrub, partial(repeat, "bearer "), 100_000),
    "log password": (logs.scrub, partial(repeat, "password="), 100_000),
    "log quote": (logs.scrub, partial(repeat, "secret='"), 100_000),
}


def measure(take: Callable[[Any], Any], given: Any) -> float:
    began = time.thread_time()
    with suppress(Agent3Error, ValueError):
        take(given)
    return time.thread_time() - began


@pytest.mark.parametrize("kind", sorted({name.partition(" ")[0] for name in CASES}))
def test_the_worst_case_of_a_decoder_is_linear_or_refused(kind: str) -> None:
    for name, (take, make, size) in CASES.items():
        if not name.startswith(kind):
            continue
        measure(take, make(size // 4))  # whatever is loaded or compiled the first time
        small, large = (min(measure(take, make(many)) for _ in range(2)) for many in (size, 4 * size))
        bound = (LINEAR + QUADRATIC) / 2
        assert large < NOTABLE or large < bound * small, (name, small, large)


def test_html_that_is_nested_without_end_becomes_text_and_a_long_page_stays_a_page() -> None:
    hostile = "<div>" * 40_000 + "<script>alert(1)</script><img src=x onerror=y>hello"
    cleaned = clean_html(hostile)
    assert "<" not in cleaned
    assert cleaned.strip().endswith("hello")
    page = "<p>one</p>" * 5_000 + "<ul>" + "<li>two" * 5_000 + "</ul>" + "<br>" * 500 + "<b>three</b>"
    assert clean_html(page).count("<p>") == 5_000
    assert clean_html(page).endswith("<b>three</b>")
