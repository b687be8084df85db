"""Whether a row that a sentence names is the only one of that name, where a page does not show all of its rows.

A list may go on on another page, below "Load more", or in a section that is shut.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from agent3.protocols.nlweb.driver.evidence import must_report
from agent3.protocols.nlweb.driver.page_plans import Act
from agent3.protocols.nlweb.driver.page_view import Control, PageView
from agent3.protocols.nlweb.driver.sentences import Clause
from agent3.protocols.nlweb.driver.wording import FILLERS, Token, read_words, says_row
from agent3.sentences.consequences import has_consequences
from agent3.sentences.lexicon import fold

__all__ = [
    "find_back",
    "find_more",
    "find_next",
    "has_namesake",
    "is_shut_away",
    "needs_only_one",
    "said_of",
]

_NEXT = re.compile(
    r"(?:next|siguiente|proxima)(?: (?:page|pagina))?|(?:go to )?next page"
    r"|pagina siguiente|[>\u203a\u00bb\u2192]{1,2}"
)
_BACK = re.compile(
    r"(?:previous|prev|anterior)(?: (?:page|pagina))?|(?:go to )?previous page|pagina anterior"
    r"|[<\u2039\u00ab\u2190]{1,2}"
)
_MORE = re.compile(
    r"(?:load|show|view|see|cargar|mostrar|ver)\s+(?:\d+\s+)?(?:more|all|mas|tod[oa]s)\b.{0,30}"
    r"|older|more results|mas resultados"
)
_PAGES = re.compile(r"\bpag(?:e|in)")


def needs_only_one(act: Act) -> bool:
    """Whether an act changes something of a row, so that another row of that name must be told from it."""
    if not act.control.row:
        return False
    return act.kind in ("check", "clear", "choose", "write") or (act.kind == "press" and must_report(act.control))


def said_of(clause: Clause, control: Control) -> list[Token]:
    """The words of a clause that tell the row of a control."""
    words = [token for token in read_words(clause.text) if token.quoted or token.plain not in FILLERS]
    return [token for token in words if says_row([token], control)]


def has_namesake(view: PageView, control: Control, said: Sequence[Token]) -> bool:
    """Whether the page shows a row of which the same is said."""
    return any(
        one.role == control.role and one.name == control.name and bool(one.row)
        and all(says_row([token], one) for token in said)
        for one in view.visible
    )  # fmt: skip


def is_shut_away(view: PageView, control: Control, said: Sequence[Token]) -> bool:
    """Whether a section that is shut has another row of which the same is said."""
    shown = {(one.frame, one.index) for one in (*view.visible, control)}
    hidden = [one for one in view.reachable.visible if (one.frame, one.index) not in shown]
    return has_namesake(PageView(hidden, ()), control, said)


def find_next(view: PageView, control: Control) -> Control | None:
    """What leads to the next page of the list of a control, where the page says that it has several of them."""
    return _find_turning(view, control, _NEXT)


def find_back(view: PageView, control: Control) -> Control | None:
    """What leads to the page before."""
    return _find_turning(view, control, _BACK)


def _find_turning(view: PageView, control: Control, way: re.Pattern[str]) -> Control | None:
    called = [one for one in view.visible if _leads(one, control) and way.fullmatch(_plain(one)) and not one.disabled]
    if beside := [one for one in called if control.list in one.turns]:
        return beside[0]  # of two, one stands above the list and one below it
    # "Previous" and "Next" alone may as well be of a player or of the steps of a form.
    paged = [one for one in called if -1 in one.turns or (not one.row and _PAGES.search(_told(one)))]
    return paged[0] if len(paged) == 1 else None


def find_more(view: PageView, control: Control) -> Control | None:
    """What shows more of the list of a control, and not just what is on the page and shut."""
    openers = {(one.frame, one.opener) for one in view.controls}
    found = [one for one in view.visible if _is_by(one, control) and _MORE.fullmatch(_plain(one))]
    return next((one for one in found if one.index > control.index and (one.frame, one.index) not in openers), None)


def _is_by(one: Control, control: Control) -> bool:
    return _leads(one, control) and not one.row


def _leads(one: Control, control: Control) -> bool:
    return (
        one.role in ("button", "link") and one.frame == control.frame and not one.sends
        and not has_consequences(one.name)
    )  # fmt: skip


def _told(control: Control) -> str:
    return _plain(control) + " " + fold(" ".join(text for texts in control.places for text in texts))


def _plain(control: Control) -> str:
    return " ".join(fold(control.name).split())
