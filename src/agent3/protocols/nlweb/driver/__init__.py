"""Doing on an unknown page what a sentence says (``agent3 web run URL "sentence"``), without a language model.

``sentences`` reads words, ``page_view`` reads the page, ``page_plans`` brings the two together, ``wishes`` reads what
has none of the known forms, ``driver`` acts and looks whether it shows. None of them knows an interface, the gateway,
or which website this is.
"""

from __future__ import annotations

from agent3.protocols.nlweb.driver.driver import Driven, drive
from agent3.protocols.nlweb.driver.fields import Confirm

__all__ = ["Confirm", "Driven", "drive"]
