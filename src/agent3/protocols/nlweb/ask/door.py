"""The door of NLWeb: ``/ask``, ``/await`` and ``/who``, in version 0.54 and, for ``/ask``, in the older flat form.

A question to ``all`` finds agents; one to a ``site``, which is the id of an agent, is a call of that agent. What a call
asks back is an Elicitation, what takes long a Promise, and both are the house's own jobs, known to their owner alone.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, Literal
from urllib.parse import quote

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from agent3 import jsonrpc
from agent3.calls.outcomes import error_of
from agent3.errors import (
    Agent3Error,
    AgentNotFound,
    Canceled,
    JobNotFound,
    MethodNotAllowed,
    NotFound,
    RateLimited,
    RequestError,
    ValidationError,
)
from agent3.gateway import Caller, CallRequest
from agent3.identity.doorkeeper import Doorkeeper
from agent3.model import Agent, Answer, Done, Failed, Needs, Outcome, Working, text_of, value_of
from agent3.observe.logs import get as logger
from agent3.protocols.nlweb.ask.sites import ASK
from agent3.protocols.nlweb.ask.wire import VERSION
from agent3.protocols.nlweb.commands import joined
from agent3.protocols.nlweb.connector import COMMAND
from agent3.schema.coercion import from_words
from agent3.server.build import Server
from agent3.server.rest import error_response, json_response

__all__ = ["AskDoor", "routes"]

log = logger("ask")

View = Callable[[Request], Awaitable[Response]]
Body = dict[str, Any]

_ALL = "all"
_PATIENCE = 8.0
"""Seconds after which a call that goes on becomes a promise."""
_CHECK_IN = 2.0
_ESTIMATE = 2
_WHO_VERSION = "0.1"
_MOST = 50
_MOST_PREVIOUS = 10
_LONGEST = 2_000
_DEEDS = ("checkin", "cancel")
_READERS = {COMMAND: "text", ASK: "query"}
"""Capabilities that take earlier questions, with where the question itself goes."""
_LINE = re.compile(r"^\s*([\w.-]{1,128})\s*:\s*(.*)$")


class _Query(Struct, frozen=True, forbid_unknown_fields=True):
    """What is asked, with the bounds of the protocol."""

    text: str
    site: str = _ALL
    num_results: int = 50
    max_results: int = 9
    min_score: int = 0
    decontextualized_query: str | None = None


class _Session(Struct, frozen=True):
    conversation_id: str | None = None
    state_token: str | None = None


class _Prefer(Struct, frozen=True):
    streaming: bool | None = None
    response_format: str | None = None
    mode: str | None = None


class _Meta(Struct, frozen=True):
    session_context: _Session | None = None
    start_num: int | None = None


class _Context(Struct, frozen=True):
    """What was said before. Only ``prev`` is looked at; the rest is for who asks a language model."""

    prev: list[Any] | str | None = None

    @property
    def previous(self) -> list[str]:
        """The questions before this one, the latest last: as many, and as much of each, as can matter."""
        said = [self.prev] if isinstance(self.prev, str) else self.prev or []
        texts = [one.strip()[:_LONGEST] for one in said if isinstance(one, str)]
        return [one for one in texts if one][-_MOST_PREVIOUS:]


class _Ask(Struct, frozen=True):
    """The body of ``/ask``. Of the ``context`` the earlier questions count: what leans on them is read with them."""

    query: _Query
    context: _Context = _Context()
    prefer: _Prefer = _Prefer()
    meta: _Meta = _Meta()
    flat: bool = False


class _Await(Struct, frozen=True):
    promise_token: str
    action: Literal["checkin", "cancel"]


class _WhoQuery(Struct, frozen=True):
    text: str
    type: str | None = None
    capabilities: list[str] = []


class AskDoor:
    """The three views. A refusal has the protocol's own form, with the status of what went wrong."""

    def __init__(self, server: Server, doorkeeper: Doorkeeper):
        self._server = server
        self._doorkeeper = doorkeeper
        self._limits = jsonrpc.Limits(body=server.settings.server.max_body)

    def routes(self) -> list[Route]:
        """Where they stand."""
        return [
            Route("/ask", self._guarded(self._ask), methods=["GET", "POST"]),
            Route("/await", self._guarded(self._await), methods=["POST"]),
            Route("/who", self._guarded(self._who), methods=["GET", "POST"]),
        ]

    def _guarded(self, view: View) -> View:
        async def guarded(request: Request) -> Response:
            try:
                return await view(request)
            except Agent3Error as error:
                return _refused(error, who=request.url.path == "/who")
            except Exception:
                log.exception("%s %s failed", request.method, request.url.path)
                return _refused(Agent3Error("Internal error. The gateway's log has the details."), False)

        return guarded

    def _caller(self, request: Request) -> Caller:
        return Caller(self._doorkeeper(request.scope), "ask", None, request.headers.get("traceparent"))

    async def _body(self, request: Request) -> Body:
        if request.method == "GET":
            return dict(request.query_params)
        settings = self._server.settings.server
        raw = await jsonrpc.read_body(request.receive, settings.max_body, settings.body_seconds)
        body = jsonrpc.decode(raw or b"{}", self._limits)
        if not isinstance(body, dict):
            raise ValidationError(f"The body must be a JSON object, got {type(body).__name__}.")
        return body

    # /ask

    async def _ask(self, request: Request) -> Response:
        caller = self._caller(request)
        asked = _asked(await self._body(request))
        _require_intent(request, caller, asked)
        base = str(request.base_url).rstrip("/")
        answer = await self._answer(caller, asked, base)
        if asked.flat:
            return _flat_response(answer, asked)
        if asked.prefer.streaming is False:
            return json_response(answer)
        return StreamingResponse(_pieces(answer), media_type="text/event-stream", headers={"Cache-Control": "no-store"})

    async def _answer(self, caller: Caller, asked: _Ask, base: str) -> Body:
        session = asked.meta.session_context
        if session is not None and session.state_token:
            return self._told(await self._go_on(caller, session.state_token, asked.query.text), asked)
        if asked.query.site in ("", _ALL):
            return _answer_of(await self._found(caller, asked, base), asked)
        return self._told(await self._called(caller, asked), asked)

    async def _found(self, caller: Caller, asked: _Ask, base: str) -> list[Body]:
        """The agents that fit, as objects of schema.org with what can be done with them."""
        start, most = asked.meta.start_num or 0, asked.query.max_results
        found = await self._server.gateway.search(caller, _text(asked), min(_MOST, start + most))
        best = max((one["score"] for one in found["agents"]), default=0.0)
        rows = [_thing(one, _percent(one["score"], best), base) for one in found["agents"]]
        return [one for one in rows if one["score"] >= asked.query.min_score][start : start + most]

    async def _called(self, caller: Caller, asked: _Ask) -> Outcome:
        session = asked.meta.session_context
        request = CallRequest(
            agent=asked.query.site,
            **await self._addressed(caller, asked),
            context=session.conversation_id if session is not None else None,
            detach=True,
        )
        return await self._waited(caller, await self._server.gateway.call(caller, request), _PATIENCE)

    async def _addressed(self, caller: Caller, asked: _Ask) -> Body:
        """The question as the agent takes it: with the earlier ones if it can read them, else in one sentence."""
        previous = asked.context.previous
        if previous and not asked.query.decontextualized_query:
            with suppress(AgentNotFound):  # whether there is one, and for whom, is said by the call
                reader = self._reader(caller, await self._server.directory.get(asked.query.site))
                if reader is not None:
                    given = {_READERS[reader]: asked.query.text, "previous": previous}
                    return {"capability": reader, "input": given}
        return {"message": _text(asked)}

    def _reader(self, caller: Caller, agent: Agent) -> str | None:
        """What of a website takes earlier questions too, if the caller may use it."""
        may = self._server.core.access.narrow
        found = (one for one in agent.capabilities if agent.card.get("protocol") == "nlweb" and one.name in _READERS)
        return next((one.name for one in found if may(caller.principal, agent.id, one.name, one.routes)), None)

    async def _go_on(self, caller: Caller, token: str, text: str) -> Outcome:
        """The next turn of a job that asked, with what the person said."""
        job, _, turn = token.partition(".")
        if not turn.isdecimal():
            raise ValidationError("This state_token is none of this gateway. Give the one of the elicitation.")
        waiting = await self._server.gateway.job(caller, job)
        names = [one.id for one in waiting.questions]
        said = {name: _typed(value, waiting.questions, name) for name, value in _said(text, names).items()}
        answers = {name: Answer("accept", value) for name, value in said.items()}
        outcome = await self._server.gateway.answer(caller, job, answers, int(turn), detach=True)
        return await self._waited(caller, outcome, _PATIENCE)

    async def _waited(self, caller: Caller, outcome: Outcome, seconds: float) -> Outcome:
        if isinstance(outcome, Working) and outcome.job:
            return await self._server.gateway.wait(caller, outcome.job, seconds)
        return outcome

    def _told(self, outcome: Outcome, asked: _Ask | None = None) -> Body:
        """An outcome in the words of the protocol."""
        if isinstance(outcome, Done):
            return _answer_of(_things(outcome), asked)
        if isinstance(outcome, Failed):
            raise error_of(outcome)
        if isinstance(outcome, Needs):
            session = {"state_token": f"{outcome.job}.{outcome.turn}"}
            return {"_meta": _meta("Elicitation", session_context=session), "elicitation": _elicited(outcome)}
        return {
            "_meta": _meta("Promise"),
            "promise": {"token": outcome.job, "estimated_time": max(1, round(outcome.poll or _ESTIMATE))},
        }

    # /await

    async def _await(self, request: Request) -> Response:
        caller = self._caller(request)
        body = await self._body(request)
        if body.get("action") not in _DEEDS or not isinstance(body.get("promise_token"), str):
            raise ValidationError('Send {"promise_token": "…", "action": "checkin"}, or "cancel" as the action.')
        wanted = _read(body, _Await)
        if wanted.action == "cancel":
            outcome = await self._server.gateway.cancel(caller, wanted.promise_token)
            if isinstance(outcome, Failed) and outcome.code == "canceled":
                return json_response(_failure(Canceled("The promise was cancelled.")))
        else:
            outcome = await self._server.gateway.wait(caller, wanted.promise_token, _CHECK_IN)
        return json_response(self._told(outcome))

    # /who

    async def _who(self, request: Request) -> Response:
        caller = self._caller(request)
        body = await self._body(request)
        wanted, most = _who_asked(body)
        base = str(request.base_url).rstrip("/")
        found = await self._server.gateway.search(caller, " ".join([wanted.text, *wanted.capabilities]), most)
        best = max((one["score"] for one in found["agents"]), default=0.0)
        results = [
            await self._reference(caller, one, wanted.type or "mcp", _percent(one["score"], best), base)
            for one in found["agents"]
        ]
        meta: Body = {"response_type": "answer", "version": _WHO_VERSION, "result_count": len(results)}
        if isinstance(known := body.get("meta"), dict) and isinstance(known.get("request_id"), str):
            meta["request_id"] = known["request_id"]
        return json_response({"_meta": meta, "results": results})

    async def _reference(self, caller: Caller, one: Mapping[str, Any], protocol: str, score: int, base: str) -> Body:
        """How an agent is reached through this gateway, by the protocol that was asked for, and what it can do."""
        name, place = one["id"], f"{base}/agents/{quote(one['id'], safe='')}"
        known: Body = {"protocol": protocol, "score": score, "source": base}
        if protocol == "a2a":
            card = await self._server.gateway.invoke(caller, name)
            return {**known, "endpoint": f"{place}/a2a", "definition": card}
        detail = await self._server.gateway.select(caller, name)
        said = {"name": name, "title": detail["name"], "description": detail["description"]}
        if protocol == "http":
            return {**known, "endpoint": f"{base}/ask", "definition": {**said, "params": {"query": {"site": name}}}}
        tools = [{key: each[key] for key in ("name", "description", "inputSchema")} for each in detail["capabilities"]]
        return {**known, "endpoint": f"{place}/mcp", "definition": {**said, "tools": tools}}


def routes(server: Server, doorkeeper: Doorkeeper) -> list[Route]:
    """The NLWeb door of a gateway."""
    return AskDoor(server, doorkeeper).routes()


# What was asked


def _asked(body: Body) -> _Ask:
    """The question in either form: an object under ``query``, or flat with a text there."""
    query = body.get("query")
    asked: _Ask
    if isinstance(query, str):
        streams = str(body.get("streaming", "true")).lower() not in ("false", "0", "no")
        flat = {"text": query, "decontextualized_query": body.get("decontextualized_query") or None}
        flat["site"] = str(body.get("site") or _ALL)
        before = {"prev": _flat_list(body.get("prev"))}
        asked = _read({"query": flat, "context": before, "prefer": {"streaming": streams}, "flat": True}, _Ask)
    elif query is None:
        raise ValidationError('"query" is missing. Send {"query": {"text": "…"}}.', errors=[{"path": "/query"}])
    else:
        asked = _read({**body, "context": body.get("context") or {}, "flat": False}, _Ask)
    if not asked.query.text.strip():
        raise ValidationError("query.text is empty. Say what you want.")
    most, score, start = asked.query.max_results, asked.query.min_score, asked.meta.start_num or 0
    if not (1 <= most <= 100 and 0 <= score <= 100 and 1 <= asked.query.num_results <= 1000 and start >= 0):
        raise ValidationError("max_results is 1 to 100, num_results 1 to 1000, min_score 0 to 100, start_num from 0.")
    return asked


def _flat_list(said: Any) -> Any:
    """The earlier questions of the flat form: a list, or one written as JSON, or a single text."""
    if not isinstance(said, str) or not said.lstrip().startswith("["):
        return said
    try:
        return msgspec.json.decode(said, type=list[str])
    except (msgspec.DecodeError, msgspec.ValidationError):
        return said


def _require_intent(request: Request, caller: Caller, asked: _Ask) -> None:
    """Any page can make a browser GET an address of this machine; only who shows a key may call an agent so."""
    if request.method == "GET" and caller.principal.kind == "local" and asked.query.site not in ("", _ALL):
        raise MethodNotAllowed("A question to an agent is a call: send it by POST, or show a key.")


def _who_asked(body: Body) -> tuple[_WhoQuery, int]:
    query = body.get("query")
    if query is None:
        raise ValidationError('"query" is missing. GET /who?query=…, or POST {"query": {"text": "…"}}.')
    wanted = _WhoQuery(query) if isinstance(query, str) else _read(query if isinstance(query, dict) else {}, _WhoQuery)
    meta = body.get("meta")
    most = meta.get("max_results", 10) if isinstance(meta, dict) else 10
    if not isinstance(most, int) or not 1 <= most <= _MOST:
        raise ValidationError(f"meta.max_results is 1 to {_MOST}.")
    if wanted.type not in (None, "mcp", "a2a", "http"):
        raise ValidationError(f"query.type {wanted.type[:40]!r} is not offered here: there are mcp, a2a and http.")
    if not wanted.text.strip():
        raise ValidationError("query.text is empty. Say what you are looking for.")
    return wanted, most


def _read(body: Any, kind: Any) -> Any:
    try:
        return msgspec.convert(body, kind)
    except msgspec.ValidationError as wrong:
        raise ValidationError(f"The request cannot be read: {wrong}.") from None


def _text(asked: _Ask) -> str:
    """The question in a sentence that stands by itself."""
    return asked.query.decontextualized_query or joined(asked.query.text, asked.context.previous)


def _said(text: str, names: list[str]) -> dict[str, Any]:
    """The answers in a text: a JSON object, a line ``id: value`` for each, or all of it for the first open question."""
    if text.lstrip().startswith("{"):
        try:
            given = msgspec.json.decode(text, type=dict[str, Any])
        except (msgspec.DecodeError, msgspec.ValidationError):
            given = {}
        if set(given) & set(names):
            return {name: given[name] for name in names if name in given}
    lines = [found for line in text.splitlines() if (found := _LINE.match(line)) and found[1] in names]
    if lines:
        return {found[1]: found[2].strip() for found in lines}
    return {names[0]: text.strip()} if names else {}


def _typed(said: Any, questions: Any, name: str) -> Any:
    """What a person wrote, as the kind that the question wants: yes, a number, or a text."""
    schema = next((one.schema for one in questions if one.id == name), None) or {}
    kind = schema.get("type")
    if not isinstance(said, str):
        return said
    if kind == "array":
        return [one.strip() for one in said.strip("[]").replace('"', "").split(",")]
    return from_words(schema, said)


# What is told


def _meta(kind: str, **more: Any) -> Body:
    return {"response_type": kind, "version": VERSION, **more}


def _answer_of(rows: list[Body], asked: _Ask | None) -> Body:
    """An answer in the form that was preferred: objects, or a text for a language model beside them."""
    form = (asked.prefer.response_format if asked is not None else None) or "conv_search"
    if form != "chatgpt_app":
        return {"_meta": _meta("Answer", response_format="conv_search"), "results": rows}
    said = "\n".join(_sentence(one) for one in rows) or "Nothing was found."
    content = [{"Type": "text", "Text": said}]
    return {"_meta": _meta("Answer", response_format=form), "content": content, "structuredData": rows}


def _sentence(one: Body) -> str:
    name, told = one.get("name"), one.get("description") or one.get("text")
    said = ": ".join(str(part) for part in (name, told) if part)
    return said or msgspec.json.encode(one).decode()


def _percent(score: float, best: float) -> int:
    return round(100 * score / best) if best > 0 else 100


def _thing(one: Mapping[str, Any], score: int, base: str) -> Body:
    """An agent as a result, with each thing it does as an action."""
    actions = [_action(one["id"], each, base) for each in one["capabilities"]]
    return {
        "@type": "SoftwareApplication",
        "name": one["name"],
        "description": one["description"],
        "identifier": one["id"],
        "url": f"{base}/v1/agents/{quote(one['id'], safe='')}",
        "site": one["id"],
        "score": score,
        "actions": actions,
    }


def _action(agent: str, capability: Mapping[str, Any], base: str) -> Body:
    return {
        "@type": "Action",
        "name": capability["name"],
        "description": capability["description"],
        "protocol": "HTTP",
        "method": "POST",
        "endpoint": f"{base}/v1/call",
        "params": {"agentId": agent, "capability": capability["name"]},
    }


def _things(outcome: Done) -> list[Body]:
    """What a call gave, as objects: rows as they are, a text as an answer."""
    value = value_of(outcome.parts) if outcome.parts else None
    if isinstance(value, dict) and isinstance(value.get("results"), list):
        value = value["results"]
    rows = value if isinstance(value, list) else [] if value is None else [value]
    return [_as_thing(one) for one in rows]


def _as_thing(value: Any) -> Body:
    if not isinstance(value, dict):
        return {"@type": "Answer", "text": value if isinstance(value, str) else msgspec.json.encode(value).decode()}
    typed = value if isinstance(value.get("@type"), str) else {"@type": "Thing", **value}
    # These two have a form in the protocol; what an agent means by them may be something else.
    odd = {
        name for name, kind in (("grounding", dict), ("actions", list)) if not isinstance(typed.get(name, kind()), kind)
    }
    return {name: one for name, one in typed.items() if name not in odd}


def _elicited(needs: Needs) -> Body:
    questions = [_question(one) for one in needs.questions]
    intro = text_of(needs.parts) or (questions[0]["text"] if len(questions) == 1 else "More is needed for this.")
    return {"text": intro, "questions": questions}


def _question(one: Any) -> Body:
    schema = one.schema or {}
    text = f"{one.text} {one.url}" if one.url else one.text
    several = schema.get("type") == "array"
    options = (schema.get("items") or {}).get("enum") if several else schema.get("enum")
    if schema.get("type") == "boolean":
        options = ["yes", "no"]
    if not options:
        return {"id": one.id, "text": text, "type": "text"}
    kind = "multi_select" if several else "single_select"
    return {"id": one.id, "text": text, "type": kind, "options": [str(each) for each in options]}


_CODES: tuple[tuple[type[Agent3Error], str], ...] = (
    (RateLimited, "RATE_LIMITED"),
    (JobNotFound, "INVALID_TOKEN"),
    (NotFound, "NOT_FOUND"),
    (RequestError, "INVALID_REQUEST"),
    (Canceled, "CANCELED"),
)


def _failure(error: Agent3Error) -> Body:
    code = next((code for kind, code in _CODES if isinstance(error, kind)), error.code.upper())
    if isinstance(error, ValidationError) and any(one.get("path") == "/query" for one in error.errors):
        code = "MISSING_FIELD"
    if type(error) is Agent3Error:
        code = "INTERNAL_ERROR"
    return {"_meta": _meta("Failure"), "error": {"code": code, "message": error.message}}


def _refused(error: Agent3Error, who: bool) -> Response:
    """A failure with its HTTP status, and the headers that belong to it."""
    plain = error_response(error)
    body = _failure(error)
    if who:
        body["_meta"] = {"response_type": "failure", "version": _WHO_VERSION}
        if body["error"]["code"] in ("INVALID_REQUEST", "MISSING_FIELD"):
            body["error"]["code"] = "INVALID_QUERY"
    kept = {name: plain.headers[name] for name in ("WWW-Authenticate", "Retry-After") if name in plain.headers}
    return json_response(body, plain.status_code, kept)


async def _pieces(answer: Body) -> AsyncIterator[bytes]:
    """An answer as a stream: who speaks first, then each result by itself."""
    rest = {name: value for name, value in answer.items() if name != "_meta"}
    yield jsonrpc.sse(msgspec.json.encode({"_meta": answer["_meta"]}))
    for name, value in rest.items():
        for one in [[each] for each in value] if isinstance(value, list) else [value]:
            yield jsonrpc.sse(msgspec.json.encode({name: one}))


# The flat form


def _flat_response(answer: Body, asked: _Ask) -> Response:
    messages = _flat_messages(answer)
    if asked.prefer.streaming is False:
        whole: Body = {}
        for one in messages[:-1]:
            whole |= {name: value for name, value in one.items() if name != "message_type" or "results" not in one}
        return json_response({"results": [], **whole})

    async def frames() -> AsyncIterator[bytes]:
        for one in messages:
            yield jsonrpc.sse(msgspec.json.encode(one))

    return StreamingResponse(frames(), media_type="text/event-stream", headers={"Cache-Control": "no-store"})


def _flat_messages(answer: Body) -> list[Body]:
    """The old form has results and questions in words, and no promises: a job that goes on is told in words too."""
    end: Body = {"message_type": "complete"}
    if "elicitation" in answer:
        asked = answer["elicitation"]
        words = " ".join(one["text"] for one in asked["questions"])
        return [{"message_type": "ask_user", "message": words, **answer["_meta"]["session_context"]}, end]
    if "promise" in answer:
        token = answer["promise"]["token"]
        return [{"message_type": "intermediate_message", "message": "It goes on.", "promise_token": token}, end]
    rows = answer.get("results") or answer.get("structuredData") or []
    return [{"message_type": "result_batch", "results": [_flat_row(one) for one in rows]}, end]


def _flat_row(one: Body) -> Body:
    known = {name: one.get(name, "") for name in ("url", "name", "site", "description")}
    return {**known, "score": one.get("score", 100), "schema_object": one}
