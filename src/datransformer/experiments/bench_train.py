"""How fast training is: beside torch's own encoder and Hugging Face's Trainer, from file to ids, and as files grow.

All texts are generated: words drawn as often as in real text, of lengths as in news. Speeds count tokens that are not
padding. Who is compared takes turns, and a ratio is the median over the turns. What runs on a CPU runs on one thread,
and the seconds are those that the thread has worked, so that other work on the machine changes little.
"""

import gc
import importlib
import json
import statistics
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import torch
from lightning_fabric import Fabric
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional as F

from datransformer.data.batches import Batch, TextBatches, plan_batches
from datransformer.data.config import DataConfig
from datransformer.data.errors import InputError
from datransformer.data.news import BEHAVIORS, NEWS
from datransformer.data.prepare import TextData
from datransformer.data.store import write_text
from datransformer.experiments.machine import commit, machine, markdown, versions_of
from datransformer.models.build import build_model
from datransformer.models.config import ModelConfig
from datransformer.nn.pooling import POOLINGS
from datransformer.train.config import FileConfig, RunConfig, TrainConfig
from datransformer.train.fit import build_task, load_data
from datransformer.train.graphs import own_stream
from datransformer.train.launch import launch
from datransformer.train.loop import exhaust, train
from datransformer.train.progress import Reporter
from datransformer.train.run import versions
from datransformer.train.tasks import TextTask

VOCABULARY = 20_000
CLASSES = ("business", "science", "sports", "world")
SHORT, NEWS_LIKE = 10, 40  # words of a text, on average
NEWS_ITEMS, CANDIDATES, HISTORY = 50_000, 20, 20
BLOCK = 20_000  # rows that are generated at once

FIRST_BATCHES = 200
TORCH_TARGET, TRAINER_TARGET, WAITING_TARGET, ENCODING_TARGET, GROWTH_TARGET = 0.9, 2.0, 0.05, 100_000, 0.15


@dataclass(frozen=True)
class Sizes:
    """How much is measured.

    Args:
        rows: Texts to train on.
        warm_up: Steps of a turn that are not counted.
        steps: Counted steps of a turn.
        turns: Turns of each contestant.
        encoded: Short texts to encode; a quarter as many that are news-like.
        growth: Texts, or impressions, of the files that grow.
    """

    rows: int = 20_000
    warm_up: int = 5
    steps: int = 20
    turns: int = 9
    encoded: int = 200_000
    growth: tuple[int, ...] = (10_000, 100_000, 1_000_000)


FULL = Sizes()
FULL_GPU = replace(FULL, warm_up=60, steps=180)  # steps are short there, and in the first ones graphs are captured
QUICK = Sizes(rows=1000, warm_up=1, steps=3, turns=1, encoded=2000, growth=(1000, 5000))


def bench_train(
    out: Path | None, *, device: str, quick: bool = False, growth: bool = True, tell: Callable[[str], None]
) -> dict[str, Any]:
    """Measure everything, write it to ``out`` as JSON, and return it.

    Args:
        out: The file to write; None: none.
        device: ``auto``, ``cpu`` or ``cuda``, where to train.
        quick: Sizes that show that it works, and mean nothing.
        growth: Whether to measure how speed and memory change with the size of the files, which takes minutes.
        tell: Gets a line now and then.
    """
    fabric = launch(device)
    sizes = QUICK if quick else FULL_GPU if fabric.device.type == "cuda" else FULL
    with TemporaryDirectory(prefix="datransformer-bench-") as name, _one_thread():
        folder = Path(name)
        result: dict[str, Any] = {
            "quick": quick,
            "machine": machine(fabric.device),
            "versions": {**versions(), **versions_of("transformers", "accelerate")},
            "commit": commit(),
            "training": measure_training(folder, fabric, sizes, tell),
            "encoding": measure_encoding(folder, sizes, tell),
            "growth": measure_growth(folder, sizes, tell) if growth else None,
        }
    result["targets"] = list_targets(result)
    if out is not None:
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            write_text(out, json.dumps(result, indent=2))
        except OSError as error:
            raise InputError(f"{out}: cannot be written ({error.strerror or error})") from error
    return result


# Training


class Clock:
    """The time that the counted steps take: ``steps`` of them after ``warm_up``; on a CPU, of the CPU.

    Args:
        device: What to wait for before looking at the clock.
        warm_up: How many steps are not counted.
        steps: How many steps are counted.
    """

    def __init__(self, device: torch.device, warm_up: int, steps: int) -> None:
        self._device = device
        self._ends = (warm_up, warm_up + steps)
        self._times: list[float] = []
        self.total = warm_up + steps + 1  # after the last step our loop measures on dev and writes a checkpoint

    def tick(self, step: int) -> None:
        """Step number ``step``, from 1, is done."""
        if step in self._ends:
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)
            self._times.append(time.process_time() if self._device.type == "cpu" else time.perf_counter())

    @property
    def seconds(self) -> float:
        """How long they took."""
        start, end = self._times
        return end - start


@dataclass(frozen=True)
class Turn:
    """One turn of one contestant.

    Args:
        tokens: Tokens of the counted steps, padding left out.
        seconds: How long these took.
        parameters: Size of the model.
        waiting: Share of the time spent waiting for data, where that is known.
    """

    tokens: int
    seconds: float
    parameters: int
    waiting: float | None = None


@dataclass(frozen=True)
class Race:
    """What all contestants of a race share.

    Args:
        data: The texts.
        config: Model and training.
        fabric: Where.
        warm_up: Steps of a turn that are not counted.
        steps: Counted steps of a turn.
    """

    data: TextData
    config: RunConfig
    fabric: Fabric
    warm_up: int
    steps: int

    def plan(self, seed: int) -> list[npt.NDArray[np.int64]]:
        """The batches that our loop takes in its first epoch."""
        train = self.config.train
        sizes = self.data.splits["train"].tokens.lengths
        return plan_batches(sizes, batch_size=train.batch_size, max_tokens=train.max_tokens, order=(seed, 0))

    def batches(self, seed: int, count: int) -> list[Batch]:
        """The first of these batches."""
        source = TextBatches(self.data.splits["train"], self.config.shape)
        return [source.batch(indices, ()) for indices in self.plan(seed)[:count]]


def ours(race: Race, seed: int) -> Turn:
    """Our model in our loop, as ``datransformer train`` runs it: batches from disk, clipping, checks, log."""
    clock = Clock(race.fabric.device, race.warm_up, race.steps)
    config = replace(race.config, train=replace(race.config.train, seed=seed, steps=clock.total))
    torch.manual_seed(seed)
    model = build_model("sentence", race.data.tokenizer.size, len(CLASSES), config.model)
    task = TextTask(race.data, config)
    with TemporaryDirectory() as folder, own_stream():
        steps = train(
            task,
            model,
            config.train,
            Path(folder),
            race.fabric,
            reporter=Reporter(enabled=False),
            on_step=clock.tick,
        )
        outcome = exhaust(steps)
    lengths = race.data.splits["train"].tokens.lengths
    tokens = sum(int(lengths[indices].sum()) for indices in race.plan(seed)[race.warm_up : race.warm_up + race.steps])
    return Turn(tokens, clock.seconds, _count(model), outcome.state.waited / outcome.state.seconds)


class TorchModel(nn.Module):
    """`SentenceModel` with torch.nn.TransformerEncoder in place of our encoder.

    Args:
        vocabulary: Number of token ids.
        classes: Number of classes.
        config: The parts; heads · head_dim has to be embed_dim.
    """

    def __init__(self, vocabulary: int, classes: int, config: ModelConfig) -> None:
        super().__init__()
        dim = config.embed_dim
        assert config.heads * config.head_dim == dim
        self.embedding = nn.Embedding(vocabulary, dim, padding_idx=0)
        self.dropout = nn.Dropout(config.dropout)
        layer = nn.TransformerEncoderLayer(
            dim, config.heads, config.feedforward_dim or 4 * dim, config.dropout, batch_first=True
        )
        # torch's layer has one dropout for everything; ours drops no attention weights, and that is faster.
        layer.self_attn.dropout = config.attention_dropout
        self.encoder = nn.TransformerEncoder(layer, config.layers, enable_nested_tensor=False)
        self.pooling = POOLINGS[config.pooling](dim)
        self.head = nn.Linear(dim, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """``tokens`` [batch, length], 0 = padding."""
        padding = tokens == 0  # [B, N]
        hidden = self.encoder(self.dropout(self.embedding(tokens)), src_key_padding_mask=padding)  # [B, N, E]
        answer: Tensor = self.head(self.pooling(hidden, padding))
        return answer


def torch_by_hand(race: Race, seed: int) -> Turn:
    """The same model from torch's parts, in a loop without extras, on the same batches, made and moved beforehand."""
    clock = Clock(race.fabric.device, race.warm_up, race.steps)
    batches = race.batches(seed, clock.total)
    device = race.fabric.device
    torch.manual_seed(seed)
    model = TorchModel(race.data.tokenizer.size, len(CLASSES), race.config.model).to(device).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=race.config.train.lr, fused=True)
    inputs = [batch.inputs["tokens"].to(device) for batch in batches]
    targets = [batch.targets.long().to(device) for batch in batches if batch.targets is not None]
    for step, (tokens, classes) in enumerate(zip(inputs, targets, strict=True), 1):
        loss = F.cross_entropy(model(tokens), classes)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        clock.tick(step)
    counted = batches[race.warm_up : race.warm_up + race.steps]
    return Turn(sum(batch.tokens for batch in counted), clock.seconds, _count(model))


def hugging_face(race: Race, seed: int) -> Turn:
    """A BERT of the same widths in Hugging Face's Trainer, its settings as they come, nothing logged or saved.

    Rows are drawn at random and padded to the longest of the batch, which is what the Trainer does unless told
    otherwise. They are tensors already, which is faster for it than rows of a data set.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        transformers: Any = importlib.import_module("transformers")
    clock, config = Clock(race.fabric.device, race.warm_up, race.steps), race.config.model
    examples = race.data.splits["train"]
    assert examples.labels is not None
    rows = [
        (torch.from_numpy(examples.tokens[row].astype(np.int64)), int(examples.labels[row]))
        for row in range(len(examples))
    ]
    tokens: list[int] = []

    def collate(chosen: list[tuple[Tensor, int]]) -> dict[str, Tensor]:
        ids = nn.utils.rnn.pad_sequence([row for row, _ in chosen], batch_first=True)  # [B, N]
        tokens.append(sum(len(row) for row, _ in chosen))
        return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": torch.tensor([y for _, y in chosen])}

    def on_step_end(self: Any, arguments: Any, state: Any, control: Any, **others: Any) -> None:
        clock.tick(state.global_step)

    callback = type("Ticking", (transformers.TrainerCallback,), {"on_step_end": on_step_end})
    torch.manual_seed(seed)
    model = transformers.BertForSequenceClassification(
        transformers.BertConfig(
            vocab_size=race.data.tokenizer.size,
            hidden_size=config.embed_dim,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            intermediate_size=config.feedforward_dim,
            hidden_dropout_prob=config.dropout,
            attention_probs_dropout_prob=config.attention_dropout,
            max_position_embeddings=race.config.data.max_length,
            num_labels=len(CLASSES),
        )
    )
    on_cpu = race.fabric.device.type == "cpu"
    with TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = transformers.Trainer(
            model=model,
            args=transformers.TrainingArguments(
                output_dir=folder,
                max_steps=clock.total,
                per_device_train_batch_size=race.config.train.batch_size,
                learning_rate=race.config.train.lr,
                seed=seed,
                use_cpu=on_cpu,
                dataloader_pin_memory=not on_cpu,
                remove_unused_columns=False,
                logging_strategy="no",
                save_strategy="no",
                eval_strategy="no",
                report_to="none",
                disable_tqdm=True,
            ),
            train_dataset=rows,
            data_collator=collate,
            callbacks=[callback()],
        )
        for noisy in (transformers.PrinterCallback, transformers.ProgressCallback):
            trainer.remove_callback(noisy)
        trainer.train()
    return Turn(sum(tokens[race.warm_up : race.warm_up + race.steps]), clock.seconds, _count(model))


Contestant = Callable[[Race, int], Turn]
SAME_WIDTHS = ModelConfig(heads=16, head_dim=16, embed_dim=256, feedforward_dim=1024)
PAPER_WIDTHS = ModelConfig()


@dataclass(frozen=True)
class Entry:
    """A line of the comparison.

    Args:
        label: Its name for people.
        run: Takes a turn.
        model: The widths.
        needs: Packages that may be missing.
    """

    label: str
    run: Contestant
    model: ModelConfig
    needs: tuple[str, ...] = field(default=())


ENTRIES: dict[str, Entry] = {
    "ours": Entry("DA-Transformer, our loop", ours, SAME_WIDTHS),
    "torch": Entry("torch.nn.TransformerEncoder, loop by hand", torch_by_hand, SAME_WIDTHS),
    "trainer": Entry("BERT, Hugging Face Trainer", hugging_face, SAME_WIDTHS, ("transformers", "accelerate")),
    "ours_300": Entry("DA-Transformer, our loop, the paper's widths", ours, PAPER_WIDTHS),
}


def measure_training(folder: Path, fabric: Fabric, sizes: Sizes, tell: Callable[[str], None]) -> dict[str, Any]:
    """Tokens a second of every entry, and the ratios of ours to the others."""
    path = folder / "train.csv"
    write_texts(path, sizes.rows, NEWS_LIKE)
    config = RunConfig(
        files=FileConfig(train=(str(path),)), data=DataConfig(vocabulary=VOCABULARY), train=TrainConfig(batch_size=64)
    )
    data = load_data(config, folder / "cache")
    assert isinstance(data, TextData)
    lacking = {key: [name for name in entry.needs if find_spec(name) is None] for key, entry in ENTRIES.items()}
    turns: dict[str, list[Turn]] = {key: [] for key in ENTRIES if not lacking[key]}
    for number in range(sizes.turns):
        for key in turns:
            race = Race(data, replace(config, model=ENTRIES[key].model), fabric, sizes.warm_up, sizes.steps)
            gc.collect()
            turns[key].append(ENTRIES[key].run(race, number))
        speeds = ", ".join(f"{key} {done[-1].tokens / done[-1].seconds:,.0f}" for key, done in turns.items())
        tell(f"training, turn {number + 1} of {sizes.turns}, tokens/s: {speeds}")
    lengths = data.splits["train"].tokens.lengths
    rows = {}
    for key, entry in ENTRIES.items():
        rows[key] = {"label": entry.label, "embed_dim": entry.model.embed_dim}
        if lacking[key]:
            rows[key]["skipped"] = f"not installed: {', '.join(lacking[key])}"
            continue
        pace = [turn.tokens / turn.seconds for turn in turns[key]]
        waits = [turn.waiting for turn in turns[key] if turn.waiting is not None]
        rows[key] |= {
            "parameters": turns[key][0].parameters,
            "tokens_per_second": round(statistics.median(pace)),
            "turns": [round(value) for value in pace],
            "waiting_share": round(statistics.median(waits), 5) if waits else None,
        }
    return {
        "batch_size": config.train.batch_size,
        "vocabulary": data.tokenizer.size,
        "mean_tokens": round(float(lengths.mean()), 1),
        "warm_up": sizes.warm_up,
        "steps": sizes.steps,
        "threads": torch.get_num_threads(),
        "rows": rows,
        "ratios": {key: round(_ratio(turns["ours"], turns[key]), 3) for key in ("torch", "trainer") if key in turns},
    }


def _ratio(mine: Sequence[Turn], theirs: Sequence[Turn]) -> float:
    return statistics.median(
        (one.tokens / one.seconds) / (other.tokens / other.seconds) for one, other in zip(mine, theirs, strict=True)
    )


def _count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


# Encoding


def measure_encoding(folder: Path, sizes: Sizes, tell: Callable[[str], None]) -> list[dict[str, Any]]:
    """Texts a second from a csv file to ids on disk: hashing, reading, vocabulary, encoding, writing; one thread."""
    kinds = {
        "short": ("short texts", SHORT, sizes.encoded, False),
        "accents": ("short texts, some not ASCII", SHORT, sizes.encoded, True),
        "news": ("news-like texts", NEWS_LIKE, sizes.encoded // 4, False),
    }
    rows = []
    for key, (label, words, count, accents) in kinds.items():
        path = folder / f"{key}.csv"
        write_texts(path, count, words, accents=accents)
        config = RunConfig(files=FileConfig(train=(str(path),)))
        times = []
        for number in range(1 if sizes.turns == 1 else 3):
            with _timed() as spent:
                load_data(config, folder / f"{key} {number}")
            times.append((spent["seconds"], spent["cpu_seconds"]))
        wall, cpu = (statistics.median(column) for column in zip(*times, strict=True))
        rows.append(
            {
                "kind": key,
                "label": label,
                "texts": count,
                "words": words,
                "megabytes": round(path.stat().st_size / 1e6, 1),
                "texts_per_second": round(count / wall),
                "texts_per_cpu_second": round(count / cpu),
            }
        )
        tell(f"encoding, {label}: {rows[-1]['texts_per_cpu_second']:,} texts/s/core")
    return rows


@contextmanager
def _one_thread() -> Iterator[None]:
    """Arrow and torch on one thread each, until the block ends."""
    settings = (
        (pa.cpu_count(), pa.set_cpu_count),
        (pa.io_thread_count(), pa.set_io_thread_count),
        (torch.get_num_threads(), torch.set_num_threads),
    )
    for _, change in settings:
        change(1)
    try:
        yield
    finally:
        for before, change in settings:
            change(before)


@contextmanager
def _timed() -> Iterator[dict[str, float]]:
    """The seconds that a block takes, by the clock and of all cores together, once it has ended."""
    spent: dict[str, float] = {}
    wall, cpu = time.perf_counter(), time.process_time()
    yield spent
    spent |= {"seconds": time.perf_counter() - wall, "cpu_seconds": time.process_time() - cpu}


# Growth


@dataclass(frozen=True)
class Kind:
    """A kind of file that grows.

    Args:
        noun: What there is more and more of.
        write: Writes so many into a folder.
        config: How to read them from there.
    """

    noun: str
    write: Callable[[Path, int], None]
    config: Callable[[Path], RunConfig]


def _write_csv(folder: Path, count: int) -> None:
    write_texts(folder / "texts.csv", count, NEWS_LIKE)


KINDS: dict[str, Kind] = {
    "texts": Kind("texts", _write_csv, lambda folder: RunConfig(files=FileConfig(train=(str(folder / "texts.csv"),)))),
    "impressions": Kind(
        "impressions",
        lambda folder, count: write_impressions(folder, count),
        lambda folder: RunConfig(task="recommend", files=FileConfig(train=(str(folder),))),
    ),
}


def measure_growth(folder: Path, sizes: Sizes, tell: Callable[[str], None]) -> dict[str, list[dict[str, Any]]]:
    """Speed and memory by size, each size in a process of its own."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for key, kind in KINDS.items():
        rows[key] = []
        for count in sizes.growth:
            with TemporaryDirectory(dir=folder) as place:
                kind.write(Path(place), count)
                rows[key].append(_in_own_process(key, Path(place), count))
            row = rows[key][-1]
            tell(
                f"growth, {count:,} {kind.noun}: {row['per_cpu_second']:,}/s/core, "
                f"peak {row['peak_rss_mib']:,} MiB, not counting mapped files {_or_dash(row['peak_anonymous_mib'])}"
            )
    return rows


def _in_own_process(kind: str, folder: Path, count: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "datransformer.experiments.bench_train", kind, str(folder), str(count)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603, our own module
    if done.returncode:
        raise RuntimeError(f"{kind}, {count:,}: the measuring process failed: {done.stderr.strip().splitlines()[-1:]}")
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return row


def measure_size(key: str, folder: Path, count: int) -> dict[str, Any]:
    """From file to ids, the plan of an epoch, and its first batches, of ``count`` rows in ``folder``."""
    config = KINDS[key].config(folder)
    with MemoryWatch() as watch:
        base = watch.peaks()
        with _timed() as encoding:
            data = load_data(config, folder / "cache")
        encoded = watch.peaks()
        with _timed() as planning:
            source = build_task(data, config).train
            plan = plan_batches(
                source.sizes, batch_size=config.train.batch_size, max_tokens=config.train.max_tokens, order=(0, 0)
            )
        with _timed() as batching:
            chosen = plan[:FIRST_BATCHES]
            tokens = sum(source.batch(indices, (0, 0, number, 0)).tokens for number, indices in enumerate(chosen))
        peaks = watch.peaks()
    return {
        "count": count,
        "encode_seconds": round(encoding["seconds"], 3),
        "per_second": round(count / encoding["seconds"]),
        "per_cpu_second": round(count / encoding["cpu_seconds"]),
        "plan_seconds": round(planning["seconds"], 3),
        "batches": len(chosen),
        "batches_per_second": round(len(chosen) / batching["seconds"], 1),
        "tokens": tokens,
        "base_rss_mib": base[0],
        "base_anonymous_mib": base[1],
        "encode_rss_mib": encoded[0],
        "encode_anonymous_mib": encoded[1],
        "peak_rss_mib": peaks[0],
        "peak_anonymous_mib": peaks[1],
    }


class MemoryWatch:
    """The most memory this process has had so far: all of it, and what is not a mapped file.

    Pages of a mapped file count as memory although the system takes them back whenever it likes, so the second number
    says what a run needs. It is looked up every few milliseconds; None where there is no /proc.
    """

    STATUS = Path("/proc/self/status")

    def __init__(self) -> None:
        self._largest: int | None = None
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "MemoryWatch":
        self._look()
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._end.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._end.wait(0.005):
            self._look()

    def _look(self) -> None:
        now = self._status().get("RssAnon")
        if now is not None:
            self._largest = max(self._largest or 0, now)

    def _status(self) -> dict[str, int]:
        """Sizes in KiB."""
        try:
            lines = self.STATUS.read_text(encoding="ascii", errors="replace").splitlines()
        except OSError:
            return {}
        pairs = (line.split(":", 1) for line in lines if line.endswith(" kB"))
        return {name: int(value.split()[0]) for name, value in pairs}

    def peaks(self) -> tuple[int, int | None]:
        """Both numbers, in MiB."""
        self._look()
        resident = self._status().get("VmHWM")
        if resident is None:
            import resource

            # Only where there is no /proc: on Linux it starts at the size of the process that started this one.
            resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            resident //= 1024 if sys.platform == "darwin" else 1
        return round(resident / 1024), None if self._largest is None else round(self._largest / 1024)


# Generated files


def draw_words(seed: int = 0) -> pa.Array:
    """Twice `VOCABULARY` made-up words, the frequent ones short, each tenth with a comma behind it."""
    random = np.random.default_rng(seed)
    words: dict[str, None] = {}
    letters = np.array(list("etaoinshrdlucmfwypvbgk"))
    while len(words) < 2 * VOCABULARY:
        length = random.integers(2, 4 + min(len(words) // 50, 7))
        words["".join(random.choice(letters, length))] = None
    return pa.array([f"{word}," if number % 10 == 9 else word for number, word in enumerate(words)], pa.string())


def draw_ranks(count: int, size: int, random: np.random.Generator) -> npt.NDArray[np.int32]:
    """Numbers below ``size``, each drawn with a probability of about 1 / (1 + number), as words are in text (Zipf)."""
    return np.minimum((size + 1) ** random.random(count) - 1, size - 1).astype(np.int32)


def draw_lists(
    entries: pa.Array, count: int, mean: int, random: np.random.Generator, least: int = 1
) -> tuple[pa.Array, npt.NDArray[np.int32]]:
    """Lists of entries, by `draw_ranks`, of lengths that spread as those of news do, and where each starts."""
    lengths = np.maximum(random.gamma(9, mean / 9, count).round(), least).astype(np.int32)
    offsets = np.concatenate(([0], np.cumsum(lengths, dtype=np.int32)))
    drawn = entries.take(pa.array(draw_ranks(int(offsets[-1]), len(entries), random)))
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), drawn), offsets


def blocks(count: int) -> Iterator[tuple[int, int, np.random.Generator]]:
    """First row, number of rows and random numbers of each block of a generated file."""
    for start in range(0, count, BLOCK):
        yield start, min(BLOCK, count - start), np.random.default_rng((count, start))


def write_texts(path: Path, count: int, words: int, *, accents: bool = False) -> None:
    """A csv file of ``count`` texts of about so many words, with labels; if ``accents``, each hundredth has one."""
    vocabulary = draw_words()
    classes = pa.array(CLASSES)
    schema = pa.schema({"text": pa.string(), "label": pa.string()})
    with pyarrow.csv.CSVWriter(path, schema) as writer:
        for _, size, random in blocks(count):
            texts, _ = draw_lists(vocabulary, size, words, random, least=3)
            ends = pa.array([" é." if accents and row % 100 == 0 else "." for row in range(size)])
            joined = pc.binary_join_element_wise(pc.utf8_capitalize(pc.binary_join(texts, " ")), ends, "")
            labels = classes.take(pa.array(random.integers(0, len(CLASSES), size)))
            writer.write_batch(pa.record_batch([joined, labels], schema=schema))


def write_impressions(folder: Path, count: int) -> None:
    """MIND's two files: `NEWS_ITEMS` titles, and ``count`` impressions with one click each."""
    vocabulary = draw_words()
    ids = pa.array([f"N{number}" for number in range(1, NEWS_ITEMS + 1)])
    tabs = pyarrow.csv.WriteOptions(include_header=False, delimiter="\t", quoting_style="none")
    with pyarrow.csv.CSVWriter(folder / NEWS, _strings(4), write_options=tabs) as writer:
        for start, size, random in blocks(NEWS_ITEMS):
            titles, _ = draw_lists(vocabulary, size, 11, random, least=3)
            topic = pa.repeat(pa.scalar("news"), size)
            columns = [ids.slice(start, size), topic, topic, pc.binary_join(titles, " ")]
            writer.write_batch(pa.record_batch(columns, schema=_strings(4)))
    with pyarrow.csv.CSVWriter(folder / BEHAVIORS, _strings(5), write_options=tabs) as writer:
        for start, size, random in blocks(count):
            numbers = pa.array(np.arange(start + 1, start + size + 1)).cast(pa.string())
            users = pc.binary_join_element_wise("U", numbers, "")
            history, _ = draw_lists(ids, size, HISTORY, random)
            shown, offsets = draw_lists(ids, size, CANDIDATES, random, least=2)
            clicked = np.zeros(offsets[-1], bool)
            clicked[random.integers(offsets[:-1], offsets[1:])] = True
            flags = pa.array(["-0", "-1"]).take(pa.array(clicked.astype(np.int8)))
            flagged = pa.ListArray.from_arrays(shown.offsets, pc.binary_join_element_wise(shown.values, flags, ""))
            moment = pa.repeat(pa.scalar("11/11/2019 9:05:58 AM"), size)
            columns = [numbers, users, moment, pc.binary_join(history, " "), pc.binary_join(flagged, " ")]
            writer.write_batch(pa.record_batch(columns, schema=_strings(5)))


def _strings(count: int) -> pa.Schema:
    return pa.schema({str(number): pa.string() for number in range(count)})


# What came out


def list_targets(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Every number that has a target: its name, what was reached, what was wanted, and whether that was met."""
    training, rows = result["training"], []

    def add(name: str, reached: float | None, wanted: float, *, least: bool) -> None:
        met = None if reached is None else reached >= wanted if least else reached <= wanted
        rows.append(
            {"name": name, "reached": reached, "wanted": wanted, "at": "least" if least else "most", "met": met}
        )

    ratios = training["ratios"]
    add("tokens/s beside torch.nn.TransformerEncoder, loop by hand", ratios.get("torch"), TORCH_TARGET, least=True)
    add("tokens/s beside Hugging Face's Trainer", ratios.get("trainer"), TRAINER_TARGET, least=True)
    waiting = training["rows"]["ours"]["waiting_share"]
    add("share of training spent waiting for data", waiting, WAITING_TARGET, least=False)
    short = next(row for row in result["encoding"] if row["kind"] == "short")
    add("short texts encoded a second and core", short["texts_per_cpu_second"], ENCODING_TARGET, least=True)
    for key, sizes in (result["growth"] or {}).items():
        first, last = sizes[0], sizes[-1]
        grown = f"{last['count']:,} {key} beside {first['count']:,}"
        add(f"{grown}: speed", _quotient(last, first, "per_cpu_second"), 1 - GROWTH_TARGET, least=True)
        for name, what in (("peak_rss_mib", "memory"), ("peak_anonymous_mib", "memory without mapped files")):
            add(f"{grown}: {what}", _quotient(last, first, name), 1 + GROWTH_TARGET, least=False)
    return rows


def _quotient(one: Mapping[str, Any], other: Mapping[str, Any], name: str) -> float | None:
    return None if one[name] is None or other[name] is None else round(one[name] / other[name], 3)


def bench_table(result: Mapping[str, Any]) -> Table:
    """All numbers that have a target, for a terminal."""
    table = Table(title=f"Training on {result['machine']['device']}" + (", quick" if result["quick"] else ""))
    for heading in ("what", "reached", "target", ""):
        table.add_column(heading, justify="left" if heading == "what" else "right")
    for row in training_rows(result):
        table.add_row(*row)
    for target in result["targets"]:
        reached, wanted = target["reached"], target["wanted"]
        sign = "≥" if target["at"] == "least" else "≤"
        word = {True: "met", False: "missed", None: "not measured"}[target["met"]]
        table.add_row(target["name"], _number(reached), f"{sign} {_number(wanted)}", word)
    return table


def training_rows(result: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Each entry's name and its tokens a second, or why there are none."""
    for row in result["training"]["rows"].values():
        reached = row.get("skipped") or f"{row['tokens_per_second']:,} tokens/s"
        yield f"{row['label']}, {row['embed_dim']}-d", reached


def growth_markdown(result: Mapping[str, Any]) -> str:
    """The tables of docs/performance.md."""
    training = result["training"]
    lines = [
        f"Batches of {training['batch_size']} texts of {training['mean_tokens']} tokens on average, "
        f"{training['vocabulary']:,} token ids, on {result['machine']['device']}, {training['threads']} threads:",
        "",
        *markdown(("training", "parameters", "tokens/s", "waiting for data", "ours ÷ it"), _training_cells(training)),
        "",
        *markdown(
            ("from csv to ids", "texts", "MB", "texts/s/core", "texts/s"),
            [
                (
                    row["label"],
                    f"{row['texts']:,}",
                    str(row["megabytes"]),
                    f"{row['texts_per_cpu_second']:,}",
                    f"{row['texts_per_second']:,}",
                )
                for row in result["encoding"]
            ],
        ),
    ]
    for key, sizes in (result["growth"] or {}).items():
        heads = (key, "/s/core", "/s", "plan, s", "batches/s", "peak MiB", "without mapped files", "before the data")
        names = ("per_cpu_second", "per_second", "plan_seconds", "batches_per_second", "peak_rss_mib")
        cells = [
            (
                f"{row['count']:,}",
                *(f"{row[name]:,}" for name in names),
                _or_dash(row["peak_anonymous_mib"]),
                f"{row['base_rss_mib']:,} / {_or_dash(row['base_anonymous_mib'])}",
            )
            for row in sizes
        ]
        lines += ["", *markdown(heads, cells)]
    return "\n".join(lines) + "\n"


def _training_cells(training: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for key, row in training["rows"].items():
        name = f"{row['label']}, {row['embed_dim']}-d"
        if "skipped" in row:
            yield name, "", row["skipped"], "", ""
            continue
        waiting = "" if row["waiting_share"] is None else f"{row['waiting_share']:.1%}"
        ratio = training["ratios"].get(key)
        speed = f"{row['tokens_per_second']:,}"
        yield name, f"{row['parameters']:,}", speed, waiting, "" if ratio is None else f"{ratio:.2f}"


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3f}".rstrip("0").rstrip(".")


def _or_dash(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"


if __name__ == "__main__":
    kind, place, number = sys.argv[1:]
    sys.stdout.write(json.dumps(measure_size(kind, Path(place), int(number))) + "\n")
