"""One thread for numpy's multiplications, as long as they are small.

The threads of OpenBLAS wait for each other by spinning. Where other programs want the cores too, a matrix of some
hundred rows then takes a hundred times as long as on one thread, and everybody else loses the cores meanwhile. numpy
has no word for it, so its own copy of the library is asked, where it has one that we know.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["one_thread"]

_NAMES = ("scipy_openblas_{}_num_threads64_", "scipy_openblas_{}_num_threads", "openblas_{}_num_threads64_")


@contextmanager
def one_thread() -> Iterator[None]:
    """Within it, OpenBLAS has one thread, in the whole process; after it, as many as before."""
    found = _library()
    if found is None:
        yield
        return
    ask, tell = found
    before = ask()
    tell(1)
    try:
        yield
    finally:
        tell(before)


@cache
def _library() -> tuple[Any, Any] | None:
    import numpy

    folder = Path(numpy.__file__).parent
    for path in [*folder.with_name("numpy.libs").glob("*openblas*"), *folder.glob(".dylibs/*openblas*")]:
        try:
            library = ctypes.CDLL(str(path))  # it is loaded already, and this is another handle to it
        except OSError:
            continue
        for name in _NAMES:
            ask, tell = (getattr(library, name.format(word), None) for word in ("get", "set"))
            if ask is not None and tell is not None:
                return ask, tell
    return None
