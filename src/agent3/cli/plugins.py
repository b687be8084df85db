"""Commands of other packages, by entry points of the group ``agent3.commands``.

The name of an entry point is the command; its value is a function or a cyclopts ``App``, as for agent3's own commands.
``agent3.terminal`` has shared options and printing.
"""

from __future__ import annotations

from collections.abc import Sequence

from cyclopts import App

from agent3.cli.output import print_error

__all__ = ["GROUP", "add_plugins"]

GROUP = "agent3.commands"


def add_plugins(app: App, words: Sequence[str]) -> None:
    """Add the commands of other packages that this command line may need.

    Nothing is looked up if the first word is a command of agent3 or ``--version``. If it names a plug-in, only that
    one is
    loaded; for the help, all are. A plug-in that cannot be used is reported on standard error and left out.
    """
    first = words[0] if words else ""
    if first == "--version" or (first in app and not first.startswith("-")):
        return
    from importlib.metadata import entry_points  # it loads the email package, which no command of agent3 needs

    entries = entry_points(group=GROUP)
    for entry in entries.select(name=first) or entries:
        if entry.value.startswith("agent3."):
            continue  # registered in main with its help text, so that the help need not import it
        if entry.name in app:
            print_error(f"Ignoring command {entry.name} of {entry.value}: a command of that name exists.")
            continue
        try:
            target = entry.load()
            if not callable(target):  # an App is callable too
                raise TypeError("it is neither a function nor a cyclopts App")
            app.command(target, name=entry.name)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - foreign code: its errors must not stop other commands
            reason = f"{type(error).__name__}: {error}"
            print_error(f"Ignoring command {entry.name} of {entry.value}, which cannot be loaded: {reason}")
