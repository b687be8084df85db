"""One thread for numpy's multiplications, as long as they are small.

The threads of OpenBLAS wait for each other by spinning. Where other programs want the cores too, a matrix of some
hundred rows then takes a hundred times as long as on one thread, and everything else loses the cores meanwhile. numpy
has no setting for it, so its own copy of the library is asked, where it has one that we know.
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
    functions = _find_functions()
    if functions is None:
        yield
        return
    get_threads, set_threads = functions
    before = get_threads()
    set_threads(1)
    try:
        yield
    finally:
        set_threads(before)


@cache
def _find_functions() -> tuple[Any, Any] | None:
    import numpy

    folder = Path(numpy.__file__).parent
    for path in [*folder.with_name("numpy.libs").glob("*openblas*"), *folder.glob(".dylibs/*openblas*")]:
        try:
            library = ctypes.CDLL(str(path))  # it is loaded already; this is another handle to it
        except OSError:
            continue
        for name in _NAMES:
            getter, setter = (getattr(library, name.format(verb), None) for verb in ("get", "set"))
            if getter is not None and setter is not None:
                return getter, setter
    return None
