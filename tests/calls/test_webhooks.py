"""Webhooks: signed so that a receiver can tell, kept until they arrive, and sent nowhere that is closed."""

from __future__ import annotations

import asyncio
import base64
import logging
import re
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agent3.calls.callbacks import Callbacks, _describe
from agent3.calls.jobs import Job, Jobs
from agent3.calls.outbox import NAME, Delivery, Outbox, Receipt
from agent3.calls.webhooks import keys_of, signed, verify
from agent3.env import REAL, SeededEnv
from agent3.errors import Agent3Error, SecurityError, SetupError, Unauthenticated, Unavailable
from agent3.identity.secret_box import seal, unseal
from agent3.identity.secrets import EnvironmentVault
from agent3.model import LOCAL, Call, Done, Event, Failed, Outcome, Part, encode
from agent3.observe.metrics import Metrics
from agent3.queue import Queue, QueueFull, Rules
from agent3.settings import Callbacks as How
from agent3.settings import Client, Settings
from agent3.storage import Database, Transaction, open_database
from tests.support.receiver import SECRET, Receiver, Webhook, receiving
from tests.support.tls import certificate

BODY = b'{"type":"call.done"}'
NOW = 1_800_000_000.0
OTHER = "whsec_" + base64.b64encode(b"another secret of tests, long").decode()
OPEN: dict[str, Any] = {
    "secret": "env:HOOK",
    "schemes": ("https", "http"),
    "allow_loopback": True,
    "timeout": 5.0,
    "first_delay": 0.01,
    "longest_delay": 0.05,
}
SOON = 60.0


# Signatures


def headers(secret: str = SECRET, at: float = NOW) -> dict[str, str]:
    return signed(secret, "cb_1", at, BODY)


def test_what_is_signed_is_verified_and_gives_its_id() -> None:
    assert verify(SECRET, headers(), BODY, now=NOW) == "cb_1"
    assert verify(SECRET, {name.title(): value for name, value in headers().items()}, BODY, now=NOW) == "cb_1"


def test_the_signature_is_that_of_standard_webhooks() -> None:
    """What the reference implementation (standardwebhooks 1.1.0 for Python) makes of the same."""
    assert headers() == {
        "webhook-id": "cb_1",
        "webhook-timestamp": "1800000000",
        "webhook-signature": "v1,tZXP5Yl+/BNU1km7nrmrzQeG4UF7DNxRTsq/rrtZqUc=",
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("webhook-id", "cb_2"),
        ("webhook-timestamp", "1800000001"),
        ("webhook-timestamp", "1800000000.0"),
        ("webhook-timestamp", "-1"),
        ("webhook-timestamp", "٣"),
        ("webhook-timestamp", "9" * 5_000),
        ("webhook-signature", "v1,"),
        ("webhook-signature", "v1,AAAA v1,BBBB"),
        ("webhook-signature", "v1,é"),
        ("webhook-signature", " "),
        ("webhook-id", ""),
    ],
)
def test_a_forged_header_is_refused(name: str, value: str) -> None:
    with pytest.raises(Unauthenticated):
        verify(SECRET, {**headers(), name: value}, BODY, now=NOW)


def test_another_body_another_secret_another_version_and_no_headers_are_refused() -> None:
    for secret, given, body in (
        (SECRET, headers(), BODY + b" "),
        (SECRET, headers(OTHER), BODY),
        (SECRET, {**headers(), "webhook-signature": headers()["webhook-signature"].replace("v1,", "v1a,")}, BODY),
        (SECRET, {}, BODY),
    ):
        with pytest.raises(Unauthenticated):
            verify(secret, given, body, now=NOW)


def test_an_old_one_and_one_of_the_future_are_refused() -> None:
    for away in (-300.0, 300.0):
        assert verify(SECRET, headers(), BODY, now=NOW + away) == "cb_1"
    for away in (-301.0, 301.0):
        with pytest.raises(Unauthenticated, match="by 301 s"):
            verify(SECRET, headers(), BODY, now=NOW + away)
    with pytest.raises(Unauthenticated):  # by the real clock
        verify(SECRET, headers(), BODY)


def test_while_a_secret_is_changed_both_are_good() -> None:
    both = headers(f"{OTHER} {SECRET}")
    assert verify(SECRET, both, BODY, now=NOW) == verify(OTHER, both, BODY, now=NOW) == "cb_1"
    assert verify(f"{OTHER} {SECRET}", headers(), BODY, now=NOW) == "cb_1"


@pytest.mark.parametrize("secret", ["", "hunter2", "whsec_", "whsec_c2hvcnQ=", "whsec_not base64 at all!", SECRET[6:]])
def test_a_secret_of_a_wrong_form_is_refused_and_not_shown(secret: str) -> None:
    with pytest.raises(SetupError) as wrong:
        keys_of(secret)
    assert "whsec_$(openssl" in wrong.value.message
    shown = secret.removeprefix("whsec_")
    assert not shown or shown not in wrong.value.message


def test_what_is_sealed_opens_with_its_key_and_in_its_place_only() -> None:
    key, other = keys_of(SECRET)[0], keys_of(OTHER)[0]
    closed = seal(key, "tocken-é", "alice", REAL)
    assert unseal([other, key], closed, "alice") == "tocken-é"
    assert seal(key, "tocken-é", "alice", REAL) != closed
    for keys, text, place in (([other], closed, "alice"), ([key], closed, "bob"), ([key], "", "alice")):
        with pytest.raises(SetupError, match="cannot be opened"):
            unseal(keys, text, place)
    with pytest.raises(SetupError):
        unseal([key], closed[:-4] + "AAA=", "alice")


# The outbox


@asynccontextmanager
async def an_outbox(
    database: Database, *, start: bool = True, metrics: Metrics | None = None, **how: Any
) -> AsyncIterator[Outbox]:
    clients = (Client("carol", callback_secret="env:CAROL"),)
    settings = Settings(callbacks=How(**{**OPEN, **how}), clients=clients)
    vault = EnvironmentVault({"HOOK": SECRET, "CAROL": OTHER})
    outbox = Outbox(settings, database, vault, REAL, metrics or Metrics())
    if start:
        outbox.start()
    try:
        yield outbox
    finally:
        await outbox.aclose()


async def post(
    outbox: Outbox,
    database: Database,
    url: str,
    number: str,
    *,
    subject: str = "job",
    owner: str = "alice",
    **more: Any,
) -> bool:
    delivery = Delivery(url, f'{{"number":"{number}"}}', owner, **more)
    return await database.write(lambda tx: outbox.post(tx, delivery, id=f"cb_{number}", subject=subject, event="done"))


async def came(receiver: Receiver, count: int = 1) -> list[Webhook]:
    return await asyncio.to_thread(receiver.wait, count, SOON)


async def until(outbox: Outbox, fits: Callable[[list[Receipt]], bool], subject: str = "job") -> list[Receipt]:
    """The receipts, as soon as they are as wanted."""
    async with asyncio.timeout(SOON):
        while not fits(found := await outbox.receipts(subject)):
            await asyncio.sleep(0.01)
    return found


def all_are(*states: str) -> Callable[[list[Receipt]], bool]:
    return lambda found: [one.status for one in found] == list(states)


def run(url: str, story: Callable[[Database], Any]) -> None:
    async def whole() -> None:
        database = await open_database(url)
        try:
            await story(database)
        finally:
            await database.aclose()

    asyncio.run(whole())


def test_a_delivery_arrives_signed_and_says_so(url: str) -> None:
    async def story(database: Database) -> None:
        metrics = Metrics()
        with receiving() as receiver:
            async with an_outbox(database, metrics=metrics) as outbox:
                assert await post(outbox, database, f"{receiver.url}/hook?x=1", "1", headers={"X-Kind": "test"})
                (got,) = await came(receiver)
                (receipt,) = await until(outbox, all_are("delivered"))
        assert verify(SECRET, got.headers, got.body) == "cb_1"
        assert (got.path, got.json, got.headers["x-kind"]) == ("/hook?x=1", {"number": "1"}, "test")
        assert got.headers["content-type"] == "application/json"
        assert (receipt.id, receipt.event, receipt.attempts) == ("cb_1", "done", 1)
        assert receipt.delivered is not None
        assert (receipt.reason, receipt.next_attempt) == (None, None)
        assert b'agent3_webhooks_total{result="delivered"} 1.0' in metrics.render()[0]

    run(url, story)


def test_what_is_undone_is_never_sent_and_what_is_posted_twice_is_sent_once(url: str) -> None:
    async def story(database: Database) -> None:
        with receiving() as receiver:
            async with an_outbox(database) as outbox:

                async def fails(tx: Transaction) -> None:
                    await outbox.post(tx, Delivery(receiver.url, "{}", "alice"), id="cb_no", subject="no", event="done")
                    raise SetupError("undone")

                with pytest.raises(SetupError):
                    await database.write(fails)
                assert await post(outbox, database, receiver.url, "1")
                assert not await post(outbox, database, receiver.url, "1")
                await post(outbox, database, receiver.url, "2")
                got = await came(receiver, 2)
                await until(outbox, all_are("delivered", "delivered"))
                assert await outbox.receipts("no") == []
        assert [one.id for one in got] == ["cb_1", "cb_2"]

    run(url, story)


def test_what_fails_is_tried_again_under_the_same_id_and_those_behind_it_wait(url: str) -> None:
    answers: Iterator[Any] = iter([500, 404, (302, {"Location": "/elsewhere"})])

    async def story(database: Database) -> None:
        with receiving(lambda _: next(answers, 204)) as receiver:
            async with an_outbox(database) as outbox:
                for number in "123":
                    await post(outbox, database, f"{receiver.url}/{number}", number)
                got = await came(receiver, 6)
                found = await until(outbox, all_are("delivered", "delivered", "delivered"))
        assert [one.id for one in got] == ["cb_1", "cb_1", "cb_1", "cb_1", "cb_2", "cb_3"]
        assert [one.attempts for one in found] == [4, 1, 1]
        for one in got:
            verify(SECRET, one.headers, one.body)

    run(url, story)


def test_after_its_attempts_it_is_a_dead_letter_with_its_history_and_can_be_replayed(url: str) -> None:
    async def story(database: Database) -> None:
        with receiving(lambda _: 500) as receiver:
            async with an_outbox(database, attempts=3) as outbox:
                await post(outbox, database, receiver.url, "1")
                (receipt,) = await until(outbox, all_are("dead"))
                assert len(receiver.got) == 3
                assert (receipt.attempts, receipt.reason) == (3, "it answered 500")
                queue = Queue(database, NAME, metrics=Metrics())
                (letter,) = await queue.dead()
                assert [one.reason for one in letter.history] == ["it answered 500"] * 3
                receiver.reply = lambda _: 200
                assert await queue.replay([letter.id]) == 1
                await until(outbox, all_are("delivered"))
                assert {one.id for one in await came(receiver, 4)} == {"cb_1"}
                await queue.aclose()

    run(url, story)


def test_a_receiver_that_is_gone_is_told_no_more(url: str) -> None:
    async def story(database: Database) -> None:
        with receiving(lambda _: 410) as receiver:
            async with an_outbox(database) as outbox:
                await post(outbox, database, receiver.url, "1")
                (receipt,) = await until(outbox, all_are("gone"))
                assert (receipt.attempts, receipt.reason) == (1, "it answered 410: it wants no more callbacks")
                assert not await post(outbox, database, receiver.url, "2")
                assert await post(outbox, database, receiver.url, "3", subject="another")
                await until(outbox, all_are("gone"), "another")
                assert [one.id for one in receiver.got] == ["cb_1", "cb_3"]

    run(url, story)


def test_a_receiver_says_when_to_come_again() -> None:
    async def story(database: Database) -> None:
        with receiving(lambda _: (503, {"Retry-After": "600"})) as receiver:
            async with an_outbox(database) as outbox:
                await post(outbox, database, receiver.url, "1")
                (receipt,) = await until(outbox, lambda found: found[0].next_attempt is not None)
                assert receipt.status == "waiting"
                assert receipt.next_attempt is not None
                assert receipt.next_attempt - receipt.created >= 599  # by itself it would come again after 0.05 s
                assert len(receiver.got) == 1

    run(":memory:", story)


def test_a_redirect_is_not_followed() -> None:
    async def story(database: Database) -> None:
        with receiving() as elsewhere, receiving(lambda _: (307, {"Location": elsewhere.url})) as receiver:
            async with an_outbox(database, attempts=2) as outbox:
                await post(outbox, database, receiver.url, "1")
                (receipt,) = await until(outbox, all_are("dead"))
                assert receipt.reason is not None
                assert "redirects are not followed" in receipt.reason
            assert elsewhere.got == []

    run(":memory:", story)


def test_a_slow_receiver_holds_up_nobody_else() -> None:
    async def story(database: Database) -> None:
        release = threading.Event()

        def slow(_: Webhook) -> int:
            release.wait(SOON)
            return 204

        with receiving(slow) as stuck, receiving() as quick:
            async with an_outbox(database, at_once=2, attempts=1, timeout=SOON) as outbox:
                for number in range(10):
                    await post(outbox, database, f"{stuck.url}/{number}", f"slow{number}", subject="slow")
                await came(stuck)
                for number in range(10):
                    await post(outbox, database, quick.url, str(number))
                await until(outbox, all_are(*["delivered"] * 10))
                assert len(stuck.got) == 1  # ten wait for one host of one owner, and take up one place
                release.set()

    run(":memory:", story)


def test_a_receiver_that_does_not_answer_runs_out_of_time() -> None:
    async def story(database: Database) -> None:
        release = threading.Event()
        with receiving(lambda _: 204 if release.wait(SOON) else 500) as stuck:
            async with an_outbox(database, attempts=1, timeout=0.2) as outbox:
                await post(outbox, database, stuck.url, "1")
                (receipt,) = await until(outbox, all_are("dead"))
                assert receipt.reason is not None
                assert "in time" in receipt.reason
            release.set()

    run(":memory:", story)


def test_an_answer_of_any_size_is_no_reason_to_send_again() -> None:
    async def story(database: Database) -> None:
        with receiving(lambda _: (200, {"Content-Length": "1000000", "Connection": "close"})) as receiver:
            async with an_outbox(database, timeout=SOON) as outbox:
                await post(outbox, database, receiver.url, "1")
                await until(outbox, all_are("delivered"))
                assert len(receiver.got) == 1

    run(":memory:", story)


def test_an_address_is_judged_again_at_every_delivery() -> None:
    async def story(database: Database) -> None:
        with receiving() as receiver:
            async with an_outbox(database, start=False) as outbox:
                await outbox.check("alice", receiver.url)
                await post(outbox, database, receiver.url, "1")
            async with an_outbox(database, allow_loopback=False) as strict:
                (receipt,) = await until(strict, all_are("dead"))
                assert receipt.reason is not None
                assert "loopback" in receipt.reason
            assert receiver.got == []

    run(":memory:", story)


@pytest.mark.parametrize(
    ("url", "how", "wrong", "says"),
    [
        ("http://127.0.0.1:9/x", {"allow_loopback": False}, SecurityError, "callbacks.allow_loopback"),
        ("http://localhost:9/x", {"allow_loopback": False}, SecurityError, "loopback"),
        ("http://[::1]:9/x", {"allow_loopback": False}, SecurityError, "loopback"),
        ("http://10.1.2.3/x", {}, SecurityError, "callbacks.allow_private"),
        ("http://169.254.169.254/latest", {"allow_private": True}, SecurityError, "metadata"),
        ("http://127.0.0.1:9/x", {"schemes": ("https",)}, SecurityError, "callbacks.schemes"),
        ("file:///etc/passwd", {}, SecurityError, "scheme"),
        ("https://me:pass@example.com/", {}, SecurityError, "user name"),
        ("https://exa mple.com/", {}, SecurityError, "white space"),
        ("https://does-not-resolve.invalid/", {}, Unavailable, "does not resolve"),
        ("http://127.0.0.1:9/x", {"secret": ""}, SetupError, "callbacks.secret"),
        ("http://127.0.0.1:9/x", {"secret": "env:NOWHERE"}, SetupError, "NOWHERE is not set"),
    ],
)
def test_an_address_that_may_not_be_told_is_refused_at_once(
    url: str, how: dict[str, Any], wrong: type[Agent3Error], says: str
) -> None:
    async def story(database: Database) -> None:
        async with an_outbox(database, start=False, **how) as outbox:
            with pytest.raises(wrong) as refusal:
                await outbox.check("alice", url)
            assert says in refusal.value.message
            assert "pass" not in refusal.value.message.replace("passwd", "").replace("password", "")

    run(":memory:", story)


def test_an_address_shows_that_it_wants_to_be_told_before_anything_is_sent_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def resolve(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    monkeypatch.setattr("agent3.security.outbound._resolve", resolve)

    async def story(database: Database) -> None:
        with receiving() as receiver:
            port = receiver.url.rpartition(":")[2]
            async with an_outbox(database, start=False) as outbox:
                await outbox.check("alice", f"http://hooks.example:{port}/a?x=1#part")
                await outbox.check("alice", f"http://hooks.example:{port}/a?x=1#part")
                (asked,) = receiver.asked
                assert re.fullmatch(r"/a\?x=1&validationToken=[0-9a-f]{48}", asked)
                # A page that answers everything with 200, an echo with another status, and one that says nothing.
                for number, prove in enumerate(
                    (lambda _: (200, "hello"), lambda token: (404, token), lambda _: (200, ""))
                ):
                    receiver.prove = prove
                    for _ in range(2):  # the second time it is not asked again
                        with pytest.raises(SecurityError, match="did not confirm that it wants callbacks"):
                            await outbox.check("alice", f"http://hooks.example:{port}/{number}")
                assert len(receiver.asked) == 4
                with pytest.raises(SecurityError, match="did not confirm"):  # a name that only begins like this machine
                    await outbox.check("alice", f"http://127.example:{port}/")
                with pytest.raises(SecurityError, match="validationToken"):  # what one owner was granted is its own
                    await outbox.check("bob", f"http://hooks.example:{port}/a?x=1#part")
                # One that took a delivery before, as from the time before this rule, is not asked; for its owner alone.
                old = f"http://hooks.example:{port}/old"
                await database.many(
                    "INSERT INTO jobs (id, owner, status, turn, call, updated) VALUES (?, ?, 'done', 1, ?, 1)",
                    [("j1", "alice", b"{}"), ("j2", "bob", b"{}")],
                )
                await database.many(
                    "INSERT INTO deliveries (id, subject, event, url, created, delivered) VALUES (?, ?, 'e', ?, 1, ?)",
                    [("d1", "j1", old, 2.0), ("d2", "j2", old, None)],
                )
                await outbox.check("alice", old)
                assert len(receiver.asked) == 6
                with pytest.raises(SecurityError, match="did not confirm"):
                    await outbox.check("bob", old)
            for how in ({"allow_hosts": ("hooks.example",)}, {"challenge": False}):
                async with an_outbox(database, start=False, **how) as outbox:
                    await outbox.check("alice", f"http://hooks.example:{port}/1")
            assert len(receiver.asked) == 7
            assert receiver.got == []

    run(":memory:", story)


def test_a_certificate_nobody_vouches_for_is_not_told_anything(tmp_path: Path) -> None:
    tls, _ = certificate(tmp_path, "localhost")

    async def story(database: Database) -> None:
        with receiving(tls=tls) as receiver:
            async with an_outbox(database, attempts=2) as outbox:
                await post(outbox, database, receiver.url, "1")
                (receipt,) = await until(outbox, all_are("dead"))
                assert receipt.attempts == 2  # it may be renewed meanwhile, so it was tried again
                assert "certificate" in (receipt.reason or "")
            assert receiver.got == []

    run(":memory:", story)


def test_each_owner_has_a_secret_of_its_own_where_one_is_set() -> None:
    async def story(database: Database) -> None:
        with receiving() as receiver:
            async with an_outbox(database) as outbox:
                await post(outbox, database, receiver.url, "1", owner="carol")
                (got,) = await came(receiver)
        assert verify(OTHER, got.headers, got.body) == "cb_1"
        with pytest.raises(Unauthenticated):
            verify(SECRET, got.headers, got.body)

    run(":memory:", story)


def test_sealed_headers_arrive_and_stand_nowhere(lasting_url: str, caplog: pytest.LogCaptureFixture) -> None:
    token = "tell-nobody-0123456789"

    async def story(database: Database) -> None:
        with receiving(lambda _: 500) as receiver:
            async with an_outbox(database, attempts=2) as outbox:
                sealed = await outbox.seal("alice", receiver.url, {"Authorization": f"Bearer {token}"})
                await post(outbox, database, receiver.url, "1", sealed=sealed)
                await until(outbox, all_are("dead"))
                rows = [
                    *await database.all("SELECT * FROM queue_messages"),
                    *await database.all("SELECT * FROM deliveries"),
                ]
                assert token not in repr([dict(row) for row in rows])
                # Sealed for alice and this URL, it opens for nobody and nowhere else.
                await post(outbox, database, receiver.url, "2", owner="bob", sealed=sealed, subject="stolen")
                (stolen,) = await until(outbox, all_are("dead"), "stolen")
                assert "cannot be opened" in (stolen.reason or "")
            assert [one.headers["authorization"] for one in receiver.got] == [f"Bearer {token}"] * 2

    with caplog.at_level(logging.DEBUG):
        run(lasting_url, story)
    assert token not in caplog.text


def test_several_workers_share_the_work_and_keep_the_order(lasting_url: str) -> None:
    async def story(database: Database) -> None:
        other = await open_database(lasting_url)
        with receiving() as one, receiving() as two:
            async with an_outbox(database) as outbox, an_outbox(other):
                for number in range(20):
                    await post(outbox, database, one.url, f"a{number}", subject="a")
                    await post(outbox, database, two.url, f"b{number}", subject="b")
                await until(outbox, all_are(*["delivered"] * 20), "a")
                await until(outbox, all_are(*["delivered"] * 20), "b")
            assert [each.id for each in one.got] == [f"cb_a{number}" for number in range(20)]
            assert [each.id for each in two.got] == [f"cb_b{number}" for number in range(20)]
        await other.aclose()

    run(lasting_url, story)


def test_what_is_under_way_when_it_stops_is_given_back_and_sent_by_the_next(lasting_url: str) -> None:
    async def story(database: Database) -> None:
        release = threading.Event()

        def slow(_: Webhook) -> int:
            release.wait(SOON)
            return 204

        with receiving(slow) as receiver:
            async with an_outbox(database) as outbox:
                await post(outbox, database, receiver.url, "1")
                await came(receiver)
                await outbox.aclose(0)
            release.set()
            async with an_outbox(database) as again:
                (receipt,) = await until(again, all_are("delivered"))
            assert receipt.attempts == 1  # the first try did not count

    run(lasting_url, story)


def test_without_room_nothing_more_is_promised_and_what_finds_none_is_written_down(url: str) -> None:
    async def story(database: Database) -> None:
        with receiving() as receiver:
            async with an_outbox(database, start=False, waiting=1) as outbox:
                await outbox.check("alice", receiver.url)
                for number in range(11):
                    assert await post(outbox, database, receiver.url, str(number))
                found = await outbox.receipts("job")
                assert sorted(one.status for one in found) == ["refused"] + ["waiting"] * 10
                queue = Queue(database, NAME, Rules(), metrics=Metrics())
                (lease,) = await queue.claim(1)  # counts them
                await queue.release(lease)
                await queue.aclose()
                with pytest.raises(QueueFull) as full:
                    await outbox.check("alice", receiver.url)
                assert full.value.retry_after is not None

    run(url, story)


def test_a_receiver_that_is_down_does_not_take_the_room_of_others(url: str) -> None:
    async def story(database: Database) -> None:
        with receiving() as receiver:
            async with an_outbox(database, start=False, waiting=30) as outbox:
                for number in range(4):  # one at the head, and a tenth of the room behind it
                    await outbox.check("alice", receiver.url)
                    await post(outbox, database, receiver.url, str(number))
                    await Queue(database, NAME, metrics=Metrics()).replay([])  # lines up what was posted
                with pytest.raises(QueueFull, match="this receiver"):
                    await outbox.check("alice", f"{receiver.url}/elsewhere")
                await outbox.check("bob", receiver.url)
                await outbox.check("alice", "http://127.0.0.1:9/")

    run(url, story)


def test_progress_waits_until_the_word_before_it_has_arrived_and_leaves_room_for_the_end(url: str) -> None:
    async def story(database: Database) -> None:
        world = SeededEnv(time=time.time())
        async with an_outbox(database, start=False) as outbox:
            outbox._env = world
            callbacks = Callbacks(outbox, world)
            jobs = Jobs(database, world, callbacks=callbacks)
            wish = await callbacks.register(LOCAL, {"url": "http://127.0.0.1:9/", "events": ["progress", "done"]})
            job, _ = await jobs.open(Call(id="1", principal=LOCAL, agent="a", capability="c", meta={"callback": wish}))

            async def tell(number: int) -> list[str]:
                world.advance(10.0)
                await jobs.append(job, [Event("progress", done=number, seq=number, turn=1)])
                return [one.event for one in await callbacks.of(job)]

            assert await tell(1) == ["progress"]
            assert await tell(2) == ["progress"], "nobody has taken the first yet"
            queue = Queue(database, NAME, metrics=Metrics())
            (lease,) = await queue.claim()
            assert await tell(3) == ["progress"], "nor is it delivered while it is under way"
            await queue.ack(lease)
            assert await tell(4) == ["progress", "progress"]
            await jobs.end_turn(job, Done(), None, written=4)
            assert [one.event for one in await callbacks.of(job)] == ["progress", "progress", "done"]
            await queue.aclose()

    run(url, story)


def test_deliveries_go_on_after_a_fault_that_nobody_foresaw(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(database: Database) -> None:
        claim, faults = Queue.claim, iter([RuntimeError("nobody foresaw this")])

        async def faulty(queue: Queue, *args: Any, **how: Any) -> Any:
            for fault in faults:
                raise fault
            return await claim(queue, *args, **how)

        monkeypatch.setattr(Queue, "claim", faulty)
        with receiving() as receiver:
            async with an_outbox(database) as outbox:
                await post(outbox, database, receiver.url, "1")
                await until(outbox, all_are("delivered"))
        assert "nobody foresaw this" in caplog.text

    run(":memory:", story)


def test_what_was_dropped_by_the_operator_says_so() -> None:
    async def story(database: Database) -> None:
        with receiving(lambda _: 500) as receiver:
            async with an_outbox(database, attempts=1) as outbox:
                await post(outbox, database, receiver.url, "1")
                await until(outbox, all_are("dead"))
                queue = Queue(database, NAME, metrics=Metrics())
                assert await queue.drop(["cb_1"]) == 1
                await until(outbox, all_are("dropped"))
                await queue.aclose()

    run(":memory:", story)


def test_what_is_too_large_to_tell_is_left_out_and_said_so() -> None:
    call = Call(id="1", principal=LOCAL, agent="worker", capability="much")

    def told(outcome: Outcome) -> dict[str, Any]:
        return _describe(Job(id="1", owner="local", status="done", turn=1, call=call, outcome=outcome))

    assert told(Done((Part(text="short"),)))["result"] == "short"
    for large in (Done(tuple(Part(text="x" * 60_000) for _ in range(30))), Failed("timeout", "x" * 2_000_000)):
        cut = told(large)
        assert (cut["truncated"], cut["status"]) == (True, "done")
        assert len(encode(cut)) < 10_000


def test_a_wish_that_cannot_be_read_does_not_keep_a_job_from_its_end() -> None:
    async def story(database: Database) -> None:
        async with an_outbox(database, start=False) as outbox:
            jobs = Jobs(database, REAL, callbacks=Callbacks(outbox, REAL))
            call = Call(id="1", principal=LOCAL, agent="a", capability="c", meta={"callback": {"uri": 1}})
            job, _ = await jobs.open(call)
            assert (await jobs.end_turn(job, Done(), None)).status == "done"

    run(":memory:", story)


def test_what_was_told_of_a_job_is_forgotten_with_it(url: str) -> None:
    async def story(database: Database) -> None:
        async with an_outbox(database, start=False) as outbox:
            callbacks = Callbacks(outbox, REAL)
            jobs = Jobs(database, REAL, callbacks=callbacks, keep_days=0.0)
            wish = await callbacks.register(LOCAL, {"url": "http://127.0.0.1:9/"})
            job, _ = await jobs.open(Call(id="1", principal=LOCAL, agent="a", capability="c", meta={"callback": wish}))
            ended = await jobs.end_turn(job, Done(), None)
            assert [(one.event, one.status) for one in await callbacks.of(ended)] == [("done", "waiting")]
            async with asyncio.timeout(SOON):
                while not await jobs.expire():
                    await asyncio.sleep(0.01)
            assert await callbacks.of(ended) == []

    run(url, story)
