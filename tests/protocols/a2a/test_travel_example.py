"""The example in examples/travel-agents does what its README says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[3] / "examples" / "travel-agents" / "trip.py"


def test_a_trip_is_booked_in_may_and_taken_back_in_january(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLE, f"sqlite:///{tmp_path}/trip.db"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert {
        "may: success car-Rome-may flight-Rome-may hotel-Rome-may",
        "  hotel: cancelled hotel-Rome-january",
        "  flight: cancelled flight-Rome-january",
        "january: compensated flight-Rome-january hotel-Rome-january",
        'hotel reads: {"city":"Rome","month":"may"}',
    } <= set(done.stdout.splitlines())
