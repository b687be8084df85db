"""Tools that a page offers by itself (WebMCP: ``document.modelContext`` and declarative forms), used before selectors.

All that a page says of its tools, and what they give, is the page's own word: data, bounded, never an instruction, and
marked as such in the answer (``scene.tools``).
What a page says to have consequences is called only for an action whose interface says the same, for only that one is
confirmed. It knows the page and nothing of the order of steps.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from agent3.definitions import ActionType, NLWebAction, NLWebInterface
from agent3.errors import Agent3Error, MalformedResponse, SecurityError, TargetError, ValidationError
from agent3.protocols.nlweb.browser.sdk import playwright
from agent3.protocols.nlweb.steps.scene import Scene
from agent3.schema import check_shape
from agent3.schema import compile as compiled
from agent3.security.sanitize import clean_text

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from playwright.async_api import Frame, Page, Request

__all__ = ["Plan", "Tool", "call", "fitting", "is_result", "offered", "plan", "tools_of"]

_MOST_TOOLS = 200
_MOST_BYTES = 2_000_000
_LONGEST_TEXT = 2_000
_DEPARTURE = 0.5
"""Seconds in which a form that a tool sent must have begun to go to its next page."""
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_PLAIN = frozenset(
    {
        ActionType.TYPE,
        ActionType.CLICK,
        ActionType.SELECT,
        ActionType.CHECK,
        ActionType.UNCHECK,
        ActionType.FILL,
        ActionType.SUBMIT,
        ActionType.PRESS,
        ActionType.WAIT,
        ActionType.HOVER,
        ActionType.SCROLL,
    }
)
"""The steps that a tool can take the place of: what is done to a page, and not what is read from it."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool of a page, in the page's own words."""

    name: str
    description: str
    input_schema: dict[str, Any]
    read_only: bool = False
    consequential: bool = False

    def takes(self, values: Mapping[str, Any]) -> bool:
        """Whether its schema takes these values; one that cannot be read takes none."""
        try:
            _schema(self).check(dict(values))
        except Agent3Error:
            return False
        return set(values) <= set(self.input_schema.get("properties") or values)


@dataclass(frozen=True, slots=True)
class Plan:
    """Where in the steps of an action a tool could take the place of selectors: from ``at`` up to ``until``."""

    tool: str
    at: int
    until: int


async def tools_of(place: Page | Frame) -> list[Tool]:
    """What a page or frame offers now; none where it offers nothing or the browser knows no such thing."""
    try:
        found = await place.webmcp.tools()
    except playwright().Error:
        return []
    return [tool for one in found[:_MOST_TOOLS] if (tool := _read(one)) is not None]


async def call(scene: Scene, action: NLWebAction, ms: float) -> Any:
    """Call the tool that a step names with its fields: what it gives, or None for one that only did something.

    TargetError if the page does not offer it, ValidationError if it does not take that input, SecurityError if the page
    says that it has consequences and nobody confirmed them.
    """
    place = await scene.place(action, ms)
    offered = {one.name: one for one in await tools_of(place)}
    tool = offered.get(action.value or "")
    if tool is None:
        known = f"It offers {', '.join(sorted(offered)[:20])}." if offered else "It offers none."
        raise TargetError(f"The page offers no tool {action.value!r}. {known}")
    _require_confirmed(tool, scene.confirmed)
    given = _typed(tool, action.fields or {})
    _schema(tool).check(given, what=f"input of the tool {tool.name}")
    scene.tools.append(tool.name)
    async with _settled(scene.page, ms) as departed:
        result = await place.webmcp.call_tool(tool.name, given, timeout=ms)
        departed.expected = result is None
    return _result(result, tool)


def plan(interface: NLWebInterface, name: str, steps: Sequence[NLWebAction]) -> Plan | None:
    """Which tool would do what the action does, and in place of which steps; None where none can.

    A tool of the same name is meant, or the one that the interface names: ``webmcp: {search: find_flights}`` in its
    metadata; ``webmcp: false`` for none at all. Only a plain story is replaced: a page is opened, something is done.
    """
    named = interface.metadata.get("webmcp", {})
    if named is False:
        return None
    at = next((number for number, one in enumerate(steps) if one.action_type is not ActionType.NAVIGATE), len(steps))
    until = at
    while until < len(steps) and steps[until].action_type in _PLAIN and _is_plain(steps[until]):
        until += 1
    rest = steps[until:]
    info = interface.info.get(name)
    mapped = isinstance(named, Mapping) and name in named
    if rest and not mapped and (info is None or info.output_schema is None):
        return None  # nobody says what the result looks like but the steps that read it
    if at == 0 or until == at or any(one.action_type is not ActionType.EXTRACT or one.save_as for one in rest):
        return None
    return Plan(str(named[name]) if mapped else name, at, until)


async def offered(scene: Scene, step: NLWebAction) -> bool:
    """Whether the page in front offers the tool of a step, and it may be called."""
    place = await scene.place(step, _DEPARTURE * 1000)
    return any(one.name == step.value and _may(one, scene) for one in await tools_of(place))


async def fitting(scene: Scene, wanted: Plan, values: Mapping[str, Any]) -> NLWebAction | None:
    """The step that calls the tool, if the page offers it, it takes the values, and it may be called."""
    for tool in await tools_of(scene.page):
        if _same(tool.name, wanted.tool) and _may(tool, scene):
            typed = _typed(tool, {name: str(value) for name, value in values.items()})
            if tool.takes(typed):
                fields = {name: _braced(str(value)) for name, value in values.items()}
                return NLWebAction(action_type=ActionType.TOOL, value=_braced(tool.name), fields=fields)
    return None


def is_result(interface: NLWebInterface, name: str, given: Any) -> bool:
    """Whether what a tool gave is what the action promises; else the page is read, as its author said."""
    info = interface.info.get(name)
    schema = info.output_schema if info is not None else None
    if given is None or schema is None:
        return given is not None
    try:
        compiled(schema).check(given)
    except Agent3Error:
        return False
    return True


# Inside


def _may(tool: Tool, scene: Scene) -> bool:
    return scene.confirmed or not tool.consequential


def _is_plain(step: NLWebAction) -> bool:
    texts = (step.value or "", *(step.fields or {}).values())
    secret = any("{secret:" in one for one in texts)
    return not (step.when or step.save_as or step.popup or step.frame or secret)


def _same(one: str, other: str) -> bool:
    """Whether two names are the same to people: ``searchFlights`` and ``search_flights``."""
    return _folded(one) == _folded(other)


def _folded(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _braced(text: str) -> str:
    """Text in which no placeholder is seen any more."""
    return text.replace("{", "{{").replace("}", "}}")


def _read(said: Any) -> Tool | None:
    if not isinstance(said, dict) or not _NAME.fullmatch(str(said.get("name"))):
        return None
    schema = said.get("inputSchema")
    try:
        check_shape(schema, what="schema of a tool")
    except Agent3Error:
        return None
    hints = said.get("annotations") if isinstance(said.get("annotations"), dict) else {}
    assert isinstance(hints, dict)
    return Tool(
        str(said["name"]),
        clean_text(str(said.get("description") or ""))[:_LONGEST_TEXT],
        {"type": "object", **schema} if isinstance(schema, dict) else {"type": "object"},
        read_only=bool(hints.get("readOnly")),
        consequential=bool(hints.get("consequential")),
    )


def _schema(tool: Tool) -> Any:
    try:
        return compiled(tool.input_schema)
    except Agent3Error as wrong:
        raise MalformedResponse(f"The schema of the tool {tool.name} cannot be read: {wrong.message}") from None


def _require_confirmed(tool: Tool, confirmed: bool) -> None:
    if tool.consequential and not confirmed:
        raise SecurityError(
            f"The page says that its tool {tool.name} has consequences, and the interface does not. Give the action "
            "hints: {consequential: true}, so that it is confirmed before it is called."
        )


def _typed(tool: Tool, fields: Mapping[str, str]) -> dict[str, Any]:
    """The texts of a step as the kinds that the tool wants; an empty one that it can do without is left out."""
    known: Mapping[str, Any] = tool.input_schema.get("properties") or {}
    required = tool.input_schema.get("required") or ()
    return {name: _as(text, known.get(name)) for name, text in fields.items() if text or name in required}


def _as(text: str, schema: Any) -> Any:
    kinds = schema.get("type") if isinstance(schema, dict) else None
    if kinds in (None, "string") or (isinstance(kinds, list) and "string" in kinds):
        return text
    if kinds == "boolean" and text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


class _Departure:
    """Whether a page is about to go elsewhere because of what a tool did."""

    def __init__(self) -> None:
        self.expected = False
        self.begun = asyncio.Event()

    def note(self, request: Request) -> None:
        with suppress(playwright().Error):
            if request.is_navigation_request() and request.frame.parent_frame is None:
                self.begun.set()


@asynccontextmanager
async def _settled(page: Page, ms: float) -> AsyncIterator[_Departure]:
    """A form that a tool sends leads to another page, and the call ends before that is there: wait for it."""
    departure = _Departure()
    page.on("request", departure.note)
    try:
        yield departure
        if departure.expected:
            with suppress(TimeoutError):
                async with asyncio.timeout(_DEPARTURE):
                    await departure.begun.wait()
        if departure.begun.is_set():
            await page.wait_for_load_state("domcontentloaded", timeout=ms)
    finally:
        page.remove_listener("request", departure.note)


def _result(said: Any, tool: Tool) -> Any:
    """What a tool gave, as plain values: the text of content blocks, else the value itself."""
    try:
        if len(msgspec.json.encode(said)) > _MOST_BYTES:
            raise MalformedResponse(f"The tool {tool.name} gave more than {_MOST_BYTES} bytes.")
        check_shape(said, what=f"result of the tool {tool.name}")
    except ValidationError as wrong:
        raise MalformedResponse(wrong.message) from None
    if isinstance(said, dict) and isinstance(said.get("content"), list):
        if said.get("isError"):
            raise TargetError(f"The tool {tool.name} failed: {_texts(said['content'])[:500]}")
        return said.get("structuredContent", _texts(said["content"]))
    return said


def _texts(content: list[Any]) -> str:
    return "\n".join(str(one.get("text", "")) for one in content if isinstance(one, dict) and one.get("type") == "text")
