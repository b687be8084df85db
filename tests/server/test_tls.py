"""Listeners with TLS: what they refuse, a certificate that changes, and clients that are known by theirs."""

from __future__ import annotations

import datetime
import hashlib
import json
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from agent3.errors import SetupError
from agent3.identity.certificates import ListenerCertificate
from agent3.server.run import InBackground
from agent3.settings import Client, Server, Settings, Storage


class Authority:
    """Issues certificates into files."""

    def __init__(self, folder: Path, name: str = "Test CA"):
        self.folder = folder
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = self._sign(self.name, self.key, x509.BasicConstraints(ca=True, path_length=None))
        self.file = folder / f"{name.replace(' ', '')}.pem"
        self.file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def _sign(self, name: x509.Name, key: ec.EllipticCurvePrivateKey, basic: x509.BasicConstraints) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        san = x509.SubjectAlternativeName([x509.DNSName("localhost")])
        builder = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self.name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=2))
            .add_extension(basic, critical=True)
            .add_extension(san, critical=False)
        )
        return builder.sign(self.key, hashes.SHA256())

    def issue(self, name: str, file: str = "") -> tuple[Path, str]:
        """A certificate with its key in one file, and the fingerprint of it."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = self._sign(subject, key, x509.BasicConstraints(ca=False, path_length=None))
        path = self.folder / f"{file or name}.pem"
        plain = serialization.NoEncryption()
        form = serialization.PrivateFormat.PKCS8
        text = certificate.public_bytes(serialization.Encoding.PEM)
        path.write_bytes(text + key.private_bytes(serialization.Encoding.PEM, form, plain))
        return path, hashlib.sha256(certificate.public_bytes(serialization.Encoding.DER)).hexdigest()


def settings(certificate: Path, **more: Any) -> Settings:
    server = Server(port=0, tls_certificate=str(certificate), tls_client_ca=str(more.pop("ca", "")))
    return Settings(server=server, storage=Storage(url="sqlite://"), **more)


def context(authority: Authority, shown: Path | None = None) -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=str(authority.file))
    made.check_hostname = False
    if shown is not None:
        made.load_cert_chain(shown)
    return made


def get(url: str, tls: ssl.SSLContext, path: str = "/v1/agents", **headers: str) -> tuple[int, dict[str, Any]]:
    request = urllib.request.Request(url + path, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=240, context=tls) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def test_the_gateway_speaks_tls_and_nothing_older_than_1_2(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, _ = authority.issue("localhost")
    with InBackground(settings(certificate)) as url:
        assert url.startswith("https://")
        tls = context(authority)
        assert get(url, tls)[0] == 200
        assert get(url, tls, "/healthz")[0] == 200
        old = context(authority)
        old.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
        old.set_ciphers("ALL:@SECLEVEL=0")
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            old.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises(urllib.error.URLError, match=r"(?i)protocol|alert|version|handshake|EOF|reset"):
            get(url, old)
        with pytest.raises((urllib.error.URLError, OSError, ValueError)):
            get(url.replace("https:", "http:"), tls)


@pytest.mark.parametrize("named", ["localhost", None])
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_an_authority_that_was_replaced_is_trusted_no_more(
    tmp_path: Path, named: str | None, version: ssl.TLSVersion
) -> None:
    old, new = Authority(tmp_path, "Old CA"), Authority(tmp_path, "New CA")
    path, _ = old.issue("localhost")
    trusted = tmp_path / "clients.pem"
    trusted.write_bytes(old.file.read_bytes())
    certificate = ListenerCertificate(Server(tls_certificate=str(path), tls_client_ca=str(trusted)))

    def is_let_in(authority: Authority) -> bool:
        tls = context(old, authority.issue("anna")[0])
        tls.maximum_version = version
        mine, theirs = (ssl.MemoryBIO(), ssl.MemoryBIO()), (ssl.MemoryBIO(), ssl.MemoryBIO())
        client = tls.wrap_bio(theirs[0], theirs[1], server_hostname=named)
        server = certificate.context.wrap_bio(mine[0], mine[1], server_side=True)
        for _ in range(10):
            for step in (client.do_handshake, server.do_handshake):
                try:
                    step()
                except ssl.SSLWantReadError:
                    pass
                except ssl.SSLError:
                    return False
                mine[0].write(theirs[1].read())
                theirs[0].write(mine[1].read())
        return server.getpeercert(binary_form=True) is not None

    assert is_let_in(old)
    assert not is_let_in(new)
    trusted.write_bytes(new.file.read_bytes())
    assert certificate.reload()
    assert is_let_in(new)
    assert not is_let_in(old)


def test_a_changed_certificate_is_taken_and_a_broken_one_is_not(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    path, first = authority.issue("localhost")
    certificate = ListenerCertificate(Server(tls_certificate=str(path)))

    def served() -> str:
        """The fingerprint of what a handshake gets, without a socket."""
        mine, theirs = (ssl.MemoryBIO(), ssl.MemoryBIO()), (ssl.MemoryBIO(), ssl.MemoryBIO())
        client = context(authority).wrap_bio(theirs[0], theirs[1])
        server = certificate.context.wrap_bio(mine[0], mine[1], server_side=True)
        steps: list[Callable[[], None]] = [client.do_handshake, server.do_handshake]
        for _ in range(10):
            for step in steps:
                try:
                    step()
                except ssl.SSLWantReadError:
                    pass
                mine[0].write(theirs[1].read())
                theirs[0].write(mine[1].read())
        shown = client.getpeercert(binary_form=True)
        assert shown
        return hashlib.sha256(shown).hexdigest()

    assert served() == first
    assert not certificate.reload()
    _, second = authority.issue("localhost")
    assert certificate.reload()
    assert served() == second != first
    path.write_text("not a certificate")
    assert not certificate.reload()
    assert served() == second
    _, third = authority.issue("localhost")
    assert certificate.reload()
    assert served() == third


def test_a_client_is_known_by_its_certificate_and_a_stranger_is_not(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, _ = authority.issue("localhost")
    robot, fingerprint = authority.issue("robot")
    clerk, _ = authority.issue("clerk")
    nobody, _ = authority.issue("nobody")
    forged, _ = Authority(tmp_path, "Other CA").issue("clerk", "forged")
    clients = (
        Client("machine", certificate=f"sha256:{fingerprint}"),
        Client("person", certificate="subject:clerk"),
        Client("keyed", key=f"sha256:{hashlib.sha256(b'a-very-long-key-of-it').hexdigest()}"),
    )
    with InBackground(settings(certificate, ca=authority.file, clients=clients)) as url:
        for shown in (robot, clerk):
            for _ in range(2):
                assert get(url, context(authority, shown))[0] == 200
        status, body = get(url, context(authority))
        assert status == 401
        assert get(url, context(authority, nobody))[0] == 401
        # Whoever shows another authority's certificate is not let in at all.
        with pytest.raises((urllib.error.URLError, OSError)):
            get(url, context(authority, forged))
        # A key says who it is, and a wrong one is no identity, whatever certificate stands beside it.
        assert get(url, context(authority, robot), Authorization="Bearer a-very-long-key-of-it")[0] == 200
        assert get(url, context(authority, robot), Authorization="Bearer something-else-entirely")[0] == 401
        assert "Bearer" in body["error"]["message"]
        assert fingerprint not in json.dumps(body)


def test_what_was_answered_for_a_certificate_is_not_answered_for_the_same_head_without_it(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, _ = authority.issue("localhost")
    clerk, _ = authority.issue("clerk")
    clients = (Client("person", certificate="subject:clerk"),)
    body = b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{}}'
    head = (
        b"POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        b"accept: application/json, text/event-stream\r\nmcp-protocol-version: 2025-06-18\r\n"
        b"content-length: %d\r\n\r\n" % len(body)
    )

    def ask(url: str, shown: Path | None) -> bytes:
        port = int(url.rsplit(":", 1)[1])
        with (
            socket.create_connection(("localhost", port), 60) as plain,
            context(authority, shown).wrap_socket(plain, server_hostname="localhost") as line,
        ):
            answers = b""
            for _ in range(3):  # what the first one was, the next ones may be known by
                line.sendall(head + body)
                answers = line.recv(65_536)
            return answers.split(b"\r\n", 1)[0]

    with InBackground(settings(certificate, ca=authority.file, clients=clients)) as url:
        assert b" 401 " not in ask(url, clerk)
        assert b" 401 " in ask(url, None)


@pytest.mark.parametrize(
    ("server", "client", "says"),
    [
        (Server(port=0, tls_key="x.pem"), None, "need server.tls_certificate"),
        (Server(port=0, tls_certificate="/nowhere/cert.pem"), None, "tls_certificate"),
        (Server(port=0), Client("a", certificate="subject:x"), "tls_client_ca"),
        (Server(port=0, tls_certificate="cert.pem", grpc_client_certificates=True), None, "needs server.tls_client_ca"),
        (Server(port=0), Client("a"), "or a certificate"),
    ],
)
def test_what_cannot_work_stops_the_start(server: Server, client: Client | None, says: str) -> None:
    clients = (client,) if client is not None else ()
    made = Settings(server=server, storage=Storage(url="sqlite://"), clients=clients)
    with pytest.raises(SetupError, match=says), InBackground(made):
        pass


def test_grpc_speaks_tls_and_knows_a_client_by_its_certificate(tmp_path: Path) -> None:
    grpc = pytest.importorskip("grpc")
    from agent3.protocols.a2a.grpc.codecs import GRPCS

    authority = Authority(tmp_path)
    certificate, _ = authority.issue("localhost")
    robot, _ = authority.issue("robot")
    nobody, _ = authority.issue("nobody")
    forged, _ = Authority(tmp_path, "Other CA").issue("robot", "forged")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def ask(shown: Path | None, seconds: float = 60) -> str:
        pair = (None, None) if shown is None else (shown.read_bytes(), shown.read_bytes())
        trusted = grpc.ssl_channel_credentials(authority.file.read_bytes(), *pair)
        name = (("grpc.ssl_target_name_override", "localhost"),)
        with grpc.secure_channel(f"127.0.0.1:{port}", trusted, options=name) as channel:
            try:
                channel.unary_unary(f"/{GRPCS['1.0'].service}/GetTask")(b"\x12\x01x", timeout=seconds)
            except grpc.RpcError as error:
                return str(error.code().name)
        return "OK"

    for required, answers in ((False, ("UNAUTHENTICATED",) * 3), (True, ("NOT_FOUND", "UNAUTHENTICATED"))):
        server = Server(
            port=0,
            grpc_port=port,
            tls_certificate=str(certificate),
            tls_client_ca=str(authority.file),
            grpc_client_certificates=required,
        )
        made = Settings(
            server=server, storage=Storage(url="sqlite://"), clients=(Client("machine", certificate="subject:robot"),)
        )
        with InBackground(made):
            assert tuple(ask(shown) for shown in (robot, nobody, None)[: len(answers)]) == answers
            if required:  # another authority's certificate, and none, end the handshake
                assert [ask(shown) for shown in (forged, None)] == ["UNAVAILABLE"] * 2
