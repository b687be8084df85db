"""Selectors as they were written and as they were filled: which words of one are the caller's.

``tr:has-text("{product}") button`` means another element for every product. What is remembered of it is kept under the
selector as its author wrote it, and without the caller's words, which concern no other caller; what is taken in its
place must stand beside these words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agent3.definitions import NLWebAction
from agent3.protocols.nlweb.steps.parameters import match_template, selector_templates

__all__ = ["FilledSelector", "Templates"]


@dataclass(frozen=True, slots=True)
class FilledSelector:
    """A selector that is looked for: as its author wrote it, as it is filled, and with what.

    ``given`` are the placeholders as they are written, each with what the caller put in its place.
    """

    template: str
    selector: str
    given: tuple[tuple[str, str], ...] = ()

    @property
    def values(self) -> list[str]:
        """The caller's words."""
        return [value for _, value in self.given]


class Templates:
    """The selectors of an action as they were written."""

    def __init__(self, steps: Sequence[NLWebAction] = ()) -> None:
        self._all = selector_templates(steps)

    def recognize(self, selector: str) -> FilledSelector:
        """How a filled selector was written. Of several that it could come from, the one that says most by itself."""
        best: tuple[int, str, tuple[tuple[str, str], ...]] | None = None
        for template in self._all if selector not in self._all else ():
            if (given := match_template(template, selector)) is not None:
                own = len(template) - sum(len(name) for name, _ in given)
                best = max(best, (own, template, given)) if best else (own, template, given)
        return FilledSelector(best[1], selector, best[2]) if best else FilledSelector(selector, selector)

    def has_placeholders(self, selector: str) -> bool:
        """Whether it is one that must be filled before it means anything."""
        return selector in self._all and match_template(selector, selector) is not None
