"""What is marked as sensitive reaches ledger, log, bodies and cache as a hash only."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from agent3.errors import Unavailable
from agent3.gateway.gateway import Caller, CallRequest
from agent3.model import LOCAL, Capability, Done
from agent3.protocols.functions import LocalAgent
from agent3.security.sensitive import find_sensitive
from agent3.server.build import build
from agent3.settings import Calls, Settings, Storage

pytestmark = pytest.mark.anyio

ME = Caller(LOCAL, "test")
IBAN = "DE02120300000000202051"
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "iban": {"type": "string", "sensitive": True},
        "name": {"type": "string"},
        "pins": {"type": "array", "items": {"$ref": "#/$defs/pin"}},
        "more": {"anyOf": [{"type": "object", "properties": {"word": {"type": "string", "format": "password"}}}]},
    },
    "$defs": {"pin": {"type": "string", "x-sensitive": True}},
}


def test_each_way_of_marking_hides_the_value_and_nothing_else() -> None:
    found = find_sensitive(Capability(name="pay", input_schema=SCHEMA), b"key")
    assert found is not None
    given = {"iban": IBAN, "name": "Anna", "pins": ["4711", "0815"], "more": {"word": "hush-hush", "n": 1}}
    hidden = found.hide_input(given)
    assert (hidden["name"], hidden["more"]["n"]) == ("Anna", 1)
    for value in (IBAN, "4711", "0815", "hush-hush"):
        assert value not in json.dumps(hidden)
    assert hidden == found.hide_input(given)
    other = find_sensitive(Capability(name="pay", input_schema=SCHEMA), b"another")
    assert other is not None
    assert other.hide_input(given)["iban"] != hidden["iban"]
    told = found.hide_in_message(f"{IBAN} and 4711 of Anna are wrong", given)
    assert IBAN not in told
    assert "4711" not in told
    assert "Anna" in told


MARK: dict[str, Any] = {"type": "string", "sensitive": True}


@pytest.mark.parametrize(
    ("schema", "given"),
    [
        ({"patternProperties": {"^k": MARK}}, {"k1": IBAN}),
        ({"prefixItems": [{"type": "string"}, MARK]}, ["a", IBAN]),
        ({"items": [{"type": "string"}, MARK]}, ["a", IBAN]),
        ({"contains": MARK}, ["a", IBAN]),
        ({"if": {"required": ["a"]}, "then": {"properties": {"b": MARK}}}, {"a": 1, "b": IBAN}),
        ({"dependentSchemas": {"a": {"properties": {"b": MARK}}}}, {"a": 1, "b": IBAN}),
        ({"unevaluatedProperties": MARK}, {"b": IBAN}),
        ({"properties": {"b": {"$ref": "#/$defs/1"}}, "$defs": {"1": {"$ref": "#/$defs/2"}, "2": {"$ref": "#/$defs/3"},
          "3": {"$ref": "#/$defs/4"}, "4": {"$ref": "#/$defs/5"}, "5": MARK}}, {"b": IBAN}),
        ({"properties": {"b": {"$ref": "#name"}}, "$defs": {"n": {"$anchor": "name", **MARK}}}, {"b": IBAN}),
        ({"properties": {"b": {"$ref": "#/$defs/x%20y/anyOf/0"}}, "$defs": {"x y": {"anyOf": [MARK]}}}, {"b": IBAN}),
        ({"properties": {"inner": {"$ref": "#"}, "b": MARK}}, {"inner": {"inner": {"inner": {"b": IBAN}}}}),
    ],
)  # fmt: skip
def test_no_way_of_writing_a_schema_shows_what_is_marked_in_it(schema: dict[str, Any], given: Any) -> None:
    found = find_sensitive(Capability(name="x", input_schema=schema), b"key")
    assert found is not None
    assert IBAN not in json.dumps(found.hide_input(given))


def test_what_an_answer_repeats_is_hidden_in_every_way_of_writing_it() -> None:
    found = find_sensitive(Capability(name="x", input_schema=SCHEMA), b"key")
    assert found is not None
    given = {"iban": 'se"c\nret\u00e9', "name": "Anna", "pins": [4711]}
    for told in (repr(given), json.dumps(given), json.dumps(given, ensure_ascii=False), str(given["iban"])):
        assert "ret" not in found.hide_in_message(told, given).replace("secret", "")
    hidden = found.hide_echoes({"got": [given["iban"], 4711, 5, True], str(given["iban"]): "Anna"}, given)
    assert hidden["got"][2:] == [5, True]
    assert "Anna" in hidden.values()
    assert "4711" not in json.dumps(hidden)
    assert "ret" not in json.dumps(hidden)


def test_what_is_not_marked_costs_nothing() -> None:
    assert find_sensitive(Capability(name="x", input_schema={"properties": {"sensitive": {"type": "string"}}})) is None


async def test_no_record_of_a_call_holds_what_is_sensitive(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bank = LocalAgent("bank")
    runs = []

    def pay(iban: str, name: str) -> str:
        runs.append(name)
        if name == "lost":
            raise Unavailable(f"no route to {iban}")
        return f"paid {name} from {iban}"

    bank.add(pay, name="pay", input_schema=SCHEMA)

    @bank.capability(sensitive=True, read_only=True, cache_ttl=60.0)
    def secret(iban: str) -> str:
        runs.append("secret")
        return f"balance of {iban}"

    settings = Settings(storage=Storage(url=f"sqlite:///{tmp_path / 's.db'}"), calls=Calls(bodies="full", retries=0))
    with caplog.at_level(logging.DEBUG):
        async with build(settings, [bank]) as server:
            for capability, given in (
                ("pay", {"iban": IBAN, "name": "Anna"}),
                ("pay", {"iban": IBAN, "name": "lost"}),
                ("pay", {"iban": IBAN, "name": 7}),
                ("secret", {"iban": IBAN}),
                ("secret", {"iban": IBAN}),
            ):
                outcome = await server.gateway.call(ME, CallRequest(agent="bank", capability=capability, input=given))
                if capability == "secret":
                    assert isinstance(outcome, Done)
                    assert IBAN in str(outcome.parts)  # its caller gets it
            await server.core.parts.bodies.aclose()
            await server.core.ledger.flush()
            rows = [dict(row) for row in await server.database.all("SELECT * FROM calls")]
            bodies = [dict(row) for row in await server.database.all("SELECT * FROM call_bodies")]
    assert runs.count("secret") == 2  # not from the cache
    assert len(rows) == len(bodies) == 5
    assert IBAN not in json.dumps(rows)
    assert IBAN not in json.dumps(bodies)
    assert "Anna" in json.dumps(bodies)
    assert any("no route to hash:" in str(row["message"]) for row in rows)
    assert IBAN not in caplog.text
