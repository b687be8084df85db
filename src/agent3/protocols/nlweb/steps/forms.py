"""Forms: filled by the names that people see, checked before they are sent, sent once, and the site's answer read back.

The browser's own rules for a form are asked first, so that an incomplete one never leaves. What the site says to one
that was sent is found by the marks that pages use for it: ``aria-invalid``, ``role=alert`` and the usual classes.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from msgspec import Struct, convert

from agent3.errors import CallTimeout, Conflict, TargetError, ValidationError
from agent3.protocols.nlweb.browser.sdk import playwright
from agent3.protocols.nlweb.steps.parameters import suggest
from agent3.protocols.nlweb.steps.run_context import Place, RunContext
from agent3.protocols.nlweb.steps.waits import ms_left

if TYPE_CHECKING:
    from playwright.async_api import Locator, Page, Request, Response

__all__ = ["MESSAGES", "FormField", "Traffic", "fill", "submit"]

_CONTROLS = "input, select, textarea"
_PAUSE = 0.03
_QUIET = 0.3
_PATIENCE = 1.5
"""Seconds for which a page that has said something may still be loading more."""
_ANSWERS = frozenset({"document", "xhr", "fetch"})
_TRUE = frozenset({"true", "yes", "on", "1", "sí", "si"})

_READ = """root => {
  const label = one => (one.labels?.[0]?.innerText || one.getAttribute('aria-label')
    || document.getElementById(one.getAttribute('aria-labelledby'))?.innerText
    || one.placeholder || one.title || '').trim();
  const options = one => one.tagName === 'SELECT' ? [...one.options].map(each => [each.value, each.text.trim()]) : [];
  const kind = one => one.tagName === 'INPUT' ? one.type : one.tagName.toLowerCase();
  const skip = ['hidden', 'submit', 'button', 'reset', 'image'];
  return [...root.querySelectorAll('input, select, textarea')].map((one, index) => ({
    index, name: one.name, id: one.id, label: label(one), placeholder: one.placeholder ?? '', type: kind(one),
    value: ['radio', 'checkbox'].includes(one.type) ? one.value : '',
    required: one.required || one.ariaRequired === 'true', disabled: one.disabled, options: options(one),
    message: one.willValidate && !one.validity.valid ? one.validationMessage : '',
  })).filter(one => !skip.includes(one.type)).slice(0, 500);
}"""
_STATE = """element => {
  const form = element.closest('form') ?? element.querySelector('form');
  if (!form) return null;
  const entries = [...new FormData(form).entries()].map(([name, value]) => [name, value.name ?? value]);
  return {strict: !form.noValidate, entries, action: new URL(form.getAttribute('action') || '', document.baseURI).href,
    method: (form.getAttribute('method') || 'get').toLowerCase()};
}"""
_FORM = "element => element.closest('form') ?? element.querySelector('form') ?? element"
_BUTTON = """element => {
  const form = element.closest('form') ?? element.querySelector('form');
  if (element.matches('button, input[type=submit], input[type=image], [role=button]')) return element;
  const ways = 'button:not([type]), button[type=submit], input[type=submit], input[type=image]';
  return form?.querySelector(ways) ?? null;
}"""
MESSAGES = """names => {
  const seen = one => one.checkVisibility?.() ?? true;
  const text = one => (one?.innerText ?? '').trim().slice(0, 500);
  const said = new Map();
  for (const one of document.querySelectorAll('[aria-invalid=true]')) {
    const ids = `${one.getAttribute('aria-errormessage') ?? ''} ${one.getAttribute('aria-describedby') ?? ''}`;
    const words = ids.split(/\\s+/).filter(Boolean).map(id => text(document.getElementById(id))).filter(Boolean);
    said.set(one.name || one.id || 'field', words.join(' ') || one.validationMessage || 'not accepted');
  }
  const marks = '[role=alert], .error, .errors, .error-message, .field-error, .form-error, .invalid-feedback,'
    + ' .alert-danger';
  // An alert may also be good news; only one whose class says so is an error wherever it stands.
  const strong = /error|danger|invalid/i;
  const alerts = [...document.querySelectorAll(marks)]
    .filter(one => seen(one) && text(one) && !one.querySelector(marks));
  const known = [...said.values()].join(' ');
  const others = alerts.filter(one => !known.includes(text(one)))
    .map(one => ({text: text(one), strong: strong.test(one.getAttribute('class') ?? ''),
      good: /success|\\bok\\b|info/i.test(one.getAttribute('class') ?? '')}));
  const status = [...document.querySelectorAll('[role=status], output')].filter(seen).map(text).filter(Boolean);
  // The form is still shown if all of its fields are: then also a plain message next to it is about it.
  const there = names.length > 0 && names.every(name => [...document.getElementsByName(name)].some(seen));
  return {fields: [...said.entries()], others, status, there, born: performance.timeOrigin, url: location.href};
}"""


class FormField(Struct, frozen=True):
    """One field of a form, as the page shows it; ``message`` is what the browser finds wrong with its value."""

    index: int
    name: str
    id: str
    label: str
    placeholder: str
    type: str
    value: str
    required: bool
    disabled: bool
    options: list[tuple[str, str]]
    message: str

    @property
    def known_as(self) -> str:
        """What a person would call it."""
        return self.label or self.name or self.id or self.type

    def answers_to(self, wanted: str) -> bool:
        """Whether it is meant by this name, id, label or placeholder."""
        names = (self.name, self.id, self.label, self.placeholder)
        return _fold(wanted) in {_fold(name) for name in names if name}


class _Answer(Struct, frozen=True):
    """What the page says after a form was sent."""

    fields: list[tuple[str, str]]
    others: list[dict[str, Any]]
    status: list[str]
    there: bool
    born: float
    url: str

    @property
    def alerts(self) -> list[tuple[str, str]]:
        """Messages of no field. One that is not marked as an error counts while the form is still there."""
        return [("", alert["text"]) for alert in self.others if alert["strong"] or self.there]


async def fill(
    form: Locator, values: Mapping[str, str], ms: float, on_password: Callable[[str], None] = lambda _: None
) -> None:
    """Fill fields by their names, labels, ids or placeholders; TargetError names one that is not there.

    A box is ticked by ``true`` or ``yes``, of a group of buttons the one with that label or value is chosen.
    ``on_password`` is told of what goes into a field for passwords, before it does.
    """
    end = time.monotonic() + ms / 1000
    fields = convert(await form.evaluate(_READ, timeout=ms), list[FormField])
    chosen = []
    for name, value in values.items():
        found = [field for field in fields if field.answers_to(name) and not field.disabled]
        buttons = [field for field in fields if field.type == "radio"]
        if group := [field for field in buttons if field in found or _fold(field.name) == _fold(name)]:
            found = [field for field in group if _fold(value) in (_fold(field.label), _fold(field.value))]
        if not found:
            known = {field.name if field.type == "radio" else field.known_as for field in fields}
            raise TargetError(f"The form has no field {name!r} that takes this value. {suggest(name, known)}")
        chosen.append((found[0], value))
    for field, value in chosen:
        if field.type == "password":
            on_password(value)
        control = form.locator(_CONTROLS).nth(field.index)
        if field.type == "select":
            keys = {_fold(text): key for key, text in field.options} | {_fold(key): key for key, _ in field.options}
            if _fold(value) not in keys:
                texts = [text for _, text in field.options]
                raise TargetError(f"{field.known_as!r} has no option {value!r}. {suggest(value, texts)}")
            await control.select_option(keys[_fold(value)], timeout=ms_left(end))
        elif field.type == "radio":
            await control.check(timeout=ms_left(end))
        elif field.type == "checkbox":
            await control.set_checked(value.strip().lower() in _TRUE, timeout=ms_left(end))
        else:
            await control.fill(value, timeout=ms_left(end))


async def submit(ctx: RunContext, place: Place, found: Locator, end: float) -> dict[str, Any]:
    """Send the form that an element is, holds or belongs to, and give ``{"url", "outcome", "messages"}``.

    ValidationError lists what the browser or the site found wrong, by field; what the browser refuses is not sent.
    Conflict for the same form with the same content a second time, unless the site had refused it.
    """
    state = await found.evaluate(_STATE, timeout=ms_left(end))
    if state is None:
        raise TargetError("There is no form to submit here. Name the form, its button, or its container.")
    form = (await found.evaluate_handle(_FORM, timeout=ms_left(end))).as_element()
    fields = convert(await form.evaluate(_READ), list[FormField]) if form else []
    if state["strict"] and (invalid := [field for field in fields if field.message and not field.disabled]):
        text = "; ".join(f"{field.known_as}: {field.message}" for field in invalid[:10])
        raise ValidationError(
            f"The form was not sent, because it is incomplete. {text}",
            errors=[
                {
                    "path": f"/{field.name or field.id}",
                    "label": field.known_as,
                    "message": field.message,
                    "required": field.required,
                }
                for field in invalid
            ],
        )
    # The form and its content, without keeping the content.
    mark = hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()
    if mark in ctx.submitted:
        raise Conflict("This form was already sent with the same content. Check the result before you try again.")
    ctx.submitted.add(mark)
    names = sorted({field.name for field in fields if field.name})
    before = await _read_answer(place, names)
    after = await _send(ctx.page, place, found, before, names, end)
    moved = after.born != before.born
    if refusals := [*after.fields, *(alert for alert in after.alerts if moved or alert not in before.alerts)]:
        ctx.submitted.discard(mark)
        labels = {field.name or field.id: field.known_as for field in fields}
        said = [f"{labels.get(name, name)}: {text}" if name else text for name, text in refusals]
        raise ValidationError(
            f"The website did not accept the form. {'; '.join(said[:10])}",
            errors=[{"path": f"/{name}", "label": labels.get(name, name), "message": text} for name, text in refusals],
        )
    outcome = "moved" if moved or after.url != before.url else "sent"
    messages = [*after.status, *(alert["text"] for alert in after.others)]
    return {"url": after.url, "outcome": outcome, "messages": messages}


async def _send(page: Page, place: Place, found: Locator, before: _Answer, names: list[str], end: float) -> _Answer:
    """Press the button, then wait until the page has moved, says something, or all that was asked is answered."""
    traffic = Traffic(page)
    button = (await found.evaluate_handle(_BUTTON, timeout=ms_left(end))).as_element()
    try:
        if button is not None:
            # It is the answer that is waited for, below: a click that waits for the next page could not say that it is
            # done, and whether the form has been sent is what matters most.
            await button.click(timeout=ms_left(end), no_wait_after=True)
        else:
            await found.evaluate(f"element => ({_FORM})(element).requestSubmit()", timeout=ms_left(end))
        async with asyncio.timeout(ms_left(end) / 1000):
            while True:
                after = await _read_answer(place, names)
                spoke = (after.fields, after.others, after.status) != (before.fields, before.others, before.status)
                if after.born != before.born or spoke:
                    # A message or another page is an answer, unless more is about to come.
                    answered = not traffic.busy or traffic.age > _PATIENCE
                else:
                    answered = traffic.quiet_for > _QUIET
                if answered:
                    return after
                await asyncio.sleep(_PAUSE)
    except TimeoutError:
        raise CallTimeout(
            "The form was sent, but the website did not answer in time. Check the result before you try again."
        ) from None
    finally:
        traffic.end()


async def _read_answer(place: Place, names: list[str]) -> _Answer:
    """What the page says now; while it moves to the next one, that one is waited for."""
    for _ in range(5):
        try:
            return convert(await place.evaluate(MESSAGES, names), _Answer, strict=False)
        except playwright().Error as error:
            if "destroyed" not in error.message and "navigat" not in error.message:
                raise
            await place.wait_for_load_state("domcontentloaded")
    raise TargetError("After the form was sent, the page kept redirecting.")


class Traffic:
    """What a page asks for from now on, pictures and beacons aside: whether something is unanswered, and since when.

    ``refused`` are the statuses of 400 and above that were answered to what was sent; ``loads`` counts downloads.
    """

    def __init__(self, page: Page):
        self._page = page
        self.refused: list[int] = []
        self.loads = 0
        self._open: set[Request] = set()
        self._start = self._since = time.monotonic()
        self._heard: tuple[tuple[str, Callable[[Any], None]], ...] = (
            ("request", self._note_request),
            ("requestfinished", self._note_end),
            ("requestfailed", self._note_end),
            ("response", self._note_response),
            ("download", self._note_download),
        )
        for name, listener in self._heard:
            page.on(name, listener)  # type: ignore[call-overload]

    @property
    def busy(self) -> bool:
        return bool(self._open)

    @property
    def quiet_for(self) -> float:
        return 0.0 if self._open else time.monotonic() - self._since

    @property
    def age(self) -> float:
        return time.monotonic() - self._start

    def end(self) -> None:
        for name, listener in self._heard:
            self._page.remove_listener(name, listener)

    def _note_request(self, request: Request) -> None:
        if request.resource_type in _ANSWERS:
            self._open.add(request)

    def _note_end(self, request: Request) -> None:
        if request in self._open:
            self._open.discard(request)
            self._since = time.monotonic()

    def _note_response(self, response: Response) -> None:
        asked = response.request
        sends = asked.method not in ("GET", "HEAD") and urlsplit(asked.url).netloc == urlsplit(self._page.url).netloc
        if response.status >= 400 and asked.resource_type in _ANSWERS and (sends or asked.is_navigation_request()):
            self.refused.append(response.status)

    def _note_download(self, _: object) -> None:
        self.loads += 1


def _fold(text: str) -> str:
    return " ".join(text.lower().replace("*", " ").strip().rstrip(":").split())
