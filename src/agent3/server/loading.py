"""Agents by name: ``travel:app`` or ``path/to/travel.py:app`` as the objects that a gateway serves."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from agent3.errors import SetupError
from agent3.protocols.a2a import build_agent, can_be_agent
from agent3.protocols.functions import LocalAgent

__all__ = ["check_ids", "find_file", "load_agents"]

_KINDS = "an App, a LocalAgent, an AgentExecutor, a function, or a class with methods"


def load_agents(reference: str) -> list[LocalAgent]:
    """What a reference names: MODULE:NAME or FILE.py:NAME. Without a name, the only agent that is there.

    The current folder, or that of the file, is searched first. NAME is an agent or a list of them. SetupError, in one
    sentence, for what is not there or cannot be loaded.
    """
    place, colon, name = reference.rpartition(":") if ":" in reference else (reference, "", "")
    if not place or (colon and not name):
        raise SetupError(f"{reference!r} must be MODULE:NAME or FILE.py:NAME, such as travel.py:app.")
    loaded = _load_file(reference, Path(place)) if _is_file(place) else _load_module(reference, place)
    if not name:
        return [build_agent(_find_only(reference, loaded))]
    value = getattr(loaded, name, None)
    named: list[Any] = list(value) if isinstance(value, list | tuple) else [value]
    if not named or not all(can_be_agent(item) for item in named):
        what = f"is a {type(value).__name__}" if hasattr(loaded, name) else "does not exist"
        raise SetupError(
            f"{reference}: {name!r} in {place!r} {what}. It must be an agent, or a list of them: {_KINDS}."
        )
    agents = [build_agent(item) for item in named]
    for agent in agents:
        if isinstance(value, LocalAgent | list | tuple) and not agent.functions:
            raise SetupError(f"{reference}: {agent.id!r} has no capability. Put @{name}.capability above a function.")
    return agents


def check_ids(agents: Sequence[LocalAgent]) -> None:
    """SetupError where two agents bear one id."""
    ids = Counter(agent.id for agent in agents)
    if duplicates := [name for name, count in ids.items() if count > 1]:
        raise SetupError(
            f"Two agents have the id {duplicates[0]!r}. Give one of them another agent_id, or leave out --demo."
        )


def find_file(reference: str) -> Path:
    """The file that a reference loads from, for watching it; nothing is loaded. SetupError where there is none."""
    place = reference.rpartition(":")[0] or reference
    if _is_file(place):
        return _check_file(reference, Path(place))
    _search_here(Path.cwd())
    try:
        found = importlib.util.find_spec(place)
    except (ImportError, ValueError):
        found = None
    if found is None or found.origin is None:
        raise _no_module(reference, place)
    return Path(found.origin)


def _is_file(place: str) -> bool:
    return place.endswith(".py") or "/" in place


def _check_file(reference: str, file: Path) -> Path:
    if not file.is_file():
        raise SetupError(f"{reference}: the file {str(file)!r} does not exist.")
    return file.resolve()


def _search_here(folder: Path) -> None:
    if sys.path[:1] != [str(folder)]:
        sys.path.insert(0, str(folder))


def _load_module(reference: str, module: str) -> ModuleType:
    _search_here(Path.cwd())
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name in (module, module.partition(".")[0]):
            raise _no_module(reference, module) from error
        raise _load_error(reference, error) from error
    except Exception as error:
        raise _load_error(reference, error) from error


def _load_file(reference: str, path: Path) -> ModuleType:
    file = _check_file(reference, path)
    _search_here(file.parent)  # for what the file imports from beside it
    # Under its own name, so that a module beside it that imports it gets the same one; never in place of another.
    name = file.stem if file.stem not in sys.modules else f"agent3_served_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise SetupError(f"{reference}: {str(path)!r} is not a Python file.")
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[name] = loaded  # types in its annotations are looked up there
    try:
        spec.loader.exec_module(loaded)
    except Exception as error:
        del sys.modules[name]
        raise _load_error(reference, error) from error
    return loaded


def _find_only(reference: str, loaded: ModuleType) -> Any:
    """The one agent of a module that nobody named."""
    found = {name: value for name, value in vars(loaded).items() if isinstance(value, LocalAgent)}
    if len({id(value) for value in found.values()}) == 1:
        return next(iter(found.values()))
    if not found:
        raise SetupError(
            f'{reference}: it contains no App. Write app = agent3.App("travel"), or name what to serve as '
            f"{reference}:NAME, which may be {_KINDS}."
        )
    raise SetupError(f"{reference}: it contains several: {', '.join(sorted(found))}. Name one, as {reference}:NAME.")


def _no_module(reference: str, module: str) -> SetupError:
    return SetupError(f"{reference}: the module {module!r} was not found. Run this in the folder of the module.")


def _load_error(reference: str, error: Exception) -> SetupError:
    """With the line of the author's module at which loading failed."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    own = [frame for frame in frames if frame.filename != __file__ and "/agent3/" not in frame.filename]
    place = f" at {own[-1].filename}:{own[-1].lineno}" if own else ""
    if isinstance(error, SetupError):
        return SetupError(f"{reference}: {error.message}{place}")
    return SetupError(f"{reference} could not be loaded: {type(error).__name__}: {error}{place}")
