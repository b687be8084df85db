"""numpy, loaded with a BLAS that has no threads of its own. Whoever needs numpy takes it from here.

OpenBLAS ends its threads before every fork. While another thread computes, that can wait for ever, and so does
the event loop that starts a program. Without threads there is nothing to end; our arrays are too small to miss them.
Where somebody else has loaded numpy before, it stays as it is.
"""

from __future__ import annotations

import os

__all__ = ["NDArray", "np"]

_SETTING = "OPENBLAS_NUM_THREADS"

_before = os.environ.get(_SETTING)
os.environ[_SETTING] = "1"
import numpy as np  # noqa: E402 - the library reads the variable when it is loaded
from numpy.typing import NDArray  # noqa: E402 - numpy too: whoever imported it from there would load it with threads

if _before is None:
    del os.environ[_SETTING]
else:
    os.environ[_SETTING] = _before
