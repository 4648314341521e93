"""Tiny trained runs, and apps around them."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest

from datransformer.data.prepare import Progress, Rows, RowSplits, prepare_texts
from datransformer.serve.app import create_app
from datransformer.serve.limits import Limits
from datransformer.train.config import RunConfig, from_dict
from datransformer.train.fit import Data, fit
from datransformer.train.predict import rows_of_texts
from datransformer.train.progress import Reporter
from datransformer.train.run import Run, load_run

WORDS = ("good", "bad")
TASKS: dict[str, dict[str, Any]] = {
    "sentence": {"task": "sentence"},
    "joint": {"task": "pair", "model": {"pair": "joint"}},
    "siamese": {"task": "pair", "model": {"pair": "siamese"}},
    "document": {"task": "document"},
    "rating": {"task": "sentence", "model": {"head": "rating"}},
}


def train_tiny(name: str, folder: Path) -> Path:
    """Train one of `TASKS` for a moment."""
    values: dict[str, Any] = {
        "task": TASKS[name]["task"],
        "model": {"embed_dim": 8, "heads": 2, "head_dim": 4, **TASKS[name].get("model", {})},
        "train": {"steps": 12, "batch_size": 8, "lr": 0.01},
        "data": {"max_length": 64},
    }
    texts = [f"a {WORDS[index % 2]} film. number {index % 7}, truly!" for index in range(60)]
    paired = texts[::-1] if values["task"] == "pair" else None
    labels = [str(1 + index % 2) if name == "rating" else WORDS[index % 2] for index in range(60)]
    plain = rows_of_texts(texts, paired)

    def read(bad_rows: Any) -> Any:
        for batch in plain.read(bad_rows):
            yield batch.append_column("label", pa.array(labels, pa.string()))

    def load(config: RunConfig, cache: Path, progress: Progress) -> Data:
        splits = RowSplits(Rows("texts", name, read), dev_rows=10)
        return prepare_texts(splits, shape=config.shape, rating=config.rating, config=config.data, cache=cache)

    config = from_dict(RunConfig, values, "settings")
    fit(config, folder / name, cache=folder / "cache", device="cpu", reporter=Reporter(enabled=False), load=load)
    return folder / name


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a run of `TASKS`, trained when it is first asked for."""
    folder, done = tmp_path_factory.mktemp("runs"), {}

    def find(name: str) -> Path:
        if name not in done:
            done[name] = train_tiny(name, folder)
        return done[name]

    return find


@pytest.fixture(scope="session")
def sentence_run(run_folder: Callable[[str], Path]) -> Run:
    return load_run(run_folder("sentence"))


Serve = Callable[..., AbstractAsyncContextManager[httpx.AsyncClient]]


@asynccontextmanager
async def serving(run: Run, limits: Limits | None = None, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client of an app in this process, started and ended as a server does."""
    app = create_app(run, limits, **options)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client,
    ):
        yield client


@pytest.fixture
def serve() -> Serve:
    return serving
