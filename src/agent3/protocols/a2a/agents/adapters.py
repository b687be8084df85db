"""Agents of other frameworks as agents of ours: ``adapt(thing)`` is a LocalAgent, to be served, added or called.

A framework is known by the methods that its agents have, and none is imported: LangChain runnables and LangGraph graphs
(``invoke``, ``ainvoke``, ``astream``), CrewAI crews (``kickoff``), pydantic-ai and the like (``run``), plain functions.
One conversation of ours is one conversation of theirs, where they remember any; what they stream is streamed, and what
LangGraph interrupts for is asked.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import AsyncIterator, Callable
from importlib import import_module
from typing import Any, Protocol

from agent3.errors import SetupError
from agent3.protocols.functions.functions import Context, LocalAgent

__all__ = ["SKILL", "Driver", "adapt"]

SKILL = "chat"
"""The capability of an adapted agent."""
_TEXTS = ("final_output", "output", "raw", "content", "data", "text")
"""Where frameworks keep what their agents said."""
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_PAUSES = "__interrupt__"
_MOST_QUESTIONS = 100


class Driver(Protocol):
    """Says something to an agent of a framework; what it yields is the answer, in one piece or in several."""

    def __call__(self, ctx: Context, message: str) -> AsyncIterator[Any]: ...


def adapt(
    thing: object,
    *,
    name: str | None = None,
    description: str | None = None,
    given: Callable[[str], Any] | None = None,
    said: Callable[[Any], Any] | None = None,
) -> LocalAgent:
    """An agent of another framework as one of ours, with one capability that takes a message in words.

    ``given`` makes from the words what the framework wants, ``said`` from what it gives the answer; both are for agents
    that are not built like most. SetupError for what no framework's agent looks like.
    """
    driver = _driver(thing, given, said or answer_in)
    agent = LocalAgent(name or _name(thing), description=description or _about(thing))

    async def chat(ctx: Context, message: str) -> AsyncIterator[Any]:
        async for piece in driver(ctx, message):
            yield piece

    agent.add(chat, name=SKILL, description=description or _about(thing) or f"Talk to {agent.name}.")
    return agent


def answer_in(result: Any) -> Any:
    """What an agent said, out of what its framework gives: a text, a message, the last of several, or a plain value."""
    if isinstance(result, dict) and isinstance(result.get("messages"), list) and result["messages"]:
        return answer_in(result["messages"][-1])
    if result is None or isinstance(result, (str, bytes, int, float, bool, list, dict)):
        return result
    for field in _TEXTS:
        found = getattr(result, field, None)
        if found is not None and not callable(found):
            return answer_in(found)
    return str(result)


def _driver(thing: Any, given: Callable[[str], Any] | None, said: Callable[[Any], Any]) -> Driver:
    if callable(getattr(thing, "get_state", None)) and _has(thing, "ainvoke", "invoke"):
        return _graph(thing, given or _as_messages, said)
    if _has(thing, "ainvoke", "invoke", "astream"):
        return _runnable(thing, given or str, said)
    if _has(thing, "kickoff_async", "kickoff"):
        return _crew(thing, given or _as_inputs, said)
    if _has(thing, "run", "arun"):
        return _plain(_method(thing, "arun", "run"), given or str, said)
    if callable(thing) and not inspect.isclass(thing):
        return _plain(thing, given or str, said)
    raise SetupError(
        f"A {type(thing).__name__} is no agent of a framework that is known here: it has neither invoke nor kickoff "
        "nor run, and cannot be called. Give a function that takes the message."
    )


# One driver for each kind


def _runnable(thing: Any, given: Callable[[str], Any], said: Callable[[Any], Any]) -> Driver:
    """LangChain: streamed where it can be."""

    async def drive(ctx: Context, message: str) -> AsyncIterator[Any]:
        config = {"configurable": {"session_id": _conversation(ctx), "thread_id": _conversation(ctx)}}
        if callable(getattr(thing, "astream", None)):
            async for chunk in thing.astream(given(message), config):
                if (piece := said(chunk)) not in (None, ""):
                    yield piece
        else:
            yield said(await _called(_method(thing, "ainvoke", "invoke"), given(message), config))

    return drive


def _graph(thing: Any, given: Callable[[str], Any], said: Callable[[Any], Any]) -> Driver:
    """LangGraph: the conversation is its thread. Where it interrupts itself, the caller is asked, and it goes on."""
    invoke = _method(thing, "ainvoke", "invoke")

    async def drive(ctx: Context, message: str) -> AsyncIterator[Any]:
        config = {"configurable": {"thread_id": _conversation(ctx)}}
        state = await _called(invoke, given(message), config)
        for _ in range(_MOST_QUESTIONS):
            pauses = state.get(_PAUSES) if isinstance(state, dict) else None
            if not pauses:
                break
            wanted = getattr(pauses[0], "value", pauses[0])
            answer = await ctx.ask(wanted if isinstance(wanted, str) else str(wanted))
            state = await _called(invoke, _resumed(answer), config)
        yield said(state)

    return drive


def _crew(thing: Any, given: Callable[[str], Any], said: Callable[[Any], Any]) -> Driver:
    kickoff = _method(thing, "kickoff_async", "kickoff")

    async def drive(ctx: Context, message: str) -> AsyncIterator[Any]:
        yield said(await _called(kickoff, inputs=given(message)))

    return drive


def _plain(function: Callable[..., Any], given: Callable[[str], Any], said: Callable[[Any], Any]) -> Driver:
    """A function: plain, async, or a generator of pieces."""

    async def drive(ctx: Context, message: str) -> AsyncIterator[Any]:
        result = await _called(function, given(message))
        if inspect.isasyncgen(result):
            async for piece in result:
                yield said(piece)
        elif inspect.isgenerator(result):
            for piece in result:
                yield said(piece)
        else:
            yield said(result)

    return drive


async def _called(function: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """What a function gives; a plain one has a thread of its own, since it may well take its time."""
    plain = not inspect.iscoroutinefunction(function) and not inspect.isasyncgenfunction(function)
    result = await asyncio.to_thread(function, *args, **named) if plain else function(*args, **named)
    return await result if inspect.isawaitable(result) else result


# What they are given, and what they are called


def _conversation(ctx: Context) -> str:
    """What their memory goes by: the conversation, and whose it is, since others may give theirs the same name."""
    return f"{ctx.principal.id}:{ctx.context_id or ctx.job_id}"


def _as_messages(text: str) -> Any:
    return {"messages": [{"role": "user", "content": text}]}


def _as_inputs(text: str) -> Any:
    return {"message": text, "topic": text}


def _resumed(answer: Any) -> Any:
    """What makes a graph go on. Whoever was interrupted by LangGraph has it installed."""
    return import_module("langgraph.types").Command(resume=answer)


def _has(thing: Any, *names: str) -> bool:
    return any(callable(getattr(thing, one, None)) for one in names)


def _method(thing: Any, *names: str) -> Callable[..., Any]:
    """The first of these methods that there is."""
    found: Callable[..., Any] = next(getattr(thing, one) for one in names if callable(getattr(thing, one, None)))
    return found


def _name(thing: Any) -> str:
    given = getattr(thing, "name", None) or getattr(thing, "__name__", None)
    if isinstance(given, str) and given and given != "<lambda>":
        return given.replace("_", " ")
    return _CAMEL.sub(" ", type(thing).__name__).replace("_", " ").strip()


def _about(thing: Any) -> str:
    given = getattr(thing, "description", None)
    if isinstance(given, str) and given:
        return given
    return (inspect.getdoc(thing) or "").strip().partition("\n")[0]
