"""``agent3 add`` and ``agent3 remove``: agents in the directory. A running gateway sees the change at once."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from typing import Any, Literal

from cyclopts import Parameter

from agent3.cli.exit_codes import exit_code
from agent3.cli.options import load_database_settings
from agent3.cli.output import print_error
from agent3.errors import SetupError
from agent3.gateway.registration import Added
from agent3.identity.loopback_redirect import AtTerminal
from agent3.identity.sign_ins import SignInWish
from agent3.server.build import build
from agent3.terminal.options import DatabaseOptions
from agent3.terminal.output import print_json

__all__ = ["add", "remove"]


@Parameter(name="*")
@dataclass(frozen=True)
class SignInOptions:
    """How to sign in to a server that is added."""

    client_id: str | None = None
    "The client id at its authorization server, if that does not register clients automatically."
    client_secret_ref: str | None = None
    "Where the secret of that client is: env:NAME."
    issuer: str | None = None
    "The authorization server that issued them, as https://…; they are sent to no other. Required for a machine."
    wait: float = 300.0
    "Seconds to wait until you have signed in [default: 300]."


def add(
    what: str,
    *,
    name: str | None = None,
    credential: str | None = None,
    sign_in: bool | Literal["machine"] = False,
    signing: SignInOptions = SignInOptions(),  # noqa: B008 - frozen
    options: DatabaseOptions = DatabaseOptions(),  # noqa: B008 - frozen
) -> None:
    """Add an agent: an MCP server, an A2A agent, or a website. Its kind is detected.

    Parameters
    ----------
    what:
        An address (of an MCP server, of an A2A agent or its card, of a site that speaks NLWeb), "npx some-server
        --flag" in quotes, or a file: a website's interface, or a client's {"mcpServers": {…}}. Write env:NAME for a
        secret in it.
    name:
        What to call it; its own name by default.
    credential:
        Where its secret is: env:NAME, or HEADER=env:NAME.
    sign_in:
        Sign in to it in your browser (OAuth); with "machine" after it, with a client secret and without a person.
    """
    settings = load_database_settings(options)
    wish = None
    if sign_in:
        way: Literal["machine", "person"] = "machine" if sign_in == "machine" else "person"
        wish = SignInWish(way, AtTerminal(), signing.client_id, signing.client_secret_ref, signing.issuer, signing.wait)
    elif signing != SignInOptions():
        raise SetupError(
            "--client-id, --client-secret-ref, --issuer and --wait apply only to signing in: add --sign-in."
        )

    async def work() -> list[Added]:
        async with build(settings, take_over=False) as server:
            return await server.registration.add_all(what, name, credential, sign_in=wish)

    results = asyncio.run(work())
    added: list[dict[str, Any]] = []
    for result in results:
        if result.agent is not None:
            names = [capability.name for capability in result.agent.capabilities]
            added.append({"name": result.name, "id": result.agent.id, "capabilities": names})
            if not options.json:
                print(f"Added {result.agent.id}: {', '.join(names) or 'no capabilities'}")
        elif result.error is not None:
            added.append({"name": result.name, "error": result.error.to_dict()})
            if not options.json:
                print_error(f"{result.name}: {result.error.message}")
    if options.json:
        print_json({"added": added})
    if all(result.error is not None for result in results):
        sys.exit(exit_code(type(results[0].error)) if results and results[0].error is not None else 1)


def remove(agent: str, *, options: DatabaseOptions = DatabaseOptions()) -> None:  # noqa: B008 - frozen
    """Remove an agent that was added.

    Parameters
    ----------
    agent:
        Its id, as agent3 search prints it.
    """
    settings = load_database_settings(options)

    async def work() -> None:
        async with build(settings, take_over=False) as server:
            await server.registration.remove(agent)

    asyncio.run(work())
    if options.json:
        print_json({"removed": agent})
    else:
        print(f"Removed {agent}.")
