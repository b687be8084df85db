"""DPoP (RFC 9449): a token that is of use only to whoever holds the key that it was got with.

Every request carries a proof, signed for its method, its address and its token, and used once. A server may want its
latest nonce in the proof.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, SECP256R1, EllipticCurvePrivateKey, generate_private_key
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from agent3.env import Env

__all__ = ["ALGORITHM", "MAX_NONCE", "ProofKey", "read_nonce"]

ALGORITHM: Final = "ES256"
MAX_NONCE: Final = 1_024
"""Characters of a nonce that is taken."""


class ProofKey:
    """A key of P-256, and the proofs that it makes. ``pem`` is a secret: keep it sealed or not at all."""

    def __init__(self, env: Env, pem: str | None = None):
        key = generate_private_key(SECP256R1()) if pem is None else load_pem_private_key(pem.encode(), None)
        if not isinstance(key, EllipticCurvePrivateKey) or not isinstance(key.curve, SECP256R1):
            raise ValueError("a key for DPoP must use the curve P-256")
        self._env = env
        self._key = key
        public = key.public_key().public_numbers()
        self._jwk = {
            "kty": "EC",
            "crv": "P-256",
            "x": _encode(public.x.to_bytes(32, "big")),
            "y": _encode(public.y.to_bytes(32, "big")),
        }

    @property
    def pem(self) -> str:
        return self._key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()

    def prove(self, method: str, url: str, *, token: str | None = None, nonce: str | None = None) -> str:
        """A proof for one request, with the access token that it carries, and the nonce that the server gave."""
        parts = urlsplit(url)
        claims: dict[str, Any] = {
            "jti": _encode(self._env.random_bytes(16)),
            "htm": method.upper(),
            "htu": urlunsplit((parts.scheme, parts.netloc, parts.path, "", "")),
            "iat": int(self._env.now()),
        }
        if token is not None:
            claims["ath"] = _encode(hashlib.sha256(token.encode()).digest())
        if nonce is not None:
            claims["nonce"] = nonce
        header = {"typ": "dpop+jwt", "alg": ALGORITHM, "jwk": self._jwk}
        signed = f"{_encode(json.dumps(header).encode())}.{_encode(json.dumps(claims).encode())}"
        r, s = decode_dss_signature(self._key.sign(signed.encode(), ECDSA(SHA256())))
        return f"{signed}.{_encode(r.to_bytes(32, 'big') + s.to_bytes(32, 'big'))}"


def read_nonce(headers: Mapping[str, str]) -> str | None:
    """The nonce that an answer gives for the next proof; None where it gives none that can be used."""
    found = next((value for name, value in headers.items() if name.lower() == "dpop-nonce"), "")
    return found if 0 < len(found) <= MAX_NONCE and found.isascii() and found.isprintable() else None


def _encode(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
