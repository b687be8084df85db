"""A sample of the examination of healing; all of it is run with python -m bench healing."""

from __future__ import annotations

import asyncio

import pytest

from bench import healing, redesigned
from bench.contents import PAGES


def test_cases_are_the_same_for_the_same_seeds_and_differ_between_them() -> None:
    targets = [("shop", "add"), ("login", "go")]
    assert healing.make_cases(targets, range(50)) == healing.make_cases(targets, range(50))
    kinds = {kind for case in healing.make_cases(targets, range(200)) for kind in case.kinds}
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
    assert healing.summarize(found) == {"precision": 0.75, "coverage": 0.75, "restraint": 0.5}


@pytest.mark.browser
@pytest.mark.requirement("RF-013-54")
def test_of_a_sample_of_redesigned_pages_no_element_is_taken_wrongly_and_most_are_found() -> None:
    found = asyncio.run(healing.examine(range(healing.SEED, healing.SEED + 30)))
    ratios = healing.summarize(found)
    assert ratios["precision"] == 1.0
    assert (ratios["coverage"] or 0) >= 0.6


# Pages that are drawn anew


def test_a_page_that_is_drawn_anew_has_the_element_once_or_not_at_all() -> None:
    contents = {page.name: page for page in PAGES}
    for page in PAGES:
        drawn = redesigned.draw(page)
        assert all(drawn.count(f'id="{key.replace("~", "-")}"') == 1 for key in redesigned.targets(page))
    for case in healing.make_unseen_cases(range(300)):
        drawn = redesigned.draw(contents[case.page], case.target, case.kinds, case.seed)
        assert drawn.count("data-truth") == (0 if case.removed else 1), case
        assert drawn == redesigned.draw(contents[case.page], case.target, case.kinds, case.seed)
        assert f'id="{case.target.replace("~", "-")}"' not in drawn


def test_every_kind_of_redesign_and_every_page_comes_up() -> None:
    chosen = healing.make_unseen_cases(range(400))
    assert {kind for case in chosen for kind in case.kinds} == {"renamed", *redesigned.KINDS, *redesigned.GONE}
    assert {case.page for case in chosen} == {page.name for page in PAGES}


@pytest.mark.browser
@pytest.mark.requirement("RF-013-54")
def test_of_a_sample_of_pages_that_were_never_tuned_on_no_element_is_taken_wrongly() -> None:
    found = asyncio.run(healing.examine_unseen(healing.make_unseen_cases(range(healing.UNSEEN, healing.UNSEEN + 20))))
    ratios = healing.summarize(found)
    assert ratios["precision"] == 1.0
    assert (ratios["coverage"] or 0) > 0.2


@pytest.mark.browser
@pytest.mark.requirement("RF-013-54")
def test_of_a_sample_of_named_rows_those_that_are_gone_are_not_replaced_and_those_that_stay_are_found() -> None:
    found = asyncio.run(healing.examine_named(range(healing.NAMED, healing.NAMED + 20)))
    assert healing.summarize(found) == {"precision": 1.0, "coverage": 1.0, "restraint": 1.0}
