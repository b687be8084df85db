"""The demo's image agent: a real picture for every description, drawn in code, without a model or a network."""

from __future__ import annotations

import hashlib
import struct
import zlib

from agent3.model import Part, Price
from agent3.protocols.functions import LocalAgent

__all__ = ["images"]

_SIDE = 96
"""Pixels on each side."""

images = LocalAgent(
    "Image Maker",
    agent_id="images",
    description="Image generation: draws a small picture from a description.",
    tags=("demo", "image", "generation", "picture"),
)


@images.capability(
    read_only=True, price=Price(call=0.002), phrases=("Generate a professional product image of a laptop",)
)
def generate(message: str) -> Part:
    """Generate an image, a PNG, for a description in plain words. The same words give the same image.

    Args:
        message: What the image should show.
    """
    return Part(raw=_draw(hashlib.sha256(message.encode()).digest()), media_type="image/png", name="image.png")


def _draw(seed: bytes) -> bytes:
    """A PNG: a frame and a screen in colours of the seed, on a ground that fades."""
    ground, frame, screen = seed[0:3], seed[3:6], seed[6:9]
    rows = bytearray()
    for y in range(_SIDE):
        rows.append(0)  # each row says how it is filtered: not at all
        for x in range(_SIDE):
            inside = 16 <= x < _SIDE - 16 and 20 <= y < _SIDE - 28
            edge = inside and (x < 20 or x >= _SIDE - 20 or y < 24 or y >= _SIDE - 32)
            colour = frame if edge else screen if inside else bytes(value * (y + 1) // _SIDE for value in ground)
            rows += colour
    head = struct.pack(">IIBBBBB", _SIDE, _SIDE, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(bytes(rows), 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
