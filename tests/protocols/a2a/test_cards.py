"""Cards of every generation: written, read, and read by others."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from a2a.client.card_resolver import parse_agent_card
from a2a.compat.v0_3 import types as types03
from a2a.types import a2a_pb2 as pb
from google.protobuf.json_format import MessageToDict, ParseDict  # type: ignore[import-untyped, unused-ignore]
from hypothesis import given, settings
from hypothesis import strategies as st

from agent3.definitions import (
    AgentAuthentication,
    AgentCapability,
    AgentCard,
    AgentExtension,
    AgentFeatures,
    AgentInterface,
    AgentProvider,
)
from agent3.errors import ValidationError
from agent3.protocols.a2a.cards import cards

FIXTURES = Path(__file__).parent / "wire" / "fixtures"

CARD = AgentCard(
    name="Travel Planner",
    description="Plans trips",
    version="2.1.0",
    url="https://travel.example/a2a",
    supportedInterfaces=[
        AgentInterface(url="https://travel.example/a2a", protocolBinding="JSONRPC", protocolVersion="1.0"),
        AgentInterface(
            url="https://travel.example/rest", protocolBinding="HTTP+JSON", protocolVersion="1.0", tenant="t"
        ),
        AgentInterface(url="https://travel.example/old", protocolBinding="HTTP+JSON", protocolVersion="0.3"),
        AgentInterface(url="https://travel.example/old", protocolBinding="JSONRPC", protocolVersion="0.3"),
    ],
    provider=AgentProvider(organization="Travel Inc", url="https://travel.example"),
    features=AgentFeatures(
        streaming=True,
        extendedAgentCard=True,
        extensions=[AgentExtension(uri="https://x.example/ext", required=True, params={"a": [1]})],
    ),
    capabilities=[
        AgentCapability(
            name="plan",
            id="plan-trip",
            description="Plans",
            tags=["travel"],
            examples=["To Tokyo"],
            inputModes=["application/json"],
            security=[{"oauth": ["travel.write"]}],
        ),
        AgentCapability(name="cancel"),
    ],
    securitySchemes={
        "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
        "bearer": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"},
        "oauth": {
            "type": "oauth2",
            "flows": {"clientCredentials": {"tokenUrl": "https://a.example/t", "scopes": {"travel.write": "write"}}},
        },
        "oidc": {"type": "openIdConnect", "openIdConnectUrl": "https://a.example/.well-known"},
        "mtls": {"type": "mutualTLS"},
    },
    security=[{"oauth": ["travel.write"]}, {"key": [], "mtls": []}],
    documentationUrl="https://travel.example/docs",
    iconUrl="https://travel.example/icon.png",
)


def test_a_card_of_1_0_is_valid_by_the_official_protobuf_and_comes_back() -> None:
    written = CARD.to_wire("1.0")
    back = MessageToDict(ParseDict(written, pb.AgentCard()))
    assert AgentCard.from_wire(back).to_wire("1.0") == written
    assert "url" not in written
    assert "protocolVersion" not in written


def test_a_card_of_0_3_is_valid_by_the_official_types_and_comes_back() -> None:
    written = CARD.to_wire("0.3")
    model = types03.AgentCard.model_validate(written)
    assert (
        AgentCard.from_wire(model.model_dump(mode="json", by_alias=True, exclude_none=True)).to_wire("0.3") == written
    )
    assert (model.url, model.preferred_transport) == ("https://travel.example/old", "JSONRPC")
    assert [interface.transport for interface in model.additional_interfaces or []] == ["HTTP+JSON"]


@pytest.mark.requirement("SP-02")
def test_a_card_of_0_1_has_what_its_schema_requires_and_no_word_of_later_ones() -> None:
    written = CARD.to_wire("0.1")
    assert {"name", "url", "version", "capabilities", "skills"} <= set(written)
    assert written["authentication"] == {"schemes": ["ApiKey", "Bearer", "OAuth2", "OpenIdConnect", "MutualTLS"]}
    assert not {"securitySchemes", "supportedInterfaces", "protocolVersion"} & set(written)
    assert set(written["capabilities"]) == {"streaming", "pushNotifications", "stateTransitionHistory"}
    assert all({"id", "name"} <= set(skill) for skill in written["skills"])
    assert "security" not in written["skills"][0]


def test_one_document_serves_readers_of_every_generation() -> None:
    document = json.loads(json.dumps(cards.document(CARD)))
    assert types03.AgentCard.model_validate(document).security_schemes is not None
    proto = parse_agent_card(copy.deepcopy(document))
    assert proto.security_schemes["bearer"].http_auth_security_scheme.scheme == "bearer"
    assert MessageToDict(proto) == MessageToDict(ParseDict(CARD.to_wire("1.0"), pb.AgentCard()))
    assert (document["url"], document["protocolVersion"]) == ("https://travel.example/old", "0.3.0")
    assert "schemes" in document["authentication"]
    assert AgentCard.from_wire(document).to_wire("1.0") == CARD.to_wire("1.0")


@pytest.mark.requirement("SL-14", "SL-06")
def test_the_card_of_the_slides_is_understood_as_it_stands() -> None:
    card = AgentCard.from_wire(json.loads((FIXTURES / "slides_listing_1.txt").read_text()))
    assert (card.name, card.url) == ("Travel Planner Agent", "https://travel.example.com/a2a")
    assert (card.features.streaming, card.features.push_notifications) == (True, True)
    assert card.features.extensions[0].uri == "https://example.com/ext/traceability/v1"
    assert card.security == [{"oauth2": ["travel.read", "travel.write"]}]
    assert card.security_schemes["oauth2"]["type"] == "oauth2"
    assert [(skill.id, skill.input_modes) for skill in card.capabilities] == [("plan-trip", ["application/json"])]
    ParseDict(card.to_wire("1.0"), pb.AgentCard())
    types03.AgentCard.model_validate(card.to_wire("0.3"))


@pytest.mark.requirement("SL-14", "SL-10")
def test_the_extension_of_the_slides_is_understood_as_it_stands() -> None:
    printed = json.loads(f"{{{(FIXTURES / 'slides_listing_3.txt').read_text()}}}")
    (extension,) = AgentCard.from_wire({"name": "a", **printed}).features.extensions
    assert extension.params == {"hints": ["arriba", "arriba", "abajo", "abajo"]}
    assert extension.required is False


@pytest.mark.requirement("SP-02", "SP-09")
def test_the_authentication_of_the_study_plan_becomes_schemes_and_no_credential_is_kept() -> None:
    given = {
        "name": "a",
        "url": "https://a.example",
        "authentication": {"schemes": ["Bearer", "ApiKey"], "credentials": "s3cret"},
    }
    card = AgentCard.from_wire(given)
    assert card.authentication == AgentAuthentication(schemes=["Bearer", "ApiKey"])
    assert [interface.protocol_version for interface in card.interfaces] == ["0.1"]
    written = json.dumps([card.to_wire("0.1"), card.to_wire("1.0")])
    assert "s3cret" not in written
    assert set(card.to_wire("0.3")["securitySchemes"]) == {"bearer", "apiKey"}
    assert AgentCard.from_wire({"name": "a", "authentication": "public"}).authentication == AgentAuthentication(
        schemes=[]
    )


def test_the_card_of_rf_013_is_understood_too() -> None:
    card = AgentCard.from_wire(
        {"agent_id": "f", "name": "Flights", "capabilities": [{"name": "search", "cost": 2}, "book"]}
    )
    assert (card.agent_id, [skill.name for skill in card.capabilities]) == ("f", ["search", "book"])
    assert card.capabilities[0].cost == 2


def test_odd_fields_are_read_where_their_meaning_is_plain() -> None:
    card = AgentCard.from_wire(
        {
            "name": "a",
            "version": 1.5,
            "provider": "Me",
            "skills": [{"id": "x", "tags": "one", "examples": "do"}],
            "zz": {},
        }
    )
    assert (card.version, card.provider, card.url) == ("1.5", AgentProvider(organization="Me"), None)
    assert (card.capabilities[0].name, card.capabilities[0].tags, card.capabilities[0].examples) == (
        "x",
        ["one"],
        ["do"],
    )


@pytest.mark.parametrize(
    ("document", "path"),
    [
        (None, "card"),
        ([], "card"),
        ({}, "name"),
        ({"name": ""}, "name"),
        ({"name": 5, "skills": "x"}, "skills"),
        ({"name": "a", "skills": [5]}, "skills[0]"),
        ({"name": "a", "skills": [{"description": "d"}]}, "skills[0].name"),
        ({"name": "a", "capabilities": 5}, "capabilities"),
        ({"name": "a", "capabilities": {"extensions": [{}]}}, "capabilities.extensions[0].uri"),
        ({"name": "a", "supportedInterfaces": [{}]}, "supportedInterfaces[0].url"),
        ({"name": "a", "securitySchemes": []}, None),
        ({"name": "a", "securitySchemes": [1]}, "securitySchemes"),
        ({"name": "a", "defaultInputModes": [1]}, "defaultInputModes"),
        ({"name": "a", "signatures": "x"}, "signatures"),
        ({"name": "a", "skills": [{"name": "x" * 300}]}, "capabilities.0.name"),
    ],
)
def test_a_card_that_cannot_be_understood_is_refused_with_the_member(document: Any, path: str | None) -> None:
    if path is None:
        assert AgentCard.from_wire(document).name == "a"
        return
    with pytest.raises(ValidationError, match="cannot be understood") as caught:
        AgentCard.from_wire(document)
    assert path in [entry["path"] for entry in caught.value.errors]


_WORDS = sorted({*CARD.to_wire("1.0"), *CARD.to_wire("0.3"), "type", "schemes", "list", "uri", "scopes"})
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(_WORDS), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(st.dictionaries(st.sampled_from(_WORDS), _VALUES, max_size=8))
def test_no_document_breaks_the_reader_and_what_it_reads_can_be_written(document: dict[str, Any]) -> None:
    try:
        card = AgentCard.from_wire(document)
    except ValidationError:
        return
    for generation in ("0.1", "0.3", "1.0"):
        assert card.to_wire(generation)["name"] == card.name
    assert cards.document(card)["name"] == card.name


def test_addresses_come_newest_first_and_in_the_wanted_bindings() -> None:
    found = [(interface.protocol_binding, spoken) for interface, spoken in cards.interfaces(CARD)]
    assert found == [("JSONRPC", "1.0"), ("HTTP+JSON", "1.0"), ("JSONRPC", "0.3"), ("HTTP+JSON", "0.3")]
    assert [interface.url for interface, _ in cards.interfaces(CARD, ("HTTP+JSON",))] == [
        "https://travel.example/rest", "https://travel.example/old"
    ]  # fmt: skip
    plain = AgentCard.from_wire({"name": "a", "url": "https://a.example", "protocolVersion": "0.2.6"})
    assert [spoken for _, spoken in cards.interfaces(plain)] == ["0.3"]
    future = AgentCard.from_wire({"name": "a", "supportedInterfaces": [{"url": "u", "protocolVersion": "7.0"}]})
    assert cards.interfaces(future) == []


def test_one_oauth_flow_of_several_is_said_in_1_0_which_has_room_for_one() -> None:
    flows = {
        "password": {"tokenUrl": "p", "scopes": {}},
        "authorizationCode": {"authorizationUrl": "a", "tokenUrl": "t", "scopes": {}},
    }
    card = AgentCard(name="a", securitySchemes={"o": {"type": "oauth2", "flows": flows}})
    assert list(card.to_wire("1.0")["securitySchemes"]["o"]["oauth2SecurityScheme"]["flows"]) == ["authorizationCode"]
    assert set(card.to_wire("0.3")["securitySchemes"]["o"]["flows"]) == set(flows)
    ParseDict(card.to_wire("1.0"), pb.AgentCard())
