"""The protocol in examples/protocols, installed as any other package would be: nothing in agent3 knows it.

The gateway and the agent are programs that load everything, the commands forks of one that has; only the folder of the
package tells them apart from those that do not speak it.
"""

from __future__ import annotations

import asyncio
import json
import os
import queue
import re
import shlex
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import types
from mcp.client.client import Client

from tests.support.forks import run_forked
from tests.support.gateway import ROOT, Door, environment

EXAMPLE = ROOT / "examples" / "protocols"
SECONDS = 120.0
KEY = "a-key-of-sixteen-letters"

pytestmark = pytest.mark.timeout(600)
"""Every gateway is a program that loads everything, and a busy machine may take many seconds for each."""


class Running:
    """A process whose lines are read as they come."""

    def __init__(self, command: list[str], env: dict[str, str], cwd: Path):
        self._log = cwd / "stderr.log"
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                command, env=env, cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True
            )
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def until(self, wanted: str) -> list[str]:
        """The lines up to the next one that has something in it."""
        lines: list[str] = []
        while (line := self._lines.get(timeout=SECONDS)) is not None:
            lines.append(line)
            if wanted in line:
                return lines
        raise AssertionError(f"It ended without {wanted!r}: {self._log.read_text()}")

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(SECONDS)


@contextmanager
def running(command: list[str], env: dict[str, str], cwd: Path) -> Iterator[Running]:
    process = Running(command, env, cwd)
    try:
        yield process
    finally:
        process.process.kill()
        process.process.wait(SECONDS)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as pip installs it, without a network."""
    target = tmp_path_factory.mktemp("site")
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check", "--quiet"]
    subprocess.run(
        [sys.executable, "-m", "pip", "install", *options, "--target", target, EXAMPLE], check=True, timeout=SECONDS
    )
    return target


def surroundings(installed: Path, data: Path, **more: str) -> dict[str, str]:
    path = os.pathsep.join((str(installed), str(ROOT / "src")))
    return environment(data, PYTHONPATH=path, PYTHONDONTWRITEBYTECODE="1", **more)


class House(Door):
    """A gateway with the demo agents that has the package: its doors, and its command line."""

    def __init__(self, installed: Path, data: Path, served: Running):
        super().__init__(served.until("agent3 serves at ")[-1].split()[-1])
        port = re.search(r"JSON lines at port (\d+)", served.until("Ports")[-1])
        assert port is not None
        self.installed, self.data, self.served, self.port = installed, data, served, int(port[1])

    def agent3(self, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        env = surroundings(self.installed, self.data, **more)
        return run_forked(arguments, env=env, cwd=self.data, stdin="", timeout=SECONDS)

    def say(self, **request: Any) -> list[dict[str, Any]]:
        """What the door of the protocol answers to a client of a few lines."""
        with socket.create_connection(("127.0.0.1", self.port), SECONDS) as connection:
            connection.sendall(json.dumps(request).encode() + b"\n")
            with connection.makefile("rb") as replies:
                return [json.loads(line) for line in replies]


@contextmanager
def house(installed: Path, data: Path, **more: str) -> Iterator[House]:
    env = surroundings(installed, data, JSONL_PORT="0", AGENT3_CALLS_BACKOFF="0.01", **more)
    (data / "small.py").write_text("from agent3.server.demo import agents\nsmall = list(agents())\n")
    with running([sys.executable, "-m", "agent3", "serve", "small:small", "--port", "0"], env, data) as served:
        yield House(installed, data, served)


class Station:
    """The agent of the example, which prints the requests that it gets."""

    def __init__(self, process: Running):
        self.process = process
        self.address = process.until("jsonl://")[-1]
        self.port = int(self.address.rpartition(":")[2])

    def calls(self) -> list[str]:
        """The calls that came since this was asked last. The gateway may say hello at any time."""
        with socket.create_connection(("127.0.0.1", self.port), SECONDS) as connection:
            connection.sendall(b'{"type": "call", "capability": "mark"}\n')
            connection.recv(1)
        *before, _ = self.process.until("call mark")
        return [line for line in before if not line.startswith("hello")]


@contextmanager
def station(folder: Path, port: int = 0, **more: str) -> Iterator[Station]:
    command = [sys.executable, str(EXAMPLE / "weather.py"), str(port)]
    with running(command, environment(folder, **more), folder) as process:
        yield Station(process)


@pytest.fixture(scope="module")
def home(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with house(installed, tmp_path_factory.mktemp("house")) as built:
        yield built


@pytest.fixture(scope="module")
def weather(home: House, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Station]:
    with station(tmp_path_factory.mktemp("station")) as built:
        added = home.agent3("add", built.address)
        first = added.stdout.partition("\n")[0]
        assert first == "Added weather-station: forecast, report, umbrella, measure, calibrate", added.stderr
        yield built


# Its agents, for every caller of the gateway


def test_the_commands_of_the_readme_do_what_it_says(home: House, weather: Station) -> None:
    weather.calls()
    lines = (EXAMPLE / "README.md").read_text().replace("127.0.0.1:9000", f"127.0.0.1:{weather.port}").splitlines()
    done = [home.agent3(*shlex.split(line)[1:]) for line in lines if line.startswith("    agent3 ")]
    added, found, forecast, report, umbrella, measured = (command.stdout for command in done)
    assert added.startswith("Added weather-station: forecast, report, umbrella, measure, calibrate\n")
    deadline = time.monotonic() + SECONDS
    while "weather-station" not in found and time.monotonic() < deadline:  # what is added anew is indexed anew
        found = home.agent3("search", "umbrella").stdout
    assert "weather-station" in found
    assert json.loads(forecast) == {"city": "Ulm", "sky": "clear"}
    assert report == "Good evening, Ulm. Tonight it is dry. Tomorrow it rains.\n"
    assert (umbrella, done[4].returncode) == ("For which day? (today / tomorrow)\n", 3)
    again = shlex.split(done[4].stderr.partition(": ")[2].replace("ANSWER", "tomorrow"))
    assert home.agent3(*again[1:]).stdout == "An umbrella waits in Ulm tomorrow.\n"
    assert json.loads(measured) == {"wind": 12}
    called = [f"call {name}" for name in ("forecast", "report", "umbrella", "measure", "measure")]
    assert weather.calls() == [*called, "answer "]


def test_its_command_shows_a_card_without_adding_it(home: House, weather: Station) -> None:
    shown = home.agent3("jsonl", weather.address)
    assert json.loads(shown.stdout)["name"] == "Weather Station", shown.stderr
    assert "jsonl" in home.agent3("--help").stdout


def test_it_is_shown_with_its_schemas_and_what_does_not_fit_is_not_sent(home: House, weather: Station) -> None:
    weather.calls()
    forecast = home.get("/v1/agents/weather-station").json["capabilities"][0]
    assert forecast["protocols"] == ["jsonl"]
    assert forecast["inputSchema"]["required"] == ["city"]
    assert forecast["outputSchema"]["properties"].keys() == {"city", "sky"}
    refused = home.call("weather-station", capability="forecast", input={"town": "Ulm"}).json
    assert refused["errorCode"] == "invalid_input"
    assert weather.calls() == []


def test_its_question_is_asked_until_the_answer_fits(home: House, weather: Station) -> None:
    asked = home.call("weather-station", "Ulm", capability="umbrella").json
    assert [question["text"] for question in asked["questions"]] == ["For which day?"]
    wrong = home.call("weather-station", "never", metadata={"job": asked["job"]}).json
    assert wrong["questions"][0]["text"].startswith("For which day? (invalid: ")
    done = home.call("weather-station", "today", metadata={"job": asked["job"]}).json
    assert done["result"] == "An umbrella waits in Ulm today."


def test_what_it_calls_retryable_is_tried_again_and_nothing_else(home: House, weather: Station) -> None:
    weather.calls()
    done = home.call("weather-station", capability="measure").json
    assert (done["result"], done["metadata"]["retryCount"]) == ({"wind": 12}, 1)
    assert weather.calls() == ["call measure", "call measure"]
    sealed = home.call("weather-station", capability="calibrate").json
    assert (sealed["errorCode"], sealed["retryable"]) == ("rejected", False)
    assert weather.calls() == ["call calibrate"]


def test_mcp_clients_call_it_hear_its_pieces_in_order_and_answer_it(home: House, weather: Station) -> None:
    heard: list[str | None] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.append(message)

    async def person(context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        assert "For which day?" in params.message
        return types.ElicitResult(action="accept", content={"answer": "today"})

    async def story() -> list[Any]:
        async with Client(f"{home.url}/mcp", elicitation_callback=person) as client:
            answers = []
            for capability in ("report", "umbrella"):
                arguments = {"agentId": "weather-station", "capability": capability, "input": {"city": "Ulm"}}
                told = await client.call_tool("agent3_call", arguments, progress_callback=hear)
                assert told.structured_content is not None
                answers.append(told.structured_content["result"])
            return answers

    report, umbrella = asyncio.run(asyncio.wait_for(story(), SECONDS))
    pieces = ["Good evening, Ulm. ", "Tonight it is dry. ", "Tomorrow it rains."]
    assert heard == ["Looking at the sky", *pieces]
    assert report == "".join(pieces)
    assert umbrella == "An umbrella waits in Ulm today."


def test_a_station_that_changed_is_asked_again(installed: Path, tmp_path: Path) -> None:
    def version(home: House) -> Any:
        return home.get("/v1/agents/weather-station").json["version"]

    (tmp_path / "house").mkdir()
    with house(installed, tmp_path / "house", AGENT3_CALLS_CARD_SECONDS="0.01") as home:
        with station(tmp_path) as first:
            assert home.agent3("add", first.address).returncode == 0
            assert version(home) == "1"
        with station(tmp_path, first.port, WEATHER_VERSION="2") as second:
            while version(home) != "2":  # each look at it gives reason to ask
                second.process.until("hello")


def test_its_key_is_a_reference_and_goes_to_the_agent_alone(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "house").mkdir()
    with (
        house(installed, tmp_path / "house", WEATHER_KEY=KEY) as home,
        station(tmp_path, WEATHER_KEY=KEY) as locked,
    ):
        refused = home.agent3("add", locked.address)
        assert (refused.returncode, "Show the key" in refused.stderr) == (1, True), refused
        added = home.agent3("add", locked.address, "--credential", "env:WEATHER_KEY", WEATHER_KEY=KEY)
        assert added.returncode == 0, added.stderr
        assert home.call("weather-station", "Ulm", capability="forecast").json["result"]["sky"] == "clear"
        assert home.served.stop() == 0
    kept = b"".join(file.read_bytes() for file in (tmp_path / "house").rglob("*") if file.is_file())
    assert KEY.encode() not in kept


def test_a_wrong_address_and_a_silent_one_are_told_apart(home: House) -> None:
    wrong = home.agent3("add", "jsonl://nowhere")
    assert (wrong.returncode, "jsonl://HOST:PORT" in wrong.stderr) == (2, True), wrong
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    silent = home.agent3("add", f"jsonl://127.0.0.1:{port}")
    assert (silent.returncode, "cannot be reached" in silent.stderr) == (5, True), silent


# Its door, for callers that speak it


def test_its_door_describes_the_agents_of_the_gateway(home: House) -> None:
    [card] = home.say(type="hello")
    assert {"echo", "pizza", "story"} <= set(card["agents"])
    [pizza] = home.say(type="hello", agent="pizza")
    assert [capability["name"] for capability in pizza["capabilities"]] == ["order", "menu"]
    assert pizza["capabilities"][0]["input"]["required"] == ["message"]


def test_its_door_serves_a_call_a_stream_and_a_question(home: House) -> None:
    [said] = home.say(type="call", agent="echo", capability="say", input={"message": "hello"})
    assert said == {"type": "result", "value": "hello"}

    *pieces, told = home.say(type="call", agent="story", capability="tell", input={"topic": "a fox"})
    assert {piece["type"] for piece in pieces} == {"piece"}
    assert "".join(piece["text"] for piece in pieces) == told["value"]
    assert told["value"].startswith("Once upon a time there was a fox")

    [asked] = home.say(type="call", agent="pizza", capability="order", input={"message": "a tuna pizza"})
    assert asked["questions"][0]["schema"]["enum"] == ["small", "medium", "large"]
    answers = {asked["questions"][0]["id"]: "large"}
    *_, order = home.say(type="answer", state=asked["state"], answers=answers)
    assert (order["value"]["size"], order["value"]["topping"]) == ("large", "tuna")


def test_pieces_come_at_once_and_hanging_up_reaches_the_agent(home: House) -> None:
    heard: queue.Queue[bytes] = queue.Queue()

    def serve(listener: socket.socket) -> None:
        """Says one piece in answer to a call, and then nothing until the caller has gone."""
        while True:
            connection = listener.accept()[0]
            with connection, connection.makefile("rb") as requests:
                match json.loads(requests.readline()):
                    case {"type": "hello"}:
                        card = {"type": "card", "name": "Patient", "capabilities": [{"name": "wait"}]}
                        connection.sendall(json.dumps(card).encode() + b"\n")
                    case _:
                        connection.sendall(b'{"type": "piece", "text": "first"}\n')
                        heard.put(requests.readline())
                        return

    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = threading.Thread(target=serve, args=[listener], daemon=True)
        serving.start()
        assert home.agent3("add", f"jsonl://127.0.0.1:{listener.getsockname()[1]}").returncode == 0
        with socket.create_connection(("127.0.0.1", home.port), SECONDS) as caller, caller.makefile("rb") as replies:
            caller.sendall(b'{"type": "call", "agent": "patient", "capability": "wait"}\n')
            assert json.loads(replies.readline()) == {"type": "piece", "text": "first"}
        assert heard.get(timeout=SECONDS) == b"", "its connection is closed"
        serving.join(SECONDS)


def test_its_door_refuses_what_every_door_refuses(home: House) -> None:
    [unknown] = home.say(type="call", agent="nobody", capability="say")
    assert (unknown["type"], unknown["code"]) == ("error", "agent_not_found")
    [invalid] = home.say(type="call", agent="echo", capability="say", input={"message": 1})
    assert invalid["code"] == "invalid_input"
    [strange] = home.say(type="shout")
    assert strange["code"] == "parse_error"
    with socket.create_connection(("127.0.0.1", home.port), SECONDS) as browser, browser.makefile("rb") as replies:
        browser.sendall(b'POST / HTTP/1.1\r\n\r\n{"type": "hello"}\n')  # as a web page could make it do
        assert json.loads(replies.readline())["code"] == "parse_error"


def test_its_door_asks_for_the_key_of_a_client_and_stops_with_the_gateway(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "agent3.toml").write_text('[[clients]]\nid = "me"\nkey = "env:MY_KEY"\n')
    with house(installed, tmp_path, MY_KEY=KEY) as home:
        request = {"type": "call", "agent": "echo", "capability": "say", "input": {"message": "hello"}}
        assert home.say(**request)[0]["code"] == "unauthenticated"
        assert home.say(**request, key="not-the-key-at-all")[0]["code"] == "unauthenticated"
        assert home.say(**request, key=KEY) == [{"type": "result", "value": "hello"}]

        # It stops with the gateway.
        assert home.served.stop() == 0
        with pytest.raises(ConnectionRefusedError):
            home.say(type="hello")
        assert "Traceback" not in (tmp_path / "stderr.log").read_text()


def test_a_gateway_calls_an_agent_of_another_by_its_door(home: House, installed: Path, tmp_path: Path) -> None:
    with house(installed, tmp_path) as other:
        several = other.agent3("add", f"jsonl://127.0.0.1:{home.port}")
        assert (several.returncode, "pizza" in several.stderr) == (2, True), several
        assert other.agent3("add", f"jsonl://127.0.0.1:{home.port}/pizza", "--name", "far").returncode == 0
        done = other.call("far", "a large tuna pizza", capability="order").json
        assert done["result"]["status"] == "confirmed"
