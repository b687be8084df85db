"""TLS of the listeners: the certificate of this gateway, taken anew when its files change, and those of clients.

TLS 1.2 at least. Client certificates are asked for where an authority for them is configured; one that it did not
issue ends the handshake, and who shows none is known by a key or a token as ever.
"""

from __future__ import annotations

import asyncio
import hashlib
import ssl
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from cryptography import x509
from msgspec import Struct

from agent3.errors import SetupError
from agent3.observe.logs import get as logger
from agent3.settings import Server

__all__ = ["CERTIFICATE", "ListenerCertificate", "PeerCertificate", "read_peer", "read_peer_pem"]

log = logger("tls")

CERTIFICATE = "agent3.certificate"
"""The key in the ASGI scope under which the certificate of the client stands, if it showed one."""
_EVERY = 1.0
"""Seconds between two looks at the files."""


class PeerCertificate(Struct, frozen=True):
    """A certificate that a client proved to hold, issued by the configured authority."""

    fingerprint: str
    """SHA-256 of the whole certificate, in hex."""
    subject: str
    """Its common name."""


class ListenerCertificate:
    """The certificate with which the listeners of a gateway answer. SetupError where its files cannot be used."""

    def __init__(self, settings: Server):
        self._certificate = Path(settings.tls_certificate).expanduser()
        self._key = Path(settings.tls_key or settings.tls_certificate).expanduser()
        self._authority = Path(settings.tls_client_ca).expanduser() if settings.tls_client_ca else None
        self.is_required_over_grpc = settings.grpc_client_certificates
        if self.is_required_over_grpc and self._authority is None:
            raise SetupError("server.grpc_client_certificates needs server.tls_client_ca to verify them.")
        self.context = self._latest = self._make_context()
        self.context.sni_callback = self._choose  # asked at each handshake, also where the client names no host
        self._seen = self._look()

    @classmethod
    def find(cls, settings: Server) -> ListenerCertificate | None:
        """That of the settings, if they name one."""
        if settings.tls_certificate:
            return cls(settings)
        if settings.tls_key or settings.tls_client_ca:
            raise SetupError("server.tls_key and server.tls_client_ca need server.tls_certificate.")
        return None

    def _make_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        try:
            context.load_cert_chain(self._certificate, self._key)
        except (OSError, ssl.SSLError) as error:
            raise SetupError(f"server.tls_certificate: {self._certificate} with {self._key}: {_say(error)}") from None
        if self._authority is not None:
            try:
                context.load_verify_locations(self._authority)
            except (OSError, ssl.SSLError) as error:
                raise SetupError(f"server.tls_client_ca: {self._authority}: {_say(error)}") from None
            context.verify_mode = ssl.CERT_OPTIONAL
            # A session that is taken up again is not judged again, also when its authority is trusted no more.
            context.num_tickets = 0
            context.options |= ssl.OP_NO_TICKET
        return context

    def _choose(self, connection: ssl.SSLObject | ssl.SSLSocket, name: str | None, context: ssl.SSLContext) -> None:
        if connection.context is not self._latest:
            connection.context = self._latest

    def _look(self) -> tuple[object, ...]:
        found: list[object] = []
        for path in (self._certificate, self._key, self._authority):
            if path is not None:
                try:
                    state = path.stat()
                    found.append((state.st_mtime_ns, state.st_size, state.st_ino))
                except OSError:
                    found.append(None)
        return tuple(found)

    def reload(self) -> bool:
        """Answer new connections with what the files hold now; False where nothing changed or it cannot be used."""
        seen = self._look()
        if seen == self._seen:
            return False
        try:
            # A new one as a whole: to the one in use authorities could only be added.
            self._latest = self._make_context()
        except (SetupError, OSError, ssl.SSLError) as error:
            log.warning("The changed certificate cannot be used; the previous one stays in use: %s", error)
            self._seen = seen
            return False
        self._seen = seen
        log.info("The certificate changed; new connections use the new one.")
        return True

    async def follow(self) -> None:
        """Look at the files again and again."""
        while True:
            await asyncio.sleep(_EVERY)
            await asyncio.to_thread(self.reload)

    def describe(self) -> tuple[datetime, datetime, list[str]]:
        """From when until when the certificate is valid, and for which names."""
        first = x509.load_pem_x509_certificates(self._certificate.read_bytes())[0]
        try:
            names = first.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except x509.ExtensionNotFound:
            return first.not_valid_before_utc, first.not_valid_after_utc, []
        return first.not_valid_before_utc, first.not_valid_after_utc, [str(name.value) for name in names]

    def read_pair(self) -> tuple[bytes, bytes]:
        """The key and the certificate as they are in the files, for listeners that are not Python's own."""
        return self._key.read_bytes(), self._certificate.read_bytes()

    def read_authority(self) -> bytes | None:
        """Likewise the authority of client certificates, if there is one."""
        return None if self._authority is None else self._authority.read_bytes()


def read_peer(transport: asyncio.BaseTransport) -> PeerCertificate | None:
    """The certificate that the other end of a connection proved to hold; None where it showed none."""
    wrapped: Any = transport.get_extra_info("ssl_object")
    binary = wrapped.getpeercert(binary_form=True) if wrapped is not None else None
    if not binary:
        return None
    described: Mapping[str, Any] = wrapped.getpeercert() or {}
    names = [value for part in described.get("subject", ()) for name, value in part if name == "commonName"]
    return PeerCertificate(hashlib.sha256(binary).hexdigest(), names[0] if len(names) == 1 else "")


def read_peer_pem(text: str, names: Sequence[str]) -> PeerCertificate:
    """The same of a certificate in PEM, with the common names that stand in it."""
    binary = ssl.PEM_cert_to_DER_cert(text)
    return PeerCertificate(hashlib.sha256(binary).hexdigest(), names[0] if len(names) == 1 else "")


def _say(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)
