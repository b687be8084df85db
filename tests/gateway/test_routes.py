"""Capabilities that stand in for others, across protocols: defined, listed, taken, allowed and told."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.responses import JSONResponse

from agent3.directory.stand_ins import Definition, find_misfit, translate
from agent3.errors import AccessError, Agent3Error, CapabilityNotFound, NotFound, Unavailable, ValidationError
from agent3.gateway import Caller, CallRequest, response
from agent3.gateway.routes import RouteBook
from agent3.model import LOCAL, Capability, Done, Failed, Hints, Needs, Outcome, Price, Principal, own_routes, value_of
from agent3.protocols.functions import Context, LocalAgent
from agent3.settings import Calls, Limits, Rule, Settings, StandInRoute
from tests.support.gateway import Hosted, hosted, run_agent3
from tests.support.registration import add, remove, renew
from tests.support.services import Service, serving

FAST = Calls(retries=0, breaker_failures=2, breaker_seconds=60.0)


class Weather:
    """A service with an OpenAPI document that can be told to fail, and what it did."""

    def __init__(self) -> None:
        self.status = 200
        self.done: list[str] = []
        self.app = FastAPI(title="Weather")

        @self.app.get("/forecast", operation_id="forecast")
        def forecast(place: str, days: int = 1) -> Any:
            self.done.append(place)
            return self.answer({"from": "service", "place": place, "days": days})

        @self.app.post("/report", operation_id="report")
        def report(place: str) -> Any:
            self.done.append(place)
            return self.answer({"from": "service", "place": place})

    def answer(self, body: Any) -> Any:
        return body if self.status == 200 else JSONResponse({"detail": "closed"}, self.status)


def meteo(log: list[Any] | None = None) -> LocalAgent:
    agent = LocalAgent("meteo", description="Another service, in Python.")
    done = log if log is not None else []

    @agent.capability(read_only=True, price=Price(call=0.25))
    def outlook(city: str, days: int = 1) -> dict[str, Any]:
        """The weather to come."""
        done.append(city)
        return {"from": "python", "city": city, "days": days}

    @agent.capability
    def write(city: str) -> dict[str, Any]:
        """Write a report."""
        done.append(city)
        return {"from": "python", "city": city}

    @agent.capability(read_only=True)
    def numbers(city: str) -> int:
        """A number, and no object."""
        return len(city)

    return agent


@pytest.fixture
def weather() -> Iterator[tuple[Weather, Service]]:
    made = Weather()
    with serving(made.app) as service:
        yield made, service


def call(
    made: Hosted, agent: str, capability: str, caller: Principal = LOCAL, key: str | None = None, **given: Any
) -> Any:
    request = CallRequest(agent=agent, capability=capability, input=given, key=key)
    return made.run(made.server.gateway.call(Caller(caller), request))


def told(outcome: Outcome) -> dict[str, Any]:
    return response(outcome, 0.0)


def define(made: Hosted, capability: str, also: str, output: str | None = None, **names: str) -> dict[str, Any]:
    body: dict[str, Any] = {"capability": capability, "also": also, "map": names}
    if output:
        body["output"] = output
    return made.run(RouteBook(made.server.gateway).put(Caller(LOCAL), body))  # type: ignore[no-any-return]


def test_a_function_answers_for_a_service_that_is_down_and_the_answer_says_so(
    tmp_path: Path, weather: tuple[Weather, Service]
) -> None:
    shop, service = weather
    with hosted(tmp_path, [meteo()], Settings(calls=FAST)) as made:
        made.run(add(made.server, service.url))
        define(made, "weather.forecast", "meteo.outlook", city="place")
        first = told(call(made, "weather", "forecast", place="Rome"))
        assert first["result"]["from"] == "service"
        assert first["metadata"]["route"] == {"agent": "weather", "capability": "forecast", "protocol": "openapi"}
        assert "fallback" not in first["metadata"]
        shop.status = 503
        for code in ("unavailable", "unavailable", "circuit_open"):
            body = told(call(made, "weather", "forecast", place="Rome", days=3))
            assert body["result"] == {"from": "python", "city": "Rome", "days": 3}
            assert body["metadata"]["route"] == {"agent": "meteo", "capability": "outlook", "protocol": "local"}
            (failed,) = body["metadata"]["fallback"]
            assert (failed["agent"], failed["code"]) == ("weather", code)
            assert body["metadata"]["cost"] == 0.25, "the price of the one that answered"
        rows = made.rows("calls")
        assert "earlier routes: weather/forecast (openapi) failed: circuit_open" in rows[-1]["message"]
        assert [(row["agent"], row["hops"], row["route"].partition(":")[0]) for row in rows[-2:]] == [
            ("weather", 1, "local"),
            ("weather", 1, "local"),
        ]
        shown = made.get("/v1/agents/weather").json["capabilities"][0]
        assert [(one["agent"], one["state"], one["serves"]) for one in shown["routes"]] == [
            ("weather", "paused", False),
            ("meteo", "ready", True),
        ]
        assert shown["protocols"] == ["openapi"]


def test_the_stand_in_that_served_gets_the_credit_and_not_who_was_down(
    tmp_path: Path, weather: tuple[Weather, Service]
) -> None:
    shop, service = weather
    alice = Principal("alice")
    with hosted(tmp_path, [meteo()], Settings(calls=FAST)) as made:
        made.run(add(made.server, service.url))
        define(made, "weather.forecast", "meteo.outlook", city="place")
        shop.status = 503
        assert told(call(made, "weather", "forecast", alice, place="Rome"))["result"]["from"] == "python"
        assert [(row["agent"], row["served_by"]) for row in made.rows("calls")] == [("weather", "meteo")]
        gateway = made.server.gateway
        with pytest.raises(AccessError, match="has called 'weather'"):
            made.run(gateway.feedback(Caller(alice), "weather", 5))
        made.run(gateway.feedback(Caller(alice), "meteo", 5))
        shop.status = 200
        call(made, "weather", "forecast", Principal("bob"), place="Rome")
        assert made.rows("calls")[-1]["served_by"] is None


def test_a_service_answers_for_a_function_and_renewing_either_keeps_both(
    tmp_path: Path, weather: tuple[Weather, Service]
) -> None:
    _, service = weather
    down = LocalAgent("down", description="It is never there.")

    @down.capability(read_only=True)
    def outlook(city: str) -> dict[str, Any]:
        """The weather to come."""
        raise Unavailable("not today")

    with hosted(tmp_path, [down], Settings(calls=FAST)) as made:
        made.run(add(made.server, service.url))
        define(made, "down.outlook", "weather.forecast", place="city")
        define(made, "weather.forecast", "down.outlook", city="place")
        assert told(call(made, "down", "outlook", city="Oslo"))["result"]["place"] == "Oslo"
        changed = made.run(renew(made.server, service.url))
        assert changed == [], "its own document is the same, and that of nobody else is taken for it"
        agent = made.run(made.server.directory.get("weather"))
        forecast = agent.capability("forecast")
        assert [route.protocol for route in forecast.routes] == ["openapi", "local"]
        assert [route.protocol for route in own_routes(forecast)] == ["openapi"]
        made.run(remove(made.server, "weather"))
        assert [one.protocol for one in made.run(made.server.directory.get("down")).capabilities[0].routes] == ["local"]
        assert made.get("/v1/routes").json["routes"] == []


def test_nothing_is_done_by_a_second_agent_that_the_first_may_have_done(
    tmp_path: Path, weather: tuple[Weather, Service]
) -> None:
    shop, service = weather
    log: list[Any] = []
    with hosted(tmp_path, [meteo(log)], Settings(calls=FAST)) as made:
        made.run(add(made.server, service.url))
        define(made, "weather.report", "meteo.write", city="place")
        shop.status = 503
        for key in (None, "the-same-key"):
            failed = call(made, "weather", "report", key=key, place="Rome")
            assert isinstance(failed, Failed)
            assert failed.code == "unavailable"
        assert (len(shop.done), log) == (2, [])
        # The circuit is open now: the service is not asked, so the other may be.
        assert told(call(made, "weather", "report", place="Rome"))["result"]["from"] == "python"
        assert (len(shop.done), log) == (2, ["Rome"])


def test_changing_routes_is_metered_as_reading_them_is(tmp_path: Path) -> None:
    with hosted(tmp_path, [], Settings(limits=Limits(per_minute=1, burst=1))) as made:
        book = RouteBook(made.server.gateway)

        async def change(name: str) -> str:
            caller = Caller(Principal(name))
            try:
                await (book.put(caller, {}) if name == "put" else book.remove(caller, "x.y"))
            except AccessError as error:
                return error.code
            return ""

        for name in ("put", "remove"):
            codes = [made.run(change(name)) for _ in range(100)]
            assert (codes[0], codes[-1]) == ("forbidden", "rate_limited")


def test_who_may_not_call_the_stand_in_does_not_reach_it_nor_see_it(
    tmp_path: Path, weather: tuple[Weather, Service]
) -> None:
    shop, service = weather
    rules = (
        Rule(effect="allow", principal="boss"),
        Rule(effect="deny", agent="meteo"),
        Rule(effect="allow"),
    )
    settings = Settings(calls=FAST, rules=(Rule(effect="allow", principal="local"), *rules))
    guest, boss = Principal("guest"), Principal("boss")
    log: list[Any] = []
    with hosted(tmp_path, [meteo(log)], settings) as made:
        made.run(add(made.server, service.url))
        define(made, "weather.forecast", "meteo.outlook", city="place")
        shop.status = 503
        refused = call(made, "weather", "forecast", guest, place="Rome")
        assert isinstance(refused, Failed)
        assert (refused.code, log) == ("unavailable", [])
        assert "meteo" not in str(told(refused))
        book, select = RouteBook(made.server.gateway), made.server.gateway.select
        assert made.run(book.list(Caller(guest)))["routes"] == []
        assert "meteo" not in str(made.run(select(Caller(guest), "weather")))
        assert "meteo" not in str(made.run(made.server.gateway.invoke(Caller(guest), "weather")))
        with pytest.raises(Agent3Error, match="operator"):
            made.run(book.put(Caller(boss), {"capability": "weather.forecast", "also": "meteo.outlook"}))
        assert told(call(made, "weather", "forecast", boss, place="Rome"))["result"]["from"] == "python"
        assert len(made.run(book.list(Caller(boss)))["routes"]) == 1


def test_asking_for_routes_says_nothing_of_agents_that_may_not_be_seen(tmp_path: Path) -> None:
    settings = Settings(rules=(Rule(effect="allow", principal="local"), Rule(effect="deny", agent="meteo")))
    with hosted(tmp_path, [meteo()], settings) as made:
        book = RouteBook(made.server.gateway)
        told = set()
        for name in ("meteo.outlook", "meteo.outlooc", "meteor.outlook", "nobody.outlook"):
            with pytest.raises(NotFound) as raised:
                made.run(book.list(Caller(Principal("guest")), name))
            told.add((raised.value.code, raised.value.message.replace(repr(name), "it"), str(raised.value.data)))
        assert len(told) == 1
        with pytest.raises(CapabilityNotFound, match="Did you mean"):
            made.run(book.list(Caller(LOCAL), "meteor.outlook"))


def test_the_stand_in_has_its_own_ceiling(tmp_path: Path, weather: tuple[Weather, Service]) -> None:
    shop, service = weather
    settings = Settings(calls=FAST, limits=Limits(concurrent=1))
    with hosted(tmp_path, [meteo()], settings) as made:
        made.run(add(made.server, service.url))
        define(made, "weather.forecast", "meteo.outlook", city="place")
        shop.status = 503
        ceiling = made.server.core.parts.ceiling
        assert ceiling.enter("meteo")
        failed = call(made, "weather", "forecast", place="Rome")
        assert isinstance(failed, Failed)
        assert failed.code == "unavailable"
        assert [one["code"] for one in failed.data["routes"]] == ["unavailable", "rate_limited"]
        ceiling.leave("meteo")
        assert isinstance(call(made, "weather", "forecast", place="Rome"), Done)
        assert ceiling.enter("meteo"), "its room is given back"


def test_what_a_stand_in_answers_must_be_what_was_promised(tmp_path: Path) -> None:
    agent = LocalAgent("first", description="Promises an object.")

    def count(city: str) -> dict[str, int]:
        """Promises numbers by name."""
        raise Unavailable("not today")

    agent.add(count, read_only=True, output_schema={"type": "object", "additionalProperties": {"type": "integer"}})

    with hosted(tmp_path, [agent, meteo()], Settings(calls=FAST)) as made:
        define(made, "first.count", "meteo.numbers")
        failed = call(made, "first", "count", city="Rome")
        assert isinstance(failed, Failed)
        assert failed.code == "malformed_response"
        define(made, "first.count", "meteo.numbers", "letters")
        assert value_of(call(made, "first", "count", city="Rome").parts) == {"letters": 4}


def test_a_question_of_a_stand_in_is_answered_in_its_own_conversation(
    tmp_path: Path, weather: tuple[Weather, Service]
) -> None:
    shop, service = weather
    asking = LocalAgent("asking", description="Asks back.")

    @asking.capability(read_only=True)
    async def outlook(ctx: Context, city: str, days: int = 1) -> dict[str, Any]:
        """The weather to come."""
        return {"from": "asking", "city": city, "unit": await ctx.ask("Which unit?", str)}

    with hosted(tmp_path, [asking], Settings(calls=FAST)) as made:
        made.run(add(made.server, service.url))
        define(made, "weather.forecast", "asking.outlook", city="place")
        shop.status = 503
        asked = call(made, "weather", "forecast", place="Rome")
        assert isinstance(asked, Needs), asked
        assert asked.job is not None
        shop.status = 200
        done = made.run(made.server.gateway.reply(Caller(LOCAL), asked.job, "celsius"))
        assert isinstance(done, Done), done
        assert value_of(done.parts) == {"from": "asking", "city": "Rome", "unit": "celsius"}
        assert len(shop.done) == 1, "the conversation stays where it was begun"


def test_routes_stand_in_the_settings_too_and_several_are_asked_in_order(
    tmp_path: Path, weather: tuple[Weather, Service]
) -> None:
    shop, service = weather
    routes = (
        StandInRoute("weather.forecast", "gone.outlook"),
        StandInRoute("weather.forecast", "sick.outlook", {"city": "place"}),
        StandInRoute("weather.forecast", "meteo.outlook", {"city": "place"}),
    )
    sick = LocalAgent("sick", description="Always down.")

    @sick.capability(read_only=True)
    def outlook(city: str, days: int = 1) -> dict[str, Any]:
        """The weather to come."""
        raise Unavailable("not today")

    with hosted(tmp_path, [sick, meteo()], Settings(calls=FAST, routes=routes)) as made:
        made.run(add(made.server, service.url))
        shop.status = 503
        body = told(call(made, "weather", "forecast", place="Rome"))
        assert body["metadata"]["route"]["agent"] == "meteo"
        assert [one["agent"] for one in body["metadata"]["fallback"]] == ["weather", "sick"]
        listed = made.get("/v1/routes").json["routes"]
        assert [(one["also"], one["state"], one["origin"]) for one in listed] == [
            ("gone.outlook", "unused", "settings"),
            ("sick.outlook", "ready", "settings"),
            ("meteo.outlook", "ready", "settings"),
        ]
        refused = made.ask("DELETE", "/v1/routes?capability=weather.forecast&also=meteo.outlook")
        assert (refused.status, "agent3.toml" in refused.error["message"]) == (409, True)


def test_rest_defines_lists_and_removes_routes(tmp_path: Path) -> None:
    other = LocalAgent("other", description="Likewise.")

    @other.capability(read_only=True)
    def outlook(city: str, days: int = 1) -> dict[str, Any]:
        """The weather to come."""
        return {}

    with hosted(tmp_path, [meteo(), other]) as made:
        wish = {"capability": "meteo.outlook", "also": "other.outlook"}
        assert made.ask("PUT", "/v1/routes", wish).json["state"] == "ready"
        assert made.ask("PUT", "/v1/routes", wish).status == 200
        assert made.get("/v1/routes").json["count"] == 1
        assert made.get("/v1/routes?capability=other.outlook").json["count"] == 0
        for body, status in (
            ({"capability": "meteo.outlook"}, 422),
            ({"capability": "meteo.outlook", "also": "other.look"}, 404),
            ({"capability": "meteo.outlook", "also": "meteo.outlook"}, 422),
            ({**wish, "map": {"town": "city"}}, 422),
        ):
            assert made.ask("PUT", "/v1/routes", body).status == status, body
        assert made.ask("DELETE", "/v1/routes?capability=meteo.outlook&also=other.outlook").json == {"removed": 1}
        assert made.ask("DELETE", "/v1/routes?capability=meteo.outlook").status == 404
        assert made.ask("DELETE", "/v1/routes").status == 400


def test_the_command_defines_lists_and_removes_routes(tmp_path: Path, weather: tuple[Weather, Service]) -> None:
    _, service = weather
    for name in ("one", "two"):
        assert run_agent3(tmp_path, "add", service.url, "--name", name).returncode == 0
    done = run_agent3(tmp_path, "route", "one.forecast", "--also", "two.forecast")
    assert (done.returncode, done.stdout) == (0, "two.forecast stands in for one.forecast when that is down.\n"), done
    assert "two.forecast" in run_agent3(tmp_path, "route").stdout
    assert "route two.forecast (openapi): ready" in run_agent3(tmp_path, "show", "one").stdout
    wrong = run_agent3(tmp_path, "route", "one.forecast", "--also", "two.report", "--map", "place=town")
    assert (wrong.returncode, "has no input 'town'" in wrong.stderr) == (2, True), wrong
    removed = run_agent3(tmp_path, "route", "one.forecast", "--remove")
    assert removed.stdout == "Removed 1 route.\n"
    assert "No stand-ins" in run_agent3(tmp_path, "route").stdout


def capability(properties: dict[str, Any], required: list[str], **more: Any) -> Capability:
    schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return Capability(name=more.pop("name", "ours"), input_schema=schema, **more)


STRING, NUMBER, INTEGER = {"type": "string"}, {"type": "number"}, {"type": "integer"}


@pytest.mark.parametrize(
    ("ours", "theirs", "names", "why"),
    [
        (({"a": STRING}, ["a"]), ({"a": STRING}, ["a"]), {}, None),
        (({"a": STRING}, ["a"]), ({"b": STRING}, ["b"]), {"b": "a"}, None),
        (({"a": INTEGER}, ["a"]), ({"a": NUMBER}, ["a"]), {}, None),
        (({"a": NUMBER}, ["a"]), ({"a": INTEGER}, ["a"]), {}, "are incompatible"),
        (({"a": STRING}, ["a"]), ({"b": STRING}, ["b"]), {}, "needs 'b'"),
        (({"a": STRING}, []), ({"a": STRING}, ["a"]), {}, "is optional"),
        (({"a": {"type": "string", "default": "x"}}, []), ({"a": STRING}, ["a"]), {}, None),
        (({"a": STRING, "b": STRING}, ["a", "b"]), ({"a": STRING}, ["a"]), {}, "'b', and theirs has no input for it"),
        (({"a": STRING, "b": STRING}, ["a"]), ({"a": STRING}, ["a"]), {}, None),
        (({"a": STRING}, ["a"]), ({"a": STRING}, ["a"]), {"a": "x"}, "ours has no input 'x'"),
        (({"a": STRING}, ["a"]), ({"a": STRING}, ["a"]), {"x": "a"}, "theirs has no input 'x'"),
        (({"a": {"enum": ["x", "y"]}}, ["a"]), ({"a": {"enum": ["x"]}}, ["a"]), {}, "'y' is not one of its choices"),
        (
            ({"a": STRING, "b": STRING}, ["a", "b"]),
            ({"a": STRING, "b": STRING}, ["a", "b"]),
            {"a": "b", "b": "a"},
            None,
        ),
    ],
)
def test_two_capabilities_fit_where_nothing_is_missing_or_lost(
    ours: Any, theirs: Any, names: dict[str, str], why: str | None
) -> None:
    found = find_misfit(capability(*ours), capability(*theirs, name="theirs"), names, None)
    assert (found is None) == (why is None), found
    assert why is None or why in str(found)


def test_input_is_translated_and_nothing_of_it_is_dropped() -> None:
    theirs = capability({"city": STRING, "days": INTEGER}, ["city"], name="theirs")
    assert translate({"place": "Rome", "days": 3, "note": None}, {"city": "place"}, theirs) == {
        "city": "Rome",
        "days": 3,
    }
    assert translate({"city": "a", "days": "b"}, {"city": "days", "days": "city"}, theirs) == {"city": "b", "days": "a"}
    for given in ({"place": "Rome", "units": "metric"}, {"place": "Rome", "city": "Oslo"}):
        with pytest.raises(ValidationError, match="has no input for"):
            translate(given, {"city": "place"}, theirs)


def test_a_dotted_name_means_what_there_is(tmp_path: Path) -> None:
    dotted = LocalAgent("a.b", description="Has a dot.")

    @dotted.capability
    def c() -> int:
        """One."""
        return 1

    with hosted(tmp_path, [dotted, meteo()]) as made:
        routes = made.server.directory.routes
        assert made.run(routes.split_name("a.b.c")) == ("a.b", "c")
        assert made.run(routes.split_name("a.b/c")) == ("a.b", "c")
        with pytest.raises(CapabilityNotFound, match=r"Did you mean meteo\.outlook"):
            made.run(routes.split_name("meteo.outlok"))
        with pytest.raises(CapabilityNotFound, match="does not exist"):
            made.run(routes.split_name("nobody.does"))
        with pytest.raises(ValidationError, match="is not the name of a capability"):
            made.run(routes.split_name("nobody"))


def test_stand_ins_are_bounded_and_a_damaged_one_hurts_no_other(tmp_path: Path) -> None:
    agents = [meteo()]
    for number in range(11):
        agent = LocalAgent(f"other{number}", description="Likewise.")

        @agent.capability(read_only=True)
        def outlook(city: str, days: int = 1) -> dict[str, Any]:
            """The weather to come."""
            return {}

        agents.append(agent)
    with hosted(tmp_path, agents) as made:
        for number in range(10):
            define(made, "meteo.outlook", f"other{number}.outlook")
        with pytest.raises(Agent3Error, match="At most 10"):
            define(made, "meteo.outlook", "other10.outlook")

        async def damage() -> None:
            database = made.server.database
            await database.write(lambda tx: tx.run("UPDATE routes SET body = ? WHERE by_agent = 'other3'", b"{"))
            await made.server.directory.routes.load(None)

        made.run(damage())
        assert made.get("/v1/routes").json["count"] == 9


def test_a_job_is_not_run_again_where_a_stand_in_may_not_be(tmp_path: Path) -> None:
    from agent3.calls.jobs import may_repeat
    from agent3.directory.stand_ins import attach
    from agent3.model import Agent, Route

    route = Route("local", "x")
    safe = Capability(name="read", hints=Hints(read_only=True), routes=(route,))
    unsafe = Capability(name="write", routes=(route,))
    agents = {
        "a": Agent(id="a", name="A", capabilities=(safe,)),
        "b": Agent(id="b", name="B", capabilities=(unsafe, safe)),
    }
    for by, expected in (("read", True), ("write", False)):
        backed = attach(agents["a"], [Definition("a", "read", "b", by)], agents)
        assert may_repeat(backed.capabilities[0]) is expected


def test_two_gateways_see_each_others_routes(tmp_path: Path) -> None:
    from agent3.server.build import build
    from agent3.settings import Storage

    settings = Settings(storage=Storage(url=f"sqlite:///{tmp_path / 'shared.db'}"))

    async def main() -> int:
        async with build(settings, [meteo(), _other()]) as one, build(settings, [meteo(), _other()]) as two:
            await two.directory.get("meteo")
            body = {"capability": "meteo.outlook", "also": "other.outlook"}
            await RouteBook(one.gateway).put(Caller(LOCAL), body)
            async with asyncio.timeout(60):
                while True:
                    found = (await two.directory.get("meteo")).capability("outlook")
                    assert found is not None
                    if len(found.routes) == 2:
                        return len(found.routes)
                    await asyncio.sleep(0.05)

    assert asyncio.run(main()) == 2


def _other() -> LocalAgent:
    other = LocalAgent("other", description="Likewise.")

    @other.capability(read_only=True)
    def outlook(city: str, days: int = 1) -> dict[str, Any]:
        """The weather to come."""
        return {}

    return other
