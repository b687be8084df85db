"""Push notifications of the tasks that we started at remote agents, received at an address of our own.

A notification only says that there is something to read. The task is then read at its agent, so nothing a stranger
sends is ever taken for a result. Name and token of a callback are derived from a secret that all gateways on one
database share and from the message, so each of them recognizes a genuine one, also after a restart; nothing is stored.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from typing import Final

from agent3.calls import webhooks
from agent3.errors import Agent3Error, NotFound, Unauthenticated, ValidationError
from agent3.observe.logs import get as logger
from agent3.protocols.a2a.door.push import TOKEN, read_notification
from agent3.protocols.a2a.wire.types import Authentication, Push, Task

__all__ = ["RESULTS", "PushReceiver", "PushTrust", "PushWait"]

log = logger("a2a.client")

RESULTS: Final = ("taken", "repeated", "passed", "late", "forged", "unknown", "malformed")
"""What became of a callback. ``taken``: it woke a waiting call; ``repeated``: it had come before; ``passed``: it was
passed on to the other gateways; ``late``: no call waits any more; ``forged``: wrong token; ``unknown``: not one of our
names; ``malformed``: not a notification of its task."""
_KEY: Final = re.compile(r"[0-9a-f]{32}")
_CHALLENGE: Final = re.compile(r"[!-~]{1,512}")
_MOST_WAITS: Final = 10_000
"""Tasks that one process waits for by push. Beyond that, the oldest ones are only polled."""
_REMEMBERED: Final = 64
"""Notifications of one task that are recognized when they come again."""
_FIRST_PAUSE: Final = 0.02
"""Seconds between two readings of a task whose agent pushes without pause; doubled each time, up to a second."""
_FIRST_POLL: Final = 0.2
"""Seconds after which a task is read without a push while pushes are not known to arrive; doubled likewise."""
_LONGEST: Final = 1.0
_MISSES: Final = 3
"""Tasks in a row that ended without a push, after which an agent is not asked to push for a while."""
_SUSPENDED: Final = 600.0
"""Seconds of that while."""
_PASS_ON_EVERY: Final = 1.0
"""Seconds between two notes to the other gateways about one callback."""


class PushTrust:
    """Whether the pushes of one agent arrive. They are relied on once one has come, and until one is missed."""

    __slots__ = ("_misses", "_suspended_until", "_warned", "reliable")

    def __init__(self) -> None:
        self.reliable = False
        """A push has come, and none was missed since."""
        self._misses = 0
        self._suspended_until = 0.0
        self._warned = False

    def confirm(self) -> None:
        """A push came."""
        self.reliable, self._misses, self._suspended_until = True, 0, 0.0

    def doubt(self) -> None:
        """Do not rely on pushes until the next one has come."""
        self.reliable = False

    def record_miss(self, now: float) -> bool:
        """No push came for a task that has ended; whether the agent is no longer asked to push for a while."""
        self.reliable = False
        self._misses += 1
        if self._misses < _MISSES:
            return False
        self.suspend(now)
        return True

    def suspend(self, now: float) -> None:
        """The agent does not push to us: do not ask it to for a while."""
        self.reliable, self._misses, self._suspended_until = False, 0, now + _SUSPENDED

    def may_ask(self, now: float) -> bool:
        """Whether it is worth asking the agent to push."""
        return now >= self._suspended_until

    def is_first_warning(self) -> bool:
        """Whether nothing was logged as a warning about this agent before."""
        first, self._warned = not self._warned, True
        return first


class PushWait:
    """One task that is waited for by push. A push that comes between two waits ends the next one at once."""

    __slots__ = (
        "_next_pause",
        "_next_poll",
        "_pushed",
        "_seen",
        "before_next",
        "config",
        "pushes",
        "registered",
        "show_after",
        "shown",
        "task",
        "trust",
    )

    def __init__(self, config: Push, trust: PushTrust):
        self.config = config
        """The configuration that the agent is given."""
        self.trust = trust
        self.task: str | None = None
        self.registered = False
        """The agent has accepted the configuration."""
        self.pushes = 0
        self.shown: object = None
        """How the job looked when it was last shown; a change is shown after ``show_after`` seconds."""
        self.show_after = _LONGEST
        self.before_next = 0.0
        """Seconds before the job's next turn, for turns that may not wait for long themselves."""
        self._next_pause, self._next_poll = _FIRST_PAUSE, _FIRST_POLL
        self._pushed = asyncio.Event()
        self._seen: OrderedDict[bytes, None] = OrderedDict()

    @property
    def is_trusted(self) -> bool:
        """Whether it is enough to wait for a push."""
        return self.registered and self.trust.reliable

    def receive(self) -> None:
        """The agent itself pushed."""
        self.registered = True
        self.pushes += 1
        self.trust.confirm()
        self.wake()

    def wake(self) -> None:
        """There may be something to read."""
        self._pushed.set()

    async def wait_to_read(self, poll_after: float, left: float) -> bool:
        """Wait until the task should be read, for at most ``left`` seconds; whether a push ended the wait.

        Where pushes are relied on, that is after ``poll_after`` seconds without one; elsewhere soon, then more and
        more rarely. An agent that pushes without pause is read more and more rarely too, also across several turns.
        """
        pause = min(self._next_pause, left)
        await asyncio.sleep(pause)
        longest = poll_after if self.is_trusted else self._next_poll
        self._next_pause, self._next_poll = min(_LONGEST, 2 * self._next_pause), min(_LONGEST, 2 * self._next_poll)
        if await self.wait(min(longest, left - pause)):
            return True
        self._next_pause = _FIRST_PAUSE
        return False

    def clear(self) -> None:
        """The task is about to be read, which covers every push so far."""
        self._pushed.clear()

    async def wait(self, seconds: float) -> bool:
        """Whether a push came within so many seconds."""
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await self._pushed.wait()
        except TimeoutError:
            return False
        return True

    def is_new(self, digest: bytes) -> bool:
        """Whether a notification did not come before."""
        return _add_new(self._seen, digest, _REMEMBERED)


class PushReceiver:
    """The callbacks of one process. It belongs to one event loop.

    ``address`` is where agents reach them, ``secret`` what all gateways on one database share. A task is read after
    ``poll_after`` seconds even without a push, so that a lost push costs time and nothing else. ``pass_on`` hands the
    name of a genuine callback that no call here waits for to the other gateways, and tells whether it could.
    """

    def __init__(
        self,
        address: str,
        secret: bytes,
        *,
        poll_after: float = 15.0,
        pass_on: Callable[[str], bool] = lambda key: False,
        counted: Callable[[str], None] = lambda result: None,
    ):
        self.poll_after = poll_after
        self.results: Counter[str] = Counter()
        self._address = address.rstrip("/")
        self._secret = secret
        self._pass_on = pass_on
        self._counted = counted
        self._waits: OrderedDict[str, PushWait] = OrderedDict()
        self._ended: OrderedDict[str, PushTrust] = OrderedDict()
        """Callbacks that no call waits for any more, and their agents: a push that comes late has still come."""
        self._agents: OrderedDict[str, PushTrust] = OrderedDict()
        self._seen: OrderedDict[bytes, None] = OrderedDict()
        self._passed_on: dict[str, bool] = {}
        """Callbacks that were just passed on, and whether they came again since."""
        self._live = False

    def __len__(self) -> int:
        return len(self._waits)

    def key_for(self, message: str) -> str:
        """The name of the callback for a message; every gateway with our secret recognizes it."""
        name = self._derive("name", message)[:16]
        return name + self._derive("proof", name)[:16]

    def trust_of(self, agent: str) -> PushTrust:
        """What is known of the pushes of the agent at an address."""
        trust = self._agents.get(agent)
        if trust is None:
            trust = self._agents[agent] = PushTrust()
            if len(self._agents) > _MOST_WAITS:
                self._agents.popitem(last=False)
        return trust

    def find(self, key: str) -> PushWait | None:
        """The wait of a callback, if a call waits."""
        return self._waits.get(key)

    def expect(self, key: str, agent: str = "") -> PushWait:
        """Wait for a callback from now on; the same wait as before if there is one."""
        wait = self._waits.get(key)
        if wait is None:
            token = self._derive("token", key)
            bearer = Authentication(scheme="Bearer", credentials=token)
            config = Push(id=key, url=f"{self._address}/{key}", token=token, authentication=bearer)
            wait = self._waits[key] = PushWait(config, self.trust_of(agent))
            if len(self._waits) > _MOST_WAITS:
                self._waits.popitem(last=False)
        return wait

    def end(self, key: str) -> None:
        """No call waits for this callback any more."""
        if (wait := self._waits.pop(key, None)) is None:
            return
        self._ended[key] = wait.trust
        if len(self._ended) > _MOST_WAITS:
            self._ended.popitem(last=False)

    def wake(self, key: str) -> None:
        """Another gateway received a callback; an empty name means that some may have been missed, so all look."""
        if not key:
            for wait in self._waits.values():
                wait.wake()
        elif (found := self._waits.get(key)) is not None:
            found.receive()
        elif (trust := self._ended.get(key)) is not None:
            trust.confirm()

    def admit(self, key: str, headers: Mapping[str, str]) -> None:
        """Check a callback before its body is read; NotFound or Unauthenticated if it is not genuine."""
        if not _KEY.fullmatch(key):
            raise self._reject(
                "unknown", NotFound("This callback does not exist. Use the address in the configuration.")
            )
        expected = self._derive("token", key).encode()
        authorization = headers.get("authorization", "")
        bearer = authorization[7:].strip() if authorization[:7].lower() == "bearer " else ""
        shown = [headers.get(TOKEN.lower(), ""), bearer]
        if not any(hmac.compare_digest(token.encode("latin-1", "replace"), expected) for token in shown):
            reason = f"Send the token of the push configuration as {TOKEN}, or as its credentials describe."
            raise self._reject("forged", Unauthenticated(reason))

    def take(self, key: str, headers: Mapping[str, str], body: bytes) -> str:
        """Take an admitted callback; what became of it. ValidationError or ParseError if it is no notification.

        The body only has to be of the right task: what it says is not used.
        """
        wait = self._waits.get(key)
        try:
            item = read_notification(body)
            task = item.id if isinstance(item, Task) else item.task_id or ""
            if wait is not None and wait.task is not None and task != wait.task:
                raise ValidationError(f"This callback belongs to another task than {task[:100]!r}.")
        except Agent3Error as error:
            raise self._reject("malformed", error) from None
        name = headers.get(webhooks.ID, "").encode("utf-8", "surrogatepass") or body
        digest = hashlib.blake2b(name, digest_size=16, key=key.encode()).digest()
        if wait is not None:
            if not wait.is_new(digest):
                return self._count("repeated")
            wait.receive()
            return self._count("taken")
        if (trust := self._ended.get(key)) is not None:
            trust.confirm()
        if not _add_new(self._seen, digest, _MOST_WAITS):
            return self._count("repeated")
        if key in self._passed_on:
            self._passed_on[key] = True
        else:
            self._tell_others(key)
        return self._count("passed" if self._live else "late")

    def _tell_others(self, key: str) -> None:
        """Pass a callback on, and once more after a pause if it came again meanwhile: many pushes make few notes."""
        self._live = self._pass_on(key)
        self._passed_on[key] = False

        def end_pause() -> None:
            if self._passed_on.pop(key, False):
                self._tell_others(key)

        asyncio.get_running_loop().call_later(_PASS_ON_EVERY, end_pause)

    def reject(self, error: Agent3Error) -> Agent3Error:
        """Count an admitted callback whose body could not be read; the same error."""
        return self._reject("malformed", error)

    def challenge(self, key: str, asked: str) -> str:
        """The answer to an agent that first asks whether an address is ours; NotFound if it is not.

        Any gateway with our secret may be asked that, also one where no call waits.
        """
        genuine = _KEY.fullmatch(key) and hmac.compare_digest(self._derive("proof", key[:16])[:16], key[16:])
        if not genuine or not _CHALLENGE.fullmatch(asked):
            raise self._reject(
                "unknown", NotFound("This callback does not exist. Use the address in the configuration.")
            )
        return asked

    def _reject(self, result: str, error: Agent3Error) -> Agent3Error:
        self._count(result)
        log.info("a callback was refused (%s): %s", result, error.message)
        return error

    def _count(self, result: str) -> str:
        self.results[result] += 1
        self._counted(result)
        return result

    def _derive(self, use: str, name: str) -> str:
        return hmac.digest(self._secret, f"{use} {name}".encode("utf-8", "surrogatepass"), hashlib.sha256).hex()


def _add_new(seen: OrderedDict[bytes, None], digest: bytes, most: int) -> bool:
    """Add a digest to a bounded memory; whether it is new there."""
    if digest in seen:
        return False
    seen[digest] = None
    if len(seen) > most:
        seen.popitem(last=False)
    return True
