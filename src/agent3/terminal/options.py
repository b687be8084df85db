"""The options of commands that work on a database."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cyclopts import Parameter

from agent3.settings import Settings, load

__all__ = ["DatabaseOptions"]


@Parameter(name="*")
@dataclass(frozen=True)
class DatabaseOptions:
    """Which database a command works on, and how it answers. A gateway may be running on it."""

    db: str | None = None
    "The database: sqlite:///PATH or postgresql://… By default that of the settings."
    config: Path | None = None
    "Settings file; agent3.toml in this folder by default."
    json: bool = False
    "Print JSON."

    def settings(self) -> Settings:
        """The settings that these options name."""
        return load(self.config, overrides={"storage": {"url": self.db}})
