"""Our own client. Our agent is served by ``agent3 serve interop.agent:agent``."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any
from urllib.request import urlopen

from agent3.protocols.a2a.peer.client import A2AClient
from agent3.protocols.a2a.wire.types import Artifact, ArtifactUpdate, Message, Task


async def main(url: str, binding: str, version: str) -> dict[str, Any]:
    """Ask once, and once as a stream."""
    card = only(await asyncio.to_thread(_card, url), binding, version)
    async with await A2AClient.connect(card) as client:
        reply = await client.send("hello")
        pieces = [_text(one.artifact) async for one in client.stream("story time") if isinstance(one, ArtifactUpdate)]
        assert client.spoken is not None
        spoken = f"{client.spoken.binding} {client.spoken.generation}"
        assert spoken == f"{binding} {version}", spoken
    return {"unary": _said(reply), "stream": pieces}


def _card(url: str) -> dict[str, Any]:
    with urlopen(url, timeout=10) as answer:  # noqa: S310 - loopback
        card: dict[str, Any] = json.load(answer)
        return card


def only(card: dict[str, Any], binding: str, version: str) -> dict[str, Any]:
    """The card with one of its interfaces and no other, in whichever words it lists them."""
    if version == "0.1":
        return card
    listed = [
        one
        for one in card.get("supportedInterfaces", ())
        if (one["protocolBinding"], one.get("protocolVersion", "1.0")[:3]) == (binding, version)
    ]
    if listed:
        return {**_without(card), "supportedInterfaces": listed}
    known = [{"url": card["url"], "transport": card.get("preferredTransport", "JSONRPC")}]
    known += card.get("additionalInterfaces") or []
    url = next(one["url"] for one in known if one["transport"] == binding)
    return {**_without(card), "url": url, "preferredTransport": binding, "protocolVersion": "0.3.0"}


def _without(card: dict[str, Any]) -> dict[str, Any]:
    gone = {"supportedInterfaces", "url", "preferredTransport", "additionalInterfaces", "protocolVersion", "signatures"}
    return {name: value for name, value in card.items() if name not in gone}


def _said(reply: Task | Message) -> str:
    assert isinstance(reply, Task), reply
    return "".join(map(_text, reply.artifacts))


def _text(artifact: Artifact) -> str:
    return "".join(part.text or "" for part in artifact.parts)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(main(*sys.argv[2:5]))))
