"""The names that other rooms may take from this one."""

from __future__ import annotations

import subprocess
import sys

import pytest

from agent3.protocols import mcp


@pytest.mark.parametrize("name", mcp.__all__)
def test_every_name_of_the_room_is_there(name: str) -> None:
    assert getattr(mcp, name) is not None
    assert name in dir(mcp)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        mcp.Nothing  # noqa: B018


def test_a_server_that_does_not_serve_loads_no_sdk() -> None:
    code = (
        "import sys; from agent3.protocols.mcp import MCPServer; MCPServer(name='x').tool(lambda: 1, name='t'); "
        "print('mcp' in sys.modules or 'mcp_types' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "False"
