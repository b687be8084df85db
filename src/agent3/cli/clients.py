"""``agent3 client``: who may call over the network, in the database of the settings. A gateway may be running."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypeVar

from cyclopts import App, Parameter

from agent3.cli.exit_codes import exit_code
from agent3.cli.options import load_database_settings
from agent3.cli.output import confirm, make_console, make_table
from agent3.env import REAL
from agent3.errors import AccessError, Conflict, NotFound, SetupError, ValidationError
from agent3.identity.clients import StoredClients
from agent3.identity.doorkeeper import principal_of
from agent3.model import LOCAL, Principal
from agent3.security.access import Access
from agent3.server.protocols import load_protocols
from agent3.settings import Settings
from agent3.storage import Database
from agent3.storage.notifications import News
from agent3.terminal.database_work import run_on_database
from agent3.terminal.options import DatabaseOptions
from agent3.terminal.output import clean, print_json, print_note, print_result

__all__ = ["app"]

T = TypeVar("T")
_SECONDS = {"m": 60.0, "h": 3_600.0, "d": 86_400.0}

app = App(name="client", help="Clients that may call over the network, and their keys.")


@app.command
def add(
    client: str,
    *surplus: Annotated[str, Parameter(show=False)],
    scope: Annotated[tuple[str, ...], Parameter(consume_multiple=True)] = (),
    tenant: str | None = None,
    options: DatabaseOptions = DatabaseOptions(),  # noqa: B008 - frozen
) -> None:
    """Add a client and print its key. The key is shown only once; only its hash is stored.

    Parameters
    ----------
    client:
        Id of the client, used in rules, limits and the ledger.
    scope:
        Scopes that rules can require; agent3:operate makes it an operator.
    tenant:
        Tenant of the client.
    """
    if surplus:  # taken here, since the parser would show it
        raise SetupError(
            "agent3 client add takes only a name and creates the key itself. Nothing was stored. If the "
            "extra argument is a secret, change it: others can see the command line."
        )
    settings = load_database_settings(options)
    if any(one.id == client for one in settings.clients):
        raise Conflict(f"Client {client!r} already exists in agent3.toml. Choose another id, or edit the file.")

    async def work(clients: StoredClients) -> tuple[str, int]:
        return await clients.add(client, scope, tenant), clients.count

    key, count = _run(settings, work)
    if options.json:
        print_json({"id": client, "key": key, "scopes": list(scope), "tenant": tenant})
        return
    print(key)
    print_note(f"This is the key of {client}. It is not shown again; agent3 client rotate {client} makes a new one.")
    if count == 1 and not settings.clients and not settings.oauth.issuers:
        print_note(
            "This is the first client. From now on every caller needs a key, also on this machine: set "
            "AGENT3_KEY for the command line."
        )


@app.command(name="list")
def list_(*, options: DatabaseOptions = DatabaseOptions()) -> None:  # noqa: B008 - frozen
    """List all clients, including those in agent3.toml. Keys are never shown."""
    settings = load_database_settings(options)
    stored = _run(settings, lambda clients: clients.list())
    listed = [
        {"id": one.id, "scopes": list(one.scopes), "tenant": one.tenant or None, "from": "settings", "keys": []}
        for one in settings.clients
    ]
    found = [*listed, *({**one, "from": "database"} for one in stored)]
    print_result({"clients": found}, options.json, _print_clients)


def _print_clients(found: dict[str, Any]) -> None:
    if not found["clients"]:
        print(
            "No clients: only callers on this machine are accepted, without a key. To add one: agent3 client add NAME"
        )
        return
    table = make_table("client", "scopes", "tenant", "keys", "from")
    for one in found["clients"]:
        ends = [
            f"until {_show(key['expires'])}" if key["expires"] else f"of {_show(key['created'])}" for key in one["keys"]
        ]
        state = " (stopped)" if one.get("stopped") else ""
        cells = (
            one["id"] + state,
            " ".join(one["scopes"]) or "-",
            one["tenant"] or "-",
            ", ".join(ends) or "-",
            one["from"],
        )
        table.add_row(*map(clean, cells))
    make_console().print(table)


@app.command
def rotate(client: str, *, overlap: str = "1d", options: DatabaseOptions = DatabaseOptions()) -> None:  # noqa: B008
    """Make a new key for a client and print it. The old key stays valid for a while.

    Parameters
    ----------
    client:
        Id of the client.
    overlap:
        How long the old key stays valid: 30m, 12h, 7d, or 0 to end it at once [default: 1d].
    """
    seconds = _parse_overlap(overlap)
    key, until = _run(load_database_settings(options), lambda clients: clients.rotate(client, seconds))
    if options.json:
        print_json({"id": client, "key": key, "oldKeyEnds": until})
        return
    print(key)
    print_note(f"The old key is valid until {_show(until)}." if until else "The old key is no longer valid.")


@app.command
def scopes(
    client: str,
    *,
    scope: Annotated[tuple[str, ...], Parameter(consume_multiple=True)] = (),
    options: DatabaseOptions = DatabaseOptions(),  # noqa: B008 - frozen
) -> None:
    """Replace the scopes of a client. Its keys stay valid; running gateways follow at once.

    Parameters
    ----------
    client:
        Id of the client.
    scope:
        Scopes that rules can require; none removes all. agent3:operate makes it an operator.
    """
    _run(load_database_settings(options), lambda clients: clients.set_scopes(client, scope))
    print_result(
        {"id": client, "scopes": list(scope)},
        options.json,
        lambda _: print(
            clean(f"{client} now has the scopes {', '.join(scope)}." if scope else f"{client} now has no scopes.")
        ),
    )


@app.command
def stop(client: str, *, options: DatabaseOptions = DatabaseOptions()) -> None:  # noqa: B008 - frozen
    """Refuse all requests of a client from now on. Its keys are kept.

    Parameters
    ----------
    client:
        Id of the client.
    """
    _run(load_database_settings(options), lambda clients: clients.stop(client))
    print_result({"id": client, "stopped": True}, options.json, lambda _: print(clean(f"{client} is stopped.")))


@app.command
def start(client: str, *, options: DatabaseOptions = DatabaseOptions()) -> None:  # noqa: B008 - frozen
    """Accept a stopped client again.

    Parameters
    ----------
    client:
        Id of the client.
    """
    _run(load_database_settings(options), lambda clients: clients.stop(client, stopped=False))
    print_result({"id": client, "stopped": False}, options.json, lambda _: print(clean(f"{client} may call again.")))


@app.command
def remove(client: str, *, yes: bool = False, options: DatabaseOptions = DatabaseOptions()) -> None:  # noqa: B008
    """Remove a client and its keys. Its calls stay in the ledger.

    Parameters
    ----------
    client:
        Id of the client.
    yes:
        Do not ask for confirmation.
    """
    if not yes:
        confirm(f"Remove the client {client} and its keys?", options.json)
    _run(load_database_settings(options), lambda clients: clients.remove(client))
    print_result({"id": client, "removed": True}, options.json, lambda _: print(clean(f"{client} was removed.")))


@app.command
def can(
    client: str,
    what: str,
    *,
    protocol: str | None = None,
    options: DatabaseOptions = DatabaseOptions(),  # noqa: B008
) -> None:
    """Check whether the rules let a client call something, and show which rule decides. Exits with 4 if not.

    Parameters
    ----------
    client:
        Id of the client; local for the person at this machine.
    what:
        AGENT or AGENT.CAPABILITY.
    protocol:
        Only over this protocol: local, mcp, a2a, openapi or nlweb [default: each of them].
    """
    settings = load_database_settings(options)
    principal = _find(settings, client)
    agent, _, capability = what.partition(".")
    access = Access(settings.rules, settings.access.default)
    verdicts = [
        {
            "protocol": one,
            "allowed": access.allows(principal, agent, capability or "*", one),
            "why": access.explain(principal, agent, capability or "*", one),
        }
        for one in ([protocol] if protocol else [kind.name for kind in load_protocols()])
    ]
    allowed = any(one["allowed"] for one in verdicts)
    print_result(
        {"client": client, "what": what, "allowed": allowed, "verdicts": verdicts}, options.json, _print_verdicts
    )
    if not allowed:
        sys.exit(exit_code(AccessError))


def _print_verdicts(found: dict[str, Any]) -> None:
    said: dict[tuple[bool, str], list[str]] = {(one["allowed"], one["why"]): [] for one in found["verdicts"]}
    for one in found["verdicts"]:
        said[one["allowed"], one["why"]].append(one["protocol"])
    for (allowed, why), protocols in said.items():
        where = "" if len(said) == 1 else f" over {', '.join(protocols)}"
        print(clean(f"{'yes' if allowed else 'no'}{where}: {why}."))


def _find(settings: Settings, client: str) -> Principal:
    if client == LOCAL.id:
        return LOCAL
    for one in settings.clients:
        if one.id == client:
            return principal_of(one)
    try:
        return _run(settings, lambda clients: clients.get(client))
    except NotFound:
        if settings.oauth.issuers and "@" in client:  # a subject of an issuer has the scopes of its token
            return Principal(client, "client")
        raise


def _run(settings: Settings, work: Callable[[StoredClients], Awaitable[T]]) -> T:
    """Do the work, then notify running gateways."""

    async def run(database: Database) -> T:
        news = News(database, REAL.id())
        try:
            return await work(StoredClients(database, REAL, news))
        finally:
            await news.aclose()

    return run_on_database(settings, run)


def _parse_overlap(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([mhd])|0", text)
    if found is None:
        raise ValidationError(f"--overlap {text!r} is not a duration. Write 30m, 12h, 7d or 0.")
    return float(found[1]) * _SECONDS[found[2]] if found[1] else 0.0


def _show(moment: float | None) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(moment))
