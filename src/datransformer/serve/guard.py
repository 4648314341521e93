"""What every request meets before the app: the key, the size, the clock, the count."""

import asyncio
import hmac
import ipaddress
import time
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from datransformer.serve.limits import Limits
from datransformer.serve.metrics import Metrics

OPEN = ("/", "/docs", "/openapi.json", "/healthz")  # without a key: they tell nothing of the texts
PATHS = ("/predict", "/explain", "/metrics", *OPEN)


def is_loopback(host: str) -> bool:
    """Whether a name or address can only mean this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _host_of(headers: Headers) -> str:
    try:
        return urlsplit(f"//{headers.get('host', '')}").hostname or ""
    except ValueError:
        return ""


def refuse(status: int, detail: str, **headers: str) -> JSONResponse:
    """An answer that says why there is none; ``retry_after="1"`` is the header ``retry-after``."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return JSONResponse({"detail": detail}, status, named)


def busy() -> JSONResponse:
    """More is asked for than may wait."""
    return refuse(503, "too many requests wait, ask again later", retry_after="1")


class Guard:
    """Refuses requests without the key, too large or too slow, and counts all of them.

    A server without a key answers only to names of this machine: a web page that has its own name point here would
    otherwise read the answers (DNS rebinding).

    Args:
        app: What is guarded.
        limits: How large and how slow a request may be.
        key: What ``Authorization: Bearer …`` must bring; None: nothing.
        metrics: Where to count.
    """

    def __init__(self, app: ASGIApp, *, limits: Limits, key: str | None, metrics: Metrics) -> None:
        self._app = app
        self._limits = limits
        self._key = None if key is None else key.encode()
        self._metrics = metrics
        self._arriving = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status = time.perf_counter(), 499  # the client left

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["x-content-type-options"] = "nosniff"
            await send(message)

        try:
            body = self._refusal(scope) or await self._read(Headers(scope=scope), receive)
            if isinstance(body, JSONResponse):
                await body(scope, receive, watched)
            elif body is not None:
                await self._app(scope, _replay(body, receive), watched)
        except Exception:
            status = 500
            raise
        finally:
            path = scope["path"] if scope["path"] in PATHS else "other"
            self._metrics.request(path, status, time.perf_counter() - started)

    def _refusal(self, scope: Scope) -> JSONResponse | None:
        headers = Headers(scope=scope)
        if self._key is None:
            if not is_loopback(_host_of(headers)):
                return refuse(421, "Host: expected localhost or a loopback address", connection="close")
        elif scope["path"] not in OPEN:
            scheme, _, given = headers.get("authorization", "").partition(" ")
            if not hmac.compare_digest(given.strip().encode(), self._key) or scheme.lower() != "bearer":
                detail = "Authorization: expected Bearer and the server's key"
                return refuse(401, detail, www_authenticate="Bearer", connection="close")
        return None

    async def _read(self, headers: Headers, receive: Receive) -> bytes | JSONResponse | None:
        """The whole body, or why it is not wanted, or None if the client left."""
        most = self._limits.body
        too_large = refuse(413, f"the request is too large, expected at most {most:,} bytes", connection="close")
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length[:20]) > most:
            return too_large
        if self._arriving >= self._limits.queue:
            return busy()
        self._arriving += 1
        body = bytearray()
        try:
            async with asyncio.timeout(self._limits.timeout):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    body += message.get("body", b"")
                    if len(body) > most:
                        return too_large
                    if not message.get("more_body", False):
                        return bytes(body)
        except TimeoutError:
            return refuse(408, f"the request did not arrive within {self._limits.timeout:g} s", connection="close")
        finally:
            self._arriving -= 1


def _replay(body: bytes, receive: Receive) -> Receive:
    """Give the body once more, and then what comes behind it."""
    pending = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return pending.pop() if pending else await receive()

    return replayed
