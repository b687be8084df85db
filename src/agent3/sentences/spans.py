"""Where a command speaks of a date, a time, money, a number, an address or a quoted text.

Each is a span with its value. The grammar is our own, since general date finders take the verb "may" for a month and
the number of guests for a day. It knows English and Spanish, and no schema: ``slots`` decides what a span is for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from typing import Any, Literal

from agent3.sentences.lexicon import Language, detect_language, fold, fold_letters

__all__ = ["MONTHS", "Kind", "Span", "find_spans", "parse_number"]

Kind = Literal["date", "time", "money", "number", "email", "url", "quote"]


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a text and what it says. ``other`` is a second reading, such as of 03/04/2027."""

    start: int
    end: int
    kind: Kind
    value: Any
    unit: str = ""
    other: Any = None

    def overlaps(self, another: Span) -> bool:
        return self.start < another.end and another.start < self.end


MONTHS = {
    word: number
    for number, words in enumerate(
        (
            "january jan enero ene", "february feb febrero", "march mar marzo", "april apr abril abr", "may mayo",
            "june jun junio", "july jul julio", "august aug agosto ago", "september sept sep septiembre setiembre set",
            "october oct octubre", "november nov noviembre", "december dec diciembre dic",
        ),
        1,
    )
    for word in words.split()
}  # fmt: skip
"""Their names in English and Spanish."""
_MONTHS = {name: number for name, number in MONTHS.items() if name != "set"}  # which is a verb in a command
_WEEKDAYS = ("monday mon lunes", "tuesday tue tues martes", "wednesday wed miercoles", "thursday thu thurs jueves",
             "friday fri viernes", "saturday sat sabado", "sunday sun domingo")  # fmt: skip
_DAYS = {name: number for number, names in enumerate(_WEEKDAYS) for name in names.split()}
_NUMBER_WORDS = {
    0: "zero cero", 1: "one un uno una", 2: "two dos couple par", 3: "three tres", 4: "four cuatro", 5: "five cinco",
    6: "six seis", 7: "seven siete", 8: "eight ocho", 9: "nine nueve", 10: "ten diez", 11: "eleven once",
    12: "twelve doce docena dozen", 13: "thirteen trece", 14: "fourteen catorce", 15: "fifteen quince",
    16: "sixteen dieciseis", 20: "twenty veinte", 30: "thirty treinta", 40: "forty cuarenta", 50: "fifty cincuenta",
    100: "hundred cien ciento", 1000: "thousand mil",
}  # fmt: skip
_NUMBERS = {name: number for number, names in _NUMBER_WORDS.items() for name in names.split()}
_ARTICLES = frozenset({"one", "un", "una", "uno"})
_CURRENCIES = {
    "$": "USD", "usd": "USD", "dollar": "USD", "dolar": "USD", "€": "EUR", "eur": "EUR", "euro": "EUR",
    "£": "GBP", "gbp": "GBP", "pound": "GBP", "libra": "GBP",
}  # fmt: skip

_M = "|".join(sorted(_MONTHS, key=len, reverse=True))
_D = "|".join(sorted(_DAYS, key=len, reverse=True))
_N = "|".join(sorted(_NUMBERS, key=len, reverse=True))
_NUM = r"\d{1,3}(?:[.,]\d{3})+(?:[.,]\d{1,2})?|\d+(?:[.,]\d+)?"
_UNIT = r"(?P<unit>days?|dias?|weeks?|semanas?|months?|mes(?:es)?)"

_QUOTE = re.compile(r"“([^”]*)”|«([^»]*)»|\"([^\"]*)\"|(?<!\w)'([^']+)'(?!\w)")
_EMAIL = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
_URL = re.compile(r"https?://[^\s\"'<>]+[^\s\"'<>.,;:!?)]")
_ISO = re.compile(r"\b(\d{4})-(\d{1,2})-(\d{1,2})\b")
_SLASHED = re.compile(r"\b(\d{1,2})[/.](\d{1,2})[/.](\d{4}|\d{2})\b")
_NAMED = (
    re.compile(rf"\b(?P<m>{_M})\.?\s+(?P<d>\d{{1,2}})(?:st|nd|rd|th)?(?:,?\s+(?P<y>\d{{4}}))?\b"),
    re.compile(
        rf"\b(?P<d>\d{{1,2}})(?:st|nd|rd|th|º)?\s+(?:of\s+|de\s+)?(?P<m>{_M})\b(?:,?\s+(?:de[l]?\s+)?(?P<y>\d{{4}}))?"
    ),
)
_DAYS_OF = re.compile(
    rf"\b(?P<d>\d{{1,2}})(?P<th>(?:st|nd|rd|th|º)?)\s+(?:to|until|till|and|al?|y|hasta)\s+(?:the\s+"
    rf"|el\s+)?\d{{1,2}}(?:st|nd|rd|th|º)?"
    rf"\s+(?:of\s+|de\s+)?(?P<m>{_M})\b(?:,?\s+(?:de[l]?\s+)?(?P<y>\d{{4}}))?"
)
_RELATIVE = re.compile(
    r"\b(?P<after>day after tomorrow|pasado manana)\b|\b(?P<today>today|tonight|hoy|esta noche)\b"
    r"|(?<!la )\b(?P<tomorrow>tomorrow|manana)\b|\b(?P<yesterday>yesterday|ayer)\b"
)
_IN = re.compile(rf"\b(?:in|within|dentro de|en)\s+(?P<n>\d+|{_N}|an?)\s+{_UNIT}\b")
_NEXT_UNIT = re.compile(r"\b(?:next|la proxima|el proximo)\s+(?P<unit>week|semana|month|mes)\b")
_WEEKDAY = re.compile(
    rf"\b(?P<next>next\s+|(?:el\s+)?proximo\s+)?(?:(?:on|this|el|este)\s+)?(?P<day>{_D})s?\b(?P<after>\s+que viene)?"
)
_HOURS = "|".join(word for number, names in _NUMBER_WORDS.items() if 0 < number < 13 for word in names.split()[:4])
_MINUTES_PAST = {"y media": 30, "half past": 30, "y cuarto": 15, "quarter past": 15, "menos cuarto": -15,
                 "quarter to": -15}  # fmt: skip
# 7pm, 19:30, "a las 7 de la tarde", "at 7" (but not "at 7 euros"), noon and midnight.
_CLOCK = re.compile(
    r"\b(?P<h>\d{1,2})(?::(?P<m>\d{2}))?\s*(?P<half>a\.?m\b\.?|p\.?m\b\.?)"
    r"|\b(?P<h2>\d{1,2})[:h](?P<m2>\d{2})\b"
    rf"|\ba las? (?P<h3>\d{{1,2}}|{_HOURS}\b)(?::(?P<m3>\d{{2}}))?(?:\s+(?P<past>y media|y cuarto|menos cuarto)\b)?"
    r"(?:\s+(?:de|por) la (?P<part>manana|tarde|noche))?"
    rf"|\b(?P<said>half past|quarter past|quarter to) (?P<h5>\d{{1,2}}|{_HOURS})\b"
    r"|\bat (?P<h4>\d{1,2})\b(?!:|\s*(?:%|euros?|dollars?))"
    r"|\b(?P<noon>noon|midday|mediodia)\b|\b(?P<midnight>midnight|medianoche)\b"
)
_C = r"usd|eur|gbp|dollars?|dolares?|dolar|euros?|pounds?|libras?"
_MONEY = re.compile(rf"(?P<c>[$€£]|\b(?:{_C})\s)\s*(?P<n>{_NUM})|(?P<n2>{_NUM})\s*(?P<c2>[$€£]|(?:{_C})\b)")
_NUMBER = re.compile(rf"(?<![\w.,])-?(?:{_NUM})(?!\w)|\b(?:{_N})\b")


def find_spans(text: str, now: datetime) -> list[Span]:
    """All that is found, in the order of the text; what stands inside a longer one is left out."""
    plain = fold_letters(text)
    # The surest first, since of two that overlap the first is kept.
    spans = [
        Span(*match.span(), "quote", next(quoted for quoted in match.groups() if quoted is not None))
        for match in _QUOTE.finditer(text)
    ]
    spans += [Span(*match.span(), "url", match[0]) for match in _URL.finditer(text)]
    spans += [Span(*match.span(), "email", match[0]) for match in _EMAIL.finditer(text)]
    spans += _find_dates(plain, now.date(), detect_language(text))
    for match in _CLOCK.finditer(plain):
        told = match["h"] or match["h2"] or match["h3"] or match["h4"] or match["h5"] or "0"
        hour = 12 if match["noon"] else int(parse_number(told))
        minute = int(match["m"] or match["m2"] or match["m3"] or 0)
        if match["half"]:
            hour = hour % 12 + (12 if match["half"].startswith("p") else 0)
        elif match["part"] in ("tarde", "noche"):
            hour = hour % 12 + 12
        if past := match["past"] or match["said"]:
            hour, minute = divmod((hour * 60 + minute + _MINUTES_PAST[past]) % (24 * 60), 60)
        if hour < 24 and minute < 60:
            spans.append(Span(*match.span(), "time", time(hour, minute)))
    for match in _MONEY.finditer(plain):
        currency = (match["c"] or match["c2"]).strip()
        unit = _CURRENCIES.get(currency) or _CURRENCIES[re.sub(r"(?<=r)es$|s$", "", currency)]
        spans.append(Span(*match.span(), "money", parse_number(match["n"] or match["n2"]), unit))
    numbers = list(_NUMBER.finditer(plain))
    spans += [Span(*match.span(), "number", parse_number(match[0])) for match in numbers if match[0] not in _ARTICLES]
    # "un vuelo" and "one" are articles more often than counts, so they come after the sure ones.
    spans += [Span(*match.span(), "number", 1, "article") for match in numbers if match[0] in _ARTICLES]
    found: list[Span] = []
    taken = bytearray(len(text) + 1)
    for span in spans:
        if not any(taken[span.start : span.end]):
            found.append(span)
            taken[span.start : span.end] = b"\1" * (span.end - span.start)
    return sorted(found, key=lambda span: span.start)


def parse_number(text: str) -> int | float:
    """A number as written in either language: 1,299.00 and 1.299,00 are the same; or its word."""
    if (word := fold(text)) in _NUMBERS:
        return _NUMBERS[word]
    last = max(text.rfind(","), text.rfind("."))
    # Three digits after the last mark are thousands, but in 0.125.
    if last >= 0 and (len(text) - last - 1 != 3 or text.lstrip("-").startswith("0")):
        whole, part = re.sub(r"[.,]", "", text[:last]), text[last + 1 :]
        return float(f"{whole}.{part}")
    return int(re.sub(r"[.,]", "", text))


def _find_dates(plain: str, today: date, language: Language) -> Iterator[Span]:
    for match in _ISO.finditer(plain):
        if (day := _make_date(int(match[1]), int(match[2]), int(match[3]))) is not None:
            yield Span(*match.span(), "date", day)
    for match in _SLASHED.finditer(plain):
        # Day and month in the order of the language; the other order is remembered if it is a date as well.
        year = int(match[3]) + (2000 if len(match[3]) == 2 else 0)
        orders = [(int(match[1]), int(match[2])), (int(match[2]), int(match[1]))]
        if language == "es" or "." in match[0]:
            orders.reverse()
        good = [day for month, number in orders if (day := _make_date(year, month, number)) is not None]
        if good:
            doubt = good[1] if len(good) == 2 and good[0] != good[1] and language == "en" else None
            yield Span(*match.span(), "date", good[0], other=doubt)
    for match in _DAYS_OF.finditer(plain):
        # "from the 3rd to the 7th of March": the first day takes month and year from the second.
        month, number = _MONTHS[match["m"]], int(match["d"])
        coming = today.year if (month, number) >= (today.month, today.day) else today.year + 1
        if (day := _make_date(int(match["y"]) if match["y"] else coming, month, number)) is not None:
            yield Span(match.start("d"), match.end("th"), "date", day)
    for pattern in _NAMED:
        for match in pattern.finditer(plain):
            month, number = _MONTHS[match["m"]], int(match["d"])
            coming = today.year if (month, number) >= (today.month, today.day) else today.year + 1
            if (day := _make_date(int(match["y"]) if match["y"] else coming, month, number)) is not None:
                yield Span(*match.span(), "date", day)
    for match in _RELATIVE.finditer(plain):
        days = {"after": 2, "today": 0, "tomorrow": 1, "yesterday": -1}[match.lastgroup or "today"]
        yield Span(*match.span(), "date", today + timedelta(days=days))
    for match in _IN.finditer(plain):
        count = 1 if match["n"] in ("a", "an") else int(parse_number(match["n"]))
        yield Span(*match.span(), "date", _add_to_date(today, count, match["unit"]))
    for match in _NEXT_UNIT.finditer(plain):
        yield Span(*match.span(), "date", _add_to_date(today, 1, match["unit"]))
    # A weekday is always the coming one, with "next" or without: people do not agree on what "next Friday" is.
    for match in _WEEKDAY.finditer(plain):
        ahead = (_DAYS[match["day"]] - today.weekday()) % 7 or 7
        yield Span(*match.span(), "date", today + timedelta(days=ahead))


def _make_date(year: int, month: int, day: int) -> date | None:
    try:
        return date(year, month, day)
    except ValueError:
        return None


def _add_to_date(today: date, count: int, unit: str) -> date:
    if unit.startswith("d"):
        return today + timedelta(days=count)
    if unit.startswith(("w", "s")):
        return today + timedelta(weeks=count)
    years, month = divmod(today.month - 1 + count, 12)
    first = date(today.year + years, month + 1, 1)
    next_first = (first + timedelta(days=32)).replace(day=1)
    # A month after January 31 is the last of February.
    return min(first + timedelta(days=today.day - 1), next_first - timedelta(days=1))
