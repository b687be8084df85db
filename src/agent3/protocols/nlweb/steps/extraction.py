"""Reading data from a page: one evaluation in the page brings all raw texts, Python makes them typed values.

One evaluation is some fifty times faster than a locator per field. The script below is constant; selectors go in as
data. What comes out is text of strangers, bounded in number and length, and never more than data.
"""

from __future__ import annotations

import math
import re
from collections.abc import Awaitable, Callable
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, TypeVar

from agent3.definitions import ExtractField
from agent3.errors import MalformedResponse
from agent3.protocols.nlweb.browser.sdk import playwright

if TYPE_CHECKING:
    from playwright.async_api import Frame, Locator, Page

__all__ = ["Schema", "amount", "extract_page", "extract_rows", "field_of", "price", "raw_rows", "readable", "typed",
           "typed_rows"]  # fmt: skip

Schema = dict[str, str | ExtractField]
T = TypeVar("T")

MOST_ROWS = 10_000
LONGEST_TEXT = 100_000
MOST_TEXT = 8_000_000
"""Characters of one extraction, so that a page cannot fill the memory of whoever reads it."""

_SCRIPT = """
(roots, {plan, most, longest, budget}) => {
  const cut = text => {
    if (text == null) return null;
    const kept = String(text).slice(0, longest);
    budget -= kept.length + 1;
    if (budget < 0) throw new Error('agent3: too much text');
    return kept;
  };
  const absolute = link => {
    try { return link == null ? null : new URL(link, document.baseURI).href; } catch { return null; }
  };
  const shown = element => cut((element.innerText ?? element.textContent ?? '').trim());
  const raw = (element, field) => {
    if (field.fields) return record(element, field.fields);
    if (field.type === 'html') return cut(element.innerHTML);
    if (field.type === 'link') return cut(absolute(element.getAttribute(field.attribute ?? 'href')));
    return field.attribute ? cut(element.getAttribute(field.attribute)) : shown(element);
  };
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

_AMOUNT = re.compile(r"[-\u2212]?\d+(?:[.,'\u2019\s]\d{3}(?!\d))*(?:[.,]\d+)?")
_CURRENCIES = {"€": "EUR", "$": "USD", "£": "GBP", "¥": "JPY", "₹": "INR", "₩": "KRW", "₺": "TRY", "₽": "RUB"}
_CODE = re.compile(r"\b[A-Z]{3}\b")
_TRUE = frozenset({"true", "yes", "on", "1", "checked", "selected", "sí", "si"})

_MONTHS = {
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
_NAMES = rf"(?P<month>{'|'.join(_MONTHS)})\b\.?"
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
    said = _believed(await _bounded(found.evaluate_all(_OF_ALL_MATCHES, _task(schema))), dict)
    return _believed(said.get("rows"), list)[:MOST_ROWS], said.get("loading") is True


def typed_rows(rows: list[Any], schema: Schema | None) -> list[Any]:
    """The texts of rows as values of their types."""
    if not schema:
        return [_text(row) for row in rows]
    return [typed(_believed(row, dict), schema) for row in rows]


async def extract_page(page: Page | Frame, schema: Schema | None) -> Any:
    """One dict for the whole page, or its text without a schema."""
    found = await _bounded(page.evaluate(_OF_THE_PAGE, _task(schema)))
    return typed(_believed(found, dict), schema) if schema else _text(found)


async def _bounded(reading: Awaitable[Any]) -> Any:
    try:
        return await reading
    except playwright().Error as error:
        if "agent3: too much text" not in error.message:
            raise
        raise MalformedResponse(
            f"The page holds more than {MOST_TEXT} characters of what is asked for. Choose a narrower selector, or "
            "fewer fields."
        ) from None


def _believed(value: Any, kind: type[T]) -> T:
    """What the page gave, if it is what the script gives: a page may replace the functions that the script uses."""
    if not isinstance(value, kind):
        raise MalformedResponse(f"The page gave {type(value).__name__} where data was read. It cannot be read so.")
    return value


def _text(value: Any) -> str | None:
    return value[:LONGEST_TEXT] if isinstance(value, str) else None


def typed(row: dict[str, Any], schema: Schema) -> dict[str, Any]:
    """The raw texts of one row as values of their types.

    What cannot be read as its type is None; MalformedResponse if the field is required.
    """
    return {name: _value(name, row.get(name), field_of(field)) for name, field in schema.items()}


def readable(text: str, field: ExtractField) -> bool:
    """Whether a text is a value of the field's type."""
    return field.type == "boolean" or _READERS[field.type](text) is not None


def amount(text: str, *, grouped: bool = False) -> float | None:
    """The first number in a text, in either notation: 1,299.50 and 1.299,50 are the same.

    ``grouped`` decides the one unclear case, 1.299: a price of that form means thousands, another number does not.
    """
    found = _AMOUNT.search(text)
    if found is None:
        return None
    digits = re.sub(r"[\s'\u2019]", "", found[0]).replace("\u2212", "-").rstrip(".,")
    value = float(_with_decimal_point(digits, grouped))
    return value if math.isfinite(value) else None


def price(text: str) -> dict[str, Any] | None:
    """``{"amount", "currency"}``; the currency is None where the text does not say it."""
    value = amount(text, grouped=True)
    if value is None:
        return None
    code = _CODE.search(text)
    symbol = next((code for sign, code in _CURRENCIES.items() if sign in text), None)
    return {"amount": value, "currency": code[0] if code else symbol}


def _task(schema: Schema | None) -> dict[str, Any]:
    return {"plan": _plan(schema) if schema else None, "most": MOST_ROWS, "longest": LONGEST_TEXT, "budget": MOST_TEXT}


def _plan(schema: Schema) -> dict[str, Any]:
    fields = {name: field_of(field) for name, field in schema.items()}
    return {
        name: {
            **field.model_dump(include={"selector", "attribute", "type", "many"}),
            "fields": _plan(field.fields) if field.fields else None,
        }
        for name, field in fields.items()
    }


def field_of(field: str | ExtractField) -> ExtractField:
    """A field in its long form."""
    return ExtractField(selector=field) if isinstance(field, str) else field


def _value(name: str, raw: Any, field: ExtractField) -> Any:
    if field.many:
        return [_one(item, field) for item in (raw if isinstance(raw, list) else [])[:MOST_ROWS]]
    value = _one(raw, field)
    if value is None and field.required:
        raise MalformedResponse(
            f"The page has no {field.type} for the required field {name!r} at {field.selector!r}. "
            "Check the selector against the page, or make the field optional."
        )
    return value


def _one(raw: Any, field: ExtractField) -> Any:
    if field.fields:
        return typed(raw, field.fields) if isinstance(raw, dict) else None
    text = _text(raw)
    if field.type == "boolean":
        return _boolean(text, field)
    return None if text is None else _READERS[field.type](text)


def _boolean(raw: str | None, field: ExtractField) -> bool:
    """An attribute is true by being there (``disabled``), a text by saying so."""
    if raw is None:
        return False
    word = raw.strip().lower()
    return word in _TRUE or (field.attribute is not None and word not in {"false", "no", "off", "0"})


def _integer(text: str) -> int | None:
    value = amount(text, grouped=True)
    return None if value is None else int(value)


def _date(text: str) -> str | None:
    """A day, with the time if it has one, as ISO 8601.

    Read are ISO 8601, months by their names in English and Spanish, 31.12.2027, and 31/12/2027 where only one of the
    numbers can be the month: 03/04/2027 means two days, and a guess would be silent.
    """
    for read in (date.fromisoformat, datetime.fromisoformat):
        try:
            return read(text.strip()).isoformat()
        except ValueError:
            continue
    day = _named_day(text) or _numbered_day(text)
    if day is None:
        return None
    clock = _CLOCK.search(text)
    return f"{day.isoformat()}T{_hour(clock):02}:{clock[2]}:00" if clock else day.isoformat()


def _hour(clock: re.Match[str]) -> int:
    half = (clock[3] or "").lower()
    return int(clock[1]) % 12 + (12 if half == "p" else 0) if half else int(clock[1])


def _named_day(text: str) -> date | None:
    found = _DAY_FIRST.search(text) or _MONTH_FIRST.search(text)
    if found is None:
        return None
    return _day(int(found["year"]), _MONTHS[found["month"].lower()], int(found["day"]))


def _numbered_day(text: str) -> date | None:
    found = _NUMBERS.search(text)
    if found is None:
        return None
    one, other, year = int(found[1]), int(found[3]), int(found[4])
    if found[2] == "." or one > 12:
        return _day(year, other, one)
    return _day(year, one, other) if other > 12 or one == other else None


def _day(year: int, month: int, day: int) -> date | None:
    try:
        return date(year, month, day)
    except ValueError:
        return None


def _link(text: str) -> str | None:
    return None if text.lower().startswith("javascript:") else text


def _with_decimal_point(digits: str, grouped: bool) -> str:
    last = max(digits.rfind("."), digits.rfind(","))
    if last < 0:
        return digits
    mark, tail = digits[last], digits[last + 1 :]
    alone = digits.count(mark) == 1
    mixed = "." in digits and "," in digits
    decimal = alone and (mixed or len(tail) != 3 or (mark == "." and not grouped))
    whole = re.sub(r"[.,]", "", digits[:last])
    return f"{whole}.{tail}" if decimal else whole + tail


_READERS: dict[str, Callable[[str], Any]] = {
    "text": str,
    "html": str,
    "link": _link,
    "number": amount,
    "integer": _integer,
    "price": price,
    "date": _date,
}
