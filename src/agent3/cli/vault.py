"""``agent3 vault``: secrets for agents, encrypted in the database of the settings. A gateway may be running."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from getpass import getpass
from typing import Annotated, Any, TypeVar

from cyclopts import App, Parameter

from agent3.calls.outbox import rewrap_waiting
from agent3.cli.options import load_database_settings
from agent3.cli.output import confirm, make_console, make_table
from agent3.env import REAL
from agent3.errors import SetupError
from agent3.identity.kept_secrets import KeptSecrets, VaultEntry, vault_reference
from agent3.identity.key_rotation import Rewrapped, rewrap_all
from agent3.identity.master_keys import MasterKeys
from agent3.identity.secret_box import key_id
from agent3.identity.secrets import EnvironmentVault
from agent3.settings import database_url
from agent3.storage import Database
from agent3.terminal.database_work import run_on_database
from agent3.terminal.options import DatabaseOptions
from agent3.terminal.output import clean, print_note, print_result

__all__ = ["app", "read_secret"]

T = TypeVar("T")
_PASSES = 20

app = App(name="vault", help="Secrets for agents, encrypted in the database.")


@app.command(name="set")
def set_(
    name: str,
    *value: Annotated[str, Parameter(show=False)],
    options: DatabaseOptions = DatabaseOptions(),  # noqa: B008 - frozen
) -> None:
    """Store a secret in the vault. The value is typed or read from standard input, never from the command line.

    Agents refer to it as vault:NAME, wherever env:NAME is allowed. Gateways use the new value from the next call on.

    Parameters
    ----------
    name:
        Letters, digits, dots, underscores and hyphens.
    """
    vault_reference(name)
    if value:  # taken here, since the parser would show it
        raise SetupError(
            "Others can see a secret on the command line, so it was not stored. Change it, then pass the "
            f"new one on standard input: agent3 vault set {name} < FILE"
        )
    secret = read_secret(f"Value of {name}: ")
    is_new = _run(options, lambda kept, _: kept.set(name, secret))
    print_result(
        {"name": name, "reference": f"vault:{name}", "new": is_new},
        options.json,
        lambda body: print_note(
            f"{name} was {('stored' if is_new else 'replaced')}. Refer to it as {body['reference']}."
        ),
    )


@app.command(name="list")
def list_(*, options: DatabaseOptions = DatabaseOptions()) -> None:  # noqa: B008 - frozen
    """List the names of secrets, and which users are logged in to which agents. Values are never shown."""

    async def work(kept: KeptSecrets, database: Database) -> tuple[list[VaultEntry], list[dict[str, Any]]]:
        rows = await database.all("SELECT principal, agent, reference, created FROM logins ORDER BY agent, principal")
        how = {"oauth": "sign-in", "kept": "secret"}
        logins = [
            {
                "agent": row["agent"],
                "user": row["principal"],
                "by": how.get(row["reference"].partition(":")[0], "reference"),
                "since": row["created"],
            }
            for row in rows
        ]
        return await kept.list(), logins

    entries, logins = _run(options, work)
    secrets = [{"name": one.name, "changed": one.changed, "masterKey": one.key} for one in entries]
    print_result({"secrets": secrets, "logins": logins}, options.json, _print_list)


def _print_list(found: dict[str, Any]) -> None:
    if not found["secrets"] and not found["logins"]:
        print("The vault is empty. To store a secret: agent3 vault set NAME")
        return
    console = make_console()
    if found["secrets"]:
        table = make_table("secret", "changed", "master key")
        for one in found["secrets"]:
            table.add_row(clean(one["name"]), _show(one["changed"]), one["masterKey"] or "-")
        console.print(table)
    if found["logins"]:
        table = make_table("agent", "user", "by", "since")
        for one in found["logins"]:
            table.add_row(clean(one["agent"]), clean(one["user"]), one["by"], _show(one["since"]))
        console.print(table)


@app.command
def remove(name: str, *, yes: bool = False, options: DatabaseOptions = DatabaseOptions()) -> None:  # noqa: B008
    """Delete a secret from the vault. Calls of agents that refer to it then fail.

    Parameters
    ----------
    name:
        Name of the secret, as printed by agent3 vault list.
    yes:
        Do not ask for confirmation.
    """
    if not yes:
        confirm(f"Delete the secret {name}?", options.json)
    _run(options, lambda kept, _: kept.remove(name))
    print_result({"name": name, "removed": True}, options.json, lambda _: print(clean(f"{name} was removed.")))


@app.command
def rotate(*, drop_former: bool = False, options: DatabaseOptions = DatabaseOptions()) -> None:  # noqa: B008 - frozen
    """Replace the master key and encrypt everything under the new one. The gateway may keep running.

    If the key is in a file, such as the one beside the embedded database, this puts a new key before the others, which
    stay there: they open the backups that were made under them. If the key is in the environment or the keyring, put a
    new key before the old one, separated by a space, restart the gateways, run this, and remove the old key when no
    backup needs it.

    Parameters
    ----------
    drop_former:
        Make no new key, and remove the former ones from the file. Backups that were made under them cannot be opened
        any more.
    """
    settings = load_database_settings(options)
    master_keys = MasterKeys(settings.storage.seal, database_url(settings), EnvironmentVault())
    has_file = master_keys.file is not None

    async def work(database: Database) -> dict[str, Any]:
        if drop_former and not has_file:
            raise SetupError(
                f"--drop-former removes keys from a file only. Remove the former ones from {settings.storage.seal}, "
                "and restart the gateways."
            )
        if has_file and not drop_former:
            master_keys.add()
        keys = await master_keys.keys()
        if len(keys) < 2:
            raise SetupError(
                "There are no former master keys to drop."
                if drop_former
                else f"There is only one master key. Put a new one before it in {settings.storage.seal}, "
                "separated by a space, restart the gateways, and run this again."
            )
        changed, found = 0, Rewrapped()
        for _ in range(_PASSES):  # a gateway may have sealed something with the old key a moment ago
            found = await rewrap_all(database, keys, REAL)
            waiting = await rewrap_waiting(database, keys, REAL)
            changed += found.done + waiting
            if not found.done and not waiting:
                break
            await asyncio.sleep(0.2)
        if drop_former:
            master_keys.drop_former()
            keys = await master_keys.keys()
        return {
            "masterKey": key_id(keys[0]),
            "changed": changed,
            "others": found.others,
            "formerKeys": len(keys) - 1,
            "inFile": has_file,
        }

    result = run_on_database(settings, work)
    print_result(result, options.json, _print_rotated)


def _print_rotated(found: dict[str, Any]) -> None:
    print(f"{found['changed']} secrets are now encrypted under the master key {found['masterKey']}.")
    if found["others"]:
        print_note(
            f"{found['others']} are encrypted with none of the master keys: with a client's callback secret, "
            "or with a lost key."
        )
    if not found["formerKeys"]:
        print_note("The former keys were removed. Backups that were made under them cannot be opened any more.")
    elif found["inFile"]:
        print_note(
            f"Former keys in the file: {found['formerKeys']}. They open earlier backups; if a key has become known, "
            "or no backup needs it any more: agent3 vault rotate --drop-former"
        )
    else:
        print_note(
            "The old key is no longer needed but for earlier backups. Keep it after the new one, or apart, for as "
            "long as you have them; then remove it and restart the gateways."
        )


def read_secret(question: str) -> str:
    """A secret: typed at a terminal without echo, otherwise all of standard input."""
    if sys.stdin.isatty():
        value = getpass(question, stream=sys.stderr)
    else:
        value = sys.stdin.read().removesuffix("\n").removesuffix("\r")
    if not value:
        raise SetupError("No value was given. Type it when asked, or pass it on standard input: … < FILE")
    return value


def _run(options: DatabaseOptions, work: Callable[[KeptSecrets, Database], Awaitable[T]]) -> T:
    settings = load_database_settings(options)
    plain = EnvironmentVault()
    master_keys = MasterKeys(settings.storage.seal, database_url(settings), plain)
    return run_on_database(settings, lambda database: work(KeptSecrets(database, plain, master_keys, REAL), database))


def _show(moment: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(moment))
