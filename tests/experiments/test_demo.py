import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from datransformer.data.errors import InputError
from datransformer.data.probe import KINDS, Probe
from datransformer.experiments.demo import ATTENTIONS, LABELS, DemoRow, read_curve, run_demo
from datransformer.nn.mixers import MIXERS
from datransformer.report.page import write_demo
from datransformer.train.errors import Interrupted
from datransformer.train.progress import Reporter
from datransformer.train.run import load_run

STEPS = 21
QUIET = Reporter(enabled=False)


def nearest_kind(tokens: list[str], query: int) -> str:
    places = [place for place, token in enumerate(tokens) if token in KINDS]
    return tokens[min(places, key=lambda place: abs(place - query))]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[DemoRow]]:
    folder = tmp_path_factory.mktemp("demo")
    torch.set_num_threads(1)
    out = folder / "out"
    out.mkdir()
    (out / "mine.txt").write_text("foreign")
    rows = run_demo(out, cache=folder / "cache", reporter=QUIET, steps=STEPS, attentions=("distance_aware", "none"))
    return out, rows


@pytest.fixture
def report(demo: tuple[Path, list[DemoRow]]) -> Mapping[str, Any]:
    loaded: Mapping[str, Any] = json.loads((demo[0] / "report.json").read_text(encoding="utf-8"))
    return loaded


def test_every_attention_has_a_name_for_people() -> None:
    assert set(LABELS) == set(MIXERS) >= set(ATTENTIONS)


def test_rows_say_what_the_runs_gave(demo: tuple[Path, list[DemoRow]], report: Mapping[str, Any]) -> None:
    out, rows = demo
    assert [row.attention for row in rows] == ["distance_aware", "none"]
    for row in rows:
        curve = read_curve(out / "runs" / row.attention)
        assert curve["steps"] == [20, 21]
        assert curve == report["curves"][row.attention]
        assert row.accuracy == curve["accuracy"][-1]
        assert row.steps_to_95 is None
        assert row.seconds > 0
        assert load_run(out / "runs" / row.attention).config.model.attention == row.attention
    assert [row["label"] for row in report["rows"]] == ["distance-aware", "no positions"]


def test_steps_to_95_is_the_first_such_evaluation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    curve = {"steps": [20, 40, 60, 80], "accuracy": [0.6, 0.95, 0.94, 1.0]}
    monkeypatch.setattr("datransformer.experiments.demo.fit", lambda *arguments, **options: {})
    monkeypatch.setattr("datransformer.experiments.demo.read_curve", lambda folder: curve)
    (row,) = run_demo(tmp_path, cache=tmp_path, reporter=QUIET, attentions=["xl"])
    assert (row.accuracy, row.steps_to_95) == (1.0, 40)


def test_heads_are_in_the_order_of_w_and_f_is_equation_5(report: Mapping[str, Any]) -> None:
    weights = [head["weight"] for head in report["heads"]]
    assert weights == sorted(weights)
    assert sorted(head["head"] for head in report["heads"]) == list(range(8))
    distances = np.array(report["distances"])
    for head in report["heads"]:
        w, v = head["weight"], head["shift"]
        np.testing.assert_allclose(head["coefficients"], (1 + np.exp(v)) / (1 + np.exp(v - w * distances)), atol=1e-4)
        assert len(head["by_distance"]) == len(report["marker_distances"]) == 15


def test_samples_are_held_out_sequences_with_attention_that_adds_up(report: Mapping[str, Any]) -> None:
    texts = next(Probe(rows=report["task"]["rows"], seed=1).batches())["text"].to_pylist()
    assert len(report["samples"]) == 3
    for number, sample in enumerate(report["samples"]):
        assert " ".join(sample["tokens"]) == texts[number]
        assert sample["tokens"][sample["query"]] == "query"
        assert sample["label"] == nearest_kind(sample["tokens"], sample["query"])
        assert sample["prediction"] in KINDS
        maps = np.array(sample["maps"])
        assert maps.shape == (8, 32, 32)
        np.testing.assert_allclose(maps.sum(-1), 1, atol=32 * 5e-5)


def test_attention_by_distance_is_that_of_the_trained_model(
    demo: tuple[Path, list[DemoRow]], report: Mapping[str, Any]
) -> None:
    """Once more, marker by marker, and head by head in the model's own order."""
    run = load_run(demo[0] / "runs" / "distance_aware")
    batch = next(Probe(rows=1000, seed=1).batches()).slice(0, 400)
    attention = run.model.get_submodule("text.sequence.encoder.layers.0.attention")
    embedding = run.model.get_submodule("text.embedding")
    sums, counts = np.zeros((8, 16)), np.zeros(16)
    for text in batch["text"].to_pylist():
        words = text.split()
        vectors = embedding(torch.tensor([[list(run.tokenizer.words).index(word) for word in words]]))
        _, weights = attention(vectors, vectors, vectors, average_attn_weights=False)
        query = words.index("query")
        for place, word in enumerate(words):
            if word in KINDS and abs(place - query) < 16:
                sums[:, abs(place - query)] += weights[0, :, query, place].detach().numpy()
                counts[abs(place - query)] += 1
    for head in report["heads"]:
        np.testing.assert_allclose(head["by_distance"], (sums[head["head"]] / counts.clip(1))[1:], atol=2e-4)


def test_the_page_is_rebuilt_from_the_report_alone(demo: tuple[Path, list[DemoRow]], tmp_path: Path) -> None:
    out, _ = demo
    (tmp_path / "report.json").write_bytes((out / "report.json").read_bytes())
    files = write_demo(tmp_path)
    assert [path.name for path in files] == ["report.html", "nearest_marker.png", "nearest_marker.svg"]
    page = files[0].read_text(encoding="utf-8")
    assert page.count("<svg") == 1 + 8 + 1 + 3 * (1 + 8)
    assert len(page) < 1_000_000


def test_a_demo_replaces_an_earlier_one_and_nothing_else(
    demo: tuple[Path, list[DemoRow]], tmp_path: Path, report: Mapping[str, Any]
) -> None:
    out, rows = demo
    again = run_demo(
        out, cache=out.parent / "cache", reporter=QUIET, steps=STEPS, attentions=("distance_aware", "none")
    )
    assert [row.accuracy for row in again] == [row.accuracy for row in rows]
    fresh = json.loads((out / "report.json").read_text(encoding="utf-8"))
    assert (fresh["heads"], fresh["samples"]) == (report["heads"], report["samples"])
    assert (out / "mine.txt").read_text() == "foreign"


@pytest.mark.parametrize("name", ["report.json", "report.html", "nearest_marker.svg", "runs/xl/config.yaml"])
def test_what_is_not_the_demos_is_not_replaced(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{}")
    with pytest.raises(InputError, match="was not made by the demo, which would replace it; choose another --out"):
        run_demo(tmp_path, cache=tmp_path / "cache", reporter=QUIET, steps=1, attentions=["none", "xl"])
    assert path.read_text() == "{}"
    assert [found for found in tmp_path.rglob("*") if found.is_file()] == [path]


def test_wrong_arguments_are_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file, expected a folder for the demo"):
        run_demo(tmp_path / "file", cache=tmp_path, reporter=QUIET)
    with pytest.raises(ValueError, match="attentions: got 'xyz', expected one of 'distance_aware'"):
        run_demo(tmp_path / "out", cache=tmp_path, reporter=QUIET, attentions=["xl", "xyz"])
    with pytest.raises(ValueError, match="steps: got 0, expected a positive int"):
        run_demo(tmp_path / "out", cache=tmp_path, reporter=QUIET, steps=0)
    assert not (tmp_path / "out").exists()


def test_the_number_of_threads_is_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object, **options: object) -> None:
        assert torch.get_num_threads() == 1
        raise RuntimeError

    monkeypatch.setattr("datransformer.experiments.demo.fit", fail)
    torch.set_num_threads(2)
    with pytest.raises(RuntimeError):
        run_demo(tmp_path, cache=tmp_path, reporter=QUIET)
    assert torch.get_num_threads() == 2


def test_a_demo_that_is_stopped_says_what_follows_and_can_be_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*arguments: object, **options: object) -> None:
        raise Interrupted("stopped after step 3; --resume goes on from there")

    monkeypatch.setattr("datransformer.experiments.demo.fit", stop)
    with pytest.raises(Interrupted, match="the demo was stopped; the next one starts anew"):
        run_demo(tmp_path, cache=tmp_path, reporter=QUIET)
    with pytest.raises(InputError, match="not the report of a demo that has ended"):
        write_demo(tmp_path)
    with pytest.raises(Interrupted):  # and not: was not made by the demo
        run_demo(tmp_path, cache=tmp_path, reporter=QUIET)
