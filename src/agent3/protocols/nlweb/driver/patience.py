"""How long pages are waited for, and how much is tried on them."""

from __future__ import annotations

ACT_MS, COVERED_MS = 5_000.0, 1_500.0
"""How long an element may keep an act waiting, and a page the sign that something was pressed."""
POLL_SECONDS = 0.05
UNANSWERED_SECONDS = 1.5
"""How long a press may show nothing, where it asked no server for anything."""
SUGGESTED_SECONDS = 1.5
"""How long a field may take to suggest options, and a page to show what the next part of a sentence needs."""
LOADING_SECONDS = 5.0
"""How long a page that says that it is loading is waited for."""
YOUNG_SECONDS = 1.5
"""How long after its beginning a page is expected to show more by itself."""
SAVING_SECONDS = 1.2
"""How long after its last field a page may take to save by itself, or to set the field back."""
REGRET_SECONDS = 1.5
"""How long after a press a page may take back what it showed, turn it down, or ask about it."""
MOST_KEYS = 200
TRIES = 2
