"""Everybody's targets through every door of one gateway: a value, an error, a question, pieces, and a cancellation.

The targets are servers and agents by the SDKs that people use, each in a process and an environment of its own, and
beside them Python functions, a website and an NLWeb site. The doors, and what each cell has to show, are those of
``tests/matrix``. A cell that cannot be is named with its reason.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch
from urllib.error import URLError
from urllib.request import urlopen

from agent3.settings import Calls, Limits, Settings
from conformance.kits import Npm, python_with
from interop.a2a import JAVASCRIPT_0_3, JAVASCRIPT_1, PYTHON_0_3
from interop.ports import find_free_ports
from tests.matrix import targets as own
from tests.matrix.doors import DOORS, Asked, Door, House, MCPDoor
from tests.support import registration
from tests.support.gateway import hosted

__all__ = ["ALL_DOORS", "IMPOSSIBLE", "OUTCOMES", "PROGRAMS", "TARGETS", "TYPESCRIPT_1", "TYPESCRIPT_2", "Row",
           "Target", "place_program", "run"]  # fmt: skip

OUTCOMES = own.OUTCOMES
ALL_DOORS: Mapping[str, Door] = {
    "agent3_call": DOORS["agent3_call"],
    "agent3_call legacy": DOORS["agent3_call legacy"],
    "native": DOORS["tool of the agent"],
    "native legacy": MCPDoor("legacy", of_agent=True),
    **{name: DOORS[name] for name in ("A2A 0.1", "A2A 0.3", "A2A 1.0", "/ask", "REST", "command line")},
}
"""``native`` is ``/agents/ID/mcp``; a door without ``legacy`` is of the modern era."""

PROGRAMS = Path(__file__).resolve().parent / "peers"
START = 90.0
_AT_ONCE = 2
"""Cells that are tried at once."""
TYPESCRIPT_2 = Npm(
    "@modelcontextprotocol/server",
    "2.4.0",
    "dist/index.mjs",
    ("@modelcontextprotocol/client@2.4.0", "@modelcontextprotocol/node@2.1.2", "zod@4"),
)
TYPESCRIPT_1 = Npm("@modelcontextprotocol/sdk", "1.32.2", "dist/esm/index.js", ("zod@3",))
_WORDS = {
    "value": "say apples",
    "error": "fail now",
    "question": "ask apples",
    "stream": "story a time",
    "cancel": "hang",
}
"""What is said to agents that take only words."""

_NO_BACK_CHANNEL = (
    "its tool asks by a request of its own, which it cannot do in the modern era of this client; nor directly"
)
IMPOSSIBLE: Mapping[tuple[str, str, str], str] = {
    ("mcp 2.3.0 HTTP", "native", "question"): _NO_BACK_CHANNEL,
    ("fastmcp 4.1.2 HTTP", "native", "question"): _NO_BACK_CHANNEL,
}
"""Cells that cannot be, by target, door and outcome, each with the reason."""


@dataclass(frozen=True)
class Target:
    """What is called. ``command`` runs it; over HTTP it is given ports, over stdio an outcome."""

    name: str
    kind: Literal["own", "mcp http", "mcp stdio", "a2a"]
    command: Callable[[], list[str]] = list
    own: str = ""
    """Of those in ``tests/matrix/targets.py``, which."""


def _python(package: str, version: str, *beside: str) -> Callable[[], list[str]]:
    return lambda: [str(python_with(package, version, *beside)), str(PROGRAMS / "mcp_python.py")]


def place_program(kit: Npm, program: str) -> list[str]:
    """What runs one of our programs for node with a package: a module finds its packages from where it lies."""
    node = kit.command()[0]
    place = kit.folder / program
    place.write_bytes((PROGRAMS / program).read_bytes())
    return [node, str(place)]


def _node(kit: Npm, program: str) -> Callable[[], list[str]]:
    return lambda: place_program(kit, program)


TARGETS = (
    Target("Python function", "own", own="python"),
    Target("website", "own", own="website"),
    Target("NLWeb site", "own", own="nlweb"),
    Target("mcp 1.26.0 HTTP", "mcp http", _python("mcp", "1.26.0", "click")),
    Target("mcp 1.30.0 HTTP", "mcp http", _python("mcp", "1.30.0", "click")),
    Target("mcp 1.30.0 stdio", "mcp stdio", _python("mcp", "1.30.0", "click")),
    Target("mcp 2.3.0 HTTP", "mcp http", _python("mcp", "2.3.0", "click")),
    Target("mcp 2.3.0 stdio", "mcp stdio", _python("mcp", "2.3.0", "click")),
    Target("fastmcp 2.14.7 HTTP", "mcp http", _python("fastmcp", "2.14.7")),
    Target("fastmcp 2.14.7 stdio", "mcp stdio", _python("fastmcp", "2.14.7")),
    Target("fastmcp 3.4.10 HTTP", "mcp http", _python("fastmcp", "3.4.10")),
    Target("fastmcp 4.1.2 HTTP", "mcp http", _python("fastmcp", "4.1.2")),
    Target("fastmcp 4.1.2 stdio", "mcp stdio", _python("fastmcp", "4.1.2")),
    Target("TypeScript SDK 1.32.2 stdio", "mcp stdio", _node(TYPESCRIPT_1, "mcp_typescript_1.mjs")),
    Target("TypeScript SDK 1.32.2 HTTP", "mcp http", _node(TYPESCRIPT_1, "mcp_typescript_1.mjs")),
    Target("TypeScript SDK 2.4.0 stdio", "mcp stdio", _node(TYPESCRIPT_2, "mcp_typescript_2.mjs")),
    Target("TypeScript SDK 2.4.0 HTTP", "mcp http", _node(TYPESCRIPT_2, "mcp_typescript_2.mjs")),
    Target("A2A Python 1.3", "a2a", lambda: [sys.executable, str(PROGRAMS / "python_1.py")]),
    Target("A2A Python 0.3.26", "a2a", lambda: [str(python_with(*PYTHON_0_3)), str(PROGRAMS / "python_0_3.py")]),
    Target("A2A JavaScript 1.3.0", "a2a", _node(JAVASCRIPT_1, "javascript_1.mjs")),
    Target("A2A JavaScript 0.3.14", "a2a", _node(JAVASCRIPT_0_3, "javascript_0_3.mjs")),
)


@dataclass
class Row:
    """One target: what went wrong in each of its cells, by door and outcome; an empty text where nothing did."""

    target: str
    cells: dict[tuple[str, str], str] = field(default_factory=dict)

    @property
    def failed(self) -> dict[tuple[str, str], str]:
        return {cell: wrong for cell, wrong in self.cells.items() if wrong and (self.target, *cell) not in IMPOSSIBLE}

    def show(self, door: str) -> str:
        """The five cells of a door, in the order of ``OUTCOMES``."""
        signs = []
        for outcome in OUTCOMES:
            impossible = (self.target, door, outcome) in IMPOSSIBLE
            signs.append("n" if impossible else "F" if self.cells[door, outcome] else "+")
        return "".join(signs)


def run(tell: Callable[[Row], None], names: Sequence[str] = ()) -> list[Row]:
    """All targets, or those whose names contain one of some words. KitError where one cannot be got."""
    chosen = [target for target in TARGETS if not names or any(name in target.name for name in names)]
    rows = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="agent3-matrix-")))
        targets = stack.enter_context(own.running())
        settings = Settings(calls=Calls(ledger="batched", retries=0), limits=Limits(per_minute=0))
        gateway = stack.enter_context(hosted(folder, own.functions(targets), settings))
        house = House(gateway.url, gateway.server, gateway.loop, folder)
        for target in chosen:
            with _standing(target, house, targets) as place:
                rows.append(_judge(target, house, place))
                tell(rows[-1])
    return rows


@dataclass(frozen=True)
class _Place:
    """Where a target stands: how it is asked, and how one waits for what it notes."""

    ask: Callable[[str, str], Asked]
    wait: Callable[[str], None]
    forget: Callable[[], None]


@contextmanager
def _standing(target: Target, house: House, targets: own.Targets) -> Iterator[_Place]:
    slug = "".join(letter if letter.isalnum() else "-" for letter in target.name.lower())
    if target.kind == "own":
        if target.own != "python":
            for outcome in OUTCOMES:
                address = f"{targets.url}/{target.own}-{outcome}"
                if target.own == "website":
                    file = house.folder / f"{slug}-{outcome}.json"
                    file.write_text(json.dumps(own.interface(targets.url, outcome)))
                    address = str(file)
                house.run(registration.add(house.server, address, f"{target.own}-{outcome}"))
        yield _Place(
            lambda outcome, door: _ask_own(target.own, outcome, door),
            lambda what: targets.wait(target.own, what),
            lambda: (targets.noted.pop(target.own, None), None)[1],
        )
        return
    notes = house.folder / f"{slug}.notes"
    notes.touch()
    place = _Place(
        (lambda outcome, door: Asked(slug, _WORDS[outcome]))
        if target.kind == "a2a"
        else (
            lambda outcome, door: Asked(f"{slug}-{outcome}", "apples", None if door == "/ask" else {"text": "apples"})
        ),
        lambda what: _wait_for(notes, what),
        lambda: (notes.write_text(""), None)[1],
    )
    command = target.command()
    if target.kind == "mcp stdio":
        for outcome in OUTCOMES:
            words = shlex.join([*command, "stdio", outcome, str(notes)])
            house.run(registration.add(house.server, words, f"{slug}-{outcome}"))
        yield place
        return
    ports = find_free_ports(2 if target.kind == "a2a" else len(OUTCOMES))
    numbers = [str(port) for port in ports]
    given = ["serve", *numbers] if target.kind == "a2a" else ["http", str(notes), *numbers]
    with _running([*command, *given], notes, ports[:1] if target.kind == "a2a" else ports):
        if target.kind == "a2a":
            house.run(registration.add(house.server, f"http://127.0.0.1:{ports[0]}", slug))
        else:
            for outcome, port in zip(OUTCOMES, ports, strict=True):
                house.run(registration.add(house.server, f"http://127.0.0.1:{port}/mcp", f"{slug}-{outcome}"))
        yield place


def _ask_own(kind: str, outcome: str, door: str) -> Asked:
    """As ``tests/matrix/test_matrix.py`` asks them."""
    message = "say apples" if kind == "website" else "apples"
    if kind == "website" and outcome == "question":
        return Asked(f"{kind}-{outcome}", "say", None)
    given = {"text": "apples"} if kind in ("python", "website") and door != "/ask" else None
    return Asked(f"{kind}-{outcome}", message, given, "say" if kind == "website" and door != "/ask" else None)


@contextmanager
def _running(command: list[str], notes: Path, ports: Sequence[int]) -> Iterator[None]:
    log = notes.with_suffix(".log")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AGENT3_")}
    environment = {**kept, "INTEROP_NOTES": str(notes)}
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)  # noqa: S603 - our own words
    try:
        until = time.monotonic() + START
        while not all(_listens(port) for port in ports):
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"{command[1]} does not serve: {log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.1)
        yield
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)


def _listens(port: int) -> bool:
    try:
        with urlopen(f"http://127.0.0.1:{port}/", timeout=5):
            return True
    except URLError as error:
        return hasattr(error, "code")
    except OSError:
        return False


def _wait_for(notes: Path, what: str, seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while what not in notes.read_text().split():
        if time.monotonic() > until:
            raise AssertionError(f"the target did not note {what!r} within {seconds:g} s")
        time.sleep(0.05)


def _judge(target: Target, house: House, place: _Place) -> Row:
    def judge(door: str, outcome: str) -> tuple[tuple[str, str], str]:
        try:
            _try(target, house, place, door, outcome)
        except Exception as wrong:  # noqa: BLE001 - whatever it is, the cell failed
            while isinstance(wrong, ExceptionGroup):
                wrong = wrong.exceptions[0]
            return (door, outcome), f"{type(wrong).__name__}: {str(wrong)[:400]}"
        return (door, outcome), ""

    cells = [(door, outcome) for door in ALL_DOORS for outcome in OUTCOMES if outcome != "cancel"]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        found = dict(pool.map(lambda cell: judge(*cell), cells))
    # After that, /ask gives a promise. Cancellations share their notes, so they come one after the other.
    with patch("agent3.protocols.nlweb.ask.door._PATIENCE", 0.1):
        found |= dict(judge(door, "cancel") for door in ALL_DOORS)
    return Row(target.name, found)


def _try(target: Target, house: House, place: _Place, door: str, outcome: str) -> None:
    """What one cell has to show; AssertionError if it does not."""
    asked, way = place.ask(outcome, door), ALL_DOORS[door]
    if outcome == "cancel":
        place.forget()
        with suppress(
            Exception
        ):  # how a client takes its own end is its affair; the target tells whether it heard of it
            way.cancel(house, asked, lambda: place.wait("running"))
        place.wait("cancelled")
        return
    got = way.call(house, asked, "large" if outcome == "question" else None)
    text = got.text + " ".join(got.pieces)
    _check(got.worked is (outcome != "error"), got)
    wanted: dict[str, Any] = {
        "value": ["apples"],
        "error": ["nowhere" if target.own == "website" else own.BROKEN],
        "question": ["large"],
        "stream": ["said", "apples"] if target.own == "website" else [piece.strip() for piece in own.PIECES],
    }
    _check(all(one in text for one in wanted[outcome]), got)
    if outcome == "question":
        question = "text" if target.own == "website" else own.QUESTION
        _check(bool(got.questions) and question.lower() in got.questions[0].lower(), got)


def _check(holds: bool, got: object) -> None:
    if not holds:
        raise AssertionError(str(got))
