"""A website on loopback for tests: a few pages, plain or over TLS with a certificate authority of its own.

It counts connections, not only requests: "nothing was reached" is said by the listening socket.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import html
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, Self
from urllib.parse import parse_qsl, urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import NameOID

__all__ = ["AIRLINE", "Answer", "Authority", "Site"]


@dataclass(frozen=True)
class Answer:
    """What a page answers with."""

    body: str = ""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


Page = str | Answer | Callable[[dict[str, str]], "str | Answer"]


class Site:
    """Pages by path, each a text, an answer, or a function of the query. Serves in the ``with`` block.

    The cookies of a request stand in the query as ``cookie:``.
    """

    def __init__(self, pages: Mapping[str, Page], tls: ssl.SSLContext | None = None):
        self.pages: dict[str, Page] = dict(pages)
        self.requests: list[tuple[str, str]] = []
        self.connections = 0
        self._server = _server_for(self)
        if tls is not None:
            # The handshake belongs to the connection's thread: in accept() one silent client would block all others.
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self._scheme = "http" if tls is None else "https"
        self.port: int = self._server.server_address[1]
        self.host = f"127.0.0.1:{self.port}"
        self.url = f"{self._scheme}://{self.host}"
        self._thread = Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(60)

    def answer(self, path: str, query: dict[str, str]) -> Answer:
        page = self.pages.get(path, Answer("not here", 404))
        made = page(query) if callable(page) else page
        return made if isinstance(made, Answer) else Answer(made)


def _server_for(site: Site) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 20

        def do_GET(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            form = self.rfile.read(size).decode() if size else ""
            parts = urlsplit(self.path)
            site.requests.append((self.headers.get("Host", ""), self.path))
            cookie = {"cookie:": self.headers["Cookie"]} if self.headers.get("Cookie") else {}
            answer = site.answer(parts.path, dict(parse_qsl(parts.query) + parse_qsl(form)) | cookie)
            body = answer.body.encode()
            self.send_response(answer.status)
            for name, value in {"Content-Type": "text/html; charset=utf-8", **answer.headers}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, *_: Any) -> None:
            """Quiet."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        block_on_close = False

        def get_request(self) -> Any:
            found = super().get_request()
            site.connections += 1
            return found

        def handle_error(self, request: Any, client_address: Any) -> None:
            """A browser that hangs up is no news."""

    return Server(("127.0.0.1", 0), Handler)


class Authority:
    """A certificate authority for one test run. ``digest`` is what AGENT3_HOST_KEYS takes."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._certificate = self._sign("test authority", self._key.public_key(), ())
        public = self._key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        self.digest = base64.b64encode(hashlib.sha256(public).digest()).decode()

    def context(self, *names: str) -> ssl.SSLContext:
        """For a server that answers as these hosts."""
        key = ec.generate_private_key(ec.SECP256R1())
        chain = [self._sign(names[0], key.public_key(), names), self._certificate]
        pem = b"".join(one.public_bytes(Encoding.PEM) for one in chain)
        path = self._folder / f"{names[0]}.pem"
        path.write_bytes(pem + key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(path)
        return context

    def _sign(self, name: str, key: ec.EllipticCurvePublicKey, names: tuple[str, ...]) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test authority")]))
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=30))
            .add_extension(x509.BasicConstraints(ca=not names, path_length=None), critical=True)
        )
        if names:
            alternatives = x509.SubjectAlternativeName([x509.DNSName(one) for one in names])
            builder = builder.add_extension(alternatives, critical=False)
        return builder.sign(self._key, hashes.SHA256())


# A small airline: a form, and results that come late, as results do

_FORM = """<!doctype html><title>Flights</title>
<form action="/results"><input id="from" name="from"><input id="to" name="to"><input id="date" name="date" type="date">
<label><input id="direct" name="direct" type="checkbox"> direct</label>
<select id="class" name="class"><option value="">any</option><option value="b">Business</option></select>
<button type="submit">Search</button></form>"""

_RESULTS = """<!doctype html><title>Results</title><h1>{trip}</h1><div id="list"></div><script>
setTimeout(() => {{ document.getElementById('list').innerHTML = `{cards}`; }}, 50);
</script>"""

_CARD = """<div class="flight-card" data-id="{number}"><span class="name">{airline}</span>
<span class="price">{price}</span><a class="book" href="/book/{number}">Book</a>
<ul><li>{number}5:00</li><li>{number}9:30</li></ul></div>"""


def _results(query: dict[str, str]) -> str:
    flights = [("Test Air", "€ 1.299,00"), ("Blue Sky", "$499.50")]
    cards = [_CARD.format(number=number, airline=name, price=price) for number, (name, price) in enumerate(flights, 1)]
    trip = html.escape(" ".join(query.get(key, "-") for key in ("from", "to", "date", "direct", "class")))
    return _RESULTS.format(trip=trip, cards="".join(cards))


AIRLINE: dict[str, Page] = {
    "/": "<!doctype html><title>Airline</title><h1>Welcome</h1><a href='/flights'>Flights</a>",
    "/flights": _FORM,
    "/results": _results,
    "/redirect": lambda query: Answer(status=302, headers={"Location": query["to"]}),
    "/status": lambda query: Answer("as asked", int(query["code"])),
}
