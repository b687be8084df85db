"""Every decoder of what strangers send answers generated rubbish, or refuses it with an error of ours."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from faults._decoders import DECODERS, decode

NAMES = (
    "type properties items $ref $defs anyOf allOf pattern format enum row record jsonrpc method params id required "
    "additionalProperties number segment link"
)
KEYS = st.text(max_size=8) | st.sampled_from(NAMES.split())
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=20,
)
PIECES = st.lists(
    st.sampled_from(["data:", "\r", "\n\n", "<", "</", "&#", "<!--", "${", "}", "env:", "vault:", "kept:", "%2", "://"])
    | st.sampled_from([".", "2.", "==", "order ", "don't ", "tomorrow ", "1e999", "\ud7ff", "\x1b[", "\u202e", "00-"])
    | st.text(max_size=6),
    max_size=30,
).map("".join)
CASES = (
    st.binary(max_size=600)
    | PIECES.map(lambda text: text.encode("utf-8", "surrogatepass"))
    | JSON.map(lambda value: json.dumps(value).encode())
)


@pytest.mark.parametrize("name", DECODERS)
@settings(max_examples=40)
@given(raw=CASES)
def test_a_decoder_answers_or_refuses(name: str, raw: bytes) -> None:
    decode(name, raw)
