"""The matrix of A2A: our agent asked by everybody's client, and everybody's agent by ours.

Each cell is one client against one agent, over one binding in one generation: a message that is answered, and a stream
told in pieces. The SDKs come from PyPI and npm by name, once, into the user's cache folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

from conformance.kits import Npm, python_with

__all__ = ["CARD", "FACES", "PEERS", "Cell", "Face", "Peer", "judged", "our_agent", "run"]

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = ROOT / "interop" / "peers"
START = 30.0
PATIENCE = 60.0
CARD = "/.well-known/agent-card.json"
EXPRESS = ("express@5", "@grpc/grpc-js@1", "@bufbuild/protobuf@2")
JAVASCRIPT_1 = Npm("@a2a-js/sdk", "1.3.0", "dist/index.js", EXPRESS)
JAVASCRIPT_0_3 = Npm("@a2a-js/sdk", "0.3.14", "dist/index.js", EXPRESS)
PYTHON_0_3 = ("a2a-sdk[http-server]", "0.3.26", "uvicorn")


@dataclass(frozen=True)
class Face:
    """A binding in a generation."""

    binding: str
    version: str


NEW = (Face("JSONRPC", "1.0"), Face("HTTP+JSON", "1.0"), Face("GRPC", "1.0"))
OLD = (Face("JSONRPC", "0.3"), Face("HTTP+JSON", "0.3"))
FIRST = (Face("JSONRPC", "0.1"),)
FACES = (*NEW, *OLD, *FIRST)


@dataclass(frozen=True)
class Peer:
    """An SDK: what it speaks, and how its program is run."""

    name: str
    faces: tuple[Face, ...]
    program: Callable[[], list[str]]
    card: str = CARD


@dataclass(frozen=True)
class Cell:
    """What came of one client with one agent."""

    client: str
    agent: str
    face: Face
    unary: bool
    stream: bool
    note: str = ""

    @property
    def fine(self) -> bool:
        """Whether both went well."""
        return self.unary and self.stream


def _python(program: str) -> Callable[[], list[str]]:
    return lambda: [sys.executable, str(PROGRAMS / program)]


def _old_python() -> list[str]:
    return [str(python_with(*PYTHON_0_3)), str(PROGRAMS / "python_0_3.py")]


def _node(kit: Npm, program: str) -> Callable[[], list[str]]:
    def command() -> list[str]:
        node = kit.command()[0]
        # A module finds its packages from where it lies.
        return [node, shutil.copy(str(PROGRAMS / program), str(kit.folder))]

    return command


OURS = Peer("agent3", FACES, _python("ours.py"), f"/agents/talk/a2a{CARD}")
PEERS = (
    Peer("Python SDK 1.3", (*NEW, *OLD), _python("python_1.py")),
    Peer("Python SDK 0.3", OLD, _old_python),
    Peer("JavaScript SDK 1.3", (*NEW, *OLD), _node(JAVASCRIPT_1, "javascript_1.mjs")),
    Peer("JavaScript SDK 0.3", OLD, _node(JAVASCRIPT_0_3, "javascript_0_3.mjs")),
    Peer("plain JSON 0.1", FIRST, _python("first.py"), "/.well-known/agent.json"),
)


def run(peers: Sequence[Peer] = PEERS, tell: Callable[[Cell], None] = lambda cell: None) -> list[Cell]:
    """Every cell, in both directions; ``tell`` hears of each when it is known."""
    cells: list[Cell] = []
    with our_agent() as url:
        asking = [(OURS, face) for face in (*NEW, *OLD)] + [(peer, face) for peer in peers for face in peer.faces]
        for client, face in asking:
            cells.append(_cell(client, OURS.name, url, face))
            tell(cells[-1])
    for peer in peers:
        with _their_agent(peer) as url:
            for face in peer.faces:
                cells.append(_cell(OURS, peer.name, url, face))
                tell(cells[-1])
    return cells


def judged(client: str, agent: str, face: Face, told: dict[str, Any]) -> Cell:
    """Whether a client heard what the agent has said."""
    pieces = [one for one in told["stream"] if one]
    heard = pieces == ["Once ", "upon ", "time"]
    wrong = "" if told["unary"] == "echo: hello" and heard else json.dumps(told)
    return Cell(client, agent, face, told["unary"] == "echo: hello", heard, wrong)


def _cell(client: Peer, agent: str, url: str, face: Face) -> Cell:
    command = [*client.program(), "ask", url, face.binding, face.version]
    done = subprocess.run(  # noqa: S603 - the programs of the matrix
        command, cwd=ROOT, env=_environment(), capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or "it printed nothing").splitlines()[-1]
        return Cell(client.name, agent, face, False, False, said)
    return judged(client.name, agent, face, json.loads(done.stdout.splitlines()[-1]))


@contextlib.contextmanager
def our_agent(*, grpc: bool = True) -> Iterator[str]:
    """A gateway with our agent; gives the address of the agent's card."""
    with tempfile.TemporaryDirectory(prefix="interop-") as folder:
        port, beside = _free_port(), _free_port()
        config = Path(folder, "agent3.toml")
        config.write_text(f"[server]\ngrpc_port = {beside}\n" if grpc else "")
        serve = [sys.executable, "-m", "agent3", "serve", "interop.agent:agent", "--port", str(port)]
        options = ["--db", f"sqlite:///{folder}/interop.db", "--config", str(config)]
        with _served([*serve, *options], f"http://127.0.0.1:{port}{OURS.card}", folder) as url:
            yield url


@contextlib.contextmanager
def _their_agent(peer: Peer) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="interop-") as folder:
        port, beside = _free_port(), _free_port()
        command = [*peer.program(), "serve", str(port), str(beside)]
        with _served(command, f"http://127.0.0.1:{port}{peer.card}", folder) as url:
            yield url


@contextlib.contextmanager
def _served(command: Sequence[str], card: str, folder: str) -> Iterator[str]:
    """Run a server until the block ends; gives the address of its card once that can be read."""
    log = Path(folder, "output.log")
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603 - likewise
            list(command), cwd=ROOT, env=_environment(), stdout=output, stderr=output
        )
    try:
        until = time.monotonic() + START
        while not _answers(card):
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"{command[1]} does not serve {card}: {log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.05)
        yield card
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)


def _answers(url: str) -> bool:
    try:
        with urlopen(url, timeout=5) as answer:  # noqa: S310 - loopback
            return bool(answer.status == 200)
    except (URLError, OSError):
        return False


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AGENT3_")}
    return {**kept, "PYTHONPATH": str(ROOT)}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
