"""What a function may ask of the caller's client itself rather than of its person: its language model, its folders.

Only MCP clients can be asked so. The request stands in the schema of a question, and thus survives storage like any
other question.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from agent3.errors import Declined, MalformedResponse, SetupError
from agent3.model import Call, Question

__all__ = ["CLIENT", "LEVELS", "REQUEST", "Level", "Messages", "Root", "Sample", "ask_client", "check_level",
           "check_power", "find_powers", "make_sampling_request", "read_roots", "read_sample"]  # fmt: skip

CLIENT = "io.agent3/mcp"
"""In a call's ``meta``: what the MCP client said of its request, such as what it ``can`` do."""
REQUEST = "x-mcp-request"
"""In a question's schema: the request (sampling, roots) that only the MCP client itself can answer."""

Level: TypeAlias = Literal["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]
"""How much a log line matters, by the names of syslog (RFC 5424)."""
LEVELS: tuple[str, ...] = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
Messages: TypeAlias = str | Sequence[str | Mapping[str, Any]]
"""What a model is sent: a text, or several messages, those that are no texts by the protocol's own names."""

_LENT = {"sampling": "language model", "roots": "folders"}


class Sample(Struct, frozen=True):
    """What the client's model said. ``content`` has all blocks, by the protocol's names; ``text`` those of text."""

    text: str
    model: str = ""
    stop_reason: str | None = None
    content: tuple[dict[str, Any], ...] = ()


class Root(Struct, frozen=True):
    """A folder, or a file, that the client lets us see."""

    uri: str
    name: str | None = None


def find_powers(call: Call) -> frozenset[str]:
    """What the client of a call can do for us; nothing where that is not known."""
    said = call.meta.get(CLIENT)
    can = said.get("can") if isinstance(said, Mapping) else None
    return frozenset(can) if isinstance(can, (list, tuple)) else frozenset()


def check_power(powers: frozenset[str], power: str) -> None:
    """Declined where the client cannot do this."""
    if power not in powers:
        raise Declined(f"The caller's client does not offer a {_LENT[power]}: it did not declare {power!r}.")


def check_level(level: str) -> None:
    """SetupError for what is no level of log lines."""
    if level not in LEVELS:
        raise SetupError(f"Unknown log level {level!r}. The levels are {', '.join(LEVELS)}.")


# Questions


def ask_client(question_id: str, text: str, request: Mapping[str, Any]) -> Question:
    """A question that the client itself answers."""
    return Question(question_id, text, {"type": "object", REQUEST: dict(request)})


def make_sampling_request(
    prompt: Messages,
    *,
    max_tokens: int,
    system: str | None,
    temperature: float | None,
    stop: Sequence[str],
    models: Sequence[str],
    tools: Sequence[Mapping[str, Any]],
    tool_choice: Mapping[str, Any] | None,
) -> tuple[str, dict[str, Any]]:
    """The request for the client's model, and what a person is shown of it."""
    if max_tokens < 1:
        raise SetupError(f"ctx.sample needs a max_tokens of at least 1, got {max_tokens}.")
    messages = [_read_message(message) for message in ([prompt] if isinstance(prompt, str) else prompt)]
    if not messages:
        raise SetupError("ctx.sample needs at least one message.")
    params: dict[str, Any] = {"messages": messages, "maxTokens": max_tokens}
    given = {
        "systemPrompt": system,
        "temperature": temperature,
        "stopSequences": list(stop),
        "modelPreferences": {"hints": [{"name": name} for name in models]} if models else None,
        "tools": [dict(tool) for tool in tools],
        "toolChoice": tool_choice,
    }
    params |= {name: value for name, value in given.items() if value not in (None, [])}
    text = "\n".join(filter(None, (_text_of(message["content"]) for message in messages)))
    return text or "A request for a language model", {"method": "sampling/createMessage", "params": params}


def _read_message(message: str | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(message, str):
        return {"role": "user", "content": {"type": "text", "text": message}}
    if message.get("role") not in ("user", "assistant") or "content" not in message:
        raise SetupError('A message of ctx.sample must be a text, or {"role": "user" or "assistant", "content": …}.')
    content = message["content"]
    return {**message, "content": {"type": "text", "text": content} if isinstance(content, str) else content}


# Answers


def read_sample(data: Any) -> Sample:
    """The answer of a model."""
    if not isinstance(data, Mapping) or "content" not in data:
        raise MalformedResponse("The client's model did not answer with a message.")
    content = data["content"]
    blocks = tuple(block for block in (content if isinstance(content, list) else [content]) if isinstance(block, dict))
    return Sample(_text_of(list(blocks)), str(data.get("model") or ""), data.get("stopReason"), blocks)


def read_roots(data: Any) -> list[Root]:
    """The folders in an answer."""
    roots = data.get("roots") if isinstance(data, Mapping) else None
    if not isinstance(roots, list):
        raise MalformedResponse("The client did not answer with a list of folders.")
    return [Root(str(root["uri"]), root.get("name")) for root in roots if isinstance(root, Mapping) and "uri" in root]


def _text_of(content: Any) -> str:
    blocks = content if isinstance(content, list) else [content]
    return "\n".join(str(block.get("text", "")) for block in blocks if isinstance(block, Mapping) and "text" in block)
