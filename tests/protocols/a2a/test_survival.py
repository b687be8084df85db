"""A gateway that is killed in the middle of a task: the next one has it, and its stream goes on where it was."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

import pytest

from agent3.jsonrpc import Frame, SSEParser
from tests.support.a2a_toy import V1, message, rpc, unary
from tests.support.gateway import Process, gateway

AGENT = '''
import asyncio
from pathlib import Path

from agent3 import LocalAgent

agent = LocalAgent("counter")


@agent.capability(replay=True)
async def count(message: str):
    """Tells three pieces; in the process that is killed no more than two."""
    begun = Path("begun")
    first = not begun.exists()
    begun.touch()
    for number in range(3):
        if first and number == 2:
            await asyncio.Event().wait()
        yield f"{number} "
'''
HOME = "/agents/counter/a2a"


def _events(answer: HTTPResponse) -> Iterator[tuple[Frame, Any]]:
    parser = SSEParser()
    while piece := answer.read1(65_536):
        for frame in parser.feed(piece):
            yield frame, json.loads(frame.data)["result"]


@contextmanager
def _asked(door: Process, method: str, params: Any, **headers: str) -> Iterator[HTTPResponse]:
    body = json.dumps({"jsonrpc": "2.0", "id": 7, "method": method, "params": params})
    named = {name.replace("_", "-"): value for name, value in {**V1, **headers}.items()}
    with closing(door.connect()) as connection:
        connection.request("POST", HOME, body, {"content-type": "application/json", **named})
        yield connection.getresponse()


@pytest.mark.requirement("RF-013-36")
def test_a_task_outlives_the_gateway_and_its_result_comes_once(tmp_path: Path) -> None:
    (tmp_path / "survivor.py").write_text(AGENT)
    data, said = tmp_path / "data", message("go", "count")
    task, last = "", ""
    with (
        gateway(data, "survivor:agent", cwd=tmp_path) as first,
        _asked(first, "SendStreamingMessage", {"message": said}) as answer,
    ):
        for frame, item in _events(answer):
            task = item.get("task", {}).get("id", task)
            last = frame.id or last
            if item.get("artifactUpdate", {}).get("append"):
                break
        first.stop(signal.SIGKILL)
    with gateway(data, "survivor:agent", cwd=tmp_path) as second:
        with _asked(second, "SubscribeToTask", {"id": task}, last_event_id=last) as answer:
            events = list(_events(answer))
        states = [item["statusUpdate"]["status"]["state"] for _, item in events if "statusUpdate" in item]
        assert states.count("TASK_STATE_COMPLETED") == 1
        assert states[-1] == "TASK_STATE_COMPLETED"
        assert all(int(frame.id or 0) > int(last) for frame, _ in events[1:])
        done = unary(rpc(second, "GetTask", {"id": task}, HOME))
        assert [artifact["parts"] for artifact in done["artifacts"]] == [[{"text": "0 1 2 "}]]
        again = unary(rpc(second, "SendMessage", {"message": said}, HOME))
        assert again["task"] == done
