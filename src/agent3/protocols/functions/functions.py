"""Python functions as agents: plain, async, generators, with questions asked in the middle.

``LocalAgent`` is what an author writes with; ``LocalConnector`` is how the gateway reaches it. What a function
promises across restarts depends on its form: an async function waits in its frame and is replayed only if its author
allows it; a plain one is run again from the top with the answers given so far, so what must happen only once goes
into ``ctx.once``.
"""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import functools
import inspect
import math
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import CoroutineType
from typing import Any, ClassVar, TypeVar, overload

import msgspec

from agent3 import schema
from agent3.errors import (
    Agent3Error,
    AgentNotFound,
    Canceled,
    Declined,
    Interrupted,
    MalformedResponse,
    SetupError,
    TargetError,
    TooLarge,
    ValidationError,
)
from agent3.model import (
    SAID,
    Agent,
    Answer,
    Call,
    Capability,
    Done,
    Event,
    Failed,
    Hints,
    Needs,
    Outcome,
    Part,
    Price,
    Principal,
    Question,
    Route,
    Traits,
    Working,
    encode,
    value_of,
)
from agent3.protocols.functions.client_requests import (
    Level,
    Messages,
    Root,
    Sample,
    ask_client,
    check_level,
    check_power,
    find_powers,
    make_sampling_request,
    read_roots,
    read_sample,
)
from agent3.protocols.functions.threads import Threads
from agent3.schema.annotations import of_type, to_type
from agent3.schema.bounds import RESULTS
from agent3.schema.compiler import compiled
from agent3.security.sensitive import SENSITIVE
from agent3.sentences.lexicon import detect_language
from agent3.sentences.questions import decline

__all__ = [
    "Context",
    "Function",
    "LocalAgent",
    "LocalConnector",
    "Root",
    "Sample",
    "SyncContext",
    "parts_of",
    "to_bytes_part",
]

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
_CONTENT = (bytes, Part, Done, Failed, Needs, Working)
_PATIENCE = 60.0
"""Seconds that a thread waits for storage before it gives up."""
_HEED = 0.2
"""Seconds after which a thread that waits for another looks whether its own caller still waits."""
_MOST_SENT = 16 * 1_048_576
"""Bytes that one run may hand over piece by piece."""
_EACH = 64
"""Bytes that a piece counts for beyond its content: many small ones weigh as well."""


_ENDING = (KeyboardInterrupt, SystemExit, GeneratorExit, StopIteration)
"""What ends a loop, a coroutine or a future when it comes out of it. Raised by a function, it is a failure like any."""


class _Asked(BaseException):
    """Ends the run of a plain function at its question. No ``except Exception`` of an author may swallow it."""

    def __init__(self, question: Question):
        self.question = question


class _Base:
    """What both kinds of context share."""

    def __init__(self, call: Call):
        self._call = call
        self._count = 0
        self._names: set[str] = set()
        self._sent = 0
        self._told = 0
        self._weight = 0

    @property
    def principal(self) -> Principal:
        """Who calls."""
        return self._call.principal

    @property
    def call_id(self) -> str:
        """The id of this turn, as in the ledger."""
        return self._call.id

    @property
    def job_id(self) -> str:
        """The id of the conversation."""
        return self._call.job or self._call.id

    @property
    def message(self) -> str:
        """What the caller said, in its own words, where it said something."""
        return "\n".join(part.text for part in self._call.parts if part.text)

    @property
    def parts(self) -> tuple[Part, ...]:
        """What the caller said, as it came: texts, files and data."""
        return self._call.parts

    @property
    def reply(self) -> tuple[Part, ...]:
        """What the caller said in this turn, if it is a later one. A function that waits in its frame sees none."""
        return self._call.reply

    @property
    def context_id(self) -> str | None:
        """What groups this conversation with others, where the caller groups them."""
        return self._call.context

    @property
    def meta(self) -> dict[str, Any]:
        """What came with the call beside its content, by the door it came through."""
        return self._call.meta

    @property
    def can(self) -> frozenset[str]:
        """What the caller's client can do for us: ``form``, ``url``, ``sampling``, ``roots``, ``tasks``. Empty where
        that is not known, as it is for callers that are no MCP clients."""
        return find_powers(self._call)

    # In a plain function each of these raises Canceled when its caller no longer waits.

    def log(self, what: Any, level: Level = "info", *, logger: str | None = None) -> None:
        """Send a log line, a text or anything that is JSON, to a caller that wants lines of this level."""
        self._emit(self._line(what, level, logger))

    def progress(self, done: float, total: float | None = None, text: str | None = None) -> None:
        """Tell how far it is."""
        self._emit(Event("progress", done=done, total=total, text=text))

    def status(self, text: str) -> None:
        """Tell what is going on."""
        self._emit(Event("status", text=text))

    def send(self, value: Any) -> None:
        """Hand over a piece of the result already; after this the call is never repeated behind the caller's back.

        A plain function that is run again after an answer does not hand over again what an earlier run did.
        """
        self._hand_over(parts_of(value))

    def artifact(
        self,
        value: Any,
        *,
        id: str | None = None,  # noqa: A002 - it is the id
        name: str | None = None,
        append: bool = False,
        last: bool = True,
    ) -> None:
        """Hand over something made beside the result, whole or in pieces: ``append`` adds to the one of that ``id``,
        and the last piece says ``last``. Without an id its name is it. The call is never repeated after this."""
        self._go_on()
        self._emit_once(self._piece(value, name, id, append, last))

    def _hand_over(self, parts: tuple[Part, ...]) -> None:
        self._go_on()
        self._emit_once(self._next(parts))

    def _go_on(self) -> None:
        """Raise Canceled where nobody waits any more; a coroutine is cancelled itself."""

    def _emit_once(self, event: Event) -> None:
        self._emit(event)

    def _emit(self, event: Event) -> None:
        self._call.emit(event)

    def _name(self, wanted: str | None) -> str:
        """The id of the next question: its own name, or its number."""
        self._count += 1
        if wanted is None:
            return f"q{self._count}"
        if not wanted or wanted in self._names:
            raise SetupError(f"Each question needs a different name, got {wanted!r} again.")
        self._names.add(wanted)
        return wanted

    def _question(self, text: str, kind: Any, url: str | None, name: str | None) -> Question:
        return Question(self._name(name), text, None if url else of_type(kind), url)

    def _sampling_question(self, name: str | None, prompt: Messages, **options: Any) -> Question:
        check_power(self.can, "sampling")
        text, request = make_sampling_request(prompt, **options)
        return ask_client(self._name(name), text, request)

    def _roots_question(self, name: str | None) -> Question:
        check_power(self.can, "roots")
        return ask_client(self._name(name), "Which folders may be used?", {"method": "roots/list"})

    def _line(self, what: Any, level: str, logger: str | None) -> Event:
        """A log line."""
        check_level(level)
        plain = _plain(what, "ctx.log", lossy=True)
        data = plain if logger is None else {"logger": logger, "data": plain}
        text = plain if isinstance(plain, str) else encode(plain).decode()
        return Event("log", text=text, name=level, data=None if data is text else data)

    def _given(self, question: Question) -> Answer | None:
        return self._call.answers.get(question.id)

    def _next(self, parts: tuple[Part, ...]) -> Event:
        """The next piece of the result; TooLarge when all together are too much."""
        self._weigh(parts)
        self._sent += 1
        # A piece of the result. The first begins it anew: a replay after a restart replaces what the first run sent.
        return Event("artifact", artifact="result", parts=parts, append=self._sent > 1)

    def _piece(self, value: Any, name: str | None, wanted: str | None, append: bool, last: bool) -> Event:
        """A piece of something that the function makes beside its result."""
        parts = parts_of(value)
        self._weigh(parts)
        called = wanted or name or f"artifact-{self._told}"
        return Event("artifact", artifact=called, name=name, parts=parts, append=append, last=last)

    def _weigh(self, parts: tuple[Part, ...]) -> None:
        self._told += 1
        self._weight += sum(_EACH + _size(part) for part in parts)
        if self._weight > _MOST_SENT:
            name = f"{self._call.agent}/{self._call.capability}"
            raise TooLarge(f"{name} yielded more than {_MOST_SENT} bytes and was stopped.")


def _accept(answer: Answer, question: Question) -> Any:
    """What was answered; an exception where that is a no."""
    if answer.action == "decline":
        why = answer.data.get("message") if isinstance(answer.data, dict) else None
        if why is None and detect_language(question.text) == "es":
            raise Declined(decline(question, "es"))
        raise Declined(f"The question {question.text!r} was declined{f': {why}' if why else '.'}")
    if answer.action == "cancel":
        raise Canceled(f"The question {question.text!r} was cancelled.")
    return answer.data


def _asked_again(question: Question, error: ValidationError) -> Question:
    """The question whose answer fits its schema, but not its type: a date that is not in the calendar."""
    return msgspec.structs.replace(question, text=f"{question.text} (invalid: {error.message})")


class Context(_Base):
    """The first parameter, named ``ctx``, of an async capability."""

    def __init__(self, call: Call):
        super().__init__(call)
        self._doing: dict[str, asyncio.Lock] = {}

    async def ask(self, text: str, kind: Any = str, *, url: str | None = None, name: str | None = None) -> Any:
        """Ask the caller and wait for the answer, however long it takes; Declined when the answer is no.

        ``name`` is the id of the question, in place of its number.
        """
        question = self._question(text, kind, url, name)
        data = await self._answer(question)
        while True:
            try:
                return to_type(kind, data)
            except ValidationError as error:
                data = _accept(await self._ask(_asked_again(question, error)), question)

    async def sample(
        self,
        prompt: Messages,
        *,
        max_tokens: int = 1000,
        system: str | None = None,
        temperature: float | None = None,
        stop: Sequence[str] = (),
        models: Sequence[str] = (),
        tools: Sequence[Mapping[str, Any]] = (),
        tool_choice: Mapping[str, Any] | None = None,
        name: str | None = None,
    ) -> Sample:
        """Ask the language model of the caller's client. Declined where it lends none or says no.

        ``models`` are names of models that would do, the best first; ``tools`` and ``tool_choice`` are those of the
        protocol, which the client's model may then call.
        """
        options = {"max_tokens": max_tokens, "system": system, "temperature": temperature, "stop": stop}
        more = {"models": models, "tools": tools, "tool_choice": tool_choice}
        return read_sample(await self._answer(self._sampling_question(name, prompt, **options, **more)))

    async def roots(self, *, name: str | None = None) -> list[Root]:
        """The folders that the caller's client lets us see. Declined where it lends none."""
        return read_roots(await self._answer(self._roots_question(name)))

    async def _answer(self, question: Question) -> Any:
        answer = self._given(question)
        return _accept(await self._ask(question) if answer is None else answer, question)

    async def _ask(self, question: Question) -> Answer:
        asker = self._call.live.ask
        if asker is None:
            raise SetupError("ctx.ask needs a caller that can answer; call this capability through a gateway.")
        return await asker(question)

    async def once(self, name: str, do: Callable[[], Any]) -> Any:
        """Do something once in this job, however often the function is run again, and however many ask at once.

        Who comes while it is being done waits for it; if it fails, the next one who waits tries.
        """
        live = self._call.live
        async with self._doing.setdefault(name, asyncio.Lock()):
            if name not in live.kept:
                value = do()
                if inspect.isawaitable(value):
                    value = await value
                plain = _plain(value, f"ctx.once({name!r})")
                await live.now().keep(name, plain)
                live.kept[name] = plain
        return live.kept[name]

    def say(self, text: str) -> None:
        """Say something that belongs to the conversation, and is remembered with it."""
        self._call.emit(Event("status", text=text, data=SAID))

    def _hand_over(self, parts: tuple[Part, ...]) -> None:
        self._call.emit(self._next(parts))


class SyncContext(_Base):
    """The first parameter, named ``ctx``, of a plain capability. Safe in the worker thread it runs in."""

    def __init__(self, call: Call, loop: asyncio.AbstractEventLoop):
        super().__init__(call)
        self._loop = loop
        self._sent_before = call.state.get("chunks", 0) if isinstance(call.state, dict) else 0
        self.cancelled = False

    @property
    def state(self) -> Any:
        """What the next run must know of this one: how many pieces were handed over."""
        sent = max(self._told, self._sent_before)
        return {"chunks": sent} if sent else None

    def ask(self, text: str, kind: Any = str, *, url: str | None = None, name: str | None = None) -> Any:
        """Ask the caller. The run ends here, and the answer runs the function again from the top.

        ``name`` is the id of the question, in place of its number.
        """
        question = self._question(text, kind, url, name)
        data = self._answer(question)
        try:
            return to_type(kind, data)
        except ValidationError as error:
            raise _Asked(_asked_again(question, error)) from None

    def sample(
        self,
        prompt: Messages,
        *,
        max_tokens: int = 1000,
        system: str | None = None,
        temperature: float | None = None,
        stop: Sequence[str] = (),
        models: Sequence[str] = (),
        tools: Sequence[Mapping[str, Any]] = (),
        tool_choice: Mapping[str, Any] | None = None,
        name: str | None = None,
    ) -> Sample:
        """Ask the language model of the caller's client, as ``ask`` asks the caller. Declined where it lends none or
        says no.

        ``models`` are names of models that would do, the best first; ``tools`` and ``tool_choice`` are those of the
        protocol, which the client's model may then call.
        """
        options = {"max_tokens": max_tokens, "system": system, "temperature": temperature, "stop": stop}
        more = {"models": models, "tools": tools, "tool_choice": tool_choice}
        return read_sample(self._answer(self._sampling_question(name, prompt, **options, **more)))

    def roots(self, *, name: str | None = None) -> list[Root]:
        """The folders that the caller's client lets us see. Declined where it lends none."""
        return read_roots(self._answer(self._roots_question(name)))

    def _answer(self, question: Question) -> Any:
        self._go_on()
        answer = self._given(question)
        if answer is None:
            raise _Asked(question)
        return _accept(answer, question)

    def once(self, name: str, do: Callable[[], T]) -> T:
        """Do something once in this job, however often the function is run again, and however many ask at once.

        Who comes while it is being done, in whichever thread, waits for it; if it fails, the next one tries.
        """
        self._go_on()
        live = self._call.live
        with _alone(f"{self.job_id} {name}", self._go_on):
            if name not in live.kept:
                value = _plain(do(), f"ctx.once({name!r})")
                asyncio.run_coroutine_threadsafe(live.keep(name, value), self._loop).result(_PATIENCE)
                live.kept[name] = value
        return live.kept[name]  # type: ignore[no-any-return]

    def say(self, text: str) -> None:
        """Say something that belongs to the conversation. A run after an answer does not repeat it."""
        self._go_on()
        self._told += 1
        self._emit_once(Event("status", text=text, data=SAID))

    def _emit_once(self, event: Event) -> None:
        if self._told > self._sent_before:
            self._emit(event)

    def _emit(self, event: Event) -> None:
        self._go_on()

        def deliver() -> None:
            if not self.cancelled:
                self._call.emit(event)

        self._loop.call_soon_threadsafe(deliver)

    def _go_on(self) -> None:
        if self.cancelled:
            raise Canceled("The caller no longer waits for this.")


@dataclasses.dataclass(slots=True)
class _Turnstile:
    lock: threading.RLock = dataclasses.field(default_factory=threading.RLock)
    waiting: int = 0


_turnstiles: dict[str, _Turnstile] = {}
_guard = threading.Lock()


@contextmanager
def _alone(key: str, heed: Callable[[], None]) -> Iterator[None]:
    """One thread at a time for each key. It is of the process and not of a context: an attempt whose time was over may
    still be in its thread when the next one begins. ``heed`` is asked now and then whether to go on waiting."""
    with _guard:
        turnstile = _turnstiles.setdefault(key, _Turnstile())
        turnstile.waiting += 1
    try:
        while not turnstile.lock.acquire(timeout=_HEED):
            heed()
        try:
            yield
        finally:
            turnstile.lock.release()
    finally:
        with _guard:
            turnstile.waiting -= 1
            if not turnstile.waiting:
                _turnstiles.pop(key, None)


def _size(part: Part) -> int:
    if part.text is not None:
        return len(part.text)
    if part.raw is not None:
        return len(part.raw)
    return len(encode(part))


def _plain(value: Any, what: str, *, lossy: bool = False) -> Any:
    """The value in JSON's types, as it comes back from storage; pydantic models, dataclasses and structs included.

    TargetError for what JSON has no word for, NaN and infinity too, unless it may be ``lossy``: then those are null.
    """
    if value is None or isinstance(value, (str, int)) or (isinstance(value, float) and math.isfinite(value)):
        return value
    try:
        encoded = _encoder.encode(value)
        # It writes null for them; so they are looked for only where there is one.
        if (
            not lossy
            and b"null" in encoded
            and (number := _find_infinite(msgspec.to_builtins(value, enc_hook=_encode_foreign)))
        ):
            raise ValueError(f"it holds {number}")
        return msgspec.json.decode(encoded)
    except (TypeError, ValueError, RecursionError) as error:
        raise TargetError(f"{what} returned something that is not JSON: {error}") from None


def _find_infinite(value: Any) -> float | None:
    """A number of the value that JSON cannot write."""
    if isinstance(value, float):
        return None if math.isfinite(value) else value
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return next((found for each in inner if (found := _find_infinite(each)) is not None), None)


def _encode_foreign(value: Any) -> Any:
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        return dump(mode="json")
    raise TypeError(f"{type(value).__name__} has no JSON form")


_encoder = msgspec.json.Encoder(enc_hook=_encode_foreign)


_MAGIC = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"%PDF-", "application/pdf"),
)


def to_bytes_part(body: bytes) -> Part:
    """Some bytes, with the media type by which they begin: clients show images, and only keep other bytes."""
    if body[:4] == b"RIFF" and body[8:12] in (b"WEBP", b"WAVE"):
        kind = "image/webp" if body[8:12] == b"WEBP" else "audio/wav"
    else:
        kind = next((kind for magic, kind in _MAGIC if body.startswith(magic)), "application/octet-stream")
    return Part(raw=body, media_type=kind)


def parts_of(value: Any) -> tuple[Part, ...]:
    """What a function returned, as parts: text as text, bytes as bytes, parts as they are, all else as data."""
    if value is None:
        return ()
    if isinstance(value, str):
        return (Part(text=value),)
    if isinstance(value, Part):
        return (value,)
    if isinstance(value, bytes):
        return (to_bytes_part(value),)
    if isinstance(value, (list, tuple)) and value and all(isinstance(item, Part) for item in value):
        return tuple(value)
    return (Part(data=_plain(value, "the function")),)


def _outcome_of(value: Any) -> Outcome:
    if type(value) is str:
        return Done((Part(text=value),))
    if not isinstance(value, (Done, Failed, Needs, Working)):
        return Done(parts_of(value))
    try:
        encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise TargetError(f"the function returned an outcome that is not JSON: {error}") from None
    return value


@dataclasses.dataclass(frozen=True, slots=True)
class Function:
    """One function and how to run it."""

    fn: Callable[..., Any]
    signature: schema.FunctionSchema
    capability: Capability
    inline: bool
    returns: dict[str, Any] | None = None
    """The schema that a value it returns is held to, beside that of the capability."""

    async def run(self, call: Call, threads: Threads) -> Outcome:
        """Run it for a turn, in the way its form asks for."""
        signature = self.signature
        given = call.input if isinstance(call.input, dict) else {}
        if signature.converters:
            given = schema.arguments(signature, given)
        if not signature.is_async and not self.inline:
            return await self._run_in_thread(call, given, threads)
        context: Context | None = None
        try:
            if not signature.is_async:
                return self._outcome_of(self.fn(**given))
            if signature.context is not None:
                context = Context(call)
                given = {**given, signature.context: context}
            value = self.fn(**given)
            if type(value) is not CoroutineType and inspect.isasyncgen(value):
                return await _drain(value, context or Context(call))
            return self._outcome_of(await value)
        except Agent3Error as error:
            error.sent = True  # whatever it says of something further on, this function has run
            raise
        except _ENDING as error:
            # A coroutine that is closed gets a GeneratorExit too, but here, not out of the function that it awaits.
            if isinstance(error, GeneratorExit) and (error.__traceback__ is None or not error.__traceback__.tb_next):
                raise
            raise _failure_of(error, call.capability) from error

    def _outcome_of(self, value: Any) -> Outcome:
        outcome = _outcome_of(value)
        if self.returns is None or isinstance(value, _CONTENT) or not isinstance(outcome, Done):
            return outcome
        try:
            compiled(self.returns).check(value_of(outcome.parts), what="result", limits=RESULTS)
        except Agent3Error as error:
            name = self.capability.name
            raise MalformedResponse(
                f"{name} returned something that does not match its declared type: {error.message}"
            ) from None
        return outcome

    async def _run_in_thread(self, call: Call, given: dict[str, Any], threads: Threads) -> Outcome:
        context = SyncContext(call, asyncio.get_running_loop())
        if self.signature.context is not None:
            given = {**given, self.signature.context: context}
        bound = functools.partial(self.fn, **given)
        work = functools.partial(contextvars.copy_context().run, _sync_run, bound, context, self._outcome_of)
        try:
            return await threads.run(call.agent, work)
        finally:
            context.cancelled = True


def _sync_run(
    bound: Callable[[], Any], context: SyncContext, outcome_of: Callable[[Any], Outcome] = _outcome_of
) -> Outcome:
    """The whole run of a plain function or generator, in its thread."""
    try:
        value = bound()
        return _drain_sync(value, context) if inspect.isgenerator(value) else outcome_of(value)
    except _Asked as asked:
        return Needs((asked.question,), state=context.state)
    except Agent3Error as error:
        error.sent = True
        raise
    except _ENDING as error:
        raise _failure_of(error, context._call.capability) from error  # noqa: SLF001 - it is ours


def _failure_of(error: BaseException, capability: str) -> RuntimeError:
    words = f": {error}" if str(error) else ""
    return RuntimeError(f"{capability} raised {type(error).__name__}{words}")


def _drain_sync(generator: Generator[Any, Any, Any], context: SyncContext) -> Outcome:
    """Send out what a generator yields; a question it yields ends the run, and is answered when it is run again."""
    chunks: list[Part] = []
    answer: Any = None
    try:
        while True:
            value = generator.send(answer)
            answer = None
            if isinstance(value, Question):
                answer = context.ask(value.text, value.schema or str, url=value.url)
            else:
                parts = parts_of(value)
                context._hand_over(parts)  # noqa: SLF001 - it is ours
                chunks.extend(parts)
    except StopIteration as end:
        return Done(_join_texts(chunks) + parts_of(end.value))
    finally:
        generator.close()


async def _drain(generator: AsyncGenerator[Any, Any], context: Context) -> Outcome:
    chunks: list[Part] = []
    try:
        async for value in generator:
            parts = parts_of(value)
            context._hand_over(parts)  # noqa: SLF001 - it is ours
            chunks.extend(parts)
    finally:
        await generator.aclose()
    return Done(_join_texts(chunks))


def _join_texts(chunks: list[Part]) -> tuple[Part, ...]:
    """Chunks of text as one text; anything else as it came."""
    if len(chunks) > 1 and all(part.text is not None for part in chunks):
        return (Part(text="".join(part.text or "" for part in chunks)),)
    return tuple(chunks)


class LocalAgent:
    """An agent written in Python, in this process.

        pizza = LocalAgent("pizza", description="Takes orders for pizza")

        @pizza.capability
        async def order(ctx, message: str) -> dict:
            size = await ctx.ask("Which size?", Literal["small", "large"])
            return {"orderId": "123", "size": size}

    Serve it with ``agent3 serve module:pizza``; it can then be called from every protocol.
    """

    def __init__(
        self,
        name: str,
        *,
        agent_id: str | None = None,
        description: str = "",
        version: str = "1",
        tags: tuple[str, ...] = (),
    ):
        self.id = agent_id or "-".join(name.lower().split())
        if not self.id:
            raise SetupError("An agent needs a name, such as App('Pizza').")
        self.name = name
        self.description = description
        self.version = version
        self.tags = tags
        self.functions: dict[str, Function] = {}
        self._changes = 0
        self._shown: tuple[tuple[object, ...], Agent] | None = None

    @property
    def agent(self) -> Agent:
        """What the directory knows of it; the same object until something of it changes."""
        face = (self.id, self.name, self.description, self.version, self.tags, self._changes)
        if self._shown is None or self._shown[0] != face:
            agent = Agent(
                id=self.id,
                name=self.name,
                description=self.description,
                version=self.version,
                tags=self.tags,
                capabilities=tuple(function.capability for function in self.functions.values()),
                source="local",
            )
            self._shown = face, agent
        return self._shown[1]

    @overload
    def capability(self, fn: F) -> F: ...

    @overload
    def capability(
        self,
        fn: None = None,
        *,
        name: str | None = None,
        description: str | None = None,
        read_only: bool = False,
        idempotent: bool = False,
        consequential: bool = False,
        sensitive: bool = False,
        replay: bool = False,
        inline: bool = False,
        timeout: float | None = None,
        cache_ttl: float = 0.0,
        price: float | Price = 0.0,
        tags: tuple[str, ...] = (),
        examples: tuple[Any, ...] = (),
        phrases: tuple[str, ...] = (),
    ) -> Callable[[F], F]: ...

    def capability(self, fn: Callable[..., Any] | None = None, **options: Any) -> Any:
        """Offer a function: plain, async, generator or async generator. Its signature and docstring are the schema.

        ``sensitive`` keeps what it is given and answers out of records. ``replay`` lets a restart run it again from
        the top; ``inline`` runs a plain function that never blocks without a thread of its own.
        """
        if fn is None:
            return lambda given: self.capability(given, **options)
        self.add(fn, **options)
        return fn

    def add(
        self,
        fn: Callable[..., Any],
        *,
        name: str | None = None,
        description: str | None = None,
        input_schema: dict[str, Any] | None = None,
        output_schema: dict[str, Any] | None = None,
        read_only: bool = False,
        idempotent: bool = False,
        consequential: bool = False,
        sensitive: bool = False,
        replay: bool = False,
        inline: bool = False,
        price: float | Price = 0.0,
        returns: dict[str, Any] | None = None,
        **rest: Any,
    ) -> Capability:
        """Offer a function under a name, with schemas of its own where they are given. A price is dollars per call.
        What it returns is held to ``returns``, which callers are not shown.

        What it is given and what it answers reaches records as a hash only where it is ``sensitive``.
        """
        if sensitive:
            rest["meta"] = {**rest.get("meta", {}), SENSITIVE: True}
        signature = schema.from_function(fn)
        called = name or fn.__name__
        if called in self.functions:
            raise SetupError(
                f"{self.id}: capability {called!r} already exists. Give one of them another name, as in "
                f'@app.capability(name="…"), or remove the first with remove({called!r}).'
            )
        if inline and (signature.takes_context or signature.is_async or signature.streams):
            raise SetupError(f"{called}: inline is only for plain functions without ctx that never block.")
        capability = Capability(
            name=called,
            description=signature.description if description is None else description,
            input_schema=signature.input if input_schema is None else input_schema,
            output_schema=output_schema,
            hints=Hints(read_only, idempotent, consequential, replay),
            interactive=signature.takes_context and signature.is_async,
            routes=(Route("local", self.id, called),),
            price=price if isinstance(price, Price) else Price(call=price) if price else Price(),
            **(rest | {"meta": {"reads": "context", **rest.get("meta", {})}} if signature.takes_context else rest),
        )
        self.put(Function(fn, signature, capability, inline, returns))
        return capability

    def put(self, function: Function) -> None:
        """Offer a function that was made elsewhere, or changed."""
        self.functions[function.capability.name] = function
        self._changes += 1

    def remove(self, name: str) -> bool:
        """Take a capability back; whether it was there."""
        self._changes += 1
        return self.functions.pop(name, None) is not None


class LocalConnector:
    """Reaches the agents of this process. Plain functions of one agent get at most a quarter of its threads."""

    traits: ClassVar[Traits] = Traits(asks_for_values=True, in_process=True)

    def __init__(self, workers: int = 64):
        self.agents: dict[str, LocalAgent] = {}
        self._threads = Threads(workers, max(1, workers // 4))

    def add(self, agent: LocalAgent) -> None:
        """Make an agent reachable under its id."""
        self.agents[agent.id] = agent

    async def describe(self, address: str) -> Agent:
        """What the agent says of itself."""
        return self._agent(address).agent

    def call(self, call: Call) -> Coroutine[Any, Any, Outcome]:
        """Run its function."""
        route = call.route
        assert route is not None
        agent = self._agent(route.address)
        function = agent.functions.get(route.target or call.capability)
        if function is None:
            raise AgentNotFound(f"Agent {agent.id!r} no longer offers {call.capability!r} in this process.")
        if call.entry != "start":
            if call.entry == "cancel":
                return _cancel()
            hints = function.capability.hints
            replayable = hints.replay or hints.idempotent or hints.read_only
            if call.entry == "answer" and function.capability.interactive and not replayable:
                raise Interrupted(
                    f"{agent.id}/{call.capability} was interrupted while it waited for an answer, and must "
                    "not be replayed. Call it again."
                )
        return function.run(call, self._threads)

    async def aclose(self) -> None:
        """Let the threads go; a function that still runs in one is not waited for."""
        self._threads.close()

    def _agent(self, address: str) -> LocalAgent:
        agent = self.agents.get(address)
        if agent is None:
            raise AgentNotFound(f"Agent {address!r} is not in this process. Serve it with agent3 serve MODULE:AGENT.")
        return agent


async def _cancel() -> Outcome:
    return Failed("canceled", "The job was cancelled.")
