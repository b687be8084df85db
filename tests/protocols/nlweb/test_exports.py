"""The names that other rooms may take from this one."""

from __future__ import annotations

import subprocess
import sys

import pytest

from agent3.protocols import nlweb


@pytest.mark.parametrize("name", nlweb.__all__)
def test_every_name_of_the_room_is_there(name: str) -> None:
    assert getattr(nlweb, name) is not None
    assert name in dir(nlweb)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        nlweb.Nothing  # noqa: B018


def test_an_executor_that_starts_no_browser_loads_no_playwright() -> None:
    code = "import sys; from agent3.protocols.nlweb import NLWebExecutor; print('playwright' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "False"
