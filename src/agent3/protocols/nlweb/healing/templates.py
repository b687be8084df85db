"""Selectors as they were written and as they were filled: which words of one are the caller's.

``tr:has-text("{product}") button`` means another element for every product. What is remembered of it is kept under the
selector as its author wrote it, and without the caller's words, which are nobody else's business; what is taken in its
place must stand beside these words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agent3.definitions import NLWebAction
from agent3.protocols.nlweb.steps.parameters import match_template, selector_templates

__all__ = ["Given", "Spoken", "Templates"]

Given = tuple[tuple[str, str], ...]
"""Placeholders as they are written, each with what the caller put in its place."""


@dataclass(frozen=True, slots=True)
class Spoken:
    """A selector that is looked for: as its author wrote it, as it is filled, and with what."""

    template: str
    selector: str
    given: Given = ()

    @property
    def values(self) -> list[str]:
        """The caller's words."""
        return [value for _, value in self.given]


class Templates:
    """The selectors of an action as they were written."""

    def __init__(self, steps: Sequence[NLWebAction] = ()) -> None:
        self._all = selector_templates(steps)

    def read(self, selector: str) -> Spoken:
        """How a filled selector was written. Of several that it could come from, the one that says most by itself."""
        found = [] if selector in self._all else [one for one in self._all if match_template(one, selector) is not None]
        if not found:
            return Spoken(selector, selector)
        template = max(
            found, key=lambda one: (len(one) - sum(len(name) for name, _ in match_template(one, selector) or ()), one)
        )
        return Spoken(template, selector, match_template(template, selector) or ())

    def has_gaps(self, selector: str) -> bool:
        """Whether it is one that must be filled before it means anything."""
        return selector in self._all and match_template(selector, selector) is not None
