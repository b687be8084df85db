"""Doing on an unknown page what a sentence says (``agent3 web run URL "sentence"``), without a language model.

``sentences`` reads words, ``page_view`` reads the page, ``matching`` brings the two together, ``skills`` act. None of
them knows an interface, the gateway, or which website this is.
"""

from __future__ import annotations

from agent3.protocols.nlweb.driver.driver import Driven, drive
from agent3.protocols.nlweb.driver.page_operator import Confirm
from agent3.protocols.nlweb.driver.sentences import is_restricted

__all__ = ["Confirm", "Driven", "drive", "is_restricted"]
