"""The step that lets secrets in: as late as can be, and never out again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from msgspec.structs import replace

from agent3.errors import Agent3Error, CallTimeout, TargetError
from agent3.identity.secrets import Secret, Vault, redact, redact_outcome
from agent3.model import Call, Done, Event, Handler, Outcome, Step
from agent3.security.sanitize import rewrite_value

__all__ = ["sealing"]


def sealing(vault: Vault) -> Step:
    """Give the connector the secret that the route refers to, and take it out of whatever comes back."""

    def step(inner: Handler) -> Handler:
        def sealed(call: Call) -> Awaitable[Outcome]:
            reference = call.route.credential if call.route is not None else None
            return inner(call) if reference is None else opened(call, reference)

        async def opened(call: Call, reference: str) -> Outcome:
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
        wrong.data = rewrite_value(wrong.data, lambda text: redact(text, [secret]))
        raise wrong from None
    except Exception as wrong:  # noqa: BLE001 - whatever a target raises may quote the secret
        kind = CallTimeout if isinstance(wrong, TimeoutError) else TargetError
        raise kind(redact(f"{call.agent} failed: {type(wrong).__name__}: {wrong}", [secret])) from None
    finally:
        live.filters = before


def _redacting(secret: Secret) -> Callable[[Event], Event]:
    def clean(event: Event) -> Event:
        inside = redact_outcome(Done(event.parts), [secret])
        return replace(
            event,
            text=redact(event.text, [secret]) if event.text else event.text,
            name=redact(event.name, [secret]) if event.name else event.name,
            data=rewrite_value(event.data, lambda text: redact(text, [secret])),
            parts=inside.parts if isinstance(inside, Done) else event.parts,
        )

    return clean
