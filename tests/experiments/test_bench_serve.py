"""The load test itself: it runs, and it would see an answer that is lost or somebody else's."""

import asyncio
import json
from pathlib import Path

import pytest

from datransformer.experiments.bench_serve import (
    Question,
    Tally,
    bench_serve,
    check,
    drive,
)


def test_a_small_load_loses_and_mixes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2] / "src"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    result = bench_serve(tmp_path / "out.json", requests=1000, rounds=1, tiny=True)
    assert json.loads((tmp_path / "out.json").read_text())["connections"] == 64
    assert result["texts"]["told_apart"] > 0.99
    for server, wanted in (("batching", 1000), ("one_by_one", 100)):
        found = result["servers"][server]
        assert (found["requests"], found["lost"], found["mixed"]) == (wanted, 0, 0)
        assert found["p99_ms"] >= found["p50_ms"] > 0
    assert result["servers"]["batching"]["texts_per_batch"] > 2 > result["servers"]["one_by_one"]["texts_per_batch"]


@pytest.mark.parametrize(
    ("status", "given", "lost", "mixed"),
    [
        (200, [{"a": 0.25, "b": 0.75}], 0, 0),
        (200, [{"a": 0.250001, "b": 0.749999}], 0, 0),
        (200, [{"a": 0.26, "b": 0.74}], 0, 1),
        (200, [{"a": 0.25, "b": 0.75}] * 2, 0, 1),
        (200, [{"a": 0.25}], 0, 1),
        (503, [], 1, 0),
    ],
)
def test_wrong_answers_are_counted(status: int, given: list[dict[str, float]], lost: int, mixed: int) -> None:
    tally = Tally()
    body = json.dumps({"predictions": [{"probabilities": answer} for answer in given]}).encode()
    check(tally, Question(b"", [{"a": 0.25, "b": 0.75}]), status, body)
    assert (tally.lost, tally.mixed) == (lost, mixed)


def test_connections_that_are_closed_are_counted_as_lost() -> None:
    async def rude(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.close()

    async def ask() -> Tally:
        async with await asyncio.start_server(rude, "127.0.0.1", 0) as server:
            return await drive(server.sockets[0].getsockname()[1], [Question(b"x", [])], 10, 3)

    assert asyncio.run(ask()).lost == 10
