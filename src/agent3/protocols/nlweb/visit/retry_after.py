"""``Retry-After`` (RFC 9110, 10.2.3) as a number of seconds that can be trusted."""

from __future__ import annotations

import email.utils
import math
import time
from contextlib import suppress

__all__ = ["LONGEST", "retry_after"]

LONGEST = 3_600.0
"""Seconds; a longer wait, or a number that no clock can represent, is taken as an hour."""


def retry_after(header: str | None, now: float | None = None) -> float | None:
    """From a number of seconds or a date: 0 to an hour; None if it is neither."""
    with suppress(TypeError, ValueError):
        seconds = float(header or "")
        return None if math.isnan(seconds) else min(max(0.0, seconds), LONGEST)
    with suppress(TypeError, ValueError, OverflowError):
        then = email.utils.parsedate_to_datetime(header or "").timestamp()
        return min(max(0.0, then - (time.time() if now is None else now)), LONGEST)
    return None
