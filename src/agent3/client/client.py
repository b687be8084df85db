"""``AsyncClient`` and ``Client``: a gateway from Python, over REST.

They are two classes and not one with two sets of methods: what a name returns, a value or something to await, must not
depend on where it is called. ``Client`` is the synchronous face of ``AsyncClient``, by the bridge.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from agent3 import bridge, jsonrpc
from agent3.client.announcement import find_gateway
from agent3.client.plain_http import check_address, default_key, headers_of, no_gateway, read_answer
from agent3.client.types import AgentInfo, Hit, Rating, Result, restore, stored_size
from agent3.errors import Agent3Error, CallTimeout, Conflict, TargetError, Unavailable, ValidationError
from agent3.model import Event, Question
from agent3.secret import Secret
from agent3.security.outbound import Gate, Policy, Response

__all__ = ["AsyncClient", "AsyncEvents", "Client", "Events"]

V = TypeVar("V")
Ask = Callable[[Question], Any]
"""Answers a question; for ``AsyncClient`` it may be async."""

_LONGEST = 3_600.0
"""Seconds that a gateway may take for an answer; a call has a limit of its own, which ends before."""
_LARGEST = 256 * 1_048_576
_LARGEST_FETCHED = 64 * 1_048_576
"""Bytes of stored parts that a result is completed with; what is beyond stays a reference."""
_MOST_FETCHED = 64
"""How many parts may be asked for: a target may send thousands that only look stored."""
_WAIT = 30
"""Seconds of one request that waits for a job; the next goes on."""
_RECONNECTS = 5
_MOST_CALLS = 10_000
_MOST_QUESTIONS = 100
"""Rounds of questions that ``ask`` answers before the call is given back as it is: one that asks for ever ends."""


class AsyncClient:
    """A gateway. It belongs to one event loop; many requests may run at once. Close it, or use ``async with``.

    Without ``url`` it is that of ``AGENT3_SERVER``, else of a gateway that runs on this machine, as for the commands;
    without ``key`` that of ``AGENT3_KEY``. What fails is raised as an error of ``agent3.errors``: ``AgentNotFound``,
    ``ValidationError``, ``RateLimited`` with its ``retry_after``, ``Unavailable`` and so on. Nothing is repeated here:
    the gateway retries where that is safe. Cancelling a call closes its connection, and the agent may still finish:
    what is to be stopped is started with ``wait`` off, and ``cancel`` ends its job.
    """

    def __init__(self, url: str | None = None, key: str | None = None):
        self._url = None if url is None else check_address(url)
        self._key = Secret(key) if key else default_key()
        self._gate: Gate | None = None
        self._opening = asyncio.Lock()

    async def __aenter__(self) -> Self:
        await self._open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close every connection."""
        gate, self._gate = self._gate, None
        if gate is not None:
            await gate.aclose()

    # Finding

    async def search(self, query: str, *, limit: int = 10, filters: Mapping[str, Any] | None = None) -> list[Hit]:
        """What fits a few words, the best first."""
        body = {"query": query, "limit": limit, **({"filters": dict(filters)} if filters else {})}
        found = await self._post("/v1/search", body)
        return [Hit.read(one) for one in found["agents"]]

    async def agents(self, query: str = "", *, limit: int = 50) -> list[Hit]:
        """All agents, or those that fit."""
        given = {"limit": limit, **({"query": query} if query else {})}
        found = await self._get(f"/v1/agents?{urlencode(given)}")
        return [Hit.read(one) for one in found["agents"]]

    async def select(self, agent: str | Hit) -> AgentInfo:
        """One agent: its capabilities with their schemas, and its rating."""
        return AgentInfo.read(await self._get(f"/v1/agents/{_quote_id(agent)}"))

    async def feedback(self, agent: str | Hit, rating: int, comment: str = "") -> Rating:
        """Rate an agent from 1 to 5; how it is rated now."""
        body = {"agentId": _id(agent), "rating": rating, **({"comment": comment} if comment else {})}
        return Rating.read((await self._post("/v1/feedback", body)).get("rating"))

    # Calling

    async def call(
        self,
        agent: str | Hit,
        message: str = "",
        *,
        capability: str | None = None,
        input: Mapping[str, Any] | None = None,  # noqa: A002 - the word of every door
        timeout: float | None = None,
        retries: int | None = None,
        key: str | None = None,
        context: str | None = None,
        ask: Ask | None = None,
        wait: bool = True,
    ) -> Result:
        """Call an agent in plain words or with structured input, and wait until it is done, asks, or fails.

        ``timeout`` is in seconds, ``key`` an idempotency key. Questions go to ``ask``; without it the result has them,
        for ``answer``. With ``wait`` off it comes back at once as ``working``, with a job.
        """
        body = _call_body(agent, message, capability, input, timeout, retries, key, context)
        result = await self._result("POST", "/v1/call", body, agent, {} if wait else {"Prefer": "respond-async"})
        return await self._settle(result, ask) if wait else result

    def stream(self, agent: str | Hit, message: str = "", **options: Any) -> AsyncEvents:
        """The events of a call while it runs: progress, pieces of the result. ``options`` are those of ``call``."""
        _check_options(options, ("ask", "wait"))

        async def start() -> Result:
            return await self.call(agent, message, **options, wait=False)

        return AsyncEvents(self, start)

    def follow(self, job: str | Result, after: int = 0) -> AsyncEvents:
        """The events of a job, past a number, until it pauses or ends."""

        async def start() -> Result:
            return await self.job(job)

        return AsyncEvents(self, start, after)

    async def batch(self, calls: Sequence[Mapping[str, Any]], *, parallel: int = 8) -> list[Result | Agent3Error]:
        """Many calls at once, at most so many side by side; each ends in its place as a result or an error.

        Each is the arguments of ``call``: ``{"agent": "calculator", "message": "1 + 1"}``.
        """
        if len(calls) > _MOST_CALLS:
            raise ValidationError(f"A batch may have at most {_MOST_CALLS} calls, got {len(calls)}.")
        for number, one in enumerate(calls):
            if "agent" not in one:
                raise ValidationError(f'Call {number} of the batch names no agent: pass it as "agent".')
            _check_options({name: value for name, value in one.items() if name not in ("agent", "message")}, ())
        ended: dict[int, Result | Agent3Error] = {}
        waiting = iter(enumerate(calls))

        async def work() -> None:
            for number, one in waiting:
                try:
                    ended[number] = await self.call(**one)
                except Agent3Error as error:
                    ended[number] = error

        async with asyncio.TaskGroup() as group:
            for _ in range(max(1, min(parallel, len(calls)))):
                group.create_task(work())
        return [ended[number] for number in range(len(calls))]

    # Jobs

    async def answer(self, job: str | Result, answer: Any, *, ask: Ask | None = None) -> Result:
        """Answer what a job asks: a text or another value for its first question, or a mapping of answers by id."""
        body: dict[str, Any] = {"message": answer}
        if isinstance(answer, Mapping):
            body = {"answers": dict(answer)}
        elif not isinstance(answer, str):
            asked = job if isinstance(job, Result) else await self.job(job)
            if not asked.questions:
                raise Conflict(f"Job {_job(job)} is not waiting for an answer.")
            body = {"answers": {asked.questions[0].id: answer}}
        result = await self._result("POST", f"/v1/calls/{_job(job)}/answer", body, _agent_of(job))
        return await self._settle(result, ask)

    async def job(self, job: str | Result, *, wait: int = 0) -> Result:
        """How a job stands, after at most so many seconds in which it still works."""
        return await self._result("GET", f"/v1/calls/{_job(job)}?wait={wait}", None, _agent_of(job))

    async def wait(self, job: str | Result, seconds: float | None = None) -> Result:
        """Wait until a job is done, asks or fails; CallTimeout after so many seconds, and the job goes on."""
        try:
            async with asyncio.timeout(seconds):
                while (result := await self.job(job, wait=_WAIT)).status == "working":
                    pass
        except TimeoutError:
            raise CallTimeout(
                f"Job {_job(job)} is still working after {seconds:g} s. Wait again, or cancel it."
            ) from None
        return result

    async def cancel(self, job: str | Result) -> None:
        """Cancel a job, running or waiting; one that has ended stays as it is."""
        await self._post(f"/v1/calls/{_job(job)}/cancel", {})

    async def artifact(self, artifact: str) -> bytes:
        """The bytes of something stored, by its id; a ``Result`` has its own already."""
        response = await self._send("GET", f"/v1/artifacts/{quote(artifact, safe='')}", None)
        if response.status != 200:
            read_answer(await self._where(), response.status, response.body)
        return response.body

    # Inside

    async def _settle(self, result: Result, ask: Ask | None) -> Result:
        for _ in range(_MOST_QUESTIONS):
            if result.status == "working":
                result = await self.wait(result)
            if result.status != "needs" or ask is None:
                break
            given = {}
            for question in result.questions:
                answer = ask(question)
                given[question.id] = await answer if inspect.isawaitable(answer) else answer
            path = f"/v1/calls/{_job(result)}/answer"
            result = await self._result("POST", path, {"answers": given}, result.agent)
        return result

    async def _result(
        self, method: str, path: str, body: Any, agent: str | Hit, headers: Mapping[str, str] | None = None
    ) -> Result:
        answer = await self._request(method, path, body, headers)
        if answer.get("success"):
            answer["result"] = await self._fetch(answer.get("result"))
        return Result.read(answer, _id(agent), await self._where())

    async def _fetch(self, value: Any) -> Any:
        """The value with what the gateway stored for its size, as far as that is not too large and can be had."""
        left, tries = _LARGEST_FETCHED, _MOST_FETCHED

        async def fetch(item: Any) -> Any:
            nonlocal left, tries
            if (size := stored_size(item)) is None or size > left or not tries:
                return item
            tries -= 1
            try:
                body = await self.artifact(item["artifact"])
            except Agent3Error:  # it has expired, only looks like a reference, or cannot be had now: the call was done
                return item
            left -= max(size, len(body))
            return restore(item, body)

        return [await fetch(item) for item in value] if isinstance(value, list) else await fetch(value)

    async def _get(self, path: str) -> dict[str, Any]:
        return await self._request("GET", path, None)

    async def _post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        return await self._request("POST", path, body)

    async def _request(
        self, method: str, path: str, body: Any, headers: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        response = await self._send(method, path, body, headers)
        return read_answer(await self._where(), response.status, response.body)

    async def _send(self, method: str, path: str, body: Any, headers: Mapping[str, str] | None = None) -> Response:
        gate, where = await self._open(), await self._where()
        raw = None if body is None else json.dumps(body).encode()
        sent = {**headers_of(self._key), **(headers or {})}
        try:
            return await gate.request(method, where + path, headers=sent, body=raw, timeout=_LONGEST)
        except Unavailable as error:
            raise no_gateway(where, error.message.rstrip(".")) from None

    async def _where(self) -> str:
        await self._open()
        assert self._url is not None
        return self._url

    async def _open(self) -> Gate:
        async with self._opening:
            if self._url is None:
                self._url = await asyncio.to_thread(find_gateway)
            if self._gate is None:
                parts = urlsplit(self._url)
                host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
                port = parts.port or (443 if parts.scheme == "https" else 80)
                self._gate = Gate(Policy(allow_hosts=frozenset({f"{host}:{port}"}), max_bytes=_LARGEST))
            return self._gate

    async def frames(self, job: str, after: int) -> AsyncGenerator[Event, None]:
        """The events of one connection to a job's stream. A break in the middle is raised as TargetError."""
        gate, where = await self._open(), await self._where()
        address = f"{where}/v1/calls/{quote(job, safe='')}/events?after={after}"
        async with gate.stream("GET", address, headers=headers_of(self._key), idle=_LONGEST) as answer:
            if answer.status != 200:
                read_answer(where, answer.status, b"".join([chunk async for chunk in answer]))
            parser = jsonrpc.SSEParser()
            async for chunk in answer:
                for frame in parser.feed(chunk):
                    if frame.data:
                        yield msgspec.json.decode(frame.data, type=Event)


class AsyncEvents(AsyncIterator[Event]):
    """The events of a call, once, and then its ``result``. A connection that breaks is taken up where it was."""

    def __init__(self, client: AsyncClient, start: Callable[[], Awaitable[Result]], after: int = 0):
        self._client = client
        self._start = start
        self._after = after
        self._result: Result | None = None
        self._events = self._run()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        return await anext(self._events)

    async def result(self) -> Result:
        """How the call stands, once it has paused or ended; what is left of the events is passed over."""
        async for _ in self:
            pass
        if self._result is None:
            raise Unavailable("The stream was closed before its end. Read the job with client.job(…).")
        return self._result

    async def aclose(self) -> None:
        """Stop reading. The job goes on."""
        await self._events.aclose()

    async def _run(self) -> AsyncGenerator[Event, None]:
        begun = await self._start()
        if begun.job is None or begun.status != "working":
            self._result = begun
            if begun.job is None:
                return
        broken = 0
        while True:
            try:
                async with aclosing(self._client.frames(begun.job, self._after)) as events:
                    async for event in events:
                        self._after, broken = max(self._after, event.seq), 0
                        yield event
            except TargetError:
                broken += 1
                if broken > _RECONNECTS:
                    raise
                await asyncio.sleep(0.2 * broken)
                continue
            result = await self._client.job(begun)
            if result.status != "working":
                self._result = result
                return


class Client:
    """A gateway, for synchronous code: the methods of ``AsyncClient``, each waited for. Safe from any thread.

    with Client() as gateway:
        hit = gateway.search("order a pizza")[0]
        told = gateway.call(hit, "a pepperoni pizza", ask=lambda question: "large")
        print(told.value)
    """

    def __init__(self, url: str | None = None, key: str | None = None):
        self._inner = AsyncClient(find_gateway(url), key)

    @property
    def url(self) -> str:
        """The address of the gateway."""
        return bridge.run(self._inner._where())  # noqa: SLF001 - it is ours

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection."""
        bridge.run(self._inner.aclose())

    def search(self, query: str, *, limit: int = 10, filters: Mapping[str, Any] | None = None) -> list[Hit]:
        """What fits a few words, the best first."""
        return bridge.run(self._inner.search(query, limit=limit, filters=filters))

    def agents(self, query: str = "", *, limit: int = 50) -> list[Hit]:
        """All agents, or those that fit."""
        return bridge.run(self._inner.agents(query, limit=limit))

    def select(self, agent: str | Hit) -> AgentInfo:
        """One agent: its capabilities with their schemas, and its rating."""
        return bridge.run(self._inner.select(agent))

    def feedback(self, agent: str | Hit, rating: int, comment: str = "") -> Rating:
        """Rate an agent from 1 to 5; how it is rated now."""
        return bridge.run(self._inner.feedback(agent, rating, comment))

    def call(
        self,
        agent: str | Hit,
        message: str = "",
        *,
        capability: str | None = None,
        input: Mapping[str, Any] | None = None,  # noqa: A002
        timeout: float | None = None,
        retries: int | None = None,
        key: str | None = None,
        context: str | None = None,
        ask: Ask | None = None,
        wait: bool = True,
    ) -> Result:
        """Call an agent, and wait until it is done, asks, or fails; see ``AsyncClient.call``."""
        return bridge.run(
            self._inner.call(
                agent,
                message,
                capability=capability,
                input=input,
                timeout=timeout,
                retries=retries,
                key=key,
                context=context,
                ask=_in_thread(ask),
                wait=wait,
            )
        )

    def stream(self, agent: str | Hit, message: str = "", **options: Any) -> Events:
        """The events of a call while it runs; see ``AsyncClient.stream``."""
        return Events(self._inner.stream(agent, message, **options))

    def follow(self, job: str | Result, after: int = 0) -> Events:
        """The events of a job, past a number, until it pauses or ends."""
        return Events(self._inner.follow(job, after))

    def batch(self, calls: Sequence[Mapping[str, Any]], *, parallel: int = 8) -> list[Result | Agent3Error]:
        """Many calls at once; see ``AsyncClient.batch``."""
        return bridge.run(self._inner.batch(calls, parallel=parallel))

    def answer(self, job: str | Result, answer: Any, *, ask: Ask | None = None) -> Result:
        """Answer what a job asks: a text or another value for its first question, or a mapping of answers by id."""
        return bridge.run(self._inner.answer(job, answer, ask=_in_thread(ask)))

    def job(self, job: str | Result, *, wait: int = 0) -> Result:
        """How a job stands, after at most so many seconds in which it still works."""
        return bridge.run(self._inner.job(job, wait=wait))

    def wait(self, job: str | Result, seconds: float | None = None) -> Result:
        """Wait until a job is done, asks or fails; CallTimeout after so many seconds, and the job goes on."""
        return bridge.run(self._inner.wait(job, seconds))

    def cancel(self, job: str | Result) -> None:
        """Cancel a job, running or waiting; one that has ended stays as it is."""
        bridge.run(self._inner.cancel(job))

    def artifact(self, artifact: str) -> bytes:
        """The bytes of a large result, by the id in its place."""
        return bridge.run(self._inner.artifact(artifact))


class Events(Iterator[Event]):
    """``AsyncEvents`` for synchronous code."""

    def __init__(self, inner: AsyncEvents):
        self._inner = inner
        self._events = bridge.iterate(_all(inner))

    def __next__(self) -> Event:
        return next(self._events)

    def result(self) -> Result:
        """How the call stands, once it has paused or ended; what is left of the events is passed over."""
        for _ in self:
            pass
        return bridge.run(self._inner.result())


async def _all(events: AsyncEvents) -> AsyncGenerator[Event, None]:
    try:
        async for event in events:
            yield event
    finally:
        await events.aclose()


def _in_thread(ask: Ask | None) -> Ask | None:
    """A function that may block, such as ``input``, must not hold the bridge's loop."""
    if ask is None:
        return None

    def answer(question: Question) -> Coroutine[Any, Any, Any]:
        return asyncio.to_thread(ask, question)

    return answer


def _call_body(
    agent: str | Hit,
    message: str,
    capability: str | None,
    given: Mapping[str, Any] | None,
    timeout: float | None,
    retries: int | None,
    key: str | None,
    context: str | None,
) -> dict[str, Any]:
    if given is not None and not isinstance(given, Mapping):
        raise ValidationError(f"input must be an object such as {{'text': 'hello'}}, got {type(given).__name__}.")
    if capability is None and isinstance(agent, Hit):
        capability = agent.capability
    metadata = {
        "timeout": None if timeout is None else timeout * 1000,
        "retries": retries,
        "idempotencyKey": key,
        "contextId": context,
    }
    body = {
        "agentId": _id(agent),
        "message": message or None,
        "capability": capability,
        "input": None if given is None else dict(given),
        "metadata": {name: value for name, value in metadata.items() if value is not None} or None,
    }
    return {name: value for name, value in body.items() if value is not None}


_OPTIONS = frozenset(inspect.signature(AsyncClient.call).parameters) - {"self", "agent", "message"}


def _check_options(given: Mapping[str, Any], without: Sequence[str]) -> None:
    if unknown := sorted(set(given) - _OPTIONS.difference(without)):
        known = ", ".join(sorted(_OPTIONS.difference(without)))
        raise ValidationError(f"A call has no option {unknown[0]!r}. Its options are {known}.")


def _id(agent: str | Hit) -> str:
    return agent.id if isinstance(agent, Hit) else agent


def _quote_id(agent: str | Hit) -> str:
    return quote(_id(agent), safe="")


def _job(job: str | Result) -> str:
    name = job.job if isinstance(job, Result) else job
    if not name:
        raise ValidationError("This result has no job: the call ended at once, so there is nothing to continue.")
    return quote(name, safe="")


def _agent_of(job: str | Result) -> str:
    return job.agent if isinstance(job, Result) else ""
