"""Dead letters for the operator: found, shown without secrets, sent again once, dropped; and counted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from pathlib import Path

import pytest
from msgspec.structs import replace

from agent3 import failpoints
from agent3.env import REAL, SeededEnv
from agent3.errors import Conflict, NotFound, Unavailable, ValidationError
from agent3.gateway import Caller, CallRequest
from agent3.gateway.dead_letters import Letters, Wanted, measure, replay
from agent3.model import Principal
from agent3.observe.metrics import Metrics
from agent3.protocols.functions import LocalAgent
from agent3.queue import Queue, Rules
from agent3.server.build import Server, build
from agent3.settings import Calls, Rule, Settings, Storage
from tests.support.home import run

ALICE = Principal("alice", "client", frozenset({"shop"}))
QUIET = Settings(calls=Calls(retries=0, breaker_failures=1_000))


class Shop:
    """An agent that is down until it is not."""

    def __init__(self) -> None:
        self.down = True
        self.wrong: Exception = Unavailable("The shop is closed.")
        self.sold: list[str] = []
        self.agent = LocalAgent("shop")
        self.agent.add(self.sell, name="sell")

    async def sell(self, what: str) -> str:
        """Sell something."""
        if self.down:
            raise self.wrong
        self.sold.append(what)
        return f"sold {what}"


@asynccontextmanager
async def gateway(
    folder: Path, shop: Shop, settings: Settings = QUIET, agents: bool = True
) -> AsyncIterator[tuple[Server, Letters]]:
    chosen = replace(settings, storage=Storage(url=f"sqlite:///{folder / 'shop.db'}"))
    async with build(chosen, [shop.agent] if agents else [], metrics=Metrics(), take_over=False) as server:
        yield server, Letters(server.database, server.env)


async def fail(server: Server, what: str = "pizza") -> str:
    """Leave a dead letter; its id."""
    await server.gateway.call(Caller(ALICE, "test"), CallRequest(agent="shop", capability="sell", input={"what": what}))
    return str((await Letters(server.database, REAL).find(Wanted(limit=1)))[0]["id"])


async def die(server: Server, name: str, body: bytes) -> None:
    """Leave a dead message in a queue."""
    queue = Queue(server.database, name, Rules(attempts=1), metrics=Metrics())
    await queue.put(body)
    (lease,) = await queue.claim()
    await queue.nack(lease, "poison")
    await queue.aclose()


def test_letters_are_found_by_what_they_are(tmp_path: Path) -> None:
    async def story() -> None:
        async with gateway(tmp_path, Shop()) as (server, letters):
            for what in ("a", "b", "c"):
                await fail(server, what)
            found = await letters.find(Wanted())
            assert len({one["id"] for one in found}) == 3
            assert found[0] | {"id": "", "at": 0.0} == {
                "place": "calls",
                "id": "",
                "at": 0.0,
                "principal": "alice",
                "agent": "shop",
                "capability": "sell",
                "code": "unavailable",
                "message": "The shop is closed.",
                "attempts": 1,
                "replayed": None,
            }
            assert found == sorted(found, key=lambda one: one["at"], reverse=True)
            assert len(await letters.find(Wanted(limit=2))) == 2
            assert await letters.find(Wanted(agent="other")) == []
            assert len(await letters.find(Wanted(agent="shop", code="unavailable"))) == 3
            assert await letters.find(Wanted(code="timeout")) == []
            assert len(await letters.find(Wanted(since=found[1]["at"]))) == 2
            with pytest.raises(ValidationError, match="--limit"):
                await letters.find(Wanted(limit=0))

    run(story())


def test_queues_have_theirs_beside_them(tmp_path: Path) -> None:
    async def story() -> None:
        async with gateway(tmp_path, Shop()) as (server, letters):
            await fail(server)
            await die(server, "mail:out", b'{"to": "bob", "api_key": "sk-very-secret-value"}')
            places = [one["place"] for one in await letters.find(Wanted())]
            assert sorted(places) == ["calls", "queue mail:out"]
            (one,) = await letters.find(Wanted(queue="mail:out"))
            assert one["id"].startswith("queue:mail%3Aout:")
            assert (one["message"], one["attempts"]) == ("poison", 1)
            shown = await letters.show(one["id"])
            assert shown["body"] == {"to": "bob", "api_key": "[redacted]"}
            assert [each["reason"] for each in shown["history"]] == ["poison"]
            assert (await replay(server.gateway, one["id"], twice=True)).status == "queued"
            assert await letters.find(Wanted(queue="mail:out")) == []
            with pytest.raises(NotFound, match="does not exist"):
                await replay(server.gateway, one["id"], twice=True)
            queue = Queue(server.database, "mail:out", metrics=Metrics())
            assert len(await queue.claim()) == 1
            await queue.aclose()

    run(story())


def test_a_queue_that_is_full_takes_back_what_was_in_it(tmp_path: Path) -> None:
    async def story() -> None:
        async with gateway(tmp_path, Shop()) as (server, letters):
            await die(server, "mail", b"x")
            (one,) = await letters.find(Wanted(queue="mail"))
            await server.database.write(lambda tx: tx.run("UPDATE queues SET depth = 10000 WHERE name = 'mail'"))
            assert (await replay(server.gateway, one["id"])).status == "queued"

    run(story())


def test_a_letter_is_shown_whole_and_without_secrets(tmp_path: Path) -> None:
    async def story() -> None:
        async with gateway(tmp_path, Shop()) as (server, letters):
            shown = await letters.show(await fail(server, "Bearer abcdefghijklmnop123456"))
            assert shown["call"]["principal"]["id"] == "alice"
            assert "abcdefghijklmnop123456" not in str(shown)
            assert shown["outcome"]["code"] == "unavailable"
            assert shown["mayHaveRun"] is True
            with pytest.raises(NotFound):
                await letters.show("call:nothing")
            for wrong in ("nothing", "call:", "queue:x", "file:x:y"):
                with pytest.raises(ValidationError, match="is not the id of a dead letter"):
                    await letters.show(wrong)

    run(story())


def test_a_letter_is_sent_again_once_as_its_first_caller(tmp_path: Path) -> None:
    async def story() -> None:
        shop = Shop()
        async with gateway(tmp_path, shop) as (server, letters):
            letter = await fail(server)
            shop.down = False
            assert (await replay(server.gateway, letter, twice=True)).status == "done"
            assert shop.sold == ["pizza"]
            with pytest.raises(Conflict, match="--again"):
                await replay(server.gateway, letter, twice=True)
            await server.core.ledger.flush()
            rows = await server.database.all("SELECT principal, door, status FROM calls ORDER BY at")
            assert dict(rows[-1]) == {"principal": "alice", "door": "dlq", "status": "done"}
            assert await letters.find(Wanted()) == []
            assert [one["id"] for one in await letters.find(Wanted(replayed=True))] == [letter]
            assert (await replay(server.gateway, letter, twice=True, again=True)).status == "done"
            assert shop.sold == ["pizza", "pizza"]

    run(story())


def test_a_replay_that_died_before_it_was_marked_does_nothing_twice(tmp_path: Path) -> None:
    async def story() -> None:
        shop = Shop()
        async with gateway(tmp_path, shop) as (server, _):
            letter = await fail(server)
            shop.down = False
            await replay(server.gateway, letter, twice=True)
            await server.database.write(lambda tx: tx.run("UPDATE dead_letters SET replayed = NULL"))
            assert (await replay(server.gateway, letter, twice=True)).status == "done"
            assert shop.sold == ["pizza"]

    run(story())


def test_a_replay_that_fails_again_leaves_one_letter(tmp_path: Path) -> None:
    async def story() -> None:
        shop = Shop()
        async with gateway(tmp_path, shop) as (server, letters):
            letter = await fail(server)
            done = await replay(server.gateway, letter, twice=True)
            assert (done.status, done.code) == ("failed", "unavailable")
            (second,) = await letters.find(Wanted())
            assert second["id"] != letter
            shop.down = False
            assert (await replay(server.gateway, str(second["id"]), twice=True)).status == "done"
            assert shop.sold == ["pizza"]

    run(story())


def order(key: str | None, what: str = "pizza") -> CallRequest:
    return CallRequest(agent="shop", capability="sell", input={"what": what}, key=key)


@contextmanager
def unreachable() -> Iterator[None]:
    """Nothing is sent meanwhile, and that is certain."""
    failpoints.arm("call.before_send=error")
    try:
        yield
    finally:
        failpoints.disarm()


async def only(letters: Letters) -> str:
    (one,) = await letters.find(Wanted())
    return str(one["id"])


def test_what_may_have_run_is_not_sent_again_unless_it_may_run_twice(tmp_path: Path) -> None:
    async def story() -> None:
        shop = Shop()
        async with gateway(tmp_path, shop) as (server, letters):
            letter = await fail(server)
            shop.down = False
            done = await replay(server.gateway, letter)
            assert (done.status, done.code) == ("refused", "conflict")
            assert done.message is not None
            assert "--may-run-twice" in done.message
            assert shop.sold == []
            assert await only(letters) == letter, "it stays as it was"
            assert (await replay(server.gateway, letter, twice=True)).status == "done"
            assert shop.sold == ["pizza"]

    run(story())


def test_what_was_certainly_not_sent_or_may_be_repeated_is_sent_again_at_once(tmp_path: Path) -> None:
    async def story() -> None:
        shop = Shop()
        shop.agent.add(shop.sell, name="look", read_only=True)
        async with gateway(tmp_path, shop) as (server, letters):
            look = CallRequest(agent="shop", capability="look", input={"what": "menu"})
            await server.gateway.call(Caller(ALICE, "test"), look)
            shop.down = False
            assert (await replay(server.gateway, await only(letters))).status == "done"
            with unreachable():
                await server.gateway.call(Caller(ALICE, "test"), order(None))
            assert (await replay(server.gateway, await only(letters))).status == "done"
        assert shop.sold == ["menu", "pizza"]

    run(story())


@pytest.mark.parametrize("sent", [True, False])
def test_a_caller_who_repeats_its_key_gets_what_the_replay_did(tmp_path: Path, sent: bool) -> None:
    async def story() -> None:
        shop = Shop()
        async with gateway(tmp_path, shop) as (server, letters):
            alice = Caller(ALICE, "test")
            with nullcontext() if sent else unreachable():
                await server.gateway.call(alice, order("k"))
            shop.down = False
            assert (await replay(server.gateway, await only(letters), twice=sent)).status == "done"
            assert "sold pizza" in str(await server.gateway.call(alice, order("k")))
            assert shop.sold == ["pizza"]

    run(story())


def test_a_replay_gets_what_the_caller_did_meanwhile_under_its_key(tmp_path: Path) -> None:
    async def story() -> None:
        shop = Shop()
        shop.down = False
        async with gateway(tmp_path, shop) as (server, letters):
            alice = Caller(ALICE, "test")
            with unreachable():
                await server.gateway.call(alice, order("k"))
            await server.gateway.call(alice, order("k"))
            letter = await only(letters)
            assert (await replay(server.gateway, letter)).status == "done"
            assert shop.sold == ["pizza"]
            assert await letters.find(Wanted()) == [], "it needs nobody any more"
            assert (await replay(server.gateway, letter, again=True)).status == "done"
            assert shop.sold == ["pizza", "pizza"], "the operator wanted it again"

    run(story())


def test_operators_who_replay_a_keyed_letter_at_the_same_moment_do_it_once(tmp_path: Path) -> None:
    async def story() -> None:
        shop = Shop()
        async with gateway(tmp_path, shop) as (server, letters):
            await server.gateway.call(Caller(ALICE, "test"), order("k"))
            letter = await only(letters)
            shop.down = False
            done = await asyncio.gather(*(replay(server.gateway, letter, twice=True) for _ in range(8)))
            assert {one.status for one in done} == {"done"}
            assert shop.sold == ["pizza"]
            more = await asyncio.gather(*(replay(server.gateway, letter, again=True, twice=True) for _ in range(8)))
            assert {one.status for one in more} == {"done"}
            assert shop.sold == ["pizza"] * 2

    run(story())


def test_a_message_under_a_key_is_known_again_when_it_is_replayed(tmp_path: Path) -> None:
    """A letter holds the input that the message became; its key stands for the message."""

    async def story() -> None:
        shop = Shop()
        async with gateway(tmp_path, shop) as (server, letters):
            alice = Caller(ALICE, "test")
            request = CallRequest(agent="shop", capability="sell", message="sell what: pizza", key="k")
            await server.gateway.call(alice, request)
            shop.down = False
            assert (await replay(server.gateway, await only(letters), twice=True)).status == "done"
            assert "sold pizza" in str(await server.gateway.call(alice, request))
            assert shop.sold == ["pizza"]

    run(story())


def test_a_target_that_says_no_itself_was_sent_the_letter(tmp_path: Path) -> None:
    async def story() -> None:
        shop = Shop()
        async with gateway(tmp_path, shop) as (server, letters):
            letter = await fail(server)
            shop.wrong = NotFound("There is no such pizza.")
            done = await replay(server.gateway, letter, twice=True)
            assert (done.status, done.code) == ("failed", "not_found")
            assert await letters.find(Wanted()) == []
            with pytest.raises(Conflict, match="--again"):
                await replay(server.gateway, letter, twice=True)

    run(story())


def test_a_replay_that_is_refused_leaves_the_letter_as_it_was(tmp_path: Path) -> None:
    async def story() -> None:
        shop = Shop()
        async with gateway(tmp_path, shop) as (server, _):
            letter = await fail(server)
        shop.down = False
        denied = replace(QUIET, rules=(Rule("deny", principal="alice"),))
        async with gateway(tmp_path, shop, denied) as (server, _):
            assert (await replay(server.gateway, letter, twice=True)).status == "refused"
        async with gateway(tmp_path, shop, agents=False) as (server, _):
            gone = await replay(server.gateway, letter, twice=True)
            assert (gone.status, gone.code) == ("refused", "agent_not_found")
        assert shop.sold == []
        async with gateway(tmp_path, shop) as (server, _):
            assert (await replay(server.gateway, letter, twice=True)).status == "done"
        assert shop.sold == ["pizza"]

    run(story())


def test_dropped_letters_are_gone(tmp_path: Path) -> None:
    async def story() -> None:
        async with gateway(tmp_path, Shop()) as (server, letters):
            letter = await fail(server)
            await die(server, "mail", b"x")
            (dead,) = await letters.find(Wanted(queue="mail"))
            with pytest.raises(ValidationError, match="is not the id"):
                await letters.drop([letter, "nonsense"])
            assert await letters.drop([letter, dead["id"], "call:nothing"]) == 2
            assert await letters.find(Wanted(replayed=True)) == []

    run(story())


def test_depth_and_age_are_measured(tmp_path: Path) -> None:
    async def story() -> str:
        async with gateway(tmp_path, Shop()) as (server, _):
            await fail(server)
            await fail(server)
            await die(server, "mail", b"x")
            late = SeededEnv(time=REAL.now() + 100)
            await measure(server.database, late, server.metrics)
            return server.metrics.render()[0].decode()

    page = run(story())
    assert 'agent3_dead_letters_waiting{place="calls"} 2.0' in page
    assert 'agent3_dead_letters_waiting{place="queues"} 1.0' in page
    age = next(
        line for line in page.splitlines() if line.startswith('agent3_dead_letters_oldest_seconds{place="calls"')
    )
    assert 99 < float(age.split()[-1]) < 130
