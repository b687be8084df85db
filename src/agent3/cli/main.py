"""The command line.

Loads no SDK and no server until a command needs it. Exit codes: 0 done; 1 the call failed; 2 the input or the
settings are wrong; 3 the agent asks something and nobody is there to answer; 4 not found or not allowed; 5 the gateway
or the target cannot be reached.
"""

from __future__ import annotations

import io
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from agent3._version import __version__
from agent3.cli import output as printing
from agent3.cli.options import Here, Where
from agent3.errors import (
    AccessError,
    Agent3Error,
    NotFound,
    RequestError,
    SetupError,
    StorageError,
    Unavailable,
    ValidationError,
)
from agent3.settings import Settings, load, mistaken

if TYPE_CHECKING:
    from agent3.cli.gateway_client import Gateway
    from agent3.identity.sign_ins import SignInWish

__all__ = ["app", "main"]

_COMMANDS = {
    "agent3_search": "agent3 search",
    "agent3_select": "agent3 show",
    "agent3_invoke": "agent3 show --card",
    "agent3_call": "agent3 call",
}
"""What the tools of an LLM are called here."""

app = App(
    name="agent3",
    help="Any agent, any tool, any website, one call.",
    version=__version__,
    default_parameter=Parameter(negative=(), show_default=False),
    help_epilogue=(
        "Exit codes: 0 done, 1 the call failed, 2 wrong input or settings, 3 a question waits for an answer, "
        "4 not found or not allowed, 5 cannot be reached."
    ),
)


@Parameter(name="*")
@dataclass(frozen=True)
class Signing:
    """How to sign in to a server that is added."""

    client_id: str | None = None
    "Who we are at its authorization server, where that registers nobody by itself."
    client_secret_ref: str | None = None
    "Where the secret of that client is: env:NAME."
    issuer: str | None = None
    "The authorization server that gave them, as https://…; they are shown to no other. Needed for a machine."
    wait: float = 300.0
    "Seconds that you have to sign in [default: 300]."


@app.command
def serve(
    agent: str | None = None,
    *,
    host: str | None = None,
    port: int | None = None,
    grpc: int | None = None,
    db: str | None = None,
    config: Path | None = None,
    demo: bool = False,
) -> None:
    """Run the gateway: MCP at /mcp, A2A at /a2a, REST at /v1, health and metrics.

    Parameters
    ----------
    agent:
        Also serve an agent written in Python, as MODULE:NAME: a LocalAgent, an AgentExecutor, a function or a class.
    host:
        Address to listen on [default: 127.0.0.1].
    port:
        Port to listen on, 0 for a free one [default: 8333].
    grpc:
        Port at which to speak A2A over gRPC too, 0 for a free one.
    db:
        sqlite:///PATH or postgresql://… [default: agent3.db in the data folder].
    config:
        Settings file [default: agent3.toml in this folder, if there].
    demo:
        Include the demo agents.
    """
    from agent3.server.run import serve_forever

    serve_forever(_settings(config, db, host, port, grpc), agent, demo=demo)


@app.command
def mcp(agent: str | None = None, *, db: str | None = None, config: Path | None = None, demo: bool = False) -> None:
    """Serve the five tools over standard input and output, for Claude Desktop and other hosts.

    Parameters
    ----------
    agent:
        Also serve an agent written in Python, as MODULE:NAME.
    db:
        sqlite:///PATH or postgresql://… [default: agent3.db in the data folder].
    config:
        Settings file [default: agent3.toml in this folder, if there].
    demo:
        Include the demo agents.
    """
    from agent3.server.run import serve_stdio

    serve_stdio(_settings(config, db), agent, demo=demo)


@app.command
def search(text: tuple[str, ...], *, limit: int = 10, where: Where = Where()) -> None:  # noqa: B008 - frozen
    """Find agents by what they do.

    Parameters
    ----------
    text:
        What you need, in a few words.
    limit:
        At most this many, up to 50 [default: 10].
    """
    found = _gateway(where).search(" ".join(text), limit)
    _print(found, where, printing.agents)


@app.command(name="list")
def list_agents(*, where: Where = Where()) -> None:  # noqa: B008 - frozen
    """List all agents."""
    _print(_gateway(where).search("", printing.MOST), where, printing.agents)


@app.command
def show(agent: str, *, card: bool = False, where: Where = Where()) -> None:  # noqa: B008 - frozen
    """Show an agent: what it can do, with schemas, prices and ratings.

    Parameters
    ----------
    agent:
        Its id, as agent3 search prints it.
    card:
        Show its raw card instead.
    """
    gateway = _gateway(where)
    if card:
        _print(gateway.card(agent), where, printing.pretty)
    else:
        _print(gateway.show(agent), where, printing.page)


@app.command
def call(
    agent: str,
    message: tuple[str, ...] = (),
    *,
    capability: str | None = None,
    input: Annotated[str | None, Parameter(name="--input")] = None,  # noqa: A002 - the option is called so
    timeout: float | None = None,
    retries: int | None = None,
    job: str | None = None,
    where: Where = Where(),  # noqa: B008 - frozen
) -> None:
    """Call an agent in plain words, or with structured input.

    Parameters
    ----------
    agent:
        Its id, as agent3 search prints it.
    message:
        What it should do; with --job, the answer to its question. Put -- before one that begins with a hyphen.
    capability:
        Which of its capabilities, if it has several.
    input:
        Structured input as JSON, by the capability's schema.
    timeout:
        Seconds that the call may take [default: 30].
    retries:
        How often a failed attempt may be repeated, where that is safe [default: 1].
    job:
        Continue the job that asked a question.
    """
    gateway = _gateway(where)
    metadata = {"timeout": timeout * 1000 if timeout is not None else None, "retries": retries, "job": job}
    task = " ".join(message)
    arguments: dict[str, Any] = {"agentId": agent, "message": task, "capability": capability, "input": _json(input)}
    answer = gateway.call(_given(arguments) | {"metadata": _given(metadata)})
    while answer.get("status") == "needs" and _at_terminal(where) and (said := _ask(answer)) is not None:
        answer = gateway.call({"agentId": agent, "metadata": {"job": answer["job"], "answers": said}})
    _print(answer, where, lambda body: _answered(body, agent, where))
    if not answer["success"]:
        sys.exit(3 if answer.get("status") == "needs" else 0 if answer.get("status") == "working" else _failure(answer))


@app.command
def add(
    what: str,
    *,
    name: str | None = None,
    credential: str | None = None,
    sign_in: bool | Literal["machine"] = False,
    signing: Signing = Signing(),  # noqa: B008 - frozen
    where: Here = Here(),  # noqa: B008 - frozen
) -> None:
    """Add an agent: an MCP server, an A2A agent, or a website. What it is, is found out.

    Parameters
    ----------
    what:
        An address (of an MCP server, of an A2A agent or its card, of a site that speaks NLWeb), "npx some-server
        --flag" in quotes, or a file: a website's interface, or a client's {"mcpServers": {…}}. Write env:NAME for a
        secret in it.
    name:
        What to call it; by default what it calls itself.
    credential:
        Where its secret is: env:NAME, or HEADER=env:NAME.
    sign_in:
        Sign in to it by your browser (OAuth); with "machine" after it, by the secret of a client and without a person.
    """
    from agent3.cli.operations import add_here

    results = add_here(_here(where), what, name, credential, _signing_in(sign_in, signing))
    _print({"added": [_added(one) for one in results]}, where, _show_added)
    if all(one.error is not None for one in results):
        sys.exit(_exit_code(results[0].error) if results and results[0].error is not None else 1)


@app.command
def remove(agent: str, *, where: Here = Here()) -> None:  # noqa: B008 - frozen
    """Forget an agent that was added.

    Parameters
    ----------
    agent:
        Its id, as agent3 search prints it.
    """
    from agent3.cli.operations import remove_here

    remove_here(_here(where), agent)
    _print({"removed": agent}, where, lambda body: print(f"Removed {agent}."))


dlq = App(name="dlq", help="Dead letters: what could not be delivered, and what is to become of it.")
app.command(dlq)


@dlq.command(name="list")
def dlq_list(
    *,
    agent: str | None = None,
    code: str | None = None,
    queue: str | None = None,
    since: str | None = None,
    limit: int = 50,
    all: bool = False,  # noqa: A002 - the option is called so
    where: Here = Here(),  # noqa: B008 - frozen
) -> None:
    """List dead letters, the latest first.

    Parameters
    ----------
    agent:
        Only calls of this agent.
    code:
        Only calls that failed with this code, such as timeout.
    queue:
        Only messages of this queue.
    since:
        Only later ones: 2h, 7d, or a date such as 2026-01-31.
    limit:
        At most this many, up to 1000 [default: 50].
    all:
        Also calls that were sent again already.
    """
    from agent3.cli import operations
    from agent3.gateway.dead_letters import Wanted

    after = None if since is None else operations.moment(since, time.time())
    wanted = Wanted(agent, code, after, queue, all, limit)
    found = operations.list_letters(_here(where), wanted)
    _print({"letters": found, "count": len(found)}, where, printing.letters)


@dlq.command(name="show")
def dlq_show(letter: str, *, where: Here = Here()) -> None:  # noqa: B008 - frozen
    """Show all that is known of a dead letter. Secrets are not.

    Parameters
    ----------
    letter:
        Its id, as agent3 dlq list prints it.
    """
    from agent3.cli.operations import letter as found

    _print(found(_here(where), letter), where, printing.pretty)


@dlq.command(name="replay")
def dlq_replay(
    letters: tuple[str, ...],
    *,
    again: bool = False,
    may_run_twice: bool = False,
    demo: bool = False,
    where: Here = Here(),  # noqa: B008 - frozen
) -> None:
    """Send dead letters again, each as the caller that sent it first. Doing so twice does nothing twice.

    Parameters
    ----------
    letters:
        Their ids, as agent3 dlq list prints them.
    again:
        Also those that were sent again before.
    may_run_twice:
        Also those that may have been done the first time, by targets that could not tell.
    demo:
        Also to the demo agents.
    """
    from agent3.cli.operations import replay_letters

    done = replay_letters(_here(where), letters, again=again, twice=may_run_twice, demo=demo)
    _print({"replayed": done}, where, _replayed)
    if any(one["status"] in ("failed", "refused") for one in done):
        sys.exit(1)


@dlq.command(name="drop")
def dlq_drop(letters: tuple[str, ...], *, yes: bool = False, where: Here = Here()) -> None:  # noqa: B008 - frozen
    """Delete dead letters for ever.

    Parameters
    ----------
    letters:
        Their ids, as agent3 dlq list prints them.
    yes:
        Do not ask. Needed where there is no terminal to ask at.
    """
    from agent3.cli.operations import drop_letters

    _confirmed(f"Delete {len(letters)} dead letters for ever?", yes, where)
    dropped = drop_letters(_here(where), letters)
    _print({"dropped": dropped}, where, lambda body: print(f"Dropped {dropped} of {len(letters)}."))
    if dropped < len(letters):
        sys.exit(4)


@app.command
def backup(file: Path, *, force: bool = False, where: Here = Here()) -> None:  # noqa: B008 - frozen
    """Back up the embedded database with its large results into one file. A gateway may be running.

    Parameters
    ----------
    file:
        The archive to write; compressed when its name ends with gz.
    force:
        Replace a file that is there.
    """
    from agent3.cli.operations import back_up_here

    _print(back_up_here(_here(where), file, force=force), where, printing.backed_up)


@app.command
def restore(file: Path, *, where: Here = Here()) -> None:  # noqa: B008 - frozen
    """Put a backup in the place of the embedded database. Stop the gateway before; the old database is kept aside.

    Parameters
    ----------
    file:
        An archive that agent3 backup wrote.
    """
    from agent3.cli.operations import restore_here

    _print(restore_here(_here(where), file), where, printing.restored)


@app.command
def doctor(*, where: Here = Here()) -> None:  # noqa: B008 - frozen
    """Check that this installation can do its work, and say what to do where it cannot."""
    from agent3.cli.doctor import examine

    checks = examine(load(where.config, overrides={"storage": {"url": where.db}}))
    _print({"checks": checks, "ok": all(one["ok"] for one in checks)}, where, printing.checks)
    if not all(one["ok"] for one in checks):
        sys.exit(1)


app.command(
    "agent3.protocols.nlweb.commands.installation:app", name="semantic", help="Understand commands by their meaning."
)
app.command("agent3.cli.web:app", name="web", help="Websites as agents: make, try and check their interfaces.")


def main() -> None:
    """The ``agent3`` command. An error is one sentence on standard error, never a stack."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Line by line also into a pipe: in order with what goes to standard error, and a reader that left is noticed.
        sys.stdout.reconfigure(line_buffering=True)
    try:
        app(sys.argv[1:])
    except Agent3Error as wrong:
        if "--json" in sys.argv:
            sys.stdout.write(json.dumps({"error": wrong.to_dict()}) + "\n")
        else:
            sys.stderr.write(f"agent3: {_for_people(wrong.message)}\n")
        sys.exit(_exit_code(wrong))
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)


# Inside


def _exit_code(wrong: Agent3Error) -> int:
    if isinstance(wrong, NotFound | AccessError):
        return 4
    if isinstance(wrong, Unavailable | StorageError):
        return 5
    return 2 if isinstance(wrong, RequestError | SetupError) else 1


def _failure(answer: Mapping[str, Any]) -> int:
    from agent3.errors import by_code

    kind = by_code(str(answer.get("errorCode")))
    return _exit_code(kind.__new__(kind))


def _settings(
    config: Path | None,
    db: str | None = None,
    host: str | None = None,
    port: int | None = None,
    grpc_port: int | None = None,
) -> Settings:
    doors = {"host": host, "port": port, "grpc_port": grpc_port}
    settings = load(config, overrides={"storage": {"url": db}, "server": doors})
    for sentence in mistaken():
        print(f"agent3: {sentence}", file=sys.stderr)
    return settings


def _here(where: Here) -> Settings:
    """The settings of a command that works on the database itself, also beside a running gateway."""
    if where.db is None and os.environ.get("AGENT3_SERVER"):
        note = "AGENT3_SERVER has no effect here: this works on the database of the settings. Name another with --db."
        print(f"agent3: {note}", file=sys.stderr)
    return _settings(where.config, where.db)


def _signing_in(way: bool | Literal["machine"], given: Signing) -> SignInWish | None:
    if not way:
        if given != Signing():
            raise SetupError("--client-id, --client-secret-ref, --issuer and --wait are for signing in: add --sign-in.")
        return None
    from agent3.identity.loopback_redirect import AtTerminal
    from agent3.identity.sign_ins import SignInWish

    return SignInWish(
        "machine" if way == "machine" else "person",
        AtTerminal(),
        given.client_id,
        given.client_secret_ref,
        given.issuer,
        given.wait,
    )


def _gateway(where: Where) -> Gateway:
    """The running one, unless a database or another address is named."""
    from agent3.cli.gateway_client import Local, Remote, running

    own = where.db is not None or where.demo
    if where.server is not None and own:
        raise SetupError(
            "--server names a running gateway; --db and --demo make one in this process. Give one or other."
        )
    address = where.server or (None if own else os.environ.get("AGENT3_SERVER") or None)
    if address is not None:
        return Remote(address)
    settings = _settings(where.config, where.db)
    if not own and (address := running(settings)) is not None:
        return Remote(address)
    return Local(settings, where.demo, alone=not own)


def _json(text: str | None) -> Any:
    if text is None:
        return None
    try:
        return json.loads(text)
    except ValueError as wrong:
        raise ValidationError(f"--input is not JSON: {wrong}. Quote it for your shell.") from None


def _for_people(text: str) -> str:
    """An error in the words of this door: whoever reads it has commands, and no tools."""
    for tool, command in _COMMANDS.items():
        text = text.replace(tool, command)
    return text


def _see(answer: Mapping[str, Any], agent: str) -> str:
    """Where the parameters stand, for a call that lacks one."""
    if answer.get("errorCode") != "invalid_input" or "Missing required" not in answer["error"]:
        return ""
    return f"{'' if answer['error'].endswith(('.', '?')) else '.'} See: agent3 show {quote(agent)}"


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value not in (None, "")}


def _at_terminal(where: Where | Here) -> bool:
    return not where.json and sys.stdin.isatty() and sys.stdout.isatty()


def _ask(answer: Mapping[str, Any]) -> dict[str, Any] | None:
    """Put its questions to the person at the terminal; None when the person leaves them open (Ctrl-D, Ctrl-C)."""
    said: dict[str, Any] = {}
    for question in answer["questions"]:
        if url := question.get("url"):
            print(f"  To be done at {url}, then press Enter.")
        try:
            said[question["id"]] = input(f"{question['text']}{printing.to_choose(question)} ")
        except (EOFError, KeyboardInterrupt):
            print()
            return None
    return said


def _print(body: Mapping[str, Any], where: Where | Here, pretty: Callable[[Mapping[str, Any]], None]) -> None:
    if where.json:
        print(json.dumps(body, ensure_ascii=False))
    else:
        pretty(body)


def _added(one: Any) -> dict[str, Any]:
    if one.agent is None:
        return {"name": one.name, "error": one.error.to_dict()}
    return {"name": one.name, "id": one.agent.id, "capabilities": [each.name for each in one.agent.capabilities]}


def _show_added(body: Mapping[str, Any]) -> None:
    for one in body["added"]:
        if "error" in one:
            print(f"agent3: {one['name']}: {_for_people(one['error']['message'])}", file=sys.stderr)
        else:
            print(f"Added {one['id']}: {', '.join(one['capabilities']) or 'no capabilities'}")


def _answered(answer: Mapping[str, Any], agent: str, where: Where) -> None:
    if answer.get("status") == "needs":
        for question in answer["questions"]:
            print(f"{question['text']}{printing.to_choose(question)}")
        print(f"It waits for your answer: {_go_on(agent, 'ANSWER', answer, where)}", file=sys.stderr)
    elif answer.get("status") == "working":
        print(f"It goes on. To look at it: {_go_on(agent, '', answer, where)}", file=sys.stderr)
    elif not answer["success"]:
        print(f"agent3: {_for_people(answer['error'])}{_see(answer, agent)}", file=sys.stderr)
    else:
        result = answer.get("result")
        print(result if isinstance(result, str) else json.dumps(result, indent=2, ensure_ascii=False))
        for notice in answer.get("metadata", {}).get("notices", ()):
            print(printing.clean(str(notice)), file=sys.stderr)


def _go_on(agent: str, said: str, answer: Mapping[str, Any], where: Where) -> str:
    """The command that goes on with a job, at the same gateway."""
    same = {"--server": where.server, "--db": where.db, "--config": where.config}
    options = [word for name, value in same.items() if value is not None for word in (name, str(value))]
    words = ["agent3", "call", agent, said, "--job", answer["job"], *options, "--demo" if where.demo else ""]
    return " ".join(quote(word) for word in words if word)


def _confirmed(question: str, yes: bool, where: Here) -> None:
    """Go on only if the person says so; where nobody can be asked, only with --yes."""
    if yes:
        return
    if not _at_terminal(where):
        raise SetupError(f"{question} Say --yes: there is no terminal to ask at.")
    try:
        said = input(f"{question} [y/N] ")
    except EOFError:
        said = ""
    if said.strip().lower() not in ("y", "yes"):
        sys.exit(1)


def _replayed(body: Mapping[str, Any]) -> None:
    for one in body["replayed"]:
        more = f", job {one['job']}" if "job" in one else f": {_for_people(one['message'])}" if "message" in one else ""
        print(f"{one['id']}: {one['status']}{more}")


if __name__ == "__main__":
    main()
