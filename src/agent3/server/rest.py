"""The REST door: the five verbs, the jobs behind them, and what operators do, as plain JSON over HTTP.

Bodies are those of the five tools, checked by the same schemas. A refused request is answered with
``{"error": {"code", "message", "retryable", "nextStep", …}}`` and the status of the error. A call that was made and
failed has the form of every call, ``{"success": false, "error": "…", "metadata": {…}}``, with the status of its error.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from agent3 import jsonrpc
from agent3.calls.artifact_sharing import Sharing
from agent3.calls.coroutines import Left, run_watched
from agent3.calls.outcomes import describe_job
from agent3.calls.personal_data import PersonalData
from agent3.errors import Agent3Error, JobNotFound, NotFound, RequestError, SetupError, ValidationError, by_code
from agent3.gateway import Caller, Verbs, is_batch, response
from agent3.gateway.agent_book import AgentBook
from agent3.gateway.http import error_response, json_response, retry_after
from agent3.gateway.protocol import Services
from agent3.gateway.registration import Registration
from agent3.gateway.reports import Reports, to_csv
from agent3.gateway.routes import RouteBook
from agent3.model import Price, Principal, encode
from agent3.observe.logs import get as logger
from agent3.schema import json_type
from agent3.security.access import require_operator
from agent3.server.call_stream import stream_call
from agent3.server.openapi import document

__all__ = ["Rest"]

log = logger("rest")

View = Callable[[Request], Awaitable[Response]]
_MEDIA_TYPE = re.compile(r"[!-~]{1,100}/[ -~]{1,200}")


class Rest:
    """The views, one method for each route. An error that a view raises becomes a response in ``routes``."""

    def __init__(self, services: Services, registration: Registration):
        self._gateway = services.gateway
        self._agents = AgentBook(services.gateway, registration)
        self._verbs = Verbs(services.gateway)
        self._book = RouteBook(services.gateway)
        self._doorkeeper = services.doorkeeper
        self._env = services.env
        self._database = services.database
        self._own_keys = services.own_keys
        self._settings = services.settings.server
        self._limits = jsonrpc.Limits(body=self._settings.max_body)
        core = services.gateway.core
        self._reports = Reports(services.database, services.env, core.statistics, core.parts.prices)

    def routes(self) -> list[Route]:
        """Everything below /v1, and the document that describes it."""
        table: list[tuple[str, str, View]] = [
            ("/openapi.json", "GET", self.openapi),
            ("/v1/agents", "GET", self.agents),
            ("/v1/agents", "POST", self.add_agent),
            ("/v1/agents/{agent_id}", "GET", self.agent),
            ("/v1/agents/{agent_id}", "DELETE", self.remove_agent),
            ("/v1/agents/{agent_id}/card", "GET", self.card),
            ("/v1/agents/{agent_id}/changes", "GET", self.agent_changes),
            ("/v1/agents/{agent_id}/approve", "POST", self.approve_agent),
            ("/v1/search", "POST", self.search),
            ("/v1/call", "POST", self.call),
            ("/v1/calls", "GET", self.calls),
            ("/v1/calls/stats", "GET", self.stats),
            ("/v1/calls/open", "GET", self.open_jobs),
            ("/v1/calls/{job_id}", "GET", self.job),
            ("/v1/calls/{job_id}/record", "GET", self.record),
            ("/v1/calls/{job_id}/events", "GET", self.events),
            ("/v1/calls/{job_id}/callbacks", "GET", self.callbacks),
            ("/v1/calls/{job_id}/answer", "POST", self.answer),
            ("/v1/calls/{job_id}/cancel", "POST", self.cancel),
            ("/v1/approvals", "GET", self.approvals),
            ("/v1/approvals/{approval_id}", "GET", self.approval),
            ("/v1/approvals/{approval_id}/approve", "POST", self.approve_call),
            ("/v1/approvals/{approval_id}/deny", "POST", self.deny_call),
            ("/v1/feedback", "POST", self.feedback),
            ("/v1/routes", "GET", self.list_routes),
            ("/v1/routes", "PUT", self.put_route),
            ("/v1/routes", "DELETE", self.delete_route),
            ("/v1/artifacts/{artifact_id}", "GET", self.artifact),
            ("/v1/prices", "POST", self.price),
            ("/v1/data/{principal}", "GET", self.export_data),
            ("/v1/data/{principal}", "DELETE", self.erase_data),
        ]

        def guard(view: View) -> View:
            async def run(request: Request) -> Response:
                try:
                    return await view(request)
                except Agent3Error as error:
                    return error_response(error)
                except jsonrpc.ClientLeft:
                    return Response(status_code=499)
                except Exception:
                    log.exception("%s %s failed", request.method, request.url.path)
                    return error_response(Agent3Error("Internal error. See the log of the gateway."))

            return run

        return [Route(path, guard(view), methods=[method]) for path, method, view in table]

    def _caller(self, request: Request) -> Caller:
        trace = request.headers.get("traceparent")
        return Caller(self._doorkeeper(request.scope), "rest", None, trace)

    async def _body(self, request: Request) -> dict[str, Any]:
        raw = await jsonrpc.read_body(request.receive, self._settings.max_body, self._settings.body_seconds)
        body = jsonrpc.decode(raw or b"{}", self._limits)
        if not isinstance(body, dict):
            raise ValidationError(f"The body must be a JSON object, got {json_type(body)}.")
        return body

    # The verbs

    async def openapi(self, request: Request) -> Response:
        return json_response(document())

    async def agents(self, request: Request) -> Response:
        limit = _parse_query_number(request, "limit", 50, 1, 50)
        query = request.query_params.get("query", "")
        return json_response(await self._gateway.find_agents(self._caller(request), query, limit))

    async def agent(self, request: Request) -> Response:
        agent_id = request.path_params["agent_id"]
        return json_response(await self._gateway.select(self._caller(request), agent_id))

    async def add_agent(self, request: Request) -> Response:
        caller = self._caller(request)
        body = await self._body(request)
        if "text/event-stream" in request.headers.get("accept", "").lower():
            return await stream_call(
                lambda listener: self._agents.add(caller, body, listener),
                lambda _: 201,
                self._count_left_out,
                describe_error=lambda error: {"error": error.to_dict()},
            )
        answer = await self._agents.add(caller, body)
        ids = [one["id"] for one in answer["added"] if "id" in one]
        headers = {"Location": f"/v1/agents/{quote(ids[0], safe='')}"} if len(ids) == 1 else {}
        return json_response(answer, 201 if ids else 200, headers)

    async def remove_agent(self, request: Request) -> Response:
        return json_response(await self._agents.remove(self._caller(request), request.path_params["agent_id"]))

    async def agent_changes(self, request: Request) -> Response:
        return json_response(await self._agents.changes(self._caller(request), request.path_params["agent_id"]))

    async def approve_agent(self, request: Request) -> Response:
        caller, agent_id = self._caller(request), request.path_params["agent_id"]
        return json_response(await self._agents.approve(caller, agent_id, await self._body(request)))

    def _count_left_out(self) -> None:
        self._gateway.core.metrics.events_dropped.inc(("slow reader",))

    async def card(self, request: Request) -> Response:
        agent_id = request.path_params["agent_id"]
        return json_response(await self._gateway.invoke(self._caller(request), agent_id))

    async def search(self, request: Request) -> Response:
        return await self._verb("agent3_search", request)

    async def feedback(self, request: Request) -> Response:
        return await self._verb("agent3_feedback", request)

    async def list_routes(self, request: Request) -> Response:
        capability = request.query_params.get("capability")
        return json_response(await self._book.list(self._caller(request), capability))

    async def put_route(self, request: Request) -> Response:
        caller = self._caller(request)
        return json_response(await self._book.put(caller, await self._body(request)))

    async def delete_route(self, request: Request) -> Response:
        capability, also = request.query_params.get("capability"), request.query_params.get("also")
        if not capability:
            raise RequestError(
                "Name the capability: ?capability=AGENT.CAPABILITY, and &also=AGENT.CAPABILITY to remove one "
                "stand-in only."
            )
        return json_response(await self._book.remove(self._caller(request), capability, also))

    async def call(self, request: Request) -> Response:
        caller = self._caller(request)
        body = await self._body(request)
        body = dict(self._verbs.check("agent3_call", body))
        metadata = body.get("metadata") or {}
        streaming = metadata.get("streaming", "text/event-stream" in request.headers.get("accept", "").lower())
        # An answer to a job is given in place: a preference need not be honoured (RFC 7240, 2).
        detach = "respond-async" in request.headers.get("prefer", "").lower() and not metadata.get("job")
        # Whoever comes back with the key gets the result.
        keyed = bool(metadata.get("idempotencyKey"))
        if streaming and not detach and not is_batch(body):
            return await stream_call(
                lambda listener: self._verbs.answer("agent3_call", body, replace(caller, listener=listener)),
                _status,
                self._count_left_out,
                goes_on=keyed,
            )
        calling = self._verbs.answer("agent3_call", body, caller, detach=detach)
        if detach or keyed:
            return _json_body(await calling)

        async def hung_up() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass

        try:
            return _json_body(await run_watched(calling, hung_up))
        except Left:  # nobody reads what is answered now
            return Response(status_code=499)

    async def _verb(self, name: str, request: Request) -> Response:
        caller = self._caller(request)
        body = await self._body(request)
        return json_response(await self._verbs.answer(name, body, caller))

    # Jobs

    async def job(self, request: Request) -> Response:
        caller, gateway = self._caller(request), self._gateway
        seconds = float(_parse_query_number(request, "wait", 0, 0, 60))
        job_id = request.path_params["job_id"]
        try:
            if seconds:
                await gateway.wait(caller, job_id, seconds)
            return json_response(describe_job(await gateway.job(caller, job_id)))
        except JobNotFound as unknown:
            # A call that ended at once was never a job: the ledger has it.
            try:
                return json_response(await self._reports.show(caller.principal, job_id))
            except NotFound:
                raise unknown from None

    async def events(self, request: Request) -> Response:
        caller, gateway = self._caller(request), self._gateway
        job_id = request.path_params["job_id"]
        if last := request.headers.get("last-event-id"):
            after = _parse_number("Last-Event-ID", last, 0, 2**53)
        else:
            after = _parse_query_number(request, "after", 0, 0, 2**53)
        await gateway.job(caller, job_id)

        async def frames() -> AsyncIterator[bytes]:
            async for event in gateway.follow(caller, job_id, after):
                if event.kind != "state":
                    yield jsonrpc.encode_event(encode(event), id=str(event.seq), event=event.kind)

        return StreamingResponse(frames(), media_type="text/event-stream", headers={"Cache-Control": "no-store"})

    async def callbacks(self, request: Request) -> Response:
        job_id = request.path_params["job_id"]
        callbacks = await self._gateway.callbacks(self._caller(request), job_id)
        return json_response({"job": job_id, "callbacks": callbacks})

    async def answer(self, request: Request) -> Response:
        caller = self._caller(request)
        body = await self._body(request)
        answer: str | dict[str, Any]
        match body:
            case {"answers": dict(answer), **rest} | {"message": str(answer), **rest} if not rest:
                pass
            case _:
                raise ValidationError('Send {"answers": {"q1": …}} by question id, or {"message": "…"} for the first.')
        started = self._env.monotonic()
        outcome = await self._gateway.reply(caller, request.path_params["job_id"], answer)
        return _json_body(response(outcome, self._env.monotonic() - started))

    async def cancel(self, request: Request) -> Response:
        return json_response(await self._gateway.cancel_any(self._caller(request), request.path_params["job_id"]))

    async def open_jobs(self, request: Request) -> Response:
        limit = _parse_query_number(request, "limit", 50, 1, 1_000)
        return json_response(await self._gateway.open_jobs(self._caller(request), limit))

    # Approvals

    async def approvals(self, request: Request) -> Response:
        status = request.query_params.get("status", "waiting")
        if status not in ("waiting", "all"):
            raise ValidationError(f"status is {status[:40]!r}; it must be waiting or all.")
        limit = _parse_query_number(request, "limit", 50, 1, 1_000)
        caller = self._caller(request)
        return json_response(await self._gateway.approvals(caller, waiting=status == "waiting", limit=limit))

    async def approval(self, request: Request) -> Response:
        return json_response(await self._gateway.approval(self._caller(request), request.path_params["approval_id"]))

    async def approve_call(self, request: Request) -> Response:
        return await self._decide(request, approve=True)

    async def deny_call(self, request: Request) -> Response:
        return await self._decide(request, approve=False)

    async def _decide(self, request: Request, *, approve: bool) -> Response:
        caller = self._caller(request)
        match await self._body(request):
            case {"reason": str(reason), **rest} if not rest:
                pass
            case body if not body:
                reason = ""
            case _:
                raise ValidationError('Send {} or {"reason": "…"}.')
        approval = request.path_params["approval_id"]
        return json_response(await self._gateway.decide(caller, approval, approve=approve, reason=reason))

    # The ledger

    async def calls(self, request: Request) -> Response:
        reader = self._reader(request)
        query = dict(request.query_params)
        form = query.pop("format", "csv" if "text/csv" in request.headers.get("accept", "") else "json")
        if form not in ("json", "csv"):
            raise ValidationError(f"format is {form[:40]!r}; it must be json or csv.")
        page = await self._reports.list(reader, query)
        if form == "json":
            return json_response(page)
        headers = {"X-Next-Cursor": page["next"]} if page["next"] else {}
        return Response(await asyncio.to_thread(to_csv, page["calls"]), 200, headers, "text/csv; charset=utf-8")

    async def stats(self, request: Request) -> Response:
        return json_response(await self._reports.stats(self._reader(request), dict(request.query_params)))

    async def record(self, request: Request) -> Response:
        return json_response(await self._reports.show(self._reader(request), request.path_params["job_id"]))

    async def price(self, request: Request) -> Response:
        reader = self._reader(request)
        match await self._body(request):
            case {"agentId": str(agent), **given} if set(given) <= {"capability", "price"}:
                try:
                    price = msgspec.convert(given.get("price"), Price | None)
                    capability = msgspec.convert(given.get("capability"), str | None)
                except msgspec.ValidationError as error:
                    raise ValidationError(str(error)) from None
                return json_response(await self._reports.price(reader, agent, capability, price))
            case _:
                raise ValidationError('Send {"agentId": "…", "capability": "…", "price": {"call": 0.001}}.')

    async def export_data(self, request: Request) -> Response:
        # Everybody may have what is held of themselves; of others, operators alone.
        reader, whose = self._reader(request), request.path_params["principal"]
        if whose != reader.id:
            require_operator(reader, "export the data of other callers")
        return StreamingResponse(self._personal_data().export(whose), 200, media_type="application/jsonl")

    async def erase_data(self, request: Request) -> Response:
        reader, whose = self._reader(request), request.path_params["principal"]
        require_operator(reader, "erase the data of callers")
        try:
            signer = await self._own_keys.key("audit")
        except SetupError:  # the segment that this process writes is not signed either, and the log says why
            signer = None
        gone = await self._personal_data().erase(whose, signer)
        return json_response({"principal": whose, "erased": gone})

    def _personal_data(self) -> PersonalData:
        return PersonalData(self._database, self._gateway.core.artifacts.blobs, self._env)

    def _reader(self, request: Request) -> Principal:
        principal = self._caller(request).principal
        self._gateway.count_question(principal)
        return principal

    async def artifact(self, request: Request) -> Response:
        artifact_id = request.path_params["artifact_id"]
        if "signature" in request.query_params:
            # A link that the owner signed is read as the owner.
            expires = _parse_query_number(request, "expires", 0, 0, 2**53)
            signature = request.query_params["signature"]
            reader = await Sharing(self._database, self._env).owner(artifact_id, expires, signature)
        else:
            reader = self._caller(request).principal.id
        found = await self._gateway.core.artifacts.get(reader, artifact_id)
        # Made by an agent: a browser must not show it as a page of this origin.
        headers = {"X-Content-Type-Options": "nosniff", "Content-Disposition": "attachment"}
        # So is its type, which must not end a header.
        kind = found.media_type if _MEDIA_TYPE.fullmatch(found.media_type or "") else "application/octet-stream"
        return Response(found.body, 200, headers, kind)


def _parse_query_number(request: Request, name: str, default: int, least: int, most: int) -> int:
    text = request.query_params.get(name)
    return default if text is None else _parse_number(name, text, least, most)


def _parse_number(name: str, text: str, least: int, most: int) -> int:
    # int() also takes digits of other scripts, and raises its own error for some thousands of digits.
    if not (text.isascii() and text.isdigit() and len(text) <= 17 and least <= int(text) <= most):
        raise RequestError(f"{name} must be a whole number from {least} to {most}, got {text[:40]!r}.")
    return int(text)


def _status(body: dict[str, Any]) -> int:
    """The HTTP status of a call's answer; that of the agent itself stands in its metadata."""
    if "errorCode" in body:
        return by_code(body["errorCode"]).http_status
    return 202 if body.get("status") == "working" else 200


def _json_body(body: dict[str, Any]) -> Response:
    """A body with its status, and the headers that belong to it."""
    metadata = body.get("metadata", {})
    headers: dict[str, str] = {}
    if "retryAfter" in metadata:
        headers["Retry-After"] = retry_after(metadata["retryAfter"])
    if body.get("status") == "working":
        headers["Location"] = f"/v1/calls/{body['job']}"
    return json_response(body, _status(body), headers)
