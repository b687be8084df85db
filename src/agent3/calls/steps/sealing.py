"""``sealing``: gives the connector the secret that the route refers to, and takes it out of whatever comes back."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from agent3.calls.step import Aim, Parts, Step
from agent3.errors import Agent3Error, CallTimeout, TargetError
from agent3.identity.secrets import Secret, redact, redact_outcome
from agent3.model import Call, Done, Event, Handler, Outcome
from agent3.security.sanitize import rewrite_value

__all__ = ["Sealing"]


class Sealing(Step):
    """Asks the vault. Secrets enter as late as can be, so that no record outside of this step can hold them."""

    name = "sealing"

    def __init__(self, parts: Parts):
        self._vault = parts.vault

    def idle(self, aim: Aim) -> bool:
        return aim.entry == "start" and all(route.credential is None for route in aim.capability.routes)

    def around(self, inner: Handler) -> Handler:
        async def sealed(call: Call) -> Outcome:
            reference = call.route.credential if call.route is not None else None
            if reference is None:
                return await inner(call)
            secret = await self._vault.get(reference)
            live = call.live
            before = live.filters
            live.filters = (_redacting(secret), *before)
            try:
                outcome = await inner(replace(call, secret=secret))
            except Agent3Error as error:
                error.message = redact(error.message, [secret])
                error.args = (error.message,)
                error.data = rewrite_value(error.data, lambda text: redact(text, [secret]))
                raise error from None
            except Exception as error:  # noqa: BLE001 - whatever a target raises may quote the secret
                kind = CallTimeout if isinstance(error, TimeoutError) else TargetError
                raise kind(redact(f"{call.agent} failed: {type(error).__name__}: {error}", [secret])) from None
            finally:
                live.filters = before
            return redact_outcome(outcome, [secret])

        return sealed


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
