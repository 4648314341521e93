"""A run from its settings to its result: data, model, training, test, all left in one directory."""

import time
from collections.abc import Callable, Generator, MutableMapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from datransformer.data.config import DataConfig
from datransformer.data.datasets import DATASETS, Source, Splits
from datransformer.data.encode import Labels
from datransformer.data.errors import BadRows, InputError
from datransformer.data.news import NewsData, prepare_news
from datransformer.data.prepare import (
    Progress,
    RowSplits,
    TextData,
    file_rows,
    no_progress,
    prepare_texts,
    probe_rows,
)
from datransformer.data.probe import Probe
from datransformer.data.readers import Columns
from datransformer.data.store import Array, Ragged
from datransformer.data.tokenizer import SEPARATOR, SPECIAL, UNKNOWN, WordTokenizer
from datransformer.data.vectors import WordVectors, read_vectors
from datransformer.models.build import build_model
from datransformer.models.config import ModelConfig
from datransformer.ops.mapping import MAPPINGS
from datransformer.train.config import RunConfig, to_dict
from datransformer.train.graphs import Packed, own_stream
from datransformer.train.launch import launch, worker_of
from datransformer.train.loop import exhaust, train
from datransformer.train.progress import Reporter
from datransformer.train.run import (
    CONFIG,
    RESULT,
    VOCAB,
    clear_folder,
    finish_folder,
    learned_distances,
    load_config,
    load_run,
    locked,
    read_fingerprint,
    start_folder,
    versions,
)
from datransformer.train.tasks import RecommendTask, Task, TextTask, Worker

Data = TextData | NewsData
CHUNK = 1 << 20  # tokens that are looked at at a time: they may lie in a file
UNKNOWN_HINT = 0.1  # a share of unknown words that is worth a line


@dataclass(frozen=True)
class Fitted:
    """A run that has ended.

    Args:
        result: The content of its ``result.json``.
        model: With the best weights, where it was trained.
        task: With its data.
        words: Tokens by their ids.
        worker: Where it was trained.
    """

    result: dict[str, Any]
    model: nn.Module
    task: Task
    words: Sequence[str]
    worker: Worker


@dataclass(frozen=True)
class Sources:
    """Where a run's data come from; a caller with many runs on the same data keeps them between two.

    Args:
        load: Brings the rows.
        vectors: Reads word vectors.
        packed: Batches for a GPU that runs with the same rows, batches and seed share; None: each makes its own.
    """

    load: Callable[[RunConfig, Path, Progress], Data]
    vectors: Callable[..., WordVectors] = read_vectors
    packed: Callable[[RunConfig], MutableMapping[tuple[int, int], Packed]] | None = None


def fit(
    config: RunConfig,
    folder: Path,
    *,
    cache: Path,
    device: str = "auto",
    reporter: Reporter | None = None,
    resume: bool = False,
    overwrite: bool = False,
    keep_width: bool = False,
    load: Callable[[RunConfig, Path, Progress], Data] | None = None,
    on_step: Callable[[int], None] | None = None,
) -> dict[str, Any]:
    """Train as ``config`` says and leave the run in ``folder``; the content of its ``result.json``.

    Args:
        config: All settings.
        folder: The run directory.
        cache: Folder for encoded data, shared by all runs.
        device: ``auto``, ``cpu`` or ``cuda``.
        reporter: Gets told; None: nobody.
        resume: Go on with the run that ``folder`` holds.
        overwrite: Replace the run that ``folder`` holds.
        keep_width: Refuse word vectors of another width than the model's, which otherwise takes theirs.
        load: Brings the data; None: from the files that ``config`` names.
        on_step: Called with the number of each step that is done.
    """
    steps = fit_stepwise(
        config,
        folder,
        cache=cache,
        device=device,
        reporter=reporter,
        resume=resume,
        overwrite=overwrite,
        keep_width=keep_width,
        sources=None if load is None else Sources(load),
        on_step=on_step,
    )
    with own_stream():
        return exhaust(steps).result


def fit_stepwise(
    config: RunConfig,
    folder: Path,
    *,
    cache: Path,
    device: str = "auto",
    reporter: Reporter | None = None,
    resume: bool = False,
    overwrite: bool = False,
    keep_width: bool = False,
    sources: Sources | None = None,
    on_step: Callable[[int], None] | None = None,
    asked: Callable[[], bool] | None = None,
) -> Generator[None, None, Fitted]:
    """As `fit`, but yields after every step, so that several runs can take turns in one process.

    With CUDA each needs a stream of its own, current whenever it is its turn.

    Args:
        config: All settings.
        folder: The run directory.
        cache: Folder for encoded data, shared by all runs.
        device: ``auto``, ``cpu`` or ``cuda``.
        reporter: Gets told; None: nobody.
        resume: Go on with the run that ``folder`` holds.
        overwrite: Replace the run that ``folder`` holds.
        keep_width: Refuse word vectors of another width than the model's, which otherwise takes theirs.
        sources: Bring the data; None: from the files that ``config`` names.
        on_step: Called with the number of each step that is done.
        asked: Whether to stop, asked after every step; None: whether a signal came.
    """
    reporter = reporter or Reporter(enabled=False)
    sources = sources or Sources(load_data)
    _check_folder(folder, config, resume, overwrite)
    fabric = launch(device, config.train.precision, unused_parameters=_has_idle_parameters(config.model))
    with locked(folder) if fabric.is_global_zero else nullcontext():
        return (
            yield from _fit(
                config, folder, cache, fabric, reporter, resume, overwrite, keep_width, sources, on_step, asked
            )
        )


def _fit(
    config: RunConfig,
    folder: Path,
    cache: Path,
    fabric: Fabric,
    reporter: Reporter,
    resume: bool,
    overwrite: bool,
    keep_width: bool,
    sources: Sources,
    on_step: Callable[[int], None] | None,
    asked: Callable[[], bool] | None,
) -> Generator[None, None, Fitted]:
    began = time.time()
    reporter.enabled = reporter.enabled and fabric.is_global_zero
    with reporter.live(), fabric.rank_zero_first(local=True):
        data = sources.load(config, cache, reporter.stage)
    for note in data.notes:
        reporter.say(note)
    if resume and (folder / CONFIG).exists():
        before = read_fingerprint(folder)
        if before != data.fingerprint:
            raise InputError(f"{folder}: the data are not those that the run began with, expected the same files")
        if (folder / RESULT).exists():
            reporter.say(f"{folder}: training has ended already")
            run = load_run(folder)
            model = run.model.to(fabric.device)
            return Fitted(
                dict(run.result), model, build_task(data, run.config), data.tokenizer.words, worker_of(fabric)
            )

    torch.manual_seed(config.train.seed)
    vectors = None
    if config.model.freeze_vectors and config.data.vectors is None:
        reporter.say("model.freeze_vectors: there are no --vectors, so that random ones stay as they are")
    if config.model.freeze_vectors and config.train.vector_rate != 1:
        reporter.say("train.vector_rate: model.freeze_vectors keeps word vectors as they are, at any rate")
    if config.data.vectors is not None:
        with reporter.live():
            vectors, note = _read_vectors(config.data, data, sources.vectors, reporter.stage)
        reporter.say(note)
        if resume and (folder / CONFIG).exists() and load_config(folder).model.embed_dim != vectors.shape[1]:
            raise InputError(f"{config.data.vectors}: {vectors.shape[1]}-d vectors, expected the width of the run")
        if keep_width and config.model.embed_dim != vectors.shape[1]:
            raise InputError(
                f"model.embed_dim: got {config.model.embed_dim}, but the vectors of {config.data.vectors} are "
                f"{vectors.shape[1]} wide; expected {vectors.shape[1]}, or no such setting"
            )
        config = replace(config, model=replace(config.model, embed_dim=vectors.shape[1]))
    labels = data.labels if isinstance(data, TextData) else Labels(None)
    classes = len(labels.classes or ())
    try:
        model = build_model(config.task, data.tokenizer.size, classes, config.model)
    except (TypeError, ValueError, RuntimeError, MemoryError) as error:
        raise InputError(f"model: {error}") from error
    if vectors is not None:
        _place_vectors(model, vectors)
    task = build_task(data, config)
    task.start(model)
    if fabric.is_global_zero and not (resume and (folder / CONFIG).exists()):
        if overwrite:
            clear_folder(folder)
        start_folder(folder, config, data.tokenizer, labels, data.fingerprint)
    fabric.barrier()
    reporter.say(_describe(config, data, model, fabric))

    outcome = yield from train(
        task,
        model,
        config.train,
        folder,
        fabric,
        reporter=reporter,
        resume=resume,
        packed=None if sources.packed is None else sources.packed(config),
        on_step=on_step,
        asked=asked,
    )
    metrics = {"dev": outcome.dev}
    if "test" in data.splits:
        with reporter.live():
            metrics["test"] = task.evaluate(model, "test", worker_of(fabric), reporter.stage)
    unknown = unknown_words(data)
    for name, share in unknown.items():
        if share > UNKNOWN_HINT:
            reporter.say(
                f"{share:.0%} of the words in {name} are not in the vocabulary; {_remedy(config.data, data)} may help"
            )
    state = outcome.state
    result = {
        "metrics": metrics,
        "unknown_words": unknown,
        "best_step": state.best_step,
        "steps": state.step,
        "epochs": state.epoch,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "distances": learned_distances(model),
        "examples": {name: len(split) for name, split in data.splits.items()},
        "notes": list(data.notes),
        "data_fingerprint": data.fingerprint,
        "training_seconds": round(state.seconds, 3),
        "wall_seconds": round(time.time() - began, 3),
        "tokens_per_second": round(state.tokens / max(state.seconds, 1e-9), 1),
        "waiting_share": round(state.waited / max(state.seconds, 1e-9), 5),
        "device": _device_name(fabric),
        "processes": fabric.world_size,
        "versions": versions(),
    }
    if fabric.is_global_zero:
        finish_folder(folder, result)
    fabric.barrier()
    return Fitted(result, model, task, data.tokenizer.words, worker_of(fabric))


def _remedy(config: DataConfig, data: Data) -> str:
    """What brings more words into the vocabulary."""
    if config.tokenizer != "words":
        return "a --tokenizer with more of them"
    if config.min_count > 1:
        return "a lower data.min_count"
    if data.tokenizer.size - len(SPECIAL) >= config.vocabulary:
        return "a larger data.vocabulary"
    if config.vectors is None:
        return "more rows, or a --tokenizer that cuts words into pieces,"
    return "more rows, or more word vectors," if config.vector_words else "more rows, or --set data.vector_words=true,"


def load_data(config: RunConfig, cache: Path, progress: Progress = no_progress) -> Data:
    """Read and encode the files that ``config`` names."""
    splits = find_splits(config)
    if isinstance(splits, Splits) and config.task == "recommend":
        folders = [source.path if source else None for source in (splits.train[0], splits.dev, splits.test)]
        train_folder, dev, test = folders
        assert train_folder is not None
        return prepare_news(train_folder, dev, test, config=config.data, cache=cache, progress=progress)
    if isinstance(splits, Splits):
        train_rows, dev_rows, test_rows = (
            None if source is None else file_rows(source, progress)
            for source in (splits.train[0], splits.dev, splits.test)
        )
        assert train_rows is not None
        splits = RowSplits(
            train_rows,
            dev_rows,
            test_rows,
            train_rows=splits.train_rows,
            dev_rows=config.data.dev_share if splits.dev_rows is None else splits.dev_rows,
            test_rows=splits.test_rows,
            keep_labels=splits.keep_labels,
        )
    return prepare_texts(
        splits, shape=config.shape, rating=config.rating, config=config.data, cache=cache, progress=progress
    )


def find_splits(config: RunConfig) -> Splits | RowSplits:
    """Which files, or which generated rows, make up train, dev and test."""
    files, data = config.files, config.data
    if files.dataset is not None and files.train:
        raise InputError(f"--dataset {files.dataset} and --train {files.train[0]}: expected one of them")
    if files.dataset == "probe":
        if config.task != "sentence":
            raise InputError(f"task: got {config.task!r}, but the probe is made of sentences; expected 'sentence'")
        sizes = (PROBE_ROWS, PROBE_ROWS // 10, PROBE_ROWS // 10)
        train_rows, dev_rows, test_rows = (probe_rows(Probe(rows=rows, seed=seed)) for seed, rows in enumerate(sizes))
        return RowSplits(train_rows, dev_rows, test_rows)
    if files.dataset is not None:
        if files.dataset not in DATASETS:
            known = ", ".join(["probe", *DATASETS])
            raise InputError(f"--dataset: got {files.dataset!r}, expected one of: {known}")
        found = DATASETS[files.dataset].find(Path(files.data_dir or "."))
        if found.task != config.task:
            raise InputError(f"task: got {config.task!r}, but {files.dataset} is for the task {found.task!r}")
        return found
    if not files.train:
        raise InputError("--train: got nothing, expected a file to train on, or --dataset")
    columns = columns_of(data, config.task)
    sources = [Source(Path(path), columns, data.format) for path in files.train]
    if len(sources) > 1:
        raise InputError(f"--train: got {len(sources)} files, expected one")
    dev, test = (None if path is None else Source(Path(path), columns, data.format) for path in (files.dev, files.test))
    return Splits(config.task, (sources[0],), dev, test)


PROBE_ROWS = 10_000


def columns_of(data: DataConfig, task: str, *, labelled: bool = True) -> Columns:
    """The columns that a task reads."""
    if task == "pair" and data.text_pair_column is None and data.format in ("auto", "csv", "tsv", "jsonl", "parquet"):
        raise InputError("--text-pair-column: got nothing, expected the column of the second text: the task is 'pair'")
    if task != "pair" and data.text_pair_column is not None:
        raise InputError(f"--text-pair-column: got {data.text_pair_column!r}, expected it with --task pair only")
    pair = data.text_pair_column if task == "pair" else None
    return Columns(data.text_columns, pair, data.label_column if labelled else None)


def build_task(data: Data, config: RunConfig) -> Task:
    """The task of a run with its data."""
    return RecommendTask(data, config) if isinstance(data, NewsData) else TextTask(data, config)


def _check_folder(folder: Path, config: RunConfig, resume: bool, overwrite: bool) -> None:
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: is a file, expected a folder for the run")
    if (folder / CONFIG).exists():
        if not (resume or overwrite):
            raise InputError(
                f"{folder}: holds a run already; --resume goes on with it, --overwrite replaces it, "
                "or choose another --out"
            )
        if resume:
            before, now = to_dict(load_config(folder)), to_dict(config)
            if config.data.vectors is not None:  # they bring their own width, which is checked when they are read
                now["model"]["embed_dim"] = before["model"]["embed_dim"]
            changed = differences(before, now)
            if changed:
                raise InputError(f"{folder}: --resume with another {changed[0]}, expected the settings of the run")
    elif folder.exists() and any(path for path in folder.iterdir() if not (resume and path.name == VOCAB)):
        # A run that was killed before it had begun has a vocabulary and nothing else.
        raise InputError(f"{folder}: holds files that are not a run, expected an empty or new folder")


def differences(before: dict[str, Any], now: dict[str, Any], prefix: str = "") -> list[str]:
    """Which settings are unlike, in words."""
    changed = []
    for key in before | now:
        old, new = before.get(key), now.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            changed += differences(old, new, f"{prefix}{key}.")
        elif new != old:
            changed.append(f"{prefix}{key} ({new!r}, was {old!r})")
    return changed


def _has_idle_parameters(config: ModelConfig) -> bool:
    """Whether the chosen mapping leaves v unused, in which case v gets no gradient."""
    if config.attention != "distance_aware":
        return False
    shift = torch.zeros(1, requires_grad=True)
    mapping = config.attention_options.get("mapping", "learnable_sigmoid")
    return (
        isinstance(mapping, str) and mapping in MAPPINGS and not MAPPINGS[mapping](torch.zeros(1), shift).requires_grad
    )


def _read_vectors(
    config: DataConfig, data: Data, read: Callable[..., WordVectors], progress: Progress
) -> tuple[Tensor, str]:
    """A row for every token id, random where the file has none, and how much of the text it covers."""
    assert config.vectors is not None
    path = Path(config.vectors)
    bad_rows = BadRows(skip=config.bad_rows == "skip")
    words = data.tokenizer.words[len(SPECIAL) :]
    found = read(path, words, bad_rows, progress=lambda done, total: progress(f"reading {path.name}", done, total))
    spread = float(found.rows[found.found].std()) if int(found.found.sum()) > 1 else 1.0
    rows = torch.randn(data.tokenizer.size, found.rows.shape[1]) * spread
    rows[len(SPECIAL) :][found.found] = found.rows[found.found]
    known = np.concatenate(([False] * len(SPECIAL), found.found.numpy()))
    counts = _count_tokens(data, "train")
    share = counts[known].sum() / max(counts[len(SPECIAL) - 2 :].sum(), 1)
    note = (
        f"{path.name}: {found.rows.shape[1]}-d vectors for {int(found.found.sum()):,} of {len(words):,} words, "
        f"{share:.1%} of the training tokens"
    )
    return rows, "; ".join([note, *bad_rows.lines()])


def unknown_words(data: Data) -> dict[str, float]:
    """Which share of the words of dev and test is not in the vocabulary; a tokenizer of one's own may have no such."""
    if not isinstance(data.tokenizer, WordTokenizer):
        return {}
    return {name: round(unknown_share(_tokens_of(data, name)), 4) for name in data.splits if name != "train"}


def unknown_share(tokens: Array) -> float:
    """Which share of the words is not in the vocabulary; a separator is no word."""
    unknown = words = 0
    for start in range(0, len(tokens), CHUNK):
        part = tokens[start : start + CHUNK]
        unknown += int(np.count_nonzero(part == UNKNOWN))
        words += int(np.count_nonzero(part != SEPARATOR))
    return unknown / max(words, 1)


def _count_tokens(data: Data, split: str) -> npt.NDArray[np.int64]:
    tokens = _tokens_of(data, split)
    counts = np.zeros(data.tokenizer.size, np.int64)
    for start in range(0, len(tokens), CHUNK):
        counts += np.bincount(tokens[start : start + CHUNK], minlength=len(counts))
    return counts


def _tokens_of(data: Data, split: str) -> Array:
    ragged: Ragged = data.splits[split].tokens if isinstance(data, TextData) else data.splits[split].titles
    return ragged.values


def _place_vectors(model: nn.Module, vectors: Tensor) -> None:
    weight = model.get_parameter("text.embedding.weight")
    with torch.no_grad():
        weight.copy_(vectors)
        weight[0].zero_()  # padding


def _describe(config: RunConfig, data: Data, model: nn.Module, fabric: Fabric) -> str:
    rows = ", ".join(f"{name} {len(split):,}" for name, split in data.splits.items())
    size = sum(parameter.numel() for parameter in model.parameters())
    return (
        f"{config.task}, {config.model.attention}: {rows}; {data.tokenizer.size:,} token ids, {size:,} parameters, "
        f"on {_device_name(fabric)}" + (f" × {fabric.world_size}" if fabric.world_size > 1 else "")
    )


def _device_name(fabric: Fabric) -> str:
    if fabric.device.type == "cuda":
        return torch.cuda.get_device_name(fabric.device)
    return fabric.device.type
