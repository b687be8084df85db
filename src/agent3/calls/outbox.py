"""The outbox: HTTP deliveries that are written down in one transaction with their cause, and made until they arrive.

At least once, and a receiver can tell a repetition by ``webhook-id``. Of the deliveries of one owner to one destination
one is out at a time, in order. Any number of processes share the work. It knows urls, headers and bytes, and nothing of
what is told; of jobs only whose they are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address
from typing import Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from agent3 import failpoints
from agent3.calls.webhooks import keys_of, signed, signed_by
from agent3.env import Env
from agent3.errors import Agent3Error, Corrupt, SecurityError, SetupError, StorageError, Unavailable
from agent3.identity.own_keys import OwnKey, OwnKeys
from agent3.identity.secret_box import is_sealed_with, rewrap, seal, unseal
from agent3.identity.secrets import Vault
from agent3.jsonrpc import parse_retry_after
from agent3.observe.logs import Outage
from agent3.observe.logs import get as logger
from agent3.observe.metrics import Metrics
from agent3.queue import Lease, Queue, QueueFull, Rules
from agent3.queue.messages import checksum
from agent3.security.outbound import Gate, Policy
from agent3.settings import Settings
from agent3.storage import Database, Row, Transaction
from agent3.storage.checksums import is_whole, sum_of

__all__ = ["KEY", "NAME", "Delivery", "Outbox", "Receipt", "rewrap_waiting"]

log = logger("webhooks")

NAME = "webhooks"
"""The queue's name, also in the index that finds its messages by id."""
KEY = "webhooks"
"""The name of the gateway's own key, which signs what no secret does."""

_DAY = 86_400.0
_LONGEST_WAIT = 3_600.0
"""Seconds that a receiver may make us wait by Retry-After."""
_ANSWER = 16_384
"""Bytes of an answer that are read, so that its connection can be used again."""
_ANY = 2**63
"""An answer may be of any size, since what is longer is not read."""
_LARGEST = 4 * 1024 * 1024
_SPARE = 10
"""How many times more may wait than callers are told: what was promised must find room when it comes."""
_LINES = 10
"""The part of the room that one owner's deliveries to one destination may take is one divided by this."""
_ROOM = (
    "SELECT (SELECT depth FROM queues WHERE name = ?) AS depth, COUNT(*) AS own FROM (SELECT 1 FROM queue_messages "
    "WHERE queue = 'webhooks' AND context = ? AND state = 'waiting' LIMIT ?) AS counted"
)
_LATEST = (
    "SELECT d.created, q.id AS waiting FROM deliveries AS d LEFT JOIN queue_messages AS q ON q.id = d.id "
    "AND q.queue = 'webhooks' AND q.state <> 'dead' WHERE d.subject = ? ORDER BY d.created DESC, d.id DESC LIMIT 1"
)
_NOTE = "UPDATE deliveries SET ended = ?, delivered = ?, attempts = ? WHERE id = ?"
_DELIVERED = (
    "SELECT 1 AS found FROM (SELECT id FROM jobs WHERE owner = ? ORDER BY updated DESC LIMIT 200) AS latest "
    "JOIN deliveries AS d ON d.subject = latest.id WHERE d.url = ? AND d.delivered IS NOT NULL AND d.ended IS NULL "
    "LIMIT 1"
)
"""Only the latest jobs of an owner are looked at, so that it does not grow with the history."""
_PROVEN, _UNPROVEN = 86_400.0, 60.0
"""Seconds that the answer to a challenge is remembered: a yes, and anything else."""
_MOST_PROVEN = 10_000
_IDLE = 30.0
_AGAIN = 1.0

State = Literal["waiting", "sending", "delivered", "dead", "gone", "refused", "dropped"]


class Delivery(Struct, frozen=True, omit_defaults=True):
    """What is sent, and for whom. ``sealed`` holds further headers, encrypted."""

    url: str
    body: str
    owner: str
    headers: dict[str, str] = {}
    sealed: str = ""


class Receipt(Struct, frozen=True, omit_defaults=True, rename="camel"):
    """How a delivery stands. ``gone``: the receiver wants no more; ``refused``: there was no room for it."""

    id: str
    event: str
    url: str
    status: State
    attempts: int
    created: float
    delivered: float | None = None
    next_attempt: float | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class _Verdict:
    """What an attempt came to. ``wait`` is what the receiver asked for."""

    result: Literal["delivered", "retry", "dead", "gone"]
    reason: str = ""
    wait: float | None = None


class Outbox:
    """The deliveries of one database. ``start`` makes them in this process; without it others do.

    For owners that share no secret with us they are signed with one of ``own_keys``, whose public half is published.
    """

    def __init__(
        self,
        settings: Settings,
        database: Database,
        vault: Vault,
        env: Env,
        metrics: Metrics,
        own_keys: OwnKeys | None = None,
    ):
        how = settings.callbacks
        self._how = how
        self._database = database
        self._vault = vault
        self._own_keys = own_keys
        self._env = env
        self._metrics = metrics
        self._secrets = {client.id: client.callback_secret for client in settings.clients if client.callback_secret}
        policy = Policy(
            allow_loopback=how.allow_loopback,
            allow_private=how.allow_private,
            allow_hosts=frozenset(how.allow_hosts),
            schemes=how.schemes,
            total_timeout=how.timeout,
            max_bytes=_ANSWER,
            setting="callbacks",
        )
        self._gate = Gate(policy, on_block=lambda rule: metrics.outbound_blocked.inc((rule,)))
        rules = Rules(
            bound=how.waiting * _SPARE,
            attempts=how.attempts,
            lease=2 * how.timeout + 2.0,
            first_delay=how.first_delay,
            longest_delay=how.longest_delay,
            keep_dead=(settings.calls.dead_letter_days or 3_650.0) * _DAY,
            dead=settings.calls.dead_letters,
            largest=_LARGEST,
        )
        self._queue = Queue(database, NAME, rules, env=env, metrics=metrics)
        self._proven: dict[tuple[str, str], tuple[float, bool]] = {}
        """Until when it is known whether an address wants an owner's deliveries."""
        self._worker: asyncio.Task[None] | None = None
        self._sending: set[asyncio.Task[None]] = set()

    # Writing down

    async def check(self, owner: str, url: str) -> None:
        """Raise unless this owner may have deliveries made there, the receiver wants them, and there is room for them.

        SecurityError for the address, SetupError without a secret or a key, QueueFull when too many wait already: of
        all, or of this owner for this destination, so that one receiver that is down does not take the room of others.
        """
        if await self._secret(owner) is None:
            await self._own_key()
        await self._gate.check(url)
        own = max(1, self._how.waiting // _LINES)
        row = await self._database.one(_ROOM, NAME, _context(owner, url), own)
        assert row is not None
        if (row["depth"] or 0) >= self._how.waiting:
            raise QueueFull(
                f"{row['depth']:,} callbacks are waiting for delivery, the maximum. Try again later.",
                retry_after=30.0,
            )
        if row["own"] >= own:
            raise QueueFull(
                f"{row['own']:,} callbacks are waiting for this receiver, the maximum. Check that it answers.",
                retry_after=30.0,
            )
        if self._how.challenge and not self._is_named(url):
            await self._challenge(owner, url)

    def _is_named(self, url: str) -> bool:
        """Whether the operator has named the host, or it is this machine, which ``check`` has judged already."""
        place = urlsplit(url)
        host = (place.hostname or "").lower()
        try:
            own = host == "localhost" or ip_address(host).is_loopback
        except ValueError:  # a name, such as 127.example.com
            own = False
        return own or bool({host, f"{host}:{place.port or 443}"} & set(self._how.allow_hosts))

    async def _challenge(self, owner: str, url: str) -> None:
        """Ask an address whether it wants to be notified; SecurityError if it does not say so.

        One that has taken a delivery of one of the owner's latest jobs is not asked: it may be older than the rule.
        What it said is remembered for a while, so that it is not asked more often than somebody could ask it directly.
        """
        now, asked = self._env.now(), (owner, url)
        known = self._proven.get(asked)
        if known is None or known[0] < now:
            known = None
            if await self._database.one(_DELIVERED, owner, url) is not None:
                known = now + _PROVEN, True
        if known is None:
            token = self._env.random_bytes(24).hex()
            query = f"{'&' if urlsplit(url).query else '?'}validationToken={token}"
            try:
                answer = await self._gate.request("GET", url.partition("#")[0] + query, timeout=self._how.timeout)
                wants = answer.status == 200 and answer.body.strip() == token.encode()
            except Agent3Error as error:
                log.info("the challenge of a callback address failed: %s", error.message)
                wants = False
            known = now + (_PROVEN if wants else _UNPROVEN), wants
        self._proven[asked] = known
        while len(self._proven) > _MOST_PROVEN:
            del self._proven[next(iter(self._proven))]
        if not known[1]:
            self._metrics.webhooks.inc(("unproven",))
            raise SecurityError(
                "The callback address did not confirm that it wants callbacks. It must answer GET "
                "URL?validationToken=TOKEN with status 200 and TOKEN as plain text, or the operator must "
                "add its host to callbacks.allow_hosts.",
                data={"rule": "challenge"},
            )

    async def seal(self, owner: str, url: str, headers: Mapping[str, str]) -> str:
        """Headers for deliveries of this owner to this URL, in a form that can be kept."""
        secret = await self._secret(owner)
        key = (await self._own_key()).master_keys[0] if secret is None else keys_of(secret)[0]
        return seal(key, msgspec.json.encode(headers).decode(), _place(owner, url), self._env)

    async def post(self, tx: Transaction, delivery: Delivery, *, id: str, subject: str, event: str) -> bool:  # noqa: A002 - it is the id
        """Write a delivery down; False when nothing was: it is known already, or its receiver wants no more.

        Inside the caller's transaction, of which it never is the end: where there is no room, that is written down.
        """
        gone = await tx.one(
            "SELECT id FROM deliveries WHERE subject = ? AND url = ? AND ended = 'gone' LIMIT 1", subject, delivery.url
        )
        if gone is not None:
            return False
        lasting = (id, subject, event, delivery.url, self._env.now())
        new = await tx.one(
            "INSERT INTO deliveries (id, subject, event, url, created, checksum) VALUES (?, ?, ?, ?, ?, ?) "
            "ON CONFLICT DO NOTHING RETURNING id",
            *lasting,
            sum_of(*lasting),
        )
        if new is None:
            return False
        try:
            body = msgspec.json.encode(delivery)
            await self._queue.put(body, context=_context(delivery.owner, delivery.url), id=id, tx=tx)
        except QueueFull:
            log.error("webhook %s: no room for it, so it is not sent", id)
            self._metrics.webhooks.inc(("refused",))
            await tx.run("UPDATE deliveries SET ended = 'refused' WHERE id = ?", id)
        return True

    async def is_quiet(self, tx: Transaction, subject: str, seconds: float) -> bool:
        """Whether the latest delivery of a subject is no longer under way, and was written down so long ago."""
        row = await tx.one(_LATEST, subject)
        return row is None or (row["waiting"] is None and not 0 <= self._env.now() - row["created"] < seconds)

    async def receipts(self, subject: str, limit: int = 1_000) -> list[Receipt]:
        """The deliveries of a subject and how they stand, the oldest first; without those that are damaged."""
        rows = await self._database.all(
            "SELECT d.id, d.subject, d.event, d.url, d.created, d.checksum, d.delivered, d.attempts AS made, d.ended, "
            "q.state, q.attempts, q.due, q.history FROM deliveries AS d LEFT JOIN queue_messages AS q ON q.id = d.id "
            "AND q.queue = 'webhooks' WHERE d.subject = ? ORDER BY d.created, d.id LIMIT ?",
            subject,
            limit,
        )
        receipts = []
        for row in rows:
            if is_whole(row["checksum"], *(row[column] for column in ("id", "subject", "event", "url", "created"))):
                receipts.append(_receipt(row))
            else:
                log.error("webhook %s: its row is damaged and is not shown", row["id"])
                self._metrics.events_dropped.inc(("undecodable row",))
        return receipts

    # Delivering

    def start(self) -> None:
        """Make deliveries from now on, in this loop, until ``aclose``."""
        if self._worker is None:
            self._worker = asyncio.get_running_loop().create_task(self._work(), name="webhooks")

    async def aclose(self, seconds: float | None = None) -> None:
        """Let those under way finish for so long, by default their whole time, and give back the rest.

        The database stays open.
        """
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.wait([self._worker])
            self._worker = None
        if self._sending:
            _, late = await asyncio.wait(self._sending, timeout=self._how.timeout if seconds is None else seconds)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)
        await self._queue.aclose()
        await self._gate.aclose()

    async def _work(self) -> None:
        outage = Outage(log, "reading the queue of webhooks")
        while True:
            if (free := self._how.at_once - len(self._sending)) <= 0:
                await asyncio.wait(self._sending, return_when=asyncio.FIRST_COMPLETED)
                continue
            try:
                leases = await self._queue.claim(free, wait=_IDLE)
            except StorageError as error:
                outage.failed(error)
                await asyncio.sleep(_AGAIN)
                continue
            except Exception:
                # No task awaits this one: if it ended, callbacks would stop in silence until the next start.
                log.exception("webhooks: retrying in %g s", _AGAIN)
                await asyncio.sleep(_AGAIN)
                continue
            outage.worked()
            self._metrics.webhooks_waiting.set((), self._queue.size)
            for lease in leases:
                task = asyncio.get_running_loop().create_task(self._deliver(lease), name=f"webhook {lease.id}")
                self._sending.add(task)
                task.add_done_callback(self._sending.discard)

    async def _deliver(self, lease: Lease) -> None:
        """One attempt, and what follows from it. What storage does not take is tried again when the lease is over."""
        try:
            try:
                verdict = await self._send(lease)
                await failpoints.reach("outbox.delivered")
            except asyncio.CancelledError:
                await self._queue.release(lease)
                raise
            result: str = verdict.result
            if result == "delivered":
                await self._note(lease, None, self._env.now())
                await self._queue.ack(lease)
            elif result == "retry":
                delay = None
                if verdict.wait is not None:
                    # A little more, so that not all who were told the same come back at the same moment.
                    delay = min(verdict.wait, _LONGEST_WAIT) + self._env.jitter(self._how.first_delay)
                result = await self._queue.nack(lease, verdict.reason, delay=delay)
            else:
                if result == "gone":
                    await self._note(lease, "gone", None)
                await self._queue.bury(lease, verdict.reason)
            self._metrics.webhooks.inc((result,))
            if result != "delivered":
                log.warning("webhook %s, attempt %d: %s: %s", lease.id, lease.attempt, result, verdict.reason)
        except StorageError as error:
            log.warning("webhook %s: %s; retrying when its lease expires", lease.id, error)
        except Exception:
            log.exception("webhook %s: retrying when its lease expires", lease.id)

    async def _send(self, lease: Lease) -> _Verdict:
        try:
            delivery = msgspec.json.decode(lease.body, type=Delivery)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            return _Verdict("dead", f"Webhook {lease.id} cannot be read: {error}")
        try:
            headers = await self._headers(lease.id, delivery)
            body = delivery.body.encode()
            await failpoints.reach("outbox.deliver", Unavailable)
            async with self._gate.stream(
                "POST", delivery.url, headers=headers, body=body, timeout=self._how.timeout, max_bytes=_ANY
            ) as answer:
                # A short answer is read to its end, so that its connection can be used again. Its status has come
                # already, so nothing that goes wrong now matters.
                left = _ANSWER
                with suppress(Agent3Error):
                    async for chunk in answer:
                        left -= len(chunk)
                        if left < 0:
                            break
                status = answer.status
                if 200 <= status < 300:
                    return _Verdict("delivered")
                if status == 410:
                    return _Verdict("gone", "it answered 410: it wants no more callbacks")
                moved = "; redirects are not followed, so use the final address" if 300 <= status < 400 else ""
                wait = parse_retry_after(answer.headers.get("Retry-After"), self._env.now(), _LONGEST_WAIT)
                return _Verdict("retry", f"it answered {status}{moved}", wait)
        except Corrupt as error:
            return _Verdict("dead", error.message)
        except SecurityError as error:
            # A certificate is renewed; an address that is closed stays so until a setting is changed.
            renewable = error.data.get("rule") == "certificate"
            return _Verdict("retry" if renewable else "dead", error.message)
        except Agent3Error as error:
            return _Verdict("retry", error.message)

    async def _headers(self, delivery_id: str, delivery: Delivery) -> dict[str, str]:
        secret = await self._secret(delivery.owner)
        content = delivery_id, self._env.now(), delivery.body.encode()
        signature = signed_by(await self._own_key(), *content) if secret is None else signed(secret, *content)
        hidden: dict[str, str] = {}
        if delivery.sealed:
            # The delivery may be older than the secret that its owner has now: then our own key has sealed it.
            keys = [] if secret is None else keys_of(secret)
            with suppress(SetupError):
                keys += (await self._own_key()).master_keys
            place = _place(delivery.owner, delivery.url)
            hidden = msgspec.json.decode(unseal(keys, delivery.sealed, place), type=dict[str, str])
        return {"Content-Type": "application/json", **delivery.headers, **hidden, **signature}

    async def _secret(self, owner: str) -> str | None:
        """The secret that an owner shares with us; None where it has none."""
        reference = self._secrets.get(owner) or self._how.secret
        if not reference:
            return None
        secret = (await self._vault.get(reference)).reveal()
        keys_of(secret)
        return secret

    async def _own_key(self) -> OwnKey:
        try:
            if self._own_keys is not None:
                return await self._own_keys.key(KEY)
            why = ""
        except SetupError as error:
            why = f" {error.message}"
        raise SetupError(
            "This gateway cannot sign callbacks, so it accepts none. The operator must set callbacks.secret "
            f'= "env:NAME", or callback_secret of the client; see docs/how-to/callbacks.md.{why}'
        )

    async def _note(self, lease: Lease, ended: str | None, delivered: float | None) -> None:
        # It goes with the end of its message, which a full disk does not prevent; else it would be sent for ever.
        values = (ended, delivered, lease.attempt, lease.id)
        await self._database.write(lambda tx: tx.run(_NOTE, *values), frees=True, calm=True)


async def rewrap_waiting(database: Database, keys: Sequence[bytes], env: Env) -> int:
    """Put the sealed headers of deliveries that have not ended under the first of the keys; how many."""
    done, seq = 0, 0
    while True:
        rows = await database.all(
            "SELECT seq, id, context, body FROM queue_messages WHERE queue = ? AND seq > ? ORDER BY seq LIMIT 100",
            NAME,
            seq,
        )
        for row in rows:
            seq, before = row["seq"], bytes(row["body"])
            with suppress(SetupError, msgspec.MsgspecError):  # another secret sealed it, or it is damaged
                delivery = msgspec.json.decode(before, type=Delivery)
                place = _place(delivery.owner, delivery.url)
                if not delivery.sealed or is_sealed_with(keys[0], delivery.sealed):
                    continue
                sealed = rewrap(keys, delivery.sealed, env) or seal(
                    keys[0], unseal(keys, delivery.sealed, place), place, env
                )
                body = msgspec.json.encode(replace(delivery, sealed=sealed))
                values = body, checksum(row["id"], row["context"], body), row["id"], seq
                done += await database.write(partial(_put_back, values=values))
        if len(rows) < 100:
            return done


async def _put_back(tx: Transaction, values: tuple[bytes, int, str, int]) -> int:
    return await tx.run("UPDATE queue_messages SET body = ?, checksum = ? WHERE id = ? AND seq = ?", *values)


def _place(owner: str, url: str) -> str:
    """What sealed headers belong to: they open for no other owner and no other address."""
    return f"{owner}\n{url}"


def _context(owner: str, url: str) -> str:
    """Who is told where: by host rather than by URL, so that many URLs of one slow host are no way past the others."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.lower()} {owner}"[:1_000]


def _receipt(row: Row) -> Receipt:
    """What is known of a delivery: after its end from its own row, else from its message."""
    state: State
    if row["delivered"] is not None:
        state = "delivered"
    elif row["ended"] == "refused":
        state = "refused"
    elif row["state"] is None:
        state = "dropped"
    elif row["state"] == "dead":
        state = "gone" if row["ended"] == "gone" else "dead"
    else:
        state = "sending" if row["state"] == "leased" else "waiting"
    failures: Sequence[tuple[float, int, str]] = msgspec.json.decode(row["history"]) if row["history"] else ()
    return Receipt(
        id=row["id"],
        event=row["event"],
        url=row["url"],
        status=state,
        attempts=row["made"] if row["attempts"] is None else row["attempts"],
        created=row["created"],
        delivered=row["delivered"],
        next_attempt=row["due"] if row["state"] == "delayed" else None,
        reason=failures[-1][2] if failures and state != "delivered" else None,
    )
