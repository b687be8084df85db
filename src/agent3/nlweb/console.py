"""``agent3 web``: record, learn, run and check the interfaces of websites."""

from __future__ import annotations

import asyncio
import base64
import json as notation
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cyclopts import App

from agent3.definitions import NLWebInterface
from agent3.errors import Conflict, SetupError, ValidationError
from agent3.nlweb import files, workbench
from agent3.nlweb.preparing import input_schema

__all__ = ["app"]

app = App(name="web", help="Websites as agents: make, try and check their interfaces.")


@app.command
def record(
    url: str,
    *,
    out: Path | None = None,
    action: str = "recorded",
    headless: bool = False,
    seconds: float = 0.0,
    force: bool = False,
    json: bool = False,
) -> None:
    """Open a page in a browser, and write down what you do there as an action.

    What you type becomes a parameter; passwords are not read and become secrets. Close the window, or press Enter here,
    to end.

    Parameters
    ----------
    url:
        The page to begin with.
    out:
        The interface file to write; printed by default.
    action:
        What to call the action [default: recorded].
    headless:
        Without a window, for programs that drive the page themselves.
    seconds:
        End by itself after so many [default: never].
    force:
        Replace a file that is there.
    json:
        Print JSON.
    """
    _require_free(out, force)

    async def until(page: Any) -> None:
        _say("Recording. Close the window, or press Enter here, to end.")
        await _first(page.wait_for_event("close", timeout=0), *_endings(seconds))

    made = asyncio.run(
        workbench.record_page(
            url,
            action=action,
            headless=headless,
            until=until,
            on_step=lambda heard: _say(f"  {heard.kind.value} {heard.label or heard.selector}"),
        )
    )
    _give(made, out, json)


@app.command
def learn(
    url: str, *, out: Path | None = None, name: str | None = None, force: bool = False, json: bool = False
) -> None:
    """Make actions of what a page offers: its forms, tables, lists, links and tools. Nothing is sent.

    Parameters
    ----------
    url:
        The page to look at.
    out:
        The interface file to write; printed by default.
    name:
        What to call the website; its title by default.
    force:
        Replace a file that is there.
    json:
        Print JSON.
    """
    _require_free(out, force)
    _give(asyncio.run(workbench.learn_page(url, name=name)), out, json)


@app.command
def run(
    file: str,
    action: str,
    *,
    param: tuple[str, ...] = (),
    headed: bool = False,
    trace: bool = False,
    yes: bool = False,
    json: bool = False,
) -> None:
    """Run an action of an interface file; or on any page what a sentence says: agent3 web run URL "SENTENCE".

    Parameters
    ----------
    file:
        The interface file, or the address of a page.
    action:
        The action's name, or the sentence.
    param:
        A parameter, as NAME=VALUE; once for each.
    headed:
        Show the browser.
    trace:
        Write a trace for Playwright's viewer into the folder agent3-traces.
    yes:
        Also what has consequences, without asking.
    json:
        Print JSON.
    """
    if file.startswith(("http://", "https://")):
        _drive(file, action, headed, json)
        return
    interface = files.load(file)
    given = _parameters(param, interface, action)
    _confirm(interface, action, given, yes)
    kept = Path("agent3-traces", f"{Path(file).stem}-{action}.zip") if trace else None
    result = asyncio.run(
        workbench.run_action(
            interface,
            action,
            given,
            headless=not headed,
            trace=kept,
            on_step=lambda label, number, total: _say(f"  {number}/{total} {label}"),
        )
    )
    if kept is not None:
        _say(f"The trace is in {kept}. To look at it: npx playwright show-trace {kept}")
    _out(notation.dumps({"result": result} if json else result, default=_as_text, indent=None if json else 2))


@app.command
def check(file: Path, *, param: tuple[str, ...] = (), json: bool = False) -> None:
    """Look whether an interface still fits its website. Nothing is clicked or sent.

    Ends with 1 if something is missing.

    Parameters
    ----------
    file:
        The interface file.
    param:
        A parameter for actions that only read, so that they are run: ACTION.NAME=VALUE; once for each.
    json:
        Print JSON.
    """
    interface = files.load(file)
    findings = asyncio.run(workbench.check_interface(interface, _by_action(param, interface)))
    wrong = [one for one in findings if one.state in ("missing", "failed")]
    if json:
        told = [{"action": one.action, "step": one.step, "state": one.state, "detail": one.detail} for one in findings]
        _out(notation.dumps({"ok": not wrong, "steps": told}))
    else:
        for one in findings:
            _out(f"{one.state:<8}{one.action}: {one.step}{f' ({one.detail})' if one.detail else ''}")
    if wrong:
        sys.exit(1)


# Inside


def _drive(url: str, sentence: str, headed: bool, json: bool) -> None:
    done, page = asyncio.run(workbench.drive_page(url, sentence, headless=not headed))
    if json:
        _out(notation.dumps({"complete": done.complete, "done": done.done, "left": done.left, "page": page}))
    else:
        for one in done.done:
            _say(f"  {one}")
        for one in done.left:
            _say(f"  not understood: {one}")
        _out(f"{page['title']} ({page['url']})\n{page['text']}")
    if not done.complete:
        sys.exit(1)


def _parameters(given: tuple[str, ...], interface: NLWebInterface, action: str) -> dict[str, Any]:
    """NAME=VALUE as values of the kinds that the action wants."""
    if action not in interface.actions:
        return {}  # who runs it says what there is
    properties = input_schema(interface, action).get("properties", {})
    return {name: _typed(text, properties.get(name)) for name, text in map(_pair, given)}


def _by_action(given: tuple[str, ...], interface: NLWebInterface) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for whole, text in map(_pair, given):
        action, dot, name = whole.partition(".")
        if not dot or action not in interface.actions:
            raise ValidationError(f"--param {whole}={text}: say of which action it is, as ACTION.{whole}={text}.")
        schema = input_schema(interface, action).get("properties", {}).get(name)
        found.setdefault(action, {})[name] = _typed(text, schema)
    return found


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ValidationError(f"--param {text!r} is not NAME=VALUE.")
    return name, value


def _typed(text: str, schema: Any) -> Any:
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    if kind not in ("number", "integer", "boolean", "array", "object"):
        return text
    try:
        return notation.loads(text)
    except ValueError:
        raise ValidationError(f"{text!r} is no {kind}. Write it as in JSON.") from None


def _confirm(interface: NLWebInterface, action: str, given: Mapping[str, Any], yes: bool) -> None:
    info = interface.info.get(action)
    if yes or info is None or not info.hints.consequential:
        return
    values = ", ".join(f"{name}={value}" for name, value in given.items())
    if not sys.stdin.isatty():
        raise SetupError(f"{action!r} has consequences. Say --yes: there is no terminal to ask at.")
    if input(f"{action} ({values}) has consequences. Do it? [y/N] ").strip().lower() not in ("y", "yes"):
        sys.exit(1)


def _require_free(out: Path | None, force: bool) -> None:
    """Before any work is done for a file that could not be written."""
    if out is None:
        return
    if out.suffix.lower() not in files.SUFFIXES:
        raise ValidationError(f"{out.name} is neither YAML nor JSON by its name. Call it {out.stem}.yaml.")
    if out.exists() and not force:
        raise Conflict(f"{out} is there already. Give another --out, or --force.")


def _give(interface: NLWebInterface, out: Path | None, json: bool) -> None:
    if out is not None:
        files.save(interface, out)
        _say(f"{out}: {', '.join(interface.actions)}. Read it, then: agent3 add {out}")
    if json or out is None:
        sys.stdout.write(files.dump(interface, "json" if json else "yaml"))


def _endings(seconds: float) -> list[Any]:
    """Other ways to end a recording: Enter at the terminal, and the time."""
    ways: list[Any] = [asyncio.sleep(seconds)] if seconds > 0 else []
    if sys.stdin.isatty():
        ways.append(_enter())
    return ways


async def _enter() -> None:
    pressed = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(sys.stdin.fileno(), pressed.set)
    try:
        await pressed.wait()
    finally:
        loop.remove_reader(sys.stdin.fileno())


async def _first(*works: Any) -> None:
    tasks = [asyncio.ensure_future(one) for one in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _as_text(value: Any) -> str:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


def _say(text: str) -> None:
    """For people: on standard error, so that standard output holds the result only."""
    sys.stderr.write(f"{text}\n")


def _out(text: str) -> None:
    sys.stdout.write(f"{text}\n")
