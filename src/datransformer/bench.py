"""``python -m datransformer.bench``: `bench attention` where the command line's libraries are not installed."""

import argparse
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

from datransformer.data.errors import InputError
from datransformer.experiments.bench_attention import (
    THREADS,
    attention_text,
    bench_attention,
    check_writable,
)

PLOTS = (".pdf", ".png", ".svg")


def run(
    *,
    device: str,
    quick: bool,
    out: Path | None,
    plot: Path | None,
    shapes: Sequence[str],
    threads: int,
    tell: Callable[[str], None],
) -> str:
    """Measure attention, write the files asked for, and return the tables as text."""
    if plot is not None:
        if plot.suffix.lower() not in PLOTS:
            raise InputError(f"--plot: got {plot}, expected a name that ends in {', '.join(PLOTS)}")
        if find_spec("matplotlib") is None:
            raise InputError("--plot: matplotlib is not installed")
        check_writable("--plot", plot)
    result = bench_attention(out, device=device, quick=quick, shapes=shapes, threads=threads, tell=tell)
    if plot is not None:
        from datransformer.report.figures import attention_growth

        attention_growth(result).savefig(plot, dpi=150)
    return attention_text(result)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override]
        """One line, without the usage in front of it."""
        self.exit(2, f"error: {message}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; what the user can mend is one line and status 2."""
    parser = _Parser(
        prog="python -m datransformer.bench", description="Time and memory of attention, ours and torch's."
    )
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it works")
    parser.add_argument("--out", type=Path, help="JSON file for all numbers")
    parser.add_argument("--plot", type=Path, help="figure of time and memory over the length")
    parser.add_argument("--shape", action="append", default=[], metavar="BxHxNxD", help="measure this; may be repeated")
    parser.add_argument("--threads", type=int, default=THREADS, help=f"of a CPU [{THREADS}]")
    given = parser.parse_args(arguments)
    try:
        text = run(
            device=given.device,
            quick=given.quick,
            out=given.out,
            plot=given.plot,
            shapes=given.shape,
            threads=given.threads,
            tell=lambda line: print(line, file=sys.stderr, flush=True),  # noqa: T201
        )
    except InputError as error:
        sys.stderr.write(f"error: {' '.join(str(error).split())}\n")
        return 2
    sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
