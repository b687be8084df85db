"""Clicking what a clause names, wherever on the page it hides."""

from __future__ import annotations

import re

from agent3.protocols.nlweb.driver.matching import best, called, ranked
from agent3.protocols.nlweb.driver.page_view import Element, Sight
from agent3.protocols.nlweb.driver.reveal import of_person, openers, reveal
from agent3.protocols.nlweb.driver.sentences import Target, ordinal_of, target_of
from agent3.protocols.nlweb.driver.story import Story

__all__ = ["click", "close", "expand", "find", "submit", "wait"]

_SUBMIT = re.compile(
    r"^(?:on\s+|the\s+)*\"?(submit|login|log in|sign in|ok|send|search|enviar|buscar)\"?(?:\s+button)?"
    r"(?:\s+when\b.*)?$",
    re.I,
)
_SENDERS = ("submit", "ok", "login", "send", "search", "go", "confirm", "save", "continue", "done", "enviar", "aceptar")
_SECONDS = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|milli|s|min)", re.IGNORECASE)
_KEEP = re.compile(r"\b(?:find|click|link|item|named|folder|file)\b", re.IGNORECASE)
_COLLAPSE = 0.9


async def submit(story: Story) -> bool:
    """Send the form: the button of that name, or the one that forms have for it."""
    rest = re.sub(r"\b(?:when (?:done|finished)|when you are done)\b.*", "", story.clause.rest).strip(" .")
    named = _SUBMIT.match(rest)
    if story.clause.word in ("submit", "login") and (not rest or rest.startswith("when")):
        name = story.clause.word
    elif story.clause.verb == "click" and named:
        name = named[1]
    else:
        return False
    button = sender(await story.hand.look(), name)
    if button is None:
        return False
    await story.hand.click(button)
    return True


def sender(sight: Sight, name: str = "submit") -> Element | None:
    """The button that sends: of the name, of a usual one, or the only one."""
    found = best(sight, Target(name, "button"), [one for one in sight.shown if one.pressable])
    if found is not None:
        return found
    buttons = sight.having(lambda one: one.role == "button" and not one.off)
    likely = buttons or sight.having(lambda one: one.pressable and not one.off and not one.writable)
    usual = [one for one in likely if any(called(one, word) > 0.9 for word in _SENDERS)]
    kind = [one for one in buttons if one.kind == "submit"]
    return next(iter([*usual, *kind, *(buttons if len(buttons) == 1 else [])]), None)


async def click(story: Story) -> bool:
    """Click what is named, revealing it first where it is hidden."""
    clause = story.clause
    if clause.verb not in ("click", "find", "close", "expand", ""):
        return False
    target = target_of(clause.rest, clause.quotes[-1:] if clause.verb == "close" else clause.quotes)
    if target.role == "result" and not target.quoted:
        return await _result(story, target.ordinal or 1)
    if target.role == "widget":
        return await _widget(story, target)
    if not target.name and not target.role:
        return False
    found = await _seek(story, target)
    if found is None or (clause.verb in ("find", "") and not await _opens(story, found)):
        return False
    await story.hand.click(found)
    return True


async def _opens(story: Story, found: Element) -> bool:
    """Whether it is there to be pressed: who does not say to click wants to see a text, and sees it."""
    sight = await story.hand.look()
    return any(one.pressable and f"{found.path} >".startswith(f"{one.path} >") for one in sight.shown)


async def _result(story: Story, number: int) -> bool:
    """The nth of a list of links, over its pages."""
    passed = 0
    for _ in range(20):
        sight = await story.hand.look()
        found = _results(sight)
        if passed < number <= passed + len(found):
            await story.hand.click(found[number - passed - 1])
            return True
        further = [one for one in openers(sight) if one.pressable and one.role != "tab"]
        if not found or not further:
            return False
        passed += len(found)
        await story.hand.click(further[-1])
    return False


def _results(sight: Sight) -> list[Element]:
    """The largest group of links that are alike; page numbers and arrows are none."""
    groups: dict[str, list[Element]] = {}
    for one in sight.shown:
        if (
            one.pressable
            and len(one.text) > 2
            and not one.text.isdigit()
            and one.role in ("link", "")
            and sight.leaf(one)
        ):
            groups.setdefault(f"{one.tag}|{one.marks}", []).append(one)
    return max((group for key, group in groups.items() if "page" not in key), key=len, default=[])


async def _seek(story: Story, target: Target) -> Element | None:
    sight = await story.hand.look()
    found = _exactly(sight, target)
    if found is not None:
        return found
    hidden = [one for one in sight.all if not one.visible and target.name and called(one, target.name) > _COLLAPSE]
    if target.name and (hidden or openers(sight)):
        found = await reveal(story.hand, lambda now: _exactly(now, target))
    return found or best(await story.hand.look(), target)


def _exactly(sight: Sight, target: Target) -> Element | None:
    """A sure match only: a doubtful one would end the search too early."""
    if not target.name:
        return best(sight, target)
    pool = [one for score, one in ranked(sight, target) if score > _COLLAPSE]
    return best(sight, target, pool)


async def _widget(story: Story, target: Target) -> bool:
    sight = await story.hand.look()
    wanted = target.name.lower()
    found = next((one for one in sight.shown if wanted in (one.kind, one.role, one.tag)), None)
    if found is None and wanted in ("text", "input"):
        found = next((one for one in sight.shown if one.role == "textbox"), None)
    if found is None:
        return False
    await story.hand.click(found)
    return True


async def close(story: Story) -> bool:
    """Close a dialog, by the name that is given or the sign that such things have."""
    if story.clause.verb != "close":
        return False
    sight = await story.hand.look()
    named = story.clause.quotes[-1] if story.clause.quotes else "close"
    found = best(sight, Target(named)) or best(sight, Target("close"))
    if found is None:
        return False
    await story.hand.click(found)
    story.ahead[:] = [one for one in story.ahead if one.word != "clicking"]
    return True


async def expand(story: Story) -> bool:
    """Open a section or menu. Where the next clause looks for something inside, that clause opens what it needs."""
    if story.clause.verb != "expand" and story.clause.word not in ("switch", "navigate"):
        return False
    if story.clause.quotes:
        return False
    if any(_KEEP.search(one.text) and one.quotes for one in story.ahead):
        return True
    sight = await story.hand.look()
    closed = openers(sight)
    number = ordinal_of(story.clause.rest) or 1
    if not closed:
        return False
    await story.hand.click(closed[min(number, len(closed)) - 1])
    await story.hand.settle(100, 900)
    return True


async def find(story: Story) -> bool:
    """A clause that only says to look, or by what means: the next one acts on it."""
    if story.clause.word == "using" and not story.clause.quotes:
        return bool(story.ahead)
    if not (story.clause.verb == "find" or story.clause.word == "busca") or not story.ahead:
        return False
    if not story.clause.rest or (not story.clause.quotes and story.ahead[0].quotes):
        return True
    name = re.match(r"(?P<name>[A-Z@][\w-]*)\b", story.clause.rest)
    if name is None:
        return False
    return await reveal(story.hand, lambda now: of_person(now, name["name"])) is not None


async def wait(story: Story) -> bool:
    """Wait as long as the clause says."""
    if story.clause.verb != "wait":
        return False
    match = _SECONDS.search(story.clause.rest)
    scale = {"m": 0.001, "s": 1.0}.get(match[2][0].lower(), 1.0) if match else 1.0
    if match and match[2].lower().startswith("min"):
        scale = 60.0
    await story.hand.pause(float(match[1]) * scale if match else 1.0)
    return True
