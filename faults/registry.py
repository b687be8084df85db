"""The list of faults, filled by the modules of this package."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import faults

__all__ = ["Fault", "Result", "fault", "known"]

Result: TypeAlias = dict[str, Any]
F = TypeVar("F", bound=Callable[..., Result])


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault by name. ``run(seed)`` is bounded in time and tells by ``result["ok"]`` whether every promise held."""

    name: str
    about: str
    run: Callable[[int], Result]


_known: dict[str, Fault] = {}


def fault(name: str) -> Callable[[F], F]:
    """Register a function of a seed as a fault; the first line of its docstring says what it is about."""

    def register(run: F) -> F:
        _known[name] = Fault(name, (run.__doc__ or "").strip().partition("\n")[0], run)
        return run

    return register


def known() -> dict[str, Fault]:
    """Every fault of this package, by name."""
    for module in pkgutil.iter_modules(faults.__path__):
        if not module.name.startswith("_"):
            importlib.import_module(f"faults.{module.name}")
    return dict(sorted(_known.items()))
