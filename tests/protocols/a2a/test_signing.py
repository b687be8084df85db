"""Signatures of cards, in both directions with the official SDK, and what breaks them."""

from __future__ import annotations

import json
from typing import Any

import jwt
import pytest
from a2a.types import a2a_pb2 as pb
from a2a.utils.signing import (
    InvalidSignaturesError,
    ProtectedHeader,
    _canonicalize_agent_card,
    create_agent_card_signer,
    create_signature_verifier,
)
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from google.protobuf.json_format import MessageToDict, ParseDict  # type: ignore[import-untyped, unused-ignore]
from jwt.api_jwk import PyJWK

from agent3.definitions import AgentCapability, AgentCard, AgentExtension, AgentFeatures
from agent3.errors import SecurityError, SetupError, ValidationError
from agent3.protocols.a2a.cards import cards
from agent3.protocols.a2a.cards.signatures import (
    CardKey,
    Verified,
    may_speak_for,
    payload,
    read_jwks,
    thumbprint,
    verify,
    wanted_keys,
)

FULL = AgentCard(
    name="Ünïcode ☃",
    description="d",
    url="https://a.example",
    features=AgentFeatures(extensions=[AgentExtension(uri="u", params={"n": 1, "x": 1.5, "big": 1e21})]),
    capabilities=[AgentCapability(name="s", description="d", tags=["t"])],
    securitySchemes={"b": {"type": "http", "scheme": "bearer"}},
    security=[{"b": ["read"]}],
)
SPARE = AgentCard(
    name="a",
    url="https://a.example",
    capabilities=[AgentCapability(name="s")],
    securitySchemes={"b": {"type": "http", "scheme": "bearer"}},
    security=[{"b": []}],
)
"""With empty REQUIRED fields (a description, tags), and a requirement without scopes, which is an empty object."""


def verifier(key: CardKey) -> Any:
    return create_signature_verifier(lambda kid, jku: PyJWK(key.jwk()), ["EdDSA", "ES256"])


@pytest.mark.parametrize("algorithm", ["EdDSA", "ES256"])
@pytest.mark.parametrize("card", [FULL, SPARE])
def test_what_we_sign_the_official_sdk_and_we_ourselves_verify(algorithm: Any, card: AgentCard) -> None:
    key = CardKey.generate(algorithm, jku="https://a.example/jwks.json")
    signed = key.sign(card)
    for document in (signed.to_wire("1.0"), cards.document(signed)):
        sent = json.loads(json.dumps(document))
        verifier(key)(ParseDict(sent, pb.AgentCard(), ignore_unknown_fields=True))
        assert {found.reading for found in verify(sent, read_jwks(key.jwks()))} <= {"required", "compact"}
    assert wanted_keys(signed.to_wire("1.0"))[0] == (key.key_id, "https://a.example/jwks.json")


def test_a_card_is_signed_twice_only_where_the_readings_differ() -> None:
    key = CardKey.generate()
    assert len(key.sign(FULL).signatures) == 1
    assert [found.reading for found in verify(key.sign(SPARE).to_wire("1.0"), [key.jwk()])] == ["required", "compact"]
    assert len(key.sign(key.sign(SPARE)).signatures) == 2
    other = CardKey.generate()
    assert len(other.sign(key.sign(FULL)).signatures) == 2


@pytest.mark.parametrize(("card", "reading"), [(FULL, "required"), (SPARE, "compact")])
def test_what_the_official_sdk_signs_we_verify_and_say_how_it_read(card: AgentCard, reading: str) -> None:
    key = CardKey.generate("ES256")
    header = ProtectedHeader(kid=key.key_id, alg="ES256", jku=None, typ="JOSE")
    proto = create_agent_card_signer(key.pem(), header)(ParseDict(card.to_wire("1.0"), pb.AgentCard()))
    (found,) = verify(MessageToDict(proto), [key.jwk()])
    assert found == Verified(key.key_id, "ES256", reading, thumbprint(key.jwk()))  # type: ignore[arg-type]


@pytest.mark.parametrize("card", [FULL, SPARE])
def test_the_compact_reading_is_byte_for_byte_that_of_the_official_sdk(card: AgentCard) -> None:
    document = card.to_wire("1.0")
    assert payload(document, "compact").decode() == _canonicalize_agent_card(ParseDict(document, pb.AgentCard()))


def test_the_required_reading_is_that_of_the_specification() -> None:
    fragment = {
        "name": "Example Agent",
        "description": "",
        "capabilities": {"streaming": False, "pushNotifications": False, "extensions": []},
        "skills": [],
    }
    # Section 8.4.1 of 1.0.1 prints the canonical form of this fragment; a whole card has the other REQUIRED ones too.
    found = json.loads(payload(fragment))
    printed = '{"capabilities":{"pushNotifications":false,"streaming":false},"description":"","name":"Example Agent",'
    printed += '"skills":[]}'
    assert {name: found[name] for name in fragment} == json.loads(printed)
    assert set(found) - set(fragment) == {"version", "supportedInterfaces", "defaultInputModes", "defaultOutputModes"}


def test_a_document_that_was_signed_as_it_came_is_told_as_such() -> None:
    key = CardKey.generate()
    document: dict[str, Any] = {"name": "a", "unknown": [1, ""], "description": ""}
    signature = key._sign(payload(document, "raw"))
    assert [found.reading for found in verify(document | {"signatures": [signature]}, [key.jwk()])] == ["raw"]


@pytest.mark.parametrize(
    "change", [{"name": "b"}, {"version": "9"}, {"skills": []}, {"iconUrl": "https://evil.example"}]
)
def test_a_change_of_the_card_breaks_its_signature(change: dict[str, Any]) -> None:
    key = CardKey.generate()
    document = key.sign(FULL).to_wire("1.0") | change
    with pytest.raises(SecurityError, match="none matches"):
        verify(document, [key.jwk()])
    with pytest.raises(InvalidSignaturesError):
        verifier(key)(ParseDict(document, pb.AgentCard()))


def test_a_forged_signature_is_refused_whatever_its_form() -> None:
    key, other = CardKey.generate(), CardKey.generate(key_id="k")
    document = FULL.to_wire("1.0")
    right = key.sign(FULL).signatures[0]
    shared = jwt.api_jws.encode(payload(document), "s" * 32, algorithm="HS256", headers={"kid": "k"})
    none = jwt.api_jws.encode(payload(document), "", algorithm="none", headers={"kid": "k"})
    for forged in (
        {**right, "signature": right["signature"][:-4] + "AAAA"},
        {"protected": "%%%", "signature": "x"},
        {"protected": "", "signature": ""},
        {"protected": "W10", "signature": "x"},
        {"protected": "W1tb" * 9_999, "signature": "x"},  # a list in a list in a list
        {"protected": shared.split(".")[0], "signature": shared.split(".")[2]},
        {"protected": none.split(".")[0], "signature": ""},
        {"protected": 5, "signature": None},
        "text",
    ):
        with pytest.raises(SecurityError):
            verify(document | {"signatures": [forged]}, [key.jwk(), other.jwk()])
    with pytest.raises(SecurityError, match="none is known"):
        verify(document | {"signatures": [right]}, [other.jwk()])
    with pytest.raises(SecurityError, match="not signed"):
        verify(document, [key.jwk()])


def test_one_good_signature_among_bad_ones_is_enough() -> None:
    key = CardKey.generate()
    good = key.sign(FULL).signatures
    document = FULL.to_wire("1.0") | {"signatures": [{"protected": "e30", "signature": "x"}, *good]}
    assert [found.key_id for found in verify(document, [key.jwk()])] == [key.key_id]


def test_a_key_survives_its_pem_and_one_of_another_kind_is_refused() -> None:
    key = CardKey.generate("ES256", key_id="k1")
    again = CardKey(key.pem(), key_id="k1")
    assert again.jwk() == key.jwk()
    assert "d" not in key.jwk()
    rsa = generate_private_key(65537, 2048).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    with pytest.raises(SetupError, match="cannot sign cards"):
        CardKey(rsa)


def test_a_key_set_is_read_without_what_cannot_verify() -> None:
    key = CardKey.generate(key_id="k")
    private = {**key.jwk(), "kid": "p", "d": "AA"}
    others = [private, {"kty": "oct", "kid": "o", "k": "AA"}, {"kty": "EC", "kid": "e"}, {"kid": "x"}, 5]
    assert list(read_jwks({"keys": [key.jwk(), *others]})) == ["k"]
    nothing: tuple[Any, ...] = (None, [], {"keys": 5})
    for wrong in nothing:
        with pytest.raises(ValidationError):
            read_jwks(wrong)


@pytest.mark.parametrize(
    ("jku", "card", "may"),
    [
        ("https://a.example/jwks.json", "https://a.example/card", True),
        ("https://evil.example/jwks.json", "https://a.example/card", False),
        ("https://a.example:8443/jwks.json", "https://a.example/card", False),
        ("http://a.example/jwks.json", "http://a.example/card", False),
        ("http://127.0.0.1:1/j", "http://127.0.0.1:1/c", True),
        ("file:///etc/passwd", "https://a.example/card", False),
        ("", "", False),
    ],
)
def test_keys_speak_only_for_cards_of_their_own_host(jku: str, card: str, may: bool) -> None:
    assert may_speak_for(jku, card) is may
