"""How much memory is free: what the machine says, or the container where that is less."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent3 import memory


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(memory, "_MACHINE", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "_CONTAINER", tmp_path)
    return tmp_path


def limit(folder: Path, limit: str, used: int, files: int) -> None:
    (folder / "memory.max").write_text(limit)
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 5\ninactive_file {files}\n")


def test_a_system_that_does_not_tell_is_not_guessed(told: Path) -> None:
    assert memory.find_free_memory() is None


def test_the_smaller_of_machine_and_container_counts(told: Path) -> None:
    (told / "meminfo").write_text("MemTotal:  2000 kB\nMemAvailable:   1000 kB\nHugePages_Total:  0\n")
    assert memory.find_free_memory() == 1000 * 1024
    limit(told, "max\n", 10, 0)
    assert memory.find_free_memory() == 1000 * 1024
    limit(told, "5000\n", 4000, 1000)
    assert memory.find_free_memory() == 2000, "what was read from files is let go"
    limit(told, "5000\n", 6000, 0)
    assert memory.find_free_memory() == 0
