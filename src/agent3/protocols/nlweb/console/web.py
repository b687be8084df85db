"""``agent3 web``: record, learn, run and check the interfaces of websites."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from json import loads
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cyclopts import App

from agent3.definitions import NLWebInterface
from agent3.errors import Conflict, SetupError, ValidationError
from agent3.gateway.which import write_question
from agent3.identity.secrets import EnvironmentVault
from agent3.llm.configured import load_model
from agent3.llm.proposals import Proposals
from agent3.protocols.nlweb.authoring import files, reviewing, workbench
from agent3.protocols.nlweb.authoring.checking import Finding
from agent3.protocols.nlweb.authoring.modelling import Helper
from agent3.protocols.nlweb.commands import actions_of, understand
from agent3.protocols.nlweb.connector import agent_of
from agent3.protocols.nlweb.driver import Driven
from agent3.protocols.nlweb.steps.parameters import input_schema, prepare
from agent3.protocols.nlweb.visit.local_profile import open_local_profile
from agent3.protocols.nlweb.visit.login import Login
from agent3.protocols.nlweb.visit.secret_grants import variables_of
from agent3.sentences import Ask, Understood
from agent3.settings import Settings, data_folder, load
from agent3.terminal.options import DatabaseOptions
from agent3.terminal.output import print_indented, print_json, print_note

__all__ = ["app"]

_YES = ("y", "yes", "s", "si", "sí")

app = App(name="web")


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
    """Open a page in a browser, and record what you do there as an action.

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
        Run without a window: only the page that was opened is recorded, since nothing can be clicked.
    seconds:
        Stop after this many seconds [default: never].
    force:
        Overwrite an existing file.
    json:
        Print JSON.
    """
    _require_free(out, force)
    ways = [] if headless else ["close the window"]
    ways += ["press Enter here"] if sys.stdin.isatty() else []
    ways += [f"wait for {seconds:g} seconds"] if seconds > 0 else []
    does = "There is no window to click in." if headless else "Do in it what the action should do."

    async def until(page: Any) -> None:
        tasks = [asyncio.ensure_future(ending) for ending in _endings(page, seconds)]
        print_note(f"Recording {url}. {does} To finish: {', or '.join([*ways, 'press Ctrl-C'])}.")
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    made = asyncio.run(
        workbench.record_page(
            url,
            action=action,
            headless=headless,
            until=until,
            on_step=lambda step: print_note(f"  {step.kind.value} {step.label or step.selector or step.value}"),
        )
    )
    _deliver(made, out, json)
    if out is None and not json:
        print_note("Nothing was saved. Save the above as NAME.yaml, or record with --out NAME.yaml.")


@app.command
def learn(
    url: str,
    *,
    out: Path | None = None,
    name: str | None = None,
    review: bool = False,
    force: bool = False,
    json: bool = False,
) -> None:
    """Make actions from what a page offers: its forms, tables, lists, links and tools. Nothing is sent.

    With --review you see each action, with a picture of its place on the page, and keep, rename or drop it.

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
    review:
        Ask about each action: Enter keeps it, a name renames it, - drops it. Pictures are written into NAME-preview.
    force:
        Overwrite an existing file.
    json:
        Print JSON.
    """
    _require_free(out, force)

    async def work() -> NLWebInterface:
        async with open_local_profile(load(), fresh=True) as profile:
            return await workbench.learn_page(url, name=name, profile=profile, pictures=pictures)

    pictures = Path(f"{out.stem if out else 'agent3'}-preview") if review else None
    if pictures is not None:
        pictures.mkdir(exist_ok=True)
    made = asyncio.run(work())
    if pictures is not None:
        made = _review(made, pictures)
    _deliver(made, out, json)


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
    options: DatabaseOptions = DatabaseOptions(),  # noqa: B008 - frozen
) -> None:
    """Run an action of an interface file, by its name or by a sentence; or do on any page what a sentence says.

    For example: agent3 web run shop.yaml search --param query=tea,
    agent3 web run shop.yaml "search for tea", or agent3 web run https://shop.example "search for tea".

    Cookies and heals are those of this machine's gateway, if one ever ran here. On an address, the model of [llm] is
    asked where the rules find nothing to do; what worked is kept and runs without it from then on.

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
        Do what has consequences without asking.
    fresh:
        As a first-time visitor: without cookies and heals of earlier visits, and nothing is kept.
    """
    if file.startswith(("http://", "https://")):
        if not action.strip():
            raise ValidationError(f'Say what to do, such as: agent3 web run {file} "search for tea".')
        if param or trace:
            raise ValidationError(
                "--param and --trace are for interface files; put the values into the sentence instead."
            )
        _drive(file, action, options, headed=headed, yes=yes, fresh=fresh)
        return
    settings = options.settings()
    interface = _load_interface(file)
    if not action:
        _list_actions(interface, options.json)
        return
    name, given = _choose_action(interface, action, param, yes)
    prepare(interface, name, given)  # before the question: what cannot be done needs no yes
    info = interface.info.get(name)
    kept = Path("agent3-traces", f"{Path(file).stem}-{name}.zip") if trace else None

    def on_step(label: str, number: int, total: int) -> None:
        # Of a label such as "2 of 'search' (type '#q')", what the step does: its number stands before it already.
        print_note(f"  {number}/{total} {label.partition(' (')[2].removesuffix(')') or label}")

    async def work(name: str, given: dict[str, Any], kept: Path | None) -> Any:
        async with open_local_profile(settings, fresh=fresh) as profile:
            return await workbench.run_action(
                interface,
                name,
                given,
                headless=not headed,
                trace=kept,
                on_step=on_step,
                on_notice=lambda notices: print_note("\n".join(notices)) if notices else None,
                profile=profile,
            )

    if info is not None and info.hints.consequential:
        if info.preview is not None and not yes and sys.stdin.isatty():
            shared = input_schema(interface, info.preview).get("properties", {})
            print_indented(asyncio.run(work(info.preview, {key: given[key] for key in shared if key in given}, None)))
        values = (f"{key}={given.get(key, '')}" for key in input_schema(interface, name).get("properties", {}))
        _confirm(f"{name} ({said})" if (said := ", ".join(values)) else name, yes)
    result = asyncio.run(work(name, given, kept))
    if kept is not None:
        written = f"The trace is in {kept}. To look at it: npx playwright show-trace {kept}"
        print_note(
            written if kept.exists() else "No trace was written: a password was typed, and the trace would contain it."
        )
    if options.json:
        print_json({"result": result})
    else:
        print_indented(result)


@app.command
def check(
    file: Path,
    *,
    param: tuple[str, ...] = (),
    fresh: bool = False,
    options: DatabaseOptions = DatabaseOptions(),  # noqa: B008 - frozen
) -> None:
    """Check whether an interface still fits its website. Nothing is clicked or sent.

    Exits with 1 if something is missing.

    Parameters
    ----------
    file:
        The interface file.
    param:
        A parameter for actions that only read, so that they are run: ACTION.NAME=VALUE; once for each.
    fresh:
        Without the cookies of earlier visits.
    """
    settings = options.settings()
    interface = _load_interface(str(file))
    given: dict[str, dict[str, Any]] = {}
    for key, text in map(_split_pair, param):
        action, dot, name = key.partition(".")
        if not dot or action not in interface.actions:
            raise ValidationError(f"--param {key}={text}: name the action too, as ACTION.{key}={text}.")
        schema = input_schema(interface, action).get("properties", {}).get(name)
        given.setdefault(action, {})[name] = _parse_value(text, schema)

    async def work() -> list[Finding]:
        async with open_local_profile(settings, fresh=fresh) as profile:
            return await workbench.check_interface(interface, given, profile=profile)

    findings = asyncio.run(work())
    wrong = sum(finding.state in ("missing", "failed") for finding in findings)
    if options.json:
        steps = [
            {"action": found.action, "step": found.step, "state": found.state, "detail": found.detail}
            for found in findings
        ]
        print_json({"ok": not wrong, "steps": steps})
    else:
        _show_findings(file, findings, wrong)
    if wrong:
        sys.exit(1)


app.command(
    "agent3.protocols.nlweb.console.heals:app",
    name="heals",
    help="Selectors that no longer match, and the elements used instead.",
)
app.command(
    "agent3.protocols.nlweb.console.sessions:app",
    name="sessions",
    help="Sessions of callers at websites: their encrypted cookies.",
)


# Learning


def _review(interface: NLWebInterface, pictures: Path) -> NLWebInterface:
    """Show each action and ask what to do with it. Where no more is answered, the rest is kept."""
    print_note(f"{len(interface.actions)} actions. Press Enter to keep one, type a name to rename it, or - to drop it.")

    def decide(name: str) -> str:
        info, picture = interface.info.get(name), pictures / f"{name}.png"
        needed = input_schema(interface, name)
        required = needed.get("required", ())
        takes = ", ".join(f"{key}{'' if key in required else '?'}" for key in needed.get("properties", {}))
        about = info.description if info is not None else ""
        does = " (has consequences)" if info is not None and info.hints.consequential else ""
        print_note(f"\n{name}({takes}){does}\n  {about}")
        if picture.exists():
            print_note(f"  {picture}")
        print_note("  keep? ")
        answer = sys.stdin.readline().strip()
        return "" if answer == "-" else answer or name

    return reviewing.review(interface, decide)


# Running

_MOST_TOLD = 3


def _drive(url: str, sentence: str, options: DatabaseOptions, *, headed: bool, yes: bool, fresh: bool) -> None:
    """Do on a page without an interface what a sentence says. Ends with 1 where that was not all of it."""
    settings = options.settings()

    async def work() -> tuple[Driven, dict[str, str]]:
        async with open_local_profile(settings, fresh=fresh) as profile, _open_helper(settings, fresh) as helper:
            return await workbench.drive_page(
                url,
                sentence,
                headless=not headed,
                profile=profile,
                confirm=lambda what: _confirm(what, yes),
                helper=helper,
                uploads=Path.cwd(),
                tell=lambda what: print_note(f"  {what}"),
            )

    result, page = asyncio.run(work())
    if options.json:
        body = {"complete": result.complete, "done": result.done, "left": result.left, "question": result.question}
        print_json({**body, "seen": result.seen, "page": page})
    else:
        for deed in result.done:
            print_note(f"  {deed}")
        for line in result.seen if len(result.seen) <= _MOST_TOLD else ():  # a message, not another page
            print_note(f"  the page says: {line}")
        for number, clause in enumerate(result.left):
            print_note(f"  {'not done' if number or result.done else 'not understood'}: {clause}")
        print(f"{page['title']} ({page['url']})\n{page['text']}")
    if not result.complete:
        print_note(f"{result.question} agent3 web learn {url} shows what the page offers.")
        sys.exit(1)


@asynccontextmanager
async def _open_helper(settings: Settings, fresh: bool) -> AsyncIterator[Helper | None]:
    """The language model of [llm], for sentences that the rules do nothing for; None where there is none."""
    llm = load_model(settings.llm, EnvironmentVault())
    if llm is None:
        yield None
        return
    how = settings.llm
    proposals = Proposals(llm, seconds=how.timeout, per_day=how.per_day, max_tokens=how.max_tokens)
    try:
        yield Helper(proposals.complete, None if fresh else data_folder() / "learnt")
    finally:
        await llm.aclose()


def _choose_action(
    interface: NLWebInterface, wish: str, param: tuple[str, ...], yes: bool
) -> tuple[str, dict[str, Any]]:
    """The action and its parameters, by its name or by a sentence; what is given by --param counts for more.

    Ends with 3 and a question where a sentence leaves something open.
    """

    def parse_params(action: str) -> dict[str, Any]:
        properties = input_schema(interface, action).get("properties", {}) if action in interface.actions else {}
        return {name: _parse_value(text, properties.get(name)) for name, text in map(_split_pair, param)}

    if wish in interface.actions or " " not in wish.strip():
        return wish, parse_params(wish)
    agent = agent_of(interface)
    found = asyncio.run(understand(wish, agent, actions_of(agent)))
    if found.action is None:
        print_note(found.refusal or write_question(agent.name, actions_of(agent), wish))
        sys.exit(3)
    given = {**found.input, **parse_params(found.action.name)}
    left = found.reading.left if isinstance(found.reading, Ask) else ()
    open_questions = [question for question in found.questions if left or question.id not in given]
    if open_questions:
        advice = "" if left else f" Pass it with --param {open_questions[0].id}=…"
        print_note("\n".join(question.text for question in open_questions) + advice)
        sys.exit(3)
    print_note(f"{found.action.name} {' '.join(f'{name}={value}' for name, value in given.items())}".rstrip())
    if isinstance(found.reading, Understood) and found.reading.guessed and not found.action.hints.read_only:
        _confirm(f"{found.action.name} {found.input}", yes)
    return found.action.name, given


def _split_pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ValidationError(f"--param {text!r} must be NAME=VALUE.")
    return name, value


def _parse_value(text: str, schema: Any) -> Any:
    """The value of a --param, of the type that the action wants."""
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    if kind not in ("number", "integer", "boolean", "array", "object"):
        return text
    try:
        return loads(text)
    except ValueError:
        raise ValidationError(f"{text!r} is not of type {kind}. Write it as in JSON.") from None


def _confirm(what: str, yes: bool) -> None:
    """Ask before something that has consequences. Without a terminal only --yes is a yes."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise SetupError(f"This has consequences and was not done: {what}. Add --yes: there is no terminal to ask at.")
    print_note(f"{what}: this has consequences. Continue? [y/N]")
    if sys.stdin.readline().strip().lower() not in _YES:
        print_note("Not done.")
        sys.exit(1)


# Recording


def _endings(page: Any, seconds: float) -> list[Any]:
    """The ways in which a recording ends: the window, Enter and Ctrl-C at the terminal, and the time."""
    loop = asyncio.get_running_loop()
    interrupted, entered = asyncio.Event(), asyncio.Event()
    # From now on, and only the first: Ctrl-C ends the recording, and not what was recorded. The next is as ever.
    with suppress(NotImplementedError, RuntimeError, ValueError):  # not on Windows, nor outside of the main thread
        loop.add_signal_handler(signal.SIGINT, interrupted.set)

    async def interrupt() -> None:
        try:
            await interrupted.wait()
        finally:
            with suppress(NotImplementedError):
                loop.remove_signal_handler(signal.SIGINT)

    async def enter() -> None:
        loop.add_reader(sys.stdin.fileno(), entered.set)
        try:
            await entered.wait()
        finally:
            loop.remove_reader(sys.stdin.fileno())

    ways = [page.wait_for_event("close", timeout=0), interrupt()]
    ways += [asyncio.sleep(seconds)] if seconds > 0 else []
    return [*ways, enter()] if sys.stdin.isatty() else ways


# Files


def _load_interface(file: str) -> NLWebInterface:
    if Path(file).exists() or Path(file).suffix.lower() in files.SUFFIXES:
        return files.load(file)
    raise ValidationError(
        f"{file!r} is neither a file nor the address of a page. Give FILE.yaml, or https://host/path."
    )


def _require_free(out: Path | None, force: bool) -> None:
    """Before any work is done for a file that could not be written."""
    if out is None:
        return
    if out.suffix.lower() not in files.SUFFIXES:
        raise ValidationError(f"The name {out.name} has neither a YAML nor a JSON extension. Call it {out.stem}.yaml.")
    if not out.absolute().parent.is_dir():
        raise ValidationError(f"The folder {out.parent} for {out.name} does not exist. Create it first.")
    if out.exists() and not force:
        raise Conflict(f"{out} already exists. Choose another --out, or add --force.")


def _deliver(interface: NLWebInterface, out: Path | None, json: bool) -> None:
    """Write an interface that was made into its file, or print it; and say what to do next."""
    if out is not None:
        files.save(interface, out)
        # An example to try: an action that only reads, else any but the login.
        login = Login.of(interface)
        others = [name for name in interface.actions if login is None or name != login.action]
        reading = [
            name for name in interface.actions if name in interface.info and interface.info[name].hints.read_only
        ]
        name = (reading or others)[0]
        needed = "".join(f" --param {key}=…" for key in input_schema(interface, name).get("required", ()))
        print_note(f"{out}: {', '.join(interface.actions)}.")
        print_note(f"Review the file. To try it: agent3 web run {out} {name}{needed}. To offer it: agent3 add {out}")
    if wanted := sorted(variables_of(interface)):
        host = urlsplit(interface.base_url).netloc
        entries = ",".join(f"{variable}@{host}" for variable in wanted)
        print_note(f"It needs secrets from the environment: set {', '.join(wanted)}, and AGENT3_WEB_SECRETS={entries}")
    if json or out is None:
        sys.stdout.write(files.dump(interface, "json" if json else "yaml"))


# Printing


def _list_actions(interface: NLWebInterface, json: bool) -> None:
    rows: list[dict[str, Any]] = []
    for name in interface.actions:
        schema, info = input_schema(interface, name), interface.info.get(name)
        rows.append({"action": name, "description": info.description if info else "", "input": schema})
    if json:
        print_json({"actions": rows})
        return
    for row in rows:
        needed = row["input"].get("required", ())
        names = [f"{key}=…" if key in needed else f"[{key}=…]" for key in row["input"].get("properties", {})]
        print(" ".join([row["action"], *names]))
        if row["description"]:
            print(f"    {row['description']}")


def _show_findings(file: Path, findings: list[Finding], wrong: int) -> None:
    action = None
    for finding in findings:
        if finding.action != action:
            print(finding.action)
        action = finding.action
        step = finding.step.replace(f" of {action!r}", "")
        print(f"  {finding.state:<8}{step}{f': {finding.detail}' if finding.detail else ''}")
    unseen = next((finding.action for finding in findings if finding.state == "unseen"), None)
    if wrong:
        print_note(
            f"{wrong} of {len(findings)} do not match. Correct them in {file}; agent3 web heals list shows "
            "what a gateway healed by itself."
        )
    elif unseen is not None:
        print_note(
            "Everything that could be checked matches. The rest is behind a click; a read-only action is "
            f"run if you pass its parameters: --param {unseen}.NAME=VALUE"
        )
    else:
        print_note("Everything matches.")
