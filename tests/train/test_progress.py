"""What a person sees: lines in a file, bars on a terminal, nothing where nobody looks."""

from collections.abc import Callable
from io import StringIO
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from datransformer.train import progress
from datransformer.train.progress import Reporter

if TYPE_CHECKING:
    from tests.train.conftest import Bench


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, to be set by hand."""
    now = [0.0]

    class Clock:
        @staticmethod
        def monotonic() -> float:
            return now[0]

    monkeypatch.setattr(progress, "time", Clock)
    return now


def plain() -> tuple[Reporter, StringIO]:
    out = StringIO()
    return Reporter(Console(file=out, force_terminal=False, width=40)), out


def terminal() -> tuple[Reporter, StringIO]:
    out = StringIO()
    return Reporter(Console(file=out, force_terminal=True, width=120, legacy_windows=False)), out


LINES = ["[red]not red[/red]", "[/nothing]", "a [bold", ":smile: 12 'x'", "x" * 99]


@pytest.mark.parametrize("line", LINES)
def test_a_line_is_printed_as_it_is(line: str) -> None:
    reporter, out = plain()
    reporter.say(line)
    assert out.getvalue() == line + "\n"


@pytest.mark.parametrize("line", LINES)
def test_also_on_a_terminal_among_bars(line: str) -> None:
    reporter, out = terminal()
    with reporter.live():
        reporter.stage(line, 1, None)
        reporter.stage("reading [red]x.csv", 2, 3)
        reporter.step(1, 10, f"loss {line}")
        reporter.stage("evaluating", 1, 2)
        reporter.say(line)
        reporter.step(2, 10, "")
    reporter.say("after")
    assert line in out.getvalue()
    assert out.getvalue().endswith("after\n")
    assert "\x1b[" in out.getvalue()


def test_bars_can_be_shown_again(clock: list[float]) -> None:
    reporter, out = terminal()
    for _ in range(2):
        with reporter.live():
            reporter.stage("reading", 1, 2)
    with pytest.raises(ZeroDivisionError), reporter.live():
        reporter.stage("reading", 1 // 0, 2)
    reporter.stage("not live", 1, 2)
    assert "reading" in out.getvalue()
    assert "not live" not in out.getvalue()


def test_only_a_long_stage_gets_lines_and_few_of_them(clock: list[float]) -> None:
    reporter, out = plain()
    with reporter.live():
        for second in range(36):
            clock[0] = float(second)
            reporter.stage("reading [x]", 1000 * second, None if second < 20 else 50_000)
        assert out.getvalue().splitlines() == [
            "reading [x] 11,000",
            "reading [x] 22,000/50,000",
            "reading [x] 33,000/50,000",
        ]
        for second in range(36, 48):
            clock[0] = float(second)
            reporter.step(second, 90, "loss 0.5")
    assert out.getvalue().splitlines()[3:] == ["training 47/90 loss 0.5"]


@pytest.mark.parametrize("force_terminal", [True, False])
def test_nothing_when_it_is_disabled(clock: list[float], force_terminal: bool) -> None:
    out = StringIO()
    reporter = Reporter(Console(file=out, force_terminal=force_terminal), enabled=False)
    with reporter.live():
        for second in range(0, 100, 20):
            clock[0] = float(second)
            reporter.say("a line")
            reporter.stage("stage", second, 100)
            reporter.step(second, 100, "facts")
    assert out.getvalue() == ""


def test_lines_go_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    Reporter().say("a line")
    assert capsys.readouterr() == ("", "a line\n")


@pytest.mark.parametrize("make", [plain, terminal])
def test_a_whole_run(bench: "Bench", make: Callable[[], tuple[Reporter, StringIO]]) -> None:
    reporter, out = make()
    bench.fit(bench.config(), reporter=reporter)
    said = out.getvalue()
    assert "sentence, distance_aware: train 37, dev 11; " in said
    assert "step 8, epoch 1: dev accuracy " in said
    assert "step 16, epoch 2: dev accuracy " in said
