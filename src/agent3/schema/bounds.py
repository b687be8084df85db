"""How deep and how large a value may be, measured without recursion.

The validator is native code and dies on a value nested 50,000 deep, so everything a stranger sent passes here first.
Bytes are not looked at: jsonrpc caps them before they are decoded.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

from agent3.errors import TooLarge, ValidationError

__all__ = ["LIMITS", "Limits", "Path", "check_shape", "foreign", "measure", "render"]

Path: TypeAlias = tuple[str | int, ...]


@dataclass(frozen=True)
class Limits:
    """What a door takes from a stranger: bytes of a body, nested containers, values in all, characters of one text,
    digits of one number."""

    body: int = 1 << 20
    depth: int = 64
    nodes: int = 10_000
    string: int = 256 << 10
    digits: int = 64


LIMITS = Limits()


def check_shape(value: object, limits: Limits = LIMITS, what: str = "input") -> None:
    """Refuse what is nested too deep or holds too much, naming the path and the limit.

    Raises TooLarge, or ValidationError for NaN and infinity, which JSON cannot say. Never recurses, so that any
    nesting, even a list that holds itself, is refused rather than met.
    """
    measure(value, limits, what)


def measure(value: object, limits: Limits = LIMITS, what: str = "input") -> int:
    """Like ``check_shape``, and the number of nodes found."""
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
                fits = item - item == 0
            elif kind is bool or item is None:
                continue
            else:
                children = _children(item)
                nodes += len(children)
                fits = depth < limits.depth or not _is_container(item)
                if nodes > most:
                    raise TooLarge(f"The {what} holds more than {most} values; send it in parts", data={"what": what})
                below.extend(children)
            if not fits:
                _refuse(value, limits, what)
        level = below
        depth += 1
    return nodes


def _is_container(item: object) -> bool:
    return isinstance(item, (dict, list, tuple, Mapping))


def _children(item: Any) -> Collection[Any]:
    """What a container holds; what is none holds nothing and is left to the validator."""
    if isinstance(item, (dict, Mapping)):
        return item.values()
    return item if isinstance(item, (list, tuple)) else ()


def _refuse(value: object, limits: Limits, what: str) -> NoReturn:
    """Walk again, now with paths, and name the first culprit: the fast walk keeps none."""
    for path, item in _paths(value, limits.nodes):
        reason = _reason(path, item, limits)
        if reason is not None:
            raise TooLarge(
                f"{_place(what, path)} {reason}; shorten it or send it in parts",
                data={"path": render(path), "what": what},
            )
        if isinstance(item, float) and not math.isfinite(item):
            raise ValidationError(
                f"{_place(what, path)} is {item}, which JSON cannot carry; send a finite number or null"
            )
    raise TooLarge(f"The {what} is too large; send it in parts", data={"what": what})


def _reason(path: Path, item: Any, limits: Limits) -> str | None:
    if _is_container(item) and len(path) >= limits.depth:
        return f"is nested deeper than {limits.depth} levels"
    if isinstance(item, str) and len(item) > limits.string:
        return f"is a text of {len(item)} characters, more than {limits.string}"
    if isinstance(item, int) and abs(item) >= 10**limits.digits:
        return f"is a number of more than {limits.digits} digits"
    return None


def _place(what: str, path: Path) -> str:
    return f"The {what} at '{render(path)}'" if path else f"The {what}"


def _paths(value: object, most: int) -> Iterator[tuple[Path, Any]]:
    """Every value with its path, breadth first, at most about ``most`` of them."""
    waiting: deque[tuple[Path, Any]] = deque([((), value)])
    while waiting:
        path, item = waiting.popleft()
        yield path, item
        if len(waiting) > most or not _is_container(item):
            continue
        entries = item.items() if isinstance(item, Mapping) else enumerate(item)
        waiting.extend(((*path, key), child) for (key, child), _ in zip(entries, range(most + 1), strict=False))


def foreign(value: object, limits: Limits = LIMITS) -> tuple[Path, str] | None:
    """Where a value holds something that JSON cannot carry, and what that is; None if there is nothing such."""
    for path, item in _paths(value, limits.nodes):
        if isinstance(item, Mapping) and not all(isinstance(key, str) for key in item):
            return path, "has a key that is not a text"
        if isinstance(item, str) and not _encodable(item):
            return path, "holds text that is not valid Unicode"
        if item is not None and not isinstance(item, (str, int, float, list, tuple, Mapping)):
            return path, f"is a {type(item).__name__}, which JSON cannot carry"
    return None


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def render(path: Path, most: int = 12) -> str:
    """A path as people write it: ``items[2].price``; the middle of one of more than ``most`` steps is left out."""
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
