"""Commands of other packages: real entry points, in the metadata of distributions on ``sys.path``."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cyclopts import App

from agent3.cli import main as cli
from agent3.cli.plugins import GROUP

GREET = '''
from cyclopts import App

def greet(name: str, *, loud: bool = False) -> None:
    """Greet a person.

    Parameters
    ----------
    name:
        The person.
    loud:
        In capitals.
    """
    text = f"Hello {name}"
    print(text.upper() if loud else text)

tools = App(name="whatever", help="Tools of a shop.")

@tools.command
def count() -> None:
    """Count."""
    from agent3.errors import AgentNotFound
    raise AgentNotFound("shop")

number = 7
'''

Plugins = Callable[..., None]
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plugins:
    """Installs a distribution with some modules and some entry points, until the test ends."""

    def install(modules: dict[str, str], **commands: str) -> None:
        folder = tmp_path / f"site-{len(list(tmp_path.glob('site-*')))}"
        info = folder / f"{folder.name.replace('-', '_')}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {folder.name}\nVersion: 1.0\n")
        lines = [f"{name.replace('_', '-')} = {value}" for name, value in commands.items()]
        (info / "entry_points.txt").write_text("\n".join([f"[{GROUP}]", *lines, ""]))
        for name, text in modules.items():
            (folder / f"{name}.py").write_text(text)
            monkeypatch.delitem(sys.modules, name, raising=False)
        monkeypatch.syspath_prepend(folder)

    return install


@pytest.fixture
def agent3(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    """Runs a command in this process; the plug-ins that it adds are forgotten when the test ends."""
    monkeypatch.setenv("COLUMNS", "120")
    own = dict(cli.app._commands)

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(cli.app, "_commands", dict(own))
        monkeypatch.setattr(sys, "argv", ["agent3", *words])
        try:
            cli.main()
        except SystemExit as end:
            return int(end.code or 0), *capfd.readouterr()
        return 0, *capfd.readouterr()

    return run


def test_a_function_of_another_package_becomes_a_command(install: Plugins, agent3: Command) -> None:
    install({"plug_greet": GREET}, greet="plug_greet:greet")
    assert agent3("greet", "Ann", "--loud") == (0, "HELLO ANN\n", "")
    code, out, err = agent3("--help")
    assert (code, err) == (0, "")
    assert "greet" in out
    assert "Greet a person." in out
    assert "In capitals." in agent3("greet", "--help")[1]


def test_an_app_of_another_package_is_mounted_under_the_name_of_its_entry_point(
    install: Plugins, agent3: Command
) -> None:
    install({"plug_greet": GREET}, shop_tools="plug_greet:tools")
    assert "Tools of a shop." in agent3("--help")[1]
    code, out, err = agent3("shop-tools", "count")
    assert (code, out, err.startswith("agent3: ")) == (4, "", True), "its errors have the exit codes of agent3"


@pytest.mark.parametrize(
    ("modules", "place", "reason"),
    [
        ({"plug_broken": "raise RuntimeError('no licence')"}, "plug_broken:run", "RuntimeError: no licence"),
        ({"plug_broken": "import sys\nsys.exit(9)"}, "plug_broken:run", "SystemExit: 9"),
        ({"plug_broken": "import no_such_module_at_all"}, "plug_broken:run", "no_such_module_at_all"),
        ({}, "no_such_plugin:run", "no_such_plugin"),
        ({"plug_broken": ""}, "plug_broken:run", "AttributeError"),
        ({"plug_greet": GREET}, "plug_greet:number", "neither a function nor a cyclopts App"),
    ],
    ids=["raises", "exits", "lacks a module", "is gone", "has no such name", "is a number"],
)
def test_a_broken_plugin_is_named_and_breaks_nothing_else(
    install: Plugins, agent3: Command, modules: dict[str, str], place: str, reason: str
) -> None:
    install(modules, broken=place)
    install({"plug_good": GREET}, greet="plug_good:greet")
    code, out, err = agent3("--help")
    assert code == 0
    assert all(f" {name} " in out for name in ("serve", "web", "greet"))
    assert err.startswith(f"agent3: Ignoring command broken of {place}, which cannot be loaded: ")
    assert reason in err
    assert agent3("greet", "Ann") == (0, "Hello Ann\n", ""), "only the plug-in that is called is loaded"
    assert agent3("broken")[0] == 2


def test_a_plugin_replaces_no_other_command(install: Plugins, agent3: Command) -> None:
    install({"plug_greet": GREET}, serve="plug_greet:greet", greet="plug_greet:greet")
    install({"plug_other": GREET}, greet="plug_other:greet")
    _, out, err = agent3("--help")
    assert "Run the gateway" in out
    assert [line.partition(": a command of")[0] for line in err.splitlines()] == [
        "agent3: Ignoring command serve of plug_greet:greet",
        "agent3: Ignoring command greet of plug_greet:greet",
    ]


@pytest.mark.parametrize("words", [("--version",), ("search", "--help"), ("web", "--help")], ids=" ".join)
def test_plugins_are_not_even_looked_for_when_none_is_meant(
    agent3: Command, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    def refuse(**_: object) -> None:
        raise AssertionError("looked for plug-ins")

    monkeypatch.setattr("importlib.metadata.entry_points", refuse)
    assert agent3(*words)[0] == 0


def test_the_list_of_commands_says_what_each_command_says_of_itself() -> None:
    """The list is printed without importing the commands, so it holds their first sentences once more."""
    for name in cli.app:
        command = cli.app[name]
        if not name.startswith("-") and command.default_command is not None:
            assert isinstance(command, App)
            assert command.help == (inspect.getdoc(command.default_command) or "").partition("\n\n")[0], name
