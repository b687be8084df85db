"""Approvals: calls that wait for somebody's yes, who gives it, and the jobs that go on when it is there.

A call that has to be approved ends its turn with a question that is not the caller's to answer, and so becomes a job.
Its row is written in the transaction that ends the turn; a decision is one compare-and-set with its audit record, so
that of two answers one counts. The job then goes on by a turn of its own, in the gateway that heard of the decision, or
in whichever looks next: nothing depends on the process that asked.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, Literal

import msgspec
from msgspec import Struct, UnsetType

from agent3.calls.jobs import Job
from agent3.calls.jobs.rows import RowReader, decode_job
from agent3.env import Env
from agent3.errors import AccessError, Agent3Error, Conflict, NotFound, SetupError, TurnTaken
from agent3.model import Call, Capability, Event, Needs, Part, Principal, Question, text_of
from agent3.observe.logs import get as logger
from agent3.observe.metrics import Metrics
from agent3.security.access import may_operate
from agent3.security.arguments import check_conditions
from agent3.security.sanitize import clean_text, escape_text
from agent3.security.sensitive import Sensitive
from agent3.settings import ApprovalRule
from agent3.storage import Database, Row, Transaction
from agent3.storage.audit import record_change
from agent3.storage.rests import delete_in_pieces

__all__ = ["APPROVE", "LOOK_EVERY", "QUESTION", "Approvals", "Request", "Status", "find_request"]

log = logger("approvals")

APPROVE = "agent3:approve"
"""The scope of clients that may approve calls of others."""
QUESTION = "approval"
"""The id of the question that such a call ends with."""
LOOK_EVERY = 1.0
"""Seconds between two looks for decisions of other processes, and for what nobody decided in time."""
Status = Literal["waiting", "approved", "denied", "withdrawn", "expired"]

_STATE = "agent3:approval"
_AT_ONCE = 100
_PAGE, _MOST_READ = 500, 10_000
"""Rows that are read at a time, and in all, to find those that one who is named by a rule may see."""
_START = (0.0, "")
_LONGEST_REASON = 500
_LONGEST_INPUT = 1_000
_UNSETTLED = (
    "SELECT approvals.*, jobs.status AS job_status FROM approvals LEFT JOIN jobs ON jobs.id = approvals.job "
    "WHERE approvals.settled IS NULL AND (approvals.status <> 'waiting' OR approvals.expires <= ?) "
    "AND (approvals.expires > ? OR (approvals.expires = ? AND approvals.id > ?)) "
    "ORDER BY approvals.expires, approvals.id LIMIT ?"
)


def _show(given: Any, sensitive: Sensitive | None) -> str:
    """The input of a call, for who is to say yes to it."""
    text = msgspec.json.encode(given if sensitive is None else sensitive.hide_input(given)).decode()
    return escape_text(text if len(text) <= _LONGEST_INPUT else f"{text[:_LONGEST_INPUT]}… (cut)")


class Request(Struct, frozen=True, omit_defaults=True):
    """What a waiting call keeps in its job: which approval it waits for, and what it will do with it."""

    id: str
    why: str
    expires: float
    approvers: tuple[str, ...] = ()
    itself: bool = False
    input: Any = None

    def to_state(self) -> dict[str, Any]:
        """As the state of the turn that ends with the question."""
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        return {_STATE: fields | {"approvers": list(self.approvers)}}


def find_request(state: Any) -> Request | None:
    """The approval that a job waits for, by the state of its last turn; None where it waits for something else."""
    if isinstance(state, dict) and _STATE not in state and isinstance(state.get("state"), dict):
        state = state["state"]  # ``resolve`` has put what it understood around it
    found = state.get(_STATE) if isinstance(state, dict) else None
    if not isinstance(found, dict):
        return None
    return Request(**{**found, "approvers": tuple(found.get("approvers", ()))})


class Approvals:
    """The approvals of one database, and the rules that ask for them."""

    def __init__(
        self, database: Database, env: Env, metrics: Metrics, rules: Sequence[ApprovalRule] = (), keep_days: float = 7.0
    ):
        self._database = database
        self._env = env
        self._metrics = metrics
        self._rules = tuple(rules)
        self._longest = keep_days * 86_400.0 * 0.9  # the job that waits must still be there
        self._looked = _START
        self._reader = RowReader(metrics)
        self.on_decision: Callable[[Job], Awaitable[object]] | None = None
        """Goes on with a job whose approval was decided; None where this process runs no jobs."""
        for number, rule in enumerate(self._rules, 1):
            check_conditions(rule.arguments, f"approvals, rule {number}")
            if rule.hours < 0:
                raise SetupError(f"approvals, rule {number}: hours = {rule.hours:g} must not be negative.")

    # Asking

    def match(self, principal: Principal, agent: str, capability: Capability) -> tuple[ApprovalRule, ...]:
        """The rules that may ask for a call's approval, whatever its arguments are."""
        names = [(agent, capability.name)]
        names += [(one.agent, one.capability) for route in capability.routes if (one := route.stand_in) is not None]
        return tuple(
            rule
            for rule in self._rules
            if fnmatchcase(principal.id, rule.principal)
            and (not rule.consequential or capability.hints.consequential)
            and any(fnmatchcase(whose, rule.agent) and fnmatchcase(name, rule.capability) for whose, name in names)
        )

    def ask(self, rule: ApprovalRule, call: Call, sensitive: Sensitive | None = None) -> Needs:
        """The question of a call that needs somebody's yes; of what is ``sensitive`` it shows a hash."""
        now = self._env.now()
        request = Request(
            self._env.id(),
            rule.why or f"Calls to {call.agent}.{call.capability} need approval.",
            now + min(rule.hours * 3_600.0, self._longest),
            rule.approvers,
            rule.itself,
            call.input,
        )
        self._metrics.approvals.inc(("asked",))
        return self.ask_again(request, call, sensitive)

    def ask_again(self, request: Request, call: Call, sensitive: Sensitive | None = None) -> Needs:
        """The same for an approval that is asked for already."""
        hours = max(0.0, request.expires - self._env.now()) / 3_600.0
        who = ", ".join(request.approvers) or f"operators and clients with the scope {APPROVE}"
        text = f"{call.agent}.{call.capability} needs approval: {request.why}"
        if request.itself:
            if request.input is not None:
                text += f"Input: {_show(request.input, sensitive)}."
            text += f"Approve it? It expires in {hours:.1f} hours."
            return Needs((Question(QUESTION, text, {"type": "boolean"}),), state=request.to_state())
        text += (
            f"This call waits for approval by {who}, for at most {hours:.1f} hours (approval {request.id}). It "
            "then continues by itself."
        )
        return Needs((Question(QUESTION, text, by=who),), state=request.to_state())

    def concerns(self, job: Job) -> bool:
        """A job of which nobody waits for an answer has nothing to do with approvals."""
        return False

    async def on_turn_end(self, tx: Transaction, job: Job) -> None:
        """Write down what a job waits for, in the transaction that ends its turn."""
        if not isinstance(job.outcome, Needs) or (request := find_request(job.state)) is None:
            return
        await tx.run(
            "INSERT INTO approvals (id, job, owner, tenant, agent, capability, why, approvers, itself, asked, expires, "
            "status) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'waiting') ON CONFLICT (id) DO NOTHING",
            *(request.id, job.id, job.owner, job.call.principal.tenant, job.call.agent, job.call.capability),
            *(request.why, "\n".join(request.approvers), int(request.itself), self._env.now(), request.expires),
        )

    async def on_events(self, tx: Transaction, job: Job, events: Sequence[Event]) -> None:
        """Events say nothing of approvals."""

    async def read_status(self, request: Request) -> tuple[Status, str | None, str | None]:
        """How an approval stands, who decided it, and why."""
        row = await self._database.one("SELECT * FROM approvals WHERE id = ?", request.id)
        if row is None or (row["status"] == "waiting" and row["expires"] <= self._env.now()):
            return "expired", None, None
        return row["status"], row["decided_by"], row["reason"]

    # Deciding

    async def list(self, principal: Principal, *, waiting: bool = True, limit: int = 50) -> list[dict[str, Any]]:
        """The approvals that a principal asked for or may see, the oldest first; with all, the latest first."""
        where = "1 = 1"
        values: list[object] = []
        if not may_operate(principal) and APPROVE not in principal.scopes:
            # Whoever is named by a rule is found among all that have such a rule; the rest see what they asked for.
            where, values = "(approvals.owner = ? OR approvals.approvers <> '')", [principal.id]
        if principal.tenant is not None:
            where, values = f"{where} AND approvals.tenant = ?", [*values, principal.tenant]
        order = "approvals.asked DESC"
        if waiting:
            where += " AND approvals.settled IS NULL AND approvals.status = 'waiting' AND approvals.expires > ?"
            where += " AND jobs.status = 'needs'"
            values, order = [*values, self._env.now()], "approvals.asked"
        sql = (
            "SELECT approvals.* FROM approvals LEFT JOIN jobs ON jobs.id = approvals.job "
            f"WHERE {where} ORDER BY {order}, approvals.id LIMIT ? OFFSET ?"
        )
        limit, seen = max(1, min(limit, 1_000)), []
        for offset in range(0, _MOST_READ, _PAGE):
            rows = await self._database.all(sql, *values, _PAGE, offset)
            seen += [row for row in rows if row["owner"] == principal.id or self._sees(principal, row)]
            if len(rows) < _PAGE or len(seen) >= limit:
                break
        return [self._describe(principal, row) for row in seen[:limit]]

    async def show(self, principal: Principal, approval: str) -> dict[str, Any]:
        """One approval, with what the call will be made with: its input, its words, and its files by name and size."""
        row = await self._get(principal, approval)
        found = self._describe(principal, row)
        stored = await self._database.one("SELECT * FROM jobs WHERE id = ?", row["job"])
        if stored is not None:
            job = decode_job(stored)
            request = find_request(job.state)
            found["input"] = job.call.input if request is None else request.input
            # Its target gets the words and files as well, and some targets read nothing else.
            if words := text_of(job.call.parts):
                found["message"] = words
            if files := [_describe_file(part) for part in job.call.parts if part.text is None]:
                found["files"] = files
            found["jobStatus"] = job.status
        return found

    async def decide(self, principal: Principal, approval: str, *, approve: bool, reason: str = "") -> dict[str, Any]:
        """Say yes or no; of several only the first counts. NotFound for what the principal may not see.

        AccessError where it may not decide, Conflict where it is decided already, over, or its job is.
        """
        row = await self._get(principal, approval)
        if not self._may_decide(principal, row):
            raise AccessError(
                f"{principal.id} made this call and may not approve it. {_say_who(row)} can. A rule with "
                "itself = true lets callers approve their own calls."
                if row["owner"] == principal.id
                else f"{principal.id} may not decide approval {approval[:64]}. {_say_who(row)} can."
            )
        stored = await self._database.one("SELECT status FROM jobs WHERE id = ?", row["job"])
        if row["status"] == "waiting" and (stored is None or stored["status"] not in ("needs", "working")):
            raise Conflict(f"Approval {row['id']} is no longer needed: its call was cancelled or has ended.")
        status: Status = "approved" if approve else "denied"
        if not await self._write(row["id"], status, principal.id, reason):
            row = await self._get(principal, approval)
            why = f"is already {row['status']}" if row["status"] != "waiting" else "has expired without a decision"
            raise Conflict(f"Approval {row['id']} {why}.")
        self._metrics.approvals.inc((status,))
        row = await self._get(principal, approval)
        await self._go_on(row)
        return self._describe(principal, row)

    async def decide_own(self, request: Request, call: Call, *, approve: bool) -> bool:
        """The caller's own word on its call, where the rule lets it decide; False where it came too late."""
        status: Status = "approved" if approve else "withdrawn"
        if not await self._write(request.id, status, call.principal.id, ""):
            return False
        self._metrics.approvals.inc((status,))
        return True

    async def find_waiting(self, principal: Principal, job: str) -> str | None:
        """The approval that a job of another caller waits for, if the principal may decide it."""
        rows = await self._database.all("SELECT * FROM approvals WHERE job = ? AND status = 'waiting'", job)
        return next(
            (row["id"] for row in rows if self._sees(principal, row) and self._may_decide(principal, row)), None
        )

    async def _write(self, approval: str, status: Status, who: str, reason: str) -> bool:
        now, reason = self._env.now(), clean_text(reason[:_LONGEST_REASON])  # who reads it is another than who wrote it

        async def work(tx: Transaction) -> bool:
            changed = await tx.run(
                "UPDATE approvals SET status = ?, decided = ?, decided_by = ?, reason = ? "
                "WHERE id = ? AND status = 'waiting' AND expires > ?",
                *(status, now, who, reason, approval, now),
            )
            if changed:
                await record_change(tx, self._env, f"call {status}", approval, reason.encode() or None, who)
            return bool(changed)

        return await self._database.write(work)

    # Going on

    async def settle(self) -> int:
        """Go on with jobs whose approval was decided elsewhere or before a restart, or came too late; how many."""
        expires, last = self._looked
        rows = await self._database.all(_UNSETTLED, self._env.now(), expires, expires, last, _AT_ONCE)
        # The next look goes on behind these: many that cannot go on yet keep none of the others waiting.
        self._looked = (rows[-1]["expires"], rows[-1]["id"]) if len(rows) == _AT_ONCE else _START
        for row in rows:
            if row["status"] == "waiting":
                ended: Status = "expired" if row["job_status"] == "needs" else "withdrawn"
                if await self._database.write(partial(_end_unanswered, ended, row["id"], self._env.now())):
                    self._metrics.approvals.inc((ended,))
            await self._go_on(row)
        return len(rows)

    async def _go_on(self, row: Row) -> None:
        """Have the job go on, and note that it does. Whoever comes later finds it no longer waiting."""
        stored = await self._database.one("SELECT * FROM jobs WHERE id = ?", row["job"])
        job = None if stored is None else self._reader.find_job(stored)
        if job is None and stored is not None:
            return  # it cannot be read, which was logged and counted; the others go on
        if job is not None and job.status == "needs" and (waits := find_request(job.state)) and waits.id == row["id"]:
            if self.on_decision is None:
                return  # a gateway does it
            try:
                await self.on_decision(job)
            except (NotFound, TurnTaken):
                return  # the agent lives in another process, or the caller asks just now: the next look sees
            except Agent3Error as error:
                log.warning("job %s cannot continue yet: %s", job.id, error)
                return
        elif job is not None and job.status == "working":
            return
        now = self._env.now()
        await self._database.write(
            lambda tx: tx.run("UPDATE approvals SET settled = ? WHERE id = ? AND settled IS NULL", now, row["id"])
        )

    async def expire(self, days: float) -> int:
        """Remove approvals that were settled so many days ago."""
        before = self._env.now() - max(days, 1.0) * 86_400.0
        settled = "asked < ? AND settled IS NOT NULL"
        return await delete_in_pieces(self._database, self._env, "approvals", settled, before)

    # Who

    async def _get(self, principal: Principal, approval: str) -> Row:
        row = await self._database.one("SELECT * FROM approvals WHERE id = ?", approval)
        if row is None or not (self._sees(principal, row) or row["owner"] == principal.id):
            raise NotFound(f"Approval {approval[:64]!r} does not exist for you. See agent3 approvals list.")
        return row

    def _sees(self, principal: Principal, row: Row) -> bool:
        """Whether it concerns a principal: one that may decide it, apart from having asked for it."""
        if principal.tenant is not None and principal.tenant != row["tenant"]:
            return False
        named = [one for one in row["approvers"].split("\n") if one]
        if not named:
            return may_operate(principal) or APPROVE in principal.scopes
        if may_operate(principal) and principal.kind == "local":
            return True  # whoever holds the database sees it; that does not make them an approver
        return _is_named(principal, named)

    def _may_decide(self, principal: Principal, row: Row) -> bool:
        if row["owner"] == principal.id and not row["itself"]:
            return False
        if not self._sees(principal, row):
            return bool(row["owner"] == principal.id and row["itself"])
        named = [one for one in row["approvers"].split("\n") if one]
        return not named or _is_named(principal, named) or bool(row["owner"] == principal.id and row["itself"])

    def _describe(self, principal: Principal, row: Row) -> dict[str, Any]:
        status = row["status"]
        if status == "waiting" and row["expires"] <= self._env.now():
            status = "expired"
        return {
            "id": row["id"],
            "status": status,
            "who": row["owner"],
            "agent": row["agent"],
            "capability": row["capability"],
            "why": row["why"],
            "asked": row["asked"],
            "until": row["expires"],
            "job": row["job"],
            "approvers": [one for one in row["approvers"].split("\n") if one],
            "decidedBy": row["decided_by"],
            "decidedAt": row["decided"],
            "reason": row["reason"] or None,
            "youMayDecide": status == "waiting" and self._may_decide(principal, row),
        }


def _describe_file(part: Part) -> dict[str, Any]:
    described: dict[str, Any] = {"name": part.name, "mediaType": part.media_type}
    if part.raw is not None:
        described["size"] = len(part.raw)
    elif part.url is not None:
        described["url"] = part.url
    elif not isinstance(part.data, UnsetType):
        described["data"] = part.data
    return described


async def _end_unanswered(status: Status, approval: str, now: float, tx: Transaction) -> int:
    return await tx.run(
        "UPDATE approvals SET status = ? WHERE id = ? AND status = 'waiting' AND expires <= ?", status, approval, now
    )


def _is_named(principal: Principal, named: Sequence[str]) -> bool:
    for one in named:
        kind, _, scope = one.partition(":")
        if kind == "scope" and scope:
            if scope in principal.scopes:
                return True
        elif fnmatchcase(principal.id, one):
            return True
    return False


def _say_who(row: Row) -> str:
    named = [one for one in row["approvers"].split("\n") if one]
    return ", ".join(named) if named else f"Another operator, or a client with the scope {APPROVE},"
