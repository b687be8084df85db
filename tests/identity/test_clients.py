"""Clients in the database: keys shown once, two at a time, and gone at once, in every lane and process."""

from __future__ import annotations

import hashlib
import http.client
import json
import re
import socket
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from agent3.env import SeededEnv
from agent3.errors import Conflict, NotFound, SetupError, ValidationError
from agent3.identity.clients import StoredClients
from agent3.identity.doorkeeper import Doorkeeper
from agent3.model import LOCAL, Principal
from agent3.observe.metrics import Metrics
from agent3.settings import Client, Server, Settings
from agent3.storage import Database
from tests.support.gateway import gateway, hosted, run_agent3
from tests.support.mcp_serving import modern_request
from tests.support.postgres import new_database_url
from tests.support.storage import using


def digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return new_database_url() if request.param == "postgres" else f"sqlite:///{tmp_path}/house.db"


def test_a_key_is_stored_as_its_hash_and_two_are_good_while_they_change(url: str) -> None:
    async def story(database: Database) -> None:
        env = SeededEnv(seed=1)
        clients, elsewhere = (StoredClients(database, env) for _ in range(2))
        first = await clients.add("desk", ["orders", "orders", "agent3:operate"], "acme")
        found = clients.find(digest(first))
        assert found is not None
        assert found == Principal("desk", "client", frozenset({"orders", "agent3:operate"}), "acme")
        rows = [
            dict(row) for table in ("clients", "client_keys") for row in await database.all(f"SELECT * FROM {table}")
        ]
        assert first not in str(rows)
        assert first not in str(await clients.list())
        assert elsewhere.find(digest(first)) is None
        await elsewhere.refresh()
        assert elsewhere.find(digest(first)) == found

        second, until = await clients.rotate("desk", 60.0)
        assert until == env.now() + 60
        assert clients.find(digest(first)) == clients.find(digest(second)) == found
        third, _ = await clients.rotate("desk", 60.0)
        assert clients.find(digest(first)) is None, "no more than two are good at a time"
        assert clients.find(digest(second)) == clients.find(digest(third)) == found
        env.advance(61)
        assert clients.find(digest(second)) is None
        assert clients.find(digest(third)) == found
        fourth, until = await clients.rotate("desk", 0)
        assert until is None
        assert clients.find(digest(third)) is None

        await clients.stop("desk")
        assert clients.find(digest(fourth)) is None
        assert (await clients.list())[0]["stopped"] == env.now()
        await clients.stop("desk", stopped=False)
        assert clients.find(digest(fourth)) == found
        with pytest.raises(Conflict, match="agent3 client rotate desk"):
            await clients.add("desk")
        await clients.remove("desk")
        assert clients.find(digest(fourth)) is None
        assert await clients.list() == []
        for gone in (
            clients.set_scopes("desk", ()),
            clients.stop("desk"),
            clients.rotate("desk", 0),
            clients.remove("desk"),
            clients.get("desk"),
        ):
            with pytest.raises(NotFound, match="agent3 client list"):
                await gone

    using(url, story)


def test_names_and_scopes_that_would_deceive_are_refused() -> None:
    async def story(database: Database) -> None:
        clients = StoredClients(database)
        for wrong in ("local", "", "-x", "a b", "\uff41dmin", "x\n", "x" * 101):
            with pytest.raises(ValidationError, match="cannot be the id"):
                await clients.add(wrong)
        for wrong in ("a b", 'a"b', "ö", ""):
            with pytest.raises(ValidationError, match="cannot be a scope"):
                await clients.add("fine", [wrong])
        for seconds in (-1.0, 91 * 86_400.0, float("nan")):
            with pytest.raises(ValidationError, match="0 to 90 days"):
                await clients.rotate("fine", seconds)
        assert clients.count == 0

    using(":memory:", story)


def test_the_first_client_ends_the_time_of_the_local_person_and_the_last_does_not_bring_it_back() -> None:
    async def story(database: Database) -> None:
        clients = StoredClients(database)
        await clients.refresh()
        open_door = Settings(server=Server(host="0.0.0.0"))
        with pytest.raises(SetupError, match="agent3 client add"):
            Doorkeeper(open_door, Metrics(), stored=clients)
        keeper = Doorkeeper(Settings(), Metrics(), stored=clients)
        assert keeper({"headers": []}) is LOCAL
        key = await clients.add("desk")
        assert keeper({"headers": [(b"x-api-key", key.encode())]}).id == "desk"
        at_open_door = Doorkeeper(open_door, Metrics(), stored=clients)
        await clients.remove("desk")
        for one in (keeper, at_open_door):
            with pytest.raises(Exception, match="No key"):
                one({"headers": []})
            with pytest.raises(Exception, match="Unknown key"):
                one({"headers": [(b"x-api-key", key.encode())]})

    using(":memory:", story)


def test_commands_change_who_may_call_a_running_gateway_also_on_a_connection_that_it_knows(tmp_path: Path) -> None:
    def agent3(*words: str, code: int = 0) -> Any:
        done = run_agent3(tmp_path, *words, "--json")
        assert done.returncode == code, (done.stdout, done.stderr)
        return json.loads(done.stdout)

    first = agent3("client", "add", "desk", "--scope", "orders")["key"]
    rules = '[[rules]]\neffect = "allow"\nagent = "calculator"\nscope = "orders"\n'
    with gateway(tmp_path, "--demo", config=rules) as served:
        connection = served.connect()

        def ask(key: str) -> int:
            """A call by the fast lane. After two of the same head, the third is not even parsed."""
            arguments = {"agentId": "calculator", "message": "1 + 1"}
            request = modern_request("tools/call", {"name": "agent3_call", "arguments": arguments})
            headers = {
                **request["headers"],
                "authorization": f"Bearer {key}",
                "content-type": "application/json",
            }
            try:
                connection.request("POST", "/mcp", json.dumps(request["json"]), headers)
                answer = connection.getresponse()
                if b'"isError":true' in answer.read():
                    return 403
            except (http.client.HTTPException, ConnectionError):  # a refusal may close the connection
                connection.close()
                return ask(key)
            return answer.status

        def until(key: str, status: int) -> None:
            end = time.monotonic() + 30
            while (seen := ask(key)) != status:
                assert time.monotonic() < end, seen
                time.sleep(0.05)

        assert served.get("/v1/agents").status == 401
        assert [ask(first) for _ in range(3)] == [200] * 3
        agent3("client", "stop", "desk")
        until(first, 403)
        for said in (
            served.as_(first).get("/v1/agents"),
            served.as_(first).post("/v1/call", {"agentId": "calculator"}),
        ):
            assert (said.status, said.json["error"]["code"]) == (403, "forbidden")
            assert said.json["error"]["message"] == "Client desk was stopped by the operator."
        agent3("client", "start", "desk")
        until(first, 200)
        second = agent3("client", "rotate", "desk", "--overlap", "1h")["key"]
        until(second, 200)
        assert ask(first) == 200
        agent3("client", "scopes", "desk", "--scope", "reports")
        until(second, 403)
        agent3("client", "scopes", "desk", "--scope", "orders")
        until(second, 200)
        listed = agent3("client", "list")["clients"]
        assert [(one["id"], one["from"], len(one["keys"])) for one in listed] == [("desk", "database", 2)]
        config = ("--config", str(tmp_path / "agent3.toml"))
        assert "rule 1 allows" in agent3("client", "can", "desk", "calculator", *config)["verdicts"][0]["why"]
        assert agent3("client", "can", "desk", "pizza.order", *config, code=4)["allowed"] is False
        agent3("client", "remove", "desk", "--yes")
        until(second, 401)
        assert ask(first) == 401
        connection.close()
        log = served.said()
    assert not re.search("|".join(map(re.escape, (first, second))), log)


@pytest.mark.parametrize("how", ["rotate", "stop", "remove"])
def test_a_stream_ends_with_the_key_that_it_was_opened_with_and_those_of_others_go_on(tmp_path: Path, how: str) -> None:
    with hosted(tmp_path, settings=Settings(clients=(Client("other", "sha256:" + digest("other").hex()),))) as door:
        clients = door.server.services.clients
        key = door.run(clients.add("desk"))
        listening = modern_request("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
        body = json.dumps(listening["json"]).encode()
        with ExitStack() as stack:

            def open_stream(key: str) -> socket.socket:
                headers = {**listening["headers"], "authorization": f"Bearer {key}", "content-type": "application/json"}
                lines = [f"POST /mcp HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(body)}"]
                lines += [f"{name}: {value}" for name, value in headers.items()]
                opened = stack.enter_context(socket.create_connection(("127.0.0.1", urlsplit(door.url).port), 60))
                opened.sendall("\r\n".join([*lines, "", ""]).encode() + body)
                seen = b""
                while b"acknowledged" not in seen:
                    some = opened.recv(65_536)
                    assert some, seen
                    seen += some
                return opened

            cut, kept = open_stream(key), open_stream("other")
            if how == "rotate":
                door.run(clients.rotate("desk", 0.0))
            else:
                door.run(getattr(clients, how)("desk"))
            with suppress(ConnectionError):
                while cut.recv(65_536):
                    pass
            kept.setblocking(False)
            with suppress(BlockingIOError):
                while kept.recv(65_536):
                    pass
                pytest.fail("the stream of the other client ended as well")
