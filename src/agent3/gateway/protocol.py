"""What a protocol is to the gateway: one object that says how its things are recognised and called, and its doors.

A protocol is one folder, and one class that an entry point of the group ``agent3.protocols`` names; any package may
bring one. It gets ``Services``, what it may use of the gateway it belongs to, and is asked for:

* ``connector``: how its agents are called;
* ``read``, ``likelihood``, ``register``: how ``agent3 add`` recognises what belongs to it;
* ``renews``, ``renewal_refusal``: whether its agents are asked again what they can do, and what they must not change;
* ``doors``: how others call us by it.

Commands of its own are an entry point of the group ``agent3.commands``, loaded when they are called.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from typing import Protocol as Interface

from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Scope

from agent3.calls.outbox import Outbox
from agent3.env import Env
from agent3.errors import SetupError, TargetRefused
from agent3.gateway.gateway import Gateway
from agent3.gateway.lanes import Lane
from agent3.identity.clients import StoredClients
from agent3.identity.doorkeeper import Doorkeeper
from agent3.identity.flow_tokens import AccessToken
from agent3.identity.master_keys import MasterKeys
from agent3.identity.oauth import SignIn, origin_of
from agent3.identity.own_keys import OwnKeys
from agent3.identity.secrets import Secret, Vault
from agent3.identity.sign_ins import Plan, SignInEntry, SignInWish
from agent3.model import Agent, Connector, Route, own_routes
from agent3.observe.metrics import Metrics
from agent3.security.caller_scope import CallerScope
from agent3.security.limits import ReadMeter
from agent3.security.outbound import Policy
from agent3.settings import Settings
from agent3.storage import Database
from agent3.storage.notifications import News

if TYPE_CHECKING:
    from agent3.gateway.renewal import Renewals
    from agent3.llm.port import LLM
    from agent3.llm.proposals import Proposals

__all__ = ["Door", "Found", "Given", "Listening", "Protocol", "Services"]


@dataclass(slots=True, kw_only=True)
class Services:
    """What a protocol may use of the gateway that it belongs to.

    The lower half is there when the gateway stands: connectors are made before it and may use it only in a call.
    """

    settings: Settings
    env: Env
    metrics: Metrics
    database: Database
    policy: Policy
    """What may be reached outside."""
    vault: Vault
    master_keys: MasterKeys
    own_keys: OwnKeys
    clients: StoredClients
    """Those that were added with ``agent3 client``."""
    news: News
    outbox: Outbox
    files: Path | None
    """The folder for files beside the database; None where everything is in memory."""
    scope: CallerScope
    """Derives the ids that leave in a caller's name."""
    lasting: bool
    """Whether it serves, or is a command that passes."""
    process: str
    """The name of this process among those that serve one gateway."""
    llm: LLM | None = None
    """The language model of the settings, if there is one."""
    proposals: Proposals | None = None
    """Its help with sentences, within its bounds."""

    gateway: Gateway = field(init=False)
    doorkeeper: Doorkeeper = field(init=False)
    reads: ReadMeter = field(init=False)
    """Counts the requests of clients that are no calls."""
    renewals: Renewals = field(init=False)

    def __post_init__(self) -> None:
        self.reads = ReadMeter(self.settings.limits, self.env)


@dataclass(frozen=True, slots=True)
class Given:
    """What ``agent3 add`` was given, unless it is a URL."""

    text: str
    """As it was typed: a command, or JSON."""
    file: Path | None = None
    document: Any = None
    """What the file or the text holds, where that is JSON."""
    name: str | None = None
    credential: str | None = None
    """A reference, with the header or variable that it goes into before it: ``NAME=env:NAME``."""
    fetched: bool = False
    """Whether others wrote it, such as a catalog: then nothing of this machine is filled in."""

    @property
    def where(self) -> str:
        """How people know it: never its content, which may hold what must not be told."""
        return self.text[:100] if self.file is not None else "The given document"


@dataclass(frozen=True, slots=True)
class Found:
    """One thing to be added: how it is reached, what it is called, and what is already known of it."""

    route: Route
    name: str | None = None
    document: Any = None
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Secrets that it came with, by the references in its route; they are kept sealed."""
    fault: SetupError | None = None
    """Why it cannot be added, where what it stands in shows that already; the rest of a file can."""
    tell: Callable[[str], None] | None = None
    """Takes what happens meanwhile, in one line, for people."""


class Protocol:
    """One protocol. Whatever a subclass leaves out, the protocol has not."""

    name: ClassVar[str]
    connector: Connector | None = None
    choices: ClassVar[frozenset[str]] = frozenset()
    """Keys of a route's ``meta`` that ``agent3 add`` may set by an option of that name."""
    media_types: ClassVar[Mapping[str, bool]] = {}
    """How AI catalogs list its agents, and whether ``register`` asks the address of such a description itself.

    Otherwise the description is fetched and given to ``read``.
    """

    def __init__(self, services: Services):
        self.services = services

    # Recognising what is added

    def read(self, given: Given) -> Sequence[Found]:
        """What of it is of this protocol; nothing is asked of anybody. SetupError for what is ours and wrong."""
        return ()

    def likelihood(self, address: str) -> float:
        """How likely a URL is of this protocol: those above 0 are tried in order."""
        return 0.0

    async def is_unlikely(self, address: str, policy: Policy) -> bool:
        """Whether GET requests alone show that a URL is hardly of this protocol, which is then tried last.

        For a protocol that begins by anything else: a service of another kind should not have to wonder.
        """
        return False

    async def register(self, found: Found, vault: Vault) -> Agent:
        """The agent, as it describes itself; TargetError where it is not of this protocol or cannot be reached.

        A route with ``registered`` in its ``meta`` is to a host that the person named, which may be in a private
        network. No protocol sets that itself.
        """
        return await self.describe(found.route, vault)

    async def describe(self, route: Route, vault: Vault) -> Agent:
        """What the agent of a route says of itself now."""
        if self.connector is None:
            raise SetupError(f"This gateway was built without a connector for {self.name}.")
        return await self.connector.describe(route.address)

    def speaks_at(self, agent: Agent, address: str) -> bool:
        """Whether an agent that was found is really the one at this address."""
        return True

    def knows_better(self, agent: Agent) -> bool:
        """Whether what another protocol has found at a URL may be ours, which is then tried first."""
        return False

    async def on_added(self, agent: Agent) -> None:
        """Called when an agent was stored; an error takes it out again."""

    def connected(self) -> Collection[str]:
        """The addresses, as they are stored, for which a program runs or a connection is open."""
        return ()

    async def disconnect(self, addresses: Collection[str]) -> None:
        """End what is open for these addresses, and what is under way there: no agent has them any more.

        What is needed for an agent that is being added stays; this is called again while it is ``connected``.
        """

    async def on_removed(self, agent: Agent) -> None:
        """Called when an agent was removed or replaced: what was kept for it goes."""

    async def sign_in(self, found: Found, wish: SignInWish, refusal: TargetRefused | None) -> SignInEntry | None:
        """Where somebody signs in for it; None where it asks for no sign-in. ``refusal`` is what it said without."""
        return None

    def new_token(self, plan: Plan, secret: Secret | None, sign_in: SignIn) -> AccessToken:
        """The token of a sign-in whose flow ``sign_in`` could not tell beforehand. ``secret`` is the client's own."""
        raise SetupError(f"{self.name} has no sign-in of its own.")

    async def notes(self, agent: Agent) -> dict[str, Any]:
        """What ``agent3_select`` tells of an agent beyond what the directory knows."""
        return {}

    # Keeping what was added up to date

    def renews(self, route: Route) -> bool:
        """Whether the agent of a route is asked again what it can do."""
        return False

    def renewal_refusal(self, before: Agent, now: Agent) -> str | None:
        """Why a new description may not take the place of the old one."""
        return None

    def secret_origins(self, agent: Agent) -> frozenset[str]:
        """The origins that the secret of an agent goes to, by its description."""
        routes = (route for capability in agent.capabilities for route in own_routes(capability))
        return frozenset(origin_of(route.address) for route in routes if "://" in route.address)

    # Serving

    async def start(self) -> None:
        """Called once, when the gateway stands and before any door opens."""

    async def check(self) -> None:
        """Raise what a gateway that serves, rather than a passing command, would raise in ``start`` or ``listen``."""

    def doors(self) -> Sequence[Door]:
        """How others call us by this protocol."""
        return ()

    async def serve_stdio(self) -> None:
        """Serve one host over standard input and output."""
        raise SetupError(f"{self.name} does not support standard input and output.")


class Listening(Interface):
    """A port that a door listens on beside HTTP."""

    name: str
    """What is spoken there, for people."""
    port: int

    async def aclose(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """A way in over HTTP, and what else belongs to it."""

    routes: Sequence[BaseRoute] = ()
    """Behind the middleware of the app: for requests of web pages, and whatever ``app`` does not take."""
    app: ASGIApp | None = None
    takes: Callable[[Scope], bool] = lambda scope: False
    """The requests that ``app`` takes before any middleware, unless a web page sends them."""
    checks_hosts: bool = False
    """Whether ``app`` judges by itself by which names it may be called."""
    lane: Callable[[str], Lane | None] = lambda path: None
    """The fast lane of a path."""
    running: Callable[[], AbstractAsyncContextManager[Any]] = nullcontext
    """Entered while the gateway serves."""
    listen: Callable[[str, Callable[[Scope], Awaitable[None]]], Awaitable[Listening | None]] | None = None
    """Opens a port of its own, where the settings ask for one: given our URL, and what judges tokens in a scope."""
    open_paths: tuple[str, ...] = ()
    """Beginnings of paths where strangers may send large bodies, which the door judges before it reads them."""
    about: Sequence[tuple[str, str]] = ()
    """What it is called, and its paths, for people."""
