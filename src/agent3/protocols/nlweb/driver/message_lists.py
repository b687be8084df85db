"""Lists of messages: find the one that somebody wrote, and delete, mark, answer or forward it.

And lists of posts or cards in general: the control of that name on those that speak of somebody.
"""

from __future__ import annotations

import re

from agent3.protocols.nlweb.driver.matching import best, called
from agent3.protocols.nlweb.driver.page_view import Element, Sight
from agent3.protocols.nlweb.driver.reveal import of_person, reveal
from agent3.protocols.nlweb.driver.sentences import Target
from agent3.protocols.nlweb.driver.story import Story

__all__ = ["cards", "mail", "rows"]

_MAIL = re.compile(r"\b(?:e-?mails?|mails?|messages?|correos?|inbox)\b|\b(?:forward|reply)\b(?!\")", re.IGNORECASE)
_INTENTS = (
    (
        "forward",
        (
            r"\bforward|\bsend\b.*\bto\b|\bsent\b|\bsend [A-Z]|\bre-?send|\breenv"
            r"|\bpass\b.*\b(?:on|along)\b|\bshare\b|\bgive\b"
        ),
    ),
    ("reply", r"\brepl(?:y|ied|ies)|\brespon[ds]|\banswer|\bwrite back|\bcontesta"),
    ("delete", r"\bdelet|\bremov|\btrash|\berase|\bget rid|\bdiscard|\bborra|\belimina|\bthrow"),
    ("star", r"\bstar|\bimportant|\bflag|\bfavou?rite|\bmark\b"),
)
_NAME = re.compile(r"\b[A-Z][\w'-]+|@\w+")
_TO = re.compile(r"\b(?:to|for|a)\s+(?P<name>[A-Z@][\w-]*)")
_BY = re.compile(
    r"\b(?:by|from|of|de)\s+(?P<name>[A-Z@][\w-]*)|(?P<owner>[A-Z][\w-]*)['\u2019]s\b"
    r"|\bthat (?P<subject>[A-Z]\w*) (?:wrote|sent)"
)
_SAYING = re.compile(r"(?:with|saying|say|text|reply|respond)\b[^A-Z]*?[:,]?\s+(?P<text>[A-Z][^\"]*)$")
_WORDS = frozenset(
    "find please forward send reply delete star locate email mail the navigate open i there search mark remove trash go"
    " look can could you respond click primary to from on in a my by with".split()
)


async def mail(story: Story) -> bool:
    """The whole sentence as one errand with one message."""
    sentence = story.hand.sentence
    if story.begun:
        return False
    intent = next((name for name, pattern in _INTENTS if re.search(pattern, sentence, re.IGNORECASE)), None)
    if intent is None or not _MAIL.search(sentence):
        return False
    sight = await story.hand.look()
    said = sentence.replace(_quoted(sentence) or "\0", " ")
    sender, receiver = _people(said, sight, intent)
    row = await reveal(story.hand, lambda now: of_person(now, sender)) if sender else None
    if row is None:
        return False
    if intent in ("delete", "star"):
        return await _mark(story, row, intent)
    text = receiver if intent == "forward" else _quoted(sentence) or _unquoted(said, sender)
    return bool(text) and await _answer(story, row, intent, text or "")


def _quoted(sentence: str) -> str | None:
    match = re.search(r"[\"“]([^\"”]*)[\"”]", sentence)
    return match[1] if match else None


def _unquoted(said: str, sender: str | None) -> str | None:
    """What to say, where it is not in quotes: after "with" or "saying", else after the sender's name."""
    match = _SAYING.search(said)
    if match and match["text"].split()[0] != sender:
        return match["text"].strip()
    tail = said.rpartition(sender or "\0")[2].strip(" ,:")
    return re.sub(r"^(?:with|saying|and say|the text|by|that)\s+", "", tail) or None


def _people(said: str, sight: Sight, intent: str) -> tuple[str | None, str | None]:
    """Who wrote it and who shall get it: by the words before them, else by who is on the page."""
    names = [one.strip("'") for one in _NAME.findall(said)]
    names = [re.sub(r"['\u2019]s$", "", one) for one in names if re.sub(r"['\u2019]s$", "", one).lower() not in _WORDS]
    shown = [one for one in dict.fromkeys(names) if of_person(sight, one) is not None]
    if intent != "forward":
        return (
            next((one for one in _found(_BY, said) if one in shown), None)
            or next(iter(shown), None)
            or next(iter(names), None)
        ), None
    writer = next((one for one in _found(_BY, said) if one in names), None)
    reader = next((one for one in _found(_TO, said) if one in names and one != writer), None)
    writer = writer or next((one for one in shown if one != reader), None)
    return writer, reader or next((one for one in names if one != writer), None)


def _found(pattern: re.Pattern[str], said: str) -> list[str]:
    return [one for match in pattern.finditer(said) for one in match.groups() if one]


def rows(sight: Sight, named: Element) -> Element:
    """The largest thing around an element that is one of several alike: its row or card."""
    found = named
    for up in sight.up(named):
        siblings = (
            [
                one
                for one in sight.children(sight.all[up.parent])
                if up.parent >= 0 and one.tag == up.tag and one.marks == up.marks
            ]
            if up.parent >= 0
            else []
        )
        if len(siblings) > 1:
            return up
        found = up if len(up.text) < 300 else found
        if up.tag == "body":
            break
    return found


async def _mark(story: Story, named: Element, intent: str) -> bool:
    sight = await story.hand.look()
    row = rows(sight, sight.all[named.index])
    control = best(sight, Target(intent, "icon"), sight.inside(row))
    if control is None:
        await story.hand.click(named)
        control = best(await story.hand.look(), Target(intent))
    if control is None:
        return False
    await story.hand.click(control)
    story.ahead.clear()
    return True


async def _answer(story: Story, named: Element, intent: str, text: str) -> bool:
    """Open it, take the control of that name, write, and send."""
    await story.hand.click(named)
    control = best(await story.hand.look(), Target(intent))
    if control is None:
        return False
    await story.hand.click(control)
    sight = await story.hand.look()
    fields = [one for one in sight.fields() if not one.value] or sight.fields()
    if intent == "reply":
        fields.sort(key=lambda one: one.role != "textarea")
    if not fields:
        return False
    await story.hand.write(fields[0], text)
    send = best(await story.hand.look(), Target("send"))
    if send is None:
        return False
    await story.hand.click(send)
    story.ahead.clear()
    return True


_ON = re.compile(r"\b(?:for|on|of|by)\b.*?(?P<who>@\w+)", re.IGNORECASE)
_COUNT = re.compile(r"\bon (?P<count>all|every|each|\d+)\b", re.IGNORECASE)


async def cards(story: Story) -> bool:
    """A named control on the cards of somebody: on one, some or all of them."""
    sentence = story.hand.sentence
    if story.begun:
        return False
    who = _ON.search(sentence)
    quotes = re.findall(r"\"([^\"]*)\"", sentence)
    if who is None or not quotes:
        return False
    count = _COUNT.search(sentence)
    most = 1 if count is None else int(count["count"]) if count["count"].isdigit() else 1_000
    done = 0
    for number in range(most):
        sight = await story.hand.look()
        owned = [one for one in sight.shown if one.text == who["who"] and sight.leaf(one)]
        if number >= len(owned):
            break
        done += await _control(story, sight, owned[number], quotes[0])
    story.ahead[:] = [one for one in story.ahead if "submit" in one.text.lower()]
    return done > 0


async def _control(story: Story, sight: Sight, named: Element, name: str) -> bool:
    card = rows(sight, named)
    control = _named(sight, card, name)
    if control is None:
        # Twice: scrolling to it may close again what the first click opened.
        for opener in 2 * [one for one in sight.inside(card) if one.visible and called(one, "more") >= 0.8]:
            await story.hand.click(opener)
            sight = await story.hand.look()
            control = _named(sight, sight.all[card.index], name)
            if control is not None:
                break
    if control is None:
        return False
    await story.hand.click(control)
    return True


def _named(sight: Sight, card: Element, name: str) -> Element | None:
    return best(sight, Target(name, "button"), list(sight.inside(card)))
