"""Which element of the page a step means: the one its selector names, unless a finder knows better."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from playwright.async_api import Frame, Locator, Page

    from agent3.definitions import NLWebAction

__all__ = ["Awaited", "Finder", "SelectorFinder", "Trust"]

Trust = Literal["same", "unsure", "changed"]
"""Whether a page is still the one on which a selector used to fit something."""


@dataclass(frozen=True, slots=True)
class Awaited:
    """An element that a step or a condition speaks of without acting on it. ``sure`` is whether it must come."""

    selector: str
    frame: str = ""
    state: Literal["attached", "visible"] = "visible"
    sure: bool = True


class Finder(Protocol):
    """Finds the element of a step, on a page or in one of its frames."""

    async def begin(self, action: str, steps: Sequence[NLWebAction] = ()) -> None:
        """An action begins, with these steps; their placeholders are not filled yet."""
        ...

    async def find(self, page: Page | Frame, action: NLWebAction, ms: float) -> Locator:
        """The element, waited for up to that time; Playwright's TimeoutError when nothing fits."""
        ...

    async def note_success(self, page: Page | Frame, action: NLWebAction, locator: Locator) -> None:
        """A step succeeded. The page may be another one by then."""
        ...

    async def appears(self, page: Page | Frame, awaited: Awaited, ms: float) -> None:
        """Wait up to that time until an element is there; Playwright's TimeoutError, or CallTimeout, if it is not."""
        ...

    async def locate(self, page: Page | Frame, awaited: Awaited) -> Locator:
        """What a condition's selector means, now. It neither waits nor looks for another: absence is an answer."""
        ...

    async def note_extraction(self, page: Page | Frame, action: NLWebAction, *, found: bool) -> Trust:
        """Whether the selectors of an extraction found something; how far to believe it where they did not."""
        ...

    async def end(self, *, ok: bool) -> None:
        """The action ended, well or not."""
        ...

    def describe_heals(self) -> list[dict[str, Any]]:
        """Which selectors of the running action, or the last one, did not fit, and what was taken in their place."""
        ...


class SelectorFinder:
    """The first match of the selector; it remembers nothing. What is done with the element waits for it."""

    async def begin(self, action: str, steps: Sequence[NLWebAction] = ()) -> None:
        """Nothing to do."""

    async def find(self, page: Page | Frame, action: NLWebAction, ms: float) -> Locator:
        """The first match, whether it is there yet or not."""
        return page.locator(action.selector or "").first

    async def note_success(self, page: Page | Frame, action: NLWebAction, locator: Locator) -> None:
        """Nothing to do."""

    async def appears(self, page: Page | Frame, awaited: Awaited, ms: float) -> None:
        await page.locator(awaited.selector).first.wait_for(state=awaited.state, timeout=ms)

    async def locate(self, page: Page | Frame, awaited: Awaited) -> Locator:
        return page.locator(awaited.selector)

    async def note_extraction(self, page: Page | Frame, action: NLWebAction, *, found: bool) -> Trust:
        """Nothing is remembered, so nothing found is an answer."""
        return "same"

    async def end(self, *, ok: bool) -> None:
        """Nothing to do."""

    def describe_heals(self) -> list[dict[str, Any]]:
        """Nothing is taken in a selector's place."""
        return []
