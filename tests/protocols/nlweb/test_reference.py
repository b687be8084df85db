"""The reference of interfaces: every field and every kind of step, and what is shown can be read."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from pydantic import BaseModel

from agent3.definitions import (
    ActionHints,
    ActionType,
    Condition,
    ExtractField,
    NLWebAction,
    NLWebActionInfo,
    NLWebInterface,
)
from agent3.protocols.nlweb.authoring import files

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "reference" / "nlweb.md").read_text("utf-8")
SHOWN = [
    block
    for page in (PAGE, (DOCS / "how-to" / "websites.md").read_text("utf-8"))
    for block in re.findall(r"^```yaml[^\n]*\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
]


def tables() -> dict[str, set[str]]:
    """The words of the first column of each table, by the heads of the first columns."""
    found: dict[str, set[str]] = {}
    for head, body in re.findall(r"^\| (?!`|---)([^|]+) \|[^\n]*\n\| ---[^\n]*\n((?:\|[^\n]*\n)+)", PAGE, re.MULTILINE):
        words = {word for row in body.splitlines() for word in re.findall(r"`(\w+)`", row.split("|")[1])}
        found[head] = found.get(head, set()) | words
    return found


def fields(*models: type[BaseModel]) -> set[str]:
    return {one.alias or name for model in models for name, one in model.model_fields.items()}


def test_every_field_and_every_kind_of_step_is_told_and_no_other() -> None:
    told = tables()
    assert told["Kind"] == {one.value for one in ActionType}
    assert told["Field of a step"] == fields(NLWebAction)
    assert told["Hint"] == fields(ActionHints)
    assert told["Field"] == fields(NLWebInterface, NLWebActionInfo, Condition, ExtractField)


@pytest.mark.parametrize("text", SHOWN, ids=range(len(SHOWN)))
def test_interfaces_and_steps_that_are_shown_can_be_read(text: str) -> None:
    shown: Any = yaml.safe_load(text)
    if isinstance(shown, list):
        shown = {"actions": {"shown": shown}}
    base = {"interface_id": "x", "name": "X", "base_url": "https://x.example"}
    interface = files.parse(yaml.safe_dump({**base, **shown}), "yaml")
    assert interface.actions or interface.metadata
