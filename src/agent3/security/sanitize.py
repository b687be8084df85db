"""What comes from elsewhere, made safe to show: no hidden characters, no active HTML, no text without an end.

Cleaning is not detection: it takes away what a reader cannot see and a model still reads, and says nothing about what
a text wants. Everything here returns the very same object when there was nothing to clean, so that the usual, clean
outcome is not copied. It knows the model and no protocol.
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
    "rewrite_outcome",
    "rewrite_part",
    "rewrite_value",
]

MAX_TEXT = 8 * 1024 * 1024

T = TypeVar("T")
S = TypeVar("S", bound=msgspec.Struct)
Rewrite = Callable[[str], str]

# ZWJ and ZWNJ stay: emoji, Persian and many Indic words are wrong without them. One variation selector after a letter
# stays too; a second one means nothing to any script, and runs of them carry smuggled bytes.
_CHARACTERS = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # controls but tab and line feed
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # bidirectional controls
    "\u180e\u200b\u2060-\u2065\u206a-\u206f\ufeff\ufff9-\ufffb"  # zero width and deprecated format characters
    "\ud800-\udfff"  # lone surrogates, which no encoder takes
    "\U000e0000-\U000e007f"  # tags
)
_SELECTORS = "\ufe00-\ufe0f\U000e0100-\U000e01ef"
_HIDDEN = re.compile(f"[{_CHARACTERS}]|(?<=[{_SELECTORS}])[{_SELECTORS}]")
_RETURN = re.compile("\r\n?")
# One plain class is searched about twice as fast as the whole pattern, and rarely finds anything.
_suspicious = re.compile(f"[{_CHARACTERS}{_SELECTORS}]").search
_selector = re.compile(f"[{_SELECTORS}]").search


def clean_text(text: str) -> str:
    """The text without what cannot be seen: controls, bidirectional overrides, zero width, tags, lone surrogates.

    Line ends become line feeds.
    """
    # Every hidden character but a selector is unprintable to Python, whose test is a tenth of a search.
    if text.isprintable() or text.replace("\n", "").isprintable():
        found = None if text.isascii() else _selector(text)
    else:
        found = _suspicious(text)
    if found is None:
        return text
    cleaned = _HIDDEN.sub("", _RETURN.sub("\n", text))
    return text if cleaned == text else cleaned


def clean_html(html: str) -> str:
    """The HTML without script, style, handlers, comments, foreign schemes and addresses of images.

    An image's address goes, because fetching it tells its owner who reads, and a model may be led to write the secret
    into it.
    """
    cleaned = clean_text(_html_cleaner()(clean_text(html)))  # twice: &#x202e; is a character only after parsing
    return html if cleaned == html else cleaned


@cache
def _html_cleaner() -> Rewrite:
    import nh3

    attributes = {tag: names - {"src", "srcset"} for tag, names in nh3.ALLOWED_ATTRIBUTES.items()}
    return partial(nh3.clean, attributes=attributes, url_schemes={"http", "https", "mailto"})


def clean_value(value: Any) -> Any:
    """A JSON value with every text and key cleaned; the same object if all were clean."""
    return rewrite_value(value, clean_text)


def clean_part(part: Part, max_text: int = MAX_TEXT) -> Part:
    """A part with its text cleaned, as HTML if it is HTML, and cut with a note beyond ``max_text`` characters."""
    text = _bounded(max_text)
    if part.media_type is None:
        if part.text is not None and _only_text(part):
            new = text(part.text)
            return part if new is part.text else Part(text=new)
        return rewrite_part(part, text)
    media = part.media_type.partition(";")[0].strip().lower()
    body = partial(_bounded_html, max_text) if media in _HTML else text
    changed = rewrite_part(part, text, body)
    if part.raw is not None and (media in _HTML or media.startswith("text/")):
        changed = _with(changed, raw=_clean_raw(part.raw, body))
    return changed


_HTML = ("text/html", "application/xhtml+xml")


def _only_text(part: Part) -> bool:
    """The usual part, which is not worth a walk over all its fields."""
    return part.data is UNSET and part.raw is None and not (part.url or part.name or part.artifact or part.meta)


def _clean_raw(raw: bytes, clean: Rewrite) -> bytes:
    text = raw.decode("utf-8", "replace")
    cleaned = clean(text)
    return raw if cleaned is text else cleaned.encode()


def clean_outcome(outcome: Outcome, max_text: int = MAX_TEXT) -> Outcome:
    """An outcome with every part, artifact, message and question cleaned, and no text longer than ``max_text``.

    What was cut ends in a note that says how much is missing. A connector's own ``state`` and the ids of questions
    and artifacts are left alone: they are handed back, not shown.
    """
    return rewrite_outcome(outcome, *_cleaning(max_text))


@cache
def _cleaning(max_text: int) -> tuple[Rewrite, Callable[[Part], Part]]:
    return _bounded(max_text), partial(clean_part, max_text=max_text)


@cache
def _bounded(limit: int) -> Rewrite:
    def bounded(text: str) -> str:
        if len(text) > limit:
            return clean_text(text[:limit]) + _note(text, limit)
        return text if text.isascii() and text.isprintable() else clean_text(text)

    return bounded


def _bounded_html(limit: int, html: str) -> str:
    return clean_html(html) if len(html) <= limit else clean_html(html[:limit]) + _note(html, limit)


def _note(text: str, limit: int) -> str:
    return f"\n[{len(text) - limit:,} of {len(text):,} characters left out: longer than the limit of {limit:,}]"


# --- walking --------------------------------------------------------------------------------------------------------


def rewrite_outcome(outcome: Outcome, text: Rewrite, part: Callable[[Part], Part]) -> Outcome:
    """The outcome with ``text`` applied to its own words and ``part`` to its parts; the same object if none changed."""
    match outcome:
        case Done():
            if not outcome.artifacts and not outcome.meta:
                parts = _each(part, outcome.parts)
                return outcome if parts is outcome.parts else msgspec.structs.replace(outcome, parts=parts)
            return _with(
                outcome,
                parts=_each(part, outcome.parts),
                artifacts=_each(partial(_rewrite_artifact, text, part), outcome.artifacts),
                meta=rewrite_value(outcome.meta, text),
            )
        case Failed():
            return _with(
                outcome,
                code=text(outcome.code),
                message=text(outcome.message),
                data=rewrite_value(outcome.data, text),
                parts=_each(part, outcome.parts),
                artifacts=_each(partial(_rewrite_artifact, text, part), outcome.artifacts),
            )
        case Needs():
            questions = _each(partial(_rewrite_question, text), outcome.questions)
            return _with(outcome, questions=questions, parts=_each(part, outcome.parts))
        case Working():
            return _with(outcome, text=_maybe(text, outcome.text))


def rewrite_part(part: Part, text: Rewrite, body: Rewrite | None = None) -> Part:
    """The part with ``text`` applied to all its words and ``body``, if given, to its text itself."""
    return _with(
        part,
        text=_maybe(body or text, part.text),
        data=rewrite_value(part.data, text) if part.data is not UNSET else UNSET,
        url=_maybe(text, part.url),
        media_type=_maybe(text, part.media_type),
        name=_maybe(text, part.name),
        meta=rewrite_value(part.meta, text) if part.meta else part.meta,
    )


def _rewrite_artifact(text: Rewrite, part: Callable[[Part], Part], artifact: Artifact) -> Artifact:
    return _with(
        artifact,
        name=_maybe(text, artifact.name),
        description=_maybe(text, artifact.description),
        parts=_each(part, artifact.parts),
        meta=rewrite_value(artifact.meta, text),
    )


def _rewrite_question(text: Rewrite, question: Question) -> Question:
    schema = rewrite_value(question.schema, text)
    return _with(question, text=text(question.text), schema=schema, url=_maybe(text, question.url))


def rewrite_value(value: Any, text: Rewrite) -> Any:
    """A JSON value with ``text`` applied to every string and key; the same object if none changed.

    It walks without recursion, so depth cannot exhaust the stack, and visits a shared or circular container once.
    Objects that are not JSON are left as they are.
    """
    kind = type(value)
    if kind is str:
        return text(value)
    if not value or not isinstance(value, (dict, list, tuple)) or not _any_changes(value, text):
        return value
    return _rebuilt(value, text)


def _any_changes(root: Any, text: Rewrite) -> bool:
    seen: set[int] = set()
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


def _rebuilt(root: Any, text: Rewrite) -> Any:
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

    result = copy(root)
    while waiting:
        source, target = waiting.pop()
        if isinstance(source, dict):
            _fill(target, source, text, copy)
        else:
            target.extend(map(copy, source))
    return result


def _fill(target: dict[Any, Any], source: dict[Any, Any], text: Rewrite, copy: Callable[[Any], Any]) -> None:
    for key, item in source.items():
        name = text(key) if isinstance(key, str) else key
        # Two keys that only differ in what is hidden: the plainly written one is meant.
        if name is key or name not in source:
            target[name] = copy(item)


def _maybe(text: Rewrite, value: str | None) -> str | None:
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


def _with(struct: S, **fields: Any) -> S:
    for name, value in fields.items():
        if value is not getattr(struct, name):
            return msgspec.structs.replace(struct, **fields)
    return struct
