"""Run the app on a socket until a signal comes, and then finish what was accepted."""

import socket
from collections.abc import Callable
from contextlib import suppress

import uvicorn
from fastapi import FastAPI

from datransformer.data.errors import InputError
from datransformer.serve.guard import is_loopback
from datransformer.serve.limits import Limits

KEY_LENGTH = 16


def check_key(host: str, key: str | None) -> None:
    """Refuse to listen to other machines without a key, and keys that can be guessed."""
    if key is None and not is_loopback(host):
        raise InputError(f"--host: got {host}, which other machines reach, expected an API key with it: "
                         "set DATRANSFORMER_API_KEY or --api-key-file")  # fmt: skip
    if key is not None and not (key.isascii() and key.isprintable() and " " not in key and len(key) >= KEY_LENGTH):
        raise InputError(f"the API key: expected at least {KEY_LENGTH} letters, digits and signs, without spaces")


def listen(host: str, port: int) -> socket.socket:
    """A socket that takes connections from now on."""
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise InputError(f"--host {host} --port {port}: cannot listen there ({error.strerror or error})") from error


def serve(app: FastAPI, host: str, port: int, limits: Limits, tell: Callable[[str], None]) -> None:
    """Answer until SIGINT or SIGTERM; ``tell`` gets the address once connections are taken."""
    with listen(host, port) as taken:
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=int(2 * limits.timeout) + 1,
        )
        name = f"[{host}]" if ":" in host else host
        tell(f"http://{name}:{taken.getsockname()[1]}/docs")
        with suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[taken])
