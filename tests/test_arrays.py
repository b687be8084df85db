"""numpy as agent3 loads it: without threads, which a program that is started would wait for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

COUNTED = """
import os, agent3.server.build
print(len(os.listdir("/proc/self/task")), os.environ.get("OPENBLAS_NUM_THREADS"))
"""


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are counted in /proc, which is Linux's")
@pytest.mark.parametrize("wanted", [None, "2"])
def test_the_library_below_has_no_threads_and_the_environment_stays_as_it_was(wanted: str | None) -> None:
    surroundings = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    if wanted is not None:
        surroundings["OPENBLAS_NUM_THREADS"] = wanted
    counted = subprocess.run(
        [sys.executable, "-c", COUNTED], env=surroundings, capture_output=True, text=True, check=True
    )
    assert counted.stdout.split() == ["1", str(wanted)]
