"""The commands of an operator, from outside: dead letters, backup and restore, also beside a running gateway."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from agent3.cli import main as cli
from agent3.cli.backups import backup, restore
from agent3.cli.dead_letters import parse_moment
from agent3.errors import SetupError, ValidationError
from agent3.storage import Database
from agent3.terminal.options import DatabaseOptions
from tests.support.gateway import gateway
from tests.support.storage import using

BROKEN = '''
from agent3 import LocalAgent
from agent3.errors import Unavailable

app = LocalAgent("shop")


@app.capability
async def sell(what: str) -> str:
    """Sell something."""
    raise Unavailable("The shop is closed.")
'''


class Done(NamedTuple):
    """What a command left behind."""

    returncode: int
    stdout: str
    stderr: str


Command = Callable[..., Done]


@pytest.fixture
def agent3(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs a command in this process, on a data folder."""

    def run(data: Path, *arguments: str) -> Done:
        monkeypatch.setenv("AGENT3_DATA", str(data))
        monkeypatch.setattr(sys, "argv", ["agent3", *arguments])
        code = 0
        try:
            cli.main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        return Done(code, *capsys.readouterr())

    return run


def told(done: Done) -> Any:
    return json.loads(done.stdout)


def test_an_operator_finds_shows_and_drops_letters_while_the_gateway_runs(agent3: Command, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(BROKEN)
    (tmp_path / "kiosk.py").write_text(BROKEN.replace('"shop"', '"kiosk"'))
    with gateway(tmp_path, "shop:app", "kiosk:app", PYTHONPATH=str(tmp_path)) as running:
        assert {one["id"] for one in told(agent3(running.data, "list", "--json"))["agents"]} == {"shop", "kiosk"}
        failed = agent3(running.data, "call", "shop", "--input", '{"what": "pizza"}', "--retries", "0")
        assert failed.returncode == 5
        listed = agent3(running.data, "dlq", "list")
        assert "shop/sell" in listed.stdout
        (one,) = told(agent3(running.data, "dlq", "list", "--since", "1h", "--json"))["letters"]
        assert told(agent3(running.data, "dlq", "show", one["id"], "--json"))["call"]["input"] == {"what": "pizza"}
        again = agent3(running.data, "dlq", "replay", "nonsense", one["id"], "call:gone", "--may-run-twice", "--json")
        codes = [(each["status"], each["code"]) for each in told(again)["replayed"]]
        assert codes == [("refused", "invalid_input"), ("refused", "agent_not_found"), ("refused", "not_found")]
        assert again.returncode == 1
        unasked = agent3(running.data, "dlq", "drop", one["id"])
        assert (unasked.returncode, "--yes" in unasked.stderr) == (2, True)
        assert told(agent3(running.data, "dlq", "drop", one["id"], "--yes", "--json")) == {"dropped": 1}
        assert agent3(running.data, "dlq", "drop", one["id"], "--yes").returncode == 4
        assert agent3(running.data, "dlq", "list").stdout == "No dead letters.\n"
        assert agent3(running.data, "stop").stdout == "No agents are stopped.\n"
        served = agent3(running.data, "stop", "shop", "--reason", "rats")
        assert (served.stdout, served.stderr) == ("shop is stopped.\n", "")
        unknown = agent3(running.data, "stop", "shopp")
        assert unknown.stdout == "Calls to 'shopp' are refused.\n"
        assert "No agent 'shopp' is known here" in unknown.stderr
        stopped = told(agent3(running.data, "stop", "--json"))["stopped"]
        assert {one["id"]: one["reason"] for one in stopped} == {"shop": "rats", "shopp": ""}
        assert "calls of shop" in agent3(running.data, "doctor").stdout


def test_a_backup_is_taken_beside_a_gateway_and_restored_without_it(agent3: Command, tmp_path: Path) -> None:
    data, archive = tmp_path / "data", tmp_path / "backup.tar.gz"
    with gateway(data, "--demo") as running:
        assert agent3(data, "call", "echo", "before").returncode == 0
        made = agent3(data, "backup", str(archive))
        assert (made.returncode, "verified" in made.stdout) == (0, True)
        assert agent3(data, "backup", str(archive)).returncode == 2
        assert agent3(data, "call", "echo", "after").returncode == 0
        refused = agent3(data, "restore", str(archive))
        assert (refused.returncode, "in use" in refused.stderr) == (2, True)
        assert agent3(data, "call", "echo", "still").returncode == 0
        running.stop()
    restored = agent3(data, "restore", str(archive), "--json")
    assert restored.returncode == 0

    async def count(database: Database) -> int:
        row = await database.one("SELECT COUNT(*) AS n FROM calls")
        assert row is not None
        return int(row["n"])

    assert using(f"sqlite:///{data / 'agent3.db'}", count) == 1
    assert using(f"sqlite:///{told(restored)['aside']}", count) == 3


def test_other_databases_are_told_what_to_use_instead(tmp_path: Path) -> None:
    postgres = DatabaseOptions("postgresql://me:secret@db/agent3")
    with pytest.raises(SetupError, match=r"pg_dump .* postgresql://me@db/agent3") as error:
        backup(tmp_path / "x", options=postgres)
    assert "secret" not in error.value.message
    with pytest.raises(SetupError, match="pg_restore"):
        restore(tmp_path / "x", options=postgres)
    with pytest.raises(SetupError, match="in-memory"):
        backup(tmp_path / "x", options=DatabaseOptions("sqlite://"))


def test_these_commands_are_not_for_a_gateway_elsewhere(agent3: Command, tmp_path: Path) -> None:
    for words in (["dlq", "list"], ["backup", "x.tar"], ["restore", "x.tar"]):
        done = agent3(tmp_path, *words, "--server", "http://127.0.0.1:1")
        assert (done.returncode, "--server" in done.stdout + done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("90s", 910.0), ("2m", 880.0), ("1970-01-01T00:00Z", 0.0), ("1970-01-01T01:00:00+01:00", 0.0), ("0.25h", 100.0)],
)
def test_a_moment_is_read_as_people_write_it(text: str, expected: float) -> None:
    assert parse_moment(text, 1_000.0) == expected


def test_a_moment_without_an_offset_is_local_as_the_lists_show_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "CET-1")
    time.tzset()
    try:
        assert parse_moment("1970-01-02", 0.0) == 23 * 3_600.0
        assert parse_moment(time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(1_000.0)), 0.0) == 1_000.0
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_moment_that_is_none_is_refused() -> None:
    with pytest.raises(ValidationError, match="yesterday"):
        parse_moment("yesterday", 0.0)
