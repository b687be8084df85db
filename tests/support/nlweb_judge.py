"""The reference models of the NLWeb protocol, as an outside judge.

They are read as a file of nlweb-core: importing the package itself would load its whole server.
"""

from __future__ import annotations

import importlib.util
import sys
from importlib.metadata import PackageNotFoundError, distribution
from typing import Any

import pytest

__all__ = ["models"]


def models() -> Any:
    """The module of models; the test is skipped where nlweb-core is not installed."""
    try:
        path = distribution("nlweb-core").locate_file("nlweb_core/protocol/models.py")
    except PackageNotFoundError:
        pytest.skip("nlweb-core, a development dependency, is not installed", allow_module_level=True)
    spec = importlib.util.spec_from_file_location("nlweb_reference_models", str(path))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # pydantic looks its annotations up there
    spec.loader.exec_module(module)
    return module
