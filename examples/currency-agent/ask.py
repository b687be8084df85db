"""Talks to the currency agent: in one turn, in several, and as a stream."""

from __future__ import annotations

import sys

from agent3.a2a import ArtifactUpdate, SyncA2AClient, Task


def said(task: object) -> str:
    """What a task came to, or what it asks."""
    assert isinstance(task, Task)
    message = task.status.message
    parts = [part for one in task.artifacts for part in one.parts] or (message.parts if message else ())
    return " ".join(part.text for part in parts if part.text)


def main(url: str = "http://127.0.0.1:10000") -> None:
    """Have three conversations."""
    with SyncA2AClient.connect(url) as client:
        print("one turn:", said(client.send("How much is 10 USD in INR?", skill="convert")))
        asked = client.send("How much is 100 USD?", skill="convert")
        assert isinstance(asked, Task)
        print("it asks:", said(asked))
        print("two turns:", said(client.send("EUR", task=asked.id)))
        for item in client.stream("What are the rates of today?", skill="rates"):
            if isinstance(item, ArtifactUpdate):
                print("streamed:", *(part.text.strip() for part in item.artifact.parts if part.text))


if __name__ == "__main__":
    main(*sys.argv[1:2])
