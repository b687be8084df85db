"""The connector of protocol ``openapi``: an operation becomes one HTTP request, and its response the outcome.

The address of a route is the server's, its target the name of the capability, and its ``meta`` holds the plan of the
request. Redirects are followed within one origin only. Nothing is repeated here but a request whose token was refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any
from urllib.parse import quote, urljoin, urlsplit

import msgspec

from agent3.calls.outcomes import HTTP_STATUS, failed_by
from agent3.env import REAL, Env
from agent3.errors import (
    Agent3Error,
    Canceled,
    Interrupted,
    MalformedResponse,
    SetupError,
    TargetRefused,
    TooLarge,
)
from agent3.identity.oauth import Flow, check_endpoint, origin_of
from agent3.identity.scheme_credentials import Carried, Scheme, SchemeCredential, carry_plainly
from agent3.identity.secrets import Secret
from agent3.jsonrpc import SSEParser, is_event_stream, read_large
from agent3.model import Agent, Call, Done, Event, Outcome, Part, Principal, Route
from agent3.protocols.openapi.answers import error_of, part_of, result_of
from agent3.protocols.openapi.document import MOST_BYTES, Document, parse
from agent3.protocols.openapi.http_request import Fetch, File, Request, build_request
from agent3.protocols.openapi.operations import Operation, describe
from agent3.security.caller_scope import CallerScope
from agent3.security.outbound import Gate, Policy, Response, Stream

__all__ = ["Artifacts", "OpenAPIConnector", "sign_in_flow"]

_FETCH_SECONDS = 30.0
_MOST_REDIRECTS = 3
_MOST_CREDENTIALS = 1_000
_MOST_EVENTS = 10_000
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_ACCEPT = "application/json, application/yaml;q=0.9, text/yaml;q=0.9, */*;q=0.5"


class Artifacts:
    """Where files of callers are; the gateway gives one."""

    async def get(self, principal: Principal, artifact: str) -> File:
        raise SetupError("This connector has no store of artifacts. Pass the file as text or data.")


class OpenAPIConnector:
    """Calls services that an OpenAPI document describes. It belongs to the event loop it is used in."""

    def __init__(
        self,
        policy: Policy | None = None,
        *,
        artifacts: Artifacts | None = None,
        env: Env = REAL,
        scope: CallerScope | None = None,
    ):
        self._scope = scope or CallerScope(env.random_bytes(32))
        self._policy = policy or Policy()
        self._artifacts = artifacts or Artifacts()
        self._env = env
        self._gates: dict[str, Gate] = {}
        self._credentials: dict[tuple[Any, ...], SchemeCredential] = {}

    # Describing

    async def describe(self, address: str) -> Agent:
        """The service whose document is at an address, which somebody at this machine has chosen."""
        route = Route("openapi", address, meta={"document": address, "registered": True})
        return await self.describe_document(await self.fetch(route, None), route, address)

    async def describe_document(self, document: Document, route: Route, address: str | None) -> Agent:
        """The service of a document; ``route`` is the pattern of its routes."""
        agent = await asyncio.to_thread(describe, document, route, address)
        if route.credential is not None:
            home = address or agent.capabilities[0].routes[0].address
            for server in agent.card["servers"]:
                _check_secret_goes(home, server)
        return agent

    async def fetch(self, route: Route, secret: Secret | None) -> Document:
        """The document at an address; shown who asks only where it is not shown to everybody."""
        address, gate = route.address, self.gate(route)
        response = await _whole(gate, Request("GET", address, {"Accept": _ACCEPT}), MOST_BYTES, _FETCH_SECONDS)
        if response.status in (401, 403) and secret is not None:
            carried = carry_plainly(secret, route.meta.get("secret_header"), response)
            headers = {"Accept": _ACCEPT, **carried.headers}
            response = await _whole(gate, Request("GET", address, headers), MOST_BYTES, _FETCH_SECONDS)
        place = urlsplit(address).netloc.rpartition("@")[2]
        if response.status in (401, 403):
            text = f"{place} refuses access to its document (HTTP {response.status})."
            raise TargetRefused(text, data={"status": response.status, "signIn": False})
        if response.status != 200:
            raise MalformedResponse(f"{place} has no OpenAPI document at this address (HTTP {response.status}).")
        return await asyncio.to_thread(parse, response.body, place)

    # Calling

    async def call(self, call: Call) -> Outcome:
        """One request. Cancelling it closes the connection."""
        route = call.route
        assert route is not None
        try:
            if call.entry == "cancel":
                raise Canceled(f"The call of {call.agent} was cancelled.")
            if call.entry != "start":
                raise Interrupted(f"{call.agent}/{call.capability} was interrupted. Call it again.")
            return await self._send(call, route)
        except Agent3Error as error:
            return failed_by(error)

    async def aclose(self) -> None:
        gates, self._gates = self._gates, {}
        for gate in gates.values():
            await gate.aclose()

    async def _send(self, call: Call, route: Route) -> Outcome:
        operation = msgspec.convert(route.meta["operation"], Operation)
        gate = self.gate(route)
        try:
            request = await build_request(
                operation,
                route.address,
                call.input,
                fetch=self._reader(call.principal),
                boundary=self._env.id("agent3"),
            )
        except Agent3Error as error:
            error.sent = False
            raise
        if name := operation.key_header:
            if given := request.headers.get(name):  # an argument: the word of a caller, as the key of a call is
                request.headers[name] = self._scope.derive(call.principal, "key", given)
            elif call.key:
                request.headers[name] = call.key
        credential = self._credential(route, operation, call.secret, gate)
        if credential is None:
            return await self._exchange(call, operation, gate, request)
        call.live.hides = (*call.live.hides, credential.hidden)
        carried = await credential.carry(request.url)
        try:
            return await self._exchange(call, operation, gate, _add_carried(request, carried))
        except TargetRefused as refused:
            # What was refused for its token was not done, and may be sent with a better one, once.
            if refused.data.get("status") != 401 or not await credential.renew(carried.headers, refused):
                raise
        carried = await credential.carry(request.url)
        return await self._exchange(call, operation, gate, _add_carried(request, carried))

    async def _exchange(self, call: Call, operation: Operation, gate: Gate, request: Request) -> Done:
        """What a success gave; else the error that the response stands for."""
        async with _open(gate, request) as answer:
            if is_event_stream(answer.headers.get("Content-Type")) and answer.status < 300:
                return await _listen(call, answer)
            response = await _read(answer)
        if response.status < 300:
            return await read_large(response.body, partial(result_of, response, operation.method))
        if response.status in _REDIRECTS:
            raise MalformedResponse(
                f"{call.agent} redirects to another address (HTTP {response.status}), which is not followed. "
                "Add the document with the final address of its server.",
                data={"status": response.status, HTTP_STATUS: response.status},
            )
        raise error_of(response, call.agent, self._env.now())

    def _credential(
        self, route: Route, operation: Operation, secret: Secret | None, gate: Gate
    ) -> SchemeCredential | None:
        if secret is None or route.meta.get("open"):
            return None
        scheme = None if operation.scheme is None else Scheme(operation.scheme, operation.scopes)
        header = None if scheme is not None else route.meta.get("secret_header")
        key = (route.address, secret, header, msgspec.json.encode(operation.scheme), operation.scopes)
        if key not in self._credentials:
            if len(self._credentials) >= _MOST_CREDENTIALS:
                self._credentials.clear()
            self._credentials[key] = SchemeCredential(scheme, secret, header, gate, route.address, self._env)
        return self._credentials[key]

    def _reader(self, principal: Principal) -> Fetch:
        async def fetch(artifact: str) -> File:
            return await self._artifacts.get(principal, artifact)

        return fetch

    def gate(self, route: Route) -> Gate:
        """The gate to a service and to its authorization server."""
        host = urlsplit(route.address).netloc if route.meta.get("registered") else ""
        if host not in self._gates:
            self._gates[host] = Gate(self._policy.registering(route.address) if host else self._policy)
        return self._gates[host]


def sign_in_flow(document: Document, server: str) -> Flow | None:
    """The authorization code flow that a document names first, for a token that only its server gets."""
    components = document.content.get("components")
    schemes = components.get("securitySchemes") if isinstance(components, dict) else None
    for given in (schemes if isinstance(schemes, dict) else {}).values():
        definition = document.follow(given)
        flows = definition.get("flows") if isinstance(definition, dict) else None
        flow = flows.get("authorizationCode") if isinstance(flows, dict) else None
        if isinstance(flow, dict) and definition.get("type") == "oauth2":
            scopes = flow.get("scopes")
            refresh = flow.get("refreshUrl")
            return Flow(
                authorize=check_endpoint(urljoin(server, str(flow.get("authorizationUrl")))),
                token=check_endpoint(urljoin(server, str(flow.get("tokenUrl")))),
                refresh=check_endpoint(urljoin(server, str(refresh))) if refresh else "",
                scopes=tuple(map(str, scopes)) if isinstance(scopes, dict) else (),
                origins=(origin_of(server),),
            )
    return None


def _check_secret_goes(home: str, server: str) -> None:
    """Refuse to send a credential in the clear to a server that a document from elsewhere names."""
    there = urlsplit(server)
    if there.scheme != "https" and there.hostname != urlsplit(home).hostname:
        raise SetupError(
            f"The document of {urlsplit(home).hostname} sends the credential to {server} without TLS, so it "
            "was not added. Use a document with an https address."
        )


def _add_carried(request: Request, carried: Carried) -> Request:
    headers = {**request.headers}
    for name, value in carried.headers.items():
        if name == "Cookie" and "Cookie" in headers:
            value = f"{headers['Cookie']}; {value}"
        headers[name] = value
    url = request.url
    for name, value in carried.query.items():
        url += f"{'&' if '?' in url else '?'}{quote(name, safe='')}={quote(value, safe='')}"
    return request._replace(url=url, headers=headers)


@asynccontextmanager
async def _open(
    gate: Gate, request: Request, max_bytes: int | None = None, timeout: float | None = None
) -> AsyncIterator[Stream]:
    """Send a request; redirects are followed within one origin, where that repeats nothing."""
    for _ in range(_MOST_REDIRECTS + 1):
        async with gate.stream(
            request.method,
            request.url,
            headers=request.headers,
            body=request.body,
            max_bytes=max_bytes,
            timeout=timeout,
        ) as answer:
            location = answer.headers.get("Location")
            if answer.status not in _REDIRECTS or not location:
                yield answer
                return
            there = urljoin(request.url, location)
            if origin_of(there) != origin_of(request.url):
                yield answer
                return
            if answer.status in (307, 308) or request.method in ("GET", "HEAD"):
                request = request._replace(url=there)
            elif answer.status == 303:
                request = Request("GET", there, _without_body(request.headers))
            else:
                yield answer
                return
    raise MalformedResponse(f"{urlsplit(request.url).hostname} redirects more than {_MOST_REDIRECTS} times.")


def _without_body(headers: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name != "Content-Type"}


async def _read(answer: Stream) -> Response:
    content = b"".join([chunk async for chunk in answer])
    return Response(answer.status, answer.headers, content, answer.url)


async def _whole(gate: Gate, request: Request, max_bytes: int, timeout: float) -> Response:
    async with _open(gate, request, max_bytes, timeout) as answer:
        return await _read(answer)


async def _listen(call: Call, answer: Stream) -> Done:
    """Events of a stream as they come, and all of them as the result."""
    parser = SSEParser()
    parts: list[Part] = []
    async for chunk in answer:
        for frame in parser.feed(chunk):
            if not frame.data:
                continue
            part = await read_large(frame.data, partial(_event_part, frame.data))
            parts.append(part)
            if len(parts) > _MOST_EVENTS:
                raise TooLarge(f"{call.agent} sent more than {_MOST_EVENTS} events.")
            call.emit(Event("artifact", artifact="result", parts=(part,), append=len(parts) > 1))
    return Done(tuple(parts), meta={HTTP_STATUS: answer.status, "status": answer.status})


def _event_part(data: bytes) -> Part:
    if data[:1] in b"{[":
        try:
            return part_of(data, {"Content-Type": "application/json"})
        except MalformedResponse:
            pass
    return Part(text=data.decode("utf-8", "replace"))
