"""The connector of protocol ``a2a``: any A2A agent becomes an Agent, its skills capabilities, a call a conversation.

Speaks every generation and binding (peers.py, lines.py); turns calls into messages and tasks into outcomes
(translating.py). A route's address is that of the agent's card, or one from which the card is found; its target is the
skill. What runs out of time goes on at the agent: a repetition of the call finds its task again and does not begin it
anew.
"""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import aclosing, contextmanager
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from agent3.calls.outcomes import failed_by
from agent3.calls.step import RECOVERY
from agent3.definitions import AgentCapability, AgentCard
from agent3.env import REAL, Env
from agent3.errors import (
    Agent3Error,
    Interrupted,
    JobNotFound,
    RequestError,
    StorageError,
    TargetError,
    TargetRefused,
    TooLarge,
    ValidationError,
)
from agent3.identity.secrets import Secret, redact, redact_outcome
from agent3.model import Agent, Call, Capability, Event, Failed, Hints, Live, Outcome, Price, Route, Working
from agent3.observe.logs import get as logger
from agent3.protocols.a2a.cards.extensions import TRACEABILITY
from agent3.protocols.a2a.peer.bindings import How
from agent3.protocols.a2a.peer.card_discovery import Found, signature_of
from agent3.protocols.a2a.peer.peers import DEADLINE, IDEMPOTENT, INTERRUPTED, SCHEMAS, Peer, Peers
from agent3.protocols.a2a.peer.push_receiver import Notices, Wait
from agent3.protocols.a2a.peer.sign_in import Flow, flow_of
from agent3.protocols.a2a.peer.translation import (
    FREE,
    Fold,
    answer_message,
    checked,
    message_id,
    message_of,
    outcome_of,
)
from agent3.protocols.a2a.wire.errors import PushNotSupported, TaskNotCancelable
from agent3.protocols.a2a.wire.types import (
    TERMINAL,
    CancelTask,
    CreatePush,
    GetCard,
    GetTask,
    Item,
    Message,
    Send,
    Sending,
    Subscribe,
    Task,
)
from agent3.security.outbound import Gate, Policy

__all__ = ["DEADLINE_HEADER", "GIVEN", "SIGNATURE", "A2AConnector", "agent_id", "described"]

log = logger("a2a.client")

SIGNATURE: Final = "signature"
"""The key in an agent's ``meta`` under which stands whether its card is signed, and with which keys."""
GIVEN: Final = "given"
"""The key in a route's ``meta`` that says that the card was given by hand."""
DEADLINE_HEADER: Final = "X-Agent3-Deadline"
_MOST_EVENTS: Final = 10_000
_REMEMBERED: Final = 10_000
"""Tasks that are known by their message because nobody heard how they ended."""
_COURTESY: Final = 5.0
"""Seconds that a word of cancellation may take."""
_SHUTDOWN: Final = 0.5
"""Seconds before that word: a gateway that stops cancels its turns too, and their tasks are to go on without it."""
_KEPT: Final = "a2a.task"
"""The name under which a job keeps the task that it began."""
_MOMENT: Final = 0.2
"""Seconds after which a task is worth remembering."""
_PATIENCE: Final = 10.0
"""Seconds for which a caller that waits is spared to ask again, where an agent neither streams nor blocks."""
_AT_ONCE: Final = 0.05
"""Seconds after which a job is entered again whose next turn waits by itself until somebody knocks."""
_AGREED: Final = 5.0
"""Seconds that an agent has to say whether it will push: its task is read meanwhile by nobody."""


class A2AConnector:
    """Reaches A2A agents. One for each gateway; it belongs to the event loop it is used in.

    One request may take ``ceiling`` seconds, and a stream may be silent for ``idle``; the time that a call has is told
    to the agent. Connections that nobody used for ``unused`` seconds are closed, and come back on demand. Where there
    are ``notices``, agents that push and do not stream are not asked again and again: they say when there is news.
    """

    def __init__(
        self,
        policy: Policy | None = None,
        *,
        idle: float = 120.0,
        ceiling: float = 300.0,
        unused: float = 600.0,
        pauses: float = 0.2,
        env: Env = REAL,
    ):
        self.peers = Peers(policy, ceiling=ceiling, unused=unused, pauses=pauses, env=env)
        self._idle = idle
        self._ceiling = ceiling
        self._env = env
        self.notices: Notices | None = None
        """Set by whoever opens a door to which agents can push."""
        self._lost: OrderedDict[str, str] = OrderedDict()
        self._later: set[asyncio.Task[None]] = set()

    async def describe(
        self, address: str, *, secret: Secret | None = None, route: Route | None = None, registered: bool = False
    ) -> Agent:
        """The agent as its card tells, every skill a capability. An error if there is no card, never an empty agent.

        ``registered`` is the operator's word for the address. ``route`` is the pattern for the routes of its skills,
        where they need a credential. A card for our credential alone is asked for where the agent has one.
        """
        pattern = route or Route("a2a", address)
        if registered:
            pattern = replace(pattern, meta={**pattern.meta, "registered": True})
        peer = await self.peers.get(address, secret, pattern.meta, fresh=True)
        signature = await signature_of(peer.gate, peer.found)
        found = await self._extended(peer) if secret is not None else peer.found
        if pattern.address == address:  # else whoever asks knows it by another name, with references in it
            pattern = replace(pattern, address=peer.found.url)
        return described(found, pattern, signature, self._ceiling)

    def describe_card(self, document: Mapping[str, Any], route: Route) -> Agent:
        """Likewise for a card that was given and not found; it is not asked for again."""
        found = Found(url=route.address, document=dict(document), card=AgentCard.from_wire(document))
        given = replace(route, meta={**route.meta, "registered": True, GIVEN: True})
        return described(found, given, {"status": "given"}, self._ceiling)

    async def sign_in_of(self, address: str, document: Mapping[str, Any] | None = None) -> tuple[Flow | None, Gate]:
        """How a person signs in to an agent, as its card says it, and the gate through which that goes.

        The card is the one at the address, or the one that is given; None where it has no way for a person.
        """
        peer = await self.peers.get(address, None, {"registered": True}, document=document)
        return await flow_of(peer.card, peer.gate), peer.gate

    async def call(self, call: Call) -> Outcome:
        """One turn with an agent. Cancelling it cancels the task there; running out of time does not."""
        assert call.route is not None
        outcome: Outcome | None = None
        try:
            peer = await self._peer(call, call.route)
            with self._hiding(call, peer):
                outcome = await self._turn(call, call.route, peer)
            return redact_outcome(outcome, peer.credential.hidden())
        except Agent3Error as wrong:
            return failed_by(_told(wrong, call))
        finally:
            if not isinstance(outcome, Working):
                self._done(call)

    async def aclose(self) -> None:
        """Close all connections."""
        for task in list(self._later):
            task.cancel()
        await asyncio.gather(*self._later, return_exceptions=True)
        await self.peers.aclose()

    # Inside

    async def _peer(self, call: Call, route: Route) -> Peer:
        """The agent of a route; its card is known from the directory where that is where it came from."""
        agent: Agent | None = call.live.agent if call.live is not None else None
        known = agent is not None and agent.card.get("skills") is not None and agent.source == _source(route.address)
        document = agent.card if agent is not None and known else None
        return await self.peers.get(route.address, call.secret, route.meta, document=document)

    async def _extended(self, peer: Peer) -> Found:
        """The card for this credential; the public one where there is no other."""
        if not peer.card.features.extended_agent_card:
            return peer.found
        try:
            document = await peer.ask(GetCard(), How(seconds=self._idle))
            assert isinstance(document, dict)
            return Found(url=peer.found.url, document=document, card=AgentCard.from_wire(document))
        except (RequestError, TargetError) as wrong:
            log.warning("%s shows no other card than the public one: %s", urlsplit(peer.found.url).netloc, wrong)
            return peer.found

    async def _turn(self, call: Call, route: Route, peer: Peer) -> Outcome:
        state: Mapping[str, Any] = call.state if isinstance(call.state, dict) else {}
        task = state.get("task")
        if call.entry == "cancel":
            return await self._cancel(call, peer, task) if task else Failed("canceled", "The job was cancelled.")
        if call.entry in ("answer", "attach") and not task:
            raise Interrupted(f"{call.agent}/{call.capability} was interrupted. Call it again.")
        if call.entry == "attach":
            return await self._attached(call, peer, str(task))
        if (begun := await self._begun(call, peer, task)) is not None:
            return await self._heard(call, peer, Subscribe(id=begun) if peer.streams else None, begun)
        if call.entry == "answer":
            return await self._answer(call, peer)
        return await self._say(call, peer, self._message(call, route, peer))

    async def _begun(self, call: Call, peer: Peer, task: str | None) -> str | None:
        """The task that goes on already, so that nothing is to be sent: of a turn that was cut off before.

        After a restart nobody knows whether a message arrived whose task is not known, unless the agent tells that.
        """
        if call.live is None or call.live.door != RECOVERY:
            return self._lost.get(message_id(call)) if call.entry == "start" else None
        if call.entry == "answer":
            state = (await self._read(call, peer, str(task))).status.state
            return None if state in INTERRUPTED else task
        kept = call.live.kept.get(_KEPT)
        if kept is None and not peer.dedupes:
            raise Interrupted(f"{call.agent}/{call.capability} was interrupted by a restart. Call it again.")
        return str(kept) if kept is not None else None

    def _message(self, call: Call, route: Route, peer: Peer) -> Message:
        _check_extensions(peer)
        capability: Capability | None = call.live.capability if call.live is not None else None
        free = capability is None or capability.meta.get("a2a", {}).get("free", True)
        return message_of(call, route.target or call.capability, free=free)

    async def _answer(self, call: Call, peer: Peer) -> Outcome:
        asked: Mapping[str, Any] = call.state.get("asked") or {}
        given = [call.answers.get(one) for one in asked]
        if given and all(one is None or one.action != "accept" for one in given) and not any(asked.values()):
            # An agent that asks in words has no word for a no.
            await self._cancel(call, peer, call.state["task"])
            return Failed("declined", f"What {call.agent} asked was declined, and its task was cancelled.")
        return await self._say(call, peer, answer_message(call))

    async def _say(self, call: Call, peer: Peer, message: Message) -> Outcome:
        if peer.streams:
            return await self._heard(call, peer, self._send(call, peer, message), message.task_id)
        try:
            reply = await self._asked(call, peer, message)
        except asyncio.CancelledError:
            self._left_alone(call, peer, _own_name(peer, message))
            raise
        if isinstance(reply, Message) or _is_over(reply):
            return self._ended(call, reply)
        return await self._awaited(call, peer, reply)

    def _send(self, call: Call, peer: Peer, message: Message, wait: Wait | None = None, push: bool = False) -> Send:
        how = Sending(
            accepted_output_modes=_modes(call),
            return_immediately=wait is not None,
            push=wait.push if wait is not None and push else None,
        )
        return Send(message=message, configuration=how, metadata=self._metadata(call, peer), stream=peer.streams)

    async def _asked(self, call: Call, peer: Peer, message: Message) -> Task | Message:
        """What a message is answered with. An agent that will not push to us is to answer as it does otherwise.

        The push configuration goes with the message only where that cannot cost the message: to an agent that has
        pushed to us before, or that tells repetitions. Any other is given it when its task is known.
        """
        wait = self._wait(call, peer)
        if wait is None or not (wait.hearing.heard or peer.dedupes):
            reply = await peer.ask(self._send(call, peer, message, wait), self._how(call))
        else:
            reply = await self._asked_to_push(call, peer, message, wait)
        assert isinstance(reply, (Task, Message))
        return reply

    async def _asked_to_push(self, call: Call, peer: Peer, message: Message, wait: Wait) -> Any:
        """Likewise, with the push configuration. Sent again without it only where that does nothing a second time."""
        try:
            reply = await peer.ask(self._send(call, peer, message, wait, push=True), self._how(call))
        except (RequestError, TargetRefused) as wrong:
            if not _may_go_without(wrong, peer):
                wait.hearing.doubt()  # if it was about the configuration, the next message goes without
                raise
            reply = await peer.ask(self._send(call, peer, message), self._how(call))
            self._unpushed(call, wait, wrong)
        else:
            wait.told = True
        return reply

    async def _awaited(self, call: Call, peer: Peer, task: Task) -> Outcome:
        """How a task stands that goes on at an agent which does not block: waited for, then left to the job."""
        left = self._left(call)
        patience = min(_PATIENCE, 0.5 * left) if self._wait(call, peer) is None else 0.8 * left
        return await self._heard(call, peer, None, task.id, self._env.monotonic() + patience)

    # Waiting for a push

    def _wait(self, call: Call, peer: Peer) -> Wait | None:
        """Where the agent of a call can tell us how it goes; None where it is followed in another way."""
        if self.notices is None or peer.streams or not peer.card.features.push_notifications:
            return None
        if not self.notices.hearing(peer.found.url).pushes(self._env.monotonic()):
            return None
        return self.notices.expect(self.notices.key(message_id(call)), peer.found.url)

    def _done(self, call: Call) -> None:
        if self.notices:  # and somebody waits
            self.notices.done(self.notices.key(message_id(call)))

    async def _attached(self, call: Call, peer: Peer, task: str) -> Outcome:
        """A later look at a task that goes on: at once where nobody waited before, else when somebody knocks.

        Who has not waited before may have missed a knock. Where none comes, the task is read all the same.
        """
        wait = self._wait(call, peer)
        if wait is None or self.notices is None:
            self._done(call)  # it may have been waited for before its agent was found not to push
            return self._ended(call, await self._read(call, peer, task))
        if wait.task is not None:
            return self._ended(call, await self._waited(call, peer, wait, task, self.notices.net))
        wait.task, wait.between = task, 1.0
        await self._have_told(call, peer, wait, task)
        wait.heed()
        return self._ended(call, await self._read(call, peer, task))

    async def _waited(self, call: Call, peer: Peer, wait: Wait, task: str, net: float) -> Task:
        """A task when there is something to show of it, or when it was waited for long enough.

        A job is written down each time it is entered, so an agent that has much to say is shown more and more seldom.
        """
        now, long = self._env.monotonic(), min(net, 0.5 * self._left(call))
        ends, shown, wait.between = now + long, now + wait.gap, 1.0 - long
        while True:
            trusted = wait.trusted
            knocked = await wait.next(net, ends - now)
            wait.heed()
            found = await self._read(call, peer, task)
            now = self._env.monotonic()
            if _is_over(found):
                self._judge(call, wait, missed=trusted and not knocked)
                return found
            outcome = outcome_of(found, call)
            stands = (found.status.state, outcome.text if isinstance(outcome, Working) else None)
            if now >= ends:
                wait.gap, wait.stood = 1.0, stands
                return found
            if stands != wait.stood and now >= shown:
                wait.gap, wait.stood = min(net, 2 * wait.gap), stands
                return found

    async def _have_told(self, call: Call, peer: Peer, wait: Wait, task: str) -> None:
        """Have us told of a task that goes on. Where that fails it is read now and then."""
        how = self._how(call)
        try:
            await peer.ask(CreatePush(task_id=task, config=wait.push), how._replace(seconds=min(_AGREED, how.seconds)))
        except JobNotFound:
            log.debug("%s does not know its task any more", call.agent)  # as whoever reads it is told
        except (RequestError, TargetError) as wrong:
            if not wrong.retryable or (not wait.hearing.heard and wait.hearing.miss(self._env.monotonic())):
                self._unpushed(call, wait, wrong)
        else:
            wait.told = True

    def _unpushed(self, call: Call, wait: Wait, wrong: Agent3Error) -> None:
        wait.hearing.refuse(self._env.monotonic())
        self._done(call)
        say = log.warning if wait.hearing.first_warning() else log.info
        say("%s does not push to this gateway, and is asked now and then: %s", call.agent, wrong)

    def _judge(self, call: Call, wait: Wait, *, missed: bool) -> None:
        """Learn from the end of a task whether the pushes of its agent come: ``missed`` if one was relied on."""
        if not missed and (wait.knocks or wait.hearing.heard or not wait.told):
            return
        if wait.hearing.miss(self._env.monotonic()):
            say = log.warning if wait.hearing.first_warning() else log.info
            say("%s takes our address, but its pushes do not come. It is asked now and then.", call.agent)
        elif missed:
            log.info("%s: a push did not come. Until the next one comes it is asked now and then.", call.agent)

    async def _by_push(self, call: Call, peer: Peer, task: str, wait: Wait, until: float) -> AsyncGenerator[Task, None]:
        """Read a task whenever its agent knocks, and at least now and then, until it has ended, asks, or time is up."""
        assert self.notices is not None
        wait.task, missed = task, False
        if not wait.told:
            await self._have_told(call, peer, wait, task)
        while True:
            wait.heed()
            found = await self._read(call, peer, task)
            yield found
            left = until - self._env.monotonic()
            if _is_over(found):
                self._judge(call, wait, missed=missed)
            if _is_over(found) or left <= 0:
                return
            trusted = wait.trusted
            missed = not await wait.next(self.notices.net, left) and trusted

    async def _heard(
        self,
        call: Call,
        peer: Peer,
        request: Send | Subscribe | None,
        task: str | None,
        until: float = float("inf"),
    ) -> Outcome:
        """Follow a conversation to its end, or ``until`` then: by its stream, or by reading the task now and then."""
        fold, room = Fold(), _Room(call)
        source = self._source(call, peer, request, task or "", until)
        try:
            async with _Keeping(call) as keeping, aclosing(source) as items:
                async for item in items:
                    room.emit(fold.take(item))
                    if fold.task is not None:
                        keeping.soon(fold.task.id)
                    if self._env.monotonic() >= until:
                        break
        except asyncio.CancelledError:
            self._left_alone(call, peer, fold.task.id if fold.task is not None else task)
            raise
        except JobNotFound:
            self._lost.pop(message_id(call), None)
            raise
        except TargetError:
            if fold.task is not None:
                self._lose(call, fold.task.id)
            raise
        return self._ended(call, checked(fold.result(), call))

    def _source(
        self, call: Call, peer: Peer, request: Send | Subscribe | None, task: str, until: float
    ) -> AsyncGenerator[Item, None]:
        how = self._how(call)
        if request is not None:
            return peer.follow(request, how)
        if (wait := self._wait(call, peer)) is not None:
            return self._by_push(call, peer, task, wait, until)
        return peer.poll(task, how, min(1.0, max(0.05, 0.2 * (until - self._env.monotonic()))))

    async def _read(self, call: Call, peer: Peer, task: str) -> Task:
        found = await peer.ask(GetTask(id=task), self._how(call))
        assert isinstance(found, Task)
        return found

    async def _cancel(self, call: Call, peer: Peer, task: str) -> Outcome:
        try:
            await peer.ask(CancelTask(id=task), self._how(call))
        except TaskNotCancelable:
            found = await self._read(call, peer, task)
            if found.status.state in TERMINAL:
                return outcome_of(found, call)
            return Failed("target_failed", f"{call.agent} does not let its task be cancelled.")
        return Failed("canceled", "The task was cancelled.")

    def _ended(self, call: Call, result: Task | Message) -> Outcome:
        self._lost.pop(message_id(call), None)
        outcome = outcome_of(result, call)
        if self.notices is None or not isinstance(outcome, Working):
            return outcome
        wait = self.notices.find(self.notices.key(message_id(call)))
        return outcome if wait is None else replace(outcome, poll=max(_AT_ONCE, wait.between))

    # What nobody waits for any more

    def _left_alone(self, call: Call, peer: Peer, task: str | None) -> None:
        """A turn was cut off. Out of time, its task goes on and is found again; cancelled, it is cancelled there."""
        if task is None:
            return
        expires = call.live.expires if call.live is not None else None
        if expires is not None and self._env.monotonic() >= expires - 0.05:
            self._lose(call, task)
        else:
            self._spawn(self._courtesy(peer, task))

    def _lose(self, call: Call, task: str) -> None:
        if call.entry != "start":
            return
        self._lost[message_id(call)] = task
        while len(self._lost) > _REMEMBERED:
            self._lost.popitem(last=False)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._later.add(task)
        task.add_done_callback(self._later.discard)

    async def _courtesy(self, peer: Peer, task: str) -> None:
        try:
            async with asyncio.timeout(_COURTESY):
                await asyncio.sleep(_SHUTDOWN)
                await peer.ask(CancelTask(id=task))
        except (Agent3Error, TimeoutError) as wrong:
            log.info("a task could not be cancelled at %s: %s", urlsplit(peer.found.url).netloc, wrong)

    # What goes with a request

    def _left(self, call: Call) -> float:
        """Seconds that the call still has."""
        expires = call.live.expires if call.live is not None else None
        return self._ceiling if expires is None else max(0.05, expires - self._env.monotonic())

    def _deadline(self, call: Call) -> str | None:
        if call.live is None or call.live.expires is None:
            return None
        moment = datetime.fromtimestamp(self._env.now() + self._left(call), UTC)
        return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def _how(self, call: Call) -> How:
        headers = {"traceparent": call.traceparent} if call.traceparent is not None else {}
        if (deadline := self._deadline(call)) is not None:
            headers[DEADLINE_HEADER] = deadline
        left = self._left(call)
        return How(headers=headers, seconds=min(left + 1.0, self._ceiling), idle=max(self._idle, left))

    def _metadata(self, call: Call, peer: Peer) -> dict[str, Any] | None:
        metadata: dict[str, Any] = {}
        if (deadline := self._deadline(call)) is not None:
            metadata[DEADLINE] = {"deadline": deadline}
        if call.traceparent is not None and peer.declares(TRACEABILITY):
            metadata[TRACEABILITY] = {"traceparent": call.traceparent}
        return metadata or None

    @contextmanager
    def _hiding(self, call: Call, peer: Peer) -> Any:
        """Take out of what is told meanwhile the tokens that were got for this agent."""
        live = call.live
        before = live.filters if live is not None else ()

        def clean(event: Event) -> Event:
            hidden = peer.credential.hidden()
            return event if not hidden else _redacted(event, hidden)

        if live is not None:
            live.filters = (clean, *before)
        try:
            yield
        finally:
            if live is not None:
                live.filters = before


def _is_over(task: Task) -> bool:
    """Whether nothing more comes of a task by itself."""
    return task.status.state in TERMINAL | INTERRUPTED


def _may_go_without(wrong: Agent3Error, peer: Peer) -> bool:
    """Whether a message may be sent again without its push configuration: nothing was done, or it is told apart."""
    if wrong.data.get("http_status") == 401:  # about who we are, which stays the same
        return False
    return isinstance(wrong, PushNotSupported) or not wrong.sent or peer.dedupes


def _own_name(peer: Peer, message: Message) -> str | None:
    """The task of a message that is not answered yet, where we named it ourselves: in the first generation."""
    named = peer.place is not None and peer.place.generation == "0.1"
    return message.task_id or (message.message_id if named else None)


class _Keeping:
    """Has the job remember its task, so that another process finds it; not for a task that ends within a moment."""

    def __init__(self, call: Call):
        self._live: Live | None = call.live.now() if call.live is not None else None
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> _Keeping:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._writing is not None:
            await asyncio.wait([self._writing])

    def soon(self, task: str) -> None:
        """Remember it, if it is still going on by then. The first word counts: a task does not change its name."""
        if self._timer is None and self._live is not None and self._live.kept.get(_KEPT) != task:
            self._timer = asyncio.get_running_loop().call_later(_MOMENT, self._begin, task)

    def _begin(self, task: str) -> None:
        self._writing = asyncio.get_running_loop().create_task(self._write(task))

    async def _write(self, task: str) -> None:
        assert self._live is not None
        try:
            if self._live.keep is not None:
                await self._live.keep(_KEPT, task)
        except StorageError as wrong:
            log.warning("a task is not remembered, and would be lost with this process: %s", wrong)


def _redacted(event: Event, hidden: tuple[Secret, ...]) -> Event:
    parts = tuple(replace(one, text=redact(one.text, hidden)) if one.text else one for one in event.parts)
    return replace(event, text=redact(event.text, hidden) if event.text else event.text, parts=parts)


class _Room:
    """Lets so many events of one call through, and no more."""

    def __init__(self, call: Call):
        self._emit: Callable[[Event], None] = call.emit
        self._left = _MOST_EVENTS

    def emit(self, events: list[Event]) -> None:
        """Tell them, as far as there is room. Artifacts are part of the result, which is told at the end anyway."""
        for event in events[: self._left]:
            self._emit(event)
        self._left -= min(self._left, len(events))


def _told(wrong: Agent3Error, call: Call) -> Agent3Error:
    """An error of the agent, for a caller that knows neither tasks nor methods."""
    said = f"{call.agent} answered: {wrong.message}"
    if isinstance(wrong, JobNotFound):
        return Interrupted(f"{call.agent} does not know its task any more. Call it again.")
    if isinstance(wrong, RequestError) and not isinstance(wrong, (ValidationError, TooLarge)):
        told: Agent3Error = TargetError(said, data=wrong.data, retry_after=wrong.retry_after)
        told.sent = wrong.sent
        return told
    if isinstance(wrong, ValidationError) and wrong.data.keys() & {"rpc_code", "http_status"}:
        wrong.message = said
    return wrong


def _modes(call: Call) -> tuple[str, ...]:
    capability: Capability | None = call.live.capability if call.live is not None else None
    return capability.output_modes if capability is not None else ()


def _check_extensions(peer: Peer) -> None:
    """Refuse before anything is sent what the agent would refuse anyway."""
    spoken = peer.extensions
    missing = [one.uri for one in peer.card.features.extensions if one.required and one.uri not in spoken]
    if missing:
        error = TargetRefused(f"{peer.card.name} requires extensions that are not spoken here: {', '.join(missing)}.")
        error.sent = False
        raise error


# Describing


def described(found: Found, pattern: Route, signature: dict[str, Any], ceiling: float) -> Agent:
    """A card as an agent; every skill is a capability, and a card without skills takes messages all the same."""
    card = found.card
    if any(one.uri == IDEMPOTENT for one in card.features.extensions):
        pattern = replace(pattern, meta={**pattern.meta, "keys": True})
    skills = card.capabilities or [AgentCapability(name="message", description=card.description)]
    schemas = _schemas(card)
    return Agent(
        id=agent_id(card.name),
        name=card.name,
        description=card.description[:2_000],
        version=card.version,
        provider=card.provider.organization if card.provider is not None else None,
        tags=("a2a",),
        capabilities=tuple(_capability(one, card, pattern, schemas, ceiling) for one in skills),
        source=_source(pattern.address),
        card=found.document,
        meta={"route": msgspec.to_builtins(pattern), SIGNATURE: signature},
    )


def _schemas(card: AgentCard) -> Mapping[str, Any]:
    """The schemas of skills that an extension of the card gives, by skill."""
    params = next((one.params for one in card.features.extensions if one.uri == SCHEMAS), {})
    skills = params.get("skills")
    return skills if isinstance(skills, dict) else {}


def _capability(
    skill: AgentCapability, card: AgentCard, pattern: Route, schemas: Mapping[str, Any], ceiling: float
) -> Capability:
    name = skill.id or skill.name
    given = schemas.get(name)
    known: Mapping[str, Any] = given if isinstance(given, dict) else {}
    typed = known.get("input") or skill.input_schema or (skill.to_schema() if skill.parameters else None)
    output = known.get("output") or skill.output_schema
    return Capability(
        name=name,
        title=skill.name,
        description=skill.description or card.description,
        version=skill.version,
        input_schema=typed if isinstance(typed, dict) else FREE,
        output_schema=output if isinstance(output, dict) else None,
        phrases=tuple(one for one in skill.examples if isinstance(one, str)),
        tags=tuple(skill.tags),
        input_modes=tuple(skill.input_modes or card.default_input_modes),
        output_modes=tuple(skill.output_modes or card.default_output_modes),
        price=Price(call=skill.cost),
        hints=Hints(
            read_only=skill.read_only,
            idempotent=skill.idempotent,
            consequential=skill.consequential,
            replay=True,  # a restart finds the task again, or says that it was interrupted
        ),
        routes=(replace(pattern, target=name),),
        timeout=ceiling,
        meta={"a2a": {"free": not isinstance(typed, dict)}},
    )


def agent_id(name: str) -> str:
    """A name as an id: small letters, digits, ``.``, ``_`` and ``-``."""
    found = re.sub(r"[^a-z0-9._-]+", "-", name.lower()).strip("-.")
    return found[:64] or "a2a-agent"


def _source(address: str) -> str:
    """Where it comes from, fit to be shown: no query."""
    return address.partition("?")[0]
