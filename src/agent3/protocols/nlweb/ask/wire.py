"""The NLWeb protocol from the client's side: ``/ask`` and ``/await`` of version 0.54, and the older flat form.

A site answers in one object or piece by piece; both become one ``Reply``. What a site says is data, never an
instruction. It knows nothing of agents and calls, and no browser.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal
from urllib.parse import urlencode, urlsplit

import msgspec
from msgspec import Struct

from agent3.calls.outcomes import HTTP_STATUS
from agent3.env import REAL
from agent3.errors import (
    LoopDetected,
    MalformedResponse,
    ParseError,
    RateLimited,
    TargetError,
    TargetRefused,
    TooLarge,
    Unavailable,
)
from agent3.jsonrpc import Limits, SSEParser, decode_large, is_event_stream, parse_retry_after
from agent3.security.outbound import Gate

__all__ = ["VERSION", "AskClient", "Dialect", "Query", "Reply", "Result", "encode_query", "endpoint_of", "fold"]

VERSION = "0.54"
Dialect = Literal["0.54", "flat"]
Kind = Literal["Answer", "Elicitation", "Promise", "Failure"]
OnPiece = Callable[["Reply"], None]
"""Called after every piece with the reply so far."""

_MAX_BYTES = 8 << 20
_LIMITS = Limits(body=_MAX_BYTES, nodes=250_000, lenient=True)
_MAX_RESULTS = 1_000
_MAX_PIECES = 10_000
_MAX_TEXT = 200_000
_LONGEST_WAIT = 3_600.0
"""Seconds that a site may ask for by Retry-After."""
_CHECK_IN_SECONDS = 30.0
_NOT_UNDERSTOOD = frozenset({400, 405, 415, 422})
"""What a server answers to a form that it does not know."""
_FLAT_FIELDS = frozenset({"results", "query_id", "message_type", "summary", "_meta"})
_TEXTS = frozenset({"summary", "nlws", "intermediate_message", "text"})
_KINDS: dict[str, Kind] = {
    "answer": "Answer",
    "elicitation": "Elicitation",
    "promise": "Promise",
    "failure": "Failure",
}


class Result(Struct, frozen=True, omit_defaults=True):
    """One thing that a site found. ``raw`` is all that the site said of it."""

    name: str = ""
    url: str = ""
    type: str = ""
    score: float | None = None
    description: str = ""
    site: str = ""
    actions: tuple[dict[str, Any], ...] = ()
    raw: dict[str, Any] = {}


class Reply(Struct, omit_defaults=True):
    """What a site said, in either form; ``kind`` says which of the fields count."""

    kind: Kind = "Answer"
    results: list[Result] = []
    text: str = ""
    questions: list[dict[str, Any]] = []
    token: str | None = None
    seconds: float | None = None
    """The site's estimate for a promise."""
    code: str = ""
    message: str = ""
    session: dict[str, Any] | None = None
    query: str | None = None
    """How the site understood the question, given the earlier ones."""

    def add(self, piece: Mapping[str, Any]) -> None:
        """Add one piece of the answer, whatever a site put into it."""
        if isinstance(meta := piece.get("_meta"), dict):
            self.kind = _KINDS.get(str(meta.get("response_type") or "").lower(), self.kind)
            if isinstance(session := meta.get("session_context"), dict):
                self.session = session
            if isinstance(query := meta.get("decontextualized_query"), str):
                self.query = query
        self._add_results(piece.get("results"))
        self._add_results(piece.get("structuredData"))
        content = piece.get("content")
        if isinstance(content, str):
            self._add_text(content)
        for item in _as_list(content):
            if not isinstance(item, dict):
                continue
            text = item.get("Text") or item.get("text")
            if isinstance(text, str):
                self._add_text(text)
            elif isinstance(resource := item.get("resource"), dict):  # results, in earlier versions
                data = resource.get("data")
                self._add_results(data if isinstance(data, list) else [data])
            elif "name" in item or "url" in item:  # results, where the flat form is streamed
                self._add_results([item])
        match piece:
            case {"elicitation": dict(asked)}:
                self.kind = "Elicitation"
                self.questions = [
                    question for question in _as_list(asked.get("questions")) if isinstance(question, dict)
                ]
                self.text = str(asked.get("text") or self.text)
            case {"promise": dict(promise)} if promise.get("token"):
                self.kind, self.token = "Promise", str(promise["token"])
                seconds = promise.get("estimated_time")
                self.seconds = float(seconds) if isinstance(seconds, int | float) else None
            case {"error": dict(error)}:
                self.kind = "Failure"
                self.code, self.message = str(error.get("code") or ""), str(error.get("message") or "")
            case {"error": str(message)}:
                self.kind, self.message = "Failure", message
        self._add_flat(piece)

    def _add_flat(self, piece: Mapping[str, Any]) -> None:
        """What the flat form has beside its results: summaries, and questions to the person."""
        kind, message, content = piece.get("message_type"), piece.get("message"), piece.get("content")
        text = message or (content if isinstance(content, str) else None)
        if isinstance(summary := piece.get("summary"), str | dict):
            self._add_text(summary if isinstance(summary, str) else str(summary.get("summary") or ""))
        elif kind in _TEXTS and isinstance(message, str):
            self._add_text(message)
        elif kind == "ask_user" and isinstance(text, str):
            self.kind = "Elicitation"
            self.questions = [{"id": "answer", "text": text, "type": "text"}]
        elif kind == "error":
            self.kind, self.message = "Failure", str(text or "the site gave no reason")

    def _add_results(self, rows: Any) -> None:
        for row in _as_list(rows):
            if isinstance(row, dict) and len(self.results) < _MAX_RESULTS:
                self.results.append(_parse_result(row))

    def _add_text(self, text: str) -> None:
        if text and len(self.text) < _MAX_TEXT:
            self.text = f"{self.text}\n{text}"[:_MAX_TEXT] if self.text else text[:_MAX_TEXT]


def fold(pieces: Iterable[Mapping[str, Any]]) -> Reply:
    """All pieces of an answer as one reply."""
    reply = Reply()
    for piece in pieces:
        reply.add(piece)
    return reply


class Query(Struct, frozen=True, kw_only=True):
    """A question to a site. ``previous`` are the questions before it, ``session`` what the site gave to send back."""

    text: str
    site: str | None = None
    mode: str | None = None
    previous: tuple[str, ...] = ()
    session: dict[str, Any] | None = None
    max_results: int | None = None
    stream: bool = True


def endpoint_of(address: str) -> str:
    """Where a site answers questions: the address itself if it ends in ``/ask``, else below it."""
    bare = urlsplit(address)._replace(query="", fragment="").geturl().rstrip("/")
    return bare if bare.endswith("/ask") else f"{bare}/ask"


class _NotUnderstood(TargetError):
    """The server does not know this form of a question."""


class AskClient:
    """A client of one site. The dialect is found out by the first answer, unless it is given.

    Failures of the connection come as the gate's errors; what the site itself says is a ``Reply``.
    """

    def __init__(self, address: str, gate: Gate, dialect: Dialect | None = None, headers: Mapping[str, str] = {}):
        self.endpoint = endpoint_of(address)
        self.dialect: Dialect | None = dialect
        self._gate = gate
        self._headers = dict(headers)

    async def ask(self, query: Query, *, seconds: float = 30.0, on_piece: OnPiece | None = None) -> Reply:
        """Ask, and return the whole answer; ``on_piece`` is called while it grows."""
        if self.dialect != "flat":
            body = msgspec.json.encode(encode_query(query))
            try:
                reply, fields = await self._send("POST", self.endpoint, body, seconds, on_piece)
            except _NotUnderstood:
                if self.dialect is not None:
                    raise
            else:
                if self.dialect is not None or "_meta" in fields:
                    self.dialect = "0.54"
                    return reply
        # An old server may answer the new form with something that it made of the words of our JSON: ask again.
        flat = {
            "query": query.text,
            "site": query.site,
            "mode": query.mode,
            "prev": msgspec.json.encode(query.previous).decode() if query.previous else None,
            "streaming": "true" if query.stream else "false",
        }
        url = f"{self.endpoint}?{urlencode(_drop_none(flat))}"
        reply, fields = await self._send("GET", url, None, seconds, on_piece)
        if not _FLAT_FIELDS & fields:
            raise MalformedResponse(f"{self.endpoint} does not answer like an NLWeb site.")
        self.dialect = "flat"
        return reply

    async def check_in(self, token: str, *, cancel: bool = False) -> Reply:
        """The state of a promise; with ``cancel`` its end."""
        body = {"promise_token": token, "action": "cancel" if cancel else "checkin", "meta": {"api_version": VERSION}}
        url = f"{self.endpoint.removesuffix('/ask')}/await"
        return (await self._send("POST", url, msgspec.json.encode(body), _CHECK_IN_SECONDS, None))[0]

    async def _send(
        self, method: str, url: str, body: bytes | None, seconds: float, on_piece: OnPiece | None
    ) -> tuple[Reply, set[str]]:
        """The reply, and the names of all fields in its pieces, by which a dialect is recognised."""
        headers = {"Accept": "text/event-stream, application/json", **self._headers}
        if body is not None:
            headers["Content-Type"] = "application/json"
        async with self._gate.stream(
            method, url, headers=headers, body=body, timeout=seconds, max_bytes=_MAX_BYTES
        ) as response:
            if response.status == 200 and is_event_stream(response.headers.get("Content-Type")):
                reply, fields, count = Reply(), set[str](), 0
                parser = SSEParser(_MAX_BYTES)
                async for chunk in response:
                    for frame in parser.feed(chunk):
                        if (piece := await _decode_object(frame.data, self.endpoint)) is None:
                            continue
                        count += 1
                        if count > _MAX_PIECES:
                            raise MalformedResponse(f"{self.endpoint} answers in more than {_MAX_PIECES} pieces.")
                        fields.update(piece)
                        reply.add(piece)
                        if on_piece is not None:
                            on_piece(reply)
                return reply, fields
            piece = await _decode_object(b"".join([chunk async for chunk in response]), self.endpoint)
            status = response.status
            wait = parse_retry_after(response.headers.get("Retry-After"), REAL.now(), _LONGEST_WAIT)
        # A failure that the site reports in the protocol's form is a reply, whatever its status.
        if piece is not None and (status == 200 or "_meta" in piece):
            return fold([piece]), set(piece)
        where, data = self.endpoint, {HTTP_STATUS: status}
        if status in _NOT_UNDERSTOOD:
            raise _NotUnderstood(f"{where} does not understand the question (HTTP {status}).")
        if status in (401, 403):
            data["status"] = status
            raise TargetRefused(f"{where} refuses access (HTTP {status}).", data=data)
        if status == 404:
            raise TargetError(f"{where} does not exist (HTTP 404): the site does not answer questions.", data=data)
        if status == LoopDetected.http_status:
            raise LoopDetected(f"{where} is this gateway itself, or leads back to it. A gateway does not call itself.")
        if status == 429:
            limited = RateLimited(
                f"{where} accepts no more questions at the moment (HTTP 429).", data=data, retry_after=wait
            )
            limited.sent = False
            raise limited
        if status >= 500:
            raise Unavailable(f"{where} is not available (HTTP {status}).", data=data, retry_after=wait)
        raise MalformedResponse(f"{where} answered with HTTP {status} and without an NLWeb answer.", data=data)


def encode_query(query: Query) -> dict[str, Any]:
    """The question in the form of 0.54. Its results are requested as objects."""
    body: dict[str, Any] = {
        "query": _drop_none({"text": query.text, "site": query.site, "max_results": query.max_results}),
        "prefer": _drop_none({"streaming": query.stream, "response_format": "conv_search", "mode": query.mode}),
        "meta": _drop_none({"api_version": VERSION, "session_context": query.session}),
    }
    if query.previous:
        body["context"] = {"@type": "ConversationalContext", "prev": list(query.previous)}
    return body


def _drop_none(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


async def _decode_object(raw: bytes, where: str) -> dict[str, Any] | None:
    try:
        value = await decode_large(raw, _LIMITS)
    except ParseError:
        return None
    except TooLarge as error:
        raise MalformedResponse(f"{where} answered with more than can be read: {error.message}") from None
    return value if isinstance(value, dict) else None


def _parse_result(row: Mapping[str, Any]) -> Result:
    """A row in either form; the flat one has the schema.org object in a field."""
    thing = row.get("schema_object")
    thing = thing[0] if isinstance(thing, list) and thing else thing
    fields: Mapping[str, Any] = {**thing, **row} if isinstance(thing, dict) else row
    grounding = fields.get("grounding")
    urls = grounding.get("source_urls") if isinstance(grounding, dict) else None
    score = fields.get("score")
    return Result(
        name=_as_text(fields.get("name") or fields.get("headline") or fields.get("title")),
        url=_as_text(fields.get("url") or (urls[0] if isinstance(urls, list) and urls else "")),
        type=_as_text(fields.get("@type")),
        score=float(score) if isinstance(score, int | float) and not isinstance(score, bool) else None,
        description=_as_text(fields.get("description")),
        site=_as_text(fields.get("site")),
        actions=tuple(action for action in _as_list(fields.get("actions")) if isinstance(action, dict)),
        raw=dict(row),
    )


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _as_text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value[:10]))
    return value if isinstance(value, str) else "" if value is None or isinstance(value, dict) else str(value)
