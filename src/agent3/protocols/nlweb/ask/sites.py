"""Websites that answer questions by themselves, as agents: the NLWeb protocol in terms of our own model.

An Answer is Done, an Elicitation asks back, a Promise continues elsewhere and is polled, a Failure failed. The protocol
itself is known in ``wire``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
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
    agent_id,
    text_of,
)
from agent3.protocols.nlweb.ask.wire import AskClient, Query, Reply, endpoint_of
from agent3.security.outbound import Gate, Policy

__all__ = ["ASK", "Sites"]

ASK = "ask"
"""The only capability of such a site, and the mark of its routes (``speaks``)."""
_PROBE = Query(text="hello", max_results=1, stream=False)
"""A question that costs a site little."""
_PROBE_SECONDS = 15.0
_SECONDS = 60.0
_CANCEL_SECONDS = 5.0
_LONGEST_POLL = 30.0
_REJECTIONS = frozenset({"INVALID_REQUEST", "MISSING_FIELD", "INVALID_QUERY"})
_INPUT: dict[str, Any] = {
    "type": "object",
    "properties": {
        "query": {"type": "string", "minLength": 1, "description": "The question, in plain words"},
        "site": {"type": "string", "description": "Only this part of the site"},
        "mode": {
            "enum": ["list", "summarize", "generate"],
            "description": "A list of results, or a text about them",
        },
        "previous": {"type": "array", "items": {"type": "string"}, "description": "Your earlier questions"},
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


class Sites:
    """Reaches sites that answer questions. One for each gateway; it belongs to the event loop it is used in."""

    def __init__(self, policy: Policy | None = None):
        self._policy = policy or Policy()
        self._gates: dict[str, Gate] = {}

    async def describe(self, address: str, registered: bool = True) -> Agent:
        """The site as an agent, once it has answered a question. A TargetError says that it does not answer any.

        ``registered`` says that the operator chose the address: it may be on this machine.
        """
        client = AskClient(address, self._gate(address, registered))
        await client.ask(_PROBE, seconds=_PROBE_SECONDS)
        host = urlsplit(address).hostname or "site"
        meta = {"speaks": ASK, "dialect": client.dialect, **({"registered": True} if registered else {})}
        capability = Capability(
            name=ASK,
            description=f"Ask {host} in plain words; it answers with a list or a text.",
            input_schema=_INPUT,
            output_schema=_OUTPUT,
            hints=Hints(read_only=True),
            routes=(Route("nlweb", endpoint_of(address), ASK, meta=meta),),
            timeout=_SECONDS,
            meta={"reads": "messages"},
        )
        return Agent(
            id=agent_id(host, "website"),
            name=host,
            description=f"Answers questions about the content of {host}",
            tags=("nlweb",),
            capabilities=(capability,),
            source=address,
            card={"protocol": "nlweb", "speaks": ASK, "version": client.dialect},
        )

    async def call(self, call: Call) -> Outcome:
        """One turn of a question. Cancelling it cancels a promise."""
        route = call.route
        assert route is not None
        try:
            gate = self._gate(route.address, bool(route.meta.get("registered")))
            headers = {} if call.secret is None else {"Authorization": f"Bearer {call.secret.reveal()}"}
            client = AskClient(route.address, gate, route.meta.get("dialect"), headers)
            state: Mapping[str, Any] = call.state if isinstance(call.state, dict) else {}
            token = state.get("token")
            if call.entry == "cancel":
                if token:
                    # A courtesy: a site that does not listen changes nothing.
                    with suppress(Agent3Error, TimeoutError):
                        async with asyncio.timeout(_CANCEL_SECONDS):
                            await client.check_in(str(token), cancel=True)
                raise Canceled(f"The question to {call.agent} was cancelled.")
            if call.entry == "attach":
                if not token:
                    raise Interrupted(f"{call.agent} was interrupted. Ask again.")
                return _make_outcome(await client.check_in(str(token)), call, state)
            query = _read_answers(call, state) if call.entry == "answer" else _read_question(call)
            reported = 0

            def report(reply: Reply) -> None:
                # Only progress: a site may stream any number of empty pieces.
                nonlocal reported
                if len(reply.results) > reported:
                    reported = len(reply.results)
                    call.emit(Event("progress", text=f"{reported} found", done=float(reported)))

            reply = await client.ask(query, seconds=call.timeout or _SECONDS, on_piece=report)
            return _make_outcome(reply, call, {"query": query.text, "previous": list(query.previous)})
        except Agent3Error as error:
            return failed_by(error)

    async def aclose(self) -> None:
        gates, self._gates = self._gates, {}
        for gate in gates.values():
            await gate.aclose()

    def _gate(self, address: str, registered: bool) -> Gate:
        """A gate that also leads to the host that the operator registered, wherever it is."""
        host = urlsplit(address).netloc if registered else ""
        if host not in self._gates:
            self._gates[host] = Gate(self._policy.registering(address) if host else self._policy)
        return self._gates[host]


def _read_question(call: Call) -> Query:
    given: Mapping[str, Any] = call.input if isinstance(call.input, dict) else {}
    text = str(given.get("query") or text_of(call.parts)).strip()
    if not text:
        raise ValidationError("The question is empty. Send it as message, or as query in the input.")
    return Query(
        text=text,
        site=given.get("site"),
        mode=given.get("mode"),
        previous=tuple(str(question) for question in given.get("previous") or ()),
        max_results=given.get("max_results"),
    )


def _read_answers(call: Call, state: Mapping[str, Any]) -> Query:
    """The answers to the site's questions as a text. If there are several, each is on a line after its id."""
    answers: dict[str, str] = {}
    for question in call.questions:
        answer = call.answers.get(question.id)
        if answer is None or answer.action != "accept":
            raise Declined(f"The question {question.text!r} was not answered.")
        value = answer.data
        if isinstance(value, dict) and len(value) == 1:  # a form with one field
            value = next(iter(value.values()))
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        answers[question.id] = " ".join(text.split())
    lines = [f"{name}: {text}" for name, text in answers.items()]
    text = next(iter(answers.values())) if len(answers) == 1 else "\n".join(lines)
    previous = (*state.get("previous", ()), *([state["query"]] if state.get("query") else ()))
    return Query(text=text, previous=previous, session=state.get("session"))


def _make_outcome(reply: Reply, call: Call, state: Mapping[str, Any]) -> Outcome:
    state = {**state, **({"session": reply.session} if reply.session else {})}
    if reply.kind == "Elicitation":
        if not reply.questions:
            raise MalformedResponse(f"{call.agent} asks back without giving a question.")
        questions = []
        for question in reply.questions:
            options = question.get("options")
            choices = [str(option) for option in options] if isinstance(options, list) else []
            schema: dict[str, Any] = {"type": "string", "enum": choices} if choices else {"type": "string"}
            if question.get("type") == "multi_select":
                schema = {"type": "array", "items": schema}
            text = str(question.get("text") or reply.text or "?")
            questions.append(Question(str(question.get("id") or "answer"), text, schema))
        return Needs(tuple(questions), state=state)
    if reply.kind == "Promise":
        if not reply.token:
            raise MalformedResponse(f"{call.agent} promises an answer without a token to fetch it.")
        poll = min(max(reply.seconds or 1.0, 0.2), _LONGEST_POLL)
        return Working(state={**state, "token": reply.token}, poll=poll)
    if reply.kind == "Failure":
        reason = reply.message or reply.code or "no reason given"
        kind = Rejected if reply.code in _REJECTIONS else TargetError
        raise kind(f"{call.agent}: {reason[:2000]}", data={"code": reply.code} if reply.code else {})
    body: dict[str, Any] = {"text": reply.text} if reply.text else {}
    body["results"] = msgspec.to_builtins(reply.results)
    return Done((Part(data=body),), meta={"query": reply.query} if reply.query else {})
