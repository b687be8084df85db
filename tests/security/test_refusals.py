"""Hostile requests of every class end in the right refusal: nothing secret in the body, and a row in the audit."""

from __future__ import annotations

import hashlib
import http.client
import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from agent3 import LocalAgent
from agent3.server.run import InBackground
from agent3.settings import Client, Rule, Server, Settings, Storage

KEYS = {name: f"the-key-of-{name}-0123456789" for name in ("ada", "seer", "narrow")}
OURS = ("Traceback", "site-packages", "sqlite3", "the-key-of", ".py")
DEEP = b'{"agentId":"bank","capability":"pay","input":' + b"[" * 5_000 + b"]" * 5_000 + b"}"


@contextmanager
def serving(file: Path) -> Iterator[str]:
    bank, vault = LocalAgent("bank"), LocalAgent("vault")

    @bank.capability
    def pay(amount: int) -> int:
        return amount

    @vault.capability
    def read_all() -> str:
        return "secrets"

    settings = Settings(
        server=Server(port=0, max_body=100_000),
        storage=Storage(url=f"sqlite:///{file}"),
        clients=tuple(
            Client(name, key=f"sha256:{hashlib.sha256(key.encode()).hexdigest()}") for name, key in KEYS.items()
        ),
        rules=(
            Rule("see", principal="seer", agent="bank"),
            Rule("allow", principal="narrow", agent="bank", arguments={"amount": "<= 10"}),
            Rule("allow", principal="ada", agent="bank"),
        ),
    )
    with InBackground(settings, [bank, vault]) as url:
        yield url


def ask(
    url: str, who: str | None, body: Any, path: str = "/v1/call", method: str = "POST", **headers: str
) -> tuple[int, str]:
    connection = http.client.HTTPConnection(url.partition("//")[2], timeout=240)
    raw = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    sent = {"Content-Type": "application/json", **headers}
    if who is not None:
        sent["Authorization"] = f"Bearer {KEYS.get(who, who)}"
    with closing(connection):
        connection.request(method, path, raw, sent)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def pay(amount: Any, **more: Any) -> dict[str, Any]:
    return {"agentId": "bank", "capability": "pay", "input": {"amount": amount}, **more}


UNKNOWN = [
    ("no key", None, {}),
    ("another key", "somebody-elses-key-0123456789", {}),
    ("a key in another case", KEYS["ada"].upper(), {}),
    ("a token that nobody issued", "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhZGEifQ.", {}),
    ("a forged signature", None, {"Signature": "sig1=:AAAA:", "Signature-Input": 'sig1=("@method");keyid="ada"'}),
    ("an address that claims to be local", None, {"X-Forwarded-For": "127.0.0.1", "X-Real-IP": "127.0.0.1"}),
]
KNOWN = [
    # cards, registry and tools
    ("seer", pay(1), 403, "forbidden"),
    ("ada", {"agentId": "vault", "capability": "read_all", "input": {}}, 404, "agent_not_found"),
    ("ada", {"agentId": "bаnk", "capability": "pay", "input": {"amount": 1}}, 404, "agent_not_found"),  # noqa: RUF001
    ("narrow", pay(11), 403, "forbidden"),
    ("narrow", pay(1.1e1), 403, "forbidden"),
    ("narrow", {"agentId": "bank", "capability": "pay", "message": "pay 11"}, 403, "forbidden"),
    # input and resources
    ("ada", pay("1; DROP TABLE calls"), 422, "invalid_input"),
    ("ada", pay({"$ref": "file:///etc/passwd"}), 422, "invalid_input"),
    ("ada", pay(1, extra="\x1b[2J\u202e"), 422, None),
]
MALFORMED = [
    (DEEP, 413),
    (b'{"agentId": "bank", "input": {"amount": NaN}}', 400),
    (b'{"agentId": "\xff\xfe"}', 400),
    (b'{"agentId": "bank", "input": {"amount": 1e999}}', 400),
    (b'{"agentId": "' + b"a" * 200_000 + b'"}', 413),
    (b"[]", 422),
]
PATHS = [
    # artifacts and files; the audit and the data of others; browser and local access
    ("GET", "/v1/artifacts/..%2f..%2fhouse.db", {}, 404),
    ("GET", "/v1/artifacts/0123456789abcdef0123456789abcdef", {}, 404),
    ("GET", "/v1/data/narrow", {}, 403),
    ("DELETE", "/v1/data/narrow", {}, 403),
    ("POST", "/v1/agents", {}, 403),
    ("GET", "/v1/agents", {"Host": "rebound.example"}, (403, 421)),
    ("GET", "/v1/agents", {"Origin": "http://evil.example"}, 403),
    ("GET", "/v1/agents", {"Origin": "null"}, 403),
]


def attack(url: str) -> None:
    for what, key, headers in UNKNOWN:
        status, text = ask(url, key, pay(1), **headers)
        assert status == 401, (what, status, text)
        assert not [word for word in OURS if word in text], (what, text)
    for who, body, status, _ in KNOWN:
        told, text = ask(url, who, body)
        assert told == status, (body, told, text)
        assert not [word for word in OURS if word in text], text
    for raw, status in MALFORMED:
        told, text = ask(url, "ada", raw)
        assert told == status, (raw[:60], told, text)
        assert not [word for word in OURS if word in text], text
    for method, path, headers, wanted in PATHS:
        source = {"source": "http://169.254.169.254/latest/meta-data"} if method == "POST" else None
        told, text = ask(url, "ada", source, path, method, **headers)
        assert told == wanted or (isinstance(wanted, tuple) and told in wanted), (path, headers, told, text)
        assert not [word for word in OURS if word in text], text
    assert ask(url, "ada", pay(1))[0] == 200  # and nothing of it has hurt anybody


def test_every_class_of_attack_is_refused_recorded_and_told_nothing(tmp_path: Path) -> None:
    file = tmp_path / "house.db"
    with serving(file) as url:
        attack(url)
    with closing(sqlite3.connect(file)) as raw:
        rows = raw.execute("SELECT principal, code FROM calls WHERE code IS NOT NULL").fetchall()
        records = raw.execute("SELECT detail FROM audit WHERE what = 'unknown callers refused'").fetchall()
    for who, _, _, code in KNOWN:
        assert code is None or (who, code) in rows, (who, code, rows)
    # Callers that are not known are counted: a row for each would let anybody fill the database.
    assert [json.loads(detail) for (detail,) in records] == [{"none": 3, "credential": 3}]
