"""A person clicks, we write: what is done on a page becomes the steps of an action.

Only what the person does counts (the browser vouches for its events). What is typed becomes a parameter, and is not
written down: it may be an address, or the number of a card. A password is never read and becomes a secret. What posts
something, or says so on its button, has consequences. What a page tells us is bounded, for its scripts could speak up
too: a recording is a proposal for its author to read.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from agent3.definitions import ActionHints, ActionType, NLWebAction, NLWebActionInfo, NLWebInterface
from agent3.errors import ValidationError
from agent3.protocols.nlweb.authoring.learning import Draft, read_page
from agent3.protocols.nlweb.authoring.selectors import NAMING, literal, slug, unique
from agent3.protocols.nlweb.steps.consequences import has_consequences
from agent3.security.sanitize import clean_text

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, Frame, Page, Request

__all__ = ["Heard", "Recorder"]

_MOST_STEPS = 400
_LONGEST = 1_000
_AFTER = 3.0
"""Seconds in which a navigation is the doing of the step before it."""
_KINDS = {
    "click": ActionType.CLICK,
    "type": ActionType.TYPE,
    "select": ActionType.SELECT,
    "check": ActionType.CHECK,
    "uncheck": ActionType.UNCHECK,
    "press": ActionType.PRESS,
    "password": ActionType.TYPE,
}
_LAST_COUNTS = frozenset({ActionType.TYPE, ActionType.SELECT, ActionType.NAVIGATE})
_READING = frozenset({ActionType.NAVIGATE, ActionType.EXTRACT, ActionType.SCROLL, ActionType.WAIT})

_SENDING = frozenset({"document", "fetch", "xhr"})
"""Not the beacons, by which pages count their visitors."""

_LISTEN = (
    "(() => { const tell = globalThis['NAME']; if (!tell) return;"
    + NAMING
    + r"""
  const shownOn = element => words(element.innerText) || labelOf(element) || words(element.value);
  const send = (kind, element, value) => tell({
    kind, selector: selectorOf(element), label: kind === 'click' ? shownOn(element) : labelOf(element),
    value: String(value ?? '').slice(0, 500),
  });
  const typed = element => /^(input|textarea)$/.test(element.localName)
    && !['checkbox', 'radio', 'submit', 'button', 'image', 'reset', 'file', 'range', 'color'].includes(element.type);
  document.addEventListener('change', event => {
    const one = event.target;
    if (!event.isTrusted || !one.localName) return;
    if (one.localName === 'select') send('select', one, one.value);
    else if (one.type === 'checkbox') send(one.checked ? 'check' : 'uncheck', one);
    else if (one.type === 'radio') send('check', one);
    else if (one.type === 'password') send('password', one);
    else if (typed(one) || ['range', 'color'].includes(one.type)) send('type', one, one.value);
  }, true);
  document.addEventListener('keydown', event => {
    const one = event.target;
    if (!event.isTrusted || event.key !== 'Enter' || !typed(one)) return;
    send(one.type === 'password' ? 'password' : 'type', one, one.type === 'password' ? '' : one.value);
    send('press', one, 'Enter');
  }, true);
  const PRESSED = 'a,button,summary,[role=button],[role=link],[role=tab],[role=menuitem],[onclick],input,label';
  document.addEventListener('click', event => {
    if (!event.isTrusted) return;
    const from = event.composedPath()[0];
    const one = from.closest?.(PRESSED) ?? from;
    if (!one.localName || one.localName === 'html' || one.localName === 'body') return;
    // Enter in a field makes a click of its own, on a button that has not the focus.
    if (!event.detail && document.activeElement !== one) return;
    if (typed(one) || one.localName === 'select' || one.localName === 'option' || one.localName === 'textarea') return;
    if (['checkbox', 'radio'].includes(one.type) || one.control) return;
    send('click', one);
  }, true);
})()"""
)


@dataclass(frozen=True, slots=True)
class Heard:
    """One thing that the person did."""

    kind: ActionType
    selector: str
    label: str
    value: str
    secret: bool = False


@dataclass(eq=False)
class Recorder:
    """Listens to a context from now on. ``on_step`` hears of each thing done, for the person to see."""

    on_step: Any = None
    _heard: list[Heard] = field(default_factory=list)
    _posted: bool = False
    _latest: float = 0.0
    _url: str = ""

    async def begin(self, context: BrowserContext, page: Page) -> None:
        """Listen on every page of the context; before the first one is opened."""
        name = f"__heard_{secrets.token_hex(8)}"  # so that no page expects it
        await context.expose_binding(name, self._note)
        await context.add_init_script(_LISTEN.replace("NAME", name))
        page.on("framenavigated", lambda frame: self._moved(page, frame))
        context.on("request", self._asked)

    def interface(self, *, action: str = "recorded", title: str = "") -> NLWebInterface:
        """What was done, as one action; ValidationError if nothing was."""
        if not self._heard:
            raise ValidationError("Nothing was recorded: no page was opened.")
        draft = Draft(self._url, title)
        steps, properties = _steps(self._heard, draft)
        acts = any(step.action_type not in _READING for step in steps)
        info = NLWebActionInfo(
            description=f"Recorded on {urlsplit(self._url).hostname}",
            input_schema={
                "type": "object",
                "properties": properties,
                "required": list(properties),
                "additionalProperties": False,
            },
            hints=ActionHints(read_only=not acts, consequential=self._posted or any(map(_weighs, self._heard))),
        )
        draft.add(action, [*steps, *read_page()], info)
        return draft.interface()

    # Inside

    def _note(self, source: Any, said: Any) -> None:
        """Something was done on a page. What does not have the right form is no word of ours."""
        if not isinstance(said, dict) or said.get("kind") not in _KINDS or len(self._heard) >= _MOST_STEPS:
            return
        selector = said.get("selector")
        if not isinstance(selector, str) or not 0 < len(selector) <= _LONGEST:
            return
        heard = Heard(
            _KINDS[said["kind"]],
            selector,
            clean_text(str(said.get("label") or ""))[:120],
            str(said.get("value") or "")[:_LONGEST],
            secret=said["kind"] == "password",
        )
        self._latest = time.monotonic()
        self._add(heard)

    def _asked(self, request: Request) -> None:
        """A request that the page made; one that sends something soon after a deed is its consequence."""
        sends = request.method not in ("GET", "HEAD", "OPTIONS") and request.resource_type in _SENDING
        if sends and self._latest and time.monotonic() - self._latest < _AFTER:
            self._posted = True

    def _moved(self, page: Page, frame: Frame) -> None:
        """A new address: the first, or one that the person gave by hand."""
        if frame is not page.main_frame or not frame.url.startswith(("http:", "https:")):
            return
        self._url = self._url or frame.url
        if not self._heard or time.monotonic() - self._latest > _AFTER:
            self._add(Heard(ActionType.NAVIGATE, "", "", frame.url))

    def _add(self, heard: Heard) -> None:
        last = self._heard[-1] if self._heard else None
        if last is not None and last.selector == heard.selector:
            if last.kind is ActionType.PRESS and heard.kind is ActionType.TYPE:
                return  # the browser tells of the change once more when the form is sent
            if last.kind is heard.kind and heard.kind in _LAST_COUNTS:
                self._heard.pop()
        self._heard.append(heard)
        if self.on_step is not None:
            self.on_step(heard)


def _steps(heard: list[Heard], draft: Draft) -> tuple[list[NLWebAction], dict[str, Any]]:
    """The steps, and the parameters that were found in them."""
    taken: set[str] = set()
    properties: dict[str, Any] = {}
    steps = []
    for one in heard:
        value: str | None = literal(one.value) or None
        if one.kind is ActionType.NAVIGATE:
            value = literal(_path(one.value))
        elif one.secret:
            value = draft.secret(one.label or "password")
        elif one.kind in (ActionType.TYPE, ActionType.SELECT):
            name = unique(slug(one.label, "field"), taken)
            properties[name] = {"type": "string", "description": one.label}
            value = f"{{{name}}}"
        elif one.kind is not ActionType.PRESS:
            value = None
        selector = literal(one.selector) or None
        steps.append(NLWebAction(action_type=one.kind, selector=selector, value=value, description=_described(one)))
    return steps, properties


def _weighs(one: Heard) -> bool:
    return one.kind is ActionType.CLICK and has_consequences(one.label)


def _described(one: Heard) -> str:
    return f"{one.kind.value} {one.label}".strip() if one.label else ""


def _path(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.path or '/'}{'?' + parts.query if parts.query else ''}"
