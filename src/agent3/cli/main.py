"""The ``agent3`` command: registers every command, runs one, and turns errors into a sentence and an exit code.

Loads no SDK and no server: each command is imported when it is called.
"""

from __future__ import annotations

import io
import json
import os
import sys

from cyclopts import App, Parameter

from agent3._version import __version__
from agent3.cli.exit_codes import exit_code
from agent3.cli.output import print_error
from agent3.cli.plugins import add_plugins
from agent3.errors import Agent3Error
from agent3.terminal.output import guard_output

__all__ = ["app", "main"]

app = App(
    name="agent3",
    help="Any agent, any tool, any website, one call.",
    version=__version__,
    default_parameter=Parameter(negative=(), show_default=False),
    help_epilogue=(
        "Exit codes: 0 done, 1 call failed, 2 wrong input or settings, 3 a question waits for an answer, 4 "
        "not found or not allowed, 5 unreachable."
    ),
)

# Each help text repeats the summary of the function's docstring (a test compares them): agent3 --help then lists the
# commands without importing them.
for _name, _place, _help in (
    (
        "serve",
        "agent3.cli.serving:serve",
        "Run the gateway: MCP at /mcp, A2A at /a2a, REST at /v1, health and metrics.",
    ),
    (
        "mcp",
        "agent3.cli.serving:mcp",
        "Serve agent3's tools over standard input and output, for Claude Desktop and other hosts.",
    ),
    (
        "demo",
        "agent3.cli.travel_demo:demo",
        "Plan a trip with agents of every kind, kill one of them, and plan again.",
    ),
    ("search", "agent3.cli.agents:search", "Search the capabilities of all agents."),
    ("list", "agent3.cli.agents:list_agents", "List all agents."),
    ("show", "agent3.cli.agents:show", "Show an agent: its capabilities, schemas, prices and ratings."),
    ("call", "agent3.cli.calls:call", "Call an agent in plain words, or with structured input."),
    ("cancel", "agent3.cli.calls:cancel", "Cancel a job that is working or waiting for an answer."),
    ("batch", "agent3.cli.batch:batch", "Make several calls at once; each has its own answer."),
    ("calls", "agent3.cli.call_reports:app", "Past calls: caller, result, duration and cost."),
    ("price", "agent3.cli.call_reports:price", "Set the price of an agent's calls, in US dollars."),
    (
        "add",
        "agent3.cli.registration:add",
        "Add an MCP server, an A2A agent, an OpenAPI service or a website.",
    ),
    (
        "approve",
        "agent3.cli.registration:approve",
        "Approve the changed description of an agent, which then takes effect.",
    ),
    (
        "stop",
        "agent3.cli.switches:stop",
        "Stop an agent: refuse its calls and end those that run. Without an agent, list the stopped ones.",
    ),
    ("start", "agent3.cli.switches:start", "Allow calls to a stopped agent again."),
    ("remove", "agent3.cli.registration:remove", "Remove an added agent."),
    (
        "route",
        "agent3.cli.routes:route",
        "Let one capability stand in for another that is down. Without arguments, list the stand-ins.",
    ),
    ("approvals", "agent3.cli.approvals:app", "Calls that wait for approval: list, show, approve, deny."),
    ("client", "agent3.cli.clients:app", "Clients that may call over the network, and their keys."),
    (
        "login",
        "agent3.cli.logins:login",
        "Give a user their own credential for an agent.",
    ),
    ("logout", "agent3.cli.logins:logout", "Delete a user's credential for an agent."),
    ("vault", "agent3.cli.vault:app", "Secrets for agents, encrypted in the database."),
    ("data", "agent3.cli.personal_data:app", "Data stored about a caller: export it, or erase it."),
    ("dlq", "agent3.cli.dead_letters:app", "Dead letters: calls and messages that could not be delivered."),
    (
        "audit",
        "agent3.cli.audit:app",
        "Verify or export the tamper-evident record of calls and changes.",
    ),
    (
        "backup",
        "agent3.cli.backups:backup",
        "Back up the embedded database and its large results to one file. The gateway may keep running.",
    ),
    (
        "restore",
        "agent3.cli.backups:restore",
        "Replace the embedded database with a backup. Stop the gateway first; the old database is kept.",
    ),
    ("config", "agent3.cli.doctor:config", "The settings: check them."),
    ("doctor", "agent3.cli.doctor:doctor", "Check this installation and say how to fix what is wrong."),
    (
        "web",
        "agent3.protocols.nlweb.console.web:app",
        "Websites as agents: create, test and maintain their interfaces.",
    ),
):
    app.command(_place, name=_name, help=_help)


def main() -> None:
    """Run the command in ``sys.argv``. An error is one sentence on standard error, never a stack trace."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Line by line also into a pipe: in order with what goes to standard error, and a reader that left is noticed.
        sys.stdout.reconfigure(line_buffering=True)
    guard_output()
    words = sys.argv[1:]
    add_plugins(app, words)
    try:
        app(words)
    except Agent3Error as error:
        if "--json" in words:
            print(json.dumps({"error": error.to_dict()}))
        else:
            print_error(error.message)
        sys.exit(exit_code(type(error)))
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # The interpreter flushes standard output once more as it ends, which would print a second error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)


if __name__ == "__main__":
    main()
