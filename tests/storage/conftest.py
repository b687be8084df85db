"""The databases that the contract tests run on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.postgres import new_database_url

POSTGRES = pytest.param("postgres", marks=pytest.mark.postgres)


@pytest.fixture(params=["sqlite-file", "sqlite-memory", POSTGRES])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Every database behind the port, empty."""
    return _address(request.param, tmp_path)


@pytest.fixture(params=["sqlite-file", POSTGRES])
def lasting_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Those that can be opened again."""
    return _address(request.param, tmp_path)


def _address(kind: str, folder: Path) -> str:
    if kind == "postgres":
        return new_database_url()
    return f"sqlite:///{folder}/house.db" if kind == "sqlite-file" else ":memory:"
