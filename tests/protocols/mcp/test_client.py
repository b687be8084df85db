"""MCPClient: servers here, over HTTP and as programs; budgets, models, plans and batches."""

from __future__ import annotations

import asyncio
import base64
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agent3 import MCPClient, MCPSecurityManager, MCPServer, ToolDefinition, ValidationError
from agent3.errors import (
    CapabilityNotFound,
    Conflict,
    JobNotFound,
    NotFound,
    RateLimited,
    SetupError,
    TargetError,
    Unavailable,
)
from agent3.identity.secrets import Secret
from agent3.llm import Anthropic, Image, OpenAICompatible, Price, Scripted, Text, ToolCall, ToolResult
from agent3.model import Answer, Part, Principal
from agent3.protocols.functions.standalone import Standalone
from agent3.settings import Settings, Storage
from faults import kill_plans
from tests.support.llm_server import KEY, Call, LLMServer, Turn
from tests.support.mcp_upstream import Site, command, notes, served

ROOT = Path(__file__).parents[3]


@pytest.fixture
def server() -> Iterator[MCPServer]:
    server = MCPServer("travel")

    @server.tool(read_only=True)
    def find(city: str) -> dict[str, Any]:
        """Find a hotel."""
        return {"hotel": f"Grand Hotel {city}", "prices": [90, 120]}

    @server.tool
    def book(hotel: str, price: int) -> str:
        """Book a hotel."""
        return f"{hotel} for {price}"

    yield server
    server.close()


@pytest.fixture
def client(server: MCPServer) -> Iterator[MCPClient]:
    with MCPClient() as client:
        client.connect_to_server(server)
        yield client


def eventually(true: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.01)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """For the tests that leave it as it is."""
    with served(tmp_path_factory.mktemp("site") / "notes") as site:
        yield site


@pytest.fixture
def remote(site: Site) -> Iterator[MCPClient]:
    with MCPClient() as client:
        client.connect_to_server(site.url)
        yield client


@pytest.fixture
def counter() -> Callable[[], int]:
    """Counts its calls."""
    runs: list[int] = []

    def count() -> int:
        runs.append(1)
        return len(runs)

    return count


# Servers elsewhere


@pytest.mark.requirement("RF-013-20")
def test_a_remote_tool_runs_with_its_trace_in_the_result_and_at_the_server(remote: MCPClient) -> None:
    told = remote.invoke_tool("who")
    assert told["status"] == "success"
    assert told["trace_id"] in told["result"]["meta"]["traceparent"]
    assert told["metadata"]["server"] == "Test Server"
    assert remote.invoke_tool("who")["trace_id"] != told["trace_id"]


def test_remote_tools_are_definitions_with_their_parameters(remote: MCPClient) -> None:
    (echo,) = [tool for tool in remote.list_tools() if tool.name == "echo"]
    assert (echo.title, echo.read_only, echo.description) == ("Echo", True, "The tool echo")
    assert [(one.name, one.type, one.required) for one in echo.parameters] == [("text", "string", True)]
    assert echo.to_schema()["required"] == ["text"]


def test_refusals_raise_before_a_remote_server_is_asked(site: Site, remote: MCPClient) -> None:
    before = site.noted().count("echo")
    with pytest.raises(ValidationError, match="text"):
        remote.invoke_tool("echo", {"text": 5})
    with pytest.raises(CapabilityNotFound, match="Did you mean 'echo'"):
        remote.invoke_tool("ecko")
    assert site.noted().count("echo") == before
    with pytest.raises(RateLimited):
        remote.invoke_tool("limited")


def test_a_remote_tool_that_fails_is_an_answer(remote: MCPClient) -> None:
    told = remote.invoke_tool("fail")
    assert (told["status"], told["error"]["code"], told["error"]["message"]) == (
        "error",
        "target_failed",
        "The oven is cold",
    )


def test_the_address_of_a_site_keeps_its_query(tmp_path: Path) -> None:
    with served(tmp_path / "notes", "--path", "/mcp") as site, MCPClient() as client:
        for more in ("/?tenant=7", "?tenant=7"):
            client.connect_to_server(site.url.removesuffix("/mcp") + more)
        assert client.invoke_tool("count")["result"] == "counted"


@pytest.mark.requirement("RF-013-09")
def test_the_timeout_of_a_remote_tool_reaches_the_server(site: Site, remote: MCPClient) -> None:
    before = site.noted().count("cancelled")
    told = remote.invoke_tool("hang", timeout=0.3)
    assert (told["status"], told["error"]["code"]) == ("error", "timeout")
    assert told["metadata"]["seconds"] < 25  # without a timeout of its own it would have 30
    eventually(lambda: site.noted().count("cancelled") == before + 1)


def test_cancelling_the_async_twin_cancels_the_tool(site: Site, remote: MCPClient) -> None:
    hanging, cancelled = (site.noted().count(word) for word in ("hanging", "cancelled"))

    async def story() -> None:
        call = asyncio.ensure_future(remote.invoke_tool_async("hang"))
        async with asyncio.timeout(60):
            while site.noted().count("hanging") == hanging:
                await asyncio.sleep(0.01)
        call.cancel()
        await asyncio.wait([call], timeout=60)
        assert call.cancelled()

    asyncio.run(story())
    eventually(lambda: site.noted().count("cancelled") == cancelled + 1)


@pytest.mark.requirement("RF-013-16")
@pytest.mark.parametrize("era", ["modern", "legacy"])
def test_a_server_that_says_that_its_tools_changed_is_read_again(tmp_path: Path, era: str) -> None:
    with served(tmp_path / "notes", *(["--legacy"] if era == "legacy" else [])) as site, MCPClient() as client:
        client.connect_to_server(site.url)
        before = len(client.list_tools())

        def grown_and_heard() -> bool:  # the hearing begins beside the first call, so an early change may go unheard
            client.invoke_tool("grow")
            return len(client.list_tools()) > before

        eventually(grown_and_heard)
        grown = client.list_tools()[-1].name
        assert client.invoke_tool(grown)["status"] == "success"


def test_a_program_is_a_server_and_ends_with_its_client(tmp_path: Path) -> None:
    file = tmp_path / "notes"
    run = command(file)
    with MCPClient() as client:
        name = client.connect_to_server([run["command"], *run["args"]], cwd=run["cwd"], name="program")
        assert client.invoke_tool("program/echo", {"text": "hi"})["result"] == {"text": "hi"}
        (shown,) = client.servers()
        assert (name, shown["name"], shown["kind"], shown["status"]) == ("program", "program", "stdio", "connected")
        pid = int(notes(file)[0].split()[1])
    eventually(lambda: not Path(f"/proc/{pid}").exists())


def test_a_server_that_is_not_there_says_so_at_once() -> None:
    client = MCPClient()
    with pytest.raises(Unavailable, match="cannot be reached"):
        client.connect_to_server("http://127.0.0.1:9/mcp")
    with pytest.raises(Unavailable, match="'no-such-program' cannot be started"):
        client.connect_to_server("no-such-program --flag")
    with pytest.raises(SetupError, match="'ftp' addresses are not supported"):
        client.connect_to_server("ftp://example.com")
    with pytest.raises(SetupError, match="got int"):
        client.connect_to_server(5)  # type: ignore[arg-type]
    assert client.servers() == []


def test_a_server_that_is_lost_later_is_a_status_and_never_an_empty_list(tmp_path: Path) -> None:
    with served(tmp_path / "notes") as site, MCPClient() as client:
        client.connect_to_server(site.url)
        before = [tool.name for tool in client.list_tools()]
        site.stop()
        told = client.invoke_tool("echo", {"text": "hi"})
        assert (told["status"], told["error"]["code"]) == ("error", "unavailable")
        assert client.servers()[0]["status"] == "unavailable"
        (shown,) = client.servers(look=True)
        assert shown["status"] == "unavailable"
        assert "cannot be reached" in shown["error"]
        assert [tool.name for tool in client.list_tools()] == before


def test_the_address_of_a_site_leads_to_its_endpoint(tmp_path: Path) -> None:
    with served(tmp_path / "notes", "--path", "/mcp") as site, MCPClient() as client:
        client.connect_to_server(site.url.removesuffix("/mcp"))
        assert client.invoke_tool("count")["result"] == "counted"


def test_a_credential_is_a_reference_and_goes_with_every_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOY_TOKEN", "correct-horse")
    with served(tmp_path / "notes", "--key", "correct-horse") as site, MCPClient() as client:
        with pytest.raises(TargetError):
            client.connect_to_server(site.url)
        client.connect_to_server(site.url, credential="env:TOY_TOKEN", name="keyed")
        told = client.invoke_tool("who")
        assert told["result"]["authorization"] == "Bearer ***"
        client.connect_to_server(site.url, headers={"Authorization": "Bearer env:TOY_TOKEN"}, name="other")
        with pytest.raises(SetupError, match="not the secret itself"):
            client.connect_to_server(site.url, headers={"X-API-Key": "correct-horse"})


def test_of_two_tools_with_one_name_each_has_an_address(server: MCPServer, client: MCPClient, site: Site) -> None:
    other = MCPServer("travel")
    other.register_tool(ToolDefinition(name="find"), lambda: "found")
    try:
        assert client.connect_to_server(other) == "travel-2"
        client.connect_to_server(site.url, name="afar")
        assert [tool.name for tool in client.list_tools()][:2] == ["find", "book"]
        assert client.invoke_tool("travel-2/find")["result"] == "found"
        assert client.invoke_tool("travel/find", {"city": "Rome"})["result"]["hotel"] == "Grand Hotel Rome"
        assert client.invoke_tool("afar/count")["result"] == "counted"
        assert [one["status"] for one in client.servers()] == ["connected"] * 3
        with pytest.raises(Conflict, match="already connected as 'afar'"):
            client.connect_to_server(site.url, name="afar")
        client.disconnect("afar")
        with pytest.raises(CapabilityNotFound):
            client.invoke_tool("count")
        client.disconnect(other)
        with pytest.raises(NotFound, match="Did you mean 'travel'"):
            client.disconnect("travle")
    finally:
        other.close()


def test_a_client_that_was_closed_can_be_used_again(site: Site) -> None:
    client = MCPClient()
    for _ in range(2):
        client.connect_to_server(site.url)
        assert client.invoke_tool("count")["result"] == "counted"
        client.close()
        assert client.list_tools() == []


def test_a_core_that_was_closed_dials_again(site: Site) -> None:
    core = Standalone()
    with MCPClient(core=core) as client:
        client.connect_to_server(site.url)
        assert client.invoke_tool("count")["result"] == "counted"
        core.close()
        assert client.invoke_tool("count")["result"] == "counted"
    core.close()


# Results


@pytest.mark.requirement("RF-013-13")
def test_a_result_is_told_as_a_model_reads_it(remote: MCPClient) -> None:
    shown = remote.invoke_tool("parts", as_llm=True)["result"]
    assert shown[0] == Text("words")
    assert shown[1] == Image(b"png", media_type="image/png")
    assert Text("x: https://example.com/x (text/html)") in shown
    assert shown[-1] == Text('{"n":1}')
    assert remote.invoke_tool("summary", as_llm=True)["result"] == 'Sunny, as always\n{"degrees":20}'


@pytest.mark.requirement("RF-013-13")
@pytest.mark.parametrize("size", [10_000, 200_000])
def test_a_result_above_its_budget_is_cut_and_the_rest_can_be_read(
    server: MCPServer, client: MCPClient, size: int
) -> None:
    whole = "".join(f"{number:05d} ü\n" for number in range(size // 8))
    server.register_tool(ToolDefinition(name="long"), lambda: whole)
    assert client.invoke_tool("long")["result"] == whole
    told = client.invoke_tool("long", max_tokens=500)
    assert told["metadata"]["truncated"]
    pieces, following = [told["result"]], told["metadata"]["next"]
    assert len(pieces[0]) == 2_000
    while following is not None:
        read = client.read_artifact(told["metadata"]["artifact"], offset=following, max_tokens=10_000)
        pieces.append(read["text"])
        following = read["next"]
    assert "".join(pieces) == whole
    with pytest.raises(NotFound):
        MCPClient(principal=Principal("stranger")).read_artifact(told["metadata"]["artifact"])


def test_a_result_within_its_budget_stays_as_it_is(client: MCPClient) -> None:
    told = client.invoke_tool("find", {"city": "Rome"}, max_tokens=500)
    assert told["result"] == {"hotel": "Grand Hotel Rome", "prices": [90, 120]}
    assert "truncated" not in told["metadata"]


@pytest.mark.requirement("RF-013-15")
def test_a_result_that_was_kept_says_so(server: MCPServer, client: MCPClient, counter: Callable[[], int]) -> None:
    server.register_tool(ToolDefinition(name="kept", read_only=True, cache_ttl=60), counter)
    told = [client.invoke_tool("kept") for _ in range(2)]
    assert [one["result"] for one in told] == [1, 1]
    assert [one["metadata"]["cached"] for one in told] == [False, True]


def test_one_idempotency_key_runs_a_tool_once(server: MCPServer, client: MCPClient, counter: Callable[[], int]) -> None:
    server.register_tool(ToolDefinition(name="pay"), counter)
    keys = ["one order", "one order", "another order"]
    told = [client.invoke_tool("pay", idempotency_key=key) for key in keys]
    assert [one["result"] for one in told] == [1, 1, 2]


@pytest.mark.requirement("RF-013-10")
def test_calls_beyond_the_limit_of_a_server_wait_in_their_order(server: MCPServer) -> None:
    running, most, order = 0, 0, []
    lock, pair = threading.Lock(), threading.Barrier(2)

    def meet(number: int) -> int:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
            order.append(number)
        pair.wait(60)  # two of them run together, or none comes any further
        with lock:
            running -= 1
        return number

    server.tool(meet)
    with MCPClient(max_concurrent=2) as client:
        client.connect_to_server(server)
        told = client.invoke_batch([("meet", {"number": number}) for number in range(12)], concurrency=12)
    assert [one["result"] for one in told] == list(range(12))
    assert most == 2
    assert sorted(order[:4]) == [0, 1, 2, 3]


def test_a_tool_that_calls_another_does_not_wait_for_its_own_place(server: MCPServer) -> None:
    client = MCPClient(max_concurrent=1)
    client.connect_to_server(server)
    server.register_tool(
        ToolDefinition(name="outer"), lambda: client.invoke_tool("find", {"city": "Rome"}, timeout=60)["result"]
    )
    assert client.invoke_tool("outer", timeout=60)["result"]["hotel"] == "Grand Hotel Rome"


def test_waiting_for_a_place_counts_as_time(server: MCPServer) -> None:
    go, began = threading.Event(), threading.Event()

    def hold() -> None:
        began.set()
        go.wait(120)

    server.register_tool(ToolDefinition(name="hold"), hold)
    client = MCPClient(max_concurrent=1)
    client.connect_to_server(server)
    with ThreadPoolExecutor(1) as threads:
        holding = threads.submit(client.invoke_tool, "hold")
        assert began.wait(60)
        told = client.invoke_tool("find", {"city": "Rome"}, timeout=0.1)
        go.set()
        holding.result(60)
    assert (told["status"], told["error"]["code"]) == ("error", "timeout")
    assert "was busy" in told["error"]["message"]


# Calls that go on


@pytest.mark.parametrize("era", ["modern", "legacy"])
def test_a_remote_tool_that_asks_is_answered(tmp_path: Path, era: str) -> None:
    with served(tmp_path / "notes", *(["--legacy"] if era == "legacy" else [])) as site, MCPClient() as client:
        client.connect_to_server(site.url)
        told = client.invoke_tool("ask")
        assert (told["status"], [one["text"] for one in told["questions"]]) == ("needs", ["Which size?"])
        with pytest.raises(ValidationError, match="'Colour' was not asked"):
            client.answer(told["job"], {"Colour": "red"})
        again = client.answer(told["job"], {"Which size?": {"size": "small"}})
        (question,) = again["questions"]
        last = client.answer(again["job"], {question["id"]: Answer("decline")})
        assert last["status"] == "success"
        assert "decline" in last["result"]


def test_a_tool_of_this_process_that_asks_is_answered(server: MCPServer, client: MCPClient) -> None:
    @server.tool
    async def order(ctx: Any) -> str:
        """Order something."""
        return f"a {await ctx.ask('Which size?')} one"

    told = client.invoke_tool("order")
    assert client.answer(told["job"], {"Which size?": "small"})["result"] == "a small one"
    with pytest.raises(JobNotFound, match="No call of this client is waiting"):
        client.answer("nothing", {})


def test_a_remote_task_is_waited_for(remote: MCPClient) -> None:
    told = remote.invoke_tool("task")
    assert told["status"] == "working"
    assert remote.wait(told["job"], timeout=120)["result"] == "baked None"


# Tools that fail in our own words


@pytest.fixture
def failing(server: MCPServer) -> MCPServer:
    """Its tool ``lookup`` was asked, and says no."""

    @server.tool
    def lookup(customer: str) -> str:
        """Look a customer up."""
        raise NotFound("no such customer", data={"customer": customer})

    return server


def test_a_tool_that_fails_with_a_code_of_ours_has_failed_and_is_no_refusal(
    failing: MCPServer, client: MCPClient
) -> None:
    for key in (None, "once", "once"):
        told = client.invoke_tool("lookup", {"customer": "7"}, idempotency_key=key)
        assert (told["status"], told["error"]["code"]) == ("error", "not_found")
        assert told["error"]["data"]["customer"] == "7"
        assert told["trace_id"]
    with pytest.raises(ValidationError):
        client.invoke_tool("lookup", {})


def test_it_is_an_error_of_its_call_with_a_trace_in_batches_plans_and_for_models(
    failing: MCPServer, client: MCPClient
) -> None:
    batch = client.invoke_batch([("lookup", {"customer": "7"})])
    steps = [{"id": "a", "tool": "lookup", "input": {"customer": "7"}}]
    for told in (batch[0], client.run_plan(steps)["steps"][0], client.run_plan(steps, key="lookups")["steps"][0]):
        assert (told["status"], told["error"]["code"]) == ("error", "not_found")
        assert told["trace_id"]
        assert told["metadata"]["tool"] == "lookup"
    with MCPClient(Scripted(ToolCall("", "lookup", {"customer": "7"}), "Nobody.")) as asking:
        asking.connect_to_server(failing)
        said = asking.ask("Who is 7?")
    (result,) = [one for one in said.messages if isinstance(one, ToolResult)]
    assert result.error
    assert '"code":"not_found"' in str(result.content)


def test_a_large_result_that_only_claims_to_be_json_stays_bytes(server: MCPServer, client: MCPClient) -> None:
    body = b"{not json" * 40_000
    server.register_tool(ToolDefinition(name="blob"), lambda: [Part(raw=body, media_type="application/json")])
    assert base64.b64decode(client.invoke_tool("blob")["result"]["raw"]) == body
    assert "360000 bytes of application/json" in client.invoke_tool("blob", as_llm=True)["result"]
    told = client.invoke_batch([("find", {"city": "Rome"}), ("blob", {}), ("find", {"city": "Rome"})])
    assert [one["status"] for one in told] == ["success"] * 3


def test_a_client_sees_and_has_the_tools_of_its_principal() -> None:
    security = MCPSecurityManager("a secret of at least 16 bytes", {"desk": ["price"], "local": ["*"]})
    server = MCPServer("shop", security=security)
    server.register_tool(ToolDefinition(name="price"), lambda: 3)
    server.register_tool(ToolDefinition(name="sell"), lambda: 4)
    with closing(server), MCPClient(principal=Principal("desk")) as desk, MCPClient() as local:
        for client in (desk, local):
            client.connect_to_server(server)
        assert [tool.name for tool in desk.list_tools()] == ["price"]
        assert desk.servers()[0]["tools"] == 1
        assert [tool.name for tool in local.list_tools()] == ["price", "sell"]
        assert desk.invoke_tool("price")["result"] == 3
        with pytest.raises(CapabilityNotFound):
            desk.invoke_tool("sell")


# Batches


@pytest.mark.requirement("RF-013-19")
def test_a_batch_tells_of_each_call_how_it_ended(server: MCPServer, client: MCPClient) -> None:
    server.register_tool(ToolDefinition(name="broken"), lambda: 1 / 0)
    told = client.invoke_batch(
        [
            ("find", {"city": "Rome"}),
            {"tool": "book", "parameters": {"hotel": "x"}, "id": "wrong"},
            {"tool": "nothing"},
            {"tool": "broken"},
        ]
    )
    assert [(one["id"], one["status"]) for one in told] == [
        ("0", "success"),
        ("wrong", "error"),
        ("2", "error"),
        ("3", "error"),
    ]
    codes = [one["error"]["code"] for one in told[1:]]
    assert codes == ["invalid_input", "capability_not_found", "target_failed"]
    assert told[0]["trace_id"]
    stopped = client.invoke_batch([{"tool": "nothing"}, ("find", {"city": "x"})], concurrency=1, stop_on_error="first")
    assert [one["status"] for one in stopped] == ["error", "skipped"]
    with pytest.raises(ValidationError, match="Call 0 of the batch is malformed"):
        client.invoke_batch([{"tol": "find"}])


def test_a_batch_waits_for_remote_tasks_and_may_cancel_what_runs(site: Site, remote: MCPClient) -> None:
    told = remote.invoke_batch([("task", {}), ("echo", {"text": "x"})])
    assert [one["result"] for one in told] == ["baked None", {"text": "x"}]
    hanging, before = (site.noted().count(word) for word in ("hanging", "cancelled"))
    ended = remote.invoke_batch([{"tool": "hang"}, {"tool": "fail"}], stop_on_error="cancel")
    assert [one["status"] for one in ended] == ["canceled", "error"]
    eventually(lambda: site.noted().count("cancelled") - before == site.noted().count("hanging") - hanging)


# Plans

PLAN = [
    {"id": "book", "tool": "book", "input": {"hotel": "${find.hotel}", "price": "${find.prices.1}"}},
    {"id": "find", "tool": "find", "input": {"city": "Rome"}},
]


@pytest.mark.requirement("RF-013-12")
@pytest.mark.parametrize("key", [None, "trip"])
def test_the_results_of_one_tool_are_the_input_of_the_next(client: MCPClient, key: str | None) -> None:
    told = client.run_plan(PLAN, key=key)
    assert told["status"] == "success"
    assert [one["id"] for one in told["steps"]] == ["book", "find"]
    assert told["steps"][0]["result"] == "Grand Hotel Rome for 120"


def test_a_plan_that_cannot_be_run_is_refused_and_a_failed_step_ends_it(client: MCPClient) -> None:
    with pytest.raises(ValidationError, match="not in the plan"):
        client.run_plan([{"id": "a", "tool": "find", "input": "${b}"}])
    told = client.run_plan([{"id": "a", "tool": "find", "input": {}}, {"id": "b", "tool": "find", "after": ["a"]}])
    assert (told["status"], [one["status"] for one in told["steps"]]) == ("error", ["error", "skipped"])


def test_a_key_stands_for_one_plan(server: MCPServer, client: MCPClient, counter: Callable[[], int]) -> None:
    server.register_tool(ToolDefinition(name="count"), counter)
    plan = [{"id": "a", "tool": "count"}]
    assert [client.run_plan(plan, key="one")["steps"][0]["result"] for _ in range(2)] == [1, 1]
    with pytest.raises(Conflict):
        client.run_plan([{"id": "b", "tool": "count"}], key="one")
    assert client.run_plan(plan, key="two")["steps"][0]["result"] == 2


@pytest.mark.requirement("RF-013-12")
def test_after_a_kill_a_plan_goes_on_and_no_finished_step_is_repeated(tmp_path: Path) -> None:
    file, script = tmp_path / "steps", tmp_path / "plan.py"
    script.write_text(SCRIPT)
    first = subprocess.Popen([sys.executable, str(script)], cwd=tmp_path)
    try:
        eventually(lambda: "third" in notes(file), 120)
    finally:
        first.kill()
        first.wait(60)
    (tmp_path / "go").touch()
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=240, check=True
    )
    assert done.stdout == "success\n['first', 'first second', 'first second third', 'first second third fourth']\n"
    assert notes(file) == ["first", "second", "third", "third", "fourth"]


SCRIPT = """
import pathlib, time
from agent3 import MCPClient, MCPServer
from agent3.protocols.functions.standalone import Standalone
from agent3.settings import Settings, Storage

core = Standalone(Settings(storage=Storage(url="sqlite:///plans.db")))
server = MCPServer("words", core=core)

@server.tool(idempotent=True)
def add(word: str, before: str = "") -> str:
    with open("steps", "a") as file:
        file.write(word + chr(10))
    while word == "third" and not pathlib.Path("go").exists():
        time.sleep(0.01)
    return f"{before} {word}".strip()

words = ["first", "second", "third", "fourth"]
steps = [{"id": word, "tool": "add", "input": {"word": word}} for word in words]
for step, before in zip(steps[1:], words):
    step["input"]["before"] = "${" + before + "}"
with MCPClient(core=core) as client:
    client.connect_to_server(server)
    told = client.run_plan(steps, key="sentence")
print(told["status"])
print([one["result"] for one in told["steps"]])
core.close()
"""


@pytest.mark.requirement("RF-013-12")
def test_two_kills_repeat_no_finished_step() -> None:
    result = kill_plans.kill_plans(3, kills=2)
    assert result["wrong"] == {}, result
    assert result["plans"] > 0


def test_what_goes_wrong_with_plans_is_noticed() -> None:
    whole, right = list(range(6)), ["success", [1, 2, 3, 4, 5, 6]]
    cut = ["error", [1, 2, "interrupted", "skipped", "skipped", "skipped"]]
    faults = kill_plans._faults
    assert faults("repeatable", [0, 1, 1, 2, 3, 4, 5], [right, right]) == []
    assert faults("single", [0, 1, 2], [cut]) == []
    assert faults("repeatable", [0, 1, 0, 1, 2, 3, 4, 5], [right]) == ["a finished step was repeated"]
    assert faults("single", [0, 0, 1, 2, 3, 4, 5], [right]) == ["a step was repeated that may not be"]
    assert faults("repeatable", [0, 1, 2], [cut]) == ["failed"]
    assert faults("repeatable", whole, []) == ["never ended"]
    assert faults("repeatable", whole, [["success", [1, 2]]]) == ["wrong result"]
    assert faults("single", whole, [cut, right]) == ["changed after its end"]


def test_large_results_of_a_plan_outlive_the_process(tmp_path: Path) -> None:
    settings = Settings(storage=Storage(url=f"sqlite:///{tmp_path}/plans.db"))
    for _ in range(2):
        core = Standalone(settings)
        server = MCPServer("large", core=core)
        server.register_tool(ToolDefinition(name="large"), lambda: "x" * 100_000)
        with MCPClient(core=core) as client:
            client.connect_to_server(server)
            told = client.run_plan([{"id": "a", "tool": "large"}], key="large")
        assert len(told["steps"][0]["result"]) == 100_000
        core.close()


# Models


def models(server: LLMServer) -> list[OpenAICompatible | Anthropic]:
    return [
        OpenAICompatible(f"{server.url}/v1", "gpt-test", Secret(KEY), price=Price(1.0, 1.0)),
        Anthropic("claude-test", Secret(KEY), base_url=server.url),
    ]


@pytest.mark.requirement("RF-013-11")
@pytest.mark.parametrize("vendor", [0, 1], ids=["openai", "anthropic"])
def test_a_model_calls_tools_and_answers(server: MCPServer, vendor: int) -> None:
    turns = (
        Turn(calls=(Call("find", {"city": "Rome"}), Call("find", {"city": "Oslo"}))),
        Turn(calls=(Call("book", {"hotel": "Grand Hotel Rome", "price": 90}),)),
        "Booked.",
    )
    with LLMServer(*turns) as vendors, closing(models(vendors)[vendor]) as model, MCPClient(model) as client:
        client.connect_to_server(server)
        said = client.ask("Book the Grand Hotel in Rome")
    assert (said.text, said.stopped, said.steps) == ("Booked.", "done", 3)
    results = [one for one in said.messages if isinstance(one, ToolResult)]
    assert ["Grand Hotel Rome" in str(one.content) for one in results] == [True, False, True]
    assert results[2].content == "Grand Hotel Rome for 90"


@pytest.mark.requirement("RF-013-14")
def test_errors_reach_the_model_as_typed_results_that_it_can_act_on(server: MCPServer) -> None:
    server.register_tool(ToolDefinition(name="broken"), lambda: 1 / 0)
    model = Scripted(
        [
            ToolCall("", "book", {"hotel": "x"}),
            ToolCall("", "bok", {}),
            ToolCall("", "broken", {}),
        ],
        ToolCall("", "book", {"hotel": "x", "price": 5}),
        "Done.",
    )
    with MCPClient(model) as client:
        client.connect_to_server(server)
        said = client.ask("Book x")
    results = [one for one in said.messages if isinstance(one, ToolResult)]
    assert [one.error for one in results] == [True, True, True, False]
    told = [str(one.content) for one in results]
    assert '"code":"invalid_input"' in told[0]
    assert "Missing required parameter: price" in told[0]
    assert "Did you mean 'book'" in told[1]
    assert '"code":"target_failed"' in told[2]
    assert said.text == "Done."


@pytest.mark.requirement("RF-013-13")
def test_a_model_reads_on_in_a_result_that_was_cut(server: MCPServer) -> None:
    whole = "".join(f"{number:05d}\n" for number in range(1_000))
    server.register_tool(ToolDefinition(name="long"), lambda: whole)

    def read_on(asked: Any) -> ToolCall:
        note = str(asked.messages[-1].content).rsplit("\n", 1)[-1]
        assert "Truncated after 400 of 6000 characters" in note
        return ToolCall("", "read_artifact", {"handle": note.split("'")[1], "offset": 400})

    model = Scripted(ToolCall("", "long", {}), read_on, "Read.")
    with MCPClient(model) as client:
        client.connect_to_server(server)
        said = client.ask("Read it", result_tokens=100)
    last = [one for one in said.messages if isinstance(one, ToolResult)][-1]
    assert not last.error
    assert whole[400:412].replace("\n", "\\n") in str(last.content)


@pytest.mark.requirement("RF-013-11")
@pytest.mark.parametrize(
    ("caps", "stopped"),
    [({"max_steps": 1}, "steps"), ({"max_cost": 0.0}, "cost"), ({"max_seconds": 0.2}, "time")],
)
def test_a_conversation_ends_at_its_caps(server: MCPServer, caps: dict[str, Any], stopped: str) -> None:
    async def sleepy() -> None:
        await asyncio.sleep(20 if stopped == "time" else 0)

    server.register_tool(ToolDefinition(name="sleepy"), sleepy)
    with MCPClient(Scripted(*[ToolCall("", "sleepy", {})] * 3)) as client:
        client.connect_to_server(server)
        assert client.ask("Go", **caps).stopped == stopped


def test_without_parallel_a_model_gets_one_call_at_a_time(server: MCPServer) -> None:
    running = most = expected = 0
    together = asyncio.Event()

    async def meet() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == expected:
            together.set()
        await asyncio.wait_for(together.wait(), 60)
        running -= 1

    server.register_tool(ToolDefinition(name="meet"), meet)
    for parallel, expected in ((False, 1), (True, 3)):
        most, together = 0, asyncio.Event()
        with MCPClient(Scripted([ToolCall("", "meet", {})] * 3, "Done.")) as client:
            client.connect_to_server(server)
            client.ask("Go", parallel=parallel)
        assert most == expected


def test_ask_needs_a_model_and_has_an_async_twin(server: MCPServer) -> None:
    with pytest.raises(SetupError, match="ask needs a model"):
        MCPClient(object()).ask("hello")
    with MCPClient(Scripted("Hello.")) as client:
        client.connect_to_server(server)
        assert asyncio.run(client.ask_async("hello", max_steps=2)).text == "Hello."


def test_the_client_loads_no_sdk_until_a_server_is_elsewhere() -> None:
    code = "import sys, agent3; agent3.MCPClient(); print(any(one in sys.modules for one in ('mcp', 'mcp_types')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=True)
    assert done.stdout == "False\n"
