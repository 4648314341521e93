"""How quick an exported model is beside torch, and how quick and how large the explorer's answers are, on a CPU.

onnxruntime and torch answer the same batches in this process, with as many threads, and take turns. The explorer runs
in a process of its own, as its users start it; its page is what ``datransformer explain`` writes.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from datransformer.data.errors import InputError
from datransformer.experiments.bench_serve import TINY, train_probe, write_result
from datransformer.experiments.machine import commit, machine, versions_of
from datransformer.experiments.meters import Call, CpuMeter, interleave, quartiles
from datransformer.export import export_run
from datransformer.export.graphs import graphs_of
from datransformer.export.samples import Inputs, Shape, draw_texts, sample_texts
from datransformer.train.config import to_dict
from datransformer.train.run import load_run, versions

# Batches of texts, from the longest down to one word.
BATCHES = {
    "1 text of 64 words": Shape(1, 64, 1),
    "64 texts of up to 64 words": Shape(64, 64, 1),
    "1 text of 512 words": Shape(1, 512, 1),
}
EXPLAINED = 512  # words, as many as the explorer shows
ROUNDS = 100
SECONDS = 60.0  # for the rounds of a batch


def bench_export(
    out: Path | None,
    *,
    rounds: int = ROUNDS,
    threads: int = 1,
    tiny: bool = False,
    tell: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Measure, write what came out to ``out`` as JSON, and return it.

    Args:
        out: The file to write; None: none.
        rounds: Turns of each, and questions to the explorer.
        threads: Of torch, of onnxruntime and of the explorer.
        tiny: Whether the model is smaller than the paper's.
        tell: Gets a line a measurement.
    """
    torch.set_num_threads(threads)
    with TemporaryDirectory(prefix="datransformer-bench-") as name:
        load = os.getloadavg()
        run = train_probe(Path(name), TINY if tiny else {}, max_length=EXPLAINED)
        result: dict[str, Any] = {
            "machine": {**machine(torch.device("cpu")), "load_average_before": load},
            "versions": {**versions(), **versions_of("onnx", "onnxruntime")},
            "commit": commit(),
            "model": to_dict(load_run(run).config.model),
            "threads": threads,
            "rounds": rounds,
        }
        for key, measure in {"answers": compare_answers, "explorer": ask_explorer}.items():
            result[key] = measure(run, rounds, threads)
            tell(f"{key}: {json.dumps(result[key])}")
    if out is not None:
        write_result(out, result)
    return result


def compare_answers(run: Path, rounds: int, threads: int) -> dict[str, Any]:
    """Of each batch the milliseconds of both, and the median over rounds of how many times as fast onnxruntime is."""
    answer = onnx_answer(run, threads)
    trained = load_run(run)
    batches = {name: sample_texts(trained, shape) for name, shape in BATCHES.items()}
    (graph,) = graphs_of(trained)
    meter, found = CpuMeter(), {}
    for name, inputs in batches.items():
        difference = float((answer(inputs) - _in_torch(graph.module, inputs)).abs().max())
        calls: dict[str, Call] = {
            "torch": lambda _, inputs=inputs: _in_torch(graph.module, inputs),  # type: ignore[misc]
            "onnxruntime": lambda _, inputs=inputs: answer(inputs),  # type: ignore[misc]
        }
        turns = {key: meter.prepare(call) for key, call in calls.items()}
        times, failed = interleave(turns, least=min(rounds, 10), most=rounds, seconds=SECONDS)
        if failed:
            raise InputError(f"{name}: {failed}")
        ratios = [slow / quick for slow, quick in zip(times["torch"], times["onnxruntime"], strict=True)]
        found[name] = {
            **{f"{key}_ms": _summary(values) for key, values in times.items()},
            "torch_over_onnxruntime": round(statistics.median(ratios), 2),
            "largest_difference": difference,
        }
    return found


@torch.no_grad()
def _in_torch(module: torch.nn.Module, inputs: Inputs) -> torch.Tensor:
    answers: torch.Tensor = module(**inputs)
    return answers


def onnx_answer(run: Path, threads: int) -> Callable[[Inputs], torch.Tensor]:
    """The run's model under onnxruntime."""
    import onnxruntime

    with TemporaryDirectory(prefix="datransformer-bench-") as folder:
        export_run(run, Path(folder) / "exported", to="onnx")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        path = Path(folder) / "exported" / "model.onnx"
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def answer(inputs: Inputs) -> torch.Tensor:
        (answers,) = session.run(None, {name: tensor.numpy() for name, tensor in inputs.items()})
        return torch.from_numpy(answers)

    return answer


def ask_explorer(run: Path, rounds: int, threads: int) -> dict[str, Any]:
    """The milliseconds from question to answer, and the bytes of an answer and of a page that works offline."""
    ((text,),) = draw_texts(load_run(run), Shape(1, EXPLAINED, 1))
    times, answer = [], b""
    with explorer(run, threads) as url:
        question = urllib.request.Request(  # noqa: S310, our own server
            f"{url}explain", json.dumps({"text": text}).encode(), {"Content-Type": "application/json"}
        )
        for _ in range(rounds + 1):
            begun = time.perf_counter()
            with urllib.request.urlopen(question) as response:  # noqa: S310
                answer = response.read()
            times.append(1000 * (time.perf_counter() - begun))
    (sequence,) = json.loads(answer)["results"][0]["sequences"]
    return {
        "words": len(sequence["items"]),
        "maps": sum(map(len, sequence["layers"])),
        "answer_ms": _summary(times[1:]),  # the first warms up
        "answer_bytes": len(answer),
        "page_bytes": page_size(run, text),
    }


def page_size(run: Path, text: str) -> int:
    """The bytes of the page on a text that works offline."""
    with TemporaryDirectory(prefix="datransformer-bench-") as folder:
        page = Path(folder) / "page.html"
        command = [*_command("explain", run), "--text", text, "--out", str(page)]
        subprocess.run(command, check=True, capture_output=True)  # noqa: S603, our own
        return page.stat().st_size


@contextmanager
def explorer(run: Path, threads: int) -> Iterator[str]:
    """An explorer of a run in a process of its own, and its address."""
    command = _command("explore", run)
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONUNBUFFERED": "1"}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment) as process:  # noqa: S603, our own
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            line = process.stdout.readline()
            if not line.startswith("Explorer: "):
                raise InputError(f"the explorer did not start: {line}{process.stderr.read()}")
            yield line.removeprefix("Explorer: ").strip()
        finally:
            process.kill()


def _command(verb: str, run: Path) -> list[str]:
    return [sys.executable, "-m", "datransformer", verb, str(run)]


def _summary(times: list[float]) -> dict[str, float]:
    names = ("lower_quartile", "median", "upper_quartile")
    return {name: round(value, 3) for name, value in zip(names, quartiles(times), strict=True)}


def main() -> None:
    """Measure as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="JSON file for all numbers")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--tiny", action="store_true", help="train a model that is smaller than the paper's")
    arguments = vars(parser.parse_args())
    bench_export(**arguments, tell=lambda line: print(line, file=sys.stderr, flush=True))  # noqa: T201


if __name__ == "__main__":
    main()
