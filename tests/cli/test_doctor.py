"""The doctor: every fault is found, named, and told what to do about."""

from __future__ import annotations

import os
import socket
import sqlite3
import stat
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest

from agent3.cli.doctor import Check, check_settings, examine
from agent3.cli.main import main
from agent3.client.announcement import announce
from agent3.client.plain_http import request
from agent3.env import SeededEnv
from agent3.errors import SetupError, Unavailable
from agent3.identity.master_keys import MasterKeys
from agent3.identity.secrets import EnvironmentVault
from agent3.model import Agent, Capability, Route
from agent3.server.build import build
from agent3.settings import Callbacks, Client, Rule, Server, Settings, Storage
from tests.support.home import run
from tests.support.postgres import new_database_url
from tests.support.tls import certificate


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder of its own, with a database in it."""
    folder = tmp_path / "data"
    monkeypatch.setenv("AGENT3_DATA", str(folder))
    monkeypatch.chdir(tmp_path)
    examine(Settings(server=Server(port=0)))
    return folder


def checks(settings: Settings | None = None, **more: SeededEnv) -> dict[str, Check]:
    return {one["name"]: one for one in examine(settings or Settings(server=Server(port=0)), **more)}


def change(data: Path, sql: str, *parameters: object) -> None:
    connection = sqlite3.connect(data / "agent3.db")
    with connection:
        connection.execute(sql, parameters)
    connection.close()


def test_all_is_well_where_all_is_well(data: Path) -> None:
    found = checks()
    bad = {name: one for name, one in found.items() if one["state"] != "ok" and name != "browser"}
    assert bad == {}
    assert {"settings", "database", "clock", "leases", "dead letters", "disk", "permissions", "gateway"} <= set(found)


def test_what_is_wrong_always_says_what_to_do(data: Path) -> None:
    data.chmod(0o755)
    change(data, "INSERT INTO dead_letters (id, at) VALUES ('x', 0)")
    wrong = [one for one in checks().values() if one["state"] != "ok"]
    assert {"permissions", "dead letters"} <= {one["name"] for one in wrong}
    assert all(one["remedy"] for one in wrong)
    assert all(one["ok"] for one in wrong)


def test_a_damaged_database_fails_and_names_the_remedy(data: Path) -> None:
    file = data / "agent3.db"
    change(data, "PRAGMA wal_checkpoint(TRUNCATE)")  # what the log still holds would hide the damage
    body = bytearray(file.read_bytes())
    body[8_192:40_960] = os.urandom(32_768)
    file.write_bytes(bytes(body))
    found = checks()["database"]
    assert found["state"] == "fail"
    assert "clock" not in checks()


def test_a_disk_that_is_nearly_full_is_told(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for free, state in ((100 << 20, "fail"), (500 << 20, "warn"), (5 << 30, "ok")):
        usage = SimpleNamespace(free=free)
        monkeypatch.setattr("agent3.cli.doctor.shutil.disk_usage", lambda folder, usage=usage: usage)
        assert checks()["disk"]["state"] == state


def test_a_database_on_another_disk_has_its_own_line(data: Path, tmp_path: Path) -> None:
    elsewhere = Settings(server=Server(port=0), storage=Storage(url=f"sqlite:///{tmp_path / 'other' / 'x.db'}"))
    assert checks(elsewhere)["disk of the database"]["state"] == "ok"


def test_a_clock_that_is_wrong_is_told(data: Path) -> None:
    away = checks(env=SeededEnv(time=1_000.0))["clock"]
    assert (away["state"], "off the database's" in away["detail"]) == ("fail", True)
    change(data, "INSERT INTO calls (id, at) VALUES ('x', 4e9)")
    back = checks()["clock"]
    assert (back["state"], "set back" in back["detail"]) == ("warn", True)


def test_jobs_of_processes_that_are_gone_are_told(data: Path) -> None:
    change(
        data,
        "INSERT INTO jobs (id, owner, status, turn, call, node, lease) "
        "VALUES ('j', 'me', 'working', 1, x'00', 'n', 1.0)",
    )
    found = checks()["leases"]
    assert (found["state"], found["detail"].startswith("1 jobs of 1 ended processes")) == ("warn", True)


def test_leases_are_judged_by_the_databases_clock(data: Path) -> None:
    """A job whose lease is good is nobody's to take, however wrong the clock is that the doctor looks at."""
    change(
        data,
        "INSERT INTO jobs (id, owner, status, turn, call, node, lease) "
        "VALUES ('j', 'me', 'working', 1, x'00', 'n', (julianday('now') - 2440587.5) * 86400.0 + 30.0)",
    )
    tomorrow = SeededEnv(time=time.time() + 86_400.0)
    found = checks(env=tomorrow)
    assert (found["leases"]["state"], found["clock"]["state"]) == ("ok", "fail")


@pytest.mark.postgres
def test_artifacts_beside_a_shared_database_should_be_shared_too(data: Path, tmp_path: Path) -> None:
    url = new_database_url()
    alone = checks(Settings(server=Server(port=0), storage=Storage(url=url)))
    assert (alone["artifacts"]["state"], "storage.artifacts" in alone["artifacts"]["remedy"]) == ("warn", True)
    assert alone["leases"]["state"] == "ok"
    shared = checks(Settings(server=Server(port=0), storage=Storage(url=url, artifacts=str(tmp_path))))
    assert shared["artifacts"]["state"] == "ok"
    assert "artifacts" not in checks()


def test_a_port_that_is_taken_fails(data: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        found = checks(Settings(server=Server(port=taken.getsockname()[1])))["gateway"]
    assert (found["state"], found["remedy"]) == ("fail", "Choose another port with --port.")


def test_settings_that_no_gateway_would_start_with_fail(data: Path) -> None:
    open_door = checks(Settings(server=Server(host="0.0.0.0", port=0)))["settings"]
    assert open_door["state"] == "fail"
    no_key = checks(Settings(server=Server(port=0), clients=(Client("me", key="env:NOT_SET_ANYWHERE"),)))["settings"]
    assert (no_key["state"], "NOT_SET_ANYWHERE" in no_key["detail"]) == ("fail", True)


def test_the_certificate_is_looked_at_and_its_gateway_found_where_it_is_not_trusted(data: Path, tmp_path: Path) -> None:
    def tls(**more: Any) -> Check:
        return checks(Settings(server=Server(port=0, **more)))["tls"]

    context, _ = certificate(tmp_path, "gateway.example.com")
    files = {"tls_certificate": str(tmp_path / "site.pem"), "tls_key": str(tmp_path / "site.key")}
    assert tls()["state"] == "ok"
    assert "valid until" in tls(**files)["detail"]
    assert tls(**files)["state"] == "warn", "it is valid for an hour only"
    assert tls(**{**files, "tls_key": str(tmp_path / "ca.pem")})["state"] == "fail"
    certificate(tmp_path, "gateway.example.com", days=90)
    assert tls(**files, allowed_hosts=("gateway.example.com:*",))["state"] == "ok"
    strange = tls(**files, allowed_hosts=("other.example.com",))
    assert (strange["state"], "gateway.example.com" in strange["detail"]) == ("warn", True)
    certificate(tmp_path, "gateway.example.com", days=-1)
    assert tls(**files)["state"] == "fail"

    door = HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    door.socket = context.wrap_socket(door.socket, server_side=True)
    Thread(target=door.serve_forever, daemon=True).start()
    try:
        url = f"https://127.0.0.1:{door.server_port}"
        announce(url, Settings())
        assert checks()["gateway"]["detail"] == f"runs at {url}"
        with pytest.raises(Unavailable, match="SSL_CERT_FILE"):
            request(url, "GET", "/healthz")
    finally:
        door.shutdown()
        door.server_close()


def test_a_credential_that_is_not_set_is_named(data: Path) -> None:
    route = Route("mcp", "https://example.com/mcp", credential="env:NOT_SET_ANYWHERE")
    agent = Agent(id="far", name="Far", capabilities=(Capability(name="do", routes=(route,)),))

    async def add() -> None:
        async with build(Settings(), take_over=False) as server:
            await server.directory.add(agent)

    run(add())
    found = checks()["credentials"]
    assert (found["state"], "env:NOT_SET_ANYWHERE" in found["detail"]) == ("warn", True)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_data_folder_that_cannot_be_written_fails(data: Path) -> None:
    data.chmod(0o500)
    try:
        assert checks()["permissions"]["state"] == "fail"
    finally:
        data.chmod(0o700)


def test_files_that_others_may_read_are_named(data: Path) -> None:
    (data / "agent3.db").chmod(0o644)
    found = checks()["permissions"]
    assert (found["state"], found["remedy"]) == ("warn", f"chmod 600 {data / 'agent3.db'}")


def test_secrets_of_callbacks_that_are_missing_or_malformed_are_found(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = (Client("shop", key="sha256:" + "0" * 64, callback_secret="env:SHOP_HOOK"),)
    settings = Settings(server=Server(port=0), callbacks=Callbacks(secret="env:HOOK"), clients=clients)
    assert "callbacks" not in checks(), "there are none"
    good = "whsec_" + "A" * 43 + "="
    for variables, state, words in (
        ({}, "fail", "HOOK"),
        ({"HOOK": "not a secret of ours"}, "fail", "malformed"),
        ({"HOOK": good}, "fail", "client 'shop'"),
        ({"HOOK": good, "SHOP_HOOK": good}, "ok", "2 secrets"),
    ):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        found = checks(settings)["callbacks"]
        assert (found["state"], words in found["detail"]) == (state, True)
        assert "not a secret of ours" not in str(found)


def test_what_a_gateway_leaves_in_the_data_folder_is_for_its_user_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where its database is elsewhere, and the note of where it runs is the first thing in the folder."""
    monkeypatch.setenv("AGENT3_DATA", str(tmp_path / "new"))
    before = os.umask(0o022)
    try:
        note = announce("http://127.0.0.1:1", Settings())
    finally:
        os.umask(before)
    for folder in (note.parent, note.parent.parent):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def seal_something() -> None:
    async def story() -> None:
        async with build(Settings(), take_over=False) as server:
            await server.services.own_keys.key("audit")

    run(story())


async def _serve_for_a_moment() -> None:
    async with build(Settings()):
        pass


def test_a_lost_master_key_fails_and_no_other_is_made(data: Path, caplog: pytest.LogCaptureFixture) -> None:
    seal_something()
    seal = data / "agent3.db.seal"
    assert checks()["master key"]["state"] == "ok"
    key = seal.read_text()
    seal.unlink()
    found = checks()["master key"]
    assert (found["state"], "agent3.db.seal is missing" in found["detail"]) == ("fail", True)
    with pytest.raises(SetupError, match="is missing, and"):
        seal_something()
    with pytest.raises(SetupError, match="is missing, and"):
        run(MasterKeys("", f"sqlite:///{data / 'agent3.db'}", EnvironmentVault()).keys())
    assert not seal.exists()
    seal.write_text("ab" * 32)
    found = checks()["master key"]
    assert (found["state"], "encrypted with another one" in found["detail"]) == ("fail", True)
    with caplog.at_level("ERROR", logger="agent3"):
        run(_serve_for_a_moment())
    (line,) = (one.getMessage() for one in caplog.records if "master key" in one.getMessage())
    assert "do not open: audit" in line  # a gateway that starts with it says what it lost
    seal.write_text(f"{'ab' * 32} {key}")
    assert checks()["master key"]["state"] == "ok"


def test_a_rule_for_an_agent_that_is_not_there_is_named(data: Path) -> None:
    async def add() -> None:
        async with build(Settings(), take_over=False) as server:
            await server.directory.add(Agent(id="pizza", name="Pizza", capabilities=(Capability(name="order"),)))

    run(add())
    rules = (Rule("allow", agent="pizzza"), Rule("deny", agent="pizza"), Rule("allow", agent="other-*"))
    found = checks(Settings(server=Server(port=0), rules=rules))["rules"]
    assert (found["state"], found["detail"]) == ("warn", "agents that were not added: pizzza; did you mean pizza?")
    assert checks(Settings(server=Server(port=0), rules=rules[1:]))["rules"]["state"] == "ok"


def test_config_check_says_whether_the_settings_are_right(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def check(text: str) -> tuple[int, str]:
        (tmp_path / "agent3.toml").write_text(text)
        monkeypatch.setattr("sys.argv", ["agent3", "config", "check"])
        code = 0
        try:
            main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        told = capsys.readouterr()
        return code, told.out + told.err

    assert check("[calls]\ntimeout = 5\n") == (0, "ok: 0 clients, 0 rules\n")
    code, told = check("[calls]\ntimeout = -5\n")
    assert (code, "calls.timeout is -5" in told) == (2, True)
    code, told = check('[server]\nhost = "0.0.0.0"\n')
    assert (code, "fail: " in told) == (2, True)
    code, told = check('[llm]\nmodel = "any"\nkey = "sk-plain"\n')
    assert (code, "llm.key must be env:NAME" in told, "sk-plain" in told) == (2, True, False)
    code, told = check('[llm]\nmodel = "any"\nkey = "env:NO_SUCH_KEY"\n')
    assert (code, "NO_SUCH_KEY, which is not set" in told) == (2, True)


@pytest.mark.parametrize(
    "settings",
    [
        Settings(server=Server(port=0, card_key="env:NOWHERE_TO_BE_FOUND")),
        Settings(server=Server(port=0, host="192.0.2.1"), clients=(Client("a", key="env:NOWHERE_TO_BE_FOUND"),)),
        Settings(storage=Storage(artifacts="s3://bucket/prefix")),
    ],
    ids=["the key of cards", "the key of a client", "the store of large results"],
)
def test_settings_with_which_a_gateway_does_not_start_are_not_called_right(
    settings: Settings, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    assert not (data / "agent3.db.seal").exists()  # to look makes no master key
    found = check_settings(settings)
    assert found["state"] == "fail"
    assert found["detail"]
    assert found["remedy"]
