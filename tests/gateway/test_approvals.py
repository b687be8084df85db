"""Calls that wait for somebody's yes: at the gateway, over a restart, in a second process, and against cheats."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from agent3 import LocalAgent
from agent3.calls.approvals import APPROVE
from agent3.errors import AccessError, Conflict, JobNotFound, NotFound, SetupError
from agent3.gateway import Caller, CallRequest
from agent3.model import Answer, Done, Failed, Needs, Outcome, Part, Principal, Working, value_of
from agent3.observe.metrics import Metrics
from agent3.protocols.functions import Context
from agent3.server.build import Server, build
from agent3.settings import ApprovalRule, Rule, Settings, Storage

BOB = Caller(Principal("bob"), "test")
EVE = Caller(Principal("eve"), "test")
ANN = Caller(Principal("ann", scopes=frozenset({APPROVE})), "test")
OPS = Caller(Principal("ops", scopes=frozenset({"agent3:operate"})), "test")


def run(story: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(story, 100)

    asyncio.run(bounded())


class Bank:
    """An agent that pays, and remembers what it paid."""

    def __init__(self) -> None:
        self.paid: list[float] = []
        self.agent = LocalAgent("Bank")

        @self.agent.capability(consequential=True)
        def pay(amount: float, to: str = "shop") -> str:
            """Pay somebody."""
            self.paid.append(amount)
            return f"paid {amount:g} to {to}"

        @self.agent.capability(read_only=True)
        def balance() -> str:
            """The balance."""
            return "7"


def settings(*rules: ApprovalRule, url: str = "sqlite://") -> Settings:
    return Settings(storage=Storage(url=url), approvals=rules)


DEAR = ApprovalRule(agent="bank", capability="pay", arguments={"amount": "> 100"}, why="It is a lot of money.")


async def pay(server: Server, amount: Any = 500, caller: Caller = BOB, **more: Any) -> Outcome:
    request = CallRequest(agent="bank", capability="pay", input={"amount": amount}, **more)
    return await server.gateway.call(caller, request)


async def end_of(server: Server, job: str | None, caller: Caller = BOB) -> Outcome:
    assert job is not None
    outcome: Outcome = Working()
    while isinstance(outcome, (Working, Needs)):
        outcome = await server.gateway.wait(caller, job, 30)
        if isinstance(outcome, Needs):
            await asyncio.sleep(0.02)
    return outcome


async def waiting(server: Server, caller: Caller = ANN) -> dict[str, Any]:
    (found,) = (await server.gateway.approvals(caller))["approvals"]
    return dict(found)


def test_a_call_that_needs_a_yes_waits_for_it_and_then_runs_once() -> None:
    async def story() -> None:
        bank = Bank()
        async with build(settings(DEAR), [bank.agent]) as server:
            cheap = await pay(server, 20)
            assert isinstance(cheap, Done)
            asked = await pay(server, 500)
            assert isinstance(asked, Needs)
            assert asked.questions[0].by
            assert not asked.questions[0].schema
            assert bank.paid == [20]
            one = await waiting(server)
            assert (one["who"], one["agent"], one["capability"]) == ("bob", "bank", "pay")
            assert one["why"] == "It is a lot of money."
            assert one["until"] > one["asked"]
            assert one["youMayDecide"]
            shown = await server.gateway.approval(ANN, one["id"])
            assert shown["input"] == {"amount": 500}
            decided = await server.gateway.decide(ANN, one["id"], approve=True, reason="fine")
            assert (decided["status"], decided["decidedBy"]) == ("approved", "ann")
            done = await end_of(server, asked.job)
            assert isinstance(done, Done)
            assert value_of(done.parts) == "paid 500 to shop"
            assert bank.paid == [20, 500]
            assert (await server.gateway.approvals(ANN))["approvals"] == []
            with pytest.raises(Conflict, match="already approved"):
                await server.gateway.decide(OPS, one["id"], approve=False)
            await server.core.parts.approvals.settle()
            assert bank.paid == [20, 500]
            assert b'agent3_approvals_total{result="approved"}' in server.core.metrics.render()[0]
            rows = await server.services.database.all("SELECT what, who FROM audit WHERE what = 'call approved'")
            assert [row["who"] for row in rows] == ["ann"]

    run(story())


def test_a_denied_call_is_never_sent_and_its_caller_hears_why() -> None:
    async def story() -> None:
        bank = Bank()
        async with build(settings(DEAR), [bank.agent]) as server:
            asked = await pay(server)
            assert isinstance(asked, Needs)
            await server.gateway.decide(ANN, (await waiting(server))["id"], approve=False, reason="too much")
            ended = await end_of(server, asked.job)
            assert isinstance(ended, Failed)
            assert ended.code == "not_approved"
            assert "denied by ann: too much" in ended.message
            assert bank.paid == []
            rows = await server.services.database.all("SELECT status, code FROM calls WHERE job = ?", asked.job)
            assert ("failed", "not_approved") in [(row["status"], row["code"]) for row in rows]

    run(story())


@pytest.mark.parametrize("said", ["yes", True, {"approval": True}, {"approval": {"action": "accept", "data": True}}])
def test_the_caller_cannot_approve_its_own_call_by_answering(said: Any) -> None:
    async def story() -> None:
        bank = Bank()
        async with build(settings(DEAR), [bank.agent]) as server:
            asked = await pay(server)
            assert isinstance(asked, Needs)
            assert asked.job
            given = said if isinstance(said, (str, dict)) else {"approval": said}
            again = await server.gateway.reply(BOB, asked.job, given)
            assert isinstance(again, Needs)
            assert bank.paid == []
            with pytest.raises(NotFound):  # it sees what it asked for, and that alone
                await server.gateway.approval(EVE, (await waiting(server))["id"])
            with pytest.raises(AccessError, match="may not approve it"):
                await server.gateway.decide(BOB, (await waiting(server))["id"], approve=True)
            with pytest.raises(NotFound):
                await server.gateway.decide(EVE, (await waiting(server))["id"], approve=True)
            with pytest.raises(JobNotFound):
                await server.gateway.reply(EVE, asked.job, "yes")
            assert bank.paid == []
            # It still waits, and goes on with a yes of somebody who may give it.
            await server.gateway.decide(OPS, (await waiting(server))["id"], approve=True)
            assert isinstance(await end_of(server, asked.job), Done)

    run(story())


def test_even_an_operator_does_not_approve_its_own_call_unless_the_rule_says_so() -> None:
    async def story() -> None:
        bank = Bank()
        async with build(settings(DEAR), [bank.agent]) as server:
            await pay(server, caller=OPS)
            with pytest.raises(AccessError, match="made this call"):
                await server.gateway.decide(OPS, (await waiting(server, OPS))["id"], approve=True)
        own = ApprovalRule(capability="pay", itself=True)
        async with build(settings(own), [bank.agent]) as server:
            asked = await pay(server, 3)
            assert isinstance(asked, Needs)
            assert asked.questions[0].schema == {"type": "boolean"}
            assert '"amount":3' in asked.questions[0].text, "one says yes to something that one sees"
            assert asked.job
            done = await server.gateway.reply(BOB, asked.job, "yes")
            assert isinstance(done, Done)
            assert bank.paid == [3]
            refused = await pay(server, 4)
            assert isinstance(refused, Needs)
            assert refused.job
            no = await server.gateway.reply(BOB, refused.job, "no")
            assert isinstance(no, Failed)
            assert no.code == "declined"
            assert bank.paid == [3]

    run(story())


def test_an_approver_answers_the_job_through_the_same_verb_as_its_caller() -> None:
    async def story() -> None:
        bank = Bank()
        async with build(settings(DEAR), [bank.agent]) as server:
            asked = await pay(server)
            assert isinstance(asked, Needs)
            assert asked.job
            told = await server.gateway.reply(ANN, asked.job, "yes")
            assert isinstance(told, Done)
            assert isinstance(await end_of(server, asked.job), Done)
            assert bank.paid == [500]

    run(story())


def test_of_many_answers_at_once_one_counts() -> None:
    async def story() -> None:
        bank = Bank()
        async with build(settings(DEAR), [bank.agent]) as server:
            asked = await pay(server)
            assert isinstance(asked, Needs)
            one = (await waiting(server))["id"]
            found = await asyncio.gather(
                *(server.gateway.decide(who, one, approve=yes) for who in (ANN, OPS) for yes in (True, False) * 3),
                *(server.gateway.answer(BOB, asked.job or "", {"approval": Answer(data=True)}) for _ in range(3)),
                return_exceptions=True,
            )
            decided = [one for one in found if isinstance(one, dict)]
            assert len(decided) == 1
            ended = await end_of(server, asked.job)
            assert bank.paid == ([500] if decided[0]["status"] == "approved" else [])
            assert isinstance(ended, Done if bank.paid else Failed)

    run(story())


def test_a_decision_outlives_a_restart_and_may_come_from_another_process(tmp_path: Path) -> None:
    async def story() -> None:
        url = f"sqlite:///{tmp_path / 'a.db'}"
        bank = Bank()
        async with build(settings(DEAR, url=url), [bank.agent]) as server:
            asked = await pay(server)
            assert isinstance(asked, Needs)
        # Decided while no gateway runs that has the agent, and with the rule gone meanwhile.
        async with build(settings(url=url), take_over=False) as other:
            await other.gateway.decide(ANN, (await waiting(other))["id"], approve=True)
            assert bank.paid == []
        async with build(settings(url=url), [bank.agent]) as server:
            assert isinstance(await end_of(server, asked.job), Done)
            assert bank.paid == [500]
            left = await server.services.database.all("SELECT id FROM approvals WHERE settled IS NULL")
            while left:
                await asyncio.sleep(0.05)
                left = await server.services.database.all("SELECT id FROM approvals WHERE settled IS NULL")

    run(story())


def test_what_nobody_approves_in_time_ends_and_a_late_yes_does_nothing() -> None:
    async def story() -> None:
        bank = Bank()
        async with build(settings(ApprovalRule(capability="pay", hours=0.0)), [bank.agent]) as server:
            asked = await pay(server, 5)
            assert isinstance(asked, Needs)
            (late,) = (await server.gateway.approvals(ANN, waiting=False))["approvals"]
            assert late["status"] == "expired"
            with pytest.raises(Conflict):
                await server.gateway.decide(ANN, late["id"], approve=True)
            ended = await end_of(server, asked.job)
            assert isinstance(ended, Failed)
            assert ended.code == "not_approved"
            assert bank.paid == []

    run(story())


def test_a_job_whose_caller_left_is_cancelled_unless_the_gateway_is_what_stops() -> None:
    async def story() -> None:
        async with build(settings(DEAR), [Bank().agent]) as server:
            asked = await pay(server)
            assert isinstance(asked, Needs)
            assert asked.job
            ledger = server.core.parts.ledger
            ledger.is_stopping = True
            await server.gateway.give_up(BOB, asked.job)
            assert len((await server.gateway.approvals(ANN))["approvals"]) == 1
            ledger.is_stopping = False
            await server.gateway.give_up(BOB, asked.job)
            assert (await server.gateway.approvals(ANN))["approvals"] == []

    run(story())


def test_a_cancelled_call_asks_nobody_any_more() -> None:
    async def story() -> None:
        bank = Bank()
        async with build(settings(DEAR), [bank.agent]) as server:
            asked = await pay(server)
            assert isinstance(asked, Needs)
            assert asked.job
            one = await waiting(server)
            await server.gateway.cancel(BOB, asked.job)
            assert (await server.gateway.approvals(ANN))["approvals"] == []
            with pytest.raises(Conflict, match="cancelled or has ended"):
                await server.gateway.decide(ANN, one["id"], approve=True)
            assert bank.paid == []

    run(story())


@pytest.mark.parametrize(("amount", "asks"), [(100, False), (100.01, True), (10**30, True), (-5, False)])
def test_arguments_decide_which_calls_wait(amount: float, asks: bool) -> None:
    async def story() -> None:
        bank = Bank()
        async with build(settings(DEAR), [bank.agent]) as server:
            assert isinstance(await pay(server, amount), Needs if asks else Done)

    run(story())


def test_invalid_input_is_refused_before_anybody_is_asked() -> None:
    async def story() -> None:
        bank = Bank()
        async with build(settings(ApprovalRule(capability="pay")), [bank.agent]) as server:
            refused = await pay(server, "a lot")
            assert isinstance(refused, Failed)
            assert refused.code == "invalid_input"
            assert (await server.gateway.approvals(ANN))["approvals"] == []

    run(story())


def test_a_rule_can_ask_for_everything_that_has_consequences_and_name_who_approves() -> None:
    async def story() -> None:
        bank = Bank()
        rule = ApprovalRule(consequential=True, approvers=("boss-*", "scope:treasury"))
        async with build(settings(rule), [bank.agent]) as server:
            read = await server.gateway.call(BOB, CallRequest(agent="bank", capability="balance"))
            assert isinstance(read, Done)
            asked = await pay(server, 1)
            assert isinstance(asked, Needs)
            assert (await server.gateway.approvals(ANN))["approvals"] == []
            boss = Caller(Principal("boss-1"), "test")
            money = Caller(Principal("carl", scopes=frozenset({"treasury"})), "test")
            one = await waiting(server, boss)
            assert (await waiting(server, money))["id"] == one["id"]
            with pytest.raises(NotFound):
                await server.gateway.decide(ANN, one["id"], approve=True)
            await server.gateway.decide(money, one["id"], approve=True)
            assert isinstance(await end_of(server, asked.job), Done)

    run(story())


def test_tenants_do_not_see_what_the_other_one_waits_for() -> None:
    async def story() -> None:
        bank = Bank()
        async with build(settings(DEAR), [bank.agent]) as server:
            blue = Caller(Principal("b", tenant="blue"), "test")
            red = Caller(Principal("r", scopes=frozenset({APPROVE}), tenant="red"), "test")
            await pay(server, caller=blue)
            assert (await server.gateway.approvals(red))["approvals"] == []
            with pytest.raises(NotFound):
                await server.gateway.decide(red, (await waiting(server))["id"], approve=True)

    run(story())


def test_a_key_and_a_detached_call_wait_as_well() -> None:
    async def story() -> None:
        bank = Bank()
        async with build(settings(DEAR), [bank.agent]) as server:
            for more in ({"key": "k1"}, {"detach": True}):
                asked = await pay(server, **more)
                while isinstance(asked, Working):
                    asked = await server.gateway.wait(BOB, asked.job or "", 30)
                assert isinstance(asked, Needs)
                await server.gateway.decide(ANN, (await waiting(server))["id"], approve=True)
                assert isinstance(await end_of(server, asked.job), Done)
            assert bank.paid == [500, 500]
            assert isinstance(await pay(server, key="k1"), Done)  # repeats the answer
            assert bank.paid == [500, 500]

    run(story())


def test_a_condition_that_cannot_be_decided_stops_the_start() -> None:
    async def story() -> None:
        with pytest.raises(SetupError, match="is not a number"):
            async with build(settings(ApprovalRule(arguments={"amount": "> much"}))):
                pass

    run(story())


@pytest.mark.parametrize("by_rule", [False, True])
def test_words_that_answer_what_was_not_understood_are_judged_as_a_start(by_rule: bool) -> None:
    """The first message is asked about; the second is taken whole, and must not pass by approvals and rules."""

    async def story() -> None:
        sent: list[str] = []
        agent = LocalAgent("Post")

        @agent.capability
        def send_note(message: str, copies: int = 1) -> str:
            """Send a note."""
            sent.append(message)
            return "sent"

        rules = (Rule("deny", arguments={"message": "*bad*"}), Rule("allow")) if by_rule else ()
        approvals = () if by_rule else (ApprovalRule(agent="post"),)
        given = Settings(storage=Storage(url="sqlite://"), approvals=approvals, rules=rules)
        async with build(given, [agent]) as server:
            asked = await server.gateway.call(BOB, CallRequest(agent="post", message="send note 5 7 9"))
            assert isinstance(asked, Needs)
            assert [question.id for question in asked.questions] == ["agent3:again"]
            assert asked.job
            sure = await server.gateway.reply(BOB, asked.job, "something bad")
            assert isinstance(sure, Needs)
            assert [question.id for question in sure.questions] == ["agent3:confirm"]
            then = await server.gateway.reply(BOB, asked.job, "yes")
            assert sent == []
            if by_rule:
                assert isinstance(then, Failed)
                assert then.code == "forbidden"
                return
            assert isinstance(then, Needs)
            assert [question.id for question in then.questions] == ["approval"]
            await server.gateway.decide(ANN, (await waiting(server))["id"], approve=True)
            assert isinstance(await end_of(server, asked.job), Done)
            assert sent == ["something bad"]

    run(story())


def test_who_approves_sees_the_words_and_files_that_go_along() -> None:
    async def story() -> None:
        heard: list[str] = []
        agent = LocalAgent("Post")

        @agent.capability
        def send(ctx: Context, amount: int) -> str:
            """Send it."""
            heard.append(ctx.message)
            return "sent"

        async with build(settings(ApprovalRule(agent="post")), [agent]) as server:
            request = CallRequest(agent="post", capability="send", input={"amount": 5}, message="and all the rest")
            asked = await server.gateway.call(BOB, request)
            assert isinstance(asked, Needs)
            one = await waiting(server)
            shown = await server.gateway.approval(ANN, one["id"])
            assert (shown["input"], shown["message"]) == ({"amount": 5}, "and all the rest")
            await server.gateway.decide(ANN, one["id"], approve=True)
            assert isinstance(await end_of(server, asked.job), Done)
            assert heard == ["and all the rest"]

    run(story())


def test_nothing_that_is_said_after_the_yes_goes_along() -> None:
    """The caller is faster than the gateway that looks for decisions of others."""

    async def story() -> None:
        heard: list[object] = []
        agent = LocalAgent("Post")

        @agent.capability
        def send(ctx: Context, amount: int) -> str:
            """Send it."""
            heard.append((amount, ctx.reply))
            return "sent"

        async with build(settings(ApprovalRule(agent="post")), [agent]) as server:
            asked = await server.gateway.call(BOB, CallRequest(agent="post", capability="send", input={"amount": 5}))
            assert isinstance(asked, Needs)
            assert asked.job
            server.core.parts.approvals.on_decision = None  # it was decided in another process
            await server.gateway.decide(ANN, (await waiting(server))["id"], approve=True)
            more = (Part(text="and 5000 to eve"), Part(data={"amount": 5000}))
            done = await server.core.runner.answer(
                BOB.principal, asked.job, {"approval": Answer(data=True)}, reply=more
            )
            assert isinstance(done, Done)
            assert heard == [(5, ())]

    run(story())


def test_who_is_named_by_a_rule_finds_their_approval_behind_many_of_others() -> None:
    async def story() -> None:
        bank = Bank()
        other = ApprovalRule(capability="pay", arguments={"amount": "> 1000"}, approvers=("zoe",))
        own = ApprovalRule(capability="pay", arguments={"amount": "> 100"}, approvers=("eve",))
        async with build(settings(other, own), [bank.agent]) as server:
            for _ in range(3):
                await pay(server, 5_000)
            await pay(server, 500)
            found = await server.core.parts.approvals.list(EVE.principal, limit=2)
            assert [one["approvers"] for one in found] == [["eve"]]

    run(story())


def test_calls_that_cannot_go_on_yet_keep_no_others_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        monkeypatch.setattr("agent3.calls.approvals._AT_ONCE", 2)
        bank, tried = Bank(), []
        async with build(settings(DEAR), [bank.agent]) as server:
            approvals = server.core.parts.approvals

            async def go_on(job: Any) -> None:
                tried.append(job.id)
                raise NotFound("its agent is elsewhere")

            approvals.on_decision = go_on
            jobs = []
            for _ in range(5):
                asked = await pay(server)
                assert isinstance(asked, Needs)
                jobs.append(asked.job)
            for one in (await server.gateway.approvals(ANN))["approvals"]:
                await server.gateway.decide(ANN, one["id"], approve=True)
            tried.clear()
            for _ in range(20):  # a look of the gateway's own may come between
                await approvals.settle()
            assert set(tried) == set(jobs)

    run(story())


def test_a_job_that_cannot_be_read_stalls_no_other_approval() -> None:
    async def story() -> None:
        async with build(settings(DEAR), [Bank().agent], metrics=Metrics()) as server:
            approvals, tried = server.core.parts.approvals, list[str]()

            async def go_on(job: Any) -> None:
                tried.append(job.id)
                raise NotFound("its agent is elsewhere")

            approvals.on_decision = go_on
            jobs = [asked.job for asked in [await pay(server) for _ in range(3)] if isinstance(asked, Needs)]
            for one in (await server.gateway.approvals(ANN))["approvals"]:
                await server.gateway.decide(ANN, one["id"], approve=True)
            await server.services.database.write(
                lambda tx: tx.run("UPDATE jobs SET call = ? WHERE id = ?", b"{", jobs[0])
            )
            tried.clear()
            for _ in range(20):  # a look of the gateway's own may come between
                await approvals.settle()
            assert set(tried) == {*jobs[1:]}
            counted = server.core.metrics.render()[0]
            assert b'agent3_events_dropped_total{reason="undecodable row"} 1' in counted

    run(story())


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        (ApprovalRule(arguments={"amount": "=> 100"}), "is not a comparison"),
        (ApprovalRule(arguments={"amount": "> much"}), "not a number"),
        (ApprovalRule(hours=-3), "must not be negative"),
    ],
)
def test_a_rule_that_would_never_ask_stops_the_start(rule: ApprovalRule, says: str) -> None:
    async def story() -> None:
        with pytest.raises(SetupError, match=says):
            async with build(settings(rule), [Bank().agent]):
                pass

    run(story())
