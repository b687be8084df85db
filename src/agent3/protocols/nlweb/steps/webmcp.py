"""Tools that a page offers by itself (WebMCP: ``document.modelContext`` and declarative forms), used before selectors.

All that a page says of its tools, and what they give, is untrusted: data, bounded, never an instruction, and marked as
such in the answer (``ctx.tools``). A tool that the page says to have consequences is called only for an action whose
interface says the same, since only that one is confirmed. It knows the page and nothing of the order of steps.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from agent3.definitions import ActionType, NLWebAction, NLWebInterface
from agent3.errors import Agent3Error, MalformedResponse, SecurityError, TargetError, ValidationError
from agent3.protocols.nlweb.browser.sdk import playwright
from agent3.protocols.nlweb.steps.parameters import escape_braces
from agent3.protocols.nlweb.steps.run_context import RunContext
from agent3.schema import check_shape
from agent3.schema import compile as compile_schema
from agent3.security.sanitize import clean_text

if TYPE_CHECKING:
    from playwright.async_api import Frame, Page, Request

__all__ = ["Plan", "Tool", "call", "find_plan", "find_tool_step", "is_offered", "is_promised", "list_tools"]

_MOST_TOOLS = 200
_MOST_BYTES = 2_000_000
_LONGEST_TEXT = 2_000
_DEPARTURE = 0.5
"""Seconds in which a form that a tool sent must have begun to go to its next page."""
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_REPLACEABLE = frozenset(map(ActionType, "type click select check uncheck fill submit press wait hover scroll".split()))
"""The steps that a tool can take the place of: what is done to a page, and not what is read from it."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool of a page, in the page's own words."""

    name: str
    description: str
    input_schema: dict[str, Any]
    read_only: bool = False
    consequential: bool = False

    def require(self, values: Mapping[str, Any]) -> None:
        """ValidationError for values that its schema does not take, MalformedResponse if that cannot be read."""
        try:
            schema = compile_schema(self.input_schema)
        except Agent3Error as error:
            raise MalformedResponse(f"The schema of the tool {self.name} cannot be read: {error.message}") from None
        schema.check(dict(values), what=f"input of the tool {self.name}")

    def parse(self, fields: Mapping[str, str]) -> dict[str, Any]:
        """Texts as the types that the tool wants; an empty one that it can do without is left out."""
        known: Mapping[str, Any] = self.input_schema.get("properties") or {}
        required = self.input_schema.get("required") or ()
        values: dict[str, Any] = {}
        for name, text in fields.items():
            if not text and name not in required:
                continue
            schema = known.get(name)
            kinds = schema.get("type") if isinstance(schema, dict) else None
            values[name] = text
            if kinds in (None, "string") or (isinstance(kinds, list) and "string" in kinds):
                continue
            if kinds == "boolean" and text.lower() in ("true", "false"):
                values[name] = text.lower() == "true"
            else:
                with suppress(msgspec.DecodeError):
                    values[name] = msgspec.json.decode(text)
        return values


@dataclass(frozen=True, slots=True)
class Plan:
    """Where in the steps of an action a tool could take the place of selectors: from ``at`` up to ``until``."""

    tool: str
    at: int
    until: int


async def list_tools(place: Page | Frame) -> list[Tool]:
    """What a page or frame offers now; nothing where the browser knows no such thing, or a tool is malformed."""
    try:
        found = await place.webmcp.tools()
    except playwright().Error:
        return []
    tools = []
    descriptions: list[Any] = found[:_MOST_TOOLS]  # written by the page: any of it may be something else
    for described in descriptions:
        if not isinstance(described, dict) or not _NAME.fullmatch(str(described.get("name"))):
            continue
        schema, hints = described.get("inputSchema"), described.get("annotations")
        try:
            check_shape(schema, what="schema of a tool")
        except Agent3Error:
            continue
        hints = hints if isinstance(hints, dict) else {}
        tools.append(
            Tool(
                str(described["name"]),
                clean_text(str(described.get("description") or ""))[:_LONGEST_TEXT],
                {"type": "object", **schema} if isinstance(schema, dict) else {"type": "object"},
                read_only=bool(hints.get("readOnly")),
                consequential=bool(hints.get("consequential")),
            )
        )
    return tools


async def call(ctx: RunContext, action: NLWebAction, ms: float) -> Any:
    """Call the tool that a step names with its fields: what it gives, or None for one that only did something.

    TargetError if the page does not offer it, ValidationError if it does not take that input, SecurityError if the page
    says that it has consequences and they were not confirmed.
    """
    place: Any = await ctx.get_place(action, ms)
    offered = {tool.name: tool for tool in await list_tools(place)}
    tool = offered.get(action.value or "")
    if tool is None:
        known = f"It offers {', '.join(sorted(offered)[:20])}." if offered else "It offers none."
        raise TargetError(f"The page offers no tool {action.value!r}. {known}")
    if tool.consequential and not ctx.confirmed:
        raise SecurityError(
            f"The page says that its tool {tool.name} has consequences, but the interface does not. Give the "
            f"action hints: {{consequential: true}}, so that it is confirmed before it is called."
        )
    given = tool.parse(action.fields or {})
    tool.require(given)
    ctx.tools.append(tool.name)
    page, departed = ctx.page, asyncio.Event()

    def note_request(request: Request) -> None:
        with suppress(playwright().Error):
            if request.is_navigation_request() and request.frame.parent_frame is None:
                departed.set()

    page.on("request", note_request)
    try:
        result = await place.webmcp.call_tool(tool.name, given, timeout=ms)
        # A form that a tool sends leads to another page, and the call ends before that is there: wait for it.
        if result is None:
            with suppress(TimeoutError):
                async with asyncio.timeout(_DEPARTURE):
                    await departed.wait()
        if departed.is_set():
            await page.wait_for_load_state("domcontentloaded", timeout=ms)
    finally:
        page.remove_listener("request", note_request)
    # What a tool gave, as plain values: the text of content blocks, else the value itself.
    try:
        if len(msgspec.json.encode(result)) > _MOST_BYTES:
            raise MalformedResponse(f"The tool {tool.name} returned more than {_MOST_BYTES} bytes.")
        check_shape(result, what=f"result of the tool {tool.name}")
    except ValidationError as error:
        raise MalformedResponse(error.message) from None
    if not isinstance(result, dict) or not isinstance(result.get("content"), list):
        return result
    blocks = [block for block in result["content"] if isinstance(block, dict) and block.get("type") == "text"]
    text = "\n".join(str(block.get("text", "")) for block in blocks)
    if result.get("isError"):
        raise TargetError(f"The tool {tool.name} failed: {text[:500]}")
    return result.get("structuredContent", text)


# In place of steps


def find_plan(interface: NLWebInterface, name: str, steps: Sequence[NLWebAction]) -> Plan | None:
    """Which tool would do what the action does, and in place of which steps; None where none can.

    A tool of the same name is meant, or the one that the interface names: ``webmcp: {search: find_flights}`` in its
    metadata; ``webmcp: false`` for none at all. Only plain steps are replaced: a page is opened, something is done.
    """
    named = interface.metadata.get("webmcp", {})
    if named is False:
        return None
    at = next((place for place, step in enumerate(steps) if step.action_type is not ActionType.NAVIGATE), len(steps))
    until = at
    while until < len(steps) and steps[until].action_type in _REPLACEABLE:
        step = steps[until]
        texts = (step.value or "", *(step.fields or {}).values())
        has_secret = any("{secret:" in text for text in texts)
        if step.when or step.save_as or step.popup or step.frame or has_secret:
            break
        until += 1
    rest = steps[until:]
    info = interface.info.get(name)
    is_mapped = isinstance(named, Mapping) and name in named
    if rest and not is_mapped and (info is None or info.output_schema is None):
        return None  # nothing but the steps that read the result says what it looks like
    if at == 0 or until == at or any(step.action_type is not ActionType.EXTRACT or step.save_as for step in rest):
        return None
    return Plan(str(named[name]) if is_mapped else name, at, until)


async def is_offered(ctx: RunContext, step: NLWebAction) -> bool:
    """Whether the page in front offers the tool of a step, and it may be called."""
    place = await ctx.get_place(step, _DEPARTURE * 1000)
    return any(
        tool.name == step.value and (ctx.confirmed or not tool.consequential) for tool in await list_tools(place)
    )


async def find_tool_step(ctx: RunContext, plan: Plan, values: Mapping[str, Any]) -> NLWebAction | None:
    """The step that calls the tool of a plan, if the page offers it, it takes the values, and it may be called."""

    def fold(name: str) -> str:
        return re.sub(r"[^a-z0-9]", "", name.lower())  # searchFlights is search_flights

    for tool in await list_tools(ctx.page):
        if fold(tool.name) != fold(plan.tool) or (tool.consequential and not ctx.confirmed):
            continue
        given = tool.parse({name: str(value) for name, value in values.items()})
        try:
            tool.require(given)
        except Agent3Error:
            continue
        if set(given) <= set(tool.input_schema.get("properties") or given):
            fields = {name: escape_braces(str(value)) for name, value in values.items()}
            return NLWebAction(action_type=ActionType.TOOL, value=escape_braces(tool.name), fields=fields)
    return None


def is_promised(interface: NLWebInterface, name: str, result: Any) -> bool:
    """Whether what a tool gave is what the action promises; else the page is read, as its author said."""
    info = interface.info.get(name)
    schema = info.output_schema if info is not None else None
    if result is None or schema is None:
        return result is not None
    try:
        compile_schema(schema).check(result)
    except Agent3Error:
        return False
    return True
