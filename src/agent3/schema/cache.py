"""The compiled schema of a definition by the identity of its dict. Use ``schema.compiled`` and ``schema.once``."""

from __future__ import annotations

from agent3.schema.compiler import compiled, once

__all__ = ["compiled", "once"]
