"""Sentences for an interface: which action they mean, with which parameters, or what to ask (``understand``).

It reads words and knows neither browser nor page. Sentences for a page without an interface go to ``driver``.
"""

from __future__ import annotations

from agent3.protocols.nlweb.commands.follow_ups import join_follow_up, understand
from agent3.protocols.nlweb.commands.resolution import Candidate, Resolution, resolve, resolve_with_model

__all__ = ["Candidate", "Resolution", "join_follow_up", "resolve", "resolve_with_model", "understand"]
