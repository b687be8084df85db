"""References to secrets in addresses: ``https://host/${NAME}/mcp?key=env:NAME``, or ``server --token env:NAME``.

An address is stored as it was given, with references in the place of secrets; what they stand for is put in when the
server is spoken to, and taken out of what comes back. A secret that stands in an address itself is found and refused.
"""

from __future__ import annotations

import base64
import hashlib
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import pairwise
from typing import Any
from urllib.parse import quote, unquote, unquote_plus

from msgspec.structs import replace

from agent3.errors import Agent3Error, SetupError
from agent3.identity.secrets import Secret, Vault, redact, redact_outcome
from agent3.model import Agent, Call, Capability, Done, Event, Handler, Outcome, Part, Route
from agent3.protocols.a2a.peer.connector import A2AConnector
from agent3.protocols.mcp.client.connector import Heard, MCPConnector
from agent3.protocols.mcp.client.processes import PREFIX, Command
from agent3.protocols.mcp.client.upstream import place_of
from agent3.protocols.mcp.door.passthrough import purged
from agent3.security.sanitize import rewrite_value

__all__ = [
    "ReferringA2AConnector",
    "ReferringConnector",
    "check_query",
    "check_words",
    "holds_secret",
    "looks_secret",
    "names_secret",
    "resolve",
    "variable",
]

_WHOLE = re.compile(r"\$\{(?:env:|input:)?([A-Za-z_][A-Za-z0-9_]*)\}|\$([A-Za-z_][A-Za-z0-9_]*)|env:(\w+)")
_INSIDE = re.compile(r"\$\{(?:env:|input:)?([A-Za-z_][A-Za-z0-9_]*)\}")

_NAMES = (
    *("key", "token", "secret", "password", "passwd", "passphrase", "pwd", "credential", "credentials"),
    *("auth", "authorization", "bearer", "jwt", "signature"),
)
_PASS = re.compile(r"pat|pw|\w*(?<!by)(?<!com)(?<!tres)pass")
"""Short words for a password or a personal access token; ``bypass`` and ``compass`` are neither."""
_VAGUE = ("auth", "authorization", "bearer", "signature")
_KEYS = frozenset({"api", "access", "secret", "private", "client", "service", "encryption", "license"})
"""What makes a key a secret; others sort, or open a file."""
_KNOWN = re.compile(
    r"(?:^|[\s=:\"'])(?:sk-[A-Za-z0-9_-]*[0-9]|[rs]k_(?:live|test)_|gh[oprsu]_[A-Za-z0-9]|github_pat_|glpat-|xox[abeoprs]-|xapp-"
    r"|A[KS]IA[A-Z0-9]{12}|AIza[A-Za-z0-9_-]{20}|ya29\.|hf_[A-Za-z0-9]{16}|npm_[A-Za-z0-9]{16}|pypi-[A-Za-z0-9]{16}"
    r"|dop_v1_|shpat_|SG\.[A-Za-z0-9]|eyJ[A-Za-z0-9_-]{8,}\.eyJ|-----BEGIN )"
)
"""How the secrets of well-known services begin."""
_RUN = re.compile(r"[A-Za-z0-9]{20,}")
_RANDOM = 3.5
"""Bits in each letter of a run from which on nobody wrote it by hand."""
_PLACE = r"|[./~].*|[A-Za-z]:\\.*|https?://.*"
_SWITCH = re.compile(
    r"|-|true|false|yes|no|on|off|none|null|auto|default|env|file|stdin|prompt|ask|keychain|keyring|basic|bearer"
    + _PLACE,
    re.DOTALL | re.IGNORECASE,
)
"""What may stand where a secret belongs: a switch, a file, an address."""
_WORD = re.compile(r"|.{1,5}|[a-z]{1,7}" + _PLACE, re.DOTALL)
"""What may stand where a secret could: a short word too, such as ``oauth``."""
_PAIR = re.compile(r"-{0,2}([A-Za-z][\w.-]*)(?:=|:\s*)(.+)", re.DOTALL)
_LOGIN = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s/?#@]*:([^\s/@]+)@")
"""An address with a password in it."""
_PARAMETER = re.compile(r"[?&]([^\s=&?#]+)=([^\s&#]+)")
"""One of the query of an address that stands among the arguments."""
_CHOSEN = re.compile(r"(?=.*[a-z])(?=.*[A-Z])(?=.*[0-9])[^\s/@]{8,}")
"""A password of a person's own making; ``-p`` is more often a port."""


# Finding secrets


def names_secret(name: str) -> bool:
    """Whether something of that name is a secret: its last word counts, so ``api_key`` is one and ``key_id`` is not."""
    last = _words(name)[-1:]
    return bool(last) and (last[0].endswith(_NAMES) or _PASS.fullmatch(last[0]) is not None)


def _words(name: str) -> list[str]:
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]


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


def holds_secret(name: str, value: str) -> bool:
    """Whether something of that name and value has a secret in it when all references are taken out."""
    if variable(value) is not None:
        return False
    rest = _INSIDE.sub("", value)
    if looks_secret(rest) or _LOGIN.search(rest) is not None:
        return True
    if names_secret(name):
        return not _is_harmless(name, re.sub(r"^(?:bearer|basic|token)\b\s*", "", rest.strip(), flags=re.IGNORECASE))
    return any(holds_secret(unquote_plus(one[1]), unquote_plus(one[2])) for one in _PARAMETER.finditer(rest))


def _is_harmless(name: str, value: str) -> bool:
    """Whether a value under the name of a secret is none; a name that may mean something else leaves room for words."""
    *before, last = _words(name)
    vague = last.endswith(_VAGUE) or (last == "key" and not _KEYS.intersection(before[-1:]))
    return (_WORD if vague else _SWITCH).fullmatch(value) is not None


def check_query(url: str) -> str:
    """The URL in its stored form; SetupError names the part of it that holds a secret itself."""
    bare, question, query = url.partition("?")
    if _LOGIN.match(bare):
        raise SetupError(
            "The address holds a password itself, and secrets are not stored. Leave it out of the address, put it into "
            "an environment variable of the gateway and give it as --credential env:NAME."
        )
    stored = _each_segment(bare, _checked_segment)
    if not question:
        return stored
    return f"{stored}?{'&'.join(map(_checked_pair, query.split('&')))}"


def _checked_segment(segment: str) -> str:
    plain = re.sub(r"^env:(\w+)$", r"${\1}", unquote(segment))
    if looks_secret(_INSIDE.sub("", plain)):
        raise _refusal("The path of the address")
    return _INSIDE.sub(lambda match: "${" + match[1] + "}", plain) if _INSIDE.search(plain) else segment


def _checked_pair(pair: str) -> str:
    name, equals, value = pair.partition("=")
    plain = unquote_plus(value)
    if holds_secret(unquote_plus(name), plain):
        raise _refusal(f"The parameter {unquote_plus(name)[:60]!r} of the address")
    return name + equals + (_stored(plain) if _refers(plain) else value)


def _each_segment(bare: str, change: Callable[[str], str]) -> str:
    """A URL without its query, each segment of its path (and its fragment) rewritten."""
    scheme, found, rest = bare.partition("://")
    if not found:
        return bare
    host, *segments = rest.split("/")
    return f"{scheme}://{'/'.join([host, *map(change, segments)])}"


def check_words(words: Sequence[str]) -> list[str]:
    """The arguments of a command in their stored form; SetupError names the one that holds a secret itself."""
    for number, (name, value) in enumerate(_named(words), 1):
        if holds_secret(name, value) or (name == "p" and _CHOSEN.fullmatch(value)):
            which = f"The argument {name!r}" if name and names_secret(name) else f"Argument {number}"
            raise _refusal(f"{which} of the command")
    return [_rewritten(word, _stored) for word in words]


def _named(words: Sequence[str]) -> Iterator[tuple[str, str]]:
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
    places = _places(address)
    values = {name: await vault.get(f"env:{name}") for name in places}

    def put(_: str, text: str) -> str:
        if (name := variable(text)) is not None:
            return values[name].reveal()
        return _INSIDE.sub(lambda match: values[match[1]].reveal(), text)

    hidden = [one for name, one in values.items() if _must_hide(name, one, places[name])]
    return _filled(address, put), (*hidden, *await _given(address, vault))


def _must_hide(name: str, value: Secret, places: set[str]) -> bool:
    """Whether it is a secret, by its own name, its form, or where it goes.

    The home folder may stand in an address too, and must not be struck out of every path that comes back.
    """
    plain = value.reveal()
    return names_secret(name) or looks_secret(plain) or any(holds_secret(place, plain) for place in places)


async def _given(address: str, vault: Vault) -> list[Secret]:
    """The secrets among the variables that a program gets whole from our environment."""
    found = []
    for place, value in Command.parse(address).env.items() if address.startswith(PREFIX) else ():
        if (name := variable(value)) is not None:
            with suppress(SetupError):  # who starts the program says what is missing
                secret = await vault.get(f"env:{name}")
                found += [secret] if _must_hide(name, secret, {place}) else []
    return found


def _places(address: str) -> dict[str, set[str]]:
    """All variables that are put into an address, with the names of the places where they go."""
    found: dict[str, set[str]] = {}

    def note(place: str, text: str) -> str:
        whole = variable(text)
        for name in [whole] if whole is not None else _INSIDE.findall(text):
            found.setdefault(name, set()).add(place)
        return text

    _filled(address, note)
    return found


Put = Callable[[str, str], str]
"""Rewrites the references in a text that stands in a place of some name."""
_PATH = "key"
"""The name that a segment of a path goes by: who refers to something there mostly hides it."""


def _filled(address: str, put: Put) -> str:
    if address.startswith(PREFIX):
        return _filled_command(Command.parse(address), put).address
    bare, question, query = address.partition("?")
    path = _each_segment(bare, partial(_filled_segment, put))
    return f"{path}{question}{'&'.join(_filled_pair(one, put) for one in query.split('&'))}"


def _filled_command(command: Command, put: Put) -> Command:
    named = zip(command.args, _named(command.args), strict=True)
    arguments = tuple(_rewritten(word, partial(put, place)) for word, (place, _) in named)
    # A variable that is a reference and nothing else is put in by whoever starts the program.
    given = {name: value if variable(value) is not None else put(name, value) for name, value in command.env.items()}
    return replace(command, args=arguments, env=given)


def _filled_segment(put: Put, segment: str) -> str:
    return quote(put(_PATH, unquote(segment)), safe="") if _INSIDE.search(segment) else segment


def _filled_pair(pair: str, put: Put) -> str:
    name, equals, value = pair.partition("=")
    return name + equals + (_quoted(partial(put, unquote_plus(name)), value) if equals else value)


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
        filled, hidden = await self._filled(address, secret)
        pattern = route or Route("mcp", address)
        with _purging(hidden):
            agent = await super().describe(filled, secret=secret, route=pattern, registered=registered)
        return _shown(agent if filled == address else replace(agent, source=_source(address)), hidden)

    async def hidden(self, address: str) -> tuple[Secret, ...]:
        """The secrets of an address, which must not come back from there."""
        return (await self._filled(address))[1]

    async def call(self, call: Call) -> Outcome:
        """As MCPConnector, without the secrets of the address in what comes back."""
        assert call.route is not None
        filled, hidden = await self._filled(call.route.address)
        if filled == call.route.address and not hidden:
            return await super().call(call)
        return await _with_address(call, filled, hidden, super().call)

    async def request(
        self, route: Route, *arguments: Any, secret: Secret | None = None, **options: Any
    ) -> dict[str, Any]:
        """As MCPConnector."""
        filled, hidden = await self._filled(route.address, secret)
        with _purging(hidden):
            answer = await super().request(replace(route, address=filled), *arguments, secret=secret, **options)
        return _without(answer, hidden)

    async def items(self, route: Route, *arguments: Any, secret: Secret | None = None) -> list[dict[str, Any]]:
        """As MCPConnector."""
        filled, hidden = await self._filled(route.address, secret)
        with _purging(hidden):
            found = await super().items(replace(route, address=filled), *arguments, secret=secret)
        return [_without(one, hidden) for one in found]

    async def connect(self, route: Route, *, secret: Secret | None = None) -> None:
        """As MCPConnector."""
        filled, hidden = await self._filled(route.address, secret)
        with _purging(hidden):
            await super().connect(replace(route, address=filled), secret=secret)

    async def watch(self, route: Route, uris: Sequence[str], heard: Heard, *, secret: Secret | None = None) -> None:
        """As MCPConnector."""
        filled, hidden = await self._filled(route.address, secret)
        with _purging(hidden):
            await super().watch(replace(route, address=filled), uris, heard, secret=secret)

    def _noted(self, address: str, method: str, params: dict[str, Any]) -> None:
        super()._noted(self._given.get(address, address), method, params)

    def _heard(self, address: str) -> None:
        if self._told is not None:
            self._told(self._given.get(address, address))

    async def _filled(self, address: str, secret: Secret | None = None) -> tuple[str, tuple[Secret, ...]]:
        """The address to speak to, and all that must not come back: its secrets, and the one that goes with it."""
        filled, hidden = await resolve(address, self._vault)
        if filled != address:
            self._given[filled] = address
        return filled, hidden if secret is None else (*hidden, secret)


class ReferringA2AConnector(A2AConnector):
    """Reaches A2A agents by addresses that hold references."""

    def __init__(self, vault: Vault, *arguments: Any, **options: Any):
        self._vault = vault
        super().__init__(*arguments, **options)

    async def describe(
        self, address: str, *, secret: Secret | None = None, route: Route | None = None, registered: bool = False
    ) -> Agent:
        """As A2AConnector; the routes of the agent hold the references."""
        filled, hidden = await resolve(address, self._vault)
        pattern = route or Route("a2a", address)
        if filled == address:
            return await super().describe(address, secret=secret, route=pattern, registered=registered)
        hidden = hidden if secret is None else (*hidden, secret)
        with _purging(hidden):
            agent = await super().describe(filled, secret=secret, route=pattern, registered=registered)
        return _shown(replace(agent, source=_source(address)), hidden)

    async def call(self, call: Call) -> Outcome:
        """As A2AConnector, without the secrets of the address in what comes back."""
        assert call.route is not None
        filled, hidden = await resolve(call.route.address, self._vault)
        if filled == call.route.address:
            return await super().call(call)
        return await _with_address(call, filled, hidden, super().call)


async def _with_address(call: Call, filled: str, hidden: Sequence[Secret], handle: Handler) -> Outcome:
    """A call to an address whose secrets are in it, without them in what comes back."""
    assert call.route is not None
    live = call.live
    before = live.filters
    if hidden:
        live.filters = (_hiding(hidden), *before)
    try:
        outcome = await handle(replace(call, route=replace(call.route, address=filled)))
    finally:
        live.filters = before
    return redact_outcome(outcome, hidden)


@contextmanager
def _purging(hidden: Sequence[Secret]) -> Iterator[None]:
    try:
        yield
    except Agent3Error as wrong:
        raise purged(wrong, hidden) from None


def _shown(agent: Agent, hidden: Sequence[Secret]) -> Agent:
    """The agent without secrets in what the server says of itself; where it is reached is told by reference anyway."""
    if not hidden:
        return agent
    card = _without({"description": agent.description, "name": agent.name, "card": agent.card}, hidden)
    kept = [one for one in agent.capabilities if redact(one.name, hidden) is one.name]
    return replace(agent, **card, capabilities=tuple(_shown_capability(one, hidden) for one in kept))


def _shown_capability(one: Capability, hidden: Sequence[Secret]) -> Capability:
    told = {
        "description": one.description,
        "title": one.title,
        "input_schema": one.input_schema,
        "output_schema": one.output_schema,
        "examples": list(one.examples),
        "meta": one.meta,
    }
    safe = _without(told, hidden)
    return one if safe is told else replace(one, **{**safe, "examples": tuple(safe["examples"])})


def _source(address: str) -> str:
    """Where it comes from, fit to be shown, and the same whatever its secrets are at the time."""
    if not address.startswith(PREFIX):
        return address.partition("?")[0]
    return f"{place_of(address)}#{hashlib.sha256(address.encode()).hexdigest()[:12]}"


def _without(value: dict[str, Any], hidden: Sequence[Secret]) -> dict[str, Any]:
    if not hidden:
        return value
    clean: dict[str, Any] = rewrite_value(value, lambda text: _masked(text, hidden))
    return clean


def _masked(text: str, hidden: Sequence[Secret]) -> str:
    """A text without the secrets; in the base64 of some bytes they are masked inside, for it must stay readable."""
    masked = redact(text, hidden)
    if masked is text:
        return text
    with suppress(ValueError):
        outcome = redact_outcome(Done((Part(raw=base64.b64decode(text, validate=True)),)), hidden)
        assert isinstance(outcome, Done)
        again = base64.b64encode(outcome.parts[0].raw or b"").decode()
        if redact(again, hidden) is again:
            return again
    return masked


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
