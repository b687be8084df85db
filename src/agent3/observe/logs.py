"""Structured logs on the standard library: JSON lines or readable text, with the ids of the call, without secrets.

A record of agent3 is cleaned where it is created, before any handler sees it: known secrets, values of keys that look
secret, bearer tokens, credentials in URLs, and the control characters by which a stranger's text could forge a line.
It knows no protocol and writes only to stderr.
"""

from __future__ import annotations

import logging
import re
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from contextvars import ContextVar, Token
from datetime import UTC, datetime
from threading import Lock
from typing import Any, Final, Literal, NamedTuple, TextIO

import msgspec
from msgspec import Struct

from agent3.errors import SetupError
from agent3.secret import Secret

__all__ = [
    "BOUND",
    "REDACTED",
    "Bound",
    "Ids",
    "Outage",
    "Sparingly",
    "bind",
    "configure",
    "current",
    "get",
    "hide_secrets",
    "redact",
    "reset",
    "scrub",
    "tidy",
]

REDACTED: Final = "[redacted]"

_ROOT = "agent3"
_LONGEST_READ = 65_536
_LONGEST_SHOWN = 8_192
_LONGEST_ID = 128
_MOST_ITEMS = 100
_DEEPEST = 6
_MOST_SECRETS = 1_000
_SHORTEST_SECRET = 4


# --- the ids of the current call --------------------------------------------------------------------------------------


class Ids(NamedTuple):
    """The ids that every line of a call carries."""

    call: str | None = None
    job: str | None = None
    context: str | None = None
    trace: str | None = None


class Bound(Struct, frozen=True):
    """Ids that are only worked out when a line is logged, which most calls never do."""

    read: Callable[[Any], Ids]
    source: Any
    outer: Ids | Bound


BOUND: ContextVar[Ids | Bound] = ContextVar("agent3_ids", default=Ids())  # noqa: B039 - a tuple
"""The ids of the current call; set to a ``Bound`` by the step that records it."""


def bind(
    call: str | None = None, job: str | None = None, context: str | None = None, trace: str | None = None
) -> Token[Ids | Bound]:
    """Put ids on every line that this task logs from here on; ids not given stay. Undo it with ``reset``."""
    return BOUND.set(_merge(Ids(call, job, context, trace), current()))


def reset(token: Token[Ids | Bound]) -> None:
    """Undo the ``bind`` that returned this token."""
    BOUND.reset(token)


def current() -> Ids:
    """The ids that a line logged here would carry."""
    return _resolve(BOUND.get())


def _resolve(bound: Ids | Bound) -> Ids:
    return bound if isinstance(bound, Ids) else _merge(bound.read(bound.source), _resolve(bound.outer))


def _merge(inner: Ids, outer: Ids) -> Ids:
    """The inner ids; the outer ones where those are missing."""
    return Ids(*(mine or theirs for mine, theirs in zip(inner, outer, strict=True)))


# --- secrets ----------------------------------------------------------------------------------------------------------

_WORDS = (
    r"authorization|api[_-]?key|(?:access|private|secret|encryption|signing)[_-]?key|pass(?:word|wd|phrase)|pwd|secret"
    r"|token|cookie|signature|credential|session[_-]?id|jwt|otp"
)
_SUFFIX = r"s?(?:[_-]?(?:value|header|raw|hash))?"
_SECRET_KEY = re.compile(rf"(?:{_WORDS}|auth){_SUFFIX}\Z", re.IGNORECASE)
# Every part is bounded, or disjoint from what follows it, so that no text makes these patterns slow.
_VALUE = (
    r"""[bru]{0,2}\\*"(?:[^"\\]|\\.)*"?|[bru]{0,2}\\*'(?:[^'\\]|\\.)*'?"""
    r"""|[\w.]{0,64}[\[({][^\])}]*[\])}]?|[^\s,;&"'(){}\[\]<>]+"""
)
_LINK = r"""\\{0,4}["']?\s{0,4}(?:=>|[:=])\s{0,4}"""
_PAIR = rf"(?is)(?P<key>(?:{_WORDS}){_SUFFIX})(?P<link>{_LINK})(?P<value>{_VALUE})"


def _hide_value(pair: re.Match[str]) -> str:
    return pair[0] if _is_count(pair["key"], pair["value"]) else f"{pair['key']}{pair['link']}{REDACTED}"


class _Shape:
    """What a secret looks like, what to write instead, and words of which one must be present.

    The words make the usual line cheap: searching it for all shapes would cost more than all the rest of logging.
    """

    __slots__ = ("instead", "pattern", "words")

    def __init__(self, words: str, pattern: str, instead: str | Callable[[re.Match[str]], str] = REDACTED):
        self.words = tuple(words.split())
        self.pattern = re.compile(pattern)
        self.instead = instead


_SHAPES = (
    _Shape("-----begin", r"(?s)-----BEGIN [A-Z ]{0,40}PRIVATE KEY.*?(?:-----END [A-Z ]{0,40}KEY-----|\Z)"),
    _Shape(
        "cookie authorization",
        r"(?i)\b((?:set-)?cookie|(?:proxy-)?authorization)(\s?[:=]\s?)[^\r\n\"']+",
        rf"\1\2{REDACTED}",
    ),
    _Shape("bearer", r"(?i)\b(bearer)(?:\s+|%20|\+)[\w.~+/=:-]{4,}", rf"\1 {REDACTED}"),
    # "basic setup" is prose: the value must look like base64, by a digit, a sign or a change of case.
    _Shape(
        "basic",
        r"\b([Bb]asic)\s+(?=[A-Za-z]*(?:[\d+/=]|[a-z][A-Z]))[A-Za-z0-9+/=]{6,}",
        rf"\1 {REDACTED}",
    ),
    _Shape("eyj", r"(?<![\w-])eyJ[\w-]{8,}\.[\w-]+(?:\.[\w-]*)?"),
    _Shape(
        "sk- gh glpat- xox akia",
        r"(?<![\w-])(?:sk-|gh[pousr]_|github_pat_|glpat-|xox[abeoprs]-|AKIA)[\w-]{10,}",
    ),
    _Shape("://", r"(?<=://)[^\s/?#\"'<>]{1,512}@", f"{REDACTED}@"),
    _Shape("key= sig= code=", r"(?i)([?&](?:key|sig|code)=)[^&\s#\"'<>]+", rf"\1{REDACTED}"),
    _Shape("auth key pass pwd secret token cookie signature credential session jwt otp", _PAIR, _hide_value),
)
_HINTS = tuple(word for shape in _SHAPES for word in shape.words)


_encoder = msgspec.json.Encoder()


class _Secrets:
    """The secrets this process holds, newest last; beyond the bound the one registered longest ago is dropped.

    Readers take ``forms`` without a lock; it is replaced, never changed.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._values: dict[str, tuple[str, ...]] = {}
        self.forms: tuple[str, ...] = ()

    def add(self, value: str) -> None:
        with self._lock:
            known = self._values.pop(value, None)
            if known is not None:  # registered again: it moves to the end
                self._values[value] = known
                return
            self._values[value] = Secret(value).forms()
            if len(self._values) > _MOST_SECRETS:
                del self._values[next(iter(self._values))]
            # Longest first: a secret that begins with another one must not leave its tail behind.
            self.forms = tuple(sorted(set().union(*self._values.values()), key=len, reverse=True))


_secrets = _Secrets()


def redact(value: str) -> None:
    """Register a secret, so that no line ever shows it. Values under four characters are not looked for.

    The last thousand distinct values are kept; registering one again keeps it longer.
    """
    if len(value) >= _SHORTEST_SECRET:
        _secrets.add(value.encode("utf-8", "replace").decode())


def scrub(text: str) -> str:
    """The text without anything that is, or looks like, a secret. Very long text is cut."""
    # Cut twice: a secret that the first cut tore apart, and so hid from the search, lies beyond the second.
    text = _hide(text[:_LONGEST_READ])
    return text if len(text) <= _LONGEST_SHOWN else text[:_LONGEST_SHOWN] + "…"


def hide_secrets(text: str, longest: int, cut: str) -> str:
    """Likewise, of a length of one's own; ``cut`` says that there was more."""
    hidden = _hide(text[: longest + _LONGEST_SHOWN])
    return hidden if len(hidden) <= longest else hidden[:longest] + cut


def _hide(text: str) -> str:
    for secret in _secrets.forms:
        if secret in text:
            text = text.replace(secret, REDACTED)
    lower = text.lower()
    for word in _HINTS:  # a plain loop: the usual line has none, and a generator would cost as much as the search
        if word in lower:
            break
    else:
        return text
    for shape in _SHAPES:
        if any(word in lower for word in shape.words):
            text = shape.pattern.sub(shape.instead, text)
    return text


def _is_secret(key: str, value: object) -> bool:
    return value is not None and _SECRET_KEY.search(key) is not None and not _is_count(key, value)


def _is_count(key: str, value: object) -> bool:
    """``tokens`` beside a number is a usage, not a secret."""
    return key.lower().endswith("tokens") and str(value).isdigit()


def _one_line(text: str) -> str:
    """Escape everything that could break or forge a line: a newline becomes ``\\n``."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def tidy(value: Any, depth: int = 0) -> Any:
    """A value as plain data that can be logged: bounded, on one line, without secrets."""
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        return value if abs(value) < 2**63 else str(value)
    if isinstance(value, str):
        return _one_line(scrub(value))
    if isinstance(value, bytes | bytearray | memoryview):
        return f"<{len(value)} bytes>"
    if depth < _DEEPEST and isinstance(value, Mapping):
        return _tidy_mapping(value, depth)
    if depth < _DEEPEST and isinstance(value, list | tuple | set | frozenset):
        return [tidy(item, depth + 1) for item in list(value)[:_MOST_ITEMS]]
    return _one_line(scrub(_text_of(value)))


def _tidy_mapping(value: Mapping[Any, Any], depth: int) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    for key, item in list(value.items())[:_MOST_ITEMS]:
        name = _one_line(scrub(_text_of(key)))
        shown[name] = REDACTED if _is_secret(name, item) else tidy(item, depth + 1)
    return shown


def _text_of(value: object) -> str:
    try:
        return str(value)
    except Exception as error:  # noqa: BLE001 - a broken __str__ must not break the caller that logs
        return f"<{type(value).__name__}: {type(error).__name__} while showing it>"


# --- from record to line ----------------------------------------------------------------------------------------------

_OWN = frozenset({*logging.makeLogRecord({}).__dict__, "message", "asctime", "taskName", _ROOT})


class _Clean(NamedTuple):
    """What a cleaned record carries, as its attribute ``agent3``."""

    ids: Ids = Ids()
    fields: dict[str, Any] = {}


class _Cleaner(logging.Filter):
    """Cleans each record once, in place, and adds the ids of its task while they are still known."""

    def filter(self, record: logging.LogRecord) -> bool:
        if _ROOT in record.__dict__:
            return True
        args = record.args
        record.msg = _plain(record.msg)
        if isinstance(args, Mapping):
            record.args = {key: REDACTED if _is_secret(str(key), arg) else _plain(arg) for key, arg in args.items()}
        elif args:
            record.args = tuple(map(_plain, args))
        try:
            message = record.getMessage()
        except Exception as error:  # noqa: BLE001 - a wrong format string must not break the caller that logs
            count = len(args or ())
            message = f"{record.msg!r} with {count} arguments could not be formatted: {type(error).__name__}"
        record.msg, record.args = _one_line(scrub(message)), None

        # The fields that the caller gave as ``extra`` are replaced on the record too, for other handlers.
        given = {name: value for name, value in record.__dict__.items() if name not in _OWN}
        fields = _tidy_mapping(given, 0)
        record.__dict__.update({name: fields.get(name, REDACTED) for name in given})
        record.__dict__[_ROOT] = _Clean(current(), fields)

        if record.exc_info and record.exc_info[0] is not None:
            record.exc_text = "".join(traceback.format_exception(*record.exc_info))
        # The exception object is dropped: its arguments and frames hold what the text no longer does.
        record.exc_info = None
        record.exc_text = _clean_block(record.exc_text)
        record.stack_info = _clean_block(record.stack_info)
        return True


def _plain(arg: object) -> object:
    """Containers lose secrets by their keys, while they still have keys; anything else is searched as text."""
    return tidy(arg) if isinstance(arg, Mapping | list | tuple | set | frozenset) else arg


def _clean_block(text: str | None) -> str | None:
    """Clean several lines. The end is kept, because it says what went wrong."""
    if not text:
        return None
    tail = _hide(text.rstrip()[-_LONGEST_READ:])[-_LONGEST_SHOWN:]
    return "\n".join(map(_one_line, tail.split("\n")))


class _Json(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.msg,
            **_ids_of(record),
        }
        blocks = {"exception": record.exc_text, "stack": record.stack_info}
        fields = _clean_of(record).fields | {name: block for name, block in blocks.items() if block}
        line |= {f"{name}_" if name in line else name: value for name, value in fields.items()}
        return _encoder.encode(line).decode()


class _Text(logging.Formatter):
    """For people: one line, and below it a traceback, indented so that none of its lines can pose as a record."""

    def format(self, record: logging.LogRecord) -> str:
        clock = f"{time.strftime('%H:%M:%S', time.localtime(record.created))}.{int(record.msecs):03}"
        line = f"{clock} {record.levelname:<7} {record.name}: {record.msg}"
        for name, value in (_clean_of(record).fields | _ids_of(record)).items():
            plain = isinstance(value, str) and value and " " not in value
            line += f" {name}={value if plain else _encoder.encode(value).decode()}"
        for block in filter(None, (record.exc_text, record.stack_info)):
            line += "".join(f"\n    | {text}" for text in block.split("\n"))
        return line


def _clean_of(record: logging.LogRecord) -> _Clean:
    clean: _Clean = record.__dict__[_ROOT]
    return clean


def _ids_of(record: logging.LogRecord) -> dict[str, str]:
    ids = _clean_of(record).ids._asdict()
    return {name: _one_line(value[:_LONGEST_ID]) for name, value in ids.items() if value}


class Sparingly:
    """Lets at most ``most`` lines of one kind through in a second, and counts the others for the next one."""

    def __init__(self, most: int = 10):
        self._most = most
        self._second = 0
        self._lines = 0
        self._left_out = 0

    def admit(self, now: float) -> int | None:
        """None for a line that is left out; else how many were left out since the last one that was not."""
        if int(now) != self._second:
            self._second, self._lines = int(now), 0
        self._lines += 1
        if self._lines > self._most:
            self._left_out += 1
            return None
        left_out, self._left_out = self._left_out, 0
        return left_out


class Outage:
    """One line when something that is tried again and again begins to fail, and one when it works again."""

    def __init__(self, log: logging.Logger, what: str):
        self._log = log
        self._what = what
        self._is_on = False

    def failed(self, error: Exception) -> None:
        """It failed."""
        if not self._is_on:
            self._is_on = True
            self._log.error("%s failed, and is tried until it works: %s", self._what, error)

    def worked(self) -> None:
        """It worked."""
        if self._is_on:
            self._is_on = False
            self._log.warning("%s works again", self._what)


# --- configuration ----------------------------------------------------------------------------------------------------


class _Stderr(logging.StreamHandler[TextIO]):
    """Looks up stderr for each line, since it may be replaced while the process runs."""

    def __init__(self, stream: TextIO | None):
        self._given = stream
        super().__init__(stream or sys.stderr)
        self.addFilter(_Cleaner())

    def emit(self, record: logging.LogRecord) -> None:
        if self._given is None:
            self.stream = sys.stderr
        super().emit(record)


def configure(
    level: str | int = "INFO",
    format: Literal["text", "json"] = "text",  # noqa: A002 - the word of the setting
    stream: TextIO | None = None,
) -> None:
    """Write the log of this process to stderr, or to ``stream``. Calling it again replaces the configuration.

    ``level`` is agent3's own; libraries are logged from WARNING on. Their lines are cleaned like ours.
    """
    number = logging.getLevelNamesMapping().get(level.upper()) if isinstance(level, str) else level
    if number is None:
        raise SetupError(f"log level {level!r} does not exist: use DEBUG, INFO, WARNING, ERROR or CRITICAL")
    if format not in ("text", "json"):
        raise SetupError(f"log format {format!r} does not exist: use 'text' or 'json'")
    handler = _Stderr(stream)
    handler.setFormatter(_Json() if format == "json" else _Text())
    root = logging.getLogger()
    for old in [existing for existing in root.handlers if isinstance(existing, _Stderr)]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(max(number, logging.WARNING))
    get().setLevel(number)


def get(name: str = "") -> logging.Logger:
    """The logger of that name below ``agent3``. Log through it and nothing secret reaches any handler."""
    full = name if name == _ROOT or name.startswith(f"{_ROOT}.") else f"{_ROOT}.{name}".rstrip(".")
    logger = logging.getLogger(full)
    with _lock:
        if _cleaner not in logger.filters:
            logger.addFilter(_cleaner)
    return logger


_lock = Lock()
_cleaner = _Cleaner()
