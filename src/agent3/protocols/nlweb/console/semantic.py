"""``agent3 semantic``: installs what is needed to understand commands by their meaning."""

from __future__ import annotations

from cyclopts import App

from agent3.protocols.nlweb.commands import embeddings
from agent3.terminal.output import print_json, print_note

__all__ = ["app"]

app = App(name="semantic")


@app.command
def install(*, json: bool = False) -> None:
    """Fetch the small model MiniLM (84 MB, once) into agent3's data folder; needs the extra "semantic".

    Parameters
    ----------
    json
        Print JSON.
    """
    was_there = embeddings.is_installed()
    folder = embeddings.install(print_note)
    if json:
        print_json({"model": embeddings.MINILM, "folder": str(folder), "fetched": not was_there})
    else:
        print(f"{'Already there' if was_there else 'Installed'}: {folder}")
