"""Capability negotiation: what both can do, and a clear answer when that is not enough."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from agent3 import AgentCapability, AgentCard, AgentExecutor
from agent3.definitions import AgentExtension, AgentFeatures, AgentInterface
from agent3.errors import Conflict, ValidationError
from agent3.protocols.a2a.cards.negotiation import Wants, negotiate, require_agreement

USAGE = "https://example.com/usage"
TRACE = "https://example.com/trace"


def interface(version: str, binding: str = "JSONRPC") -> AgentInterface:
    return AgentInterface(url=f"https://h/{version}/{binding}", protocolBinding=binding, protocolVersion=version)


def card(**more: Any) -> AgentCard:
    plain = AgentCapability(name="search", inputModes=["text/plain"], outputModes=["application/json", "text/plain"])
    picture = AgentCapability(name="picture", outputModes=["image/png"])
    given: dict[str, Any] = {
        "agent_id": "hotel",
        "name": "Hotel",
        "capabilities": [plain, picture],
        "interfaces": [interface("0.3"), interface("1.0", "HTTP+JSON"), interface("1.0")],
        "features": AgentFeatures(streaming=True, extensions=[AgentExtension(uri=USAGE), AgentExtension(uri=TRACE)]),
    }
    return AgentCard(**(given | more))


@pytest.mark.requirement("RF-013-34")
def test_the_best_version_binding_and_media_types_of_both_are_taken() -> None:
    wants = Wants(skills=("search",), output_modes=("application/json",), extensions=(USAGE, "urn:other"))
    agreement = require_agreement(negotiate(card(), wants))
    assert (agreement.version, agreement.binding, agreement.url) == ("1.0", "JSONRPC", "https://h/1.0/JSONRPC")
    assert agreement.skills == ("search",)
    assert agreement.input_modes == ("text/plain",)
    assert agreement.output_modes == ("application/json",)
    assert agreement.extensions == (USAGE,)


@pytest.mark.requirement("RF-013-34")
@pytest.mark.parametrize(
    ("wants", "said"),
    [
        (
            Wants(versions=("2.0",)),
            "versions 2.0 over JSONRPC, HTTP+JSON, GRPC were required, but it has 0.3 over JSONRPC",
        ),
        (Wants(versions=("1.0",), bindings=("GRPC",)), "over GRPC were required"),
        (Wants(skills=("serch",)), "skill 'serch' was required, but it has search, picture; did you mean 'search'?"),
        (
            Wants(skills=("picture",), output_modes=("text/csv",)),
            "output as text/csv was required, but it has image/png",
        ),
        (Wants(skills=("search",), input_modes=("audio/*",)), "input as audio/* was required, but it has text/plain"),
        (Wants(required=("urn:x",)), f"extension urn:x was required, but it has {USAGE}, {TRACE}"),
        (Wants(push_notifications=True), "push notifications were required, but the agent sends none"),
    ],
)
def test_what_is_missing_is_said_with_what_there_is(wants: Wants, said: str) -> None:
    agreement = negotiate(card(), wants)
    assert not agreement.ok
    assert any(said in reason for reason in agreement.missing), agreement.missing
    with pytest.raises(Conflict, match="No agreement with 'hotel'") as refused:
        require_agreement(agreement)
    assert refused.value.data["missing"] == list(agreement.missing)


@pytest.mark.requirement("RF-013-34")
def test_all_that_is_missing_is_said_at_once() -> None:
    features = AgentFeatures(extensions=[AgentExtension(uri=USAGE, required=True)])
    agreement = negotiate(card(features=features), Wants(versions=("9",), skills=("fly",), streaming=True))
    assert len(agreement.missing) == 4
    assert f"the agent requires extension {USAGE}, which the caller does not support" in agreement.missing


def test_wildcards_and_parameters_of_media_types_meet() -> None:
    assert negotiate(card(), Wants(skills=("picture",), output_modes=("image/*",))).ok
    assert negotiate(card(), Wants(skills=("search",), output_modes=("text/plain; charset=utf-8",))).ok
    assert negotiate(card(), Wants(skills=("search",), output_modes=("*/*",))).ok


@pytest.mark.parametrize(("version", "url"), [("0.3.0", "https://old"), (None, "https://older")])
def test_a_card_of_an_older_generation_has_one_interface(version: str | None, url: str) -> None:
    old = card(interfaces=[], url=url, protocol_version=version)
    agreement = negotiate(old, Wants())
    assert (agreement.url, agreement.version) == (url, version or "0.1")


def test_an_agent_without_an_address_is_reached_by_messages() -> None:
    agreement = negotiate(card(interfaces=[]), Wants())
    assert agreement.ok
    assert agreement.url is None


@pytest.mark.requirement("RF-013-34")
def test_two_agents_negotiate_by_messages() -> None:
    name = f"hotel-{uuid.uuid4()}"
    with (
        AgentExecutor(AgentCard(agent_id=name, name="Hotel")) as hotel,
        AgentExecutor(AgentCard(agent_id=f"flight-{uuid.uuid4()}", name="Flight")) as flight,
    ):
        hotel.register_capability("search", lambda city: city)
        hotel.start()
        assert flight.negotiate(name, Wants(skills=("search",)), 60).skills == ("search",)
        with pytest.raises(Conflict, match="skill 'fly' was required, but it has search"):
            flight.negotiate(name, Wants(skills=("fly",)), 60)
        bad = flight.request(name, "a2a.negotiate", {"skils": []}, 60)
        assert bad.content["error"]["code"] == "invalid_input"
        with pytest.raises(ValidationError, match="did not negotiate"):
            flight.negotiate(name, Wants(skills=3), 60)  # type: ignore[arg-type]
