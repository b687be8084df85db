"""Websites as agents. The names are loaded on first use; Playwright is loaded with the first browser."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent3.lazy import lazy

if TYPE_CHECKING:
    from agent3.protocols.nlweb import NLWebExecutor, NLWebSandbox

__all__ = ["NLWebExecutor", "NLWebSandbox"]

__getattr__, __dir__ = lazy(__name__, {"agent3.protocols.nlweb": __all__})
