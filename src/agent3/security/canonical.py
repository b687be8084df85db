"""Canonical JSON (RFC 8785): equal values have equal bytes, so that a signature survives a rewrite of its text.

It knows values, not signatures. Values that programs read differently are refused: integers beyond ±(2^53-1), NaN and
infinity, strings that are not valid Unicode.
"""

from __future__ import annotations

from typing import Any

import rfc8785

from agent3.errors import ValidationError

__all__ = ["canonical"]


def canonical(value: Any) -> bytes:
    """The canonical form of a JSON value; ValidationError where it has none."""
    try:
        return rfc8785.dumps(value)
    except rfc8785.IntegerDomainError as error:
        raise ValidationError(f"The value has no canonical form: {error}. Send the number as a string.") from None
    except (rfc8785.CanonicalizationError, UnicodeEncodeError) as error:
        raise ValidationError(f"The value has no canonical form: {error}.") from None
    except RecursionError:
        raise ValidationError("The value is nested too deeply to have a canonical form.") from None
