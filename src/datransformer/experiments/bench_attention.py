"""How fast distance-aware attention is, and how much memory it takes, beside the attention that torch has.

All contestants of a case get the same inputs in one run, in turns; a time is the median over the turns, and a ratio the
median of the ratios of each turn. Times are forward under ``no_grad``, and forward and backward, in which ours also
compute the gradients of w and v. TFLOP/s count the operations of plain attention, 4 · batch · heads · length² ·
head_dim forward and 3.5 times that with backward, masks not deducted: a shortcut shows as a higher figure.
"""

import itertools
import json
import os
import platform
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from datransformer.data.errors import InputError
from datransformer.experiments.contestants import (
    CONTESTANTS,
    WEIGHTS,
    Attend,
    Case,
    Contestant,
    Inputs,
    make_inputs,
)
from datransformer.experiments.machine import commit, machine, markdown, versions_of
from datransformer.experiments.meters import METERS, Call, Meter, Turn, attempt, interleave, quartiles
from datransformer.ops.attention import explain_backends
from datransformer.version import __version__

DEVICES = ("auto", "cpu", "cuda")
DEFAULT_DTYPE = {"cpu": "fp32", "cuda": "bf16"}
THREADS = 2
MOST_THREADS = 1024
SQUARES = 8  # length² matrices of fp32 that the reference has at once in a backward pass, rounded up


# Plans and targets


@dataclass(frozen=True)
class Plan:
    """What is measured on a device, and for how long.

    Args:
        cases: The cases.
        least: Rounds of turns of a case, at least.
        most: Rounds, at most.
        seconds: How long rounds go on beyond the least, for each pass of a case.
        patience: Seconds from the start after which nothing is compiled any more.
    """

    cases: tuple[Case, ...]
    least: int
    most: int
    seconds: float
    patience: float


TEXTS = (512, 16, 64, 16)  # a batch of the paper's texts
LONG = (8, 16, 4096, 64)

PLANS: dict[str, Plan] = {
    "cuda": Plan(
        (
            Case(LONG, full=True),
            Case(TEXTS, full=True),
            Case((2, 16, 16384, 64)),
            Case(LONG, weights="far"),
            Case(LONG, weights="near"),
            Case((8, 16, 4096, 128)),
            *(Case((1, 16, length, 64), weights="near") for length in (4096, 8192, 16384, 32768, 65536)),
            Case((1, 16, 65536, 64)),
            Case(LONG, causal=True),
            Case(LONG, padded=True),
            Case(TEXTS, "fp32"),
            Case((64, 16, 48, 16), "fp32"),
        ),
        least=20, most=100, seconds=1, patience=150,
    ),
    "cpu": Plan(
        (
            Case((32, 16, 256, 16), "fp32", full=True),
            Case((64, 16, 48, 16), "fp32", full=True),
            *(Case((1, 16, length, 64), "fp32") for length in (512, 1024, 2048)),
            Case((4, 16, 2048, 64), "fp32"),
        ),
        least=7, most=50, seconds=10, patience=300,
    ),
    "cuda quick": Plan(
        (Case((2, 3, 256, 64), full=True), *(Case((1, 2, length, 64), weights="near") for length in (256, 512))),
        least=3, most=3, seconds=0, patience=90,
    ),
    "cpu quick": Plan(
        (Case((2, 3, 37, 5), "fp32", full=True), *(Case((1, 2, length, 8), "fp32") for length in (64, 128))),
        least=3, most=3, seconds=0, patience=0,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Aim:
    """What ours shall reach, as ratios that are at most this; None: nothing.

    Args:
        forward: Of forward times.
        both: Of times of forward and backward.
        memory: Of peaks in forward and backward.
        faster: Contestants that ours shall not be slower than in forward and backward.
    """

    forward: float | None = None
    both: float | None = None
    memory: float | None = None
    faster: tuple[str, ...] = ()


# Beside the baseline of the case.
TARGETS: dict[str, dict[Case, Aim]] = {
    "cuda": {
        Case(LONG): Aim(0.48, 0.55, 0.7, faster=("sdpa_cudnn",)),
        Case((2, 16, 16384, 64)): Aim(0.38, 0.42, 0.7),
        Case(LONG, weights="far"): Aim(0.85, 0.95, 0.7),
        Case(LONG, weights="near"): Aim(0.17, 0.22, 0.7),
        Case((8, 16, 4096, 128)): Aim(0.48, 0.60, 0.7),
        Case(TEXTS): Aim(0.22, 0.30, 1.0),
    },
    "cpu": {
        Case((32, 16, 256, 16), "fp32"): Aim(1.2, 1.3),
        Case((4, 16, 2048, 64), "fp32"): Aim(0.8, 0.9),
        Case((64, 16, 48, 16), "fp32"): Aim(1.3),
    },
}

# Beside half the length, for every doubling of a series.
DOUBLINGS: dict[str, dict[Case, Aim]] = {
    "cuda": {Case((1, 16, 0, 64), weights="near"): Aim(2.3, 2.3, 2.3)},
    "cpu": {Case((1, 16, 0, 64), "fp32"): Aim(memory=2.3)},
}


# Measuring

PASSES = {"forward": (1.0, "fwd"), "both": (3.5, "fwd+bwd")}  # operations beside the forward pass, and a short name


def call_of(attend: Attend, inputs: Sequence[Inputs], kind: str, contestant: Contestant) -> Call:
    """One pass of a contestant, to be measured."""

    def forward(number: int) -> Tensor:
        with torch.no_grad():
            return attend(inputs[number % len(inputs)])

    def both(number: int) -> tuple[Tensor, ...]:
        one = inputs[number % len(inputs)]
        leaves = (one.query, one.key, one.value, *((one.weight, one.shift) if contestant.distance else ()))
        output = attend(one)
        return output, *torch.autograd.grad(output, leaves, one.gradient)

    return forward if kind == "forward" else both


def reason_against(name: str, case: Case, free: int | None) -> str | None:
    """Why a contestant does not even try a case; None if it does."""
    batch, heads, length, _ = case.shape
    squares = SQUARES if CONTESTANTS[name].quadratic else 0
    needed = 3 * case.bytes + squares * batch * heads * length**2 * 4
    if free is not None and needed > 0.8 * free:
        return f"left out: it could take {needed / 2**30:.0f} GiB, and {free / 2**30:.0f} are free"
    return None


def contestants_of(case: Case, device: str) -> list[str]:
    """Those who take part."""
    return [
        name
        for name, one in CONTESTANTS.items()
        if device in one.devices and (case.full or not one.extra or name == case.baseline(device))
    ]


def measure_case(
    case: Case, device: torch.device, meter: Meter, plan: Plan, late: Callable[[], bool] = lambda: False
) -> dict[str, Any]:
    """Times and memory of everyone who takes part.

    Args:
        case: What to compute.
        device: Where.
        meter: What measures there.
        plan: How long.
        late: Whether there is no time left to compile.
    """
    names = contestants_of(case, device.type)
    against = {name: reason_against(name, case, meter.free()) for name in names}
    copies = 0 if all(against.values()) else meter.copies(case.bytes)
    inputs, failure = attempt(lambda: make_inputs(case, device, copies))
    rows: dict[str, dict[str, Any]] = {}
    turns: dict[str, dict[str, Turn]] = {kind: {} for kind in PASSES}
    for name in names:
        contestant = CONTESTANTS[name]
        row = rows[name] = {"label": contestant.label, "ours": contestant.ours}
        if contestant.ours and inputs:
            sample = inputs[0]
            reasons = explain_backends(sample.query, sample.key, sample.value)
            row["backend"] = next(backend for backend, reason in reasons.items() if reason is None)
            row["label"] = f"{contestant.label}, {row['backend']}"
        no_time = "left out: compiling it would take too long here" if contestant.compiled and late() else None
        reason = failure or against[name] or no_time
        for kind in PASSES:
            reason = reason or (contestant.no_backward if kind == "both" else None)
            if reason is None:
                ready, reason = attempt(partial(_make_ready, name, case, inputs, kind, meter))
                if reason is None:
                    row[kind], turns[kind][name] = {"peak_bytes": ready[0], "timer": ready[1].how}, ready[1]
                    continue
                attempt(meter.clear)
            row[kind] = {"skipped": reason}
    for kind, (operations, _) in PASSES.items():
        times, failed = interleave(turns[kind], least=plan.least, most=plan.most, seconds=plan.seconds)
        for name, reason in failed.items():
            rows[name][kind] = {"skipped": reason}
        base = case.baseline(device.type)
        for name, taken in times.items():
            lower, middle, upper = quartiles(taken)
            peak = rows[name][kind]["peak_bytes"]
            rows[name][kind] |= {
                "rounds": len(taken),
                "ms": _rounded(middle),
                "quartiles": [_rounded(lower), _rounded(upper)],
                "tflops": _rounded(operations * case.flops / middle / 1e9),
                "ratio": None,
                "peak_mib": _rounded(peak / 2**20),
                "memory_ratio": None,
            }
            if base in times:
                ratio = statistics.median(mine / its for mine, its in zip(taken, times[base], strict=True))
                rows[name][kind]["ratio"] = _rounded(ratio)
                rows[name][kind]["memory_ratio"] = _quotient(peak, rows[base][kind]["peak_bytes"])
    compiled = any(CONTESTANTS[name].compiled for kind in PASSES for name in turns[kind])
    turns.clear()
    if compiled:
        torch.compiler.reset()  # after eight shapes torch would give up and run the rest without compiling
    attempt(meter.clear)  # after a crashed kernel every call to the device fails, this one too
    return {
        "name": case.name,
        "series": case.series,
        "shape": list(case.shape),
        "dtype": case.dtype,
        "weights": list(WEIGHTS[case.weights]),
        "causal": case.causal,
        "padded": case.padded,
        "input_sets": copies,
        "baseline": case.baseline(device.type),
        "rows": rows,
    }


def _make_ready(name: str, case: Case, inputs: Sequence[Inputs], kind: str, meter: Meter) -> tuple[int, Turn]:
    contestant = CONTESTANTS[name]
    if kind == "forward":
        inputs = [one.detached() for one in inputs]  # FlexAttention on a CPU takes no others
    call = call_of(contestant.make(case, inputs[0]), inputs, kind, contestant)
    call(0)  # whatever is compiled or allocated once
    return meter.peak(call), meter.prepare(call)


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def _quotient(one: float, other: float) -> float | None:
    return _rounded(one / other) if other else None


def bench_attention(
    out: Path | None,
    *,
    device: str = "auto",
    quick: bool = False,
    shapes: Sequence[str] = (),
    threads: int = THREADS,
    tell: Callable[[str], None],
    meter: Meter | None = None,
) -> dict[str, Any]:
    """Measure every case, write the result to ``out`` as JSON after each, and return it.

    Args:
        out: The file to write; None: none.
        device: One of `DEVICES`.
        quick: Sizes that show that it works, and mean nothing.
        shapes: ``BxHxNxD`` each, instead of the cases of the plan.
        threads: Of a CPU.
        tell: Gets a line now and then.
        meter: What measures; None: the one of `METERS` for the device.
    """
    if device not in DEVICES:
        raise InputError(f"--device: got {device!r}, expected one of: {', '.join(DEVICES)}")
    if device == "cuda" and not torch.cuda.is_available():
        raise InputError("--device: got 'cuda', but torch finds no CUDA device; expected auto or cpu")
    if not 1 <= threads <= MOST_THREADS:
        raise InputError(f"--threads: got {threads}, expected 1 to {MOST_THREADS}")
    place = torch.device(device if device != "auto" else "cuda" if torch.cuda.is_available() else "cpu")
    given = tuple(Case(parse_shape(shape), DEFAULT_DTYPE[place.type], full=True) for shape in shapes)
    if out is not None:
        check_writable("--out", out)
    plan = PLANS[f"{place.type} quick" if quick else place.type]
    cases = given or plan.cases
    result: dict[str, Any] = {
        "quick": quick,
        "device": place.type,
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "commit": commit(),
        "machine": machine(place),
        "versions": {
            "datransformer": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            **versions_of("triton"),
            **({"cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()} if place.type == "cuda" else {}),
        },
        "threads": threads if place.type == "cpu" else None,
        "cases": [],
    }
    start = time.monotonic()
    meter = meter or METERS[place.type]()
    with _threads(threads if place.type == "cpu" else torch.get_num_threads()):
        for number, case in enumerate(cases, 1):
            measured = measure_case(case, place, meter, plan, lambda: time.monotonic() - start >= plan.patience)
            result["cases"].append(measured)
            result["seconds"] = round(time.monotonic() - start, 1)
            result["doublings"] = list_doublings(result["cases"])
            result["targets"] = list_targets(result)
            if out is not None:
                _write(out, json.dumps(result, indent=1, ensure_ascii=False) + "\n")
            tell(f"{result['seconds']:6.1f} s, {number} of {len(cases)}: {_line(measured)}")
    return result


def parse_shape(text: str) -> tuple[int, int, int, int]:
    """``8x16x4096x64``: batch, heads, length, head_dim."""
    parts = text.lower().replace("×", "x").split("x")
    if len(parts) == 4 and all(part.isascii() and part.isdigit() and int(part) > 0 for part in parts):
        batch, heads, length, head_dim = map(int, parts)
        return batch, heads, length, head_dim
    raise InputError(
        f"--shape: got {text!r}, expected batch, heads, length and head_dim above 0, joined by x: 8x16x4096x64"
    )


def check_writable(option: str, path: Path) -> None:
    """Raise now what could not be written after minutes of measuring."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise InputError(f"{option}: got {path}, which is a folder; expected a file")
        if path.exists() and not path.is_file():
            raise InputError(f"{option}: got {path}, which is not a regular file; expected one, or a new name")
        _part(path).touch()
        _part(path).unlink()
    except OSError as error:
        raise InputError(f"{option}: {path} cannot be written ({error.strerror or error})") from error


def _part(path: Path) -> Path:
    path = path.resolve()  # behind a link is the file that is meant
    return path.with_name(f".{path.name}.{os.getpid()}.part")


def _write(path: Path, text: str) -> None:
    try:
        _part(path).write_text(text, encoding="utf-8")
        _part(path).replace(path.resolve())
    except OSError as error:
        raise InputError(f"--out: {path} cannot be written ({error.strerror or error})") from error


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _line(case: Mapping[str, Any]) -> str:
    pairs = (f"{name} {_cell(row['forward'], 'ms')} / {_cell(row['both'], 'ms')}" for name, row in case["rows"].items())
    return f"{case['name']}, ms: {', '.join(pairs)}"


# What came out


def list_doublings(cases: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Of every two cases of a series, one twice as long as the other: what each contestant takes more of."""
    rows = []
    for short, long in itertools.permutations(cases, 2):
        if short["series"] != long["series"] or 2 * short["shape"][2] != long["shape"][2]:
            continue
        for name, row in long["rows"].items():
            other = short["rows"].get(name)
            if other is None:
                continue
            grown = {
                kind: _quotient(row[kind]["ms"], other[kind]["ms"])
                for kind in PASSES
                if "ms" in row[kind] and "ms" in other[kind]
            }
            if "both" in grown:
                grown["memory"] = _quotient(row["both"]["peak_bytes"], other["both"]["peak_bytes"])
            if "ms" in row["forward"] or "ms" in other["forward"]:  # a length that failed leaves its target unmeasured
                rows.append({"series": short["series"], "length": long["shape"][2], "contestant": name, **grown})
    return rows


def list_targets(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Every number that has a target, for each of ours that ran at all: what was reached and whether that was met."""
    targets: list[dict[str, Any]] = []

    def add(name: str, contestant: str, reached: float | None, wanted: float | None) -> None:
        if wanted is not None:
            met = None if reached is None else reached <= wanted
            targets.append(
                {"name": name, "contestant": contestant, "reached": reached, "wanted": wanted, "met": met}
            )  # fmt: skip

    device = result["device"]
    aims = {case.name: aim for case, aim in TARGETS[device].items()}
    doublings = {case.series: aim for case, aim in DOUBLINGS[device].items()}
    for ours in _ran(result["cases"]):
        for case in result["cases"]:
            aim, rows = aims.get(case["name"]), case["rows"]
            if aim is None or ours not in rows:
                continue
            beside = rows[case["baseline"]]["label"]
            forward, both = rows[ours]["forward"], rows[ours]["both"]
            add(f"{case['name']}: fwd ÷ {beside}", ours, forward.get("ratio"), aim.forward)
            add(f"{case['name']}: fwd+bwd ÷ {beside}", ours, both.get("ratio"), aim.both)
            add(f"{case['name']}: memory ÷ {beside}", ours, both.get("memory_ratio"), aim.memory)
            for other in aim.faster:
                measured = "ms" in both and "ms" in rows[other]["both"]
                ratio = _quotient(both["ms"], rows[other]["both"]["ms"]) if measured else None
                add(f"{case['name']}: fwd+bwd ÷ {rows[other]['label']}", ours, ratio, 1.0)
        for series, aim in doublings.items():
            grown = [row for row in result["doublings"] if (row["series"], row["contestant"]) == (series, ours)]
            for kind, wanted, what in (
                ("forward", aim.forward, "fwd"), ("both", aim.both, "fwd+bwd"), ("memory", aim.memory, "memory")
            ):  # fmt: skip
                if grown:
                    reached = [row.get(kind) for row in grown]
                    worst = None if None in reached else max(reached)
                    add(f"{series}: {what} of twice the length, at worst", ours, worst, wanted)
    return targets


def _ran(cases: Iterable[Mapping[str, Any]]) -> list[str]:
    """Those of ours that ran in some case."""
    names = {
        name: None for case in cases for name, row in case["rows"].items() if row["ours"] and "ms" in row["forward"]
    }
    return list(names)


HEADS = ("fwd ms", "÷", "TFLOP/s", "fwd+bwd ms", "÷", "TFLOP/s", "peak MiB", "÷")
CELLS = (("forward", "ms"), ("forward", "ratio"), ("forward", "tflops"), ("both", "ms"), ("both", "ratio"),
         ("both", "tflops"), ("both", "peak_mib"), ("both", "memory_ratio"))  # fmt: skip


def _cell(measured: Mapping[str, Any], key: str) -> str:
    value = measured.get(key)
    if value is None:
        return "—"
    if key.endswith("ratio"):
        return f"{value:.2f}"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}" if value < 100 else f"{value:.0f}"


def _case_rows(case: Mapping[str, Any]) -> list[tuple[str, ...]]:
    return [(row["label"], *(_cell(row[kind], key) for kind, key in CELLS)) for row in case["rows"].values()]


Rows = list[tuple[str, ...]]


def tables(result: Mapping[str, Any]) -> list[tuple[tuple[str, ...], Rows]]:
    """Heads and rows of every table: one for each case, growth with length, targets."""
    every: list[tuple[tuple[str, ...], Rows]] = []
    for case in result["cases"]:
        cells: Rows = [(row["label"], *(_cell(row[kind], key) for kind, key in CELLS)) for row in case["rows"].values()]
        every.append(((case["name"], *HEADS), cells))
    labels = {name: row["label"] for case in result["cases"] for name, row in case["rows"].items()}
    for series in dict.fromkeys(row["series"] for row in result["doublings"]):
        cells = [
            (
                f"{labels[row['contestant']]}, to {row['length']:,}",
                *(_cell({"ratio": row.get(kind)}, "ratio") for kind in (*PASSES, "memory")),
            )
            for row in sorted(
                result["doublings"], key=lambda row: (list(labels).index(row["contestant"]), row["length"])
            )
            if row["series"] == series
        ]
        every.append(((f"{series}, ÷ half the length", "fwd", "fwd+bwd", "memory"), cells))
    words = {True: "met", False: "missed", None: "not measured"}
    judged: Rows = [
        (
            f"{labels[row['contestant']]}: {row['name']}",
            _cell({"ratio": row["reached"]}, "ratio"),
            f"≤ {row['wanted']:.2f}",
            words[row["met"]],
        )
        for row in result["targets"]
    ]
    if judged:
        every.append((("target", "reached", "wanted", ""), judged))
    return every


def attention_text(result: Mapping[str, Any]) -> str:
    """All tables, for a terminal."""
    blocks = [f"Attention on {result['machine']['device']}{', quick' if result['quick'] else ''}.\n{LEGEND}"]
    for heads, rows in tables(result):
        lines = [heads, *rows]
        widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
        blocks.append(
            "\n".join(
                "  ".join(
                    cell.rjust(width) if column else cell.ljust(width)
                    for column, (cell, width) in enumerate(zip(line, widths, strict=True))
                ).rstrip()
                for line in lines
            )
        )
    reasons = {
        f"{row['label']}, {short}: {row[kind]['skipped']}": None
        for case in result["cases"]
        for row in case["rows"].values()
        for kind, (_, short) in PASSES.items()
        if "skipped" in row[kind] and (kind == "forward" or row["forward"].get("skipped") != row[kind]["skipped"])
    }
    if reasons:
        blocks.append("\n".join(("Not measured (—):", *(f"  {reason}" for reason in reasons))))
    return "\n\n".join(blocks) + "\n"


LEGEND = (
    "÷ is time or memory beside SDPA: on CUDA its flash kernel, in fp32 and with padding its efficient one.\n"
    "It is the median of the ratios of all turns, which other work on the machine disturbs less than the times.\n"
    "TFLOP/s count the operations of plain attention: a shortcut shows as a higher figure.\n"
    "Memory is the peak of forward and backward beyond the inputs."
)


def summary(result: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Our time as a share of each rival's that ours is to be judged by, forward / forward and backward."""
    cases = result["cases"]
    rivals = [
        name
        for name in ("sdpa_flash", "sdpa_cudnn", "sdpa_efficient", "sdpa")
        if any(name in case["rows"] for case in cases)
    ]

    def cell(case: Mapping[str, Any], name: str) -> str:
        mine, other = next(row for row in case["rows"].values() if row["ours"]), case["rows"].get(name)
        parts = []
        for kind in ("forward", "both"):
            ms, base = mine[kind].get("ms"), None if other is None else other[kind].get("ms")
            share = None if ms is None or base is None else ms / base
            # Beside the baseline there is something better, the median of the turns' ratios.
            share = mine[kind].get("ratio") if name == case["baseline"] else share
            parts.append("—" if share is None else f"{share:.2f}")
        return "" if set(parts) == {"—"} else " / ".join(parts)

    rows = [[case["name"], *(cell(case, name) for name in rivals)] for case in cases]
    labels = [next(case["rows"][name]["label"] for case in cases if name in case["rows"]) for name in rivals]
    return ["our time ÷ that of", *labels], rows


def attention_markdown(result: Mapping[str, Any]) -> str:
    """The tables of docs/performance.md."""
    device = result["machine"]["device"] + (f", {result['threads']} threads" if result["threads"] else "")
    lines = [f"On {device}, torch {result['versions']['torch']}, commit {(result['commit'] or 'unknown')[:12]}:"]
    lines += ["", f"`python -m datransformer.bench {shlex.join(result['command'][1:])}`"]
    lines += ["", *markdown(*summary(result)), "", "Everybody, shape by shape:"]
    for heads, rows in tables(result):
        lines += ["", *markdown(heads, rows)]
    return "\n".join(lines) + "\n"


RESULTS = {"h200": "One H200", "cpu": "CPU"}
NOT_MEASURED = "Not measured yet.\n"
START, END = "<!-- attention: start -->\n", "<!-- attention: end -->\n"


def attention_section(folder: Path) -> str:
    """What lies between the two marks of docs/performance.md, from the result files in ``folder``."""
    blocks = []
    for key, title in RESULTS.items():
        path = folder / f"bench_attention_{key}.json"
        found = attention_markdown(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else NOT_MEASURED
        blocks.append(f"### {title}\n\n{found}\n")
    return "\n" + "".join(blocks)


def write_section(docs: Path) -> None:
    """Put `attention_section` into docs/performance.md."""
    page = docs / "performance.md"
    before, rest = page.read_text(encoding="utf-8").split(START)
    _, after = rest.split(END)
    page.write_text(f"{before}{START}{attention_section(docs / 'results')}{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    write_section(Path(sys.argv[1]))
