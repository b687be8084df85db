"""Where a command speaks of a date, a time, money, a number, an address or a quoted text.

Each is a span with its value. The grammar is our own, since general date finders take the verb "may" for a month and
the number of guests for a day. It knows English and Spanish, and no schema: ``slots`` decides what a span is for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from typing import Any, Literal

from agent3.sentences.lexicon import Language, detect_language, fold, fold_letters, is_telling

__all__ = ["MONTHS", "NUMBER_NAMES", "Kind", "Span", "find_spans", "parse_number", "read_amount"]

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
_UNITS = {
    1: "one un uno una", 2: "two dos", 3: "three tres", 4: "four cuatro", 5: "five cinco", 6: "six seis",
    7: "seven siete", 8: "eight ocho", 9: "nine nueve",
}  # fmt: skip
_TEENS = {
    10: "ten diez", 11: "eleven once", 12: "twelve doce", 13: "thirteen trece", 14: "fourteen catorce",
    15: "fifteen quince", 16: "sixteen dieciseis", 17: "seventeen diecisiete", 18: "eighteen dieciocho",
    19: "nineteen diecinueve", 21: "veintiuno veintiun veintiuna", 22: "veintidos", 23: "veintitres",
    24: "veinticuatro", 25: "veinticinco", 26: "veintiseis", 27: "veintisiete", 28: "veintiocho", 29: "veintinueve",
}  # fmt: skip
_TENS = {
    20: "twenty veinte", 30: "thirty treinta", 40: "forty cuarenta", 50: "fifty cincuenta", 60: "sixty sesenta",
    70: "seventy setenta", 80: "eighty ochenta", 90: "ninety noventa",
}  # fmt: skip
_HUNDREDS = {
    100: "cien ciento", 200: "doscientos doscientas", 300: "trescientos trescientas",
    400: "cuatrocientos cuatrocientas", 500: "quinientos quinientas", 600: "seiscientos seiscientas",
    700: "setecientos setecientas", 800: "ochocientos ochocientas", 900: "novecientos novecientas",
}  # fmt: skip
_ALONE = {0: "zero cero", 2: "couple par", 12: "docena dozen"}
_POWERS = {100: "hundred", 1000: "thousand mil", 1_000_000: "million millions millon millones"}


def _by_name(*tables: dict[int, str]) -> dict[str, int]:
    return {name: number for table in tables for number, names in table.items() for name in names.split()}


def _either(names: Iterable[str]) -> str:
    return "|".join(sorted(names, key=len, reverse=True))


NUMBER_NAMES = {**_UNITS, **_TEENS, **_TENS}
"""What small numbers are called in English and Spanish."""
_NUMBERS = _by_name(_UNITS, _TEENS, _TENS, _HUNDREDS, _ALONE, _POWERS)
_ARTICLES = frozenset({"one", "un", "una", "uno"})
_CURRENCIES = {
    "$": "USD", "usd": "USD", "dollar": "USD", "dolar": "USD", "€": "EUR", "eur": "EUR", "euro": "EUR",
    "£": "GBP", "gbp": "GBP", "pound": "GBP", "libra": "GBP",
}  # fmt: skip

_M = "|".join(sorted(_MONTHS, key=len, reverse=True))
_D = "|".join(sorted(_DAYS, key=len, reverse=True))
_U, _T, _TY = _either(_by_name(_UNITS)), _either(_by_name(_TEENS)), _either(_by_name(_TENS))
_TO_99 = rf"(?:(?:{_TY})(?:(?:[ -]|\s+y\s+)(?:{_U}))?|{_T}|{_U})\b"
_TO_999 = (
    rf"(?:(?:{_U}|an?|{_TY}|{_T})\s+hundred\b(?:\s+(?:and\s+)?{_TO_99})?"
    rf"|(?:{_either(_by_name(_HUNDREDS))})\b(?:\s+{_TO_99})?|{_TO_99})"
)
_NUM = r"\d{1,3}(?:[.,]\d{3})+(?:[.,]\d{1,2})?|\d+(?:[.,]\d+)?"
_N = (
    rf"(?:(?:{_TO_999}|(?<![\w.,])(?:{_NUM})|\ban?)\s+(?:thousand|mil|millions?|millon|millones)\b(?:,?\s+(?:and\s+)?{_TO_999})?"
    rf"|mil\b(?:\s+{_TO_999})?|{_TO_999}|hundred\b|thousand\b|(?:{_either(_by_name(_ALONE))})\b)"
)
"""A number in words: "two hundred and fifty", "mil quinientos". "two and three" are two of them."""
_AND_HALF = r"(?:\s+(?:and a half|y medi[oa])\b)?"
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
_HOUR_WORD = rf"(?:{_either(name for name, number in _NUMBERS.items() if 0 < number < 13)})\b"
_HOUR = rf"(?:\d{{1,2}}\b|{_HOUR_WORD})"
_PAST = (
    rf"(?:half past|(?:a )?quarter (?:past|to)|(?:{_TO_99}|\d{{1,2}})(?: minutes)? past"
    r"|(?:(?<=at )|(?<=by )|(?<=it's ))(?:five|ten|twenty|twenty-five) to)"
)
_PART = r"morning|afternoon|evening|night|manana|tarde|noche|madrugada"
_ENDS = (
    rf"(?=\s*(?:$|[^\w\s]|(?:on|in the|for|with|and|next|this|today|tomorrow|tonight|sharp|please|el|de|por|{_D})\b))"
)
# 7pm, 19:30, "a las 7 de la tarde", "at 7" (but not "at 7 euros"), "half past four in the afternoon", noon, midnight.
_CLOCK = re.compile(
    r"(?:\b(?P<h>\d{1,2})(?::(?P<m>\d{2}))?\s*(?P<half>a\.?m\b\.?|p\.?m\b\.?)"
    r"|\b(?P<h2>\d{1,2})[:h](?P<m2>\d{2})\b"
    rf"|(?:\ba |(?<=\bson )|(?<=\bes )|(?<=\bhasta )|(?<=\bdesde )|(?<=\bsobre ))las? "
    rf"(?P<h3>{_HOUR})(?::(?P<m3>\d{{2}}))?"
    rf"(?:\s+(?P<past>(?:y|menos)\s+(?:media|cuarto|{_TO_99}|\d{{1,2}}))\b)?(?:\s+en punto\b)?"
    rf"|\b(?P<said>{_PAST}) (?P<h5>{_HOUR})"
    r"|\bat (?P<h4>\d{1,2})\b(?!:|[.,]\d|\s*(?:%|euros?|dollars?|[ap]\.?m\b))(?:\s+o'?clock\b)?"
    rf"|\bat (?P<h6>{_HOUR_WORD})(?:\s+(?P<m6>fifteen|thirty|forty-five))?(?:\s+o'?clock\b|{_ENDS})"
    rf"|\b(?P<h7>{_HOUR})\s+o'?clock\b"
    r"|\b(?P<noon>noon|midday|mediodia)\b|\b(?P<midnight>midnight|medianoche)\b)"
    rf"(?:\s+(?:in the|at|de la|por la) (?P<part>{_PART})\b)?"
)
_TONIGHT = (
    re.compile(r"(?:tonight|this evening|esta noche|esta tarde),?\s*$"),
    re.compile(r"\s*(?:tonight|this evening|this afternoon|esta noche|esta tarde)\b"),
)
_C = r"usd|eur|gbp|dollars?|dolares?|dolar|euros?|pounds?|libras?"
_MONEY = re.compile(
    rf"(?P<c>[$€£]|\b(?:{_C})\s)\s*(?P<n>{_NUM})|(?P<n2>\b{_N}|(?<!\d)(?:{_NUM}))\s*(?:de\s+)?(?P<c2>[$€£]|(?:{_C})\b)"
)
_NUMBER = re.compile(rf"\b{_N}{_AND_HALF}|(?<![\w.,])-?(?:{_NUM})(?!\w){_AND_HALF}")


def find_spans(text: str, now: datetime) -> list[Span]:
    """All that is found, in the order of the text; what stands inside a longer one is left out."""
    plain, language = fold_letters(text), detect_language(text)
    # The surest first, since of two that overlap the first is kept.
    spans = [
        Span(*match.span(), "quote", next(quoted for quoted in match.groups() if quoted is not None))
        for match in _QUOTE.finditer(text)
    ]
    spans += [Span(*match.span(), "url", match[0]) for match in _URL.finditer(text)]
    spans += [Span(*match.span(), "email", match[0]) for match in _EMAIL.finditer(text)]
    spans += _find_dates(plain, now.date(), language)
    spans += _find_times(plain)
    for match in _MONEY.finditer(plain):
        currency = (match["c"] or match["c2"]).strip()
        unit = _CURRENCIES.get(currency) or _CURRENCIES[re.sub(r"(?<=r)es$|s$", "", currency)]
        whole, doubt = read_amount(match["n"] or match["n2"], language)
        spans.append(Span(*match.span(), "money", whole, unit, doubt))
    numbers = list(_NUMBER.finditer(plain))
    told = is_telling(text)
    spans += [
        _number_span(match, language, told and not _CURRENCY_AFTER.match(text, match.end()))
        for match in numbers
        if match[0] not in _ARTICLES
        and (match[0] != "once" or language == "es")
        and not (match[0] == "ciento" and plain.endswith("por ", 0, match.start()))
    ]
    # "un vuelo" and "one" are articles more often than counts, so they come after the sure ones.
    spans += [Span(*match.span(), "number", 1, "article") for match in numbers if match[0] in _ARTICLES]
    found: list[Span] = []
    taken = bytearray(len(text) + 1)
    for span in spans:
        if not any(taken[span.start : span.end]):
            found.append(span)
            taken[span.start : span.end] = b"\1" * (span.end - span.start)
    return sorted(found, key=lambda span: span.start)


def read_amount(text: str, language: Language) -> tuple[int | float, int | float | None]:
    """What an amount of money is, and what else it may be.

    It has two decimals at most; only in English "2.125" is more likely less than three.
    """
    (value, other), whole = _read_number(text, language), parse_number(text)
    return whole, value if value != whole and not other else None


_EARLY = 6
"""Before this hour a time of day that says no more may as well be in the afternoon."""


def _find_times(plain: str) -> Iterator[Span]:
    for match in _CLOCK.finditer(plain):
        told = next((match[name] for name in ("h", "h2", "h3", "h4", "h5", "h6", "h7") if match[name]), "0")
        hour = 12 if match["noon"] else int(parse_number(told))
        minute = int(parse_number(match["m"] or match["m2"] or match["m3"] or match["m6"] or "0"))
        if past := match["past"] or match["said"]:
            words = [
                word for word in re.split(r"[\s-]+", past) if word not in ("y", "menos", "a", "minutes", "past", "to")
            ]
            fixed = {"half": 30, "media": 30, "quarter": 15, "cuarto": 15}
            minutes = fixed.get(words[0]) or int(parse_number(" ".join(words)))
            late = "menos" in past or past.endswith("to")
            hour, minute = divmod((hour * 60 + minute + (-minutes if late else minutes)) % (24 * 60), 60)
        evening = not match["half"] and (
            _TONIGHT[0].search(plain, max(0, match.start() - 20), match.start())
            or _TONIGHT[1].match(plain, match.end())
        )
        part = match["part"] or ("evening" if evening else "")
        if match["half"]:
            hour = hour % 12 + (12 if match["half"].startswith("p") else 0)
        elif part in ("tarde", "afternoon", "evening") and hour < 12:
            hour += 12
        elif part in ("noche", "night") and 5 < hour <= 12:
            hour = (hour + 12) % 24
        elif part in ("morning", "madrugada") and hour == 12:
            hour = 0
        if hour < 24 and minute < 60:
            # "At four" is hardly said of the night, and "at nine" of the evening.
            bare = not (part or match["half"] or match["h2"]) and 0 < hour < _EARLY and told != "0"
            yield Span(*match.span(), "time", time(hour, minute), other=time(hour + 12, minute) if bare else None)


_CURRENCY_AFTER = re.compile(r" ?[A-Z]{3}\b")


def _number_span(match: re.Match[str], language: Language, sure: bool) -> Span:
    value, other = _read_number(match[0], language)
    if not sure and other is None and (whole := parse_number(match[0])) != value:
        other = whole  # no word tells the language, or it is an amount
    return Span(*match.span(), "number", value, other=other)


def _read_number(text: str, language: Language) -> tuple[int | float, int | float | None]:
    """What a number is, and what else it may be: a mark before three digits differs between the languages.

    "1.012" is a little more than one in English. In Spanish it is a thousand and twelve, or what it is in English in
    half of the countries; so is "1,012".
    """
    value = parse_number(text)
    if not _ONE_GROUP.fullmatch(text):
        return value, None
    decimal = float(text.replace(",", "."))
    if language == "en":
        return (decimal if "." in text else value), None
    return (value, decimal) if "." in text else (decimal, value)


_ONE_GROUP = re.compile(r"-?[1-9]\d{0,2}[.,]\d{3}")


def parse_number(text: str) -> int | float:
    """A number as written in either language: 1,299.00 and 1.299,00 are the same; or in words."""
    total, current = 0.0, 0.0
    words = [word for word in re.split(r"[\s-]+", fold(text)) if word not in ("and", "y", "a", "an")]
    if words and not any(word in _NUMBERS for word in words) and words[-1] not in ("half", "media", "medio"):
        return _parse_digits(text)
    for word in words:
        value = 0.5 if word in ("half", "media", "medio") else _NUMBERS.get(word)
        if value is None:
            current = _parse_digits(word)
        elif value >= 1000:
            total, current = total + (current or 1) * value, 0
        else:
            current = (current or 1) * 100 if word == "hundred" else current + value
    total += current
    return int(total) if total == int(total) else total


def _parse_digits(text: str) -> int | float:
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
