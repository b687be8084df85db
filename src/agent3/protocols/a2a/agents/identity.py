"""Who a message is from: ``A2AIdentityVerifier`` as documented, and ``AgentIdentity``, which signs.

Ed25519 over the message in canonical JSON. A signature is good for one message, once, and for some minutes. Keys are
pinned: a registered key is not replaced by the next one that comes along. What to do with a message that fails is up to
its receiver.
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
from pydantic import ValidationError as PydanticError

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
_STRICT = jsonrpc.Limits(strict=True)
_SEEN = 100_000
"""Messages remembered in memory. More of them within the window are refused, because copies could not be told."""


class AgentIdentity:
    """An agent's own key. ``public_key`` is what others register; the private one stays here."""

    def __init__(self, agent_id: str, private_key: str | bytes | None = None):
        self.agent_id = agent_id
        self._key = Ed25519PrivateKey.generate() if private_key is None else _load_private_key(private_key)

    @property
    def public_key(self) -> str:
        """The public key, in PEM."""
        return self._key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()

    def private_key(self) -> str:
        """The private key, in PEM and unencrypted, to be kept where secrets are kept."""
        return self._key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()

    def sign(self, message: A2AMessage) -> str:
        """The signature of a message; SecurityError for a message from another agent."""
        if message.from_agent != self.agent_id:
            raise SecurityError(f"{self.agent_id!r} cannot sign a message from {message.from_agent!r}.")
        return base64.urlsafe_b64encode(self._key.sign(_signed_bytes(message))).decode().rstrip("=")

    def signed(self, message: A2AMessage) -> A2AMessage:
        """A copy of the message with its signature in it."""
        return message.model_copy(update={"signature": self.sign(message)})


class A2AIdentityVerifier:
    """Knows agents by their public keys, and checks whether a message is from the agent that it names.

        verifier = A2AIdentityVerifier()
        verifier.register_agent("flight", identity.public_key)
        assert verifier.verify_message_signature(message, identity.sign(message))

    Each message is good once, within ``window`` seconds of its timestamp; with a ``core`` that has a database, once for
    all processes on it, also after a restart. Safe from any thread.
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

        Conflict if the agent has another key already, unless ``replace`` is given, and if the key is another agent's:
        one key with two names would prove neither.
        """
        key = _load_public_key(public_key)
        raw = key.public_bytes_raw()
        with self._lock:
            for known, other in self._keys.items():
                same = other.public_bytes_raw() == raw
                if known != agent_id and same:
                    raise Conflict(f"That key already belongs to {known!r}. Give {agent_id!r} its own.")
                if known == agent_id and not same and not replace:
                    raise Conflict(f"{agent_id!r} has another key. Pass replace=True if it really changed.")
            self._keys[agent_id] = key
            self.trusted_agents[agent_id] = public_key

    def remove_agent(self, agent_id: str) -> None:
        """Trust an agent no longer."""
        with self._lock:
            self._keys.pop(agent_id, None)
            self.trusted_agents.pop(agent_id, None)

    def verify_message_signature(self, message: A2AMessage, signature: str) -> bool:
        """Verify message was sent by claimed agent, now, and for the first time. If not, the log says why."""
        try:
            self._check_now(message, signature)
        except (AccessError, RequestError) as error:
            log.warning("message %s: %s", message.message_id[:100], error)
            return False
        return True

    async def check(self, message: A2AMessage, signature: str | None, *, age: float = 0.0, again: bool = False) -> None:
        """Likewise; Unauthenticated says why not. With a ``core``, only inside the bridge's loop.

        ``age`` is the time in one of our queues, which does not count. ``again`` is for a message that was taken from
        there before.
        """
        key = self._keys.get(message.from_agent)
        if key is None:
            raise Unauthenticated(f"Unknown agent: {message.from_agent[:100]!r}. Register its public key.")
        try:
            key.verify(_decode_base64(signature or ""), _signed_bytes(message))
        except (InvalidSignature, ValueError):
            raise Unauthenticated(
                f"The signature is not from {message.from_agent[:100]!r}, or the message was changed."
            ) from None
        sent = message.timestamp.timestamp()
        if abs(self._env.now() - age - sent) > self._window:
            raise Unauthenticated(f"The message is older than {self._window:g} s. Check the clocks, and send it again.")
        if again:
            return
        until = sent + age + self._window
        if self._core is not None:
            nonces = Nonces((await self._core.call_core()).database, env=self._env)
            first = await nonces.claim(f"a2a:{message.from_agent}", message.message_id, until)
        else:
            first = self._remember(f"{message.from_agent}\n{message.message_id}", until)
        if not first:
            raise Unauthenticated("The message was already received: this is a copy.")

    def verify_json(self, text: bytes, signature: str) -> A2AMessage:
        """A verified message from its JSON. Duplicate names are refused, because parsers differ in which one counts."""
        try:
            message = A2AMessage.model_validate(jsonrpc.decode(text, _STRICT))
        except PydanticError as error:
            raise SecurityError(f"Not a valid message: {error.error_count()} errors.") from None
        self._check_now(message, signature)
        return message

    def _check_now(self, message: A2AMessage, signature: str) -> None:
        checking = self.check(message, signature)
        bridge.finish(checking) if self._core is None else bridge.run(checking)

    def _remember(self, name: str, until: float) -> bool:
        """Remember a message until a time; whether it is the first one of its name."""
        with self._lock:
            now = self._env.now()
            while self._seen and next(iter(self._seen.values())) < now:
                self._seen.popitem(last=False)
            if name in self._seen:
                return False
            if len(self._seen) >= _SEEN:
                raise Unauthenticated(f"More than {_SEEN} messages arrived within {self._window:g} s. Give it a core.")
            self._seen[name] = until
            return True


def _signed_bytes(message: A2AMessage) -> bytes:
    """What is signed: the whole message, with its times in UTC, since its JSON has them in the writer's local time."""
    content: dict[str, Any] = message.model_dump(mode="json", exclude={"signature"})
    for name in ("timestamp", "expires_at"):
        moment = getattr(message, name)
        content[name] = moment.astimezone(UTC).isoformat(timespec="microseconds") if moment is not None else None
    return _PURPOSE + canonical(content)


def _decode_base64(text: str) -> bytes:
    """Plain or URL-safe base64, with or without padding; ValueError for anything else."""
    try:
        return base64.b64decode(text.replace("-", "+").replace("_", "/") + "=" * (-len(text) % 4), validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from None


def _load_public_key(text: str) -> Ed25519PublicKey:
    try:
        if "-----BEGIN" not in text:
            return Ed25519PublicKey.from_public_bytes(_decode_base64(text))
        key = load_pem_public_key(text.encode())
    except ValueError as error:
        raise SetupError(f"Not a public key: {error}. Give an Ed25519 key in PEM, or its 32 bytes in base64.") from None
    if not isinstance(key, Ed25519PublicKey):
        raise SetupError(f"The key is a {type(key).__name__}; give an Ed25519 key.")
    return key


def _load_private_key(given: str | bytes) -> Ed25519PrivateKey:
    text = given.encode() if isinstance(given, str) else given
    try:
        key = load_pem_private_key(text, None)
    except (ValueError, TypeError):
        raise SetupError("Not a private key in PEM. Use the result of AgentIdentity(name).private_key().") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise SetupError(f"The key is a {type(key).__name__}; give an Ed25519 key.")
    return key
