"""``agent3 add`` and ``agent3 remove``: agents in the directory. A running gateway sees the change at once."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from agent3.cli.agents import print_changes
from agent3.cli.exit_codes import exit_code
from agent3.cli.gateway_client import Remote
from agent3.cli.options import find_server_elsewhere, load_database_settings
from agent3.cli.output import ask, confirm, make_console, print_error
from agent3.client.announcement import find_running
from agent3.directory.stand_ins import Definition, replaced_agent
from agent3.errors import Agent3Error, AgentNotFound, Conflict, SetupError
from agent3.gateway.agent_book import describe_added
from agent3.gateway.pins import Approvals
from agent3.gateway.registration import Added
from agent3.identity.loopback_redirect import AtTerminal
from agent3.identity.secret_refs import references_in
from agent3.identity.sign_ins import SignInWish
from agent3.model import Agent
from agent3.protocols.mcp.client_files import find_files
from agent3.server.build import build
from agent3.settings import Settings
from agent3.terminal.options import DatabaseOptions
from agent3.terminal.output import clean, print_json, print_note, print_result

if TYPE_CHECKING:
    from rich.status import Status

__all__ = ["add", "approve", "remove"]

Client = Literal["claude-desktop", "claude-code", "cursor", "vscode"]
_QUIETLY = 10.0
"""Seconds between two progress lines where lines cannot be overwritten."""


@Parameter(name="*")
@dataclass(frozen=True)
class SignInOptions:
    """How to sign in to an added server."""

    client_id: str | None = None
    "Client id at the authorization server, if it does not register clients automatically."
    client_secret_ref: str | None = None
    "Where the secret of that client is: env:NAME."
    issuer: str | None = None
    "The authorization server that issued them, as https://…; they are sent nowhere else. Required for machine."
    wait: float = 300.0
    "Seconds to wait for you to sign in [default: 300]."


def add(
    what: str | None = None,
    *,
    name: str | None = None,
    credential: str | None = None,
    from_: Annotated[Client | None, Parameter(name="--from")] = None,
    era: Literal["auto", "modern", "legacy"] = "auto",
    sessions: Literal["caller", "shared"] = "caller",
    changes: Literal["pin", "trust", "ask"] | None = None,
    sign_in: bool | Literal["machine"] = False,
    yes: bool = False,
    signing: SignInOptions = SignInOptions(),  # noqa: B008 - frozen
    options: DatabaseOptions = DatabaseOptions(),  # noqa: B008 - frozen
) -> None:
    """Add an MCP server, an A2A agent, an OpenAPI service or a website.

    Parameters
    ----------
    what:
        An address (MCP server, A2A agent or card, OpenAPI document, NLWeb site, AI catalog), a command in quotes
        such as
        "npx some-server --flag", or a file (OpenAPI document, website interface, MCP client configuration,
        server.json, AI
        catalog). Write env:NAME in place of a secret.
    name:
        Name of the agent [default: its own].
    credential:
        Where its secret is: env:NAME, HEADER=env:NAME, or SCHEME=env:NAME for a scheme of an OpenAPI document.
    from_:
        Add the servers of this MCP client, from its usual configuration files.
    era:
        For an MCP server: which era of the protocol to speak, modern (2026-07-28) or legacy; auto detects it.
    sessions:
        For an MCP server: whether each caller gets its own session or process, or all share one.
    changes:
        What happens when its description changes: pin keeps serving the approved one until you approve, trust
        accepts the
        change, ask refuses calls until you approve [default: the setting calls.changes, which is pin].
    sign_in:
        Sign in with OAuth in your browser; "machine" signs in with a client secret and without a person.
    yes:
        Let it stand in for existing agents, if it declares that, without asking.
    """
    if (what is None) == (from_ is None):
        raise SetupError("Name what to add: an address, a command or a file; or use --from with the name of a client.")
    settings = load_database_settings(options)
    wish = None
    if sign_in:
        way: Literal["machine", "person"] = "machine" if sign_in == "machine" else "person"
        wish = SignInWish(way, AtTerminal(), signing.client_id, signing.client_secret_ref, signing.issuer, signing.wait)
    elif signing != SignInOptions():
        raise SetupError("--client-id, --client-secret-ref, --issuer and --wait need --sign-in.")
    choices: dict[str, str] = {} if era == "auto" else {"era": era}
    if sessions != "caller":
        choices["sessions"] = sessions
    sources = [str(what)] if from_ is None else [str(file) for file in find_files(from_)]
    progress = _Progress(options.json)
    # A file of a client may well name this gateway, which is then no mistake.
    in_file = from_ is not None or sources[0].lstrip().startswith("{") or Path(sources[0]).expanduser().is_file()

    def show(result: Added) -> None:
        progress.clear()
        if options.json:
            return
        if result.agent is not None:
            print(_added_text(result.agent))
        elif result.is_itself and in_file:
            print_error(f"{result.name} is this gateway itself; skipped.")
        elif result.error is not None:
            print_error(f"{result.name}: {result.error.message}")

    async def work() -> tuple[list[Added], int]:
        results = []
        async with build(settings, take_over=False) as server:
            server.registration.is_taken = partial(_is_shown, find_running(settings, own=True))
            for source in sources:
                results += await server.registration.add_all(
                    source,
                    name,
                    credential,
                    choices=choices,
                    changes=changes,
                    sign_in=wish,
                    on_progress=progress.tell,
                    on_added=show,
                )
            stored = await server.directory.everything()
        return results, sum(len(agent.capabilities) for agent in stored)

    results, capabilities = asyncio.run(work())
    added = [result.agent for result in results if result.agent is not None]
    failed = [result.error for result in results if result.error and not (in_file and result.is_itself)]
    missing = _ask_for_missing(settings, added)
    stand_ins = asyncio.run(_settle_stand_ins(settings, added, yes=yes, as_json=options.json))
    if options.json:
        print_json({"added": [_to_json(result, missing, stand_ins) for result in results]})
    else:
        if len(added) == 1 and added[0].capabilities:
            print(f"Try: {_example(added[0]) or f'agent3 show {quote(added[0].id)}'}")
        for reference, agents in missing.items():
            variable = reference.removeprefix("env:")
            print_error(
                f"The running gateway lacks {variable}, which {', '.join(agents)} needs, so calls will fail. "
                f"Set {variable} in the environment of the gateway, then restart it."
            )
        most = settings.server.direct_tools
        if capabilities - sum(len(agent.capabilities) for agent in added) <= most < capabilities:
            print_note(
                f"There are now {capabilities} capabilities, more than {most}. MCP clients see only the five "
                "tools at /mcp and find the rest with agent3_search; /agents/ID/mcp lists those of one "
                "agent (see server.direct_tools)."
            )
        if failed and len(results) > 1:
            print_error(f"{len(failed)} of {len(results)} were not added.")
    if failed:
        sys.exit(exit_code(type(failed[0])))


async def _is_shown(url: str | None, agent: str) -> bool:
    """Whether a running gateway shows an agent. A gateway that does not answer is not waited for."""
    try:
        return url is not None and bool(await asyncio.to_thread(Remote(url, timeout=5.0).show, agent))
    except Agent3Error:
        return False


class _Progress:
    """Reports slow steps on standard error: on one changing line at a terminal, otherwise on new lines."""

    def __init__(self, quiet: bool):
        self._quiet = quiet
        self._status: Status | None = None
        self._told = float("-inf")

    def tell(self, name: str, text: str) -> None:
        if self._quiet:
            return
        line = clean(text if name.startswith("stdio:") else f"{name}: {text}")
        if sys.stderr.isatty():
            if self._status is None:
                self._status = make_console(stderr=True).status(line)
                self._status.start()
            self._status.update(line)
        elif time.monotonic() - self._told >= _QUIETLY:
            self._told = time.monotonic()
            print_note(line)

    def clear(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None


def _added_text(agent: Agent) -> str:
    names = [capability.name for capability in agent.capabilities]
    return f"Added {agent.id}: {', '.join(names) or 'no capabilities'}"


async def _settle_stand_ins(
    settings: Settings, added: Sequence[Agent], *, yes: bool, as_json: bool
) -> list[tuple[Definition, bool]]:
    """Ask about each agent that an added one declares it can stand in for. Without confirmation it is not used."""
    websites = [agent.id for agent in added if replaced_agent(agent) is not None]
    if not websites:
        return []
    settled = []
    async with build(settings, take_over=False) as server:
        routes = server.directory.routes
        for one in await routes.find_pending(websites):
            ours, theirs = f"{one.agent}.{one.capability}", f"{one.by_agent}.{one.by_capability}"
            sure = yes or ask(f"{theirs} offers to stand in for {ours} when that is down. Allow it?", as_json)
            if sure:
                await routes.confirm(one)
            if not as_json and sure:
                print(clean(f"{theirs} stands in for {ours} when that is down."))
            elif not as_json:
                print_error(f"{theirs} does not stand in for {ours}. To allow it: agent3 route {ours} --also {theirs}")
            settled.append((one, sure))
    return settled


def _to_json(
    result: Added, missing: Mapping[str, list[str]], stand_ins: Sequence[tuple[Definition, bool]]
) -> dict[str, Any]:
    body = describe_added(result)
    if mine := [(one, sure) for one, sure in stand_ins if one.origin == body.get("id")]:
        body["standsInFor"] = [
            {
                "capability": f"{one.agent}.{one.capability}",
                "also": f"{one.by_agent}.{one.by_capability}",
                "confirmed": sure,
            }
            for one, sure in mine
        ]
    if lacking := [reference for reference, agents in missing.items() if body.get("id") in agents]:
        body["missing"] = lacking
    return body


def _ask_for_missing(settings: Settings, added: Sequence[Agent]) -> dict[str, list[str]]:
    """References of the added agents that the running gateway cannot resolve, as it reports."""
    if not any(references_in(route) for agent in added for one in agent.capabilities for route in one.routes):
        return {}
    if (url := find_running(settings, own=True)) is None:
        return {}
    gateway, found = Remote(url, timeout=5.0), dict[str, list[str]]()
    for agent in added:
        try:
            for reference in gateway.show(agent.id).get("missing") or ():
                found.setdefault(reference, []).append(agent.id)
        except Agent3Error as error:
            print_error(f"Cannot find out whether the running gateway has the secrets of {agent.id}: {error.message}")
    return found


def _example(agent: Agent) -> str | None:
    """An example call that is complete and changes nothing consequential; None if there is none."""
    # First what only reads, and of that what its author gives an example of: a made-up one may show an error.
    for capability in sorted(
        agent.capabilities, key=lambda one: (not one.hints.read_only, not (one.phrases or one.examples))
    ):
        if capability.hints.consequential:
            continue
        start = f"agent3 call {quote(agent.id)}"
        if phrase := next((one for one in capability.phrases if "{" not in one), None):
            return f"{start} {quote(phrase)}"
        given = next((one for one in capability.examples if isinstance(one, Mapping)), None)
        if given is None and capability.hints.read_only:  # what may act is not called with something made up
            given = _fill_required(capability.input_schema)
        if given is not None:
            named = "" if len(agent.capabilities) == 1 else f" --capability {quote(capability.name)}"
            return f"{start}{named} --input {quote(json.dumps(given, ensure_ascii=False))}"
    return None


def _fill_required(schema: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Input that satisfies a schema with values from the schema itself; None if it names none."""
    properties = (schema or {}).get("properties") or {}
    filled: dict[str, Any] = {}
    for name in (schema or {}).get("required") or ():
        known = properties.get(name)
        if not isinstance(known, Mapping):
            return None
        values = [known[key] for key in ("const", "default") if key in known]
        values += [*(known.get("examples") or ()), *(known.get("enum") or ())]
        if not values:
            return None
        filled[name] = values[0]
    return filled


def approve(agent: str, *, yes: bool = False, options: DatabaseOptions = DatabaseOptions()) -> None:  # noqa: B008
    """Approve the changed description of an agent, which then takes effect.

    Parameters
    ----------
    agent:
        Id of the agent, as printed by agent3 search.
    yes:
        Do not ask for confirmation.
    """
    if server := find_server_elsewhere(options):
        gateway = Remote(server)
        _approve(
            agent,
            lambda shown: gateway.changes(agent) if shown is None else gateway.approve_changes(agent, shown),
            yes=yes,
            as_json=options.json,
        )
        return
    settings = load_database_settings(options)

    async def work(shown: str | None) -> dict[str, Any]:
        async with build(settings, take_over=False) as server:
            approvals = Approvals(server.directory)
            found = await approvals.changes(agent) if shown is None else await approvals.approve(agent, shown)
        if found is None:
            raise Conflict(f"{agent} has no change that waits for approval.")
        return found

    _approve(agent, lambda shown: asyncio.run(work(shown)), yes=yes, as_json=options.json)


def _approve(agent: str, work: Callable[[str | None], dict[str, Any]], *, yes: bool, as_json: bool) -> None:
    """Show the changes, ask, and approve what was shown. ``work`` gives the changes, and approves those of a hash."""
    found = work(None)
    if not yes:
        print_changes({**found, "id": agent})
        confirm(f"Approve this change of {agent}?", as_json)
    approved = work(found["hash"])
    print_result({"approved": agent, "hash": approved["hash"]}, as_json, lambda _: print(f"Approved {clean(agent)}."))


def remove(agent: str, *, options: DatabaseOptions = DatabaseOptions()) -> None:  # noqa: B008 - frozen
    """Remove an added agent.

    Parameters
    ----------
    agent:
        Id of the agent, as printed by agent3 search.
    """
    server = find_server_elsewhere(options)
    if server is not None:
        Remote(server).remove(agent)
    else:
        _remove(agent, load_database_settings(options))
    if options.json:
        print_json({"removed": agent})
    else:
        print(f"Removed {agent}.")


def _remove(agent: str, settings: Settings) -> None:
    async def work() -> None:
        async with build(settings, take_over=False) as server:
            try:
                await server.registration.remove(agent)
            except AgentNotFound as error:
                if await _is_shown(find_running(settings, own=True), agent):
                    error.message = (
                        f"{agent} was not added: the running gateway defines it in code. To refuse its "
                        f"calls: agent3 stop {quote(agent)}"
                    )
                raise

    asyncio.run(work())
