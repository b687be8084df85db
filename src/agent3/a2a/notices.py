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

from agent3.a2a.push import TOKEN, understood
from agent3.a2a.shapes import Authentication, Item, Push, Task
from agent3.calls import webhooks
from agent3.errors import Agent3Error, NotFound, Unauthenticated, ValidationError
from agent3.observe.logs import get as logger

__all__ = ["RESULTS", "Notices", "Wait"]

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


class Wait:
    """One task that is waited for. A knock that comes while nobody listens is heard by the next one who does."""

    __slots__ = ("_knocked", "_seen", "push", "task")

    def __init__(self, push: Push):
        self.push = push
        """What the agent is given, so that it knocks here."""
        self.task: str | None = None
        self._knocked = asyncio.Event()
        self._seen: OrderedDict[str, None] = OrderedDict()

    def knock(self) -> None:
        """There is something to read."""
        self._knocked.set()

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

    def is_new(self, name: str) -> bool:
        """Whether a notice did not come before."""
        if name in self._seen:
            return False
        self._seen[name] = None
        if len(self._seen) > _REMEMBERED:
            self._seen.popitem(last=False)
        return True


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

    def __len__(self) -> int:
        return len(self._waits)

    def key(self, message: str) -> str:
        """The name of the callback for what becomes of a message."""
        return self._derived("name", message)[:32]

    def find(self, key: str) -> Wait | None:
        """Who waits, if anybody does."""
        return self._waits.get(key)

    def expect(self, key: str) -> Wait:
        """Wait from now on; the same as before, where somebody waits already."""
        wait = self._waits.get(key)
        if wait is None:
            token = self._token(key)
            way = Authentication(scheme="Bearer", credentials=token)
            url = f"{self._address}/{key}"
            wait = self._waits[key] = Wait(Push(id=key, url=url, token=token, authentication=way))
            if len(self._waits) > _MOST:
                self._waits.popitem(last=False)
        return wait

    def done(self, key: str) -> None:
        """Nobody waits any more."""
        self._waits.pop(key, None)

    def knock(self, key: str) -> None:
        """Another process was told; with no name, words may have been missed, and everybody looks."""
        for wait in [self._waits.get(key)] if key else list(self._waits.values()):
            if wait is not None:
                wait.knock()

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
        if wait is None:
            return self._count("passed" if self._pass_on(key) else "late")
        if not wait.is_new(headers.get(webhooks.ID) or hashlib.sha256(body).hexdigest()):
            return self._count("repeated")
        wait.knock()
        return self._count("taken")

    def refused(self, wrong: Agent3Error) -> Agent3Error:
        """An admitted callback whose body could not be read at all."""
        return self._refused("malformed", wrong)

    def challenge(self, key: str, asked: str) -> str:
        """What an agent is answered that first asks whether an address is ours; NotFound where nobody waits."""
        if key not in self._waits or not _CHALLENGE.fullmatch(asked):
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

    def _token(self, key: str) -> str:
        return self._derived("token", key)

    def _derived(self, use: str, name: str) -> str:
        return hmac.digest(self._secret, f"{use} {name}".encode("utf-8", "surrogatepass"), hashlib.sha256).hex()


def _task_of(item: Item) -> str:
    return item.id if isinstance(item, Task) else item.task_id or ""
