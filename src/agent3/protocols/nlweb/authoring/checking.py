"""Whether an interface still fits its website: every selector looked for on the page where its step would act.

Nothing is sent or clicked. An action is followed as far as reading leads; what lies behind a click is told as not seen,
unless its parameters are given and it only reads: then it is run. What needs a parameter that nobody gave is not seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct

from agent3.definitions import ActionType, NLWebAction, NLWebInterface
from agent3.errors import Agent3Error, ValidationError
from agent3.protocols.nlweb.browser.sdk import playwright
from agent3.protocols.nlweb.steps.parameters import inject, parameter_names, step_label
from agent3.protocols.nlweb.steps.preparation import prepare
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
        reads = info is not None and info.hints.read_only
        given = (parameters or {}).get(name)
        if reads and (given is not None or not parameter_names(steps)):
            findings.append(await _run(session, interface, name, given or {}))
        else:
            findings += await _look(session, name, steps, given or {})
    return findings


async def _run(session: Session, interface: NLWebInterface, name: str, given: Mapping[str, Any]) -> Finding:
    try:
        steps, filled = prepare(interface, name, given)
        result = await session.run(name, steps, filled)
    except Agent3Error as wrong:
        return Finding(name, "all", "failed", wrong.message)
    if result in (None, [], {}):
        return Finding(name, "all", "missing", "it ran, and gave nothing")
    count = f"{len(result)} rows" if isinstance(result, list) else "one result"
    return Finding(name, "all", "ok", f"it ran, and gave {count}")


async def _look(session: Session, name: str, steps: Sequence[NLWebAction], given: Mapping[str, Any]) -> list[Finding]:
    findings: list[Finding] = []
    left = False
    for number, step in enumerate(steps, 1):
        called = step_label(step, name, str(number))
        if left:
            findings.append(Finding(name, called, "unseen", "it lies behind a step that is not done here"))
            continue
        finding = await _one(session, name, step, called, given)
        findings.append(finding)
        opens = step.action_type is ActionType.NAVIGATE and finding.state != "ok"
        left = step.action_type in _LEAVING or bool(step.steps) or opens or (finding.state == "failed")
    return findings


async def _one(session: Session, name: str, step: NLWebAction, called: str, given: Mapping[str, Any]) -> Finding:
    try:
        if step.action_type is ActionType.NAVIGATE:
            return await _opened(session, name, step, called, given)
        if step.action_type is ActionType.TOOL:
            offered = [one.name for one in await list_tools(session.page)]
            state: State = "ok" if step.value in offered else "missing"
            return Finding(
                name, called, state, "" if state == "ok" else f"the page offers {', '.join(offered) or 'none'}"
            )
        if not step.selector:
            return Finding(name, called, "ok", "it needs no element")
        return await _sought(session, name, step, called, given)
    except playwright().Error as wrong:
        return Finding(name, called, "failed", wrong.message.splitlines()[0])


async def _opened(session: Session, name: str, step: NLWebAction, called: str, given: Mapping[str, Any]) -> Finding:
    if missing := sorted(parameter_names([step]) - set(given)):
        return Finding(name, called, "unseen", f"its address needs --param {name}.{missing[0]}=VALUE")
    try:
        await session.perform(inject(step, given), called)
    except Agent3Error as wrong:
        return Finding(name, called, "failed", wrong.message)
    return Finding(name, called, "ok", session.page.url)


async def _sought(session: Session, name: str, step: NLWebAction, called: str, given: Mapping[str, Any]) -> Finding:
    try:
        filled = inject(step.model_copy(update={"value": None, "fields": None, "when": None}), given, called)
    except ValidationError:
        return Finding(name, called, "unseen", "its selector needs parameters")
    place = await session.scene.place(filled, _APPEAR_MS)
    found = place.locator(filled.selector or "")
    try:
        await found.first.wait_for(state="attached", timeout=_APPEAR_MS)
    except playwright().TimeoutError:
        return Finding(name, called, "missing", f"nothing on {session.page.url} fits {filled.selector!r}")
    count = await found.count()
    return Finding(name, called, "ok", f"{count} elements fit" if count > 1 else "")
