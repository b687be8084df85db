"""Conditions on the arguments of a call, as rules and approvals write them: ``{amount = "> 100", country = "D*"}``.

A name with dots leads into objects, and into those of a list. A condition is a comparison with a number (``>``,
``>=``, ``<``, ``<=``), ``=`` or ``!=`` with a value, or a pattern with ``*`` and ``?``. A list fits where one of its
items does; for what allows, all of them have to.
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
_UNCLEAR = object()
"""In place of a value that a name does not lead to, such as a text where an object was meant."""
_DEEPEST = 8
_MOST_ITEMS = 1_000
"""Items of a list that are looked at; in a longer one nobody can say that none fits."""


def check_conditions(conditions: Mapping[str, str], where: str) -> None:
    """SetupError for a condition that could never be decided."""
    for name, condition in conditions.items():
        sign, wanted = _split(condition)
        if sign in (">", ">=", "<", "<=") and _number(wanted) is None:
            raise SetupError(f"{where}: {name} = {condition!r} compares with {wanted!r}, which is not a number.")
        if sign and wanted.lstrip()[:1] in ("<", ">", "=", "!", "~"):
            raise SetupError(f"{where}: {name} = {condition!r} is not a comparison. Known are > >= < <= = and !=.")
        if not name or name.count(".") >= _DEEPEST:
            raise SetupError(f"{where}: {name!r} is not the name of an argument, such as amount or customer.country.")


def fits(conditions: Mapping[str, str], given: Any, *, every: bool = False) -> bool | None:
    """Whether arguments fit all conditions; None where that cannot be said, such as of a text that is still unread.

    An argument that is not given does not fit. Of one that cannot be compared, such as a word with a number, nothing
    can be said: what forbids or asks then counts as fitting, what allows does not. Where there are several values, in a
    list or under a name that can be read in two ways, one is enough; with ``every``, for what allows, all have to fit.
    """
    if not conditions:
        return True
    if not isinstance(given, Mapping):
        return None
    verdicts = [_fits_any(condition, _find(given, name), every) for name, condition in conditions.items()]
    if False in verdicts:
        return False
    return None if None in verdicts else True


def translate(given: Any, names: Mapping[str, str]) -> Any:
    """Arguments under the names of a stand-in, by ``names`` from its own to those of what it stands in for."""
    if not names or not isinstance(given, Mapping):
        return given
    return {**given, **{theirs: given[ours] for theirs, ours in names.items() if ours in given}}


def _find(given: Any, name: str) -> list[Any]:
    """Every value that a name may mean, a few more than are looked at; _UNCLEAR for what does not lead on."""
    if isinstance(given, (list, tuple)):
        found: list[Any] = []
        for one in given:
            found += _find(one, name) or [None]
            if len(found) > _MOST_ITEMS:
                break
        return found
    if given is None:
        return []
    if not isinstance(given, Mapping):
        return [_UNCLEAR]
    # Also where the whole name is a key: whoever calls could add one to hide what is meant.
    values = [given[name]] if name in given else []
    first, dot, rest = name.partition(".")
    return values + (_find(given[first], rest) if dot and first in given else [])


def _fits_any(condition: str, values: list[Any], every: bool) -> bool | None:
    """Whether one of several values fits; with ``every``, whether all do. False where there is none."""
    verdicts: set[bool | None] = set()
    for value in values[:_MOST_ITEMS]:
        if isinstance(value, (list, tuple)):
            verdicts.add(_fits_any(condition, list(value), every))
        else:
            verdicts.add(_fits_one(condition, value))
    if len(values) > _MOST_ITEMS:
        verdicts.add(None)
    if not verdicts or (every and False in verdicts):
        return False
    if True in verdicts and not (every and None in verdicts):
        return True
    return None if None in verdicts else False


def _fits_one(condition: str, value: Any) -> bool | None:
    if value is None:
        return False
    sign, wanted = _split(condition)
    if sign in ("", "="):
        texts = _texts(value)
        if not texts:
            return None
        return any(text == wanted if sign == "=" else fnmatchcase(text, wanted) for text in texts)
    number, bound = _number(value), _number(wanted)
    if sign == "!=" and (number is None or bound is None):
        texts = _texts(value)
        return None if not texts else wanted not in texts
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


def _texts(value: Any) -> tuple[str, ...]:
    """A value as a rule may write it: 12345.0 is the same number as 12345."""
    if isinstance(value, bool):
        return ("true" if value else "false",)
    if isinstance(value, float) and value.is_integer():
        return str(int(value)), str(value)
    return (str(value),) if isinstance(value, (str, int, float)) else ()
