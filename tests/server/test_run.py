"""``agent3 serve`` as people run it: own agents, wrong references, ports, signals, several on one database."""

from __future__ import annotations

import asyncio
import http.client
import json
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from mcp.client.client import Client

from agent3 import LocalAgent
from agent3.server.run import InBackground
from agent3.settings import Server as ServerSettings
from agent3.settings import Settings, Storage
from tests.support.gateway import Door, Process, Reply, gateway, run_agent3
from tests.support.postgres import new_database_url

SLOW = '''
import asyncio
from pathlib import Path
from agent3 import LocalAgent

agent = LocalAgent("Slow")

@agent.capability
async def work(name: str) -> str:
    """Work for a while."""
    Path(name).touch()
    await asyncio.sleep(0.8)
    return "finished"
'''


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    with gateway(tmp_path_factory.mktemp("shared"), "--demo") as running:
        yield running


def until(there: Path) -> None:
    """Wait for a file, for a bounded time."""
    end = time.monotonic() + 60
    while not there.exists():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_signal_lets_running_calls_finish_and_closes_in_order(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    replies: list[Reply] = []
    with gateway(tmp_path, "slow:agent") as door:
        assert list((tmp_path / "gateways").iterdir())
        call = threading.Thread(target=lambda: replies.append(door.call("slow", str(tmp_path / "attached"))))
        call.start()
        until(tmp_path / "attached")
        job = door.call("slow", str(tmp_path / "detached"), prefer="respond-async").json["job"]
        until(tmp_path / "detached")
        assert door.stop(signal.SIGTERM) == 0
        call.join(60)
        assert [reply.json["result"] for reply in replies] == ["finished"]
        assert "Traceback" not in door.said()
    assert not list((tmp_path / "gateways").iterdir())
    with sqlite3.connect(tmp_path / "agent3.db") as database:
        assert [row[0] for row in database.execute("SELECT status FROM calls")] == ["done", "done"]
        assert database.execute("SELECT status FROM jobs WHERE id = ?", [job]).fetchone() == ("done",)
    database.close()


def test_ctrl_c_stops_it_quietly(tmp_path: Path) -> None:
    with gateway(tmp_path, "--demo") as door:
        assert door.stop(signal.SIGINT) == 0
        assert "Traceback" not in door.said()


def test_a_client_that_stays_connected_does_not_hold_the_stop_for_long(tmp_path: Path) -> None:
    async def story(door: Process) -> None:
        async with Client(f"{door.url}/mcp", mode="legacy") as client:
            await client.list_tools()
            door.process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(door.process.wait, 60) == 0

    with gateway(tmp_path, "--demo") as door:
        asyncio.run(asyncio.wait_for(story(door), 100))


def test_a_port_in_use_is_one_sentence(shared: Process, tmp_path: Path) -> None:
    port = shared.url.rsplit(":", 1)[1]
    done = run_agent3(tmp_path, "serve", "--port", port)
    assert done.returncode == 2
    assert done.stderr.startswith(f"agent3: Cannot listen on 127.0.0.1:{port}: ")
    assert "--port 0" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_an_open_address_without_clients_is_refused_and_says_how_to_add_one(tmp_path: Path) -> None:
    done = run_agent3(tmp_path, "serve", "--host", "0.0.0.0", "--port", "0")
    assert done.returncode == 2
    assert "[[clients]]" in done.stderr
    assert "127.0.0.1" in done.stderr
    assert "Traceback" not in done.stderr


def test_with_a_client_an_open_address_serves_and_the_greeting_speaks_of_its_key(tmp_path: Path) -> None:
    config = '[[clients]]\nid = "me"\nkey = "env:MY_KEY"\n'
    with gateway(tmp_path, "--demo", "--host", "0.0.0.0", config=config, MY_KEY="0123456789abcdef") as door:
        text = "\n".join(door.lines)
        assert "Bearer KEY" in text
        assert "AGENT3_KEY=KEY" in text
        assert "0123456789abcdef" not in text
        assert door.get("/v1/agents").status == 401
        assert door.as_("0123456789abcdef").get("/v1/agents").status == 200
        assert run_agent3(tmp_path, "list").returncode == 4
        assert "AGENT3_KEY" in run_agent3(tmp_path, "list").stderr
        assert "pizza" in run_agent3(tmp_path, "list", AGENT3_KEY="0123456789abcdef").stdout


def test_the_greeting_names_those_who_have_a_key_and_can_use_it_alone(tmp_path: Path) -> None:
    signing = '[[clients]]\nid = "desk"\nsigning = "env:DESK"\n'
    both = '[[clients]]\nid = "strict"\nkey = "env:MY_KEY"\nsigning = "env:DESK"\nrequire_signature = true\n'
    keyed = '[[clients]]\nid = "me"\nkey = "env:MY_OWN_KEY"\n'
    secret, key = "a-secret-of-many-characters-to-sign-with", "0123456789abcdef"
    with gateway(tmp_path, config=signing + both + keyed, DESK=secret, MY_KEY=key, MY_OWN_KEY=key[::-1]) as door:
        assert door.lines[-1] == "KEY is the key of a client: me."
    with gateway(tmp_path, "--demo", config=signing + both, DESK=secret, MY_KEY=key) as door:
        assert door.lines[-1] == "Its clients sign their requests; see docs/reference/signing.md."
        assert not any("KEY" in line for line in door.lines), "there is no key that would help"


def test_a_line_that_is_no_message_is_answered_over_stdio_and_logged(tmp_path: Path) -> None:
    done = run_agent3(tmp_path, "mcp", stdin='{bad\n\n{"jsonrpc": "2.0"}\n')
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(one["id"], one["error"]["code"]) for one in answers] == [(None, -32700), (None, -32600)]
    assert "is not JSON" in answers[0]["error"]["message"]
    assert done.stderr.count("A line of standard input") == 2


def test_two_gateways_on_one_database_share_what_is_stored(shared: Process, tmp_path: Path) -> None:
    with gateway(tmp_path, "--demo", "--db", f"sqlite:///{shared.data / 'agent3.db'}") as second:
        shared.call("story", "a robot", capability="tell")
        shared.post("/v1/feedback", {"agentId": "story", "rating": 4})
        assert second.get("/v1/agents/story").json["rating"] == {"count": 1, "mean": 4.0}
        job = shared.call("pizza", "a tuna pizza").json["job"]
        assert second.get(f"/v1/calls/{job}").json["status"] == "needs"
        done = second.post(f"/v1/calls/{job}/answer", {"message": "large"}).json
        assert done["result"]["size"] == "large"
        assert shared.get(f"/v1/calls/{job}").json["status"] == "done"


@pytest.mark.postgres
def test_a_gateway_on_postgresql_keeps_its_jobs_over_a_restart_and_its_password_to_itself(tmp_path: Path) -> None:
    url = new_database_url()
    assert ":secret@" in url
    with gateway(tmp_path, "--demo", "--db", url) as first:
        assert "secret" not in "\n".join(first.lines)
        assert first.get("/readyz").status == 200
        job = first.call("pizza", "a tuna pizza").json["job"]
        assert first.stop() == 0
    with gateway(tmp_path, "--demo", "--db", url) as second:
        done = second.post(f"/v1/calls/{job}/answer", {"message": "large"}).json
        assert done["result"]["size"] == "large"
    assert "secret" not in first.said() + second.said()
    told = run_agent3(tmp_path, "doctor", "--db", url, AGENT3_SERVER_PORT="0")
    assert (told.returncode, "secret" in told.stdout) == (0, False)


def test_a_passing_command_leaves_the_lost_jobs_of_a_gateway_alone(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    with gateway(tmp_path, "slow:agent") as door:
        job = door.call("slow", str(tmp_path / "started"), prefer="respond-async").json["job"]
        until(tmp_path / "started")
        door.process.kill()
        door.process.wait(60)
    assert run_agent3(tmp_path, "list").returncode == 0
    with sqlite3.connect(tmp_path / "agent3.db") as database:
        assert database.execute("SELECT status FROM jobs WHERE id = ?", [job]).fetchone() == ("working",)
    database.close()


def test_an_agent_of_ones_own_is_served_beside_the_demo(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    with gateway(tmp_path, "slow:agent", "--demo") as door:
        assert {"slow", "story"} <= {one["id"] for one in door.get("/v1/agents").json["agents"]}


WRONG = [
    (":agent", "must be MODULE:NAME"),
    ("slow:", "must be MODULE:NAME"),
    ("nowhere:agent", "the module 'nowhere' was not found"),
    ("nowhere", "the module 'nowhere' was not found"),
    ("nowhere.py:agent", "the file 'nowhere.py' does not exist"),
    ("folder/nowhere.py", "the file 'folder/nowhere.py' does not exist"),
    ("empty", "it contains no App"),
    ("empty.py", "it contains no App"),
    ("bare.py:app", "'bare' has no capability"),
    ("untyped.py:app", "parameter 'city' of price has no type"),
    ("twins.py", "it contains several: one, two"),
    ("slow:nothing", "'nothing' in 'slow' does not exist"),
    ("slow:asyncio", "is a module"),
    ("empty:agents", "is a list"),
    ("broken:agent", "ZeroDivisionError"),
    ("unclosed:agent", "SyntaxError"),
    ("needy:agent", "No module named 'not_installed_here'"),
    ("twins:agents", "Two agents have the id 'twin'"),
]


def test_wrong_references_are_one_sentence_each(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    (tmp_path / "empty.py").write_text("agents = []")
    (tmp_path / "broken.py").write_text("x = 1\ny = x / 0\n")
    (tmp_path / "unclosed.py").write_text("agent = (")
    (tmp_path / "needy.py").write_text("import not_installed_here")
    (tmp_path / "twins.py").write_text(
        "from agent3 import LocalAgent\ndef act() -> None: ...\none, two = LocalAgent('Twin'), LocalAgent('twin')\n"
        "one.add(act)\ntwo.add(act)\nagents = [one, two]\n"
    )
    (tmp_path / "bare.py").write_text("from agent3 import App\napp = App('bare')")
    (tmp_path / "untyped.py").write_text(
        "from agent3 import App\napp = App('untyped')\n@app.capability\ndef price(city): return 1\n"
    )
    code = (
        "import sys, json\nfrom agent3.errors import SetupError\n"
        "from agent3.server.loading import check_ids, load_agents\n"
        "told = []\n"
        "for one in json.loads(sys.argv[1]):\n"
        "    try:\n        check_ids(load_agents(one))\n        told.append(None)\n"
        "    except SetupError as wrong:\n        told.append(wrong.message)\n"
        "print(json.dumps(told))\n"
    )
    # One process for all of them: each is a matter of milliseconds, a start is not.
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps([one for one, _ in WRONG])],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    for (reference, words), told in zip(WRONG, json.loads(done.stdout), strict=True):
        assert told is not None, reference
        assert words in told
        assert "\n" not in told
    broken = next(told for (one, _), told in zip(WRONG, json.loads(done.stdout), strict=True) if one == "broken:agent")
    assert broken.endswith("broken.py:2")


def test_an_agent_is_found_by_module_or_file_and_alone_without_a_name(tmp_path: Path) -> None:
    apps = tmp_path / "apps"
    apps.mkdir()
    (apps / "words.py").write_text("GREETING = 'Hello'\n")
    (apps / "hello.py").write_text(
        "from words import GREETING\nfrom agent3 import App\napp = App('hello', description=GREETING)\n"
        "@app.capability\ndef greet(name: str) -> str: return GREETING\n"
    )
    code = (
        "import os, sys\nfrom agent3.server.loading import load_agents\n"
        "for one in sys.argv[1:]:\n    print([agent.description for agent in load_agents(one)])\n"
    )
    references = ["apps/hello.py", "apps/hello.py:app", str(apps / "hello.py")]
    done = subprocess.run(
        [sys.executable, "-c", code, *references],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    assert done.stdout == "['Hello']\n" * len(references)
    beside = [sys.executable, "-c", code, "hello", "hello:app"]
    done = subprocess.run(beside, cwd=apps, capture_output=True, text=True, timeout=240, check=False)
    assert done.stdout == "['Hello']\n" * 2, done.stderr


def test_a_wrong_reference_ends_the_command_with_code_two(tmp_path: Path) -> None:
    done = run_agent3(tmp_path, "mcp", "nowhere:agent")
    assert done.returncode == 2
    assert done.stderr.startswith("agent3: nowhere:agent: the module")
    assert len(done.stderr.splitlines()) == 1


def test_settings_that_are_wrong_are_named(tmp_path: Path) -> None:
    (tmp_path / "agent3.toml").write_text("[server]\nprot = 1\n")
    done = run_agent3(tmp_path, "serve")
    assert done.returncode == 2
    assert "prot" in done.stderr


def test_ports_that_are_none_and_addresses_that_are_not_ours_are_one_sentence(tmp_path: Path) -> None:
    config = tmp_path / "clients.toml"
    config.write_text('[[clients]]\nid = "me"\nkey = "env:MY_KEY"\n')
    high = run_agent3(tmp_path, "serve", "--port", "99999")
    assert (high.returncode, "must be at most 65535" in high.stderr) == (2, True)
    foreign = run_agent3(tmp_path, "serve", "--host", "192.0.2.1", "--config", str(config), MY_KEY="0123456789abcdef")
    assert (foreign.returncode, "--host" in foreign.stderr) == (2, True)


def test_a_data_folder_that_cannot_be_used_is_one_sentence(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    done = run_agent3(blocked / "below", "serve", "--port", "0", cwd=tmp_path)
    assert done.returncode == 2
    assert "AGENT3_DATA" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_call_that_the_stop_cuts_off_is_recorded_as_that(tmp_path: Path) -> None:
    """Its caller was still there: it neither cancelled nor left."""
    file = tmp_path / "stopped.db"
    begun, agent = threading.Event(), LocalAgent("slow")

    async def wait() -> str:
        """Wait."""
        begun.set()
        await asyncio.Event().wait()
        return ""

    agent.add(wait)
    settings = Settings(storage=Storage(url=f"sqlite:///{file}"), server=ServerSettings(port=0, shutdown_seconds=0.0))
    with InBackground(settings, [agent]) as url:
        door = Door(url)
        asked = threading.Thread(target=lambda: _ask_until_cut(door))
        asked.start()
        assert begun.wait(60)
    asked.join(60)
    with closing(sqlite3.connect(file)) as database:
        rows = database.execute("SELECT status, code, message FROM calls WHERE agent = 'slow'").fetchall()
    assert rows == [("failed", "interrupted", "The gateway was stopped before the call ended.")]


def _ask_until_cut(door: Door) -> None:
    with suppress(OSError, http.client.HTTPException):
        door.ask("POST", "/v1/call", {"agentId": "slow", "capability": "wait"})
