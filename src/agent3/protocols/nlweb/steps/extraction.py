"""Reading data from a page: one evaluation in the page brings all raw texts, Python makes typed values of them.

One evaluation is some fifty times faster than a locator per field. The script below is constant; selectors go in as
data. What comes out is untrusted text, bounded in number and length, and never more than data.
"""

from __future__ import annotations

import math
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, TypeVar

from agent3.definitions import ExtractField
from agent3.errors import MalformedResponse
from agent3.protocols.nlweb.browser.sdk import playwright
from agent3.sentences.spans import MONTHS

if TYPE_CHECKING:
    from playwright.async_api import Frame, Locator, Page

__all__ = ["Schema", "as_field", "extract_page", "extract_rows", "is_readable", "parse_amount", "parse_date",
           "parse_price", "raw_rows", "typed_row", "typed_rows"]  # fmt: skip

Schema = dict[str, str | ExtractField]
T = TypeVar("T")

MOST_ROWS = 10_000
LONGEST_TEXT = 100_000
MOST_TEXT = 8_000_000
"""Characters of one extraction, so that a page cannot fill the memory of its reader."""

_SCRIPT = """
(roots, {plan, most, longest, budget}) => {
  const cut = text => {
    if (text == null) return null;
    const kept = String(text).slice(0, longest);
    budget -= kept.length + 1;  // empty texts count too
    if (budget < 0) throw new Error('agent3: too much text');
    return kept;
  };
  const absolute = link => {
    try { return link == null ? null : new URL(link, document.baseURI).href; } catch { return null; }
  };
  const shown = element => cut((element.innerText ?? element.textContent ?? '').trim());
  // A price that is crossed out does not hold.
  const priced = element => {
    const struck = 'del,s,strike';
    if (!element.querySelector(struck)) return shown(element);
    const copy = element.cloneNode(true);
    copy.querySelectorAll(struck).forEach(one => one.remove());
    return /[0-9]/.test(copy.textContent) ? cut(copy.textContent.trim()) : shown(element);
  };
  const raw = (element, field) => {
    if (field.fields) return record(element, field.fields);
    if (field.type === 'html') return cut(element.innerHTML);
    if (field.type === 'link') return cut(absolute(element.getAttribute(field.attribute ?? 'href')));
    if (field.attribute) return cut(element.getAttribute(field.attribute));
    return field.type === 'price' ? priced(element) : shown(element);
  };
  // Walking into shadow roots costs much on a large page, so it is done only where there are any.
  const inShadow = root => [root, ...root.querySelectorAll('*')].flatMap(one => one.shadowRoot ?? []);
  const shadows = roots.some(root => root.getRootNode() instanceof ShadowRoot)
    || inShadow(document.documentElement).length > 0;
  const all = (root, selector) => shadows
    ? [...root.querySelectorAll(selector), ...inShadow(root).flatMap(inner => all(inner, selector))]
    : [...root.querySelectorAll(selector)];
  const first = (root, selector) => root.querySelector(selector) ?? (shadows ? all(root, selector)[0] : null);
  const read = (root, field) => {
    if (!field.selector) return field.many ? [raw(root, field)] : raw(root, field);
    if (field.many) return all(root, field.selector).slice(0, most).map(one => raw(one, field));
    const found = first(root, field.selector);
    return found ? raw(found, field) : null;
  };
  const record = (root, fields) =>
    Object.fromEntries(Object.entries(fields).map(([name, field]) => [name, read(root, field)]));
  return roots.slice(0, most).map(root => plan ? record(root, plan) : shown(root));
}
"""
_OF_ALL_MATCHES = f"""(roots, task) => ({{
  rows: ({_SCRIPT.strip()})(roots, task), loading: document.readyState === 'loading'}})"""
_OF_THE_PAGE = f"task => ({_SCRIPT.strip()})([document.documentElement], task)[0]"

# Digits in groups of three, by any of the marks that people use for it, then a part after a comma or a point.
_AMOUNT = re.compile(r"[-\u2212]?\d+(?:[.,'\u2019\s]\d{3}(?!\d))*(?:[.,]\d+)?")
_CURRENCIES = {"€": "EUR", "$": "USD", "£": "GBP", "¥": "JPY", "₹": "INR", "₩": "KRW", "₺": "TRY", "₽": "RUB"}
_CODE = re.compile(r"\b[A-Z]{3}\b")
_TRUE = frozenset({"true", "yes", "on", "1", "checked", "selected", "sí", "si"})

_NAMES = rf"(?P<month>{'|'.join(MONTHS)})\b\.?"
_DAY_FIRST = re.compile(
    rf"\b(?P<day>\d{{1,2}})(?:st|nd|rd|th)?\s+(?:of\s+|de\s+)?{_NAMES},?\s+(?:de\s+|del\s+)?(?P<year>\d{{4}})\b", re.I
)
_MONTH_FIRST = re.compile(rf"\b{_NAMES}\s+(?P<day>\d{{1,2}})(?:st|nd|rd|th)?,?\s+(?P<year>\d{{4}})\b", re.I)
_NUMBERS = re.compile(r"\b(\d{1,2})([./-])(\d{1,2})\2(\d{4})\b")
_CLOCK = re.compile(r"\b([01]?\d|2[0-3]):([0-5]\d)\b(?:\s*([ap])\.?m\b)?", re.I)


async def extract_rows(found: Locator, schema: Schema | None) -> list[Any]:
    """One dict per matching element, or its text without a schema. Fields are CSS selectors inside the element."""
    rows, _ = await raw_rows(found, schema)
    return typed_rows(rows, schema)


async def raw_rows(found: Locator, schema: Schema | None) -> tuple[list[Any], bool]:
    """The texts of all matching elements, and whether the document is still coming in, so that more may follow."""
    answer = _require(await _read_bounded(found.evaluate_all(_OF_ALL_MATCHES, _task(schema))), dict)
    return _require(answer.get("rows"), list)[:MOST_ROWS], answer.get("loading") is True


def typed_rows(rows: list[Any], schema: Schema | None) -> list[Any]:
    """The texts of rows as values of their types."""
    if not schema:
        return [_to_text(row) for row in rows]
    return [typed_row(_require(row, dict), schema) for row in rows]


async def extract_page(page: Page | Frame, schema: Schema | None) -> Any:
    """One dict for the whole page, or its text without a schema."""
    found = await _read_bounded(page.evaluate(_OF_THE_PAGE, _task(schema)))
    return typed_row(_require(found, dict), schema) if schema else _to_text(found)


async def _read_bounded(reading: Awaitable[Any]) -> Any:
    try:
        return await reading
    except playwright().Error as error:
        if "agent3: too much text" not in error.message:
            raise
        raise MalformedResponse(
            f"The page has more than {MOST_TEXT} characters of this content. Choose a narrower selector, or "
            "fewer fields."
        ) from None


def _require(value: Any, kind: type[T]) -> T:
    """What the page gave, if it is what the script gives: a page may replace the functions that the script uses."""
    if not isinstance(value, kind):
        raise MalformedResponse(
            f"The page returned {type(value).__name__} instead of {kind.__name__}: one of its own scripts interferes."
        )
    return value


def _to_text(value: Any) -> str | None:
    return value[:LONGEST_TEXT] if isinstance(value, str) else None


def _task(schema: Schema | None) -> dict[str, Any]:
    return {"plan": _plan(schema) if schema else None, "most": MOST_ROWS, "longest": LONGEST_TEXT, "budget": MOST_TEXT}


def _plan(schema: Schema) -> dict[str, Any]:
    fields = {name: as_field(field) for name, field in schema.items()}
    return {
        name: {
            **field.model_dump(include={"selector", "attribute", "type", "many"}),
            "fields": _plan(field.fields) if field.fields else None,
        }
        for name, field in fields.items()
    }


def as_field(field: str | ExtractField) -> ExtractField:
    """A field in its long form."""
    return ExtractField(selector=field) if isinstance(field, str) else field


# Texts into values


def typed_row(row: dict[str, Any], schema: Schema) -> dict[str, Any]:
    """The raw texts of one row as values of their types.

    What cannot be read as its type is None; MalformedResponse if the field is required.
    """
    values: dict[str, Any] = {}
    for name, short in schema.items():
        raw, field = row.get(name), as_field(short)
        if field.many:
            values[name] = [_to_value(item, field) for item in (raw if isinstance(raw, list) else [])[:MOST_ROWS]]
            continue
        values[name] = _to_value(raw, field)
        if values[name] is None and field.required:
            raise MalformedResponse(
                f"The page has no {field.type} for the required field {name!r} at {field.selector!r}. Check "
                "the selector, or make the field optional."
            )
    return values


def _to_value(raw: Any, field: ExtractField) -> Any:
    if field.fields:
        return typed_row(raw, field.fields) if isinstance(raw, dict) else None
    text = _to_text(raw)
    if field.type == "boolean":
        # An attribute is true by being there (``disabled``), a text by saying so.
        word = "" if text is None else text.strip().lower()
        by_being_there = text is not None and field.attribute is not None
        return word in _TRUE or (by_being_there and word not in {"false", "no", "off", "0"})
    return None if text is None else _PARSERS[field.type](text)


def is_readable(text: str, field: ExtractField) -> bool:
    """Whether a text is a value of the field's type."""
    return field.type == "boolean" or _PARSERS[field.type](text) is not None


def parse_amount(text: str, *, grouped: bool = False) -> float | None:
    """The first number in a text, in either notation: 1,299.50 and 1.299,50 are the same.

    ``grouped`` decides the one unclear case, 1.299: a price of that form means thousands, another number does not.
    """
    found = _AMOUNT.search(text)
    if found is None:
        return None
    digits = re.sub(r"[\s'\u2019]", "", found[0]).replace("\u2212", "-").rstrip(".,")
    last = max(digits.rfind("."), digits.rfind(","))
    if last >= 0:
        mark, tail = digits[last], digits[last + 1 :]
        is_alone = digits.count(mark) == 1
        is_mixed = "." in digits and "," in digits
        is_decimal = is_alone and (is_mixed or len(tail) != 3 or (mark == "." and not grouped))
        whole = re.sub(r"[.,]", "", digits[:last])
        digits = f"{whole}.{tail}" if is_decimal else whole + tail
    value = float(digits)
    return value if math.isfinite(value) else None


def parse_price(text: str) -> dict[str, Any] | None:
    """``{"amount", "currency"}``; the currency is None where the text does not say it."""
    value = parse_amount(text, grouped=True)
    if value is None:
        return None
    code = _CODE.search(text)
    symbol = next((code for sign, code in _CURRENCIES.items() if sign in text), None)
    return {"amount": value, "currency": code[0] if code else symbol}


def parse_date(text: str) -> str | None:
    """A day, with the time if it has one, as ISO 8601.

    Read are ISO 8601, months by their names in English and Spanish, 31.12.2027, and 31/12/2027 where only one of the
    numbers can be the month: 03/04/2027 means two days, and a guess would be silent.
    """
    for read in (date.fromisoformat, datetime.fromisoformat):
        try:
            return read(text.strip()).isoformat()
        except ValueError:
            continue
    readings: list[tuple[int, int, int]] = []
    if found := _DAY_FIRST.search(text) or _MONTH_FIRST.search(text):
        readings.append((int(found["year"]), MONTHS[found["month"].lower()], int(found["day"])))
    if found := _NUMBERS.search(text):
        first, second, year = int(found[1]), int(found[3]), int(found[4])
        if found[2] == "." or first > 12:
            readings.append((year, second, first))
        elif second > 12 or first == second:
            readings.append((year, first, second))
    day = None
    for reading in readings:
        with suppress(ValueError):
            day = date(*reading).isoformat()
            break
    clock = _CLOCK.search(text)
    if day is None or clock is None:
        return day
    half = (clock[3] or "").lower()
    hour = int(clock[1]) % 12 + (12 if half == "p" else 0) if half else int(clock[1])
    return f"{day}T{hour:02}:{clock[2]}:00"


_PARSERS: dict[str, Callable[[str], Any]] = {
    "text": str,
    "html": str,
    "link": lambda text: None if text.lower().startswith("javascript:") else text,
    "number": parse_amount,
    "integer": lambda text: None if (value := parse_amount(text, grouped=True)) is None else int(value),
    "price": parse_price,
    "date": parse_date,
}
