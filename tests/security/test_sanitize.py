"""What is cleaned, what is kept, and that clean things are not copied."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from agent3.model import Artifact, Done, Failed, Needs, Outcome, Part, Question, Working
from agent3.security import sanitize
from agent3.security.sanitize import clean_html, clean_outcome, clean_part, clean_text, clean_value, escape_text


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("a\U000e0041\U000e007fb", "ab"),
        ("pay\u202e001\u202c", "pay001"),
        ("\u2066x\u2069\u200e\u200f\u061c", "x"),
        ("ze\u200bro\u2060 wid\ufeffth", "zero width"),
        ("bell\x07 esc\x1b[31m nul\x00 del\x7f c1\x85\x9b", "bell esc[31m nul del c1"),
        ("one\r\ntwo\rthree\n\tfour", "one\ntwo\nthree\n\tfour"),
        ("lone \ud83d surrogate", "lone  surrogate"),
        ("a\ufe0f\ufe0e\U000e0100\U000e0101b", "a\ufe0fb"),
        ("\u200b", ""),
    ],
)
def test_what_cannot_be_seen_goes(text: str, cleaned: str) -> None:
    assert clean_text(text) == cleaned
    assert clean_text(cleaned) is cleaned


@pytest.mark.parametrize(
    "text",
    [
        "",
        "plain ASCII",
        "two\nlines\tand a tab",
        "Grüße, 你好, שלום, Привет",
        "family \U0001f468\u200d\U0001f469\u200d\U0001f467",
        "heart \u2764\ufe0f",
        "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",
        "non\u00a0breaking",
        "葛\U000e0100",
    ],
)
def test_clean_text_is_the_same_object(text: str) -> None:
    assert clean_text(text) is text


def test_the_quick_test_misses_no_hidden_character() -> None:
    hidden = re.compile(f"[{sanitize._CHARACTERS}]")
    characters = [chr(code) for code in range(0x110000) if hidden.match(chr(code))]
    assert len(characters) > 2000
    assert not [character for character in characters if clean_text(f"a{character}b") not in ("ab", "a\nb")]


def test_html_loses_what_acts_and_what_reports() -> None:
    dirty = (
        '<p onclick="x()">Hi <script>steal()</script><b>there</b><img src="https://evil.test/?q=secret" alt="cat">'
        '<a href="javascript:x()">one</a><a href="https://ok.test/">two</a><!-- note --><style>p{}</style>'
        "<iframe src='//evil.test'></iframe>&#x202e;&#8203;end</p>"
    )
    cleaned = clean_html(dirty)
    for gone in ("onclick", "script", "steal", "src", "evil", "javascript", "note", "style", "\u202e", "\u200b"):
        assert gone not in cleaned
    for kept in ("<b>there</b>", 'alt="cat"', "https://ok.test/", "end"):
        assert kept in cleaned


def test_harmless_html_is_the_same_object() -> None:
    html = "<p>Hello <b>world</b></p>"
    assert clean_html(html) is html


def test_a_clean_value_is_the_same_object_at_any_size() -> None:
    value = {"a": ["x", {"b": "y", "n": 1, "f": 1.5, "z": None, "t": True}], "c": ("d",), "raw": b"\x00"}
    assert clean_value(value) is value
    plain: Any
    for plain in (None, 1, True, 1.5, [], {}, "x"):
        assert clean_value(plain) is plain


def test_a_dirty_value_is_rebuilt_and_the_original_left_alone() -> None:
    value: dict[str, Any] = {"a": ["x\u200b", {"b\u202e": "y", "n": 1}], "clean": ["z"]}
    assert clean_value(value) == {"a": ["x", {"b": "y", "n": 1}], "clean": ["z"]}
    assert value["a"][0] == "x\u200b"
    assert clean_value(["\x00", ("\x00a",)]) == ["", ["a"]]


def test_of_two_keys_that_look_alike_the_plain_one_counts() -> None:
    assert clean_value({"to\u200b": "thief", "to": "me"}) == {"to": "me"}
    assert clean_value({"to": "me", "to\u200b": "thief"}) == {"to": "me"}


def test_depth_does_not_exhaust_the_stack_and_circles_end() -> None:
    deep: Any = "x\u200b"
    for _ in range(100_000):
        deep = [deep]
    cleaned = clean_value(deep)
    while isinstance(cleaned, list):
        (cleaned,) = cleaned
    assert cleaned == "x"
    while isinstance(deep, list):  # taken apart here, since freeing it is recursive too
        deep = deep.pop()
    circle: dict[str, Any] = {"t": "x"}
    circle["self"] = circle
    assert clean_value(circle) is circle
    circle["t"] = "x\u200b"
    again = clean_value(circle)
    assert again["t"] == "x"
    assert again["self"] is again


def test_the_part_says_how_its_text_is_cleaned() -> None:
    html = "<script>x</script>hi"
    assert clean_part(Part(text=html)).text == html
    for media in ("text/html", "Text/HTML; charset=utf-8", "application/xhtml+xml"):
        assert clean_part(Part(text=html, media_type=media)).text == "hi"
        assert clean_part(Part(raw=html.encode(), media_type=media)).raw == b"hi"
    assert clean_part(Part(raw=b"a\xe2\x80\x8bb", media_type="text/plain")).raw == b"ab"
    image = Part(raw=b"\x89PNG\x00\x1b", media_type="image/png", name="a.png", url="https://x.test/")
    assert clean_part(image) is image


OUTCOMES: list[tuple[Outcome, Outcome]] = [
    (
        Done(
            parts=(Part(text="a\u200b"), Part(data={"k": "\x00"}), Part(text="ok", name="n\u202e", meta={"m": "\x01"})),
            artifacts=(Artifact("1", name="x\u200b", description="\x02d", parts=(Part(text="\u2060y"),)),),
            meta={"from": "x\ufeff"},
        ),
        Done(
            parts=(Part(text="a"), Part(data={"k": ""}), Part(text="ok", name="n", meta={"m": ""})),
            artifacts=(Artifact("1", name="x", description="d", parts=(Part(text="y"),)),),
            meta={"from": "x"},
        ),
    ),
    (
        Failed("c\x00", "no\u202e", sent=False, data={"d": "\u200bx"}, parts=(Part(text="p\x1b"),)),
        Failed("c", "no", sent=False, data={"d": "x"}, parts=(Part(text="p"),)),
    ),
    (
        Needs((Question("q\u200b", "sure\u202e?", {"title": "t\x00"}, "https://x.test/\x00"),), {"s": "\u200b"}),
        Needs((Question("q\u200b", "sure?", {"title": "t"}, "https://x.test/"),), {"s": "\u200b"}),
    ),
    (Working({"s": "\u200b"}, text="go\u200b"), Working({"s": "\u200b"}, text="go")),
]


@pytest.mark.parametrize(("dirty", "cleaned"), OUTCOMES)
def test_an_outcome_is_cleaned_in_every_word_but_its_own_references(dirty: Outcome, cleaned: Outcome) -> None:
    assert clean_outcome(dirty) == cleaned
    assert clean_outcome(cleaned) is cleaned


def test_only_what_is_too_long_is_cut_and_the_note_says_how_much() -> None:
    short, long = Part(text="x" * 10), Part(text="y" * 1234)
    outcome = clean_outcome(Done(parts=(short, long, Part(data={"k": "z" * 11}))), max_text=10)
    assert isinstance(outcome, Done)
    assert outcome.parts[0] is short
    assert outcome.parts[1].text == "y" * 10 + "\n[1,224 of 1,234 characters left out: longer than the limit of 10]"
    assert outcome.parts[2].data["k"].startswith("z" * 10 + "\n[1 of 11 ")
    page = clean_part(Part(text="<b>" + "x" * 20, media_type="text/html"), max_text=8)
    assert page.text is not None
    assert page.text.startswith("<b>xxxxx</b>\n[15 of 23 ")


def test_what_was_cleaned_can_always_be_encoded() -> None:
    outcome = clean_outcome(Done(parts=(Part(text="\ud800a"), Part(data=["\udfff"]))))
    assert msgspec.json.decode(msgspec.json.encode(outcome), type=Done) == outcome


@pytest.mark.parametrize(
    ("text", "shown"),
    [("plain 🍕", "plain 🍕"), ("a\u202eb", "a\\u{202e}b"), ("\x1b[2J", "\\u{1b}[2J"), ("\U000e0041", "\\u{e0041}")],
)
def test_who_has_to_see_everything_sees_the_numbers_of_what_is_hidden(text: str, shown: str) -> None:
    assert escape_text(text) == shown
