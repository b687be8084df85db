"""The step that lets secrets in: as late as can be, and never out again."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from agent3.errors import Agent3Error, TargetError
from agent3.model import Call, Event, Handler, Outcome, Step
from agent3.security.secrets import Secret, Vault, redact, redact_outcome

__all__ = ["sealing"]


def sealing(vault: Vault) -> Step:
    """Give the connector the secret that the route refers to, and take it out of whatever comes back."""

    def step(inner: Handler) -> Handler:
        async def sealed(call: Call) -> Outcome:
            reference = call.route.credential if call.route is not None else None
            if reference is None:
                return await inner(call)
            secret = await vault.get(reference)
            return redact_outcome(await _with(secret, call, inner), [secret])

        return sealed

    return step


async def _with(secret: Secret, call: Call, inner: Handler) -> Outcome:
    live = call.live
    before = live.filters
    live.filters = (_redacting(secret), *before)
    try:
        return await inner(replace(call, secret=secret))
    except Agent3Error as wrong:
        wrong.message = redact(wrong.message, [secret])
        wrong.args = (wrong.message,)
        raise
    except Exception as wrong:  # noqa: BLE001 - whatever a target raises may quote the secret
        raise TargetError(redact(f"{call.agent} failed: {type(wrong).__name__}: {wrong}", [secret])) from None
    finally:
        live.filters = before


def _redacting(secret: Secret) -> Callable[[Event], Event]:
    def clean(event: Event) -> Event:
        text = redact(event.text, [secret]) if event.text else event.text
        parts = tuple(replace(one, text=redact(one.text, [secret])) if one.text else one for one in event.parts)
        return replace(event, text=text, parts=parts)

    return clean
