"""The planner's folder on localhost, under a secret path: other pages cannot guess its address.

    with serving(folder) as address:      http://127.0.0.1:PORT/TOKEN/
        ...

Only this machine can connect, only files of the folder are sent, and a client has half a minute.
"""

import io
import os
import secrets
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import BinaryIO

from vrambudget.errors import VramBudgetError

_LOCALHOST = "127.0.0.1"
PATIENCE_SECONDS = 30.0


class _Handler(SimpleHTTPRequestHandler):
    """Sends files below /TOKEN/, and nothing else."""

    extensions_map = {  # noqa: RUF012 - as the base class has it
        **SimpleHTTPRequestHandler.extensions_map,
        ".mjs": "text/javascript",
        ".js": "text/javascript",
        ".wasm": "application/wasm",
    }

    def __init__(self, *args: object, token: str, directory: str) -> None:
        self.token = token
        super().__init__(*args, directory=directory)  # type: ignore[arg-type]

    def send_head(self) -> BinaryIO | io.BytesIO | None:
        """Send a file's head; 404 for what lies elsewhere, 400 for what can be no file's name.

        No answer is a redirect: the base class sends one to `//host` for a folder of that name.
        """
        start = f"/{self.token}/"
        if not self.path.startswith(start):
            self.send_error(404)
            return None
        self.path = "/" + self.path.removeprefix(start).lstrip("/")
        if "\0" in (file := self.translate_path(self.path)):
            self.send_error(400)
        elif self.path[1:2] not in ("", "?", "#") and not os.path.isfile(file):  # noqa: PTH113 - it raises nothing
            self.send_error(404)
        else:
            return super().send_head()
        return None

    def setup(self) -> None:
        """Begin the time that a client has for its request and the answer."""
        super().setup()
        self.clock = threading.Timer(PATIENCE_SECONDS, self._drop)
        self.clock.daemon = True
        self.clock.start()

    def finish(self) -> None:
        """End it."""
        self.clock.cancel()
        super().finish()

    def _drop(self) -> None:
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def list_directory(self, path: object) -> None:
        """Send no list of files."""
        del path
        self.send_error(404)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Say nothing about requests."""
        del format, args


class _Server(ThreadingHTTPServer):
    request_queue_size = 128  # connections that wait: a page opens several at once

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of a client that went away."""
        del request, client_address


@contextmanager
def serving(folder: Path, port: int = 0) -> Iterator[str]:
    """Serve a folder; yield its address. Port 0: any that is free. Raises VramBudgetError."""
    token = secrets.token_urlsafe(16)
    handler = partial(_Handler, token=token, directory=str(folder))
    try:
        server = _Server((_LOCALHOST, port), handler)
    except (OSError, OverflowError) as error:
        raise VramBudgetError(f"cannot serve on port {port}: {error}", hint="--port 0") from None
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://{_LOCALHOST}:{server.server_port}/{token}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
