"""The files of MCP clients and of the registry: what is read of them, and what is said where it cannot be used."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from agent3.errors import SetupError
from agent3.gateway.protocol import Found, Given
from agent3.identity.secret_refs import HEADERS
from agent3.protocols.mcp.client.processes import Command
from agent3.protocols.mcp.client_files import CLIENTS, find_files, read_servers


def read(document: Any, file: Path | None = None, **more: Any) -> dict[str | None, Found]:
    return {one.name: one for one in read_servers(Given("given", file, document, **more))}


def program(found: Found) -> Command:
    assert found.fault is None, found.fault
    return Command.parse(found.route.address)


def test_claude_code_keeps_servers_for_the_user_and_for_projects() -> None:
    user = {"docs": {"type": "http", "url": "https://docs.example.com/mcp"}}
    tool = {"type": "stdio", "command": "tool", "args": ["--all"], "env": {"LEVEL": "${LEVEL:-info}"}}
    projects = {
        "/src/shop": {"mcpServers": {"tool": tool}},
        "/src/site": {"mcpServers": {"tool": {"command": "other"}}},
    }
    found = read({"mcpServers": user, "projects": projects, "theme": "dark"})
    assert set(found) == {"docs", "tool", "tool-site"}
    assert found["docs"].route.address == "https://docs.example.com/mcp"
    assert program(found["tool"]) == Command("tool", ("--all",), {"LEVEL": "info"}, "/src/shop")
    assert program(found["tool-site"]).cwd == "/src/site"


def test_vs_code_asks_a_person_for_inputs_and_we_say_where_to_put_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = [{"type": "promptString", "id": "search-key", "description": "Key of the search", "password": True}]
    entry = {"command": "search", "args": ["${workspaceFolder}/data"], "env": {"SEARCH_KEY": "${input:search-key}"}}
    document = {"inputs": inputs, "servers": {"search": entry, "off": {"command": "x", "disabled": True}}}
    file = tmp_path / ".vscode" / "mcp.json"
    monkeypatch.delenv("SEARCH_KEY", raising=False)
    found = read(document, file)
    assert set(found) == {"search"}
    assert found["search"].fault is not None
    assert "Set SEARCH_KEY in the environment" in found["search"].fault.message
    monkeypatch.setenv("SEARCH_KEY", "hush-hush-9")
    asked = program(read(document, file)["search"])
    assert (asked.args, asked.env) == ((f"{tmp_path}/data",), {"SEARCH_KEY": "env:SEARCH_KEY"})


def test_secrets_become_references_and_show_nowhere() -> None:
    env = {
        "GITHUB_TOKEN": "ghp_0123456789abcdefghij",
        "DB_URL": "pg://u:hush-hush@h/db",
        "MODE": "fast",
        "KEY": "${OWN}",
    }
    found = read({"mcpServers": {"Git hub": {"command": "git", "env": env}}})["Git hub"]
    kept = {"GITHUB_TOKEN": "kept:git-hub.GITHUB_TOKEN", "DB_URL": "kept:git-hub.DB_URL"}
    assert program(found).env == {**kept, "MODE": "fast", "KEY": "env:OWN"}
    assert found.secrets == {kept[name]: env[name] for name in kept}
    assert not [word for word in ("ghp_", "hush") if word in repr(found)]


def test_headers_are_all_kept_and_a_single_reference_is_the_credential() -> None:
    one = read({"mcpServers": {"x": {"url": "https://x.example.com/", "headers": {"Authorization": "Bearer ${TOK}"}}}})[
        "x"
    ]
    assert (one.route.credential, one.route.meta) == ("env:TOK", {})
    headers = {"Authorization": "Bearer sk-live-12345", "X-Team": "red", "X-Key": "${TEAM_KEY}"}
    more = read({"mcpServers": {"x": {"url": "https://x.example.com/", "headers": headers}}})["x"]
    assert more.route.meta[HEADERS] == {
        "Authorization": "kept:x.Authorization",
        "X-Team": "red",
        "X-Key": "env:TEAM_KEY",
    }
    assert more.secrets == {"kept:x.Authorization": "Bearer sk-live-12345"}


def test_the_registry_names_an_address_or_a_package() -> None:
    remote = {
        "name": "com.example/search",
        "remotes": [{"type": "streamable-http", "url": "https://s.example.com/mcp"}],
    }
    assert read(remote)["search"].route.address == "https://s.example.com/mcp"
    variables = [
        {"name": "API_KEY", "isRequired": True, "isSecret": True},
        {"name": "DEBUG"},
        {"name": "MODE", "default": "a"},
    ]
    arguments = [{"type": "positional", "value": "serve"}, {"type": "named", "name": "--level", "default": "info"}]
    package = {"registryType": "pypi", "identifier": "tools", "version": "1.2.0", "environmentVariables": variables}
    document = {"name": "io.example/tools", "packages": [{**package, "packageArguments": arguments}]}
    asked = program(read(document)["tools"])
    assert (asked.command, asked.args) == ("uvx", ("tools@1.2.0", "serve", "--level", "info"))
    assert asked.env == {"API_KEY": "env:API_KEY", "MODE": "a"}
    needy = {**package, "packageArguments": [{"type": "positional", "valueHint": "folder", "isRequired": True}]}
    wanting = read({"name": "io.example/tools", "packages": [needy]})["tools"]
    assert wanting.fault is not None
    assert "needs folder" in wanting.fault.message


def test_one_bad_entry_does_not_hide_the_others() -> None:
    found = read({"mcpServers": {"bad": 7, "worse": {"url": "https://u:pw@x.example.com/"}, "good": {"command": "x"}}})
    assert {name for name, one in found.items() if one.fault is not None} == {"bad", "worse"}
    with pytest.raises(SetupError, match="contains no server 'other'; it contains bad, good"):
        read({"mcpServers": {"bad": 7, "good": {"command": "x"}}}, name="other")


@pytest.mark.skipif(sys.platform in ("darwin", "win32"), reason="other folders there")
def test_the_files_of_a_client_are_found_where_it_keeps_them(tmp_path: Path) -> None:
    home, here = tmp_path / "home", tmp_path / "here"
    places = {
        "claude-desktop": [home / ".config/Claude/claude_desktop_config.json"],
        "claude-code": [here / ".mcp.json", home / ".claude.json"],
        "cursor": [here / ".cursor/mcp.json", home / ".cursor/mcp.json"],
        "vscode": [here / ".vscode/mcp.json", home / ".config/Code/User/mcp.json"],
    }
    assert set(places) == set(CLIENTS)
    for client, files in places.items():
        with pytest.raises(SetupError, match=f"No configuration file of {client} was found in"):
            find_files(client, here, home)
        for file in files:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps({"mcpServers": {}}))
        assert find_files(client, here, home) == files
    with pytest.raises(SetupError, match="Known are claude-desktop"):
        find_files("notepad", here, home)
