"""Signatures of agent cards: JWS over the canonical JSON of the fields of 1.0, and the keys that make them.

The SDKs disagree whether a REQUIRED field that is empty is part of what is signed. Here both readings are verified, and
the result says which one held; a card of ours for which they differ is signed in both. A third reading, the document as
it came, is for signers that ignore the rules. This module fetches nothing: it says which keys are wanted, and whether
the place they come from may vouch for the card.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, Literal, NamedTuple, TypeAlias
from urllib.parse import urlsplit

import jwt
import msgspec
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from jwt.api_jwk import PyJWK
from jwt.utils import base64url_decode, base64url_encode

from agent3.definitions import AgentCard
from agent3.errors import SecurityError, SetupError, ValidationError
from agent3.identity.own_keys import OwnKeys
from agent3.observe.logs import get as logger
from agent3.protocols.a2a.wire import tables
from agent3.security.canonical import canonical

__all__ = [
    "ALGORITHMS",
    "CARDS",
    "CardKey",
    "Reading",
    "SigningKeys",
    "Verified",
    "Wanted",
    "may_speak_for",
    "payload",
    "read_jwks",
    "signed_part",
    "verify",
    "wanted_keys",
]

log = logger("a2a")

CARDS: Final = "cards"
"""The name of our own key that signs cards."""
Reading: TypeAlias = Literal["required", "compact", "raw"]
"""What was signed: with REQUIRED fields even if empty, without anything empty, or the document as it came."""

ALGORITHMS: Final = ("EdDSA", "ES256", "ES384", "ES512", "PS256", "PS384", "PS512", "RS256", "RS384", "RS512")
"""Those with a key pair. A shared secret proves nothing to a stranger, and ``none`` proves nothing at all."""
_READINGS: Final[tuple[Reading, ...]] = ("required", "compact", "raw")
_MOST_VERIFIED: Final = 16
"""Signatures of one card that are looked at."""
_MOST_REMEMBERED: Final = 1_000
"""Signatures that a key remembers."""


# What is signed

_TABLE: Final = tables.parse(tables.V10_PROTO)
_EMPTY: Final[dict[str, Any]] = {"*": [], "%": {}, "text": "", "bool": False}
"""What a field of a form or type holds when it is not set."""


def payload(document: Mapping[str, Any], reading: Reading = "required") -> bytes:
    """The bytes that are signed of a card's document. ValidationError where it has no canonical form."""
    if reading == "raw":
        return canonical({name: value for name, value in document.items() if name != "signatures"})
    picked = _pick("AgentCard", document)
    picked.pop("signatures", None)
    return canonical(picked if reading == "required" else _compact(picked) or {})


def signed_part(document: Mapping[str, Any], readings: Collection[str]) -> dict[str, Any]:
    """A card as those readings of it were signed, with its signatures: fields that no signature covers are left out."""
    if "raw" in readings:
        return dict(document)
    return {**_pick("AgentCard", document), "signatures": document.get("signatures") or []}


def _pick(message: str, value: Mapping[str, Any]) -> dict[str, Any]:
    """The known fields of a message, without those whose value says no more than their absence (section 8.4.1)."""
    picked: dict[str, Any] = {}
    for field in _TABLE[message]:
        given, empty = value.get(field.name), _EMPTY.get(field.form or field.type)
        if given is None:
            if field.mark != "!":
                continue
            given = {} if empty is None else empty
        elif field.type in _TABLE:
            if field.form == "*" and isinstance(given, list):
                given = [_pick(field.type, entry) if isinstance(entry, Mapping) else entry for entry in given]
            elif field.form == "%" and isinstance(given, Mapping):
                entries = given.items()
                given = {n: _pick(field.type, entry) if isinstance(entry, Mapping) else entry for n, entry in entries}
            elif not field.form and isinstance(given, Mapping):
                given = _pick(field.type, given)
        if field.mark or given != empty:
            picked[field.name] = given
    return picked


def _compact(value: Any) -> Any:
    """The value without empty texts, lists and objects at any depth, as the official Python SDK signs it."""
    if isinstance(value, dict):
        return {name: kept for name, entry in value.items() if (kept := _compact(entry)) is not None} or None
    if isinstance(value, list):
        return [kept for entry in value if (kept := _compact(entry)) is not None] or None
    return None if value == "" and isinstance(value, str) else value


# Keys


class CardKey:
    """A key that signs cards: Ed25519, or ECDSA on P-256. ``jku`` is where others find its public half."""

    def __init__(self, pem: str | bytes, *, key_id: str | None = None, jku: str | None = None):
        key = load_pem_private_key(pem.encode() if isinstance(pem, str) else pem, None)
        if isinstance(key, ec.EllipticCurvePrivateKey) and isinstance(key.curve, ec.SECP256R1):
            self.algorithm = "ES256"
            public = jwt.algorithms.ECAlgorithm.to_jwk(key.public_key(), as_dict=True)
        elif isinstance(key, Ed25519PrivateKey):
            self.algorithm = "EdDSA"
            public = jwt.algorithms.OKPAlgorithm.to_jwk(key.public_key(), as_dict=True)
        else:
            raise SetupError(
                f"A {type(key).__name__} cannot sign cards. Create an Ed25519 key: openssl genpkey -algorithm ed25519"
            )
        self._key = key
        self.key_id = key_id or thumbprint(public)
        self.jku = jku
        self._public = {**public, "kid": self.key_id, "alg": self.algorithm, "use": "sig"}
        self._signatures: OrderedDict[bytes, dict[str, Any]] = OrderedDict()
        self._lock = threading.Lock()

    @classmethod
    def generate(cls, algorithm: Literal["EdDSA", "ES256"] = "EdDSA", **more: str | None) -> CardKey:
        """A new key; keep its ``pem``."""
        key = Ed25519PrivateKey.generate() if algorithm == "EdDSA" else ec.generate_private_key(ec.SECP256R1())
        return cls(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), **more)

    def pem(self) -> str:
        """The private key, unencrypted; keep it where secrets are kept."""
        return self._key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()

    def jwk(self) -> dict[str, Any]:
        """The public key, as it stands in a key set."""
        return dict(self._public)

    def jwks(self) -> dict[str, Any]:
        """A key set of this key alone, to be served at ``jku``."""
        return {"keys": [self.jwk()]}

    def sign(self, card: AgentCard, jku: str | None = None) -> AgentCard:
        """The card with this key's signatures, beside those of other keys: one, or two where the readings differ.

        ``jku`` is where readers of this card find the public key, if that is another place than the key's own.
        """
        others = [signature for signature in card.signatures if _header(signature).get("kid") != self.key_id]
        document = card.to_wire("1.0")
        contents = dict.fromkeys((payload(document, "required"), payload(document, "compact")))
        made = [self._sign(content, jku or self.jku) for content in contents]
        return card.model_copy(update={"signatures": [*others, *made]})

    def _sign(self, content: bytes, jku: str | None = None) -> dict[str, Any]:
        # ECDSA signatures differ each time. Remembering them lets readers see that a card did not change.
        name = hashlib.sha256(f"{jku}\n".encode() + content).digest()
        if (signature := self._signatures.get(name)) is None:
            header = {"typ": "JOSE", "kid": self.key_id, **({"jku": jku} if jku else {})}
            token = jwt.api_jws.encode(content, self._key, algorithm=self.algorithm, headers=header)
            protected, _, value = token.split(".")
            signature = {"protected": protected, "signature": value}
            with self._lock:
                self._signatures[name] = signature
                if len(self._signatures) > _MOST_REMEMBERED:
                    self._signatures.popitem(last=False)
        return dict(signature)


class SigningKeys:
    """The keys of a gateway or program as others see them: the one that signs its cards, if any, and further ones."""

    def __init__(self, key: CardKey | None, *others: Mapping[str, Any], root: bytes | None = None):
        self._key = key
        self._others = others
        self._root = root

    @classmethod
    async def of(
        cls, own_keys: OwnKeys, *names: str, key: CardKey | None = None, sign: bool = True
    ) -> SigningKeys | None:
        """The gateway's own keys, created where they are missing; ``key`` is the operator's own one for cards.

        None where the keys cannot be opened, which is logged with what to do: cards are then not signed.
        """
        try:
            kept = [await own_keys.key(name) for name in names]
            own = key or CardKey((await own_keys.key(CARDS)).pem) if sign else None
        except SetupError as error:
            log.warning("cards are not signed: %s", error.message)
            return None
        return cls(own, *(entry.jwk() for entry in kept), root=kept[0].pem.encode() if kept else None)

    def secret(self, use: str) -> bytes:
        """A secret for one use, shared by all processes that share these keys; without any, of this process alone."""
        if self._root is None:
            self._root = os.urandom(32)
        return HKDF(SHA256(), 32, None, use.encode()).derive(self._root)

    def sign(self, card: AgentCard, jku: str) -> AgentCard:
        """The card, signed if there is a key for cards."""
        return card if self._key is None else self._key.sign(card, jku)

    def jwks(self) -> dict[str, Any]:
        """All public keys, as a key set."""
        return {"keys": [*([self._key.jwk()] if self._key is not None else ()), *self._others]}


def thumbprint(jwk: Mapping[str, Any]) -> str:
    """The thumbprint of a public key by RFC 7638."""
    members = {"EC": ("crv", "kty", "x", "y"), "OKP": ("crv", "kty", "x"), "RSA": ("e", "kty", "n")}
    required = {name: jwk.get(name, "") for name in members.get(str(jwk.get("kty")), ())}
    return base64url_encode(hashlib.sha256(canonical(required)).digest()).decode()


def read_jwks(document: Any) -> dict[str, dict[str, Any]]:
    """The public keys of a key set, by their ids; keys that cannot verify a card are left out. ValidationError."""
    keys = document.get("keys") if isinstance(document, Mapping) else None
    if not isinstance(keys, list):
        raise ValidationError("A key set must be an object with a list of keys (RFC 7517).")
    found: dict[str, dict[str, Any]] = {}
    for jwk in keys:
        if not isinstance(jwk, dict) or not jwk.get("kid"):
            continue
        if jwk.get("kty") not in ("EC", "OKP", "RSA") or jwk.get("use", "sig") != "sig" or "d" in jwk:
            continue
        try:
            PyJWK(jwk)
        except (jwt.PyJWTError, ValueError, TypeError, KeyError):
            continue
        found[str(jwk["kid"])] = jwk
    return found


# Verifying


class Wanted(NamedTuple):
    """The id of a key that a signature names, and the URL it gives for it."""

    key_id: str
    jku: str | None


class Verified(NamedTuple):
    """A signature that held: its key, its algorithm, and what of the card it covers."""

    key_id: str
    algorithm: str
    reading: Reading
    thumbprint: str


def wanted_keys(document: Mapping[str, Any]) -> list[Wanted]:
    """The keys that the signatures of a card name; empty for a card that is not signed."""
    headers = (_header(signature) for signature in _signatures(document))
    named = [
        Wanted(str(header["kid"]), header.get("jku") if isinstance(header.get("jku"), str) else None)
        for header in headers
        if "kid" in header
    ]
    return list(dict.fromkeys(named))


def may_speak_for(jku: str, card_url: str) -> bool:
    """Whether keys from a URL can vouch for a card: HTTPS (or the same loopback) at the card's own host.

    A key from anywhere else would only prove that the author of the card also made the signature.
    """
    keys, card = urlsplit(jku), urlsplit(card_url)
    host = keys.hostname
    if host is None or (host, keys.port) != (card.hostname, card.port):
        return False
    is_loopback = host in ("localhost", "::1") or host.startswith("127.")
    return keys.scheme == "https" or (keys.scheme == card.scheme == "http" and is_loopback)


def verify(
    document: Mapping[str, Any], keys: Mapping[str, Mapping[str, Any]] | Iterable[Mapping[str, Any]]
) -> list[Verified]:
    """Every signature of a card that holds with one of these public keys (JWKs), with the reading that matched.

    SecurityError with the reason when there is none, or when the card is not signed.
    """
    known = dict(keys) if isinstance(keys, Mapping) else {str(jwk.get("kid")): jwk for jwk in keys}
    signatures = _signatures(document)
    if not signatures:
        raise SecurityError(
            "The agent card is not signed. Ask its provider for a signed one, or decide yourself to trust it."
        )
    try:
        contents = {reading: payload(document, reading) for reading in _READINGS}
    except ValidationError as error:
        raise SecurityError(f"The agent card cannot be verified: {error.message}") from None
    held: list[Verified] = []
    names: set[str] = set()
    for signature in signatures:
        header = _header(signature)
        key_id, algorithm = str(header.get("kid")), header.get("alg")
        names.add(key_id)
        jwk = known.get(key_id)
        # A "crit" header names extensions that a verifier must understand (RFC 7515, 4.1.11); we have none.
        if jwk is None or algorithm not in ALGORITHMS or "crit" in header or jwk.get("alg", algorithm) != algorithm:
            continue
        for reading, content in contents.items():
            if _is_valid(signature, content, jwk, str(algorithm)):
                held.append(Verified(key_id, str(algorithm), reading, thumbprint(jwk)))
                break
    if not held:
        listed = ", ".join(sorted(name[:80] for name in names))
        verdict = "none matches" if names & known.keys() else "none is known"
        raise SecurityError(
            f"No signature of the agent card is valid: it names the keys {listed}, and of them {verdict}."
        )
    return held


def _is_valid(signature: Mapping[str, Any], content: bytes, jwk: Mapping[str, Any], algorithm: str) -> bool:
    token = f"{signature['protected']}.{base64url_encode(content).decode()}.{signature['signature']}"
    try:
        jwt.api_jws.decode(token, PyJWK(dict(jwk), algorithm).key, algorithms=[algorithm])
    except (jwt.PyJWTError, ValueError, TypeError, KeyError, UnicodeError):
        return False
    return True


def _signatures(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The signatures of a card that have the right form, of the first few."""
    given = document.get("signatures")
    found = [entry for entry in given if isinstance(entry, Mapping)] if isinstance(given, list) else []
    return [
        entry
        for entry in found[:_MOST_VERIFIED]
        if isinstance(entry.get("protected"), str) and isinstance(entry.get("signature"), str)
    ]


def _header(signature: Mapping[str, Any]) -> dict[str, Any]:
    """The protected header; empty where it cannot be read."""
    try:
        header = msgspec.json.decode(base64url_decode(signature.get("protected", "")))
    except (msgspec.MsgspecError, ValueError, TypeError, RecursionError):
        return {}
    return header if isinstance(header, dict) else {}
