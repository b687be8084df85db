"""Secrets do not slip out."""

from __future__ import annotations

import asyncio
import base64
import copy
import json
import pickle
import uuid
from typing import Any
from urllib.parse import quote, quote_plus

import msgspec
import pytest

from agent3.errors import SetupError
from agent3.identity.redaction import redact, redact_event, redact_outcome
from agent3.identity.secrets import EnvironmentVault, Secret, Vault
from agent3.model import Artifact, Call, Done, Event, Failed, Needs, Outcome, Part, Principal, Question, Working
from agent3.observe import logs

KEY = 'sk/live+9f8e7d6c5b4a"ü?'
SECRET = Secret(KEY)


def test_a_secret_is_masked_wherever_it_is_shown() -> None:
    for shown in (repr(SECRET), str(SECRET), f"{SECRET}", f"{SECRET!r:>30}", f"{SECRET:>40}", f"{[SECRET]}"):
        assert "***" in shown
        assert "live" not in shown
    call = Call(id="1", principal=Principal("p"), agent="a", capability="c", secret=SECRET)
    assert "9f8e" not in repr(call)
    assert SECRET.reveal() == KEY


@pytest.mark.parametrize("encode", [json.dumps, msgspec.json.encode, msgspec.to_builtins, pickle.dumps, copy.deepcopy])
def test_a_secret_cannot_be_encoded(encode: Any) -> None:
    with pytest.raises(TypeError):
        encode(SECRET)
    with pytest.raises(TypeError):
        encode({"token": SECRET})


def test_secrets_compare_by_value() -> None:
    assert Secret("a") == Secret("a")
    assert Secret("a") != Secret("b")
    assert Secret("a") != "a"
    assert len({Secret("a"), Secret("a"), Secret("b")}) == 2


def test_the_environment_gives_secrets_by_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    vault: Vault = EnvironmentVault()
    monkeypatch.setenv("PIZZA_TOKEN", "margherita")
    monkeypatch.setenv("EMPTY_TOKEN", "")
    monkeypatch.delenv("PASTA_TOKEN", raising=False)
    assert asyncio.run(vault.get("env:PIZZA_TOKEN")) == Secret("margherita")
    for reference, message in [
        ("env:PASTA_TOKEN", "PASTA_TOKEN is not set"),
        ("env:EMPTY_TOKEN", "EMPTY_TOKEN is empty"),
        ("vault:thing", "Write env:NAME"),
        ("env:", "Write env:NAME"),
        ("sk-live-abc", "Write env:NAME"),
    ]:
        with pytest.raises(SetupError, match=message) as caught:
            asyncio.run(vault.get(reference))
        assert "sk-live" not in str(caught.value)


@pytest.mark.parametrize(
    "echo",
    [
        KEY,
        f"Authorization: Bearer {KEY}!",
        json.dumps({"token": KEY}),
        json.dumps({"token": KEY}, ensure_ascii=False),
        quote(KEY),
        quote(KEY, safe=""),
        quote_plus(KEY),
        quote(KEY, safe="").lower(),
        base64.b64encode(KEY.encode()).decode(),
        base64.urlsafe_b64encode(KEY.encode()).decode().rstrip("="),
        base64.b64encode(f":{KEY}".encode()).decode(),
        base64.b64encode(f"u:{KEY}".encode()).decode(),
        base64.b64encode(f"ab:{KEY}:more".encode()).decode(),
        f"{KEY} and again {KEY}",
    ],
)
def test_every_spelling_of_a_secret_is_masked(echo: str) -> None:
    cleaned = redact(f"got <{echo}>", [Secret("other-secret"), SECRET])
    assert "***" in cleaned
    assert "9f8e7d6c5b4a" not in cleaned
    for offset in range(3):
        inner = base64.b64encode(bytes(offset) + KEY.encode()).decode()[4:-4]
        assert inner not in cleaned


def test_text_without_a_secret_is_the_same_object() -> None:
    text = "nothing to see"
    assert redact(text, [SECRET, Secret(""), Secret("see")]) is text
    assert redact("", [Secret("")]) == ""


def test_an_outcome_loses_the_secret_everywhere_it_could_hide() -> None:
    where = f"key={KEY}"
    outcomes: list[Outcome] = [
        Done(
            parts=(Part(text=where), Part(data={where: [where]}), Part(raw=b"\xff" + where.encode()), Part(url=where)),
            artifacts=(Artifact("1", name=where, parts=(Part(text=where),), meta={"m": where}),),
            meta={"m": where},
        ),
        Failed("bad", where, data={"d": where}),
        Needs((Question("1", where, {"title": where}),), {"state": where}),
        Working([where], text=where),
    ]
    for outcome in outcomes:
        cleaned = redact_outcome(outcome, iter([SECRET]))
        assert "9f8e7d6c5b4a" not in repr(cleaned)
        assert "***" in repr(cleaned)
        assert redact_outcome(cleaned, [SECRET]) is cleaned


def test_an_outcome_without_the_secret_is_the_same_object() -> None:
    outcome = Done(parts=(Part(text="hi"), Part(data={"a": ["b"]}), Part(raw=b"\x00")))
    assert redact_outcome(outcome, [SECRET]) is outcome
    assert redact_outcome(outcome, []) is outcome


def test_an_event_is_shown_without_the_secret_in_text_name_data_and_parts() -> None:
    event = Event(
        "artifact",
        text=f"sent {KEY}",
        name=KEY,
        data={"headers": [{KEY: KEY}]},
        parts=(Part(text=KEY), Part(data={"token": KEY}), Part(raw=KEY.encode()), Part(url="https://x/", name=KEY)),
    )
    cleaned = redact_event(event, iter([SECRET]))
    assert "9f8e7d6c5b4a" not in repr(cleaned)
    assert (cleaned.name, cleaned.data, cleaned.parts[0].text) == ("***", {"headers": [{"***": "***"}]}, "***")
    assert redact_event(event, []) is event


def test_a_secret_that_was_taken_from_the_vault_shows_in_no_log_line() -> None:
    value = uuid.uuid4().hex  # what other tests made known stays known to the process
    assert value in logs.scrub(f"connecting with {value}")
    asyncio.run(EnvironmentVault({"NAME": value}).get("env:NAME"))
    assert value not in logs.scrub(f"connecting with {value}")
