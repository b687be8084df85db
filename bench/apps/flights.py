"""A small airline for browsers: a form, and a page of a hundred results, as an ASGI application without a framework."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import parse_qs

CARDS = 100
_STYLE = "<style>body{font:14px sans-serif}.flight-card{border:1px solid #ccc;padding:4px;margin:2px}</style>"
FORM = f"""<!doctype html><title>Flights</title>{_STYLE}<h1>Flights</h1>
<form action="/results"><input id="from" name="from"><input id="to" name="to">
<select id="class" name="class"><option value="">any</option><option value="b">Business</option></select>
<button id="search">Search</button></form>
<button id="more" onclick="more.dataset.n = +(more.dataset.n ?? 0) + 1">More</button>"""
_CARD = """<div class="flight-card"><b class="airline">Air {number}</b><span class="price">$ {number}.50</span>
<i class="time">{hour:02d}:15</i><a class="book" href="/book/{number}">Book</a></div>"""


def results(query: dict[str, list[str]]) -> str:
    """The page of results."""
    trip = " ".join(query.get(name, ["-"])[0] for name in ("from", "to", "class"))
    cards = "".join(_CARD.format(number=number, hour=number % 24) for number in range(1, CARDS + 1))
    return f"<!doctype html><title>Results</title>{_STYLE}<h1>{trip}</h1>{cards}"


async def app(scope: dict[str, Any], receive: Any, send: Callable[[dict[str, Any]], Awaitable[None]]) -> None:
    """One request."""
    if scope["type"] != "http":
        return
    query = parse_qs(scope["query_string"].decode())
    found = {"/": FORM, "/healthz": "ok"}.get(scope["path"])
    if scope["path"] == "/results":
        found = results(query)
    body = (found or "not here").encode()
    headers = [(b"content-type", b"text/html; charset=utf-8"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200 if found else 404, "headers": headers})
    await send({"type": "http.response.body", "body": body})
