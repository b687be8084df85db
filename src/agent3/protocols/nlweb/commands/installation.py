"""``agent3 semantic``: installs what is needed to understand commands by their meaning."""

from __future__ import annotations

import json as notation
import sys

from cyclopts import App

from agent3.protocols.nlweb.commands import embeddings

__all__ = ["app"]

app = App(name="semantic", help="Understand commands by their meaning, without a language model.")


@app.command
def install(*, json: bool = False) -> None:
    """Fetch the small model MiniLM (84 MB, once) into agent3's data folder; needs the extra "semantic".

    Parameters
    ----------
    json
        Print JSON.
    """
    was_there = embeddings.is_installed()
    folder = embeddings.install(lambda line: sys.stderr.write(f"{line}\n"))
    if json:
        sys.stdout.write(
            notation.dumps({"model": embeddings.MINILM, "folder": str(folder), "fetched": not was_there}) + "\n"
        )
    else:
        sys.stdout.write(f"{'Already there' if was_there else 'Installed'}: {folder}\n")
