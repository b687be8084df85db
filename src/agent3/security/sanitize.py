"""Cleaning of what comes from elsewhere: no hidden characters, no active HTML, no text without a bound.

Cleaning is not detection: it removes what a person cannot see and a model still reads, and does not judge what a text
asks for. Every function returns the very same object when there was nothing to clean, so that the usual, clean outcome
is not copied. It knows the model, but no protocol.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, partial
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET

from agent3.model import Artifact, Done, Failed, Needs, Outcome, Part, Question, Working

__all__ = [
    "MAX_TEXT",
    "clean_html",
    "clean_outcome",
    "clean_part",
    "clean_text",
    "clean_value",
    "escape_text",
    "is_clean_text",
    "rewrite_outcome",
    "rewrite_part",
    "rewrite_value",
]

MAX_TEXT = 8 * 1024 * 1024

T = TypeVar("T")
S = TypeVar("S", bound=msgspec.Struct)
Rewrite = Callable[[str], str]

# ZWJ and ZWNJ stay: emoji, Persian and many Indic words need them. One variation selector after a letter stays too; a
# second one has no meaning in any script, and runs of them can smuggle bytes.
_CHARACTERS = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # controls except tab and line feed
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # bidirectional controls
    "\u180e\u200b\u2060-\u2065\u206a-\u206f\ufeff\ufff9-\ufffb"  # zero width and deprecated format characters
    "\ud800-\udfff"  # lone surrogates, which cannot be encoded
    "\U000e0000-\U000e007f"  # tags
)
_SELECTORS = "\ufe00-\ufe0f\U000e0100-\U000e01ef"
_HIDDEN = re.compile(f"[{_CHARACTERS}]|(?<=[{_SELECTORS}])[{_SELECTORS}]")
_RETURN = re.compile("\r\n?")
# A single character class is searched about twice as fast as the whole pattern, and rarely finds anything.
_search_hidden = re.compile(f"[{_CHARACTERS}{_SELECTORS}]").search
_search_selector = re.compile(f"[{_SELECTORS}]").search


def clean_text(text: str) -> str:
    """Remove what cannot be seen: controls, bidirectional overrides, zero-width characters, tags, lone surrogates.

    Line ends become line feeds.
    """
    # Every hidden character except a selector is unprintable to Python, whose test costs a tenth of a search.
    if text.isprintable() or text.replace("\n", "").isprintable():
        found = None if text.isascii() else _search_selector(text)
    else:
        found = _search_hidden(text)
    if found is None:
        return text
    cleaned = _HIDDEN.sub("", _RETURN.sub("\n", text))
    return text if cleaned == text else cleaned


def escape_text(text: str) -> str:
    """The text with the numbers of what cannot be seen in its place: for who has to see all that is there."""
    return _HIDDEN.sub(lambda found: f"\\u{{{ord(found[0]):x}}}", text)


def clean_html(html: str) -> str:
    """Remove scripts, styles, event handlers, comments, foreign URL schemes and the addresses of images.

    Fetching an image tells its owner who reads, and a model may be led to write a secret into its address.
    """
    # The text is cleaned twice: &#x202e; becomes a character only by parsing.
    plain = clean_text(html)
    cleaned = clean_text(_load_html_cleaner()(plain) if _is_shallow(plain) else _drop_tags(plain))
    return html if cleaned == html else cleaned


_TAG = re.compile(r"<(/?)([a-zA-Z][a-zA-Z0-9:-]{0,40})([^<>]*)")
_NEVER_NESTED = frozenset(
    "area base br col embed hr img input link meta param source track wbr"  # have no end
    " p li dt dd tr td th thead tbody tfoot option optgroup rp rt".split()  # end where the next one begins
)
_DEEPEST_TAG = 256
_LONGEST_TAG = 20_000


def _is_shallow(html: str) -> bool:
    """Whether the parser takes a time in proportion to the length of this text.

    It does not where elements are nested without end, or where a tag has thousands of attributes: both take a time
    that grows with the square of their number, and no page that people read has them.
    """
    if html.count("<") <= _DEEPEST_TAG and len(html) <= _LONGEST_TAG:
        return True
    opened: dict[str, int] = {}
    depth = 0
    for match in _TAG.finditer(html):
        if len(match[3]) > _LONGEST_TAG:
            return False
        name = match[2].lower()
        if name in _NEVER_NESTED or match[3].endswith("/"):
            continue
        if not match[1]:
            opened[name] = opened.get(name, 0) + 1
            depth += 1
            if depth > _DEEPEST_TAG:
                return False
        elif opened.get(name, 0):
            opened[name] -= 1
            depth -= 1
    return True


def _drop_tags(html: str) -> str:
    """What is left of HTML that is not worth parsing: its text, in which nothing is a tag any longer."""
    return _ANY_TAG.sub(" ", html).replace("<", "&lt;").replace(">", "&gt;")


_ANY_TAG = re.compile(r"<[^<>]*>")


@cache
def _load_html_cleaner() -> Rewrite:
    import nh3  # loaded on first use: most processes never see HTML

    attributes = {tag: names - {"src", "srcset"} for tag, names in nh3.ALLOWED_ATTRIBUTES.items()}
    return partial(nh3.clean, attributes=attributes, url_schemes={"http", "https", "mailto"})


def clean_value(value: Any) -> Any:
    """Clean every string and key of a JSON value."""
    return rewrite_value(value, clean_text)


_HTML = ("text/html", "application/xhtml+xml")


def clean_part(part: Part, max_text: int = MAX_TEXT) -> Part:
    """Clean the text of a part, as HTML if it is HTML, and cut it with a note beyond ``max_text`` characters."""
    text = _bounded_cleaner(max_text)
    if part.media_type is None:
        # The usual part is a text and nothing else, which is not worth a walk over all fields.
        plain = part.data is UNSET and part.raw is None and not (part.url or part.name or part.artifact or part.meta)
        if part.text is not None and plain:
            new = text(part.text)
            return part if new is part.text else Part(text=new)
        return rewrite_part(part, text)
    media = part.media_type.partition(";")[0].strip().lower()
    body = _bounded_cleaner(max_text, html=media in _HTML)
    changed = rewrite_part(part, text, body)
    if part.raw is not None and (media in _HTML or media.startswith("text/")):
        decoded = part.raw.decode("utf-8", "replace")
        cleaned = body(decoded)
        changed = _replace(changed, raw=part.raw if cleaned is decoded else cleaned.encode())
    return changed


def clean_outcome(outcome: Outcome, max_text: int = MAX_TEXT) -> Outcome:
    """Clean every part, artifact, message and question of an outcome, and cut texts longer than ``max_text``.

    A cut text ends in a note that says how much is missing. A connector's own ``state`` and the ids of questions and
    artifacts are left alone: they are handed back, not shown.
    """
    if is_clean_text(outcome, max_text):
        return outcome
    return rewrite_outcome(outcome, *_cleaners(max_text))


def is_clean_text(outcome: Outcome, max_text: int) -> bool:
    """Whether an outcome is one plain text with nothing to clean, as most are, which is not worth a walk."""
    if type(outcome) is not Done or len(outcome.parts) != 1 or outcome.artifacts or outcome.meta:
        return False
    part = outcome.parts[0]
    text = part.text
    if text is None or part.media_type or part.name or part.meta or part.url:
        return False
    return len(text) <= max_text and text.isascii() and text.isprintable()


@cache
def _cleaners(max_text: int) -> tuple[Rewrite, Callable[[Part], Part]]:
    return _bounded_cleaner(max_text), partial(clean_part, max_text=max_text)


@cache
def _bounded_cleaner(limit: int, *, html: bool = False) -> Rewrite:
    clean = clean_html if html else clean_text

    def clean_bounded(text: str) -> str:
        if len(text) > limit:
            note = f"[{len(text) - limit:,} of {len(text):,} characters left out: longer than the limit of {limit:,}]"
            return f"{clean(text[:limit])}\n{note}"
        return text if not html and text.isascii() and text.isprintable() else clean(text)

    return clean_bounded


# --- walking --------------------------------------------------------------------------------------------------------


def rewrite_outcome(outcome: Outcome, text: Rewrite, part: Callable[[Part], Part]) -> Outcome:
    """Apply ``text`` to the strings of an outcome and ``part`` to its parts; the same object if nothing changed."""
    match outcome:
        case Done():
            if not outcome.artifacts and not outcome.meta:
                parts = _each(part, outcome.parts)
                return outcome if parts is outcome.parts else msgspec.structs.replace(outcome, parts=parts)
            return _replace(
                outcome,
                parts=_each(part, outcome.parts),
                artifacts=_each(partial(_rewrite_artifact, text, part), outcome.artifacts),
                meta=rewrite_value(outcome.meta, text),
            )
        case Failed():
            return _replace(
                outcome,
                code=text(outcome.code),
                message=text(outcome.message),
                data=rewrite_value(outcome.data, text),
                parts=_each(part, outcome.parts),
                artifacts=_each(partial(_rewrite_artifact, text, part), outcome.artifacts),
            )
        case Needs():

            def rewrite_question(question: Question) -> Question:
                return _replace(
                    question,
                    text=text(question.text),
                    schema=rewrite_value(question.schema, text),
                    url=_optional(text, question.url),
                )

            questions = _each(rewrite_question, outcome.questions)
            return _replace(outcome, questions=questions, parts=_each(part, outcome.parts))
        case Working():
            return _replace(outcome, text=_optional(text, outcome.text))


def rewrite_part(part: Part, text: Rewrite, body: Rewrite | None = None) -> Part:
    """Apply ``text`` to all strings of a part, or ``body``, if given, to its text itself."""
    return _replace(
        part,
        text=_optional(body or text, part.text),
        data=rewrite_value(part.data, text) if part.data is not UNSET else UNSET,
        url=_optional(text, part.url),
        media_type=_optional(text, part.media_type),
        name=_optional(text, part.name),
        meta=rewrite_value(part.meta, text) if part.meta else part.meta,
    )


def _rewrite_artifact(text: Rewrite, part: Callable[[Part], Part], artifact: Artifact) -> Artifact:
    return _replace(
        artifact,
        name=_optional(text, artifact.name),
        description=_optional(text, artifact.description),
        parts=_each(part, artifact.parts),
        meta=rewrite_value(artifact.meta, text),
    )


def rewrite_value(value: Any, text: Rewrite) -> Any:
    """Apply ``text`` to every string and key of a JSON value; the same object if nothing changed.

    It walks without recursion, so depth cannot exhaust the stack, and visits a shared or circular container once.
    Objects that are not JSON are left as they are.
    """
    kind = type(value)
    if kind is str:
        return text(value)
    if not value or not isinstance(value, (dict, list, tuple)) or not _changes(value, text):
        return value

    copies: dict[int, Any] = {}
    waiting: list[tuple[Any, Any]] = []

    def copy(item: Any) -> Any:
        if isinstance(item, str):
            return text(item)
        if not isinstance(item, (dict, list, tuple)):
            return item
        if id(item) not in copies:
            copies[id(item)] = {} if isinstance(item, dict) else []
            waiting.append((item, copies[id(item)]))
        return copies[id(item)]

    result = copy(value)
    while waiting:
        source, target = waiting.pop()
        if not isinstance(source, dict):
            target.extend(map(copy, source))
            continue
        for key, item in source.items():
            name = text(key) if isinstance(key, str) else key
            # Of two keys that differ only in hidden characters, the plainly written one wins.
            if name is key or name not in source:
                target[name] = copy(item)
    return result


def _changes(root: Any, text: Rewrite) -> bool:
    """Whether ``text`` changes any string in it: the usual answer is no, and then nothing is copied."""
    seen: set[int] = set()  # by identity, since containers are not hashable
    stack = [root]
    while stack:
        container = stack.pop()
        if id(container) in seen:
            continue
        seen.add(id(container))
        if isinstance(container, dict):
            for key in container:
                if isinstance(key, str) and text(key) is not key:
                    return True
            items = container.values()
        else:
            items = container
        for item in items:
            if isinstance(item, str):
                if text(item) is not item:
                    return True
            elif isinstance(item, (dict, list, tuple)):
                stack.append(item)
    return False


def _optional(text: Rewrite, value: str | None) -> str | None:
    return None if value is None else text(value)


def _each(change: Callable[[T], T], items: tuple[T, ...]) -> tuple[T, ...]:
    if not items:
        return items
    if len(items) == 1:  # as most are
        new = change(items[0])
        return items if new is items[0] else (new,)
    changed = tuple(map(change, items))
    for new, old in zip(changed, items, strict=True):
        if new is not old:
            return changed
    return items


def _replace(struct: S, **fields: Any) -> S:
    for name, value in fields.items():
        if value is not getattr(struct, name):
            return msgspec.structs.replace(struct, **fields)
    return struct
