"""Canonical JSON (RFC 8785): equal values have equal bytes, so that a signature outlives a rewrite of its text.

It knows values, not signatures. What cannot have one form for everybody is refused: integers beyond ±(2^53-1), numbers
that are none, texts that are not Unicode.
"""

from __future__ import annotations

import json
import math
from typing import Any

from agent3.errors import ValidationError

__all__ = ["canonical"]

_SAFE = 2**53 - 1


def canonical(value: Any) -> bytes:
    """The one form of a JSON value; ValidationError where it has none."""
    try:
        return _text(value).encode()
    except UnicodeEncodeError:
        raise ValidationError(
            "A text with half a surrogate pair has no canonical form. Send whole characters."
        ) from None
    except RecursionError:
        raise ValidationError("The value is nested too deeply to have a canonical form.") from None


def _text(value: Any) -> str:
    if value is None or isinstance(value, (bool, str)):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, int):
        return _integer(value)
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(_text, value))}]"
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        pairs = sorted(value.items(), key=lambda pair: pair[0].encode("utf-16-be"))
        return f"{{{','.join(f'{_text(key)}:{_text(one)}' for key, one in pairs)}}}"
    raise ValidationError(f"{type(value).__name__} is no JSON value and has no canonical form.")


def _integer(value: int) -> str:
    if not -_SAFE <= value <= _SAFE:
        raise ValidationError(f"{value} is beyond ±(2^53-1), where programs read numbers differently. Send it as text.")
    return str(value)


def _number(value: float) -> str:
    """As ECMAScript writes it, section 6.1.6.1.20: the shortest digits, and an exponent from 1e21 and below 1e-6."""
    if not math.isfinite(value):
        raise ValidationError(f"{value} is no JSON number.")
    if value == 0:
        return "0"
    digits, point = _shortest(abs(value))
    return ("-" if value < 0 else "") + _laid_out(digits, point)


def _shortest(value: float) -> tuple[str, int]:
    """The fewest digits that mean this number, and where the point stands: value = 0.DIGITS * 10^point."""
    mantissa, _, power = repr(value).partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    point = len(whole.lstrip("0")) or -(len(fraction) - len(fraction.lstrip("0")))
    return digits.rstrip("0"), point + int(power or 0)


def _laid_out(digits: str, point: int) -> str:
    if len(digits) <= point <= 21:
        return digits + "0" * (point - len(digits))
    if 0 < point <= 21:
        return f"{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return f"0.{'0' * -point}{digits}"
    power = f"{point - 1:+d}"
    return f"{digits[0]}{'.' if len(digits) > 1 else ''}{digits[1:]}e{power}"
