"""How deep and how large a value may be, measured without recursion.

The validator is native code and crashes on a value nested 50,000 deep, so everything from a stranger passes here first.
Bytes are not checked here: jsonrpc caps them before they are decoded.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

from agent3.errors import TooLarge, ValidationError

__all__ = ["LIMITS", "RESULTS", "Limits", "Path", "check_shape", "find_foreign", "measure", "render", "weigh"]

Path: TypeAlias = tuple[str | int, ...]


@dataclass(frozen=True)
class Limits:
    """What is accepted from a stranger: bytes of a body, nesting depth, values in all, characters of one string, digits
    of one number."""

    body: int = 1 << 20
    depth: int = 64
    nodes: int = 10_000
    string: int = 256 << 10
    digits: int = 64


LIMITS = Limits()
RESULTS = Limits(depth=200, nodes=5_000_000, string=1 << 30)
"""What a result may hold to be checked against its schema. It exists already, and may have had effects: a schema must
not refuse for its size what could be given without one."""
_NODE = 16
"""What a value weighs besides its characters."""


def check_shape(value: object, limits: Limits = LIMITS, what: str = "input") -> None:
    """Refuse a value that is nested too deep or holds too much, naming the path and the limit.

    Raises TooLarge, or ValidationError for NaN and infinity, which JSON does not have. Never recurses, so that any
    nesting, even a list that holds itself, is refused.
    """
    measure(value, limits, what)


def measure(value: object, limits: Limits = LIMITS, what: str = "input") -> int:
    """Like ``check_shape``; returns the number of nodes."""
    # Level by level, with a list in place of the stack: a list that holds itself ends at the depth or the node limit.
    level: list[Any] = [value]
    nodes, depth = 1, 0
    most, longest, ceiling = limits.nodes, limits.string, 10**limits.digits
    while level:
        below: list[Any] = []
        for item in level:
            kind = type(item)
            if kind is str:
                fits = len(item) <= longest
            elif kind is int:
                fits = -ceiling < item < ceiling
            elif kind is float:
                fits = item - item == 0  # false for NaN and infinity, and cheaper than math.isfinite
            elif kind is bool or item is None:
                continue
            else:
                children: Collection[Any] = ()  # what is not a container is left to the validator
                if isinstance(item, (dict, Mapping)):
                    children = item.values()
                elif isinstance(item, (list, tuple)):
                    children = item
                nodes += len(children)
                fits = depth < limits.depth or not _is_container(item)
                if nodes > most:
                    raise TooLarge(
                        f"The {what} contains more than {most} values; send it in parts", data={"what": what}
                    )
                below.extend(children)
            if not fits:
                _refuse(value, limits, what)
        level = below
        depth += 1
    return nodes


def weigh(value: object, most: int) -> int:
    """Roughly the bytes of a JSON value, counted no further than ``most``: whether a walk over it is for the loop."""
    weight, waiting = 0, [value]
    while waiting and weight < most:
        item = waiting.pop()
        weight += _NODE
        if isinstance(item, (str, bytes)):
            weight += len(item)
        elif isinstance(item, (dict, Mapping)):
            weight += _NODE * len(item)
            if weight < most:
                weight += sum(map(len, filter(_is_text, item)))
                waiting.extend(item.values())
        elif isinstance(item, (list, tuple)):
            weight += _NODE * len(item)
            if weight < most:
                waiting.extend(item)
    return weight


def _is_text(item: object) -> bool:
    return isinstance(item, str)


def _is_container(item: object) -> bool:
    return isinstance(item, (dict, list, tuple, Mapping))


def _refuse(value: object, limits: Limits, what: str) -> NoReturn:
    """Walk again, now with paths, and name the first culprit: the fast walk keeps no paths."""
    for path, item in _walk(value, limits.nodes):
        place = f"The {what} at '{render(path)}'" if path else f"The {what}"
        reason = None
        if _is_container(item) and len(path) >= limits.depth:
            reason = f"is nested deeper than {limits.depth} levels"
        elif isinstance(item, str) and len(item) > limits.string:
            reason = f"is a string of {len(item)} characters, more than {limits.string}"
        elif isinstance(item, int) and abs(item) >= 10**limits.digits:
            reason = f"is a number of more than {limits.digits} digits"
        if reason is not None:
            raise TooLarge(
                f"{place} {reason}; shorten it or send it in parts", data={"path": render(path), "what": what}
            )
        if isinstance(item, float) and not math.isfinite(item):
            raise ValidationError(f"{place} is {item}, which is not allowed in JSON; send a finite number or null")
    raise TooLarge(f"The {what} is too large; send it in parts", data={"what": what})


def _walk(value: object, most: int) -> Iterator[tuple[Path, Any]]:
    """Every value with its path, breadth first, at most about ``most`` of them."""
    waiting: deque[tuple[Path, Any]] = deque([((), value)])
    while waiting:
        path, item = waiting.popleft()
        yield path, item
        if len(waiting) > most or not _is_container(item):
            continue
        entries = item.items() if isinstance(item, Mapping) else enumerate(item)
        waiting.extend(((*path, key), child) for (key, child), _ in zip(entries, range(most + 1), strict=False))


def find_foreign(value: object, limits: Limits = LIMITS) -> tuple[Path, str] | None:
    """Where a value holds something that JSON cannot represent, and what it is; None if nothing."""
    for path, item in _walk(value, limits.nodes):
        if isinstance(item, Mapping) and not all(isinstance(key, str) for key in item):
            return path, "has a key that is not a string"
        if isinstance(item, str):
            try:
                item.encode()
            except UnicodeEncodeError:
                return path, "contains text that is not valid Unicode"
        if item is not None and not isinstance(item, (str, int, float, list, tuple, Mapping)):
            return path, f"is a {type(item).__name__}, which is not a JSON type"
    return None


def render(path: Path, most: int = 12) -> str:
    """A path as people write it, ``items[2].price``; of more than ``most`` steps the middle is left out."""
    if len(path) > most:
        return f"{render(path[:5])}…{render(path[-5:])}"
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif step.isidentifier() or step.replace("-", "").isalnum():
            text += f".{_cut(step)}" if text else _cut(step)
        else:
            text += f"[{_cut(step)!r}]" if text else _cut(step)
    return text


def _cut(step: str) -> str:
    return step if len(step) <= 64 else step[:63] + "…"
