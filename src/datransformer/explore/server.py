"""The explorer's server: this machine alone, one page and one question.

Three things keep other pages in the same browser out. The address holds a secret that is new with every start, so that
they cannot guess it. The Host header must be ours, so that a name of theirs which they let point here (DNS rebinding)
is refused. A question must be JSON, which a page of another origin may not send without being allowed to, and nothing
here allows it.
"""

import hmac
import json
import secrets
import select
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from datransformer.data.errors import InputError
from datransformer.explore.explain import explain_text
from datransformer.explore.page import explorer_page
from datransformer.train.run import Run

LOOPBACK = "127.0.0.1"
MOST_BYTES = 1 << 20  # of a question
SECONDS = 30  # that a connection may keep us waiting
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",  # beside the page's own, which cannot say this
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Explorer(ThreadingHTTPServer):
    """Serves the page of one run or two, until it is shut down.

    Args:
        runs: Of the same task.
        port: Where to listen; 0 takes a free one.
    """

    daemon_threads = True

    def __init__(self, runs: Sequence[Run], port: int = 0) -> None:
        self.runs = runs
        self.secret = secrets.token_urlsafe(24)
        self.page = explorer_page(runs).encode()
        self.turn = threading.Lock()  # the model is watched while it answers, by one question at a time
        try:
            super().__init__((LOOPBACK, port), _Handler)
        except OSError as error:
            raise InputError(f"--port {port}: cannot be listened on ({error.strerror}), expected a free one") from error

    @property
    def hosts(self) -> tuple[str, str]:
        """The names under which a browser may call."""
        return f"{LOOPBACK}:{self.server_port}", f"localhost:{self.server_port}"

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://{self.hosts[0]}/{self.secret}/"

    def answer(self, question: Any) -> dict[str, Any]:
        """What each run has to say to ``{"text": …, "pair": …}``."""
        if not isinstance(question, dict) or not set(question) <= {"text", "pair"}:
            raise InputError("got something else, expected an object with text, and for two texts pair")
        return {"results": [explain_text(run, question.get("text"), question.get("pair")) for run in self.runs]}


class _Handler(BaseHTTPRequestHandler):
    server: Explorer
    timeout = SECONDS
    server_version, sys_version = "datransformer", ""

    def do_GET(self) -> None:
        if self._may("/"):
            self._send(HTTPStatus.OK, self.server.page, "text/html; charset=utf-8")

    def do_POST(self) -> None:
        if not self._may("/explain"):
            return
        if self.headers.get_content_type() != "application/json":
            self._refuse(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "expected application/json")
            return
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit() and len(length) < 20):
            self._refuse(HTTPStatus.LENGTH_REQUIRED, "expected a Content-Length")
        elif int(length) > MOST_BYTES:
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the text is too long, expected {MOST_BYTES:,} bytes")
        else:
            self._answer(self.rfile.read(int(length)))

    def _answer(self, body: bytes) -> None:
        try:
            question = json.loads(body)
            with self.server.turn:
                if self._gone():
                    return
                answer = json.dumps(self.server.answer(question), allow_nan=False)
        except (InputError, ValueError, RecursionError) as error:
            self._refuse(HTTPStatus.BAD_REQUEST, str(error) if isinstance(error, InputError) else "expected JSON")
        else:
            self._send(HTTPStatus.OK, answer.encode(), "application/json")

    def _gone(self) -> bool:
        """Whether the browser has hung up, as it does when the next key is pressed before an answer is there."""
        ready, _, _ = select.select([self.connection], [], [], 0)
        return bool(ready) and not self.connection.recv(1, socket.MSG_PEEK)

    def _may(self, path: str) -> bool:
        """Whether the call is for ``path`` and comes from our own page; refuses it if not."""
        host, origin = self.headers.get("Host", ""), self.headers.get("Origin")
        if host not in self.server.hosts or origin not in (None, f"http://{host}"):
            self._refuse(HTTPStatus.FORBIDDEN, "expected to be called from our own page")
        elif not hmac.compare_digest(self.path.encode(), f"/{self.server.secret}{path}".encode()):
            self._refuse(HTTPStatus.NOT_FOUND, "no such page: the whole address is in the terminal")
        else:
            return True
        return False

    def _refuse(self, status: HTTPStatus, why: str) -> None:
        self.close_connection = True  # what was sent with it is not read
        self._send(status, json.dumps({"error": why}).encode(), "application/json")

    def _send(self, status: HTTPStatus, body: bytes, kind: str) -> None:
        self.send_response(status)
        for name, value in {**HEADERS, "Content-Type": kind, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        with suppress(ConnectionError):  # the browser has hung up
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Say nothing: the terminal has the address and no more."""
