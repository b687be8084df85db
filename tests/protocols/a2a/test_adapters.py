"""Agents of other frameworks as agents of ours, by the shapes that these frameworks have; none of them is installed."""

from __future__ import annotations

import sys
import types
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

import agent3.a2a
from agent3.errors import SetupError
from agent3.protocols.a2a.agents.adapters import adapt, extract_answer
from agent3.protocols.a2a.peer.client import SyncA2AClient
from agent3.protocols.a2a.wire.types import ArtifactUpdate, State, Task
from agent3.protocols.functions.standalone import Standalone


@dataclass
class Said:
    """A message of LangChain, a result of pydantic-ai or of CrewAI: each has a field of its own."""

    content: str | None = None
    output: str | None = None
    raw: str | None = None
    final_output: str | None = None


class Chain:
    """A runnable of LangChain."""

    name = "Poet"

    async def ainvoke(self, given: Any, config: Any = None) -> Said:
        return Said(content=f"whole: {given}")

    async def astream(self, given: Any, config: Any = None) -> AsyncIterator[Said]:
        for word in ("roses ", "are ", str(given)):
            yield Said(content=word)


class PlainChain:
    """A runnable that has only the oldest of its methods."""

    def invoke(self, given: str, config: Any) -> str:
        return f"invoked: {given}"


class Interrupt:
    def __init__(self, value: str):
        self.value = value


class Graph:
    """A graph of LangGraph with memory, which interrupts itself to ask."""

    def __init__(self) -> None:
        self.threads: dict[str, list[str]] = {}

    def get_state(self, config: Any) -> Any:
        return self.threads[config["configurable"]["thread_id"]]

    async def ainvoke(self, given: Any, config: Any) -> dict[str, Any]:
        seen = self.threads.setdefault(config["configurable"]["thread_id"], [])
        resumed = getattr(given, "resume", None)
        if resumed is not None:
            return {"messages": [Said(content=f"booked {resumed}")]}
        seen.append(given["messages"][-1]["content"])
        if seen[-1] == "book":
            return {"messages": [], "__interrupt__": [Interrupt("Which seat?")]}
        return {"messages": [Said(content="old"), Said(content=f"heard {len(seen)}: {' '.join(seen)}")]}


class Crew:
    """A crew of CrewAI."""

    def kickoff(self, inputs: dict[str, str]) -> Said:
        return Said(raw=f"report on {inputs['topic']}")


class PydanticAgent:
    """An agent of pydantic-ai, or one that is run by OpenAI's runner."""

    description = "Answers questions"

    async def run(self, prompt: str) -> Said:
        return Said(output=f"ran {prompt}")


def pieces(text: str) -> Iterator[str]:
    yield from (f"{text} ", "in pieces")


@pytest.fixture
def core() -> Iterator[Standalone]:
    made = Standalone()
    yield made
    made.close()


@contextmanager
def talking(core: Standalone, thing: object, **options: Any) -> Iterator[SyncA2AClient]:
    adapted = adapt(thing, **options)
    with agent3.a2a.listening(adapted, core=core) as url, SyncA2AClient.connect(url) as client:
        yield client


def text(task: Any) -> str:
    assert isinstance(task, Task)
    assert task.status.state is State.COMPLETED, task.status
    return "".join(part.text or "" for artifact in task.artifacts for part in artifact.parts)


@pytest.mark.requirement("SP-20")
@pytest.mark.parametrize(
    ("thing", "answer"),
    [
        (Chain(), "roses are red"),
        (PlainChain(), "invoked: red"),
        (Graph(), "heard 1: red"),
        (Crew(), "report on red"),
        (PydanticAgent(), "ran red"),
        (lambda message: Said(final_output=f"called with {message}"), "called with red"),
        (pieces, "red in pieces"),
    ],
    ids=["langchain", "langchain-plain", "langgraph", "crewai", "pydantic-ai", "function", "generator"],
)
def test_an_agent_of_a_framework_answers_over_a2a(core: Standalone, thing: object, answer: str) -> None:
    with talking(core, thing) as client:
        assert text(client.send("red")) == answer
        assert [capability.name for capability in client.card.capabilities] == ["chat"]


def test_what_a_framework_streams_is_streamed(core: Standalone) -> None:
    with talking(core, Chain()) as client:
        assert client.card.name == "Poet"
        updates = [item for item in client.stream("red") if isinstance(item, ArtifactUpdate)]
        assert [part.text for update in updates for part in update.artifact.parts][:3] == ["roses ", "are ", "red"]


def test_a_conversation_of_ours_is_one_of_theirs_and_what_interrupts_it_is_asked(
    core: Standalone, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = types.ModuleType("langgraph.types")
    fake.Command = lambda resume: types.SimpleNamespace(resume=resume)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "langgraph", types.ModuleType("langgraph"))
    monkeypatch.setitem(sys.modules, "langgraph.types", fake)
    with talking(core, Graph(), name="Desk") as client:
        first = client.send("hello")
        assert isinstance(first, Task)
        assert text(client.send("again", context=first.context_id)) == "heard 2: hello again"
        assert text(client.send("alone")) == "heard 1: alone"
        asked = client.send("book")
        assert isinstance(asked, Task)
        assert asked.status.state is State.INPUT_REQUIRED
        assert asked.status.message is not None
        assert asked.status.message.parts[0].text == "Which seat?"
        assert text(client.send("12A", task=asked.id)) == "booked 12A"


def test_who_is_built_otherwise_says_how(core: Standalone) -> None:
    class Odd:
        def run(self, given: dict[str, str]) -> list[str]:
            return [given["q"], "!"]

    with talking(core, Odd(), given=lambda words: {"q": words}, said="".join) as client:
        assert text(client.send("hey")) == "hey!"
    with pytest.raises(SetupError, match="no invoke, kickoff or run"):
        adapt(object())


def test_an_answer_is_found_wherever_a_framework_keeps_it() -> None:
    assert extract_answer({"messages": [Said(content="a"), Said(content="b")]}) == "b"
    assert extract_answer(Said(output="o")) == "o"
    assert extract_answer({"sum": 3}) == {"sum": 3}
    assert extract_answer(None) is None
