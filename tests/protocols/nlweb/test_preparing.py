"""What is asked of an interface is judged before anything happens, in the words of the gateway."""

from __future__ import annotations

from typing import Any

import pytest

from agent3.definitions import NLWebInterface
from agent3.errors import ValidationError
from agent3.nlweb import NLWebExecutor
from agent3.protocols.nlweb.steps.parameters import prepare

SCHEMA = {
    "type": "object",
    "properties": {
        "number": {"type": "integer", "minimum": 1, "maximum": 30},
        "topic": {"type": "string", "enum": ["order", "return"], "default": "order"},
    },
    "required": ["number"],
}
PLANTS = NLWebInterface.from_document(
    {
        "interface_id": "plants",
        "name": "Plants",
        "base_url": "https://plants.example",
        "actions": {"plant": [{"action_type": "navigate", "value": "/plant/{number}?{topic}"}]},
        "info": {"plant": {"input_schema": SCHEMA}},
    }
)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"number": 99}, "number"),
        ({"number": "abc"}, "integer"),
        ({"number": 3, "topic": "foo"}, "topic"),
        ({}, "Missing required parameter"),
    ],
)
def test_the_schema_of_the_file_holds_before_the_first_step(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        prepare(PLANTS, "plant", given)
    with pytest.raises(ValidationError, match=words):  # before it is seen that there is no browser
        NLWebExecutor(PLANTS).execute_action("plant", given)


def test_what_fits_is_given_with_its_defaults() -> None:
    assert prepare(PLANTS, "plant", {"number": 3})[1] == {"number": 3, "topic": "order"}
