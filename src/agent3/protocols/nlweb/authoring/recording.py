"""Recording: what a person does on a page becomes the steps of an action.

Only what the person does counts (the browser marks such events as trusted). What is typed becomes a parameter, and is
not written down: it may be an address, or the number of a card. A password is never read and becomes a secret. What
posts something, or says so on its button, has consequences. What a page reports is bounded, since its own scripts could
report something too: a recording is a proposal for its author to read.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from agent3.definitions import ActionHints, ActionType, NLWebAction, NLWebActionInfo, NLWebInterface
from agent3.errors import ValidationError
from agent3.protocols.nlweb.authoring.learning import Draft, read_page
from agent3.protocols.nlweb.authoring.selectors import NAMING, make_unique, slugify
from agent3.protocols.nlweb.steps.parameters import escape_braces
from agent3.security.sanitize import clean_text
from agent3.sentences.consequences import has_consequences

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, Frame, Page, Request

__all__ = ["RecordedStep", "Recorder"]

_MOST_STEPS = 400
_LONGEST = 1_000
_AFTER = 3.0
"""Seconds in which a navigation or a request is the consequence of the step before it."""
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

_PRESSING = frozenset({ActionType.CLICK, ActionType.PRESS})
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
class RecordedStep:
    """One thing that the person did."""

    kind: ActionType
    selector: str
    label: str
    value: str
    secret: bool = False


@dataclass(eq=False)
class Recorder:
    """Listens to a context from now on. ``on_step`` is told of each thing done, for the person to see."""

    on_step: Callable[[RecordedStep], None] | None = None
    _steps: list[RecordedStep] = field(default_factory=list)
    _posting: set[int] = field(default_factory=set)
    """The steps after which something was posted, by their place."""
    _latest: float = 0.0
    _url: str = ""

    async def begin(self, context: BrowserContext, page: Page) -> None:
        """Listen on every page of the context; before the first one is opened."""
        name = f"__heard_{secrets.token_hex(8)}"  # so that no page expects it
        await context.expose_binding(name, self._note_event)
        await context.add_init_script(_LISTEN.replace("NAME", name))

        def note_request(request: Request) -> None:
            """A request that sends something soon after a step is its consequence."""
            sends = request.method not in ("GET", "HEAD", "OPTIONS") and request.resource_type in _SENDING
            if sends and self._steps and self._latest and time.monotonic() - self._latest < _AFTER:
                self._posting.add(len(self._steps) - 1)

        context.on("request", note_request)

        def note_navigation(frame: Frame) -> None:
            """A new address: the first, or one that the person gave by hand."""
            if frame is not page.main_frame or not frame.url.startswith(("http:", "https:")):
                return
            self._url = self._url or frame.url
            if not self._steps or time.monotonic() - self._latest > _AFTER:
                self._add(RecordedStep(ActionType.NAVIGATE, "", "", frame.url))

        page.on("framenavigated", note_navigation)

    def interface(self, *, action: str = "recorded", title: str = "") -> NLWebInterface:
        """What was done, as one action; ValidationError if nothing was."""
        if not self._steps:
            raise ValidationError("Nothing was recorded: no page was opened.")
        draft = Draft(self._url, title)
        taken: set[str] = set()
        properties: dict[str, Any] = {}
        steps = []
        for place, done in enumerate(self._steps):
            value: str | None = escape_braces(done.value) or None
            if done.kind is ActionType.NAVIGATE:
                parts = urlsplit(done.value)
                value = escape_braces(f"{parts.path or '/'}{'?' + parts.query if parts.query else ''}")
            elif done.secret:
                value = draft.secret(done.label or "password")
            elif done.kind in (ActionType.TYPE, ActionType.SELECT):
                name = make_unique(slugify(done.label, "field"), taken)
                properties[name] = {"type": "string", "description": done.label}
                value = f"{{{name}}}"
            elif done.kind is not ActionType.PRESS:
                value = None
            selector = escape_braces(done.selector) or None
            description = f"{done.kind.value} {done.label}".strip() if done.label else ""
            said = done.kind is ActionType.CLICK and has_consequences(done.label)
            sends = said or (done.kind in _PRESSING and place in self._posting)
            steps.append(
                NLWebAction(
                    action_type=done.kind,
                    selector=selector,
                    value=value,
                    description=description,
                    verify="change" if sends else None,
                )
            )
        only_reads = all(step.action_type in _READING for step in steps)
        consequential = bool(self._posting) or any(step.verify for step in steps)
        info = NLWebActionInfo(
            description=f"Recorded on {urlsplit(self._url).hostname}",
            input_schema={
                "type": "object",
                "properties": properties,
                "required": list(properties),
                "additionalProperties": False,
            },
            hints=ActionHints(read_only=only_reads, consequential=consequential),
        )
        draft.add(action, steps if steps[-1].verify else [*steps, *read_page()], info)
        return draft.interface()

    def _note_event(self, source: Any, event: Any) -> None:
        """Something was done on a page. What does not have the right form did not come from our script."""
        if not isinstance(event, dict) or event.get("kind") not in _KINDS or len(self._steps) >= _MOST_STEPS:
            return
        selector = event.get("selector")
        if not isinstance(selector, str) or not 0 < len(selector) <= _LONGEST:
            return
        self._latest = time.monotonic()
        self._add(
            RecordedStep(
                _KINDS[event["kind"]],
                selector,
                clean_text(str(event.get("label") or ""))[:120],
                str(event.get("value") or "")[:_LONGEST],
                secret=event["kind"] == "password",
            )
        )

    def _add(self, step: RecordedStep) -> None:
        last = self._steps[-1] if self._steps else None
        if last is not None and last.selector == step.selector:
            if last.kind is ActionType.PRESS and step.kind is ActionType.TYPE:
                return  # the browser tells of the change once more when the form is sent
            if last.kind is step.kind and step.kind in _LAST_COUNTS:
                self._steps.pop()
        self._steps.append(step)
        if self.on_step is not None:
            self.on_step(step)
