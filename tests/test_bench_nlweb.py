"""The bench of websites: how its figures are read. No test here judges a speed."""

from __future__ import annotations

import pytest

from bench import nlweb
from bench.harness import load_benches


def test_each_operation_of_the_standard_is_a_row_with_its_target() -> None:
    assert "nlweb" in load_benches()
    for what, (most, least) in nlweb.LIMITS.items():
        kept = nlweb._row(f"ours_{what}", [most / 2_000]).to_dict()
        assert kept["limit_ms"] == most
        assert kept.get("limit_per_minute") == least
        assert kept["met"] is True
        assert nlweb._row(f"ours_{what}", [most / 500]).to_dict()["met"] is False
        assert "met" not in nlweb._row(f"hand_{what}", [1.0]).to_dict()


def test_ratios_are_of_medians_and_none_where_a_side_is_missing() -> None:
    found = nlweb._ratios({"ours_action": [1.0, 1.1, 9.0], "hand_action": [1.0], "ours_extract": [0.1]})
    assert found["overhead_action"] == pytest.approx(1.1)
    assert found["overhead_launch"] is None
    assert found["extract_vs_locators"] is None
