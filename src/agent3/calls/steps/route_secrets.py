"""``route_secrets``: gives the connector the secrets of the route, and removes them from what comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from msgspec.structs import replace

from agent3.calls.outcomes import error_of_target
from agent3.calls.step import Aim, Parts, Step
from agent3.calls.steps.sanitize import clean_event, is_long
from agent3.errors import Agent3Error
from agent3.identity.redaction import redact_error, redact_event, redact_outcome
from agent3.identity.secret_refs import open_route, refers_to_secret
from agent3.identity.secrets import Secret
from agent3.model import Call, Event, Handler, Outcome
from agent3.security.sanitize import clean_outcome

__all__ = ["RouteSecrets"]


class RouteSecrets(Step):
    """Asks the vault. Secrets enter as late as can be, so that no record outside of this step can hold them."""

    name = "route_secrets"

    def __init__(self, parts: Parts):
        self._vault = parts.vault
        self._logins = parts.logins

    def idle(self, aim: Aim) -> bool:
        return aim.entry == "start" and not any(map(refers_to_secret, aim.capability.routes))

    def around(self, inner: Handler) -> Handler:
        async def with_secrets(call: Call) -> Outcome:
            if call.route is None or not refers_to_secret(call.route):
                return await inner(call)
            route = call.route
            if self._logins is not None and route.credential is not None:
                route = await self._logins.own_route(call.principal.id, call.agent, route)
            opened = await open_route(route, self._vault)
            live = call.live
            before, live.hides = live.filters, (lambda: opened.hidden,)

            def all_hidden() -> list[Secret]:
                return [secret for secrets in live.hides for secret in secrets()]

            # A target may echo its secret with something in it that cleaning takes out, and the secret would be whole
            # again. So it is also looked for in what cleaning would leave.
            def hide(event: Event) -> Event:
                hidden = all_hidden()
                masked = redact_event(event, hidden)
                cleaned = clean_event(masked)
                again = redact_event(cleaned, hidden)
                return masked if again == cleaned else again

            live.filters = (hide, *before)
            try:
                outcome = await inner(replace(call, route=opened.route, secret=opened.secret))
            except Agent3Error as error:
                raise redact_error(error, all_hidden()) from None
            except (asyncio.CancelledError, KeyboardInterrupt, GeneratorExit):
                raise
            except BaseException as error:  # noqa: BLE001 - whatever a target raises may quote the secret
                raise redact_error(error_of_target(error, call.agent), all_hidden()) from None
            finally:
                hidden = all_hidden()
                live.filters, live.hides = before, ()
            if hidden and is_long(outcome):
                return await asyncio.to_thread(_mask, outcome, hidden)
            return _mask(outcome, hidden)

        return with_secrets


def _mask(outcome: Outcome, hidden: Sequence[Secret]) -> Outcome:
    masked = redact_outcome(outcome, hidden)
    cleaned = clean_outcome(masked)
    again = redact_outcome(cleaned, hidden)
    return masked if again is cleaned else again
