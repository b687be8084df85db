"""Redaction: secrets are masked in whatever comes back, in every spelling under which they may.

The last net below the vault: a target that echoes its credential gets it into no answer, event, error, log or ledger.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from msgspec.structs import replace

from agent3.errors import Agent3Error
from agent3.model import Agent, Done, Event, Needs, Outcome, Part, Working
from agent3.secret import MASK, Secret, to_bytes
from agent3.security.sanitize import clean_text, rewrite_outcome, rewrite_part, rewrite_value

__all__ = ["redact", "redact_agent", "redact_error", "redact_event", "redact_outcome", "redact_value"]

ErrorT = TypeVar("ErrorT", bound=Agent3Error)
T = TypeVar("T")


def redact(text: str, secrets: Iterable[Secret]) -> str:
    """The text with every spelling of every secret masked; the same object if there was none.

    Secrets of fewer than four characters are not looked for.
    """
    for secret in secrets:
        for form in secret.forms():
            if form in text:
                text = text.replace(form, MASK)
    return text


def redact_outcome(outcome: Outcome, secrets: Iterable[Secret]) -> Outcome:
    """The outcome without the secrets, in its words, its data, its bytes and its state; the same object if clean."""
    known = tuple(secrets)
    if not known:
        return outcome

    def text(value: str) -> str:
        return redact(value, known)

    def part(value: Part) -> Part:
        changed = rewrite_part(value, text)
        raw = None if value.raw is None else _redact_bytes(value.raw, known)
        return changed if raw is value.raw else replace(changed, raw=raw)

    changed = rewrite_outcome(outcome, text, part)
    if isinstance(changed, Needs | Working):
        state: Any = rewrite_value(changed.state, text)
        return changed if state is changed.state else replace(changed, state=state)
    return changed


def redact_event(event: Event, secrets: Iterable[Secret]) -> Event:
    """The event without the secrets, in its text, name, data and parts; the same object if no secrets are given."""
    known = tuple(secrets)
    if not known:
        return event
    parts = redact_outcome(Done(event.parts), known)
    assert isinstance(parts, Done)
    return replace(
        event,
        text=redact(event.text, known) if event.text else event.text,
        name=redact(event.name, known) if event.name else event.name,
        data=rewrite_value(event.data, lambda text: redact(text, known)),
        parts=parts.parts,
    )


def _redact_bytes(raw: bytes, secrets: Iterable[Secret]) -> bytes:
    for secret in secrets:
        for form in map(to_bytes, secret.forms()):
            if form in raw:
                raw = raw.replace(form, MASK.encode())
    return raw


def redact_value(value: T, secrets: Sequence[Secret]) -> T:
    """A JSON value from outside without the secrets.

    It is cleaned first, for a hidden character inside a secret would hide it from the search. In base64 they are masked
    in the decoded bytes, so that it still decodes.
    """

    def safe(text: str) -> str:
        cleaned = clean_text(text)
        masked = redact(cleaned, secrets)
        if masked is cleaned:
            return cleaned
        with suppress(ValueError):
            raw = _redact_bytes(base64.b64decode(cleaned, validate=True), secrets)
            again = base64.b64encode(raw).decode()
            if redact(again, secrets) is again:
                return again
        return masked

    changed: T = rewrite_value(value, safe)
    return changed


def redact_error(error: ErrorT, secrets: Sequence[Secret]) -> ErrorT:
    """The error without the secrets and hidden characters in its message and data."""
    error.message = redact_value(error.message, secrets)
    error.args = (error.message,)
    error.data = redact_value(error.data, secrets)
    return error


def redact_agent(agent: Agent, secrets: Sequence[Secret]) -> Agent:
    """The agent without secrets in what it says of itself. A capability that has one in its name is left out."""
    if not secrets:
        return agent
    texts = redact_value({"name": agent.name, "description": agent.description, "card": agent.card}, secrets)
    capabilities = []
    for capability in agent.capabilities:
        if redact(capability.name, secrets) is not capability.name:
            continue
        described: dict[str, Any] = {
            "description": capability.description,
            "title": capability.title,
            "input_schema": capability.input_schema,
            "output_schema": capability.output_schema,
            "examples": list(capability.examples),
            "meta": capability.meta,
        }
        safe = redact_value(described, secrets)
        if safe is not described:
            capability = replace(capability, **{**safe, "examples": tuple(safe["examples"])})
        capabilities.append(capability)
    return replace(agent, **texts, capabilities=tuple(capabilities))
