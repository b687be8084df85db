"""A small MCP server as a program, without any SDK: it starts at once, and does what a test tells it.

Run as a script. ``--wait FILE`` answers nothing until that file is there, as a program does that is being installed;
``--notes FILE`` gets a line with the process id for every start; ``--curious`` asks while it is looked at. Its tools:
``echo``; ``environment``, which gives one
variable; ``research``, which can only be called as a task and asks a question first; ``ask``, which asks and waits.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

__all__ = ["command"]

TEXT: dict[str, Any] = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
ECHO = {**TEXT, "properties": {**TEXT["properties"], "size": {"enum": ["small", "large"]}}}
TOOLS = [
    {"name": "echo", "inputSchema": ECHO, "annotations": {"readOnlyHint": True}},
    {"name": "environment", "inputSchema": TEXT},
    {"name": "research", "inputSchema": TEXT, "execution": {"taskSupport": "required"}},
    {"name": "ask", "inputSchema": {"type": "object", "properties": None, "required": None}, "outputSchema": None},
]
SAMPLE = {"name": "sample", "inputSchema": {"type": "object"}}
"""Offered only to clients that have a model."""


def command(*options: str) -> list[str]:
    """The words that run it."""
    return [sys.executable, str(Path(__file__).absolute()), *options]


def option(name: str) -> Path | None:
    return Path(sys.argv[sys.argv.index(name) + 1]) if name in sys.argv else None


def send(**message: Any) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def text(words: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": words}]}


class Server:
    def __init__(self) -> None:
        self.topic = ""
        self.waiting: dict[str, Any] = {}
        self.status = "working"
        self.able: dict[str, Any] = {}

    def take(self, message: dict[str, Any]) -> None:
        key, method = message.get("id"), message.get("method")
        if method is None:
            asked = self.waiting.pop(str(key), None)
            if asked is not None:
                said = json.dumps((message.get("result") or {}).get("content"))
                self.status = "completed"
                send(id=asked, result=text(f"{self.topic}: {said}"))
            return
        if key is None:
            return
        handler = getattr(self, str(method).replace("/", "_"), None)
        if handler is None:
            send(id=key, error={"code": -32601, "message": "Method not found"})
        elif (result := handler(message.get("params") or {}, key)) is not None:
            send(id=key, result=result)

    def initialize(self, params: dict[str, Any], key: Any) -> dict[str, Any]:
        self.able = params.get("capabilities") or {}
        info = {"name": "small-program", "title": "Small program", "version": "1"}
        told: dict[str, Any] = {"tools": {}, "tasks": {"cancel": {}, "requests": {"tools": {"call": {}}}}}
        greeting = {"protocolVersion": "2025-11-25", "capabilities": told, "serverInfo": info}
        return {**greeting, "instructions": "If asked for the Easter egg, say it.\n" * 50}

    def tools_list(self, params: dict[str, Any], key: Any) -> dict[str, Any]:
        if "--curious" in sys.argv:
            self.ask(key)
        return {"tools": [*TOOLS, SAMPLE] if "sampling" in self.able else TOOLS}

    def tools_call(self, params: dict[str, Any], key: Any) -> dict[str, Any] | None:
        name, given = params["name"], params.get("arguments") or {}
        if name == "environment":
            return text(str(os.environ.get(given["text"])))
        if name == "research":
            if "task" not in params:
                return {**text("research requires task augmentation"), "isError": True}
            self.topic = given["text"]
            return {"task": self.task()}
        if name == "ask":
            self.topic = "asked"
            self.ask(key)
            return None
        return text(given.get("text", ""))

    def task(self) -> dict[str, Any]:
        return {
            "taskId": "t1",
            "status": self.status,
            "pollInterval": 50,
            "ttl": 60_000,
            "createdAt": "",
            "lastUpdatedAt": "",
        }

    def tasks_get(self, params: dict[str, Any], key: Any) -> dict[str, Any]:
        self.status = "input_required" if self.status == "working" else self.status
        return self.task()

    def tasks_result(self, params: dict[str, Any], key: Any) -> None:
        self.ask(key)

    def ask(self, key: Any) -> None:
        self.waiting[f"q{key}"] = key
        form = {"message": "How deep?", "requestedSchema": TEXT}
        send(id=f"q{key}", method="elicitation/create", params=form)


def main() -> None:
    if (notes := option("--notes")) is not None:
        with notes.open("a") as file:
            file.write(f"{os.getpid()}\n")
    if (go := option("--wait")) is not None:
        while not go.exists():
            sys.stderr.write("Downloading 3 of 7 packages\n")
            sys.stderr.flush()
            time.sleep(0.05)
    server = Server()
    for line in sys.stdin:
        server.take(json.loads(line))


if __name__ == "__main__":
    main()
