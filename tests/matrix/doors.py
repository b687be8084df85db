"""The doors of a gateway, each by a client that others wrote or by plain requests: call, answer, follow and cancel."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import mcp_types as wire
from mcp.client.client import Client

from agent3.jsonrpc import SSEParser
from tests.support.forks import Forked
from tests.support.gateway import Hosted, environment, run_agent3

__all__ = ["DOORS", "Asked", "Door", "Got", "House"]


@dataclass(frozen=True)
class Asked:
    """What is asked of an agent that has one capability: in words, and as structured input where it takes any."""

    agent: str
    message: str
    input: dict[str, Any] | None = None
    capability: str | None = None

    @property
    def body(self) -> dict[str, Any]:
        """As the gateway's own doors take it."""
        named = {"capability": self.capability} if self.capability else {}
        return {"message": self.message, **named} if self.input is None else {"input": self.input, **named}


@dataclass
class Got:
    """What a caller got: whether it worked, all that was said, what was asked on the way, and the pieces before it."""

    worked: bool
    text: str
    questions: list[str] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)


@dataclass
class House(Hosted):
    """A gateway, and a folder for what runs beside it."""

    folder: Path


class Door(Protocol):
    def call(self, gateway: House, asked: Asked, answer: str | None = None) -> Got:
        """Call, follow, and answer what is asked."""

    def cancel(self, gateway: House, asked: Asked, running: Callable[[], None]) -> None:
        """Call, wait until the target runs, and cancel in the way of the door."""


# MCP


class MCPDoor:
    """The official client, at the gateway's own tools or at those of an agent."""

    def __init__(self, mode: str, *, of_agent: bool):
        self._mode = mode
        self._of_agent = of_agent

    def _tool(self, asked: Asked) -> tuple[str, str, dict[str, Any]]:
        if self._of_agent:
            return f"/agents/{asked.agent}/mcp", "say", asked.input or {"message": asked.message}
        return "/mcp", "agent3_call", {"agentId": asked.agent, **asked.body, "metadata": {"streaming": True}}

    def call(self, gateway: House, asked: Asked, answer: str | None = None) -> Got:
        path, name, arguments = self._tool(asked)
        got = Got(False, "")

        async def person(context: Any, params: Any) -> wire.ElicitResult:
            assert isinstance(params, wire.ElicitRequestFormParams)
            got.questions.append(params.message)
            return wire.ElicitResult(
                action="accept", content=dict.fromkeys(params.requested_schema["properties"], answer)
            )

        async def note_progress(progress: float, total: float | None, message: str | None) -> None:
            got.pieces.append(message or "")

        async def story() -> None:
            async with Client(gateway.url + path, mode=self._mode, elicitation_callback=person) as client:
                used = name
                if self._of_agent:  # what an agent of free words is called, and what takes them, only its list says
                    used = await _fit(client, asked, arguments)
                result = await client.call_tool(used, arguments, progress_callback=note_progress)
                got.worked, got.text = not result.is_error, result.model_dump_json()

        asyncio.run(asyncio.wait_for(story(), 60))
        return got

    def cancel(self, gateway: House, asked: Asked, running: Callable[[], None]) -> None:
        path, name, arguments = self._tool(asked)

        async def story() -> None:
            async with Client(gateway.url + path, mode=self._mode) as client:
                used = await _fit(client, asked, arguments) if self._of_agent else name
                calling = asyncio.ensure_future(client.call_tool(used, arguments))
                await asyncio.to_thread(running)
                calling.cancel()
                with suppress(asyncio.CancelledError):
                    await calling

        asyncio.run(asyncio.wait_for(story(), 90))


async def _fit(client: Client, asked: Asked, arguments: dict[str, Any]) -> str:
    """The tool of an agent that is meant, its words put where they belong."""
    tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    tool = tools[asked.capability] if asked.capability else next(iter(tools.values()))
    if "message" in arguments:
        schema = tool.input_schema
        (name,) = schema.get("required") or list(schema["properties"])[:1]
        arguments[name] = arguments.pop("message")
    return tool.name


# A2A


class A2ADoor:
    """One generation, as plain JSON-RPC."""

    def __init__(self, version: str):
        self._version = version
        self._send, self._stream, self._cancel = {
            "0.1": ("tasks/send", "tasks/sendSubscribe", "tasks/cancel"),
            "0.3": ("message/send", "message/stream", "tasks/cancel"),
            "1.0": ("SendMessage", "SendStreamingMessage", "CancelTask"),
        }[version]

    def _params(self, asked: Asked, task: dict[str, Any] | None = None) -> dict[str, Any]:
        named = {"metadata": {"skillId": asked.capability}} if asked.capability else {}
        part: dict[str, Any] = {"text": asked.message} if asked.input is None else {"data": asked.input}
        kind = "text" if asked.input is None else "data"
        if self._version == "0.1":
            said: dict[str, Any] = {"role": "user", "parts": [{"type": kind, **part}], **named}
            return {"id": task["id"] if task else uuid.uuid4().hex, "message": said}
        again: dict[str, Any] = {"taskId": task["id"], "contextId": task["contextId"]} if task else {}
        if self._version == "0.3":
            said = {"kind": "message", "role": "user", "parts": [{"kind": kind, **part}]}
        else:
            said = {"role": "ROLE_USER", "parts": [part]}
        return {"message": {**said, "messageId": uuid.uuid4().hex, **again, **named}}

    def _events(self, gateway: House, asked: Asked, method: str, params: dict[str, Any]) -> Iterator[dict[str, Any]]:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        connection = gateway.connect()
        try:
            headers = {"content-type": "application/json", "a2a-version": self._version}
            connection.request("POST", f"/agents/{asked.agent}/a2a", json.dumps(body).encode(), headers)
            answer = connection.getresponse()
            if answer.getheader("content-type") != "text/event-stream":
                yield json.loads(answer.read())
                return
            parser = SSEParser()
            while piece := answer.read1(65_536):
                for frame in parser.feed(piece):
                    if frame.data:
                        yield json.loads(frame.data)
        finally:
            connection.close()

    def call(self, gateway: House, asked: Asked, answer: str | None = None) -> Got:
        got = Got(False, "")
        params = self._params(asked)
        for _ in range(2):
            task: dict[str, Any] = {}
            for event in self._events(gateway, asked, self._stream, params):
                got.text = json.dumps(event)
                result = event.get("result") or {}
                for found in (result, *(one for one in result.values() if isinstance(one, dict))):
                    if artifact := found.get("artifact"):
                        got.pieces += [part.get("text") or json.dumps(part) for part in artifact["parts"]]
                    key = found.get("taskId") or found.get("id")
                    if key and "status" in found:
                        task = {"id": key, "contextId": found.get("contextId"), "status": found["status"]}
                    elif key and not task:
                        task = {"id": key, "contextId": found.get("contextId"), "status": {"state": ""}}
                    if "role" in found and found.get("parts"):  # a mere message
                        task = {"id": "", "contextId": None, "status": {"state": "completed"}}
            state = str(task.get("status", {}).get("state", "")).lower()
            got.worked = "completed" in state
            got.text = f"{''.join(got.pieces)} {json.dumps(task)} {got.text}"
            if "input" not in state or answer is None:
                break
            got.questions.append(json.dumps(task["status"].get("message", {})))
            params = self._params(Asked(asked.agent, answer), task)
        return got

    def cancel(self, gateway: House, asked: Asked, running: Callable[[], None]) -> None:
        seen: list[dict[str, Any]] = []
        begun = threading.Event()

        def follow() -> None:
            for event in self._events(gateway, asked, self._stream, self._params(asked)):
                seen.append(event)
                begun.set()

        thread = threading.Thread(target=follow, daemon=True)
        thread.start()
        assert begun.wait(60)
        running()
        first = seen[0]["result"]
        task = first.get("task") or first.get("statusUpdate") or first
        key = task.get("taskId") or task["id"]
        list(self._events(gateway, asked, self._cancel, {"id": key}))
        thread.join(60)
        assert not thread.is_alive()


# NLWeb


class AskDoor:
    """Questions to a site."""

    def _body(self, asked: Asked, streaming: bool, session: Any = None) -> dict[str, Any]:
        body: dict[str, Any] = {
            "query": {"text": asked.message, "site": asked.agent},
            "prefer": {"streaming": streaming},
        }
        return {**body, "meta": {"session_context": session}} if session else body

    def call(self, gateway: House, asked: Asked, answer: str | None = None) -> Got:
        got = Got(False, "")
        session = None
        for message in (asked.message, answer):
            if message is None:
                break
            reply = gateway.post("/ask", self._body(Asked(asked.agent, message), True, session))
            streamed = reply.headers["content-type"].startswith("text/event-stream")
            frames = [frame.data for frame in SSEParser().feed(reply.raw)] if streamed else [reply.raw]
            whole: dict[str, Any] = {}
            for piece in map(json.loads, filter(None, frames)):
                whole |= {key: value for key, value in piece.items() if key != "_meta"}
                whole["_meta"] = {**whole.get("_meta", {}), **piece.get("_meta", {})}
                got.pieces.append(json.dumps(piece))
            got.text = " ".join(got.pieces)
            kind = whole.get("_meta", {}).get("response_type")
            got.worked = kind == "Answer"
            if kind != "Elicitation":
                break
            got.questions.append(json.dumps(whole["elicitation"]))
            session = whole["_meta"]["session_context"]
        return got

    def cancel(self, gateway: House, asked: Asked, running: Callable[[], None]) -> None:
        """A question that takes long becomes a promise, which is cancelled by its token."""
        reply = gateway.post("/ask", self._body(asked, False)).json
        running()
        token = reply["promise"]["token"]
        gateway.post("/await", {"promise_token": token, "action": "cancel"})


# REST


class RESTDoor:
    """Plain requests."""

    def call(self, gateway: House, asked: Asked, answer: str | None = None) -> Got:
        got = Got(False, "")
        body = {"agentId": asked.agent, **asked.body}
        job = gateway.post("/v1/call", body, prefer="respond-async").json["job"]
        reply = gateway.get(f"/v1/calls/{job}?wait=60").json
        if reply["status"] == "needs" and answer is not None:
            got.questions.append(json.dumps(reply["questions"]))
            (question,) = reply["questions"]
            gateway.post(f"/v1/calls/{job}/answer", {"answers": {question["id"]: _fitting(question, answer)}})
            reply = gateway.get(f"/v1/calls/{job}?wait=60").json
        for frame in SSEParser().feed(gateway.get(f"/v1/calls/{job}/events").raw):
            if frame.event in ("artifact", "progress", "status"):
                got.pieces.append(frame.data.decode())
        got.worked, got.text = reply["success"], json.dumps(reply)
        return got

    def cancel(self, gateway: House, asked: Asked, running: Callable[[], None]) -> None:
        body = {"agentId": asked.agent, **asked.body}
        job = gateway.post("/v1/call", body, prefer="respond-async").json["job"]
        running()
        assert gateway.post(f"/v1/calls/{job}/cancel").json["status"] == "canceled"


def _fitting(question: dict[str, Any], answer: str) -> Any:
    """The answer by the question's schema: some ask for a text, some for a form."""
    schema = question.get("schema") or {}
    return dict.fromkeys(schema["properties"], answer) if schema.get("type") == "object" else answer


# The command line


class CommandDoor:
    """``agent3 call``, against the gateway."""

    def _arguments(self, gateway: House, asked: Asked) -> list[str]:
        given = [asked.message] if asked.input is None else ["--input", json.dumps(asked.input)]
        if asked.capability:
            given += ["--capability", asked.capability]
        return ["call", asked.agent, *given, "--server", gateway.url, "--timeout", "300"]

    def call(self, gateway: House, asked: Asked, answer: str | None = None) -> Got:
        data = gateway.folder
        done = run_agent3(data, *self._arguments(gateway, asked), "--json")
        got = Got(done.returncode == 0, done.stdout + done.stderr)
        if done.returncode == 3 and answer is not None:
            reply = json.loads(done.stdout)
            got.questions.append(done.stdout)
            again = ["call", asked.agent, answer, "--job", reply["job"], "--server", gateway.url, "--json"]
            done = run_agent3(data, *again)
            got.worked, got.text = done.returncode == 0, done.stdout + done.stderr
        plain = run_agent3(data, *self._arguments(gateway, asked)) if answer is None else done
        got.pieces = (plain.stdout + plain.stderr).splitlines()
        return got

    def cancel(self, gateway: House, asked: Asked, running: Callable[[], None]) -> None:
        data = gateway.folder
        log = data / f"cancel-{uuid.uuid4().hex}.log"
        with Forked(self._arguments(gateway, asked), env=environment(data), cwd=data, stderr=log) as process:
            running()
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(60)


DOORS: dict[str, Door] = {
    "agent3_call": MCPDoor("auto", of_agent=False),
    "agent3_call legacy": MCPDoor("legacy", of_agent=False),
    "tool of the agent": MCPDoor("auto", of_agent=True),
    "A2A 0.1": A2ADoor("0.1"),
    "A2A 0.3": A2ADoor("0.3"),
    "A2A 1.0": A2ADoor("1.0"),
    "/ask": AskDoor(),
    "REST": RESTDoor(),
    "command line": CommandDoor(),
}
