"""A synchronous view of a Playwright page, usable from any thread and inside a running event loop.

Playwright's own synchronous page belongs to one thread and refuses to work where a loop is running. This view hands
every call to the loop on which the real page lives. It adds nothing and knows no steps.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from typing import Any

__all__ = ["View"]

Run = Callable[[Coroutine[Any, Any, Any]], Any]

_SDK = "playwright."


class View:
    """A Playwright object (page, locator, response) with its coroutines turned into plain calls.

    Attributes are read directly; methods run on the page's own loop and return when they are done. Handlers given to
    ``on`` are called on that loop and must not call back into a view. Playwright's ``expect_…`` managers are left out.
    """

    __slots__ = ("_run", "_target")

    def __init__(self, target: Any, run: Run):
        self._target = target
        self._run = run

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("_", "expect_")):
            raise AttributeError(f"{type(self._target).__name__} has no synchronous {name!r}")
        found = getattr(self._target, name)
        if not inspect.ismethod(found):
            return self._wrap(found)

        async def invoke(args: list[Any], kwargs: dict[str, Any]) -> Any:
            # Some methods are coroutines and some, such as ``locator``, are not; both must run where the page lives.
            result = found(*args, **kwargs)
            return await result if inspect.isawaitable(result) else result

        def call(*args: Any, **kwargs: Any) -> Any:
            plain = [_unwrap(value) for value in args]
            named = {key: _unwrap(value) for key, value in kwargs.items()}
            return self._wrap(self._run(invoke(plain, named)))

        call.__name__ = found.__name__
        call.__doc__ = found.__doc__
        return call

    def __repr__(self) -> str:
        return f"<synchronous view of {self._target!r}>"

    def _wrap(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._wrap(item) for item in value]
        return View(value, self._run) if type(value).__module__.startswith(_SDK) else value


def _unwrap(value: Any) -> Any:
    return value._target if isinstance(value, View) else value  # noqa: SLF001 - our own class
