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

from msgspec import Struct, convert

from agent3.errors import CallTimeout, Conflict, TargetError, ValidationError
from agent3.protocols.nlweb.browser.sdk import playwright
from agent3.protocols.nlweb.steps.parameters import nearest
from agent3.protocols.nlweb.steps.scene import Place, Scene
from agent3.protocols.nlweb.steps.waits import left

if TYPE_CHECKING:
    from playwright.async_api import Locator, Page, Request

__all__ = ["FormField", "fill", "read", "submit"]

_CONTROLS = "input, select, textarea"
_PAUSE = 0.03
_QUIET = 0.3
_PATIENCE = 1.5
"""Seconds for which a page that has spoken may still be asking for something."""
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
  return {strict: !form.noValidate, entries, action: form.action, method: form.method};
}"""
_FORM = "element => element.closest('form') ?? element.querySelector('form') ?? element"
_BUTTON = """element => {
  const form = element.closest('form') ?? element.querySelector('form');
  if (element.matches('button, input[type=submit], input[type=image], [role=button]')) return element;
  const ways = 'button:not([type]), button[type=submit], input[type=submit], input[type=image]';
  return form?.querySelector(ways) ?? null;
}"""
_MESSAGES = """names => {
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
  const strong = /error|danger|invalid/i;
  const alerts = [...document.querySelectorAll(marks)]
    .filter(one => seen(one) && text(one) && !one.querySelector(marks));
  const known = [...said.values()].join(' ');
  const others = alerts.filter(one => !known.includes(text(one)))
    .map(one => ({text: text(one), strong: strong.test(one.getAttribute('class') ?? '')}));
  const status = [...document.querySelectorAll('[role=status], output')].filter(seen).map(text).filter(Boolean);
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
        return _plain(wanted) in {_plain(one) for one in names if one}


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
        return [("", one["text"]) for one in self.others if one["strong"] or self.there]


async def read(form: Locator, ms: float) -> list[FormField]:
    """The fields of a form, or of any part of a page, in one evaluation."""
    return convert(await form.evaluate(_READ, timeout=ms), list[FormField])


async def fill(
    form: Locator, values: Mapping[str, str], ms: float, private: Callable[[str], None] = lambda _: None
) -> None:
    """Fill fields by their names, labels, ids or placeholders; TargetError names one that is not there.

    A box is ticked by ``true`` or ``yes``, of a group of buttons the one with that label or value is chosen.
    ``private`` hears of what goes into a field for passwords, before it does.
    """
    end = time.monotonic() + ms / 1000
    fields = await read(form, ms)
    chosen = [(_chosen(fields, name, value), value) for name, value in values.items()]
    for field, value in chosen:
        if field.type == "password":
            private(value)
        await _put(form.locator(_CONTROLS).nth(field.index), field, value, left(end))


def _chosen(fields: list[FormField], name: str, value: str) -> FormField:
    found = [one for one in fields if one.answers_to(name) and not one.disabled]
    if group := [one for one in fields if one.type == "radio" and (one in found or _plain(one.name) == _plain(name))]:
        found = [one for one in group if _plain(value) in (_plain(one.label), _plain(one.value))]
    if not found:
        known = {one.name if one.type == "radio" else one.known_as for one in fields}
        raise TargetError(f"The form has no field {name!r} that takes this value. {nearest(name, known)}")
    return found[0]


async def _put(control: Locator, field: FormField, value: str, ms: float) -> None:
    if field.type == "select":
        known = {_plain(text): key for key, text in field.options} | {_plain(key): key for key, _ in field.options}
        if _plain(value) not in known:
            texts = [text for _, text in field.options]
            raise TargetError(f"{field.known_as!r} has no choice {value!r}. {nearest(value, texts)}")
        await control.select_option(known[_plain(value)], timeout=ms)
    elif field.type == "radio":
        await control.check(timeout=ms)
    elif field.type == "checkbox":
        await control.set_checked(value.strip().lower() in _TRUE, timeout=ms)
    else:
        await control.fill(value, timeout=ms)


async def submit(scene: Scene, place: Place, found: Locator, end: float) -> dict[str, Any]:
    """Send the form that an element is, holds or belongs to, and give ``{"url", "outcome", "messages"}``.

    ValidationError lists what the browser or the site found wrong, by field; what the browser refuses is not sent.
    Conflict for the same form with the same content a second time, unless the site had refused it.
    """
    state = await found.evaluate(_STATE, timeout=left(end))
    if state is None:
        raise TargetError("There is no form to submit there. Name the form, its button, or what stands around it.")
    form = (await found.evaluate_handle(_FORM, timeout=left(end))).as_element()
    fields = convert(await form.evaluate(_READ), list[FormField]) if form else []
    if state["strict"]:
        _refuse_incomplete(fields)
    mark = _mark(state)
    if mark in scene.submitted:
        raise Conflict("This form was sent already with the same content. Look at what came of it before another try.")
    scene.submitted.add(mark)
    names = sorted({one.name for one in fields if one.name})
    before = await _said(place, names)
    after = await _send(scene.page, place, found, before, names, end)
    moved = after.born != before.born
    if refusals := [*after.fields, *(one for one in after.alerts if moved or one not in before.alerts)]:
        scene.submitted.discard(mark)
        raise _refused(refusals, fields)
    outcome = "moved" if moved or after.url != before.url else "sent"
    return {"url": after.url, "outcome": outcome, "messages": [*after.status, *(one["text"] for one in after.others)]}


async def _send(page: Page, place: Place, found: Locator, before: _Answer, names: list[str], end: float) -> _Answer:
    """Press the button, then wait until the page has moved, says something, or all that was asked is answered."""
    traffic = _Traffic(page)
    button = (await found.evaluate_handle(_BUTTON, timeout=left(end))).as_element()
    try:
        if button is not None:
            # It is the answer that is waited for, below: a click that waits for the next page could not say that it is
            # done, and whether the form has been sent is what matters most.
            await button.click(timeout=left(end), no_wait_after=True)
        else:
            await found.evaluate(f"element => ({_FORM})(element).requestSubmit()", timeout=left(end))
        async with asyncio.timeout(left(end) / 1000):
            after = await _said(place, names)
            while not _is_answered(after, before, traffic):
                await asyncio.sleep(_PAUSE)
                after = await _said(place, names)
    except TimeoutError:
        raise CallTimeout(
            "The form was sent, but the website has not answered in time. Look at what came of it before another try."
        ) from None
    finally:
        traffic.end()
    return after


def _is_answered(after: _Answer, before: _Answer, traffic: _Traffic) -> bool:
    """A word or another page is an answer, unless more is about to come; so is it when everything has been quiet."""
    spoke = (after.fields, after.others, after.status) != (before.fields, before.others, before.status)
    if after.born != before.born or spoke:
        return not traffic.busy or traffic.age > _PATIENCE
    return traffic.quiet_for > _QUIET


async def _said(place: Place, names: list[str]) -> _Answer:
    """What the page says now; while it moves to the next one, that one is waited for."""
    for _ in range(5):
        try:
            return convert(await place.evaluate(_MESSAGES, names), _Answer, strict=False)
        except playwright().Error as error:
            if "destroyed" not in error.message and "navigat" not in error.message:
                raise
            await place.wait_for_load_state("domcontentloaded")
    raise TargetError("The page went from one to the next after the form was sent, and did not come to rest.")


class _Traffic:
    """What a page asks for from now on, pictures and beacons aside: whether something is unanswered, and since when."""

    def __init__(self, page: Page):
        self._page = page
        self._open: set[Request] = set()
        self._start = self._since = time.monotonic()
        page.on("request", self._begun)
        page.on("requestfinished", self._done)
        page.on("requestfailed", self._done)

    @property
    def busy(self) -> bool:
        return bool(self._open)

    @property
    def quiet_for(self) -> float:
        return 0.0 if self._open else time.monotonic() - self._since

    def end(self) -> None:
        self._page.remove_listener("request", self._begun)
        self._page.remove_listener("requestfinished", self._done)
        self._page.remove_listener("requestfailed", self._done)

    @property
    def age(self) -> float:
        return time.monotonic() - self._start

    def _begun(self, request: Request) -> None:
        if request.resource_type in _ANSWERS:
            self._open.add(request)

    def _done(self, request: Request) -> None:
        if request in self._open:
            self._open.discard(request)
            self._since = time.monotonic()


def _refuse_incomplete(fields: list[FormField]) -> None:
    wrong = [one for one in fields if one.message and not one.disabled]
    if not wrong:
        return
    text = "; ".join(f"{one.known_as}: {one.message}" for one in wrong[:10])
    raise ValidationError(
        f"The form was not sent, because it is not complete. {text}",
        errors=[
            {"path": f"/{one.name or one.id}", "label": one.known_as, "message": one.message, "required": one.required}
            for one in wrong
        ],
    )


def _refused(refusals: list[tuple[str, str]], fields: list[FormField]) -> ValidationError:
    labels = {one.name or one.id: one.known_as for one in fields}
    said = [f"{labels.get(name, name)}: {text}" if name else text for name, text in refusals]
    return ValidationError(
        f"The website did not accept the form. {'; '.join(said[:10])}",
        errors=[{"path": f"/{name}", "label": labels.get(name, name), "message": text} for name, text in refusals],
    )


def _mark(state: dict[str, Any]) -> str:
    """The form and its content, without keeping the content."""
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def _plain(text: str) -> str:
    return " ".join(text.lower().replace("*", " ").strip().rstrip(":").split())
