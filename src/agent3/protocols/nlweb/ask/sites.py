"""Websites that answer questions by themselves, as agents: the NLWeb protocol under the house's own words.

An Answer is Done, an Elicitation asks back, a Promise goes on elsewhere and is looked after, a Failure failed. What
the protocol looks like is known in ``ask``.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import msgspec

from agent3.calls.outcomes import failed_by
from agent3.errors import (
    Agent3Error,
    Canceled,
    Declined,
    Interrupted,
    MalformedResponse,
    Rejected,
    TargetError,
    ValidationError,
)
from agent3.identity.secrets import Secret
from agent3.model import (
    Agent,
    Call,
    Capability,
    Done,
    Event,
    Hints,
    Needs,
    Outcome,
    Part,
    Question,
    Route,
    Working,
    text_of,
)
from agent3.protocols.nlweb.ask.wire import Asker, Dialect, Reply, Result, Wish, endpoint_of
from agent3.security.outbound import Gate, Policy

__all__ = ["ASK", "Sites"]

ASK = "ask"
"""The one capability of such a site, and what its routes say that they speak."""
_PROBE = "hello"
"""A question that costs a site little."""
_PROBE_SECONDS = 15.0
_SECONDS = 60.0
_COURTESY = 5.0
_LONGEST_POLL = 30.0
_MODES = ["list", "summarize", "generate"]


class Sites:
    """Reaches sites that answer questions. One for each gateway; it belongs to the event loop it is used in."""

    def __init__(self, policy: Policy | None = None):
        self._policy = policy or Policy()
        self._gates: dict[str, Gate] = {}

    async def describe(self, address: str) -> Agent:
        """The site as an agent, once it has answered a question. A TargetError says that it does not answer any.

        Whoever adds an address vouches for it: it may be on this machine.
        """
        asker = Asker(address, self._gate(address, registered=True))
        await asker.ask(Wish(text=_PROBE, most=1, stream=False), seconds=_PROBE_SECONDS)
        assert asker.dialect is not None
        return _agent(address, asker.dialect)

    async def call(self, call: Call) -> Outcome:
        """One turn of a question. Cancelling it takes a promise back."""
        assert call.route is not None
        try:
            return await self._turn(call, self._asker(call.route, call.secret))
        except Agent3Error as wrong:
            return failed_by(wrong)

    async def aclose(self) -> None:
        """Close all connections."""
        gates, self._gates = self._gates, {}
        for gate in gates.values():
            await gate.aclose()

    # Inside

    async def _turn(self, call: Call, asker: Asker) -> Outcome:
        state: Mapping[str, Any] = call.state if isinstance(call.state, dict) else {}
        token = state.get("token")
        if call.entry == "cancel":
            await _take_back(asker, token)
            raise Canceled(f"The question to {call.agent} was cancelled.")
        if call.entry == "attach":
            if not token:
                raise Interrupted(f"{call.agent} was interrupted. Ask again.")
            return _outcome(await asker.check_in(str(token)), call, state)
        wish = _answered(call, state) if call.entry == "answer" else _wish(call)
        reply = await asker.ask(wish, seconds=call.timeout or _SECONDS, on_piece=_telling(call))
        return _outcome(reply, call, {"query": wish.text, "previous": list(wish.previous)})

    def _asker(self, route: Route, secret: Secret | None) -> Asker:
        headers = {} if secret is None else {"Authorization": f"Bearer {secret.reveal()}"}
        dialect: Dialect | None = route.meta.get("dialect")
        return Asker(route.address, self._gate(route.address, bool(route.meta.get("registered"))), dialect, headers)

    def _gate(self, address: str, registered: bool) -> Gate:
        """A gate that also lets to the host that the operator named, wherever it is."""
        host = urlsplit(address).netloc.rpartition("@")[2] if registered else ""
        if host not in self._gates:
            hosts = self._policy.allow_hosts | ({host} if host else frozenset())
            self._gates[host] = Gate(replace(self._policy, allow_hosts=hosts))
        return self._gates[host]


async def _take_back(asker: Asker, token: Any) -> None:
    """Tell a site that nobody waits any more; a site that does not listen changes nothing."""
    if token:
        with suppress(Agent3Error, TimeoutError):
            async with asyncio.timeout(_COURTESY):
                await asker.check_in(str(token), cancel=True)


# Describing


def _agent(address: str, dialect: Dialect) -> Agent:
    host = urlsplit(address).hostname or "site"
    route = Route("nlweb", endpoint_of(address), ASK, meta={"speaks": ASK, "dialect": dialect, "registered": True})
    capability = Capability(
        name=ASK,
        description=f"Ask {host} in plain words; it answers with what it has, as a list or in a text.",
        input_schema=_INPUT,
        output_schema=_OUTPUT,
        hints=Hints(read_only=True),
        routes=(route,),
        timeout=_SECONDS,
        meta={"reads": "messages"},
    )
    return Agent(
        id=re.sub(r"[^a-z0-9._-]+", "-", host.lower()).strip("-.")[:64] or "site",
        name=host,
        description=f"Answers questions about what {host} has",
        tags=("nlweb",),
        capabilities=(capability,),
        source=address,
        card={"protocol": "nlweb", "speaks": ASK, "version": dialect},
    )


_INPUT: dict[str, Any] = {
    "type": "object",
    "properties": {
        "query": {"type": "string", "minLength": 1, "description": "What you want to know, in plain words"},
        "site": {"type": "string", "description": "Only this part of the site"},
        "mode": {"enum": _MODES, "description": "A list of what was found, or a text about it"},
        "previous": {"type": "array", "items": {"type": "string"}, "description": "What you asked before"},
        "max_results": {"type": "integer", "minimum": 1, "maximum": 100},
    },
    "required": ["query"],
    "additionalProperties": False,
}
_OUTPUT: dict[str, Any] = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "results": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "name": {"type": "string"},
                    "url": {"type": "string"},
                    "type": {"type": "string"},
                    "score": {"type": ["number", "null"]},
                    "description": {"type": "string"},
                    "actions": {"type": "array"},
                    "raw": {"type": "object"},
                },
            },
        },
    },
    "required": ["results"],
}


# Asking


def _wish(call: Call) -> Wish:
    given: Mapping[str, Any] = call.input if isinstance(call.input, dict) else {}
    text = str(given.get("query") or text_of(call.parts)).strip()
    if not text:
        raise ValidationError("The question is empty. Give it as message, or as query of the input.")
    previous = tuple(str(one) for one in given.get("previous") or ())
    site, mode, most = given.get("site"), given.get("mode"), given.get("max_results")
    return Wish(text=text, site=site, mode=mode, previous=previous, most=most)


def _answered(call: Call, state: Mapping[str, Any]) -> Wish:
    """What the person said to the questions of the site. Of several, each answer stands on a line after its id."""
    said: dict[str, Any] = {}
    for question in call.questions:
        answer = call.answers.get(question.id)
        if answer is None or answer.action != "accept":
            raise Declined(f"The question {question.text!r} was not answered, and nothing more was asked.")
        said[question.id] = answer.data
    lines = [f"{name}: {_line(value)}" for name, value in said.items()]
    text = _line(next(iter(said.values()))) if len(said) == 1 else "\n".join(lines)
    previous = (*state.get("previous", ()), *([state["query"]] if state.get("query") else ()))
    return Wish(text=text, previous=previous, session=state.get("session"))


def _line(value: Any) -> str:
    if isinstance(value, dict) and len(value) == 1:
        value = next(iter(value.values()))  # a form with one field
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return " ".join(text.split())


def _telling(call: Call) -> Any:
    """Tells how many were found whenever it is more than before: a site may stream any number of empty pieces."""
    told = 0

    def tell(reply: Reply) -> None:
        nonlocal told
        if len(reply.results) > told:
            told = len(reply.results)
            call.emit(Event("progress", text=f"{told} found", done=float(told)))

    return tell


# What came of it


def _outcome(reply: Reply, call: Call, state: Mapping[str, Any]) -> Outcome:
    kept = {**state, **({"session": reply.session} if reply.session else {})}
    if reply.kind == "Elicitation":
        if not reply.questions:
            raise MalformedResponse(f"{call.agent} asks back without a question.")
        return Needs(tuple(_question(one, reply.text) for one in reply.questions), state=kept)
    if reply.kind == "Promise":
        if not reply.token:
            raise MalformedResponse(f"{call.agent} promises an answer and says not how to ask for it.")
        poll = min(max(reply.seconds or 1.0, 0.2), _LONGEST_POLL)
        return Working(state={**kept, "token": reply.token}, poll=poll)
    if reply.kind == "Failure":
        raise _failure(reply, call)
    return Done((Part(data=_shown(reply)),), meta={"query": reply.query} if reply.query else {})


def _failure(reply: Reply, call: Call) -> TargetError:
    words = reply.message or reply.code or "it did not say why"
    kind = Rejected if reply.code in ("INVALID_REQUEST", "MISSING_FIELD", "INVALID_QUERY") else TargetError
    return kind(f"{call.agent}: {words[:2000]}", data={"code": reply.code} if reply.code else {})


def _question(one: Mapping[str, Any], intro: str) -> Question:
    options = [str(each) for each in one.get("options") or ()]
    text = str(one.get("text") or intro or "?")
    chosen: dict[str, Any] = {"type": "string", "enum": options} if options else {"type": "string"}
    several = one.get("type") == "multi_select"
    return Question(str(one.get("id") or "answer"), text, {"type": "array", "items": chosen} if several else chosen)


def _shown(reply: Reply) -> dict[str, Any]:
    body: dict[str, Any] = {"results": [_row(one) for one in reply.results]}
    return {"text": reply.text, **body} if reply.text else body


def _row(one: Result) -> dict[str, Any]:
    row: dict[str, Any] = msgspec.to_builtins(one)
    return row
