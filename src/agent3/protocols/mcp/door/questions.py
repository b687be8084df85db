"""Questions on their way to a client and its answers on their way back, with the seal on what it carries meanwhile.

A question is asked as an elicitation: a form, or a page to go to. ``sampling`` and ``roots`` make questions that only
the client itself can answer; they say so in their schema, so that they survive storage like any other question.
"""

from __future__ import annotations

import base64
import hmac
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import mcp_types as wire
import msgspec
from mcp.shared.exceptions import MCPError
from msgspec import Struct
from pydantic import ValidationError as WireError

from agent3.env import Env
from agent3.model import Answer, Question, encode
from agent3.protocols.mcp.door.pagination import strict_base64

__all__ = ["Paused", "Seal", "answer_of", "answers_of", "power_for", "reply_of", "request_of", "roots", "sampling"]

logger = logging.getLogger(__name__)

REQUEST = "x-mcp-request"
"""The keyword in a question's schema that holds the request which only an MCP client can fulfil."""
Reply = wire.ElicitResult | wire.CreateMessageResult | wire.CreateMessageResultWithTools | wire.ListRootsResult
Shape = Literal["object", "value", "json"]
"""How an answer is put into a form: as the form, as its one field, or as JSON text in its one field."""
_POWERS = {"sampling/createMessage": "sampling", "roots/list": "roots"}


def sampling(question_id: str, text: str, *, max_tokens: int = 1000, **params: Any) -> Question:
    """A question for the client's own model; ``params`` by the protocol's names, ``messages`` for more than a text.

    The answer's data is the protocol's CreateMessageResult. ValueError for parameters that it does not have.
    """
    messages = [{"role": "user", "content": {"type": "text", "text": text}}]
    body = {"messages": messages, "maxTokens": max_tokens, **params}
    wire.CreateMessageRequestParams.model_validate(body)
    return _client_question(question_id, text, "sampling/createMessage", body)


def roots(question_id: str) -> Question:
    """Which folders the client lets us see. The answer's data is the protocol's ListRootsResult."""
    return _client_question(question_id, "Which folders may be used?", "roots/list", None)


def _client_question(question_id: str, text: str, method: str, params: Any) -> Question:
    request = {"method": method, **({"params": params} if params is not None else {})}
    return Question(question_id, text, {"type": "object", REQUEST: request})


# Asking


def power_for(question: Question) -> str:
    """What a client must be able to do for this question: form, url, sampling or roots."""
    request = _own_request(question)
    if request is not None:
        return _POWERS.get(str(request.get("method")), "form")
    return "form" if question.url is None else "url"


def request_of(question: Question) -> wire.InputRequest:
    """The question as the protocol asks it."""
    power = power_for(question)
    request = _own_request(question) or {}
    if power == "sampling":
        return wire.CreateMessageRequest.model_validate(request)
    if power == "roots":
        return wire.ListRootsRequest()
    if question.url is not None:
        url = wire.ElicitRequestURLParams(message=question.text, url=question.url, elicitation_id=question.id)
        return wire.ElicitRequest(params=url)
    form = wire.ElicitRequestFormParams(message=question.text, requested_schema=_form(question))
    return wire.ElicitRequest(params=form)


def _own_request(question: Question) -> Mapping[str, Any] | None:
    request = (question.schema or {}).get(REQUEST)
    return request if isinstance(request, Mapping) else None


def _form(question: Question) -> dict[str, Any]:
    schema = question.schema or {"type": "string"}
    shape = _shape(schema)
    if shape == "object":
        return {key: schema[key] for key in ("$schema", "type", "properties", "required") if key in schema}
    if shape == "json":
        schema = {"type": "string", "description": f"JSON of this schema: {encode(schema).decode()}"}
    return {"type": "object", "properties": {"answer": dict(schema)}, "required": ["answer"]}


def _shape(schema: Mapping[str, Any] | None) -> Shape:
    """Forms are flat by the protocol: text, numbers, yes or no, choices."""
    if schema is None or _flat(schema):
        return "value"
    fields = schema.get("properties")
    if schema.get("type") == "object" and isinstance(fields, dict) and all(_flat(one) for one in fields.values()):
        return "object"
    return "json"


def _flat(schema: Any) -> bool:
    if not isinstance(schema, dict):
        return False
    if schema.get("type") == "array":
        items = schema.get("items")
        return isinstance(items, dict) and ("enum" in items or "anyOf" in items)
    return schema.get("type") in ("string", "number", "integer", "boolean")


# Answers


def reply_of(question: Question, given: Any) -> Reply:
    """What a client said to a question, by its type; MCPError for what is no answer to it."""
    try:
        if power_for(question) == "sampling":
            many = isinstance(given, Mapping) and isinstance(given.get("content"), list)
            kind = wire.CreateMessageResultWithTools if many else wire.CreateMessageResult
            return kind.model_validate(given, by_name=False)
        if power_for(question) == "roots":
            return wire.ListRootsResult.model_validate(given, by_name=False)
        return wire.ElicitResult.model_validate(given, by_name=False)
    except WireError:
        raise MCPError(wire.INVALID_PARAMS, f"The response to {question.id!r} is not an answer to it") from None


def answer_of(question: Question, reply: Reply) -> Answer:
    """The answer in our words."""
    if not isinstance(reply, wire.ElicitResult):
        return Answer(data=reply.model_dump(by_alias=True, mode="json", exclude_none=True))
    if reply.action != "accept" or question.url is not None:
        return Answer(reply.action)
    content: dict[str, Any] = reply.content or {}
    shape = _shape(question.schema)
    value = content if shape == "object" else content.get("answer")
    if shape == "json" and isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except msgspec.DecodeError:
            # Whoever validates answers will say what is wrong with it.
            logger.debug("The answer to %s is not JSON", question.id)
    return Answer(data=value)


def answers_of(questions: Sequence[Question], replies: Mapping[str, Any]) -> dict[str, Answer]:
    """The answers among what a client sent; what nobody asked for is left out, and so is what fits no question."""
    answers: dict[str, Answer] = {}
    for question in questions:
        reply = replies.get(question.id)
        if reply is not None and _fits(question, reply):
            answers[question.id] = answer_of(question, reply)
    return answers


def _fits(question: Question, reply: Any) -> bool:
    if power_for(question) == "sampling":
        return isinstance(reply, wire.CreateMessageResult | wire.CreateMessageResultWithTools)
    kind = wire.ListRootsResult if power_for(question) == "roots" else wire.ElicitResult
    return isinstance(reply, kind)


# What a client carries for us


class Paused(Struct, frozen=True):
    """What a modern client carries from one turn to the next."""

    subject: str
    expires: float
    questions: tuple[Question, ...]
    state: str
    job: str | None = None


class Seal:
    """Signs what a client carries for us. It can read it (it was asked these questions) but not change it."""

    def __init__(self, key: bytes, lifetime: float, env: Env):
        self._key = key
        self._lifetime = lifetime
        self._env = env

    def close(self, questions: tuple[Question, ...], state: str, job: str | None, subject: str) -> str:
        """The token for a pause that belongs to a subject."""
        body = encode(Paused(subject, self._env.now() + self._lifetime, questions, state, job))
        return base64.urlsafe_b64encode(self._sign(body) + body).decode()

    def open(self, token: str, subject: str) -> Paused:
        """What ``close`` was given. Refused alike if changed, too old, or of another caller, request or arguments."""
        try:
            raw = strict_base64(token)
            body = raw[32:]
            if hmac.compare_digest(raw[:32], self._sign(body)):
                paused = msgspec.json.decode(body, type=Paused)
                if paused.subject == subject and self._env.now() < paused.expires:
                    return paused
        except ValueError:
            logger.debug("A requestState is not ours")
        raise MCPError(wire.INVALID_PARAMS, "Invalid or expired requestState: send the request again without it")

    def _sign(self, body: bytes) -> bytes:
        return hmac.digest(self._key, b"agent3/mcp/requestState" + body, "sha256")
