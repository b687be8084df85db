"""Signed requests: the standard's own example, what a signature must cover, and a real gateway that judges them."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent3.env import SeededEnv
from agent3.errors import RateLimited, SetupError, Unauthenticated
from agent3.identity.doorkeeper import Doorkeeper
from agent3.identity.nonces import GRACE, SPAN, SWEEP_EVERY, Nonces
from agent3.identity.signed_requests import Key, Request, Verifier, content_digest, secret_bytes, sign, signature_base
from agent3.model import Principal
from agent3.observe.metrics import Metrics
from agent3.server.demo import agents
from agent3.settings import Client, Limits, Server, Settings, load
from agent3.storage import Database, open_database
from tests.support.gateway import Hosted, Reply, gateway, hosted
from tests.support.postgres import new_database_url
from tests.support.storage import using

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "signing.md"
SECRET = "a secret of thirty-two bytes, or more"
DESK = Principal("desk", "client", frozenset({"support"}))
URL = "http://gateway.example:8333/v1/call?wait=1"
BODY = b'{"agentId": "echo", "message": "hi"}'


# Without a door


class Bench:
    """A verifier on a database in memory, with a clock that the test holds."""

    def __init__(self, database: Database, env: SeededEnv):
        self.env = env
        keys = [Key("desk", SECRET.encode(), DESK)]
        self.verifier = Verifier(keys, Nonces(database, env=env), env=env)

    def signed(self, method: str = "POST", url: str = URL, body: bytes = BODY, **more: Any) -> Request:
        """A request as it arrives."""
        more = {"key_id": "desk", "key": SECRET, "headers": {}, **more}
        headers = sign(method, url, body, env=self.env, **more)
        return Request.to(method, url, {**more["headers"], **headers})

    async def who(self, request: Request, body: bytes = BODY) -> Principal:
        return await self.verifier.admit(self.verifier.check(request), body)

    async def refused(self, request: Request, body: bytes = BODY) -> str:
        with pytest.raises(Unauthenticated) as refusal:
            await self.who(request, body)
        return refusal.value.message


def on_bench(story: Any, url: str = ":memory:") -> None:
    async def run(database: Database) -> None:
        await story(Bench(database, SeededEnv()))

    using(url, run)


def changed(request: Request, **fields: Any) -> Request:
    return replace(request, **fields)


def with_headers(request: Request, **headers: str | None) -> Request:
    merged = {**request.headers, **{name.replace("_", "-"): value for name, value in headers.items()}}
    return changed(request, headers={name: value for name, value in merged.items() if value is not None})


def test_the_example_of_the_standard_gives_the_signature_of_the_standard() -> None:
    # RFC 9421, B.2.5
    key = base64.b64decode("uzvJfB4u3N0Jy4T7NZ75MDVcr8zSTInedJtkgcu46YW4XByzNJjxBdtjUkdJPBtbmHhIDi6pcl8jsasjlTMtDQ==")
    headers = {"Date": "Tue, 20 Apr 2021 02:07:55 GMT", "Content-Type": "application/json"}
    request = Request.to("POST", "https://example.com/foo?param=Value&Pet=dog", headers)
    parameters = '("date" "@authority" "content-type");created=1618884473;keyid="test-shared-secret"'
    base = signature_base(request, ("date", "@authority", "content-type"), parameters)
    assert base64.b64encode(hmac.digest(key, base, "sha256")) == b"pxcQw6G3AjtMBQjwo8XzkZf/bws5LelbaMk5rGIGtE8="


def test_the_digest_is_the_one_of_its_standard() -> None:
    # RFC 9530, appendix D
    assert content_digest(b'{"hello": "world"}\n') == "sha-256=:RK/0qy18MlBSVnWgjwz6lZEWjP/lF5HF9bvEF8FabDg=:"


def test_the_parts_of_the_target_are_those_of_the_standard() -> None:
    request = Request.to("get", "https://user@Www.Example.com:443/path?param=value", {})
    parts = {one: request.value(one) for one in ("@method", "@authority", "@scheme", "@path", "@query")}
    assert list(parts.values()) == ["GET", "www.example.com", "https", "/path", "?param=value"]
    assert request.value("@target-uri") == "https://www.example.com/path?param=value"
    assert Request.to("GET", "http://a.example:8080", {}).value("@target-uri") == "http://a.example:8080/"
    assert Request.to("GET", "http://a.example:80", {}).value("@query") == "?"


@pytest.mark.parametrize(
    ("method", "url", "body"),
    [
        ("POST", URL, BODY),
        ("GET", "https://gateway.example/v1/agents", b""),
        ("GET", "https://gateway.example", b""),
        ("DELETE", "http://[::1]:8333/mcp", b""),
        ("POST", "http://gateway.example/a%2Fb?q=%20", bytes(range(256))),
    ],
)
def test_what_a_client_signs_is_its_own(method: str, url: str, body: bytes) -> None:
    async def story(bench: Bench) -> None:
        assert await bench.who(bench.signed(method, url, body), body) == DESK

    on_bench(story)


@pytest.mark.parametrize(
    "change",
    [
        {"method": "PUT"},
        {"authority": "other.example"},
        {"authority": "gateway.example:8334"},
        {"path": "/v1/feedback"},
        {"query": "wait=2"},
        {"query": ""},
    ],
)
def test_a_request_that_was_changed_is_refused(change: dict[str, str]) -> None:
    async def story(bench: Bench) -> None:
        assert "not valid for" in await bench.refused(changed(bench.signed(), **change))

    on_bench(story)


def test_a_body_that_was_changed_is_refused_and_does_not_use_up_the_nonce() -> None:
    async def story(bench: Bench) -> None:
        request = bench.signed()
        assert "changed after it was signed" in await bench.refused(request, BODY + b" ")
        assert "changed after it was signed" in await bench.refused(request, b"")
        other = with_headers(request, content_digest=content_digest(b"{}"))
        assert "not valid for" in await bench.refused(other, b"{}")
        assert await bench.who(request) == DESK

    on_bench(story)


def test_what_mcp_says_in_headers_is_covered() -> None:
    async def story(bench: Bench) -> None:
        named = {"Mcp-Method": "tools/call", "Mcp-Name": "agent3_call"}
        request = bench.signed(headers=named)
        assert "not valid for" in await bench.refused(with_headers(request, mcp_name="agent3_feedback"))
        assert "lacks" in await bench.refused(with_headers(request, mcp_name=None))
        assert await bench.who(request) == DESK
        added = with_headers(bench.signed(), mcp_method="tools/call")
        assert "must also cover mcp-method" in await bench.refused(added)

    on_bench(story)


def by_hand(bench: Bench, covered: str, more: str = "", **fields: Any) -> Request:
    """A signature over components of the test's choice."""
    request = Request.to("POST", URL, {"Content-Digest": content_digest(BODY), **fields})
    given = f'({covered});created={int(bench.env.now())};keyid="desk";nonce="{bench.env.id()}"{more}'
    base = signature_base(request, covered.replace('"', "").split(), given)
    value = base64.b64encode(hmac.digest(SECRET.encode(), base, "sha256")).decode()
    return with_headers(request, signature_input=f"x={given}", signature=f"x=:{value}:")


@pytest.mark.parametrize(
    "covered",
    [
        '"@method" "@authority" "@path" "@query" "content-digest"',
        '"content-digest" "@query" "@path" "@authority" "@method"',
        '"@method" "@target-uri" "content-digest"',
        '"@method" "@authority" "@request-target" "content-digest"',
        '"@method" "@scheme" "@target-uri" "content-digest" "date"',
    ],
)
def test_other_tools_may_choose_the_order_and_the_spelling_of_the_target(covered: str) -> None:
    async def story(bench: Bench) -> None:
        assert await bench.who(by_hand(bench, covered, Date="today")) == DESK
        assert await bench.who(by_hand(bench, covered, ';alg="hmac-sha256";tag="app"', Date="today")) == DESK

    on_bench(story)


@pytest.mark.parametrize(
    ("covered", "missing"),
    [
        ("", "@method, @authority, @path, @query, content-digest"),
        ('"@method" "@authority" "@path" "content-digest"', "@query"),
        ('"@authority" "@path" "@query" "content-digest"', "@method"),
        ('"@method" "@path" "@query" "content-digest"', "@authority"),
        ('"@method" "@request-target" "content-digest"', "@authority"),
        ('"@method" "@target-uri"', "content-digest"),
    ],
)
def test_a_signature_that_covers_too_little_is_refused(covered: str, missing: str) -> None:
    async def story(bench: Bench) -> None:
        assert f"must also cover {missing}." in await bench.refused(by_hand(bench, covered))

    on_bench(story)


def test_a_body_without_a_digest_is_refused() -> None:
    async def story(bench: Bench) -> None:
        request = by_hand(bench, '"@method" "@target-uri"')
        bare = with_headers(request, content_digest=None)
        assert "must have a Content-Digest" in await bench.refused(bare)
        assert await bench.who(bare, b"") == DESK

    on_bench(story)


@pytest.mark.parametrize("age", [301, 100_000, -301, -100_000])
def test_a_signature_of_another_time_is_refused(age: int) -> None:
    async def story(bench: Bench) -> None:
        request = bench.signed()
        bench.env.advance(age)
        assert f"{abs(age)} s {'old' if age > 0 else 'ahead'}" in await bench.refused(request)

    on_bench(story)


@pytest.mark.parametrize("age", [299, -299])
def test_clocks_may_differ_by_five_minutes(age: int) -> None:
    async def story(bench: Bench) -> None:
        request = bench.signed()
        bench.env.advance(age)
        assert await bench.who(request) == DESK

    on_bench(story)


def test_a_body_that_comes_too_late_is_refused_although_its_headers_came_in_time() -> None:
    async def story(bench: Bench) -> None:
        request = bench.signed()
        bench.env.advance(299)
        checked = bench.verifier.check(request)
        bench.env.advance(2)
        with pytest.raises(Unauthenticated, match="301 s old"):
            await bench.verifier.admit(checked, BODY)

    on_bench(story)


def test_a_signature_may_say_itself_when_it_ends() -> None:
    async def story(bench: Bench) -> None:
        request = by_hand(bench, '"@method" "@target-uri" "content-digest"', f";expires={int(bench.env.now()) + 5}")
        bench.verifier.check(request)
        bench.env.advance(6)
        assert "expired" in await bench.refused(request)

    on_bench(story)


def test_an_unknown_key_id_sounds_like_a_wrong_signature_and_costs_the_same() -> None:
    async def story(bench: Bench) -> None:
        unknown = await bench.refused(bench.signed(key_id="nobody"))
        wrong = await bench.refused(bench.signed(key="another secret of many, many bytes"))
        assert unknown == wrong

    on_bench(story)
    counted: list[bytes] = []
    real = hmac.digest

    def counting(key: bytes, *rest: Any) -> bytes:
        counted.append(key)
        return real(key, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hmac, "digest", counting)
        keys = [Key("a", b"1" * 32, DESK), Key("a", b"2" * 32, DESK), Key("b", b"3" * 32, DESK)]
        verifier = Verifier(keys, Nonces(None))  # type: ignore[arg-type]
        tried = []
        for name in ("a", "b", "nobody"):
            request = Request.to("GET", URL, sign("GET", URL, key_id=name, key="x" * 32))
            counted.clear()
            with pytest.raises(Unauthenticated):
                verifier.check(request)
            tried.append(len(counted))
    assert tried == [2, 2, 2]


def test_while_a_secret_is_replaced_both_are_taken() -> None:
    async def story(database: Database) -> None:
        old, new = b"the old secret, of thirty-two bytes", b"the new secret, of thirty-two bytes"
        verifier = Verifier([Key("desk", old, DESK), Key("desk", new, DESK)], Nonces(database))
        for secret in (old, new):
            checked = verifier.check(Request.to("GET", URL, sign("GET", URL, key_id="desk", key=secret)))
            assert await verifier.admit(checked, b"") == DESK

    using(":memory:", story)


FINE = '("@method" "@target-uri");created=1700000000;nonce="0123456789abcdef";keyid="desk"'


@pytest.mark.parametrize(
    "described",
    [
        "",
        "sig",
        "sig=",
        f"sig={FINE[:-1]}",
        f"SIG={FINE}",
        f"sig={FINE}, sig2={FINE}",
        f"sig={FINE};created=2",
        f'sig={FINE};created="2"',
        f"sig={FINE};unknown=1",
        f'sig={FINE};alg="none"',
        f'sig={FINE};alg="rsa-pss-sha512"',
        f"sig={FINE};keyid=1",
        f"sig={FINE}\n",
        f"sig={FINE};expires={'9' * 40}",
        'sig=("@method";req "@target-uri");created=1700000000;nonce="0123456789abcdef";keyid="desk"',
        'sig=("@method" "@target-uri" "@method");created=1700000000;nonce="0123456789abcdef";keyid="desk"',
        'sig=("@method"  "@target-uri");created=1700000000;nonce="0123456789abcdef";keyid="desk"',
        'sig=("@method" "@target-uri");created=1700000000;nonce="short";keyid="desk"',
        'sig=("@method" "@target-uri");created=1700000000;nonce="has:colons:in:it:and:more";keyid="desk"',
        'sig=("@method" "@target-uri");created=1700000000;keyid="desk"',
        'sig=("@method" "@target-uri");nonce="0123456789abcdef";keyid="desk"',
        'sig=("@method" "@target-uri");created=1700000000;nonce="0123456789abcdef"',
        'sig=("' + "a" * 5_000 + f'");{FINE[FINE.index("created") :]}',
    ],
)
def test_a_signature_that_is_none_is_refused(described: str) -> None:
    async def story(bench: Bench) -> None:
        assert await bench.who(signed_as(f"sig={FINE}"), b"") == DESK
        message = await bench.refused(signed_as(described), b"")
        assert not any(words in message for words in ("not valid for", "already used", "must also cover")), message

    on_bench(story)


def signed_as(described: str) -> Request:
    """Rightly signed, whatever it says: so it is the form alone that is refused."""
    request = Request.to("GET", URL, {})
    parameters = described.partition("=")[2]
    covered = re.findall(r'"(@[a-z-]+)"', parameters.partition(")")[0])
    value = base64.b64encode(hmac.digest(SECRET.encode(), signature_base(request, covered, parameters), "sha256"))
    return with_headers(request, signature_input=described, signature=f"sig=:{value.decode()}:")


@pytest.mark.parametrize("value", ["", "sig=:AAAA:", f"other=:{'A' * 43}=:", f"sig={'A' * 43}=", f"sig=:{'A' * 44}:"])
def test_a_signature_of_another_form_is_refused(value: str) -> None:
    async def story(bench: Bench) -> None:
        assert "Signature must be" in await bench.refused(with_headers(bench.signed(), signature=value))

    on_bench(story)


@pytest.mark.parametrize("digest", ["", "sha-512=:AAAA:", "md5", "{0}, {0}", "x{0}", "{0}x"])
def test_a_digest_of_another_form_is_refused(digest: str) -> None:
    async def story(bench: Bench) -> None:
        given = digest.format(content_digest(BODY))
        request = Request.to("POST", URL, {"Content-Digest": given})
        covered = '"@method" "@target-uri" "content-digest"'
        parameters = f'({covered});created={int(bench.env.now())};keyid="desk";nonce="{bench.env.id()}"'
        base = signature_base(request, covered.replace('"', "").split(), parameters)
        value = base64.b64encode(hmac.digest(SECRET.encode(), base, "sha256")).decode()
        request = with_headers(request, signature_input=f"x={parameters}", signature=f"x=:{value}:")
        assert "the form sha-256" in await bench.refused(request)

    on_bench(story)


PIECES = st.sampled_from(
    [
        "sig",
        "=",
        "(",
        ")",
        '"',
        ";",
        "@method",
        "created",
        "nonce",
        "keyid",
        "1",
        ":",
        " ",
        ",",
        "\\",
        "é",
        "\x00",
        FINE,
    ]
)


@settings(max_examples=300, deadline=None)
@given(st.lists(PIECES, max_size=30), st.lists(PIECES, max_size=8), st.text(max_size=40))
def test_no_header_brings_anything_but_a_refusal(described: list[str], value: list[str], digest: str) -> None:
    headers = {"signature-input": "".join(described), "signature": "".join(value), "content-digest": digest}
    verifier = Verifier([Key("desk", SECRET.encode(), DESK)], Nonces(None))  # type: ignore[arg-type]
    with pytest.raises(Unauthenticated):
        verifier.check(Request("POST", "a", "/", "", headers))


def test_a_secret_never_shows_itself() -> None:
    assert SECRET not in repr(Key("desk", SECRET.encode(), DESK))


@pytest.mark.parametrize("name", ["", 'a"b', "a\\b", "é", "a\nb", "a" * 129])
def test_an_id_that_no_header_can_carry_is_refused(name: str) -> None:
    with pytest.raises(SetupError, match="cannot be the id"):
        sign("GET", URL, key_id=name, key=SECRET)


def test_an_address_that_is_none_cannot_be_signed() -> None:
    with pytest.raises(SetupError, match="cannot be signed"):
        sign("GET", "/v1/agents", key_id="desk", key=SECRET)


def test_short_secrets_are_refused_and_meagre_ones_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(SetupError, match="at least 16 bytes") as refusal:
        secret_bytes("fifteen bytes !", "MY_KEY")
    assert "fifteen" not in refusal.value.message
    with caplog.at_level("WARNING", logger="agent3"):
        assert secret_bytes("é" * 16, "MY_KEY") == "é".encode() * 16
        assert caplog.records == []
        secret_bytes("x" * 31, "MY_KEY")
    assert "MY_KEY has 31 bytes" in caplog.text


# Nonces


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def lasting(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return new_database_url() if request.param == "postgres" else f"sqlite:///{tmp_path}/house.db"


def test_a_nonce_is_good_once_in_all_processes_and_after_a_restart(lasting: str) -> None:
    until = time.time() + 300

    async def race() -> list[bool]:
        databases = await asyncio.gather(*(open_database(lasting) for _ in range(3)))
        try:
            houses = [Nonces(database) for database in databases]
            return list(await asyncio.gather(*(one.claim("desk", "nonce", until) for one in houses for _ in range(10))))
        finally:
            for database in databases:
                await database.aclose()

    assert sorted(asyncio.run(race())) == [False] * 29 + [True]
    assert asyncio.run(race()) == [False] * 30


def test_two_clients_may_think_of_the_same_nonce(lasting: str) -> None:
    async def story(database: Database) -> list[bool]:
        nonces = Nonces(database)
        return [await nonces.claim(client, "nonce", time.time() + 300) for client in ("a", "b", "a")]

    assert using(lasting, story) == [True, True, False]


def test_nonces_that_are_over_are_removed(lasting: str) -> None:
    async def story(database: Database) -> None:
        env = SeededEnv()
        nonces = Nonces(database, env=env)
        for number in range(10):
            await nonces.claim("desk", f"old-{number}", env.now() + 300)
        env.advance(300 + GRACE + 1)
        for number in range(SWEEP_EVERY):
            await nonces.claim("desk", f"new-{number}", env.now() + 300)
        rows = await database.all("SELECT id FROM nonces")
        assert len(rows) == SWEEP_EVERY
        assert all(row["id"].startswith("new-") for row in rows)

    using(lasting, story)


def test_a_clock_that_is_set_back_brings_no_forgotten_nonce_back(lasting: str) -> None:
    async def story(database: Database) -> None:
        env = SeededEnv()
        nonces = Nonces(database, env=env)
        old = env.now() + 300
        assert await nonces.claim("desk", "captured", old)
        env.advance(86_400)
        for number in range(SWEEP_EVERY):
            await nonces.claim("desk", f"new-{number}", env.now() + 300)
        assert await database.one("SELECT id FROM nonces WHERE id = ?", "captured:desk") is None
        env.advance(-86_400)
        assert not await nonces.claim("desk", "captured", old)
        assert await nonces.claim("desk", "a request signed after the sweep", old + 60)

    using(lasting, story)


def test_a_client_cannot_fill_the_disk_with_nonces_and_is_not_locked_out() -> None:
    async def story(database: Database) -> None:
        env = SeededEnv()
        nonces = Nonces(database, most=5, env=env)
        for number in range(5):
            assert await nonces.claim("eager", str(number), env.now())
        with pytest.raises(RateLimited) as refusal:
            await nonces.claim("eager", "one more", env.now())
        assert refusal.value.retry_after == pytest.approx(SPAN)
        assert await nonces.claim("calm", "another client", env.now())
        env.advance(2 * SPAN)
        assert await nonces.claim("eager", "one more", env.now())

    using(":memory:", story)


# A real gateway

SIGNING = Settings(
    clients=(
        Client("desk", signing="env:DESK_SECRET", scopes=("support",)),
        Client("both", key="env:BOTH_KEY", signing="env:BOTH_SECRET"),
        Client("strict", key="env:STRICT_KEY", signing="env:STRICT_SECRET", require_signature=True),
    ),
    limits=Limits(per_minute=0),
    server=Server(max_body=100_000),
)
SECRETS = {
    "DESK_SECRET": SECRET,
    "BOTH_SECRET": f"both {SECRET}",
    "STRICT_SECRET": f"strict {SECRET}",
    "BOTH_KEY": "the key of the client both",
    "STRICT_KEY": "the key of the client strict",
}
HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosted]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SECRETS.items():
            patch.setenv(name, value)
        with hosted(tmp_path_factory.mktemp("signed"), agents(), SIGNING) as running:
            yield running


def headers_for(
    door: Hosted, path: str, body: bytes = b"", client: str = "desk", method: str = "POST", **more: Any
) -> dict[str, str]:
    base = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    key = SECRETS[f"{client.upper()}_SECRET"]
    return base | sign(method, door.url + path, body, **{"key_id": client, "key": key, **more})


def send(door: Hosted, path: str, body: bytes, headers: Mapping[str, str], method: str = "POST") -> Reply:
    return door.ask(method, path, body, **headers)


def failures(door: Hosted) -> float:
    lines = door.get("/metrics").raw.decode().splitlines()
    return float(next(line for line in lines if line.startswith("mcp_auth_failures_total ")).split()[1])


def refused(reply: Reply) -> str:
    assert reply.status == 401
    assert "Signature" in reply.headers["www-authenticate"]
    assert reply.headers["accept-signature"].startswith('sig=("@method"')
    body = reply.json
    assert (body["error"].get("data") or body["error"]).get("code", body["error"]["code"]) == "unauthenticated"
    return str(body["error"]["message"])


CALL = json.dumps({"agentId": "echo", "message": "signed"}).encode()
MCP = json.dumps(HELLO).encode()
DOORS = pytest.mark.parametrize(("path", "body"), [("/v1/call", CALL), ("/mcp", MCP)], ids=["rest", "mcp"])


@pytest.mark.requirement("RF-013-04", "RT-014-S01")
@DOORS
def test_a_signed_request_is_taken_at_every_door(house: Hosted, path: str, body: bytes) -> None:
    reply = send(house, path, body, headers_for(house, path, body))
    assert reply.status == 200, reply.raw
    assert b"signed" in reply.raw or b"serverInfo" in reply.raw


def test_a_signed_request_is_made_by_the_client_that_signed_it(house: Hosted) -> None:
    send(house, "/v1/call", CALL, headers_for(house, "/v1/call", CALL, client="both"))
    assert house.rows("calls")[-1]["principal"] == "both"


def test_reading_is_signed_too(house: Hosted) -> None:
    path = "/v1/agents?limit=2&query=pizza%20delivery"
    assert send(house, path, b"", headers_for(house, path, method="GET"), "GET").status == 200


@pytest.mark.requirement("RF-013-04", "RT-014-S01")
@DOORS
def test_a_replayed_request_is_refused(house: Hosted, path: str, body: bytes) -> None:
    before = failures(house)
    headers = headers_for(house, path, body)
    assert send(house, path, body, headers).status == 200
    assert "already used" in refused(send(house, path, body, headers))
    assert failures(house) == before + 1


@pytest.mark.requirement("RF-013-04", "RT-014-S01")
@DOORS
def test_a_request_with_another_body_is_refused(house: Hosted, path: str, body: bytes) -> None:
    headers = headers_for(house, path, body)
    assert "changed after it was signed" in refused(send(house, path, body.replace(b"e", b"3"), headers))
    headers["Content-Digest"] = content_digest(b"{}")
    assert "not valid for" in refused(send(house, path, b"{}", headers))


@pytest.mark.requirement("RF-013-04", "RT-014-S01")
@DOORS
def test_an_old_request_is_refused(house: Hosted, path: str, body: bytes) -> None:
    env = SeededEnv(time=time.time() - 310)
    assert "s old" in refused(send(house, path, body, headers_for(house, path, body, env=env)))


@pytest.mark.requirement("RF-013-04", "RT-014-S01")
@DOORS
@pytest.mark.parametrize("wrong", [{"key": "x" * 40}, {"key_id": "nobody"}, {"key_id": "both"}])
def test_a_forged_request_is_refused(house: Hosted, path: str, body: bytes, wrong: dict[str, str]) -> None:
    before = failures(house)
    assert "not valid for" in refused(send(house, path, body, headers_for(house, path, body, **wrong)))
    assert failures(house) == before + 1


def test_a_signature_for_another_place_is_refused(house: Hosted) -> None:
    assert "not valid for" in refused(send(house, "/v1/call", CALL, headers_for(house, "/v1/search", CALL)))
    port = house.url.rpartition(":")[2]
    elsewhere = headers_for(house, "/v1/call", CALL, headers={"Host": f"localhost:{port}"})
    assert "not valid for" in refused(send(house, "/v1/call", CALL, elsewhere))
    assert send(house, "/v1/call", CALL, {**elsewhere, "Host": f"localhost:{port}"}).status == 200


def test_a_wrong_signature_is_not_made_good_by_a_right_key(house: Hosted) -> None:
    headers = headers_for(house, "/v1/call", CALL, client="both", key="x" * 40)
    refused(send(house, "/v1/call", CALL, {**headers, "X-API-Key": SECRETS["BOTH_KEY"]}))


def test_a_client_that_must_sign_is_refused_with_its_key_alone(house: Hosted) -> None:
    assert house.as_(SECRETS["BOTH_KEY"]).call("echo", "hi").status == 200
    assert "must sign" in refused(house.as_(SECRETS["STRICT_KEY"]).call("echo", "hi"))
    assert send(house, "/v1/call", CALL, headers_for(house, "/v1/call", CALL, client="strict")).status == 200


def test_where_only_signatures_are_known_nobody_is_local(house: Hosted) -> None:
    assert "No key" in refused(house.get("/v1/agents"))
    assert Doorkeeper(Settings(clients=(SIGNING.clients[0],)), Metrics(), SECRETS).signing
    with pytest.raises(Unauthenticated):
        Doorkeeper(Settings(clients=(SIGNING.clients[0],)), Metrics(), SECRETS)({"headers": []})


def test_a_refusal_is_counted_once_although_two_lanes_ask() -> None:
    metrics = Metrics()
    doorkeeper = Doorkeeper(Settings(clients=(SIGNING.clients[0],)), metrics, SECRETS)
    scopes: list[dict[str, Any]] = [{"headers": []}, {"headers": [(b"x-api-key", b"unknown")]}]
    for scope in scopes:
        for _ in range(2):
            with pytest.raises(Unauthenticated):
                doorkeeper(scope)
    assert metrics.registry.get_sample_value("mcp_auth_failures_total") == 2


def test_a_strangers_body_is_not_even_read(house: Hosted) -> None:
    connection = house.connect()
    try:
        forged = headers_for(house, "/v1/call", b"x" * 90_000, key="x" * 40)
        connection.putrequest("POST", "/v1/call")
        for name, value in {**forged, "Content-Length": "90000"}.items():
            connection.putheader(name, value)
        connection.endheaders()
        assert connection.getresponse().status == 401
    finally:
        connection.close()


def test_a_signed_body_has_the_bounds_of_every_body(house: Hosted) -> None:
    body = b"{" + b" " * 100_000 + b"}"
    reply = send(house, "/v1/call", body, headers_for(house, "/v1/call", body))
    assert (reply.status, reply.error["code"]) == (413, "too_large")


def test_health_needs_no_signature_and_minds_none(house: Hosted) -> None:
    assert house.get("/healthz").status == 200
    assert house.get("/healthz", signature="x", signature_input="y").status == 200


def test_a_name_that_is_not_ours_is_refused_although_it_is_signed(tmp_path: Path) -> None:
    server = Server(host="0.0.0.0", allowed_hosts=("gateway.example",))
    configured = Settings(clients=SIGNING.clients, server=server)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SECRETS.items():
            patch.setenv(name, value)
        with hosted(tmp_path, agents(), configured) as door:
            for host, status in (("gateway.example", 200), ("GATEWAY.example:80", 200), ("other.example", 401)):
                headers = headers_for(door, "/v1/call", CALL, headers={"Host": host})
                assert send(door, "/v1/call", CALL, {**headers, "Host": host}).status == status, host


@pytest.mark.requirement("RF-013-04", "RT-014-S01")
def test_a_replay_is_refused_by_the_next_process_too(tmp_path: Path) -> None:
    config = '[[clients]]\nid = "desk"\nsigning = "env:DESK_SECRET"\nrequire_signature = true\n'
    with gateway(tmp_path, "--demo", config=config, DESK_SECRET=SECRET) as first:
        port = first.url.rpartition(":")[2]
        host = {"Host": f"127.0.0.1:{port}", "Content-Type": "application/json"}
        headers = host | sign("POST", f"{first.url}/v1/call", CALL, key_id="desk", key=SECRET)
        assert first.ask("POST", "/v1/call", CALL, **headers).status == 200
        with gateway(tmp_path, "--demo", config=config, DESK_SECRET=SECRET) as beside:
            assert "already used" in refused(beside.ask("POST", "/v1/call", CALL, **headers))
    with gateway(tmp_path, "--demo", config=config, DESK_SECRET=SECRET) as second:
        again = second.ask("POST", "/v1/call", CALL, **headers)
        assert "already used" in refused(again)


@pytest.mark.parametrize(
    ("clients", "words"),
    [
        ((Client("me", key="env:LONG", scopes=("x",)), Client("me", key="env:LONG")), "'me' occurs more than once"),
        (Client("me"), "needs key"),
        (Client("me", signing="the secret itself, by mistake"), "must be env:NAME"),
        (Client("me", signing="env:NOT_SET"), "NOT_SET"),
        (Client("me", signing="env:SHORT"), "at least 16 bytes"),
        (Client("me", key="env:LONG", require_signature=True), "no signing secret"),
        (Client('m"e', signing="env:LONG"), "cannot be the id"),
    ],
)
def test_a_client_whose_signing_cannot_work_keeps_the_gateway_from_starting(
    clients: Client | tuple[Client, ...], words: str
) -> None:
    environment = {"SHORT": "short", "LONG": "long enough to be a key of somebody"}
    with pytest.raises(SetupError) as refusal:
        Doorkeeper(Settings(clients=clients if isinstance(clients, tuple) else (clients,)), Metrics(), environment)
    assert words in refusal.value.message
    assert "by mistake" not in refusal.value.message


# The page that explains it


def shown(kind: str) -> str:
    (text,) = re.findall(rf"^```{kind}\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    return str(text)


@pytest.mark.parametrize("kind", ["python", "sh"])
def test_the_examples_of_the_page_work(kind: str, tmp_path: Path) -> None:
    config = re.sub(r"(?m)^host = .*\n", "", shown("toml signing"))
    command = [sys.executable, "-c"] if kind == "python" else ["bash", "-euc"]
    with gateway(tmp_path, "--demo", config=config, DESK_SECRET=SECRET) as door:
        text = shown(kind).replace("127.0.0.1:8333", door.url.removeprefix("http://"))
        environment = {"PATH": os.environ["PATH"], "DESK_SECRET": SECRET}
        for _ in range(2):
            done = subprocess.run(
                [*command, text], env=environment, capture_output=True, text=True, timeout=240, check=True
            )
            assert '"pizza"' in done.stdout, done.stdout + done.stderr


def test_the_settings_of_the_page_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "agent3.toml").write_text(shown("toml signing"))
    read = load(tmp_path / "agent3.toml", {})
    assert [key.id for key in Doorkeeper(read, Metrics(), {"DESK_SECRET": SECRET}).signing] == ["desk"]
