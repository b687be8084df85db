"""The task engine: what A2A asks for, done by the durable layer. A task is a job under the protocol's name.

Every door of every generation ends here, in the shapes of 1.0. Tasks, their events and their subscribers' positions
live in the log of the jobs, so any process may answer for any task. What is refused before any work began is an error;
everything after that is reported by the task.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar

import msgspec
from msgspec import Struct, UnsetType
from msgspec.structs import replace

from agent3.calls.jobs import META_ALIAS, META_KIND, Job, JobFilter, Line, may_repeat
from agent3.calls.jobs.rows import KeyReused
from agent3.calls.outcomes import error_of, is_refusal
from agent3.definitions import AgentCard
from agent3.errors import CallTimeout, Conflict, JobNotFound, TurnTaken, ValidationError
from agent3.gateway import Caller as GatewayCaller
from agent3.gateway import Gateway
from agent3.gateway.input_modes import is_among, read_declared
from agent3.gateway.which import is_undecided
from agent3.model import Agent, Call, Capability, Done, Event, Failed, Outcome, Part, Principal, Usage
from agent3.protocols.a2a.door.in_flight import Flights, key_of
from agent3.protocols.a2a.door.pagination import TASK, check_page_size, encode_token, jobs_query
from agent3.protocols.a2a.door.projection import (
    META,
    Link,
    Projection,
    answer_kind,
    answers_to,
    first_message,
    is_message,
    is_same_content,
    parts_in,
    project_finished,
    read_message,
    split_number,
)
from agent3.protocols.a2a.door.stored_parts import Fetch, fill_parts, has_stored_parts
from agent3.protocols.a2a.door.streams import Follower, after_event, fold, lines_until
from agent3.protocols.a2a.door.volatile_tasks import Shelf
from agent3.protocols.a2a.wire.errors import (
    ContentTypeNotSupported,
    InvalidTaskState,
    PushNotSupported,
    TaskNotCancelable,
)
from agent3.protocols.a2a.wire.types import (
    CancelTask,
    CreatePush,
    DeletePush,
    Generation,
    GetCard,
    GetPush,
    GetTask,
    Item,
    ListPush,
    ListTasks,
    Message,
    Push,
    PushPage,
    Reply,
    Request,
    Search,
    Send,
    Subscribe,
    Task,
    TaskPage,
)

if TYPE_CHECKING:  # it brings the HTTP client along
    from agent3.protocols.a2a.door.push import Pushes

__all__ = ["Aim", "Answered", "Caller", "Engine", "Host"]

Answered: TypeAlias = Task | Message | TaskPage | Push | PushPage | AgentCard | None
Items: TypeAlias = AsyncGenerator[tuple[int, Item], None]

I = TypeVar("I", bound=Item)  # noqa: E741 - an item
_PATIENCE: Final = 600.0
"""Seconds that a send waits for a task before it answers how that stands."""
_LONGEST: Final = 86_400.0
"""Seconds that a deadline may give a call at most."""
_A_WHILE: Final = 30.0
_LOOKED: Final = 500
"""Tasks that a search reads, the latest first."""
_AT_ONCE: Final = 2_000
"""Lines of the logs of several tasks that are read in one go."""
_QUERY: Final = 1_000
"""Characters of what is searched for."""
_ID: Final = 500
"""Characters of an id that a client chooses: they are remembered, and are keys in the tables."""
_sorted: Final = msgspec.json.Encoder(order="deterministic")
_USUAL_MODES: Final = Capability(name="").input_modes


class Aim(NamedTuple):
    """What a message is for."""

    agent: Agent
    capability: Capability
    input: Any
    parts: tuple[Part, ...]


class Host(Protocol):
    """What an endpoint serves."""

    async def aim(self, principal: Principal, message: Message, tenant: str | None) -> Aim:
        """The capability that a message means. ValidationError names what there is; unknown ones are NotFound."""

    async def card(
        self, principal: Principal | None, tenant: str | None = None, extended: bool = False
    ) -> AgentCard | None:
        """The card that this caller may see."""


class Caller(Struct, frozen=True, kw_only=True):
    """Who asks, in which generation; ``until`` is the time by the clock until which the answer is wanted."""

    principal: Principal
    generation: Generation = "1.0"
    traceparent: str | None = None
    extensions: frozenset[str] = frozenset()
    door: str = "a2a"
    until: float | None = None


class Engine:
    """The tasks of one endpoint.

    Safe to use from many tasks of one loop. Cancelling a caller that waits for an answer only stops the waiting: a
    task that was begun goes on. (Where nothing outlives the process, and of what may be repeated, this holds from
    the first moment that the task waits for anything, so a door does not cancel a send.) ``agent`` bounds it to the
    tasks of one agent. Of a large part that lies in the store, ``link`` gives the address; without it ``fetch``
    reads it, and it is sent. Not ``idempotent``, it takes every message for a new one, whatever its id: for clients
    that use an id twice.
    """

    def __init__(
        self,
        gateway: Gateway,
        host: Host,
        *,
        push: Pushes | None = None,
        door: str = "a2a",
        agent: str | None = None,
        link: Link | None = None,
        fetch: Fetch | None = None,
        patience: float = _PATIENCE,
        idempotent: bool = True,
    ):
        self._gateway = gateway
        self._jobs = jobs = gateway.core.jobs
        self._host = host
        self._messages = gateway.core.metrics.a2a_messages_sent
        self._env = gateway.core.env
        self._push = push
        self._door = door
        self._agent = agent
        self._link = link
        self._fetch = fetch if link is None else None
        self._patience = patience
        self._idempotent = idempotent
        self._follower = Follower(jobs, link)
        self._flights = Flights.of(jobs)
        self._shelf = Shelf.of(jobs) if jobs.is_volatile else None
        self._running: set[asyncio.Task[Outcome]] = set()
        self._operations: dict[type[Request], Callable[[Caller, Any], Awaitable[Answered]]] = {
            GetTask: self.get,
            ListTasks: self.list,
            Search: self.search,
            CancelTask: self.cancel,
            CreatePush: self.create_push,
            GetPush: self.get_push,
            ListPush: self.list_push,
            DeletePush: self.delete_push,
        }

    # What can be asked

    async def send(self, caller: Caller, request: Send) -> Reply:
        """Send a message; its task when that has ended or asks, or at once if it is not to be waited for.

        The same message again, with its id, parts and context, gets the same answer. With others it is a new one.
        """
        if request.message.task_id or request.task_alias is not None:
            job = await self._find_continued(caller, request)
            if job is not None:
                await self._say(caller, request, job)
                job = await self._find(caller, job.id)
                if not request.configuration.return_immediately:
                    job = await self._wait(caller, job)
                return await self._fill(await self._reply(request, job), job)
        call, aim = await self._prepare(caller, request)
        try:
            job = await self._find_on_shelf(call) or await self._start(caller, request, call, aim)
        except KeyReused:
            raise _reused_id(request) from None
        quick = project_finished(job, self._link, request.configuration.history_length)
        if quick is not None and (self._fetch is None or not has_stored_parts(quick)):
            return quick
        return await self._fill(await self._reply(request, job), job)

    async def stream(self, caller: Caller, request: Send, after: int | None = None) -> Items:
        """Send a message, and stream everything that follows, each item with its number. The task comes first.

        With ``after``, a repeated message gives what came after that item; everything if its task never had that item.
        """
        if (job := await self._find_continued(caller, request)) is not None:
            await self._say(caller, request, job)
            opening = self._follower.follow(await self._find(caller, job.id), after=after_event(job.seq))
        else:
            call, aim = await self._prepare(caller, request)
            try:
                job = await self._find_on_shelf(call) or await self._begin(caller, request, call, aim)
            except KeyReused:
                raise _reused_id(request) from None
            opening = self._follower.fresh(job, waits=answer_kind(aim.capability) != "task", log=self._log(job))
        last = -1 if after is None or split_number(after)[0] > job.seq else after
        async with aclosing(opening):
            async for number, item in opening:
                if number > last:
                    yield number, await self._fill(item, job)

    async def get(self, caller: Caller, request: GetTask) -> Task:
        """A task as it stands; JobNotFound for one that is not this caller's."""
        job = await self._find(caller, request.id)
        return await self._fill((await self._project(job)).task(request.history_length), job)

    async def list(self, caller: Caller, request: ListTasks) -> TaskPage:
        """The caller's tasks, the latest changed first."""
        size = check_page_size(request.page_size)
        chosen = jobs_query(request, self._agent)
        if chosen is None:
            return TaskPage(tasks=(), next_page_token="", page_size=size, total_size=0)
        jobs, total = await self._list_jobs(caller, chosen, size + 1)
        more, jobs = len(jobs) > size, jobs[:size]
        length, artifacts = request.history_length, request.include_artifacts
        tasks = [each.task(length, artifacts=artifacts) async for each in self._project_each(jobs)]
        return TaskPage(
            tasks=tuple([await self._fill(task, job) for task, job in zip(tasks, jobs, strict=True)]),
            next_page_token=encode_token(jobs[-1].updated, jobs[-1].id) if more else "",
            page_size=size,
            total_size=total,
        )

    async def search(self, caller: Caller, request: Search) -> TaskPage:
        """The caller's latest tasks that contain all these words."""
        if len(request.query) > _QUERY:
            raise ValidationError(f"query must have at most {_QUERY} characters, got {len(request.query)}.")
        size = check_page_size(request.page_size)
        chosen = jobs_query(ListTasks(), self._agent)
        assert chosen is not None
        jobs, _ = await self._list_jobs(caller, chosen, _LOOKED)
        words = request.query.lower().split()
        found = []
        async for projection in self._project_each(jobs):
            task = projection.task()
            text = _search_text(task)
            if all(word in text for word in words):
                found.append(task)
        return TaskPage(tasks=tuple(found[:size]), next_page_token="", page_size=size, total_size=len(found))

    async def cancel(self, caller: Caller, request: CancelTask) -> Task:
        """Stop a task, also one that waits; TaskNotCancelable for one that has ended."""
        job = await self._find(caller, request.id)
        if job.ended:
            raise _not_cancelable(job)
        try:
            await self._gateway.cancel(self._who(caller), job.id)
        except TurnTaken as error:
            raise TaskNotCancelable(error.message) from error
        job = await self._find(caller, job.id)
        if job.status != "canceled":
            raise _not_cancelable(job)
        return (await self._project(job)).task()

    async def subscribe(self, caller: Caller, request: Subscribe) -> Items:
        """Follow a task: as it stands, and everything from then on. With ``after``, everything since that item.

        A task that has ended can only be followed with ``after``, to read what was missed.
        """
        job = await self._find(caller, request.id)
        if job.ended and request.after is None:
            raise InvalidTaskState(
                f"Task {request.id!r} is {job.status} and sends no more updates. Read it with GetTask."
            )
        through = caller.generation == "1.0"
        items = self._follower.follow(job, after=request.after, through=through, log=self._log(job))
        async with aclosing(items):
            async for number, item in items:
                yield number, await self._fill(item, job)

    async def generation(self, caller: Caller | Principal, task_id: str) -> Generation | None:
        """The generation of the client that began a task; None for a task that is not this caller's."""
        principal = caller if isinstance(caller, Principal) else caller.principal
        job = await self._read(principal.id, task_id)
        if job is None:
            return None
        spoken: Generation | None = job.call.meta.get(META, {}).get("generation")
        return spoken

    async def usage(self, caller: Caller, task_id: str) -> Usage | None:
        """What a task of this caller consumed; None while that is unknown."""
        outcome = (await self._find(caller, task_id)).outcome
        return outcome.usage if isinstance(outcome, (Done, Failed)) else None

    async def create_push(self, caller: Caller, request: CreatePush) -> Push:
        """Add a push configuration to a task."""
        pushes = self._pushes()
        job = await self._find(caller, request.task_id)
        snapshot = (await self._project(job)).task()
        return await pushes.create(job.owner, job.id, request.config, caller.generation, snapshot)

    async def get_push(self, caller: Caller, request: GetPush) -> Push:
        """One configuration, without its secrets."""
        pushes = self._pushes()
        job = await self._find(caller, request.task_id)
        return await pushes.get(job.id, request.id, request.task_id)

    async def list_push(self, caller: Caller, request: ListPush) -> PushPage:
        """All configurations of a task, without their secrets."""
        pushes = self._pushes()
        job = await self._find(caller, request.task_id)
        return await pushes.list(job.id, request.task_id, request.page_size, request.page_token)

    async def delete_push(self, caller: Caller, request: DeletePush) -> None:
        """Remove a push configuration; one that does not exist is no error."""
        pushes = self._pushes()
        job = await self._find(caller, request.task_id)
        await pushes.delete(job.id, request.id)

    async def handle(self, caller: Caller, request: Request) -> Answered | AsyncIterator[tuple[int, Item]]:
        """Answer any request; a stream is returned before it begins."""
        if isinstance(request, Send):
            return self.stream(caller, request) if request.stream else await self.send(caller, request)
        if isinstance(request, Subscribe):
            return self.subscribe(caller, request)
        if isinstance(request, GetCard):
            return await self._host.card(caller.principal, request.tenant, extended=True)
        answered: Answered = await self._operations[type(request)](caller, request)
        return answered

    # Inside

    def _pushes(self) -> Pushes:
        if self._push is None:
            raise PushNotSupported(
                "This agent sends no push notifications. Use streaming, or read the task from time to time."
            )
        return self._push

    def _who(self, caller: Caller) -> GatewayCaller:
        return GatewayCaller(caller.principal, self._door)

    async def _find(self, caller: Caller, task: str) -> Job:
        job = await self._read(caller.principal.id, task)
        if job is None or (self._agent is not None and job.call.agent != self._agent):
            raise JobNotFound(f"Task {task[:100]!r} was not found. It is not yours, or it has expired.")
        return job

    async def _read(self, owner: str, task: str) -> Job | None:
        if self._shelf is not None and (kept := self._shelf.get(owner, task)) is not None:
            return kept.job
        try:
            return await self._jobs.get(owner, task)
        except JobNotFound:
            return None

    async def _find_continued(self, caller: Caller, request: Send) -> Job | None:
        """The task that a message goes on with; None for one that begins a new task."""
        if request.message.task_id:
            return await self._find(caller, request.message.task_id)
        if request.task_alias is None:
            return None
        if self._shelf is not None and not self._may_be_here(caller, request.task_alias):
            return None
        try:
            return await self._find(caller, request.task_alias)
        except JobNotFound:
            return None

    def _may_be_here(self, caller: Caller, alias: str) -> bool:
        """Whether there may be a task of this alias, where no other process can have begun one."""
        owner = caller.principal.id
        assert self._shelf is not None
        return self._shelf.get(owner, alias) is not None or self._flights.may_have_alias(owner, alias)

    # The first message of a task

    async def _prepare(self, caller: Caller, request: Send) -> tuple[Call, Aim]:
        """The call of a message that begins a task, and what it is for."""
        message = request.message
        if len(message.message_id) > _ID:
            raise _too_long("messageId", message.message_id)
        if message.context_id is not None and len(message.context_id) > _ID:
            raise _too_long("contextId", message.context_id)
        if request.task_alias is not None and len(request.task_alias) > _ID:
            raise _too_long("id", request.task_alias)
        aim = await self._host.aim(caller.principal, message, request.tenant)
        self._messages.inc((caller.principal.id, aim.agent.id, "request"))
        _check_modes(request, aim.capability)
        timeout: float | None = None
        if caller.until is not None:
            timeout = min(caller.until - self._env.now(), _LONGEST)
            if timeout <= 0:
                raise CallTimeout("The deadline of this message has passed. Send it with a later deadline.")
        kind = answer_kind(aim.capability)
        own: dict[str, Any] = {
            # Parts that are in the call already are not stored twice.
            "message": replace(message, parts=()) if is_same_content(aim.parts, message.parts) else message,
            "generation": caller.generation,
        }
        if caller.extensions:
            own["extensions"] = sorted(caller.extensions)
        if request.metadata:
            own["metadata"] = request.metadata
        if kind == "message":
            own["answer"] = kind
        meta = {META: own, META_KIND: TASK if kind != "message" else kind}
        if request.task_alias is not None:
            meta[META_ALIAS] = request.task_alias
        # Two messages with the same identity are the same message.
        identity = request.task_alias or (_identify(message) if self._idempotent else self._env.id())
        call = Call(
            id=self._env.id(),
            principal=caller.principal,
            agent=aim.agent.id,
            capability=aim.capability.name,
            input=aim.input,
            parts=aim.parts,
            context=message.context_id or self._env.id(),
            routes=aim.capability.routes,
            key=f"a2a:{aim.agent.id}:{identity}",
            traceparent=caller.traceparent,
            timeout=timeout,
            meta=meta,
        )
        return call, aim

    async def _start(self, caller: Caller, request: Send, call: Call, aim: Aim) -> Job:
        """Begin a task, and wait until it has ended or asks, unless that is not to be waited for."""
        how = request.configuration
        if how.return_immediately and answer_kind(aim.capability) != "message":
            return await self._begin(caller, request, call, aim)
        # What may not be done twice is kept before it begins; anything else may be kept only when it has ended.
        repeatable = self._shelf is not None or may_repeat(aim.capability)
        may_have_alias = request.task_alias is None or self._shelf is not None
        if repeatable and how.push is None and may_have_alias and not self._flights.in_table(key_of(call)):
            return await self._run_quickly(caller, call, aim)
        await self._expect(caller, request, call)

        def forget(task: asyncio.Task[Outcome]) -> None:
            self._running.discard(task)
            if not task.cancelled():
                task.exception()  # mark it as seen: a caller that still waits has it

        # A caller that stops waiting does not stop the turn.
        running = self._gateway.start(self._who(caller), call, (aim.agent, aim.capability))
        task: asyncio.Task[Outcome] = asyncio.ensure_future(running)
        self._running.add(task)
        task.add_done_callback(forget)
        return await self._settle(caller, call, await asyncio.shield(task))

    async def _find_on_shelf(self, call: Call) -> Job | None:
        """The task of a message that was answered without a trace in the table of jobs."""
        if (flying := self._flights.flying(key_of(call))) is not None:
            await flying
        return self._shelf.known(call) if self._shelf is not None else None

    def _log(self, job: Job) -> Sequence[Line] | None:
        """The whole log of a task that is not in the table of jobs."""
        kept = self._shelf.get(job.owner, job.id) if self._shelf is not None else None
        return kept.log() if kept is not None else None

    async def _run_quickly(self, caller: Caller, call: Call, aim: Aim) -> Job:
        """Run a task to its end or question. One that ends without waiting is kept when it has ended, in one go.

        It is a job as soon as it waits for anything, so that others can see and stop it.
        """
        events: list[Event] = []
        with self._flights.flight(key_of(call)) as flight:

            def opened(job: Job | None = None) -> None:
                flight.opened()
                self._remember_alias(call)

            who = GatewayCaller(caller.principal, self._door, events.append)
            outcome = await self._gateway.start(who, call, (aim.agent, aim.capability), opened=opened)
            if isinstance(outcome, (Done, Failed)) and not flight.is_job and not is_refusal(outcome):
                if self._shelf is not None:
                    return self._shelf.put(call, outcome, events, self._env.now())
                opened()
                return await self._wait(caller, await self._jobs.ended.add(call, outcome, events))
            opened()
        return await self._settle(caller, call, outcome)

    async def _begin(self, caller: Caller, request: Send, call: Call, aim: Aim) -> Job:
        """Begin a task and let it go on."""
        who, target = self._who(caller), (aim.agent, aim.capability)
        fault = await self._gateway.check(who, call, target)
        if isinstance(fault, Failed):
            raise error_of(fault)
        await self._expect(caller, request, call)
        outcome = await self._gateway.start(who, call, target, detach=True)
        return await self._settle(caller, call, outcome, wait=False)

    async def _settle(self, caller: Caller, call: Call, outcome: Outcome, *, wait: bool = True) -> Job:
        """The job that a call became, when it has ended or asks; the error of one that was refused."""
        if isinstance(outcome, Failed) and is_refusal(outcome):
            if self._push is not None:
                await self._push.forget(call.id)
            raise error_of(outcome)
        try:
            job = await self._jobs.get(caller.principal.id, call.id)
        except JobNotFound:
            known = await self._jobs.find_by_key(call)
            if known is None:
                raise
            job = known
        if job.id != call.id and self._push is not None:  # the message came twice at once
            await self._push.forget(call.id)
        return await self._wait(caller, job) if wait else job

    async def _wait(self, caller: Caller, job: Job) -> Job:
        until = self._env.monotonic() + self._patience
        while job.status == "working" and (left := until - self._env.monotonic()) > 0:
            job = await self._jobs.wait(caller.principal.id, job.id, min(left, _A_WHILE))
        return job

    async def _expect(self, caller: Caller, request: Send, call: Call) -> None:
        """Store a push configuration before there is anything to push. A repeated message has stored it before."""
        self._flights.remember(key_of(call))
        self._remember_alias(call)
        if (push := request.configuration.push) is not None and await self._jobs.find_by_key(call) is None:
            job = Job(
                id=call.id, owner=caller.principal.id, status="working", turn=1, call=call, created=self._env.now()
            )
            snapshot = Projection(job, self._link).task()
            await self._pushes().create(job.owner, job.id, push, caller.generation, snapshot)

    def _remember_alias(self, call: Call) -> None:
        if (alias := call.meta.get(META_ALIAS)) is not None:
            self._flights.remember_alias(call.principal.id, alias)

    # Further messages of a task

    async def _say(self, caller: Caller, request: Send, job: Job) -> None:
        """Give a message to a task that waits for one. A message that it has received already is ignored."""
        message = request.message
        known = job.call.context or job.id
        if caller.generation == "1.0" and message.context_id and message.context_id != known:  # 3.4.3; before, no rule
            raise ValidationError(
                f"Task {job.id} belongs to context {job.call.context!r}, not to {message.context_id[:100]!r}."
            )
        repeatable = self._idempotent and (request.task_alias is None or job.turn == 1 or job.status != "needs")
        if repeatable and await self._has_message(job, message):
            return  # 0.1 has no message ids: there the same words may well answer another question
        self._messages.inc((caller.principal.id, job.call.agent, "request"))
        if job.status != "needs":
            raise InvalidTaskState(
                f"Task {message.task_id or request.task_alias} is {job.status} and accepts no message. Start "
                "a new one in the same context."
            )
        if (push := request.configuration.push) is not None:
            await self.create_push(caller, CreatePush(task_id=job.id, config=push))
        try:
            await self._gateway.answer(
                self._who(caller),
                job.id,
                answers_to(job.questions, message),
                job.turn,
                reply=await self._reply_parts(job, message),
                said=(Event("message", parts=parts_in(message.parts), data=replace(message, parts=())),),
                detach=True,
            )
        except TurnTaken:
            # The same message may have come twice at once; then the one that came first is the answer.
            if not repeatable or not await self._has_message(await self._find(caller, job.id), message):
                raise

    async def _reply_parts(self, job: Job, message: Message) -> tuple[Part, ...]:
        """The message as its function sees it; nothing for a function that waits in a frame for the answers alone."""
        if not job.call.capability:
            return ()  # the message only says which one is meant
        parts = parts_in(message.parts)
        agent, capability = job.call.agent, job.call.capability
        target = await self._gateway.core.runner.target(agent, capability)
        if target[1].interactive and not any(part.raw is not None or part.url is not None for part in parts):
            return ()
        return tuple(replace(part, meta={**part.meta, "messageId": message.message_id}) for part in parts)

    async def _has_message(self, job: Job, message: Message) -> bool:
        """Whether a task has received this message; another one under its id is a new one."""
        lines = await lines_until(self._jobs, job.id, job.seq) if job.turn > 1 else []
        later = [read_message(line.event) for line in lines if line.event.kind == "message"]
        received = [first_message(job.call), *(each for each in later if each is not None)]
        return any(
            each.message_id == message.message_id and each.parts == message.parts
            for each in received
            if message.message_id
        )

    # How it stands

    async def _list_jobs(self, caller: Caller, chosen: JobFilter, limit: int) -> tuple[Sequence[Job], int]:
        jobs, total = await self._jobs.list_matching(caller.principal.id, chosen, limit)
        if self._shelf is None:
            return jobs, total
        more, others = self._shelf.listed(caller.principal.id, chosen, limit)
        both = sorted([*jobs, *more], key=lambda job: (job.updated, job.id), reverse=True)
        return both[:limit], total + others

    async def _reply(self, request: Send, job: Job) -> Reply:
        seen = await self._project(job)
        if isinstance(job.outcome, Done) and job.turn == 1 and is_message(job.call, job.outcome):
            return seen.answer(job.outcome, job.seq)
        return seen.task(request.configuration.history_length)

    async def _fill(self, item: I, job: Job) -> I:
        return item if self._fetch is None else await fill_parts(item, job.owner, self._fetch)

    async def _project(self, job: Job) -> Projection:
        if job.seq <= 1:
            return fold(job, (), self._link)
        return (await self._project_all([job]))[0]

    async def _project_each(self, jobs: Sequence[Job]) -> AsyncIterator[Projection]:
        """The tasks of many jobs, in groups of so many lines: their logs may be long, and others wait for the loop."""
        group: list[Job] = []
        lines = 0
        for job in jobs:
            if group and lines + job.seq > _AT_ONCE:
                for projection in await self._project_all(group):
                    yield projection
                group, lines = [], 0
            group.append(job)
            lines += job.seq
        for projection in await self._project_all(group):
            yield projection

    async def _project_all(self, jobs: Sequence[Job]) -> Sequence[Projection]:
        """The tasks of some jobs. Of one that said nothing but its end, the row tells all."""
        lines: dict[str, Sequence[Line]] = {}
        talkative = [job for job in jobs if job.seq > 1]
        if self._shelf is not None:
            kept = [task for job in talkative if (task := self._shelf.get(job.owner, job.id)) is not None]
            lines |= {task.job.id: task.lines for task in kept}
            talkative = [job for job in talkative if job.id not in lines]
        if talkative:
            lines |= await self._jobs.log.read_all([job.id for job in talkative])
        return [fold(job, lines.get(job.id, []), self._link) for job in jobs]


def _identify(message: Message) -> str:
    """What makes a message that begins a task the same one when it comes again.

    An id alone does not: people who write requests by hand, and the official kit, use one id for all they say, and mean
    each. A client that repeats a message whose answer was lost sends the same content.
    """
    content = _sorted.encode((message.context_id, message.parts))
    return f"{message.message_id}:{hashlib.sha256(content).hexdigest()[:32]}"


def _reused_id(request: Send) -> Conflict:
    """The error for an id that is used again with the same words for something else."""
    if request.task_alias is not None:
        return Conflict(f"Task {request.task_alias} was started with another message. Give the new one its own id.")
    return Conflict(
        f"Message {request.message.message_id} was already sent with different content. Give it a new messageId."
    )


def _not_cancelable(job: Job) -> TaskNotCancelable:
    return TaskNotCancelable(f"Task {job.id} is {job.status} and can no longer be cancelled.")


def _search_text(task: Task) -> str:
    """All words of a task, in lower case."""
    parts = [part for message in task.history for part in message.parts]
    if task.status.message is not None:
        parts += task.status.message.parts
    parts += [part for artifact in task.artifacts for part in artifact.parts]
    words = [artifact.name for artifact in task.artifacts if artifact.name]
    for part in parts:
        if isinstance(part.data, UnsetType):
            words.append(part.text or part.filename or "")
        else:
            words.append(msgspec.json.encode(part.data).decode())
    return "\n".join(words).lower()


def _too_long(name: str, value: str) -> ValidationError:
    text = f"must have at most {_ID} characters, got {len(value)}"
    return ValidationError(f"{name} {text}.", errors=[{"path": name, "message": text}])


def _check_modes(request: Send, capability: Capability) -> None:
    """Check the media types of a message against those of a capability; one that declares none takes any."""
    if is_undecided(capability):
        return
    if capability.input_modes != _USUAL_MODES:
        taken = read_declared(capability.input_modes)
        for part in request.message.parts:
            if part.media_type and not _among(part.media_type, taken):
                raise ContentTypeNotSupported(
                    f"{capability.name} accepts {', '.join(taken)}, but not {part.media_type[:100]}."
                )
    accepted = request.configuration.accepted_output_modes
    if accepted and capability.output_modes != _USUAL_MODES:
        given, wanted = read_declared(capability.output_modes), read_declared(accepted)
        if not any(_among(mode, wanted) for mode in given) and not any(_among(mode, given) for mode in wanted):
            raise ContentTypeNotSupported(
                f"{capability.name} returns {', '.join(given)}, but you accept {', '.join(wanted)[:200]}."
            )


def _among(kind: str, modes: Sequence[str]) -> bool:
    plain = kind.partition(";")[0].strip().lower()
    return any(is_among(plain, mode) for mode in modes)
