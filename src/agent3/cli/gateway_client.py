"""How commands reach a gateway: a running one over REST (``Remote``), or one inside this process (``Local``)."""

from __future__ import annotations

import http.client
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote, urlsplit

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

__all__ = ["Gateway", "Local", "Remote", "find_running"]


class Gateway(Protocol):
    """What the commands need of a gateway. Every method gives plain JSON and raises Agent3Error."""

    where: str

    def search(self, query: str, limit: int) -> dict[str, Any]: ...
    def show(self, agent: str) -> dict[str, Any]: ...
    def card(self, agent: str) -> dict[str, Any]: ...
    def call(self, arguments: Mapping[str, Any]) -> dict[str, Any]: ...


def find_running(settings: Settings, folder: Path | None = None) -> str | None:
    """The address of a gateway that runs on this machine.

    Of several, one on the database of these settings comes first, then the one that was started last. The note of a
    gateway whose process is gone is removed.
    """
    wanted = database_of(settings)
    candidates = []
    for file in ((folder or data_folder()) / FOLDER).glob("*.json"):
        try:
            note, written = json.loads(file.read_text()), file.stat().st_mtime
        except (OSError, ValueError):  # being written, or removed by its gateway
            continue
        if isinstance(note, dict):
            candidates.append((note.get("database") != wanted, -written, file, note))
    for *_, file, note in sorted(candidates, key=lambda candidate: candidate[:2]):
        try:
            os.kill(int(note["pid"]), 0)
            Remote(str(note["url"]), timeout=1.0).get("/healthz")
        except ProcessLookupError:
            file.unlink(missing_ok=True)
        except (OSError, ValueError, KeyError, TypeError, Agent3Error):
            continue
        else:
            return str(note["url"])
    return None


class Remote:
    """A running gateway. ``AGENT3_KEY`` is sent as its key; proxies of the environment are not used."""

    def __init__(self, url: str, timeout: float = 3_600.0):
        try:
            self._parts = urlsplit(url)
            valid = self._parts.scheme in ("http", "https") and self._parts.hostname and self._parts.port != 0
        except ValueError:  # of urlsplit for an open bracket, of .port for one that is not a number
            valid = False
        if not valid:
            raise SetupError(f"{url!r} is not the address of a gateway. Give one such as http://127.0.0.1:8333")
        self.where = url.rstrip("/")
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
            response = connection.getresponse()
            status, raw = response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            raise Unavailable(
                f"No gateway answers at {self.where} ({error}). Start one with agent3 serve, or name another address."
            ) from None
        finally:
            connection.close()
        try:
            answer = json.loads(raw)
        except ValueError:
            raise Unavailable(f"{self.where} answered {status} without JSON: is it an agent3 gateway?") from None
        if not isinstance(answer, dict):
            raise Unavailable(f"{self.where} answered {status} with JSON that is not an object.")
        if isinstance(refusal := answer.get("error"), dict):
            raise _decode_error(refusal, self.where)
        return answer


def _decode_error(error: Mapping[str, Any], where: str) -> Agent3Error:
    """The error that a gateway answered with. Several may run here, so a refusal names the gateway."""
    kind = by_code(str(error.get("code")))
    message = str(error.get("message"))
    if kind is ValidationError:
        return ValidationError(message, data=error.get("data"))
    if kind is Unauthenticated:
        message = f"{message.partition('. ')[0]}. Set AGENT3_KEY to the key of a client of the gateway at {where}."
    elif issubclass(kind, NotFound | AccessError):
        message += f" The gateway is {where}."
    # Its constructor may take other arguments; the message is there already.
    decoded = kind.__new__(kind)
    Agent3Error.__init__(decoded, message, data=error.get("data"), retry_after=error.get("retry_after"))
    return decoded


class Local:
    """A gateway in this process, on the database of the settings. ``alone``: no running one was found."""

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
        # Loaded here: a command that speaks to a running gateway does not need all of this, and starts faster.
        import asyncio

        from agent3.gateway import Caller, Verbs, response
        from agent3.model import LOCAL, Done, Failed, value_of
        from agent3.server.build import build
        from agent3.server.demo import agents

        async def run() -> dict[str, Any]:
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

        try:
            return asyncio.run(run())
        except NotFound as error:
            if self._alone:
                error.message += " No gateway runs here: start one with agent3 serve, or add --demo."
            raise
