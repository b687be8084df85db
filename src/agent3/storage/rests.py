"""Rests between small transactions of a long work in the background, so that callers have the disk most of the time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from agent3.env import Env

__all__ = ["rest_after"]

_SHARE = 4.0
"""How much longer than the work took the rest is."""
_LONGEST = 0.25


@asynccontextmanager
async def rest_after(env: Env) -> AsyncIterator[None]:
    """Rest after what is done within, for longer where that took longer."""
    began = env.monotonic()
    yield
    await asyncio.sleep(min(_LONGEST, _SHARE * max(0.0, env.monotonic() - began)))
