"""The only import of Playwright, made when the first browser is needed."""

from __future__ import annotations

from functools import cache
from typing import Any

from agent3.errors import MissingExtra

__all__ = ["playwright"]


@cache
def playwright() -> Any:
    """Playwright's asynchronous API; MissingExtra says how to install it."""
    try:
        import playwright.async_api as api
    except ImportError:
        raise MissingExtra("A browser", "browser") from None
    return api
