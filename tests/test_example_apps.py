"""The apps in examples/apps, each served and called."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent3 import Client, ValidationError
from tests.support.gateway import ROOT, Process, gateway

APPS = ROOT / "examples" / "apps"


@pytest.fixture(scope="module", params=["passwords", "todo", "pictures"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    folder = tmp_path_factory.mktemp(request.param)
    with gateway(folder, str(APPS / f"{request.param}.py"), PYTHONDONTWRITEBYTECODE="1") as running:
        yield running


@pytest.mark.requirement("SP-19")
def test_each_does_what_it_says(served: Process) -> None:
    with Client(served.url) as client:
        (hit,) = client.agents()
        {"passwords": passwords, "todo": todo, "pictures": pictures}[hit.id](client)


def passwords(client: Client) -> None:
    made = client.call("passwords", input={"length": 24}).value
    assert len(made["password"]) == 24
    assert made["bits"] > 140
    assert made != client.call("passwords", input={"length": 24}).value
    assert client.call("passwords", input={"symbols": False}).value["password"].isalnum()
    with pytest.raises(ValidationError, match="at least 8"):
        client.call("passwords", input={"length": 4})


def todo(client: Client) -> None:
    for text in ("call the bank", "buy milk"):
        client.call("todo", capability="add", input={"text": text, "due": "2027-03-04"})
    assert [one["text"] for one in client.call("todo", capability="list").value] == ["call the bank", "buy milk"]
    (left,) = client.call("todo", capability="done", input={"number": 2}).value
    assert left == {"number": 1, "text": "call the bank", "due": "2027-03-04", "done": False}
    added = client.call("todo", capability="add", input={"text": "rest"}).value
    assert [one["number"] for one in added] == [1, 3], "a number is never given twice"
    with pytest.raises(ValidationError, match="due"):
        client.call("todo", capability="add", input={"text": "x", "due": "2027-02-31"})


def pictures(client: Client) -> None:
    (part,) = client.call("pictures", input={"shape": "square", "color": "#ff0000", "size": 16}).parts
    assert part.media_type == "image/png"
    assert part.raw is not None
    assert part.raw.startswith(b"\x89PNG\r\n\x1a\n")
    assert struct.unpack(">II", part.raw[16:24]) == (16, 16)
    at = part.raw.index(b"IDAT")
    (length,) = struct.unpack(">I", part.raw[at - 4 : at])
    rows = zlib.decompress(part.raw[at + 4 : at + 4 + length])
    middle = 8 * (1 + 16 * 3) + 1 + 8 * 3
    assert rows[middle : middle + 3] == b"\xff\x00\x00"
    assert rows[1:4] == b"\xff\xff\xff"


def test_each_is_short() -> None:
    apps = sorted(APPS.glob("*.py"))
    assert [app.stem for app in apps] == ["passwords", "pictures", "todo"]
    assert all(len(Path(app).read_text().splitlines()) <= 40 for app in apps)
