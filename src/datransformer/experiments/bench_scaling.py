"""How training scales over the processes of one machine: the recommender under torchrun, on generated impressions.

Each process has a batch of its own size, so that n processes take n times as many clicks a step. Speeds are clicks a
second in the steps after the warm-up, evaluation and start not counted. Who is compared takes turns, and a ratio is the
median over the turns. How long a process takes to build its share of a batch is measured for more processes than the
machine may have: that needs no other process.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from datransformer.data.errors import InputError
from datransformer.data.store import write_text
from datransformer.experiments.bench_train import write_impressions
from datransformer.experiments.machine import commit, machine, markdown
from datransformer.train.config import FileConfig, RunConfig
from datransformer.train.fit import build_task, load_data
from datransformer.train.run import METRICS, RESULT, read_json, versions

DEV_IMPRESSIONS = 64
SHARED_BY = (1, 2, 4, 8)  # processes that would share a batch
BATCHES = 40
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node")


def bench_scaling(
    out: Path | None,
    *,
    processes: Sequence[int],
    device: str,
    batch_size: int,
    warm_up: int,
    steps: int,
    turns: int,
    settings: Sequence[str] = (),
    tell: Callable[[str], None],
) -> dict[str, Any]:
    """Measure every number of processes in turns, write it to ``out`` as JSON, and return it.

    Args:
        out: The file to write; None: none.
        processes: How many processes to train with, the fewest first; efficiency is beside the first.
        device: ``cpu``, where every process has one thread, or ``cuda``, where it has one GPU.
        batch_size: Clicks a step in each process.
        warm_up: Steps of a turn that are not counted.
        steps: Counted steps of a turn.
        turns: Turns of each number of processes.
        settings: Further settings of the runs, as ``--set`` of ``datransformer train`` takes them.
        tell: Gets a line now and then.
    """
    if device == "cuda" and torch.cuda.device_count() < max(processes):
        raise InputError(f"--processes: got {max(processes)}, expected at most {torch.cuda.device_count()}, one a GPU")
    chosen = [f"train.batch_size={batch_size}", f"train.steps={warm_up + steps}", "train.epochs=1000", *settings]
    speeds: dict[int, list[float]] = {count: [] for count in processes}
    with TemporaryDirectory(prefix="datransformer-scaling-") as name:
        folder = Path(name)
        for part, impressions in (("train", (warm_up + steps) * max(processes) * batch_size), ("dev", DEV_IMPRESSIONS)):
            (folder / part).mkdir()
            write_impressions(folder / part, impressions)
        for turn in range(turns):
            for count in processes:
                run = folder / f"{count}-{turn}"
                _train(folder, run, count, device, [*chosen, f"train.log_every={warm_up}"])
                speeds[count].append(round(_speed(run, warm_up, batch_size * count), 2))
                tell(f"turn {turn + 1}, processes {count}: {speeds[count][-1]:,} clicks/s")
        parameters = read_json(run / RESULT)["parameters"]
        batching = measure_batching(folder, batch_size)
    first = speeds[processes[0]]
    rows = [
        {
            "processes": count,
            "clicks_per_second": statistics.median(found),
            "turns": found,
            "speedup": round(statistics.median(one / other for one, other in zip(found, first, strict=True)), 3),
        }
        for count, found in speeds.items()
    ]
    result = {
        "what": "python -m datransformer.experiments.bench_scaling",
        "commit": commit(),
        "machine": {**machine(torch.device(device)), "gpus": torch.cuda.device_count()},
        "versions": versions(),
        "batch_size": batch_size,
        "warm_up": warm_up,
        "steps": steps,
        "settings": list(settings),
        "parameters": parameters,
        "rows": rows,
        "batching": batching,
    }
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_text(out, json.dumps(result, indent=2))
    return result


def measure_batching(folder: Path, batch_size: int) -> list[dict[str, Any]]:
    """How long one process takes to build its share of a batch that several share, and the tokens in that share."""
    (folder / "shared").mkdir()
    write_impressions(folder / "shared", max(SHARED_BY) * batch_size * BATCHES)
    files = FileConfig(train=(str(folder / "shared"),), dev=str(folder / "dev"))
    config = RunConfig(task="recommend", files=files)
    source = build_task(load_data(config, folder / "cache"), config).train
    rows = []
    for world in SHARED_BY:
        order = np.random.default_rng(0).permutation(len(source.sizes))[: world * batch_size * BATCHES]
        seconds, tokens = [], 0
        for number, indices in enumerate(np.split(order, BATCHES)):
            began = time.perf_counter()
            tokens += source.batch(indices, (0, number), 0, world).tokens
            seconds.append(time.perf_counter() - began)
        median = round(statistics.median(seconds), 6)
        rows.append({"processes": world, "seconds_per_batch": median, "tokens": round(tokens / BATCHES)})
    return rows


def _train(folder: Path, run: Path, processes: int, device: str, settings: Sequence[str]) -> None:
    command = [sys.executable, *TORCHRUN, str(processes), "-m", "datransformer", "train", "--task", "recommend"]
    command += ["--train", str(folder / "train"), "--dev", str(folder / "dev"), "--out", str(run)]
    command += ["--cache-dir", str(folder / "cache"), "--device", device]
    for setting in settings:
        command += ["--set", setting]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}  # torchrun sets it for several processes, but not for one
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)  # noqa: S603, our own
    if done.returncode:
        reason = [line for line in done.stderr.splitlines() if line.startswith("error: ")] or done.stderr.splitlines()
        raise InputError(f"training in {processes} processes failed: {' '.join(reason[-1:])}")


def _speed(run: Path, warm_up: int, clicks: int) -> float:
    """Clicks a second from the end of the warm-up to the last line of the log, for ``clicks`` a step."""
    lines = [json.loads(line) for line in (run / METRICS).read_text(encoding="utf-8").splitlines()]
    steps = [(line["step"], line["seconds"]) for line in lines if "loss" in line and line["step"] >= warm_up]
    (first, began), (last, ended) = steps[0], steps[-1]
    return float((last - first) * clicks / (ended - began))


def scaling_table(result: dict[str, Any]) -> list[str]:
    """The lines of a table, in Markdown."""
    rows = result["rows"]
    return markdown(
        ["processes", "clicks/s", f"÷ {rows[0]['processes']}", "efficiency"],
        [
            [
                str(row["processes"]),
                f"{row['clicks_per_second']:,.1f}",
                f"{row['speedup']:.2f}",
                f"{row['speedup'] * rows[0]['processes'] / row['processes']:.0%}",
            ]
            for row in rows
        ],
    )


def main() -> None:
    """Measure as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="JSON file for all numbers")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2], help="the fewest first")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--batch-size", type=int, default=64, help="clicks a step in each process")
    parser.add_argument("--warm-up", type=int, default=4, help="steps that are not counted")
    parser.add_argument("--steps", type=int, default=12, help="steps that are counted, a multiple of --warm-up")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE", help="as of train")
    arguments = vars(parser.parse_args())
    result = bench_scaling(**arguments, tell=lambda line: print(line, file=sys.stderr, flush=True))  # noqa: T201
    print("\n".join(scaling_table(result)))  # noqa: T201


if __name__ == "__main__":
    main()
