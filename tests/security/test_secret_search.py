"""A gateway with known secrets does its whole work, and then everything that it left is searched for them."""

from __future__ import annotations

import base64
import json
import shlex
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.identity.test_secret_refs import PROGRAM
from tests.support.gateway import gateway, run_agent3

UPSTREAM, CHILD, MASTER = "upstream-q7Zt4Kx9Bv2L", "program-Hn5Yc3Wd8Ts1", "master-Gf6Rk2Pm9Xb4Vq"
COOKIE, OTHER = "cookie-Ju8Eo1Zl7Ns3", "other-Ka4Td9Mw6Bc2"


class Recording:
    """An MCP server that keeps every header it is sent, and echoes the one that it should not."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, dict[str, str], bytes]] = []
        recording = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None:
                pass

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                recording.seen.append((self.path, dict(self.headers.items()), body))
                status, answer = recording.answer(json.loads(body), self.headers.get("Authorization", ""))
                raw = b"" if answer is None else json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

            def do_GET(self) -> None:
                recording.seen.append((self.path, dict(self.headers.items()), b""))
                self.send_error(405)

            do_DELETE = do_GET

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/mcp"

    def answer(self, message: dict[str, Any], credential: str) -> tuple[int, Any]:
        if "id" not in message:
            return 202, None
        match message["method"]:
            case "initialize":
                result: Any = {
                    "protocolVersion": "2025-06-18",
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": "recorder", "version": "1"},
                }
            case "tools/list":
                result = {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in ("tell", "fail")]}
            case "tools/call":
                text = f"{credential} {base64.b64encode(credential.encode()).decode()}"
                failed = message["params"]["name"] == "fail"
                result = {"content": [{"type": "text", "text": text}], "isError": failed}
            case _:
                error = {"code": -32601, "message": f"unknown, and you are {credential}"}
                return 200, {"jsonrpc": "2.0", "id": message["id"], "error": error}
        return 200, {"jsonrpc": "2.0", "id": message["id"], "result": result}


@contextmanager
def recording() -> Iterator[Recording]:
    upstream = Recording()
    thread = threading.Thread(target=upstream.server.serve_forever, daemon=True)
    thread.start()
    try:
        yield upstream
    finally:
        upstream.server.shutdown()
        upstream.server.server_close()
        thread.join(60)


@pytest.mark.requirement("AC-27")
def test_no_upstream_file_log_or_process_gets_a_secret_that_is_not_its_own(tmp_path: Path) -> None:
    data, temporary = tmp_path / "data", tmp_path / "temporary"
    data.mkdir()
    temporary.mkdir()
    (tmp_path / "program.py").write_text(PROGRAM)
    where: dict[str, Any] = {
        "TMPDIR": str(temporary),
        "SEAL": MASTER,
        "AGENT3_STORAGE_SEAL": "env:SEAL",
        "OTHER_SECRET": OTHER,
    }
    where |= {"AGENT3_CALLS_BODIES": "full", "AGENT3_LOGS_LEVEL": "debug"}

    def command(*words: str, given: str = "") -> str:
        done = run_agent3(data, *words, stdin=given, **where)
        assert done.returncode == 0, done.stderr
        told.append(done.stdout + done.stderr)
        return done.stdout

    told: list[str] = []
    with recording() as upstream:
        command("vault", "set", "up", given=UPSTREAM)
        command("vault", "set", "child", given=CHILD)
        command("add", upstream.url, "--name", "far", "--credential", "vault:up")
        program = shlex.join([sys.executable, str(tmp_path / "program.py"), "--token", "vault:child"])
        command("add", program, "--name", "near", "--credential", "API_KEY=vault:child")
        key = command("client", "add", "anna").strip()
        told.clear()  # the key is printed once, to who made it
        with gateway(data, **where) as house:
            door = house.as_(key)
            headers = {"Cookie": f"session={COOKIE}", "X-API-Key": key, "Proxy-Authorization": f"Basic {OTHER}"}
            headers |= {"X-Auth-Token": COOKIE, "X-Forwarded-For": "10.0.0.1"}
            for agent, tool in (("far", "tell"), ("far", "fail"), ("near", "tell")):
                body = {"agentId": agent, "capability": tool, "input": {}}
                answer = door.post("/v1/call", body, **headers)
                for secret in (UPSTREAM, CHILD, MASTER, COOKIE, OTHER, key):
                    assert secret not in answer.raw.decode()
            tools = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
            door.post("/agents/far/mcp", tools, Accept="application/json, text/event-stream", **headers)
            children = _descendants(house.process.pid)
            environments = b"".join(_environment(child) for child in children)
            said = house.said()
    assert children, "the program ran"
    for _, sent, raw in upstream.seen:
        names = {name.lower() for name in sent}
        assert not names & {"cookie", "proxy-authorization", "x-api-key", "x-auth-token", "x-forwarded-for"}
        assert sent.get("Authorization") in (None, f"Bearer {UPSTREAM}")
        for secret in (key, COOKIE, OTHER, MASTER, CHILD):
            assert secret not in json.dumps(sent) + raw.decode()
    assert any(sent.get("Authorization") == f"Bearer {UPSTREAM}" for _, sent, _ in upstream.seen)
    for secret in (UPSTREAM, MASTER, COOKIE, OTHER, key):
        assert secret.encode() not in environments, "a child process has a secret that is not its own"
    files = [file for file in (*data.rglob("*"), *temporary.rglob("*")) if file.is_file()]
    assert any(file.suffix == ".db" for file in files)
    for secret in (UPSTREAM, CHILD, MASTER, COOKIE, OTHER, key):
        for form in (secret.encode(), base64.b64encode(secret.encode()), secret.encode().hex().encode()):
            for file in files:
                assert form not in file.read_bytes(), f"{file.name} holds a secret"
        assert secret not in said, "the log holds a secret"
        assert secret not in "".join(told), "a command printed a secret"


def _descendants(pid: int) -> list[int]:
    found, waiting = [], [pid]
    while waiting:
        parent = waiting.pop()
        for task in Path(f"/proc/{parent}/task").glob("*/children"):
            children = [int(word) for word in task.read_text().split()]
            found += children
            waiting += children
    return found


def _environment(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""
