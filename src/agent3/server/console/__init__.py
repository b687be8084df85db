"""The web console: three static files below ``/console`` that use the REST API of the gateway like any other client.

The files hold no data and no secret, so anybody may load them; what they show is what the REST API tells the key that
was entered, or the local user. It knows nothing of the gateway.
"""

from __future__ import annotations

from importlib.resources import files

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

__all__ = ["routes"]

_KINDS = {"console.html": "text/html", "console.js": "text/javascript", "console.css": "text/css"}
# Words of agents are shown as text only; should one ever be taken for markup, nothing in it runs or leaves.
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


def routes() -> list[Route]:
    """The routes of the console."""
    here = files(__package__)
    answers = {name: (here / name).read_bytes() for name in _KINDS}

    def page(name: str) -> Route:
        async def view(request: Request) -> Response:
            return Response(answers[name], media_type=_KINDS[name], headers=_HEADERS)

        return Route("/console/" if name == "console.html" else f"/console/{name}", view, methods=["GET"])

    async def enter(request: Request) -> Response:
        return RedirectResponse("/console/", 308)

    return [Route("/console", enter, methods=["GET"]), *map(page, _KINDS)]
