"""Websites as agents. The names are loaded on first use; Playwright is loaded with the first browser."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agent3.protocols.nlweb.browser.sandbox import NLWebSandbox
    from agent3.protocols.nlweb.executor import NLWebExecutor

__all__ = ["NLWebExecutor", "NLWebSandbox"]

_HOMES = {"NLWebExecutor": "agent3.protocols.nlweb.executor", "NLWebSandbox": "agent3.protocols.nlweb.browser.sandbox"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
