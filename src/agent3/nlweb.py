"""Websites as agents. The names are loaded on first use; Playwright is loaded with the first browser."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent3.lazy import lazy

if TYPE_CHECKING:
    from agent3.protocols.nlweb.authoring.files import load, parse
    from agent3.protocols.nlweb.browser.sandbox import NLWebSandbox
    from agent3.protocols.nlweb.executor import NLWebExecutor

__all__ = ["NLWebExecutor", "NLWebSandbox", "load", "parse"]

__path__: list[str] = []  # so that agent3.nlweb.files is asked for: see former_paths

__getattr__, __dir__ = lazy(
    __name__,
    {
        "agent3.protocols.nlweb.authoring.files": ("load", "parse"),
        "agent3.protocols.nlweb.browser.sandbox": ("NLWebSandbox",),
        "agent3.protocols.nlweb.executor": ("NLWebExecutor",),
    },
)
