"""Sign-ins: the tokens of servers that somebody signed in to, sealed in the database and renewed when they are used.

A route names its sign-in by reference, ``oauth:ID``. ``SignIns`` is the vault that knows these, and passes every other
reference on. How a person is sent to a page and comes back is not known here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from shlex import quote
from typing import Any, Literal, NoReturn, Protocol, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from agent3.env import REAL, Env
from agent3.errors import (
    CallTimeout,
    MalformedResponse,
    SetupError,
    StorageError,
    TargetError,
    TargetRefused,
    Unavailable,
)
from agent3.identity.loopback_redirect import Guide
from agent3.identity.master_keys import Seals
from agent3.identity.secret_box import seal, unseal
from agent3.identity.secrets import Secret, Vault
from agent3.model import Agent, Route, place_of
from agent3.observe.logs import get as logger
from agent3.protocols.a2a.peer import sign_in as flows
from agent3.protocols.a2a.peer.credentials import Refusal
from agent3.protocols.a2a.peer.sign_in import Flow
from agent3.protocols.mcp.client.channels import Changing
from agent3.protocols.mcp.client.oauth import Grant, SignIn, authorization_code, client_credentials
from agent3.security.outbound import Gate, Stream
from agent3.storage import Database, Row, Transaction
from agent3.storage.leases import Leases

__all__ = ["SCHEME", "Flow", "Plan", "Seals", "SignInEntry", "SignInWish", "SignIns", "Way", "references_of"]

log = logger("server")

K = TypeVar("K")
SCHEME = "oauth:"
Way = Literal["person", "machine"]
_RECENT = 3
"""Tokens of one sign-in that are looked for in what comes back."""
_EARLY = 30.0
"""Seconds before its end at which a token is renewed, or a tenth of its life where that is less."""
_DUTY = 15.0
"""Seconds for which one process of several renews a token, and the others wait for it."""
_AGAIN = 5.0
"""Seconds until a refresh that came to nothing is tried again."""
_NEW = (
    "INSERT INTO sign_ins (until, renews, updated, sealed, id, address, way, version) VALUES (?, ?, ?, ?, ?, ?, ?, 1)"
)
_NEWER = (
    "UPDATE sign_ins SET until = ?, renews = ?, updated = ?, sealed = ?, version = version + 1 WHERE id = ? "
    "RETURNING version"
)


class Plan(Struct, frozen=True, omit_defaults=True):
    """How somebody signs in to the server at an address. ``secret`` is the reference of the client's own secret."""

    address: str
    way: Way
    client_id: str | None = None
    secret: str = ""
    issuer: str | None = None
    redirect: str = ""
    name: str | None = None
    """What the operator calls the agent."""
    flow: Flow | None = None
    """Where one signs in by the card of an A2A agent; an MCP server tells it when it refuses a request."""


@dataclass(frozen=True, slots=True)
class SignInWish:
    """The wish to sign in to what is added: a person by their browser, or a machine by its secret.

    ``secret`` is a reference. A person has so many ``seconds`` to agree.
    """

    way: Way
    guide: Guide
    client_id: str | None = None
    secret: str | None = None
    issuer: str | None = None
    seconds: float = 300.0


@dataclass(frozen=True, slots=True)
class SignInEntry:
    """Where one signs in: the route, and for an agent whose card says how, that and the gate through which it goes."""

    route: Route
    flow: Flow | None = None
    gate: Gate | None = None


class _Kept(Struct, frozen=True):
    plan: Plan
    grant: Grant


class SignIns:
    """All sign-ins of a database, as a vault. It belongs to the event loop it is used in."""

    def __init__(self, database: Database, vault: Vault, seals: Seals, env: Env = REAL):
        self._database = database
        self._vault = vault
        self._seals = seals
        self._env = env
        self._leases = Leases(database, env.id())
        self._tokens: dict[str, _Token] = {}

    async def get(self, reference: str) -> Secret:
        """The secret of a reference; of a sign-in one that is renewed by itself."""
        if not reference.startswith(SCHEME):
            return await self._vault.get(reference)
        token = self._tokens.get(reference)
        if token is None:
            token = await self._load(reference)
        return token.secret

    async def begin(self, plan: Plan, person: SignIn | None = None) -> str:
        """The reference of a new sign-in. It happens when a server asks for it; only then it is stored."""
        await self._seals.keys()  # before anybody is sent anywhere
        reference = f"{SCHEME}{self._env.id()}"
        self._tokens[reference] = await self._made(reference, plan, person)
        return reference

    async def obtain(self, reference: str, gate: Gate) -> None:
        """Have the person of ``begin`` sign in now, and not when somebody asks for it."""
        await self._tokens[reference].renew(gate, {}, Refusal(401))

    def ended(self, reference: str) -> bool:
        """The person of ``begin`` is there no longer; whether they signed in."""
        token = self._tokens[reference]
        token.person = None
        return token.version > 0

    async def forget(self, reference: str) -> None:
        """Delete a sign-in; one that is not there is no matter."""
        self._tokens.pop(reference, None)
        await self._database.write(lambda tx: tx.run("DELETE FROM sign_ins WHERE id = ?", reference))

    async def about(self, agent: Agent) -> dict[str, Any] | None:
        """How somebody is signed in for an agent, for people; None where nobody is, and nothing secret."""
        for reference in sorted(references_of(agent)):
            row = await self._database.one("SELECT address, way, until, renews FROM sign_ins WHERE id = ?", reference)
            if row is not None:
                return _told(row, self._env.now())
        return None

    # Inside

    async def _load(self, reference: str) -> _Token:
        row = await self.row(reference)
        if row is None:
            raise SetupError(
                "The sign-in of this server is not here any more. Add it again: agent3 add ADDRESS --sign-in"
            )
        kept = await self._opened(reference, row)
        token = await self._made(reference, kept.plan, None)
        await token.resume(kept.grant, row["version"])
        return self._tokens.setdefault(reference, token)

    async def _made(self, reference: str, plan: Plan, person: SignIn | None) -> _Token:
        secret = await self._vault.get(plan.secret) if plan.secret else None
        return _Token(self, reference, plan, secret, person)

    async def row(self, reference: str) -> Row | None:
        """What is stored."""
        return await self._database.one("SELECT version, sealed FROM sign_ins WHERE id = ?", reference)

    async def grant(self, reference: str, row: Row) -> Grant:
        """What is sealed in a row."""
        return (await self._opened(reference, row)).grant

    async def _opened(self, reference: str, row: Row) -> _Kept:
        text = unseal(await self._seals.keys(), row["sealed"], reference)
        return msgspec.json.decode(text, type=_Kept)

    async def keep(self, reference: str, plan: Plan, grant: Grant, version: int) -> int:
        """Store what is new of a sign-in and give its version; one that was forgotten meanwhile stays so."""
        text = msgspec.json.encode(_Kept(plan, grant)).decode()
        sealed = seal((await self._seals.keys())[0], text, reference, self._env)
        fields = grant.until, int(grant.renews), self._env.now(), sealed

        async def work(tx: Transaction) -> int:
            if version == 0:
                await tx.run(_NEW, *fields, reference, plan.address, plan.way)
                return 1
            row = await tx.one(_NEWER, *fields, reference)
            return version if row is None else int(row["version"])

        return await self._database.write(work)

    async def duty(self, reference: str) -> bool:
        """Whether this process is the one of several that renews a token now."""
        return await self._leases.take(f"sign-in {reference}", _DUTY)

    async def off_duty(self, reference: str) -> None:
        """Let another process try to renew a token; only where nothing came of it, else it would use the old one."""
        try:
            await self._leases.give_up(f"sign-in {reference}")
        except StorageError as wrong:
            log.warning("the duty to renew a token is kept until it ends: %s", wrong)


class _Access(Protocol):
    """The access token for one server, as ``_Token`` uses it."""

    @property
    def header(self) -> str | None: ...
    @property
    def due(self) -> bool: ...
    def grant(self) -> Grant | None: ...
    async def resume(self, grant: Grant) -> None: ...
    async def refresh(self, gate: Gate) -> bool: ...
    async def headers(self, gate: Gate) -> Mapping[str, str]: ...
    async def renew(self, gate: Gate, sent: Mapping[str, str], refused: Any) -> bool: ...


class _ByCard:
    """A token that a person got us by the flow of an agent's card.

    ``_Token`` holds the lock and the duty around all that asks for another one, and stores what came: a refresh token
    that is used twice, or is not stored, is a person's consent lost.
    """

    def __init__(self, plan: Plan, flow: Flow, secret: Secret | None, person: SignIn, env: Env = REAL):
        self._plan = plan
        self._flow = flow
        self._person = person
        self._env = env
        self._secret = secret
        own = secret.reveal() if secret is not None else None
        self._client = flows.Client(plan.client_id, own) if plan.client_id else None
        self._tokens: flows.Tokens | None = None
        self._got = 0.0
        self._again = 0.0

    @property
    def header(self) -> str | None:
        return None if self._tokens is None else f"Bearer {self._tokens.access_token}"

    @property
    def due(self) -> bool:
        """Whether it is to be renewed before its next use: a little before its end, where that can be done."""
        if self._tokens is None or self._tokens.expires_in is None:
            return False
        if self._over:
            return True
        life = self._tokens.expires_in
        early = min(_EARLY, life / 10) if self._tokens.refresh_token else 0.0
        return self._env.now() >= max(self._again, self._got + life - early)

    @property
    def _over(self) -> bool:
        life = None if self._tokens is None else self._tokens.expires_in
        return life is not None and self._env.now() >= self._got + life

    def grant(self) -> Grant | None:
        if self._tokens is None:
            return None
        life = self._tokens.expires_in
        return Grant(
            msgspec.to_builtins(self._tokens),
            None if life is None else self._got + life,
            None if self._client is None else msgspec.to_builtins(self._client),
        )

    async def resume(self, grant: Grant) -> None:
        tokens = msgspec.convert(grant.tokens, flows.Tokens)
        self._got = self._env.now() if grant.until is None else grant.until - (tokens.expires_in or 0.0)
        self._tokens, self._again = tokens, 0.0
        if grant.client is not None:
            self._client = msgspec.convert(grant.client, flows.Client)

    async def refresh(self, gate: Gate) -> bool:
        if self._tokens is None or not self._tokens.refresh_token or self._client is None:
            return False
        try:
            self._take(await flows.refreshed(self._flow, gate, self._client, self._tokens.refresh_token))
        except TargetRefused:
            self._tokens = None  # a refresh token that is not taken is gone, and what it was for with it
            return False
        return True

    async def headers(self, gate: Gate) -> Mapping[str, str]:
        if self.due:
            await self._ahead(gate)
        return {} if self.header is None else {"Authorization": self.header}

    async def _ahead(self, gate: Gate) -> None:
        """Refresh what is about to end. A token that still holds outlasts a server that is down."""
        place = place_of(self._plan.address)
        if self._env.now() < self._again:
            # Those who wait for the lock would else ask a dead server one after the other.
            raise _not_sent(Unavailable(f"The token for {place} is over, and could not be refreshed a moment ago."))
        try:
            if not await self.refresh(gate):
                self._tokens = None
        except (Unavailable, CallTimeout, MalformedResponse) as wrong:
            self._again = self._env.now() + _AGAIN
            if self._over:
                raise
            log.warning("the token for %s could not be refreshed: %s", place, wrong)

    async def renew(self, gate: Gate, sent: Mapping[str, str], refused: Any) -> bool:
        if sent.get("Authorization") != self.header:
            return True
        if refused.status != 401:
            return False
        flows.check(self._flow, self._plan.issuer, self._secret is not None)
        client = self._client
        if client is None:
            client = await flows.registered(self._flow, gate, self._plan.redirect)
        asked = flows.asking(self._flow, client, self._plan.redirect)
        came = await self._person(asked.url)
        self._take(await flows.exchanged(self._flow, gate, client, self._plan.redirect, asked, came))
        self._client = client
        return True

    def _take(self, tokens: flows.Tokens) -> None:
        self._tokens, self._got, self._again = tokens, self._env.now(), 0.0


class _Token:
    """One sign-in in this process: an ``Authorization`` whose token all processes on the database share."""

    def __init__(self, house: SignIns, reference: str, plan: Plan, client_secret: Secret | None, person: SignIn | None):
        self.version = 0
        self.secret = Changing(reference, self, lambda: self._recent)
        self._house = house
        self._reference = reference
        self._plan = plan
        self.person = person
        self._oauth = _oauth(plan, client_secret, self._send)
        self._client_secret = client_secret
        self._recent: list[Secret] = []
        self._stored: dict[str, Any] | None = None
        self._lock = asyncio.Lock()

    @property
    def origins(self) -> tuple[str, ...]:
        """Where the token may go; none where its card was not read for that."""
        return () if self._plan.flow is None else self._plan.flow.origins

    async def headers(self, gate: Gate) -> Mapping[str, str]:
        """What the next request carries, renewed where its time is nearly over."""
        if self._oauth.header is not None and self._oauth.due:
            async with self._lock:
                if self._oauth.due:
                    await self._renewed_in_time(gate)
        if self._oauth.header is not None:
            return {"Authorization": self._oauth.header}
        if self._plan.way == "person" and self.version:
            _over(self._plan, "is over")  # else it would go as nobody
        return await self._oauth.headers(gate)

    async def renew(self, gate: Gate, sent: Mapping[str, str], refused: Stream | Refusal) -> bool:
        """Get a better one after a refusal: what another process has got, by refreshing, or from the start."""
        async with self._lock:
            if sent.get("Authorization") != self._oauth.header:
                return True
            if refused.status == 401 and self._oauth.header is not None:
                if not await self._my_turn() or await self._on_duty(self._oauth.refresh(gate)):
                    await self._keep()
                    return True
                # A refresh token that was not taken is gone, and what it was for with it.
                sent = sent if self._oauth.header else _without(sent)
            again = await self._oauth.renew(gate, sent, refused)
            await self._keep()
            return again

    async def resume(self, grant: Grant, version: int) -> None:
        """Go on with what is stored."""
        if self._client_secret is not None and grant.client is not None:
            grant = replace(grant, client={**grant.client, "client_secret": self._client_secret.reveal()})
        await self._oauth.resume(grant)
        self.version, self._stored = version, grant.tokens
        self._noticed()

    # Inside

    async def _send(self, url: str) -> str:
        """Send the person out, where there is one: at a gateway nobody can be sent anywhere."""
        if self.person is None:
            _over(self._plan, "does not hold, or not for this")
        return await self.person(url)

    async def _renewed_in_time(self, gate: Gate) -> None:
        while self._oauth.due:
            if not await self._my_turn():
                continue  # what another process got may have ended since
            found = await self._on_duty(self._oauth.headers(gate))
            if not found and self._plan.way == "person":
                _over(self._plan, "is over")
            if not await self._keep():
                await self._house.off_duty(self._reference)
            return

    async def _on_duty(self, work: Awaitable[K]) -> K:
        try:
            return await work
        except TargetError:
            await self._house.off_duty(self._reference)
            raise

    async def _my_turn(self) -> bool:
        """True when it is ours to renew the token; False when another process has done so, and we have theirs."""
        if self.version == 0:
            return True
        try:
            async with asyncio.timeout(_DUTY + 1):
                while True:
                    row = await self._house.row(self._reference)
                    if row is None:
                        _over(self._plan, "was taken back")
                    if row["version"] != self.version:
                        await self.resume(await self._house.grant(self._reference, row), row["version"])
                        return False
                    if await self._house.duty(self._reference):
                        return True
                    await asyncio.sleep(0.2)
        except TimeoutError:
            raise Unavailable(f"Another gateway renews the sign-in to {place_of(self._plan.address)}.") from None

    async def _keep(self) -> bool:
        """Store tokens that are new, be it the refresh token alone, and say whether there are any.

        That they could not be stored is no reason not to use them.
        """
        grant = self._oauth.grant()
        self._noticed()
        if grant is None or grant.tokens == self._stored:
            return False
        if self._plan.secret and grant.client is not None:
            grant = replace(grant, client={key: one for key, one in grant.client.items() if key != "client_secret"})
        try:
            self.version = await self._house.keep(self._reference, self._plan, grant, self.version)
            self._stored = grant.tokens
        except StorageError as wrong:
            log.error("the new token for %s is not stored: %s", place_of(self._plan.address), wrong)
        return True

    def _noticed(self) -> None:
        """A token that is another than before must not come back from now on."""
        header = self._oauth.header
        token = None if header is None else Secret(header.removeprefix("Bearer "))
        if token is not None and self._recent[-1:] != [token]:
            self._recent = [*self._recent, token][-_RECENT:]


def references_of(agent: Agent) -> set[str]:
    """The sign-ins by which an agent is reached."""
    named = {route.credential for one in agent.capabilities for route in one.routes}
    route = agent.meta.get("route")
    if isinstance(route, dict):
        named.add(route.get("credential"))
    return {one for one in named if isinstance(one, str) and one.startswith(SCHEME)}


def _oauth(plan: Plan, secret: Secret | None, person: SignIn) -> _Access:
    if plan.flow is not None:
        return _ByCard(plan, plan.flow, secret, person)
    if plan.way == "person":
        return authorization_code(
            plan.address, person, redirect=plan.redirect, client_id=plan.client_id, secret=secret, issuer=plan.issuer
        )
    if plan.client_id is None or secret is None or plan.issuer is None:
        raise SetupError(
            "To sign in as a machine, say who it is and whose secret it has: --client-id ID --client-secret-ref "
            "env:NAME --issuer https://…, the authorization server that gave them."
        )
    return client_credentials(plan.address, plan.client_id, secret, issuer=plan.issuer)


def _without(sent: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in sent.items() if name != "Authorization"}


def _over(plan: Plan, what: str) -> NoReturn:
    named = f" --name {quote(plan.name)}" if plan.name else ""
    again = f"agent3 add {quote(plan.address)}{named} --sign-in"
    raise _not_sent(TargetRefused(f"The sign-in to {place_of(plan.address)} {what}. Sign in again: {again}"))


def _not_sent(wrong: TargetError) -> TargetError:
    wrong.sent = False
    return wrong


def _told(row: Row, now: float) -> dict[str, Any]:
    told = {"way": row["way"], "until": row["until"], "renews": bool(row["renews"]) or row["way"] == "machine"}
    return told | {"over": not told["renews"] and row["until"] is not None and row["until"] <= now}
