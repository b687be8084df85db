"""Several agents as one: fan out, join, dependencies, compensation, and all of it over kill -9."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent3 import AgentCard, AgentExecutor, Coordinator
from agent3.errors import CallTimeout, TargetError, ValidationError
from agent3.protocols.a2a.agents.coordination import Undo, step


class Town:
    """A coordinator and three agents that write down what they did."""

    def __init__(self) -> None:
        self.did: list[str] = []
        self.broken: set[str] = set()
        self.agents: dict[str, AgentExecutor] = {}
        self.executor = AgentExecutor(AgentCard(agent_id=f"agency-{uuid.uuid4()}", name="Agency"))
        for name in ("flight", "hotel", "car"):
            agent = AgentExecutor(AgentCard(agent_id=f"{name}-{uuid.uuid4()}", name=name))
            agent.register_capability("book", self._does(name, "book"))
            agent.register_capability("cancel", self._does(name, "cancel"))
            agent.start()
            self.agents[name] = agent
        self.coordinator = Coordinator(self.executor)

    def _does(self, name: str, what: str) -> Any:
        def do(day: int = 0, ref: str = "") -> dict[str, Any]:
            if f"{name} {what}" in self.broken:
                raise RuntimeError(f"{name} cannot {what}")
            self.did.append(f"{name} {what}{' ' + ref if ref else ''}")
            return {"ref": f"{name}-{day}", "day": day}

        return do

    def step(self, name: str, content: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
        options: dict[str, Any] = {"undo": Undo("cancel", {"ref": f"${{{name}.ref}}"}), "timeout": 60, **more}
        return step(name, self.agents[name].card.agent_id, "book", content, **options)

    def lose_patience(self, patch: pytest.MonkeyPatch, method: str, unanswered: Callable[[str, str], bool]) -> None:
        """Have the agency wait only a moment for what is not answered, and for everything else as long as it takes."""
        ask = getattr(self.executor, method)

        async def ask_briefly(agent: str, capability: str, content: Any, timeout: float, *more: Any) -> Any:
            return await ask(agent, capability, content, 0.1 if unanswered(agent, capability) else timeout, *more)

        patch.setattr(self.executor, method, ask_briefly)

    def close(self) -> None:
        self.coordinator.close()
        for agent in (self.executor, *self.agents.values()):
            agent.close()


@pytest.fixture
def town() -> Iterator[Town]:
    made = Town()
    yield made
    made.close()


@pytest.mark.requirement("RF-013-33")
def test_steps_fan_out_join_and_feed_one_another(town: Town) -> None:
    plan = [
        town.step("flight", {"day": 3}),
        town.step("hotel", {"day": "${flight.day}"}),
        town.step("car", {"day": "${flight.day}", "ref": "${hotel.ref}"}),
    ]
    outcome = town.coordinator.run(plan)
    assert outcome.status == "success"
    assert outcome.result("car") == {"ref": "car-3", "day": 3}
    assert town.did == ["flight book", "hotel book", "car book hotel-3"]
    with pytest.raises(TargetError, match="not in the plan"):
        outcome.result("boat")


@pytest.mark.requirement("RF-013-33")
def test_steps_that_wait_for_nothing_run_at_the_same_time(town: Town) -> None:
    both = threading.Barrier(2, timeout=60)
    for name in ("flight", "hotel"):
        town.agents[name].register_capability("meet", both.wait)
    steps = [step(name, town.agents[name].card.agent_id, "meet", timeout=60) for name in ("flight", "hotel")]
    outcome = town.coordinator.run(steps)
    assert outcome.status == "success"
    assert {outcome.result("flight"), outcome.result("hotel")} == {0, 1}


@pytest.mark.requirement("RF-013-33")
def test_when_one_fails_what_was_done_is_taken_back_the_last_first(town: Town) -> None:
    town.broken.add("car book")
    plan = [town.step("flight", {"day": 3}), town.step("hotel", after=["flight"]), town.step("car", after=["hotel"])]
    outcome = town.coordinator.run(plan)
    assert (outcome.status, outcome.undone, outcome.stuck) == ("compensated", ["hotel", "flight"], [])
    assert town.did == ["flight book", "hotel book", "hotel cancel hotel-0", "flight cancel flight-3"]
    assert [item.status for item in outcome.steps] == ["success", "success", "error"]
    assert "car cannot book" in (outcome.steps[2].error or {})["message"]
    with pytest.raises(TargetError, match="'car' has no result: error"):
        outcome.result("car")


def test_what_has_nothing_to_take_back_has_just_failed_and_what_cannot_be_is_named(town: Town) -> None:
    town.broken.add("flight book")
    outcome = town.coordinator.run([town.step("flight"), town.step("hotel", after=["flight"])])
    assert (outcome.status, [item.status for item in outcome.steps], town.did) == ("failed", ["error", "skipped"], [])
    town.broken = {"hotel book", "flight cancel"}
    outcome = town.coordinator.run([town.step("flight"), town.step("hotel", after=["flight"])])
    assert (outcome.status, outcome.undone, outcome.stuck) == ("stuck", [], ["flight"])


def test_a_step_that_nobody_answers_is_taken_back_too(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    hotel = town.agents["hotel"]
    hotel.register_capability("slow", lambda: gate.wait(60))
    town.lose_patience(monkeypatch, "ask_once", lambda agent, capability: capability == "slow")
    slow = step("hotel", hotel.card.agent_id, "slow", timeout=60, undo=Undo("cancel", {"ref": "unsure"}))
    outcome = town.coordinator.run([slow])
    gate.set()
    assert (outcome.status, outcome.undone, town.did) == ("compensated", ["hotel"], ["hotel cancel unsure"])


def test_a_plan_that_cannot_be_run_is_refused_before_anything_is_done(town: Town) -> None:
    for wrong, said in [
        ([], "1 to 200 steps"),
        ([{"id": "a"}], "must name its agent"),
        ([town.step("hotel", {"day": "${nobody.day}"})], "depends on 'nobody'"),
        ([town.step("hotel", after=["car"]), town.step("car", after=["hotel"])], "depend on one another"),
    ]:
        with pytest.raises(ValidationError, match=said):
            town.coordinator.run(wrong)
    assert town.did == []


@pytest.mark.requirement("RF-013-33")
def test_one_question_goes_to_many_and_the_answers_come_together(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    town.lose_patience(monkeypatch, "ask", lambda agent, capability: agent == "nobody")
    names = [agent.card.agent_id for agent in town.agents.values()]
    town.broken.add("hotel book")
    outcome = town.coordinator.ask_all([*names, "nobody"], "book", {"day": 2}, timeout=60)
    assert [outcome[name]["status"] for name in names] == ["success", "error", "success"]
    assert outcome["nobody"]["error"]["code"] == "timeout"
    monkeypatch.undo()
    enough = town.coordinator.ask_all([*names, "nobody"], "book", enough=2, timeout=60)
    assert sum(answer["status"] == "success" for answer in enough.values()) == 2
    assert "nobody" not in enough
    with pytest.raises(ValidationError):
        town.coordinator.ask_all(names, "book", enough=9)


def test_a_plan_is_known_by_its_key_and_goes_on_when_nobody_waits(town: Town) -> None:
    gate = threading.Event()

    def wait() -> str:
        assert gate.wait(60)
        town.did.append("waited")
        return "done"

    hotel = town.agents["hotel"]
    hotel.register_capability("wait", wait)
    plan = [step("a", hotel.card.agent_id, "wait", timeout=60)]
    with pytest.raises(CallTimeout, match="continues as job"):
        town.coordinator.run(plan, key="trip", timeout=0.05)
    gate.set()
    assert town.coordinator.run(plan, key="trip", timeout=60).result("a") == "done"
    assert town.coordinator.run(plan, key="trip").result("a") == "done"
    assert town.did == ["waited"]


PLAN = """
import json, sys, threading
from pathlib import Path
from agent3 import AgentCard, AgentExecutor, Coordinator
from agent3.protocols.a2a.agents.coordination import step
from agent3.protocols.functions.standalone import Standalone
from agent3.queue import Rules
from agent3.settings import Limits, Settings, Storage

folder, hold = Path(sys.argv[1]), sys.argv[2] == "hold"
core = Standalone(Settings(storage=Storage(url=f"sqlite:///{folder}/house.db"), limits=Limits(per_minute=0)))

def did(what):
    with (folder / "did").open("a") as file:
        file.write(what + "\\n")

def agent(name):
    made = AgentExecutor(AgentCard(agent_id=name, name=name), core=core, rules=Rules(lease=3.0))
    def book():
        if name == "hotel" and hold:
            print("holding", flush=True)
            threading.Event().wait()
        if name == "car":
            did("car refused")
            raise RuntimeError("no cars")
        did(f"{name} book")
        return name
    def cancel():
        did(f"{name} cancel")
    made.register_capability("book", book, idempotent=True)
    made.register_capability("cancel", cancel, idempotent=True)
    return made

agents = [agent(name) for name in ("flight", "hotel", "car")]
agency = AgentExecutor(AgentCard(agent_id="agency", name="Agency"), core=core)
coordinator = Coordinator(agency)
for each in agents:
    each.start()
plan = [step("flight", "flight", "book", undo="cancel", timeout=60),
        step("hotel", "hotel", "book", after=["flight"], undo="cancel", timeout=60),
        step("car", "car", "book", after=["hotel"], timeout=60)]
told = coordinator.run(plan, key="trip 7", timeout=60)
print(json.dumps({"status": told.status, "undone": told.undone}), flush=True)
for each in (*agents, agency):
    each.close()
core.close()
"""


@pytest.mark.requirement("RF-013-33", "RF-013-36")
def test_a_plan_goes_on_after_kill_9_and_does_nothing_twice(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PLAN, str(tmp_path)]
    with subprocess.Popen([*command, "hold"], stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "holding\n"
        first.kill()
    assert (tmp_path / "did").read_text() == "flight book\n"
    done = subprocess.run([*command, "go"], stdout=subprocess.PIPE, text=True, timeout=180, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == {"status": "compensated", "undone": ["hotel", "flight"]}
    what = (tmp_path / "did").read_text().splitlines()
    assert what == ["flight book", "hotel book", "car refused", "hotel cancel", "flight cancel"]
