"""Whether an interface still fits its website: every selector looked for on the page where its step would act.

Nothing is sent or clicked. An action is followed as far as reading leads; what lies behind a click is reported as
unseen, unless its parameters are given and it only reads: then it is run. So is what needs a parameter that is missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct

from agent3.definitions import ActionType, NLWebAction, NLWebInterface
from agent3.errors import Agent3Error, ValidationError
from agent3.protocols.nlweb.browser.sdk import playwright
from agent3.protocols.nlweb.steps.parameters import inject, parameter_names, prepare, step_label
from agent3.protocols.nlweb.steps.webmcp import list_tools
from agent3.protocols.nlweb.visit.page_session import Session

__all__ = ["Finding", "check"]

State = Literal["ok", "missing", "unseen", "failed"]

_LEAVING = frozenset({ActionType.CLICK, ActionType.SUBMIT, ActionType.PRESS, ActionType.BACK, ActionType.CLOSE})
"""After these the page is another one, or may be."""
_APPEAR_MS = 2_000.0


class Finding(Struct, frozen=True, omit_defaults=True):
    """What was seen of one step, or of a whole action that was run."""

    action: str
    step: str
    state: State
    detail: str = ""


async def check(
    session: Session, interface: NLWebInterface, parameters: Mapping[str, Mapping[str, Any]] | None = None
) -> list[Finding]:
    """Look at every action. With ``parameters`` for an action that only reads, that one is run."""
    findings: list[Finding] = []
    for name, steps in interface.actions.items():
        info = interface.info.get(name)
        given = (parameters or {}).get(name)
        is_reading = info is not None and info.hints.read_only
        if is_reading and (given is not None or not parameter_names(steps)):
            findings.append(await _run(session, interface, name, given or {}))
            continue
        left = False
        for number, step in enumerate(steps, 1):
            label = step_label(step, name, str(number))
            if left:
                findings.append(
                    Finding(name, label, "unseen", "it can only be reached by a step that a check does not run")
                )
                continue
            try:
                state, detail = await _look(session, name, step, label, given or {})
            except playwright().Error as error:
                state, detail = "failed", error.message.splitlines()[0]
            findings.append(Finding(name, label, state, detail))
            not_opened = step.action_type is ActionType.NAVIGATE and state != "ok"
            left = step.action_type in _LEAVING or bool(step.steps) or not_opened or state == "failed"
    return findings


async def _run(session: Session, interface: NLWebInterface, name: str, given: Mapping[str, Any]) -> Finding:
    try:
        steps, filled = prepare(interface, name, given)
        result = await session.run(name, steps, filled)
    except Agent3Error as error:
        return Finding(name, "all", "failed", error.message)
    if result in (None, [], {}):
        return Finding(name, "all", "missing", "it ran and returned nothing")
    count = f"{len(result)} rows" if isinstance(result, list) else "one result"
    return Finding(name, "all", "ok", f"it ran and returned {count}")


async def _look(
    session: Session, name: str, step: NLWebAction, label: str, given: Mapping[str, Any]
) -> tuple[State, str]:
    """Open the page of a step, or look for its tool or its element."""
    if step.action_type is ActionType.NAVIGATE:
        if missing := sorted(parameter_names([step]) - set(given)):
            return "unseen", f"its address needs --param {name}.{missing[0]}=VALUE"
        try:
            await session.perform(inject(step, given), label)
        except Agent3Error as error:
            return "failed", error.message
        return "ok", session.page.url
    if step.action_type is ActionType.TOOL:
        offered = [tool.name for tool in await list_tools(session.page)]
        return ("ok", "") if step.value in offered else ("missing", f"the page offers {', '.join(offered) or 'none'}")
    if not step.selector:
        return "ok", "it needs no element"
    try:
        filled = inject(step.model_copy(update={"value": None, "fields": None, "when": None}), given, label)
    except ValidationError:
        return "unseen", "its selector needs parameters"
    place = await session.ctx.get_place(filled, _APPEAR_MS)
    found = place.locator(filled.selector or "")
    try:
        await found.first.wait_for(state="attached", timeout=_APPEAR_MS)
    except playwright().TimeoutError:
        return "missing", f"nothing on {session.page.url} matches {filled.selector!r}"
    count = await found.count()
    return "ok", f"{count} elements match" if count > 1 else ""
