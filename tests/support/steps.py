"""One step by itself around any handler, for tests of the steps."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from types import SimpleNamespace
from typing import Any, cast

from agent3.calls.order import Folded
from agent3.calls.step import Aim, Parts, Step
from agent3.env import REAL
from agent3.model import Call, Handler, Outcome
from agent3.observe.metrics import Metrics
from agent3.security.limits import FairShares
from agent3.settings import Calls, Settings

__all__ = ["Around", "alone", "parts"]

Around = Callable[[Handler], Handler]


def parts(*, calls: Calls | None = None, **given: Any) -> Parts:
    """The parts that a step needs; whatever is not given is not there."""
    plain: dict[str, Any] = {
        "settings": Settings(calls=calls or Calls()),
        "env": REAL,
        "metrics": Metrics(),
        "tracer": None,
        "lookup": None,
        "ceiling": None,
        "shares": FairShares(1_000),
        "propose": None,
        "connectors": {},
        "rates": SimpleNamespace(match=lambda *_: ()),
        "budgets": SimpleNamespace(match=lambda *_: ()),
        "prices": None,
    }
    return cast("Parts", SimpleNamespace(**{**plain, **given}))


def alone(kind: type[Step], given: Mapping[str, Any] | None = None, **more: Any) -> Around:
    """A step as a wrapper of a handler."""
    step = kind(parts(**{**(given or {}), **more}))

    def around(inner: Handler) -> Handler:
        def handler(call: Call) -> Awaitable[Outcome]:
            live = call.live
            stage = step.bind(Aim(live.agent, live.capability, call.principal, live.door, call.entry))
            if stage is not step:
                stage.inner = inner
            wrap = getattr(stage, "around", None)
            return (Folded([stage], inner) if wrap is None else wrap(inner))(call)

        return handler

    return around
