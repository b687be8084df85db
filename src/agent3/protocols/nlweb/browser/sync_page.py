"""A synchronous view of a Playwright page, usable from any thread and inside a running event loop.

Playwright's own synchronous page refuses where a loop runs and belongs to one thread. This one hands every call to the
loop on which the real page lives. It adds nothing and knows no steps.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from typing import Any

__all__ = ["View"]

Run = Callable[[Coroutine[Any, Any, Any]], Any]

_SDK = "playwright."


class View:
    """Something of Playwright's with its coroutines turned into plain calls: a page, a locator, a response.

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
        return self._call(found) if inspect.ismethod(found) else self._wrap(found)

    def __repr__(self) -> str:
        return f"<synchronous view of {self._target!r}>"

    def _call(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            plain = [_unwrap(one) for one in args]
            named = {name: _unwrap(one) for name, one in kwargs.items()}
            return self._wrap(self._run(_settled(method, plain, named)))

        call.__name__ = method.__name__
        call.__doc__ = method.__doc__
        return call

    def _wrap(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._wrap(one) for one in value]
        return View(value, self._run) if type(value).__module__.startswith(_SDK) else value


async def _settled(method: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Some methods of the page are coroutines and some, such as ``locator``, are not; both run where the page lives."""
    result = method(*args, **kwargs)
    return await result if inspect.isawaitable(result) else result


def _unwrap(value: Any) -> Any:
    return value._target if isinstance(value, View) else value  # noqa: SLF001 - its own kind
