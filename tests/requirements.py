"""Every promise of the requirement documents by its id, and the tests that speak for it.

A test names its ids with ``@pytest.mark.requirement("RF-013-01")``. ``OPEN`` says of the others which work they wait
for; tests/test_requirements.py holds the two together, both ways.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

__all__ = ["OPEN", "TITLES", "marked"]

_RF = """
tool discovery · invocation, with metric · parameter validation · authentication · rate limiting · type validation ·
enum validation · tool not found · timeout · concurrent invocations · LLM function calling · multi-tool orchestration ·
result formatting · error propagation to the LLM · caching · dynamic registration · versioning · deprecation · batch ·
execution tracing · registry and discovery · sending · receiving · artifacts · artifact access control · encryption ·
identity verification · event broadcast · queue management · priorities · request-response with timeout ·
asynchronous events · coordination · capability negotiation · lifecycle · persistence · dead-letter queue ·
circuit breaker · health monitoring · distributed tracing · interface definition · action execution ·
parameter injection · extraction with selectors · LLM extraction fallback · URL sandboxing · browser restart ·
screenshot on error · wait with timeout · dynamic content · command to action · clarification ·
fallback from MCP to NLWeb · selector healing · multi-page workflows · forms with validation · cookies and sessions ·
retry of navigation · parallel sessions · monitoring and throttling
"""
_PERFORMANCE = """
tool discovery · simple invocation · complex invocation · schema validation · send message · receive message ·
agent discovery · artifact creation · capability invocation · browser launch · navigation · action · extraction ·
full sequence
"""
_MONITORS = "MCPPerformanceMonitor · A2AMessageQueue · NLWebPerformanceMonitor"
_SECURITY = """
HMAC client authentication · tool authorization · input validation with its messages and limits · rate limiter ·
message encryption · identity verification · URL sandbox and execute_with_sandbox
"""
_OBSERVABILITY = """
MCP metrics · A2A metrics · NLWeb metrics · alert MCP latency · alert queue backlog · alert browser restarts ·
alert authentication failures
"""
_COSTS = "MCP cost $0.10 per 100 calls · A2A $0 · NLWeb $0.02 per sequence, $1 per 50"
_CALL = """
agent3_search · agent3_select · agent3_invoke, raw card, no network call · agent3_call parameters and defaults ·
response shape and metadata · agent3_feedback · card query inside the call ·
request built from the card, validated, authenticated · the call: timeouts, retries, errors ·
wrapped result with timing and cost · timeouts · exponential backoff · input validation against the schema ·
response sanitation · token estimate · streaming · card caching and freshness ·
per-agent rate limit with retry-after · cost · request and response logging · connection pooling · compression ·
batch · asynchronous callbacks · unified errors · analytics, cost tracking, usage, performance metrics, security audit ·
tokens never exposed · input modes text, JSON, binary · natural language to structured payload ·
the three usage examples
"""
_STUDY_PLAN = """
wire 0.1 · card of 0.1 · request/response with polling · SSE streaming with final ·
push notifications: url, token, authentication · SSRF-safe webhooks and verified notifications ·
skills with tags, examples, modes · discovery: well-known, catalogue, direct · protected cards, no secrets in cards ·
HTTPS, TLS 1.2+, certificate verification · no identity in the payload; 401 with WWW-Authenticate, 403 ·
credentials in headers, acquired out of band · secondary credentials within a task ·
authorization per skill and per data · error codes as listed · task flows: basic, streaming, multi-turn, push ·
hello world · currency agent: single turn, streaming, multi-turn · own agents and clients ·
adapters for agent frameworks · persistent task store · file transfer with FilePart ·
mounting in FastAPI and Starlette · OpenTelemetry tracing, API management
"""
_SLIDES = """
wire 0.2-0.3 · Task, Message, Part, Artifact with ids and contexts · message-only, task-generating, hybrid agents ·
states, immutable terminal tasks, referenceTaskIds · registries: search by skill, tag, provider ·
OAuth2/OIDC declared in the card, scopes · least privilege per skill and action ·
privacy: sensitivity, minimisation, protection in transit and at rest · tracing by contextId and taskId ·
extensions: data, profile, method, state machine; required or not ·
streaming of Task, status and artifact updates in chunks · resubscription · push with webhook verification ·
the JSON printed in the listings is understood
"""


def _numbered(prefix: str, titles: str) -> Iterator[tuple[str, str]]:
    for number, title in enumerate(titles.split("·"), 1):
        yield f"{prefix}{number:02d}", " ".join(title.split())


TITLES: dict[str, str] = {
    **dict(_numbered("RF-013-", _RF)),
    "RF-013-V1": "MCP validation criteria",
    "RF-013-V2": "A2A validation criteria",
    "RF-013-V3": "NLWeb validation criteria",
    **dict(_numbered("RT-014-P", _PERFORMANCE)),
    **dict(_numbered("RT-014-M", _MONITORS)),
    **dict(_numbered("RT-014-S", _SECURITY)),
    **dict(_numbered("RT-014-O", _OBSERVABILITY)),
    **dict(_numbered("RT-014-C", _COSTS)),
    **dict(_numbered("AC-", _CALL)),
    **dict(_numbered("SP-", _STUDY_PLAN)),
    **dict(_numbered("SL-", _SLIDES)),
}


OPEN: dict[str, str] = {}
"""What is not yet promised by a test, and the work it waits for."""


def marked(folder: Path) -> dict[str, list[str]]:
    """The tests that name each id, read from the source, so that a partial run sees them all."""
    found: dict[str, list[str]] = defaultdict(list)
    for file in sorted(folder.rglob("test_*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                for one in _named(node):
                    found[one].append(f"{file.relative_to(folder)}::{node.name}")
    return found


def _named(test: ast.FunctionDef) -> Iterator[str]:
    for decorator in test.decorator_list:
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.requirement":
            yield from (ast.literal_eval(argument) for argument in decorator.args)
