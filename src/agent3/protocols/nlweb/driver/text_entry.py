"""Writing: which text goes into which field, and where the text comes from."""

from __future__ import annotations

import re

from agent3.protocols.nlweb.commands.lexicon import concepts
from agent3.protocols.nlweb.driver.matching import likeness
from agent3.protocols.nlweb.driver.page_view import Element, Sight
from agent3.protocols.nlweb.driver.sentences import ordinal_of
from agent3.protocols.nlweb.driver.stated_values import stated
from agent3.protocols.nlweb.driver.story import Story

__all__ = ["autocomplete", "copy", "field_for", "paste", "read", "solve", "table", "write"]

_WITH_NOUN = re.compile(r"(?:\b(?P<noun>[a-z][\w ]*?)\s*[:=]?\s*)?\"(?P<text>[^\"]*)\"", re.IGNORECASE)
_WHERE = re.compile(
    r"\b(?:(?:into|in|on|to|using|as)\s+(?=(?:the|both|all|each|your|that|a)\b)|(?:into|en)\s+)(?P<where>[^,\"]+)$",
    re.IGNORECASE,
)
_HELD = re.compile(r"\b(?:it|that|them|this|the (?:answer|result|word|text)|your answer)\b", re.IGNORECASE)
_NTH_WORD = re.compile(r"(?P<which>\S+)\s+(?P<unit>word|letter|character|sentence|line)s?\b", re.IGNORECASE)
_VALUE_OF = re.compile(r"\bvalue (?:of|for)\s+\"?(?P<label>.+?)\"?\s+(?:into|in|to)\b", re.IGNORECASE)
_CASE = re.compile(r"\b(lower|upper)[ -]?case\b|\b(minúsculas|mayúsculas)\b", re.IGNORECASE)
_BEGINS = re.compile(r"(?:starts?|begins?|starting|beginning) with \"(?P<text>[^\"]*)\"", re.IGNORECASE)
_ENDS = re.compile(r"(?:ends?|ending) with \"(?P<text>[^\"]*)\"", re.IGNORECASE)
_SUM = re.compile(r"^[\s\d.+\-*/x\u00d7\u00f7()\u2212]+=?\s*\??$", re.IGNORECASE)
_GENERIC = re.compile(r"\b(?:text|input|field|box|textbox|area|textarea|the|fields|inputs|boxes)\b", re.IGNORECASE)
_ORDINAL_WORD = re.compile(r"\b\d+(?:st|nd|rd|th)\b", re.IGNORECASE)
_TOTAL = re.compile(r"\bnumber of (?P<what>[a-z]+?)s?\b", re.IGNORECASE)
_EQUATION = re.compile(r"^(?P<left>[^=]+)=(?P<right>[^=]+)$")


async def write(story: Story) -> bool:
    """Write what the clause quotes, states or refers to, into the field that it names; all of it or nothing."""
    clause = story.clause
    if clause.verb not in ("type", "use", "paste"):
        return False
    aims = _aims(story, await story.hand.look())
    for one, text in aims:
        await story.hand.write(one, _cased(text, clause.rest), keys=one.kind in ("", "text") and one.role == "spinner")
        story.near = one
    return bool(aims)


def _aims(story: Story, sight: Sight) -> list[tuple[Element, str]]:
    """Each field with what goes into it; empty where a part of the clause has no place."""
    clause = story.clause
    if not clause.quotes and not _refers(story):
        return stated(sight, clause.rest) or _pointed(sight, clause.rest)
    if clause.verb == "use" and not clause.quotes:
        return []
    if plain := _quoted(sight, clause.rest):
        return plain
    found: list[tuple[Element, str]] = []
    for noun, text in _pairs(story):
        fields = _fields(sight, noun, clause.rest, {one.index for one, _ in found})
        if not fields:
            return []
        found += [(one, text) for one in fields]
    return found if _explained(sight, clause.rest) else []


def _quoted(sight: Sight, rest: str) -> list[tuple[Element, str]]:
    """Quoted texts that stand where others are stated; empty if one of them does not stand alone there."""
    texts: list[str] = []

    def held(match: re.Match[str]) -> str:
        texts.append(match[1])
        return f"\u27e6{len(texts) - 1}\u27e7"

    found = stated(sight, re.sub(r"\"([^\"]*)\"", held, rest))
    tokens = {f"\u27e6{number}\u27e7": text for number, text in enumerate(texts)}
    alone = found and len(found) == len(tokens) and all(text in tokens for _, text in found)
    return [(one, tokens[text]) for one, text in found] if alone else []


def _refers(story: Story) -> bool:
    return story.held is not None and bool(_HELD.search(story.clause.rest) or not story.clause.rest)


def _pointed(sight: Sight, rest: str) -> list[tuple[Element, str]]:
    return [(one, text) for _, text in _from_page(sight, rest) for one in _fields(sight, "", rest, set())]


def _explained(sight: Sight, rest: str) -> bool:
    """Whether no value stands beside the quoted ones: a name or a number that the page does not have."""
    beside = re.findall(r"\b(?:[A-Z]|\d)\w*", _ORDINAL_WORD.sub(" ", re.sub(r"\"[^\"]*\"", " ", rest)))
    shown = " ".join(text for one in sight.fields() for text in (one.label, one.hint, one.before, one.title, one.marks))
    return all(word.lower() in shown.lower() for word in beside)


def _pairs(story: Story) -> list[tuple[str, str]]:
    """Each text with the words that name its field."""
    rest = story.clause.rest
    pairs = [(_noun(match["noun"] or ""), match["text"]) for match in _WITH_NOUN.finditer(rest)]
    if pairs:
        return pairs
    return [("", story.held)] if story.held is not None else []


def _from_page(sight: Sight, rest: str) -> list[tuple[str, str]]:
    """A text that is only pointed at: "the text below", "the number of blocks"."""
    if re.search(r"\bthe (?:text|word|code|letters)\b.*\b(?:below|above|shown)\b", rest, re.IGNORECASE):
        busy = {
            up.index
            for one in sight.shown
            if one.role in ("textbox", "textarea", "button")
            for up in [one, *sight.up(one)]
        }
        blocks = [one for one in sight.shown if one.text and one.index not in busy]
        return [("", blocks[0].text)] if blocks else []
    if total := _TOTAL.search(rest):
        counted = sight.having(lambda one: total["what"].lower() in one.words and not one.text)
        return [("", str(len(counted)))] if counted else []
    return []


def _noun(text: str) -> str:
    kept = re.sub(
        r"\b(?:and|the|a|an|enter|type|with|text|value|to|box|of|as|into|in|use|field|item|that)\b",
        " ",
        text,
        flags=re.I,
    )
    return " ".join(kept.split())


def _cased(text: str, rest: str) -> str:
    match = _CASE.search(rest)
    if not match:
        return text
    return text.lower() if (match[1] or match[2]).lower() in ("lower", "minúsculas") else text.upper()


def _fields(sight: Sight, noun: str, rest: str, used: set[int]) -> list[Element]:
    fields = [one for one in sight.fields() if one.index not in used]
    where = _WHERE.search(re.sub(r"\"[^\"]*\"", "", rest))
    place = where["where"] if where else ""
    if re.search(r"\b(?:both|all|each|every)\b", place) and not _CASE.search(place):
        return fields
    number = ordinal_of(place)
    if number is not None:
        usual = [one for one in fields if not one.fixed]
        index = number - 1 if number > 0 else number
        return [usual[index]] if -len(usual) <= index < len(usual) else []
    found = field_for(sight, noun, fields) or field_for(sight, place, fields)
    if found is None and (len(fields) == 1 or not (_names(noun) or _names(place))):
        found = _likely(fields)
    return [found] if found else []


def _names(words: str) -> bool:
    """Whether they name a field, rather than to say that there is one."""
    return bool(concepts(_GENERIC.sub(" ", words)))


def _likely(fields: list[Element]) -> Element | None:
    """An empty one-line field before a filled one, and before a text area."""
    open_ones = [one for one in fields if not one.fixed] or fields
    return min(open_ones, key=lambda one: (bool(one.value), one.role == "textarea", one.index), default=None)


def field_for(sight: Sight, words: str, fields: list[Element] | None = None) -> Element | None:
    """The field that words name, by its label, hint, the text beside it, or its marks; None if none does clearly."""
    words = " ".join(_GENERIC.sub(" ", words).split())
    wanted = frozenset(concepts(words))
    if not wanted:
        return None
    best: tuple[float, Element] | None = None
    for one in sight.fields() if fields is None else fields:
        texts = [one.label, one.hint, one.before, one.title]
        score = max((_alike(words, wanted, text) for text in texts if text), default=0.0)
        score = max(score, 0.7 if wanted & frozenset(concepts(" ".join(one.words))) else 0.0)
        score = max(score, 0.75 if one.kind and one.kind in wanted and one.kind != "text" else 0.0)
        if score >= 0.5 and (best is None or score > best[0]):
            best = (score, one)
    return best[1] if best else None


def _alike(words: str, wanted: frozenset[str], text: str) -> float:
    found = frozenset(concepts(text))
    shared = len(wanted & found) / len(found) if found else 0.0
    return max(shared, likeness(words, text.rstrip(":* ")) if words else 0.0)


async def read(story: Story) -> bool:
    """Find a word, letter or line of a text on the page, and hold it for what follows."""
    if story.clause.verb not in ("find", "copy", "read", "type"):
        return False
    match = _NTH_WORD.search(story.clause.rest)
    number = ordinal_of(story.clause.rest)
    if match is None or number is None:
        return False
    text = _passage(await story.hand.look(), story.clause.rest)
    parts = {"word": text.split(), "sentence": re.split(r"(?<=[.!?])\s+", text), "line": text.splitlines()}
    pieces = parts.get(match["unit"].lower(), list(text.replace(" ", "")))
    index = number - 1 if number > 0 else number
    if not -len(pieces) <= index < len(pieces):
        return False
    story.held = (
        re.sub(r"^[\s,.;:!?]+|[\s,.;:!?]+$", "", pieces[index]) if match["unit"].lower() == "word" else pieces[index]
    )
    return True


def _passage(sight: Sight, rest: str) -> str:
    """The text that a clause speaks of: that of an area, or the longest paragraph."""
    areas = sight.having(lambda one: one.role == "textarea" and bool(one.value))
    if re.search(r"text ?area|text box", rest, re.IGNORECASE) and areas:
        return areas[0].value
    paragraphs = sight.having(lambda one: one.role == "paragraph" or (not one.role and len(one.own.split()) > 2))
    texts = [one.text for one in paragraphs if one.text] or [one.value for one in areas]
    return max(texts, key=len, default="")


async def copy(story: Story) -> bool:
    """Hold the text of an area, by its place among them."""
    if story.clause.verb != "copy":
        return False
    sight = await story.hand.look()
    areas = sight.having(lambda one: one.role in ("textarea", "textbox") and bool(one.value))
    number = ordinal_of(story.clause.rest) or 1
    if number > len(areas):
        return False
    story.held = areas[number - 1].value
    return True


async def paste(story: Story) -> bool:
    """Write what is held into the named field, or the first empty one."""
    if story.clause.verb != "paste" or story.held is None:
        return False
    sight = await story.hand.look()
    empty = [one for one in sight.fields() if not one.value]
    if not empty:
        return False
    lines = [one for one in empty if one.role != "textarea"] if not re.search(r"area", story.clause.rest) else empty
    await story.hand.write((lines or empty)[0], story.held)
    return True


async def table(story: Story) -> bool:
    """Values that stand in a table beside their label, into a field, or into all fields of such labels."""
    if story.clause.verb != "type" or "value" not in story.clause.rest.lower():
        return False
    sight = await story.hand.look()
    known = _facts(sight)
    match = _VALUE_OF.search(f"{story.clause.rest} ")
    if match is not None:
        value = next((known[one] for one in known if likeness(match["label"], one) > 0.9), None)
        fields = sight.fields()
        if value is None or not fields:
            return False
        await story.hand.write(fields[0], value)
        return True
    return await _all_values(story, sight, known)


async def _all_values(story: Story, sight: Sight, known: dict[str, str]) -> bool:
    written = False
    for one in sight.fields():
        label = (one.label or one.before or one.hint).rstrip(": ")
        value = next((known[key] for key in known if label and likeness(label, key) > 0.9), None)
        if value is not None:
            await story.hand.write(one, value)
            written = True
    return written


def _facts(sight: Sight) -> dict[str, str]:
    """Label and value of each row of a table, or of a list of terms."""
    rows = sight.having(lambda one: one.role == "row")
    pairs = [[cell.text for cell in sight.children(row) if cell.text] for row in rows]
    return {pair[0].rstrip(": "): pair[1] for pair in pairs if len(pair) >= 2}


async def autocomplete(story: Story) -> bool:
    """An item of a field that proposes some: one that begins, and ends, as is said."""
    begins, ends = _BEGINS.search(story.clause.text), _ENDS.search(story.clause.text)
    if story.clause.verb not in ("type", "select") or not (begins or ends):
        return False
    fields = (await story.hand.look()).fields()
    if not fields:
        return False
    start, end = (begins["text"] if begins else ""), (ends["text"] if ends else "")
    found = await propose(story, fields[0], start or end, start, end)
    if found is not None:
        await story.hand.click(found)
    return found is not None


async def propose(story: Story, field: Element, typed: str, start: str = "", end: str = "") -> Element | None:
    """Type, wait for proposals, and give the one that fits."""
    before = {one.text for one in (await story.hand.look()).shown}
    await story.hand.write(field, typed, keys=True)
    for _ in range(10):
        sight = await story.hand.look()
        offers = [
            one
            for one in sight.shown
            if one.text
            and one.text not in before
            and sight.leaf(one)
            and one.pressable | (one.role in ("item", "menuitem", "option"))
        ]
        fitting = [
            one
            for one in offers
            if one.text.lower().startswith(start.lower()) and one.text.lower().endswith(end.lower())
        ]
        if fitting:
            return max(
                fitting,
                key=lambda one: (re.search(rf"(?<!\w){re.escape(typed)}(?!\w)", one.text) is not None, -one.index),
            )
        await story.hand.settle(150, 300)
    return None


async def solve(story: Story) -> bool:
    """Work out a sum or a simple equation that stands on the page, and hold or write the answer."""
    if story.clause.verb != "solve":
        return False
    sight = await story.hand.look()
    for one in sight.shown:
        answer = _answer(one.text)
        if answer is not None:
            story.held = answer
            return True
    return False


def _answer(text: str) -> str | None:
    plain = text.replace("\u00d7", "*").replace("\u00f7", "/").replace("\u2212", "-")
    if _SUM.match(plain) and re.search(r"\d\s*[-+*/x]\s*-?\d", plain):
        return _number(_evaluate(plain.rstrip("=? ").replace("x", "*")))
    match = _EQUATION.match(plain)
    if match is None or not re.search(r"\d", plain) or len(re.findall(r"[a-z]", plain)) != 1:
        return None
    letter = re.findall(r"[a-z]", plain)[0]
    return _solved(match["left"], match["right"], letter)


def _solved(left: str, right: str, letter: str) -> str | None:
    """A linear equation has the same slope everywhere: two points give its root."""
    at = [_difference(left, right, letter, value) for value in (0, 1)]
    if at[0] is None or at[1] is None or at[0] == at[1]:
        return None
    return _number(-at[0] / (at[1] - at[0]))


def _difference(left: str, right: str, letter: str, value: int) -> float | None:
    one, other = (_evaluate(side.replace(letter, f"({value})")) for side in (left, right))
    return None if one is None or other is None else one - other


def _evaluate(text: str) -> float | None:
    """Sums, differences, products and quotients of numbers; never by ``eval``, since a page wrote this."""
    tokens = re.findall(r"\d+(?:\.\d+)?|[-+*/()]", text)
    if "".join(tokens) != re.sub(r"\s", "", text):
        return None
    try:
        value, rest = _sum(tokens)
    except (IndexError, ValueError, ZeroDivisionError):
        return None
    return value if not rest else None


def _sum(tokens: list[str]) -> tuple[float, list[str]]:
    value, tokens = _product(tokens)
    while tokens and tokens[0] in "+-":
        other, rest = _product(tokens[1:])
        value, tokens = (value + other if tokens[0] == "+" else value - other), rest
    return value, tokens


def _product(tokens: list[str]) -> tuple[float, list[str]]:
    value, tokens = _factor(tokens)
    while tokens and (tokens[0] in "*/" or tokens[0] == "("):
        times = tokens[0] == "("
        other, rest = _factor(tokens if times else tokens[1:])
        value, tokens = (value / other if tokens[0] == "/" else value * other), rest
    return value, tokens


def _factor(tokens: list[str]) -> tuple[float, list[str]]:
    if tokens[0] in "+-":
        value, rest = _factor(tokens[1:])
        return (-value if tokens[0] == "-" else value), rest
    if tokens[0] == "(":
        value, rest = _sum(tokens[1:])
        return value, rest[1:]
    return float(tokens[0]), tokens[1:]


def _number(value: float | None) -> str | None:
    if value is None:
        return None
    return str(int(value)) if value == int(value) else f"{value:g}"
