"""A to-do list for each caller, kept in ``todo.json`` of this folder: ``agent3 serve todo.py``."""

import datetime
import json
import threading
from pathlib import Path

from agent3 import App, SyncContext

app = App("todo", description="Keeps your to-do list.", tags=("tasks", "example"))
FILE, LOCK = Path("todo.json"), threading.Lock()


def tasks(caller: str, text: str = "", due: datetime.date | None = None, done: int = 0) -> list[dict[str, object]]:
    with LOCK:
        lists = json.loads(FILE.read_text()) if FILE.exists() else {}
        own = [{**one, "done": one["done"] or one["number"] == done} for one in lists.get(caller, [])]
        if text:
            own.append({"number": len(own) + 1, "text": text, "due": due and due.isoformat(), "done": False})
        if own != lists.get(caller, []):
            FILE.write_text(json.dumps({**lists, caller: own}))
        return [one for one in own if not one["done"]]


@app.capability
def add(ctx: SyncContext, text: str, due: datetime.date | None = None) -> list[dict[str, object]]:
    """Put something on your list."""
    return ctx.once("add", lambda: tasks(ctx.principal.id, text, due))


@app.capability(name="list", read_only=True)
def list_open(ctx: SyncContext) -> list[dict[str, object]]:
    """Show what is left to do."""
    return tasks(ctx.principal.id)


@app.capability(name="done", idempotent=True)
def tick(ctx: SyncContext, number: int) -> list[dict[str, object]]:
    """Tick something off your list by its number."""
    return tasks(ctx.principal.id, done=number)
