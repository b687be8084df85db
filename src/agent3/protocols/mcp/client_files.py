"""MCP servers in the files of others: of Claude Desktop, Claude Code, Cursor and VS Code, and of the MCP registry.

A file is read, nothing of it is asked. What a client would fill in when it starts a server is filled in here, or turned
into a reference to an environment variable. A secret that stands in a file itself becomes a reference to one that the
gateway keeps sealed. An entry that cannot be used says why, and the others can still be added.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from agent3.errors import SetupError
from agent3.gateway.protocol import Found, Given
from agent3.gateway.registration import named_credential
from agent3.identity.kept_secrets import KEPT, kept_reference
from agent3.identity.secret_detection import (
    REFERENCE_INSIDE,
    VAULT,
    as_reference,
    holds_secret,
    names_secret,
    variable,
)
from agent3.identity.secret_refs import HEADERS, check_query, check_words
from agent3.model import Route, agent_id
from agent3.protocols.mcp.client.processes import Command

__all__ = ["CLIENTS", "command_route", "find_files", "read_servers"]

CLIENTS = ("claude-desktop", "claude-code", "cursor", "vscode")
_SECRET = re.compile(r"key|token|secret|passw|credential|auth", re.IGNORECASE)
_INPUT = re.compile(r"\$\{input:([^}]+)\}")
_DEFAULT = re.compile(r"\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*):-([^}]*)\}")
_RUNNERS = {"npm": ("npx", "-y", "{0}@{1}"), "pypi": ("uvx", "{0}@{1}"), "oci": ("docker", "run", "-i", "--rm", "{0}")}
"""How a package of the MCP registry is run, by where it comes from: its name and version."""
_INLINE = 20
"""Arguments or variables of one package."""


# Where the files are


def find_files(client: str, folder: Path | None = None, home: Path | None = None) -> list[Path]:
    """The files in which a client keeps its servers, here and for this user; those that exist."""
    folder, home = folder or Path.cwd(), home or Path.home()
    if sys.platform == "darwin":
        settings = home / "Library" / "Application Support"
    elif sys.platform == "win32":
        settings = Path(os.environ.get("APPDATA", str(home / "AppData" / "Roaming")))
    else:
        settings = home / ".config"
    places = {
        "claude-desktop": [settings / "Claude" / "claude_desktop_config.json"],
        "claude-code": [folder / ".mcp.json", home / ".claude.json"],
        "cursor": [folder / ".cursor" / "mcp.json", home / ".cursor" / "mcp.json"],
        "vscode": [folder / ".vscode" / "mcp.json", settings / "Code" / "User" / "mcp.json"],
    }
    if client not in places:
        raise SetupError(f"The configuration files of client {client!r} are not known. Known are {', '.join(CLIENTS)}.")
    found = [place for place in places[client] if place.is_file()]
    if not found:
        looked = " or ".join(str(place) for place in places[client])
        raise SetupError(f"No configuration file of {client} was found in {looked}. Name the file: agent3 add FILE.")
    return found


# What a file holds


def read_servers(given: Given) -> list[Found]:
    """The servers of a client's file, or the one of a ``server.json``; empty for any other document."""
    document = given.document
    if not isinstance(document, Mapping):
        return []
    if isinstance(document.get("name"), str) and ("packages" in document or "remotes" in document):
        name = str(document["name"])
        return [_read(name, given.name or name.rpartition("/")[2], _registry_entry(document), given, {})]
    servers = dict(_servers(document))
    if not servers:
        return []
    if given.name is not None and len(servers) > 1:
        if given.name not in servers:
            raise SetupError(
                f"{given.where} contains no server {given.name!r}; it contains {', '.join(sorted(servers))}."
            )
        servers = {given.name: servers[given.name]}
    inputs = {one["id"]: one for one in document.get("inputs") or () if isinstance(one, dict) and "id" in one}
    return [
        _read(name, given.name or name, entry, given, inputs)
        for name, entry in servers.items()
        if not (isinstance(entry, Mapping) and entry.get("disabled") is True)
    ]


def _servers(document: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Those of the file itself, and those that Claude Code keeps for single projects, each in its folder."""
    inner = document.get("mcp")
    further = inner.get("servers") if isinstance(inner, Mapping) else None  # in the settings of VS Code
    tables = document.get("mcpServers"), document.get("servers"), further
    taken: dict[str, Any] = {}
    for table in tables:
        taken.update(table if isinstance(table, Mapping) else {})
    yield from taken.items()
    projects = document.get("projects")
    for folder, project in (projects if isinstance(projects, Mapping) else {}).items():
        table = project.get("mcpServers") if isinstance(project, Mapping) else None
        for name, entry in (table if isinstance(table, Mapping) else {}).items():
            if taken.get(name) == entry:
                continue
            own = name if name not in taken else f"{name}-{Path(folder).name}"
            taken[own] = entry
            yield own, {"cwd": folder, **entry} if isinstance(entry, Mapping) and "command" in entry else entry


def _read(name: str, called: str, entry: Any, given: Given, inputs: Mapping[str, Any]) -> Found:
    """One server; where it cannot be used, why."""
    secrets: dict[str, str] = {}
    try:
        if isinstance(entry, SetupError):
            raise entry
        if not isinstance(entry, Mapping):
            raise SetupError(f"The server {name!r} is not an object.")
        # What others wrote learns no folder and no variable of this machine.
        filled = dict(entry) if given.fetched else _fill(name, dict(entry), given, inputs)
        route = _route(name, agent_id(called, "server"), filled, given.credential, secrets)
    except SetupError as error:
        return Found(Route("mcp", ""), called, fault=error)
    return Found(route, called, secrets=secrets)


def _fill(name: str, value: Any, given: Given, inputs: Mapping[str, Any]) -> Any:
    """An entry with what its client would fill in: folders, defaults, and what it would ask a person for."""
    if isinstance(value, dict):
        return {key: _fill(name, inner, given, inputs) for key, inner in value.items()}
    if isinstance(value, list):
        return [_fill(name, inner, given, inputs) for inner in value]
    if not isinstance(value, str) or "${" not in value:
        return value
    file = given.file.absolute() if given.file is not None else None
    workspace = Path.cwd() if file is None else file.parent.parent if file.parent.name.startswith(".") else file.parent
    text = value.replace("${workspaceFolder}", str(workspace)).replace("${userHome}", str(Path.home()))
    text = _DEFAULT.sub(lambda match: "${" + match[1] + "}" if match[1] in os.environ else match[2], text)

    def ask(match: re.Match[str]) -> str:
        asked = inputs.get(match[1]) or {}
        own = re.sub(r"\W+", "_", match[1])
        found = own if own in os.environ else own.upper()
        if found not in os.environ:
            what = asked.get("description") or match[1]
            raise SetupError(
                f"The server {name!r} needs {what}, which its client would ask a person for. Set {found} in "
                "the environment, here and for the gateway."
            )
        return "${" + found + "}"

    return _INPUT.sub(ask, text)


# One server


def _route(name: str, agent: str, entry: Mapping[str, Any], credential: str | None, secrets: dict[str, str]) -> Route:
    url = next((entry[key] for key in ("url", "serverUrl", "httpUrl") if isinstance(entry.get(key), str)), None)
    if url is not None:
        headers = entry.get("headers") or {}
        if not isinstance(headers, Mapping):
            raise SetupError(f"The headers of the server {name!r} are not an object.")
        if credential is not None:
            header, reference = named_credential(credential)
            return Route(
                "mcp", check_query(url), credential=reference, meta={"secret_header": header} if header else {}
            )
        return _with_headers(Route("mcp", check_query(url)), agent, headers, secrets)
    if isinstance(entry.get("command"), str):
        arguments, given = entry.get("args") or (), entry.get("env") or {}
        if not isinstance(arguments, Sequence) or isinstance(arguments, str) or not isinstance(given, Mapping):
            raise SetupError(f'The server {name!r} has "args" that are not a list, or "env" that is not an object.')
        environment = {}
        for key, value in given.items():
            environment[key] = _value(f"{agent}.{key}", key, str(value), secrets)
        words = [entry["command"], *map(str, arguments)]
        return command_route(words, environment, entry.get("cwd"), credential)
    raise SetupError(f'The server {name!r} has neither a "url" nor a "command".')


def _with_headers(route: Route, agent: str, headers: Mapping[str, Any], secrets: dict[str, str]) -> Route:
    """The route with the headers that it carries; a single one that is a reference is its credential."""
    if len(headers) == 1:
        header, value = next(iter(headers.items()))
        bearer = header.lower() == "authorization" and str(value).lower().startswith("bearer ")
        if (reference := variable(str(value)[7:] if bearer else str(value))) is not None:
            meta = {} if bearer else {"secret_header": header}
            return Route(route.protocol, route.address, credential=as_reference(reference), meta=meta)
    carried = {header: _value(f"{agent}.{header}", header, str(value), secrets) for header, value in headers.items()}
    return Route(route.protocol, route.address, meta={HEADERS: carried}) if carried else route


def _value(place: str, name: str, value: str, secrets: dict[str, str]) -> str:
    """A variable or header in its stored form. What may be a secret itself is put into ``secrets``."""
    if KEPT.fullmatch(value):
        raise SetupError(f"{name} is {value}, the name of a secret in the vault. Write the secret itself.")
    if (reference := variable(value)) is not None:
        return as_reference(reference)
    rest = REFERENCE_INSIDE.sub("", value)
    named = (_SECRET.search(name) or names_secret(name)) and rest == value
    if not value or not (named or holds_secret(name, value)):
        return value
    kept = kept_reference(place)
    secrets[kept] = value
    return kept


def command_route(
    words: Sequence[str], environment: dict[str, str], folder: str | None, credential: str | None
) -> Route:
    """The route to a program."""
    # The gateway may run in another folder than the one that the command is added from.
    command = Command(words[0], tuple(check_words(list(words[1:]))), environment, folder or str(Path.cwd()))
    name, reference = named_credential(credential)
    if reference is not None and name is None:
        name = variable(reference)
        if name is None or name.startswith(VAULT):
            raise SetupError("Name the variable in which the program gets the credential: --credential NAME=REFERENCE.")
    return Route("mcp", command.address, credential=reference, meta={"secret_env": name} if name else {})


# The MCP registry


def _registry_entry(document: Mapping[str, Any]) -> dict[str, Any] | SetupError:
    """A ``server.json``, or the card of a server, in the form of a client's file."""
    name = str(document["name"])
    for remote in document.get("remotes") or ():
        if isinstance(remote, Mapping) and isinstance(remote.get("url"), str) and remote.get("type") != "sse":
            if "{" in remote["url"]:
                return SetupError(
                    f"The address of {name} has placeholders: {remote['url']}. Fill them in and add the address."
                )
            return {"url": remote["url"], "headers": _inputs(remote.get("headers"))}
    packages = [
        one
        for one in document.get("packages") or ()
        if isinstance(one, Mapping) and isinstance(one.get("identifier"), str)
    ]
    for package in packages:
        words = _RUNNERS.get(str(package.get("registryType") or package.get("registry_type")))
        if words is None:
            continue
        version = str(package.get("version") or "latest")
        arguments = [word.format(package["identifier"], version) for word in words]
        for argument in (package.get("packageArguments") or ())[:_INLINE]:
            value = argument.get("value") or argument.get("default")
            if value is None and argument.get("isRequired"):
                what = argument.get("valueHint") or argument.get("name") or "an argument"
                return SetupError(
                    f"{name} needs {what}. Add it with its command: agent3 add '{' '.join(arguments)} …'."
                )
            if value is not None:
                arguments += [str(argument["name"])] if argument.get("type") == "named" else []
                arguments.append(str(value))
        env = _inputs(package.get("environmentVariables"))
        return {"command": arguments[0], "args": arguments[1:], "env": env}
    return SetupError(f"{name} has neither an address nor a package of npm or PyPI.")


def _inputs(given: Any) -> dict[str, str]:
    """Variables or headers of the registry's form: with their value, or as references where they are needed."""
    found = {}
    for one in (given if isinstance(given, list) else [])[:_INLINE]:
        value = one.get("value") or one.get("default")
        if value is not None:
            found[str(one["name"])] = re.sub(r"(?<!\$)\{(\w+)\}", r"${\1}", str(value))
        elif one.get("isRequired"):
            found[str(one["name"])] = "${" + re.sub(r"\W+", "_", str(one["name"])).upper() + "}"
    return found
