"""A private authority, and certificates that it signs, for servers on loopback."""

from __future__ import annotations

import datetime
import ssl
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

__all__ = ["certificate"]


def certificate(folder: Path, *names: str, days: float = 1 / 24) -> tuple[ssl.SSLContext, Path]:
    """A server context with a certificate for the names, and the file of the authority that signed it.

    It is valid for ``days`` from now; if that is negative, it ended then.
    """
    now = datetime.datetime.now(datetime.UTC)
    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test authority")])

    def signed(subject: x509.Name, public: ec.EllipticCurvePublicKey, *extensions: x509.ExtensionType) -> Any:
        builder = x509.CertificateBuilder(
            issuer_name=issuer,
            subject_name=subject,
            public_key=public,
            serial_number=x509.random_serial_number(),
            not_valid_before=now - datetime.timedelta(hours=1, days=max(0.0, -days)),
            not_valid_after=now + datetime.timedelta(days=days),
        )
        for extension in extensions:
            builder = builder.add_extension(extension, critical=False)
        return builder.sign(authority_key, hashes.SHA256())

    authority = signed(issuer, authority_key.public_key(), x509.BasicConstraints(ca=True, path_length=None))
    site = signed(
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "site")]),
        key.public_key(),
        x509.SubjectAlternativeName([x509.DNSName(name) for name in names]),
    )
    files = folder / "ca.pem", folder / "site.pem", folder / "site.key"
    files[0].write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    files[1].write_bytes(site.public_bytes(serialization.Encoding.PEM))
    files[2].write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files[1], files[2])
    return context, files[0]
