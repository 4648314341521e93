"""The demo: a task that only distance can solve, distance-aware attention against its rivals, minutes on a CPU.

Everything that the demo's page shows is left in ``report.json``; `datransformer.report.page.write_demo` draws it.
"""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from datransformer.data.batches import as_ids
from datransformer.data.errors import InputError
from datransformer.data.prepare import Progress, RowSplits, TextData, prepare_texts, probe_rows
from datransformer.data.probe import KINDS, Probe
from datransformer.data.store import write_text
from datransformer.models.config import ModelConfig
from datransformer.models.sentence import SentenceModel
from datransformer.nn.distance_aware import DistanceAwareAttention
from datransformer.nn.mixers import MIXERS
from datransformer.ops.checks import check_choice, check_positive_int
from datransformer.ops.mapping import distance_coefficients
from datransformer.train.config import FileConfig, RunConfig, TrainConfig
from datransformer.train.errors import Interrupted
from datransformer.train.fit import fit
from datransformer.train.progress import Reporter
from datransformer.train.run import METRICS, Run, load_run, read_json, versions

REPORT = "report.json"
KIND = "datransformer demo"  # by which a report.json is known for ours
WRITTEN = (REPORT, "report.html", "nearest_marker.png", "nearest_marker.svg")
ATTENTIONS = ("distance_aware", "vanilla", "rpr", "xl", "adapted", "none")
LABELS = {
    "distance_aware": "distance-aware",
    "vanilla": "vanilla (sinusoids)",
    "rpr": "RPR (Shaw et al.)",
    "xl": "Transformer-XL",
    "adapted": "adapted (TENER)",
    "rotary": "rotary",
    "alibi": "ALiBi",
    "t5_bias": "T5 bias",
    "none": "no positions",
}
CHANCE = 0.64  # guessing the kind that there is more of
STEPS, BATCH_SIZE, EVALUATE_EVERY = 240, 128, 20
HELD_OUT_ROWS, MEASURED_ROWS, SAMPLES = 1000, 400, 3


@dataclass(frozen=True)
class DemoRow:
    """What one attention reached.

    Args:
        attention: A key of `MIXERS`.
        label: Its name for people.
        accuracy: On held-out sequences, after the last step.
        steps_to_95: The first evaluated step with an accuracy of at least 95 %; None: there was none.
        seconds: Training and its evaluations.
    """

    attention: str
    label: str
    accuracy: float
    steps_to_95: int | None
    seconds: float


def run_demo(
    out: Path,
    *,
    cache: Path,
    reporter: Reporter,
    steps: int = STEPS,
    seed: int = 0,
    attentions: Sequence[str] = ATTENTIONS,
) -> list[DemoRow]:
    """Train one model for each attention, and leave the runs and ``report.json`` in ``out``.

    An earlier demo in ``out`` is replaced; files that no demo has written there are not touched.

    Args:
        out: Folder for the runs and the report.
        cache: Folder for encoded data, shared by all runs.
        reporter: Gets told.
        steps: Optimiser steps of each model; no sequence is seen twice.
        seed: Seeds the weights, the order and the sequences.
        attentions: Keys of `MIXERS`.
    """
    check_positive_int("steps", steps)
    for attention in attentions:
        check_choice("attentions", attention, MIXERS)
    attentions = tuple(dict.fromkeys(attentions))
    _claim(out, attentions)
    training = Probe(rows=steps * BATCH_SIZE, seed=2 * seed)
    held_out = Probe(rows=HELD_OUT_ROWS, seed=2 * seed + 1)

    def load(config: RunConfig, cache: Path, progress: Progress) -> TextData:
        splits = RowSplits(probe_rows(training), probe_rows(held_out))
        return prepare_texts(splits, shape="sentence", rating=False, config=config.data, cache=cache, progress=progress)

    rows, curves = [], {}
    heads: dict[str, Any] = {}
    with _one_thread():
        for number, attention in enumerate(attentions, 1):
            label, folder = LABELS.get(attention, attention), run_folder(out, attention)
            reporter.say(f"{label}: model {number} of {len(attentions)}, {steps:,} steps")
            began = time.perf_counter()
            try:
                fit(
                    demo_config(attention, steps, seed),
                    folder,
                    cache=cache,
                    device="cpu",  # the models are small, and the numbers nearly the same everywhere
                    reporter=_Bars(reporter.console, enabled=reporter.enabled),
                    overwrite=True,
                    load=load,
                )
            except Interrupted:
                raise Interrupted(f"{out}: the demo was stopped; the next one starts anew") from None
            seconds = time.perf_counter() - began
            curve = curves[attention] = read_curve(folder)
            reached = (
                step for step, accuracy in zip(curve["steps"], curve["accuracy"], strict=True) if accuracy >= 0.95
            )
            rows.append(DemoRow(attention, label, curve["accuracy"][-1], next(reached, None), round(seconds, 1)))
            reporter.say(f"{label}: {rows[-1].accuracy:.1%} after {seconds:.0f} s")
        if "distance_aware" in attentions:
            heads = look_inside(load_run(run_folder(out, "distance_aware")), held_out)
    report = {
        "kind": KIND,
        "finished": True,
        "task": {**asdict(held_out), "kinds": KINDS, "chance": CHANCE},
        "training": {"steps": steps, "batch_size": BATCH_SIZE, "evaluate_every": EVALUATE_EVERY, "seed": seed},
        "rows": [asdict(row) for row in rows],
        "curves": curves,
        **heads,
        "versions": versions(),
    }
    write_text(out / REPORT, json.dumps(report, ensure_ascii=False))
    return rows


def run_folder(out: Path, attention: str) -> Path:
    """Where the demo keeps the run of an attention."""
    return out / "runs" / attention


def demo_config(attention: str, steps: int, seed: int) -> RunConfig:
    """The settings of one run: the same for all but the attention."""
    return RunConfig(
        files=FileConfig(dataset="probe"),
        model=ModelConfig(attention=attention, heads=8, head_dim=8, embed_dim=64, feedforward_dim=128, dropout=0.0),
        train=TrainConfig(
            epochs=1,
            steps=steps,
            batch_size=BATCH_SIZE,
            lr=2e-3,
            seed=seed,
            evaluate_every=EVALUATE_EVERY,
            log_every=EVALUATE_EVERY,
        ),
    )


def read_curve(folder: Path) -> dict[str, list[Any]]:
    """The dev accuracy of a run at each evaluation."""
    lines = [json.loads(line) for line in (folder / METRICS).read_text(encoding="utf-8").splitlines()]
    points = [(line["step"], line["dev"]["accuracy"]) for line in lines if "dev" in line]
    return {"steps": [step for step, _ in points], "accuracy": [accuracy for _, accuracy in points]}


@torch.no_grad()
def look_inside(run: Run, probe: Probe) -> dict[str, Any]:
    """What the heads of a trained distance-aware model have learned, nearest-sighted first, as plain data.

    ``heads`` has each head's w and v, f(w·d; v) at every distance d, and the mean attention from the query token to
    a marker by its distance; ``samples`` has the attention of every head in a few sequences.
    """
    model = run.model
    assert isinstance(model, SentenceModel)
    attention = model.get_submodule("text.sequence.encoder.layers.0.attention")
    assert isinstance(attention, DistanceAwareAttention)
    batch = next(probe.batches()).slice(0, MEASURED_ROWS)
    words = np.array([text.split() for text in batch["text"].to_pylist()])  # [B, N]
    labels = batch["label"].to_pylist()
    tokens = as_ids(run.tokenizer.encode(batch["text"]).ids).view(words.shape)  # [B, N]
    query = (words == "query").argmax(1)  # [B]
    vectors = model.text.embedding(tokens)
    _, weights = attention(vectors, vectors, vectors, average_attn_weights=False)  # [B, H, N, N]
    order = attention.distance_weight.argsort()
    weights = weights[:, order]

    places = torch.arange(probe.length)
    apart = (places - torch.from_numpy(query).unsqueeze(1)).abs()  # [B, N]
    is_marker = torch.from_numpy(np.isin(words, KINDS))  # [B, N]
    from_query = weights[torch.arange(len(tokens)), :, query].transpose(1, 2)  # [B, N, H]
    by_distance = torch.stack(
        [from_query[is_marker & (apart == distance)].mean(0) for distance in range(1, probe.length // 2)], 1
    )  # [H, D]
    weight, shift = attention.distance_weight[order], attention.distance_shift[order]
    coefficients = distance_coefficients(places.to(weight), weight, shift, attention.mapping)  # [H, N]
    answers = model(tokens[:SAMPLES]).softmax(-1)  # [S, 2]
    classes = run.labels.classes
    assert classes is not None
    return {
        "looked_at_step": run.result["best_step"],
        "distances": places.tolist(),
        "marker_distances": list(range(1, probe.length // 2)),
        "heads": [
            {
                "head": head,
                "weight": weight[place].item(),
                "shift": shift[place].item(),
                "coefficients": _rounded(coefficients[place]),
                "by_distance": _rounded(by_distance[place]),
            }
            for place, head in enumerate(order.tolist())
        ],
        "samples": [
            {
                "tokens": words[row].tolist(),
                "query": int(query[row]),
                "label": labels[row],
                "prediction": classes[int(answers[row].argmax())],
                "probability": round(answers[row].max().item(), 4),
                "maps": _rounded(weights[row]),  # [H, N, N], the heads in the order above
            }
            for row in range(SAMPLES)
        ],
    }


def _rounded(tensor: Tensor) -> Any:
    return tensor.double().numpy().round(4).tolist()


class _Bars(Reporter):
    """Bars without the lines that stay: a demo has dozens of evaluations."""

    def say(self, line: str) -> None:
        pass


@contextmanager
def _one_thread() -> Iterator[None]:
    """Compute on one thread: the tensors are small, and threads that wait for a busy core are slower than none."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _claim(out: Path, attentions: Sequence[str]) -> None:
    """Mark ``out`` as the demo's, unless something that the demo would replace was put there by someone else."""
    if out.exists() and not out.is_dir():
        raise InputError(f"{out}: is a file, expected a folder for the demo")
    targets = [*(out / name for name in WRITTEN), *(run_folder(out, attention) for attention in attentions)]
    found = next((path for path in targets if path.exists()), None)
    if found is not None and not _is_ours(out / REPORT):
        raise InputError(f"{found}: was not made by the demo, which would replace it; choose another --out")
    try:
        out.mkdir(parents=True, exist_ok=True)
        write_text(out / REPORT, json.dumps({"kind": KIND, "finished": False}))
    except OSError as error:
        raise InputError(f"{out}: cannot be written ({error.strerror or error})") from error


def _is_ours(path: Path) -> bool:
    try:
        return read_json(path).get("kind") == KIND
    except InputError:
        return False
