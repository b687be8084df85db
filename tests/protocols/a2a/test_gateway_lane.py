"""A2A without ASGI: the same answers by the short way and the long one, and nothing is done twice between them."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any

import pytest

from agent3.protocols.a2a.door.endpoint import A2AEndpoint
from agent3.settings import Calls, Client, Limits, Rule, Settings
from tests.support.a2a_toy import V1, message, toy
from tests.support.gateway import Door, Hosted, hosted

KEY = "ada-key-of-sixteen"
HOME = "/agents/toy/a2a"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosted]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ADA_KEY", KEY)
        settings = Settings(
            calls=Calls(ledger="batched"),
            limits=Limits(per_minute=60_000, burst=1_000),
            clients=(Client(id="ada", key="env:ADA_KEY"),),
            rules=(Rule("deny", "ada", "toy", "add"), Rule("allow", "ada")),
        )
        with hosted(tmp_path_factory.mktemp("lane"), [toy()], settings) as found:
            yield found


class Line:
    """One kept connection, whose second request of the same headers is not parsed any more."""

    def __init__(self, door: Door, **headers: str):
        self._connection: http.client.HTTPConnection = door.connect()
        self._headers = {"content-type": "application/json", "authorization": f"Bearer {KEY}", **headers}

    def ask(self, method: str, params: Any, path: str = HOME) -> tuple[int, Any]:
        body = json.dumps({"jsonrpc": "2.0", "id": 7, "method": method, "params": params})
        self._connection.request("POST", path, body, self._headers)
        answer = self._connection.getresponse()
        read = answer.read()
        return answer.status, json.loads(read) if answer.headers["content-type"] == "application/json" else read

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def short(gateway: Hosted) -> Iterator[Line]:
    line = Line(gateway, **{name.replace("_", "-"): value for name, value in V1.items()})
    yield line
    line.close()


@pytest.fixture
def long(gateway: Hosted) -> Iterator[Line]:
    """What a proxy has touched has to come by the app."""
    line = Line(gateway, **{"a2a-version": "1.0", "x-forwarded-proto": "http"})
    yield line
    line.close()


ASKED: list[tuple[str, Any]] = [
    ("SendMessage", {"message": message("hi", "echo")}),
    ("SendMessage", {"message": message("hi", "chat")}),
    ("SendMessage", {"message": message("hi", "break_")}),
    ("SendMessage", {"message": message("hi", "add")}),
    ("SendMessage", {"message": message("hi", "nothing")}),
    ("SendMessage", {"message": {"role": "ROLE_USER"}}),
    ("GetTask", {"id": "nobody's"}),
    ("ListTasks", {"pageSize": 0}),
    ("NoSuchMethod", {}),
    ("GetExtendedAgentCard", {}),
]


def _told(answer: tuple[int, Any]) -> Any:
    """An answer without what is new in each."""
    text = json.dumps(answer[1], sort_keys=True)
    task = answer[1].get("result", {}).get("task", {}) if isinstance(answer[1], dict) else {}
    for name in ("id", "contextId"):
        text = text.replace(str(task.get(name, "nothing")), name)
    return answer[0], _without_moments(json.loads(text))


def _without_moments(value: Any) -> Any:
    if isinstance(value, dict):
        gone = ("timestamp", "messageId", "contextId", "signatures")
        return {name: _without_moments(item) for name, item in value.items() if name not in gone}
    return [_without_moments(entry) for entry in value] if isinstance(value, list) else value


@pytest.mark.parametrize(("method", "params"), ASKED)
def test_both_ways_say_the_same(short: Line, long: Line, method: str, params: Any) -> None:
    def fresh() -> Any:
        if "message" not in params or "messageId" not in params["message"]:
            return params
        return {"message": {**params["message"], "messageId": message("")["messageId"]}}

    by_app = long.ask(method, fresh())
    for _ in range(3):  # parsed; parsed and learned; known by its head
        assert _told(short.ask(method, fresh())) == _told(by_app)


def test_regular_requests_are_answered_without_asgi(
    gateway: Hosted, short: Line, long: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered: list[bool] = []
    reply = A2AEndpoint.reply

    async def counting(*given: Any) -> bytes | None:
        answer = await reply(*given)
        answered.append(answer is not None)
        return answer

    monkeypatch.setattr(A2AEndpoint, "reply", counting)
    for line in (short, short, long):
        assert line.ask("SendMessage", {"message": message("hi", "echo")})[0] == 200
    assert answered == [True, True]


@pytest.mark.parametrize("skill", ["echo", "break_", "add"])
def test_whatever_becomes_of_it_a_message_is_taken_once(gateway: Hosted, short: Line, skill: str) -> None:
    short.ask("SendMessage", {"message": message("warm", "echo")})
    before = len(gateway.rows("calls"))
    short.ask("SendMessage", {"message": message("hi", skill)})
    assert len(gateway.rows("calls")) == before + 1


def test_a_stream_and_a_stranger_go_the_long_way(gateway: Hosted, short: Line) -> None:
    status, told = short.ask("SendStreamingMessage", {"message": message("time", "story")})
    assert status == 200
    assert told.count(b"data:") > 3
    for headers in ({"authorization": "Bearer nobody"}, {"origin": "https://evil.example"}, {"host": "evil.example"}):
        line = Line(gateway, **{"a2a-version": "1.0", **headers})
        try:
            status, answer = line.ask("SendMessage", {"message": message("hi", "echo")})
        finally:
            line.close()
        assert status in (401, 403)
        assert "result" not in answer


def test_the_gateway_itself_answers_by_it_too(short: Line) -> None:
    for _ in range(3):
        said = {**message("hi", "toy/echo")}
        status, answer = short.ask("SendMessage", {"message": said}, "/a2a")
        assert status == 200
        assert answer["result"]["task"]["artifacts"][0]["parts"] == [{"text": "echo: hi"}]


def test_earlier_generations_are_answered_by_it_in_their_own_words(gateway: Hosted) -> None:
    line = Line(gateway)
    try:
        for number in range(3):
            said = {
                "kind": "message",
                "messageId": f"old-{number}",
                "role": "user",
                "parts": [{"kind": "text", "text": "hi"}],
                "metadata": {"skillId": "echo"},
            }
            _, answer = line.ask("message/send", {"message": said})
            assert answer["result"]["kind"] == "task"
            assert answer["result"]["status"]["state"] == "completed"
    finally:
        line.close()
