"""``App``: write an agent once, and serve it by every protocol at once.

An ``App`` is a ``LocalAgent`` that can serve itself and insists on types. Whatever takes a ``LocalAgent`` takes an
``App``; a ``LocalAgent`` is for functions that are not typed, or that another program hosts.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agent3.errors import SetupError
from agent3.model import Capability, Done, Failed, Needs, Part, Working
from agent3.protocols.functions import LocalAgent
from agent3.schema import from_function
from agent3.server.run import InBackground, serve_forever
from agent3.settings import Server, Settings, Storage, load

__all__ = ["App"]

_CONTENT = (Part, Done, Failed, Needs, Working)


class App(LocalAgent):
    """An agent of typed functions, and the gateway that serves it.

        app = App("travel", description="Knows prices of flights")

        @app.capability(read_only=True, price=0.001)
        def price(city: str, bags: int = 0) -> float:
            "The price of a flight to a city, in euros."
            return 20.0 * len(city) + 30.0 * bags

        app.serve()

    Each function is then a tool of an MCP server, a skill of an A2A agent in every generation, and can be asked at
    ``/ask``, over REST and from the command line. ``agent3 serve travel.py:app --reload`` does the same and restarts it
    whenever the file changes.
    """

    def add(self, fn: Callable[..., Any], **options: Any) -> Capability:
        """Offer a function, as a ``LocalAgent`` does; SetupError for one whose parameters have no types.

        What it returns is held to the type that it declares, which is also its output schema where that is an object.
        """
        signature = from_function(fn)
        _check_types(self.id, fn, signature.context)
        # A schema that only refers to one of its definitions, with that in its place: MCP wants the type at the top.
        schema = signature.output or {}
        named = schema.get("$defs", {}).get(str(schema.get("$ref", "")).rpartition("/")[2])
        returned = schema if named is None else {**named, "$defs": schema["$defs"]}
        if returned and not _returns_content(fn):
            if returned.get("type") == "object":
                options.setdefault("output_schema", returned)
            elif not signature.streams:
                options.setdefault("returns", returned)
        return super().add(fn, **options)

    def serve(
        self,
        port: int | None = None,
        host: str | None = None,
        *,
        db: str | None = None,
        config: str | Path | None = None,
    ) -> None:
        """Serve it until a signal comes, as ``agent3 serve MODULE:app`` does; prints the addresses.

        Settings are those of ``agent3.toml`` in this folder or ``config``. Without clients in them it serves this
        machine only. Blocks; in a program that goes on, use ``listening``.
        """
        overrides: dict[str, dict[str, Any]] = {"storage": {"url": db}, "server": {"host": host, "port": port}}
        serve_forever(load(None if config is None else Path(config), overrides=overrides), [self])

    def listening(self, port: int = 0, *, db: str = ":memory:") -> InBackground:
        """Serve it on this machine for the length of a ``with`` block, whose value is the URL; in memory by default.

        Reads no settings and prints nothing: for tests, notebooks and scripts.
        """
        return InBackground(Settings(server=Server(port=port), storage=Storage(url=db)), [self])


def _returns_content(fn: Callable[..., Any]) -> bool:
    """Whether it returns parts or an outcome of ours, whose form is not that of a value."""
    try:
        returned = typing.get_type_hints(fn).get("return")
    except (NameError, TypeError):  # a name that is not known yet: then the schema does not know it either
        return False
    return isinstance(returned, type) and issubclass(returned, _CONTENT)


def _check_types(app: str, fn: Callable[..., Any], context: str | None) -> None:
    """Untyped parameters take anything: a caller could not know what to send, so they are refused here."""
    for name, parameter in inspect.signature(fn).parameters.items():
        if name != context and parameter.annotation is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD:
            raise SetupError(
                f"{app}: parameter {name!r} of {getattr(fn, '__name__', fn)} has no type. Add a type hint, "
                f"such as {name}: str; callers see it as the schema."
            )
