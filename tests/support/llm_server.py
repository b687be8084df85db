"""Two vendors of language models on loopback: the wire of OpenAI's Chat Completions and of Anthropic's Messages.

It is strict where they are: a request that they would refuse gets their 400, so that a test which passes here has
sent what they take. What it answers is a script of turns, one for each request it accepts. Plain HTTP, a thread per
connection; it counts requests and keeps their bodies and headers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Lock, Thread
from typing import Any, Self

__all__ = ["KEY", "Call", "LLMServer", "Seen", "Turn"]

KEY = "sk-test-4f9a8b7c6d5e"
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True)
class Call:
    """A call that the model asks for; ``written`` are its arguments as text, should they not be JSON."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    written: str | None = None

    @property
    def text(self) -> str:
        return json.dumps(self.arguments) if self.written is None else self.written


@dataclass(frozen=True)
class Turn:
    """One answer. ``drop`` breaks a stream off after so many pieces; ``error`` tells of one after them instead."""

    text: str = ""
    calls: tuple[Call, ...] = ()
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    drop: int | None = None
    error: str | None = None
    finish: str | None = None
    wait: Event | None = None
    thought: str = ""
    usage: tuple[int, int] = (20, 7)


@dataclass(frozen=True)
class Seen:
    """One request that arrived."""

    path: str
    headers: Mapping[str, str]
    body: Any


class LLMServer:
    """Both vendors, in a ``with`` block. ``seen`` holds every request, also a refused one."""

    def __init__(self, *turns: Turn | str, key: str = KEY):
        self.turns = [Turn(turn) if isinstance(turn, str) else turn for turn in turns]
        self.seen: list[Seen] = []
        self.key = key
        self._lock = Lock()
        self._served = 0
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for turn in self.turns:
            if turn.wait is not None:
                turn.wait.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(60)

    def next_turn(self, seen: Seen) -> Turn:
        with self._lock:
            self.seen.append(seen)
            self._served += 1
            if self._served > len(self.turns):
                return Turn(status=500, body=b'{"error": {"message": "the script is at its end"}}')
            return self.turns[self._served - 1]


# --- what a vendor refuses --------------------------------------------------------------------------------------------


class Refused(Exception):
    """A request that the vendor would answer with an error."""

    def __init__(self, status: int, kind: str, message: str):
        super().__init__(message)
        self.status = status
        self.kind = kind


def _need(condition: object, message: str) -> None:
    if not condition:
        raise Refused(400, "invalid_request_error", message)


def _check_schema(schema: Any, where: str) -> None:
    _need(isinstance(schema, dict) and schema.get("type") == "object", f"{where}: schema must have type 'object'")
    bad = {"oneOf", "anyOf", "allOf", "enum", "not"} & schema.keys()
    _need(not bad, f"{where}: schema must not have {sorted(bad)} at the top level")
    _check_refs(schema, where)


def _check_refs(schema: Any, where: str) -> None:
    if isinstance(schema, dict):
        _need("$ref" not in schema, f"{where}: $ref is not supported here")
        _need(schema.get("type") != "array" or "items" in schema, f"{where}: array schema missing items")
    for one in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        _check_refs(one, where)


def _check_openai(headers: Mapping[str, str], body: dict[str, Any], key: str) -> None:
    given = headers.get("api-key") or headers.get("authorization", "").removeprefix("Bearer ")
    if key and given != key:
        raise Refused(401, "invalid_api_key", f"Incorrect API key provided: {given}.")
    _need(isinstance(body.get("model"), str), "you must provide a model parameter")
    _need(body.get("messages"), "'messages' is too short")
    for number, tool in enumerate(body.get("tools", ())):
        function = tool["function"]
        _need(tool["type"] == "function", "tools.type")
        _need(_NAME.fullmatch(function["name"]), f"Invalid 'tools[{number}].function.name': {function['name']!r}")
        _need(len(function.get("description", "")) <= 1024, "string too long. Expected maximum length 1024")
        _check_schema(function["parameters"], function["name"])
    _check_openai_turns(body["messages"])


def _check_openai_turns(messages: list[dict[str, Any]]) -> None:
    open_calls: set[str] = set()
    for message in messages:
        role = message["role"]
        _need(role in ("system", "user", "assistant", "tool"), f"unknown role {role}")
        if role == "tool":
            _need(message["tool_call_id"] in open_calls, "'tool' must follow a message with 'tool_calls'")
            _need(isinstance(message["content"], str), "tool content must be a string")
            open_calls.discard(message["tool_call_id"])
            continue
        _need(not open_calls, f"tool_call_ids did not have response messages: {open_calls}")
        for call in message.get("tool_calls") or ():
            _need(_NAME.fullmatch(call["function"]["name"]), "bad name in history")
            json.loads(call["function"]["arguments"])
            open_calls.add(call["id"])
    _need(not open_calls, f"tool_call_ids did not have response messages: {open_calls}")


def _check_anthropic(headers: Mapping[str, str], body: dict[str, Any], key: str) -> None:
    given = headers.get("x-api-key") or headers.get("authorization", "").removeprefix("Bearer ")
    if key and given != key:
        raise Refused(401, "authentication_error", f"invalid x-api-key {given}")
    version = headers.get("anthropic-version")
    _need(version in ("2023-06-01", "2026-10-21"), "anthropic-version: header is required")
    _need(version == "2023-06-01" or "temperature" not in body, "temperature: Extra inputs are not permitted")
    _need(isinstance(body.get("max_tokens"), int), "max_tokens: Field required")
    for number, tool in enumerate(body.get("tools", ())):
        _need(_NAME.fullmatch(tool["name"]), f"tools.{number}.custom.name: String should match pattern")
        _check_schema(tool["input_schema"], f"tools.{number}.custom.input_schema")
    _check_anthropic_turns(body["messages"])


def _check_anthropic_turns(messages: list[dict[str, Any]]) -> None:
    asked: set[str] = set()
    for number, message in enumerate(messages):
        _need(message["role"] == ("user", "assistant")[number % 2], "messages: roles must alternate")
        blocks = message["content"]
        _need(blocks, f"messages.{number}: all messages must have non-empty content")
        results = {one["tool_use_id"] for one in blocks if one["type"] == "tool_result"}
        _need(results == asked, f"messages.{number}: `tool_use` ids without `tool_result` blocks: {asked ^ results}")
        for one in blocks:
            _need(one["type"] != "text" or one["text"].strip(), "text content blocks must contain non-whitespace text")
            _need(one["type"] != "tool_use" or isinstance(one["input"], dict), "input: should be an object")
            _need(one["type"] != "thinking" or one.get("signature"), "thinking.signature: Field required")
        asked = {one["id"] for one in blocks if one["type"] == "tool_use"}
    _need(not asked, "the conversation must end with a user message")


# --- what they answer -------------------------------------------------------------------------------------------------


def _halves(text: str) -> list[str]:
    middle = len(text) // 2
    return [text[:middle], text[middle:]] if text else []


def _openai_usage(turn: Turn) -> dict[str, Any]:
    given, made = turn.usage
    details = {"cached_tokens": 4}
    return {
        "prompt_tokens": given,
        "completion_tokens": made,
        "total_tokens": given + made,
        "prompt_tokens_details": details,
    }


def _openai_finish(turn: Turn) -> str:
    return turn.finish or ("tool_calls" if turn.calls else "stop")


def _openai_whole(turn: Turn, model: str) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": turn.text or None, "refusal": None}
    if turn.calls:
        message["tool_calls"] = [
            {"id": f"call_{number}", "type": "function", "function": {"name": one.name, "arguments": one.text}}
            for number, one in enumerate(turn.calls)
        ]
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _openai_finish(turn)}
    head = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1_700_000_000, "model": model}
    return {**head, "choices": [choice], "usage": _openai_usage(turn)}


def _openai_stream(turn: Turn, model: str) -> Iterator[bytes]:
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1_700_000_000, "model": model}

    def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return _data({**head, "choices": [choice], "usage": None})

    yield chunk({"role": "assistant", "content": "" if turn.text else None})
    for piece in _halves(turn.text):
        yield chunk({"content": piece})
    for number, one in enumerate(turn.calls):
        start = {"index": number, "id": f"call_{number}", "type": "function"}
        yield chunk({"tool_calls": [{**start, "function": {"name": one.name, "arguments": ""}}]})
        for piece in _halves(one.text):
            yield chunk({"tool_calls": [{"index": number, "function": {"arguments": piece}}]})
    yield chunk({}, _openai_finish(turn))
    yield _data({**head, "choices": [], "usage": _openai_usage(turn)})
    yield b"data: [DONE]\n\n"


def _anthropic_blocks(turn: Turn) -> Iterator[dict[str, Any]]:
    if turn.thought:
        yield {"type": "thinking", "thinking": turn.thought, "signature": "c2lnbmVk"}
    if turn.text:
        yield {"type": "text", "text": turn.text}
    for number, one in enumerate(turn.calls):
        yield {"type": "tool_use", "id": f"toolu_{number}", "name": one.name, "input": dict(one.arguments)}


def _anthropic_whole(turn: Turn, model: str) -> dict[str, Any]:
    head = {"id": "msg_1", "type": "message", "role": "assistant", "model": model}
    finish = turn.finish or ("tool_use" if turn.calls else "end_turn")
    usage = {"input_tokens": turn.usage[0] - 4, "output_tokens": turn.usage[1], "cache_read_input_tokens": 4}
    usage["cache_creation_input_tokens"] = 0
    return {**head, "content": [*_anthropic_blocks(turn)], "stop_reason": finish, "stop_sequence": None, "usage": usage}


def _anthropic_stream(turn: Turn, model: str) -> Iterator[bytes]:
    whole = _anthropic_whole(turn, model)
    begun = {**whole["usage"], "output_tokens": 1}
    yield _event("message_start", message={**whole, "content": [], "stop_reason": None, "usage": begun})
    yield _event("ping")
    calls = iter(turn.calls)
    for index, block in enumerate(whole["content"]):
        empty, deltas = _anthropic_pieces(block, calls)
        yield _event("content_block_start", index=index, content_block=empty)
        for delta in deltas:
            yield _event("content_block_delta", index=index, delta=delta)
        yield _event("content_block_stop", index=index)
    end = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    yield _event("message_delta", delta=end, usage={"output_tokens": turn.usage[1]})
    yield _event("message_stop")


def _anthropic_pieces(block: dict[str, Any], calls: Iterator[Call]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    if block["type"] == "text":
        return {**block, "text": ""}, [{"type": "text_delta", "text": one} for one in _halves(block["text"])]
    if block["type"] == "thinking":
        thought: list[dict[str, Any]] = [
            {"type": "thinking_delta", "thinking": one} for one in _halves(block["thinking"])
        ]
        signed = {"type": "signature_delta", "signature": block["signature"]}
        return {**block, "thinking": "", "signature": ""}, [*thought, signed]
    call = next(calls)
    pieces = _halves(call.text) if call.arguments or call.written else []
    start: list[dict[str, Any]] = [{"type": "input_json_delta", "partial_json": ""}]
    return {**block, "input": {}}, start + [{"type": "input_json_delta", "partial_json": one} for one in pieces]


def _data(value: Any) -> bytes:
    return f"data: {json.dumps(value)}\n\n".encode()


def _event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\n".encode() + _data({"type": kind, **fields})


# --- the HTTP of it ---------------------------------------------------------------------------------------------------


def _handler(server: LLMServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            """Silent."""

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            headers = {name.lower(): value for name, value in self.headers.items()}
            path = self.path.partition("?")[0]
            vendor = "anthropic" if path.endswith("/v1/messages") else "openai"
            if vendor == "openai" and not path.endswith("/chat/completions"):
                self._answer(404, {"error": {"message": "Invalid URL", "type": "invalid_request_error"}})
                return
            try:
                check = _check_anthropic if vendor == "anthropic" else _check_openai
                check(headers, body, server.key)
            except Refused as refused:
                server.seen.append(Seen(self.path, headers, body))
                self._answer(refused.status, _error(vendor, refused.kind, str(refused)))
                return
            turn = server.next_turn(Seen(self.path, headers, body))
            if turn.wait is not None:
                turn.wait.wait(60)
            self._turn(vendor, turn, body)

        def _turn(self, vendor: str, turn: Turn, body: dict[str, Any]) -> None:
            if turn.body is not None:
                self._answer(turn.status, turn.body, turn.headers)
            elif turn.status != 200:
                kind = turn.error or "api_error"
                self._answer(turn.status, _error(vendor, kind, turn.text or "it went wrong"), turn.headers)
            elif body.get("stream"):
                stream = _anthropic_stream if vendor == "anthropic" else _openai_stream
                self._stream(vendor, turn, list(stream(turn, body["model"])))
            else:
                whole = _anthropic_whole if vendor == "anthropic" else _openai_whole
                self._answer(200, whole(turn, body["model"]))

        def _stream(self, vendor: str, turn: Turn, pieces: list[bytes]) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream; charset=utf-8")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for piece in pieces[: turn.drop]:
                self._chunk(piece)
            if turn.error is not None:
                error = _error(vendor, turn.error, "in the middle")
                self._chunk(_data(error) if vendor == "openai" else b"event: error\n" + _data(error))
            if turn.drop is not None and turn.error is None:
                self.close_connection = True  # without the last chunk, so that it is cut off
                return
            self.wfile.write(b"0\r\n\r\n")

        def _chunk(self, piece: bytes) -> None:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))

        def _answer(self, status: int, body: Any, headers: Mapping[str, str] | None = None) -> None:
            raw = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            plain = {"Content-Type": "application/json", "Content-Length": str(len(raw))}
            for name, value in {**plain, **(headers or {})}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(raw)

    return Handler


def _error(vendor: str, kind: str, message: str) -> dict[str, Any]:
    if vendor == "anthropic":
        return {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_1"}
    return {"error": {"message": message, "type": kind, "param": None, "code": kind}}
