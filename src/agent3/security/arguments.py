"""Conditions on the arguments of a call, as rules and approvals write them: ``{amount = "> 100", country = "D*"}``.

A name with dots leads into objects. A condition is a comparison with a number (``>``, ``>=``, ``<``, ``<=``), ``=`` or
``!=`` with a value, or a pattern with ``*`` and ``?``. A list fits where one of its items does.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from agent3.errors import SetupError

__all__ = ["check_conditions", "fits", "translate"]

_COMPARISONS = {">=": operator.ge, "<=": operator.le, "!=": operator.ne, ">": operator.gt, "<": operator.lt}
_MISSING = object()
_DEEPEST = 8
_MOST_ITEMS = 1_000
"""Items of a list that are looked at; in a longer one nobody can say that none fits."""


def check_conditions(conditions: Mapping[str, str], where: str) -> None:
    """SetupError for a condition that could never be decided."""
    for name, condition in conditions.items():
        sign, wanted = _split(condition)
        if sign in (">", ">=", "<", "<=") and _number(wanted) is None:
            raise SetupError(f"{where}: {name} = {condition!r} compares with {wanted!r}, which is not a number.")
        if not name or name.count(".") >= _DEEPEST:
            raise SetupError(f"{where}: {name!r} is not the name of an argument, such as amount or customer.country.")


def fits(conditions: Mapping[str, str], given: Any) -> bool | None:
    """Whether arguments fit all conditions; None where that cannot be said, such as of a text that is still unread.

    An argument that is not given does not fit. Of one that cannot be compared, such as a word with a number, nothing
    can be said: what forbids or asks then counts as fitting, what allows does not.
    """
    if not conditions:
        return True
    if not isinstance(given, Mapping):
        return None
    verdicts = [_fits_one(condition, _find(given, name)) for name, condition in conditions.items()]
    if False in verdicts:
        return False
    return None if None in verdicts else True


def translate(given: Any, names: Mapping[str, str]) -> Any:
    """Arguments under the names of a stand-in, by ``names`` from its own to those of what it stands in for."""
    if not names or not isinstance(given, Mapping):
        return given
    return {**given, **{theirs: given[ours] for theirs, ours in names.items() if ours in given}}


def _find(given: Any, name: str) -> Any:
    if isinstance(given, Mapping) and name in given:
        return given[name]
    first, dot, rest = name.partition(".")
    if not dot or not isinstance(given, Mapping) or first not in given:
        return _MISSING
    return _find(given[first], rest)


def _fits_one(condition: str, value: Any) -> bool | None:
    if value is _MISSING or value is None:
        return False
    if isinstance(value, (list, tuple)):
        verdicts = {_fits_one(condition, one) for one in value[:_MOST_ITEMS]}
        if True in verdicts:
            return True
        return None if None in verdicts or len(value) > _MOST_ITEMS else False
    sign, wanted = _split(condition)
    if sign in ("", "="):
        text = _text(value)
        if text is None:
            return None
        return text == wanted if sign == "=" else fnmatchcase(text, wanted)
    number, bound = _number(value), _number(wanted)
    if sign == "!=" and (number is None or bound is None):
        text = _text(value)
        return None if text is None else text != wanted
    if number is None or bound is None:
        return None
    return bool(_COMPARISONS[sign](number, bound))


def _split(condition: str) -> tuple[str, str]:
    for sign in (">=", "<=", "!=", ">", "<", "="):
        if condition.startswith(sign):
            return sign, condition[len(sign) :].strip()
    return "", condition


def _number(value: Any) -> float | None:
    if isinstance(value, bool):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return None if math.isnan(number) else number


def _text(value: Any) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, (str, int, float)) else None
