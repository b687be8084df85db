"""A proposed interface in front of a person: each action is kept, renamed or dropped, beside a picture of its place.

It prints nothing, and knows neither a terminal nor how the interface was made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from agent3.definitions import NLWebInterface
from agent3.errors import ValidationError
from agent3.protocols.nlweb.authoring.selectors import slugify
from agent3.protocols.nlweb.browser.sdk import playwright

if TYPE_CHECKING:
    from playwright.async_api import Page

__all__ = ["Decide", "review", "take_pictures"]

Decide = Callable[[str], str]
"""Asked for each action by its name: the name to keep it under, or an empty text to drop it."""
_PICTURE_MS = 3_000.0


async def take_pictures(page: Page, places: Mapping[str, str], folder: Path) -> dict[str, Path]:
    """A picture of where each action stands, as ACTION.png in the folder; those that cannot be taken are left out."""
    taken: dict[str, Path] = {}
    for name, selector in places.items():
        path = folder / f"{name}.png"
        with suppress(playwright().Error):
            await page.locator(selector).first.screenshot(path=path, timeout=_PICTURE_MS)
            taken[name] = path
    return taken


def review(interface: NLWebInterface, decide: Decide) -> NLWebInterface:
    """The interface with what was kept, under the names that were given.

    ValidationError for a name that another action has, and where nothing is left.
    """
    names: dict[str, str] = {}
    for name in interface.actions:
        wanted = decide(name).strip()
        if not wanted:
            continue
        found = name if wanted == name else slugify(wanted, "action")
        if found in names.values() or (found != name and found in interface.actions):
            raise ValidationError(f"Two actions cannot have the same name {found!r}. Choose another name for {name!r}.")
        names[name] = found
    if not names:
        raise ValidationError("The interface is empty: every action was dropped.")
    metadata = dict(interface.metadata)
    if untrusted := metadata.get("untrusted"):
        metadata["untrusted"] = [names[name] for name in untrusted if name in names]
    return interface.model_copy(
        update={
            "actions": {names[name]: steps for name, steps in interface.actions.items() if name in names},
            "info": {names[name]: info for name, info in interface.info.items() if name in names},
            "metadata": metadata,
        }
    )
