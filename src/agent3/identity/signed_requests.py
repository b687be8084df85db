"""Signed requests: RFC 9421 with hmac-sha256 over what a request asks for, and RFC 9530 over its body.

``sign`` makes the headers of a client, ``Verifier`` judges them at a door. Both know requests as plain data and
nothing of ASGI. Of the standards this is the part that a shared secret needs: one signature for a request, and
components without parameters. docs/reference/signing.md describes it for those who write a client.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from urllib.parse import quote, urlsplit

from agent3.env import REAL, Env
from agent3.errors import SetupError, Unauthenticated
from agent3.identity.nonces import Nonces
from agent3.model import ANONYMOUS, Principal
from agent3.observe.logs import get as logger

__all__ = ["ACCEPT", "WINDOW", "Checked", "Key", "Request", "Verifier", "content_digest", "secret_bytes", "sign"]

log = logger("signing")

WINDOW = 300.0
"""Seconds by which the time of a signature may differ from ours."""
ACCEPT = 'sig=("@method" "@authority" "@path" "@query" "content-digest");created;alg="hmac-sha256"'
"""What a door asks for, as the header Accept-Signature of RFC 9421, section 5.1."""
SHORTEST_KEY, SHORT_KEY = 16, 32
_BOUND_HEADERS = ("content-digest", "mcp-method", "mcp-name")
_LONGEST = 4_096

# Only the canonical form of RFC 8941 is taken, so that the text as it came is the text that was signed.
_NAME = r"[a-z*][a-z0-9_.*-]{0,63}"
_INPUT = re.compile(
    rf'({_NAME})=(\(((?:"[!#-\[\]-~]+"(?: "[!#-\[\]-~]+")*)?)\)((?:;{_NAME}=(?:-?[0-9]{{1,15}}|"[ !#-\[\]-~]*"))*))'
)
_PARAMETER = re.compile(rf';({_NAME})=(?:(-?[0-9]+)|"([^"]*)")')
_SIGNATURE = re.compile(rf"({_NAME})=:([A-Za-z0-9+/]{{43}}=):")
_SHA256 = re.compile(r"(?:^|,)[ \t]*sha-256=:([A-Za-z0-9+/]{43}=):(?=[ \t]*(?:,|$))")
_NONCE = re.compile(r"[A-Za-z0-9+/=_.~-]{16,128}")
_KEY_ID = re.compile(r"[ !#-\[\]-~]{1,128}")
_KNOWN = frozenset({"created", "expires", "nonce", "alg", "keyid", "tag"})


def secret_bytes(text: str, what: str) -> bytes:
    """A key as bytes; SetupError below 16 of them, a warning in the log below 32. ``what`` names it."""
    raw = text.encode("utf-8", "surrogateescape")
    if len(raw) < SHORTEST_KEY:
        raise SetupError(f"{what} must be set and have at least {SHORTEST_KEY} bytes. Make one: openssl rand -hex 32")
    if len(raw) < SHORT_KEY:
        log.warning("%s has %d bytes; an HMAC key should have %d. Make one: openssl rand -hex 32", what, len(raw), 32)
    return raw


# What is signed


@dataclass(frozen=True, slots=True)
class Request:
    """What of an HTTP request can be signed.

    ``path`` and ``query`` stand as they were sent, before any decoding. Names of headers are in lower case, and the
    values of repeated ones are joined by a comma and a space.
    """

    method: str
    authority: str
    path: str
    query: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    scheme: str = "http"

    @classmethod
    def to(cls, method: str, url: str, headers: Mapping[str, str]) -> Request:
        """The request that a client is about to send."""
        parts = urlsplit(url)
        if not parts.hostname or parts.scheme not in ("http", "https"):
            raise SetupError(f"{url!r} cannot be signed. Use an absolute address such as https://gateway.example/mcp")
        named = {name.lower(): value.strip() for name, value in headers.items()}
        host = named.get("host", parts.netloc.rpartition("@")[2])
        return cls(method.upper(), host, _quote(parts.path), _quote(parts.query), named, parts.scheme)

    def value(self, component: str) -> str | None:
        """What stands for a component in the signature base, RFC 9421 section 2; None where there is nothing."""
        derived = _DERIVED.get(component)
        return derived(self) if derived else self.headers.get(component)

    def host(self) -> str:
        """The authority in its normal form: lower case, without the port that the scheme implies."""
        return self.authority.lower().removesuffix(":443" if self.scheme == "https" else ":80")

    def target(self) -> str:
        """Path and query, as in the request line."""
        return (self.path or "/") + (f"?{self.query}" if self.query else "")


_DERIVED: dict[str, Callable[[Request], str]] = {
    "@method": lambda request: request.method,
    "@authority": Request.host,
    "@scheme": lambda request: request.scheme,
    "@path": lambda request: request.path or "/",
    "@query": lambda request: f"?{request.query}",
    "@request-target": Request.target,
    "@target-uri": lambda request: f"{request.scheme}://{request.host()}{request.target()}",
}


def _quote(text: str) -> str:
    return quote(text, safe="%/:@!$&'()*+,;=~?-._[]")


def content_digest(body: bytes) -> str:
    """The header Content-Digest of RFC 9530."""
    return f"sha-256=:{base64.b64encode(hashlib.sha256(body).digest()).decode()}:"


def signature_base(request: Request, covered: Iterable[str], parameters: str) -> bytes:
    """The bytes that are signed, RFC 9421 section 2.5. Unauthenticated when something covered is not there."""
    lines = []
    for name in covered:
        value = request.value(name)
        if value is None:
            raise _refusal(f"The signature covers {name!r}, which the request lacks")
        lines.append(f'"{name}": {value}')
    return "\n".join([*lines, f'"@signature-params": {parameters}']).encode("latin-1")


def sign(
    method: str,
    url: str,
    body: bytes = b"",
    *,
    key_id: str,
    key: str | bytes,
    headers: Mapping[str, str] | None = None,
    env: Env = REAL,
) -> dict[str, str]:
    """The headers that sign a request: add them to ``headers`` and send exactly this method, url and body.

    ``headers`` are those that the request will have; of them Mcp-Method and Mcp-Name are covered. Every call makes a
    new nonce, so a request that is sent again is signed again.
    """
    digest = {"Content-Digest": content_digest(body)}
    request = Request.to(method, url, {**(headers or {}), **digest})
    covered = [
        "@method",
        "@authority",
        "@path",
        "@query",
        *(name for name in _BOUND_HEADERS if name in request.headers),
    ]
    named = " ".join(f'"{name}"' for name in covered)
    parameters = f'({named});created={int(env.now())};nonce="{env.random_bytes(16).hex()}";keyid="{key_id}"'
    parameters += ';alg="hmac-sha256"'
    named_key = Key(key_id, key.encode() if isinstance(key, str) else key, ANONYMOUS)
    value = hmac.digest(named_key.secret, signature_base(request, covered, parameters), "sha256")
    signed = {"Signature-Input": f"sig={parameters}", "Signature": f"sig=:{base64.b64encode(value).decode()}:"}
    return digest | signed


# Judging


@dataclass(frozen=True, slots=True)
class Key:
    """A secret, the id under which requests name it, and who signs with it."""

    id: str
    secret: bytes = field(repr=False)
    owner: Principal

    def __post_init__(self) -> None:
        if not _KEY_ID.fullmatch(self.id):
            raise SetupError(
                f"{self.id[:100]!r} cannot be the id of a key: use 1 to 128 ASCII characters without quotes."
            )


@dataclass(frozen=True, slots=True)
class _Signed:
    """The two headers of a signature, read."""

    covered: tuple[str, ...]
    parameters: str
    created: int
    expires: int | None
    nonce: str
    key_id: str
    value: bytes


@dataclass(frozen=True, slots=True)
class Checked:
    """A signature that is right and in time; what is left to see is the body and the nonce."""

    owner: Principal
    digest: str | None
    nonce: str
    created: int
    expires: int | None


class Verifier:
    """Says who signed a request: first ``check`` with the headers alone, then ``admit`` with the body.

    So that a stranger can neither make us keep a body nor store a nonce, both come after the signature; and so that
    a wrong body does not use up the nonce of the right one, the nonce comes last. Every refusal is Unauthenticated;
    whether the key id is known cannot be told from the words nor from the time. Two keys may have one id, while one
    replaces the other.
    """

    def __init__(self, keys: Iterable[Key], nonces: Nonces, *, window: float = WINDOW, env: Env = REAL):
        self._keys: dict[str, tuple[Key, ...]] = {}
        for key in keys:
            self._keys[key.id] = (*self._keys.get(key.id, ()), key)
        width = max(map(len, self._keys.values()), default=1)
        self._nobody = tuple(Key("nobody", env.random_bytes(32), ANONYMOUS) for _ in range(width))
        self._nonces = nonces
        self._window = window
        self._env = env

    def check(self, request: Request) -> Checked:
        """Judge the headers: form, coverage, signature, time."""
        signed = _parse_signature(request.headers)
        missing = [name for name in _must_cover(request, signed.covered) if name not in signed.covered]
        if missing:
            raise _refusal(f"The signature must also cover {', '.join(missing)}")
        base = signature_base(request, signed.covered, signed.parameters)
        # As many keys are tried for every id, known or not, and all of them to the end: the time tells nothing.
        known = self._keys.get(signed.key_id, ())
        owner = None
        for number, key in enumerate((*known, *self._nobody)[: len(self._nobody)]):
            matches = hmac.compare_digest(hmac.digest(key.secret, base, "sha256"), signed.value)
            if matches and number < len(known):
                owner = key.owner
        if owner is None:
            raise _refusal("The signature is not valid for this request and key id")
        checked = Checked(owner, request.headers.get("content-digest"), signed.nonce, signed.created, signed.expires)
        self._check_time(checked)
        return checked

    async def admit(self, checked: Checked, body: bytes) -> Principal:
        """Judge the body, and take the nonce: for each signature this succeeds once, in all processes together."""
        if checked.digest is not None:
            given = _SHA256.findall(_bound(checked.digest))
            if len(given) != 1:
                raise _refusal("Content-Digest must have the form sha-256=:BASE64:")
            if not hmac.compare_digest(base64.b64decode(given[0]), hashlib.sha256(body).digest()):
                raise _refusal("The body was changed after it was signed: it does not match its Content-Digest")
        elif body:
            raise _refusal("A request with a body must have a Content-Digest that the signature covers")
        self._check_time(checked)  # again, for the body may have been slow
        if not await self._nonces.claim(checked.owner.id, checked.nonce, checked.created + self._window):
            raise _refusal("This signature was already used; sign each request with a new nonce")
        return checked.owner

    def _check_time(self, checked: Checked) -> None:
        now = self._env.now()
        age = now - checked.created
        if abs(age) > self._window:
            off = f"{abs(age):.0f} s {'old' if age > 0 else 'ahead'}"
            raise _refusal(f"The signature is {off}, more than {self._window:.0f} s; check the clocks, or sign again")
        if checked.expires is not None and now > checked.expires:
            raise _refusal("The signature has expired; sign again")


def _refusal(why: str) -> Unauthenticated:
    return Unauthenticated(f"{why}. See docs/reference/signing.md.")


def _must_cover(request: Request, covered: Collection[str]) -> Iterator[str]:
    """The method, the target in one of its three spellings, the body, and what MCP says in headers."""
    yield "@method"
    if "@target-uri" not in covered:
        yield "@authority"
        if "@request-target" not in covered:
            yield "@path"
            if request.query:
                yield "@query"
    yield from (name for name in _BOUND_HEADERS if name in request.headers)


def _bound(text: str) -> str:
    return text if len(text) <= _LONGEST else ""


def _parse_signature(headers: Mapping[str, str]) -> _Signed:
    """The signature of a request, in the one form that is taken."""
    described = _INPUT.fullmatch(_bound(headers.get("signature-input", "")))
    value = _SIGNATURE.fullmatch(_bound(headers.get("signature", "")))
    if described is None:
        raise _refusal('Signature-Input must be one sig=("…" "…");created=N;nonce="…";keyid="…"')
    if value is None or value[1] != described[1]:
        raise _refusal("Signature must be one LABEL=:BASE64: of 32 bytes, with the label of Signature-Input")
    covered = tuple(described[3].replace('"', "").split())
    if len(set(covered)) < len(covered):
        raise _refusal("The signature covers a component twice")
    pairs = _PARAMETER.findall(described[4])
    names = {name for name, _, _ in pairs}
    numbers = {name: int(number) for name, number, _ in pairs if number}
    texts = {name: words for name, number, words in pairs if not number}
    if len(names) < len(pairs) or not names <= _KNOWN:
        raise _refusal(f"The parameters of a signature are {', '.join(sorted(_KNOWN))}, each at most once")
    if "created" not in numbers or "keyid" not in texts or not _NONCE.fullmatch(texts.get("nonce", "")):
        raise _refusal("The signature needs created=N, keyid and a nonce of 16 to 128 letters and digits")
    if texts.get("alg", "hmac-sha256") != "hmac-sha256":
        raise _refusal("The algorithm must be hmac-sha256")
    return _Signed(
        covered,
        described[2],
        numbers["created"],
        numbers.get("expires"),
        texts["nonce"],
        texts["keyid"],
        base64.b64decode(value[2]),
    )
