"""``agent3 calls`` and ``agent3 price``: the calls that were made, their results and costs; and prices."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from cyclopts import App, Parameter

from agent3.cli.dead_letters import parse_moment
from agent3.cli.gateway_client import Gateway
from agent3.cli.options import GatewayOptions, connect
from agent3.cli.output import make_console, make_table
from agent3.errors import AgentNotFound, CapabilityNotFound, SetupError, ValidationError
from agent3.terminal.output import clean, print_json, print_note, print_result

__all__ = ["app", "price"]

_PAGE = 1_000
_LOOK = 1.0
"""Seconds between two polls of ``tail``."""

app = App(name="calls")


@Parameter(name="*")
@dataclass(frozen=True)
class Filters:
    """Which calls."""

    agent: str | None = None
    "Only calls of this agent."
    capability: str | None = None
    "Only calls of this capability."
    caller: str | None = None
    "Only calls of this client."
    status: str | None = None
    "Only calls with this status: done, failed, needs, working, denied, refused (includes denied) or canceled."
    code: str | None = None
    "Only calls that failed with this code, such as timeout."
    protocol: str | None = None
    "Only calls over this protocol: mcp, a2a, nlweb or local."
    door: str | None = None
    "Only calls through this door, such as mcp or rest."
    min_seconds: float | None = None
    "Only calls that took at least this long."
    trace: str | None = None
    "Only calls of this trace."
    job: str | None = None
    "Only the turns of this job."

    def query(self, **more: Any) -> dict[str, str]:
        """As the gateway accepts it."""
        given = {name.replace("_", "-"): value for name, value in vars(self).items()} | more
        return {name: str(value) for name, value in given.items() if value is not None}


@app.command(name="list")
def list_(
    *,
    filters: Filters = Filters(),  # noqa: B008 - frozen
    since: str | None = None,
    until: str | None = None,
    limit: int = 50,
    cursor: str | None = None,
    options: GatewayOptions = GatewayOptions(),  # noqa: B008 - frozen
) -> None:
    """List calls, newest first.

    Parameters
    ----------
    since:
        Only calls after this time: 2h, 7d, or a date such as 2026-01-31.
    until:
        Only calls before this time.
    limit:
        Maximum number, up to 1000 [default: 50].
    cursor:
        Continue after the page that printed this cursor.
    """
    query = filters.query(since=_moment(since), until=_moment(until), limit=limit, cursor=cursor)
    print_result(connect(options).calls(query), options.json, _print_page)


@app.command
def show(call: str, *, options: GatewayOptions = GatewayOptions()) -> None:  # noqa: B008 - frozen
    """Show everything recorded about a call, with all its turns.

    Parameters
    ----------
    call:
        Id of the call, as printed by agent3 calls list, or of a job.
    """
    print_result(connect(options).record(call), options.json, _print_record)


@app.command(name="open")
def open_(*, limit: int = 50, options: GatewayOptions = GatewayOptions()) -> None:  # noqa: B008 - frozen
    """List the jobs that are working or wait for an answer. End one with agent3 cancel; operators can end any.

    Parameters
    ----------
    limit:
        Maximum number, up to 1000 [default: 50].
    """
    print_result(connect(options).open_jobs(limit), options.json, _print_open)


def _print_open(found: Mapping[str, Any]) -> None:
    if not found["jobs"]:
        print("No job is open.")
        return
    table = make_table("job", "since", "caller", "what", "status")
    for job in found["jobs"]:
        what = clean(f"{job['agent']}/{job['capability']}")
        table.add_row(job["id"], _when({"at": job["created"]}), clean(job["caller"]), what, job["status"])
    make_console().print(table)


@app.command
def stats(
    *,
    by: str = "agent",
    agent: str | None = None,
    capability: str | None = None,
    caller: str | None = None,
    since: str | None = None,
    until: str | None = None,
    limit: int = 100,
    options: GatewayOptions = GatewayOptions(),  # noqa: B008 - frozen
) -> None:
    """Count calls, failures, durations, tokens and cost.

    Parameters
    ----------
    by:
        Group by agent, capability, caller or day, or several separated by commas [default: agent].
    agent:
        Only calls of this agent.
    capability:
        Only calls of this capability.
    caller:
        Only calls of this client.
    since:
        From the hour of this time on: 2h, 7d, or a date [default: 7d].
    until:
        Up to the hour of this time.
    limit:
        Maximum number of groups, up to 1000 [default: 100].
    """
    given: dict[str, object] = {"by": by, "agent": agent, "capability": capability, "caller": caller, "limit": limit}
    given |= {"since": _moment(since), "until": _moment(until)}
    found = connect(options).stats({name: str(value) for name, value in given.items() if value is not None})
    print_result(found, options.json, _print_statistics)


@app.command
def tail(
    *,
    filters: Filters = Filters(),  # noqa: B008 - frozen
    options: GatewayOptions = GatewayOptions(),  # noqa: B008 - frozen
) -> None:
    """Follow calls as they end, until interrupted. With --json, one object per line."""
    gateway = connect(options)
    page = gateway.calls(filters.query(follow="true"))
    print_note(f"Following the calls of {gateway.where}. Press Ctrl+C to stop.")
    while True:
        page = gateway.calls(filters.query(follow="true", cursor=page["next"], limit=_PAGE))
        for call in page["calls"]:
            if options.json:
                print_json(call)
            else:
                print(_line(call))
        if len(page["calls"]) < _PAGE:
            time.sleep(_LOOK)


@app.command
def export(
    file: Path | None = None,
    *,
    filters: Filters = Filters(),  # noqa: B008 - frozen
    since: str | None = None,
    until: str | None = None,
    format: Literal["csv", "json"] | None = None,  # noqa: A002 - the option is called so
    force: bool = False,
    options: GatewayOptions = GatewayOptions(),  # noqa: B008 - frozen
) -> None:
    """Export calls to a file, newest first: CSV, or JSON with one object per line.

    Parameters
    ----------
    file:
        File to write [default: standard output].
    since:
        Only calls after this time: 2h, 7d, or a date such as 2026-01-31.
    until:
        Only calls before this time.
    format:
        csv or json [default: from the file name].
    force:
        Overwrite an existing file.
    """
    from agent3.gateway.reports import to_csv

    form = format or ("json" if file is not None and file.suffix in (".json", ".jsonl", ".ndjson") else "csv")
    gateway = connect(options)
    if file is not None and file.exists() and not force:
        raise ValidationError(f"{file} already exists. Add --force to overwrite it.")
    try:
        out = sys.stdout if file is None else file.open("w", encoding="utf-8", newline="")
    except OSError as error:
        raise SetupError(f"Cannot write {file}: {error.strerror}.") from None
    count, cursor = 0, None
    try:
        while True:
            query = filters.query(since=_moment(since), until=_moment(until), limit=_PAGE, cursor=cursor)
            page = gateway.calls(query)
            if form == "csv":
                out.write(to_csv(page["calls"], head=not count and cursor is None))
            else:
                out.writelines(json.dumps(call, ensure_ascii=False) + "\n" for call in page["calls"])
            count, cursor = count + len(page["calls"]), page["next"]
            if cursor is None:
                break
    finally:
        if out is not sys.stdout:
            out.close()
    if file is None:
        print_note(f"{count} calls.")
    else:
        print_result({"file": str(file), "calls": count}, options.json, lambda body: print_note(f"{count} calls."))


def price(
    what: str,
    *,
    call: float | None = None,
    second: float | None = None,
    tokens: float | None = None,
    unset: bool = False,
    options: GatewayOptions = GatewayOptions(),  # noqa: B008 - frozen
) -> None:
    """Set the price of an agent's calls, in US dollars.

    Parameters
    ----------
    what:
        An agent, or AGENT.CAPABILITY for one capability.
    call:
        Price per call.
    second:
        Price per second until the answer.
    tokens:
        Price per 1000 tokens.
    unset:
        Remove the price.
    """
    given = {
        name: value for name, value in (("call", call), ("second", second), ("tokens", tokens)) if value is not None
    }
    if unset == bool(given):
        raise ValidationError("Give --call, --second or --tokens, or --unset to remove the price.")
    gateway = connect(options)
    agent, capability = _find_priced(gateway, what)
    body: dict[str, Any] = {"agentId": agent, "price": None if unset else given}
    found = gateway.price(body | ({"capability": capability} if capability else {}))
    print_result(found, options.json, lambda found: _print_prices(found, what if unset else None))


def _find_priced(gateway: Gateway, what: str) -> tuple[str, str | None]:
    """The agent and the capability. Ids may contain dots: the first prefix that is an agent wins."""
    for place in (len(what), *(number for number in range(len(what) - 1, 0, -1) if what[number] == ".")):
        try:
            shown = gateway.show(what[:place])
        except AgentNotFound:
            continue
        name = what[place + 1 :]
        if name and name not in [capability["name"] for capability in shown["capabilities"]]:
            raise CapabilityNotFound(
                f"Agent {what[:place]!r} has no capability {name!r}. See agent3 show {what[:place]}."
            )
        return what[:place], name or None
    raise AgentNotFound(f"Unknown agent {what!r}. See agent3 list.")


def _moment(text: str | None) -> float | None:
    return None if text is None else parse_moment(text, time.time())


def _print_page(page: Mapping[str, Any]) -> None:
    if not page["calls"] and page["next"] is None:
        print("No calls match.")
        return
    table = make_table("call", "when", "caller", "what", "result", "seconds", "cost")
    for call in page["calls"]:
        result = call["status"] + (f": {call['code']}" if call["code"] else "")
        what = clean(f"{call['agent']}/{call['capability']}")
        caller = clean(call["caller"] or "")
        table.add_row(call["id"], _when(call), caller, what, result, f"{call['seconds']:.3f}", _dollars(call))
    make_console().print(table)
    if page["next"] is not None:
        print(f"More: --cursor {page['next']}")


def _print_record(record: Mapping[str, Any]) -> None:
    console = make_console()
    for turn in record["turns"]:
        console.print(
            clean(f"{turn['agent']}/{turn['capability']}, turn {turn['turn']}: {turn['status']}"), style="bold"
        )
        for name, value in turn.items():
            if value is not None and name not in ("agent", "capability", "turn", "status", "body"):
                shown = _when(turn) if name == "at" else f"{value:.3f}" if name == "seconds" else value
                console.print(clean(f"  {name}: {shown}"), markup=False)
        for name, value in (turn.get("body") or {}).items():
            if value is not None and name != "kind":
                console.print(clean(f"  {name}: {value}"), markup=False)


def _print_statistics(found: Mapping[str, Any]) -> None:
    if not found["statistics"]:
        print("No calls match.")
        return
    table = make_table(*found["by"], "calls", "failed", "refused", "p50 s", "p95 s", "tokens", "cost")
    for one in found["statistics"]:
        groups = [clean(str(one[name] or "(not found, or hidden)")) for name in found["by"]]
        times = [("-" if one[name] is None else f"{one[name]:.3g}") for name in ("p50", "p95")]
        counts = [str(one[name]) for name in ("calls", "failed", "refused")]
        table.add_row(*groups, *counts, *times, str(one["tokens"]), f"${one['cost']:.6g}")
    make_console().print(table)


def _print_prices(found: Mapping[str, Any], forgotten: str | None) -> None:
    if forgotten is not None:
        print(clean(f"{forgotten}: price removed."))
    for one in found["prices"]:
        what = f"{found['agent']}/{one['capability']}"
        print(
            clean(
                f"{what}: ${one['call']:g} per call, ${one['second']:g} per second, ${one['tokens']:g} per 1000 tokens"
            )
        )


def _line(call: Mapping[str, Any]) -> str:
    result = call["status"] + (f" {call['code']}: {call['message'] or ''}" if call["code"] else "")
    what = f"{call['caller']} {call['agent']}/{call['capability']}"
    return clean(f"{_when(call)} {call['id']} {what} {call['seconds']:.3f}s {_dollars(call)} {result}").replace(
        "\n", " "
    )


def _when(call: Mapping[str, Any]) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(call["at"]))


def _dollars(call: Mapping[str, Any]) -> str:
    return f"${call['cost'] or 0.0:.6g}{'~' if call['estimated'] and call['cost'] else ''}"
