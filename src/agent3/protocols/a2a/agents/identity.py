"""Who a message is from: ``A2AIdentityVerifier`` as documented, and ``AgentIdentity``, which signs.

Ed25519 over the message in canonical JSON. A signature is good for one message, once, and for some minutes; keys are
pinned: what was registered is not replaced by the next one who comes along. It verifies; what to do with a message that
is not whose it says is decided by whoever received it.
"""

from __future__ import annotations

import base64
import binascii
import threading
from collections import OrderedDict
from datetime import UTC
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)
from pydantic import ValidationError as Malformed

from agent3 import bridge, jsonrpc
from agent3.definitions import A2AMessage
from agent3.env import REAL, Env
from agent3.errors import AccessError, Conflict, RequestError, SecurityError, SetupError, Unauthenticated
from agent3.identity.nonces import Nonces
from agent3.observe.logs import get as logger
from agent3.protocols.functions.standalone import Standalone
from agent3.security.canonical import canonical

__all__ = ["A2AIdentityVerifier", "AgentIdentity"]

log = logger("a2a.identity")

_PURPOSE = b"agent3 a2a message 1\n"
_SIGNED = jsonrpc.Limits(strict=True)
_SEEN = 100_000
"""Messages remembered in memory. More of them in five minutes are refused, since nobody could tell a copy."""


class AgentIdentity:
    """An agent's own key. ``public_key`` is what others register; the private one stays here."""

    def __init__(self, agent_id: str, private_key: str | bytes | None = None):
        self.agent_id = agent_id
        self._key = Ed25519PrivateKey.generate() if private_key is None else _private(private_key)

    @property
    def public_key(self) -> str:
        """In PEM."""
        return self._key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()

    def private_key(self) -> str:
        """In PEM, unencrypted, to be kept where secrets are kept."""
        return self._key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()

    def sign(self, message: A2AMessage) -> str:
        """The signature of a message; SecurityError for one that says it is from somebody else."""
        if message.from_agent != self.agent_id:
            raise SecurityError(f"{self.agent_id!r} cannot sign a message from {message.from_agent!r}.")
        return base64.urlsafe_b64encode(self._key.sign(_signed(message))).decode().rstrip("=")

    def signed(self, message: A2AMessage) -> A2AMessage:
        """The message with its signature in it."""
        return message.model_copy(update={"signature": self.sign(message)})


class A2AIdentityVerifier:
    """Knows agents by their public keys and says whether a message is from the one that it names.

        verifier = A2AIdentityVerifier()
        verifier.register_agent("flight", identity.public_key)
        assert verifier.verify_message_signature(message, identity.sign(message))

    Each message is good once within ``window`` seconds of its timestamp. With a ``core`` that keeps a database, also
    for all processes on it and after a restart. Safe from any thread.
    """

    def __init__(self, *, core: Standalone | None = None, window: float = 300.0, env: Env = REAL):
        self.trusted_agents: dict[str, str] = {}
        self._keys: dict[str, Ed25519PublicKey] = {}
        self._core = core
        self._window = window
        self._env = env
        self._seen: OrderedDict[str, float] = OrderedDict()
        self._lock = threading.Lock()

    def register_agent(self, agent_id: str, public_key: str, *, replace: bool = False) -> None:
        """Register trusted agent with public key: Ed25519, in PEM or its 32 bytes in base64.

        Conflict when the agent has another key already, unless that is to be replaced, and when the key is another
        agent's: one key with two names would prove neither.
        """
        key = _public(public_key)
        raw = key.public_bytes_raw()
        with self._lock:
            for known, other in self._keys.items():
                same = other.public_bytes_raw() == raw
                if known != agent_id and same:
                    raise Conflict(f"That key is {known!r}'s already. Give {agent_id!r} one of its own.")
                if known == agent_id and not same and not replace:
                    raise Conflict(f"{agent_id!r} has another key. Pass replace=True if it was really changed.")
            self._keys[agent_id] = key
            self.trusted_agents[agent_id] = public_key

    def remove_agent(self, agent_id: str) -> None:
        """Trust an agent no longer."""
        with self._lock:
            self._keys.pop(agent_id, None)
            self.trusted_agents.pop(agent_id, None)

    def verify_message_signature(self, message: A2AMessage, signature: str) -> bool:
        """Verify message was sent by claimed agent, now, and for the first time. The log says why it was not."""
        try:
            self._judge(message, signature)
        except (AccessError, RequestError) as wrong:
            log.warning("message %s: %s", message.message_id[:100], wrong)
            return False
        return True

    async def check(self, message: A2AMessage, signature: str | None, *, age: float = 0.0, again: bool = False) -> None:
        """Likewise; Unauthenticated says why not. Inside the bridge's loop where there is a ``core``.

        ``age`` is for how long it lay in a queue of ours, where it does not grow old. ``again`` is for one that was
        taken from there before.
        """
        self._check_signature(message, signature)
        sent = message.timestamp.timestamp()
        if abs(self._env.now() - age - sent) > self._window:
            raise Unauthenticated(
                f"The message is not of the last {self._window:g} s. Set the clock, and send it anew."
            )
        if not again and not await self._is_first(message, sent + age + self._window):
            raise Unauthenticated("The message came before: it is a copy.")

    def verify_json(self, text: bytes, signature: str) -> A2AMessage:
        """A message from its JSON, verified; names that stand twice in it are refused, for two may read it two ways."""
        try:
            message = A2AMessage.model_validate(jsonrpc.decode(text, _SIGNED))
        except Malformed as wrong:
            raise SecurityError(f"That is no message: {wrong.error_count()} faults.") from None
        self._judge(message, signature)
        return message

    def _judge(self, message: A2AMessage, signature: str) -> None:
        judging = self.check(message, signature)
        bridge.finish(judging) if self._core is None else bridge.run(judging)

    def _check_signature(self, message: A2AMessage, signature: str | None) -> None:
        key = self._keys.get(message.from_agent)
        if key is None:
            raise Unauthenticated(f"Unknown agent: {message.from_agent[:100]!r}. Register its public key.")
        try:
            key.verify(_decoded(signature or ""), _signed(message))
        except (InvalidSignature, ValueError):
            raise Unauthenticated(
                f"The signature is not {message.from_agent[:100]!r}'s, or the message was changed."
            ) from None

    async def _is_first(self, message: A2AMessage, until: float) -> bool:
        if self._core is not None:
            database = (await self._core.house()).database
            return await Nonces(database, env=self._env).claim(f"a2a:{message.from_agent}", message.message_id, until)
        return self._remember(f"{message.from_agent}\n{message.message_id}", until)

    def _remember(self, name: str, until: float) -> bool:
        with self._lock:
            now = self._env.now()
            while self._seen and next(iter(self._seen.values())) < now:
                self._seen.popitem(last=False)
            if name in self._seen:
                return False
            if len(self._seen) >= _SEEN:
                raise Unauthenticated(f"More than {_SEEN} messages came within {self._window:g} s. Give it a core.")
            self._seen[name] = until
            return True


def _signed(message: A2AMessage) -> bytes:
    """What is signed: all of the message, with its moments in UTC, since its JSON has those of whoever writes it."""
    content: dict[str, Any] = message.model_dump(mode="json", exclude={"signature"})
    for name in ("timestamp", "expires_at"):
        moment = getattr(message, name)
        content[name] = moment.astimezone(UTC).isoformat(timespec="microseconds") if moment is not None else None
    return _PURPOSE + canonical(content)


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text.replace("-", "+").replace("_", "/") + "=" * (-len(text) % 4), validate=True)
    except binascii.Error as wrong:
        raise ValueError(str(wrong)) from None


def _public(text: str) -> Ed25519PublicKey:
    try:
        if "-----BEGIN" not in text:
            return Ed25519PublicKey.from_public_bytes(_decoded(text))
        key = load_pem_public_key(text.encode())
    except ValueError as wrong:
        raise SetupError(
            f"That is no public key: {wrong}. Give an Ed25519 key in PEM, or its 32 bytes in base64."
        ) from None
    if not isinstance(key, Ed25519PublicKey):
        raise SetupError(f"The key is a {type(key).__name__}; an Ed25519 key is wanted.")
    return key


def _private(given: str | bytes) -> Ed25519PrivateKey:
    text = given.encode() if isinstance(given, str) else given
    try:
        key = load_pem_private_key(text, None)
    except (ValueError, TypeError):
        raise SetupError("That is no private key in PEM. AgentIdentity(name).private_key() gives one.") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise SetupError(f"The key is a {type(key).__name__}; an Ed25519 key is wanted.")
    return key
