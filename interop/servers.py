"""Real MCP servers from npm and PyPI behind a gateway: added on a cold cache, found by a request, called once.

Every server is what its own package manager installs: ``npx`` and ``uvx`` run with a home folder of their own, which
is empty at first. A running gateway with an empty database gets them by ``agent3 add``, as a person would type it;
search and call go to that gateway, which starts each program itself.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

__all__ = ["CASES", "KUBECONFIG", "Case", "Row", "run"]

_ADD = 600.0
"""Seconds for one ``agent3 add`` on a cold cache."""
_CALL = 120.0
_UP = 60.0
_AGENT3 = [sys.executable, "-m", "agent3"]


@dataclass(frozen=True)
class Case:
    """A server, a request that should find its tool, and a call with a right answer. ``{folder}`` and ``{page}`` stand
    for a folder with a git repository, ``hello.txt`` and ``kubeconfig``, and for the address of a page on loopback."""

    name: str
    origin: str
    command: str
    request: str
    tool: str
    input: Mapping[str, Any]
    answer: str


CASES = (
    Case("everything", "npm", "npx -y @modelcontextprotocol/server-everything@2026.8.31", "add two numbers together",
         "get-sum", {"a": 19, "b": 23}, "42"),
    Case("filesystem", "npm", "npx -y @modelcontextprotocol/server-filesystem@2026.8.31 {folder}",
         "read the text of a file", "read_text_file", {"path": "{folder}/hello.txt"}, "a cold cache"),
    Case("memory", "npm", "npx -y @modelcontextprotocol/server-memory@2026.8.31", "create entities in a graph",
         "create_entities", {"entities": [{"name": "Ada", "entityType": "person", "observations": ["wrote"]}]},
         "Ada"),
    Case("thinking", "npm", "npx -y @modelcontextprotocol/server-sequential-thinking@2026.8.31",
         "think through a problem step by step", "sequentialthinking",
         {"thought": "one", "nextThoughtNeeded": False, "thoughtNumber": 1, "totalThoughts": 1}, "thoughtNumber"),
    Case("hello", "npm", "npx -y mcp-hello-world@1.1.2", "say hello from the hello world server", "echo",
         {"message": "good morning"}, "good morning"),
    Case("time", "PyPI", "uvx mcp-server-time@2026.10.19", "convert the time between timezones", "convert_time",
         {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}, "T21:00"),
    Case("fetch", "PyPI", "uvx mcp-server-fetch --ignore-robots-txt --allow-private-ips",
         "fetch a web page from the internet", "fetch", {"url": "{page}"}, "a cold cache"),
    Case("git", "PyPI", "uvx mcp-server-git --repository {folder}", "show the commit logs of a git repository",
         "git_log", {"repo_path": "{folder}"}, "First commit"),
    # It says that it works with any version of the SDK, and does not with the second.
    Case("sqlite", "PyPI", "uvx --with mcp==1.29.1 mcp-server-sqlite --db-path {folder}/shop.db",
         "run a select query on sqlite", "read_query", {"query": "SELECT 6 * 7 AS answer"}, "42"),
    # A program in Go, by the official SDK for Go, and one in Rust, by that for Rust; npm carries both as they are.
    Case("kubernetes", "npm, Go", "npx -y kubernetes-mcp-server@0.0.67 --kubeconfig {folder}/kubeconfig",
         "get the kubernetes configuration", "configuration_view", {"minified": False}, "harbour"),
    Case("nushell", "npm, Rust", "npx -y --package nushell@0.115.1 nu --mcp", "execute a command in nushell",
         "evaluate", {"input": "6 * 7"}, "42"),
    Case("calculator", "PyPI", "uvx mcp-server-calculator", "calculate an arithmetic expression", "calculate",
         {"expression": "6 * 7"}, "42"),
)  # fmt: skip


KUBECONFIG = """
apiVersion: v1
kind: Config
clusters: [{name: harbour, cluster: {server: "https://127.0.0.1:1"}}]
contexts: [{name: harbour, context: {cluster: harbour, user: ada}}]
users: [{name: ada, user: {token: none}}]
current-context: harbour
"""


@dataclass(frozen=True)
class Row:
    """How it went: seconds to add it, whether the search and the call were right, and what was wrong."""

    case: Case
    seconds: float
    added: bool
    found: bool
    called: bool
    note: str = ""

    @property
    def fine(self) -> bool:
        return self.added and self.found and self.called


def run(tell: Callable[[Row], None], names: tuple[str, ...] = ()) -> list[Row]:
    """All servers, or those of some names; each is told as soon as it is done."""
    chosen = [case for case in CASES if not names or case.name in names]
    rows = []
    with tempfile.TemporaryDirectory(prefix="agent3-servers-") as place, _page(Path(place)) as page:
        folder = _prepare(Path(place))
        environment = _environment(Path(place))
        with _gateway(environment, Path(place)):
            for case in chosen:
                rows.append(_try(case, {"folder": str(folder), "page": page}, environment))
                tell(rows[-1])
    return rows


def _try(case: Case, words: Mapping[str, str], environment: Mapping[str, str]) -> Row:
    began = time.monotonic()
    command = _fill(case.command, words)
    added = _agent3(["add", command, "--name", case.name, "--json"], environment, _ADD)
    seconds = time.monotonic() - began
    body = _json(added.stdout)
    if added.returncode != 0:
        return Row(case, seconds, False, False, False, (added.stderr or added.stdout)[-300:])
    if case.tool not in body["added"][0]["capabilities"]:
        return Row(case, seconds, True, False, False, f"it has no tool {case.tool}: {body['added'][0]['capabilities']}")
    hits = _json(_agent3(["search", case.request, "--json"], environment, _CALL).stdout).get("agents") or [{}]
    found = str(hits[0].get("id")).partition("/")[0] == case.name
    given = json.dumps(_fill(case.input, words))
    call = ["call", case.name, "--capability", case.tool, "--input", given, "--timeout", "100", "--json"]
    called = _agent3(call, environment, _CALL)
    right = called.returncode == 0 and case.answer in json.dumps(_json(called.stdout).get("result"))
    wrong = "" if found else f"the search found {[hit.get('id') for hit in hits[:3]]} "
    return Row(case, seconds, True, found, right, wrong + ("" if right else (called.stdout + called.stderr)[-300:]))


# What they run in


def _environment(place: Path) -> dict[str, str]:
    """The environment of a machine that has never seen these servers: an empty home folder, and so empty caches."""
    tools = place / "tools"
    subprocess.run([sys.executable, "-m", "venv", str(tools)], check=True)  # noqa: S603
    subprocess.run([str(tools / "bin" / "pip"), "install", "--quiet", "uv"], check=True)  # noqa: S603
    home = place / "home"
    home.mkdir()
    path = f"{tools / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AGENT3_", "npm_", "UV_"))}
    return {**kept, "HOME": str(home), "PATH": path, "AGENT3_DATA": str(place / "data")}


def _prepare(place: Path) -> Path:
    folder = place / "folder"
    folder.mkdir()
    (folder / "hello.txt").write_text("Hello from a cold cache.\n")
    (folder / "kubeconfig").write_text(KUBECONFIG)
    git = ["git", "-C", str(folder), "-c", "user.name=Ada", "-c", "user.email=ada@example.com"]
    for words in (["init", "--quiet"], ["add", "hello.txt"], ["commit", "--quiet", "-m", "First commit"]):
        subprocess.run([*git, *words], check=True)  # noqa: S603
    return folder


@contextmanager
def _page(place: Path) -> Iterator[str]:
    site = place / "site"
    site.mkdir()
    (site / "index.html").write_text(
        "<!doctype html><title>Page</title><h1>Page</h1><p>Fetched on a cold cache, and read as it stands.</p>"
    )

    class Quiet(SimpleHTTPRequestHandler):
        def __init__(self, *arguments: Any, **options: Any):
            super().__init__(*arguments, directory=str(site), **options)

        def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002 - as the base class has it
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Quiet)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/index.html"
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def _gateway(environment: Mapping[str, str], place: Path) -> Iterator[None]:
    log = place / "gateway.log"
    with log.open("wb") as file:
        process = subprocess.Popen([*_AGENT3, "serve", "--port", "0"], env=environment, stdout=file, stderr=file)  # noqa: S603
    try:
        ends = time.monotonic() + _UP
        while not list((Path(environment["AGENT3_DATA"]) / "gateways").glob("*.json")):
            if process.poll() is not None or time.monotonic() > ends:
                raise RuntimeError(f"The gateway did not start: {log.read_text()[-500:]}")
            time.sleep(0.2)
        yield
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _agent3(words: list[str], environment: Mapping[str, str], seconds: float) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(  # noqa: S603
            [*_AGENT3, *words], env=dict(environment), capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(words, 1, "", f"agent3 {words[0]} took more than {seconds:g} s")


def _json(text: str) -> dict[str, Any]:
    try:
        body = json.loads(text)
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}


def _fill(value: Any, words: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        for name, word in words.items():
            value = value.replace(f"{{{name}}}", word)
        return value
    if isinstance(value, Mapping):
        return {key: _fill(inner, words) for key, inner in value.items()}
    return [_fill(inner, words) for inner in value] if isinstance(value, list) else value
