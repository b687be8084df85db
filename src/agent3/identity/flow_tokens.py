"""Access tokens of a person who signs in elsewhere: got by the authorization code flow, and refreshed before they end.

``AccessToken`` is what ``sign_ins`` keeps of every sign-in; a protocol that leads to its authorization server in a way
of its own brings another implementation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec

from agent3.env import REAL, Env
from agent3.errors import CallTimeout, MalformedResponse, TargetRefused, Unavailable
from agent3.identity.authorization import Authorization, Refusal
from agent3.identity.oauth import (
    EARLY,
    RETRY_AFTER,
    Client,
    Flow,
    Grant,
    SignIn,
    Tokens,
    check_flow,
    mark_unsent,
    redeem_code,
    refresh_tokens,
    register_client,
    request_consent,
)
from agent3.identity.secrets import Secret
from agent3.model import place_of
from agent3.observe.logs import get as logger
from agent3.security.outbound import Gate

__all__ = ["AccessToken", "FlowToken"]

log = logger("server")


class AccessToken(Authorization, Protocol):
    """The access token for one server, which can be kept and resumed."""

    @property
    def header(self) -> str | None:
        """What requests carry as ``Authorization``; None where no token is known."""
        ...

    @property
    def due(self) -> bool:
        """Whether it is to be renewed before its next use."""
        ...

    def grant(self) -> Grant | None:
        """What to keep of it; None where no token is known."""
        ...

    async def resume(self, grant: Grant) -> None:
        """Go on with what was kept."""
        ...

    async def refresh(self, gate: Gate) -> bool:
        """Exchange the refresh token now; False where there is none or it is no longer taken."""
        ...


class FlowToken:
    """The token for which a person agreed by one flow.

    It takes no lock: the caller holds one around all that asks for another token, and stores what came. A refresh token
    that is used twice, or not stored, loses the person's consent.
    """

    def __init__(
        self,
        flow: Flow,
        address: str,
        sign_in: SignIn,
        *,
        redirect: str,
        client_id: str | None = None,
        secret: Secret | None = None,
        issuer: str | None = None,
        env: Env = REAL,
    ):
        self._flow = flow
        self._place = place_of(address)
        self._sign_in = sign_in
        self._redirect = redirect
        self._issuer = issuer
        self._has_secret = secret is not None
        self._client = Client(client_id, secret.reveal() if secret is not None else None) if client_id else None
        self._env = env
        self._tokens: Tokens | None = None
        self._obtained = 0.0
        self._next_try = 0.0

    @property
    def header(self) -> str | None:
        return None if self._tokens is None else f"Bearer {self._tokens.access_token}"

    @property
    def due(self) -> bool:
        """A little before its end where it can be refreshed, else at its end."""
        if self._tokens is None or self._tokens.expires_in is None:
            return False
        if self._is_over:
            return True
        life = self._tokens.expires_in
        early = min(EARLY, life / 10) if self._tokens.refresh_token else 0.0
        return self._env.now() >= max(self._next_try, self._obtained + life - early)

    @property
    def _is_over(self) -> bool:
        life = None if self._tokens is None else self._tokens.expires_in
        return life is not None and self._env.now() >= self._obtained + life

    def grant(self) -> Grant | None:
        if self._tokens is None:
            return None
        life = self._tokens.expires_in
        return Grant(
            msgspec.to_builtins(self._tokens),
            None if life is None else self._obtained + life,
            None if self._client is None else msgspec.to_builtins(self._client),
        )

    async def resume(self, grant: Grant) -> None:
        tokens = msgspec.convert(grant.tokens, Tokens)
        self._take(tokens)
        if grant.until is not None:
            self._obtained = grant.until - (tokens.expires_in or 0.0)
        if grant.client is not None:
            self._client = msgspec.convert(grant.client, Client)

    async def refresh(self, gate: Gate) -> bool:
        if self._tokens is None or not self._tokens.refresh_token or self._client is None:
            return False
        try:
            self._take(await refresh_tokens(self._flow, gate, self._client, self._tokens.refresh_token))
        except TargetRefused:
            self._tokens = None  # a refresh token that is not taken is void, and the access token with it
            return False
        return True

    async def headers(self, gate: Gate) -> Mapping[str, str]:
        if self.due:
            if self._env.now() < self._next_try:
                # All who wait for the lock would else ask a dead server, one after the other.
                text = f"The token for {self._place} has expired and could not be refreshed."
                raise mark_unsent(Unavailable(text))
            try:
                if not await self.refresh(gate):
                    self._tokens = None
            except (Unavailable, CallTimeout, MalformedResponse) as error:
                self._next_try = self._env.now() + RETRY_AFTER
                if self._is_over:
                    raise
                log.warning("the token for %s could not be refreshed: %s", self._place, error)
        return {} if self.header is None else {"Authorization": self.header}

    async def renew(self, gate: Gate, sent: Mapping[str, str], refused: Refusal) -> bool:
        """Have the person agree again, unless there is another token already. Only a 401 is worth that."""
        if sent.get("Authorization") != self.header:
            return True
        if refused.status != 401:
            return False
        check_flow(self._flow, self._issuer, has_secret=self._has_secret)
        client = self._client or await register_client(self._flow, gate, self._redirect)
        consent = request_consent(self._flow, client, self._redirect)
        came_back = await self._sign_in(consent.url)
        self._take(await redeem_code(self._flow, gate, client, self._redirect, consent, came_back))
        self._client = client
        return True

    def _take(self, tokens: Tokens) -> None:
        self._tokens, self._obtained, self._next_try = tokens, self._env.now(), 0.0
