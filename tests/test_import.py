"""What an import costs: nothing heavy until something is used."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module

import pytest

import agent3

SDKS = "mcp mcp_types playwright asyncpg starlette uvicorn aiohttp prometheus_client opentelemetry grpc".split()
HEAVY = [*SDKS, "pydantic", "msgspec", "cyclopts", "rich", "asyncio"]


def loaded_by(code: str, *arguments: str) -> set[str]:
    """The top-level modules after some code has run in a fresh interpreter."""
    tail = "\nimport sys, json; sys.__stdout__.write('\\n' + json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code + tail, *arguments], capture_output=True, text=True, timeout=240, check=True
    )
    return {name.partition(".")[0] for name in json.loads(done.stdout.splitlines()[-1])}


def test_importing_agent3_loads_nothing_heavy() -> None:
    assert not loaded_by("import agent3") & set(HEAVY)


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_the_help_of_the_command_loads_no_sdk(option: str) -> None:
    code = (
        "import sys\nsys.argv[0] = 'agent3'\nfrom agent3.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code\n"
    )
    assert not loaded_by(code, option) & set(SDKS)


def test_the_documented_data_classes_load_no_sdk() -> None:
    names = "ToolDefinition, ToolParameter, AgentCard, A2AMessage, NLWebInterface, ValidationError"
    assert not loaded_by(f"from agent3 import {names}") & set(SDKS)


def test_the_library_classes_load_no_foreign_protocol() -> None:
    loaded = loaded_by("from agent3 import MCPServer, MCPClient, AgentExecutor, AgentRegistry, LocalAgent")
    assert not loaded & {"mcp", "mcp_types", "playwright", "asyncpg", "starlette", "uvicorn"}


@pytest.mark.parametrize("name", [name for name in agent3.__all__ if name != "__version__"])
def test_every_documented_name_is_there_and_is_the_one_of_its_module(name: str) -> None:
    value = getattr(agent3, name)
    assert value is getattr(import_module(value.__module__), name)
    assert name in dir(agent3)


def test_the_list_of_names_and_their_homes_agree() -> None:
    assert {*dir(agent3), "__version__"} == set(agent3.__all__)


def test_an_unknown_name_is_an_attribute_error_as_everywhere() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = agent3.Nothing
