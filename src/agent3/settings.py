"""One frozen Settings, from a file and the environment.

``agent3.toml`` holds the tables below; ``AGENT3_<TABLE>_<FIELD>`` in the environment wins over it, as in
``AGENT3_CALLS_TIMEOUT=5``. An unknown table or field is an error that names it. Secrets do not stand here: a setting
that needs one holds a reference such as ``env:NAME``.
"""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, get_type_hints

import msgspec
from msgspec import Struct

from agent3.errors import SetupError

__all__ = [
    "Callbacks",
    "Calls",
    "Client",
    "Limits",
    "Logs",
    "OAuth",
    "Outbound",
    "Rule",
    "Server",
    "Settings",
    "Storage",
    "Web",
    "data_folder",
    "load",
    "mistaken",
]


class Server(Struct, frozen=True, forbid_unknown_fields=True):
    """The doors."""

    host: str = "127.0.0.1"
    """The address to listen on. Anything but loopback needs at least one client."""
    port: int = 8333
    """The port to listen on; 0 takes a free one."""
    grpc_port: int | None = None
    """The port at which A2A is spoken over gRPC, which needs the extra ``grpc``; 0 takes a free one."""
    sign_cards: bool = True
    """Whether agent cards are signed. The public keys are at ``/.well-known/jwks.json``."""
    card_key: str = ""
    """``env:NAME`` of the private key (PEM, Ed25519 or P-256) that signs cards; empty makes one at the first start."""
    allowed_hosts: tuple[str, ...] = ()
    """Further Host headers to accept, such as ``gateway.example.com``; those of the bound address always are."""
    allowed_origins: tuple[str, ...] = ()
    """Origins of web pages that may call; none by default."""
    max_body: int = 1_048_576
    """Bytes of a request body that a stranger may send."""
    body_seconds: float = 20.0
    """Seconds within which a request body must have arrived."""
    shutdown_seconds: float = 10.0
    """Seconds that running calls get to finish when the gateway stops."""


class Storage(Struct, frozen=True, forbid_unknown_fields=True):
    """Where state lives."""

    url: str = ""
    """``sqlite:///PATH`` or ``postgresql://…``; empty takes ``agent3.db`` in the data folder."""
    max_bytes: int = 4_294_967_296
    """Ceiling of the embedded database: writes beyond it are refused, reads and deletes go on."""
    artifacts: str = ""
    """Folder of large results; empty takes ``artifacts`` beside the database."""
    seal: str = ""
    """``env:NAME`` of the secret that seals tokens and own keys; empty takes a file beside the embedded database."""


class Calls(Struct, frozen=True, forbid_unknown_fields=True):
    """How a call is made."""

    timeout: float = 30.0
    """Seconds for a whole turn, over all attempts and routes."""
    attempt_timeout: float = 20.0
    """Seconds for one attempt, where the capability names none."""
    retries: int = 1
    """Further attempts on one route, where the caller names none."""
    backoff: float = 0.2
    """Seconds of the first retry's ceiling; it doubles each time, with full jitter."""
    backoff_max: float = 5.0
    """Longest pause between two attempts."""
    breaker_failures: int = 5
    """Failures in a row after which a route is left alone."""
    breaker_seconds: float = 30.0
    """Seconds that it is left alone before one call may try it."""
    cache_entries: int = 1_000
    """Results kept for capabilities that allow it."""
    artifact_bytes: int = 65_536
    """A part of a result larger than this is stored and replaced by a reference."""
    result_bytes: int = 8_388_608
    """A text of a result longer than this is cut, with a note that says so."""
    parked: int = 10_000
    """Conversations kept in memory while they wait for an answer."""
    parked_seconds: float = 3_600.0
    """Seconds after which a waiting conversation leaves memory; it stays in storage."""
    events: int = 100_000
    """Events that one turn may tell; one that tells more ends as ``too_large``."""
    event_bytes: int = 16_777_216
    """Bytes that the events of one turn may have together, likewise."""
    job_days: float = 7.0
    """Days that an ended job and its large results can still be read."""
    task_seconds: float = 1.0
    """Seconds after which ``agent3_call`` answers with a task, to an MCP client that can follow tasks."""
    card_seconds: float = 3_600.0
    """Age at which the card of an added agent is asked for again when it is used, meanwhile as it was; 0 for never."""
    ledger_days: float = 90.0
    """Days that the ledger goes back; 0 keeps it for ever."""
    dead_letter_days: float = 30.0
    """Days that a dead letter is kept; 0 keeps it for ever."""
    dead_letters: int = 100_000
    """Dead letters that are kept, of calls and of callbacks: then the oldest are dropped, counted and logged; 0 keeps
    all of them."""
    ledger: Literal["durable", "batched"] = "durable"
    """``durable``: the answer waits until its row is on disk. ``batched``: at most 50 ms behind."""


class Limits(Struct, frozen=True, forbid_unknown_fields=True):
    """How often and how much at once."""

    per_minute: float = 60.0
    """Calls per minute for each client; 0 for no limit. The local person is not limited."""
    burst: int = 20
    """Calls that may come at once before the rate counts."""
    concurrent: int = 100
    """Calls that may run at once on one agent; gateways on one PostgreSQL share them."""


class Outbound(Struct, frozen=True, forbid_unknown_fields=True):
    """What the gateway may connect to."""

    allow_hosts: tuple[str, ...] = ()
    """``host`` or ``host:port`` that may be reached although the address is private or loopback."""
    allow_private: bool = False
    """Whether private addresses may be reached at all."""
    allow_loopback: bool = False
    """Whether this machine itself may be reached."""


class Web(Struct, frozen=True, forbid_unknown_fields=True):
    """Websites that are visited with a browser."""

    secrets: tuple[str, ...] = ()
    """``NAME@host``: environment variables that interfaces may take secrets from, each with the only website that it is
    for; ``NAME@host:port`` for a port of its own, ``NAME@*.host`` also for subdomains."""
    robots: Literal["obey", "pace", "ignore"] = "pace"
    """What a robots.txt decides. ``obey``: no page that it disallows is opened, whoever asks for it. ``pace``: learning
    keeps to it, errands of callers to its Crawl-delay only. ``ignore``: it is not read."""


class Callbacks(Struct, frozen=True, forbid_unknown_fields=True):
    """Callbacks: how callers are told of their jobs."""

    secret: str = ""
    """``env:NAME`` of the secret, ``whsec_…``, that signs deliveries to clients without one of their own; without it
    they are signed with a key whose public half is at ``/.well-known/jwks.json``."""
    schemes: tuple[str, ...] = ("https",)
    """Schemes that an address may have; ``http`` is for trying things out."""
    allow_hosts: tuple[str, ...] = ()
    """``host`` or ``host:port`` that may be told although the address is private or loopback."""
    allow_private: bool = False
    """Whether private addresses may be told at all."""
    allow_loopback: bool = False
    """Whether this machine itself may be told."""
    timeout: float = 10.0
    """Seconds that a receiver has to answer."""
    attempts: int = 8
    """Times that a delivery is tried before it is a dead letter."""
    first_delay: float = 2.0
    """Seconds of the first retry's ceiling; it doubles each time, with full jitter."""
    longest_delay: float = 300.0
    """Longest pause between two attempts, where the receiver asks for none."""
    waiting: int = 10_000
    """Deliveries that may wait; meanwhile calls that want a callback are refused."""
    at_once: int = 32
    """Deliveries that one process makes at once."""


class Logs(Struct, frozen=True, forbid_unknown_fields=True):
    """What is logged, to standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """The least that is shown."""
    format: Literal["text", "json"] = "text"
    """For people or for machines."""


class Client(Struct, frozen=True, forbid_unknown_fields=True):
    """Somebody who may call over the network."""

    id: str
    """The name it goes by in rules, limits and the ledger."""
    key: str = ""
    """``env:NAME``, or ``sha256:HEX`` of the key that it sends as ``Authorization: Bearer …`` or ``X-API-Key``."""
    scopes: tuple[str, ...] = ()
    """Words that rules can ask for."""
    signing: str = ""
    """``env:NAME`` of the secret with which it signs its requests, instead of a key or beside it."""
    require_signature: bool = False
    """Whether its key alone is not enough: every request must be signed."""
    callback_secret: str = ""
    """``env:NAME`` of the secret, ``whsec_…``, that signs what it is told by callbacks."""


class OAuth(Struct, frozen=True, forbid_unknown_fields=True):
    """Access tokens of authorization servers (OAuth 2.1), beside the keys of clients. Nothing without an issuer."""

    issuers: tuple[str, ...] = ()
    """Whose tokens are taken: the issuers' addresses exactly as their tokens name them."""
    resource: str = ""
    """The address of this gateway as its clients write it, such as ``https://gateway.example.com``."""
    audience: tuple[str, ...] = ()
    """What a token may name as its audience, besides ``resource`` and the addresses of the doors below it."""
    scopes: tuple[str, ...] = ()
    """Scopes that every token must have; clients are told to ask for them. Rules can ask for more."""


class Rule(Struct, frozen=True, forbid_unknown_fields=True):
    """Who may call what. The first rule that fits decides; where rules exist and none fits, the answer is no."""

    effect: Literal["allow", "deny"]
    """What it says."""
    principal: str = "*"
    """Which callers, by id, with ``*`` and ``?``."""
    agent: str = "*"
    """Which agents, likewise."""
    capability: str = "*"
    """Which capabilities, likewise."""
    protocol: str = "*"
    """Which routes: mcp, a2a, nlweb, local."""
    scope: str = ""
    """A scope that the caller must have for the rule to fit."""


class Settings(Struct, frozen=True, forbid_unknown_fields=True):
    """All of it."""

    server: Server = Server()
    storage: Storage = Storage()
    calls: Calls = Calls()
    limits: Limits = Limits()
    outbound: Outbound = Outbound()
    web: Web = Web()
    callbacks: Callbacks = Callbacks()
    logs: Logs = Logs()
    oauth: OAuth = OAuth()
    clients: tuple[Client, ...] = ()
    rules: tuple[Rule, ...] = ()


_TABLES: dict[str, type[Struct]] = {
    "server": Server,
    "storage": Storage,
    "calls": Calls,
    "limits": Limits,
    "outbound": Outbound,
    "web": Web,
    "callbacks": Callbacks,
    "logs": Logs,
    "oauth": OAuth,
}
_LISTS: dict[str, type[Struct]] = {"clients": Client, "rules": Rule}
_VARIABLES = (
    *("CONFIG", "DATA", "SERVER", "KEY", "BROWSER", "HOSTS", "HOST_KEYS", "NO_BROWSER", "NO_APT", "PYTHON", "VENV"),
    *("FAILPOINTS", "FAILPOINTS_SEED"),
)
"""What else is read from the environment, in other places."""


def data_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Where agent3 keeps its own files: AGENT3_DATA, else the platform's place for them."""
    if given := environment.get("AGENT3_DATA"):
        return Path(given).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "agent3"
    if sys.platform == "win32":
        return Path(environment.get("LOCALAPPDATA", str(Path.home()))) / "agent3"
    return Path(environment.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "agent3"


def load(
    path: Path | str | None = None,
    environment: Mapping[str, str] = os.environ,
    overrides: Mapping[str, Mapping[str, Any]] | None = None,
) -> Settings:
    """Read the file (if any), then the environment, then ``overrides``; later ones win. Errors name the place."""
    file, tables = _read(path, environment)
    _check_names(file, tables)
    for table, kind in _TABLES.items():
        if not isinstance(tables.setdefault(table, {}), dict):
            raise SetupError(f"settings: {table} is a table: write [{table}], and its fields below it.")
        tables[table].update(_from_environment(table, kind, environment))
    for table, fields in (overrides or {}).items():
        tables.setdefault(table, {}).update({key: value for key, value in fields.items() if value is not None})
    try:
        return msgspec.convert(tables, Settings)
    except msgspec.ValidationError as wrong:
        place = f"{file}: " if file is not None else ""
        raise SetupError(f"settings: {place}{wrong}. See docs/reference/settings.md for every setting.") from None


def mistaken(environment: Mapping[str, str] = os.environ) -> list[str]:
    """A sentence for each variable of the environment that was meant to be a setting and is none.

    What is like no setting is left alone: people give their own secrets such names too.
    """
    known = {f"{table}_{field}".upper(): field for table, kind in _TABLES.items() for field in kind.__struct_fields__}
    found = []
    for variable in sorted(one for one in environment if one.startswith("AGENT3_")):
        name = variable.removeprefix("AGENT3_")
        if name in known or name in _VARIABLES:
            continue
        near = [full for full, field in known.items() if field.upper() == name]
        near = near or get_close_matches(name, [*known, *_VARIABLES], 1, 0.8)
        if near or name.partition("_")[0].lower() in _TABLES:
            hint = f" Did you mean AGENT3_{near[0]}?" if near else " See docs/reference/settings.md."
            found.append(f"{variable} in the environment names no setting, and has no effect.{hint}")
    return found


def _read(path: Path | str | None, environment: Mapping[str, str]) -> tuple[Path | None, dict[str, Any]]:
    given = path or environment.get("AGENT3_CONFIG")
    file = Path(given) if given else Path("agent3.toml")
    if not given and not file.is_file():
        return None, {}
    try:
        return file, tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as wrong:
        raise SetupError(f"settings: cannot read {file}: {wrong.strerror}. Check the path given to --config.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as wrong:
        raise SetupError(f"settings: {file} is not valid TOML: {wrong}") from None


def _check_names(file: Path | None, tables: Mapping[str, Any]) -> None:
    """Every table and field must be one of ours: a word that is misspelt would otherwise have no effect."""
    for table, content in tables.items():
        if table not in _TABLES and table not in _LISTS:
            raise _unknown(file, f"there is no table {table!r}", table, [*_TABLES, *_LISTS])
        fields = (_LISTS.get(table) or _TABLES[table]).__struct_fields__
        for entry in content if isinstance(content, list) else [content]:
            for name in entry if isinstance(entry, dict) else ():
                if name not in fields:
                    raise _unknown(file, f"{table!r} has no field {name!r}", name, fields)


def _unknown(file: Path | None, what: str, name: str, known: Iterable[str]) -> SetupError:
    near = get_close_matches(name, list(known), 1)
    hint = f" Did you mean {near[0]!r}?" if near else " See docs/reference/settings.md for every setting."
    return SetupError(f"settings: {file}: {what}.{hint}")


def _from_environment(table: str, kind: type[Struct], environment: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field, hint in get_type_hints(kind).items():
        variable = f"AGENT3_{table}_{field}".upper()
        if (text := environment.get(variable)) is not None:
            found[field] = _convert(variable, text, hint)
    return found


def _convert(variable: str, text: str, hint: Any) -> Any:
    several = getattr(hint, "__origin__", None) is tuple
    wanted: Any = [one.strip() for one in text.split(",") if one.strip()] if several else text
    try:
        return msgspec.convert(wanted, hint, strict=False)
    except msgspec.ValidationError as wrong:
        raise SetupError(f"{variable}={text!r}: {wrong}. See docs/reference/settings.md.") from None
