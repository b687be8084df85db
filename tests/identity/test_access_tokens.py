"""Access tokens: where they come from is announced, a good one gets in, and whatever is wrong with one keeps it out."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from agent3.env import SeededEnv
from agent3.errors import SetupError, Unauthenticated
from agent3.identity import access_tokens as oauth
from agent3.identity.doorkeeper import Doorkeeper
from agent3.observe.metrics import Metrics
from agent3.server.demo import agents
from agent3.settings import Client, OAuth, Rule, Server, Settings
from tests.support.gateway import Door, Hosted, Reply, hosted

RESOURCE = "https://gateway.example.com"
METADATA = "/.well-known/oauth-protected-resource"
KEY = "a-key-of-many-characters"
MCP_HEADERS = {"content_type": "application/json", "accept": "application/json, text/event-stream"}
HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}},
}

PrivateKey = RSAPrivateKey | EllipticCurvePrivateKey


class Issuer:
    """An authorization server on loopback, as far as a resource server sees of it. ``asked`` is what was fetched."""

    def __init__(self) -> None:
        self.keys: dict[str, PrivateKey] = {}
        self.asked: list[str] = []
        self.add("first")
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                owner.asked.append(self.path)
                body = json.dumps(owner.answer(self.path)).encode()
                self.send_response(200 if body != b"null" else 404)
                self.send_header("Content-Length", str(len(body)))
                with suppress(OSError):  # whoever asked may have gone meanwhile
                    self.end_headers()
                    self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/tenant"

    def add(self, kid: str, key: PrivateKey | None = None) -> None:
        self.keys[kid] = key or rsa.generate_private_key(65537, 2048)

    def answer(self, path: str) -> Any:
        if path == "/tenant/.well-known/openid-configuration":
            return {"issuer": self.url, "jwks_uri": f"{self.url}/keys"}
        if path == "/tenant/keys":
            return {"keys": [public(kid, key) for kid, key in self.keys.items()]}
        return None

    def token(self, kid: str = "first", algorithm: str = "RS256", key: Any = None, **claims: Any) -> str:
        """A good token, but for what is said otherwise; a claim that is None is left out."""
        now = int(time.time())
        good = {"iss": self.url, "aud": RESOURCE, "sub": "ann", "exp": now + 300, "iat": now, "scope": "orders"}
        header = {"kid": kid, "typ": claims.pop("typ", "at+jwt")}
        payload = {name: value for name, value in {**good, **claims}.items() if value is not None}
        return jwt.encode(payload, key or self.keys[kid], algorithm, header)


def public(kid: str, key: PrivateKey) -> dict[str, Any]:
    shown: dict[str, Any] = (
        RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)
        if isinstance(key, RSAPrivateKey)
        else ECAlgorithm.to_jwk(key.public_key(), as_dict=True)
    )
    return {**shown, "kid": kid, "use": "sig"}


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    made = Issuer()
    thread = threading.Thread(target=made.server.serve_forever, args=(0.05,))
    thread.start()
    yield made
    made.server.shutdown()
    thread.join(60)
    made.server.server_close()


@pytest.fixture(scope="module")
def house(issuer: Issuer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosted]:
    settings = Settings(
        oauth=OAuth(issuers=(issuer.url,), resource=RESOURCE, audience=("agent3-api",), scopes=("orders",)),
        clients=(Client("me", f"sha256:{hashlib.sha256(KEY.encode()).hexdigest()}"),),
        rules=(
            Rule("deny", agent="pizza", principal="me"),
            Rule("allow", agent="pizza", scope="kitchen"),
            Rule("deny", agent="pizza"),
            Rule("allow"),
        ),
    )
    with hosted(tmp_path_factory.mktemp("oauth"), agents(), settings) as running:
        yield running


def mcp(door: Door, path: str = "/mcp") -> Reply:
    return door.post(path, HELLO, **MCP_HEADERS)


# Announced


def test_the_gateway_and_each_of_its_mcp_doors_have_metadata(house: Hosted, issuer: Issuer) -> None:
    for door in ("", "/mcp", "/agents/pizza/mcp"):
        reply = house.get(METADATA + door)
        assert reply.status == 200
        assert reply.json == {
            "resource": RESOURCE + door,
            "authorization_servers": [issuer.url],
            "bearer_methods_supported": ["header"],
            "resource_name": "agent3",
            "scopes_supported": ["orders"],
        }
    assert house.get(f"{METADATA}/v1/agents").status == 404


def test_a_refusal_says_where_to_look(house: Hosted, issuer: Issuer) -> None:
    refused = house.get("/v1/agents")
    assert refused.status == 401
    wanted = f'Bearer resource_metadata="{RESOURCE}{METADATA}", scope="orders"'
    assert refused.headers["www-authenticate"] == wanted
    assert 'Send a key or an access token as "Authorization: Bearer ..."' in refused.error["message"]
    assert f"Tokens are issued by {issuer.url}, for {RESOURCE}." in refused.error["message"]
    refused = mcp(house)
    assert refused.status == 401
    assert refused.headers["www-authenticate"] == wanted.replace(METADATA, f"{METADATA}/mcp")
    refused = mcp(house.as_("not.a.token"))
    assert 'error="invalid_token"' in refused.headers["www-authenticate"]


def test_without_an_issuer_there_is_nothing_of_it(tmp_path: Path) -> None:
    with hosted(tmp_path, agents(), Settings(clients=(Client("me", f"sha256:{'0' * 64}"),))) as plain:
        assert plain.get(METADATA).status == 404
        assert plain.get("/v1/agents").headers["www-authenticate"] == "Bearer"


STRANGE = ["/agents/%E2%82%AC/mcp", "/agents/a%0d%0aX-Evil:%201/mcp", "/agents/a%22,error=%22x/mcp", "/agents/a%5C/mcp"]


@pytest.mark.parametrize("path", STRANGE)
def test_no_path_breaks_the_header_that_names_it(house: Hosted, path: str) -> None:
    refused = mcp(house, path)
    assert refused.status == 401
    said = refused.headers["www-authenticate"]
    assert said.isascii()
    assert said.count('"') == 4
    assert said.startswith(f'Bearer resource_metadata="{RESOURCE}{METADATA}')
    assert "x-evil" not in refused.headers


def test_a_door_whose_name_is_not_ascii_is_announced_as_its_address_is_written(house: Hosted, issuer: Issuer) -> None:
    path = "/agents/b%C3%A4cker/mcp"
    assert f'"{RESOURCE}{METADATA}{path}"' in mcp(house, path).headers["www-authenticate"]
    assert house.get(METADATA + path).json["resource"] == RESOURCE + path
    assert house.get(f"{METADATA}/agents/a%22b/mcp").status == 404
    assert mcp(house.as_(issuer.token(aud=RESOURCE + path)), path).status == 404  # it is let in, and there is none


# Judged


def test_a_good_token_gets_in_at_every_door_as_its_subject(house: Hosted, issuer: Issuer) -> None:
    bearer = house.as_(issuer.token())
    assert bearer.call("echo", "hi").json["result"] == "hi"
    assert mcp(bearer).status == 200
    row = next(row for row in house.rows("calls") if row["agent"] == "echo")
    assert row["principal"] == f"ann@{issuer.url.partition('://')[2]}"


def test_keys_of_clients_are_good_beside_tokens(house: Hosted) -> None:
    assert house.as_(KEY).call("echo", "hi").json["result"] == "hi"
    assert house.as_("another-key-of-many-characters").get("/v1/agents").status == 401


def test_the_scopes_of_a_token_are_those_that_rules_ask_for(house: Hosted, issuer: Issuer) -> None:
    cook = house.as_(issuer.token(scope="orders kitchen"))
    assert cook.get("/v1/agents/pizza").status == 200
    assert house.as_(issuer.token(scope=None, scp=["orders", "kitchen"])).get("/v1/agents/pizza").status == 200
    assert house.as_(issuer.token()).get("/v1/agents/pizza").status == 404


def test_a_token_without_a_scope_that_all_need_is_told_which(house: Hosted, issuer: Issuer) -> None:
    for reply in (
        house.as_(issuer.token(scope="other")).get("/v1/agents"),
        mcp(house.as_(issuer.token(scope="other"))),
    ):
        assert reply.status == 403
        assert 'error="insufficient_scope"' in reply.headers["www-authenticate"]
        assert 'scope="orders"' in reply.headers["www-authenticate"]


def test_a_token_for_one_door_is_good_there_and_nowhere_else(house: Hosted, issuer: Issuer) -> None:
    for_mcp = house.as_(issuer.token(aud=[f"{RESOURCE}/mcp", "elsewhere"]))
    assert mcp(for_mcp).status == 200
    assert for_mcp.get("/v1/agents").status == 401
    assert house.as_(issuer.token(aud="agent3-api")).get("/v1/agents").status == 200


def test_other_kinds_of_keys_are_good_too(house: Hosted, issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key that is new is fetched when the first token comes that was signed with it."""
    monkeypatch.setattr(oauth, "_KEYS_APART", 0.0)
    issuer.add("second", ec.generate_private_key(ec.SECP256R1()))
    assert house.as_(issuer.token("second", "ES256")).get("/v1/agents").status == 200
    assert house.as_(issuer.token("first", "PS256")).get("/v1/agents").status == 200


NOW = int(time.time())
WRONG: list[tuple[str, dict[str, Any]]] = [
    ("expired", {"exp": NOW - 3_600}),
    ("another audience", {"aud": "https://other.example.com"}),
    ("another audience", {"aud": f"{RESOURCE}/agents/pizza/mcp"}),
    ("does not trust", {"iss": "https://evil.example.com"}),
    ("not valid", {"exp": None}),
    ("not valid", {"aud": None}),
    ("not valid", {"nbf": NOW + 3_600}),
    ("no subject", {"sub": None}),
    ("not an access token", {"typ": "secevent+jwt"}),
    ("ID token", {"typ": "JWT", "nonce": "n"}),
    ("ID token", {"typ": "JWT", "at_hash": "h"}),
]


@pytest.mark.parametrize(("words", "claims"), WRONG)
def test_what_is_wrong_with_a_token_is_told_and_it_is_counted(
    house: Hosted, issuer: Issuer, words: str, claims: dict[str, Any]
) -> None:
    before = _failures(house)
    refused = house.as_(issuer.token(**claims)).get("/v1/agents")
    assert (refused.status, refused.error["code"]) == (401, "unauthenticated")
    assert words in refused.error["message"]
    assert 'error="invalid_token"' in refused.headers["www-authenticate"]
    assert _failures(house) == before + 1


def test_a_token_that_was_not_signed_by_its_issuer_is_refused(house: Hosted, issuer: Issuer) -> None:
    stranger = rsa.generate_private_key(65537, 2048)
    forged = [
        issuer.token(key=stranger),
        issuer.token("unknown", key=stranger),
        _unsigned(issuer.token()),
        _with_shared_secret(issuer),
        _altered(issuer.token()),
    ]
    assert [house.as_(one).get("/v1/agents").status for one in forged] == [401] * len(forged)


def _part(data: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(data).encode()).rstrip(b"=").decode()


def _unsigned(token: str) -> str:
    return f"{_part({'alg': 'none', 'typ': 'at+jwt', 'kid': 'first'})}.{token.split('.')[1]}.AA"


def _with_shared_secret(issuer: Issuer) -> str:
    """Signed with the public key as if it were a shared secret: what a careless verifier takes."""
    key = issuer.keys["first"].public_key()
    secret = key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    signed = f"{_part({'alg': 'HS256', 'typ': 'at+jwt', 'kid': 'first'})}.{issuer.token().split('.')[1]}"
    signature = hmac.digest(secret, signed.encode(), "sha256")
    return f"{signed}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"


def _altered(token: str) -> str:
    head, body, signature = token.split(".")
    claims = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    return f"{head}.{_part({**claims, 'sub': 'somebody else'})}.{signature}"


def _token(header: Any, claims: Any = None) -> str:
    raw = [one if isinstance(one, bytes) else json.dumps(one).encode() for one in (header, claims or {})]
    return ".".join([*(base64.urlsafe_b64encode(one).rstrip(b"=").decode() for one in raw), "AAAA"])


MALFORMED = [
    _token({"alg": ["RS256"], "kid": "first"}),
    _token({"alg": {}, "kid": "first"}),
    _token({"kid": "first"}),
    _token({"alg": "RS256", "kid": 1}),
    _token({"alg": "RS256", "kid": ["first"]}),
    _token({"alg": "RS256", "typ": ["JWT"]}),
    _token({"alg": "RS256", "kid": "first", "b64": False}),
    _token({"alg": "RS256", "kid": "first", "crit": ["b64"]}),
    _token(["RS256"]),
    _token({"alg": "RS256"}, ["iss"]),
    _token({"alg": "RS256"}, b"[" * 8_000),
    _token(b'{"a":' * 2_000),
    _token(b"\xff\xfe", b"\xff"),
]


@pytest.mark.parametrize("number", range(len(MALFORMED)))
def test_a_token_that_is_no_token_is_refused_like_any_other(house: Hosted, issuer: Issuer, number: int) -> None:
    head, body, signature = MALFORMED[number].split(".")
    named = f"{head}.{_part({'iss': issuer.url}) if body == 'e30' else body}.{signature}"
    stranger = house.as_(named)
    assert stranger.get("/v1/agents").status == 401
    assert mcp(stranger).status == 401


def test_a_good_token_with_claims_of_wrong_types_is_refused(house: Hosted, issuer: Issuer) -> None:
    for claims in ({"exp": "soon"}, {"exp": float("inf")}, {"exp": [1]}, {"sub": 5}, {"aud": 5}, {"nbf": "x"}):
        assert house.as_(issuer.token(**claims)).get("/v1/agents").status == 401


def test_an_issuer_that_hangs_does_not_keep_good_tokens_waiting(
    issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"_KEYS_FOR": 0.0, "_KEYS_APART": 0.0, "_BRIEFLY": 0.1, "_PATIENCE": 2.0}.items():
        monkeypatch.setattr(oauth, name, value)
    again, answer = threading.Event(), issuer.answer

    def late(path: str) -> Any:
        again.wait(60)
        return answer(path)

    async def story() -> None:
        tokens = oauth.TokenVerifier(Settings(oauth=OAuth(issuers=(issuer.url,), resource=RESOURCE)))
        door = {"path": "/mcp"}
        await tokens.principal(dict(door), issuer.token(jti="1"))
        monkeypatch.setattr(issuer, "answer", late)
        async with asyncio.timeout(30):  # waiting for the issuer each time would take 40 s
            for number in range(20):
                await tokens.principal(dict(door), issuer.token(jti=f"hanging {number}"))
        async with asyncio.timeout(30):  # and the issuer hangs for 60 s
            with pytest.raises(Unauthenticated):
                await tokens.principal(dict(door), issuer.token("invented", key=issuer.keys["first"]))

    try:
        asyncio.run(asyncio.wait_for(story(), 120))
    finally:
        again.set()


def test_a_key_that_was_taken_back_is_refused_by_the_first_who_asks_after_an_hour(
    issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = SeededEnv(time=time.time())
    issuer.add("old")

    async def story() -> None:
        tokens = oauth.TokenVerifier(Settings(oauth=OAuth(issuers=(issuer.url,), resource=RESOURCE)), env)
        old = issuer.keys["old"]
        await tokens.principal({"path": "/mcp"}, issuer.token("old"))
        del issuer.keys["old"]
        env.advance(3_601)
        with pytest.raises(Unauthenticated, match="does not list"):
            await tokens.principal({"path": "/mcp"}, issuer.token("old", key=old, jti="2"))

    asyncio.run(asyncio.wait_for(story(), 60))


def test_invented_keys_do_not_make_the_gateway_fetch_again_and_again(house: Hosted, issuer: Issuer) -> None:
    assert house.as_(issuer.token()).get("/v1/agents").status == 200
    before = len(issuer.asked)
    stranger = rsa.generate_private_key(65537, 2048)
    for number in range(20):
        assert house.as_(issuer.token(f"invented {number}", key=stranger)).get("/v1/agents").status == 401
    assert len(issuer.asked) <= before + 3


def test_an_issuer_that_cannot_be_reached_is_no_fault_of_the_caller(issuer: Issuer, tmp_path: Path) -> None:
    gone = OAuth(issuers=("http://127.0.0.1:9/none",), resource=RESOURCE)
    with hosted(tmp_path, agents(), Settings(oauth=gone)) as house:
        refused = house.as_(issuer.token(iss="http://127.0.0.1:9/none")).get("/v1/agents")
        assert (refused.status, refused.error["code"]) == (503, "unavailable")
        assert house.get("/v1/agents").status == 401


def _failures(door: Door) -> float:
    lines = door.get("/metrics").raw.decode().splitlines()
    return float(next(line for line in lines if line.startswith("mcp_auth_failures_total ")).split()[1])


# Settings

BAD = [
    (OAuth(issuers=("https://login.example.com",)), "oauth.resource"),
    (OAuth(issuers=("https://login.example.com",), resource="gateway"), "oauth.resource"),
    (OAuth(issuers=("https://login.example.com",), resource="https://gatewäy.example.com"), "oauth.resource"),
    (OAuth(issuers=("https://login.example.com",), resource=RESOURCE, scopes=('a"b',)), "oauth.scopes"),
    (OAuth(issuers=("http://login.example.com",), resource=RESOURCE), "https://"),
    (OAuth(issuers=("https://me@login.example.com",), resource=RESOURCE), "no user"),
    (OAuth(issuers=("https://login.example.com?x=1",), resource=RESOURCE), "no user"),
]


@pytest.mark.parametrize(("given", "words"), BAD)
def test_settings_that_cannot_work_keep_the_gateway_from_starting(given: OAuth, words: str) -> None:
    with pytest.raises(SetupError, match="oauth") as refused:
        Doorkeeper(Settings(oauth=given), Metrics())
    assert words in refused.value.message


def test_an_issuer_is_enough_to_listen_on_the_network() -> None:
    given = OAuth(issuers=("https://login.example.com",), resource=RESOURCE)
    keeper = Doorkeeper(Settings(oauth=given, server=Server(host="0.0.0.0")), Metrics())
    assert keeper.judges
