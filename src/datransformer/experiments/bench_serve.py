"""How a server stands up to many connections at once, beside one that does not batch: every answer is checked.

Both servers run in processes of their own on the loopback interface and take turns; this process asks, over as many
connections as it is told, each of which sends its next request when it has the answer to the one before. An answer is
held against what `datransformer predict` says to that very text. Figures are medians over the rounds.
"""

import argparse
import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from datransformer.data.errors import InputError
from datransformer.data.probe import Probe
from datransformer.data.store import write_text
from datransformer.experiments.machine import commit, machine, versions_of
from datransformer.train.config import RunConfig, from_dict, to_dict
from datransformer.train.fit import fit
from datransformer.train.predict import answer_rows, predictions, rows_of_texts
from datransformer.train.run import Run, load_run, versions

SERVERS: Mapping[str, Sequence[str]] = {"batching": (), "one_by_one": ("--batch", "1", "--wait-ms", "0")}
SHARE = {"batching": 1.0, "one_by_one": 0.1}  # of the requests: the slow one is there to compare with
TEXTS = 4096
SHORTEST = 8  # words
SEVERAL, EVERY = 3, 16  # texts of every so manieth request; the others have one
TOLERANCE = 5e-6  # answers have six digits, and another batch may round otherwise
PATIENCE = 60.0  # seconds
HEAD = "POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
TINY = {"embed_dim": 16, "heads": 2, "head_dim": 8}


@dataclass(frozen=True)
class Question:
    """A request as it is sent, and the probabilities that are the right answer to its texts."""

    request: bytes
    expected: list[dict[str, float]]


@dataclass
class Tally:
    """What came back in a round."""

    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    lost: int = 0
    mixed: int = 0
    largest_difference: float = 0.0


def bench_serve(
    out: Path | None,
    *,
    run: Path | None = None,
    requests: int = 100_000,
    connections: int = 64,
    rounds: int = 5,
    tiny: bool = False,
    tell: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Ask both servers, write what came out to ``out`` as JSON, and return it.

    Args:
        out: The file to write; None: none.
        run: A run of the task sentence with classes; None: one that is trained on the probe for a moment.
        requests: Requests to the server that batches, over all rounds; the other gets its `SHARE`.
        connections: How many requests are under way at once.
        rounds: Turns of each server.
        tiny: Whether the model that is trained is smaller than the paper's.
        tell: Gets a line a round.
    """
    with TemporaryDirectory(prefix="datransformer-bench-") as name, ExitStack() as stack:
        load = os.getloadavg()
        trained = load_run(run or train_probe(Path(name), TINY if tiny else {}))
        questions, distinct = make_questions(trained)
        about = {
            "machine": {**machine(torch.device("cpu")), "load_average_before": load},
            "versions": {**versions(), **versions_of("fastapi", "starlette", "uvicorn")},
            "commit": commit(),
            "model": to_dict(trained.config.model),
            "connections": connections,
            "texts": {"different": len(questions), "told_apart": distinct, "tolerance": TOLERANCE},
        }
        servers = {
            server: stack.enter_context(started(trained.folder, *options)) for server, options in SERVERS.items()
        }
        for _, port in servers.values():
            asyncio.run(drive(port, questions, 4 * connections, connections))
        rows: dict[str, list[dict[str, Any]]] = {server: [] for server in servers}
        for number in range(rounds):
            for server, (process, port) in servers.items():
                count = max(round(SHARE[server] * requests / rounds), connections)
                rows[server].append(measure(process.pid, port, questions, count, connections))
                tell(f"round {number + 1}, {server}: {json.dumps(rows[server][-1])}")
            result = {**about, **summarise(rows)}
            if out is not None:
                write_result(out, result)
    return result


def write_result(out: Path, result: Mapping[str, Any]) -> None:
    """Write what is known so far."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_text(out, json.dumps(result, indent=2) + "\n")
    except OSError as error:
        raise InputError(f"--out {out}: cannot be written ({error.strerror})") from error


def train_probe(folder: Path, model: Mapping[str, Any], **data: Any) -> Path:
    """A run on the probe that has learned a little, so that its answers differ from text to text."""
    values = {"files": {"dataset": "probe"}, "model": dict(model), "data": data, "train": {"steps": 20}}
    config = from_dict(RunConfig, values, "bench")
    fit(config, folder / "run", cache=folder / "cache", device="cpu")
    return folder / "run"


def make_questions(run: Run) -> tuple[list[Question], float]:
    """Requests with their right answers, and the share of pairs of texts whose answers can be told apart."""
    random = np.random.default_rng(7)
    whole = [text.split() for batch in Probe(TEXTS, seed=7).batches() for text in batch["text"].to_pylist()]
    texts = [" ".join(words[: random.integers(SHORTEST, len(words) + 1)]) for words in whole]
    classes = run.labels.classes
    if run.config.task != "sentence" or classes is None:
        raise InputError(f"{run.folder}: expected a run of the task sentence with classes")
    answered = answer_rows(run, rows_of_texts(texts), labelled=False)
    records = list(predictions(run, answered)[1])
    answers = [{name: record[f"probability_{name}"] for name in classes} for record in records]
    questions = []
    for at in range(len(texts)):
        span = slice(at, at + (SEVERAL if at % EVERY == 0 else 1))
        body = json.dumps({"text": texts[span] if at % EVERY == 0 else texts[at]}).encode()
        questions.append(Question(f"{HEAD}{len(body)}\r\n\r\n".encode() + body, answers[span]))
    first = np.sort([answer[classes[0]] for answer in answers])
    near = np.searchsorted(first, first + 2 * TOLERANCE, "right") - np.arange(len(first)) - 1
    return questions, 1 - float(near.sum()) / (len(first) * (len(first) - 1) / 2)


@contextmanager
def started(run: Path, *options: str, **environment: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A server of a run in a process of its own, and its port."""
    command = [sys.executable, "-m", "datransformer", "serve", str(run), "--port", "0", "--device", "cpu", *options]
    variables = {**os.environ, **environment}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=variables) as process:  # noqa: S603, our own
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
            port = re.search(r":(\d+)/docs$", line.strip())
            if port is None:
                raise InputError(f"the server did not start: {line}{process.stderr.read()}")
            yield process, int(port[1])
        finally:
            process.kill()


def measure(pid: int, port: int, questions: Sequence[Question], requests: int, connections: int) -> dict[str, Any]:
    """One round with one server."""
    worked, batches = cpu_seconds(pid), read_batches(port)
    tally = asyncio.run(drive(port, questions, requests, connections))
    worked, batches = cpu_seconds(pid) - worked, read_batches(port) - batches
    milliseconds = np.array(tally.latencies) * 1000
    return {
        "requests": requests,
        "requests_per_second": round(requests / tally.seconds, 1),
        "p50_ms": round(float(np.percentile(milliseconds, 50)), 3),
        "p99_ms": round(float(np.percentile(milliseconds, 99)), 3),
        "server_cpu_ms_per_request": round(1000 * worked / requests, 3),
        "texts_per_batch": round(float(batches[0] / batches[1]), 2),
        "statuses": dict(tally.statuses),
        "lost": tally.lost,
        "mixed": tally.mixed,
        "largest_difference": tally.largest_difference,
    }


def summarise(rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """Of each server medians of what is measured and sums of what must not happen; how many times as fast ours is."""
    medians = ("requests_per_second", "p50_ms", "p99_ms", "server_cpu_ms_per_request", "texts_per_batch")
    servers = {
        server: {
            "options": " ".join(SERVERS[server]),
            **{name: statistics.median(row[name] for row in rounds) for name in medians},
            **{name: sum(row[name] for row in rounds) for name in ("requests", "lost", "mixed")},
            "largest_difference": max(row["largest_difference"] for row in rounds),
            "rounds": rounds,
        }
        for server, rounds in rows.items()
    }
    pairs = zip(rows["batching"], rows["one_by_one"], strict=True)
    ratios = [ours["requests_per_second"] / theirs["requests_per_second"] for ours, theirs in pairs]
    return {"servers": servers, "throughput_ratio": round(statistics.median(ratios), 2)}


async def drive(port: int, questions: Sequence[Question], requests: int, connections: int) -> Tally:
    """Ask over all connections until every request has been sent, and check the answers."""
    tally, numbers = Tally(), iter(range(requests))

    async def ask() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for number in numbers:
            question = questions[number % len(questions)]
            sent = time.perf_counter()
            try:
                writer.write(question.request)
                async with asyncio.timeout(PATIENCE):
                    status, body = await read_response(reader)
            except (OSError, EOFError, TimeoutError):
                tally.lost += 1
                writer.close()
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                continue
            tally.latencies.append(time.perf_counter() - sent)
            check(tally, question, status, body)
        writer.close()

    begun = time.perf_counter()
    await asyncio.gather(*(ask() for _ in range(connections)))
    tally.seconds = time.perf_counter() - begun
    return tally


async def read_response(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """The status and the body of an answer whose length is given."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"(?i)\r\ncontent-length: (\d+)\r\n", head)
    return int(head[9:12]), await reader.readexactly(int(length[1]) if length else 0)


def check(tally: Tally, question: Question, status: int, body: bytes) -> None:
    """Count an answer: refused ones are lost, and those of other texts are mixed up."""
    tally.statuses[status] += 1
    if status != 200:
        tally.lost += 1
        return
    given = [answer["probabilities"] for answer in json.loads(body)["predictions"]]
    if [set(answer) for answer in given] != [set(answer) for answer in question.expected]:
        tally.mixed += 1
        return
    pairs = zip(given, question.expected, strict=True)
    difference = max(abs(answer[name] - right[name]) for answer, right in pairs for name in right)
    tally.largest_difference = max(tally.largest_difference, round(difference, 7))
    tally.mixed += difference > TOLERANCE


def read_batches(port: int) -> np.ndarray[Any, Any]:
    """How many texts a server has answered in batches, and how many batches."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as response:
        text = response.read().decode()
    found = (re.search(rf"^datransformer_batch_texts_{what} (\S+)$", text, re.MULTILINE) for what in ("sum", "count"))
    return np.array([float(match[1]) if match else 0.0 for match in found])


def cpu_seconds(pid: int) -> float:
    """What a process has worked so far, where Linux tells; 0 elsewhere."""
    path = Path(f"/proc/{pid}/stat")
    if not path.exists():
        return 0.0
    fields = path.read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Measure as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="JSON file for all numbers")
    parser.add_argument("--run", type=Path, help="a run directory; by default one is trained on the probe")
    parser.add_argument("--requests", type=int, default=100_000, help="to the server that batches")
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tiny", action="store_true", help="train a model that is smaller than the paper's")
    parser.add_argument("--quick", action="store_true", help="a tiny model, 2,000 requests, 1 round")
    arguments = vars(parser.parse_args())
    if arguments.pop("quick"):
        arguments |= {"requests": 2000, "rounds": 1, "tiny": True}
    bench_serve(**arguments, tell=lambda line: print(line, file=sys.stderr, flush=True))  # noqa: T201


if __name__ == "__main__":
    main()
