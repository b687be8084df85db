"""``agent3 login`` and ``agent3 logout``: credentials of single users. A gateway may be running."""

from __future__ import annotations

import asyncio
from typing import Annotated

from cyclopts import Parameter

from agent3.cli.options import load_database_settings
from agent3.cli.registration import SignInOptions
from agent3.cli.vault import read_secret
from agent3.errors import SetupError
from agent3.identity.loopback_redirect import AtTerminal
from agent3.identity.sign_ins import SignInWish
from agent3.model import LOCAL
from agent3.server.build import build
from agent3.terminal.options import DatabaseOptions
from agent3.terminal.output import clean, print_result

__all__ = ["login", "logout"]


def login(
    agent: str,
    *surplus: Annotated[str, Parameter(show=False)],
    user: str = LOCAL.id,
    key: bool = False,
    signing: SignInOptions = SignInOptions(),  # noqa: B008 - frozen
    options: DatabaseOptions = DatabaseOptions(),  # noqa: B008 - frozen
) -> None:
    """Give a user their own credential for an agent.

    Calls of other users keep using the credential that the agent was added with. The user's credential is encrypted, is
    sent only to the agent's current address, and is renewed when it is used.

    Parameters
    ----------
    agent:
        Id of the agent, as printed by agent3 list.
    user:
        Id of the client [default: local, the person at this machine].
    key:
        Use a secret, typed or from standard input, instead of signing in with the browser.
    """
    if surplus:  # taken here, since the parser would show it
        raise SetupError(
            "Others can see a secret on the command line, so it was not stored. If it is one, change it, "
            f"then pass the new one on standard input: agent3 login {agent} --key < FILE"
        )
    settings = load_database_settings(options)
    secret = read_secret(f"Secret of {user} for {agent}: ") if key else None
    wish = SignInWish(
        "person", AtTerminal(), signing.client_id, signing.client_secret_ref, signing.issuer, signing.wait
    )

    async def work() -> str:
        async with build(settings, take_over=False) as server:
            return await server.registration.login(agent, user, secret, wish)

    way = asyncio.run(work())
    print_result(
        {"agent": agent, "user": user, "by": way},
        options.json,
        lambda _: print(clean(f"{user} is logged in to {agent} with {('a secret' if key else 'a sign-in')}.")),
    )


def logout(agent: str, *, user: str = LOCAL.id, options: DatabaseOptions = DatabaseOptions()) -> None:  # noqa: B008
    """Delete a user's credential for an agent.

    Parameters
    ----------
    agent:
        Id of the agent.
    user:
        Id of the client [default: local].
    """
    settings = load_database_settings(options)

    async def work() -> None:
        async with build(settings, take_over=False) as server:
            await server.registration.logout(agent, user)

    asyncio.run(work())
    print_result(
        {"agent": agent, "user": user, "loggedOut": True},
        options.json,
        lambda _: print(clean(f"{user} is logged out of {agent}.")),
    )
