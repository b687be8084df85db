"""Other people's MCP clients against our servers, over HTTP and stdio: the inspector's command line and fastmcp.

They are fetched by name into the user's cache, so this runs only with ``./scripts/interop``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conformance.kits import FASTMCP, INSPECTOR, python_with
from conformance.mcp_suite import fixture_server
from tests.support.gateway import AGENT3, Process, environment, gateway

pytestmark = pytest.mark.skipif(
    os.environ.get("INTEROP_CLIENTS") != "1", reason="fetches from npm and PyPI; run ./scripts/interop"
)
ROOT = Path(__file__).parents[2]
FIXTURE = [sys.executable, "-m", "conformance.mcp_fixture"]
ERAS = ["legacy", "modern", "auto"]


@pytest.fixture(scope="module")
def fixture_url() -> Iterator[str]:
    with fixture_server() as url:
        yield url


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    with gateway(tmp_path_factory.mktemp("others"), "--demo") as running:
        yield running


def said(command: list[str], environ: dict[str, str] | None = None) -> Any:
    """What a command printed, as JSON."""
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def inspect(*arguments: str, environ: dict[str, str] | None = None) -> Any:
    return said([*INSPECTOR.command(), "--cli", *arguments, "--format", "json"], environ)["result"]


def call(tool: str, **arguments: str) -> list[str]:
    given = [f"{name}={value}" for name, value in arguments.items()]
    return ["--method", "tools/call", "--tool-name", tool, *(["--tool-arg", *given] if given else [])]


@pytest.mark.parametrize("era", ERAS)
def test_the_inspector_works_over_http(fixture_url: str, era: str) -> None:
    target = [fixture_url, "--transport", "http", "--protocol-era", era]
    assert inspect(*target, *call("greet", name="Ann"))["content"][0]["text"] == "Hello, Ann!"
    assert "greet" in {tool["name"] for tool in inspect(*target, "--method", "tools/list")["tools"]}
    assert len(inspect(*target, "--method", "prompts/list")["prompts"]) == 5
    assert len(inspect(*target, "--method", "resources/list")["resources"]) == 3


def test_the_inspector_works_over_stdio() -> None:
    assert inspect(*FIXTURE, *call("greet", name="Ann"))["content"][0]["text"] == "Hello, Ann!"


@pytest.mark.parametrize("era", ERAS)
def test_the_inspector_works_with_a_gateway_over_http(served: Process, era: str) -> None:
    target = [f"{served.url}/mcp", "--transport", "http", "--protocol-era", era]
    assert len(inspect(*target, "--method", "tools/list")["tools"]) == 5
    found = inspect(*target, *call("agent3_search", query="pizza"))
    assert not found["isError"]


def test_the_inspector_works_with_a_gateway_over_stdio(served: Process) -> None:
    found = inspect(AGENT3, "mcp", *call("agent3_search", query="pizza"), environ=environment(served.data))
    assert not found["isError"]


def fastmcp(*target: str, environ: dict[str, str] | None = None) -> Any:
    python = python_with(*FASTMCP)
    return said([str(python), str(Path(__file__).with_name("fastmcp_client.py")), *target], environ)


@pytest.mark.parametrize("transport", ["http", "stdio"])
def test_the_fastmcp_client_works(fixture_url: str, transport: str) -> None:
    seen = fastmcp(*([fixture_url] if transport == "http" else FIXTURE))
    assert len(seen["tools"]) > 30
    assert seen["text"] == "This is a simple text response for testing."
    assert seen["failed"] is True
    assert '"username": "ann"' in seen["asked"]
    assert seen["prompt"] == "Prompt with arguments: arg1='a', arg2='b'"
    assert seen["resource"] == "This is the content of the static text resource."


@pytest.mark.parametrize("transport", ["http", "stdio"])
def test_the_fastmcp_client_works_with_a_gateway(served: Process, transport: str) -> None:
    if transport == "http":
        seen = fastmcp(f"{served.url}/mcp")
    else:
        seen = fastmcp(AGENT3, "mcp", environ=environment(served.data))
    assert len(seen["tools"]) == 5
    assert seen["found"]
