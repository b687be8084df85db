"""The command line's two ways to a gateway: one that runs, over REST, or one of its own, in this process."""

from __future__ import annotations

import http.client
import json
import os
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import SplitResult, quote, urlsplit

from agent3.errors import (
    AccessError,
    Agent3Error,
    NotFound,
    SetupError,
    Unauthenticated,
    Unavailable,
    ValidationError,
    by_code,
)
from agent3.server.announcement import FOLDER, database_of
from agent3.settings import Settings, data_folder

__all__ = ["Gateway", "Local", "Remote", "running"]


class Gateway(Protocol):
    """What the commands need of a gateway. Every method gives plain JSON and raises Agent3Error."""

    where: str

    def search(self, query: str, limit: int) -> dict[str, Any]: ...
    def show(self, agent: str) -> dict[str, Any]: ...
    def card(self, agent: str) -> dict[str, Any]: ...
    def call(self, arguments: Mapping[str, Any]) -> dict[str, Any]: ...


def running(settings: Settings, folder: Path | None = None) -> str | None:
    """The address of the gateway that runs here, if one does.

    Of several, the one on the database of these settings comes before others, and the one started last before older.
    """
    notes = (folder or data_folder()) / FOLDER
    wanted = database_of(settings)
    for note in sorted(notes.glob("*.json"), key=lambda one: (_told(one).get("database") != wanted, _age(one))):
        if (url := _answering(note)) is not None:
            return url
    return None


def _age(note: Path) -> float:
    try:
        return -note.stat().st_mtime
    except OSError:
        return 0.0


def _told(note: Path) -> dict[str, Any]:
    """What a note says; nothing where it cannot be read."""
    try:
        told = json.loads(note.read_text())
    except (OSError, ValueError):
        return {}
    return told if isinstance(told, dict) else {}


def _answering(note: Path) -> str | None:
    """The address in a note, if that gateway still lives; the note of a dead one is removed."""
    told = _told(note)
    try:
        os.kill(int(told["pid"]), 0)
        Remote(str(told["url"]), timeout=1.0).get("/healthz")
    except ProcessLookupError:
        note.unlink(missing_ok=True)
    except (OSError, ValueError, KeyError, TypeError, Agent3Error):
        return None
    else:
        return str(told["url"])
    return None


class Remote:
    """A running gateway. ``AGENT3_KEY`` is sent as its key; proxies of the environment are not used."""

    def __init__(self, url: str, timeout: float = 3_600.0):
        self.where = url.rstrip("/")
        self._parts = _address(url)
        self._timeout = timeout

    def search(self, query: str, limit: int) -> dict[str, Any]:
        """Find agents."""
        return self._post("/v1/search", {"query": query, "limit": limit})

    def show(self, agent: str) -> dict[str, Any]:
        """One agent in detail."""
        return self.get(f"/v1/agents/{quote(agent, safe='')}")

    def card(self, agent: str) -> dict[str, Any]:
        """Its raw card."""
        return self.get(f"/v1/agents/{quote(agent, safe='')}/card")

    def call(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Call an agent."""
        return self._post("/v1/call", arguments)

    def get(self, path: str) -> dict[str, Any]:
        """Read something."""
        return self._request("GET", path, None)

    def _post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        return self._request("POST", path, json.dumps(body).encode())

    def _request(self, method: str, path: str, body: bytes | None) -> dict[str, Any]:
        kind = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(self._parts.hostname or "", self._parts.port, timeout=self._timeout)
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get("AGENT3_KEY"):
            headers["Authorization"] = f"Bearer {key}"
        try:
            connection.request(method, self._parts.path.rstrip("/") + path, body, headers)
            answer = connection.getresponse()
            return _read(answer.status, answer.read(), self.where)
        except (OSError, http.client.HTTPException) as wrong:
            raise Unavailable(
                f"No gateway answers at {self.where} ({wrong}). Start one with agent3 serve, or name another address."
            ) from None
        finally:
            connection.close()


def _address(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return parts
    except ValueError:
        pass  # a port that is none, a bracket that is not closed: told below with the rest
    raise SetupError(f"{url!r} is not the address of a gateway. Give one such as http://127.0.0.1:8333")


def _read(status: int, raw: bytes, where: str) -> dict[str, Any]:
    try:
        body = json.loads(raw)
    except ValueError:
        raise Unavailable(f"{where} answered {status} without JSON: is it an agent3 gateway?") from None
    if not isinstance(body, dict):
        raise Unavailable(f"{where} answered {status} with something else than an object.")
    if isinstance(error := body.get("error"), dict):
        raise _error(error, where)
    return body


def _error(error: Mapping[str, Any], where: str) -> Agent3Error:
    """What the gateway refused. Several may run here, so whoever is refused hears which one it was."""
    kind = by_code(str(error.get("code")))
    message = str(error.get("message"))
    if kind is ValidationError:
        return ValidationError(message, data=error.get("data"))
    if kind is Unauthenticated:
        message = f"{message.partition('. ')[0]}. Set AGENT3_KEY to the key of a client of the gateway at {where}."
    elif issubclass(kind, NotFound | AccessError):
        message += f" Asked was the gateway at {where}."
    wrong = kind.__new__(kind)
    Agent3Error.__init__(wrong, message, data=error.get("data"), retry_after=error.get("retry_after"))
    return wrong


class Local:
    """A gateway of this process's own on the same database. ``alone`` says that one was looked for and none runs."""

    def __init__(self, settings: Settings, demo: bool, *, alone: bool = False):
        self._settings = settings
        self._demo = demo
        self._alone = alone
        self.where = settings.storage.url or "the local database"

    def search(self, query: str, limit: int) -> dict[str, Any]:
        """Find agents."""
        return self._run("agent3_search", {"query": query, "limit": limit})

    def show(self, agent: str) -> dict[str, Any]:
        """One agent in detail."""
        return self._run("agent3_select", {"agentId": agent})

    def card(self, agent: str) -> dict[str, Any]:
        """Its raw card."""
        return self._run("agent3_invoke", {"agentId": agent})

    def call(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Call an agent."""
        return self._run("agent3_call", dict(arguments))

    def _run(self, verb: str, arguments: dict[str, Any]) -> dict[str, Any]:
        try:
            return _run(self._verb(verb, arguments))
        except NotFound as wrong:
            if self._alone:
                wrong.message += " No gateway runs here: start one with agent3 serve, or add --demo."
            raise

    async def _verb(self, verb: str, arguments: dict[str, Any]) -> dict[str, Any]:
        # The whole gateway is loaded only by the command that needs it: agent3 --help stays light.
        from agent3.gateway import Caller, Verbs, response
        from agent3.model import LOCAL, Done, Failed, value_of
        from agent3.server.build import build
        from agent3.server.demo import agents

        async with build(self._settings, agents() if self._demo else (), take_over=False) as server:
            verbs = Verbs(server.gateway)
            started = server.env.monotonic()
            outcome = await verbs.run(verb, arguments, Caller(LOCAL, "cli"))
            seconds = server.env.monotonic() - started
        if isinstance(outcome, Done) or (isinstance(outcome, Failed) and outcome.parts):
            body = value_of(outcome.parts)
        else:
            body = response(outcome, seconds)
        assert isinstance(body, dict)
        return body


def _run(work: Coroutine[Any, Any, dict[str, Any]]) -> dict[str, Any]:
    import asyncio

    return asyncio.run(work)
