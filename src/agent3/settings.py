"""One frozen Settings, from a file and the environment.

``agent3.toml`` holds the tables below; ``AGENT3_<TABLE>_<FIELD>`` in the environment overrides it, as in
``AGENT3_CALLS_TIMEOUT=5``. An unknown table or field is an error that names it. Settings hold no secrets: where one is
needed, the setting holds a reference such as ``env:NAME``.
"""

from __future__ import annotations

import math
import os
import sys
import tomllib
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct

from agent3.errors import SetupError

__all__ = [
    "POSITIVE",
    "Budget",
    "Callbacks",
    "Calls",
    "Client",
    "Costs",
    "Limits",
    "Llm",
    "Logs",
    "OAuth",
    "Outbound",
    "PriceRule",
    "Rate",
    "Rule",
    "Server",
    "Settings",
    "Storage",
    "Web",
    "data_folder",
    "database_url",
    "find_misspelt_variables",
    "load",
    "settings_file",
]


class Server(Struct, frozen=True, forbid_unknown_fields=True):
    """How the gateway serves."""

    host: str = "127.0.0.1"
    """The address to listen on. Anything but loopback needs at least one client."""
    port: int = 8333
    """The port to listen on; 0 takes a free one."""
    health_port: int | None = None
    """A further port for ``/healthz``, ``/readyz`` and ``/metrics`` alone, without TLS: a thread of its own answers
    there, however much there is to do and however many wait to be accepted. 0 takes a free one."""
    grpc_port: int | None = None
    """The port for A2A over gRPC, which needs the extra ``grpc``; 0 takes a free one."""
    tls_certificate: str = ""
    """A file with the certificate of this gateway and its chain (PEM): HTTP and gRPC then speak TLS, 1.2 at least. Its
    files are read again when they change."""
    tls_key: str = ""
    """A file with the private key of the certificate (PEM); if empty, it is in the file of the certificate."""
    tls_client_ca: str = ""
    """A file with the authority of client certificates (PEM): over HTTP, clients may show one in place of a key."""
    grpc_client_certificates: bool = False
    """Whether gRPC requires a certificate of ``tls_client_ca``. It cannot only request one, as HTTP does, so
    clients with a key alone then use HTTP."""
    sign_cards: bool = True
    """Whether agent cards are signed. The public keys are at ``/.well-known/jwks.json``."""
    card_key: str = ""
    """``env:NAME`` of the private key (PEM, Ed25519 or P-256) that signs cards; if empty, one is generated."""
    allowed_hosts: tuple[str, ...] = ()
    """Further Host headers to accept, such as ``gateway.example.com``; those of the bound address always are."""
    allowed_origins: tuple[str, ...] = ()
    """Origins of web pages that may call; none by default."""
    local_key: str = ""
    """A file with the key that callers without one of ``clients`` must show; made, for its owner alone, where there is
    none. Without it everybody on this machine is the local user, unless there are clients."""
    direct_tools: int = 20
    """A caller that may see at most so many capabilities finds each at ``/mcp`` as a tool of its own; 0 for never."""
    max_body: int = 1_048_576
    """Largest request body, in bytes."""
    body_seconds: float = 20.0
    """Seconds within which the head of a request must have arrived, and then its body."""
    max_connections: int = 2_000
    """Connections that are open at once. Beyond it, those that wait are closed first."""
    max_connections_per_address: int = 500
    """Connections of one address; those of this machine are not bounded by it. Raise it behind a proxy."""
    workers: int = 0
    """Processes that serve together behind one port; 0 for a single one without a supervisor."""
    compress_bytes: int = 8_192
    """Answers of at least so many bytes are compressed for clients that accept it; 0 for none."""
    shutdown_seconds: float = 10.0
    """Seconds that running calls have to finish when the gateway stops."""


class Storage(Struct, frozen=True, forbid_unknown_fields=True):
    """Where state is stored."""

    url: str = ""
    """``sqlite:///PATH`` or ``postgresql://…``; if empty, ``agent3.db`` in the data folder."""
    max_bytes: int = 4_294_967_296
    """Largest size of the embedded database: beyond it writes are refused, while reads and deletes go on."""
    artifacts: str = ""
    """Where large results are: a folder, ``database``, or ``s3://BUCKET/PREFIX`` for any S3-compatible store, with its
    key in ``AWS_ACCESS_KEY_ID`` and ``AWS_SECRET_ACCESS_KEY``; if empty, a folder ``artifacts`` beside the database."""
    object_endpoint: str = ""
    """The address of the S3-compatible store, such as ``https://minio.example.com``; if empty, that of AWS."""
    object_region: str = "us-east-1"
    """The region for which requests to it are signed."""
    seal: str = ""
    """The master key, which encrypts what is stored: ``env:NAME``, ``file:PATH`` (readable by its owner alone) or
    ``keyring:NAME``. If empty, a key in a file beside the embedded database seals secrets, tokens and own keys only."""


class Calls(Struct, frozen=True, forbid_unknown_fields=True):
    """How a call is made."""

    timeout: float = 30.0
    """Seconds for a whole turn, over all attempts and routes."""
    attempt_timeout: float = 20.0
    """Seconds for one attempt, unless the capability names its own."""
    start_seconds: float = 300.0
    """Seconds that a program may take until it answers for the first time: npx and uvx install it meanwhile."""
    retries: int = 1
    """Further attempts on one route, unless the caller names a number."""
    backoff: float = 0.2
    """Ceiling of the first retry's pause in seconds; it doubles each time, with full jitter."""
    backoff_max: float = 5.0
    """Longest pause between two attempts."""
    breaker_failures: int = 5
    """Failures in a row after which a route is left alone."""
    breaker_seconds: float = 30.0
    """Seconds that a route is left alone before one call may try it."""
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
    """Events that one turn may emit; a turn that emits more ends as ``too_large``."""
    event_bytes: int = 16_777_216
    """Bytes of all events of one turn together; a turn with more ends as ``too_large``."""
    job_days: float = 7.0
    """Days for which an ended job and its large results can be read."""
    task_seconds: float = 1.0
    """Seconds after which ``agent3_call`` answers with a task, to an MCP client that can follow tasks."""
    card_seconds: float = 3_600.0
    """Age at which the card of an added agent is fetched again, in the background, when it is used; 0 for never."""
    changes: Literal["pin", "trust", "ask"] = "pin"
    """What happens when an added agent describes itself in another way. ``pin``: it is served as it was until somebody
    approves. ``ask``: until then it takes no calls. ``trust``: the change counts. ``agent3 add --changes`` says it for
    one agent."""
    ledger_days: float = 90.0
    """Days for which ledger rows are kept; 0 keeps them for ever."""
    dead_letter_days: float = 30.0
    """Days for which a dead letter is kept; 0 keeps it for ever."""
    dead_letters: int = 100_000
    """Dead letters kept, of calls and callbacks: beyond it the oldest are dropped, counted and logged; 0 keeps all."""
    ledger: Literal["durable", "batched"] = "durable"
    """``durable``: the answer waits until its row is on disk. ``batched``: at most 50 ms behind."""
    bodies: Literal["off", "hashed", "full"] = "off"
    """What is kept of what was sent and answered: nothing, its SHA-256, or its text without secrets."""
    body_days: float = 7.0
    """Days for which bodies are kept; 0 keeps them for ever."""
    body_bytes: int = 65_536
    """Longest text of a body that is kept; the rest is cut, and the text says so."""
    statistics_days: float = 400.0
    """Days for which statistics of calls and of budgets are kept; 0 keeps them for ever."""


class Limits(Struct, frozen=True, forbid_unknown_fields=True):
    """How often and how much at once."""

    per_minute: float = 60.0
    """Calls per minute for each client; 0 for no limit. The local user is not limited."""
    burst: int = 20
    """Calls that may come at once before the rate applies."""
    concurrent: int = 200
    """Calls that may run at once on one agent; gateways on one PostgreSQL share this number."""
    concurrent_each: int = 0
    """Of these, how many may be calls of one client; 0 for half of what the others leave. The local user may have
    all."""
    requests: int = 500
    """HTTP requests of one client that may be under way at once: streams, waits, and calls that are not in the fast
    lane; 0 for no limit."""
    requests_per_minute: float = 0.0
    """HTTP requests of one client per minute, whatever they ask for: reads, lists, waits, new sessions; 0 for twenty
    times ``per_minute``."""
    sessions: int = 1_000
    """MCP sessions that one client may have open; 0 for no limit."""
    questions: int = 1_000
    """Calls of one client that may wait for an answer at once; one more that asks ends as ``rate_limited``; 0 for no
    limit."""
    artifacts: int = 10_000
    """Large results that are kept for one client; 0 for no limit."""
    artifact_bytes: int = 10_000_000_000
    """Bytes of these; 0 for no limit."""


class Outbound(Struct, frozen=True, forbid_unknown_fields=True):
    """What the gateway may connect to."""

    allow_hosts: tuple[str, ...] = ()
    """``host`` or ``host:port`` that may be reached even if its address is private or loopback."""
    allow_private: bool = False
    """Whether private addresses may be reached at all."""
    allow_loopback: bool = False
    """Whether this machine itself may be reached."""


class Web(Struct, frozen=True, forbid_unknown_fields=True):
    """Websites that are visited with a browser."""

    secrets: tuple[str, ...] = ()
    """``NAME@host``: environment variables that interfaces may take secrets from, each with the only website that it is
    for; ``NAME@host:port`` for another port, ``NAME@*.host`` for subdomains too."""
    robots: Literal["obey", "pace", "ignore"] = "pace"
    """What a robots.txt decides. ``obey``: no page that it disallows is opened. ``pace``: learning follows it, calls
    follow only its Crawl-delay. ``ignore``: it is not read."""
    acts_on_pages: bool = False
    """Whether ``command`` does on the page of a website what a caller says and none of its actions is for, as
    ``agent3 web run URL`` does. It asks about what has consequences. Rules for single actions do not bind it, so only
    callers who may use all of them get it."""


class Llm(Struct, frozen=True, forbid_unknown_fields=True):
    """A language model that helps with unclear sentences. Off without a model."""

    model: str = ""
    """The name of the model, as its server knows it."""
    base_url: str = ""
    """Base address of its API; if empty, that of OpenAI or Anthropic. Your own server works, too."""
    api: Literal["openai", "anthropic"] = "openai"
    """Its API: Chat Completions or Messages."""
    key: str = ""
    """``env:NAME`` of its key; if empty, none is sent."""
    timeout: float = 20.0
    """Seconds that it has to answer."""
    per_day: int = 1_000
    """Questions to it per day; beyond that, people are asked instead."""
    max_tokens: int = 1_000
    """Longest answer, in tokens."""
    reads_pages: bool = False
    """Whether it is shown the text of a page where an ``extract`` finds nothing by selectors or by structure."""


class Search(Struct, frozen=True, forbid_unknown_fields=True):
    """How capabilities are found."""

    semantic: bool = True
    """Whether they are also found by meaning and across languages, if the extra ``semantic`` is installed."""


class Callbacks(Struct, frozen=True, forbid_unknown_fields=True):
    """Callbacks: how callers are notified of their jobs."""

    secret: str = ""
    """``env:NAME`` of the secret, ``whsec_…``, that signs deliveries to clients without one of their own; without it
    they are signed with a key whose public part is at ``/.well-known/jwks.json``."""
    schemes: tuple[str, ...] = ("https",)
    """Schemes that an address may have; ``http`` is for tests."""
    allow_hosts: tuple[str, ...] = ()
    """``host`` or ``host:port`` that may be notified even if its address is private or loopback."""
    allow_private: bool = False
    """Whether private addresses may be notified at all."""
    allow_loopback: bool = False
    """Whether this machine itself may be notified."""
    challenge: bool = True
    """Whether an address must first show that it wants to be notified, by answering ``GET …?validationToken=TOKEN``
    with the token. Addresses of ``allow_hosts``, and of this machine, need not."""
    timeout: float = 10.0
    """Seconds that a receiver has to answer."""
    attempts: int = 8
    """Attempts before a delivery becomes a dead letter."""
    first_delay: float = 2.0
    """Ceiling of the first retry's pause in seconds; it doubles each time, with full jitter."""
    longest_delay: float = 300.0
    """Longest pause between two attempts, unless the receiver asks for one."""
    waiting: int = 10_000
    """Deliveries that may wait; beyond that, calls with a callback are refused."""
    at_once: int = 32
    """Deliveries that one process makes at once."""


class Logs(Struct, frozen=True, forbid_unknown_fields=True):
    """What is logged to standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """The lowest level that is logged."""
    format: Literal["text", "json"] = "text"
    """``text`` for people, ``json`` for programs."""
    access: bool = False
    """Whether every HTTP request is logged: method, path, status, seconds. Calls then take longer."""


class Client(Struct, frozen=True, forbid_unknown_fields=True):
    """A client that may call over the network."""

    id: str
    """Its name in rules, limits and the ledger. Entries with one id are keys of one client, and must have the same
    scopes and tenant."""
    key: str = ""
    """``env:NAME``, or ``sha256:HEX`` of the key that it sends as ``Authorization: Bearer …`` or ``X-API-Key``."""
    scopes: tuple[str, ...] = ()
    """Scopes that rules can require."""
    tenant: str = ""
    """Its tenant; it sees only approvals of that tenant, and rules can require it."""
    certificate: str = ""
    """Its client certificate: ``sha256:HEX``, the fingerprint, or ``subject:NAME``, the common name."""
    signing: str = ""
    """``env:NAME`` of the secret with which it signs its requests, instead of a key or in addition to it."""
    require_signature: bool = False
    """Whether every request must be signed, so that its key alone is not enough."""
    callback_secret: str = ""
    """``env:NAME`` of the secret, ``whsec_…``, that signs its callbacks."""


class OAuth(Struct, frozen=True, forbid_unknown_fields=True):
    """Access tokens of authorization servers (OAuth 2.1), in addition to the keys of clients. Off without an issuer."""

    issuers: tuple[str, ...] = ()
    """Whose tokens are accepted: the issuers' addresses exactly as their tokens name them."""
    resource: str = ""
    """The address of this gateway for its clients, such as ``https://gateway.example.com``."""
    audience: tuple[str, ...] = ()
    """Audiences that a token may name, besides ``resource`` and the endpoints below it."""
    scopes: tuple[str, ...] = ()
    """Scopes that every token must have; clients are told to request them. Rules can require more."""


class Rule(Struct, frozen=True, forbid_unknown_fields=True):
    """Who may call what. The first rule that matches decides; if rules exist and none matches, the call is denied."""

    effect: Literal["allow", "deny", "see"]
    """What the rule decides. With ``see``, a capability is listed and found, but calls are forbidden."""
    principal: str = "*"
    """The callers it applies to, by id, with ``*`` and ``?``."""
    agent: str = "*"
    """The agents it applies to, likewise."""
    capability: str = "*"
    """The capabilities it applies to, likewise."""
    protocol: str = "*"
    """The protocols it applies to: mcp, a2a, openapi, nlweb, local."""
    scope: str = ""
    """A scope, such as a role, that the caller must have for the rule to match."""
    tenant: str = "*"
    """The tenants whose clients it applies to, with ``*`` and ``?``; ``""`` for clients without one."""
    arguments: dict[str, str] = {}
    """Only calls whose arguments fit all of these, such as ``amount = "<= 100"`` or ``country = "D*"``."""


class AccessDefault(Struct, frozen=True, forbid_unknown_fields=True):
    """The default if there are no rules."""

    default: Literal["allow", "deny"] = "allow"
    """What clients may call if there are no rules: everything or nothing. Rules deny what none of them allows."""


class ApprovalRule(Struct, frozen=True, forbid_unknown_fields=True):
    """Which calls wait for approval. Every matching rule counts; the first one says how."""

    principal: str = "*"
    """The callers whose calls wait, by id, with ``*`` and ``?``."""
    agent: str = "*"
    """The agents whose calls wait, likewise."""
    capability: str = "*"
    """The capabilities whose calls wait, likewise."""
    consequential: bool = False
    """Only capabilities that declare themselves consequential, such as a payment."""
    arguments: dict[str, str] = {}
    """Only calls whose arguments fit all of these, such as ``amount = "> 100"``."""
    why: str = ""
    """Why it waits, for the caller and the approver."""
    hours: float = 24.0
    """Hours in which it must be approved; at most as long as jobs are kept."""
    approvers: tuple[str, ...] = ()
    """Who may approve: ids of clients, with ``*`` and ``?``, or ``scope:NAME``.

    Without any: operators, and clients with the scope ``agent3:approve``."""
    itself: bool = False
    """Whether the caller may approve its own call: its user is then asked directly, if the protocol can."""


class StandInRoute(Struct, frozen=True, forbid_unknown_fields=True):
    """A capability that stands in for another one that is down, of any protocol."""

    capability: str
    """The capability that gets a stand-in: ``AGENT.CAPABILITY``."""
    also: str
    """The stand-in, likewise. Of several, the first that answers is used."""
    map: dict[str, str] = {}
    """Inputs with different names: the name in ``also``, and the name in ``capability``."""
    output: str = ""
    """The field of the result of ``capability`` that the result of ``also`` becomes; empty where they are alike."""


class Costs(Struct, frozen=True, forbid_unknown_fields=True):
    """What calls are expected to cost at most, in US dollars. Beyond it a warning is logged, counted, and noted in the
    answer; nothing is refused. A negative number turns one off."""

    tools_per_hundred: float = 0.10
    """The last 100 calls of MCP tools together."""
    agents_per_call: float = 0.0
    """One call of an A2A agent."""
    web_per_call: float = 0.02
    """One action of a website."""
    web_per_fifty: float = 1.0
    """The last 50 actions of websites together."""
    reported_per_call: float = 10.0
    """The most that an agent's own report of the cost of one call counts, in the ledger and on budgets."""


class PriceRule(Struct, frozen=True, forbid_unknown_fields=True):
    """What calls cost, in US dollars. The first one that matches counts, in place of the price that the agent itself
    names; what an agent reports that a call did cost can only raise it. A price that was set with ``agent3 price``
    comes before all of them."""

    agent: str = "*"
    """The agents it applies to, by id, with ``*`` and ``?``."""
    capability: str = "*"
    """The capabilities it applies to, likewise."""
    call: float = 0.0
    """For one call."""
    second: float = 0.0
    """For each second until the answer."""
    tokens: float = 0.0
    """For a thousand tokens."""


class Budget(Struct, frozen=True, forbid_unknown_fields=True):
    """How much may be spent. Every budget that matches a call counts it."""

    usd: float
    """US dollars that may be spent."""
    principal: str = "*"
    """The callers it applies to, by id, with ``*`` and ``?``. The local user is ``local``."""
    agent: str = "*"
    """The agents it applies to, likewise."""
    each: Literal["client", "agent", "pair", "all"] = "client"
    """Who has a budget of their own: each client, each agent, each client at each agent, or all share one."""
    per: Literal["day", "all"] = "day"
    """``day``: it is renewed at midnight UTC. ``all``: never."""
    action: Literal["warn", "refuse"] = "warn"
    """``warn``: a note in the answer, the log and a metric. ``refuse``: also further calls fail with
    ``budget_exceeded``."""


class Rate(Struct, frozen=True, forbid_unknown_fields=True):
    """How often an agent or a capability may be called, by all gateways on one database together. Every rate that
    matches a call counts it, also calls of the local user."""

    per_minute: float
    """Calls per minute. Each agent that matches is counted by itself."""
    burst: int = 1
    """Calls that may come at once before the rate applies."""
    agent: str = "*"
    """The agents it applies to, by id, with ``*`` and ``?``."""
    capability: str = "*"
    """The capabilities it applies to, likewise. If it is not ``*``, each one is counted by itself."""
    principal: str = "*"
    """The callers it applies to, likewise."""
    each: Literal["client", "all"] = "all"
    """``client``: each client is counted by itself. ``all``: all of them together."""


class Settings(Struct, frozen=True, forbid_unknown_fields=True):
    """All settings."""

    server: Server = Server()
    storage: Storage = Storage()
    calls: Calls = Calls()
    limits: Limits = Limits()
    outbound: Outbound = Outbound()
    web: Web = Web()
    llm: Llm = Llm()
    search: Search = Search()
    callbacks: Callbacks = Callbacks()
    logs: Logs = Logs()
    oauth: OAuth = OAuth()
    costs: Costs = Costs()
    access: AccessDefault = AccessDefault()
    clients: tuple[Client, ...] = ()
    rules: tuple[Rule, ...] = ()
    approvals: tuple[ApprovalRule, ...] = ()
    routes: tuple[StandInRoute, ...] = ()
    prices: tuple[PriceRule, ...] = ()
    budgets: tuple[Budget, ...] = ()
    rates: tuple[Rate, ...] = ()


_TABLES: dict[str, type[Struct]] = {}
_LISTS: dict[str, type[Struct]] = {}
for _name, _kind in get_type_hints(Settings).items():
    if issubclass(get_origin(_kind) or _kind, Struct):
        _TABLES[_name] = _kind
    else:
        _LISTS[_name] = get_args(_kind)[0]
POSITIVE = {
    "server": {"max_body", "body_seconds", "max_connections", "max_connections_per_address"},
    "storage": {"max_bytes"},
    "calls": {"timeout", "attempt_timeout", "start_seconds", "result_bytes", "events", "event_bytes"},
    "limits": {"burst", "concurrent"},
    "llm": {"timeout", "max_tokens"},
    "callbacks": {"timeout", "attempts", "waiting", "at_once"},
    "approvals": {"hours"},
    "rates": {"burst"},
}
"""The numbers that must be more than 0. No other may be negative, except in ``costs``."""
_MOST_PORT = 65_535
_VARIABLES = (
    *("CONFIG", "DATA", "SERVER", "KEY", "BROWSER", "HOSTS", "HOST_KEYS", "NO_BROWSER", "NO_APT", "PYTHON", "VENV"),
    *("FAILPOINTS", "FAILPOINTS_SEED"),
)
"""Other variables that agent3 reads from the environment."""


def data_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Where agent3 keeps its own files: AGENT3_DATA, else the platform's usual folder."""
    if given := environment.get("AGENT3_DATA"):
        return Path(given).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "agent3"
    if sys.platform == "win32":
        return Path(environment.get("LOCALAPPDATA", str(Path.home()))) / "agent3"
    return Path(environment.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "agent3"


def database_url(settings: Settings) -> str:
    """The database of these settings: the one they name, or ``agent3.db`` in the data folder, which is made."""
    if settings.storage.url:
        return settings.storage.url
    folder = data_folder()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # the ledger is for this user only
    except OSError as error:
        raise SetupError(f"Cannot use the data folder {folder}: {error.strerror}. Set AGENT3_DATA or --db.") from None
    return f"sqlite:///{folder / 'agent3.db'}"


def settings_file(path: Path | str | None = None, environment: Mapping[str, str] = os.environ) -> Path:
    """The file that ``load`` reads, if it is there: the one named, else of ``AGENT3_CONFIG``, else agent3.toml here."""
    return Path(path or environment.get("AGENT3_CONFIG") or "agent3.toml")


def load(
    path: Path | str | None = None,
    environment: Mapping[str, str] = os.environ,
    overrides: Mapping[str, Mapping[str, Any]] | None = None,
) -> Settings:
    """Read the file (if any), then the environment, then ``overrides``; later ones win. Errors name the place."""
    given = path or environment.get("AGENT3_CONFIG")
    file = settings_file(path, environment)
    tables: dict[str, Any] = {}
    if given or file.is_file():
        try:
            tables = tomllib.loads(file.read_text(encoding="utf-8"))
        except OSError as error:
            raise SetupError(
                f"settings: cannot read {file}: {error.strerror}. Check the path given to --config."
            ) from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise SetupError(f"settings: {file} is not valid TOML: {error}") from None
        _check_names(file, tables)
    for table, kind in _TABLES.items():
        if not isinstance(tables.setdefault(table, {}), dict):
            raise SetupError(f"settings: {table} is a table: write [{table}], with its fields below.")
        tables[table].update(_read_environment(table, kind, environment))
    for table, fields in (overrides or {}).items():
        tables.setdefault(table, {}).update({key: value for key, value in fields.items() if value is not None})
    try:
        settings = msgspec.convert(tables, Settings)
    except msgspec.ValidationError as error:
        place = f"{file}: " if given or file.is_file() else ""
        raise SetupError(f"settings: {place}{error}. See docs/reference/settings.md for every setting.") from None
    _check_bounds(settings)
    return settings


def _check_bounds(settings: Settings) -> None:
    """Raise for a number with which nothing would work, or something else than was meant."""
    for table in settings.__struct_fields__:
        content = getattr(settings, table)
        for place, entry in enumerate(content) if isinstance(content, tuple) else [(None, content)]:
            for name in entry.__struct_fields__:
                value = getattr(entry, name)
                if isinstance(value, bool) or not isinstance(value, int | float):
                    continue
                bound = ""
                if not math.isfinite(value):
                    bound = "a finite number"
                elif name in POSITIVE.get(table, ()) and value <= 0:
                    bound = "more than 0"
                elif value < 0 and table != "costs":
                    bound = "0 or more"
                elif name in ("port", "grpc_port") and value > _MOST_PORT:
                    bound = f"at most {_MOST_PORT}"
                if bound:
                    number = "" if place is None else f"[{place}]"
                    raise SetupError(
                        f"settings: {table}{number}.{name} is {value:g}, but must be {bound}. "
                        "See docs/reference/settings.md for every setting."
                    )


def _check_names(file: Path, tables: Mapping[str, Any]) -> None:
    """Raise for an unknown table or field: a misspelt one would otherwise have no effect."""

    def unknown(what: str, name: str, known: Iterable[str]) -> SetupError:
        near = get_close_matches(name, list(known), 1)
        hint = f" Did you mean {near[0]!r}?" if near else " See docs/reference/settings.md for every setting."
        return SetupError(f"settings: {file}: {what}.{hint}")

    for table, content in tables.items():
        if table not in _TABLES and table not in _LISTS:
            raise unknown(f"there is no table {table!r}", table, [*_TABLES, *_LISTS])
        fields = (_LISTS.get(table) or _TABLES[table]).__struct_fields__
        for entry in content if isinstance(content, list) else [content]:
            for name in entry if isinstance(entry, dict) else ():
                if name not in fields:
                    raise unknown(f"{table!r} has no field {name!r}", name, fields)


def _read_environment(table: str, kind: type[Struct], environment: Mapping[str, str]) -> dict[str, Any]:
    """The fields of one table that the environment sets."""
    found: dict[str, Any] = {}
    for field, hint in get_type_hints(kind).items():
        variable = f"AGENT3_{table}_{field}".upper()
        text = environment.get(variable)
        if text is None:
            continue
        is_list = getattr(hint, "__origin__", None) is tuple
        value: Any = [item.strip() for item in text.split(",") if item.strip()] if is_list else text
        try:
            found[field] = msgspec.convert(value, hint, strict=False)
        except msgspec.ValidationError as error:
            raise SetupError(f"{variable}={text!r}: {error}. See docs/reference/settings.md.") from None
    return found


def find_misspelt_variables(environment: Mapping[str, str] = os.environ) -> list[str]:
    """A sentence for each environment variable that looks like a misspelled setting.

    Variables that resemble no setting are ignored: people name their own secrets like this, too.
    """
    known = {f"{table}_{field}".upper(): field for table, kind in _TABLES.items() for field in kind.__struct_fields__}
    found = []
    for variable in sorted(name for name in environment if name.startswith("AGENT3_")):
        name = variable.removeprefix("AGENT3_")
        if name in known or name in _VARIABLES:
            continue
        near = [full for full, field in known.items() if field.upper() == name]
        near = near or get_close_matches(name, [*known, *_VARIABLES], 1, 0.8)
        if near or name.partition("_")[0].lower() in _TABLES:
            hint = f" Did you mean AGENT3_{near[0]}?" if near else " See docs/reference/settings.md."
            found.append(f"The environment variable {variable} is not a setting and has no effect.{hint}")
    return found
