import importlib.util
import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from rich.console import Console

from datransformer.data.errors import BadRows, InputError
from datransformer.data.mind import read_behaviors, read_news
from datransformer.data.prepare import TextData
from datransformer.data.readers import Columns, read_rows
from datransformer.experiments import bench_train as bench
from datransformer.experiments import machine
from datransformer.experiments.machine import commit
from datransformer.models.build import build_model
from datransformer.models.config import ModelConfig
from datransformer.train.config import FileConfig, RunConfig
from datransformer.train.fit import load_data
from datransformer.train.launch import launch

TINY = bench.Sizes(rows=700, warm_up=1, steps=2, turns=2, encoded=200, growth=(150,))
SMALL = ModelConfig(heads=2, head_dim=3, embed_dim=6, feedforward_dim=10)
HUGGING_FACE = ("transformers", "accelerate")
THREADS = (pa.cpu_count(), pa.io_thread_count())


@pytest.fixture(scope="module")
def patched() -> Iterator[pytest.MonkeyPatch]:
    """Small models, small files, and no Hugging Face, which takes long to import."""
    find_spec = importlib.util.find_spec
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench, "QUICK", TINY)
        patch.setattr(bench, "NEWS_ITEMS", 70)
        entries = {key: replace(entry, model=SMALL) for key, entry in bench.ENTRIES.items()}
        patch.setattr(bench, "ENTRIES", entries)
        for module in (bench, machine):
            patch.setattr(module, "find_spec", lambda name: None if name in HUGGING_FACE else find_spec(name))
        yield patch


@pytest.fixture(scope="module")
def measured(patched: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    torch.set_num_threads(1)
    path = tmp_path_factory.mktemp("bench") / "result.json"
    told: list[str] = []
    result = bench.bench_train(path, device="cpu", quick=True, tell=told.append)
    assert len(told) == 2 + 3 + 2  # turns, kinds of texts, kinds that grow
    return path, result


@pytest.fixture
def result(measured: tuple[Path, dict[str, Any]]) -> dict[str, Any]:
    return measured[1]


def test_the_file_holds_what_is_returned(measured: tuple[Path, dict[str, Any]]) -> None:
    path, result = measured
    assert json.loads(path.read_text(encoding="utf-8")) == result
    assert result["quick"] is True
    assert result["versions"]["torch"] == torch.__version__
    assert "transformers" not in result["versions"]
    assert result["commit"] == commit()


def test_training_compares_models_of_one_size(result: Mapping[str, Any]) -> None:
    training = result["training"]
    rows = training["rows"]
    assert list(rows) == ["ours", "torch", "trainer", "ours_300"]
    # Eq. 6 has two numbers a head more.
    assert rows["ours"]["parameters"] == rows["torch"]["parameters"] + 2 * SMALL.heads
    assert rows["trainer"]["skipped"] == "not installed: transformers, accelerate"
    for key in ("ours", "torch", "ours_300"):
        assert len(rows[key]["turns"]) == 2
        assert rows[key]["tokens_per_second"] > 0
    assert 0 < rows["ours"]["waiting_share"] < 1
    assert rows["torch"]["waiting_share"] is None
    assert training["ratios"].keys() == {"torch"}
    ratios = [one / other for one, other in zip(rows["ours"]["turns"], rows["torch"]["turns"], strict=True)]
    assert training["ratios"]["torch"] == pytest.approx(np.median(ratios), rel=0.01)
    assert 35 < training["mean_tokens"] < 50


def test_encoding_and_growth_are_counted(result: Mapping[str, Any]) -> None:
    assert [(row["kind"], row["texts"]) for row in result["encoding"]] == [
        ("short", 200),
        ("accents", 200),
        ("news", 50),
    ]
    assert all(row["texts_per_cpu_second"] > 0 for row in result["encoding"])
    assert result["growth"].keys() == bench.KINDS.keys()
    for rows in result["growth"].values():
        (row,) = rows
        assert row["count"] == 150
        assert row["batches"] == 3  # 135 rows to train on, 64 a batch
        assert row["tokens"] > 135
        assert min(row["per_second"], row["per_cpu_second"], row["batches_per_second"]) > 0
        assert row["peak_rss_mib"] >= row["base_rss_mib"] > 50
        assert row["peak_anonymous_mib"] is None or row["peak_rss_mib"] > row["peak_anonymous_mib"] > 10
    assert (pa.cpu_count(), pa.io_thread_count()) == THREADS


def test_targets_say_what_was_met() -> None:
    sizes = [
        {"count": 10, "per_cpu_second": 100, "peak_rss_mib": 100, "peak_anonymous_mib": None},
        {"count": 20, "per_cpu_second": 80, "peak_rss_mib": 114, "peak_anonymous_mib": None},
    ]
    result = {
        "training": {"ratios": {"torch": 0.9}, "rows": {"ours": {"waiting_share": 0.06}}},
        "encoding": [{"kind": "short", "texts_per_cpu_second": 100_001}],
        "growth": {"texts": sizes},
    }
    targets = bench.list_targets(result)
    assert [target["met"] for target in targets] == [True, None, False, True, False, True, None]
    assert [target["reached"] for target in targets] == [0.9, None, 0.06, 100_001, 0.8, 1.14, None]
    assert len(bench.list_targets({**result, "growth": None})) == 4


def test_tables_have_every_number(result: Mapping[str, Any]) -> None:
    text = io.StringIO()
    Console(file=text, width=150).print(bench.bench_table(result))
    markdown = bench.growth_markdown(result)
    for shown in (text.getvalue(), markdown):
        assert f"{result['training']['rows']['ours']['tokens_per_second']:,}" in shown
        assert "not installed: transformers" in shown
    for rows in result["growth"].values():
        assert f"{rows[0]['per_cpu_second']:,}" in markdown
    columns = {line.count("|") for table in markdown.split("\n\n")[1:2] for line in table.splitlines()}
    assert len(columns) == 1
    assert "not measured" in text.getvalue()
    assert bench.growth_markdown({**result, "growth": None}).count("\n\n") == 2


def test_generated_texts_are_read_as_rows(tmp_path: Path) -> None:
    path = tmp_path / "texts.csv"
    bench.write_texts(path, 307, 10, accents=True)
    table = pa.Table.from_batches(read_rows(path, Columns(), BadRows()))
    assert table.num_rows == 307
    assert set(table["label"].to_pylist()) == set(bench.CLASSES)
    texts = table["text"].to_pylist()
    assert 8 < np.mean([len(text.split()) for text in texts]) < 12
    assert sum("é" in text for text in texts) == 4
    bench.write_texts(tmp_path / "again.csv", 307, 10, accents=True)
    assert (tmp_path / "again.csv").read_bytes() == path.read_bytes()


def test_generated_impressions_are_read_as_mind(patched: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bench.write_impressions(tmp_path, 211)
    (news,) = read_news(tmp_path / "news.tsv", BadRows())
    assert len(news[0]) == 70
    (behaviors,) = read_behaviors(tmp_path / "behaviors.tsv", BadRows())
    assert len(behaviors) == 211
    assert behaviors.clicked is not None
    assert (np.add.reduceat(behaviors.clicked, behaviors.candidate_offsets[:-1]) == 1).all()
    assert set(behaviors.candidates.to_pylist()) | set(behaviors.history.to_pylist()) <= set(news[0])
    for offsets in (behaviors.candidate_offsets, behaviors.history_offsets):
        assert 17 < np.diff(offsets).mean() < 23


def test_the_torch_model_ignores_padding() -> None:
    model = bench.TorchModel(11, 3, SMALL).eval()
    tokens = torch.tensor([[3, 4, 5], [6, 7, 0]])
    torch.testing.assert_close(model(tokens)[1:], model(tokens[1:, :2]))


@pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None or importlib.util.find_spec("accelerate") is None,
    reason="transformers and accelerate are not installed",
)
@pytest.mark.filterwarnings("ignore")
def test_hugging_face_takes_the_same_rows(patched: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bench.write_texts(tmp_path / "texts.csv", 300, 10)
    config = RunConfig(files=FileConfig(train=(str(tmp_path / "texts.csv"),)), model=SMALL)
    data = load_data(config, tmp_path / "cache")
    assert isinstance(data, TextData)
    turn = bench.hugging_face(bench.Race(data, config, launch("cpu"), 1, 2), 0)
    rows = 2 * config.train.batch_size
    assert 0.8 < turn.tokens / rows / data.splits["train"].tokens.lengths.mean() < 1.2
    assert turn.seconds > 0
    ours = build_model("sentence", data.tokenizer.size, len(bench.CLASSES), SMALL)
    assert turn.parameters == pytest.approx(sum(p.numel() for p in ours.parameters()), rel=0.3)


def test_a_file_that_cannot_be_written_is_named(
    patched: pytest.MonkeyPatch, measured: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _, result = measured
    monkeypatch.setattr(bench, "measure_training", lambda *arguments: result["training"])
    monkeypatch.setattr(bench, "measure_encoding", lambda *arguments: result["encoding"])
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"result\.json: cannot be written"):
        bench.bench_train(tmp_path / "file" / "result.json", device="cpu", growth=False, tell=lambda line: None)


def test_a_process_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"texts, 7: .*texts\.csv"):
        bench._in_own_process("texts", tmp_path, 7)
