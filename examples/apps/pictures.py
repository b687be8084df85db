"""A maker of small pictures: ``agent3 serve pictures.py``. An MCP client shows them, REST gives their bytes."""

import struct
import zlib
from typing import Annotated, Literal

from pydantic import Field

from agent3 import App
from agent3.model import Part

app = App("pictures", description="Draws small pictures.", tags=("image", "example"))
Color = Annotated[str, Field(pattern="^#[0-9a-fA-F]{6}$"), "As #rrggbb"]


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


@app.capability(read_only=True, phrases=("draw a circle",))
def draw(
    shape: Literal["circle", "square", "gradient"] = "circle",
    color: Color = "#2266cc",
    size: Annotated[int, Field(ge=8, le=256), "Width and height in pixels"] = 64,
) -> Part:
    """Draw a shape on white, as PNG."""
    red, green, blue = bytes.fromhex(color[1:])
    rows = bytearray()
    for y in range(size):
        rows.append(0)  # no filter
        for x in range(size):
            dx, dy = (2 * x - size + 1) / size, (2 * y - size + 1) / size
            inside = {"circle": dx * dx + dy * dy < 0.8, "square": max(abs(dx), abs(dy)) < 0.8}
            much = x / size if shape == "gradient" else float(inside[shape])
            rows += bytes(round(255 + (part - 255) * much) for part in (red, green, blue))
    head = struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(rows))) + chunk(b"IEND", b"")
    return Part(raw=b"\x89PNG\r\n\x1a\n" + body, media_type="image/png", name=f"{shape}.png")
