"""The matrix of A2A judges what a client heard; the whole of it is run by ``./scripts/interop a2a``."""

from __future__ import annotations

from typing import Any

import pytest
from interop.a2a import FACES, OURS, PEERS, judged

FACE = FACES[0]


@pytest.mark.parametrize(
    ("told", "unary", "stream"),
    [
        ({"unary": "echo: hello", "stream": ["Once ", "upon ", "time"]}, True, True),
        ({"unary": "echo: hello", "stream": ["Once ", "upon ", "time", ""]}, True, True),
        ({"unary": "echo: hello", "stream": ["Once upon time"]}, True, False),
        ({"unary": "echo: hello", "stream": ["upon ", "Once ", "time"]}, True, False),
        ({"unary": "hello", "stream": []}, False, False),
    ],
)
def test_a_stream_counts_only_in_its_pieces(told: dict[str, Any], unary: bool, stream: bool) -> None:
    cell = judged("a", "b", FACE, told)
    assert (cell.unary, cell.stream, cell.fine) == (unary, stream, unary and stream)
    assert bool(cell.note) is not cell.fine


def test_whatever_anybody_speaks_we_speak_too() -> None:
    assert {face for peer in PEERS for face in peer.faces} == set(FACES) == set(OURS.faces)
