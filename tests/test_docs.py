"""The documents: complete against the code, true where they show something, and the examples run."""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from starlette.routing import Route

import agent3
from agent3 import errors, settings
from agent3.calls.order import ORDER
from agent3.cli.main import app as cli
from agent3.gateway.tool_texts import TOOLS
from agent3.identity.doorkeeper import Doorkeeper
from agent3.observe.metrics import Metrics
from agent3.server.app import app
from agent3.server.build import build
from agent3.server.openapi import document
from tests.support.forks import run_forked
from tests.support.gateway import gateway

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
PAGE_IDS = [str(page.relative_to(ROOT)) for page in PAGES]
every_page = pytest.mark.parametrize("page", PAGES, ids=PAGE_IDS)

NOT_YET: set[str] = set()
"""Commands that the table of the README names as still to come."""
FENCE = re.compile(r"^```([^\n`]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SECONDS = 90


@dataclass(frozen=True)
class Block:
    """A fenced block: the words after the fence, the text, and what the next block says that it prints."""

    words: tuple[str, ...]
    text: str
    output: str | None = None

    @property
    def file(self) -> str | None:
        return next((word.removeprefix("file=") for word in self.words if word.startswith("file=")), None)


def blocks(page: Path) -> list[Block]:
    found = [Block(tuple(words.split()), text) for words, text in FENCE.findall(page.read_text("utf-8"))]
    following = [*found[1:], Block((), "")] if found else []
    return [
        Block(one.words, one.text, after.text if after.words == ("text", "output") else None)
        for one, after in zip(found, following, strict=True)
    ]


def reference(name: str) -> str:
    return (DOCS / "reference" / name).read_text("utf-8")


def in_first_column(page: str) -> set[str]:
    """What stands as code in the first cell of the rows of a page."""
    return {name for row in re.findall(r"^\| (`[^|]*) \|", page, re.MULTILINE) for name in re.findall("`([^`]+)`", row)}


def sections(page: str, level: str) -> dict[str, str]:
    """The text below each heading of a level."""
    pieces = re.split(rf"^{level} (.+)$", page, flags=re.MULTILINE)
    return dict(zip(pieces[1::2], pieces[2::2], strict=True))


# The reference is complete, both ways


def test_generated_pages_are_what_the_source_says() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "docs", "--check"],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_every_setting_is_in_the_reference_and_no_other() -> None:
    tables = {name.strip("[]"): text for name, text in sections(reference("settings.md"), "##").items() if "[" in name}
    hints = get_type_hints(settings.Settings)
    assert set(tables) == set(hints)
    for name, hint in hints.items():
        kind = hint.__args__[0] if getattr(hint, "__args__", None) else hint
        assert in_first_column(tables[name]) == set(get_type_hints(kind)), name


def test_every_environment_variable_is_documented_and_every_documented_one_exists() -> None:
    known = {
        f"AGENT3_{table}_{field}".upper()
        for table, kind in get_type_hints(settings.Settings).items()
        if not getattr(kind, "__args__", None)
        for field in get_type_hints(kind)
    }
    files = [*(ROOT / "src").rglob("*.py"), *(ROOT / "scripts").iterdir()]
    read = {name for file in files if file.is_file() for name in variables(file.read_text("utf-8"))}
    told = variables(reference("settings.md"))
    assert read - told == set()
    assert {name for page in PAGES for name in variables(page.read_text("utf-8"))} - known - read == set()


def variables(text: str) -> set[str]:
    return set(re.findall(r"(?<![A-Z_])AGENT3_[A-Z]+(?:_[A-Z]+)*(?![A-Z_<])", text))


def commands(app: Any = cli, before: str = "") -> dict[str, Any]:
    """Every command that does something, by all of its words."""
    found: dict[str, Any] = {}
    for name in app:
        if not name.startswith("-"):
            group = app[name].default_command is None
            found |= commands(app[name], f"{before}{name} ") if group else {f"{before}{name}": app[name]}
    return found


def options(command: Any) -> set[str]:
    arguments = command.assemble_argument_collection(default_parameter=cli.default_parameter)
    return {name for one in arguments if one.show for name in one.names}


def test_every_command_and_option_is_in_the_reference_and_no_other() -> None:
    told = {name.removeprefix("agent3 "): text for name, text in sections(reference("cli.md"), "##").items()}
    told = {name: text for name, text in told.items() if name not in ("Exit codes", "Without a command")}
    assert set(told) == set(commands())
    for name, command in commands().items():
        written = {word for word in in_first_column(told[name]) if word.startswith("--")}
        assert written == options(command), name


def test_every_exit_code_of_the_help_is_in_the_reference() -> None:
    said = set(re.findall(r"(\d) [a-z]", str(cli.help_epilogue)))
    assert said <= set(re.findall(r"^\| (\d+) \|", reference("cli.md"), re.MULTILINE))
    assert said


def test_every_tool_and_parameter_is_in_the_reference_and_no_other() -> None:
    told = {name: text for name, text in sections(reference("tools.md"), "##").items() if name.startswith("agent3_")}
    assert list(told) == [tool.name for tool in TOOLS]
    for tool in TOOLS:
        assert in_first_column(told[tool.name]) == set(names(tool.input_schema)), tool.name


def names(schema: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, one in schema["properties"].items():
        yield prefix + name
        if "properties" in one:
            yield from names(one, f"{prefix}{name}.")


def test_every_error_is_in_the_reference_and_no_other() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \| (\d+) \| (-\d+) \| (yes|) \|", reference("errors.md"), re.MULTILINE)
    there = [
        (one.code, one.__name__, str(one.http_status), str(one.rpc_code), "yes" if one.retryable else "")
        for one in errors.family()
        if one.__module__ == errors.__name__  # a room may have a private one of its own; its code is its parent's
    ]
    assert rows == there


def test_every_metric_is_in_the_reference_and_no_other() -> None:
    metrics = Metrics()
    scraped = {
        f"{family.name}_total" if family.type == "counter" else family.name
        for family in metrics.registry.collect()
        if not family.name.startswith("process_")
    }
    told = {name for name in in_first_column(reference("metrics.md")) if re.match("(agent3|mcp|a2a|nlweb)_", name)}
    assert told == scraped


def test_every_route_is_in_the_reference_and_no_other() -> None:
    async def served() -> set[tuple[str, str]]:
        tokens = settings.OAuth(issuers=("https://login.example.com",), resource="https://gateway.example.com")
        async with build(settings.Settings(storage=settings.Storage(url=":memory:"), oauth=tokens)) as server:
            routes = app(server)._inner.routes  # type: ignore[attr-defined]
            return {
                (method, one.path)
                for one in routes
                if isinstance(one, Route)
                for method in set(one.methods or ()) - {"HEAD"}
            }

    headings = [one.rpartition(" ") for one in sections(reference("rest.md"), "###")]
    told = {(method, path) for methods, _, path in headings for method in methods.split(", ")}
    there = asyncio.run(served())
    assert told == there
    described = {(method.upper(), path) for path, one in document()["paths"].items() for method in one}
    assert described == {(method, path) for method, path in there if path.startswith("/v1/")}


def test_every_documented_name_of_the_package_is_in_the_reference() -> None:
    told = set(re.findall(r"`(\w+)`", reference("library.md")))
    assert set(agent3.__all__) - {"__version__"} - told == set()


def test_the_options_of_a_capability_are_in_the_reference_and_no_other() -> None:
    signature = inspect.signature(agent3.LocalAgent.add).parameters
    own = {name for name, one in signature.items() if one.kind is one.KEYWORD_ONLY}
    passed_on = {"timeout", "cache_ttl", "price", "tags", "examples", "phrases"}
    told = in_first_column(sections(reference("authoring.md"), "##")["LocalAgent"])
    assert told == own | passed_on


# The architecture is the one that is built


def test_the_order_of_the_steps_is_the_order() -> None:
    page = (DOCS / "architecture.md").read_text("utf-8")
    told = re.findall(r"^\| `(\w+)` \|", sections(page, "##")["The order of the steps"], re.MULTILINE)
    assert told == [step.name for step in ORDER]


def test_the_promises_are_the_ones_that_are_kept() -> None:
    def said(text: str) -> list[str]:
        return [re.sub(r"[^a-z ]", "", one.lower()) for one in re.findall(r"^ ?\d+\. (.+)$", text, re.MULTILINE)]

    page = (DOCS / "architecture.md").read_text("utf-8")
    assert said(sections(page, "##")["The order of the steps"]) == said(sys.modules["agent3.calls.order"].__doc__ or "")
    assert len(said(page)) == 15


def test_the_rooms_are_the_ones_that_exist() -> None:
    page = (DOCS / "architecture.md").read_text("utf-8")
    told = in_first_column(sections(page, "##")["Rooms"])
    here = [one for one in (ROOT / "src" / "agent3").iterdir() if not one.name.startswith(("_", "py.typed"))]
    assert told == {f"{one.name}/" if one.is_dir() else one.name for one in here}


def test_the_direction_of_imports_is_the_one_that_is_checked() -> None:
    page = (DOCS / "architecture.md").read_text("utf-8")
    (drawn,) = FENCE.findall(sections(page, "##")["Imports point down"])
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"]
    layers = [line.replace("agent3.", "") for line in contracts[0]["layers"]]
    without_absent = [re.sub(r" \| \(llm\)|[()]", "", line) for line in layers]
    assert drawn[1].splitlines() == without_absent


def test_every_dependency_has_its_reason() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    reasons = (DOCS / "decisions" / "0012-dependencies.md").read_text("utf-8")
    wanted = [*project["dependencies"], *(one for many in project["optional-dependencies"].values() for one in many)]
    packages = {re.split(r"[^\w-]", one, maxsplit=1)[0] for one in wanted} - {"agent3"}
    spoken_of = reasons.replace("its OTLP exporter", "opentelemetry-exporter-otlp-proto-http")
    assert {name for name in packages if not re.search(rf"(?<![\w-]){name}(?![\w-])", spoken_of)} == set()


def test_every_decision_has_the_four_parts() -> None:
    for page in sorted((DOCS / "decisions").glob("*.md")):
        heads = list(sections(page.read_text("utf-8"), "##"))
        assert heads == [
            "Context",
            "Choice",
            "What we gave up",
            "How we would notice that it was wrong",
        ], page.name


# The pages hold together


def anchors(page: Path) -> set[str]:
    heads = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text("utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@every_page
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", page.read_text("utf-8")))
    for link in links:
        if link.startswith(("https://", "http://")):
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_the_index_knows_every_page() -> None:
    index = (DOCS / "README.md").read_text("utf-8")
    missing = [page for page in PAGES[1:] if f"({page.relative_to(DOCS)})" not in index and page.name != "README.md"]
    assert missing == []


@every_page
def test_no_page_speaks_of_the_machine_it_was_written_on(page: Path) -> None:
    text = page.read_text("utf-8")
    found = re.findall(r"(?<![\w.])/(?:work|root|home|tmp)\b\S*|pypi\.org\S*|\bPIP_INDEX\w*|\.\./shared\S*", text)
    assert found == []


@every_page
def test_lines_have_no_stray_spaces_at_their_end(page: Path) -> None:
    assert [line for line in page.read_text("utf-8").splitlines() if line != line.rstrip()] == []


# What is shown is right


def spoken(page: Path) -> Iterator[str]:
    """Every line of shell, and all code inside the text."""
    for block in blocks(page):
        if block.words[:1] == ("sh",):
            yield from block.text.splitlines()
    yield from re.findall(r"`([^`\n]+)`", FENCE.sub("", page.read_text("utf-8")))


def named(said: str, known: Mapping[str, Any]) -> str | None:
    """The command that some words begin with: one, a group of them, or one that is announced."""
    words = said.split()
    groups = {name.rsplit(" ", 1)[0] for name in known if " " in name}
    begun = [" ".join(words[:count]) for count in range(len(words), 0, -1)]
    return next((one for one in begun if one in known or one in groups or one in NOT_YET), None)


@every_page
def test_commands_that_are_shown_exist(page: Path) -> None:
    known = commands()
    for line in spoken(page):
        for said, rest in re.findall(r"(?:^|[ /(])agent3 ((?:[a-z]+ ){0,2}[a-z]+)(?=[ \n]|$)([^|)\n]*)", line):
            name = named(said, known)
            assert name is not None, line
            given = set(re.findall(r"(?<=\s)(--[a-z-]+)", rest)) if name in known else set()
            assert given <= options(known[name]) | {"--help"} if given else True, line


def test_what_does_not_exist_yet_does_not() -> None:
    assert set(commands()) & NOT_YET == set()


@every_page
def test_scripts_that_are_shown_exist(page: Path) -> None:
    for line in spoken(page):
        for name in re.findall(r"(?:\./)?scripts/(\w+)", line):
            assert (ROOT / "scripts" / name).is_file(), line


@every_page
def test_settings_and_configurations_that_are_shown_can_be_read(page: Path, tmp_path: Path) -> None:
    for block in blocks(page):
        if block.words == ("json",):
            json.loads(block.text)
        if block.words == ("toml",):
            (tmp_path / "agent3.toml").write_text(block.text, "utf-8")
            read = settings.load(tmp_path / "agent3.toml", {})
            Doorkeeper(read, Metrics(), {one.key.removeprefix("env:"): "0123456789abcdef" for one in read.clients})


@every_page
def test_python_that_is_shown_parses(page: Path) -> None:
    for block in blocks(page):
        if block.words[:1] == ("python",):
            ast.parse(block.text)


# The examples run


def surroundings(folder: Path) -> dict[str, str]:
    """A home of their own, so that nothing of the person who runs the tests is read or written."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AGENT3_", "OTEL_", "XDG_"))}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    return {**kept, "PATH": path, "HOME": str(folder), "AGENT3_DATA": str(folder / "data"), "COLUMNS": "120"}


def matches(said: str, shown: str) -> bool:
    """Whether it is what the page shows, where … stands for anything."""
    plain = "\n".join(line.rstrip() for line in said.strip().splitlines())
    pattern = ".*".join(map(re.escape, shown.strip().split("…")))
    return re.fullmatch(pattern, plain, re.DOTALL) is not None


def with_examples(kind: str, mark: str) -> list[Path]:
    return [page for page in PAGES if any(one.words[:1] == (kind,) and mark in one.words for one in blocks(page))]


def write_files(page: Path, folder: Path) -> None:
    for block in blocks(page):
        if block.file is not None:
            (folder / block.file).write_text(block.text, "utf-8")


@pytest.mark.parametrize("page", with_examples("python", "run"), ids=lambda page: page.name)
def test_python_examples_run_and_print_what_is_shown(page: Path, tmp_path: Path) -> None:
    write_files(page, tmp_path)
    for number, block in enumerate(blocks(page)):
        if block.words[:1] != ("python",) or "run" not in block.words:
            continue
        file = tmp_path / (block.file or f"example_{number}.py")
        file.write_text(block.text, "utf-8")
        done = run_forked([file.name], env=surroundings(tmp_path), cwd=tmp_path, stdin="", timeout=SECONDS)
        assert done.returncode == 0, done.stderr
        assert block.output is None or matches(done.stdout, block.output), done.stdout


@pytest.mark.parametrize("page", with_examples("sh", "gateway"), ids=lambda page: page.name)
def test_shell_examples_run_and_print_what_is_shown(page: Path, tmp_path: Path) -> None:
    if shutil.which("curl") is None or shutil.which("bash") is None:
        pytest.skip("the examples use bash and curl")
    write_files(page, tmp_path)
    agents = re.findall(r"<!-- serve: (\S+) -->", page.read_text("utf-8"))
    with gateway(tmp_path / "data", *agents, "--demo", cwd=tmp_path, HOME=str(tmp_path)) as running:
        for block in blocks(page):
            if block.words == ("sh", "gateway"):
                done = subprocess.run(
                    ["bash", "-c", block.text.replace("http://127.0.0.1:8333", running.url)],
                    cwd=tmp_path,
                    env=surroundings(tmp_path),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    timeout=SECONDS,
                    check=False,
                )
                assert block.output is not None, block.text
                assert matches(done.stdout, block.output), done.stdout


def test_an_output_that_differs_is_noticed() -> None:
    assert matches('{"id":"P-17","n":1}\n', '{"id":"P-…","n":1}')
    assert not matches('{"id":"P-17","n":2}\n', '{"id":"P-…","n":1}')
    assert not matches("one\ntwo\n", "one")
