"""The paper's experiments as a plan of runs: each a normal run directory, and one small JSON file for the tables."""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.live import Live
from rich.table import Table

from datransformer.data.batches import TextBatches
from datransformer.data.errors import InputError
from datransformer.data.prepare import TextData
from datransformer.data.store import write_text
from datransformer.experiments.heads import measure_heads
from datransformer.experiments.linear import Texts, fit_linear
from datransformer.experiments.machine import commit
from datransformer.experiments.paper import RUNS as SEEDS
from datransformer.experiments.studies import LINEAR, STUDIES, VARIANTS, Planned, find_data, plan_study, studies_of
from datransformer.train.config import RunConfig, to_dict
from datransformer.train.errors import TrainingError
from datransformer.train.fit import fit, load_data
from datransformer.train.launch import launch, worker_of
from datransformer.train.progress import Reporter
from datransformer.train.run import CONFIG, load_run, read_json
from datransformer.train.tasks import Worker, answer_texts

RUNS, RESULTS, DATA = "runs", "results", "data"
LOOKED_AT = 256  # dev texts in which the attention of a trained model is measured
KEPT = (
    "metrics", "unknown_words", "best_step", "steps", "epochs", "parameters", "distances", "examples",
    "data_fingerprint", "training_seconds", "wall_seconds", "device", "versions",
)  # fmt: skip
Record = dict[str, Any]


def reproduce(
    groups: Sequence[str],
    out: Path,
    *,
    cache: Path,
    data_dir: Path | None = None,
    vectors: Path | None = None,
    seeds: int = SEEDS,
    device: str = "auto",
    reporter: Reporter | None = None,
) -> list[Record]:
    """Run what the paper's Section 4 describes; what came of every run, which also lies below ``out/results``.

    A run that is there already is not run again, one that was killed goes on, and one that fails is reported and does
    not keep the others from running.

    Args:
        groups: Keys of `GROUPS`, or ``all``.
        out: Folder for runs, results and data brought into form.
        cache: Folder for encoded data.
        data_dir: Folder with the data.
        vectors: Word vectors, random ones if None.
        seeds: How often each method is trained.
        device: ``auto``, ``cpu`` or ``cuda``.
        reporter: Gets told; None: nobody.
    """
    reporter = reporter or Reporter(enabled=False)
    plan: list[Planned] = []
    caveats: dict[str, str] = {}
    launch(device, "32-true")  # a device that is not there, or a file, should not come up after an hour
    for study in studies_of(tuple(groups)):
        found, caveats[study] = find_data(study, data_dir, out / DATA, vectors)
        plan += plan_study(study, seeds, found)
    records: list[Record] = []
    with Board(plan, reporter) as board:
        for planned in plan:
            path = out / RESULTS / f"{planned.name}.json"
            record = _read_finished(path, planned)
            if record is None:
                board.begin(planned)
                record = {"caveat": caveats[planned.study], **run_one(planned, out, cache, device)}
                path.parent.mkdir(parents=True, exist_ok=True)
                write_text(path, json.dumps(record, indent=1, ensure_ascii=False))
            records.append(record)
            board.end(planned, record)
    return records


def run_one(planned: Planned, out: Path, cache: Path, device: str) -> Record:
    """Train, test and look at one model; a failure is a result too."""
    folder = out / RUNS / planned.name
    about: Record = {
        "study": planned.study,
        "variant": planned.variant,
        "seed": planned.seed,
        "settings": settings_of(planned.config),
        "commit": commit(),
    }
    began = time.time()
    try:
        if planned.variant == LINEAR:
            return {**about, **run_linear(planned.config, cache), "wall_seconds": round(time.time() - began, 3)}
        result = fit(planned.config, folder, cache=cache, device=device, resume=(folder / CONFIG).exists())
        worker = worker_of(launch(device, planned.config.train.precision))
        looked = look_at(folder, cache, worker)
    except (InputError, TrainingError) as error:
        return {**about, "failed": str(error), "wall_seconds": round(time.time() - began, 3)}
    return {**about, **{name: result[name] for name in KEPT}, **looked}


def run_linear(config: RunConfig, cache: Path) -> Record:
    """The linear model on the words that the others get, split as theirs."""
    data = load_data(config, cache)
    assert isinstance(data, TextData)
    words = np.array(data.tokenizer.words, dtype=object)
    texts = {}
    for name, split in data.splits.items():
        assert split.labels is not None
        rows = np.split(words[np.asarray(split.tokens.values)], np.asarray(split.tokens.offsets)[1:-1])
        texts[name] = Texts([" ".join(row) for row in rows], np.asarray(split.labels).tolist())
    result = fit_linear(texts["train"], texts["dev"], texts.get("test", texts["dev"]))
    return {
        "metrics": {"dev": dict(result.dev), "test": dict(result.test)},
        "examples": {name: len(split) for name, split in data.splits.items()},
        "parameters": result.features * len(result.classes),
        "strength": result.strength,
        "answers": "".join(map(str, result.predicted.tolist())),
        "truth": "".join(map(str, result.labels.tolist())),
        "data_fingerprint": data.fingerprint,
        "device": "cpu",
    }


def settings_of(config: RunConfig) -> dict[str, Any]:
    """The settings of a run but for where its files are, which is another place on every machine."""
    values = to_dict(config)
    del values["files"]
    values["data"]["vectors"] = None if config.data.vectors is None else Path(config.data.vectors).name
    return values


def look_at(folder: Path, cache: Path, worker: Worker) -> Record:
    """The answers of a trained model to each test text, as digits, and what its attention looks like on dev texts."""
    run = load_run(folder)
    data = load_data(run.config, cache)
    if not isinstance(data, TextData):
        return {}
    run.model.to(worker.device)
    looked: Record = {}
    split = data.splits.get("test", data.splits["dev"])
    if run.labels.classes is not None and len(run.labels.classes) <= 10:
        answers = answer_texts(run.model, split, run.config, worker).argmax(1)
        assert split.labels is not None
        looked["answers"] = "".join(map(str, answers.tolist()))
        looked["truth"] = "".join(map(str, np.asarray(split.labels).tolist()))
    source = TextBatches(data.splits["dev"], run.config.shape)
    chosen = np.arange(min(LOOKED_AT, len(data.splits["dev"])))
    inputs = {name: tensor.to(worker.device) for name, tensor in source.batch(chosen, ()).inputs.items()}
    heads = measure_heads(run.model, [inputs])
    looked["heads"] = {
        name: {key: [round(number, 4) for number in numbers] for key, numbers in values.items()}
        for name, values in heads.items()
    }
    return looked


def _read_finished(path: Path, planned: Planned) -> Record | None:
    """What an earlier call left of this very run, unless it failed then."""
    if not path.is_file():
        return None
    record = read_json(path)
    same = record.get("settings") == json.loads(json.dumps(settings_of(planned.config)))
    return record if same and "failed" not in record else None


def reported(record: Record) -> dict[str, float]:
    """The metrics that count: on test, or where there is no test set on dev."""
    metrics: dict[str, dict[str, float]] = record["metrics"]
    return metrics.get("test", metrics["dev"])


class Board:
    """The tables as far as they have come: live on a terminal, a line a run elsewhere."""

    def __init__(self, plan: Sequence[Planned], reporter: Reporter) -> None:
        self._plan, self._reporter = plan, reporter
        self._records: dict[str, Record] = {}
        self._running = ""
        console: Console = reporter.console
        self._live = Live(console=console, auto_refresh=False) if reporter.enabled and console.is_terminal else None

    def __enter__(self) -> "Board":
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def begin(self, planned: Planned) -> None:
        """A run starts."""
        self._running = planned.name
        self._draw()

    def end(self, planned: Planned, record: Record) -> None:
        """A run has ended, now or in an earlier call."""
        self._records[planned.name] = record
        if self._live is None and self._running == planned.name:
            self._reporter.say(f"{len(self._records)} of {len(self._plan)}, {planned.name}: {_in_words(record)}")
        self._running = ""
        self._draw()

    def _draw(self) -> None:
        if self._live is None:
            return
        study = (self._running or self._plan[len(self._records) - 1].name).split("/")[0]
        self._live.update(self._table(study), refresh=True)

    def _table(self, study: str) -> Table:
        metrics = STUDIES[study].metrics
        title = f"{STUDIES[study].title}: {len(self._records)} of {len(self._plan)} runs done"
        table = Table("method", "runs", *metrics, title=title, caption=self._running and f"training {self._running}")
        for variant in STUDIES[study].variants:
            mine = [self._records.get(run.name) for run in self._plan if (run.study, run.variant) == (study, variant)]
            done = [reported(record) for record in mine if record is not None and "failed" not in record]
            cells = [_mean([numbers[metric] for numbers in done]) for metric in metrics]
            table.add_row(VARIANTS[variant].label, f"{len(done)}/{len(mine)}", *cells)
        return table


def _mean(values: list[float]) -> str:
    if not values:
        return ""
    spread = f" ± {np.std(values, ddof=1):.4f}" if len(values) > 1 else ""
    return f"{np.mean(values):.4f}{spread}"


def _in_words(record: Record) -> str:
    if "failed" in record:
        return f"failed: {record['failed']}"
    study = STUDIES[record["study"]]
    numbers = ", ".join(f"{name} {reported(record)[name]:.4f}" for name in study.metrics)
    return f"{numbers} ({record['wall_seconds']:.0f} s)"
