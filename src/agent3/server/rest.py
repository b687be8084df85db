"""The REST door: the five verbs and the jobs behind them, as plain JSON over HTTP.

Bodies are those of the five tools, checked by the same schemas. Every refused request has one form:
``{"error": {"code", "message", "retryable", …}}`` with the right status. A call that was made and failed is told in
the form of every call, ``{"success": false, "error": "…", "metadata": {…}}``, with the status of what went wrong.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from agent3 import jsonrpc
from agent3.calls.artifact_sharing import Sharing
from agent3.calls.outcomes import describe_job
from agent3.errors import Agent3Error, RequestError, ValidationError
from agent3.gateway import Caller, Verbs, response
from agent3.gateway.http import error_response, json_response, retry_after
from agent3.gateway.protocol import Services
from agent3.model import Done, Event, Failed, Outcome, encode, value_of
from agent3.observe.logs import get as logger
from agent3.server.openapi import document

__all__ = ["Rest"]

log = logger("rest")

View = Callable[[Request], Awaitable[Response]]


class Rest:
    """The views. Each is a small function of a request; ``_guarded`` turns errors into responses around them."""

    def __init__(self, services: Services):
        self._gateway = services.gateway
        self._verbs = Verbs(services.gateway)
        self._doorkeeper = services.doorkeeper
        self._env = services.env
        self._database = services.database
        self._settings = services.settings.server
        self._limits = jsonrpc.Limits(body=self._settings.max_body)

    def routes(self) -> list[Route]:
        """Everything below /v1, and the document that describes it."""
        table: list[tuple[str, str, View]] = [
            ("/openapi.json", "GET", self._openapi),
            ("/v1/agents", "GET", self._agents),
            ("/v1/agents/{agent_id}", "GET", self._agent),
            ("/v1/agents/{agent_id}/card", "GET", self._card),
            ("/v1/search", "POST", self._search),
            ("/v1/call", "POST", self._call),
            ("/v1/calls/{job_id}", "GET", self._job),
            ("/v1/calls/{job_id}/events", "GET", self._events),
            ("/v1/calls/{job_id}/callbacks", "GET", self._callbacks),
            ("/v1/calls/{job_id}/answer", "POST", self._answer),
            ("/v1/calls/{job_id}/cancel", "POST", self._cancel),
            ("/v1/feedback", "POST", self._feedback),
            ("/v1/artifacts/{artifact_id}", "GET", self._artifact),
        ]
        return [Route(path, self._guarded(view), methods=[method]) for path, method, view in table]

    def _guarded(self, view: View) -> View:
        async def guarded(request: Request) -> Response:
            try:
                return await view(request)
            except Agent3Error as error:
                return error_response(error)
            except Exception:
                log.exception("%s %s failed", request.method, request.url.path)
                return error_response(Agent3Error("Internal error. The gateway's log has the details."))

        return guarded

    def _caller(self, request: Request) -> Caller:
        trace = request.headers.get("traceparent")
        return Caller(self._doorkeeper(request.scope), "rest", None, trace)

    async def _body(self, request: Request) -> dict[str, Any]:
        raw = await jsonrpc.read_body(request.receive, self._settings.max_body, self._settings.body_seconds)
        body = jsonrpc.decode(raw or b"{}", self._limits)
        if not isinstance(body, dict):
            raise ValidationError(f"The body must be a JSON object, got {type(body).__name__}.")
        return body

    # The verbs

    async def _openapi(self, request: Request) -> Response:
        return json_response(document())

    async def _agents(self, request: Request) -> Response:
        limit = _whole(request, "limit", 50, 1, 50)
        query = request.query_params.get("query", "")
        return json_response(await self._gateway.search(self._caller(request), query, limit))

    async def _agent(self, request: Request) -> Response:
        agent_id = request.path_params["agent_id"]
        return json_response(await self._gateway.select(self._caller(request), agent_id))

    async def _card(self, request: Request) -> Response:
        agent_id = request.path_params["agent_id"]
        return json_response(await self._gateway.invoke(self._caller(request), agent_id))

    async def _search(self, request: Request) -> Response:
        return await self._verb("agent3_search", request)

    async def _feedback(self, request: Request) -> Response:
        return await self._verb("agent3_feedback", request)

    async def _call(self, request: Request) -> Response:
        caller = self._caller(request)
        body = await self._body(request)
        started = self._env.monotonic()
        self._verbs.check("agent3_call", body)
        if "respond-async" in request.headers.get("prefer", "").lower() and not _continues(body):
            detached = await self._gateway.call(caller, self._verbs.request(body, detach=True))
            return _json_outcome(detached, self._env.monotonic() - started)
        outcome = await self._verbs.run("agent3_call", body, caller)
        return _told(outcome, self._env.monotonic() - started)

    async def _verb(self, name: str, request: Request) -> Response:
        caller = self._caller(request)
        body = await self._body(request)
        return _told(await self._verbs.run(name, body, caller), 0.0)

    # Jobs

    async def _job(self, request: Request) -> Response:
        caller, gateway = self._caller(request), self._gateway
        seconds = float(_whole(request, "wait", 0, 0, 60))
        job_id = request.path_params["job_id"]
        if seconds:
            await gateway.wait(caller, job_id, seconds)
        return json_response(describe_job(await gateway.job(caller, job_id)))

    async def _events(self, request: Request) -> Response:
        caller, gateway = self._caller(request), self._gateway
        job_id = request.path_params["job_id"]
        last = request.headers.get("last-event-id")
        after = _number("Last-Event-ID", last, 0, 2**53) if last else _whole(request, "after", 0, 0, 2**53)
        await gateway.job(caller, job_id)
        stream = _frames(gateway.follow(caller, job_id, after))
        return StreamingResponse(stream, media_type="text/event-stream", headers={"Cache-Control": "no-store"})

    async def _callbacks(self, request: Request) -> Response:
        job_id = request.path_params["job_id"]
        told = await self._gateway.callbacks(self._caller(request), job_id)
        return json_response({"job": job_id, "callbacks": told})

    async def _answer(self, request: Request) -> Response:
        caller = self._caller(request)
        body = await self._body(request)
        said: str | dict[str, Any]
        match body:
            case {"answers": dict(said), **rest} | {"message": str(said), **rest} if not rest:
                pass
            case _:
                raise ValidationError('Send {"answers": {"q1": …}} by question id, or {"message": "…"} for the first.')
        started = self._env.monotonic()
        outcome = await self._gateway.reply(caller, request.path_params["job_id"], said)
        return _json_outcome(outcome, self._env.monotonic() - started)

    async def _cancel(self, request: Request) -> Response:
        caller, gateway = self._caller(request), self._gateway
        job_id = request.path_params["job_id"]
        await gateway.cancel(caller, job_id)
        return json_response(describe_job(await gateway.job(caller, job_id)))

    async def _artifact(self, request: Request) -> Response:
        found = await self._gateway.core.artifacts.get(await self._reader(request), request.path_params["artifact_id"])
        # What an agent made is never shown as a page of ours.
        headers = {"X-Content-Type-Options": "nosniff", "Content-Disposition": "attachment"}
        return Response(found.body, 200, headers, found.media_type)

    async def _reader(self, request: Request) -> str:
        """As whom an artifact is read: as its owner by a link that he signed, else as whoever asks."""
        if "signature" not in request.query_params:
            return self._caller(request).principal.id
        expires = _whole(request, "expires", 0, 0, 2**53)
        sharing = Sharing(self._database, self._env)
        return await sharing.owner(request.path_params["artifact_id"], expires, request.query_params["signature"])


def _whole(request: Request, name: str, default: int, least: int, most: int) -> int:
    text = request.query_params.get(name)
    return default if text is None else _number(name, text, least, most)


def _number(name: str, text: str, least: int, most: int) -> int:
    # Python reads digits of every script, and refuses some thousands of them with an error of its own.
    if not (text.isascii() and text.isdigit() and len(text) <= 17 and least <= int(text) <= most):
        raise RequestError(f"{name} must be a whole number from {least} to {most}, got {text[:40]!r}.")
    return int(text)


def _continues(body: dict[str, Any]) -> bool:
    """Whether a body goes on with a job; that is answered in place, for a preference may be left aside."""
    return bool((body.get("metadata") or {}).get("job"))


def _told(outcome: Outcome, seconds: float) -> Response:
    """What a tool gave: its one datum is the body."""
    if isinstance(outcome, Done):
        return _json_body(value_of(outcome.parts))
    return _json_outcome(outcome, seconds)


def _json_outcome(outcome: Outcome, seconds: float) -> Response:
    if isinstance(outcome, Failed) and outcome.parts:
        return _json_body(value_of(outcome.parts))
    return _json_body(response(outcome, seconds))


def _json_body(body: dict[str, Any]) -> Response:
    """A body with the status and headers that its own metadata name."""
    metadata = body.get("metadata", {})
    headers: dict[str, str] = {}
    if "retryAfter" in metadata:
        headers["Retry-After"] = retry_after(metadata["retryAfter"])
    if body.get("status") == "working":
        headers["Location"] = f"/v1/calls/{body['job']}"
    return json_response(body, metadata.get("statusCode", 200), headers)


async def _frames(events: AsyncIterator[Event]) -> AsyncIterator[bytes]:
    async for event in events:
        if event.kind != "state":
            yield jsonrpc.sse(encode(event), id=str(event.seq), event=event.kind)
