"""Getting past a banner that asks for cookies, while a step waits for what is behind it.

Only what is plainly such a banner is touched: the box of a known vendor, or one that says that the site uses cookies,
or speaks of them and of privacy, tracking or partners, with no price and no field in it; and only by a button whose
whole label stands in the lists below. A word alone is no sign: bakeries sell cookies, and clinics ask for consent.
Every press is logged, counted and reported to the caller. Nothing is learnt, and no language model is asked.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from agent3.observe import logs
from agent3.observe.metrics import METRICS
from agent3.protocols.nlweb.browser.sdk import playwright
from agent3.protocols.nlweb.steps.run_context import RunContext
from agent3.protocols.nlweb.steps.waits import ms_left

if TYPE_CHECKING:
    from playwright.async_api import Locator

__all__ = ["clear_banner", "past_banner"]

Deed = Callable[["Locator", float], Awaitable[Any]]

logger = logs.get("nlweb")

_PAUSE = 0.3
_MOST_FRAMES = 8
DECLINE = (
    "reject all", "reject", "reject all cookies", "decline", "decline all", "deny", "deny all", "refuse", "refuse all",
    "only necessary", "necessary only", "only essential", "essential only", "necessary cookies only",
    "use necessary cookies only", "accept only necessary", "continue without accepting", "no thanks",
    "rechazar", "rechazar todo", "rechazar todas", "rechazar cookies", "denegar", "solo necesarias", "solo necesarios",
    "solo las necesarias", "continuar sin aceptar", "no, gracias",
    "ablehnen", "alle ablehnen", "nur notwendige", "nur essenzielle", "refuser", "tout refuser",
    "continuer sans accepter", "rifiuta", "rifiuta tutto", "recusar", "recusar tudo",
)  # fmt: skip
ACCEPT = (
    "accept all", "accept", "accept all cookies", "accept cookies", "i accept", "agree", "i agree", "allow all",
    "allow all cookies", "aceptar", "aceptar todo", "aceptar todas", "aceptar cookies", "de acuerdo",
    "akzeptieren", "alle akzeptieren", "alle annehmen", "tout accepter", "accepter", "accetta", "accetta tutto",
    "aceitar", "aceitar tudo",
)  # fmt: skip
NOTED = (
    "close", "dismiss", "got it", "ok", "okay", "understood", "\u00d7", "\u2715", "x", "cerrar", "entendido", "vale",
)  # fmt: skip
"""For a banner that only informs: one that offers nothing else, and takes nothing in."""

_CLEAR = r"""([labels, noted, acted, grave]) => {
  const vendor = new RegExp('onetrust|cookiebot|didomi|usercentrics|qc-cmp|truste|iubenda|osano|klaro|termly|cmplz'
    + '|borlabs|axeptio|tarteaucitron|fc-consent|sp_message|cky-|cookieyes|cc-window|cookieconsent'
    + '|(cookie|consent|gdpr|rgpd|dsgvo)[-_ ]?(banner|bar|notice|box|popup|modal|consent|law|wall|message|overlay'
    + '|manager|dialog)', 'i');
  const topic = /cookie|galleta/i;
  const purpose = new RegExp('privacy|privacidad|datenschutz|confidentialit|tracking|tracker|partners|socios'
    + '|partenaires|analytics|anal[ií]tic|personali[sz]|advertis|publicidad|publicit|third.part|terceros|gdpr|rgpd'
    + '|dsgvo|cookie.(policy|settings|preferences|notice)|pol[ií]tica de cookies', 'i');
  const used = new RegExp('(\\buses?|\\busing|\\bverwend\\w*|\\bnutz\\w*|\\butilis\\w*|\\butiliz\\w*|\\busa(mos|n)?'
    + '|\\busiamo)( \\S+){0,3} cookies\\b|\\bcookies\\b.{0,40}\\b(help us|this (web)?site|propias)', 'i');
  const money = '([€$£¥]|\\b(eur|euros?|usd|gbp|chf|dollars?|pounds?)\\b)';
  const amount = new RegExp(`${money}\\s*\\d|\\d\\s*${money}`, 'i');
  const seen = element => element.checkVisibility?.({visibilityProperty: true, opacityProperty: true}) ?? true;
  const stuck = element => ['fixed', 'sticky', 'absolute'].includes(getComputedStyle(element).position);
  const named = element => vendor.test(element.id + ' ' + element.getAttribute('class'));
  const deep = root => [...root.querySelectorAll('*')]
    .flatMap(one => one.shadowRoot ? [one, ...deep(one.shadowRoot)] : [one]);
  const all = deep(document);
  const text = element => (element.shadowRoot ? element.shadowRoot.textContent : element.innerText ?? '').trim();
  const opened = one => one.matches('dialog[open],[role=dialog],[role=alertdialog]');
  const stands = one => opened(one) || named(one) || stuck(one);
  const pressable = 'button,[role=button],input[type=button],input[type=submit]';
  const inside = (box, what) => deep(box.shadowRoot ?? box).filter(one => one.matches(what) && seen(one));
  const asks = 'input:not([type=button],[type=submit],[type=checkbox],[type=hidden]),select,textarea,main,nav,h1';
  // What opened after we did something is probably an answer to that, and must say more to be a banner. The page
  // itself knows of a click before we hear that it was done.
  acted ||= ['pointerdown', 'keydown'].some(one => performance.eventCounts?.get(one));
  const plainly = (one, said) => said.length < 1500 && topic.test(said) && (acted && opened(one)
    ? used.test(said) && purpose.test(said) : used.test(said) || purpose.test(said));
  const about = (one, said) => said.length < 4000 && !amount.test(said) && !inside(one, asks).length
    && (named(one) ? topic.test(said) || purpose.test(said) : !grave && plainly(one, said));
  // A vendor's own box is known by its name. Any other must plainly be about cookies, and is left alone in an action
  // with consequences.
  const boxes = all.filter(one => stands(one) && seen(one) && about(one, text(one)));
  const label = one => (one.innerText || one.value || one.getAttribute('aria-label') || '').trim().toLowerCase();
  const press = (buttons, wanted) => {
    const found = wanted.map(one => buttons.find(each => label(each) === one)).find(Boolean);
    found?.click();
    return found ? label(found) : null;
  };
  const pressed = press(boxes.flatMap(box => inside(box, pressable + ',a')), labels);
  if (pressed || grave) return pressed;
  // "OK" below a question about cookies, in a shop that sells them, is an order.
  const informs = box => inside(box, pressable).every(one => noted.includes(label(one)))
    && !inside(box, 'input:not([type=button],[type=submit]),select,textarea').length;
  return press(boxes.filter(informs).flatMap(box => inside(box, pressable + ',a')), noted);
}"""


async def past_banner(ctx: RunContext, found: Locator, deed: Deed, end: float) -> Any:
    """Do something with an element; while that waits, clear a banner away.

    The deed is done once, with all the time there is: it waits by itself until nothing is in its way. To break it off
    and begin again could click twice.
    """
    if ctx.interface.consent == "leave":
        return await deed(found, ms_left(end))

    async def watch() -> None:
        while time.monotonic() < end:
            await asyncio.sleep(_PAUSE)
            if await clear_banner(ctx):
                return

    watching = asyncio.ensure_future(watch())
    try:
        done = await deed(found, ms_left(end))
        page = ctx.page
        if page not in _watched:
            _watched.add(page)
            page.on("domcontentloaded", _acted_on.discard)
        _acted_on.add(page)
        return done
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError, playwright().Error):
            await watching


async def clear_banner(ctx: RunContext) -> str | None:
    """Put a banner away if one is there; the label that was pressed, or None."""
    labels = DECLINE if ctx.interface.consent == "decline" else ACCEPT
    asked = [list(labels), list(NOTED), ctx.page in _acted_on, ctx.confirmed]
    for frame in ctx.page.frames[:_MOST_FRAMES]:
        with suppress(playwright().Error):
            pressed: str | None = await frame.evaluate(_CLEAR, asked)
            if pressed:
                where = f"a banner about cookies on {ctx.page.url.split('?')[0]}"
                logger.info("%s: pressed %r in %s, at step %s", ctx.interface.name, pressed, where, ctx.label)
                METRICS.nlweb_banners.inc((ctx.interface.consent,))
                ctx.notices.append(f"Pressed {pressed!r} in {where} (step {ctx.label}).")
                return pressed
    return None


_acted_on: WeakSet[Any] = WeakSet()
"""The pages on whose document a step has done something."""
_watched: WeakSet[Any] = WeakSet()
"""The pages that say when they have another document."""
