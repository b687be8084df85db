"""Filling a form from one sentence: its labels say what to look for in the words."""

from __future__ import annotations

import re
from datetime import datetime

from agent3.protocols.nlweb.commands.lexicon import EMPTY, concepts
from agent3.protocols.nlweb.commands.spans import spans
from agent3.protocols.nlweb.driver.clicks import sender
from agent3.protocols.nlweb.driver.comparisons import take_extreme
from agent3.protocols.nlweb.driver.dates import pick
from agent3.protocols.nlweb.driver.page_view import Element, Sight
from agent3.protocols.nlweb.driver.story import Story
from agent3.protocols.nlweb.driver.text_entry import propose

__all__ = ["fill", "search"]

_VERBS = ("search", "buy", "find", "create")
_LINK = r"(?:\s*[:=]\s*|\s+(?:by|of|is|in|from|named|called)\s+|\s+)"
_FOR = re.compile(r"^(?:(?:for|por|a|an|the|some|un|una|unos|unas|el|la|los|las)\s+)+", re.IGNORECASE)
_IN = re.compile(r"\b(?:from|to|between|desde|entre|on)\b", re.IGNORECASE)
"""What speaks of more than one field."""
_SEARCH = frozenset(concepts("search find buscar"))
_END = r"(?=\s+(?:from|to|by|on|in|directed|with|and|for|between|at)\b|[.;]|$)"


async def fill(story: Story) -> bool:
    """Fill the fields that the sentence has values for, send, and take the best result if it says which."""
    if story.clause.verb not in _VERBS or story.clause.quotes:
        return False
    sight = await story.hand.look()
    fields = [one for one in sight.having(lambda one: one.writable) if _label(one)]
    values = _values(story.hand.sentence, sight, fields)
    if len(values) < 2:
        return False
    for one, value in values:
        await _put(story, one, value)
    button = sender(await story.hand.look(), "search")
    if button is not None:
        await story.hand.click(button)
        await story.hand.settle(150, 1500)
    superlative = re.search(r"\b(cheapest|shortest|longest|earliest)\b", story.hand.sentence, re.IGNORECASE)
    if superlative:
        await take_extreme(story, superlative[0], superlative[0].lower() in ("cheapest", "shortest", "earliest"))
    return True


async def search(story: Story) -> bool:
    """Ask the page's search box, where it has one and a button for it."""
    if story.clause.verb != "search":
        return False
    sight = await story.hand.look()
    said = story.clause.quotes[0] if story.clause.quotes else _FOR.sub("", story.clause.rest)
    boxes = [(one, button) for one in sight.fields() if (button := _asked_by(sight, one)) is not None]
    if len(boxes) != 1 or not said or _IN.search(_FOR.sub("", story.clause.rest)):
        return False
    await story.hand.write(boxes[0][0], said)
    await story.hand.click(boxes[0][1])
    await story.hand.settle(150, 1500)
    return True


def _asked_by(sight: Sight, box: Element) -> Element | None:
    """The button that asks a search box: the one of its form, which has no other field."""
    form = next((one for one in sight.up(box) if one.role in ("form", "search")), None)
    if form is None or [one for one in sight.inside(form) if one.writable and one.visible] != [box]:
        return None
    buttons = [one for one in sight.inside(form) if one.visible and one.role == "button" and not one.off]
    spoken = concepts(
        " ".join([_label(box), *box.words, *form.words, *(text for one in buttons for text in one.names)])
    )
    return buttons[0] if len(buttons) == 1 and (box.kind == "search" or _SEARCH & set(spoken)) else None


def _label(one: Element) -> str:
    return (one.label or one.hint or one.before or one.title).strip(" :*")


def _values(sentence: str, sight: Sight, fields: list[Element]) -> list[tuple[Element, str]]:
    found: list[tuple[Element, str]] = []
    left = sentence
    for one in fields:
        stem = re.escape(_label(one).lower().split()[0][:6]) if _label(one) else ""
        if re.search(r"\bdate\b", _label(one).lower()) or "datepicker" in one.words:
            value = next((span for span in spans(sentence, datetime.now()) if span.kind == "date"), None)  # noqa: DTZ005
            if value is not None:
                found.append((one, value.value.isoformat()))
            continue
        match = re.search(rf"\b{stem}\w*{_LINK}(?P<value>\S.*?){_END}", sentence, re.IGNORECASE) if stem else None
        if match:
            found.append((one, match["value"].strip(" ,")))
            left = left.replace(match[0], " ")
    return [*found, *_rest(left, sight, [one for one in fields if all(one is not other for other, _ in found)])]


def _rest(left: str, sight: Sight, fields: list[Element]) -> list[tuple[Element, str]]:
    """One field without a value gets the words that nothing else explains."""
    if len(fields) != 1:
        return []
    known = {
        word[:4] for one in sight.having(lambda each: not each.writable) for word in re.findall(r"\w+", one.own.lower())
    }
    said = [
        word for word in re.findall(r"[\w-]+", left)[1:] if word.lower() not in EMPTY and word.lower()[:4] not in known
    ]
    # "action movies directed by …": the plural is what is looked for, the word before it says of which kind.
    if len(said) > 1 and said[-1].endswith("s") and not _label(fields[0]).endswith("s"):
        said.pop()
    return [(fields[0], " ".join(said))] if said else []


async def _put(story: Story, one: Element, value: str) -> None:
    if re.fullmatch(r"\d{4}-\d\d-\d\d", value):
        await pick(story.hand, one, datetime.fromisoformat(value).date())
    elif "autocomplete" in one.marks or one.role == "combobox":
        found = await propose(story, one, value)
        if found is not None:
            await story.hand.click(found)
    else:
        await story.hand.write(one, value)
