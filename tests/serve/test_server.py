"""The verb serve: what it refuses to start with, and a server in a process of its own."""

import http.client
import json
import signal
import sys
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from datransformer import cli
from datransformer.data.errors import InputError
from datransformer.experiments.bench_serve import started
from datransformer.serve.server import check_key, listen

KEY = "correct-horse-battery"


def post(port: int, text: str) -> http.client.HTTPConnection:
    """Send a request without waiting for its answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("POST", "/predict", json.dumps({"text": text}), {"content-type": "application/json"})
    return connection


def test_sigterm_while_requests_wait_leaves_none_without_an_answer(run_folder: Callable[[str], Path]) -> None:
    # A long wait for a batch that does not fill up: all requests are accepted and wait when the signal comes.
    with (
        started(run_folder("sentence"), "--wait-ms", "4000", "--batch", "999") as (process, port),
        ExitStack() as stack,
    ):
        connections = [stack.enter_context(closing(post(port, f"good film {number}"))) for number in range(32)]
        seen = b""
        while b"datransformer_queue_units 32.0" not in seen and b'path="/predict"' not in seen:  # on a busy machine
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as response:
                seen = response.read()
        process.send_signal(signal.SIGTERM)
        for connection in connections:
            answer = connection.getresponse()
            assert answer.status == 200
            assert set(json.loads(answer.read())["predictions"][0]["probabilities"]) == {"good", "bad"}
        assert process.wait(20) in (0, -signal.SIGTERM)
        assert process.stderr is not None
        assert process.stderr.read() == ""
        with pytest.raises(ConnectionError):
            post(port, "late")


def called(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    monkeypatch.setattr(sys, "argv", ["datransformer", "serve", *map(str, arguments)])
    cli.app(standalone_mode=False)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "somewhere.example"])
def test_other_machines_are_not_answered_without_a_key(
    host: str, run_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DATRANSFORMER_API_KEY", raising=False)
    with pytest.raises(InputError, match="expected an API key with it: set DATRANSFORMER_API_KEY or --api-key-file"):
        called(monkeypatch, run_folder("sentence"), "--host", host)
    check_key(host, KEY)


@pytest.mark.parametrize("key", ["", "short", "with spaces in the middle", "ключключключключ", "line\nline-line-line"])
def test_keys_that_can_be_guessed_or_not_be_sent_are_refused(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "key").write_text(f"{key}\n", encoding="utf-8")
    for options in (["--api-key-file", tmp_path / "key"], []):
        monkeypatch.setenv("DATRANSFORMER_API_KEY", key)
        with pytest.raises(InputError, match="the API key: expected at least 16"):
            called(monkeypatch, tmp_path, *options)


def test_the_key_comes_from_a_file_or_the_environment(
    run_folder: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = []
    monkeypatch.setattr("datransformer.serve.app.create_app", lambda run, limits, **options: given.append(options))
    monkeypatch.setattr("datransformer.serve.server.serve", lambda *arguments: None)
    (tmp_path / "key").write_text(f"{KEY}-file\n")
    monkeypatch.setenv("DATRANSFORMER_API_KEY", f"{KEY}-variable")
    called(monkeypatch, run_folder("sentence"), "--device", "cpu")
    called(monkeypatch, run_folder("sentence"), "--device", "cpu", "--api-key-file", tmp_path / "key")
    assert [options["key"] for options in given] == [f"{KEY}-variable", f"{KEY}-file"]


def test_a_port_that_is_taken_is_one_line() -> None:
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=rf"--port {port}: cannot listen there \(Address already in use"):
            listen("127.0.0.1", port)
    with pytest.raises(InputError, match="cannot listen there"):
        listen("no-such-host.invalid", 0)


def test_limits_that_make_no_sense_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DATRANSFORMER_API_KEY", raising=False)
    with pytest.raises(InputError, match="--queue: got 5, expected at least 512"):
        called(monkeypatch, tmp_path, "--queue", "5")


def test_a_missing_package_is_named_with_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("datransformer.serve")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "fastapi", None)
    with pytest.raises(
        InputError, match=r'fastapi is not installed, expected it: pip install "datransformer\[serve\]"'
    ):
        called(monkeypatch, tmp_path)
