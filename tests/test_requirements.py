"""Every requirement has a test or says what it waits for, and every test names requirements that exist."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from tests.requirements import OPEN, TITLES, marked


@cache
def spoken_for() -> dict[str, list[str]]:
    return marked(Path(__file__).parent)


def test_every_requirement_has_a_test_or_says_what_it_waits_for() -> None:
    silent = sorted(one for one in TITLES if one not in spoken_for() and one not in OPEN)
    assert silent == []


def test_nothing_that_has_a_test_is_still_called_open() -> None:
    assert sorted(set(OPEN) & set(spoken_for())) == []


def test_every_id_that_a_test_names_exists() -> None:
    assert sorted(set(spoken_for()) - set(TITLES)) == []
    assert sorted(set(OPEN) - set(TITLES)) == []


@pytest.mark.requirement("RF-013-V1", "RF-013-V2", "RF-013-V3")
def test_each_of_the_sixty_scenarios_has_a_test() -> None:
    for number in range(1, 61):
        assert spoken_for()[f"RF-013-{number:02d}"], number
        assert f"RF-013-{number:02d}" not in OPEN


def test_the_list_is_complete() -> None:
    families = {"RF-013-": 63, "RT-014-": 34, "AC-": 30, "SP-": 24, "SL-": 14}
    assert {family: sum(one.startswith(family) for one in TITLES) for family in families} == families
