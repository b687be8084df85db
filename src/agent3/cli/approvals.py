"""``agent3 approvals``: calls that wait for approval, at a running gateway or on the database of the settings."""

from __future__ import annotations

import json
import time
from typing import Any

from cyclopts import App

from agent3.cli.options import GatewayOptions, connect
from agent3.cli.output import make_console, make_table
from agent3.terminal.output import clean, print_result

__all__ = ["app"]

app = App(name="approvals", help="Calls that wait for approval: list, show, approve, deny.")


@app.command(name="list")
def list_(
    *,
    all: bool = False,  # noqa: A002 - the option is called so
    limit: int = 50,
    options: GatewayOptions = GatewayOptions(),  # noqa: B008 - frozen
) -> None:
    """List the calls that wait for approval, oldest first.

    Parameters
    ----------
    all:
        Include decided and expired ones; newest first.
    limit:
        Maximum number, up to 1000 [default: 50].
    """
    found = connect(options).approvals(waiting=not all, limit=limit)
    print_result(found, options.json, _print_list)


@app.command
def show(approval: str, *, options: GatewayOptions = GatewayOptions()) -> None:  # noqa: B008 - frozen
    """Show an approval: caller, input, reason, and when it expires.

    Parameters
    ----------
    approval:
        Id of the approval, as printed by agent3 approvals list.
    """
    print_result(connect(options).approval(approval), options.json, _print_one)


@app.command
def approve(approval: str, *, reason: str = "", options: GatewayOptions = GatewayOptions()) -> None:  # noqa: B008
    """Approve the call, which then runs.

    Parameters
    ----------
    approval:
        Id of the approval.
    reason:
        Reason, for the record.
    """
    found = connect(options).decide(approval, approve=True, reason=reason)
    print_result(
        found, options.json, lambda one: print(clean(f"Approved: {one['agent']}.{one['capability']} continues."))
    )


@app.command
def deny(approval: str, *, reason: str = "", options: GatewayOptions = GatewayOptions()) -> None:  # noqa: B008
    """Deny the call. The caller is told the reason.

    Parameters
    ----------
    approval:
        Id of the approval.
    reason:
        Reason, for the caller and the record.
    """
    found = connect(options).decide(approval, approve=False, reason=reason)
    print_result(found, options.json, lambda one: print(clean(f"Denied: {one['agent']}.{one['capability']}.")))


def _print_list(found: dict[str, Any]) -> None:
    if not found["approvals"]:
        print("No calls that you may see wait for approval.")
        return
    table = make_table("approval", "who", "what", "why", "until", "status")
    for one in found["approvals"]:
        what = f"{one['agent']}.{one['capability']}"
        table.add_row(*map(clean, (one["id"], one["who"], what, one["why"], _show(one["until"]), one["status"])))
    make_console().print(table)


def _print_one(one: dict[str, Any]) -> None:
    lines = {
        "approval": one["id"],
        "status": one["status"],
        "who": one["who"],
        "what": f"{one['agent']}.{one['capability']}",
        "input": json.dumps(one["input"], ensure_ascii=False) if "input" in one else None,
        "message": json.dumps(one["message"], ensure_ascii=False) if "message" in one else None,
        "files": json.dumps(one["files"], ensure_ascii=False) if "files" in one else None,
        "why": one["why"],
        "asked": _show(one["asked"]),
        "until": _show(one["until"]),
        "job": one["job"],
        "decided by": one["decidedBy"],
        "reason": one["reason"],
    }
    for name, value in lines.items():
        if value is not None:
            print(clean(f"{name:<11} {value}"))


def _show(moment: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(moment))
