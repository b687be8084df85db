"""The page of reference against the code."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import agent3.llm
from agent3.llm import Anthropic, OpenAICompatible, run

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "llm.md").read_text("utf-8")


def test_every_public_name_is_in_the_reference() -> None:
    words = set(re.findall(r"\w+", PAGE))
    assert [name for name in agent3.llm.__all__ if name not in words] == []


def test_every_option_of_the_loop_is_in_the_reference_with_its_default_and_no_other() -> None:
    table = PAGE.partition("## The loop")[2]
    told = dict(re.findall(r"^\| `(\w+)` \| (\w+) \|", table, re.MULTILINE))
    real = {
        name: "none" if one.default is None else f"{one.default:g}"
        for name, one in inspect.signature(run).parameters.items()
        if one.kind is inspect.Parameter.KEYWORD_ONLY
    }
    assert told == real


def test_every_parameter_of_an_adapter_is_in_the_reference_and_no_other() -> None:
    for adapter in (OpenAICompatible, Anthropic):
        (shown,) = re.findall(rf"^\| `{adapter.__name__}\((.*?)\)`", PAGE, re.MULTILINE)
        told = [re.split(r"[=\s]", one.strip())[0] for one in shown.split(",") if one.strip() != "*"]
        assert told == list(inspect.signature(adapter).parameters)
