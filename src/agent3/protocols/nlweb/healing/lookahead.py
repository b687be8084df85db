"""Looking ahead: the elements of the next steps, read in one evaluation with that of the step at hand.

A step that types into one field and a step that types into the next mostly run on the same document, so one message to
the browser can serve them all. Only what was there is believed, once, and only until something may have changed it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec

import agent3.protocols.nlweb.healing.page_script as script
from agent3.definitions import ActionType, NLWebAction
from agent3.protocols.nlweb.browser.sdk import playwright
from agent3.protocols.nlweb.healing.fingerprints import Fingerprint, parse_fingerprint

if TYPE_CHECKING:
    from playwright.async_api import Frame, Page

__all__ = ["Lookahead"]

_GENTLE = frozenset(map(ActionType, "type select check uncheck hover upload".split()))
"""Steps after which the same document is expected, with what was there before still in it."""
_ON_ELEMENT = _GENTLE | {ActionType.CLICK, ActionType.PRESS, ActionType.FILL, ActionType.SUBMIT}
_MOST = 8
_SECONDS = 2.0
"""How long a look is good for."""


class Lookahead:
    """What the next steps will find, for one session at a time."""

    def __init__(self) -> None:
        self._steps: Sequence[NLWebAction] = ()
        self._seen: dict[str, Fingerprint] = {}
        self._place: Any = None
        self._until = 0.0
        self._checked: dict[str, tuple[Any, Fingerprint, float]] = {}
        self._page: Page | None = None

    def begin(self, steps: Sequence[NLWebAction]) -> None:
        """These steps come, in this order."""
        self._steps = steps
        self._forget_document()

    def note_step(self, action: NLWebAction) -> None:
        """A step was done: one that may lead elsewhere makes what was seen worthless."""
        if action.action_type not in _GENTLE or action.popup or action.wait_for:
            self._seen = {}

    def note_checked(self, place: Page | Frame, selector: str, seen: Fingerprint) -> None:
        """An element was looked at and is the one that is meant."""
        self._watch(place)
        self._checked[selector] = place, seen, time.monotonic() + _SECONDS

    def find_checked(self, place: Page | Frame, selector: str) -> Fingerprint | None:
        """The element as it was looked at on this very document, if that is no longer ago than a moment.

        A look costs a message, and often makes a click miss the frame that it would have come into.
        """
        where, seen, until = self._checked.get(selector, (None, None, 0.0))
        return seen if where is place and time.monotonic() < until else None

    async def look(self, place: Page | Frame, action: NLWebAction) -> Fingerprint | None:
        """The element of the step as it is, or was a moment ago on this very document; None if that is not known."""
        selector = action.selector or ""
        if place is not self._place or time.monotonic() > self._until:
            self._seen = {}
        if (seen := self._seen.pop(selector, None)) is not None:
            return seen
        # The selectors of the step and of those after it, up to one that may lead elsewhere.
        at = next((number for number, step in enumerate(self._steps) if step.selector == action.selector), None)
        coming = {selector: None} if at is not None else {}
        for before, step in pairwise(self._steps[at : at + _MOST] if at is not None else ()):
            if before.action_type not in _GENTLE or before.popup or before.wait_for or step.frame != action.frame:
                break
            # One with a placeholder is not filled yet, and would fit nothing.
            if step.action_type in _ON_ELEMENT and step.selector and "{" not in step.selector:
                coming[step.selector] = None
        if len(coming) < 2:
            return None
        self._watch(place)
        try:
            found = await place.evaluate(script.MANY, list(coming))
            self._seen = {key: parse_fingerprint(seen) for key, seen in zip(coming, found, strict=True) if seen}
        except (playwright().Error, msgspec.ValidationError, KeyError, TypeError, ValueError):
            self._seen = {}
        self._place, self._until = place, time.monotonic() + _SECONDS
        return self._seen.pop(selector, None)

    def _watch(self, place: Page | Frame) -> None:
        """Forget everything as soon as the page has another document."""
        page: Any = getattr(place, "page", place)
        if page is self._page:
            return
        if self._page is not None:
            self._page.remove_listener("framenavigated", self._forget_document)
        page.on("framenavigated", self._forget_document)
        self._page = page

    def _forget_document(self, *_: object) -> None:
        self._seen, self._checked = {}, {}
