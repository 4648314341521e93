"""How long runs of the reproduction take, from files to records: one on a CPU, those of a table on a GPU.

    python -m datransformer.experiments.bench_reproduce --data-dir D [--out FILE] [--turns N]

Nothing is taken from a cache: reading, encoding and the word vectors are in the time.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from datransformer.data.errors import InputError
from datransformer.data.store import write_text
from datransformer.experiments.machine import commit, machine, markdown
from datransformer.experiments.paper import METHODS, OURS, RUNS
from datransformer.experiments.processes import process_count
from datransformer.experiments.reproduce import LANES, carry_out
from datransformer.experiments.runs import Place
from datransformer.experiments.search import ending_in_words
from datransformer.experiments.studies import STUDIES, find_data, find_vectors, plan_study
from datransformer.train.launch import launch
from datransformer.train.progress import Reporter
from datransformer.train.run import versions


@dataclass(frozen=True)
class Timed:
    """Runs that are timed together.

    Args:
        study: A key of `STUDIES`.
        methods: Keys of `VARIANTS`.
        seeds: How often each is trained.
        aim: Seconds that they should take at most.
    """

    study: str
    methods: tuple[str, ...]
    seeds: int
    aim: float


TIMED = {"cpu": Timed("sst", (OURS,), 1, 60.0), "cuda": Timed("ag", tuple(METHODS), RUNS, 180.0)}


def bench_reproduce(
    data_dir: Path, out: Path | None = None, *, device: str = "auto", turns: int = 1, tell: Callable[[str], None]
) -> dict[str, Any]:
    """Time the runs for this device ``turns`` times, write what came out to ``out`` as JSON, and return it."""
    if turns < 1:
        raise InputError(f"--turns: got {turns}, expected 1 or more")
    if out is not None and (out.is_dir() or any(parent.is_file() for parent in out.parents)):
        raise InputError(f"{out}: is a folder or below a file, expected a file to write to")
    where = launch(device, "32-true").device.type
    timed = TIMED[where]
    processes, together = process_count(where), LANES if where == "cuda" else 1
    seconds = []
    for turn in range(turns):
        with TemporaryDirectory(prefix="datransformer-bench-") as name:
            folder = Path(name)
            began = time.perf_counter()
            found, caveat = find_data(timed.study, data_dir, folder / "data", find_vectors(data_dir))
            plan = plan_study(timed.study, timed.seeds, found, caveat, where)
            plan = [planned for planned in plan if planned.variant in timed.methods]
            place = Place(folder, folder / "cache", where, together)
            records = carry_out(plan, place, processes, Reporter(enabled=False), time.time())
            seconds.append(round(time.perf_counter() - began, 1))
        if failed := [record["failed"] for record in records if "failed" in record]:
            raise InputError(f"{len(failed)} of {len(plan)} runs failed: {failed[0]}")
        tell(f"turn {turn + 1}: {seconds[-1]} s")
    result = {
        "what": "python -m datransformer.experiments.bench_reproduce",
        "commit": commit(),
        "machine": {**machine(torch.device(where)), "threads": torch.get_num_threads()},
        "versions": versions(),
        "study": timed.study,
        "methods": list(timed.methods),
        "seeds": timed.seeds,
        "epochs": plan[0].config.train.epochs,
        "processes": processes,
        "together": together,
        "turns": seconds,
        "seconds": statistics.median(seconds),
        "aim": timed.aim,
    }
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_text(out, json.dumps(result, indent=2))
    return result


def time_table(*results: dict[str, Any]) -> list[str]:
    """The lines of a table, in Markdown."""
    rows = [
        [
            f"{STUDIES[one['study']].title}, methods × seeds × epochs: "
            f"{len(one['methods'])} × {one['seeds']} × {one['epochs']}",
            f"≤ {one['aim']:.0f}",
            f"{one['seconds']:.0f}",
            str(len(one["turns"])),
            one["machine"]["device"] if one["machine"]["device"] != "cpu" else f"{one['machine']['threads']} CPU cores",
        ]
        for one in results
    ]
    return markdown(["runs", "aim, s", "s", "turns", "on"], rows)


def main() -> None:
    """Measure as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True, help="folder with the data sets and word vectors")
    parser.add_argument("--out", type=Path, help="JSON file for all numbers")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--turns", type=int, default=1, help="how often it is timed; the median counts")
    arguments = vars(parser.parse_args())
    with ending_in_words("stopped; nothing is kept"):
        result = bench_reproduce(**arguments, tell=lambda line: print(line, file=sys.stderr, flush=True))  # noqa: T201
        print("\n".join(time_table(result)))  # noqa: T201


if __name__ == "__main__":
    main()
