"""The command that runs the A2A kit: what it counts, and the agent that it judges. The kit itself is run on demand."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from xml.etree import ElementTree

import pytest

from agent3.model import LOCAL
from agent3.server.build import build
from conformance import a2a_agent
from conformance.__main__ import main
from conformance.a2a_suite import KNOWN, LEGS, Leg, Result, _binding, _kit, _verdict, stale
from conformance.kits import KitError
from interop import everything

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "conformance.md"
LEG = Leg("1.0", "minimal", "all", ())


@pytest.mark.parametrize(
    ("inside", "verdict"),
    [
        ("", "passed"),
        ("<failure message='no'/>", "failed"),
        ("<error message='no'/>", "failed"),
        ("<skipped/>", "skipped"),
    ],
)
def test_a_test_is_judged_by_what_pytest_wrote_of_it(inside: str, verdict: str) -> None:
    case = ElementTree.fromstring(f"<testcase classname='tests.one.TestIt' name='test_x[grpc]'>{inside}</testcase>")
    assert _verdict(case)[:2] == ("tests::one::TestIt::test_x[grpc]", verdict)


def test_a_known_failure_is_counted_apart_and_only_in_its_legs() -> None:
    known = next(one for one in KNOWN if one.leg == "1.0-minimal")
    result = Result(LEG)
    result.add(f"tests::{known.test}", "failed", "it broke")
    result.add("tests::test_other[grpc]", "failed", "it broke")
    assert (result.counts["known"], result.counts["failed"]) == (1, 1)
    assert result.failed == ["tests::test_other[grpc]: it broke"]
    assert stale([result]) == [one for one in KNOWN if LEG.name.startswith(one.leg) and one is not known]
    elsewhere = Result(Leg("1.0", "full", "all", ()))
    elsewhere.add(f"tests::{known.test}", "failed", "it broke")
    assert elsewhere.counts["failed"] == 1


@pytest.mark.parametrize(
    ("test", "binding"),
    [
        ("tests::grpc::test_x", "grpc"),
        ("tests::test_x[CORE-1-http_json]", "http_json"),
        ("tests::TestRestStreaming::test_x", "http_json"),
        ("tests::test_x[jsonrpc]", "jsonrpc"),
        ("tests::agent_card::test_x", "card, others"),
    ],
)
def test_a_test_is_counted_for_its_binding(test: str, binding: str) -> None:
    assert _binding(test) == binding


def test_a_checkout_is_known_by_its_tests(tmp_path: Path) -> None:
    with pytest.raises(KitError, match=r"1\.0-dev or 0\.3\.x"):
        _kit(tmp_path)
    (tmp_path / "tests" / "mandatory").mkdir(parents=True)
    assert _kit(tmp_path) == "0.3"
    (tmp_path / "tests" / "compatibility").mkdir()
    assert _kit(tmp_path) == "1.0"


def test_every_leg_and_every_known_failure_stands_in_the_page() -> None:
    page = PAGE.read_text("utf-8")
    for leg in LEGS:
        assert f"`{leg.name}`" in page
    for known in KNOWN:
        assert known.test.rpartition("::")[2] in page


def test_a_wrong_command_line_ends_with_two(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["a2a"])
    assert ended.value.code == 2
    assert "--tck" in capsys.readouterr().err


def test_the_longest_beginning_of_an_id_chooses_what_the_agent_does() -> None:
    names = list(a2a_agent.BEHAVIOURS)
    assert len([one for one in names if "tck-artifact-file-url-1".startswith(one)]) == 2
    assert a2a_agent.agent().agent.capabilities[0].name == "play"


def test_every_everything_server_stands_in_the_page_of_other_peoples_software() -> None:
    page = (PAGE.parent / "interop.md").read_text("utf-8")
    for server in everything.SERVERS:
        for leg in everything._legs(server):
            assert f"| {server.name} | {leg.name.removeprefix('server-')} |" in page
    with pytest.raises(KitError, match="There are: mcp 1"):
        everything.run(lambda row: None, ["no such server"])


def test_the_agent_under_test_takes_the_webhooks_that_the_kit_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT3_TCK_SECRET", "whsec_" + "dGhlIGtpdCBkb2VzIG5vdCBjaGVjayBzaWduYXR1cmVz")
    monkeypatch.setattr(socket, "getaddrinfo", socket.getaddrinfo)  # put back at the end
    a2a_agent._keep_at_home()

    async def take() -> None:
        async with build(a2a_agent._settings(tmp_path), [a2a_agent.agent()]) as server:
            callbacks = server.core.callbacks
            assert callbacks is not None
            for url in ("https://example.com/webhook", "http://localhost:9/webhook"):
                await callbacks.register(LOCAL, {"url": url})

    asyncio.run(take())
