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
    """Which database a command uses, and how it answers. A gateway may be running."""

    db: str | None = None
    "Database: sqlite:///PATH or postgresql://… [default: that of the settings]."
    config: Path | None = None
    "Settings file [default: agent3.toml in this folder]."
    json: bool = False
    "Print JSON."

    def settings(self) -> Settings:
        """The settings that these options name."""
        return load(self.config, overrides={"storage": {"url": self.db}})
