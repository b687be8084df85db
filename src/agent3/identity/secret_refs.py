"""References to secrets in addresses: ``https://host/${NAME}/mcp?key=env:NAME``, or ``server --token vault:NAME``.

An address is stored as it was given, with references in the place of secrets. ``open_route`` puts in what they stand
for when the target is spoken to, and says what has to be taken out of whatever comes back. A secret that stands in an
address itself is found and refused. A program is addressed as ``stdio:`` and the JSON of its command.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, unquote_plus

from msgspec.structs import replace

from agent3.errors import SetupError
from agent3.identity.kept_secrets import KEPT
from agent3.identity.secret_detection import (
    LOGIN,
    REFERENCE_INSIDE,
    VAULT,
    as_reference,
    holds_secret,
    looks_secret,
    names_secret,
    variable,
)
from agent3.identity.secrets import Secret, Vault
from agent3.model import Agent, Route

__all__ = ["HEADERS", "STORED", "OpenRoute", "check_query", "check_words", "missing_references", "open_route",
           "references_in", "refers_to_secret", "resolve"]  # fmt: skip

HEADERS = "headers"
"""The key in the ``meta`` of a route under which stand the headers that it carries, with references in them."""
STORED = "stored"
"""The key in the ``meta`` of an opened route under which the address stands as it is stored, where that differs."""
_STDIO = "stdio:"
_PAIR = re.compile(r"-{0,2}([A-Za-z][\w.-]*)(?:=|:\s*)(.+)", re.DOTALL)
_CHOSEN = re.compile(r"(?=.*[a-z])(?=.*[A-Z])(?=.*[0-9])[^\s/@]{8,}")
"""A password of a person's own making; ``-p`` is more often a port."""


class OpenRoute(NamedTuple):
    """A route to speak to: the secrets of its address put in, its own secret beside it, and all that must not come
    back from there."""

    route: Route
    secret: Secret | None = None
    hidden: tuple[Secret, ...] = ()


async def open_route(route: Route, vault: Vault) -> OpenRoute:
    """The route with what its references stand for. SetupError names what is missing."""
    secret = await vault.get(route.credential) if route.credential is not None else None
    address, hidden = await resolve(route.address, vault)
    if address != route.address:
        route = replace(route, address=address, meta={**route.meta, STORED: route.address})
    if headers := route.meta.get(HEADERS):
        opened = {}
        for name, value in headers.items():
            opened[name], secrets = await _open_value(name, value, vault)
            hidden = (*hidden, *secrets)
        route = replace(route, meta={**route.meta, HEADERS: opened})
    return OpenRoute(route, secret, hidden if secret is None else (*hidden, secret))


async def _open_value(name: str, value: str, vault: Vault) -> tuple[str, list[Secret]]:
    """A value with what its references stand for, and what of that must not come back out."""
    whole = variable(value)
    if whole is not None or KEPT.fullmatch(value):
        secret = await vault.get(value if whole is None else as_reference(whole))
        return secret.reveal(), [secret]
    values = {found: await vault.get(as_reference(found)) for found in set(REFERENCE_INSIDE.findall(value))}
    hidden = [secret for found, secret in values.items() if _must_hide(found, secret, {name})]
    return REFERENCE_INSIDE.sub(lambda match: values[match[1]].reveal(), value), hidden


def refers_to_secret(route: Route) -> bool:
    """Whether a route refers to a secret: beside its address, in it, or in a header."""
    if route.credential is not None or HEADERS in route.meta:
        return True
    address = route.address
    return _may_refer(address)


def _may_refer(address: str) -> bool:
    return "env:" in address or "${" in address or "kept:" in address or VAULT in address


def references_in(route: Route) -> set[str]:
    """The secrets that opening a route would put into it: ``env:NAME``, ``vault:NAME`` and ``kept:AGENT.NAME``."""
    found: set[str] = set()

    def note(_: str, text: str) -> str:
        whole = variable(text)
        names = [whole] if whole is not None else REFERENCE_INSIDE.findall(text)
        found.update({text} if KEPT.fullmatch(text) else map(as_reference, names))
        return text

    _fill(route.address, note)  # by the same walk as it is opened, so that no spelling is missed
    program = _command(route.address) if route.address.startswith(_STDIO) else {}
    for name, value in {**(program.get("env") or {}), **(route.meta.get(HEADERS) or {})}.items():
        note(name, value)
    if route.credential is not None and route.credential.startswith(("env:", "kept:", VAULT)):
        found.add(route.credential)
    return found


async def missing_references(agent: Agent, vault: Vault) -> list[str]:
    """Those of an agent's references to environment variables and to the vault that lead nowhere in this process."""
    missing = []
    routes = [route for one in agent.capabilities for route in one.routes]
    references = await asyncio.to_thread(lambda: set().union(*map(references_in, routes)))
    for reference in sorted(one for one in references if one.startswith(("env:", VAULT))):
        try:
            await vault.get(reference)
        except SetupError:
            missing.append(reference)
    return missing


# Storing an address


def check_query(url: str) -> str:
    """The URL in its stored form; SetupError names the part of it that holds a secret itself."""
    bare, question, query = url.partition("?")
    if LOGIN.match(bare):
        raise SetupError(
            "The address contains a password, and secrets are not stored in the open. Remove it from the "
            "address, put it into an environment variable of the gateway, and use --credential env:NAME."
        )
    stored = _map_segments(bare, _store_segment)
    if not question:
        return stored
    return f"{stored}?{'&'.join(map(_store_pair, query.split('&')))}"


def _store_segment(segment: str) -> str:
    plain = re.sub(r"^(?:env:(?=\w+$)|(?=vault:))([\w:.-]+)$", r"${\1}", unquote(segment))
    if looks_secret(REFERENCE_INSIDE.sub("", plain)):
        raise _refusal("The path of the address")
    return (
        REFERENCE_INSIDE.sub(lambda match: "${" + match[1] + "}", plain) if REFERENCE_INSIDE.search(plain) else segment
    )


def _store_pair(pair: str) -> str:
    name, equals, value = pair.partition("=")
    plain = unquote_plus(value)
    if holds_secret(unquote_plus(name), plain):
        raise _refusal(f"The parameter {unquote_plus(name)[:60]!r} of the address")
    return name + equals + (_store(plain) if _refers(plain) else value)


def _map_segments(bare: str, change: Callable[[str], str]) -> str:
    """A URL without its query, each segment of its path (and its fragment) rewritten."""
    scheme, found, rest = bare.partition("://")
    if not found:
        return bare
    host, *segments = rest.split("/")
    return f"{scheme}://{'/'.join([host, *map(change, segments)])}"


def check_words(words: Sequence[str]) -> list[str]:
    """The arguments of a command in their stored form; SetupError names the one that holds a secret itself."""
    for number, (name, value) in enumerate(_name_arguments(words), 1):
        if holds_secret(name, value) or (name == "p" and _CHOSEN.fullmatch(value)):
            which = f"The argument {name!r}" if name and names_secret(name) else f"Argument {number}"
            raise _refusal(f"{which} of the command")
    return [_rewrite_argument(word, _store) for word in words]


def _name_arguments(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Each argument with the name it goes by: in ``--token=x``, ``X-API-Key: x``, ``--token x`` and ``-px``."""
    for before, word in pairwise(["", *words]):
        pair = _PAIR.fullmatch(word) if variable(word) is None else None
        if pair is not None and not pair[2].startswith("//"):
            yield pair[1], pair[2]
        elif before.startswith("-") and "=" not in before and not word.startswith("-"):
            yield before.lstrip("-"), word
        elif word.startswith("-p"):
            yield "p", word[2:]
        else:
            yield "", word


def _refusal(what: str) -> SetupError:
    return SetupError(
        f"{what} contains a secret, and secrets are not stored in the open. Put it into an environment "
        f"variable of the gateway and write env:NAME in its place, or ${{NAME}} inside a longer text; or "
        "store it with agent3 vault set NAME and write vault:NAME."
    )


def _refers(text: str) -> bool:
    return variable(text) is not None or REFERENCE_INSIDE.search(text) is not None


def _store(value: str) -> str:
    """References in the one form in which they are kept."""
    if (name := variable(value)) is not None:
        return as_reference(name)
    return REFERENCE_INSIDE.sub(lambda match: "${" + match[1] + "}", value)


def _rewrite_argument(word: str, put: Callable[[str], str]) -> str:
    """An argument with its references rewritten; ``--token=env:NAME`` has one behind its sign."""
    flag, equals, value = word.partition("=")
    if equals and variable(value) is not None:
        return flag + equals + put(value)
    return put(word)


# Opening an address

Put = Callable[[str, str], str]
"""Rewrites the references in a text that stands in a place of some name."""
_PATH = "key"
"""The name that a segment of a path goes by: a reference there mostly hides something."""


async def resolve(address: str, vault: Vault) -> tuple[str, tuple[Secret, ...]]:
    """The address with what its references stand for, and what of that must not come back out.

    SetupError names a variable that is not set.
    """
    if not _may_refer(address):
        return address, ()
    places: dict[str, set[str]] = {}

    def note(place: str, text: str) -> str:
        whole = variable(text)
        for name in [whole] if whole is not None else REFERENCE_INSIDE.findall(text):
            places.setdefault(name, set()).add(place)
        return text

    _fill(address, note)
    values = {name: await vault.get(as_reference(name)) for name in places}

    environment = _command(address).get("env", {}) if address.startswith(_STDIO) else {}
    kept = {value: await vault.get(_of_vault(value) or value) for value in environment.values() if _is_kept(value)}

    def put(_: str, text: str) -> str:
        if text in kept:
            return kept[text].reveal()
        if (name := variable(text)) is not None:
            return values[name].reveal()
        return REFERENCE_INSIDE.sub(lambda match: values[match[1]].reveal(), text)

    hidden = [secret for name, secret in values.items() if _must_hide(name, secret, places[name])] + [*kept.values()]
    # The secrets among the variables that a program gets whole from our environment.
    for place, value in environment.items():
        if (name := variable(value)) is not None and value not in kept:
            with suppress(SetupError):  # starting the program says what is missing
                secret = await vault.get(f"env:{name}")
                hidden += [secret] if _must_hide(name, secret, {place}) else []
    return _fill(address, put), tuple(hidden)


def _must_hide(name: str, value: Secret, places: set[str]) -> bool:
    """Whether it is a secret, by its own name, its form, or where it goes.

    The home folder may stand in an address too, and must not be struck out of every path that comes back.
    """
    plain = value.reveal()
    return (
        name.startswith(VAULT)
        or names_secret(name)
        or looks_secret(plain)
        or any(holds_secret(place, plain) for place in places)
    )


def _of_vault(value: str) -> str | None:
    """The reference of a value that stands for a secret of the vault and nothing else."""
    name = variable(value)
    return name if name is not None and name.startswith(VAULT) else None


def _is_kept(value: str) -> bool:
    """Whether a value stands for a secret of the database, which only we can read: a program cannot."""
    return KEPT.fullmatch(value) is not None or _of_vault(value) is not None


def _command(address: str) -> dict[str, Any]:
    command = json.loads(address.removeprefix(_STDIO))
    return command if isinstance(command, dict) else {}


def _fill(address: str, put: Put) -> str:
    if address.startswith(_STDIO):
        command = _command(address)
        words = command.get("args") or []
        named = zip(words, _name_arguments(words), strict=True)
        filled = {**command, "args": [_rewrite_argument(word, partial(put, place)) for word, (place, _) in named]}
        # A variable that is a reference and nothing else is put in when the program is started.
        environment = command.get("env") or {}
        filled["env"] = {
            name: value if variable(value) is not None and not _is_kept(value) else put(name, value)
            for name, value in environment.items()
        }
        return _STDIO + json.dumps({key: filled[key] for key in filled if key in command or filled[key]})
    bare, question, query = address.partition("?")

    def fill_segment(segment: str) -> str:
        return quote(put(_PATH, unquote(segment)), safe="") if REFERENCE_INSIDE.search(segment) else segment

    def fill_pair(pair: str) -> str:
        name, equals, value = pair.partition("=")
        plain = unquote_plus(value)
        return name + equals + (quote(put(unquote_plus(name), plain), safe="") if equals and _refers(plain) else value)

    return f"{_map_segments(bare, fill_segment)}{question}{'&'.join(map(fill_pair, query.split('&')))}"
