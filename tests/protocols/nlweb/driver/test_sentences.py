"""Sentences into clauses, and clauses into targets."""

from __future__ import annotations

import pytest

from agent3.protocols.nlweb.driver.sentences import Target, parse_sentence, read_targets


@pytest.mark.parametrize(
    ("sentence", "verbs"),
    [
        ("Click button ONE, then click button TWO, please.", ["press", "press"]),
        ('Type "press Submit, then go" into the box and press Submit.', ["write", "press"]),
        ("Select Trinidad and Tobago from the list and click Submit.", ["choose", "press"]),
        ("Busca la oferta y haz clic en Enviar", ["search", "press"]),
        ("For Ana, click Save", ["", "press"]),
    ],
)
def test_a_sentence_is_split_where_something_new_is_to_be_done(sentence: str, verbs: list[str]) -> None:
    assert [clause.verb for clause in parse_sentence(sentence)] == verbs


def test_quoted_texts_are_never_split() -> None:
    (typed, pressed) = parse_sentence('Enter "a, then click b" as “it\'s” and press "OK"')
    assert (typed.quotes, pressed.quotes) == (("a, then click b", "it's"), ("OK",))
    assert typed.text == 'Enter "a, then click b" as "it\'s"'
    assert (pressed.restore(pressed.rest), typed.restore(typed.rest)) == ("OK", None)


def test_no_character_of_a_sentence_is_taken_for_a_quoted_text() -> None:
    (clause,) = parse_sentence("click \x027\x03")
    assert (clause.rest, clause.quotes) == ("7", ())


@pytest.mark.parametrize(
    ("sentence", "target"),
    [
        ("click the 2nd checkbox", Target("", ("checkbox", "switch"), 2)),
        ("click the last link", Target("", ("link",), -1)),
        ("click button ONE", Target("ONE", ("button",))),
        ("click First steps", Target("First steps")),
        ("click the second Details link", Target("Details", ("link",), 2)),
        ('click on the link "Last link"', Target("Last link", ("link",))),
        ("click Delete in the row of Bob", Target("Delete", (), None, "Bob")),
        ('click the "Save" button for "Ann Lee"', Target("Save", ("button",), None, "Ann Lee")),
    ],
)
def test_a_target_has_a_name_a_kind_a_number_and_a_place(sentence: str, target: Target) -> None:
    (clause,) = parse_sentence(sentence)
    assert target in read_targets(clause, clause.rest)


def test_a_quoted_name_is_the_whole_name() -> None:
    (clause,) = parse_sentence('click "Save" draft')
    assert not [target for target in read_targets(clause, clause.rest) if target.name]
