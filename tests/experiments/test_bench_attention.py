import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from datransformer import bench, cli
from datransformer.data.errors import InputError
from datransformer.experiments import bench_attention as attention
from datransformer.experiments import contestants, machine, meters
from datransformer.experiments.contestants import CONTESTANTS, Case, Contestant, Inputs, make_inputs
from datransformer.experiments.machine import commit
from datransformer.experiments.meters import CpuMeter, CudaMeter, Turn, interleave
from datransformer.report.figures import attention_growth

DOCS = Path(__file__).parents[2] / "docs"
TINY = Case((2, 3, 17, 5), "fp32", full=True)
CPU = torch.device("cpu")
Command = Callable[..., tuple[int, str, str]]


class Scripted:
    """A meter whose clock is a script: milliseconds and bytes by the length and the contestant's turn."""

    def __init__(self, ms: Callable[[], float] = lambda: 1.0, peak: int = 2**20) -> None:
        self.ms, self.bytes, self.cleared = ms, peak, 0

    def copies(self, size: int) -> int:
        return 2

    def peak(self, call: meters.Call) -> int:
        call(1)
        return self.bytes

    def prepare(self, call: meters.Call) -> Turn:
        call(3)
        return Turn("script", self.ms)

    def free(self) -> int | None:
        return None

    def clear(self) -> None:
        self.cleared += 1


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], list[str]]:
    path = tmp_path_factory.mktemp("bench") / "new" / "result.json"
    told: list[str] = []
    result = attention.bench_attention(path, device="cpu", quick=True, threads=1, tell=told.append)
    return path, result, told


@pytest.fixture
def result(quick: tuple[Path, dict[str, Any], list[str]]) -> dict[str, Any]:
    return quick[1]


# Contestants


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"padded": True}, {"weights": "near"}, {"weights": "far"}])
def test_all_of_equation_6_compute_the_same(options: dict[str, Any]) -> None:
    case = replace(TINY, **options)
    (inputs,) = make_inputs(case, CPU, 1)
    inputs = inputs.detached()
    expected = contestants.distance_aware("reference")(case, inputs)(inputs)
    for name, contestant in CONTESTANTS.items():
        if contestant.distance and name not in ("compiled", "flex"):
            torch.testing.assert_close(contestant.make(case, inputs)(inputs), expected)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says, once, that it is slow without torch.compile
        output = contestants.flex(case, inputs, compiler=lambda function, **_: function)(inputs)
    torch.testing.assert_close(output, expected)


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"padded": True}])
def test_plain_attention_hides_what_ours_hides(options: dict[str, Any]) -> None:
    case = replace(TINY, **options)
    (inputs,) = make_inputs(case, CPU, 1)
    scores = (inputs.query @ inputs.key.mT) / 5**0.5
    if case.causal:
        scores = scores.masked_fill(torch.ones(17, 17).triu(1).bool(), -torch.inf)
    if inputs.padding is not None:
        assert inputs.padding.sum(1).tolist() == [8, 8]
        scores = scores.masked_fill(inputs.padding[:, None, None], -torch.inf)
    expected = scores.softmax(-1) @ inputs.value
    for name in ("sdpa", "sdpa_math"):
        torch.testing.assert_close(CONTESTANTS[name].make(case, inputs)(inputs), expected)


def test_who_takes_part() -> None:
    names = attention.contestants_of(Case((1, 2, 3, 4)), "cuda")
    assert names == ["ours", "sdpa_flash", "sdpa_cudnn"]
    assert "sdpa_efficient" in attention.contestants_of(Case((1, 2, 3, 4), padded=True), "cuda")
    assert {"flex", "compiled", "reference"} <= set(attention.contestants_of(TINY, "cuda"))


def test_backward_takes_the_gradients_of_w_and_v() -> None:
    inputs = make_inputs(TINY, CPU, 2)
    for name, count in (("ours", 6), ("sdpa", 4)):
        contestant = CONTESTANTS[name]
        call = attention.call_of(contestant.make(TINY, inputs[0]), inputs, "both", contestant)
        assert len(call(5)) == count  # type: ignore[arg-type]
    assert not torch.equal(inputs[0].query, inputs[1].query)
    assert inputs[0].weight is inputs[1].weight


# Measuring


def test_turns_are_interleaved_and_a_failure_stops_nobody_else() -> None:
    order: list[str] = []

    def turn(name: str, fail_at: int = 99) -> Turn:
        def take() -> float:
            order.append(name)
            if order.count(name) == fail_at:
                raise RuntimeError("broken\n  in two lines")
            return float(order.count(name))

        return Turn("script", take)

    times, failed = interleave({"a": turn("a"), "b": turn("b", 2), "c": turn("c")}, least=3, most=3, seconds=0)
    assert order == ["a", "b", "c", "c", "b", "a", "a", "c"]
    assert times == {"a": [1, 2, 3], "c": [1, 2, 3]}
    assert failed == {"b": "RuntimeError: broken in two lines"}


def test_rounds_go_on_until_the_time_is_up() -> None:
    clock = iter(range(100))
    times, _ = interleave(
        {"a": Turn("", lambda: 1.0)}, least=2, most=50, seconds=5, clock=lambda: float(next(clock))
    )  # fmt: skip
    assert len(times["a"]) == 2 + 4
    times, _ = interleave({"a": Turn("", lambda: 1.0)}, least=2, most=4, seconds=5, clock=lambda: 0.0)
    assert len(times["a"]) == 4


def test_memory_on_a_cpu_is_what_torch_allocates() -> None:
    assert meters.highest([5, 3, -5, 4, -7]) == 8

    def call(_: int) -> torch.Tensor:
        kept = torch.ones(1000, 256)
        scratch = kept * 2
        del scratch
        return kept + 1

    assert CpuMeter().peak(call) == pytest.approx(2 * 1000 * 256 * 4, rel=0.01)


def test_a_short_call_is_repeated_in_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers: list[int] = []
    monkeypatch.setattr(CpuMeter, "SHORTEST", 1000.0)
    turn = CpuMeter().prepare(numbers.append)
    before = len(numbers)
    assert turn.take() < 1000
    assert len(numbers) - before == 100


def test_reasons_are_one_line_with_what_was_warned_of() -> None:
    def unsupported() -> None:
        warnings.warn("expected a mask of\n another kind", UserWarning, stacklevel=1)
        raise RuntimeError("No available kernel.")

    def exhausted() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate much")

    assert meters.attempt(unsupported)[1] == "RuntimeError: No available kernel. | expected a mask of another kind"
    assert meters.attempt(exhausted) == (None, "out of memory")
    assert meters.attempt(lambda: 7) == (7, None)


def test_cuda_meter_picks_its_timer_by_the_time_of_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parts that need no device: how many sets of inputs, how many calls in a graph, what if it cannot be."""

    class Quiet:
        def __enter__(self) -> None: ...
        def __exit__(self, *error: object) -> None: ...
        def wait_stream(self, other: object) -> None: ...

    class Graph:
        def replay(self) -> None: ...

    for name in ("Stream", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, Quiet)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: Quiet())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    cache = type("Properties", (), {"L2_cache_size": 60})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda: cache)
    meter = CudaMeter()
    assert [meter.copies(size) for size in (1, 25, 40, 120, 1000)] == [50, 5, 3, 1, 1]

    captured: list[int] = []

    def capture(call: meters.Call, calls: int) -> Graph:
        captured.append(calls)
        return Graph()

    monkeypatch.setattr(meter, "_capture", capture)
    for ms, how, calls in ((7.0, "events", None), (2.5, "graph", 10), (0.5, "graph", 20), (0.01, "graph", 50)):
        captured.clear()
        monkeypatch.setattr(meter, "_events", lambda work, ms=ms: work() or ms)
        turn = meter.prepare(lambda number: None)
        assert turn.how == how
        assert captured == ([] if calls is None else [calls])
        assert turn.take() == pytest.approx(ms / (calls or 1))

    def fail(call: meters.Call, calls: int) -> None:
        raise RuntimeError("not permitted when stream is capturing")

    monkeypatch.setattr(meter, "_capture", fail)
    turn = meter.prepare(lambda number: None)
    assert turn.how.startswith("events, because a graph cannot be captured: RuntimeError: not permitted")
    assert turn.take() == 0.01


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_quick_on_cuda(tmp_path: Path) -> None:
    result = attention.bench_attention(tmp_path / "r.json", device="cuda", quick=True, tell=lambda line: None)
    for case in result["cases"]:
        for name in ("ours", "sdpa_flash"):
            assert case["rows"][name]["both"]["timer"] == "graph", case["rows"][name]


def test_a_case_has_every_number(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([2.0, 1.0, 4.0, 8.0, 6.0, 2.0, 30.0, 10.0])  # forward: two rounds, the second backwards; then both

    def break_down(case: Case, sample: Inputs) -> contestants.Attend:
        raise torch.OutOfMemoryError("much")

    monkeypatch.setattr(
        attention,
        "CONTESTANTS",
        {
            "ours": CONTESTANTS["ours"],
            "broken": Contestant("broken", break_down),
            "late": Contestant("late", break_down, compiled=True),
            "forward": Contestant("forward only", break_down, ("cuda",)),
            "sdpa": CONTESTANTS["sdpa"],
        },
    )
    meter = Scripted(lambda: next(clock))
    plan = attention.Plan((), least=2, most=2, seconds=0, patience=0)
    case = attention.measure_case(TINY, CPU, meter, plan, late=lambda: True)
    assert list(case["rows"]) == ["ours", "broken", "late", "sdpa"]
    mine, base = case["rows"]["ours"], case["rows"]["sdpa"]
    assert (mine["forward"]["ms"], base["forward"]["ms"]) == (5.0, 2.5)
    assert mine["forward"]["ratio"] == 2.0  # median of 2/1 and 8/4
    assert mine["both"]["ratio"] == 1.667  # median of 6/2 and 10/30
    assert mine["forward"]["quartiles"] == [3.5, 6.5]
    assert mine["both"]["tflops"] == pytest.approx(3.5 * 4 * 2 * 3 * 17**2 * 5 / 8e-3 / 1e12, rel=1e-3)
    assert (mine["both"]["peak_mib"], mine["both"]["memory_ratio"], mine["both"]["rounds"]) == (1, 1, 2)
    assert case["rows"]["broken"]["both"] == {"skipped": "out of memory"}
    assert "compiling it would take too long" in case["rows"]["late"]["forward"]["skipped"]
    assert case["input_sets"] == 2
    assert meter.cleared >= 2


def test_a_contestant_that_would_exhaust_memory_is_left_out() -> None:
    huge = Case((1, 1, 1 << 20, 1), "fp32")
    reason = attention.reason_against("reference", huge, 2**33)
    assert reason == "left out: it could take 32768 GiB, and 8 are free"
    assert attention.reason_against("reference", huge, None) is None
    assert attention.reason_against("sdpa", huge, 2**33) is None
    assert attention.reason_against("sdpa", huge, 2**20) is not None
    free = CpuMeter().free()
    assert free is None or free > 2**20


def test_a_case_that_is_too_large_is_no_end_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*arguments: object) -> None:
        raise torch.OutOfMemoryError("much")

    monkeypatch.setattr(attention, "make_inputs", exhausted)
    case = attention.measure_case(TINY, CPU, Scripted(), attention.PLANS["cpu quick"])
    assert {row[kind]["skipped"] for row in case["rows"].values() for kind in ("forward", "both")} == {"out of memory"}
    monkeypatch.undo()
    monkeypatch.setattr(Scripted, "free", lambda self: 1)
    case = attention.measure_case(TINY, CPU, Scripted(), attention.PLANS["cpu quick"])
    assert all("could take" in row["both"]["skipped"] for row in case["rows"].values())


# Results


def measured(ms: float, ratio: float | None, peak: int, memory: float | None) -> dict[str, Any]:
    return {"ms": ms, "ratio": ratio, "peak_bytes": peak, "peak_mib": peak / 2**20, "memory_ratio": memory}


def fake_case(case: Case, rows: Mapping[str, tuple[float, float | None, int, float | None] | None]) -> dict[str, Any]:
    cells = {name: {"skipped": "why"} if row is None else measured(*row) for name, row in rows.items()}
    return {
        "name": case.name,
        "series": case.series,
        "shape": list(case.shape),
        "baseline": case.baseline("cuda"),
        "rows": {
            name: {"label": CONTESTANTS[name].label, "ours": CONTESTANTS[name].ours, "forward": cell, "both": cell}
            for name, cell in cells.items()
        },
    }


def test_targets_are_judged() -> None:
    near = [
        fake_case(Case((1, 16, length, 64), weights="near"), {"ours": (ms, 0.2, size, 0.5), "flex": None})
        for length, ms, size in ((4096, 1.0, 100), (8192, 2.0, 200), (16384, 4.8, 400))
    ]
    rows = {"ours": (0.5, 0.5, 70, 0.7), "flex": None, "sdpa_flash": (1.0, 1.0, 100, 1.0)}
    first = fake_case(Case(attention.LONG), {**rows, "sdpa_cudnn": (0.6, 0.6, 100, 1.0)})
    result: dict[str, Any] = {"device": "cuda", "cases": [first, *near]}
    result["doublings"] = attention.list_doublings(result["cases"])
    judged = {row["name"]: (row["reached"], row["met"]) for row in attention.list_targets(result)}
    name, series = "8×16×4096×64 bf16", "1×16×N×64 bf16, w < 0"
    assert judged == {
        f"{name}: fwd ÷ SDPA flash": (0.5, False),
        f"{name}: fwd+bwd ÷ SDPA flash": (0.5, True),
        f"{name}: memory ÷ SDPA flash": (0.7, True),
        f"{name}: fwd+bwd ÷ SDPA cuDNN": (0.8333, True),
        f"{series}: fwd of twice the length, at worst": (2.4, False),
        f"{series}: fwd+bwd of twice the length, at worst": (2.4, False),
        f"{series}: memory of twice the length, at worst": (2.0, True),
    }
    assert {row["contestant"] for row in result["doublings"]} == {"ours"}
    result["cases"].append(fake_case(Case((1, 16, 32768, 64), weights="near"), {"ours": None}))
    result["doublings"] = attention.list_doublings(result["cases"])
    judged = {row["name"]: (row["reached"], row["met"]) for row in attention.list_targets(result)}
    assert judged[f"{series}: memory of twice the length, at worst"] == (None, None)


def test_every_target_is_measured() -> None:
    for device in ("cpu", "cuda"):
        cases = attention.PLANS[device].cases
        assert {case.name for case in attention.TARGETS[device]} <= {case.name for case in cases}
        for series in attention.DOUBLINGS[device]:
            assert len([case for case in cases if case.series == series.series]) > 2
    assert len({case.name for case in attention.PLANS["cuda"].cases}) == len(attention.PLANS["cuda"].cases)


def test_the_file_holds_what_is_returned(quick: tuple[Path, dict[str, Any], list[str]]) -> None:
    path, result, told = quick
    assert json.loads(path.read_text(encoding="utf-8")) == result
    assert len(told) == len(result["cases"]) == 3
    assert list(path.parent.iterdir()) == [path]
    assert (result["quick"], result["device"], result["threads"]) == (True, "cpu", 1)
    assert result["versions"]["torch"] == torch.__version__
    assert result["commit"] == commit()
    rows = result["cases"][0]["rows"]
    for name in ("ours", "sdpa", "sdpa_math", "reference"):
        for kind in ("forward", "both"):
            assert rows[name][kind]["ms"] > 0
            assert rows[name][kind]["quartiles"][0] <= rows[name][kind]["ms"] <= rows[name][kind]["quartiles"][1]
            assert rows[name][kind]["peak_bytes"] >= 2 * 3 * 37 * 5 * 4
    assert rows["sdpa"]["both"]["memory_ratio"] == 1
    assert "would take too long" in rows["flex"]["forward"]["skipped"]
    assert result["doublings"][0].keys() == {"series", "length", "contestant", "forward", "both", "memory"}


def test_tables_have_every_number(result: dict[str, Any]) -> None:
    text, markdown = attention.attention_text(result), attention.attention_markdown(result)
    for shown in (text, markdown):
        for case in result["cases"]:
            assert case["name"] in shown
            assert f"{case['rows']['ours']['both']['ms']:.3g}" in shown
        assert "÷ half the length" in shown
        assert "—" in shown
    assert "Eq. 6, torch.compile, fwd: left out: compiling it would take too long here" in text
    for table in markdown.split("\n\n")[1:]:
        assert len({line.count("|") for line in table.strip().splitlines()}) == 1
    target = {"name": "a ratio", "contestant": "ours", "reached": None, "wanted": 0.5, "met": None}
    judged = attention.attention_text({**result, "targets": [target, {**target, "reached": 0.4, "met": True}]})
    assert "≤ 0.50  not measured" in judged
    assert "0.40" in judged


def test_the_figure_has_a_line_for_everyone_who_was_measured(result: dict[str, Any]) -> None:
    figure = attention_growth(result)
    time, memory = figure.axes
    labels = [row["label"] for row in result["cases"][-1]["rows"].values() if "ms" in row["both"]]
    assert labels[0] in ("ours, blocked", "ours, reference")
    assert "SDPA" in labels
    assert [line.get_label() for line in time.get_lines()] == labels
    assert [np.asarray(line.get_xdata()).tolist() for line in memory.get_lines()] == [[64, 128]] * len(labels)
    assert (time.get_xscale(), time.get_yscale(), memory.get_yscale()) == ("log", "log", "log")


def test_the_page_says_what_the_result_files_say() -> None:
    page = (DOCS / "performance.md").read_text(encoding="utf-8")
    section = page.split(attention.START)[1].split(attention.END)[0]
    assert section == attention.attention_section(DOCS / "results"), "run `make performance`"


def test_the_section_is_written_into_the_page(result: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "bench_attention_cpu.json").write_text(json.dumps(result), encoding="utf-8")
    page = tmp_path / "performance.md"
    page.write_text(f"before\n{attention.START}old\n{attention.END}after\n", encoding="utf-8")
    for _ in range(2):
        attention.write_section(tmp_path)
        text = page.read_text(encoding="utf-8")
        assert text.startswith("before\n")
        assert text.endswith("after\n")
        assert attention.attention_markdown(result) in text
        assert "### One H200\n\nNot measured yet.\n" in text
        assert "old" not in text


# Commands


@pytest.fixture(params=["python -m datransformer.bench", "datransformer bench attention"])
def command(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """Either command line, in this process."""

    def run(*arguments: object) -> tuple[int, str, str]:
        words = [str(argument) for argument in arguments]
        monkeypatch.setattr(sys, "argv", ["datransformer", "bench", "attention", *words])
        status: Any = 0
        try:
            if "-m" in request.param:
                status = bench.main(words)
            else:
                cli.main()
        except SystemExit as ended:
            status = ended.code
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--shape", "8x16"], "--shape: got '8x16', expected batch, heads, length and head_dim"),
        (["--shape", "8x16x0x4"], "--shape: got '8x16x0x4'"),
        (["--shape", "1x2x3x4", "--shape", "1x2x3x-4"], "--shape: got '1x2x3x-4'"),
        (["--device", "tpu"], "--device: got 'tpu', expected one of: auto, cpu, cuda"),
        (["--threads", "0"], "--threads: got 0, expected 1 to 1024"),
        (["--plot", "figure.doc"], "--plot: got figure.doc, expected a name that ends in .pdf, .png, .svg"),
        (["--out", "{folder}"], "which is a folder; expected a file"),
        (["--out", "{folder}/pipe"], "which is not a regular file; expected one"),
        (["--threads", "99999999"], "--threads: got 99999999, expected 1 to 1024"),
        (["--out", "{folder}/file/result.json"], "result.json cannot be written"),
        (["--plot", "{folder}/file/figure.png"], "figure.png cannot be written"),
    ],
)
def test_bad_arguments_are_one_line(
    command: Command,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    arguments: list[str],
    message: str,
) -> None:
    def never(*arguments: object) -> None:
        raise AssertionError("measured before looking at the arguments")

    monkeypatch.setattr(attention, "measure_case", never)
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    status, out, err = command("--device", "cpu", *(word.format(folder=tmp_path) for word in arguments))
    assert status == 2
    assert out == ""
    assert err.startswith("error: ")
    assert len(err.splitlines()) == 1
    assert message in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "pipe"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_has_to_be_there() -> None:
    with pytest.raises(InputError, match="torch finds no CUDA device"):
        attention.bench_attention(None, device="cuda", tell=lambda line: None)


def test_unknown_options_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        bench.main(["--fast"])
    assert ended.value.code == 2
    assert capsys.readouterr().err == "error: unrecognized arguments: --fast\n"


def test_both_commands_measure_a_shape(command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(attention, "METERS", {"cpu": Scripted})
    out, plot = tmp_path / "result.json", tmp_path / "figure.png"
    status, text, err = command(
        "--device", "cpu", "--quick", "--shape", "2x3x5x7", "--shape", "2×3×11×7", "--out", out, "--plot", plot
    )
    assert status == 0, err
    assert "2×3×5×7 fp32" in text
    assert [case["shape"] for case in json.loads(out.read_text(encoding="utf-8"))["cases"]] == [
        [2, 3, 5, 7],
        [2, 3, 11, 7],
    ]
    assert plot.stat().st_size > 1000
    assert len(err.splitlines()) == 2


def test_the_module_runs_without_the_command_lines_libraries(tmp_path: Path) -> None:
    """typer, rich and everything else but torch are hidden from a fresh process."""
    hidden = ("typer", "rich", "pyarrow", "lightning_fabric", "tokenizers", "yaml", "safetensors", "matplotlib")
    code = f"import sys; sys.modules.update(dict.fromkeys({hidden!r})); " + (
        "from datransformer.bench import main; "
        f"sys.exit(main(['--quick', '--device', 'cpu', '--threads', '1', '--out', {str(tmp_path / 'r.json')!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "SDPA math" in done.stdout
    assert len(done.stderr.splitlines()) == 3, done.stderr
    assert len(json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))["cases"]) == 3


def test_a_folder_outside_any_checkout_has_no_commit(tmp_path: Path) -> None:
    assert commit(tmp_path) is None


def test_git_is_asked_for_the_commit_once(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter(["__init__.py", "abc"])
    monkeypatch.setattr(machine, "_git", lambda *_: next(answers))
    assert commit(Path("a checkout")) == commit(Path("a checkout")) == "abc"
