"""What commands print: agents, dead letters, checks and questions, for people."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # it takes its time, and a command that prints JSON has no use for it
    from rich.console import Console

__all__ = ["MOST", "agents", "backed_up", "checks", "clean", "letters", "page", "pretty", "restored", "to_choose"]

MOST = 50
"""Agents in one list."""


def to_choose(question: Mapping[str, Any]) -> str:
    """What can be said, where the question itself does not tell it."""
    from agent3.schema.coercion import choices

    some = [str(one) for one in choices(question.get("schema"))]
    return f" ({' / '.join(some)})" if any(one not in question["text"] for one in some) else ""


def agents(found: Mapping[str, Any]) -> None:
    from rich.table import Table

    if not found["agents"]:
        if found["query"]:
            print(f"No agent fits {found['query']!r}. agent3 list shows what there is.")
        else:
            print("No agent found. Start the gateway with agent3 serve --demo to have some to try.")
        return
    table = Table("agent", "what it does", "capabilities", "rating", box=None, pad_edge=False)
    for one in found["agents"]:
        names = ", ".join(capability["name"] for capability in one["capabilities"])
        table.add_row(one["id"] + _state(one), one["description"], names, str(one["rating"] or "-"))
    _console().print(table)
    if len(found["agents"]) == MOST:
        print(f"These are the first {MOST}. Use agent3 search to find others.")


def _state(agent: Mapping[str, Any]) -> str:
    """What keeps an agent from being called, in brackets."""
    status = agent.get("status", "active")
    return "" if status == "active" else f" ({status})"


def _console() -> Console:
    """What agents say of themselves is text, never markup; a pipe gets long lines, for tools that read by line."""
    from rich.console import Console

    return Console(markup=False, emoji=False, highlight=False, width=None if sys.stdout.isatty() else 1_000)


def page(body: Mapping[str, Any]) -> None:
    """An agent for people: what it is, how it was rated, what it can do and what it takes for that."""
    console = _console()
    rating = body["rating"]
    rated = f"rated {rating['mean']} by {rating['count']}" if rating["count"] else "not rated yet"
    facts = [f"version {body['version']}", body["provider"], body["status"], rated, *body["tags"]]
    console.print(clean(f"{body['name']} ({body['id']})"), style="bold")
    if body["description"]:
        console.print(clean(body["description"]))
    console.print(clean(", ".join(fact for fact in facts if fact)), style="dim")
    if signature := body.get("signature"):
        console.print(clean(_signature(signature)), style="dim")
    if signed := body.get("signIn"):
        console.print(_signed_in(signed), style="dim")
    for one in body["capabilities"]:
        _capability(console, one)
    if not body["capabilities"]:
        console.print("\nIt offers nothing that you can call.")
    if healed := body.get("heals"):
        _heals(console, healed)


def _heals(console: Console, healed: Sequence[Mapping[str, Any]]) -> None:
    """What was taken in place of selectors that did not fit; people accept it, or take it back."""
    console.print("\nHealed", style="bold")
    for one in healed:
        what = f"{one['selector']} -> {one['healed']} ({one['element']['role']} {one['element']['name']!r})"
        known = f"{one['state']}, score {one['score']:.2f}, {one['wins']} times"
        console.print(clean(f"  {one['id']}  {one['action']}: {what}: {known}"))
    console.print("  agent3 web heals accept ID and agent3 web heals revert ID decide.", style="dim")


def _signature(found: Mapping[str, Any]) -> str:
    """Whether the card is signed, and whether the signature holds: who relies on a card should see it."""
    why = f": {found['why']}" if found.get("why") else ""
    words = {
        "verified": f"card signed and verified, key {', '.join(one[:16] for one in found.get('keys') or ())}",
        "unverified": f"card signed, but not verified{why}",
        "invalid": f"card with a signature that does NOT hold{why}",
        "given": "card given by hand",
    }
    return words.get(str(found.get("status")), "card not signed")


def _signed_in(signed: Mapping[str, Any]) -> str:
    """Until when somebody is signed in; what renews its token by itself is so until it is taken back."""
    ends = "" if signed["until"] is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(signed["until"]))
    who = "signed in" if signed["way"] == "person" else "signed in as a machine"
    if signed["over"]:
        return f"was {who} until {ends}: sign in again with agent3 add ADDRESS --sign-in"
    until = f" until {ends}" if ends else ""
    return f"{who}{until}{', renewed by itself' if signed['renews'] and until else ''}"


def _capability(console: Console, one: Mapping[str, Any]) -> None:
    from rich.padding import Padding
    from rich.table import Table

    console.print(f"\n{clean(one['name'])}", style="bold")
    if one["description"]:
        console.print(Padding(clean(one["description"]), (0, 0, 0, 2), expand=False))
    schema = one["inputSchema"] or {}
    if not (properties := schema.get("properties")):
        return
    table = Table("parameter", "type", "required", "description", box=None, pad_edge=False)
    for name, definition in properties.items():
        known = definition if isinstance(definition, dict) else {}
        required = "required" if name in (schema.get("required") or ()) else _default(known)
        table.add_row(*(clean(cell) for cell in (name, _kind(known), required, str(known.get("description", "")))))
    console.print(Padding(table, (0, 0, 0, 2), expand=False))


def _kind(definition: Mapping[str, Any]) -> str:
    """The type of a parameter, in a word or a few."""
    if "enum" in definition:
        return " | ".join(json.dumps(one, ensure_ascii=False) for one in definition["enum"])
    if "const" in definition:
        return json.dumps(definition["const"], ensure_ascii=False)
    for choice in ("anyOf", "oneOf"):
        if choice in definition:
            return " | ".join(_kind(one) for one in definition[choice] if isinstance(one, dict))
    if "$ref" in definition:
        return str(definition["$ref"]).rpartition("/")[2]
    kind = definition.get("type", "any")
    if kind == "array" and isinstance(definition.get("items"), dict):
        return f"array of {_kind(definition['items'])}"
    return " | ".join(kind) if isinstance(kind, list) else str(kind)


def _default(definition: Mapping[str, Any]) -> str:
    if definition.get("default") is None:
        return "optional"
    return f"default {json.dumps(definition['default'], ensure_ascii=False)}"


def clean(text: str) -> str:
    """Text of a stranger without what would move the cursor or change the colours of the terminal."""
    return "".join(one if one.isprintable() or one == "\n" else " " for one in text)


def pretty(body: Mapping[str, Any]) -> None:
    print(json.dumps(body, indent=2, ensure_ascii=False))


def checks(report: Mapping[str, Any]) -> None:
    marks = {"ok": "ok  ", "warn": "warn", "fail": "FAIL"}
    for one in report["checks"]:
        print(f"{marks[one['state']]}  {one['name']}: {one['detail']}")
        if one["remedy"]:
            print(f"      {one['remedy']}")


def letters(body: Mapping[str, Any]) -> None:
    from rich.table import Table

    if not body["letters"]:
        print("No dead letters.")
        return
    table = Table("letter", "when", "what", "code", "attempts", "why", box=None, pad_edge=False)
    for one in body["letters"]:
        what = f"{one['agent']}/{one['capability']}" if "agent" in one else one["place"]
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(one["at"]))
        code = one["code"] + (" (replayed)" if one["replayed"] else "")
        table.add_row(one["id"], when, clean(what), code, str(one["attempts"]), clean(one["message"]))
    _console().print(table)


def backed_up(body: Mapping[str, Any]) -> None:
    print(
        f"{body['file']}: a database of {body['size']:,} bytes and {body['blobs']} large results, read back and whole."
    )
    if body["missing"]:
        print(f"{len(body['missing'])} large results were gone or damaged, and are not in it.", file=sys.stderr)


def restored(body: Mapping[str, Any]) -> None:
    made = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(body["at"]))
    print(f"{body['database']} is now the backup of {made}.")
    if body["aside"]:
        print(f"What was there before lies in {body['aside']}. Delete it when you need it no more.")
