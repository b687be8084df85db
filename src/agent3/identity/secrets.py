"""Secrets: held so that they do not slip out, fetched by reference, and taken out of what comes back.

A ``Secret`` shows itself to nobody who does not say ``reveal``. A route names its credential by reference
(``env:PIZZA_TOKEN``); a ``Vault`` turns the reference into the secret at the last step before sending. ``redact``
is the last net below that: a target that echoes its credential does not get it into a ledger.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from msgspec.structs import replace

from agent3.errors import SetupError
from agent3.model import Done, Event, Needs, Outcome, Part, Working
from agent3.secret import MASK, Secret, to_bytes
from agent3.security.sanitize import rewrite_outcome, rewrite_part, rewrite_value

__all__ = ["EnvironmentVault", "Secret", "Vault", "redact", "redact_event", "redact_outcome"]


class Vault(Protocol):
    """Where secrets are kept."""

    async def get(self, reference: str) -> Secret:
        """The secret of that reference; ``SetupError`` says what is missing and never what is there."""
        ...


class EnvironmentVault:
    """Secrets from environment variables: ``env:NAME``."""

    def __init__(self, environment: Mapping[str, str] | None = None):
        self._environment = os.environ if environment is None else environment

    async def get(self, reference: str) -> Secret:
        scheme, found, name = reference.partition(":")
        if scheme != "env" or not found or not name:
            # Not the reference itself: somebody may have put the secret in its place.
            shown = f"begins with {scheme[:20]!r}" if found else "has no scheme"
            raise SetupError(
                f"The reference to the credential {shown}. Write env:NAME, with the name of the environment variable "
                "that holds it."
            )
        value = self._environment.get(name)
        if not value:
            state = "not set" if value is None else "empty"
            raise SetupError(f"The environment variable {name} is {state}; a route takes its credential from it.")
        return Secret(value)


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

    def text(one: str) -> str:
        return redact(one, known)

    def part(one: Part) -> Part:
        changed = rewrite_part(one, text)
        raw = None if one.raw is None else _redact_bytes(one.raw, known)
        return changed if raw is one.raw else replace(changed, raw=raw)

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
