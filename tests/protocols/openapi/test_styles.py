"""Styles of parameters: what is written is read back as the standard says, for any value."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent3.errors import ValidationError
from agent3.protocols.openapi.http_request import File, Request, build_request
from agent3.protocols.openapi.operations import Operation, Parameter
from agent3.protocols.openapi.styles import to_pairs, to_path
from tests.support.services import serving

# The examples of the standard, by style, explode, and the value.
BLACK, LIST, OBJECT = "blue", ["blue", "black", "brown"], {"R": 100, "G": 200, "B": 150}
STANDARD = [
    ("path", "matrix", False, BLACK, ";color=blue"),
    ("path", "matrix", False, LIST, ";color=blue,black,brown"),
    ("path", "matrix", False, OBJECT, ";color=R,100,G,200,B,150"),
    ("path", "matrix", True, LIST, ";color=blue;color=black;color=brown"),
    ("path", "matrix", True, OBJECT, ";R=100;G=200;B=150"),
    ("path", "label", False, BLACK, ".blue"),
    ("path", "label", False, LIST, ".blue,black,brown"),
    ("path", "label", False, OBJECT, ".R,100,G,200,B,150"),
    ("path", "label", True, LIST, ".blue.black.brown"),
    ("path", "label", True, OBJECT, ".R=100.G=200.B=150"),
    ("path", "simple", False, BLACK, "blue"),
    ("path", "simple", False, LIST, "blue,black,brown"),
    ("path", "simple", False, OBJECT, "R,100,G,200,B,150"),
    ("path", "simple", True, OBJECT, "R=100,G=200,B=150"),
    ("query", "form", False, BLACK, "color=blue"),
    ("query", "form", False, LIST, "color=blue,black,brown"),
    ("query", "form", False, OBJECT, "color=R,100,G,200,B,150"),
    ("query", "form", True, LIST, "color=blue&color=black&color=brown"),
    ("query", "form", True, OBJECT, "R=100&G=200&B=150"),
    ("query", "spaceDelimited", False, LIST, "color=blue%20black%20brown"),
    ("query", "spaceDelimited", False, OBJECT, "color=R%20100%20G%20200%20B%20150"),
    ("query", "pipeDelimited", False, LIST, "color=blue%7Cblack%7Cbrown"),
    ("query", "pipeDelimited", False, OBJECT, "color=R%7C100%7CG%7C200%7CB%7C150"),
    ("query", "deepObject", True, OBJECT, "color[R]=100&color[G]=200&color[B]=150"),
]


@pytest.mark.parametrize(("place", "style", "explode", "value", "expected"), STANDARD)
def test_the_examples_of_the_standard(place: str, style: str, explode: bool, value: Any, expected: str) -> None:
    if place == "path":
        assert to_path("color", value, style, explode) == expected
    else:
        assert "&".join(f"{name}={text}" for name, text in to_pairs("color", value, style, explode)) == expected


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
NAME = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=10)
SCALAR = st.one_of(TEXT, st.integers(-(2**53), 2**53), st.booleans())


def plain(value: Any) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


def pairs_of(query: str) -> list[tuple[str, str]]:
    return [(name, value) for name, _, value in (pair.partition("=") for pair in query.split("&") if pair)]


def build(parameter: Parameter, value: Any, path: str = "/x") -> Request:
    async def fetch(artifact: str) -> File:
        raise AssertionError(artifact)

    operation = Operation("GET", path, (parameter,))
    given = {parameter.name: value}
    return asyncio.run(build_request(operation, "http://h", given, fetch=fetch, boundary="b"))


@given(NAME, st.lists(SCALAR, min_size=1, max_size=5), st.sampled_from(["form", "spaceDelimited", "pipeDelimited"]))
def test_lists_come_back_from_a_query(name: str, values: list[Any], style: str) -> None:
    for explode in (True, False):
        url = build(Parameter(name, "query", style, explode), values).url
        found = pairs_of(url.partition("?")[2])
        assert {unquote(key) for key, _ in found} == {name}
        separator = {"form": ",", "spaceDelimited": "%20", "pipeDelimited": "%7C"}[style]
        if explode:
            read = [unquote(text) for _, text in found]
            assert read == [plain(value) for value in values]
        elif style == "form" or not any(" " in plain(value) or "|" in plain(value) for value in values):
            # The other two styles cannot tell a separator from the same letter in a value; the standard says so.
            ((_, text),) = found
            assert [unquote(piece) for piece in text.split(separator)] == [plain(value) for value in values]


@given(NAME, st.dictionaries(NAME, SCALAR, min_size=1, max_size=4))
def test_objects_come_back_from_a_query(name: str, value: dict[str, Any]) -> None:
    expected = {key: plain(one) for key, one in value.items()}
    spread = pairs_of(build(Parameter(name, "query", "form", True), value).url.partition("?")[2])
    assert {unquote(key): unquote(text) for key, text in spread} == expected
    ((_, text),) = pairs_of(build(Parameter(name, "query", "form", False), value).url.partition("?")[2])
    pieces = [unquote(piece) for piece in text.split(",")]
    assert dict(zip(pieces[::2], pieces[1::2], strict=True)) == expected
    deep = pairs_of(build(Parameter(name, "query", "deepObject", True), value).url.partition("?")[2])
    assert {unquote(key.partition("[")[2].removesuffix("]")): unquote(text) for key, text in deep} == expected
    assert {unquote(key.partition("[")[0]) for key, _ in deep} == {name}


@given(TEXT)
def test_a_text_in_a_path_stays_one_piece_of_it_or_is_refused(value: str) -> None:
    try:
        url = build(Parameter("id", "path", "simple"), value, "/users/{id}/notes").url
    except ValidationError:
        assert value in ("", ".", "..")
        return
    before, piece, after = url.removeprefix("http://h/").split("/")
    assert (before, unquote(piece), after) == ("users", value, "notes")
    assert piece not in (".", "..")


@given(st.one_of(st.none(), SCALAR, st.lists(SCALAR, max_size=4), st.dictionaries(NAME, SCALAR, max_size=3)))
def test_a_header_never_holds_what_ends_it(value: Any) -> None:
    try:
        request = build(Parameter("X-Value", "header", "simple"), value)
    except ValidationError:
        return
    assert all(text.isascii() and text.isprintable() for text in request.headers.values())


def test_what_is_sent_is_what_a_real_server_reads() -> None:
    """Through the outbound gate and a real socket: no part of the way changes an encoding."""
    from agent3.security.outbound import Gate, Policy

    values = ["a b", "ä/ö", "100%", "x&y=z", "#?", "%2e%2e", "+", "'\"<>", "\u200b", ";,|"]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def main(url: str) -> None:
        gate = Gate(Policy(allow_loopback=True))

        async def fetch(artifact: str) -> File:
            raise AssertionError(artifact)

        parameters = (Parameter("id", "path", "simple"), Parameter("q", "query", "form", True))
        for value in values:
            operation = Operation("GET", "/p/{id}/x", parameters)
            request = await build_request(operation, url, {"id": value, "q": [value]}, fetch=fetch, boundary="b")
            await gate.request(request.method, request.url)
        await gate.aclose()

    with serving(app) as service:
        asyncio.run(main(service.url))
        for value, (_, target, _, _) in zip(values, service.requests, strict=True):
            path, _, query = target.partition("?")
            assert unquote(path.removeprefix("/p/").removesuffix("/x")) == value
            assert [(name, unquote(text)) for name, text in pairs_of(query)] == [("q", value)]


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_the_status_of_an_answer_is_under_both_of_its_names(method: str) -> None:
    from agent3.protocols.openapi.answers import result_of
    from agent3.security.outbound import Response

    meta = result_of(Response(204, {}, b"", "http://x"), method).meta
    assert (meta["status"], meta["http_status"]) == (204, 204)
