"""The first generation, 0.1, which no SDK speaks any more: plain JSON as its specification prints it."""

from __future__ import annotations

import json
import sys
import uuid
from typing import Any
from urllib.request import Request, urlopen

import uvicorn

from tests.support.a2a_peers import First


def ask(url: str) -> dict[str, Any]:
    """Ask once, and once as a stream."""
    with urlopen(url, timeout=10) as answer:  # noqa: S310 - loopback
        address = json.load(answer)["url"]
    task = json.loads(_posted(address, "tasks/send", "hello"))["result"]
    lines = _posted(address, "tasks/sendSubscribe", "story time").splitlines()
    told = [json.loads(line[5:])["result"] for line in lines if line.startswith("data:")]
    return {
        "unary": "".join(map(_text, task["artifacts"])),
        "stream": [_text(one["artifact"]) for one in told if "artifact" in one],
    }


def _posted(address: str, method: str, text: str) -> str:
    said = {"role": "user", "parts": [{"type": "text", "text": text}]}
    params = {"id": str(uuid.uuid4()), "sessionId": str(uuid.uuid4()), "message": said}
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    request = Request(address, json.dumps(body).encode(), {"Content-Type": "application/json"})  # noqa: S310 - loopback
    with urlopen(request, timeout=30) as answer:  # noqa: S310
        return str(answer.read().decode())


def _text(artifact: dict[str, Any]) -> str:
    return "".join(part.get("text", "") for part in artifact["parts"])


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        port = int(sys.argv[2])
        uvicorn.run(First(f"http://127.0.0.1:{port}").app(), port=port, log_level="warning")
    else:
        sys.stdout.write(json.dumps(ask(sys.argv[2])))
