"""The tools of one server, by name and version: which is the newest, which one is pinned, which one is past its time.

Safe from any thread: what a name stands for is a tuple that is replaced as a whole. It knows nothing of calls.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from threading import Lock
from typing import Any

from agent3.definitions import ToolDefinition, ToolDeprecation
from agent3.errors import CapabilityNotFound, Conflict, SetupError

__all__ = ["Catalogue", "Version", "newness"]

_PIN = "sha256:"


class Version:
    """One version of a tool. ``epoch`` is a number of its own; whoever keeps results of it keeps them under that."""

    def __init__(self, definition: ToolDefinition, function: Callable[..., Any], epoch: int):
        self.definition = definition
        self.function = function
        self.epoch = epoch
        self.newness = newness(definition.version)
        self.sunset = _moment(definition.deprecated)
        self._digest: str | None = None

    @property
    def name(self) -> str:
        """The name of the tool."""
        return self.definition.name

    @property
    def version(self) -> str:
        """Which version of it."""
        return self.definition.version

    @property
    def digest(self) -> str:
        """What a caller pins it by; made when it is first asked for."""
        if self._digest is None:
            self._digest = self.definition.digest
        return self._digest

    def retired(self, now: float) -> bool:
        """Whether its time is over."""
        return self.sunset is not None and self.sunset <= now


class Catalogue:
    """All versions of all tools of one server. ``revision`` changes with every change."""

    def __init__(self, server: str):
        self._server = server
        self._tools: dict[str, tuple[Version, ...]] = {}
        self._epochs = itertools.count(1)
        self._lock = Lock()
        self._ending: set[Version] = set()
        self._newest: tuple[int, tuple[Version, ...]] = (0, ())
        self.revision = 0

    def add(self, definition: ToolDefinition, function: Callable[..., Any]) -> Version:
        """Take one version of a tool; Conflict where it is there already."""
        if not callable(function):
            raise SetupError(f"Tool {definition.name!r} needs a function to run, got {type(function).__name__}.")
        version = Version(definition, function, next(self._epochs))
        with self._lock:
            others = self._tools.get(version.name, ())
            if any(one.version == version.version for one in others):
                raise Conflict(
                    f"Server {self._server!r} has a tool {version.name!r} already, in version {version.version}. "
                    "Unregister it first, or give this one another version."
                )
            newest_first = sorted((version, *others), key=lambda one: one.newness, reverse=True)
            self._tools[version.name] = tuple(newest_first)
            if version.sunset is not None:
                self._ending.add(version)
            self.revision += 1
        return version

    def remove(self, name: str, version: str | None = None) -> bool:
        """Take back one version, or all of them; whether there was something to take."""
        with self._lock:
            family = self._tools.get(name, ())
            left = tuple(one for one in family if version is not None and one.version != version)
            if len(left) == len(family):
                return False
            if left:
                self._tools[name] = left
            else:
                del self._tools[name]
            self._ending.difference_update(set(family) - set(left))
            self.revision += 1
        return True

    def clear(self) -> None:
        """Take back everything."""
        with self._lock:
            self._tools.clear()
            self._ending.clear()
            self.revision += 1

    def renew(self, name: str | None = None) -> bool:
        """Give a tool's versions, or all, new epochs; whether there was one."""
        with self._lock:
            families = [self._tools.get(name, ())] if name is not None else list(self._tools.values())
            for version in itertools.chain.from_iterable(families):
                version.epoch = next(self._epochs)
        return name is None or bool(families[0])

    def family(self, name: str) -> tuple[Version, ...]:
        """All versions of a tool, the newest first; none where there is no such tool."""
        return self._tools.get(name, ())

    def find(self, asked: str) -> Version | None:
        """What ``name``, ``name@version`` or ``name@sha256:…`` stands for; None where there is no tool of that name.

        CapabilityNotFound for a version that is not there, Conflict for a definition that is no longer the pinned one.
        """
        name, _, wanted = asked.partition("@")
        family = self._tools.get(name)
        if family is None:
            return None
        if not wanted:
            return family[0]
        for version in family:
            if wanted in (version.version, version.digest if wanted.startswith(_PIN) else None):
                return version
        raise _changed_since(name, family) if wanted.startswith(_PIN) else _no_version(name, wanted, family)

    def newest(self) -> Sequence[Version]:
        """The newest version of each tool, in the order of their registration."""
        revision, found = self._newest
        if revision != self.revision:
            with self._lock:
                found = tuple(family[0] for family in self._tools.values())
                self._newest = (self.revision, found)
        return found

    def all(self) -> Sequence[Version]:
        """Every version of every tool, those of one tool together and the newest first."""
        with self._lock:
            return tuple(itertools.chain.from_iterable(self._tools.values()))

    def ended(self, now: float) -> int:
        """How many sunsets have passed: with ``revision`` it tells whether a list is still the same."""
        if not self._ending:
            return 0
        with self._lock:
            return sum(one.retired(now) for one in self._ending)


def newness(version: str) -> tuple[tuple[Any, ...], ...]:
    """What versions are compared by: numbers as numbers, ``2.0-beta`` before ``2.0``, ``2`` and ``2.0.0`` alike.

    What stands behind a ``+`` does not count, as in semantic versioning.
    """
    pieces = re.findall(r"\d+|[a-z]+", version.lower().removeprefix("v").partition("+")[0])
    keys: list[tuple[Any, ...]] = [(2, int(one)) if one.isdigit() else (0, one) for one in pieces]
    while keys and keys[-1] == (2, 0):
        keys.pop()
    return (*_without_zeros(keys), (1,))


def _without_zeros(keys: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Zeros before a word do not count either: ``2.0-beta`` is a forerunner of ``2``."""
    first = next((at for at, key in enumerate(keys) if key[0] == 0), len(keys))
    end = first
    while end and keys[end - 1] == (2, 0):
        end -= 1
    return keys[:end] + keys[first:]


def _moment(deprecated: ToolDeprecation | None) -> float | None:
    if deprecated is None or deprecated.sunset is None:
        return None
    moment = datetime.fromisoformat(deprecated.sunset)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _no_version(name: str, wanted: str, family: Sequence[Version]) -> CapabilityNotFound:
    there = [one.version for one in family]
    text = f"Tool {name!r} has no version {wanted[:100]!r}; there is {', '.join(there)}."
    return CapabilityNotFound(text, data={"versions": there})


def _changed_since(name: str, family: Sequence[Version]) -> Conflict:
    newest = family[0]
    text = (
        f"Tool {name!r} is no longer defined as you pinned it. Look at its definition, then call "
        f"{name}@{newest.digest} (version {newest.version})."
    )
    return Conflict(text, data={"version": newest.version, "digest": newest.digest})
