"""Agents of other frameworks as agents of ours: ``adapt(thing)`` is a LocalAgent, to be served, added or called.

A framework is recognized by the methods of its agents, and none is imported: LangChain runnables and LangGraph graphs
(``invoke``, ``ainvoke``, ``astream``), CrewAI crews (``kickoff``), pydantic-ai and the like (``run``), plain functions.
One conversation of ours is one conversation of theirs, where they have a memory. What they stream is streamed, and an
interrupt of LangGraph becomes a question.
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

__all__ = ["SKILL", "Driver", "adapt", "extract_answer"]

SKILL = "chat"
"""The capability of an adapted agent."""
_ANSWER_FIELDS = ("final_output", "output", "raw", "content", "data", "text")
"""Where frameworks keep what their agents said."""
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_INTERRUPTS = "__interrupt__"
_MOST_QUESTIONS = 100


class Driver(Protocol):
    """Says something to an agent of a framework; what it yields is the answer, in one piece or several."""

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

    ``given`` turns the words into what the framework takes, ``said`` what it returns into the answer; both are for
    agents with unusual inputs or outputs. SetupError for what does not look like an agent of any framework.
    """
    answer = said or extract_answer
    driver: Driver
    if _has(thing, "get_state") and _has(thing, "ainvoke", "invoke"):
        driver = _graph_driver(thing, given or (lambda text: {"messages": [{"role": "user", "content": text}]}), answer)
    elif _has(thing, "ainvoke", "invoke", "astream"):
        driver = _runnable_driver(thing, given or str, answer)
    elif _has(thing, "kickoff_async", "kickoff"):
        driver = _crew_driver(thing, given or (lambda text: {"message": text, "topic": text}), answer)
    elif _has(thing, "run", "arun"):
        driver = _function_driver(_method(thing, "arun", "run"), given or str, answer)
    elif callable(thing) and not inspect.isclass(thing):
        driver = _function_driver(thing, given or str, answer)
    else:
        raise SetupError(
            f"A {type(thing).__name__} is not an agent of a known framework: it has no invoke, kickoff or "
            "run, and is not callable. Pass a function that takes the message."
        )
    own_name = getattr(thing, "name", None) or getattr(thing, "__name__", None)
    if not (isinstance(own_name, str) and own_name and own_name != "<lambda>"):
        own_name = _CAMEL.sub(" ", type(thing).__name__)
    about = description or getattr(thing, "description", None)
    if not (isinstance(about, str) and about):
        about = (inspect.getdoc(thing) or "").strip().partition("\n")[0]
    agent = LocalAgent(name or own_name.replace("_", " ").strip(), description=about)

    async def chat(ctx: Context, message: str) -> AsyncIterator[Any]:
        async for piece in driver(ctx, message):
            yield piece

    agent.add(chat, name=SKILL, description=about or f"Talk to {agent.name}.")
    return agent


def extract_answer(result: Any) -> Any:
    """What an agent said, from what its framework returns: a text, a message, the last of several, or a plain value."""
    if isinstance(result, dict) and isinstance(result.get("messages"), list) and result["messages"]:
        return extract_answer(result["messages"][-1])
    if result is None or isinstance(result, (str, bytes, int, float, bool, list, dict)):
        return result
    for field in _ANSWER_FIELDS:
        found = getattr(result, field, None)
        if found is not None and not callable(found):
            return extract_answer(found)
    return str(result)


# One driver for each kind


def _runnable_driver(thing: Any, given: Callable[[str], Any], said: Callable[[Any], Any]) -> Driver:
    """LangChain: streamed where it can be."""

    async def drive(ctx: Context, message: str) -> AsyncIterator[Any]:
        config = {"configurable": {"session_id": _conversation(ctx), "thread_id": _conversation(ctx)}}
        if _has(thing, "astream"):
            async for chunk in thing.astream(given(message), config):
                if (piece := said(chunk)) not in (None, ""):
                    yield piece
        else:
            yield said(await _call(_method(thing, "ainvoke", "invoke"), given(message), config))

    return drive


def _graph_driver(thing: Any, given: Callable[[str], Any], said: Callable[[Any], Any]) -> Driver:
    """LangGraph: the conversation is its thread. Where it interrupts itself, the caller is asked, and it goes on."""
    invoke = _method(thing, "ainvoke", "invoke")

    async def drive(ctx: Context, message: str) -> AsyncIterator[Any]:
        config = {"configurable": {"thread_id": _conversation(ctx)}}
        state = await _call(invoke, given(message), config)
        for _ in range(_MOST_QUESTIONS):
            interrupts = state.get(_INTERRUPTS) if isinstance(state, dict) else None
            if not interrupts:
                break
            question = getattr(interrupts[0], "value", interrupts[0])
            answer = await ctx.ask(question if isinstance(question, str) else str(question))
            # A graph that LangGraph interrupted has LangGraph installed.
            command = import_module("langgraph.types").Command(resume=answer)
            state = await _call(invoke, command, config)
        yield said(state)

    return drive


def _crew_driver(thing: Any, given: Callable[[str], Any], said: Callable[[Any], Any]) -> Driver:
    """CrewAI."""
    kickoff = _method(thing, "kickoff_async", "kickoff")

    async def drive(ctx: Context, message: str) -> AsyncIterator[Any]:
        yield said(await _call(kickoff, inputs=given(message)))

    return drive


def _function_driver(function: Callable[..., Any], given: Callable[[str], Any], said: Callable[[Any], Any]) -> Driver:
    """A function: plain, async, or a generator of pieces."""

    async def drive(ctx: Context, message: str) -> AsyncIterator[Any]:
        result = await _call(function, given(message))
        if inspect.isasyncgen(result):
            async for piece in result:
                yield said(piece)
        elif inspect.isgenerator(result):
            for piece in result:
                yield said(piece)
        else:
            yield said(result)

    return drive


async def _call(function: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """The result of a function; a plain one gets a thread, because it may block."""
    plain = not inspect.iscoroutinefunction(function) and not inspect.isasyncgenfunction(function)
    result = await asyncio.to_thread(function, *args, **named) if plain else function(*args, **named)
    return await result if inspect.isawaitable(result) else result


def _conversation(ctx: Context) -> str:
    """The key of a framework's memory: the conversation and its caller, since two callers may use the same name."""
    return f"{ctx.principal.id}:{ctx.context_id or ctx.job_id}"


def _has(thing: Any, *names: str) -> bool:
    return any(callable(getattr(thing, name, None)) for name in names)


def _method(thing: Any, *names: str) -> Callable[..., Any]:
    """The first of these methods that the object has."""
    method: Callable[..., Any] = next(getattr(thing, name) for name in names if callable(getattr(thing, name, None)))
    return method
