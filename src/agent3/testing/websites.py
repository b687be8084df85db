"""A website from a folder, on loopback: for demos, and for tests of website interfaces."""

from __future__ import annotations

import socket
from contextlib import suppress
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, Self

__all__ = ["Website"]


class Website:
    """The files of a folder, served at ``url`` within the ``with`` block. Responses forbid caching.

    ``relaunch`` serves another folder from then on, at the same address.
    """

    def __init__(self, folder: str | Path, port: int = 0):
        self._server = _Server(("127.0.0.1", port), _Handler)
        self.relaunch(folder)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = Thread(target=self._server.serve, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.is_over = True
        with suppress(OSError):  # it waits for a connection, and looks whether it is over after each
            socket.create_connection(("127.0.0.1", self._server.server_port), timeout=5).close()
        self._thread.join(5)
        self._server.server_close()

    def relaunch(self, folder: str | Path) -> None:
        """Serve these pages from now on; FileNotFoundError if there is no such folder."""
        if not Path(folder).is_dir():
            self._server.server_close()
            raise FileNotFoundError(f"{folder} is not a folder; name the one that contains the pages.")
        self._server.folder = str(folder)

    def wait(self) -> None:
        """Serve until Ctrl-C."""
        self._thread.join()


class _Handler(SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 20

    def translate_path(self, path: str) -> str:
        """A file of the folder that is served now, also on a connection that was opened before ``relaunch``."""
        assert isinstance(self.server, _Server)
        self.directory = self.server.folder
        return super().translate_path(path)

    def end_headers(self) -> None:
        self.send_header("Cache-Control", "no-store")
        super().end_headers()

    def log_message(self, *_: Any) -> None:
        """Quiet."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    folder = ""
    is_over = False

    def serve(self) -> None:
        """Serve until it is over. It only waits: ``serve_forever`` would wake up many times a second to end soon."""
        while not self.is_over:
            self.handle_request()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Silent: browsers hang up all the time."""
