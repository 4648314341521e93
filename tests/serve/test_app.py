"""The API in this process: its answers, and its refusals."""

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from datransformer.data.config import DataConfig
from datransformer.data.errors import InputError
from datransformer.experiments.heads import measure_heads
from datransformer.explore.explain import SHOWN
from datransformer.nn.distance_aware import DistanceAwareAttention
from datransformer.serve import app as app_module
from datransformer.serve.explain import SEQUENCES, TOKENS, explain
from datransformer.serve.guard import is_loopback
from datransformer.serve.limits import Limits
from datransformer.train.predict import answer_each, answer_rows, predictions, rows_of_texts
from datransformer.train.run import Run, load_run

Serve = Any
TOLERANCE = 2e-6  # another batch may round otherwise in the last bits, and answers have six digits
KEY = "correct-horse-battery"


def go(coroutine: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(coroutine)


def expected(run: Run, texts: list[str], pairs: list[str] | None = None) -> list[dict[str, Any]]:
    answered = answer_rows(run, rows_of_texts(texts, pairs), labelled=False)
    return list(predictions(run, answered)[1])


def check(run: Run, found: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> None:
    assert len(found) == len(wanted)
    for answer, record in zip(found, wanted, strict=True):
        if run.labels.classes is None:
            assert answer["prediction"] == pytest.approx(record["prediction"], abs=TOLERANCE * 10)
            assert answer["probabilities"] is None
        else:
            assert answer["prediction"] == record["prediction"]
            for name, value in answer["probabilities"].items():
                assert value == pytest.approx(record[f"probability_{name}"], abs=TOLERANCE)


@pytest.mark.parametrize("name", ["sentence", "joint", "siamese", "document", "rating"])
def test_answers_are_those_of_predict(name: str, run_folder: Callable[[str], Path], serve: Serve) -> None:
    run = load_run(run_folder(name))
    texts = ["a good film.", "bad! so bad. why?", "unheard words " * 50, "é", "\u200b"]
    pairs = texts[::-1] if run.config.task == "pair" else None

    async def ask() -> list[dict[str, Any]]:
        async with serve(run) as client:
            body: dict[str, Any] = {"text": texts} if pairs is None else {"text": texts, "text_pair": pairs}
            many = (await client.post("/predict", json=body)).json()["predictions"]
            body = {"text": texts[0]} if pairs is None else {"text": texts[0], "text_pair": pairs[0]}
            one = (await client.post("/predict", json=body)).json()["predictions"]
            check(run, one, expected(run, texts[:1], pairs and pairs[:1]))
            return list(many)

    found = go(ask())
    check(run, found, expected(run, texts, pairs))
    if name == "sentence":
        assert [answer["truncated"] for answer in found] == [False, False, True, False, False]


def test_concurrent_requests_share_batches_and_get_their_own_answers(sentence_run: Run, serve: Serve) -> None:
    texts = [f"{word} film {number} " + "truly " * (number % 9) for number in range(100) for word in ("good", "bad")]
    wanted = expected(sentence_run, texts)

    async def ask() -> tuple[list[httpx.Response], str]:
        async with serve(sentence_run) as client:
            asked = [client.post("/predict", json={"text": texts[at : at + 1 + at % 3]}) for at in range(len(texts))]
            return await asyncio.gather(*asked), (await client.get("/metrics")).text

    responses, metrics = go(ask())
    for at, response in enumerate(responses):
        check(sentence_run, response.json()["predictions"], wanted[at : at + 1 + at % 3])
    counts = dict(line.rsplit(" ", 1) for line in metrics.splitlines() if not line.startswith("#"))
    assert float(counts["datransformer_batch_texts_count"]) < 30
    assert float(counts["datransformer_batch_texts_sum"]) == sum(len(texts[at : at + 1 + at % 3]) for at in range(200))
    assert float(counts['datransformer_requests_total{path="/predict",status="200"}']) == 200
    assert float(counts["datransformer_queue_units"]) == 0


BAD_BODIES: dict[str, tuple[bytes, int]] = {
    "no json": (b"text", 422),
    "empty": (b"", 422),
    "not utf-8": (b'{"text": "\xff"}', 400),
    "deep": (b"[" * 100_000, 400),
    "deep object": (b'{"text":' * 100_000, 400),
    "long number": (b'{"text": ' + b"1" * 10_000 + b"}", 400),
    "nan": (b'{"text": NaN}', 422),
    "null": (b'{"text": null}', 422),
    "number": (b'{"text": 3}', 422),
    "list of numbers": (b'{"text": [1, 2]}', 422),
    "nested list": (b'{"text": [["a"]]}', 422),
    "no text": (b"{}", 422),
    "unknown field": (b'{"text": "a", "txet": "b"}', 422),
    "half a character in a field": (b'{"text": "a", "\\ud800": "b"}', 422),
    "half a character": (b'{"text": "\\ud800"}', 422),
    "nul": (b'{"text": "a\\u0000b"}', 422),
    "empty text": (b'{"text": ""}', 422),
    "spaces": (b'{"text": ["a", " \\n"]}', 422),
    "no texts": (b'{"text": []}', 422),
    "too many texts": (json.dumps({"text": ["a"] * 257}).encode(), 422),
    "a pair": (b'{"text": "a", "text_pair": "b"}', 422),
    "5 MB": (json.dumps({"text": "a " * 2_500_000}).encode(), 413),
}


@pytest.mark.parametrize("path", ["/predict", "/explain"])
def test_bad_requests_are_told_what_is_wrong(path: str, sentence_run: Run, serve: Serve) -> None:
    async def ask() -> dict[str, httpx.Response]:
        async with serve(sentence_run) as client:
            headers = {"content-type": "application/json"}
            return {
                name: await client.post(path, content=body, headers=headers) for name, (body, _) in BAD_BODIES.items()
            }

    for name, response in go(ask()).items():
        assert response.status_code in (BAD_BODIES[name][1], 422), name
        assert list(response.json()) == ["detail"], name
        assert 5 < len(response.json()["detail"]) <= 500, name
        assert "Traceback" not in response.text, name
        assert "/" not in response.json()["detail"], name


def test_a_form_is_told_to_be_json(sentence_run: Run, serve: Serve) -> None:
    """What curl -d sends if nothing else is said."""

    async def ask() -> str:
        async with serve(sentence_run) as client:
            headers = {"content-type": "application/x-www-form-urlencoded"}
            return str((await client.post("/predict", content=b'{"text": "a"}', headers=headers)).json()["detail"])

    assert "expected the header content-type: application/json" in go(ask())


def test_messages_name_the_place(sentence_run: Run, serve: Serve) -> None:
    async def ask(body: Any) -> str:
        async with serve(sentence_run) as client:
            return str((await client.post("/predict", json=body)).json()["detail"])

    assert go(ask({"text": ["a", " "]})) == "text.1: empty, expected some text"
    assert go(ask({"text": ["a"] * 300})) == "text: got 300 texts, expected 1 to 256"
    assert go(ask({"text": "a", "text_pair": "b"})) == "text_pair: not expected, the run's task is not pair"
    assert go(ask({"txet": "a"})).startswith("text: Field required; txet: Extra inputs")
    assert go(ask({"text": 3})) == "text: expected a text or a list of texts"
    assert go(ask({"text": [1, "a"]})) == "text: expected a text or a list of texts"
    assert go(ask({"text": "a", "text_pair": 3})) == "text_pair: expected a text or a list of texts"
    assert go(ask([])) == "the request: expected a JSON object"


def test_what_was_expected_is_told_elsewhere_too(sentence_run: Run, serve: Serve) -> None:
    async def ask(method: str, path: str, **more: Any) -> httpx.Response:
        async with serve(sentence_run) as client:
            response: httpx.Response = await client.request(method, path, **more)
            return response

    wrong = go(ask("GET", "/predict"))
    assert (wrong.status_code, wrong.headers["allow"], wrong.json()) == (405, "POST", {"detail": "expected POST"})
    empty = go(ask("POST", "/predict", headers={"content-type": "application/json"}))
    assert (empty.status_code, empty.json()["detail"]) == (422, "the request: empty, expected a JSON object")
    one = go(ask("POST", "/explain", json={"text": ["a"]}))
    assert (one.status_code, one.json()["detail"]) == (422, "text: expected a text")


def test_pairs_must_match(run_folder: Callable[[str], Path], serve: Serve) -> None:
    run = load_run(run_folder("joint"))

    async def ask(*bodies: Any) -> list[httpx.Response]:
        async with serve(run) as client:
            return [await client.post("/predict", json=body) for body in bodies]

    found = go(
        ask(
            {"text": "a"},
            {"text": ["a", "b"], "text_pair": ["c"]},
            {"text": "a", "text_pair": ["c"]},
            {"text": "a", "text_pair": "c"},
        )
    )
    assert [response.status_code for response in found] == [422, 422, 422, 200]
    assert "second text" in found[0].json()["detail"]


def test_a_chunked_body_is_measured_too(sentence_run: Run, serve: Serve) -> None:
    async def chunks() -> Any:
        for _ in range(100):
            yield b"x" * 1000

    async def ask() -> httpx.Response:
        async with serve(sentence_run, Limits(body=10_000)) as client:
            return await client.post("/predict", content=chunks())  # type: ignore[no-any-return]

    assert go(ask()).status_code == 413


def test_a_body_that_does_not_come_is_not_waited_for(sentence_run: Run, serve: Serve) -> None:
    async def chunks() -> Any:
        yield b"{"
        await asyncio.sleep(5)

    async def ask() -> httpx.Response:
        async with serve(sentence_run, Limits(timeout=0.05)) as client:
            return await client.post("/predict", content=chunks())  # type: ignore[no-any-return]

    assert go(ask()).status_code == 408


def test_bodies_that_arrive_are_bounded_too(sentence_run: Run, serve: Serve) -> None:
    async def chunks() -> Any:
        yield b"{"
        await asyncio.sleep(5)

    async def ask() -> list[httpx.Response]:
        async with serve(sentence_run, Limits(texts=1, body=2000, queue=4, timeout=0.3)) as client:
            return list(await asyncio.gather(*(client.post("/predict", content=chunks()) for _ in range(10))))

    responses = go(ask())
    assert sorted(response.status_code for response in responses) == [408] * 4 + [503] * 6
    assert all(response.headers["retry-after"] == "1" for response in responses if response.status_code == 503)


class Slow:
    """Stands in for the model until it is let go; texts with "poison" in them make it fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.free = threading.Event()
        monkeypatch.setattr(app_module, "answer_each", self)

    def __call__(self, run: Run, rows: Any, worker: Any) -> list[dict[str, Any]]:
        assert self.free.wait(20)
        if any("poison" in text for row in rows for text in row):
            raise ValueError("/secret/path")
        return [{"prediction": row[0], "probabilities": None, "truncated": False} for row in rows]


async def until(true: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(20):
        while not await true():
            await asyncio.sleep(0.005)


def test_a_full_queue_refuses_and_recovers(sentence_run: Run, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow(monkeypatch)

    async def ask() -> list[httpx.Response]:
        async with serve(sentence_run, Limits(texts=1, body=2000, batch=2, wait=0, queue=4)) as client:
            tasks = [asyncio.create_task(client.post("/predict", json={"text": f"t{at}"})) for at in range(20)]

            async def refused() -> bool:
                return sum(task.done() for task in tasks) >= 14

            await until(refused)
            slow.free.set()
            return list(await asyncio.gather(*tasks))

    responses = go(ask())
    for at, response in enumerate(responses):
        assert response.status_code in (200, 503)
        if response.status_code == 503:
            assert response.headers["retry-after"] == "1"
        else:
            assert response.json()["predictions"][0]["prediction"] == f"t{at}"
    assert 4 <= sum(response.status_code == 200 for response in responses) <= 6


def test_a_failure_is_of_its_own_request_alone(
    sentence_run: Run, serve: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    slow = Slow(monkeypatch)

    async def ask() -> list[httpx.Response]:
        async with serve(sentence_run) as client:
            texts = [f"poison {at}" if at % 4 == 1 else f"t{at}" for at in range(20)]
            tasks = [asyncio.create_task(client.post("/predict", json={"text": text})) for text in texts]
            await asyncio.sleep(0.05)
            slow.free.set()
            return list(await asyncio.gather(*tasks))

    for at, response in enumerate(go(ask())):
        if at % 4 == 1:
            assert response.status_code == 500
            assert response.json() == {"detail": "the model could not answer this request"}
        else:
            assert response.json()["predictions"][0]["prediction"] == f"t{at}"
    assert "/secret/path" in caplog.text


def test_late_and_cancelled_requests_hold_nobody_up(
    sentence_run: Run, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow(monkeypatch)

    async def ask() -> tuple[httpx.Response, httpx.Response]:
        async with serve(sentence_run, Limits(timeout=0.3, batch=1)) as client:
            first = asyncio.create_task(client.post("/predict", json={"text": "first"}))
            await asyncio.sleep(0.05)
            left = [asyncio.create_task(client.post("/predict", json={"text": "poison"})) for _ in range(50)]
            await asyncio.sleep(0.05)
            for task in left:
                task.cancel()
            late = await first
            slow.free.set()
            return late, await client.post("/predict", json={"text": "last"})

    late, last = go(ask())
    assert late.status_code == 504
    assert last.json()["predictions"][0]["prediction"] == "last"


def test_what_was_accepted_is_answered_before_the_end(
    sentence_run: Run, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow(monkeypatch)

    async def ask() -> list[httpx.Response]:
        async with serve(sentence_run, Limits(batch=3)) as client:
            tasks = [asyncio.create_task(client.post("/predict", json={"text": f"t{at}"})) for at in range(30)]
            await asyncio.sleep(0.1)
            asyncio.get_running_loop().call_later(0.1, slow.free.set)
        return list(await asyncio.gather(*tasks))

    found = [response.json()["predictions"][0]["prediction"] for response in go(ask())]
    assert found == [f"t{at}" for at in range(30)]


def test_the_key(sentence_run: Run, serve: Serve) -> None:
    async def ask() -> None:
        async with serve(sentence_run, key=KEY) as client:
            for given in ("", KEY, "Bearer", f"Bearer {KEY}x", f"Basic {KEY}", "Bearer \xff"):
                headers = {"authorization": given.encode("latin-1")}
                response = await client.post("/predict", json={"text": "a"}, headers=headers)
                assert response.status_code == 401, given
                assert response.headers["www-authenticate"] == "Bearer"
                assert (await client.get("/metrics", headers=headers)).status_code == 401
                assert (await client.get("/unknown", headers=headers)).status_code == 401
            right = {"authorization": f"Bearer {KEY}", "host": "elsewhere.example"}
            assert (await client.post("/predict", json={"text": "a"}, headers=right)).status_code == 200
            for path in ("/healthz", "/docs", "/openapi.json"):
                assert (await client.get(path)).status_code == 200
            start = await client.get("/")
            assert (start.status_code, start.headers["location"]) == (307, "/docs")
            assert "HTTPBearer" in (await client.get("/openapi.json")).text

    go(ask())


def test_without_a_key_only_this_machine_is_meant(sentence_run: Run, serve: Serve) -> None:
    async def ask(host: str) -> int:
        async with serve(sentence_run) as client:
            return int((await client.get("/healthz", headers={"host": host})).status_code)

    for host in ("localhost", "localhost:8000", "127.0.0.1", "[::1]:80"):
        assert go(ask(host)) == 200, host
    for host in ("evil.example", "127.0.0.1.evil.example", "10.0.0.1", "", "[::1", "[x]:1"):
        assert go(ask(host)) == 421, host
    assert [is_loopback(host) for host in ("127.3.2.1", "::1", "0.0.0.0", "::", "a.example")] == [True] * 2 + [
        False
    ] * 3


def test_docs_need_nothing_from_elsewhere(sentence_run: Run, serve: Serve) -> None:
    async def ask() -> tuple[httpx.Response, dict[str, Any], httpx.Response]:
        async with serve(sentence_run) as client:
            page, schema = await client.get("/docs"), await client.get("/openapi.json")
            return page, schema.json(), await client.get("/nowhere")

    page, schema, nowhere = go(ask())
    assert "http" not in page.text.replace('http-equiv="', "")
    assert "<script" not in page.text
    policy = page.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
    assert page.headers["x-content-type-options"] == "nosniff"
    for path in ("/predict", "/explain", "/healthz", "/metrics"):
        assert path in schema["paths"]
        assert path in page.text
    assert nowhere.status_code == 404
    assert nowhere.json()["detail"].startswith("no such path, expected one of: /predict, /explain, ")


@pytest.mark.parametrize("name", ["sentence", "joint", "siamese", "document"])
def test_explain(name: str, run_folder: Callable[[str], Path], serve: Serve) -> None:
    run = load_run(run_folder(name))
    text, pair = "a good film. truly bad! why! so it is. number 3, truly!", "a bad film"
    body = {"text": text, "text_pair": pair} if run.config.task == "pair" else {"text": text}

    async def ask() -> tuple[dict[str, Any], dict[str, Any]]:
        async with serve(run) as client:
            answer = (await client.post("/predict", json=body)).json()["predictions"][0]
            return (await client.post("/explain", json=body)).json(), answer

    found, answer = go(ask())
    assert {key: found[key] for key in answer} == answer
    assert not found["cut"]
    modules = {key: part for key, part in run.model.named_modules() if isinstance(part, DistanceAwareAttention)}
    assert [module["name"] for module in found["modules"]] == list(modules)
    for module in found["modules"]:
        weights = modules[module["name"]].distance_weight.tolist()
        assert [head["w"] for head in module["heads"]] == weights
        assert [head["looks"] for head in module["heads"]] == ["near" if w < 0 else "far" for w in weights]
        for head in module["heads"]:
            assert len(head["attention"]) == len(module["sequences"])
            for sequence, rows in zip(module["sequences"], head["attention"], strict=True):
                assert np.array(rows).shape == (len(sequence), len(sequence))
                np.testing.assert_allclose(np.array(rows).sum(1), 1, atol=1e-3)
    words = found["modules"][0]["sequences"]
    assert words[0][:3] == ["a", "good", "film"]
    assert len(words) == {"sentence": 1, "joint": 1, "siamese": 2, "document": 5}[name]
    if name == "document":
        assert found["modules"][1]["sequences"] == [["1", "2", "3", "4", "5"]]


def test_explain_is_cut_to_a_size_to_look_at(sentence_run: Run, run_folder: Callable[[str], Path]) -> None:
    found = explain(sentence_run, "good " * 60)
    assert found["cut"]
    assert not found["truncated"]
    rows = np.array(found["modules"][0]["heads"][0]["attention"][0])
    assert rows.shape == (TOKENS, TOKENS)
    assert rows.sum(1).max() < 1  # the weights are those of the whole text
    found = explain(load_run(run_folder("document")), "a good film. " * 20)
    assert found["cut"]
    assert len(found["modules"][0]["sequences"]) == SEQUENCES
    assert len(found["modules"][1]["sequences"][0]) == 20


def test_explain_reads_no_more_than_the_explorer_shows(sentence_run: Run) -> None:
    run = replace(sentence_run, config=replace(sentence_run.config, data=DataConfig(max_length=5000)))
    short, long = explain(run, "good " * SHOWN), explain(run, "good " * 5000)
    assert long["cut"]
    assert long["modules"] == short["modules"]
    assert long["probabilities"] == answer_each(run, [("good " * 5000,)])[0]["probabilities"]


def test_unknown_words_are_as_they_were_written(sentence_run: Run) -> None:
    assert explain(sentence_run, "a zzz film")["modules"][0]["sequences"] == [["a", "zzz", "film"]]


def test_explain_leaves_no_hooks(sentence_run: Run) -> None:
    explain(sentence_run, "a good film")
    assert not any(module._forward_pre_hooks for module in sentence_run.model.modules())
    assert measure_heads(sentence_run.model, []) == {}


def test_a_recommender_is_refused(sentence_run: Run) -> None:
    run = replace(sentence_run, config=replace(sentence_run.config, task="recommend"))
    with pytest.raises(InputError, match="expected another task"):
        app_module.create_app(run)


@pytest.mark.parametrize(
    ("values", "message"),
    [({"batch": 0}, "batch"), ({"wait": -1}, "wait"), ({"timeout": 0}, "timeout"), ({"queue": 10}, "queue: got 10")],
)
def test_limits_are_checked(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Limits(**values)
