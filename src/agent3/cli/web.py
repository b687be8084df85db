"""``agent3 web``: record, learn, run and check the interfaces of websites."""

from __future__ import annotations

import asyncio
import base64
import json as notation
import signal
import sys
from collections.abc import Awaitable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cyclopts import App

from agent3.definitions import NLWebInterface
from agent3.errors import Conflict, SetupError, ValidationError
from agent3.protocols.nlweb.authoring import files, workbench
from agent3.protocols.nlweb.authoring.checking import Finding
from agent3.protocols.nlweb.authoring.recording import Heard
from agent3.protocols.nlweb.commands import understand
from agent3.protocols.nlweb.driver import Driven
from agent3.protocols.nlweb.steps.preparation import input_schema, prepare
from agent3.protocols.nlweb.visit.local_profile import at_home
from agent3.protocols.nlweb.visit.login import Login
from agent3.protocols.nlweb.visit.secret_grants import variables_of
from agent3.settings import Settings, load

__all__ = ["app"]

_UNDERSTOOD = (
    'What is understood: click "Contact us", type "Ann" into Name, select "Blue", check News, search for tea, and '
    "several of these with commas and and."
)

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

    What you type becomes a parameter; passwords are not read and become secrets. Close the window, or press Enter or
    Ctrl-C here, to end: what was recorded until then is kept.

    For example: agent3 web record https://shop.example --action buy --out shop.yaml

    Parameters
    ----------
    url:
        The page to begin with, as https://host/path.
    out:
        The interface file to write, NAME.yaml or NAME.json; printed by default.
    action:
        What to call the action [default: recorded].
    headless:
        Without a window: nobody can click then, and only the page that was opened is recorded.
    seconds:
        End by itself after so many [default: never].
    force:
        Replace a file that is there.
    json:
        Print JSON.
    """
    _require_free(out, force)

    async def until(page: Any) -> None:
        ways = _endings(page, seconds)
        _say(f"Recording {url}. {_how_to_end(headless, seconds)}")
        await _first(*ways)

    made = asyncio.run(
        workbench.record_page(
            url,
            action=action,
            headless=headless,
            until=until,
            on_step=lambda heard: _say(f"  {heard.kind.value} {_named(heard)}"),
        )
    )
    _give(made, out, json)
    if out is None and not json:
        _say("Nothing was written to a file. Save the above as NAME.yaml, or record with --out NAME.yaml.")


@app.command
def learn(
    url: str, *, out: Path | None = None, name: str | None = None, force: bool = False, json: bool = False
) -> None:
    """Make actions of what a page offers: its forms, tables, lists, links and tools. Nothing is sent.

    A page that the site's robots.txt disallows is left alone; web.robots (AGENT3_WEB_ROBOTS) can say otherwise.

    For example: agent3 web learn https://shop.example --out shop.yaml

    Parameters
    ----------
    url:
        The page to look at, as https://host/path.
    out:
        The interface file to write, NAME.yaml or NAME.json; printed by default.
    name:
        What to call the website; its title by default.
    force:
        Replace a file that is there.
    json:
        Print JSON.
    """
    _require_free(out, force)

    async def work() -> NLWebInterface:
        async with at_home(load(), fresh=True) as home:
            return await workbench.learn_page(url, name=name, home=home)

    _give(asyncio.run(work()), out, json)


@app.command
def run(
    file: str,
    action: str = "",
    *,
    param: tuple[str, ...] = (),
    headed: bool = False,
    trace: bool = False,
    yes: bool = False,
    fresh: bool = False,
    db: str | None = None,
    config: Path | None = None,
    json: bool = False,
) -> None:
    """Run an action of an interface file, by its name or by a sentence; or do on any page what a sentence says.

    For example: agent3 web run shop.yaml search --param query=tea,
    agent3 web run shop.yaml "search for tea", or agent3 web run https://shop.example "search for tea".

    Cookies and heals are those of this machine's gateway, if one ever ran here.

    Parameters
    ----------
    file:
        The interface file, or the address of a page.
    action:
        The action's name, or a sentence in quotes. Without it, what the file offers is listed.
    param:
        A parameter, as NAME=VALUE; once for each.
    headed:
        Show the browser.
    trace:
        Write a trace for Playwright's viewer into the folder agent3-traces.
    yes:
        Also what has consequences, without asking.
    fresh:
        Like somebody who was never there: without cookies and heals of earlier visits, and nothing is kept.
    db:
        The database: sqlite:///PATH or postgresql://… By default that of the settings.
    config:
        Settings file; agent3.toml in this folder by default.
    json:
        Print JSON.
    """
    settings = load(config, overrides={"storage": {"url": db}})
    if file.startswith(("http://", "https://")):
        _require_words(action, f'agent3 web run {file} "search for tea"')
        _refuse_for_pages(param, trace)
        _drive(file, action, settings, headed=headed, yes=yes, fresh=fresh, json=json)
        return
    interface = _loaded(file)
    if not action:
        _list(interface, json)
        return
    name, given = _wished(interface, action, param)
    prepare(interface, name, given)  # nobody is asked about what cannot be done
    _confirm(interface, name, given, yes)
    kept = Path("agent3-traces", f"{Path(file).stem}-{name}.zip") if trace else None

    result = asyncio.run(_acted(interface, name, given, settings, headed=headed, trace=kept, fresh=fresh))
    if kept is not None:
        told = f"The trace is in {kept}. To look at it: npx playwright show-trace {kept}"
        _say(told if kept.exists() else "There is no trace: a password was typed, which it would hold.")
    _out(_json({"result": result} if json else result, indent=None if json else 2))


@app.command
def check(
    file: Path,
    *,
    param: tuple[str, ...] = (),
    fresh: bool = False,
    db: str | None = None,
    config: Path | None = None,
    json: bool = False,
) -> None:
    """Look whether an interface still fits its website. Nothing is clicked or sent.

    Ends with 1 if something is missing.

    Parameters
    ----------
    file:
        The interface file.
    param:
        A parameter for actions that only read, so that they are run: ACTION.NAME=VALUE; once for each.
    fresh:
        Without the cookies of earlier visits.
    db:
        The database: sqlite:///PATH or postgresql://… By default that of the settings.
    config:
        Settings file; agent3.toml in this folder by default.
    json:
        Print JSON.
    """
    settings = load(config, overrides={"storage": {"url": db}})
    interface = _loaded(str(file))
    given = _by_action(param, interface)

    async def work() -> list[Finding]:
        async with at_home(settings, fresh=fresh) as home:
            return await workbench.check_interface(interface, given, home=home)

    findings = asyncio.run(work())
    wrong = [one for one in findings if one.state in ("missing", "failed")]
    if json:
        told = [{"action": one.action, "step": one.step, "state": one.state, "detail": one.detail} for one in findings]
        _out(_json({"ok": not wrong, "steps": told}))
    else:
        _show(findings)
        _say(_verdict(file, findings))
    if wrong:
        sys.exit(1)


# Inside


def _drive(url: str, sentence: str, settings: Settings, *, headed: bool, yes: bool, fresh: bool, json: bool) -> None:
    async def work() -> tuple[Driven, dict[str, str]]:
        async with at_home(settings, fresh=fresh) as home:
            return await workbench.drive_page(
                url,
                sentence,
                headless=not headed,
                home=home,
                confirm=lambda what: _ask(what, yes),
            )

    done, page = asyncio.run(work())
    if json:
        told = {"complete": done.complete, "done": done.done, "left": done.left, "question": done.question}
        _out(_json({**told, "page": page}))
    else:
        for one in done.done:
            _say(f"  {one}")
        for one in done.left:
            _say(f"  {'not understood' if one == done.left[0] else 'not done'}: {one}")
        _out(f"{page['title']} ({page['url']})\n{page['text']}")
    if not done.complete:
        _say(f"{done.question or _UNDERSTOOD} agent3 web learn {url} shows what the page offers.")
        sys.exit(1)


async def _acted(
    interface: NLWebInterface,
    name: str,
    given: Mapping[str, Any],
    settings: Settings,
    *,
    headed: bool,
    trace: Path | None,
    fresh: bool,
) -> Any:
    """What an action gives, with each step told before it is done."""
    async with at_home(settings, fresh=fresh) as home:
        return await workbench.run_action(
            interface,
            name,
            given,
            headless=not headed,
            trace=trace,
            on_step=lambda label, number, total: _say(f"  {number}/{total} {_kind(label)}"),
            on_notice=lambda notices: _say("\n".join(notices)) if notices else None,
            home=home,
        )


def _require_words(sentence: str, example: str) -> None:
    if not sentence.strip():
        raise ValidationError(f"Say what to do there, such as: {example}.")


def _refuse_for_pages(param: tuple[str, ...], trace: bool) -> None:
    """What a sentence on an unknown page has no use for, rather than to ignore it."""
    if param or trace:
        raise ValidationError("--param and --trace are for interface files; say it in the sentence instead.")


def _loaded(file: str) -> NLWebInterface:
    if Path(file).exists() or Path(file).suffix.lower() in files.SUFFIXES:
        return files.load(file)
    raise ValidationError(
        f"{file!r} is neither a file here nor the address of a page. Give FILE.yaml, or https://host/path."
    )


def _list(interface: NLWebInterface, json: bool) -> None:
    """What there is to run."""
    rows: list[dict[str, Any]] = []
    for name in interface.actions:
        schema, info = input_schema(interface, name), interface.info.get(name)
        rows.append({"action": name, "description": info.description if info else "", "input": schema})
    if json:
        _out(_json({"actions": rows}))
        return
    for row in rows:
        needed = row["input"].get("required", ())
        named = " ".join(f"{one}=…" if one in needed else f"[{one}=…]" for one in row["input"].get("properties", {}))
        _out(f"{row['action']} {named}".rstrip())
        if row["description"]:
            _out(f"    {row['description']}")


def _wished(interface: NLWebInterface, wish: str, param: tuple[str, ...]) -> tuple[str, dict[str, Any]]:
    """The action and its parameters, by its name or by a sentence; what is given by --param counts for more.

    Ends with 3 and a question where a sentence leaves something open.
    """
    if wish in interface.actions or " " not in wish.strip():
        return wish, _parameters(param, interface, wish)
    login = Login.of(interface)
    hidden = {login.action} if login else set()
    offered = interface.model_copy(
        update={"actions": {name: steps for name, steps in interface.actions.items() if name not in hidden}}
    )
    found = asyncio.run(understand(wish, offered))
    if found.action is None:
        _say(found.question or f"What do you want of {interface.name}?")
        sys.exit(3)
    given = {**found.slots, **_parameters(param, interface, found.action)}
    if missing := [name for name in found.missing if name not in given]:
        _say(f"{found.question or f'{found.action} needs more.'} Give it with --param {missing[0]}=…")
        sys.exit(3)
    _say(f"{found.action} {' '.join(f'{name}={value}' for name, value in given.items())}".rstrip())
    return found.action, given


def _show(findings: list[Finding]) -> None:
    action = None
    for one in findings:
        if one.action != action:
            _out(one.action)
        action = one.action
        step = one.step.replace(f" of {one.action!r}", "")
        _out(f"  {one.state:<8}{step}{f': {one.detail}' if one.detail else ''}")


def _verdict(file: Path, findings: list[Finding]) -> str:
    wrong = sum(one.state in ("missing", "failed") for one in findings)
    unseen = next((one.action for one in findings if one.state == "unseen"), None)
    if wrong:
        return (
            f"{wrong} of {len(findings)} do not fit. Mend them in {file}; what a gateway healed by itself is shown by: "
            "agent3 web heals list"
        )
    if unseen is not None:
        return (
            "All that could be seen fits. The rest lies behind a click; an action that only reads is run if you give "
            f"its parameters: --param {unseen}.NAME=VALUE"
        )
    return "All of it fits."


def _kind(label: str) -> str:
    """Of a step's label, such as "2 of 'search' (type '#q')", what it does: the number stands before it."""
    return label.partition(" (")[2].removesuffix(")") or label


def _named(heard: Heard) -> str:
    return heard.label or heard.selector or heard.value


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
    if info is not None and info.hints.consequential:
        values = ", ".join(f"{name}={value}" for name, value in given.items())
        _ask(f"{action}{f' ({values})' if values else ''}", yes)


def _ask(what: str, yes: bool) -> None:
    """Before something that has consequences. Without a terminal only --yes is a yes."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise SetupError(f"This has consequences and was not done: {what}. Say --yes: there is no terminal to ask at.")
    _say(f"{what}: this has consequences. Do it? [y/N]")
    if sys.stdin.readline().strip().lower() not in ("y", "yes", "s", "si", "sí"):
        _say("Not done.")
        sys.exit(1)


def _require_free(out: Path | None, force: bool) -> None:
    """Before any work is done for a file that could not be written."""
    if out is None:
        return
    if out.suffix.lower() not in files.SUFFIXES:
        raise ValidationError(f"{out.name} is neither YAML nor JSON by its name. Call it {out.stem}.yaml.")
    if not out.absolute().parent.is_dir():
        raise ValidationError(f"There is no folder {out.parent} to write {out.name} into. Make it first.")
    if out.exists() and not force:
        raise Conflict(f"{out} is there already. Give another --out, or --force.")


def _give(interface: NLWebInterface, out: Path | None, json: bool) -> None:
    if out is not None:
        files.save(interface, out)
        _say(f"{out}: {', '.join(interface.actions)}.")
        _say(
            f"Read it and mend what you know better. To try it: {_trial(interface, out)}. To offer it: agent3 add {out}"
        )
    if wanted := sorted(variables_of(interface)):
        host = urlsplit(interface.base_url).netloc
        entries = ",".join(f"{one}@{host}" for one in wanted)
        _say(f"It takes secrets from the environment: set {', '.join(wanted)}, and AGENT3_WEB_SECRETS={entries}")
    if json or out is None:
        sys.stdout.write(files.dump(interface, "json" if json else "yaml"))


def _trial(interface: NLWebInterface, out: Path) -> str:
    """A command that runs one of the actions, the first that needs least care."""
    login = Login.of(interface)
    calm = [name for name in interface.actions if name in interface.info and interface.info[name].hints.read_only]
    name = next(iter(calm or [one for one in interface.actions if login is None or one != login.action]))
    needed = input_schema(interface, name).get("required", ())
    return f"agent3 web run {out} {name}{''.join(f' --param {one}=…' for one in needed)}"


def _how_to_end(headless: bool, seconds: float) -> str:
    """Only the ways that there are here."""
    ways = [] if headless else ["close the window"]
    ways += ["press Enter here"] if sys.stdin.isatty() else []
    ways += [f"wait for {seconds:g} seconds"] if seconds > 0 else []
    does = "Nobody can click: there is no window." if headless else "Do there what the action shall do."
    return f"{does} To end: {', or '.join([*ways, 'press Ctrl-C'])}."


def _endings(page: Any, seconds: float) -> list[Any]:
    """The ways in which a recording ends: the window, Enter and Ctrl-C at the terminal, and the time."""
    ways: list[Any] = [page.wait_for_event("close", timeout=0), _interrupted()]
    if seconds > 0:
        ways.append(asyncio.sleep(seconds))
    if sys.stdin.isatty():
        ways.append(_enter())
    return ways


def _interrupted() -> Awaitable[None]:
    """Until the first Ctrl-C from now on: the end of a recording, and not of what was recorded. The next is as ever."""
    pressed = asyncio.Event()
    loop = asyncio.get_running_loop()
    with suppress(NotImplementedError, RuntimeError, ValueError):  # not on Windows, nor outside of the main thread
        loop.add_signal_handler(signal.SIGINT, pressed.set)

    async def wait() -> None:
        try:
            await pressed.wait()
        finally:
            with suppress(NotImplementedError):
                loop.remove_signal_handler(signal.SIGINT)

    return wait()


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


def _json(value: Any, indent: int | None = None) -> str:
    return notation.dumps(value, default=_as_text, ensure_ascii=False, indent=indent)


def _as_text(value: Any) -> str:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


def _say(text: str) -> None:
    """For people: on standard error, so that standard output holds the result only."""
    sys.stderr.write(f"{text}\n")


def _out(text: str) -> None:
    sys.stdout.write(f"{text}\n")
