"""Every requirement has a test or says what it waits for, and every test names requirements that exist."""

from __future__ import annotations

from pathlib import Path

from tests.requirements import OPEN, TITLES, marked

TESTS = Path(__file__).parent


def test_every_requirement_has_a_test_or_says_what_it_waits_for() -> None:
    spoken_for = marked(TESTS)
    silent = sorted(one for one in TITLES if one not in spoken_for and one not in OPEN)
    assert silent == []


def test_nothing_that_has_a_test_is_still_called_open() -> None:
    assert sorted(set(OPEN) & set(marked(TESTS))) == []


def test_every_id_that_a_test_names_exists() -> None:
    assert sorted(set(marked(TESTS)) - set(TITLES)) == []
    assert sorted(set(OPEN) - set(TITLES)) == []


def test_the_list_is_complete() -> None:
    families = {"RF-013-": 63, "RT-014-": 34, "AC-": 30, "SP-": 24, "SL-": 14}
    assert {family: sum(one.startswith(family) for one in TITLES) for family in families} == families
