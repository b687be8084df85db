"""``agent3 audit``: verify or export the record of calls and changes."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

from cyclopts import App

from agent3.calls.audit import Broken, IsSigned, export_lines, read_lines, verify_database
from agent3.cli.options import load_database_settings
from agent3.env import REAL
from agent3.errors import SetupError, ValidationError
from agent3.identity.data_keys import open_stored
from agent3.identity.own_keys import OwnKey, is_signed_with, open_own_keys
from agent3.settings import database_url
from agent3.storage import Database
from agent3.terminal.options import DatabaseOptions
from agent3.terminal.output import clean, print_note, print_result

__all__ = ["app", "use_database"]

T = TypeVar("T")
app = App(name="audit")
_HEAD = re.compile(r"([1-9]\d{0,17}):([0-9a-f]{64})")


@app.command
def verify(
    *,
    file: Path | None = None,
    head: str | None = None,
    key: str | None = None,
    options: DatabaseOptions = DatabaseOptions(),  # noqa: B008 - frozen
) -> None:
    """Verify the chain of calls and changes. Names the first bad row, and exits with 1, if it is broken.

    Parameters
    ----------
    file:
        Verify this export instead of the database; works on any machine.
    head:
        A head printed by an earlier check, as NUMBER:LINK. It must still be in the chain.
    key:
        Id of the key that must have signed the export. Without it, the key named in the file is trusted.
    """
    named = _parse_head(head)
    try:
        if file is not None:
            report = _verify_file(file, named, key)
        else:
            if key is not None:
                raise ValidationError(
                    "--key applies to an export only. A database is verified with the gateway's own key."
                )

            async def check(database: Database, own: OwnKey | None) -> dict[str, Any]:
                return await verify_database(database, _know_keys([] if own is None else [own.jwk()], None), named)

            report = use_database(options, check)
    except Broken as broken:
        report = {"ok": False, "where": broken.where, "what": broken.what}
    print_result(report, options.json, _show)
    if not report["ok"]:
        sys.exit(1)


@app.command
def export(file: Path, *, force: bool = False, options: DatabaseOptions = DatabaseOptions()) -> None:  # noqa: B008 - frozen
    """Export the whole chain to a file. agent3 audit verify --file checks it on any machine.

    Parameters
    ----------
    file:
        File to write: one JSON object per line.
    force:
        Overwrite an existing file.
    """
    if file.exists() and not force:
        raise SetupError(f"{file} already exists. Choose another name, or add --force.")

    async def write(database: Database, own: OwnKey | None) -> dict[str, Any]:
        lines = 0
        draft = file.with_name(f".{file.name}.{os.getpid()}")
        try:
            with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as out:
                async for line in export_lines(database, [] if own is None else [own.jwk()]):
                    out.write(line + b"\n")
                    lines += 1
            draft.replace(file)
        finally:
            draft.unlink(missing_ok=True)
        return {"file": str(file), "lines": lines, "key": None if own is None else own.jwk()["kid"]}

    try:
        made = use_database(options, write)
    except OSError as error:
        raise SetupError(f"Cannot write {file}: {error}.") from None
    print_result(
        made, options.json, lambda body: print_note(f"{body['lines'] - 1} records and rows, key {body['key']}.")
    )


def use_database(options: DatabaseOptions, work: Callable[[Database, OwnKey | None], Awaitable[T]]) -> T:
    """Run something on the database of the settings, with the key that signs its audit, if it can be read."""
    settings = load_database_settings(options)
    url = database_url(settings)

    async def run() -> T:
        database = (await open_stored(settings, url=url)).database
        try:
            try:
                own: OwnKey | None = await open_own_keys(database, settings.storage.seal, url, REAL).key("audit")
            except SetupError as error:
                print_note(f"The audit key cannot be read, so signatures are neither checked nor made: {error.message}")
                own = None
            return await work(database, own)
        finally:
            await database.aclose()

    return asyncio.run(run())


def _verify_file(file: Path, head: tuple[int, str] | None, key: str | None) -> dict[str, Any]:
    try:
        with file.open("rb") as lines:
            found: dict[str, Any] = read_lines(lines, lambda keys: _know_keys(keys, key), head)
    except OSError as error:
        raise SetupError(f"Cannot read {file}: {error}.") from None
    if key is not None and found["unsigned_records"] == found["records"]:
        raise Broken(f"record {found['records']}", f"nothing is signed with key {key}")
    return found


def _know_keys(keys: list[Any], wanted: str | None) -> IsSigned:
    """Signatures by these public keys, or by one of them only."""
    known = {
        str(key["kid"]): key
        for key in keys
        if isinstance(key, dict) and _matches_id(key) and wanted in (None, key["kid"])
    }

    def is_signed(name: str, signature: bytes, content: bytes) -> bool | None:
        return is_signed_with(known[name], signature, content) if name in known else None

    return is_signed


def _matches_id(key: dict[str, Any]) -> bool:
    """Whether the id of a key is the hash of its content; otherwise another key could claim it."""
    return str(key.get("kid")) == f"audit-{str(key.get('x'))[:16]}"


def _parse_head(text: str | None) -> tuple[int, str] | None:
    if text is None:
        return None
    if (match := _HEAD.fullmatch(text)) is None:
        raise ValidationError("--head must be NUMBER:LINK, as printed by agent3 audit verify.")
    return int(match[1]), match[2]


def _show(report: dict[str, Any]) -> None:
    if not report["ok"]:
        print(f"BROKEN at {clean(report['where'])}: {clean(report['what'])}.")
        return
    print(
        f"The chain is intact: {report['records']} records, {report['rows']} rows of calls, {report['removed']} "
        "removed."
    )
    if report["unsigned_records"] or report["unsigned_rows"]:
        print(
            f"Not signed yet: {report['unsigned_records']} records, {report['unsigned_rows']} rows. "
            "Tampering with these is not detected if the links are recomputed."
        )
    if report["outside"]:
        print(f"Outside the chain: {report['outside']} rows written before it began.")
    for key in report["unknown_keys"]:
        print(f"Not checked: signatures with key {clean(key)}, which is not known here.")
    print(f"head {report['head']}")
