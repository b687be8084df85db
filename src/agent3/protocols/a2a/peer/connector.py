"""The connector for protocol ``a2a``: calls to remote A2A agents, in every generation and binding.

A call becomes a message, the task that the agent makes of it becomes an outcome (``translation``). A route's address is
that of the agent's card, or one from which the card is found; its target is the skill. A task that runs out of time
goes on at the agent: a repeated call finds it again instead of starting another one.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Coroutine, Mapping
from contextlib import aclosing, suppress
from datetime import UTC, datetime
from typing import Any, ClassVar, Final

from msgspec.structs import replace

from agent3.calls.jobs import META_ALIAS
from agent3.calls.outcomes import failed_by
from agent3.calls.step import RECOVERY
from agent3.definitions import AgentCard
from agent3.env import REAL, Env
from agent3.errors import (
    Agent3Error,
    Interrupted,
    JobNotFound,
    MalformedResponse,
    RequestError,
    SecurityError,
    StorageError,
    TargetError,
    TargetRefused,
    TooLarge,
    ValidationError,
)
from agent3.identity.oauth import Flow, origin_of
from agent3.identity.secrets import Secret
from agent3.model import Agent, Call, Failed, Outcome, Route, Traits, Working
from agent3.observe.logs import get as logger
from agent3.observe.metrics import METRICS, Metrics
from agent3.protocols.a2a.cards.extensions import DEADLINE, TRACEABILITY
from agent3.protocols.a2a.peer.bindings import RequestOptions
from agent3.protocols.a2a.peer.card_discovery import FoundCard, check_signature, keep_signed
from agent3.protocols.a2a.peer.peers import INTERRUPTED, SETTLED, Peer, Peers
from agent3.protocols.a2a.peer.push_following import PushFollower
from agent3.protocols.a2a.peer.push_receiver import PushReceiver
from agent3.protocols.a2a.peer.sign_in import find_flow
from agent3.protocols.a2a.peer.translation import (
    GIVEN,
    SIGNATURE,
    TaskFold,
    build_answer,
    build_message,
    describe_agent,
    given_message,
    given_metadata,
    message_id,
    source_of,
    to_outcome,
)
from agent3.protocols.a2a.wire.errors import PushNotSupported, TaskNotCancelable
from agent3.protocols.a2a.wire.types import (
    TERMINAL,
    CancelTask,
    GetCard,
    GetTask,
    Item,
    Message,
    Send,
    Sending,
    State,
    Subscribe,
    Task,
)
from agent3.security.outbound import Gate, Policy

__all__ = ["DEADLINE_HEADER", "GIVEN", "SIGNATURE", "A2AConnector"]

log = logger("a2a.client")

DEADLINE_HEADER: Final = "X-Agent3-Deadline"
_MOST_EVENTS: Final = 10_000
"""Events that one turn may emit. Artifacts are part of the outcome too, so nothing is lost beyond that."""
_MOST_ITEMS: Final = 100_000
_MOST_ARTIFACTS: Final = 1_000
"""Items that one stream may have, and artifacts that one task may. An agent that sends more is not believed to end."""
_JOINED_AT_ONCE: Final = 2_000
"""Pieces of artifacts that are joined on the event loop."""
_CANCEL_TIMEOUT: Final = 5.0
_CANCEL_DELAY: Final = 0.5
"""Seconds before a task is cancelled at its agent: a gateway that stops cancels its turns as well, and then the tasks
are to go on without it."""
_LATE_NAME: Final = 60.0
_MOST_UNNAMED: Final = 1_000
"""Seconds, and messages at once, for which we listen after our caller has left, until the agent names its task: one
without a name cannot be cancelled."""
_LONGEST_POLL: Final = 10.0
_POLL_SHARE: Final = 0.5
_PUSH_SHARE: Final = 0.8
"""Where an agent neither streams nor blocks, a turn polls its task for at most so many seconds and this share of the
call's time, or waits for its pushes for that share; then the job goes on in later turns."""
_SHORTEST_POLL: Final = 0.05
"""Seconds before a job is entered again whose next turn waits for a push by itself."""


_SENDER: Final = "agent3"
"""Who sends, in the metrics: the gateway, on behalf of whoever called it."""
_KEPT_TASK: Final = "a2a.task"
"""The name under which a job keeps the id of the task it started."""
_KEEP_AFTER: Final = 0.2
"""Seconds after which a task is worth a write."""
_MOST_LOST: Final = 10_000


class A2AConnector:
    """Calls A2A agents. One for each gateway; it belongs to one event loop.

    One request may take ``ceiling`` seconds, and a stream may be silent for ``idle``; the deadline of a call is told to
    the agent. Connections unused for ``unused`` seconds are closed, and opened again on demand. With ``push_receiver``,
    agents that push and do not stream are not polled: they tell when there is something to read.
    """

    traits: ClassVar[Traits] = Traits(cost_standards=((1, "agents_per_call"),))

    def __init__(
        self,
        policy: Policy | None = None,
        *,
        idle: float = 120.0,
        ceiling: float = 300.0,
        unused: float = 600.0,
        pauses: float = 0.2,
        env: Env = REAL,
        metrics: Metrics = METRICS,
    ):
        self._messages = metrics.a2a_messages_sent
        self._references_dropped = metrics.a2a_references_dropped
        self._cancelled = metrics.a2a_cancellations
        self._events_dropped = metrics.events_dropped
        self.peers = Peers(policy, ceiling=ceiling, unused=unused, pauses=pauses, env=env)
        self._idle = idle
        self._ceiling = ceiling
        self._env = env
        self.push_receiver: PushReceiver | None = None
        """Set by the door that receives the push notifications."""
        self._lost: OrderedDict[str, str] = OrderedDict()
        """Tasks that ran out of time, by the message that started them: they go on, and a repeated call finds them."""
        self._tasks: OrderedDict[tuple[str, str, str], str] = OrderedDict()
        """Tasks of agents by the caller, the agent and the caller's id of the job, under which it refers to them."""
        self._cancellations: set[asyncio.Task[None]] = set()
        self._unnamed = 0
        """Messages whose callers have left, and whose tasks the agents have not named yet."""

    async def describe(self, address: str, *, secret: Secret | None = None, route: Route | None = None) -> Agent:
        """The agent of the card at an address, every skill a capability. An error if there is no card.

        ``route`` is the pattern for the routes of its skills, such as one with a credential, or with ``registered`` in
        its ``meta`` where the operator chose the address. With a ``secret``, the card for that caller is used where the
        agent has one.
        """
        pattern = route or Route("a2a", address)
        peer = await self.peers.get(address, secret, pattern.meta, fresh=True)
        peer.check_reachable()
        found = peer.found
        signature = await check_signature(peer.gate, found)
        found, signature = keep_signed(found, signature)
        if secret is not None and peer.card.features.extended_agent_card:
            try:
                document = await peer.send(GetCard(), RequestOptions(timeout=self._idle))
                assert isinstance(document, dict)
                found = FoundCard(url=found.url, document=document, card=AgentCard.from_wire(document))
            except (RequestError, TargetError, SecurityError) as error:
                log.warning("%s has no extended card for us, so its public one is used: %s", peer.host, error)
        if pattern.address == address:  # else the route holds references to secrets, and keeps them
            if origin_of(peer.found.url) != origin_of(address):  # a redirect chose that host
                pattern = replace(pattern, meta={k: v for k, v in pattern.meta.items() if k != "registered"})
            pattern = replace(pattern, address=peer.found.url)
        return describe_agent(found.card, found.document, pattern, signature, self._ceiling)

    def describe_card(self, document: Mapping[str, Any], route: Route) -> Agent:
        """The agent of a card that was given by hand; the card is never fetched."""
        given = replace(route, meta={**route.meta, GIVEN: True})
        card = AgentCard.from_wire(document)
        return describe_agent(card, dict(document), given, {"status": "given"}, self._ceiling)

    async def find_sign_in(self, route: Route, document: Mapping[str, Any] | None = None) -> tuple[Flow | None, Gate]:
        """How a person signs in to an agent, by its card, and the gate to do it through; None if there is no way.

        The card is the given one, else the one at the address.
        """
        peer = await self.peers.get(route.address, None, route.meta, document=document)
        return await find_flow(peer.card, peer.gate), peer.gate

    async def call(self, call: Call) -> Outcome:
        """One turn with an agent. Cancelling it cancels the task there; running out of time does not."""
        route, live = call.route, call.live
        assert route is not None
        outcome: Outcome | None = None
        try:
            agent = live.agent
            # A card in the directory that came from this very address need not be fetched.
            document: Mapping[str, Any] | None = None
            if agent is not None and agent.card.get("skills") is not None and agent.source == source_of(route.address):
                document = agent.card
            peer = await self.peers.get(route.address, call.secret, route.meta, document=document)
            live.hides = (*live.hides, peer.credential.hidden)
            outcome = await self._turn(call, route, peer)
        except Agent3Error as error:
            outcome = failed_by(_to_caller_error(error, call))
        finally:
            if not isinstance(outcome, Working):
                self._end_wait(call)
        return outcome

    async def aclose(self) -> None:
        """Close all connections."""
        for cancellation in list(self._cancellations):
            cancellation.cancel()
        await asyncio.gather(*self._cancellations, return_exceptions=True)
        await self.peers.aclose()

    # One turn

    async def _turn(self, call: Call, route: Route, peer: Peer) -> Outcome:
        state: Mapping[str, Any] = call.state if isinstance(call.state, dict) else {}
        task_id = state.get("task")
        if call.entry == "cancel":
            return await self._cancel(call, peer, task_id) if task_id else Failed("canceled", "The job was cancelled.")
        if call.entry in ("answer", "attach") and not task_id:
            raise Interrupted(f"{call.agent}/{call.capability} was interrupted. Call it again.")
        if call.entry == "attach":
            return await self._attach(call, peer, str(task_id))
        running = await self._find_running(call, peer, task_id)
        if running is not None:
            return await self._follow(call, peer, Subscribe(id=running) if peer.streams else None, running)
        if call.entry == "answer":
            asked: Mapping[str, Any] = state.get("asked") or {}
            answers = [call.answers.get(name) for name in asked]
            declined = answers and all(answer is None or answer.action != "accept" for answer in answers)
            if declined and not any(asked.values()):
                # An agent that asks in words, without forms, has no way to be told no.
                await self._cancel(call, peer, state["task"])
                return Failed("declined", f"The question of {call.agent} was declined, and its task was cancelled.")
            return await self._send(call, peer, build_answer(call))
        message = self._refer(call, build_message(call, route.target or call.capability))
        known = (*peer.extensions, *message.extensions)
        if missing := [each.uri for each in peer.card.features.extensions if each.required and each.uri not in known]:
            error = TargetRefused(f"{peer.card.name} requires unsupported extensions: {', '.join(missing)}.")
            error.sent = False
            raise error
        return await self._send(call, peer, message)

    def _refer(self, call: Call, message: Message) -> Message:
        """The message with the agent's own ids of the tasks that it refers to.

        Any other id is left out: it would be a word of the caller's choice, and may name the task of somebody else.
        """
        ids = message.reference_task_ids
        if not ids:
            return message
        known = [self._tasks.get((call.principal.id, call.agent, one)) for one in ids]
        mine = tuple([one for one in known if one is not None])
        if left_out := len(ids) - len(mine):
            self._references_dropped.inc(amount=left_out)
        return replace(message, reference_task_ids=mine)

    async def _find_running(self, call: Call, peer: Peer, task_id: str | None) -> str | None:
        """The task that an earlier, interrupted turn has started already, so that nothing is sent again.

        After a restart it is unknown whether a message arrived whose task was not kept, unless the agent dedupes.
        """
        if call.live.door != RECOVERY:
            return self._lost.get(message_id(call)) if call.entry == "start" else None
        if call.entry == "answer":
            task = await self._read(call, peer, str(task_id))
            return None if task.status.state in INTERRUPTED else task_id
        kept = call.live.kept.get(_KEPT_TASK)
        if kept is None and not peer.dedupes:
            raise Interrupted(f"{call.agent}/{call.capability} was interrupted by a restart. Call it again.")
        return str(kept) if kept is not None else None

    async def _send(self, call: Call, peer: Peer, message: Message) -> Outcome:
        """Send a message, and follow the task that comes of it.

        The push configuration goes with the message only where that cannot cost the message: to an agent whose pushes
        arrive, or one that dedupes. Any other is given it when its task is known.
        """
        self._messages.inc((_SENDER, call.agent, "request"))
        if peer.streams:
            return await self._follow(call, peer, self._build_send(call, peer, message), message.task_id)
        push = self._push_follower(call, peer)
        config = push.wait.config if push is not None and (push.wait.trust.reliable or peer.dedupes) else None
        sending = Sending(return_immediately=push is not None, push=config)
        try:
            reply = await self._send_named(call, peer, self._build_send(call, peer, message, sending))
            if push is not None and config is not None:
                push.wait.registered = True
        except (RequestError, TargetRefused) as error:
            if push is None or config is None:
                raise
            # Sent again without the configuration only if the agent did not take it, or recognizes it. A 401 is
            # about who we are, which would be the same.
            harmless = isinstance(error, PushNotSupported) or not error.sent or peer.dedupes
            if error.data.get("http_status") == 401 or not harmless:
                push.wait.trust.doubt()  # if it was about the configuration, the next message goes without
                raise
            reply = await self._send_named(call, peer, self._build_send(call, peer, message))
            push.give_up(error)
        if isinstance(reply, Message) or reply.status.state in SETTLED:
            return self._finish(call, reply)
        left = self._time_left(call)
        polls = self._push_follower(call, peer) is None  # asked again: it may have been given up just now
        patience = min(_LONGEST_POLL, _POLL_SHARE * left) if polls else _PUSH_SHARE * left
        return await self._follow(call, peer, None, reply.id, self._env.monotonic() + patience)

    async def _send_named(self, call: Call, peer: Peer, request: Send) -> Task | Message:
        """The answer to a message. A caller that leaves before it takes the task with it, by whatever name it has."""
        sending = asyncio.get_running_loop().create_task(peer.send(request, self._options(call)))
        try:
            reply = await asyncio.shield(sending)
        except asyncio.CancelledError:
            message = request.message
            # In the first generation the client names the task, so it is known before any answer.
            named = peer.interface is not None and peer.interface.generation == "0.1"
            task_id = message.task_id or (message.message_id if named else None)
            if task_id is not None or not self._await_name(call, peer, sending):
                sending.cancel()
                self._leave(call, peer, task_id)
            raise
        assert isinstance(reply, (Task, Message))
        return reply

    async def _attach(self, call: Call, peer: Peer, task_id: str) -> Outcome:
        """A later turn of a job whose task goes on: waits for a push if one was waited for before, else only reads."""
        push = self._push_follower(call, peer)
        if push is None:
            self._end_wait(call)  # there is one if its agent has turned out not to push
            task = await self._read(call, peer, task_id)
        elif push.wait.task is None:
            task = await push.begin(task_id)
        else:
            task = await push.wait_for_news(task_id, self._time_left(call))
        return self._finish(call, task)

    async def _follow(
        self,
        call: Call,
        peer: Peer,
        request: Send | Subscribe | None,
        task_id: str | None,
        until: float = float("inf"),
    ) -> Outcome:
        """Follow a task until it settles or until a time: by the stream of ``request``, by push, or by polling."""
        source: AsyncGenerator[Item, None]
        if request is not None:
            source = peer.follow(request, self._options(call))
        elif (push := self._push_follower(call, peer)) is not None:
            source = push.follow(task_id or "", until)
        else:
            longest_pause = min(1.0, max(0.05, 0.2 * (until - self._env.monotonic())))
            source = peer.poll(task_id or "", self._options(call), longest_pause)
        fold, room, count = TaskFold(), _MOST_EVENTS, 0
        if task_id is None:
            source = self._listen_for_name(call, peer, source)
        try:
            async with _TaskKeeper(call) as keeper, aclosing(source) as items:
                async for item in items:
                    count += 1
                    if count > _MOST_ITEMS or fold.count > _MOST_ARTIFACTS:
                        raise _endless(call)
                    events = fold.add(item)
                    if len(events) > room:
                        self._events_dropped.inc(("too many events in one turn",), len(events) - room)
                        events = events[:room]
                    room -= len(events)
                    for event in events:
                        call.emit(event)
                    if fold.task is not None:
                        keeper.keep_soon(fold.task.id)
                    if self._env.monotonic() >= until:
                        break
        except asyncio.CancelledError:
            self._leave(call, peer, fold.task.id if fold.task is not None else task_id)
            raise
        except TooLarge:
            self._cancel_soon(peer, fold.task.id if fold.task is not None else task_id, "too large")
            raise
        except JobNotFound:
            self._lost.pop(message_id(call), None)
            raise
        except TargetError:
            if fold.task is not None:
                self._remember_lost(call, fold.task.id)
            raise
        result = fold.result() if count <= _JOINED_AT_ONCE else await asyncio.to_thread(fold.result)
        if result is None:
            raise MalformedResponse(f"{call.agent} ended its answer without any content.")
        if (
            isinstance(result, Task)
            and result.status.state is State.COMPLETED
            and not result.artifacts
            and not result.status.message
        ):
            # Some agents tell by their stream only that they are done, and show what came of it on request.
            with suppress(RequestError, TargetError):
                result = await self._read(call, peer, result.id)
        return self._finish(call, result)

    async def _read(self, call: Call, peer: Peer, task_id: str) -> Task:
        task = await peer.send(GetTask(id=task_id), self._options(call))
        assert isinstance(task, Task)
        return task

    async def _cancel(self, call: Call, peer: Peer, task_id: str) -> Outcome:
        try:
            await peer.send(CancelTask(id=task_id), self._options(call))
        except TaskNotCancelable:
            task = await self._read(call, peer, task_id)
            if task.status.state in TERMINAL:
                return to_outcome(task, call)
            return Failed("target_failed", f"{call.agent} does not allow its task to be cancelled.")
        return Failed("canceled", "The task was cancelled.")

    def _finish(self, call: Call, result: Task | Message) -> Outcome:
        self._lost.pop(message_id(call), None)
        outcome = to_outcome(result, call)
        if isinstance(result, Task):
            for name in filter(None, (call.job or call.id, call.meta.get(META_ALIAS))):
                self._tasks[call.principal.id, call.agent, name] = result.id
            while len(self._tasks) > _MOST_LOST:
                self._tasks.popitem(last=False)
        if self.push_receiver is None or not isinstance(outcome, Working):
            return outcome
        wait = self.push_receiver.find(self.push_receiver.key_for(message_id(call)))
        return outcome if wait is None else replace(outcome, poll=max(_SHORTEST_POLL, wait.before_next))

    def _leave(self, call: Call, peer: Peer, task_id: str | None) -> None:
        """A turn was cut off. If it ran out of time, its task goes on; if it was cancelled, so is its task."""
        if task_id is None:
            return
        if self._is_out_of_time(call):
            self._remember_lost(call, task_id)
        else:
            self._cancel_soon(peer, task_id, "caller left")

    def _is_out_of_time(self, call: Call) -> bool:
        expires = call.live.expires
        return expires is not None and self._env.monotonic() >= expires - 0.05

    def _cancel_soon(self, peer: Peer, task_id: str | None, reason: str) -> None:
        """Cancel a task at its agent without anybody waiting for it."""
        if task_id is not None:
            self._in_background(self._cancel_at_agent(peer, task_id, reason))

    async def _cancel_at_agent(self, peer: Peer, task_id: str, reason: str) -> None:
        try:
            async with asyncio.timeout(_CANCEL_TIMEOUT):
                await asyncio.sleep(_CANCEL_DELAY)
                await peer.send(CancelTask(id=task_id))
        except (Agent3Error, TimeoutError) as error:
            self._cancelled.inc((reason, "failed"))
            log.info("a task could not be cancelled at %s: %s", peer.host, error)
        else:
            self._cancelled.inc((reason, "cancelled"))

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._cancellations.add(task)
        task.add_done_callback(self._cancellations.discard)

    def _await_name(
        self, call: Call, peer: Peer, answering: asyncio.Task[Any], items: AsyncGenerator[Item, None] | None = None
    ) -> bool:
        """Listen for the name of a task whose caller has left, and then leave the task as well; False for one too many.

        ``answering`` is what will bring the name: the answer to the message, or the first of ``items``.
        """
        if self._unnamed >= _MOST_UNNAMED:
            self._cancelled.inc(("named late", "not awaited"))
            return False
        out_of_time = self._is_out_of_time(call)

        async def listen() -> None:
            try:
                async with asyncio.timeout(_LATE_NAME):
                    answer = await answering
            except (Agent3Error, TimeoutError) as error:
                self._cancelled.inc(("named late", "never named"))
                log.info(
                    "%s did not name the task of a call that was cancelled: %s",
                    peer.host,
                    str(error) or "no answer came",
                )
                return
            finally:
                self._unnamed -= 1
                answering.cancel()
                if items is not None:
                    await asyncio.wait([answering])
                    await items.aclose()
            if (
                answer is None
                or isinstance(answer, Message)
                or (isinstance(answer, Task) and answer.status.state in TERMINAL)
            ):
                self._cancelled.inc(("named late", "ended already"))
                return
            task_id = answer.id if isinstance(answer, Task) else answer.task_id
            if out_of_time:
                self._remember_lost(call, task_id)
            else:
                await self._cancel_at_agent(peer, task_id, "named late")

        self._unnamed += 1
        self._in_background(listen())
        return True

    async def _listen_for_name(
        self, call: Call, peer: Peer, source: AsyncGenerator[Item, None]
    ) -> AsyncGenerator[Item, None]:
        """The items of a stream. A caller that leaves before the first of them takes the task with it, too."""
        listens = False
        try:
            first = asyncio.get_running_loop().create_task(_first_of(source))
            try:
                item = await asyncio.shield(first)
            except asyncio.CancelledError:
                listens = self._await_name(call, peer, first, source)
                if not listens:
                    first.cancel()
                    await asyncio.wait([first])
                raise
            if item is not None:
                yield item
                async for item in source:
                    yield item
        finally:
            if not listens:
                await source.aclose()

    def _end_wait(self, call: Call) -> None:
        """The task of a call is no longer waited for by push."""
        receiver = self.push_receiver
        if receiver is not None and len(receiver):  # else no key needs to be derived, as for almost every call
            receiver.end(receiver.key_for(message_id(call)))

    def _remember_lost(self, call: Call, task_id: str) -> None:
        if call.entry == "start":
            self._lost[message_id(call)] = task_id
            while len(self._lost) > _MOST_LOST:
                self._lost.popitem(last=False)

    def _push_follower(self, call: Call, peer: Peer) -> PushFollower | None:
        """What follows the task of a call by push; None if its agent streams, or does not push to us."""
        if self.push_receiver is None or peer.streams or not peer.card.features.push_notifications:
            return None
        if not self.push_receiver.trust_of(peer.found.url).may_ask(self._env.monotonic()):
            return None
        return PushFollower(self.push_receiver, call, peer, lambda: self._options(call), self._env)

    # What goes with a request

    def _build_send(self, call: Call, peer: Peer, message: Message, sending: Sending | None = None) -> Send:
        capability = call.live.capability
        modes = capability.output_modes
        metadata = given_metadata(call)
        if (deadline := self._deadline(call)) is not None:
            metadata[DEADLINE] = {"deadline": deadline}
        if call.traceparent is not None and TRACEABILITY in peer.declared:
            metadata[TRACEABILITY] = {"traceparent": call.traceparent}
        return Send(
            message=message,
            configuration=replace(sending or Sending(), accepted_output_modes=modes),
            metadata=metadata or None,
            stream=peer.streams,
        )

    def _options(self, call: Call) -> RequestOptions:
        headers = {"traceparent": call.traceparent} if call.traceparent is not None else {}
        if (deadline := self._deadline(call)) is not None:
            headers[DEADLINE_HEADER] = deadline
        left = self._time_left(call)
        given = given_message(call)
        return RequestOptions(
            headers=headers,
            timeout=min(left + 1.0, self._ceiling),
            idle=max(self._idle, left),
            extensions=given.extensions if given is not None else (),
        )

    def _time_left(self, call: Call) -> float:
        """Seconds that the call still has."""
        expires = call.live.expires
        return self._ceiling if expires is None else max(0.05, expires - self._env.monotonic())

    def _deadline(self, call: Call) -> str | None:
        if call.live.expires is None:
            return None
        moment = datetime.fromtimestamp(self._env.now() + self._time_left(call), UTC)
        return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


async def _first_of(items: AsyncGenerator[Item, None]) -> Item | None:
    return await anext(items, None)


def _endless(call: Call) -> TooLarge:
    most = f"{_MOST_ITEMS:,} updates or {_MOST_ARTIFACTS:,} artifacts"
    return TooLarge(f"The answer of {call.agent} is too large: it has more than {most}. Its task was cancelled.")


class _TaskKeeper:
    """Keeps the id of a task with its job, so that another process can go on with it.

    An async context around the time that a task is followed. A task that ends within a moment is not written.
    """

    def __init__(self, call: Call):
        self._live = call.live.now()
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> _TaskKeeper:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._writing is not None:
            await asyncio.wait([self._writing])

    def keep_soon(self, task: str) -> None:
        """Write the id if the task is still running in a moment. Only the first call counts: ids do not change."""
        live = self._live
        if self._timer is not None or live.kept.get(_KEPT_TASK) == task:
            return
        loop = asyncio.get_running_loop()

        async def write() -> None:
            try:
                await live.keep(_KEPT_TASK, task)
            except StorageError as error:
                log.warning("a task id could not be stored and is lost when this process ends: %s", error)

        def begin() -> None:
            self._writing = loop.create_task(write())

        self._timer = loop.call_later(_KEEP_AFTER, begin)


def _to_caller_error(error: Agent3Error, call: Call) -> Agent3Error:
    """An error of the agent for a caller, who knows neither its tasks nor its methods."""
    answered = f"{call.agent} answered: {error.message}"
    if isinstance(error, JobNotFound):
        return Interrupted(f"{call.agent} no longer knows its task. Call it again.")
    if isinstance(error, RequestError) and not isinstance(error, (ValidationError, TooLarge)):
        translated: Agent3Error = TargetError(answered, data=error.data, retry_after=error.retry_after)
        translated.sent = error.sent
        return translated
    if isinstance(error, ValidationError) and error.data.keys() & {"rpc_code", "http_status"}:
        error.message = answered
    return error
