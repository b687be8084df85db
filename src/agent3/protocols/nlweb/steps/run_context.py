"""What the steps of a run share: the page in front, what they may use, and what they have found out so far.

It follows popups, answers dialogs and keeps their texts. It knows no step: those are in ``actions``, and their order is
in ``workflow``.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent3.definitions import NLWebAction, NLWebInterface
from agent3.errors import TargetError
from agent3.identity.redaction import redact
from agent3.identity.secrets import Secret
from agent3.llm.port import LLM
from agent3.protocols.nlweb.browser.sdk import playwright, well_formed
from agent3.protocols.nlweb.steps.locator import Finder, SelectorFinder
from agent3.security.sanitize import rewrite_value
from agent3.sentences.consequences import says_more

if TYPE_CHECKING:
    from playwright.async_api import Dialog, Frame, Page

    from agent3.protocols.nlweb.steps.snapshots import Snapshots

__all__ = ["Place", "RunContext", "Secrets", "Source"]

Place = Any
"""A Playwright ``Page`` or ``Frame``: what has ``locator`` and ``evaluate``."""
Secrets = Callable[[str], str]
"""Gives the secret of a name, when a step needs it and not before."""

_MOST_PAGES = 5
_MOST_DIALOGS = 20
_LONGEST_NEWS = 200


@dataclass(frozen=True, slots=True)
class Source:
    """Where data came from: selectors, json-ld, microdata, structure, model, nothing; or webmcp, a tool of the page."""

    step: str
    how: str
    rows: int


@dataclass(eq=False)
class RunContext:
    """The page in front and everything around it. It belongs to the loop of its page.

    ``parameters`` are the caller's; ``memory`` holds what steps saved, and ``dialog``, the text of the last dialog.
    ``sources`` tells of each extraction of the running action where its data came from.
    """

    first: Page
    interface: NLWebInterface
    finder: Finder = field(default_factory=SelectorFinder)
    uploads: Path | None = None
    llm: LLM | None = None
    secrets: Secrets | None = None
    snapshots: Snapshots | None = None
    parameters: dict[str, Any] = field(default_factory=dict)
    memory: dict[str, Any] = field(default_factory=dict)
    known: list[str] | None = None
    """What the page said before the last press of an action that reads nothing; None for any other."""
    news: list[str] = field(default_factory=list)
    """What the page said to the last step that verifies what came of it."""
    denied: list[str] = field(default_factory=list)
    """What the page asked in dialogs of the browser that were answered with no, and no step had said so."""
    sources: list[Source] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    """What the running action did or met besides its steps, for its caller."""
    dialogs: deque[str] = field(default_factory=lambda: deque(maxlen=_MOST_DIALOGS))
    tools: list[str] = field(default_factory=list)
    """Tools of the page itself that the running action has called."""
    submitted: set[str] = field(default_factory=set)
    """Forms, with what was in them, that this action has sent."""
    used_secrets: set[str] = field(default_factory=set)
    """What no record, message or result may show as long as the page is open: it may come back much later."""
    passwords: set[str] = field(default_factory=set)
    """What was typed into fields for passwords and the like: no record may show it."""
    label: str = ""
    """The step that is running, for records."""
    confirmed: bool = False
    """Whether the running action is one whose consequences are confirmed before it runs."""
    reads: bool = False
    """Whether the running action promises to change nothing."""
    pressed: bool = False
    """Whether the step under way has pressed what it verifies: it is not tried again then."""
    agreed: str = ""
    """What a person has said yes to, while it is done: a dialog that asks for no more than that gets the same yes."""
    answer: str | None = "dismiss"
    """What the next dialogs are answered with: accept, dismiss, or a text; None where somebody else answers."""
    answers_as_told: bool = False
    """Whether a step of the action has said how dialogs are answered."""
    _popups: list[Page] = field(default_factory=list)
    _followed: list[Page] = field(default_factory=list)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        context = self.first.context
        context.on("page", self.on_page)
        context.on("dialog", self.on_dialog)

    @property
    def page(self) -> Page:
        """The page in front: the latest followed popup that is still open, else the first page."""
        followed = [popup for popup in self._followed if not popup.is_closed()]
        return followed[-1] if followed else self.first

    @property
    def ignored_popups(self) -> int:
        """How many popups opened that no step spoke of."""
        return sum(popup not in self._followed and not popup.is_closed() for popup in self._popups)

    def follow(self, popup: Page) -> None:
        """Go on in a popup that a step opened.

        Others stay behind: whether an unannounced one is there before the next step begins is a matter of luck, and a
        sequence must not depend on it.
        """
        self._followed.append(popup)

    @property
    def values(self) -> dict[str, Any]:
        """What placeholders and conditions may speak of."""
        return {**self.parameters, **self.memory}

    def named_in(self, selector: str) -> str | None:
        """What a caller named by a parameter, where a selector looks for it by that text."""
        quoted = [
            one or other for one, other in re.findall(r"""\"([^"]*)\"|'([^']*)'""", selector)
        ]  # only these are filled
        texts = [re.sub(r"\\([0-9a-f]+) ", lambda code: chr(int(code[1], 16)), text) for text in quoted]
        said = [value for value in self.parameters.values() if isinstance(value, str) and value.strip()]
        found = [value for value in said if not self.passwords & {value} and any(value in text for text in texts)]
        return max(found, key=len, default=None)

    def show_news(self, lines: Sequence[str], most: int) -> list[str]:
        """The first lines of what a page said, cut, and without those that hold what was typed in confidence."""
        hidden = self.used_secrets | self.passwords
        return [line[:_LONGEST_NEWS] for line in lines if not any(secret in line for secret in hidden)][:most]

    def begin(self, parameters: Mapping[str, Any] | None = None) -> None:
        """Forget what the last action knew. Its popups are closed by ``tidy``."""
        self.parameters = dict(parameters or {})
        self.memory.clear()
        self.known = None
        self.news.clear()
        self.denied.clear()
        self.sources.clear()
        self.notices.clear()
        self.tools.clear()
        self.dialogs.clear()
        self.submitted.clear()
        self.answer = "dismiss"
        self.answers_as_told = False

    @property
    def private(self) -> bool:
        """Whether something was typed that no picture and no record of this page may show."""
        return bool(self.used_secrets or self.passwords)

    def without_secrets(self, value: Any) -> Any:
        """A text or any other JSON value as it may leave: well-formed, and no spelling of a used secret in it."""
        value = well_formed(value)
        hidden = [Secret(text) for text in self.used_secrets]
        return rewrite_value(value, lambda text: redact(text, hidden)) if hidden else value

    async def tidy(self) -> None:
        """Close every popup, so that the next action begins on the first page."""
        popups, self._popups, self._followed = self._popups, [], []
        for popup in popups:
            with suppress(playwright().Error):
                await popup.close()

    async def renew(self, page: Page) -> None:
        """Go on with this page as the first one. The old one is closed, and so are its popups."""
        # The old page may no longer answer, so its end is not waited for.
        old, self.first = self.first, page
        self._popups = [popup for popup in self._popups if popup is not page]
        self._run_soon(old.close())
        await self.tidy()

    async def close_front(self) -> None:
        """Close the popup in front; TargetError if there is none."""
        if self.page is self.first:
            raise TargetError("There is no popup to close: only the first page is open.")
        await self.page.close()

    async def get_place(self, action: NLWebAction, ms: float) -> Page | Frame:
        """Where a step acts: the page in front, or the iframe that it names."""
        if not action.frame:
            return self.page
        handle = await self.page.locator(action.frame).first.element_handle(timeout=ms)
        inside = await handle.content_frame()
        if inside is None:
            raise TargetError(f"{action.frame!r} is not an iframe. Name the iframe itself, not its container.")
        return inside

    def on_page(self, page: Page) -> None:
        """A page opened: note a popup, and close the oldest of too many."""
        if page is self.first:
            return
        self._popups = [popup for popup in self._popups if not popup.is_closed()]
        self._popups.append(page)
        if len(self._popups) > _MOST_PAGES:
            # A page that opens popups without end must not fill the memory: the oldest that no step asked for goes.
            strangers = [popup for popup in self._popups[:-1] if popup not in self._followed]
            self._run_soon((strangers or [page])[0].close())

    def on_dialog(self, dialog: Dialog) -> None:
        """Answer a dialog as the steps said, and keep its text."""
        self.dialogs.append(well_formed(dialog.message[:2000]))
        self.memory["dialog"] = self.dialogs[-1]
        if self.answer is None:
            return
        # A page that asks whether to leave it would hold every navigation up.
        if dialog.type == "beforeunload" or self.answer == "accept":
            self._run_soon(dialog.accept())
        elif self.answer == "dismiss":
            if dialog.type == "confirm" and self.agreed and not says_more(self.agreed, dialog.message):
                self._run_soon(dialog.accept())
                return
            if dialog.type in ("confirm", "prompt") and not self.answers_as_told:
                self.denied.append(self.dialogs[-1])
            self._run_soon(dialog.dismiss())
        else:
            self._run_soon(dialog.accept(self.answer))

    def _run_soon(self, work: Any) -> None:
        """Answer or close from an event handler, which cannot wait; the dialog or page may be gone before."""

        async def run() -> None:
            with suppress(playwright().Error):
                await work

        task = asyncio.ensure_future(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
