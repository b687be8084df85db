"""The scripts that people start with, and the pins that they install."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
BASH = [Path(ROOT, "scripts", name) for name in ("setup", "start", "test", "conformance", "interop")]
OURS = [*BASH, Path(ROOT, "scripts", "lock")]
PINS = ["run", "build", "dev"]


def run(*command: str | Path, environ: Mapping[str, str] | None = None, cwd: Path | None = None) -> tuple[int, str]:
    """Exit code and everything said; bounded, and not led astray by what is set around the tests."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("AGENT3_")}
    done = subprocess.run(
        [str(part) for part in command],
        env={**clean, **(environ or {})},
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=240,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


def project() -> dict[str, Any]:
    return tomllib.loads(Path(ROOT, "pyproject.toml").read_text("utf-8"))


def pins(name: str) -> dict[str, Requirement]:
    lines = Path(ROOT, "requirements", f"{name}.txt").read_text("utf-8").splitlines()
    found = [Requirement(line) for line in lines if not line.startswith("#")]
    return {canonical(requirement.name): requirement for requirement in found}


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.parametrize("script", [*OURS, Path(ROOT, ".ci", "run")], ids=lambda path: path.name)
def test_every_script_can_be_executed(script: Path) -> None:
    assert os.access(script, os.X_OK)


@pytest.mark.parametrize("script", [*BASH, Path(ROOT, ".ci", "run")], ids=lambda path: path.name)
def test_every_shell_script_parses(script: Path) -> None:
    assert run("bash", "-n", script) == (0, "")


@pytest.mark.parametrize("script", OURS, ids=lambda path: path.name)
def test_every_script_explains_itself_from_any_folder(script: Path, tmp_path: Path) -> None:
    code, said = run(script, "--help", cwd=tmp_path)
    assert code == 0
    assert said.lower().startswith(f"usage: scripts/{script.name}")


def test_ci_runs_what_everybody_runs() -> None:
    assert Path(ROOT, ".ci", "run").read_text("utf-8").splitlines()[-1] == "exec ./scripts/test"


HANGS = 'echo tests/test_x.py::test_y > "$TESTS_UNDER_WAY/$$"; setsid sleep 600 & echo "left $!"; exec sleep 600'


# Waits for the end of an orphan, as tests do that killed its parent.
LEAVES = (
    "orphan=$(sleep 0.1 >&2 & echo $!); while kill -0 $orphan; do sleep 0.02; done; setsid sleep 600 & echo left $!"
)


@pytest.mark.parametrize(("command", "code"), [(HANGS, 124), (f"{LEAVES}; exit 3", 3)])
def test_a_run_of_tests_ends_in_time_and_leaves_no_process(command: str, code: int) -> None:
    watchdog = [sys.executable, "-m", "tests.support.watchdog"]
    ended, said = run(*watchdog, "5", "bash", "-c", command, cwd=ROOT)
    assert ended == code, said
    assert ("tests/test_x.py::test_y" in said) == (code == 124)
    assert not psutil.pid_exists(int(said.partition("left ")[2].split()[0])), said


@pytest.mark.parametrize("suite", ["ard", "nonsense"])
def test_a_conformance_suite_that_does_not_exist_is_named_and_not_passed(suite: str) -> None:
    code, said = run(Path(ROOT, "scripts", "conformance"), suite)
    assert code == 2
    assert suite in said


@pytest.mark.parametrize("name", PINS)
def test_requirements_are_pins_and_nothing_else(name: str) -> None:
    text = Path(ROOT, "requirements", f"{name}.txt").read_text("utf-8")
    for line in text.splitlines():
        assert re.fullmatch(r"#.*|[a-z0-9-]+==[\w.]+(; [\w' !=<>.]+)?", line), line
    assert "://" not in text


@pytest.mark.parametrize("name", ["run", "build"])
def test_the_smaller_pins_are_part_of_the_larger(name: str) -> None:
    everything = pins("dev")
    assert all(everything[package] == pin for package, pin in pins(name).items())


def ranges(name: str) -> list[str]:
    told = project()
    run_time = list(told["project"]["dependencies"])
    extras = told["project"]["optional-dependencies"]
    optional = [line for extra, lines in extras.items() if extra != "all" for line in lines]
    build = list(told["build-system"]["requires"])
    return {"run": run_time, "build": build, "dev": [*run_time, *optional, *told["dependency-groups"]["dev"]]}[name]


@pytest.mark.parametrize("name", PINS)
def test_every_range_in_pyproject_has_a_pin_within_it(name: str) -> None:
    pinned = pins(name)
    for line in ranges(name):
        wanted = Requirement(line)
        pin = pinned[canonical(wanted.name)]
        version = next(iter(pin.specifier)).version
        assert wanted.specifier.contains(version, prereleases=True), f"{pin} is outside {wanted}; run scripts/lock"
        assert pin.marker == wanted.marker


def test_no_pin_brings_torch() -> None:
    assert not {"torch", "litellm", "fastmcp", "tiktoken"} & pins("dev").keys()


# A build backend in a page: the setup below is real (a real environment, a real pip), but needs no network.
BACKEND = """
import zipfile
def build_editable(folder, config_settings=None, metadata_directory=None):
    info = "tiny-1.dist-info"
    with zipfile.ZipFile(f"{folder}/tiny-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tiny.pth", "")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\\nName: tiny\\nVersion: 1\\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(f"{info}/RECORD", "")
    return "tiny-1-py3-none-any.whl"
"""
OFFLINE = {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": "", "AGENT3_PYTHON": sys.executable}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A project of one file, in a folder with a space in its name, set up by our own script."""
    root = tmp_path / "a checkout"
    for folder in ("scripts", "requirements", "src/agent3"):
        Path(root, folder).mkdir(parents=True)
    shutil.copy2(ROOT / "scripts" / "setup", root / "scripts" / "setup")
    Path(root, "backend.py").write_text(BACKEND, "utf-8")
    Path(root, "src/agent3/_version.py").write_text("", "utf-8")
    Path(root, "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        '[project]\nname = "tiny"\nversion = "1"\n',
        "utf-8",
    )
    for name in PINS:
        Path(root, "requirements", f"{name}.txt").write_text("# nothing\n", "utf-8")
    return root


def setup(root: Path, mode: str = "run", **environ: str) -> tuple[int, str]:
    return run(root / "scripts" / "setup", mode, environ={**OFFLINE, **environ}, cwd=root.parent)


def python_without(folder: Path, words: str) -> Path:
    """This Python, failing whenever its arguments hold these words."""
    path = folder / "python3"
    path.write_text(f'#!/bin/sh\ncase "$*" in *"{words}"*) exit 1 ;; esac\nexec "{sys.executable}" "$@"\n', "utf-8")
    path.chmod(0o755)
    return path


def test_setup_makes_an_environment_once_and_knows_when_it_is_stale(checkout: Path, tmp_path: Path) -> None:
    code, said = setup(checkout)
    assert code == 0, said
    assert "making" in said
    installed = Path(checkout, ".venv")
    assert list(installed.glob("lib/python*/site-packages/tiny-1.dist-info"))

    assert setup(checkout) == (0, ""), "the second run has nothing to do"

    code, said = setup(checkout, "dev")
    assert code == 0, said
    assert "requirements/dev.txt" in said
    assert "making" not in said, "the environment is kept and added to"
    assert setup(checkout, "run") == (0, ""), "what is made for development also runs the gateway"

    Path(checkout, "requirements", "dev.txt").write_text("no-such-package==1.0\n", "utf-8")
    code, said = setup(checkout, "dev")
    assert code == 1
    assert "no-such-package" in said, "pip's own words"
    assert "the network must be reachable" in said

    Path(checkout, "requirements", "dev.txt").write_text("# nothing any more\n", "utf-8")
    Path(installed, "agent3-setup.unfinished").touch()
    code, said = setup(checkout, "dev", AGENT3_PYTHON=str(python_without(tmp_path, "-m venv")))
    assert "making" in said, "an install that was cut off is begun anew"
    assert code == 1
    assert "could not be made" in said


def test_setup_refuses_to_empty_a_folder_that_is_no_environment(checkout: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    Path(precious, "letter").write_text("dear", "utf-8")
    code, said = setup(checkout, AGENT3_VENV=str(precious))
    assert code == 1
    assert "is not a virtual environment" in said
    assert Path(precious, "letter").exists()


def test_setup_says_so_when_there_is_no_python_new_enough(checkout: Path, tmp_path: Path) -> None:
    commands = tmp_path / "commands"
    commands.mkdir()
    for name in ("bash", "cat", "cmp", "dirname", "env"):
        found = shutil.which(name)
        assert found
        Path(commands, name).symlink_to(found)
    Path(commands, "python3").symlink_to("/bin/false")
    code, said = setup(checkout, PATH=str(commands), AGENT3_PYTHON="")
    assert code == 1
    assert "No Python 3.11 or later found" in said
    code, said = setup(checkout, AGENT3_PYTHON="/bin/false")
    assert code == 1
    assert "AGENT3_PYTHON=/bin/false" in said


def test_setup_names_the_remedy_when_python_comes_without_venv(checkout: Path, tmp_path: Path) -> None:
    code, said = setup(checkout, AGENT3_PYTHON=str(python_without(tmp_path, "ensurepip")))
    assert code == 1
    assert "apt-get install python3-venv" in said


def note_taker(path: Path, log: Path, more: str = "") -> None:
    """A program that notes its name and arguments, one line per call."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'#!/bin/sh\necho "{path.name}" "$@" >>"{log}"\n{more}\n', "utf-8")
    path.chmod(0o755)


@pytest.fixture
def staged(tmp_path: Path) -> Path:
    """A checkout whose environment is ready and whose tools only note that they were called, in the file ``log``."""
    root = tmp_path / "a checkout"
    log = root / "log"
    note_taker(root / "scripts" / "setup", log)
    for tool in ("agent3", "python", "ruff", "mypy", "lint-imports"):
        note_taker(root / ".venv" / "bin" / tool, log)
    for script in ("start", "test"):
        shutil.copy2(ROOT / "scripts" / script, root / "scripts" / script)
    return root


def noted(root: Path) -> list[str]:
    """What was run in turn; compiling the tests goes on beside it."""
    lines = Path(root, "log").read_text("utf-8").splitlines()
    return [line for line in lines if line != "python -m pytest --collect-only -q"]


def test_start_serves_the_demo_with_the_arguments_it_got(staged: Path, tmp_path: Path) -> None:
    given = ("--port", "0", "--config", "a file")
    quiet = {"AGENT3_NO_BROWSER": "1"}
    assert run(staged / "scripts" / "start", *given, cwd=tmp_path, environ=quiet) == (0, "")
    assert noted(staged) == ["setup run", "agent3 serve --demo --port 0 --config a file"]


def test_start_gets_what_drives_a_browser_where_that_is_missing(staged: Path, tmp_path: Path) -> None:
    meeting = tmp_path / "meeting"
    os.mkfifo(meeting)
    log = staged / "log"
    # The gateway ends when the last step of the helper has begun: it has not waited for any of them.
    note_taker(staged / ".venv" / "bin" / "python", log, f'case "$*" in *ensure*) echo here >"{meeting}";; esac')
    note_taker(staged / ".venv" / "bin" / "agent3", log, f'read line <"{meeting}"')
    code, said = run(staged / "scripts" / "start")
    assert (code, "in the background" in said) == (0, True)
    (install,) = [line for line in noted(staged) if " install " in line]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extra = {Requirement(line).name for line in project["optional-dependencies"]["browser"]}
    assert set(install.split()[-len(extra) :]) == extra
    assert "--constraint" in install
    assert "agent3 serve --demo" in noted(staged)


def test_start_gets_a_browser_beside_serving_and_only_where_one_is_of_use(staged: Path, tmp_path: Path) -> None:
    start = staged / "scripts" / "start"
    Path(staged, ".venv/lib/python3.11/site-packages/playwright").mkdir(parents=True)
    # Each waits for the other through a fifo: served one after the other, they would never end.
    meeting = tmp_path / "meeting"
    os.mkfifo(meeting)
    log = staged / "log"
    note_taker(staged / ".venv" / "bin" / "python", log, f'echo here >"{meeting}"')
    note_taker(staged / ".venv" / "bin" / "agent3", log, f'read line <"{meeting}"')
    assert run(start)[0] == 0
    assert sorted(noted(staged)[1:]) == [
        "agent3 serve --demo",
        "python -m agent3.protocols.nlweb.browser.installation ensure --background",
    ]

    log.unlink()
    note_taker(staged / ".venv" / "bin" / "agent3", log)
    assert run(start, environ={"AGENT3_NO_BROWSER": "1"})[0] == 0
    assert noted(staged) == ["setup run", "agent3 serve --demo"]


def test_test_runs_every_check_and_then_the_tests(staged: Path, tmp_path: Path) -> None:
    code, said = run(staged / "scripts" / "test", cwd=tmp_path)
    assert code == 0
    assert "python -m pytest --collect-only -q" in Path(staged, "log").read_text("utf-8")
    assert [line.split()[0] for line in noted(staged)] == [
        *("setup", "python", "ruff", "ruff", "mypy", "mypy", "mypy", "lint-imports", "python")
    ]
    assert re.findall(r"^== ([a-z ]+)$", said, re.M) == [
        *("browser", "format", "lint", "types", "import contracts", "tests")
    ]
    assert len(re.findall(r"^== [a-z ]+: ok, \d+ s$", said, re.M)) == 5


def test_test_stops_at_the_first_stage_that_fails_with_its_code(staged: Path) -> None:
    note_taker(staged / ".venv" / "bin" / "mypy", staged / "log", "exit 7")
    code, said = run(staged / "scripts" / "test")
    assert code == 7
    assert noted(staged)[-1].startswith("mypy")
    assert said.splitlines()[-1].startswith("== types: FAILED")


def test_test_hands_its_arguments_to_pytest_and_returns_its_code(staged: Path) -> None:
    failing = 'case "$*" in *pytest*) exit 5 ;; esac'
    note_taker(staged / ".venv" / "bin" / "python", staged / "log", failing)
    code, _ = run(staged / "scripts" / "test", "tests/calls", "-k", "deadline or limit")
    assert code == 5
    assert noted(staged)[-1] == "python -m pytest tests/calls -k deadline or limit"
    assert not any(line.startswith("ruff") for line in noted(staged))
