"""Modules that were documented under other paths can still be imported by them."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

from agent3.former_paths import FORMER


@pytest.mark.parametrize("former", FORMER)
def test_a_former_path_gives_the_module_of_today(former: str) -> None:
    module = import_module(former)
    assert module is import_module(FORMER[former])
    assert module.__name__ == FORMER[former]
    assert module.__spec__ is not None
    assert module.__spec__.name == FORMER[former]


def test_a_former_path_can_be_the_first_import_of_a_program() -> None:
    code = "from agent3.a2a.client import A2AClient; import agent3; assert agent3.A2AClient is A2AClient"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=120)


def test_a_path_that_never_was_is_not_found() -> None:
    with pytest.raises(ModuleNotFoundError):
        import_module("agent3.a2a.nothing")
