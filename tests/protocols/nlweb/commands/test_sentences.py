"""Sentences into clauses, and clauses into targets."""

from __future__ import annotations

import pytest

from agent3.protocols.nlweb.driver.matching import likeness
from agent3.protocols.nlweb.driver.sentences import clauses, target_of


@pytest.mark.parametrize(
    ("sentence", "parts"),
    [
        ("Click button ONE, wait 2 seconds, then click button TWO.", ["click", "wait", "click"]),
        ('Type "press Submit, then go" into the box and press Submit.', ["type", "click"]),
        ("Scroll to the bottom of the text hit submit", ["scroll", "click"]),
        ("Select Trinidad and Tobago from the list and click Submit.", ["select", "click"]),
        ("Busca la oferta y pulsa Enviar", ["search", "click"]),
    ],
)
def test_a_sentence_is_split_where_something_new_is_to_be_done(sentence: str, parts: list[str]) -> None:
    assert [one.verb for one in clauses(sentence)] == parts


def test_quoted_texts_are_never_split() -> None:
    (typed, pressed) = clauses('Enter "a, then click b" and press "OK"')
    assert (typed.quotes, pressed.quotes) == (("a, then click b",), ("OK",))


@pytest.mark.parametrize(
    ("text", "name", "role", "ordinal"),
    [
        ("the 2nd checkbox", "", "checkbox", 2),
        ("the last search result", "", "result", -1),
        ("button ONE", "ONE", "button", None),
        ("on the link", "", "link", None),
    ],
)
def test_a_target_has_a_name_a_kind_and_a_place(text: str, name: str, role: str, ordinal: int | None) -> None:
    found = target_of(text)
    assert (found.name, found.role, found.ordinal) == (name, role, ordinal)


def test_the_same_name_is_nearer_than_a_like_one() -> None:
    names = ["Save", "save", "Save as", "Store", "Delete"]
    assert sorted(names, key=lambda one: -likeness("Save", one)) == names[:3] + sorted(
        names[3:], key=lambda one: -likeness("Save", one)
    )
    assert likeness("Save", "Delete") < 0.3
