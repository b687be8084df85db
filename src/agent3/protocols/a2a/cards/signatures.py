"""Signatures of agent cards: JWS over the canonical JSON of what 1.0 says, and whose key it was.

The SDKs disagree about one thing: whether a REQUIRED field that is empty belongs to what is signed. Here both readings
are verified, and the answer says which one held; where they differ for a card of ours, it is signed in both. A third
reading, the document as it came, is for signers who never read the rules. Keys are fetched by whoever holds the
outbound gate: this only says which are wanted, and whether the place they come from may speak for the card.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
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
from agent3.identity.own_keys import Safe
from agent3.observe.logs import get as logger
from agent3.security.canonical import canonical

__all__ = [
    "ALGORITHMS",
    "CARDS",
    "CardKey",
    "HouseKeys",
    "Pins",
    "Reading",
    "Verified",
    "Wanted",
    "may_speak_for",
    "payload",
    "read_jwks",
    "verify",
    "wanted",
]

log = logger("a2a")

_MADE: Final = 1_000
"""Signatures that a key remembers."""
CARDS: Final = "cards"
"""The name of the house's own key that signs cards."""
Reading: TypeAlias = Literal["required", "compact", "raw"]
"""What was signed: with REQUIRED fields even if empty, without anything empty, or the document as it came."""

ALGORITHMS: Final = ("EdDSA", "ES256", "ES384", "ES512", "PS256", "PS384", "PS512", "RS256", "RS384", "RS512")
"""Those with two keys. A shared secret proves nothing to a stranger, and ``none`` nothing to anybody."""
_READINGS: Final[tuple[Reading, ...]] = ("required", "compact", "raw")
_MOST: Final = 16
"""Signatures of one card that are looked at."""


# What of a card is signed: the fields of 1.0 (section 8.4.1), each with how its absence is to be read


class _Field(NamedTuple):
    """``empty`` is its default; one that is not ``kept`` is left out when it has that value."""

    empty: Any
    required: bool = False
    kept: bool = False
    inner: dict[str, _Field] | None = None
    many: bool = False


def _required(empty: Any, inner: dict[str, _Field] | None = None, *, many: bool = False) -> _Field:
    return _Field(empty, required=True, kept=True, inner=inner, many=many)


_TEXT, _LIST, _TRUTH = _Field(""), _Field([]), _Field(False)
_PRESENT: Final = _Field(None, kept=True)
_MUST: Final = _required("")
_SCOPES: Final = {"schemes": _Field({}, inner={"list": _LIST}, many=True)}
_NEEDS: Final = _Field([], inner=_SCOPES, many=True)
_FLOW: Final = {"refreshUrl": _TEXT, "scopes": _required({})}
_FLOWS: Final = {
    "authorizationCode": _Field(
        None, inner={"authorizationUrl": _MUST, "tokenUrl": _MUST, "pkceRequired": _TRUTH, **_FLOW}
    ),
    "clientCredentials": _Field(None, inner={"tokenUrl": _MUST, **_FLOW}),
    "deviceCode": _Field(None, inner={"deviceAuthorizationUrl": _MUST, "tokenUrl": _MUST, **_FLOW}),
    "implicit": _Field(None, inner={"authorizationUrl": _TEXT, "refreshUrl": _TEXT, "scopes": _Field({})}),
    "password": _Field(None, inner={"tokenUrl": _TEXT, "refreshUrl": _TEXT, "scopes": _Field({})}),
}
_SCHEME: Final = {
    "apiKeySecurityScheme": _Field(None, inner={"description": _TEXT, "location": _MUST, "name": _MUST}),
    "httpAuthSecurityScheme": _Field(None, inner={"description": _TEXT, "scheme": _MUST, "bearerFormat": _TEXT}),
    "oauth2SecurityScheme": _Field(
        None, inner={"description": _TEXT, "flows": _required({}, _FLOWS), "oauth2MetadataUrl": _TEXT}
    ),
    "openIdConnectSecurityScheme": _Field(None, inner={"description": _TEXT, "openIdConnectUrl": _MUST}),
    "mtlsSecurityScheme": _Field(None, inner={"description": _TEXT}),
}
_EXTENSION: Final = {"uri": _TEXT, "description": _TEXT, "required": _TRUTH, "params": _PRESENT}
_CARD: Final = {
    "name": _MUST,
    "description": _MUST,
    "supportedInterfaces": _required(
        [], {"url": _MUST, "protocolBinding": _MUST, "tenant": _TEXT, "protocolVersion": _MUST}, many=True
    ),
    "provider": _Field(None, inner={"url": _MUST, "organization": _MUST}),
    "version": _MUST,
    "documentationUrl": _PRESENT,
    "capabilities": _required(
        {},
        {
            "streaming": _PRESENT,
            "pushNotifications": _PRESENT,
            "extensions": _Field([], inner=_EXTENSION, many=True),
            "extendedAgentCard": _PRESENT,
        },
    ),
    "securitySchemes": _Field({}, inner=_SCHEME, many=True),
    "securityRequirements": _NEEDS,
    "defaultInputModes": _required([]),
    "defaultOutputModes": _required([]),
    "skills": _required(
        [],
        {
            "id": _MUST,
            "name": _MUST,
            "description": _MUST,
            "tags": _required([]),
            "examples": _LIST,
            "inputModes": _LIST,
            "outputModes": _LIST,
            "securityRequirements": _NEEDS,
        },
        many=True,
    ),
    "iconUrl": _PRESENT,
}


def payload(document: Mapping[str, Any], reading: Reading = "required") -> bytes:
    """The bytes that are signed of a card's document. ValidationError where it has no canonical form."""
    if reading == "raw":
        return canonical({name: one for name, one in document.items() if name != "signatures"})
    picked = _picked(document, _CARD)
    return canonical(picked if reading == "required" else _compact(picked) or {})


def _picked(value: Mapping[str, Any], fields: dict[str, _Field]) -> dict[str, Any]:
    """The fields that are known, without those whose value says no more than their absence."""
    picked: dict[str, Any] = {}
    for name, field in fields.items():
        given = value.get(name)
        if given is not None:
            given = _inside(given, field)
        elif field.required:
            given = field.empty
        if given is not None and (field.kept or given != field.empty):
            picked[name] = given
    return picked


def _inside(given: Any, field: _Field) -> Any:
    if field.inner is None:
        return given
    if field.many and isinstance(given, list):
        return [_picked(one, field.inner) if isinstance(one, Mapping) else one for one in given]
    if field.many and isinstance(given, Mapping):
        return {name: _picked(one, field.inner) if isinstance(one, Mapping) else one for name, one in given.items()}
    return _picked(given, field.inner) if isinstance(given, Mapping) else given


def _compact(value: Any) -> Any:
    """The value without empty texts, lists and objects at any depth, as the Python SDK has it."""
    if isinstance(value, dict):
        return {name: one for name, entry in value.items() if (one := _compact(entry)) is not None} or None
    if isinstance(value, list):
        return [one for entry in value if (one := _compact(entry)) is not None] or None
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
                f"A {type(key).__name__} cannot sign cards. Make an Ed25519 key: openssl genpkey -algorithm ed25519"
            )
        self._key = key
        self.key_id = key_id or thumbprint(public)
        self.jku = jku
        self._public = {**public, "kid": self.key_id, "alg": self.algorithm, "use": "sig"}
        self._made: OrderedDict[bytes, dict[str, Any]] = OrderedDict()
        self._lock = threading.Lock()

    @classmethod
    def generate(cls, algorithm: Literal["EdDSA", "ES256"] = "EdDSA", **more: str | None) -> CardKey:
        """A new key; ``pem`` is what to keep of it."""
        key = Ed25519PrivateKey.generate() if algorithm == "EdDSA" else ec.generate_private_key(ec.SECP256R1())
        return cls(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), **more)

    def pem(self) -> str:
        """The private key, unencrypted, to be kept where secrets are kept."""
        return self._key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()

    def jwk(self) -> dict[str, Any]:
        """The public key, as it stands in a key set."""
        return dict(self._public)

    def jwks(self) -> dict[str, Any]:
        """A key set of this key alone, to be served at ``jku``."""
        return {"keys": [self.jwk()]}

    def sign(self, card: AgentCard, jku: str | None = None) -> AgentCard:
        """The card with this key's signatures, beside those of other keys: one, or two where the readings differ.

        ``jku`` is where readers of this card find the public half, if that is another place than the key's own.
        """
        others = [one for one in card.signatures if _header(one).get("kid") != self.key_id]
        document = card.to_wire("1.0")
        signed = dict.fromkeys((payload(document, "required"), payload(document, "compact")))
        place = jku or self.jku
        return card.model_copy(update={"signatures": [*others, *(self._signature(one, place) for one in signed)]})

    def _signature(self, content: bytes, jku: str | None = None) -> dict[str, Any]:
        """The signature of what was signed before is the same again: readers then see that nothing changed."""
        name = hashlib.sha256(f"{jku}\n".encode() + content).digest()
        if (made := self._made.get(name)) is None:
            header = {"typ": "JOSE", "kid": self.key_id, **({"jku": jku} if jku else {})}
            token = jwt.api_jws.encode(content, self._key, algorithm=self.algorithm, headers=header)
            protected, _, signature = token.split(".")
            made = {"protected": protected, "signature": signature}
            with self._lock:
                self._made[name] = made
                if len(self._made) > _MADE:
                    self._made.popitem(last=False)
        return dict(made)


class HouseKeys:
    """The keys of a house as others see them: the one that signs its cards, where they are signed, and further ones."""

    def __init__(self, key: CardKey | None, *others: Mapping[str, Any], root: bytes | None = None):
        self._key = key
        self._others = others
        self._root = root

    @classmethod
    async def of(cls, safe: Safe, *names: str, key: CardKey | None = None, sign: bool = True) -> HouseKeys | None:
        """Those of a safe, made where there are none; ``key`` is one that the operator has instead of our own.

        None where the safe cannot be opened, which is logged with what to do: cards then go out unsigned.
        """
        try:
            kept = [await safe.key(one) for one in names]
            own = key or CardKey((await safe.key(CARDS)).pem) if sign else None
        except SetupError as wrong:
            log.warning("cards are not signed: %s", wrong.message)
            return None
        return cls(own, *(one.jwk() for one in kept), root=kept[0].pem.encode() if kept else None)

    def secret(self, use: str) -> bytes:
        """A secret for one use that all processes of the house share; where they share no key, one of this process."""
        if self._root is None:
            self._root = os.urandom(32)
        return HKDF(SHA256(), 32, None, use.encode()).derive(self._root)

    def sign(self, card: AgentCard, jku: str) -> AgentCard:
        """The card, signed where cards are."""
        return card if self._key is None else self._key.sign(card, jku)

    def jwks(self) -> dict[str, Any]:
        """All of them, as a key set."""
        return {"keys": [*([self._key.jwk()] if self._key is not None else ()), *self._others]}


def thumbprint(jwk: Mapping[str, Any]) -> str:
    """What a public key is known by, whatever it is called: RFC 7638."""
    members = {"EC": ("crv", "kty", "x", "y"), "OKP": ("crv", "kty", "x"), "RSA": ("e", "kty", "n")}
    named = {name: jwk.get(name, "") for name in members.get(str(jwk.get("kty")), ())}
    return base64url_encode(hashlib.sha256(canonical(named)).digest()).decode()


def read_jwks(document: Any) -> dict[str, dict[str, Any]]:
    """The public keys of a key set by their ids; what cannot verify a card is left out. ValidationError for no set."""
    keys = document.get("keys") if isinstance(document, Mapping) else None
    if not isinstance(keys, list):
        raise ValidationError("A key set must be an object with a list of keys (RFC 7517)")
    return {str(one["kid"]): one for one in keys if isinstance(one, dict) and one.get("kid") and _usable(one)}


def _usable(jwk: dict[str, Any]) -> bool:
    if jwk.get("kty") not in ("EC", "OKP", "RSA") or jwk.get("use", "sig") != "sig" or "d" in jwk:
        return False
    try:
        PyJWK(jwk)
    except (jwt.PyJWTError, ValueError, TypeError, KeyError):
        return False
    return True


# Verifying


class Wanted(NamedTuple):
    """A key that a signature names, and where it says that the key is found."""

    key_id: str
    jku: str | None


class Verified(NamedTuple):
    """A signature that held: whose key, how it was made, and what of the card it covers."""

    key_id: str
    algorithm: str
    reading: Reading
    thumbprint: str


def wanted(document: Mapping[str, Any]) -> list[Wanted]:
    """The keys that the signatures of a card name; empty for a card that is not signed."""
    headers = (_header(one) for one in _signatures(document))
    named = [
        Wanted(str(one["kid"]), one.get("jku") if isinstance(one.get("jku"), str) else None)
        for one in headers
        if "kid" in one
    ]
    return list(dict.fromkeys(named))


def may_speak_for(jku: str, card_url: str) -> bool:
    """Whether keys from an address say anything about a card: HTTPS (or the same loopback) at the card's own host.

    A key from anywhere else would only prove that whoever wrote the card also wrote the signature.
    """
    keys, card = urlsplit(jku), urlsplit(card_url)
    same = (keys.hostname, keys.port) == (card.hostname, card.port) and keys.hostname is not None
    return same and (keys.scheme == "https" or (keys.scheme == card.scheme == "http" and _is_loopback(keys.hostname)))


def _is_loopback(host: str | None) -> bool:
    return host in ("localhost", "::1") or (host or "").startswith("127.")


def verify(
    document: Mapping[str, Any], keys: Mapping[str, Mapping[str, Any]] | Iterable[Mapping[str, Any]]
) -> list[Verified]:
    """Every signature of a card that holds with one of these public keys (JWKs), each with the reading that matched.

    SecurityError when there is none, or no signature at all, with the reason in words.
    """
    known = dict(keys) if isinstance(keys, Mapping) else {str(one.get("kid")): one for one in keys}
    signatures = _signatures(document)
    if not signatures:
        raise SecurityError("The agent card is not signed. Ask its provider for a signed one, or trust it by hand.")
    forms = _forms(document)
    held = [found for one in signatures if (found := _held(one, known, forms)) is not None]
    if not held:
        named = ", ".join(sorted({str(_header(one).get("kid"))[:80] for one in signatures}))
        raise SecurityError(
            f"No signature of the agent card holds: it names the keys {named}, and of them "
            f"{'none is known' if not any(_header(one).get('kid') in known for one in signatures) else 'none fits'}"
        )
    return held


def _forms(document: Mapping[str, Any]) -> dict[Reading, bytes]:
    try:
        return {reading: payload(document, reading) for reading in _READINGS}
    except ValidationError as reason:
        raise SecurityError(f"The agent card cannot be verified: {reason.message}") from None


def _held(
    signature: Mapping[str, Any], keys: Mapping[str, Mapping[str, Any]], forms: Mapping[Reading, bytes]
) -> Verified | None:
    header = _header(signature)
    key_id, algorithm = str(header.get("kid")), header.get("alg")
    jwk = keys.get(key_id)
    if jwk is None or algorithm not in ALGORITHMS or "crit" in header or jwk.get("alg", algorithm) != algorithm:
        return None
    for reading, content in forms.items():
        if _fits(signature, content, jwk, str(algorithm)):
            return Verified(key_id, str(algorithm), reading, thumbprint(jwk))
    return None


def _fits(signature: Mapping[str, Any], content: bytes, jwk: Mapping[str, Any], algorithm: str) -> bool:
    token = f"{signature['protected']}.{base64url_encode(content).decode()}.{signature['signature']}"
    try:
        jwt.api_jws.decode(token, PyJWK(dict(jwk), algorithm).key, algorithms=[algorithm])
    except (jwt.PyJWTError, ValueError, TypeError, KeyError, UnicodeError):
        return False
    return True


def _signatures(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    given = document.get("signatures")
    found = [one for one in given if isinstance(one, Mapping)] if isinstance(given, list) else []
    return [
        one for one in found[:_MOST] if isinstance(one.get("protected"), str) and isinstance(one.get("signature"), str)
    ]


def _header(signature: Mapping[str, Any]) -> dict[str, Any]:
    """The protected header, or nothing where it cannot be read."""
    try:
        header = msgspec.json.decode(base64url_decode(signature.get("protected", "")))
    except (msgspec.MsgspecError, ValueError, TypeError, RecursionError):
        return {}
    return header if isinstance(header, dict) else {}


# Pinning


class Pins:
    """Keys that agents' cards were first seen signed with; a card signed only by others is refused.

    A new key is taken when a pinned one signed the same card: that is how keys are changed. ``dump`` and the argument
    of the constructor are for whoever keeps them over a restart. Safe from any thread.
    """

    def __init__(self, pinned: Mapping[str, Iterable[str]] | None = None, kept: Callable[[str], None] | None = None):
        self._pinned = {agent: set(prints) for agent, prints in (pinned or {}).items()}
        self._kept = kept
        self._lock = threading.Lock()

    def check(self, agent: str, verified: Iterable[Verified]) -> bool:
        """Whether these are keys of the agent, seen before; the first that are seen become its keys, with False.

        SecurityError when the agent has other keys.
        """
        shown = {one.thumbprint for one in verified}
        if not shown:
            raise SecurityError(f"The card of {agent!r} bears no signature that holds.")
        with self._lock:
            pinned = self._pinned.get(agent)
            if pinned is not None and not pinned & shown:
                raise SecurityError(
                    f"The card of {agent!r} is signed with another key than before. If the key was really changed, "
                    "forget the old one; else somebody is speaking in its name."
                )
            new = pinned is None or not shown <= pinned
            self._pinned[agent] = (pinned or set()) | shown
        if new and self._kept is not None:
            self._kept(agent)
        return pinned is not None

    def forget(self, agent: str) -> None:
        """Take the next key that is seen."""
        with self._lock:
            self._pinned.pop(agent, None)

    def revoke(self, agent: str, key: str) -> None:
        """Trust a key, by its thumbprint, no longer; the agent keeps its others, and without any is refused."""
        with self._lock:
            self._pinned.get(agent, set()).discard(key)

    def dump(self) -> dict[str, list[str]]:
        """Everything, as data."""
        with self._lock:
            return {agent: sorted(prints) for agent, prints in self._pinned.items()}
