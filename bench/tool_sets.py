"""Public sets of questions and the tools that answer them, read from a folder that is no part of this project.

Each set is tools (as agents with one capability each) and questions with the numbers of the right tools. The folder
holds one checkout per repository; ``SOURCES`` names them. A set whose files are not there is left out and named.
"""

from __future__ import annotations

import ast
import csv
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent3.model import Agent, Capability

__all__ = ["HELD_OUT", "SOURCES", "ToolSet", "load_sets", "read_exam"]

SOURCES = {
    "Seal-Tools": "fairyshine/Seal-Tools",
    "MetaTool": "HowieHwong/MetaTool",
    "ACEBench": "ACEBench/ACEBench",
    "StableToolBench": "THUNLP-MT/StableToolBench",
    "ToolRL": "qiancheng0/ToolRL",
    "azure-mcp": "Azure/azure-mcp",
    "UltraTool": "JoeYing1019/UltraTool",
    "COLT": "quchangle1/COLT",
}
HELD_OUT = ("ACEBench", "azure-mcp", "UltraTool", "ToolLens")
"""Not for tuning: no weight may be chosen by these. UltraTool alone was never looked at."""
_MOST = 1_500
"""Questions of one set: more only take longer."""


@dataclass(frozen=True, slots=True)
class ToolSet:
    """Tools, and questions with the places of the tools that are right."""

    name: str
    tools: list[Agent]
    questions: list[tuple[str, frozenset[int]]]


class _Maker:
    """Collects tools by name and questions by the names of their tools."""

    def __init__(self, name: str):
        self._name = name
        self._tools: dict[str, Agent] = {}
        self._questions: list[tuple[str, list[str]]] = []

    def tool(self, key: str, name: str, description: str, parameters: Any = None, agent: str = "") -> None:
        if key not in self._tools:
            schema = parameters if isinstance(parameters, dict) else {}
            if schema and "properties" not in schema:
                schema = {"type": "object", "properties": schema}
            capability = Capability(name=name, description=description, input_schema=schema)
            self._tools[key] = Agent(id=f"{len(self._tools)}", name=agent, capabilities=(capability,))

    def ask(self, question: str, *keys: str) -> None:
        self._questions.append((question, list(keys)))

    def make(self) -> ToolSet:
        places = {key: place for place, key in enumerate(self._tools)}
        asked = [
            (question, frozenset(places[key] for key in keys))
            for question, keys in self._questions
            if keys and all(key in places for key in keys)
        ]
        step = max(1, len(asked) // _MOST)
        return ToolSet(self._name, list(self._tools.values()), asked[::step][:_MOST])


def _lines(path: Path) -> Iterator[Any]:
    for line in path.read_text("utf-8").splitlines():
        if line.strip():
            yield json.loads(line)


def _seal(folder: Path) -> ToolSet:
    made, home = _Maker("Seal-Tools"), folder / "Seal-Tools" / "Seal-Tools_Dataset"
    for one in _lines(home / "tool.jsonl"):
        made.tool(one["api_name"], one["api_name"], one["api_description"], one["parameters"], one.get("field", ""))
    for name in ("test_in_domain", "test_out_domain"):
        for one in _lines(home / f"{name}.jsonl"):
            made.ask(one["query"], *dict.fromkeys(call["api"] for call in one["calling"]))
    return made.make()


def _meta(folder: Path) -> ToolSet:
    made, home = _Maker("MetaTool"), folder / "MetaTool" / "dataset"
    described = json.loads((home / "plugin_des.json").read_text("utf-8"))
    for name, text in described.items():
        made.tool(name, name, text)
    with (home / "data" / "all_clean_data.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            made.ask(row["Query"], row["Tool"])
    return made.make()


def _ace(folder: Path) -> ToolSet:
    made, home = _Maker("ACEBench"), folder / "ACEBench" / "data_all" / "data_en"
    for path in sorted(home.glob("data_normal_*.json")):
        right = {one["id"]: one["ground_truth"] for one in _lines(home / "possible_answer" / path.name)}
        for one in _lines(path):
            for tool in one["function"]:
                schema = tool.get("parameters") or tool.get("arguments")
                made.tool(tool["name"], tool["name"], tool["description"], schema)
            truth = right.get(one["id"])
            truth = truth[0] if isinstance(truth, list) and truth else truth
            said = " ".join(re.findall(r"user: (.*?)(?=\n(?:system|user):|\Z)", one["question"], re.DOTALL))
            if isinstance(truth, dict):
                made.ask(said, *dict.fromkeys(re.sub(r"_\d+$", "", name) for name in truth))
    return made.make()


def _stable(folder: Path) -> ToolSet:
    made, home = _Maker("StableToolBench"), folder / "StableToolBench" / "solvable_queries" / "test_instruction"
    for path in sorted(home.glob("*.json")):
        for one in json.loads(path.read_text("utf-8")):
            for tool in one["api_list"]:
                given = [*tool["required_parameters"], *tool["optional_parameters"]]
                schema = {each["name"]: {"description": each.get("description") or ""} for each in given}
                key = f"{tool['tool_name']}/{tool['api_name']}"
                made.tool(key, tool["api_name"], tool["api_description"] or "", schema, tool["tool_name"])
            made.ask(one["query"], *(f"{tool}/{api}" for tool, api in one["relevant APIs"]))
    return made.make()


_LISTED = re.compile(r"\d+\. Name: (.*?)\nDescription: (.*?)\nParameters: (\{.*?\})(?=\n\d+\. Name:|\n\n)", re.DOTALL)


def _toolrl(folder: Path) -> ToolSet:
    made = _Maker("ToolRL")
    for one in json.loads((folder / "ToolRL/dataset/rlla_4k_raw/rlla_sft.json").read_text("utf-8")):
        for name, description, raw in _LISTED.findall(one["instruction"]):
            try:
                parameters = json.loads(raw)
            except ValueError:
                parameters = {}
            made.tool(name, name, description, parameters)
        said = re.search(r"<user>(.*?)</user>", one["input"], re.DOTALL)
        called = re.findall(r'^\{"name": "([^"]+)"', one["output"], re.MULTILINE)
        if said and called and one["input"].count("<user>") == 1:
            made.ask(said[1].strip(), *dict.fromkeys(called))
    for one in json.loads((folder / "ToolRL/benchmarks/API-Bank/level-1-api_processed.json").read_text("utf-8")):
        for name, description, raw in _LISTED.findall(one["system"]):
            made.tool(name, name, description, ast.literal_eval(raw) if raw.startswith("{'") else {})
    return made.make()


def _azure(folder: Path) -> ToolSet:
    made, home = _Maker("azure-mcp"), folder / "azure-mcp" / "eng" / "tools" / "ToolDescriptionEvaluator"
    for tool in json.loads((home / "tools.json").read_text("utf-8"))["results"]:
        schema = {option["name"]: {"description": option["description"]} for option in tool.get("option") or ()}
        name = tool["command"].replace(" ", "_").replace("-", "_")
        made.tool(name, name.removeprefix("azmcp_"), tool["description"], schema)
    for name, prompts in json.loads((home / "prompts.json").read_text("utf-8")).items():
        for prompt in prompts:
            made.ask(prompt, name.replace("-", "_"))
    return made.make()


def _ultra(folder: Path) -> ToolSet:
    made = _Maker("UltraTool")
    for one in _lines(folder / "UltraTool" / "data" / "English-dataset" / "test.json"):
        for tool in one["tools"]:
            made.tool(tool["name"], tool["name"], tool["description"], tool.get("arguments"))
        made.ask(one["question"], *dict.fromkeys(tool["name"] for tool in one["tools"]))
    return made.make()


def _tool_lens(folder: Path) -> ToolSet:
    made, home = _Maker("ToolLens"), folder / "COLT" / "datasets" / "ToolLens"
    shape = re.compile(
        r"tool_name:(.*?), api_name:(.*?), api_description:(.*?), required_params: (.*?), return_schema", re.DOTALL
    )
    for one in _lines(home / "corpus.jsonl"):
        if found := shape.search(one["text"]):
            names = re.findall(r'"name": "([^"]+)"', found[4])
            made.tool(one["_id"], found[2], found[3], {name: {} for name in names}, found[1])
    asked = {one["_id"]: one["text"] for one in _lines(home / "queries.jsonl")}
    right: dict[str, list[str]] = {}
    with (home / "qrels" / "test.tsv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file, delimiter="\t"):
            right.setdefault(row["query-id"], []).append(row["corpus-id"])
    for query, keys in right.items():
        made.ask(asked[query], *keys)
    return made.make()


_READERS: dict[str, Callable[[Path], ToolSet]] = {
    "Seal-Tools": _seal,
    "MetaTool": _meta,
    "StableToolBench": _stable,
    "ToolRL": _toolrl,
    "ACEBench": _ace,
    "azure-mcp": _azure,
    "UltraTool": _ultra,
    "ToolLens": _tool_lens,
}


def load_sets(folder: Path, wanted: tuple[str, ...] = ()) -> tuple[list[ToolSet], list[str]]:
    """The sets that are in the folder, and the names of those that are not, or that are written otherwise by now."""
    found, missing = [], []
    for name, read in _READERS.items():
        if not wanted or name in wanted:
            try:
                one = read(folder)
            except (FileNotFoundError, KeyError, ValueError):
                missing.append(name)
                continue
            if one.tools and one.questions:
                found.append(one)
            else:
                missing.append(name)
    return found, missing


def read_exam(path: Path) -> ToolSet:
    """A file with ``tools`` (agent, name, description, inputSchema) and ``requests`` (request, tools)."""
    raw = json.loads(path.read_text("utf-8"))
    made = _Maker(path.stem)
    for tool in raw["tools"]:
        made.tool(tool["id"], tool["name"], tool["description"], tool["inputSchema"], tool["agent"])
    for one in raw["requests"]:
        made.ask(one["request"], *one["tools"])
    return made.make()
