"""Getting past a banner that asks for cookies, while a step waits for what is behind it.

Only what calls itself a matter of cookies or consent is touched, and only by a button whose whole label stands in the
lists below. Nothing is learnt or stored, and no language model is asked.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from agent3.nlweb.scene import Scene
from agent3.nlweb.sdk import playwright
from agent3.nlweb.waiting import left

if TYPE_CHECKING:
    from playwright.async_api import Locator

__all__ = ["clear", "past"]

Deed = Callable[["Locator", float], Awaitable[Any]]

_PATIENCE = 0.3
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
    "close",
    "dismiss",
    "got it",
    "ok",
    "okay",
    "understood",
    "\u00d7",
    "\u2715",
    "x",
    "cerrar",
    "entendido",
    "vale",
)
"""For a banner that only informs."""

_CLEAR = """labels => {
  const topic = /cookie|consent|gdpr|rgpd|dsgvo|galleta/i;
  const seen = element => element.checkVisibility?.({visibilityProperty: true, opacityProperty: true}) ?? true;
  const stuck = element => ['fixed', 'sticky', 'absolute'].includes(getComputedStyle(element).position);
  const named = element => topic.test(element.id + ' ' + element.getAttribute('class'));
  const deep = root => [...root.querySelectorAll('*')]
    .flatMap(one => one.shadowRoot ? [one, ...deep(one.shadowRoot)] : [one]);
  const all = deep(document);
  const text = element => (element.shadowRoot ? element.shadowRoot.textContent : element.innerText ?? '').trim();
  const stands = one => one.matches('dialog[open],[role=dialog],[role=alertdialog]') || named(one) || stuck(one);
  const about = (one, said) => said.length < 4000 && (topic.test(said) || named(one));
  const boxes = all.filter(one => stands(one) && seen(one) && about(one, text(one)));
  const buttons = boxes.flatMap(box => deep(box.shadowRoot ?? box))
    .filter(one => one.matches('button,[role=button],input[type=button],input[type=submit],a') && seen(one));
  const label = one => (one.innerText || one.value || one.getAttribute('aria-label') || '').trim().toLowerCase();
  for (const wanted of labels) {
    const found = buttons.find(one => label(one) === wanted);
    if (found) { found.click(); return wanted; }
  }
  return null;
}"""


async def past(scene: Scene, found: Locator, deed: Deed, end: float) -> Any:
    """Do something with an element; while that waits, clear a banner away.

    The deed is done once, with all the time there is: it waits by itself until nothing is in its way. To break it off
    and begin again could click twice.
    """
    if scene.interface.consent == "leave":
        return await deed(found, left(end))
    watch = asyncio.ensure_future(_watch(scene, end))
    try:
        return await deed(found, left(end))
    finally:
        watch.cancel()
        with suppress(asyncio.CancelledError, playwright().Error):
            await watch


async def clear(scene: Scene) -> str | None:
    """Put a banner away if one is there; the label that was pressed, or None."""
    for frame in scene.page.frames[:_MOST_FRAMES]:
        with suppress(playwright().Error):
            pressed: str | None = await frame.evaluate(_CLEAR, _labels(scene))
            if pressed:
                return pressed
    return None


async def _watch(scene: Scene, end: float) -> None:
    while time.monotonic() < end:
        await asyncio.sleep(_PATIENCE)
        if await clear(scene):
            return


def _labels(scene: Scene) -> list[str]:
    chosen = DECLINE if scene.interface.consent == "decline" else ACCEPT
    return [*chosen, *NOTED]
