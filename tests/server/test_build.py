"""Where a gateway keeps what it stores."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent3.protocols.functions.standalone import blob_folder
from agent3.settings import Settings, Storage, data_folder, database_url


def test_without_a_setting_everything_lies_in_the_data_folder_which_is_private(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT3_DATA", str(tmp_path / "own"))
    assert database_url(Settings()) == f"sqlite:///{tmp_path}/own/agent3.db"
    assert (tmp_path / "own").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("url", "folder"),
    [
        ("sqlite:////var/a.db", Path("/var/artifacts")),
        ("sqlite:///sub/a.db", Path("sub/artifacts")),
        ("sqlite:///~/a.db", Path.home() / "artifacts"),
        ("sqlite://", None),
        ("sqlite:///", None),
        ("sqlite:///:memory:", None),
        (":memory:", None),
        ("postgresql://host/name", data_folder() / "artifacts"),
    ],
)
def test_large_results_lie_beside_the_database_or_end_with_it(url: str, folder: Path | None) -> None:
    assert blob_folder(Settings(), url) == folder
    assert blob_folder(Settings(storage=Storage(artifacts="/large")), url) == Path("/large")
