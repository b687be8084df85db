"""A client for the MCP project's kit to judge: agent3's connector, led through each scenario as a gateway would.

The kit starts it with the address of a server and names the scenario in the environment. It only acts: what the
connector puts on the wire is what is judged.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from msgspec.structs import replace

from agent3.errors import Agent3Error
from agent3.identity.authorization import Authorization
from agent3.identity.secrets import Secret
from agent3.model import LOCAL, Agent, Answer, Call, Needs, Outcome, Question, Route, Turn
from agent3.protocols.mcp.client.connector import MCPConnector
from agent3.protocols.mcp.client.oauth import (
    authorization_code,
    client_credentials,
    identity_assertion,
    private_key,
    token_exchange,
    workload_identity,
)
from agent3.security.outbound import Gate, Policy

__all__ = ["main"]

HERE = Policy(allow_loopback=True)
"""The kit's authorization servers stand on this machine, at ports that nobody registered."""
REDIRECT = "http://localhost:3000/callback"
DOCUMENT = "https://conformance-test.local/client-metadata.json"
ROUNDS = 5
KINDS = (("resources/list", "resources", "resources/read", "uri"), ("prompts/list", "prompts", "prompts/get", "name"))
SAMPLES: dict[str, Any] = {"string": "x", "integer": 0, "number": 0, "boolean": False, "object": {}, "array": []}


class Talk:
    """A connector, the agent at its other end, and a person who accepts every form as it is filled in."""

    def __init__(self, connector: MCPConnector, agent: Agent):
        self.connector = connector
        self.agent = agent

    async def call(self, name: str, given: Mapping[str, Any] | None = None) -> Outcome:
        """The outcome of a tool after all its questions."""
        call = self._call(name, dict(given or {}))
        outcome = await self.connector.call(call)
        for _ in range(ROUNDS):
            if not isinstance(outcome, Needs):
                break
            answers = {one.id: _accepted(one) for one in outcome.questions}
            call = replace(
                call,
                entry="answer",
                turn=call.turn + 1,
                answers={**call.answers, **answers},
                questions=outcome.questions,
                state=outcome.state,
            )
            outcome = await self.connector.call(call)
        return outcome

    def _call(self, name: str, given: dict[str, Any]) -> Call:
        capability = self.agent.capability(name)
        if capability is None:
            raise SystemExit(f"The server lists no tool {name!r} that can be called.")
        live = Turn(self.agent, capability)
        live.ask = _asked
        return Call(
            id="conformance",
            principal=LOCAL,
            agent=self.agent.id,
            capability=name,
            input=given,
            route=capability.routes[0],
            live=live,
        )


async def _asked(question: Question) -> Answer:
    return _accepted(question)


def _accepted(question: Question) -> Answer:
    """What a form holds that a person sends off unchanged: its defaults, and a tick at each box that must have one."""
    schema = question.schema or {}
    fields = schema.get("properties", {})
    filled = {name: field["default"] for name, field in fields.items() if "default" in field}
    ticked = {name: True for name, field in fields.items() if field.get("type") == "boolean" and name not in filled}
    return Answer("accept", {**filled, **ticked})


@asynccontextmanager
async def talking(url: str, by: Authorization | None = None) -> AsyncIterator[Talk]:
    """The server at an address, described."""
    connector = MCPConnector(HERE)
    if by is not None:
        connector.upstreams.authorize(url, by)
    try:
        yield Talk(connector, await connector.describe(url, registered=True))
    finally:
        await connector.aclose()


# Scenarios


async def look(url: str) -> None:
    """Only see what is there."""
    async with talking(url):
        pass


async def every_tool(url: str) -> None:
    """Call each tool that can be called, with the least it takes."""
    async with talking(url) as talk:
        for capability in talk.agent.capabilities:
            schema = capability.input_schema
            fields = schema.get("properties", {})
            wanted = {name: SAMPLES.get(fields.get(name, {}).get("type"), "x") for name in schema.get("required", ())}
            await talk.call(capability.name, wanted)


async def add_numbers(url: str) -> None:
    """One call."""
    async with talking(url) as talk:
        await talk.call("add_numbers", {"a": 5, "b": 3})


async def every_kind(url: str) -> None:
    """Each tool, and one of each other kind that the server has."""
    await every_tool(url)
    route = Route("mcp", url, meta={"registered": True})
    async with talking(url) as talk:
        for method, key, read, name in KINDS:
            for item in (await talk.connector.items(route, method, key))[:1]:
                await talk.connector.request(route, read, {name: item[name]})


async def schema_echo(url: str) -> None:
    """Tell the server the schema that it gave."""
    async with talking(url) as talk:
        seen = talk.agent.capability("json_schema_2020_12_tool")
        await talk.call("json_schema_echo", {"schema": seen.input_schema if seen is not None else None})


async def given_calls(url: str) -> None:
    """The calls that the kit wants, of the tools that can be called."""
    async with talking(url) as talk:
        for wanted in _context()["toolCalls"]:
            await talk.call(wanted["name"], wanted.get("arguments"))


async def several_rounds(url: str) -> None:
    """Calls that ask back, and others between them."""
    async with talking(url) as talk:
        for name in ("echo_state", "unrelated", "no_state", "no_result_type"):
            await talk.call(f"test_mrtr_{name}")


# With authorization


async def signed_in(url: str) -> None:
    """As a person who agrees to everything."""
    known = _context()
    secret = Secret(known["client_secret"]) if "client_secret" in known else None
    async with _gate() as gate:
        by = authorization_code(
            url,
            _agreeing(gate),
            redirect=REDIRECT,
            client_id=known.get("client_id"),
            secret=secret,
            metadata_url=DOCUMENT,
            issuer=known.get("issuer"),
        )
        await _use(url, by)


async def with_secret(url: str) -> None:
    """As ourselves, by a secret."""
    known = _context()
    issuer = await _issuer(url)
    await _use(url, client_credentials(url, known["client_id"], Secret(known["client_secret"]), issuer=issuer))


async def with_key(url: str) -> None:
    """As ourselves, by a private key."""
    known = _context()
    issuer, key = await _issuer(url), Secret(known["private_key_pem"])
    algorithm = known.get("signing_algorithm", "ES256")
    await _use(url, private_key(url, known["client_id"], key, issuer=issuer, algorithm=algorithm))


async def with_identity(url: str) -> None:
    """By what an identity provider says: its token, exchanged for one that the other house trusts (RFC 8693)."""
    known = _context()
    issuer, secret = await _issuer(url), Secret(known["client_secret"])
    async with _gate() as gate:
        identity = Secret(known["idp_id_token"])
        assertion = token_exchange(gate, known["idp_token_endpoint"], known["idp_client_id"], identity)
        await _use(url, identity_assertion(url, known["client_id"], secret, assertion, issuer=issuer))


async def with_workload(url: str) -> None:
    """As a program, by the token of its platform."""
    known = _context()
    issuer = await _issuer(url)

    async def assertion(audience: str, resource: str) -> str:
        return str(known["valid_jwt"])

    await _use(url, workload_identity(url, known["client_id"], assertion, issuer=issuer))


async def _use(url: str, by: Authorization) -> None:
    async with talking(url, by) as talk:
        for capability in talk.agent.capabilities[:1]:
            await talk.call(capability.name)


def _agreeing(gate: Gate) -> Callable[[str], Awaitable[str]]:
    async def sign_in(url: str) -> str:
        answer = await gate.request("GET", url)
        return answer.headers.get("location", "")

    return sign_in


async def _issuer(url: str) -> str:
    """Whom the server trusts. A gateway has this from its operator; the kit does not tell it beforehand."""
    root, _, path = url.partition("://")[2].partition("/")
    async with _gate() as gate:
        answer = await gate.request("GET", f"http://{root}/.well-known/oauth-protected-resource/{path}")
    return str(json.loads(answer.body)["authorization_servers"][0])


@asynccontextmanager
async def _gate() -> AsyncIterator[Gate]:
    gate = Gate(HERE)
    try:
        yield gate
    finally:
        await gate.aclose()


def _context() -> dict[str, Any]:
    """What the kit gives to a scenario."""
    found = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
    return found if isinstance(found, dict) else {}


SCENARIOS: dict[str, Callable[[str], Awaitable[None]]] = {
    "initialize": look,
    "json-schema-ref-no-deref": look,
    "request-metadata": look,
    "sep-2640-client-no-prefetch": look,
    "tools_call": add_numbers,
    "sse-retry": every_tool,
    "elicitation-sep1034-client-defaults": every_tool,
    "http-standard-headers": every_kind,
    "http-invalid-tool-headers": every_tool,
    "http-custom-headers": given_calls,
    "json-schema-2020-12-preservation": schema_echo,
    "sep-2322-client-request-state": several_rounds,
    "auth/client-credentials-basic": with_secret,
    "auth/client-credentials-jwt": with_key,
    "auth/enterprise-managed-authorization": with_identity,
    "auth/wif-jwt-bearer": with_workload,
}


def main() -> int:
    """Lead the connector through the scenario that the kit names; 1 and the reason if that ended in an error."""
    name = os.environ.get("MCP_CONFORMANCE_SCENARIO", "")
    scenario = SCENARIOS.get(name, signed_in if name.startswith("auth/") else None)
    if scenario is None:
        print(f"There is no scenario {name!r} here.", file=sys.stderr)
        return 2

    async def acted() -> None:
        await scenario(sys.argv[-1])

    try:
        asyncio.run(acted())
    except Agent3Error as wrong:
        print(f"{type(wrong).__name__}: {wrong.message}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
