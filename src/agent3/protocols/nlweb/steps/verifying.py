"""Whether the page shows that a press did what it was for; a press that it turned down or asked back about is an error.

Nothing is known of the site. A page turns something down by the marks that pages use for it (``forms``), by its words,
by the status of its answer, or by asking back; it has taken something where something else is new on it. A form that
still holds what was filled in needs more: a word of success, a count that moved, or what was given in a new place.
"""

from __future__ import annotations

import asyncio
import re
import time
from typing import Any

from msgspec import Struct, convert

from agent3.definitions import Condition, NLWebAction
from agent3.errors import Rejected, TargetError
from agent3.protocols.nlweb.browser.sdk import playwright
from agent3.protocols.nlweb.steps.actions import Step
from agent3.protocols.nlweb.steps.forms import MESSAGES, Traffic
from agent3.protocols.nlweb.steps.run_context import RunContext
from agent3.protocols.nlweb.steps.waits import holds, ms_left
from agent3.sentences.site_answers import ACCEPTED, ASKS, HEDGED, LONGEST_MESSAGE, PENDING, refusals_in

__all__ = ["SECONDS", "asked_in_vain", "judges", "verified"]

SECONDS = 10.0
"""How long a page may take to show what came of a press, beyond the time of the press itself."""
_UNANSWERED = 2.0
"""How long one that asks no server is waited for."""
_QUIET = 0.25
_PAUSE = 0.05
_MOST_NEWS = 20
_MOVING = ("destroyed", "navigat", "detached", "closed")

_READ = (
    "() => { const answer = ("
    + MESSAGES
    + r""")([]);
  const squeeze = text => String(text ?? '').replace(/\s+/g, ' ').trim();
  const seen = one => one.checkVisibility?.({opacityProperty: true, visibilityProperty: true}) ?? true;
  // What stands below five thousand lines counts as not shown.
  const linesOf = root => (root?.innerText ?? '').split('\n').slice(0, 5000)
    .map(line => squeeze(line.replace(/\b\d{1,2}:\d{2}(:\d{2})?\b/g, ''))).filter(Boolean);
  const told = '[role=alert],[role=status],[class*=error i],[class*=message i],[class*=toast i],[class*=alert i]';
  const rows = [...document.querySelectorAll('tr,[role=row],li,article,nav,footer,aside,option')]
    .filter(one => !one.closest(told) && !one.querySelector(told));
  const asks = [...document.querySelectorAll('dialog[open],[role=dialog],[role=alertdialog],[aria-modal=true]')]
    .filter(seen).map(one => {
      const buttons = [...one.querySelectorAll('button,[role=button],input[type=submit],input[type=button]')]
        .filter(seen).map(each => squeeze(each.innerText || each.value));
      const no = /^(no\b|not? now|cancel|back|keep|never|volver|cancelar|atr[aá]s|mantener|conservar)/i;
      const fields = [...one.querySelectorAll('input:not([type=hidden]),select,textarea')].filter(seen);
      return {text: squeeze(one.innerText).slice(0, 300),
              open: fields.length > 0 || (buttons.length > 1 && buttons.some(each => no.test(each)))};
    });
  const fields = [...document.querySelectorAll('input,select,textarea')].slice(0, 500)
    .filter(one => !['hidden', 'submit', 'button', 'image', 'reset', 'checkbox', 'radio', 'password']
      .includes(one.type) && seen(one));
  const wrong = [...document.querySelectorAll('input:user-invalid,select:user-invalid,textarea:user-invalid')]
    .filter(seen).map(one => `${squeeze(one.labels?.[0]?.innerText || one.name)}: ${one.validationMessage}`);
  return {answer, lines: linesOf(document.body), rows: rows.slice(0, 2000).flatMap(linesOf).slice(0, 5000), asks, wrong,
    heads: [...document.querySelectorAll('h1,h2')].filter(seen).flatMap(linesOf),
    fields: fields.map(one => [one.name || one.id, [one.value, squeeze(one.selectedOptions?.[0]?.text)]]),
    marks: document.querySelectorAll('[aria-pressed=true],[aria-checked=true],[aria-selected=true],:checked').length};
}"""
)


class _Alert(Struct, frozen=True):
    text: str
    strong: bool
    good: bool


class _Answer(Struct, frozen=True):
    fields: list[tuple[str, str]]
    others: list[_Alert]
    status: list[str]
    born: float
    url: str


class _Ask(Struct, frozen=True):
    text: str
    open: bool


class _Sight(Struct, frozen=True):
    """What a person would see of a page at one moment."""

    answer: _Answer
    lines: list[str]
    rows: list[str]
    """Lines of what lists and tables hold, which may be called anything."""
    asks: list[_Ask]
    wrong: list[str]
    """Fields that the browser finds wrong after a person or a press has touched them."""
    heads: list[str]
    fields: list[tuple[str, tuple[str, str]]]
    marks: int

    def new_lines(self, before: _Sight) -> list[str]:
        """Those that were not to be seen before, in time that does not grow with the square of a page."""
        known = frozenset(before.lines)
        return [line for line in self.lines if line not in known]

    @property
    def shape(self) -> object:
        """All of it that says something."""
        return self.answer, self.lines, self.asks, self.wrong, self.fields, self.marks


def judges(action: NLWebAction) -> bool:
    """Whether the page is asked what came of a step."""
    return action.verify not in (None, "none")


def verified(step: Step) -> Step:
    """The step, done only when the page shows it; with ``refusal``, unless the page turns it down.

    Rejected says in the page's words why it was turned down; TargetError that nothing shows it was done. What the page
    said is in ``ctx.news``.
    """

    async def verify(ctx: RunContext, action: NLWebAction, ms: float) -> Any:
        end = time.monotonic() + ms / 1000
        is_free = action.verify == "refusal"
        before = await _look(ctx, action, ms_left(end))
        denied, traffic, news = len(ctx.denied), Traffic(ctx.page), ctx.news
        said = " ".join(map(str, ctx.parameters.values()))
        if ctx.confirmed and not is_free:
            ctx.agreed = f"{ctx.label} {action.description} {said}".replace("_", " ")
        try:
            result = await step(ctx, action, ms_left(end))
            ctx.pressed = True
            after = await _watch(ctx, action, before, traffic, denied)
        finally:
            ctx.agreed = ""
            traffic.end()
        lost = after.answer.url.startswith("chrome-error:")  # the browser's own page, where none came
        ctx.news = [] if lost else _find_news(ctx, before, after)
        what = ctx.label.partition(" (")[0] or action.action_type.value  # its selector says nothing to a caller
        if lost:
            raise TargetError(
                f"Step {what} was done once, but the page that comes after it could not be loaded. Check the result "
                "before you try again."
            )
        if refusal := _find_refusal(ctx, action, before, after, traffic, ctx.denied[denied:]):
            text = f"{refusal[0].upper()}{refusal[1:]} (step {what})"
            raise Rejected(text, data={"page": _address(after), "seen": ctx.news})
        if is_free:
            ctx.news = news
            return result
        if doubt := await _find_doubt(ctx, action, before, after, traffic):
            told = f" The page shows: {'; '.join(ctx.news[:3])}." if ctx.news else ""
            raise TargetError(
                f"Step {what} was done once, but {doubt}.{told} Check the result before you try again.",
                data={"page": _address(after), "seen": ctx.news},
            )
        return result

    return verify


def asked_in_vain(denied: list[str]) -> str:
    """What is told of a dialog that was answered with no, since no step says how it is to be answered."""
    return (
        f"the page asked “{denied[-1][:200]}”, and was answered with no. To answer with yes, put a step "
        "{action_type: dialog, value: accept} before it."
    )


async def _look(ctx: RunContext, action: NLWebAction, ms: float) -> _Sight:
    """What is seen now; while the page moves to another one, that one is waited for."""
    end = time.monotonic() + ms / 1000
    while True:
        try:
            place = await ctx.get_place(action, ms_left(end))
            return convert(await place.evaluate(_READ), _Sight, strict=False)
        except playwright().Error as error:
            if time.monotonic() > end or not any(word in error.message for word in _MOVING):
                raise
            await asyncio.sleep(_PAUSE)


async def _watch(ctx: RunContext, action: NLWebAction, before: _Sight, traffic: Traffic, denied: int) -> _Sight:
    """Wait until the page has come to rest after it answered, or its time to answer is over."""
    begin = changed = time.monotonic()
    after = await _look(ctx, action, SECONDS * 1000)
    while (now := time.monotonic()) - begin < SECONDS:
        answered = after.shape != before.shape or len(ctx.denied) > denied or traffic.loads or traffic.refused
        is_calm = traffic.quiet_for > _QUIET and now - changed > _QUIET
        is_pending = any(PENDING.search(line) for line in after.new_lines(before))
        waits = isinstance(action.verify, Condition) and not _is_refused(ctx, action, before, after, traffic)
        if is_calm and answered and not is_pending and (not waits or await _holds(ctx, action)):
            break
        if is_calm and not answered and not waits and now - begin > _UNANSWERED:
            break
        await asyncio.sleep(_PAUSE)
        latest = await _look(ctx, action, SECONDS * 1000)
        if latest.shape != after.shape:
            changed = time.monotonic()
        after = latest
    return after


def _is_refused(ctx: RunContext, action: NLWebAction, before: _Sight, after: _Sight, traffic: Traffic) -> bool:
    return bool(_find_refusal(ctx, action, before, after, traffic, ctx.denied))


async def _holds(ctx: RunContext, action: NLWebAction) -> bool:
    if not isinstance(action.verify, Condition):
        return True
    return await holds(ctx, await ctx.get_place(action, 1000.0), action.verify, action.frame)


def _find_refusal(
    ctx: RunContext, action: NLWebAction, before: _Sight, after: _Sight, traffic: Traffic, denied: list[str]
) -> str:
    """How the page turned the press down or asked back; empty where it did not."""
    if denied:
        return asked_in_vain(denied)
    may_ask = action.verify != "refusal"  # steps that its author wrote may leave a question open
    asked = [one for one in after.asks if one not in before.asks and (one.open or ASKS.search(one.text))]
    if may_ask and asked:
        return f"the page asks back, and it was not answered: “{asked[0].text}”"
    moved = after.answer.born != before.answer.born
    said = [f"{name}: {text}" for name, text in after.answer.fields]
    still_there = _holds_filled(ctx, after)
    for alert in after.answer.others:
        if not moved and alert in before.answer.others:
            continue
        refusing = refusals_in(alert.text, _pressed(action))
        taken = alert.good or ACCEPTED.search(alert.text)
        if alert.strong or refusing or (still_there and not taken):
            said.append(alert.text)
    new = after.new_lines(before)
    if not moved and not new:
        said += after.wrong
    in_place = [line for line in new if ASKS.search(line) and len(line) < LONGEST_MESSAGE and not moved]
    if may_ask and in_place:
        return f"the page asks back, and it was not answered: “{in_place[0]}”"
    # What rows are called turns nothing down. On another page any text may speak of what is required, unless the form
    # is there again: then only its headings count.
    here = not moved or _is_back(ctx, before, after)
    rows, fresh = frozenset(after.rows), frozenset(new)
    told = [line for line in new if line not in rows] if here else [line for line in after.heads if line in fresh]
    said += [line for line in told if refusals_in(line, _pressed(action)) and not any(line in one for one in said)]
    if said:
        return f"the website did not accept it: {'; '.join(dict.fromkeys(said[:5]))}"[:600]
    if traffic.refused:
        shown = f": {'; '.join(ctx.news[:3])}" if ctx.news else ""
        return f"the website answered with status {traffic.refused[-1]}{shown}"[:600]
    return ""


async def _find_doubt(ctx: RunContext, action: NLWebAction, before: _Sight, after: _Sight, traffic: Traffic) -> str:
    """Why it cannot be said that it was done; empty where the page shows it."""
    if isinstance(action.verify, Condition):
        if await _holds(ctx, action):
            return ""
        said = action.verify.model_dump(exclude_defaults=True, by_alias=True)
        return f"the page does not show {', '.join(f'{name} {value!r}' for name, value in said.items())}"
    if traffic.loads:
        return ""
    if after.shape == before.shape and after.answer.born == before.answer.born:
        return "nothing on the page shows it"
    if after.answer.born != before.answer.born and after.lines == before.lines:
        return "the page that came is the same as before"
    new = after.new_lines(before)
    told = {alert.text for alert in after.answer.others} | {*after.answer.status}
    same, rows = after.answer.born == before.answer.born, frozenset(after.rows)
    for line in new:
        is_message = line in told or (same and line not in rows)
        if is_message and len(line) < LONGEST_MESSAGE and HEDGED.search(line) and not ACCEPTED.search(line):
            return "the page does not say that it is done"
    is_back = after.answer.born != before.answer.born and _is_back(ctx, before, after)
    if not is_back and not _holds_filled(ctx, after):
        return ""
    counts = {re.sub(r"\d+", "#", line) for line in before.new_lines(after)}
    names = [value for value in _given(ctx) if len(value) > 2]
    shows = any(ACCEPTED.search(line) for line in [*new, *after.answer.status]) or any(
        re.sub(r"\d+", "#", line) in counts or any(name in line for name in names) for line in new
    )
    moved = after.answer.url.partition("#")[0] != before.answer.url.partition("#")[0]
    return "" if shows or (moved and not is_back) else "its form is still there, and nothing says that it was accepted"


def _is_back(ctx: RunContext, before: _Sight, after: _Sight) -> bool:
    """Whether the form that was filled in is shown once more, as where it was not accepted."""
    given = _given(ctx)
    names = {name for name, values in before.fields if not given.isdisjoint(values)}
    return bool(names) and names <= {name for name, _ in after.fields}


def _holds_filled(ctx: RunContext, sight: _Sight) -> bool:
    """Whether a form still holds what the caller gave."""
    given = _given(ctx)
    return any(not given.isdisjoint(values) for _, values in sight.fields)


def _given(ctx: RunContext) -> set[str]:
    values = (str(value).strip() for value in ctx.parameters.values() if isinstance(value, str | int | float))
    return {value for value in values if value}


def _pressed(action: NLWebAction) -> str:
    """The words for what was pressed, as far as its step has any."""
    return f"{action.selector or ''} {action.description}"


def _address(sight: _Sight) -> str:
    return sight.answer.url.partition("?")[0].partition("#")[0]


def _find_news(ctx: RunContext, before: _Sight, after: _Sight) -> list[str]:
    """What the page says now and did not before: its messages first, then its headings, then the rest."""
    messages = [*after.answer.status, *(alert.text for alert in after.answer.others)]
    lines = [" ".join(line.split()) for line in [*messages, *after.heads, *after.lines]]
    known = {*before.lines, *before.answer.status, *(alert.text for alert in before.answer.others)}
    new = [line for line in dict.fromkeys(lines) if line not in known]
    if not new and after.answer.born == before.answer.born:  # such as the row that was deleted
        gone = frozenset(before.new_lines(after))
        new = [f"gone: {line}" for line in before.rows if line in gone]
    return ctx.show_news(new, _MOST_NEWS)
