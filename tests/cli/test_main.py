"""The command line: every command for people and for programs, exit codes, where it looks for a gateway."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from agent3 import LocalAgent
from agent3._version import __version__
from agent3.cli import main as cli
from agent3.cli.agents import print_agent
from agent3.cli.calls import print_answer
from agent3.cli.exit_codes import exit_code
from agent3.cli.options import GatewayOptions, connect
from agent3.cli.output import with_command_names
from agent3.errors import SetupError
from agent3.settings import Client, Settings, Storage
from tests.support.gateway import AGENT3, Process, environment, gateway, hosted, run_agent3


class Told(NamedTuple):
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Command = Callable[..., Told]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    with gateway(tmp_path_factory.mktemp("cli"), "--demo") as process:
        yield process


@pytest.fixture
def agent3(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    """Runs a command in this process, with a data folder of its own."""
    for name in [name for name in os.environ if name.startswith("AGENT3_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AGENT3_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> Told:
        monkeypatch.setattr(sys, "argv", ["agent3", *arguments])
        code = 0
        try:
            cli.main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        told = capfd.readouterr()
        assert "Traceback" not in told.err
        return Told(code, told.out, told.err)

    return run


COMMANDS = ("serve", "mcp", "search", "list", "show", "call", "backup", "restore", "doctor")


# Help


def test_help_lists_every_command_and_the_exit_codes(agent3: Command) -> None:
    told = agent3("--help")
    assert told.code == 0
    assert all(f" {command} " in told.out for command in COMMANDS)
    assert "Exit codes: 0 done" in told.out
    assert agent3("--version").out.strip() == __version__


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_a_command_explains_each_of_its_parameters(agent3: Command, command: str) -> None:
    told = agent3(command, "--help")
    assert told.code == 0
    parameters = cli.app[command].assemble_argument_collection(parse_docstring=True)
    unexplained = [one.name for one in parameters if one.show and not one.parameter.help]
    assert unexplained == []
    assert all(one.name in told.out for one in parameters if one.show)


def test_the_documented_options_stand_in_the_help(agent3: Command) -> None:
    serve = agent3("serve", "--help").out
    assert all(option in serve for option in ("--host", "--port", "--db", "--config", "--demo", "8333", "127.0.0.1"))
    call = agent3("call", "--help").out
    options = ("--capability", "--input", "--timeout", "--retries", "--job", "--server", "--db", "--json")
    assert all(option in call for option in options)


@pytest.mark.parametrize(
    "arguments", [["bogus"], ["call"], ["search"], ["list", "--bogus"], ["serve", "--port", "x"]], ids=" ".join
)
def test_a_command_that_is_written_wrong_ends_with_code_two(agent3: Command, arguments: list[str]) -> None:
    told = agent3(*arguments)
    assert told.code == 2
    assert told.out + told.err


# Commands, at the running gateway


@pytest.fixture
def at(agent3: Command, running: Process, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Commands that find the running gateway by its note in the data folder."""
    monkeypatch.setenv("AGENT3_DATA", str(running.data))
    return agent3


def test_search_prints_a_table_or_json(at: Command) -> None:
    assert at("search", "pizza").out.splitlines()[1].startswith("pizza ")
    assert at("search", "pizza", "--json").json["agents"][0]["id"] == "pizza"
    nothing = at("search", "zzzzqqq")
    assert (nothing.code, "No match for 'zzzzqqq'" in nothing.out) == (0, True)
    assert at("search", "pizza", "--no-read-only").out.splitlines()[1].startswith("pizza")
    assert at("search", "demo", "--limit", "1", "--json").json["count"] == 1
    assert at("search", "x", "--limit", "99").code == 2


def test_list_prints_one_line_for_each_agent(at: Command) -> None:
    small = ["calculator", "echo", "images", "pizza", "story"]  # those of the travel demo come while the gateway serves
    lines = [line.split()[0] for line in at("list").out.splitlines()]
    assert (lines[0], [name for name in lines if name in small]) == ("agent", small)
    assert [one["id"] for one in at("list", "--json").json["agents"] if one["id"] in small] == small


def test_show_prints_what_an_agent_can_do(at: Command) -> None:
    page = at("show", "pizza").out
    assert page.startswith("Pizza Palace (pizza)\n")
    assert "not rated yet" in page
    assert [line.split()[0] for line in page.splitlines() if line and not line.startswith(" ")][-2:] == [
        "order",
        "menu",
    ]
    assert "parameter" in page
    assert "required" in page
    assert [one["name"] for one in at("show", "pizza", "--json").json["capabilities"]] == ["order", "menu"]
    assert at("show", "pizza", "--card", "--json").json["skills"][0]["id"] == "order"


def test_show_is_a_page_that_a_stranger_cannot_paint_on(capfd: pytest.CaptureFixture[str]) -> None:
    properties = {
        "size": {"enum": ["small", "large"], "description": "How [bold]large"},
        "many": {"type": "integer", "default": 1},
        "tags": {"type": "array", "items": {"type": "string"}},
        "place": {"anyOf": [{"$ref": "#/$defs/Place"}, {"type": "null"}]},
        "fixed": {"const": 7},
        "either": {"type": ["string", "null"]},
        "free": True,
    }
    capability = {
        "name": "order\x1b[31m",
        "description": "Orders",
        "inputSchema": {"properties": properties, "required": ["size"]},
        "hints": {"consequential": True},
        "price": {"call": 0.01},
    }
    body: dict[str, Any] = {
        "id": "x",
        "name": "X",
        "description": "",
        "version": "2",
        "provider": None,
        "status": "active",
        "tags": [],
    }
    print_agent(body | {"rating": {"count": 2, "mean": 4.5}, "capabilities": [capability]})
    page = capfd.readouterr().out
    assert "\x1b" not in page
    assert "rated 4.5 by 2" in page
    assert "(consequential, $0.01 per call)" in page
    rows = {line.split()[0]: " ".join(line.split()[1:]) for line in page.splitlines() if line.startswith("  ")}
    assert rows["size"] == '"small" | "large" required How [bold]large'
    assert rows["many"] == "integer default 1"
    assert rows["tags"] == "array of string optional"
    assert rows["place"] == "Place | null optional"
    assert rows["fixed"] == "7 optional"
    assert rows["either"] == "string | null optional"
    assert rows["free"] == "any optional"
    print_agent(body | {"rating": {"count": 0, "mean": None}, "capabilities": []})
    assert "It has no capability that you may call." in capfd.readouterr().out


def test_errors_speak_of_commands_and_say_where_the_parameters_stand(at: Command) -> None:
    assert "Use agent3 search to find one." in at("show", "nobody").err
    assert "It has menu, order." in at("call", "pizza", "x", "--capability", "zzzz").err
    lacking = at("call", "pizza", "--capability", "order", "--input", "{}")
    assert (lacking.code, lacking.err) == (
        2,
        "agent3: Missing required parameter: message. See: agent3 show pizza\n",
    )
    told = at("call", "pizza", "--capability", "order", "--input", "{}", "--json").json
    assert told["error"] == "Missing required parameter: message", "programs get the words of the gateway"


def test_call_prints_the_result_alone(at: Command) -> None:
    assert at("call", "echo", "hello").out == "hello\n"
    assert at("call", "calculator", "6 * 7").out == "42\n"
    menu = at("call", "pizza", "--capability", "menu")
    assert json.loads(menu.out)[0]["topping"] == "cheese"
    assert at("call", "echo", "--input", '{"message": "hi"}', "--timeout", "5", "--retries", "0").out == "hi\n"


def test_words_need_no_quotes(at: Command) -> None:
    assert at("call", "echo", "hello", "world").out == "hello world\n"
    assert at("call", "calculator", "--", "-1 + 2").out == "1\n"
    assert at("search", "pizza", "delivery", "--json").json["query"] == "pizza delivery"


def test_call_prints_the_whole_answer_as_json(at: Command) -> None:
    answer = at("call", "echo", "hello", "--json").json
    assert (answer["success"], answer["result"], answer["metadata"]["statusCode"]) == (True, "hello", 200)


def test_what_went_wrong_decides_the_exit_code(at: Command) -> None:
    failed = at("call", "calculator", "1/0")
    assert (failed.code, failed.out) == (2, "")
    assert failed.err.startswith("agent3: '1/0' cannot be evaluated")
    nobody = at("call", "piza", "x")
    assert nobody.code == 4
    assert "Did you mean 'pizza'?" in nobody.err
    assert at("show", "nobody").code == 4
    assert at("call", "pizza", "--capability", "bake").code == 4
    assert at("call", "echo", "--input", "{").code == 2
    assert at("call", "echo", "--input", "[1]").code == 2
    assert at("call", "echo", "x", "--timeout", "-1").code == 2


def test_errors_are_json_where_json_is_asked_for(at: Command) -> None:
    told = at("call", "piza", "x", "--json")
    assert (told.code, told.err) == (4, "")
    assert told.json["error"]["code"] == "agent_not_found"
    failed = at("call", "calculator", "1/0", "--json")
    assert (failed.code, failed.json["success"], failed.json["errorCode"]) == (2, False, "invalid_input")


def test_a_question_without_a_person_ends_with_code_three_and_the_command_to_go_on(at: Command) -> None:
    asked = at("call", "pizza", "a pizza")
    assert (asked.code, asked.out) == (3, "Which size: small, medium or large?\n")
    words = asked.err.partition(": ")[2].split()
    assert words[:4] == ["agent3", "call", "pizza", "ANSWER"]
    again = at(*[word.replace("ANSWER", "large") for word in words[1:]])
    assert (again.code, again.out) == (3, "Which topping?\n")
    done = at(*[word.replace("ANSWER", "tuna") for word in words[1:]], "--json")
    assert (done.code, done.json["result"]["size"]) == (0, "large")
    late = at(*[word.replace("ANSWER", "ham") for word in words[1:]])
    assert (late.code, "is not waiting for an answer" in late.err) == (2, True)
    as_json = at("call", "pizza", "a pizza", "--json")
    assert (as_json.code, as_json.json["status"]) == (3, "needs")
    job = as_json.json["job"]
    assert at("cancel", job)[:2] == (0, "Canceled.\n")
    assert at("cancel", job, "--json").json["status"] == "canceled"
    assert at("cancel", words[words.index("--job") + 1]).out == "The job has already ended: done.\n"
    assert at("cancel", "nothing").code == 4


def test_doctor_says_what_is_fine(at: Command, running: Process) -> None:
    told = at("doctor")
    assert told.code == 0
    assert f"gateway: runs at {running.url}" in told.out
    report = at("doctor", "--json").json
    assert report["ok"] is True
    assert {"python", "database", "disk", "gateway", "browser", "extras"} <= {one["name"] for one in report["checks"]}


def test_doctor_says_what_is_not(agent3: Command, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    told = agent3("doctor", "--db", f"sqlite:///{tmp_path / 'file' / 'x.db'}")
    assert told.code == 1
    assert "FAIL  database" in told.out


# Which gateway


def test_an_address_leads_to_that_gateway(agent3: Command, running: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    assert agent3("call", "echo", "x", "--server", running.url).out == "x\n"
    asked = agent3("call", "pizza", "a pizza", "--server", running.url)
    assert f"--server {running.url}" in asked.err
    monkeypatch.setenv("AGENT3_SERVER", running.url + "/")
    assert agent3("call", "echo", "y").out == "y\n"
    monkeypatch.setenv("AGENT3_SERVER", "http://127.0.0.1:9")
    assert agent3("demo").code == 5


def test_a_database_or_the_demo_wins_over_the_environment(
    agent3: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AGENT3_SERVER", "http://127.0.0.1:9")
    assert agent3("call", "echo", "x", "--demo").out == "x\n"
    assert "No agents" in agent3("list", "--db", f"sqlite:///{tmp_path / 'own.db'}").out


def test_a_gateway_and_a_database_cannot_both_be_meant(agent3: Command) -> None:
    told = agent3("list", "--server", "http://127.0.0.1:9", "--db", "sqlite:///x.db")
    assert (told.code, "--db" in told.err) == (2, True)


@pytest.mark.parametrize("address", ["nonsense", "ftp://x", "http://", "http://x:abc", "http://[::1", "http://x:0"])
def test_an_address_that_is_none_is_refused(agent3: Command, address: str) -> None:
    told = agent3("list", "--server", address)
    assert (told.code, "is not the address of a gateway" in told.err) == (2, True)


def test_a_gateway_that_does_not_answer_is_code_five(agent3: Command) -> None:
    told = agent3("list", "--server", "http://127.0.0.1:9")
    assert told.code == 5
    assert "agent3 serve" in told.err


def test_a_server_that_is_no_gateway_is_told_apart(agent3: Command, running: Process) -> None:
    told = agent3("list", "--server", f"{running.url}/metrics")
    assert told.code == 4  # a gateway answers there, but not below that path
    assert "/metrics/v1/agents" in told.err


def test_without_a_gateway_the_local_database_is_used(agent3: Command, tmp_path: Path) -> None:
    assert "No agents" in agent3("list").out
    assert (tmp_path / "data" / "agent3.db").exists()


def test_a_note_of_a_gateway_that_is_gone_leads_nowhere(agent3: Command, tmp_path: Path) -> None:
    from agent3.client.announcement import find_running as find

    (tmp_path / "data" / "gateways").mkdir(parents=True)
    note = tmp_path / "data" / "gateways" / "1.json"
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait(60)
    for text in ("", "{}", "[]", '{"url": "http://127.0.0.1:9", "pid": "x"}', json.dumps({"url": 1, "pid": gone.pid})):
        note.write_text(text)
        assert find(Settings()) is None
    note.write_text(json.dumps({"url": "http://127.0.0.1:9", "pid": os.getpid()}))
    assert agent3("list").code == 0


def test_of_two_gateways_the_one_on_the_same_database_is_asked_else_the_last(
    agent3: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from agent3.client.announcement import find_running as find

    data, own = tmp_path / "data", tmp_path / "own"
    own.mkdir()
    (own / "agent3.toml").write_text('[storage]\nurl = "sqlite:///own.db"\n')
    foreign = Settings(storage=Storage(url="postgresql://ann:hunter2@db.example.com/agents"))
    with gateway(data, cwd=own) as first:
        with gateway(data, "--demo") as second:
            assert find(Settings()) == find(foreign) == second.url
            nobody = agent3("show", "nobody")
            assert (nobody.code, second.url in nobody.err) == (4, True)
            monkeypatch.chdir(own)
            assert agent3("list", "--json").json["count"] == 0, "the first has no demo agents"
            assert first.url in agent3("show", "pizza").err
            assert agent3("list").err == ""
            monkeypatch.chdir(tmp_path)
            monkeypatch.setenv("AGENT3_STORAGE_URL", "sqlite:///third.db")
            assert agent3("list").err.startswith(f"Using the gateway at {second.url}, which runs on another database.")
            monkeypatch.delenv("AGENT3_STORAGE_URL")
            assert second.stop() == 0
        assert find(Settings()) == first.url


def test_who_waits_for_somebody_else_is_not_told_to_answer(capsys: pytest.CaptureFixture[str]) -> None:
    question = {"id": "approval", "text": "notes.delete needs approval.", "by": "boss"}
    asked = {"success": False, "status": "needs", "job": "j", "questions": [question]}
    print_answer(asked, "notes", GatewayOptions())
    told = capsys.readouterr().err
    assert told == "You need not answer. To check on it: agent3 call notes --job j\n"


def test_whoever_has_no_key_hears_which_gateway_wants_one(agent3: Command, tmp_path: Path) -> None:
    settings = Settings(clients=(Client("me", f"sha256:{'0' * 64}"),))
    with hosted(tmp_path, settings=settings) as door:
        told = agent3("list", "--server", door.url)
    assert told.code == 4
    assert told.err.endswith(f"Set AGENT3_KEY to the key of a client of the gateway at {door.url}.\n")


def test_a_conversation_in_the_demo_goes_on_from_command_to_command(agent3: Command) -> None:
    asked = agent3("call", "pizza", "a tuna pizza", "--demo")
    assert asked.code == 3
    words = asked.err.partition(": ")[2].split()
    assert "--demo" in words
    done = agent3(*[word.replace("ANSWER", "small") for word in words[1:]], "--json")
    assert (done.code, done.json["result"]["size"]) == (0, "small")


def test_a_database_that_cannot_be_is_one_sentence(agent3: Command) -> None:
    told = agent3("list", "--db", "mysql://x")
    assert told.code == 2
    assert len(told.err.splitlines()) == 1


def test_agents_that_speak_markup_are_printed_as_they_are(agent3: Command, tmp_path: Path) -> None:
    sly = LocalAgent("Sly", description="[red]Look[/nothing] :smile:")
    sly.capability(_nothing)
    with hosted(tmp_path, [sly]) as door:
        told = agent3("list", "--server", door.url)
    assert (told.code, "[red]Look[/nothing] :smile:" in told.out) == (0, True)


def _nothing() -> None:
    """Do nothing."""


def test_a_list_that_is_cut_says_so(agent3: Command, tmp_path: Path) -> None:
    many = []
    for number in range(51):
        one = LocalAgent(f"agent {number:02}")
        one.capability(_nothing)
        many.append(one)
    with hosted(tmp_path, many) as door:
        told = agent3("list", "--server", door.url)
    assert "the first 50" in told.out


def test_every_error_has_its_documented_exit_code() -> None:
    from agent3.errors import family

    expected = {"AgentNotFound": 4, "Unauthenticated": 4, "RateLimited": 4, "Unavailable": 5, "CircuitOpen": 5}
    expected |= {"ValidationError": 2, "SetupError": 2, "TargetError": 1, "CallTimeout": 1, "StorageError": 5}
    codes = {kind.__name__: exit_code(kind) for kind in family()}
    assert {name: codes[name] for name in expected} == expected
    assert set(codes.values()) <= {1, 2, 4, 5}
    with pytest.raises(SetupError):
        connect(GatewayOptions(server="http://x", demo=True))


# As a process


def test_python_m_agent3_is_the_same_command(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "agent3", "--version"],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    assert done.stdout.strip() == __version__


def test_a_reader_that_leaves_early_gets_no_stack(running: Process) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            [AGENT3, "list", "--json"],
            env=environment(running.data),
            stdout=write,
            stderr=subprocess.PIPE,
            text=True,
            timeout=240,
            check=False,
        )
    finally:
        os.close(write)
    assert done.stderr == ""
    assert done.returncode == 141


class Terminal:
    """A person at a terminal."""

    def __init__(self, data: Path, *arguments: str):
        self._fd, child = pty.openpty()
        self.process = subprocess.Popen(
            [AGENT3, *arguments], env=environment(data), stdin=child, stdout=child, stderr=child, close_fds=True
        )
        os.close(child)
        self.seen = ""

    def until(self, words: str) -> None:
        """Read until some words were shown."""
        self.until_any(words)

    def until_any(self, *words: str) -> None:
        """Read until any of some words were shown."""
        while not any(one in self.seen.lower() for one in map(str.lower, words)):
            assert self._read(), self.seen

    def _read(self) -> bool:
        try:
            ready, _, _ = select.select([self._fd], [], [], 100)
            assert ready, f"nothing more was shown after {self.seen!r}"
            piece = os.read(self._fd, 4096).decode()
        except OSError:  # the other end is closed
            return False
        self.seen += piece
        return bool(piece)

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def interrupt(self) -> None:
        """Ctrl-C, and again where the first came just before input() began to wait, which then does not see it."""
        for _ in range(4):
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                continue
            return

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(60)
        os.close(self._fd)

    def end(self) -> int:
        """Read to the end, and the exit code."""
        while self._read():
            pass
        return self.process.wait(60)


FORM = """
from dataclasses import dataclass
from typing import Literal
from agent3 import App, Context
app = App("desk")

@dataclass
class Guest:
    name: str
    seat: Literal["window", "aisle"] = "aisle"

@app.capability
async def sign_up(ctx: Context) -> str:
    "Sign somebody up."
    guest = await ctx.ask("Please fill this in:", Guest)
    return f"{guest.name} sits at the {guest.seat}"
"""


def test_a_form_shows_its_fields_and_an_empty_line_is_no_answer_to_what_it_requires(tmp_path: Path) -> None:
    file = tmp_path / "desk.py"
    file.write_text(FORM)
    with gateway(tmp_path / "data", str(file)) as door:
        with Terminal(door.data, "call", "desk", "--capability", "sign_up") as terminal:
            terminal.until("or name alone.")
            assert "name (string, required)" in terminal.seen
            assert "optional, default" in terminal.seen
            terminal.type("\n")
            terminal.until("Please answer")
            terminal.type("Ann\n")
            assert terminal.end() == 0
            assert "Ann sits at the aisle" in terminal.seen
        alone = run_agent3(door.data, "call", "desk", "--capability", "sign_up")
        assert (alone.returncode, "name (string, required)" in alone.stdout) == (3, True)


def test_a_person_at_a_terminal_is_asked_until_the_answer_fits(running: Process) -> None:
    with Terminal(running.data, "call", "pizza", "a pizza") as terminal:
        terminal.until("Which size: small, medium or large?")
        terminal.type("huge\n")
        terminal.until("invalid: ")
        terminal.type("large\n")
        terminal.until("Which topping?")
        terminal.type("tuna\n")
        assert terminal.end() == 0
        assert '"size": "large"' in terminal.seen
        assert '"topping": "tuna"' in terminal.seen


def test_a_person_who_leaves_is_told_how_to_come_back(running: Process) -> None:
    with Terminal(running.data, "call", "story", "--capability", "guess") as terminal:
        terminal.until("Guess 1")
        terminal.type("\x04")
        assert terminal.end() == 3
        assert "--job" in terminal.seen
        assert "Traceback" not in terminal.seen


def test_a_person_who_interrupts_is_told_how_to_come_back_too(running: Process) -> None:
    with Terminal(running.data, "call", "pizza", "a pizza") as terminal:
        terminal.until("Which size")
        terminal.interrupt()
        # 130 where it came before the question was read; killed by a second one that met the end of the process.
        assert terminal.end() in (3, 130, -signal.SIGINT)
        assert "Traceback" not in terminal.seen


def test_an_unknown_agent_without_a_gateway_says_that_none_runs(agent3: Command) -> None:
    told = agent3("call", "pizza", "hello")
    assert told.code == 4
    assert "No gateway is running" in told.err


def test_the_stdio_server_ends_on_an_interrupt(tmp_path: Path) -> None:
    with subprocess.Popen(
        [AGENT3, "mcp", "--demo"],
        env=environment(tmp_path),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        process.stdin.write(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}).encode())
        process.stdin.write(b"\n")
        process.stdin.flush()
        assert b'"result"' in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130


def test_a_number_is_read_as_a_number_at_a_terminal(running: Process) -> None:
    with Terminal(running.data, "call", "story", "--capability", "guess") as terminal:
        for turn in (1, 2, 3):
            terminal.until_any(f"Guess {turn}:", "it was")
            if "it was" not in terminal.seen.lower():
                terminal.type(f"{turn}\n")
        assert terminal.end() == 0
        assert "it was" in terminal.seen.lower()
        assert "invalid: " not in terminal.seen


def test_a_person_who_starts_the_stdio_server_by_hand_is_told_what_it_is_for(tmp_path: Path) -> None:
    with Terminal(tmp_path, "mcp", "--demo") as terminal:
        terminal.until("Ctrl-D to stop it")
        assert '"mcpServers"' in terminal.seen
        terminal.type("\x04")
        assert terminal.end() == 0


def test_help_of_a_real_process_is_plain(tmp_path: Path) -> None:
    done = run_agent3(tmp_path, "--help")
    assert done.returncode == 0
    assert done.stdout.startswith("Usage: agent3 COMMAND")


@pytest.mark.parametrize(
    ("what", "named"),
    [
        ("https://ann:hunter2@example.com/mcp", "password"),
        ("https://example.com/mcp?token=hunter3", "'token'"),
        ("no-such-program --key hunter4", "'key'"),
    ],
)
def test_an_address_that_holds_a_secret_is_refused_without_telling_it(agent3: Command, what: str, named: str) -> None:
    told = agent3("add", what)
    assert (told.code, told.out) == (2, "")
    assert named in told.err
    assert "hunter" not in told.err


def test_what_cannot_be_added_is_named_without_the_values_in_its_address(agent3: Command) -> None:
    told = agent3("add", "https://127.0.0.1:9/mcp?city=rome")
    assert told.code != 0
    assert "127.0.0.1" in told.err
    assert "rome" not in told.out + told.err
    missing = agent3("add", "no-such-program --city rome")
    assert (missing.code, "no-such-program" in missing.err) == (5, True)
    assert "rome" not in missing.out + missing.err


# What works on the database


DATABASE_COMMANDS = (
    ("add", "x"),
    ("remove", "x"),
    ("backup", "x"),
    ("restore", "x"),
    ("doctor",),
    ("dlq", "list"),
    ("dlq", "show", "x"),
    ("dlq", "replay", "x"),
    ("dlq", "drop", "x", "--yes"),
)


@pytest.mark.parametrize("command", DATABASE_COMMANDS, ids=" ".join)
def test_what_works_on_the_database_takes_no_gateway(agent3: Command, command: tuple[str, ...]) -> None:
    told = agent3(*command, "--server", "http://127.0.0.1:9")
    assert told.code == 2
    assert "--server" in told.out + told.err


def test_what_is_meant_for_the_gateway_of_the_environment_is_done_nowhere_else(
    agent3: Command, running: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT3_SERVER", "http://127.0.0.1:9")
    for command in (("dlq", "list"), ("stop", "echo"), ("add", "x"), ("client", "list")):
        told = agent3(*command)
        assert (told.code, told.out) == (2, "")
        assert told.err == (
            "agent3: AGENT3_SERVER names http://127.0.0.1:9, which does not run on the database of the settings; this "
            "command works on a database. Name it with --db, or unset AGENT3_SERVER to use the one of the settings.\n"
        )
    assert agent3("remove", "x").code == agent3("approve", "x").code == 5, "these go to that gateway"
    monkeypatch.setenv("AGENT3_SERVER", running.url)
    assert "x" in agent3("remove", "x").err
    told = agent3("dlq", "list", "--db", "sqlite:///own.db")
    assert (told.code, told.out, told.err) == (0, "No dead letters.\n", ""), "here it is clear which one is meant"


def test_a_variable_that_names_no_setting_is_told(agent3: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT3_SERVER_PROT", "1")
    told = agent3("list", "--json")
    assert (told.code, told.json["count"]) == (0, 0)
    assert told.err.startswith("agent3: The environment variable AGENT3_SERVER_PROT is not a setting")
    (check,) = [one for one in agent3("doctor", "--json").json["checks"] if one["name"] == "settings"]
    assert (check["state"], "AGENT3_SERVER_PORT" in check["detail"]) == ("warn", True)


@pytest.mark.requirement("AC-23")
def test_a_batch_is_read_from_a_file_or_from_standard_input(at: Command, tmp_path: Path) -> None:
    calls = [{"agentId": "echo", "message": word} for word in ("one", "two")]
    file = tmp_path / "calls.json"
    file.write_text(json.dumps(calls))
    told = at("batch", str(file))
    assert told.code == 0
    assert [json.loads(line)["result"] for line in told.out.splitlines()] == ["one", "two"]
    assert at("batch", str(file), "--json").json["metadata"]["succeeded"] == 2
    file.write_text("\n".join(json.dumps(each) for each in [*calls, {"agentId": "nobody"}]))
    told = at("batch", str(file))
    assert told.code == 1
    assert [json.loads(line)["success"] for line in told.out.splitlines()] == [True, True, False]
    file.write_text("{")
    assert at("batch", str(file)).code == 2
    assert at("batch", str(tmp_path / "none.json")).code == 2


def test_errors_name_commands_and_leave_the_names_of_capabilities() -> None:
    said = "Agent 'gw' has no capability 'x' that you may call. It has agent3_call, agent3_search: see agent3_select."
    assert with_command_names(said).endswith("It has agent3_call, agent3_search: see agent3 show.")
    assert with_command_names("Use agent3_search to find one.") == "Use agent3 search to find one."
    assert with_command_names("There is no tool 'agent3_call'.") == "There is no tool 'agent3_call'."


def test_a_name_that_the_running_gateway_has_itself_is_not_added(at: Command) -> None:
    steps = [{"action_type": "navigate", "value": "https://shop.example/"}]
    shop = {"interface_id": "shop", "name": "Shop", "base_url": "https://shop.example", "actions": {"go": steps}}
    taken = at("add", json.dumps(shop), "--name", "echo")
    assert "The running gateway already has an agent 'echo' of its own. Choose another --name." in taken.err
    assert taken.code == 2
    kept = at("remove", "echo")
    assert (kept.code, "agent3 stop echo" in kept.err) == (4, True)
    assert "AGENT.CAPABILITY" in at("route", "x", "--also", "y").err
    added = at("add", json.dumps(shop), "--name", "free-name")
    assert (added.code, "Try: agent3 show free-name" in added.out) == (0, True)  # no call of what may act
    assert at("add", json.dumps(shop), "--name", "free-name").code == 0, "again brings it up to date"
    assert at("remove", "free-name").code == 0


# Websites that would answer for other agents


def test_a_website_answers_for_another_agent_only_after_a_yes(agent3: Command) -> None:
    steps = [{"action_type": "navigate", "value": "https://shop.example/"}]
    shop = {"interface_id": "shop", "name": "Shop", "base_url": "https://shop.example", "actions": {"go": steps}}
    other = json.dumps({**shop, "interface_id": "other", "name": "Other", "metadata": {"stands_in_for": "shop"}})
    assert agent3("add", json.dumps(shop)).code == 0

    def states() -> dict[str, str]:
        return {one["also"]: one["state"] for one in agent3("route", "--json").json["routes"]}

    told = agent3("add", other)
    assert "other.go does not stand in for shop.go. To allow it: agent3 route shop.go --also other.go" in told.err
    assert set(states().values()) == {"unused"}
    assert agent3("route", "shop.go", "--also", "other.go").code == 0
    assert states()["other.go"] == "ready"
    found = agent3("add", other, "--yes", "--json").json["added"][0]["standsInFor"]
    assert "other.go" not in {one["also"] for one in found}, "it was confirmed before"
    assert all(one["confirmed"] for one in found)
    assert set(states().values()) == {"ready"}
