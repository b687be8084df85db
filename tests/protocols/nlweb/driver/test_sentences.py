"""Sentences into clauses, and clauses into targets."""

from __future__ import annotations

import pytest

from agent3.protocols.nlweb.driver import is_restricted
from agent3.protocols.nlweb.driver.matching import similarity
from agent3.protocols.nlweb.driver.sentences import parse_sentence, parse_target


@pytest.mark.parametrize(
    ("sentence", "verbs"),
    [
        ("Click button ONE, wait 2 seconds, then click button TWO.", ["click", "wait", "click"]),
        ('Type "press Submit, then go" into the box and press Submit.', ["type", "click"]),
        ("Select Trinidad and Tobago from the list and click Submit.", ["select", "click"]),
        ("Busca la oferta y haz clic en Enviar", ["search", "click"]),
        ("For Ana, click Save", ["", "click"]),
    ],
)
def test_a_sentence_is_split_where_something_new_is_to_be_done(sentence: str, verbs: list[str]) -> None:
    assert [clause.verb for clause in parse_sentence(sentence)] == verbs


def test_quoted_texts_are_never_split() -> None:
    (typed, pressed) = parse_sentence('Enter "a, then click b" as “it\'s” and press "OK"')
    assert (typed.quotes, pressed.quotes) == (("a, then click b", "it's"), ("OK",))
    assert typed.text == 'Enter "a, then click b" as "it\'s"'
    assert [pressed.restore(pressed.rest), pressed.is_quoted(pressed.rest)] == ["OK", True]


def test_no_character_of_a_sentence_is_taken_for_a_quoted_text() -> None:
    (clause,) = parse_sentence("click \x027\x03")
    assert (clause.rest, clause.quotes) == ("7", ())


@pytest.mark.parametrize(
    ("sentence", "name", "role", "ordinal"),
    [
        ("click the 2nd checkbox", "", "checkbox", 2),
        ("click the last link", "", "link", -1),
        ("click button ONE", "ONE", "button", None),
        ("click on the link", "", "link", None),
        ("click the second Details link", "Details", "link", 2),
        ('click on the link "Last link"', "Last link", "link", None),
    ],
)
def test_a_target_has_a_name_a_kind_and_a_place(sentence: str, name: str, role: str, ordinal: int | None) -> None:
    (clause,) = parse_sentence(sentence)
    found = parse_target(clause, clause.rest)
    assert found is not None
    assert (found.name, found.role, found.ordinal) == (name, role, ordinal)


def test_words_beside_a_quoted_name_are_not_ignored() -> None:
    for sentence in ('click "Save" for Ana', 'click "Save" in "Profile"'):
        (clause,) = parse_sentence(sentence)
        assert parse_target(clause, clause.rest) is None


@pytest.mark.parametrize(
    ("sentence", "restricted"),
    [
        ("don't click Save", True),
        ("type Ann into name but do not save", True),
        ("click Save if it is free", True),
        ("pulsa Guardar salvo que sea gratis", True),
        ('click "Don\'t save" and click Not now', False),
        ("click No", False),
        ("click Notes", False),
    ],
)
def test_a_sentence_that_forbids_or_sets_a_condition_is_known(sentence: str, restricted: bool) -> None:
    assert is_restricted(sentence) is restricted


def test_the_same_name_is_nearer_than_one_that_holds_it_and_a_similar_one_is_none() -> None:
    names = ["Save", "save", "Save!", "Save as"]
    assert sorted(names, key=lambda name: -similarity("Save", name)) == names
    assert similarity("Buy", "Purchase") > 0.6
    assert [similarity("Order 12", "Order 13"), similarity("Save", "Delete"), similarity("Save all", "Save")] == [0] * 3
