"""Which element of the page a step means: the one its selector names, unless a finder knows better."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from playwright.async_api import Frame, Locator, Page

    from agent3.definitions import NLWebAction

__all__ = ["Finder", "Plain"]


class Finder(Protocol):
    """Finds the element of a step, on a page or in one of its frames."""

    async def begin(self, action: str) -> None:
        """Told that the steps of an action begin."""
        ...

    async def find(self, page: Page | Frame, action: NLWebAction, ms: float) -> Locator:
        """The element, waited for up to that time; Playwright's TimeoutError when nothing fits."""
        ...

    async def worked(self, page: Page | Frame, action: NLWebAction, locator: Locator) -> None:
        """Told after a step succeeded. The page may be another one by then."""
        ...

    async def end(self, *, ok: bool) -> None:
        """Told that the action ended, well or not."""
        ...


class Plain:
    """The first match of the selector. It does not wait: what is done with the element waits for it."""

    async def begin(self, action: str) -> None:
        """Nothing is remembered."""

    async def find(self, page: Page | Frame, action: NLWebAction, ms: float) -> Locator:
        """The first match, whether it is there yet or not."""
        return page.locator(action.selector or "").first

    async def worked(self, page: Page | Frame, action: NLWebAction, locator: Locator) -> None:
        """Nothing is remembered."""

    async def end(self, *, ok: bool) -> None:
        """Nothing is remembered."""
