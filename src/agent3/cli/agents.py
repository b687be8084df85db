"""``agent3 search``, ``list`` and ``show``: the agents of a gateway."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from agent3.cli.options import GatewayOptions, connect
from agent3.cli.output import make_console, make_table, with_command_names
from agent3.model import Price, one_line
from agent3.terminal.output import clean, print_indented, print_note, print_result

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["list_agents", "print_agent", "print_changes", "search", "show", "type_text"]

_MARKS = {"read_only": "read-only", "consequential": "consequential"}
_WORDS = 160
"""Characters in one cell of a list; agent3 show prints the whole text."""
_LIMIT = 50
"""Agents in one list, the maximum of a search."""
_TOKENS = 50_000
"""A person may read as much as they asked for."""


def search(
    text: tuple[str, ...],
    *,
    limit: int = 10,
    detail: Literal["brief", "signature", "schema"] = "signature",
    agent: str | None = None,
    protocol: str | None = None,
    tag: str | None = None,
    provider: str | None = None,
    media_type: str | None = None,
    max_price: float | None = None,
    read_only: Annotated[bool | None, Parameter(negative="--no-read-only")] = None,
    options: GatewayOptions = GatewayOptions(),  # noqa: B008 - frozen
) -> None:
    """Search the capabilities of all agents.

    Parameters
    ----------
    text:
        What you need, in a few words.
    limit:
        Maximum number of results, up to 50 [default: 10].
    detail:
        How much of the input to show [default: signature].
    agent:
        Only capabilities of the agent with this id.
    protocol:
        Only capabilities reached over this protocol, such as mcp, a2a or nlweb.
    tag:
        Only capabilities with this tag.
    provider:
        Only agents of this provider.
    media_type:
        Only capabilities that accept or return this media type.
    max_price:
        Maximum price per call, in US dollars.
    read_only:
        Only capabilities that declare themselves read-only; --no-read-only for the others.
    """
    filters = {
        "agent": agent,
        "protocol": protocol,
        "tag": tag,
        "provider": provider,
        "mediaType": media_type,
        "maxPrice": max_price,
        "readOnly": read_only,
    }
    arguments: dict[str, Any] = {"query": " ".join(text), "limit": limit, "detail": detail, "maxTokens": _TOKENS}
    if given := {name: value for name, value in filters.items() if value is not None}:
        arguments["filters"] = given
    found = connect(options).search(arguments)
    print_result(found, options.json, lambda found: _print_hits(found, filtered=bool(given)))


def list_agents(*, options: GatewayOptions = GatewayOptions()) -> None:  # noqa: B008 - frozen
    """List all agents."""
    print_result(connect(options).list(), options.json, _print_agents)


def show(
    agent: str,
    *,
    card: bool = False,
    changes: bool = False,
    options: GatewayOptions = GatewayOptions(),  # noqa: B008 - frozen
) -> None:
    """Show an agent: its capabilities, schemas, prices and ratings.

    Parameters
    ----------
    agent:
        Id of the agent, as printed by agent3 search.
    card:
        Show the raw card instead.
    changes:
        Show the changes to its description that wait for approval.
    """
    gateway = connect(options)
    if changes:
        print_result(gateway.changes(agent), options.json, print_changes)
        return
    body = gateway.card(agent) if card else gateway.show(agent)
    print_result(body, options.json, print_indented if card else print_agent)


def print_changes(body: Mapping[str, Any]) -> None:
    """A change that waits for approval, one difference after the other."""
    name = clean(str(body["id"]))
    if body["hash"] is None:
        print(f"{name} has not changed since it was approved.")
        return
    since = time.strftime("%Y-%m-%d %H:%M", time.localtime(body["since"]))
    print(f"{name} is served as it was approved. Changed since {since}: {clean(str(body['why']))}.")
    for change in body["changes"]:
        print(f"\n{clean(change['path'])}")
        for sign, value in (("-", change["before"]), ("+", change["now"])):
            if value is not None:
                text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
                print("\n".join(f"  {sign} {line}" for line in clean(text).splitlines()))
    if body.get("more"):
        print(f"\nAnd {body['more']} more.")
    print(f"\nTo approve it: agent3 approve {name}")


def _print_hits(found: Mapping[str, Any], *, filtered: bool) -> None:
    if not found["agents"]:
        print(f"No match for {found['query']!r}. Try other words, or list all agents with agent3 list.")
        if filtered and "hint" in found:
            print(with_command_names(clean(found["hint"])))
        return
    if "hint" in found:
        print_note(with_command_names(clean(found["hint"])))
    table = make_table("agent", "capability", "what it does", "why", "rating")
    for hit in found["agents"]:
        name = hit["id"] if hit["status"] == "active" else f"{hit['id']} ({hit['status']})"
        called = hit.get("signature") or hit.get("capability") or ", ".join(hit.get("capabilities", ()))
        does = hit["description"] + (f" ({hit['price']})" if "price" in hit else "")
        if "inputSchema" in hit:
            does += "\n" + json.dumps(hit["inputSchema"], indent=2, ensure_ascii=False)
        rating = f"{hit['rating']['mean']} ({hit['rating']['count']})" if "rating" in hit else "-"
        table.add_row(name, called, does, hit.get("why", ""), rating)
    make_console().print(table)


def _print_agents(found: Mapping[str, Any]) -> None:
    if not found["agents"]:
        print("No agents. To try the demo agents, run agent3 serve --demo.")
        return
    table = make_table("agent", "what it does", "capabilities", "rating")
    for agent in found["agents"]:
        status = agent.get("status", "active")
        name = agent["id"] if status == "active" else f"{agent['id']} ({status})"
        capabilities = ", ".join(capability["name"] for capability in agent["capabilities"])
        # What others wrote about themselves can be of any length.
        told = one_line(agent["description"], _WORDS), one_line(capabilities, _WORDS)
        table.add_row(name, *told, str(agent["rating"] or "-"))
    make_console().print(table)
    if len(found["agents"]) == _LIMIT:
        print(f"Only the first {_LIMIT} are shown. Use agent3 search to find others.")


def print_agent(body: Mapping[str, Any]) -> None:
    """An agent for people: description, rating, and the parameters of each capability."""
    console = make_console()
    rating = body["rating"]
    rated = f"rated {rating['mean']} by {rating['count']}" if rating["count"] else "not rated yet"
    facts = [f"version {body['version']}", body["provider"], body["status"], rated, *body["tags"]]
    console.print(clean(f"{body['name']} ({body['id']})"), style="bold")
    if body["description"]:
        console.print(clean(body["description"]))
    console.print(clean(", ".join(fact for fact in facts if fact)), style="dim")
    if signature := body.get("signature"):
        # Whether the card is signed and the signature is valid, which decides how far the card can be trusted.
        why = f": {signature['why']}" if signature.get("why") else ""
        texts = {
            "verified": f"card signed and verified, key {', '.join(key[:16] for key in signature.get('keys') or ())}",
            "unverified": f"card signed, but not verified{why}",
            "invalid": f"card with an INVALID signature{why}",
            "given": "card given by the operator",
        }
        console.print(clean(texts.get(str(signature.get("status")), "card not signed")), style="dim")
    if mcp := body.get("mcp"):
        eras = " and ".join(mcp["eras"] or ())
        wanted = "" if mcp["era"] == "auto" else ", as chosen with --era"
        console.print(clean(f"MCP {mcp['protocolVersion']}, {eras or 'unknown'} era{wanted}"), style="dim")
    if pending := body.get("pending"):
        console.print(clean(f"A change waits for approval: {pending['why']}. See agent3 show {body['id']} --changes."))
    if sign_in := body.get("signIn"):
        console.print(_sign_in_text(sign_in), style="dim")
    if missing := body.get("missing"):
        console.print(
            f"The gateway lacks {', '.join(missing)}. Set it in the environment of the gateway, then restart the "
            "gateway."
        )
    for capability in body["capabilities"]:
        _print_capability(console, capability)
    if not body["capabilities"]:
        console.print("\nIt has no capability that you may call.")
    if heals := body.get("heals"):
        console.print("\nHealed", style="bold")
        for heal in heals:
            what = f"{heal['selector']} -> {heal['healed']} ({heal['element']['role']} {heal['element']['name']!r})"
            state = f"{heal['state']}, score {heal['score']:.2f}, {heal['wins']} times"
            console.print(clean(f"  {heal['id']}  {heal['action']}: {what}: {state}"))
        console.print("  To decide: agent3 web heals accept ID, or agent3 web heals revert ID.", style="dim")


def _sign_in_text(sign_in: Mapping[str, Any]) -> str:
    """When the sign-in expires. A sign-in without an end renews its own token until it is revoked."""
    ends = "" if sign_in["until"] is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(sign_in["until"]))
    state = "signed in" if sign_in["way"] == "person" else "signed in as a machine"
    if sign_in["over"]:
        return f"was {state} until {ends}: sign in again with agent3 add ADDRESS --sign-in"
    until = f" until {ends}" if ends else ""
    return f"{state}{until}{', renewed automatically' if sign_in['renews'] and until else ''}"


def _print_capability(console: Console, capability: Mapping[str, Any]) -> None:
    from rich.padding import Padding

    hints = capability.get("hints") or {}
    marks = [word for name, word in _MARKS.items() if hints.get(name)]
    if price := Price(**(capability.get("price") or {})).describe():
        marks.append(price)
    marked = f" ({', '.join(marks)})" if marks else ""
    console.print(clean(f"\n{capability['name']}{marked}"), style="bold")
    if capability["description"]:
        console.print(Padding(clean(capability["description"]), (0, 0, 0, 2), expand=False))
    for one in capability.get("routes") or ():
        state = "serves now" if one["serves"] else one["state"]
        console.print(clean(f"  route {one['agent']}.{one['capability']} ({one['protocol']}): {state}"), style="dim")
    schema = capability["inputSchema"] or {}
    if not (properties := schema.get("properties")):
        return
    table = make_table("parameter", "type", "required", "description")
    for name, definition in properties.items():
        known = definition if isinstance(definition, dict) else {}
        if name in (schema.get("required") or ()):
            required = "required"
        elif known.get("default") is None:
            required = "optional"
        else:
            required = f"default {json.dumps(known['default'], ensure_ascii=False)}"
        cells = (name, type_text(known), required, str(known.get("description", "")))
        table.add_row(*(clean(cell) for cell in cells))
    console.print(Padding(table, (0, 0, 0, 2), expand=False))


def type_text(definition: Mapping[str, Any]) -> str:
    """The type of a parameter, in a few words."""
    if "enum" in definition:
        return " | ".join(json.dumps(value, ensure_ascii=False) for value in definition["enum"])
    if "const" in definition:
        return json.dumps(definition["const"], ensure_ascii=False)
    for choice in ("anyOf", "oneOf"):
        if choice in definition:
            return " | ".join(type_text(variant) for variant in definition[choice] if isinstance(variant, dict))
    if "$ref" in definition:
        return str(definition["$ref"]).rpartition("/")[2]
    kind = definition.get("type", "any")
    if kind == "array" and isinstance(definition.get("items"), dict):
        return f"array of {type_text(definition['items'])}"
    return " | ".join(kind) if isinstance(kind, list) else str(kind)
