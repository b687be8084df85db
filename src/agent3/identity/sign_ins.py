"""Sign-ins: the tokens of servers that a person signed in to, sealed in the database and renewed when they are used.

A route names its sign-in by reference, ``oauth:ID``. ``SignIns`` is the vault that knows these, and passes every other
reference on. How a person is sent to a page and comes back is not known here, nor is any protocol: one that leads to
its authorization server in a way of its own registers how.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from shlex import quote
from typing import Any, Literal, NoReturn, TypeAlias, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from agent3.env import REAL, Env
from agent3.errors import SetupError, StorageError, TargetError, TargetRefused, Unavailable
from agent3.identity.authorization import Proves, Refusal, Refused, RenewableSecret
from agent3.identity.flow_tokens import AccessToken, FlowToken
from agent3.identity.loopback_redirect import Guide
from agent3.identity.master_keys import MasterKeys
from agent3.identity.oauth import Flow, Grant, SignIn, mark_unsent
from agent3.identity.secret_box import seal, unseal
from agent3.identity.secrets import Secret, Vault
from agent3.model import Agent, Route, own_routes, place_of
from agent3.observe.logs import get as logger
from agent3.security.outbound import Gate
from agent3.storage import Database, Row, Transaction
from agent3.storage.leases import Leases

__all__ = ["SCHEME", "NewToken", "Plan", "SignInEntry", "SignInWish", "SignIns", "Way", "references_of"]

log = logger("server")

T = TypeVar("T")
SCHEME = "oauth:"
Way = Literal["person", "machine"]
_RECENT = 3
"""Tokens of one sign-in that are looked for in what comes back."""
_TURN = 15.0
"""Seconds for which one process of several renews a token, and the others wait for it."""
_INSERT = (
    "INSERT INTO sign_ins (until, renews, updated, sealed, id, address, way, version) VALUES (?, ?, ?, ?, ?, ?, ?, 1)"
)
_UPDATE = (
    "UPDATE sign_ins SET until = ?, renews = ?, updated = ?, sealed = ?, version = version + 1 WHERE id = ? "
    "RETURNING version"
)


class Plan(Struct, frozen=True, omit_defaults=True):
    """How to sign in to the server at an address. ``secret`` is the reference of the client's own secret."""

    address: str
    way: Way
    client_id: str | None = None
    secret: str = ""
    issuer: str | None = None
    redirect: str = ""
    name: str | None = None
    """The operator's name for the agent."""
    flow: Flow | None = None
    """The flow, where it is known beforehand; else the protocol finds it when the server refuses a request."""
    protocol: str = "mcp"
    """Whose way it is where there is no flow. Sign-ins that were stored without it are of the default."""


NewToken: TypeAlias = Callable[[Plan, Secret | None, SignIn], AccessToken]
"""Gives the token of a plan without a flow: of the plan, the client's own secret, and who sends a person out."""


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
    """Where to sign in: the route, and where the flow is known beforehand, that and the gate through which it goes."""

    route: Route
    flow: Flow | None = None
    gate: Gate | None = None


class _Kept(Struct, frozen=True):
    plan: Plan
    grant: Grant


class SignIns:
    """All sign-ins of a database, as a vault. It belongs to the event loop it is used in.

    ``new_token`` holds, by the name of a protocol, how it gets a token for a plan without a flow.
    """

    def __init__(self, database: Database, vault: Vault, master_keys: MasterKeys, env: Env = REAL):
        self.new_token: dict[str, NewToken] = {}
        self._database = database
        self._vault = vault
        self._master_keys = master_keys
        self._env = env
        self._leases = Leases(database, env.id())
        self._tokens: dict[str, _SharedToken] = {}

    async def get(self, reference: str) -> Secret:
        """The secret of a reference; that of a sign-in renews itself."""
        if not reference.startswith(SCHEME):
            return await self._vault.get(reference)
        token = self._tokens.get(reference)
        if token is None:
            row = await self.load(reference)
            if row is None:
                raise SetupError(
                    "The sign-in of this server no longer exists. Add the server again: agent3 add ADDRESS --sign-in"
                )
            kept = await self.open(reference, row)
            token = await self._token_of(reference, kept.plan, None)
            await token.resume(kept.grant, row["version"])
            token = self._tokens.setdefault(reference, token)
        return token.secret

    async def begin(self, plan: Plan, sign_in: SignIn | None = None) -> str:
        """The reference of a new sign-in. It happens when a server asks for it; only then it is stored."""
        await self._master_keys.keys()  # what cannot be stored must not trouble a person
        reference = f"{SCHEME}{self._env.id()}"
        self._tokens[reference] = await self._token_of(reference, plan, sign_in)
        return reference

    async def obtain(self, reference: str, gate: Gate) -> None:
        """Have the person of ``begin`` sign in now, and not at the first request that is refused."""
        await self._tokens[reference].renew(gate, {}, Refused(401))

    def finish(self, reference: str) -> bool:
        """Send the person of ``begin`` nowhere from now on; whether they signed in."""
        token = self._tokens[reference]
        token.sign_in = None
        return token.version > 0

    async def forget(self, reference: str) -> None:
        """Delete a sign-in, if it exists."""
        self._tokens.pop(reference, None)
        await self._database.write(lambda tx: tx.run("DELETE FROM sign_ins WHERE id = ?", reference))

    async def about(self, agent: Agent) -> dict[str, Any] | None:
        """The state of an agent's sign-in, for people, without secrets; None where it has none."""
        for reference in sorted(references_of(agent)):
            row = await self._database.one("SELECT address, way, until, renews FROM sign_ins WHERE id = ?", reference)
            if row is not None:
                way, until = row["way"], row["until"]
                renews = bool(row["renews"]) or way == "machine"
                over = not renews and until is not None and until <= self._env.now()
                return {"way": way, "until": until, "renews": renews, "over": over}
        return None

    async def _token_of(self, reference: str, plan: Plan, sign_in: SignIn | None) -> _SharedToken:
        secret = await self._vault.get(plan.secret) if plan.secret else None
        return _SharedToken(self, reference, plan, secret, sign_in)

    # For the tokens of this module

    async def load(self, reference: str) -> Row | None:
        """The row of a sign-in."""
        return await self._database.one("SELECT version, sealed FROM sign_ins WHERE id = ?", reference)

    async def open(self, reference: str, row: Row) -> _Kept:
        """What is sealed in a row."""
        text = unseal(await self._master_keys.keys(), row["sealed"], reference)
        return msgspec.json.decode(text, type=_Kept)

    async def save(self, reference: str, plan: Plan, grant: Grant, version: int) -> int:
        """Store a new grant and give its version; a sign-in that was forgotten meanwhile stays so."""
        text = msgspec.json.encode(_Kept(plan, grant)).decode()
        sealed = seal((await self._master_keys.keys())[0], text, reference, self._env)
        fields = grant.until, int(grant.renews), self._env.now(), sealed

        async def work(tx: Transaction) -> int:
            if version == 0:
                await tx.run(_INSERT, *fields, reference, plan.address, plan.way)
                return 1
            row = await tx.one(_UPDATE, *fields, reference)
            return version if row is None else int(row["version"])

        return await self._database.write(work)

    async def take_turn(self, reference: str) -> bool:
        """Whether this process is the one of several that renews a token now."""
        return await self._leases.take(f"sign-in {reference}", _TURN)

    async def give_up_turn(self, reference: str) -> None:
        """Let another process renew a token. Only where nothing came of it: others would else use the old one."""
        try:
            await self._leases.give_up(f"sign-in {reference}")
        except StorageError as error:
            log.warning("no other process can renew the token %s until the lease expires: %s", reference, error)


class _SharedToken:
    """One sign-in in this process: an ``Authorization`` whose token all processes on the database share."""

    def __init__(
        self, sign_ins: SignIns, reference: str, plan: Plan, client_secret: Secret | None, sign_in: SignIn | None
    ):
        origins = () if plan.flow is None else plan.flow.origins
        self.version = 0
        self.secret = RenewableSecret(reference, self, lambda: self._recent, origins)
        self.sign_in = sign_in
        self._sign_ins = sign_ins
        self._reference = reference
        self._plan = plan
        self._client_secret = client_secret
        self._recent: list[Secret] = []
        self._stored: dict[str, Any] | None = None
        self._lock = asyncio.Lock()
        self._renewing: set[asyncio.Future[Any]] = set()
        self._token: AccessToken
        if plan.flow is not None:
            self._token = FlowToken(
                plan.flow,
                plan.address,
                self._send_person,
                redirect=plan.redirect,
                client_id=plan.client_id,
                secret=client_secret,
                issuer=plan.issuer,
            )
        elif new_token := sign_ins.new_token.get(plan.protocol):
            self._token = new_token(plan, client_secret, self._send_person)
        else:
            raise SetupError(f"This gateway cannot sign in over {plan.protocol}: it was built without that protocol.")

    async def headers(self, gate: Gate) -> Mapping[str, str]:
        """What the next request carries, renewed where its time is nearly over."""
        if self._token.header is not None and self._token.due:
            await self._to_its_end(self._renew_if_due(gate))
        if self._token.header is not None:
            return {"Authorization": self._token.header}
        if self._plan.way == "person" and self.version:
            self._refuse("has expired")  # else the request would go out without a token
        return await self._token.headers(gate)

    async def renew(self, gate: Gate, sent: Mapping[str, str], refused: Refusal) -> bool:
        """Get a better one after a refusal: what another process has got, by refreshing, or from the start."""
        renewing = self._renew(gate, sent, refused)
        # A person who is sent out may give up; nobody waits for them any longer than for their command.
        return await (renewing if self.sign_in is not None else self._to_its_end(renewing))

    async def _to_its_end(self, work: Coroutine[Any, Any, T]) -> T:
        """Whoever leaves meanwhile leaves the work to itself: a refresh token that was used up must not be lost before
        the new one is stored."""
        doing = asyncio.ensure_future(work)
        self._renewing.add(doing)
        doing.add_done_callback(self._end_renewal)
        return await asyncio.shield(doing)

    def _end_renewal(self, done: asyncio.Future[Any]) -> None:
        self._renewing.discard(done)
        if not done.cancelled() and (error := done.exception()) is not None:
            log.debug("a token was not renewed: %s", error)  # whoever waits gets it; somebody may have left

    async def _renew_if_due(self, gate: Gate) -> None:
        async with self._lock:
            if self._token.due:
                await self._renew_in_time(gate)

    async def _renew(self, gate: Gate, sent: Mapping[str, str], refused: Refusal) -> bool:
        async with self._lock:
            if sent.get("Authorization") != self._token.header:
                return True
            if refused.status == 401 and self._token.header is not None:
                if not await self._wait_for_turn() or await self._in_turn(self._token.refresh(gate)):
                    await self._save()
                    return True
                if not self._token.header:
                    # The refresh token was not taken, and the token that was sent is void with it.
                    sent = {name: value for name, value in sent.items() if name != "Authorization"}
            again = await self._token.renew(gate, sent, refused)
            await self._save()
            return again

    def prove(self, method: str, url: str, sent: Mapping[str, str]) -> Mapping[str, str]:
        """What a request carries beside a token that is bound to a key."""
        return self._token.prove(method, url, sent) if isinstance(self._token, Proves) else {}

    def take_nonce(self, answered: Mapping[str, str]) -> bool:
        """Keep the nonce of an answer for the next proof."""
        return isinstance(self._token, Proves) and self._token.take_nonce(answered)

    async def resume(self, grant: Grant, version: int) -> None:
        """Go on with what is stored."""
        if self._client_secret is not None and grant.client is not None:
            grant = replace(grant, client={**grant.client, "client_secret": self._client_secret.reveal()})
        await self._token.resume(grant)
        self.version, self._stored = version, grant.tokens
        self._note_token()

    async def _send_person(self, url: str) -> str:
        """Send the person out, where there is one: a gateway that serves can send nobody anywhere."""
        if self.sign_in is None:
            self._refuse("is not valid, or not for this server")
        return await self.sign_in(url)

    async def _renew_in_time(self, gate: Gate) -> None:
        while self._token.due:
            if not await self._wait_for_turn():
                continue  # what another process got may have ended since
            found = await self._in_turn(self._token.headers(gate))
            if not found and self._plan.way == "person":
                self._refuse("has expired")
            if not await self._save():
                await self._sign_ins.give_up_turn(self._reference)
            return

    async def _in_turn(self, work: Awaitable[T]) -> T:
        try:
            return await work
        except TargetError:
            await self._sign_ins.give_up_turn(self._reference)
            raise

    async def _wait_for_turn(self) -> bool:
        """True when this process is to renew the token; False when another one has, and its token was taken over."""
        if self.version == 0:
            return True
        try:
            async with asyncio.timeout(_TURN + 1):
                while True:
                    row = await self._sign_ins.load(self._reference)
                    if row is None:
                        self._refuse("was removed")
                    if row["version"] != self.version:
                        kept = await self._sign_ins.open(self._reference, row)
                        await self.resume(kept.grant, row["version"])
                        return False
                    if await self._sign_ins.take_turn(self._reference):
                        return True
                    await asyncio.sleep(0.2)
        except TimeoutError:
            place = place_of(self._plan.address)
            raise Unavailable(f"Another gateway is renewing the sign-in to {place}. Try again.") from None

    async def _save(self) -> bool:
        """Store tokens that are new, be it the refresh token alone, and say whether there are any.

        A failure to store them is logged: they are good nevertheless.
        """
        grant = self._token.grant()
        self._note_token()
        if grant is None or grant.tokens == self._stored:
            return False
        if self._plan.secret and grant.client is not None:
            # The client's own secret stays where its reference points.
            client = {name: value for name, value in grant.client.items() if name != "client_secret"}
            grant = replace(grant, client=client)
        try:
            self.version = await self._sign_ins.save(self._reference, self._plan, grant, self.version)
            self._stored = grant.tokens
        except StorageError as error:
            log.error("the new token for %s was not stored: %s", place_of(self._plan.address), error)
        return True

    def _note_token(self) -> None:
        """Remember the current token, so that it is redacted from whatever comes back."""
        header = self._token.header
        token = None if header is None else Secret(header.removeprefix("Bearer ").removeprefix("DPoP "))
        if token is not None and self._recent[-1:] != [token]:
            self._recent = [*self._recent, token][-_RECENT:]

    def _refuse(self, why: str) -> NoReturn:
        plan = self._plan
        named = f" --name {quote(plan.name)}" if plan.name else ""
        again = f"agent3 add {quote(plan.address)}{named} --sign-in"
        text = f"The sign-in to {place_of(plan.address)} {why}. Sign in again: {again}"
        raise mark_unsent(TargetRefused(text))


def references_of(agent: Agent) -> set[str]:
    """The sign-ins by which an agent is reached."""
    references = {route.credential for capability in agent.capabilities for route in own_routes(capability)}
    route = agent.meta.get("route")
    if isinstance(route, dict):
        references.add(route.get("credential"))
    return {reference for reference in references if isinstance(reference, str) and reference.startswith(SCHEME)}
