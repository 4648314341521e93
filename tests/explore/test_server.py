import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from datransformer.data.errors import InputError
from datransformer.explore.server import MOST_BYTES, Explorer


@pytest.fixture(scope="module")
def explorer(make_run: Any) -> Iterator[Explorer]:
    with Explorer([make_run(), make_run(attention="vanilla")]) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def ask(
    server: Explorer, method: str, path: str, body: bytes | str | None = None, **headers: str
) -> tuple[http.client.HTTPResponse, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    try:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body, given)
        reply = connection.getresponse()
        return reply, reply.read()
    finally:
        connection.close()


def explain(server: Explorer, body: bytes | str, **headers: str) -> tuple[int, Any]:
    headers = {"Content_Type": "application/json", **headers}
    reply, content = ask(server, "POST", f"/{server.secret}/explain", body, **headers)
    return reply.status, json.loads(content)


def test_the_page_and_its_headers(explorer: Explorer) -> None:
    reply, page = ask(explorer, "GET", f"/{explorer.secret}/")
    assert reply.status == 200
    assert b"<textarea" in page
    assert reply.headers["X-Content-Type-Options"] == "nosniff"
    assert reply.headers["Content-Security-Policy"] == "frame-ancestors 'none'"
    assert reply.headers["Cache-Control"] == "no-store"
    assert "Access-Control-Allow-Origin" not in reply.headers
    assert explorer.server_address[0] == "127.0.0.1"


def test_each_run_answers(explorer: Explorer) -> None:
    status, answer = explain(explorer, json.dumps({"text": "a good film"}), Origin=f"http://{explorer.hosts[0]}")
    assert status == 200
    first, second = answer["results"]
    assert first["sequences"][0]["items"] == second["sequences"][0]["items"] == ["a", "good", "film"]
    assert first["levels"]["text"][0]["heads"][0]["w"] is not None
    assert second["levels"]["text"][0]["heads"][0]["w"] is None


@pytest.mark.parametrize("path", ["/", "/x/", "/explain", "/{}", "/{}x/", "/{}/../{}/", "/{}/?x", "/favicon.ico"])
def test_no_page_without_the_secret(explorer: Explorer, path: str) -> None:
    reply, content = ask(explorer, "GET", path.replace("{}", explorer.secret))
    assert reply.status == 404
    assert explorer.secret.encode() not in content


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{}", "127.0.0.1", "127.0.0.1:1", "localhost.evil:{}", ""]
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_another_host_name_is_refused(explorer: Explorer, method: str, host: str) -> None:
    path = f"/{explorer.secret}/" + ("explain" if method == "POST" else "")
    reply, _ = ask(
        explorer, method, path, "{}" if method == "POST" else None,
        Host=host.replace("{}", str(explorer.server_port)), Content_Type="application/json",
    )  # fmt: skip
    assert reply.status == 403


@pytest.mark.parametrize("origin", ["null", "http://evil.example", "https://127.0.0.1:{}", "http://127.0.0.1:1"])
def test_another_origin_is_refused(explorer: Explorer, origin: str) -> None:
    status, _ = explain(explorer, '{"text": "a"}', Origin=origin.replace("{}", str(explorer.server_port)))
    assert status == 403


def test_a_form_of_another_page_cannot_ask(explorer: Explorer) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        assert explain(explorer, '{"text": "a"}', Content_Type=kind)[0] == 415
    reply, _ = ask(explorer, "OPTIONS", f"/{explorer.secret}/explain", Origin="http://evil.example")
    assert reply.status == 501
    assert "Access-Control-Allow-Origin" not in reply.headers


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("{", "expected JSON"),
        (b"\xff", "expected JSON"),
        ("[" * 100_000, "expected JSON"),
        ("[]", "expected an object with text"),
        ('{"text": "a", "file": "b"}', "expected an object with text"),
        ("{}", "text: got nothing, expected a text"),
        ('{"text": 7}', "text: got 7, expected a text"),
        ('{"text": "a\\ud800"}', "half a character"),
        ('{"text": "a", "pair": "b"}', "pair: got a text, expected none"),
    ],
)
def test_a_bad_question_is_refused_in_words(explorer: Explorer, body: bytes | str, message: str) -> None:
    status, answer = explain(explorer, body)
    assert status == 400
    assert message in answer["error"]


def test_a_question_too_long_or_without_length_is_refused_unread(explorer: Explorer) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", explorer.server_port, timeout=20)
    for length, status in ((str(MOST_BYTES + 1), 413), (None, 411), ("-1", 411), ("²", 411)):
        connection.putrequest("POST", f"/{explorer.secret}/explain")
        connection.putheader("Content-Type", "application/json")
        if length is not None:
            connection.putheader("Content-Length", length.encode())
        connection.endheaders()
        assert connection.getresponse().status == status
        connection.close()


def test_questions_at_once_are_answered_one_after_the_other(explorer: Explorer) -> None:
    texts = ["good " * (number + 1) for number in range(8)]
    answers: dict[str, Any] = {}

    def one(text: str) -> None:
        answers[text] = explain(explorer, json.dumps({"text": text}))[1]

    threads = [threading.Thread(target=one, args=(text,)) for text in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for text in texts:
        for result in answers[text]["results"]:
            assert result["sequences"][0]["items"] == text.split()
            assert len(result["sequences"][0]["layers"]) == 1


def test_who_hangs_up_is_not_answered_and_not_complained_of(
    explorer: Explorer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(explorer, "answer", asked.append)
    body = json.dumps({"text": "gone"})
    head = f"POST /{explorer.secret}/explain HTTP/1.0\r\nHost: {explorer.hosts[0]}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    with explorer.turn, socket.create_connection(("127.0.0.1", explorer.server_port)) as connection:
        connection.sendall((head + body).encode())
    explain(explorer, json.dumps({"text": "still there"}))
    for _ in range(100):  # until the first has had its turn too
        if not any("process_request_thread" in thread.name for thread in threading.enumerate()):
            break
        time.sleep(0.05)
    assert asked == [{"text": "still there"}]
    assert capsys.readouterr().err == ""


def test_a_port_in_use_is_one_clear_line(explorer: Explorer, make_run: Any) -> None:
    with pytest.raises(InputError, match=rf"--port {explorer.server_port}: cannot be listened on"):
        Explorer([make_run()], explorer.server_port)


def test_every_start_has_its_own_secret(explorer: Explorer, make_run: Any) -> None:
    with Explorer([make_run()]) as other:
        assert other.secret != explorer.secret
