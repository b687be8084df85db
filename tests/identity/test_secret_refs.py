"""Secrets in addresses: refused where they stand themselves, put in by reference, and never stored or told."""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agent3.errors import SetupError
from agent3.gateway.gateway import Caller, CallRequest
from agent3.identity.secret_detection import holds_secret, looks_secret, names_secret
from agent3.identity.secret_refs import check_query, check_words, resolve
from agent3.identity.secrets import EnvironmentVault
from agent3.model import LOCAL, Done, Outcome, Route, encode
from agent3.protocols.mcp import Command
from agent3.server.build import Server, build
from agent3.settings import Settings, Storage
from tests.support.registration import add

ME = Caller(LOCAL, "test")
RANDOM = "q7Zt4Kx9Bv2Lm8Np3Rw6"
SECRET = "the-" + RANDOM

PROGRAM = """
import json, os, sys
for line in sys.stdin:
    request = json.loads(line)
    if "id" not in request:
        continue
    method, answer = request["method"], {}
    if method == "server/discover":
        answer = None
    elif method == "initialize":
        answer = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
                  "serverInfo": {"name": "argued", "version": "1"}}
    elif method == "tools/list":
        answer = {"tools": [{"name": "tell", "inputSchema": {"type": "object"}}]}
    elif method == "tools/call":
        answer = {"content": [{"type": "text", "text": json.dumps([*sys.argv[1:], os.environ.get("API_KEY")])}]}
    told = {"result": answer} if answer is not None else {"error": {"code": -32601, "message": "unknown"}}
    print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **told}), flush=True)
"""


def run(story: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(story, 60)

    asyncio.run(bounded())


@asynccontextmanager
async def gateway(folder: Path) -> AsyncIterator[Server]:
    async with build(Settings(storage=Storage(url=f"sqlite:///{folder / 'agent3.db'}"))) as server:
        yield server


async def stored(server: Server) -> str:
    """Everything that the database holds, as text."""
    await server.core.ledger.flush()
    names = await server.database.all("SELECT name FROM sqlite_master WHERE type = 'table'")
    rows = [row for one in names for row in await server.database.all(f'SELECT * FROM "{one["name"]}"')]
    return "\n".join(str(list(dict(row).values())) for row in rows)


QUERIES = [
    f"api_key={SECRET}",
    "apiKey=abcdefgh12",
    "access-token=letmein-please",
    f"session={RANDOM}",
    "x=ghp_abc123",
    "x=sk-proj-1234",
    "Authorization=Bearer%20letmein-please",
]


@pytest.mark.parametrize("query", QUERIES)
def test_a_secret_in_the_query_of_an_address_is_refused_with_the_way_to_give_it(query: str) -> None:
    with pytest.raises(SetupError, match="env:NAME") as refused:
        check_query(f"https://tools.example.com/mcp?page=1&{query}")
    assert query.partition("=")[0] in refused.value.message
    assert query.partition("=")[2] not in refused.value.message


ADDRESSES = [
    f"https://tools.example.com/s/{RANDOM}/mcp",
    "https://tools.example.com/ghp_abc123/mcp",
    "https://ann:letmein@tools.example.com/mcp",
    f"https://tools.example.com/mcp#{RANDOM}",
    f"https://tools.example.com/${{PLACE}}{RANDOM}/mcp?page=1",
]


@pytest.mark.parametrize("url", ADDRESSES)
def test_a_secret_elsewhere_in_an_address_is_refused_with_the_way_to_give_it(url: str) -> None:
    with pytest.raises(SetupError, match="env:NAME") as refused:
        check_query(url)
    assert not [value for value in (RANDOM, "ghp_abc123", "letmein") if value in refused.value.message]


COMMANDS = [
    f"server --token {SECRET}",
    "server --api-key=letmein-please",
    "npx mcp-remote https://x.example.com --header 'Authorization: Bearer letmein-please'",
    "docker run -e API_TOKEN=letmein-please image",
    f"server {RANDOM}",
    "server sk-ant-api03-1234",
    'server --config \'{"key": "ghp_abc123"}\'',
    "server --db-url postgres://ann:letmein@db.example.com/x",
    "server --db-url=postgres://ann:letmein@db.example.com/x",
    "server redis://:letmein@db.example.com",
    "server --token letmein",
    "server --password letme",
    "server --api-key letme",
    "mysql-server -p Letmein&33",
    "mysql-server -pLetmein&33",
    "npx mcp-remote https://x.example.com/mcp?api_key=letmein-please",
]


@pytest.mark.parametrize("line", COMMANDS)
def test_a_secret_in_the_arguments_of_a_command_is_refused_with_the_way_to_give_it(line: str) -> None:
    with pytest.raises(SetupError, match="env:NAME") as refused:
        check_words(shlex.split(line)[1:])
    for value in (SECRET, RANDOM, "letme", "Letme", "api03", "ghp_abc123"):
        assert value not in refused.value.message


HARMLESS = [
    "-y @modelcontextprotocol/server-filesystem@2025.3.28 /home/me/Documents",
    "--port 8080 --auth none --token-type bearer --key-id 12 --verbose",
    "--key /etc/ssl/private/key.pem --key-file=certs/key.pem --auth true",
    "run ghcr.io/github/github-mcp-server:v0.20.1 --toolsets repos,issues,pull_requests",
    "--project 0d5a3f8e-8d0c-4c1c-9a7e-2b1f0c3d4e5f --author ann --monitor=yes",
    "--directory C:\\Users\\me\\keys sk-learn",
    "-p 8080 -p 8080:80 -p @scope/some-package@1.2.3 -p my_plugin --password-file ./x --token none --sort-key name",
    "https://x.example.com/mcp?page=2&lang=de ssh://git@example.com/x http://localhost:8080/a@b",
]


@pytest.mark.parametrize("line", HARMLESS)
def test_ordinary_arguments_pass(line: str) -> None:
    words = line.split()
    assert check_words(words) == words


def test_ordinary_queries_and_addresses_pass() -> None:
    for url in (
        "https://x.example.com/mcp",
        "https://x.example.com/mcp?page=2&region=eu-west-1&keyboard=de&lang=",
        "https://x.example.com/v1/0d5a3f8e-8d0c-4c1c-9a7e-2b1f0c3d4e5f/$metadata/a%20b/some-long-name-of-a-server/",
        "http://127.0.0.1:8080",
    ):
        assert check_query(url) == url


def test_names_and_values_are_known_for_what_they_are() -> None:
    assert all(map(names_secret, ("key", "apiKey", "X-API-Key", "GITHUB_TOKEN", "client_secret", "password", "APIKEY")))
    assert all(map(names_secret, ("PGPASS", "db_pass", "GITHUB_PAT")))
    assert not any(map(names_secret, ("bypass", "compass", "patch")))
    assert holds_secret("DATABASE_URL", "postgres://ann:letmein@db/x")
    assert not holds_secret("DATABASE_URL", "postgres://ann:${DB_PASSWORD}@db/x")
    assert not any(map(names_secret, ("", "key_id", "tokenizer", "author", "keyboard", "secretary", "max_tokens")))
    assert all(
        map(looks_secret, (RANDOM, "AKIAIOSFODNN7EXAMPLE", "eyJhbGciOiJI.eyJzdWIiOiIx.sig", "0123456789abcdef" * 2))
    )
    assert not any(map(looks_secret, ("a" * 40, "internationalization" * 2, "12345678901234567890", "release-2025")))


FORMS = [
    ("https://x.example.com/mcp?key=${TOOLS_KEY}", "https://x.example.com/mcp?key=env:TOOLS_KEY"),
    ("https://x.example.com/mcp?key=env%3ATOOLS_KEY&a=b%20c", "https://x.example.com/mcp?key=env:TOOLS_KEY&a=b%20c"),
]


@pytest.mark.parametrize(("given", "kept"), FORMS)
def test_references_in_a_query_are_kept_in_one_form_and_filled_when_needed(given: str, kept: str) -> None:
    assert check_query(given) == kept
    vault = EnvironmentVault({"TOOLS_KEY": "se/cret &?"})
    filled, hidden = asyncio.run(resolve(kept, vault))
    assert filled == kept.replace("env:TOOLS_KEY", "se%2Fcret%20%26%3F")
    assert [one.reveal() for one in hidden] == ["se/cret &?"]


PATHS = [
    ("https://x.example.com/s/${PLACE}/mcp", "https://x.example.com/s/${PLACE}/mcp"),
    ("https://x.example.com/s/env:PLACE/mcp", "https://x.example.com/s/${PLACE}/mcp"),
    ("https://x.example.com/s/$%7Binput:PLACE%7D/mcp", "https://x.example.com/s/${PLACE}/mcp"),
    ("https://x.example.com/a-${PLACE}?b=c", "https://x.example.com/a-${PLACE}?b=c"),
]


@pytest.mark.parametrize(("given", "kept"), PATHS)
def test_references_in_a_path_are_kept_in_one_form_filled_and_hidden(given: str, kept: str) -> None:
    assert check_query(given) == kept
    filled, hidden = asyncio.run(resolve(kept, EnvironmentVault({"PLACE": "up/here-and?there"})))
    assert filled == kept.replace("${PLACE}", "up%2Fhere-and%3Fthere")
    assert [one.reveal() for one in hidden] == ["up/here-and?there"]


HIDING = [
    ("https://x.example.com/mcp?api_key=env:ACME", True),
    ("https://x.example.com/mcp?region=env:ACME", False),
    (Command("server", ("--token", "env:ACME")).address, True),
    (Command("server", ("--token=env:ACME",)).address, True),
    (Command("server", ("Authorization: Bearer ${ACME}",)).address, True),
    (Command("server", ("--folder", "env:ACME")).address, False),
    (Command("server", (), {"API_KEY": "env:ACME"}).address, True),
    (Command("server", (), {"DATABASE_URL": "db://ann:${ACME}@host", "API_KEY": "${ACME}"}).address, True),
    (Command("server", (), {"REGION": "env:ACME"}).address, False),
]


@pytest.mark.parametrize(("address", "hides"), HIDING)
def test_a_plain_value_is_hidden_where_its_place_names_a_secret(address: str, hides: bool) -> None:
    _, hidden = asyncio.run(resolve(address, EnvironmentVault({"ACME": "correct-horse"})))
    assert ("correct-horse" in {one.reveal() for one in hidden}) is hides


def test_references_inside_a_variable_of_a_program_are_filled() -> None:
    address = Command("server", (), {"URL": "db://ann:${DB_PASSWORD}@host", "KEY": "env:OTHER"}).address
    filled, hidden = asyncio.run(resolve(address, EnvironmentVault({"DB_PASSWORD": "hush-hush"})))
    assert Command.parse(filled).env == {"URL": "db://ann:hush-hush@host", "KEY": "env:OTHER"}
    assert [one.reveal() for one in hidden] == ["hush-hush"]


def test_a_route_is_labelled_without_what_may_be_secret_in_its_address() -> None:
    """The label stands in the ledger, the log and the metrics of breakers."""
    others = ("https://x.example.com/s/hush", "https://x.example.com/mcp?k=hush", "https://ann:hush@x.example.com/mcp")
    keys = {Route("mcp", one).key for one in others}
    assert len(keys) == len(others)
    assert all(key.startswith("mcp:https://x.example.com#") and "hush" not in key for key in keys)
    command = Route("mcp", Command("/usr/bin/server", ("--mode", "hush")).address).key
    assert command.startswith("mcp:server#")
    assert "hush" not in command
    assert Route("local", "kitchen").key == "local:kitchen"


def test_references_in_arguments_are_filled_whole_behind_a_sign_and_inside_a_text() -> None:
    words = [
        "--token",
        "$MY_TOKEN",
        "--key=${env:MY_KEY}",
        "Authorization: Bearer ${MY_TOKEN}",
        "${HOME}/docs",
        "plain",
    ]
    kept = check_words(words)
    assert kept == [
        "--token",
        "env:MY_TOKEN",
        "--key=env:MY_KEY",
        "Authorization: Bearer ${MY_TOKEN}",
        words[4],
        "plain",
    ]
    address = Command("server", tuple(kept)).address
    vault = EnvironmentVault({"MY_TOKEN": "one-secret", "MY_KEY": "other-secret", "HOME": "/home/me"})
    filled, hidden = asyncio.run(resolve(address, vault))
    assert Command.parse(filled).args == (
        *("--token", "one-secret", "--key=other-secret", "Authorization: Bearer one-secret", "/home/me/docs", "plain"),
    )
    assert {one.reveal() for one in hidden} == {"one-secret", "other-secret"}


def test_a_variable_that_is_not_set_is_named() -> None:
    with pytest.raises(SetupError, match="NOT_HERE"):
        asyncio.run(resolve("https://x.example.com/mcp?key=env:NOT_HERE", EnvironmentVault({})))


async def told(server: Server) -> Outcome:
    return await server.gateway.call(ME, CallRequest(agent="argued", capability="tell", input={}))


def test_a_program_gets_its_secret_and_nobody_else_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the directory, not the ledger, not the caller to whom the program repeats it."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    monkeypatch.setenv("ARGUED_TOKEN", SECRET)
    line = shlex.join([sys.executable, str(program), "--token", "env:ARGUED_TOKEN", "--mode=plain"])

    async def story() -> None:
        async with gateway(tmp_path) as server:
            agent = await add(server, line)
            assert SECRET.encode() not in encode(agent)
            outcome = await told(server)
            assert isinstance(outcome, Done)
            arguments = json.loads(outcome.parts[0].text or "")
            assert arguments == ["--token", "***", "--mode=plain", None]
            assert SECRET not in await stored(server)
            monkeypatch.setenv("ARGUED_TOKEN", "another-secret-1")
            assert (await add(server, line)).source == agent.source  # the same agent, whatever its secret is now
            assert isinstance(await told(server), Done)
            monkeypatch.delenv("ARGUED_TOKEN")
            with pytest.raises(SetupError, match="ARGUED_TOKEN"):
                await add(server, line)

    run(story())


def test_a_variable_that_a_program_repeats_is_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    monkeypatch.setenv("ACME", "correct-pony")
    entry = {"command": sys.executable, "args": [str(program)], "env": {"API_KEY": "${ACME}"}}

    async def story() -> None:
        async with gateway(tmp_path) as server:
            await add(server, json.dumps({"mcpServers": {"argued": entry}}))
            outcome = await told(server)
            assert isinstance(outcome, Done)
            assert json.loads(outcome.parts[0].text or "") == ["***"]

    run(story())


def test_what_cannot_be_added_for_its_secret_is_not_even_tried(tmp_path: Path) -> None:
    async def story() -> None:
        async with gateway(tmp_path) as server:
            for what in (
                f"https://tools.example.com/mcp?key={SECRET}",
                f"server --token {SECRET}",
                json.dumps({"mcpServers": {"x": {"command": "server", "args": ["--token", SECRET]}}}),
            ):
                with pytest.raises(SetupError) as refused:
                    await add(server, what)
                assert RANDOM not in refused.value.message
            assert await server.directory.everything() == []

    run(story())
