"""The floor of a gateway: aiohttp takes a request and hands it on as it is. Run with a port and the upstream's address.

It reads nothing of what passes, allows everybody and records nothing. Also answers GET /healthz.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator

import uvloop
from aiohttp import ClientSession, TCPConnector, web

UPSTREAM = web.AppKey("UPSTREAM", str)
SESSION = web.AppKey("SESSION", ClientSession)
OWN = frozenset({"host", "content-length", "connection"})


async def _forward(request: web.Request) -> web.Response:
    headers = {name: value for name, value in request.headers.items() if name.lower() not in OWN}
    url = request.app[UPSTREAM] + request.path
    async with request.app[SESSION].post(url, data=await request.read(), headers=headers) as answer:
        return web.Response(status=answer.status, body=await answer.read(), content_type=answer.content_type)


async def _healthy(_: web.Request) -> web.Response:
    return web.json_response({"status": "ok"})


async def _connected(app: web.Application) -> AsyncIterator[None]:
    async with ClientSession(connector=TCPConnector(limit=0)) as session:
        app[SESSION] = session
        yield


def main(port: int, upstream: str) -> None:
    """Serve on loopback until a signal comes."""
    app = web.Application()
    app[UPSTREAM] = upstream
    app.router.add_get("/healthz", _healthy)
    app.router.add_post("/{path:.*}", _forward)
    app.cleanup_ctx.append(_connected)
    web.run_app(app, host="127.0.0.1", port=port, access_log=None, print=None, loop=uvloop.new_event_loop())


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
