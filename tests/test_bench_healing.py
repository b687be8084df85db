"""A sample of the examination of healing; all of it is run with python -m bench healing."""

from __future__ import annotations

import asyncio

import pytest

from bench import healing


def test_cases_are_the_same_for_the_same_seeds_and_differ_between_them() -> None:
    targets = [("shop", "add"), ("login", "go")]
    assert healing.cases(targets, range(50)) == healing.cases(targets, range(50))
    kinds = {kind for one in healing.cases(targets, range(200)) for kind in one.kinds}
    assert kinds == {*healing.KINDS, "removed"}


def test_precision_is_of_what_was_taken_and_coverage_of_what_was_there() -> None:
    there = healing.Case(1, "shop", "add", ("ids",))
    gone = healing.Case(2, "shop", "add", ("ids", "removed"))
    outcomes = [
        (there, "right"),
        (there, "right"),
        (there, "right"),
        (there, "missed"),
        (gone, "wrong"),
        (gone, "rightly nothing"),
    ]
    found = [healing.Finding(case, outcome, 1.0) for case, outcome in outcomes]
    assert (healing._precision(found), healing._coverage(found), healing._restraint(found)) == (0.75, 0.75, 0.5)


@pytest.mark.browser
@pytest.mark.requirement("RF-013-54")
def test_of_a_sample_of_redesigned_pages_no_element_is_taken_wrongly_and_most_are_found() -> None:
    found = asyncio.run(healing.examine(range(healing.SEED, healing.SEED + 30)))
    assert healing._precision(found) == 1.0
    assert (healing._coverage(found) or 0) >= 0.6
