"""The tools of one server by name and version: which is the newest, which one is pinned, which one is retired.

Safe from any thread: what a name stands for is a tuple that is replaced as a whole. It knows nothing of calls.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from threading import Lock
from typing import Any

from agent3.definitions import ToolDefinition
from agent3.errors import CapabilityNotFound, Conflict, SetupError

__all__ = ["Catalogue", "Version", "version_key"]

_PIN = "sha256:"


class Version:
    """One version of a tool. Cached results of it are kept under its ``epoch``, a number of its own."""

    def __init__(self, definition: ToolDefinition, function: Callable[..., Any], epoch: int):
        self.definition = definition
        self.function = function
        self.epoch = epoch
        self.key = version_key(definition.version)
        self.sunset: float | None = None
        if definition.deprecated is not None and definition.deprecated.sunset is not None:
            moment = datetime.fromisoformat(definition.deprecated.sunset)
            self.sunset = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        self._digest: str | None = None

    @property
    def name(self) -> str:
        return self.definition.name

    @property
    def version(self) -> str:
        return self.definition.version

    @property
    def digest(self) -> str:
        """What a caller pins it by; computed on first use."""
        if self._digest is None:
            self._digest = self.definition.digest
        return self._digest

    def is_retired(self, now: float) -> bool:
        return self.sunset is not None and self.sunset <= now


class Catalogue:
    """All versions of all tools of one server. ``revision`` changes with every change."""

    def __init__(self, server: str):
        self._server = server
        self._tools: dict[str, tuple[Version, ...]] = {}
        self._epochs = itertools.count(1)
        self._lock = Lock()
        self._with_sunset: set[Version] = set()
        self._newest: tuple[int, tuple[Version, ...]] = (0, ())
        self.revision = 0

    def add(self, definition: ToolDefinition, function: Callable[..., Any]) -> Version:
        """Add one version of a tool; Conflict if it is there already."""
        if not callable(function):
            raise SetupError(f"Tool {definition.name!r} needs a function to run, got {type(function).__name__}.")
        version = Version(definition, function, next(self._epochs))
        with self._lock:
            others = self._tools.get(version.name, ())
            if any(other.version == version.version for other in others):
                raise Conflict(
                    f"Server {self._server!r} already has a tool {version.name!r} in version "
                    f"{version.version}. Unregister it first, or give this one another version."
                )
            newest_first = sorted((version, *others), key=lambda entry: entry.key, reverse=True)
            self._tools[version.name] = tuple(newest_first)
            if version.sunset is not None:
                self._with_sunset.add(version)
            self.revision += 1
        return version

    def remove(self, name: str, version: str | None = None) -> bool:
        """Remove one version of a tool, or all; whether there was something to remove."""
        with self._lock:
            versions = self._tools.get(name, ())
            left = tuple(entry for entry in versions if version is not None and entry.version != version)
            if len(left) == len(versions):
                return False
            if left:
                self._tools[name] = left
            else:
                del self._tools[name]
            self._with_sunset.difference_update(set(versions) - set(left))
            self.revision += 1
        return True

    def clear(self) -> None:
        with self._lock:
            self._tools.clear()
            self._with_sunset.clear()
            self.revision += 1

    def renew(self, name: str | None = None) -> bool:
        """Give new epochs to the versions of a tool, or to all; whether there was one."""
        with self._lock:
            groups = [self._tools.get(name, ())] if name is not None else list(self._tools.values())
            for version in itertools.chain.from_iterable(groups):
                version.epoch = next(self._epochs)
        return name is None or bool(groups[0])

    def versions(self, name: str) -> tuple[Version, ...]:
        """All versions of a tool, the newest first; empty if there is no such tool."""
        return self._tools.get(name, ())

    def find(self, wanted: str) -> Version | None:
        """What ``name``, ``name@version`` or ``name@sha256:…`` stands for; None if there is no tool of that name.

        CapabilityNotFound for an unknown version, Conflict for a definition that is no longer the pinned one.
        """
        name, _, label = wanted.partition("@")
        versions = self._tools.get(name)
        if versions is None:
            return None
        if not label:
            return versions[0]
        is_pin = label.startswith(_PIN)
        for version in versions:
            if label in (version.version, version.digest if is_pin else None):
                return version
        if not is_pin:
            known = [version.version for version in versions]
            text = f"Tool {name!r} has no version {label[:100]!r}; it has {', '.join(known)}."
            raise CapabilityNotFound(text, data={"versions": known})
        newest = versions[0]
        raise Conflict(
            f"The definition of tool {name!r} has changed since you pinned it. Check it, then call "
            f"{name}@{newest.digest} (version {newest.version}).",
            data={"version": newest.version, "digest": newest.digest},
        )

    def newest(self) -> Sequence[Version]:
        """The newest version of each tool, in the order of their registration."""
        revision, found = self._newest
        if revision != self.revision:
            with self._lock:
                found = tuple(versions[0] for versions in self._tools.values())
                self._newest = (self.revision, found)
        return found

    def all(self) -> Sequence[Version]:
        """Every version of every tool, those of one tool together and the newest first."""
        with self._lock:
            return tuple(itertools.chain.from_iterable(self._tools.values()))

    def count_retired(self, now: float) -> int:
        """How many sunsets have passed: together with ``revision`` it tells whether a list is still the same."""
        if not self._with_sunset:
            return 0
        with self._lock:
            return sum(version.is_retired(now) for version in self._with_sunset)


def version_key(version: str) -> tuple[tuple[Any, ...], ...]:
    """What versions are compared by: numbers as numbers, ``2.0-beta`` before ``2.0``, ``2`` and ``2.0.0`` alike.

    What follows a ``+`` does not count, as in semantic versioning.
    """
    pieces = re.findall(r"\d+|[a-z]+", version.lower().removeprefix("v").partition("+")[0])
    keys: list[tuple[Any, ...]] = [(2, int(piece)) if piece.isdigit() else (0, piece) for piece in pieces]
    while keys and keys[-1] == (2, 0):
        keys.pop()
    # Zeros before the first word do not count either: 2.0-beta precedes 2.
    first_word = next((index for index, key in enumerate(keys) if key[0] == 0), len(keys))
    end = first_word
    while end and keys[end - 1] == (2, 0):
        end -= 1
    return (*keys[:end], *keys[first_word:], (1,))
