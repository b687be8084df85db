"""What is done with the mouse: colours and shapes, dragging, hovering, marking text, scrolling, resizing."""

from __future__ import annotations

import colorsys
import re
import time as clock

from agent3.protocols.nlweb.driver.matching import best
from agent3.protocols.nlweb.driver.page_view import Element, Sight
from agent3.protocols.nlweb.driver.sentences import Target, ordinal_of
from agent3.protocols.nlweb.driver.story import Story

__all__ = ["colour", "count", "drag", "focus", "highlight", "hover", "resize", "scroll", "shape", "sort", "style"]

_COLOURS = {
    "red": (255, 0, 0), "green": (0, 128, 0), "lime": (0, 255, 0), "blue": (0, 0, 255), "yellow": (255, 255, 0),
    "orange": (255, 165, 0), "purple": (128, 0, 128), "violet": (238, 130, 238), "pink": (255, 192, 203),
    "magenta": (255, 0, 255), "cyan": (0, 255, 255), "aqua": (0, 255, 255), "black": (0, 0, 0),
    "white": (255, 255, 255),
    "gray": (128, 128, 128), "grey": (128, 128, 128), "brown": (165, 42, 42), "olive": (128, 128, 0),
}  # fmt: skip
_C = "|".join(_COLOURS)
_RGB = re.compile(r"rgba?\((\d+),\s*(\d+),\s*(\d+)")
_SHAPES = {
    "circle": "circle",
    "rectangle": "rect",
    "triangle": "triangle",
    "square": "rect",
    "letter": "letter",
    "digit": "digit",
    "number": "digit",
    "shape": "shape",
    "item": "any",
}
_SHAPE = re.compile(
    rf"\b(?:(?P<size>small|large|big)\s+)?(?:(?P<colour>{_C})\s+)?(?:(?P<kind>circle|rectangle|triangle|square|letter|digit|number|shape|item)s?\b|\"?(?P<char>[A-Za-z0-9])\"?s?(?=\s|$|\?))",
    re.I,
)
_FOLLOWED = 10.0
_BOX = 40
_SIDES = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1), "top": (0, -1), "bottom": (0, 1)}


def rgb(text: str) -> tuple[int, int, int] | None:
    """The numbers of a computed colour."""
    match = _RGB.match(text)
    return (int(match[1]), int(match[2]), int(match[3])) if match else None


def _far(one: tuple[int, int, int], other: tuple[int, int, int]) -> float:
    return sum((a - b) ** 2 for a, b in zip(one, other, strict=True))


def _hue_name(value: tuple[int, int, int]) -> str:
    """Whether a shade is of red, green or blue, or one of the colours between."""
    hue, _, _ = colorsys.rgb_to_hsv(*(part / 255 for part in value))
    names = (
        (0.04, "red"),
        (0.11, "orange"),
        (0.19, "yellow"),
        (0.45, "green"),
        (0.53, "cyan"),
        (0.72, "blue"),
        (0.8, "purple"),
        (0.93, "magenta"),
    )
    return next((name for limit, name in names if hue < limit), "red")


async def colour(story: Story) -> bool:
    """Click the thing of a colour, or all shades of it."""
    match = re.search(
        rf"\b(?P<all>all (?:the )?)?(?:(?:shades?) of )?(?P<colour>{_C})\b", story.clause.rest, re.IGNORECASE
    )
    shades = re.search(r"\bshades?\b", story.clause.rest, re.IGNORECASE)
    if story.clause.verb not in ("click", "select") or match is None or story.clause.quotes:
        return False
    wanted = match["colour"].lower()
    sight = await story.hand.look()
    painted = [one for one in sight.shown if rgb(one.colour) and not one.text and not one.writable and one.width < 200]
    if shades:
        return await _all_shades(story, painted, wanted)
    if not re.search(r"\bcolou?red\b|\bbox\b|\bcolou?r\b", story.clause.rest, re.IGNORECASE) or not painted:
        return False
    await story.hand.click(min(painted, key=lambda one: _far(rgb(one.colour) or (0, 0, 0), _COLOURS[wanted])))
    return True


async def _all_shades(story: Story, painted: list[Element], wanted: str) -> bool:
    fitting = [one for one in painted if one.role != "button" and _hue_name(rgb(one.colour) or (0, 0, 0)) == wanted]
    for one in fitting:
        await story.hand.click(one)
    return bool(fitting)


def _drawn(sight: Sight) -> list[Element]:
    """Shapes and characters of a drawing."""
    return sight.having(lambda one: one.tag in ("circle", "rect", "polygon", "text", "ellipse"))


def _fits(one: Element, match: re.Match[str]) -> bool:
    kind, char = (match["kind"] or "").lower(), match["char"]
    if match["colour"] and not _of_colour(one, match["colour"].lower()):
        return False
    if match["size"] and (one.size <= 12) != (match["size"].lower() == "small") and one.tag == "text":
        return False
    if match["size"] and one.tag != "text" and (max(one.width, one.height) <= 12) != (match["size"].lower() == "small"):
        return False
    if char:
        return one.tag == "text" and one.text == char
    wanted = _SHAPES.get(kind, kind)
    return wanted == "any" or wanted == _shape_of(one) or (wanted == "shape" and one.tag != "text")


def _of_colour(one: Element, wanted: str) -> bool:
    """Whether the wanted colour is the nearest of those that have a name."""
    value = rgb(one.colour)
    if value is None:
        return False
    nearest = min(_far(value, other) for other in _COLOURS.values())
    return _far(value, _COLOURS[wanted]) == nearest


def _shape_of(one: Element) -> str:
    if one.tag == "text":
        return "digit" if one.text.isdigit() else "letter"
    if one.tag == "polygon":
        return "triangle"
    return one.tag


async def shape(story: Story) -> bool:
    """Click a shape of a drawing by kind, colour and size."""
    if story.clause.verb != "click" or story.clause.quotes:
        return False
    sight = await story.hand.look()
    drawn = _drawn(sight)
    match = _SHAPE.search(re.sub(r"^\s*(?:on|the|a|an|\s)+", "", story.clause.rest))
    found = [one for one in drawn if match and _fits(one, match)]
    if not found:
        return False
    await story.hand.point(*found[0].middle)
    return True


async def count(story: Story) -> bool:
    """How many of a kind are drawn, and which kind a drawing is: the answer is a button."""
    text = story.clause.text
    sight = await story.hand.look()
    drawn = _drawn(sight)
    if re.search(r"\bhow many\b.*\bare there\b", text, re.IGNORECASE):
        match = _SHAPE.search(re.sub(r"(?i)^.*how many\s+", "", text))
        answer = str(sum(_fits(one, match) for one in drawn)) if match else ""
    elif re.search(r"\bdescribes?\b.*\b(?:figure|shape|picture)\b", text, re.IGNORECASE) and drawn:
        kind = _shape_of(drawn[0])
        answer = {"rect": "Rectangle", "digit": "Number"}.get(kind, kind.capitalize())
    elif re.search(r"\bhow many sides\b", text, re.IGNORECASE):
        answer = str(next((one.corners for one in drawn if one.corners), 0))
    else:
        return False
    button = best(sight, Target(answer, "button"), sight.having(lambda one: one.role == "button"))
    if button is None:
        return False
    await story.hand.click(button)
    return True


async def hover(story: Story) -> bool:
    """Rest the mouse on a thing."""
    if story.clause.verb != "hover":
        return False
    sight = await story.hand.look()
    if not _vivid(sight):
        return False
    end = clock.monotonic() + (_FOLLOWED if story.clause.word == "keep" else 0.0)
    while (found := _vivid(sight)) is not None:
        await story.hand.page.mouse.move(*found.middle)
        if clock.monotonic() > end:
            break
        sight = await story.hand.look()
    story.hand.did.append("hover the coloured shape")
    return True


def _vivid(sight: Sight) -> Element | None:
    """The shape with the strongest colour: what "the colored one" means among grey ones."""
    painted = _drawn(sight) or [one for one in sight.shown if rgb(one.colour) and one.parts == 0 and one.width < 200]
    return max(painted, key=lambda one: _strength(rgb(one.colour) or (0, 0, 0)), default=None)


def _strength(value: tuple[int, int, int]) -> int:
    return max(value) - min(value)


async def focus(story: Story) -> bool:
    """Put the cursor into a field."""
    if story.clause.verb != "focus":
        return False
    fields = (await story.hand.look()).fields()
    number = ordinal_of(story.clause.rest) or 1
    if len(fields) < number:
        return False
    await story.hand.click(fields[number - 1])
    return True


async def highlight(story: Story) -> bool:
    """Select the text of a paragraph with the mouse."""
    if story.clause.verb != "highlight":
        return False
    sight = await story.hand.look()
    passages = sight.having(lambda one: one.role == "paragraph") or sight.having(lambda one: len(one.own.split()) > 2)
    number = ordinal_of(story.clause.rest) or 1
    if len(passages) < number:
        return False
    await story.hand.locator(passages[number - 1]).select_text(timeout=1000)
    one = passages[number - 1]
    await story.hand.drag((one.x + 1, one.y + 3), (one.x + one.width - 1, one.y + one.height - 3))
    await story.hand.locator(one).select_text(timeout=1000)
    return True


async def scroll(story: Story) -> bool:
    """Scroll an area, or the page, to its end or beginning."""
    if story.clause.verb != "scroll":
        return False
    sight = await story.hand.look()
    areas = sight.having(lambda one: one.scrolls and one.tag != "body")
    key = "top" if re.search(r"\btop\b|\bbeginning\b", story.clause.rest, re.IGNORECASE) else "bottom"
    move = "(node, end) => { node.scrollTop = end === 'top' ? 0 : node.scrollHeight; }"
    if areas:
        await story.hand.locator(areas[0]).evaluate(move, key)
    else:
        await story.hand.page.evaluate("end => window.scrollTo(0, end === 'top' ? 0 : document.body.scrollHeight)", key)
    await story.hand.settle()
    return True


async def resize(story: Story) -> bool:
    """Drag the corner of a text area."""
    match = re.search(
        r"\b(?P<what>width|height)\b.*\b(?P<how>smaller|larger|bigger|greater)\b", story.clause.rest, re.IGNORECASE
    )
    areas = (await story.hand.look()).having(lambda one: one.tag == "textarea")
    if story.clause.verb != "resize" or match is None or not areas:
        return False
    corner = areas[0].x + areas[0].width - 4, areas[0].y + areas[0].height - 4
    far = -15 if match["how"].lower() == "smaller" else 15
    wide = match["what"].lower() == "width"
    await story.hand.drag(corner, (corner[0] + (far if wide else 0), corner[1] + (0 if wide else far)))
    return True


async def drag(story: Story) -> bool:
    """Drag a named thing in a direction, to a place in a list or grid, or a thing into a box."""
    if story.clause.verb != "drag":
        return False
    sight = await story.hand.look()
    for skill in (_to_place, _into_box, _by_kind, _in_direction):
        if await skill(story, sight):
            return True
    return False


async def _in_direction(story: Story, sight: Sight) -> bool:
    match = re.search(r"\b(left|right|up|down)\b", story.clause.rest, re.IGNORECASE)
    drawn = _drawn(sight)
    if match is None or not drawn:
        return False
    x, y = drawn[0].middle
    across, down = _SIDES[match[1].lower()]
    await story.hand.drag((x, y), (x + 35 * across, y + 35 * down))
    return True


async def _to_place(story: Story, sight: Sight) -> bool:
    """Among things that can be ordered, or in a grid of them."""
    match = re.match(r"(?P<name>\S+) to the (?P<place>.+?)(?: position)?$", story.clause.rest)
    named = best(sight, Target(match["name"])) if match else None
    if match is None or named is None:
        return False
    row = next((one for one in [named, *sight.up(named)] if one.tag == "li"), named)
    alike = [one for one in sight.children(sight.all[row.parent]) if one.tag == row.tag and one.visible]
    goal = _goal(alike, match["place"])
    if goal is None:
        return False
    down = (goal.y, goal.x) > (row.y, row.x)
    edge = (goal.middle[0] + (3 if down else -3), goal.middle[1] + goal.height * (0.4 if down else -0.4))
    await story.hand.drag(row.middle, edge, steps=15)
    return True


def _goal(alike: list[Element], place: str) -> Element | None:
    number = ordinal_of(place)
    if number is not None and 0 < number <= len(alike):
        return alike[number - 1]
    columns = sorted({round(one.x) for one in alike})
    lines = sorted({round(one.y) for one in alike})
    pick = {"left": 0, "right": -1}
    column = next((columns[index] for word, index in pick.items() if word in place), columns[len(columns) // 2])
    line = lines[0] if "top" in place else lines[-1] if "bottom" in place else lines[len(lines) // 2]
    return next((one for one in alike if round(one.x) == column and round(one.y) == line), None)


async def _into_box(story: Story, sight: Sight) -> bool:
    """The smaller into the larger, or all of a kind into the box that is named."""
    if re.search(r"\bsmaller\b.*\binside\b.*\blarger\b", story.clause.rest, re.IGNORECASE):
        loose = sight.having(lambda one: bool({"draggable", "box"} & one.words) and one.parts == 0)
        boxes = sorted(loose, key=lambda one: one.width * one.height)
        if len(boxes) < 2:
            return False
        await story.hand.drag(boxes[0].middle, boxes[-1].middle, steps=15)
        return True
    return False


async def _by_kind(story: Story, sight: Sight) -> bool:
    """All shapes of a kind into one box, and what is left into the other where the sentence says so."""
    match = re.match(
        r"all (?P<what>.+?) into the (?P<box>.+?) box(?P<else>,? and everything else)?", story.clause.text[5:]
    )
    boxes = [one for one in _drawn(sight) if one.tag == "rect" and one.width >= _BOX]
    kind = _SHAPE.search(match["what"]) if match else None
    if match is None or kind is None or not boxes:
        return False
    boxes.sort(key=lambda one: one.x, reverse=match["box"].lower() == "right")
    loose = [one for one in _drawn(sight) if one.width < _BOX]
    for number, one in enumerate(loose):
        fits = _fits(one, kind)
        goal = boxes[0] if fits else boxes[-1]
        if fits or match["else"]:
            x, y = (
                goal.x + goal.width * (0.25 + 0.25 * (number % 3)),
                goal.y + goal.height * (0.35 + 0.3 * (number % 2)),
            )
            await story.hand.drag(one.middle, (x, y))
    return True


async def sort(story: Story) -> bool:
    """Bring the items of a list that can be ordered into order."""
    if story.clause.verb != "sort":
        return False
    for number in range(30):
        sight = await story.hand.look()
        items = [one for one in sight.shown if one.tag == "li" and re.fullmatch(r"-?\d+", one.text)]
        wanted = sorted(items, key=lambda one: int(one.text), reverse="decreasing" in story.clause.rest)
        wrong = next((index for index, one in enumerate(items) if one.text != wanted[index].text), None)
        if wrong is None:
            return bool(items) or number > 0
        row, goal = wanted[wrong], items[wrong]
        await story.hand.drag(row.middle, (goal.middle[0], goal.y + 2), steps=15)
    return False


async def style(story: Story) -> bool:
    """Give the text of an editor a style or colour by its toolbar."""
    match = re.search(
        rf"\b(?:style|colou?r)\s+(?P<style>bold|italics?|underlined?|{_C})\b", story.clause.text, re.IGNORECASE
    )
    if match is None:
        return False
    sight = await story.hand.look()
    editors = sight.having(lambda one: one.role == "textarea")
    if not editors:
        return False
    await story.hand.locator(editors[0]).click(timeout=1000)
    await story.hand.locator(editors[0]).select_text(timeout=1000)
    await story.hand.settle(120)
    wanted = match["style"].lower()
    control = best(sight, Target(wanted, "button"), [one for one in sight.shown if one.pressable])
    if control is not None:
        await story.hand.click(control)
        return True
    return await _paint(story, sight, wanted)


async def _paint(story: Story, sight: Sight, wanted: str) -> bool:
    opener = next(
        (one for one in sight.shown if {"color", "picker"} <= one.words or {"colour", "picker"} <= one.words), None
    )
    if opener is None or wanted not in _COLOURS:
        return False
    await story.hand.click(next((one for one in sight.inside(opener) if one.visible), opener))
    painted = [
        one
        for one in (await story.hand.look()).shown
        if rgb(one.colour) and not one.text and one.width < 40 and "picker" in one.words
    ]
    if not painted:
        return False
    await story.hand.click(min(painted, key=lambda one: _far(rgb(one.colour) or (0, 0, 0), _COLOURS[wanted])))
    return True
