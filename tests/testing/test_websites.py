"""A website from a folder: what it serves, and how it is relaunched."""

from __future__ import annotations

import urllib.request
from pathlib import Path

import pytest

from agent3.testing import Website


def read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=240) as answer:
        assert answer.headers["Cache-Control"] == "no-store"
        return str(answer.read().decode())


def test_a_folder_is_served_and_another_one_after_the_relaunch(tmp_path: Path) -> None:
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "index.html").write_text(name, encoding="utf-8")
    with Website(tmp_path / "old") as site:
        assert read(site.url) == "old"
        site.relaunch(tmp_path / "new")
        assert read(f"{site.url}/index.html") == "new"


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere is not a folder"):
        Website(tmp_path / "nowhere")
