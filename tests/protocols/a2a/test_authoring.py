"""What can be an agent, and where it can be served: on its own, below a path of another app, in another loop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.routing import Mount

import agent3.a2a
from agent3 import AgentCard, AgentExecutor
from agent3.errors import SetupError, Unauthenticated
from agent3.model import Principal
from agent3.protocols.a2a.agents.authoring import build_agent, can_be_agent
from agent3.protocols.functions.standalone import Standalone
from tests.support.a2a_toy import codes, frames, message, rpc, unary
from tests.support.gateway import Door


def shout(text: str) -> str:
    """Say it loud."""
    return text.upper()


async def whisper(text: str) -> str:
    """Say it softly."""
    return text.lower()


def pieces(text: str) -> Iterator[str]:
    """Say it word by word."""
    yield from text.split(" ")


class TravelDesk:
    """Knows flights."""

    def find(self, place: str) -> list[str]:
        """Find flights."""
        return [f"to {place}"]

    async def book(self, flight: str) -> str:
        """Book one."""
        return f"booked {flight}"

    def _hidden(self) -> None:
        return


@pytest.fixture
def core() -> Iterator[Standalone]:
    made = Standalone()
    yield made
    made.close()


def said(door: Door, text: str, skill: str | None = None, path: str = "/") -> Any:
    task = unary(rpc(door, "SendMessage", {"message": message(text, skill)}, path))["task"]
    part = task["artifacts"][0]["parts"][0]
    return part.get("text", part.get("data"))


@pytest.mark.requirement("SP-17")
@pytest.mark.parametrize(("what", "answer"), [(shout, "HI THERE"), (whisper, "hi there"), (pieces, "Hithere")])
def test_a_function_is_an_agent(core: Standalone, what: Any, answer: str) -> None:
    with agent3.a2a.listening(what, core=core) as url:
        assert said(Door(url), "Hi there") == answer
        card = Door(url).get("/.well-known/agent-card.json").json
        assert [skill["id"] for skill in card["skills"]] == [what.__name__]
        assert card["description"] == what.__doc__


@pytest.mark.requirement("SP-19")
@pytest.mark.parametrize("what", [TravelDesk, TravelDesk()])
def test_a_class_is_an_agent_with_its_methods(core: Standalone, what: Any) -> None:
    with agent3.a2a.listening(what, core=core) as url:
        door = Door(url)
        card = door.get("/.well-known/agent-card.json").json
        assert (card["name"], card["description"]) == ("Travel Desk", "Knows flights.")
        assert [skill["id"] for skill in card["skills"]] == ["find", "book"]
        assert said(door, "LH 1", "book") == "booked LH 1"
        assert said(door, "Rome", "find") == ["to Rome"]


def test_an_executor_is_served_with_its_card_and_its_state(core: Standalone) -> None:
    hotel = AgentExecutor(AgentCard(agent_id="hotel", name="Hotel", description="Rooms", version="7"), core=core)
    hotel.register_capability("shout", shout)
    with agent3.a2a.listening(hotel) as url:
        door = Door(url)
        card = door.get("/.well-known/agent-card.json").json
        assert (card["name"], card["version"], [skill["id"] for skill in card["skills"]]) == ("Hotel", "7", ["shout"])
        assert said(door, "a room") == "A ROOM"
        task = {"message": message("by tenant", None), "tenant": "hotel"}
        assert unary(rpc(door, "SendMessage", task))["task"]
        assert codes(rpc(door, "SendMessage", {**task, "tenant": "other"}))[1] == -32602
        hotel.set_status("draining")
        assert codes(rpc(door, "SendMessage", {"message": message("more", None)}))[1] == -32053
    hotel.close()


def test_what_cannot_be_an_agent_is_told_so() -> None:
    wrongs: list[Any] = ["text", 7, None, {}, Standalone(), asyncio]
    for wrong in wrongs:
        assert not can_be_agent(wrong)
    with pytest.raises(SetupError, match="no public methods"):
        build_agent(object())
    with pytest.raises(SetupError, match="without arguments"):
        build_agent(Mount)
    with pytest.raises(SetupError, match="has no name"):
        build_agent(lambda text: text)


@asynccontextmanager
async def around(app: Any) -> AsyncIterator[str]:
    """Some app on a port, in the loop of the test."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, ws="none", timeout_graceful_shutdown=1))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await asyncio.wait_for(serving, 60)
        listener.close()


def in_fastapi(app: Any) -> Any:
    outer = FastAPI()
    outer.mount("/agent", app)
    return outer


@pytest.mark.requirement("SP-23")
@pytest.mark.parametrize("mounted", [in_fastapi, lambda app: Starlette(routes=[Mount("/agent", app=app)])])
def test_an_agent_is_mounted_in_another_app(core: Standalone, mounted: Any) -> None:
    def ask(url: str) -> None:
        door = Door(url)
        card = door.get("/agent/.well-known/agent-card.json").json
        assert card["url"] == f"{url}/agent/"
        assert said(door, "hi", path="/agent/") == "HI"
        events = frames(rpc(door, "SendStreamingMessage", {"message": message("hi", None)}, "/agent/"))
        assert events[-1][1]["result"]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"
        task = events[0][1]["result"]["task"]["id"]
        assert door.get(f"/agent/tasks/{task}", a2a_version="1.0").json["id"] == task

    async def story() -> None:
        async with around(mounted(agent3.a2a.asgi(shout, core=core))) as url:
            await asyncio.wait_for(asyncio.to_thread(ask, url), 60)

    asyncio.run(story())


def test_the_author_says_who_calls(core: Standalone) -> None:
    def who(scope: Any) -> Principal:
        name = dict(scope["headers"]).get(b"x-user", b"").decode()
        if not name:
            raise Unauthenticated("Say who you are in X-User.")
        return Principal(name)

    with agent3.a2a.listening(shout, core=core, principal=who, public=False) as url:
        door = Door(url)
        assert rpc(door, "SendMessage", {"message": message("x", None)}).status == 401
        assert door.get("/.well-known/agent-card.json").status == 401
        assert door.get("/.well-known/agent-card.json", x_user="ada").status == 200
        task = unary(rpc(door, "SendMessage", {"message": message("x", None)}, x_user="ada"))["task"]["id"]
        assert unary(rpc(door, "GetTask", {"id": task}, x_user="ada"))["id"] == task
        assert codes(rpc(door, "GetTask", {"id": task}, x_user="bob")) == (200, -32001)


def test_an_open_door_needs_to_know_who_calls() -> None:
    with pytest.raises(SetupError, match="principal="):
        agent3.a2a.listening(shout, "0.0.0.0")
