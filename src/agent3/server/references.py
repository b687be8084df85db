"""References to secrets in addresses: ``https://host/mcp?key=env:NAME``, or the command ``server --token env:NAME``.

An address is stored as it was given, with references in the place of secrets; what they stand for is put in when the
server is spoken to, and taken out of what comes back. A secret that stands in an address itself is found and refused.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any
from urllib.parse import quote, unquote_plus

from msgspec.structs import replace

from agent3.errors import Agent3Error, SetupError
from agent3.mcp.connector import Heard, MCPConnector
from agent3.mcp.processes import PREFIX, Command
from agent3.mcp.upstream import place_of
from agent3.model import Agent, Call, Done, Event, Outcome, Route
from agent3.security.sanitize import rewrite_value
from agent3.security.secrets import Secret, Vault, redact, redact_outcome

__all__ = ["ReferringConnector", "check_query", "check_words", "looks_secret", "names_secret", "resolve", "variable"]

_WHOLE = re.compile(r"\$\{(?:env:|input:)?([A-Za-z_][A-Za-z0-9_]*)\}|\$([A-Za-z_][A-Za-z0-9_]*)|env:(\w+)")
_INSIDE = re.compile(r"\$\{(?:env:|input:)?([A-Za-z_][A-Za-z0-9_]*)\}")

_NAMES = (
    *("key", "token", "secret", "password", "passwd", "passphrase", "pwd", "credential", "credentials"),
    *("auth", "authorization", "bearer", "jwt", "signature"),
)
_KNOWN = re.compile(
    r"(?:^|[\s=:\"'])(?:sk-[A-Za-z0-9_-]*[0-9]|[rs]k_(?:live|test)_|gh[oprsu]_[A-Za-z0-9]|github_pat_|glpat-|xox[abeoprs]-|xapp-"
    r"|A[KS]IA[A-Z0-9]{12}|AIza[A-Za-z0-9_-]{20}|ya29\.|hf_[A-Za-z0-9]{16}|npm_[A-Za-z0-9]{16}|pypi-[A-Za-z0-9]{16}"
    r"|dop_v1_|shpat_|SG\.[A-Za-z0-9]|eyJ[A-Za-z0-9_-]{8,}\.eyJ|-----BEGIN )"
)
"""How the secrets of well-known services begin."""
_RUN = re.compile(r"[A-Za-z0-9]{20,}")
_RANDOM = 3.5
"""Bits in each letter of a run from which on nobody wrote it by hand."""
_HARMLESS = re.compile(r"|.{1,5}|[a-z]{1,7}|[./~].*|[A-Za-z]:\\.*|https?://.*", re.DOTALL)
"""What may stand where a secret could: a switch, a word such as ``bearer`` or ``none``, a file, an address."""
_PAIR = re.compile(r"-{0,2}([A-Za-z][\w.-]*)(?:=|:\s*)(.+)", re.DOTALL)


# Finding secrets


def names_secret(name: str) -> bool:
    """Whether something of that name is a secret: its last word counts, so ``api_key`` is one and ``key_id`` is not."""
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)
    return bool(words) and words[-1].lower().endswith(_NAMES)


def looks_secret(value: str) -> bool:
    """Whether it has the form of a secret: known by how it begins, or random as no word is."""
    return _KNOWN.search(value) is not None or any(map(_random, _RUN.findall(value)))


def _random(run: str) -> bool:
    if run.isalpha() or run.isdigit():
        return False
    bits = -sum(count / len(run) * math.log2(count / len(run)) for count in Counter(run).values())
    return bits >= _RANDOM


def variable(value: str) -> str | None:
    """The name in a value that is a reference and nothing else."""
    match = _WHOLE.fullmatch(value.strip())
    return next((group for group in match.groups() if group), None) if match else None


def _holds_secret(name: str, value: str) -> bool:
    """Whether a secret is left when all references are taken out."""
    if variable(value) is not None:
        return False
    rest = _INSIDE.sub("", value)
    if looks_secret(rest):
        return True
    bare = re.sub(r"^(?:bearer|basic|token)\b\s*", "", rest.strip(), flags=re.IGNORECASE)
    return names_secret(name) and _HARMLESS.fullmatch(bare) is None


def check_query(url: str) -> str:
    """The URL in its stored form; SetupError names the parameter of its query that holds a secret itself."""
    bare, question, query = url.partition("?")
    if not question:
        return url
    pairs = []
    for name, equals, value in (one.partition("=") for one in query.split("&")):
        plain = unquote_plus(value)
        if _holds_secret(unquote_plus(name), plain):
            raise _refusal(f"The parameter {unquote_plus(name)[:60]!r} of the address")
        pairs.append(name + equals + (_stored(plain) if _refers(plain) else value))
    return f"{bare}?{'&'.join(pairs)}"


def check_words(words: Sequence[str]) -> list[str]:
    """The arguments of a command in their stored form; SetupError names the one that holds a secret itself."""
    for number, (name, value) in enumerate(_named(words), 1):
        if _holds_secret(name, value):
            which = f"The argument {name!r}" if name and names_secret(name) else f"Argument {number}"
            raise _refusal(f"{which} of the command")
    return [_rewritten(word, _stored) for word in words]


def _named(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Each argument with the name it goes by: in ``--token=x``, ``X-API-Key: x`` and ``--token x``."""
    for before, word in pairwise(["", *words]):
        if pair := _PAIR.fullmatch(word):
            yield pair[1], pair[2]
        elif before.startswith("-") and "=" not in before and not word.startswith("-"):
            yield before.lstrip("-"), word
        else:
            yield "", word


def _refusal(what: str) -> SetupError:
    return SetupError(
        f"{what} holds a secret itself, and secrets are not stored. Put it into an environment variable of the gateway "
        "and write env:NAME in its place, or ${NAME} inside a longer text."
    )


# Putting secrets in


def _refers(text: str) -> bool:
    return variable(text) is not None or _INSIDE.search(text) is not None


def _stored(value: str) -> str:
    """References in the one form in which they are kept."""
    if (name := variable(value)) is not None:
        return f"env:{name}"
    return _INSIDE.sub(lambda match: "${" + match[1] + "}", value)


def _rewritten(word: str, put: Callable[[str], str]) -> str:
    """An argument with its references rewritten; ``--token=env:NAME`` has one behind its sign."""
    flag, equals, value = word.partition("=")
    if equals and variable(value) is not None:
        return flag + equals + put(value)
    return put(word)


async def resolve(address: str, vault: Vault) -> tuple[str, tuple[Secret, ...]]:
    """The address with what its references stand for, and what of that must not come back out.

    SetupError names a variable that is not set.
    """
    if "env:" not in address and "${" not in address:
        return address, ()
    values = {name: await vault.get(f"env:{name}") for name in _variables(address)}

    def put(text: str) -> str:
        if (name := variable(text)) is not None:
            return values[name].reveal()
        return _INSIDE.sub(lambda match: values[match[1]].reveal(), text)

    # The home folder may stand in an address too, and must not be struck out of every path that comes back.
    hidden = tuple(one for name, one in values.items() if names_secret(name) or looks_secret(one.reveal()))
    return _filled(address, put), hidden


def _variables(address: str) -> set[str]:
    found: set[str] = set()

    def note(text: str) -> str:
        if (name := variable(text)) is not None:
            found.add(name)
        else:
            found.update(_INSIDE.findall(text))
        return text

    _filled(address, note)
    return found


def _filled(address: str, put: Callable[[str], str]) -> str:
    if address.startswith(PREFIX):
        command = Command.parse(address)
        return replace(command, args=tuple(_rewritten(word, put) for word in command.args)).address
    bare, question, query = address.partition("?")
    pairs = [one.partition("=") for one in query.split("&")]
    filled = [name + equals + (_quoted(put, value) if equals else value) for name, equals, value in pairs]
    return f"{bare}{question}{'&'.join(filled)}"


def _quoted(put: Callable[[str], str], value: str) -> str:
    plain = unquote_plus(value)
    return quote(put(plain), safe="") if _refers(plain) else value


class ReferringConnector(MCPConnector):
    """Reaches MCP servers by addresses that hold references; whoever stores or hears an address sees only these."""

    def __init__(self, vault: Vault, *arguments: Any, on_change: Callable[[str], None] | None = None, **options: Any):
        self._vault = vault
        self._given: dict[str, str] = {}
        self._told = on_change
        super().__init__(*arguments, on_change=self._heard, **options)

    async def describe(
        self, address: str, *, secret: Secret | None = None, route: Route | None = None, registered: bool = False
    ) -> Agent:
        """As MCPConnector; the routes of the agent hold the references."""
        filled, hidden = await self._filled(address)
        pattern = route or Route("mcp", address)
        try:
            agent = await super().describe(filled, secret=secret, route=pattern, registered=registered)
        except Agent3Error as wrong:
            wrong.message = redact(wrong.message, hidden)
            wrong.args = (wrong.message,)
            raise
        return agent if filled == address else replace(agent, source=_source(address))

    async def call(self, call: Call) -> Outcome:
        """As MCPConnector, without the secrets of the address in what comes back."""
        assert call.route is not None
        filled, hidden = await self._filled(call.route.address)
        if filled == call.route.address:
            return await super().call(call)
        live = call.live
        before = live.filters if live is not None else ()
        if live is not None and hidden:
            live.filters = (_hiding(hidden), *before)
        try:
            outcome = await super().call(replace(call, route=replace(call.route, address=filled)))
        finally:
            if live is not None:
                live.filters = before
        return redact_outcome(outcome, hidden)

    async def request(self, route: Route, *arguments: Any, **options: Any) -> dict[str, Any]:
        """As MCPConnector."""
        filled, hidden = await self._filled(route.address)
        answer = await super().request(replace(route, address=filled), *arguments, **options)
        return _without(answer, hidden)

    async def items(self, route: Route, *arguments: Any, **options: Any) -> list[dict[str, Any]]:
        """As MCPConnector."""
        filled, hidden = await self._filled(route.address)
        found = await super().items(replace(route, address=filled), *arguments, **options)
        return [_without(one, hidden) for one in found]

    async def connect(self, route: Route, *, secret: Secret | None = None) -> None:
        """As MCPConnector."""
        filled, _ = await self._filled(route.address)
        await super().connect(replace(route, address=filled), secret=secret)

    async def watch(self, route: Route, uris: Sequence[str], heard: Heard, *, secret: Secret | None = None) -> None:
        """As MCPConnector."""
        filled, _ = await self._filled(route.address)
        await super().watch(replace(route, address=filled), uris, heard, secret=secret)

    def _noted(self, address: str, method: str, params: dict[str, Any]) -> None:
        super()._noted(self._given.get(address, address), method, params)

    def _heard(self, address: str) -> None:
        if self._told is not None:
            self._told(self._given.get(address, address))

    async def _filled(self, address: str) -> tuple[str, tuple[Secret, ...]]:
        filled, hidden = await resolve(address, self._vault)
        if filled != address:
            self._given[filled] = address
        return filled, hidden


def _source(address: str) -> str:
    """Where it comes from, fit to be shown, and the same whatever its secrets are at the time."""
    if not address.startswith(PREFIX):
        return address.partition("?")[0]
    return f"{place_of(address)}#{hashlib.sha256(address.encode()).hexdigest()[:12]}"


def _without(value: dict[str, Any], hidden: Sequence[Secret]) -> dict[str, Any]:
    if not hidden:
        return value
    clean: dict[str, Any] = rewrite_value(value, lambda text: redact(text, hidden))
    return clean


def _hiding(hidden: Sequence[Secret]) -> Callable[[Event], Event]:
    def clean(event: Event) -> Event:
        inside = redact_outcome(Done(event.parts), hidden)
        return replace(
            event,
            text=redact(event.text, hidden) if event.text else event.text,
            name=redact(event.name, hidden) if event.name else event.name,
            data=rewrite_value(event.data, lambda text: redact(text, hidden)),
            parts=inside.parts if isinstance(inside, Done) else event.parts,
        )

    return clean
