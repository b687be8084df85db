"""The NLWeb door: ``/ask``, ``/await`` and ``/who``, in version 0.54 and, for ``/ask``, in the older flat form.

A question to ``all`` searches for agents; one to a ``site``, which is the id of an agent, is a call of that agent. What
a call asks back is an Elicitation, what takes long a Promise, and both are our own jobs, visible to their owner alone.
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
from agent3.gateway.http import error_response, json_response
from agent3.gateway.protocol import Services
from agent3.model import Answer, Done, Failed, Needs, Outcome, Question, Working, text_of, value_of
from agent3.observe.logs import get as logger
from agent3.protocols.nlweb.ask.sites import ASK
from agent3.protocols.nlweb.ask.wire import VERSION
from agent3.protocols.nlweb.commands import join_follow_up
from agent3.protocols.nlweb.connector import COMMAND
from agent3.schema import json_type
from agent3.schema.coercion import in_words

__all__ = ["AskDoor", "parse_answers"]

log = logger("ask")

View = Callable[[Request], Awaitable[Response]]
Body = dict[str, Any]

_ALL = "all"
_PATIENCE = 8.0
"""Seconds after which a call that goes on becomes a promise."""
_CHECK_IN = 2.0
_ESTIMATE = 2
_WHO_VERSION = "0.1"
_MAX_FOUND = 50
_MAX_PREVIOUS = 10
_LONGEST = 2_000
_PROTOCOLS = ("mcp", "a2a", "http")
_READERS = {COMMAND: "text", ASK: "query"}
"""Capabilities that take earlier questions, with the name of the field for the question itself."""
_TYPES: Mapping[str, type] = {"grounding": dict, "actions": list}
_LINE = re.compile(r"^\s*([\w.-]{1,128})\s*:\s*(.*)$")
_CODES: tuple[tuple[type[Agent3Error], str], ...] = (
    (RateLimited, "RATE_LIMITED"),
    (JobNotFound, "INVALID_TOKEN"),
    (NotFound, "NOT_FOUND"),
    (RequestError, "INVALID_REQUEST"),
    (Canceled, "CANCELED"),
)
"""The protocol's codes for our errors; the first match counts."""


# Requests


class _Query(Struct, frozen=True, forbid_unknown_fields=True):
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
    """What was said before. Only ``prev`` is used; the other fields are meant for language models."""

    prev: list[Any] | str | None = None

    @property
    def previous(self) -> list[str]:
        """The questions before this one, the latest last: as many, and as much of each, as can matter."""
        given = [self.prev] if isinstance(self.prev, str) else self.prev or []
        texts = [text.strip()[:_LONGEST] for text in given if isinstance(text, str)]
        return [text for text in texts if text][-_MAX_PREVIOUS:]


class _Ask(Struct, frozen=True):
    """The body of ``/ask``."""

    query: _Query
    context: _Context = _Context()
    prefer: _Prefer = _Prefer()
    meta: _Meta = _Meta()
    flat: bool = False

    @property
    def session(self) -> _Session:
        """The session that the question continues; empty if it begins one."""
        return self.meta.session_context or _Session()

    @property
    def text(self) -> str:
        """The question in a sentence that stands by itself."""
        return self.query.decontextualized_query or join_follow_up(self.query.text, self.context.previous)


class _Await(Struct, frozen=True):
    promise_token: str
    action: Literal["checkin", "cancel"]


class _WhoQuery(Struct, frozen=True):
    text: str
    type: str | None = None
    capabilities: list[str] = []


class AskDoor:
    """The three views. A refusal has the protocol's own form, with the HTTP status of the error."""

    def __init__(self, services: Services):
        self._gateway = services.gateway
        self._doorkeeper = services.doorkeeper
        self._settings = services.settings.server
        self._limits = jsonrpc.Limits(body=self._settings.max_body)

    def routes(self) -> list[Route]:
        return [
            Route("/ask", self._guard(self.ask), methods=["GET", "POST"]),
            Route("/await", self._guard(self.check_in), methods=["POST"]),
            Route("/who", self._guard(self.who), methods=["GET", "POST"]),
        ]

    def _guard(self, view: View) -> View:
        async def respond(request: Request) -> Response:
            try:
                return await view(request)
            except Agent3Error as error:
                return _refuse(error, who=request.url.path == "/who")
            except jsonrpc.ClientLeft:
                return Response(status_code=499)
            except Exception:
                log.exception("%s %s failed", request.method, request.url.path)
                return _refuse(Agent3Error("Internal error. See the log of the gateway."), who=False)

        return respond

    def _caller(self, request: Request) -> Caller:
        return Caller(self._doorkeeper(request.scope), "ask", None, request.headers.get("traceparent"))

    async def _read_body(self, request: Request) -> Body:
        if request.method == "GET":
            return dict(request.query_params)
        settings = self._settings
        raw = await jsonrpc.read_body(request.receive, settings.max_body, settings.body_seconds)
        body = jsonrpc.decode(raw or b"{}", self._limits)
        if not isinstance(body, dict):
            raise ValidationError(f"The body must be a JSON object, got {json_type(body)}.")
        return body

    # /ask

    async def ask(self, request: Request) -> Response:
        """Answer a question: a search for agents, a call of one, or the next turn of a call that asked."""
        caller = self._caller(request)
        ask = _parse_ask(await self._read_body(request))
        to_all = ask.query.site in ("", _ALL)
        # Any page can make a browser GET an address of this machine. Only a caller with a key may call an agent so.
        if request.method == "GET" and caller.principal.kind == "local" and not to_all:
            raise MethodNotAllowed("A question to an agent is a call: send it with POST, or send a key.")
        if ask.session.state_token:
            # The next turn of a job that asked, with the person's answers.
            job, _, turn = ask.session.state_token.partition(".")
            if not turn.isdecimal():
                raise ValidationError("Unknown state_token: it was not issued by this gateway, or it has expired.")
            answers = parse_answers(ask.query.text, (await self._gateway.job(caller, job)).questions)
            outcome = await self._gateway.answer(caller, job, answers, int(turn), detach=True)
            answer = _encode_outcome(await self._wait(caller, outcome), ask)
        elif to_all:
            answer = _encode_answer(await self._search(caller, ask, str(request.base_url).rstrip("/")), ask)
        else:
            answer = _encode_outcome(await self._call(caller, ask), ask)
        if ask.flat:
            messages = _flatten(answer)
            if ask.prefer.streaming is not False:
                return _stream(messages)
            whole: Body = {"results": [], **messages[0]}
            if "results" in messages[0]:
                del whole["message_type"]
            return json_response(whole)
        if ask.prefer.streaming is False:
            return json_response(answer)
        # Each result by itself, behind the piece that says what kind of answer it is.
        pieces: list[Body] = [{"_meta": answer.pop("_meta")}]
        for name, value in answer.items():
            pieces += [{name: [item]} for item in value] if isinstance(value, list) else [{name: value}]
        return _stream(pieces)

    async def _search(self, caller: Caller, ask: _Ask, base: str) -> list[Body]:
        """The agents that match, as schema.org objects with what can be done with them."""
        start, count = ask.meta.start_num or 0, ask.query.max_results
        found = await self._gateway.find_agents(caller, ask.text, min(_MAX_FOUND, start + count))
        best = max((agent["score"] for agent in found["agents"]), default=0.0)
        rows = []
        for agent in found["agents"]:
            actions = [
                {
                    "@type": "Action",
                    "name": capability["name"],
                    "description": capability["description"],
                    "protocol": "HTTP",
                    "method": "POST",
                    "endpoint": f"{base}/v1/call",
                    "params": {"agentId": agent["id"], "capability": capability["name"]},
                }
                for capability in agent["capabilities"]
            ]
            row = {
                "@type": "SoftwareApplication",
                "name": agent["name"],
                "description": agent["description"],
                "identifier": agent["id"],
                "url": f"{base}/v1/agents/{quote(agent['id'], safe='')}",
                "site": agent["id"],
                "score": _percent(agent["score"], best),
                "actions": actions,
            }
            if row["score"] >= ask.query.min_score:
                rows.append(row)
        return rows[start : start + count]

    async def _call(self, caller: Caller, ask: _Ask) -> Outcome:
        """Call the agent that is the site: with the earlier questions if it can read them, else in one sentence."""
        question: Body = {"message": ask.text}
        previous = ask.context.previous
        if previous and not ask.query.decontextualized_query:
            with suppress(AgentNotFound):  # the call itself reports it, and decides to whom
                agent = await self._gateway.directory.get(ask.query.site)
                for capability in agent.capabilities if agent.card.get("protocol") == "nlweb" else ():
                    field = _READERS.get(capability.name)
                    if field and self._gateway.may_call(caller.principal, agent, capability):
                        given = {field: ask.query.text, "previous": previous}
                        question = {"capability": capability.name, "input": given}
                        break
        context = ask.session.conversation_id
        request = CallRequest(agent=ask.query.site, **question, context=context, detach=True)
        return await self._wait(caller, await self._gateway.call(caller, request))

    async def _wait(self, caller: Caller, outcome: Outcome) -> Outcome:
        if isinstance(outcome, Working) and outcome.job:
            return await self._gateway.wait(caller, outcome.job, _PATIENCE)
        return outcome

    # /await

    async def check_in(self, request: Request) -> Response:
        """Report how a promise stands, or cancel it."""
        caller = self._caller(request)
        body = await self._read_body(request)
        if body.get("action") not in ("checkin", "cancel") or not isinstance(body.get("promise_token"), str):
            raise ValidationError('Send {"promise_token": "…", "action": "checkin"}, or "cancel" as the action.')
        wanted = _convert(body, _Await)
        if wanted.action == "cancel":
            outcome = await self._gateway.cancel(caller, wanted.promise_token)
            if isinstance(outcome, Failed) and outcome.code == "canceled":
                return json_response(_encode_failure(Canceled("The promise was cancelled.")))
        else:
            outcome = await self._gateway.wait(caller, wanted.promise_token, _CHECK_IN)
        return json_response(_encode_outcome(outcome))

    # /who

    async def who(self, request: Request) -> Response:
        """List the agents that can help, each with its endpoint in one protocol."""
        caller = self._caller(request)
        body = await self._read_body(request)
        query, given_meta = body.get("query"), body.get("meta")
        if query is None:
            raise ValidationError('"query" is missing. GET /who?query=…, or POST {"query": {"text": "…"}}.')
        wanted: _WhoQuery = _WhoQuery(query) if isinstance(query, str) else _convert(query, _WhoQuery)
        count = given_meta.get("max_results", 10) if isinstance(given_meta, dict) else 10
        if not isinstance(count, int) or not 1 <= count <= _MAX_FOUND:
            raise ValidationError(f"meta.max_results must be 1 to {_MAX_FOUND}.")
        if wanted.type not in (None, *_PROTOCOLS):
            raise ValidationError(f"query.type {wanted.type[:40]!r} is not supported: use mcp, a2a or http.")
        if not wanted.text.strip():
            raise ValidationError("query.text is empty. Say what you are looking for.")
        protocol, base = wanted.type or "mcp", str(request.base_url).rstrip("/")
        found = await self._gateway.find_agents(caller, " ".join([wanted.text, *wanted.capabilities]), count)
        best = max((agent["score"] for agent in found["agents"]), default=0.0)
        results = [
            {
                "protocol": protocol,
                "score": _percent(agent["score"], best),
                "source": base,
                **await self._describe(caller, agent["id"], protocol, base),
            }
            for agent in found["agents"]
        ]
        meta: Body = {"response_type": "answer", "version": _WHO_VERSION, "result_count": len(results)}
        if isinstance(given_meta, dict) and isinstance(given_meta.get("request_id"), str):
            meta["request_id"] = given_meta["request_id"]
        return json_response({"_meta": meta, "results": results})

    async def _describe(self, caller: Caller, agent: str, protocol: str, base: str) -> Body:
        """How an agent is reached through this gateway by the given protocol, and what it can do."""
        address = f"{base}/agents/{quote(agent, safe='')}"
        if protocol == "a2a":
            card = await self._gateway.invoke(caller, agent)
            return {"endpoint": f"{address}/a2a", "definition": card}
        details = await self._gateway.select(caller, agent)
        definition = {"name": agent, "title": details["name"], "description": details["description"]}
        if protocol == "http":
            return {"endpoint": f"{base}/ask", "definition": {**definition, "params": {"query": {"site": agent}}}}
        tools = [
            {key: capability[key] for key in ("name", "description", "inputSchema")}
            for capability in details["capabilities"]
        ]
        return {"endpoint": f"{address}/mcp", "definition": {**definition, "tools": tools}}


# Reading a request


def _parse_ask(body: Body) -> _Ask:
    """The question in either form: an object under ``query``, or flat with a text there."""
    query = body.get("query")
    ask: _Ask
    if query is None:
        raise ValidationError('"query" is missing. Send {"query": {"text": "…"}}.', errors=[{"path": "/query"}])
    if isinstance(query, str):
        previous = body.get("prev")
        if isinstance(previous, str) and previous.lstrip().startswith("["):  # a list, written as JSON
            with suppress(msgspec.DecodeError, msgspec.ValidationError):
                previous = msgspec.json.decode(previous, type=list[str])
        flat = {
            "query": {
                "text": query,
                "site": str(body.get("site") or _ALL),
                "decontextualized_query": body.get("decontextualized_query") or None,
            },
            "context": {"prev": previous},
            "prefer": {"streaming": str(body.get("streaming", "true")).lower() not in ("false", "0", "no")},
            "flat": True,
        }
        ask = _convert(flat, _Ask)
    else:
        ask = _convert({**body, "context": body.get("context") or {}, "flat": False}, _Ask)
    if not ask.query.text.strip():
        raise ValidationError("query.text is empty. Say what you want.")
    count, score, start = ask.query.max_results, ask.query.min_score, ask.meta.start_num or 0
    if not (1 <= count <= 100 and 0 <= score <= 100 and 1 <= ask.query.num_results <= 1000 and start >= 0):
        raise ValidationError(
            "max_results must be 1 to 100, num_results 1 to 1000, min_score 0 to 100, and start_num 0 or more."
        )
    return ask


def _convert(body: Any, kind: Any) -> Any:
    try:
        return msgspec.convert(body, kind)
    except msgspec.ValidationError as error:
        raise ValidationError(f"The request cannot be read: {error}.") from None


def parse_answers(text: str, questions: tuple[Question, ...]) -> dict[str, Answer]:
    """The answers in a text: a JSON object, a line ``id: value`` for each, or all of it for the first question."""
    names = [question.id for question in questions]
    if text.lstrip().startswith("{"):
        with suppress(msgspec.DecodeError, msgspec.ValidationError):
            decoded = msgspec.json.decode(text, type=dict[str, Any])
            if given := {name: Answer(data=decoded[name], exact=True) for name in names if name in decoded}:
                return given
    lines = [found for line in text.splitlines() if (found := _LINE.match(line)) and found[1] in names]
    said = {found[1]: found[2].strip() for found in lines}
    if not said and names:
        said = {names[0]: text.strip()}
    return {question.id: in_words(question.schema, said[question.id]) for question in questions if question.id in said}


# Writing a response


def _meta(kind: str, **more: Any) -> Body:
    return {"response_type": kind, "version": VERSION, **more}


def _percent(score: float, best: float) -> int:
    return round(100 * score / best) if best > 0 else 100


def _to_thing(item: Body) -> Body:
    """A row of a result with its type. What another site said of it is passed on as it came."""
    if isinstance(item.get("@type"), str):
        return item
    kind, raw = item.get("type"), item.get("raw")
    if isinstance(raw, dict) and isinstance(kind, str):
        return {"@type": kind or "Thing", **raw}
    return {"@type": "Thing", **item}


def _encode_outcome(outcome: Outcome, ask: _Ask | None = None) -> Body:
    if isinstance(outcome, Done):
        value = value_of(outcome.parts) if outcome.parts else None
        if isinstance(value, dict) and isinstance(value.get("results"), list):
            value = value["results"]
        rows: list[Body] = []
        for item in value if isinstance(value, list) else [] if value is None else [value]:
            if isinstance(item, dict):
                row = _to_thing(item)
                # The protocol gives two fields a type; an agent may mean something else by them.
                rows.append({name: field for name, field in row.items() if isinstance(field, _TYPES.get(name, object))})
            else:
                text = item if isinstance(item, str) else msgspec.json.encode(item).decode()
                rows.append({"@type": "Answer", "text": text})
        return _encode_answer(rows, ask)
    if isinstance(outcome, Failed):
        raise error_of(outcome)
    if isinstance(outcome, Needs):
        questions = [_encode_question(question) for question in outcome.questions]
        intro = questions[0]["text"] if len(questions) == 1 else "More information is needed."
        return {
            "_meta": _meta("Elicitation", session_context={"state_token": f"{outcome.job}.{outcome.turn}"}),
            "elicitation": {"text": text_of(outcome.parts) or intro, "questions": questions},
        }
    return {
        "_meta": _meta("Promise"),
        "promise": {"token": outcome.job, "estimated_time": max(1, round(outcome.poll or _ESTIMATE))},
    }


def _encode_answer(rows: list[Body], ask: _Ask | None) -> Body:
    """An answer in the preferred form: objects, or a text for a language model beside them."""
    form = (ask.prefer.response_format if ask is not None else None) or "conv_search"
    if form != "chatgpt_app":
        return {"_meta": _meta("Answer", response_format="conv_search"), "results": rows}
    sentences = []
    for row in rows:
        words = [str(part) for part in (row.get("name"), row.get("description") or row.get("text")) if part]
        sentences.append(": ".join(words) or msgspec.json.encode(row).decode())
    content = [{"Type": "text", "Text": "\n".join(sentences) or "No results."}]
    return {"_meta": _meta("Answer", response_format=form), "content": content, "structuredData": rows}


def _encode_question(question: Question) -> Body:
    schema = question.schema or {}
    text = f"{question.text} {question.url}" if question.url else question.text
    several = schema.get("type") == "array"
    options = (schema.get("items") or {}).get("enum") if several else schema.get("enum")
    if schema.get("type") == "boolean":
        options = ["yes", "no"]
    if not options:
        return {"id": question.id, "text": text, "type": "text"}
    kind = "multi_select" if several else "single_select"
    return {"id": question.id, "text": text, "type": kind, "options": [str(option) for option in options]}


def _encode_failure(error: Agent3Error) -> Body:
    code = next((code for kind, code in _CODES if isinstance(error, kind)), error.code.upper())
    if isinstance(error, ValidationError) and any(fault.get("path") == "/query" for fault in error.errors):
        code = "MISSING_FIELD"
    if type(error) is Agent3Error:
        code = "INTERNAL_ERROR"
    return {"_meta": _meta("Failure"), "error": {"code": code, "message": error.message}}


def _refuse(error: Agent3Error, *, who: bool) -> Response:
    """A failure with its HTTP status, and the headers that belong to it."""
    plain = error_response(error)
    body = _encode_failure(error)
    if who:
        body["_meta"] = {"response_type": "failure", "version": _WHO_VERSION}
        if body["error"]["code"] in ("INVALID_REQUEST", "MISSING_FIELD"):
            body["error"]["code"] = "INVALID_QUERY"
    headers = {name: plain.headers[name] for name in ("WWW-Authenticate", "Retry-After") if name in plain.headers}
    return json_response(body, plain.status_code, headers)


def _flatten(answer: Body) -> list[Body]:
    """An answer as messages of the flat form, which has results and questions, but no promises."""
    end: Body = {"message_type": "complete"}
    if "elicitation" in answer:
        text = " ".join(question["text"] for question in answer["elicitation"]["questions"])
        return [{"message_type": "ask_user", "message": text, **answer["_meta"]["session_context"]}, end]
    if "promise" in answer:
        token = answer["promise"]["token"]
        return [{"message_type": "intermediate_message", "message": "The work continues.", "promise_token": token}, end]
    rows = [
        {
            **{name: row.get(name, "") for name in ("url", "name", "site", "description")},
            "score": row.get("score", 100),
            "schema_object": row,
        }
        for row in answer.get("results") or answer.get("structuredData") or []
    ]
    return [{"message_type": "result_batch", "results": rows}, end]


def _stream(messages: list[Body]) -> Response:
    async def frames() -> AsyncIterator[bytes]:
        for message in messages:
            yield jsonrpc.encode_event(msgspec.json.encode(message))

    return StreamingResponse(frames(), media_type="text/event-stream", headers={"Cache-Control": "no-store"})
