"""Waiting for a push: what agents elsewhere tell of the tasks that we began there, at an address of our own.

A notice is only a knock: it says that there is something to read, and the task is then read where it is, so that
nothing a stranger sends is ever taken for a result. Name and token of a callback follow from the house's own secret
and the call, hence every process of the house knows a genuine one, also after a restart; none has to be stored.
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
from agent3.protocols.a2a.door.push import TOKEN, understood
from agent3.protocols.a2a.wire.types import Authentication, Item, Push, Task

__all__ = ["RESULTS", "Hearing", "Notices", "Wait"]

log = logger("a2a.client")

RESULTS: Final = ("taken", "repeated", "passed", "late", "forged", "unknown", "malformed")
"""What became of a callback: it woke somebody, came a second time, was passed on to the other processes of the house,
came when nobody waited any more, had a wrong token, a name that is none of ours, or a body that is no notice of its
task."""
_KEY: Final = re.compile(r"[0-9a-f]{32}")
_MOST: Final = 10_000
"""Tasks that one process waits for by push. Of more, the oldest are only read now and then."""
_REMEMBERED: Final = 64
"""Notices of one task that are known again."""
_CHALLENGE: Final = re.compile(r"[!-~]{1,512}")
_BREATH: Final = 0.02
"""Seconds between two readings of a task whose agent knocks and knocks; twice as many each time, up to one."""
_STEP: Final = 0.2
"""Seconds after which a task is read that nobody knocks for, where pushes are not known to come; growing likewise."""
_SLOWEST: Final = 1.0
_UNHEARD: Final = 3
"""Tasks in a row that ended without a knock, after which an agent is not asked to push for a while."""
_DEAF: Final = 600.0
"""Seconds of that while."""
_REST: Final = 1.0
"""Seconds between two words to the other processes about one callback."""


class Hearing:
    """What is known of the pushes of one agent. They are relied on once one has come, and until one is missed."""

    __slots__ = ("_deaf", "_missed", "_warned", "heard")

    def __init__(self) -> None:
        self.heard = False
        """A push has come, and since then none was missed."""
        self._missed = 0
        self._deaf = 0.0
        self._warned = False

    def hear(self) -> None:
        """A push came."""
        self.heard, self._missed, self._deaf = True, 0, 0.0

    def doubt(self) -> None:
        """Rely on them only when the next one has come."""
        self.heard = False

    def miss(self, now: float) -> bool:
        """None came for a task that has ended; whether it is not asked to push for a while now."""
        self.heard = False
        self._missed += 1
        if self._missed < _UNHEARD:
            return False
        self.refuse(now)
        return True

    def refuse(self, now: float) -> None:
        """It does not push to us, as far as can be seen for a while."""
        self.heard, self._missed, self._deaf = False, 0, now + _DEAF

    def pushes(self, now: float) -> bool:
        """Whether it is worth asking it to push."""
        return now >= self._deaf

    def first_warning(self) -> bool:
        """Whether nobody was warned of this agent before."""
        first, self._warned = not self._warned, True
        return first


class Wait:
    """One task that is waited for. A knock that comes while nobody listens is heard by the next one who does."""

    __slots__ = (
        "_knocked",
        "_pause",
        "_seen",
        "_step",
        "between",
        "gap",
        "hearing",
        "knocks",
        "push",
        "stood",
        "task",
        "told",
    )

    def __init__(self, push: Push, hearing: Hearing):
        self.push = push
        """What the agent is given, so that it knocks here."""
        self.hearing = hearing
        self.task: str | None = None
        self.told = False
        """The agent has taken what it is given."""
        self.knocks = 0
        self.stood: object = None
        """How the task was shown last, and ``gap`` the seconds until it may be shown as it stands then."""
        self.gap = _SLOWEST
        self.between = 0.0
        """Seconds before it is waited for again, where nobody may wait for long at a time."""
        self._pause, self._step = _BREATH, _STEP
        self._knocked = asyncio.Event()
        self._seen: OrderedDict[bytes, None] = OrderedDict()

    @property
    def trusted(self) -> bool:
        """Whether it is enough to wait for a knock."""
        return self.told and self.hearing.heard

    def came(self) -> None:
        """The agent itself knocked."""
        self.told = True
        self.knocks += 1
        self.hearing.hear()
        self.knock()

    def knock(self) -> None:
        """There may be something to read."""
        self._knocked.set()

    async def next(self, net: float, left: float) -> bool:
        """Wait until the task is to be read, at most what is ``left``; whether somebody knocked.

        Where pushes are known to come that is after ``net`` seconds if none does, else soon, then more and more seldom.
        Who knocks and knocks is heard more and more seldom too, however often the waiting is taken up again.
        """
        rest = min(self._pause, left)
        await asyncio.sleep(rest)
        most = net if self.trusted else self._step
        self._pause, self._step = min(_SLOWEST, 2 * self._pause), min(_SLOWEST, 2 * self._step)
        if await self.within(min(most, left - rest)):
            return True
        self._pause = _BREATH
        return False

    def heed(self) -> None:
        """The task is read now: what knocked before that is taken care of."""
        self._knocked.clear()

    async def within(self, seconds: float) -> bool:
        """Whether there was a knock by then."""
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await self._knocked.wait()
        except TimeoutError:
            return False
        return True

    def is_new(self, notice: bytes) -> bool:
        """Whether a notice did not come before."""
        return _is_new(self._seen, notice, _REMEMBERED)


class Notices:
    """The callbacks of one process. It belongs to the event loop it is used in.

    ``address`` is where agents reach them, ``secret`` what all processes of the house share. ``net`` is the number of
    seconds after which a task is read although nobody knocked: a push that is lost costs time, and nothing else.
    ``pass_on`` hands the name of a genuine callback for which nobody waits here to the other processes.
    """

    def __init__(
        self,
        address: str,
        secret: bytes,
        *,
        net: float = 15.0,
        pass_on: Callable[[str], bool] = lambda key: False,
        counted: Callable[[str], None] = lambda result: None,
    ):
        self.net = net
        self.came: Counter[str] = Counter()
        self._address = address.rstrip("/")
        self._secret = secret
        self._pass_on = pass_on
        self._counted = counted
        self._waits: OrderedDict[str, Wait] = OrderedDict()
        self._over: OrderedDict[str, Hearing] = OrderedDict()
        """Whose the last callbacks were that nobody waits for any more: a push that comes late has come."""
        self._agents: OrderedDict[str, Hearing] = OrderedDict()
        self._seen: OrderedDict[bytes, None] = OrderedDict()
        self._resting: dict[str, bool] = {}
        """Callbacks that were just passed on, and whether they came again since."""
        self._live = False

    def __len__(self) -> int:
        return len(self._waits)

    def key(self, message: str) -> str:
        """The name of the callback for what becomes of a message. Every process of the house knows it for one."""
        name = self._derived("name", message)[:16]
        return name + self._proof(name)

    def hearing(self, agent: str) -> Hearing:
        """What is known of the pushes of the agent at an address."""
        found = self._agents.get(agent)
        if found is None:
            found = self._agents[agent] = Hearing()
            if len(self._agents) > _MOST:
                self._agents.popitem(last=False)
        return found

    def find(self, key: str) -> Wait | None:
        """Who waits, if anybody does."""
        return self._waits.get(key)

    def expect(self, key: str, agent: str = "") -> Wait:
        """Wait from now on; the same as before, where somebody waits already."""
        wait = self._waits.get(key)
        if wait is None:
            token = self._token(key)
            way = Authentication(scheme="Bearer", credentials=token)
            url = f"{self._address}/{key}"
            push = Push(id=key, url=url, token=token, authentication=way)
            wait = self._waits[key] = Wait(push, self.hearing(agent))
            if len(self._waits) > _MOST:
                self._waits.popitem(last=False)
        return wait

    def done(self, key: str) -> None:
        """Nobody waits any more."""
        if (wait := self._waits.pop(key, None)) is None:
            return
        self._over[key] = wait.hearing
        if len(self._over) > _MOST:
            self._over.popitem(last=False)

    def knock(self, key: str) -> None:
        """Another process was told; with no name, words may have been missed, and everybody looks."""
        if not key:
            for wait in self._waits.values():
                wait.knock()
        elif (found := self._waits.get(key)) is not None:
            found.came()
        elif (late := self._over.get(key)) is not None:
            late.hear()

    def admit(self, key: str, headers: Mapping[str, str]) -> None:
        """Let a callback in before its body is read; NotFound and Unauthenticated for those that are not genuine."""
        if not _KEY.fullmatch(key):
            raise self._refused("unknown", NotFound("There is no such callback. Its address is in the configuration."))
        wanted = self._token(key).encode()
        shown = headers.get("authorization", "")
        bearer = shown[7:].strip() if shown[:7].lower() == "bearer " else ""
        given = [headers.get(TOKEN.lower(), ""), bearer]
        if not any(hmac.compare_digest(one.encode("latin-1", "replace"), wanted) for one in given):
            why = f"Send the token of the push configuration as {TOKEN}, or as its credentials say."
            raise self._refused("forged", Unauthenticated(why))

    def take(self, key: str, headers: Mapping[str, str], body: bytes) -> str:
        """What became of a callback that was admitted; ValidationError or ParseError for one that says nothing."""
        wait = self._waits.get(key)
        try:
            task = _task_of(understood(body))
            if wait is not None and wait.task is not None and task != wait.task:
                raise ValidationError(f"This callback is for another task than {task[:100]!r}.")
        except Agent3Error as wrong:
            raise self._refused("malformed", wrong) from None
        name = headers.get(webhooks.ID, "").encode("utf-8", "surrogatepass") or body
        notice = hashlib.blake2b(name, digest_size=16, key=key.encode()).digest()
        if wait is None:
            return self._count(self._taken_late(key, notice))
        if not wait.is_new(notice):
            return self._count("repeated")
        wait.came()
        return self._count("taken")

    def _taken_late(self, key: str, notice: bytes) -> str:
        """What becomes of a callback that nobody here waits for: the others are told, but not again and again."""
        if (late := self._over.get(key)) is not None:
            late.hear()
        if not _is_new(self._seen, notice, _MOST):
            return "repeated"
        if key in self._resting:
            self._resting[key] = True
        else:
            self._tell_others(key)
        return "passed" if self._live else "late"

    def _tell_others(self, key: str) -> None:
        self._live = self._pass_on(key)
        self._resting[key] = False
        asyncio.get_running_loop().call_later(_REST, self._rested, key)

    def _rested(self, key: str) -> None:
        if self._resting.pop(key, False):
            self._tell_others(key)

    def refused(self, wrong: Agent3Error) -> Agent3Error:
        """An admitted callback whose body could not be read at all."""
        return self._refused("malformed", wrong)

    def challenge(self, key: str, asked: str) -> str:
        """What an agent is answered that first asks whether an address is ours; NotFound where it is not.

        Any process of the house is asked that, also one that does not wait.
        """
        genuine = _KEY.fullmatch(key) and hmac.compare_digest(self._proof(key[:16]), key[16:])
        if not genuine or not _CHALLENGE.fullmatch(asked):
            raise self._refused("unknown", NotFound("There is no such callback. Its address is in the configuration."))
        return asked

    def _refused(self, result: str, wrong: Agent3Error) -> Agent3Error:
        self._count(result)
        log.info("a callback was refused (%s): %s", result, wrong.message)
        return wrong

    def _count(self, result: str) -> str:
        self.came[result] += 1
        self._counted(result)
        return result

    def _proof(self, name: str) -> str:
        return self._derived("proof", name)[:16]

    def _token(self, key: str) -> str:
        return self._derived("token", key)

    def _derived(self, use: str, name: str) -> str:
        return hmac.digest(self._secret, f"{use} {name}".encode("utf-8", "surrogatepass"), hashlib.sha256).hex()


def _task_of(item: Item) -> str:
    return item.id if isinstance(item, Task) else item.task_id or ""


def _is_new(seen: OrderedDict[bytes, None], notice: bytes, most: int) -> bool:
    if notice in seen:
        return False
    seen[notice] = None
    if len(seen) > most:
        seen.popitem(last=False)
    return True
