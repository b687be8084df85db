"""Questions on their way to a client, its answers on their way back, and the signed state it carries in between.

A question is asked as an elicitation: a form, or a page to open. ``sampling`` and ``roots`` make questions that only
the client itself can answer; their schema says so, so that they survive storage like any other question.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import mcp_types as wire
import msgspec
from mcp.shared.exceptions import MCPError
from msgspec import Struct
from pydantic import ValidationError as WireError

from agent3.env import Env
from agent3.model import Answer, Question, encode
from agent3.observe.logs import get as logger
from agent3.protocols.mcp.door.requests import strict_base64
from agent3.protocols.mcp.meta_keys import ELICITATION, REQUEST

__all__ = ["Pause", "Reply", "StateTokens", "feature_for", "parse_reply", "to_answer", "to_answers", "to_request"]

log = logger("mcp")

Reply = wire.ElicitResult | wire.CreateMessageResult | wire.CreateMessageResultWithTools | wire.ListRootsResult
_FEATURES = {"sampling/createMessage": "sampling", "roots/list": "roots"}
_REPLIES: dict[str, tuple[type[Reply], ...]] = {
    "sampling": (wire.CreateMessageResult, wire.CreateMessageResultWithTools),
    "roots": (wire.ListRootsResult,),
    "form": (wire.ElicitResult,),
    "url": (wire.ElicitResult,),
}
"""The types of a reply, by the feature that gives it."""


# Asking


def feature_for(question: Question) -> str:
    """The feature a client needs for this question: form, url, sampling or roots; none has ``elsewhere``.

    What others have to answer is not put to the user of the client: whatever that said would not count.
    """
    if question.by is not None:
        return "elsewhere"
    request = _client_request(question)
    if request is not None:
        return _FEATURES.get(str(request.get("method")), "form")
    return "form" if question.url is None else "url"


def to_request(question: Question) -> wire.InputRequest:
    feature = feature_for(question)
    if feature == "sampling":
        return wire.CreateMessageRequest.model_validate(_client_request(question) or {})
    if feature == "roots":
        return wire.ListRootsRequest()
    if question.url is not None:
        own = str((question.schema or {}).get(ELICITATION, question.id))
        url = wire.ElicitRequestURLParams(message=question.text, url=question.url, elicitation_id=own)
        return wire.ElicitRequest(params=url)
    schema = question.schema or {"type": "string"}
    shape = _form_shape(schema)
    if shape == "object":
        form: dict[str, Any] = {
            key: schema[key] for key in ("$schema", "type", "properties", "required") if key in schema
        }
    else:
        if shape == "json":
            schema = {"type": "string", "description": f"JSON of this schema: {encode(schema).decode()}"}
        form = {"type": "object", "properties": {"answer": dict(schema)}, "required": ["answer"]}
    return wire.ElicitRequest(params=wire.ElicitRequestFormParams(message=question.text, requested_schema=form))


def _client_request(question: Question) -> Mapping[str, Any] | None:
    request = (question.schema or {}).get(REQUEST)
    return request if isinstance(request, Mapping) else None


def _form_shape(schema: Mapping[str, Any] | None) -> Literal["object", "value", "json"]:
    """How an answer is put into a form: as the form itself, as its only field, or as JSON text in its only field.

    The protocol's forms are flat: text, numbers, booleans and choices.
    """
    if schema is None or _is_flat(schema):
        return "value"
    fields = schema.get("properties")
    if schema.get("type") == "object" and isinstance(fields, dict) and all(map(_is_flat, fields.values())):
        return "object"
    return "json"


def _is_flat(schema: Any) -> bool:
    if not isinstance(schema, Mapping):
        return False
    if schema.get("type") == "array":
        items = schema.get("items")
        return isinstance(items, dict) and ("enum" in items or "anyOf" in items)
    return schema.get("type") in ("string", "number", "integer", "boolean")


# Answers


def parse_reply(question: Question, given: Any) -> Reply:
    """A client's reply to a question, by its type; MCPError if it does not fit the question."""
    kinds = _REPLIES[feature_for(question)]
    # A reply to sampling with several blocks of content has a type of its own.
    many = isinstance(given, Mapping) and isinstance(given.get("content"), list)
    try:
        return kinds[-1 if many else 0].model_validate(given, by_name=False)
    except WireError:
        raise MCPError(wire.INVALID_PARAMS, f"The response to {question.id!r} does not match the question") from None


def to_answer(question: Question, reply: Reply) -> Answer:
    if not isinstance(reply, wire.ElicitResult):
        return Answer(data=reply.model_dump(by_alias=True, mode="json", exclude_none=True))
    if reply.action != "accept" or question.url is not None:
        return Answer(reply.action)
    content: dict[str, Any] = reply.content or {}
    shape = _form_shape(question.schema)
    value = content if shape == "object" else content.get("answer")
    if shape == "json" and isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except msgspec.DecodeError:
            # Answers are validated later, which says what is wrong with it.
            log.debug("The answer to %s is not JSON", question.id)
    return Answer(data=value)


def to_answers(questions: Sequence[Question], replies: Mapping[str, Any]) -> dict[str, Answer]:
    """The answers among a client's replies; those that fit no question are left out."""
    answers: dict[str, Answer] = {}
    for question in questions:
        reply = replies.get(question.id)
        if isinstance(reply, _REPLIES[feature_for(question)]):
            answers[question.id] = to_answer(question, reply)
    return answers


# State that a client carries


class Pause(Struct, frozen=True):
    """What a modern client carries from one turn to the next."""

    subject: str
    expires: float
    questions: tuple[Question, ...]
    state: str
    job: str | None = None


class StateTokens:
    """Signs the ``requestState`` that a client carries. It can read it (it was asked the questions), not change it."""

    def __init__(self, key: bytes, lifetime: float, env: Env):
        self._key = key
        self._lifetime = lifetime
        self._env = env

    def issue(self, questions: tuple[Question, ...], state: str, job: str | None, subject: str) -> str:
        """A token for a pause that belongs to a subject."""
        body = encode(Pause(subject, self._env.now() + self._lifetime, questions, state, job))
        return base64.urlsafe_b64encode(self._sign(body) + body).decode()

    def verify(self, token: str, subject: str) -> Pause:
        """The pause in a token. The same MCPError if it was changed, is too old, or belongs to another subject."""
        try:
            raw = strict_base64(token)
            body = raw[32:]
            if hmac.compare_digest(raw[:32], self._sign(body)):
                pause = msgspec.json.decode(body, type=Pause)
                if pause.subject == subject and self._env.now() < pause.expires:
                    return pause
        except ValueError:
            log.debug("A requestState was not issued by this gateway")
        raise MCPError(wire.INVALID_PARAMS, "Invalid or expired requestState: send the request again without it")

    def _sign(self, body: bytes) -> bytes:
        return hmac.digest(self._key, b"agent3/mcp/requestState" + body, "sha256")
