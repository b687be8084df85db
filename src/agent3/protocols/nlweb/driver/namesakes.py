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
_NUMBER = re.compile(r"(?:go to )?(?:(?:page|pagina) )?\d{1,3}")


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
    shown = {(one.frame, one.index) for one in view.visible}
    hidden = [one for one in view.reachable.visible if (one.frame, one.index) not in shown]
    return has_namesake(PageView(hidden, ()), control, said)


def find_next(view: PageView, control: Control) -> Control | None:
    """What leads to the next page of the list of a control, where the page says that it has several of them."""
    near = [one for one in view.visible if _is_by(one, control)]
    found = [one for one in near if _NEXT.fullmatch(_plain(one)) and not one.disabled]
    # "Previous" and "Next" alone may as well be of a player or of the steps of a form.
    paged = any(_NUMBER.fullmatch(_plain(one)) for one in near)
    named = [_plain(one) + " " + fold(" ".join(text for texts in one.places for text in texts)) for one in found]
    return found[0] if len(found) == 1 and (paged or re.search(r"\bpag(?:e|in)", named[0])) else None


def find_back(view: PageView, control: Control) -> Control | None:
    """What leads to the page before."""
    found = [one for one in view.visible if _is_by(one, control) and _BACK.fullmatch(_plain(one)) and not one.disabled]
    return found[0] if len(found) == 1 else None


def find_more(view: PageView, control: Control) -> Control | None:
    """What shows more of the list of a control."""
    found = [one for one in view.visible if _is_by(one, control) and _MORE.fullmatch(_plain(one))]
    return next((one for one in found if one.index > control.index), None)


def _is_by(one: Control, control: Control) -> bool:
    return (
        one.role in ("button", "link") and not one.row and one.frame == control.frame and not one.sends
        and not has_consequences(one.name)
    )  # fmt: skip


def _plain(control: Control) -> str:
    return " ".join(fold(control.name).split())
