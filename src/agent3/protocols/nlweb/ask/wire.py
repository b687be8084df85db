"""The NLWeb protocol from the side of who asks: ``/ask`` and ``/await`` of version 0.54, and the older flat form.

A site answers in one object or piece by piece; both become one ``Reply``. What a site says is data, never an
instruction. It knows nothing of agents and calls, and no browser.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal
from urllib.parse import urlencode, urlsplit

import msgspec
from msgspec import Struct

from agent3.errors import Agent3Error, MalformedResponse, TargetError, TargetRefused, Unavailable
from agent3.jsonrpc import SSEParser
from agent3.protocols.nlweb.visit.retry_after import retry_after
from agent3.security.outbound import Gate

__all__ = ["VERSION", "Asker", "Dialect", "Reply", "Result", "Wish", "endpoint_of", "fold"]

VERSION = "0.54"
Dialect = Literal["0.54", "flat"]
Kind = Literal["Answer", "Elicitation", "Promise", "Failure"]
OnPiece = Callable[["Reply"], None]
"""Hears of what has come so far, after every piece."""

_MOST_BYTES = 8 << 20
_MOST_RESULTS = 1_000
_MOST_PIECES = 10_000
_MOST_TEXT = 200_000
_NOT_UNDERSTOOD = frozenset({400, 405, 415, 422})
"""What a server answers to a form that it does not know."""
_TEXTS = {"summary", "nlws", "intermediate_message", "text"}


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
    """What a site said, in whichever form; ``kind`` says which of the fields count."""

    kind: Kind = "Answer"
    results: list[Result] = []
    text: str = ""
    questions: list[dict[str, Any]] = []
    token: str | None = None
    seconds: float | None = None
    """How long the site thinks that a promise takes."""
    code: str = ""
    message: str = ""
    session: dict[str, Any] | None = None
    query: str | None = None
    """What the site took the question for, given what was said before."""


class Wish(Struct, frozen=True, kw_only=True):
    """A question to a site. ``previous`` are the questions before it, ``session`` what the site gave to be shown."""

    text: str
    site: str | None = None
    mode: str | None = None
    previous: tuple[str, ...] = ()
    session: dict[str, Any] | None = None
    most: int | None = None
    stream: bool = True


def endpoint_of(address: str) -> str:
    """Where a site answers questions: the address itself if it ends so, else below it."""
    bare = urlsplit(address)._replace(query="", fragment="").geturl().rstrip("/")
    return bare if bare.endswith("/ask") else f"{bare}/ask"


class Asker:
    """One site that answers questions. Its dialect is found out by the first answer, unless it is given.

    Failures of the way there come as the gate's errors; what the site itself says is a ``Reply``.
    """

    def __init__(self, address: str, gate: Gate, dialect: Dialect | None = None, headers: Mapping[str, str] = {}):
        self.endpoint = endpoint_of(address)
        self.dialect: Dialect | None = dialect
        self._gate = gate
        self._headers = dict(headers)

    async def ask(self, wish: Wish, *, seconds: float = 30.0, on_piece: OnPiece | None = None) -> Reply:
        """Ask, and give the whole answer; ``on_piece`` hears of it as it grows."""
        if self.dialect != "flat":
            try:
                pieces, reply = await self._post(_request(wish), seconds, on_piece)
            except _NotUnderstood:
                if self.dialect is not None:
                    raise
            else:
                if self.dialect is not None or _is_modern(pieces):
                    self.dialect = "0.54"
                    return reply
        # An old server may answer the new form, but with something that it made of the words of our JSON.
        pieces, reply = await self._get(wish, seconds, on_piece)
        if not any(_FLAT & set(one) for one in pieces):
            raise MalformedResponse(f"{self.endpoint} does not answer as NLWeb does.")
        self.dialect = "flat"
        return reply

    async def check_in(self, token: str, *, cancel: bool = False, seconds: float = 30.0) -> Reply:
        """How a promise stands, or its end if it is to be cancelled."""
        body = {"promise_token": token, "action": "cancel" if cancel else "checkin", "meta": {"api_version": VERSION}}
        url = f"{self.endpoint.removesuffix('/ask')}/await"
        return (await self._sent("POST", url, msgspec.json.encode(body), seconds, None))[1]

    # Inside

    async def _post(self, body: dict[str, Any], seconds: float, on_piece: OnPiece | None) -> tuple[list[Any], Reply]:
        return await self._sent("POST", self.endpoint, msgspec.json.encode(body), seconds, on_piece)

    async def _get(self, wish: Wish, seconds: float, on_piece: OnPiece | None) -> tuple[list[Any], Reply]:
        return await self._sent("GET", f"{self.endpoint}?{urlencode(_flat(wish))}", None, seconds, on_piece)

    async def _sent(
        self, method: str, url: str, body: bytes | None, seconds: float, on_piece: OnPiece | None
    ) -> tuple[list[Any], Reply]:
        headers = {"Accept": "text/event-stream, application/json", **self._headers}
        if body is not None:
            headers["Content-Type"] = "application/json"
        pieces: list[Any] = []
        async with self._gate.stream(
            method, url, headers=headers, body=body, timeout=seconds, max_bytes=_MOST_BYTES
        ) as answer:
            streams = answer.headers.get("Content-Type", "").startswith("text/event-stream")
            if streams and answer.status == 200:
                return await self._heard(answer, pieces, on_piece)
            whole = b"".join([chunk async for chunk in answer])
        piece = _object(whole)
        if piece is None or answer.status != 200:
            _refuse(answer.status, piece, self.endpoint, answer.headers.get("Retry-After"))
        return [piece], fold([piece or {}])

    async def _heard(self, answer: Any, pieces: list[Any], on_piece: OnPiece | None) -> tuple[list[Any], Reply]:
        parser = SSEParser(_MOST_BYTES)
        reply = Reply()
        async for chunk in answer:
            for frame in parser.feed(chunk):
                if (piece := _object(frame.data)) is not None:
                    if len(pieces) >= _MOST_PIECES:
                        raise MalformedResponse(f"{self.endpoint} answers in more than {_MOST_PIECES} pieces.")
                    pieces.append(_marks(piece))
                    _take(reply, piece)
                    if on_piece is not None:
                        on_piece(reply)
        return pieces, reply


class _NotUnderstood(TargetError):
    """The server knows no such form."""


_FLAT = {"results", "query_id", "message_type", "summary", "_meta"}


def _marks(piece: dict[str, Any]) -> dict[str, bool]:
    """Of a piece only which fields it has: what they hold is in the reply."""
    return dict.fromkeys(piece, True)


def _is_modern(pieces: Iterable[Mapping[str, Any]]) -> bool:
    return any("_meta" in one for one in pieces)


def _request(wish: Wish) -> dict[str, Any]:
    """The question in the form of 0.54. Its results are asked for as objects."""
    query = {"text": wish.text, "site": wish.site, "max_results": wish.most}
    prefer = {"streaming": wish.stream, "response_format": "conv_search", "mode": wish.mode}
    body: dict[str, Any] = {
        "query": _given(query),
        "prefer": _given(prefer),
        "meta": _given({"api_version": VERSION, "session_context": wish.session}),
    }
    if wish.previous:
        body["context"] = {"@type": "ConversationalContext", "prev": list(wish.previous)}
    return body


def _flat(wish: Wish) -> dict[str, str]:
    given = {
        "query": wish.text,
        "site": wish.site,
        "mode": wish.mode,
        "prev": msgspec.json.encode(wish.previous).decode() if wish.previous else None,
        "streaming": "true" if wish.stream else "false",
    }
    return _given(given)


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _object(raw: bytes | str) -> dict[str, Any] | None:
    try:
        found = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _refuse(status: int, piece: dict[str, Any] | None, where: str, after: str | None) -> None:
    """Raise what a status means; a failure that the site tells in its own form is a reply, whatever its status."""
    if piece is not None and "_meta" in piece:
        return
    if status in _NOT_UNDERSTOOD:
        raise _NotUnderstood(f"{where} does not understand the question (HTTP {status}).")
    raise _by_status(status, where, after)


def _by_status(status: int, where: str, after: str | None) -> Agent3Error:
    wait = retry_after(after)
    if status in (401, 403):
        return TargetRefused(f"{where} does not let us in (HTTP {status}).", data={"status": status})
    if status == 404:
        return TargetError(f"{where} is not there (HTTP 404): the site does not answer questions.")
    if status == 429 or status >= 500:
        return Unavailable(f"{where} answered with HTTP {status}. Try again later.", retry_after=wait)
    return MalformedResponse(f"{where} answered with HTTP {status} and nothing that NLWeb knows.")


# From what came to a reply


def fold(pieces: Iterable[Mapping[str, Any]]) -> Reply:
    """All pieces of an answer as one reply."""
    reply = Reply()
    for piece in pieces:
        _take(reply, piece)
    return reply


def _take(reply: Reply, piece: Mapping[str, Any]) -> None:
    meta = piece.get("_meta")
    if isinstance(meta, dict):
        _take_meta(reply, meta)
    for name in ("results", "structuredData"):
        for one in piece.get(name) or ():
            if isinstance(one, dict) and len(reply.results) < _MOST_RESULTS:
                reply.results.append(_result(one))
    _take_content(reply, piece.get("content"))
    _take_ends(reply, piece)
    _take_flat(reply, piece)


def _take_meta(reply: Reply, meta: Mapping[str, Any]) -> None:
    kind = str(meta.get("response_type") or "").lower()
    known: dict[str, Kind] = {
        "answer": "Answer",
        "elicitation": "Elicitation",
        "promise": "Promise",
        "failure": "Failure",
    }
    reply.kind = known.get(kind, reply.kind)
    if isinstance(session := meta.get("session_context"), dict):
        reply.session = session
    if isinstance(query := meta.get("decontextualized_query"), str):
        reply.query = query


def _take_content(reply: Reply, content: Any) -> None:
    """Texts, and in earlier versions also results, which come as resources."""
    if isinstance(content, str):
        _say(reply, content)
    for one in content if isinstance(content, list) else ():
        if not isinstance(one, dict):
            continue
        said = one.get("Text") or one.get("text")
        if isinstance(said, str):
            _say(reply, said)
        elif isinstance(resource := one.get("resource"), dict):
            data = resource.get("data")
            rows = data if isinstance(data, list) else [data]
            reply.results += [_result(row) for row in rows if isinstance(row, dict)][:_MOST_RESULTS]
        elif "name" in one or "url" in one:  # the flat form streams results under this name too
            reply.results.append(_result(one))


def _take_ends(reply: Reply, piece: Mapping[str, Any]) -> None:
    """The three ends that are no answer."""
    match piece:
        case {"elicitation": dict(asked)}:
            reply.kind = "Elicitation"
            reply.questions = [one for one in asked.get("questions") or () if isinstance(one, dict)]
            reply.text = str(asked.get("text") or reply.text)
        case {"promise": dict(promise)} if promise.get("token"):
            reply.kind, reply.token = "Promise", str(promise["token"])
            seconds = promise.get("estimated_time")
            reply.seconds = float(seconds) if isinstance(seconds, int | float) else None
        case {"error": dict(error)}:
            reply.kind = "Failure"
            reply.code, reply.message = str(error.get("code") or ""), str(error.get("message") or "")
        case {"error": str(message)}:
            reply.kind, reply.message = "Failure", message


def _take_flat(reply: Reply, piece: Mapping[str, Any]) -> None:
    """What the flat form says beside its results: summaries, and questions back to the person."""
    kind = piece.get("message_type")
    said = piece.get("message") or (piece.get("content") if isinstance(piece.get("content"), str) else None)
    if isinstance(summary := piece.get("summary"), str | dict):
        _say(reply, summary if isinstance(summary, str) else str(summary.get("summary") or ""))
    elif kind in _TEXTS and isinstance(piece.get("message"), str):
        _say(reply, str(said))
    elif kind == "ask_user" and isinstance(said, str):
        reply.kind = "Elicitation"
        reply.questions = [{"id": "answer", "text": said, "type": "text"}]
    elif kind == "error":
        reply.kind, reply.message = "Failure", str(said or "the site did not say why")


def _say(reply: Reply, text: str) -> None:
    if text and len(reply.text) < _MOST_TEXT:
        reply.text = f"{reply.text}\n{text}"[:_MOST_TEXT] if reply.text else text[:_MOST_TEXT]


def _result(one: Mapping[str, Any]) -> Result:
    thing = one.get("schema_object")
    thing = thing[0] if isinstance(thing, list) and thing else thing
    known: Mapping[str, Any] = {**thing, **one} if isinstance(thing, dict) else one
    grounding = known.get("grounding")
    urls = grounding.get("source_urls") if isinstance(grounding, dict) else None
    score = known.get("score")
    return Result(
        name=_text(known.get("name") or known.get("headline") or known.get("title")),
        url=_text(known.get("url") or (urls[0] if isinstance(urls, list) and urls else "")),
        type=_text(known.get("@type")),
        score=float(score) if isinstance(score, int | float) and not isinstance(score, bool) else None,
        description=_text(known.get("description")),
        site=_text(known.get("site")),
        actions=tuple(each for each in known.get("actions") or () if isinstance(each, dict)),
        raw=dict(one),
    )


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value[:10]))
    return value if isinstance(value, str) else "" if value is None or isinstance(value, dict) else str(value)
