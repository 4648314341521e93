"""The real data sets, end to end through the command line: ``pytest -m slow --data-dir FOLDER`` (see CONTRIBUTING)."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from datransformer.experiments.pieces import all_news, write_mind

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture
def data_dir(request: pytest.FixtureRequest) -> Path:
    folder = request.config.getoption("--data-dir")
    if folder is None:
        pytest.skip("needs --data-dir")
    return Path(folder)


def command(*arguments: object) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "datransformer", *map(str, arguments)], stdout=subprocess.PIPE, text=True
    )
    assert done.returncode == 0
    return done.stdout


def train(folder: Path, out: Path, *arguments: object) -> dict[str, Any]:
    vectors = folder / "glove" / "vectors.f16.npy"
    command("train", *arguments, "--vectors", vectors, "--out", out, "--cache-dir", out.parent / "cache")
    result: dict[str, Any] = json.loads((out / "result.json").read_text())
    assert result["waiting_share"] < 0.05
    return result


def evaluate(out: Path, *arguments: object) -> dict[str, float]:
    metrics: dict[str, float] = json.loads(command("evaluate", out, *arguments, "--json"))
    return metrics


def test_ag(data_dir: Path, tmp_path: Path) -> None:
    folder = data_dir / "ag_news"
    columns = ("--text-column", "title", "--text-column", "description")
    train(data_dir, tmp_path / "run", "--train", folder / "train_subset.parquet", *columns, "--text-column", "text",
          "--epochs", 1)  # fmt: skip
    assert evaluate(tmp_path / "run", "--data", folder / "test.parquet", *columns)["accuracy"] > 0.88


def test_sst(data_dir: Path, tmp_path: Path) -> None:
    folder = data_dir / "sst"
    result = train(
        data_dir, tmp_path / "run", "--train", folder / "train.parquet", "--dev", folder / "dev.parquet",
        "--test", folder / "test.parquet", "--label-column", "label2", "--bad-rows", "skip", "--epochs", 3,
    )  # fmt: skip
    assert result["examples"] == {"train": 6920, "dev": 872, "test": 1821}
    assert result["metrics"]["test"]["accuracy"] > 0.77


@pytest.mark.parametrize("form", ["joint", "siamese"])
def test_snli(data_dir: Path, tmp_path: Path, form: str) -> None:
    folder = data_dir / "snli"
    result = train(
        data_dir, tmp_path / "run", "--task", "pair", "--pair", form, "--train", folder / "train_subset.parquet",
        "--dev", folder / "dev.parquet", "--test", folder / "test.parquet", "--text-column", "premise",
        "--text-pair-column", "hypothesis", "--epochs", 1,
    )  # fmt: skip
    assert result["metrics"]["test"]["accuracy"] > 0.55


@pytest.mark.parametrize(("head", "metric", "bound"), [("class", "accuracy", -0.5), ("rating", "rmse", 1.2)])
def test_amazon(data_dir: Path, tmp_path: Path, head: str, metric: str, bound: float) -> None:
    result = train(
        data_dir, tmp_path / "run", "--task", "document", "--head", head, "--train",
        data_dir / "amazon_reviews" / "reviews_1to5.parquet", "--label-column", "stars", "--epochs", 1,
    )  # fmt: skip
    value = result["metrics"]["dev"][metric]
    assert (value if bound > 0 else -value) < bound


def test_yelp(data_dir: Path, tmp_path: Path) -> None:
    result = train(
        data_dir, tmp_path / "run", "--task", "document", "--train", data_dir / "yelp_stars" / "yelp.parquet",
        "--label-column", "stars", "--epochs", 2,
    )  # fmt: skip
    assert result["metrics"]["dev"]["accuracy"] > 0.45


def test_mind(data_dir: Path, tmp_path: Path) -> None:
    news = all_news(data_dir / "mind")
    impressions = {
        name: pq.read_table(data_dir / "mind" / f"{name}.parquet")
        for name in ("behaviors_train", "behaviors_dev_pieces")
    }
    dev = impressions["behaviors_dev_pieces"]
    whole = dev.filter(pc.equal(dev["candidates"], "full"))
    train_folder = write_mind(tmp_path / "train", news, impressions["behaviors_train"])
    dev_folder = write_mind(tmp_path / "dev", news, whole)
    result = train(
        data_dir, tmp_path / "run", "--task", "recommend", "--train", train_folder, "--dev", dev_folder, "--epochs", 1,
        "--set", "data.max_history=20", "--set", "data.max_title_length=16",
    )  # fmt: skip
    assert result["metrics"]["dev"]["auc"] > 0.52
    command("predict", tmp_path / "run", "--data", dev_folder, "--out", tmp_path / "prediction.txt")
    assert len((tmp_path / "prediction.txt").read_text().splitlines()) == len(whole)
