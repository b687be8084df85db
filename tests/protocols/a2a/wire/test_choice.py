"""Which generation a request means."""

from __future__ import annotations

import pytest

from agent3.protocols.a2a.wire import generation_of, version_of
from agent3.protocols.a2a.wire.errors import VersionNotSupported
from agent3.protocols.a2a.wire.operations import OWNERS
from agent3.protocols.a2a.wire.types import Generation


@pytest.mark.requirement("SP-01", "SL-01")
@pytest.mark.parametrize(
    ("method", "header", "expected"),
    [
        ("tasks/send", None, "0.1"),
        ("tasks/sendSubscribe", "", "0.1"),
        ("tasks/pushNotification/set", None, "0.1"),
        ("message/send", None, "0.3"),
        ("message/stream", "0.3", "0.3"),
        ("message/send", "1.0", "0.3"),
        ("tasks/pushNotificationConfig/get", "0.2.5", "0.3"),
        ("SendMessage", "1.0", "1.0"),
        ("SendMessage", "1.0.1", "1.0"),
        ("GetTask", " 1.0 ", "1.0"),
        ("tasks/get", None, "0.3"),
        ("tasks/get", "0.1", "0.1"),
        ("tasks/cancel", "0.3", "0.3"),
        ("tasks/search", "1.0", "1.0"),
        ("nobody/knows", None, "0.3"),
        ("nobody/knows", "1.0", "1.0"),
    ],
)
def test_name_and_header_decide(method: str, header: str | None, expected: Generation) -> None:
    assert generation_of(method, header, lambda _: None) == expected


def test_a_shared_name_is_of_the_generation_of_its_task_unless_the_header_says_otherwise() -> None:
    assert generation_of("tasks/get", None, lambda _: "0.1") == "0.1"
    assert generation_of("tasks/get", "0.3", lambda _: "0.1") == "0.3"
    assert generation_of("message/send", None, lambda _: "0.1") == "0.3"


@pytest.mark.parametrize("header", [None, "", "0.3"])
def test_a_name_of_1_0_needs_its_header(header: str | None) -> None:
    with pytest.raises(VersionNotSupported, match=r"A2A-Version: 1\.0"):
        generation_of("SendMessage", header)
    if not header:
        assert generation_of("SendMessage", header, lenient=True) == "1.0"


@pytest.mark.parametrize("header", ["99.0", "1.7", "2", "one", "1.0.0.0", "-1.0", "1.0; drop", "9" * 500])
def test_a_version_that_nobody_speaks_is_refused_whatever_the_method(header: str) -> None:
    for method in ("SendMessage", "message/send", "tasks/send", "nobody/knows"):
        with pytest.raises(VersionNotSupported, match="is not supported") as caught:
            generation_of(method, header, lenient=True)
        assert len(caught.value.message) < 200
    assert version_of("  ") is None


def test_only_names_that_several_generations_have_are_undecided() -> None:
    assert {name for name, owner in OWNERS.items() if owner is None} == {
        "tasks/get", "tasks/cancel", "tasks/resubscribe", "tasks/search"
    }  # fmt: skip
