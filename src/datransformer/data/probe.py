"""The built-in data set: sequences in which the label is a matter of real distance alone.

Each sequence holds one query token and several marker tokens of two kinds, among fillers, all at random places. The
label is the kind of the marker nearest to the query, or farthest from it. A model that cannot tell distances can only
guess the kind that there is more of, which is right about 64 % of the time for eight markers: that, not 50 %, is
chance.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from datransformer.ops.checks import check_choice, check_positive_int

KINDS = ("red", "blue")
FILLERS = 10
VARIANTS = ("nearest", "farthest")
BLOCK = 8192


@dataclass(frozen=True)
class Probe:
    """A probe data set.

    Args:
        rows: Number of sequences.
        seed: Seeds the drawing; another seed is another sample of the same task.
        variant: Whether the ``nearest`` or the ``farthest`` marker decides.
        length: Tokens of a sequence.
        markers: How many of them are markers.
    """

    rows: int = 20_000
    seed: int = 0
    variant: str = "nearest"
    length: int = 32
    markers: int = 8

    def __post_init__(self) -> None:
        check_choice("variant", self.variant, VARIANTS)
        for name in ("rows", "length", "markers"):
            check_positive_int(name, getattr(self, name))
        if self.length < self.markers + 1:
            raise ValueError(f"length: got {self.length}, expected room for the query and {self.markers} markers")

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The sequences as rows of words and labels, as a file's reader gives them."""
        words = np.array(["query", *KINDS, *(f"filler{number}" for number in range(FILLERS))])
        for start in range(0, self.rows, BLOCK):
            count = min(BLOCK, self.rows - start)
            tokens, labels = self.draw(count, np.random.default_rng((self.seed, start)))
            yield pa.RecordBatch.from_pydict(
                {
                    "row": pa.array(range(start + 1, start + count + 1), pa.int64()),
                    "text": pa.array([" ".join(row) for row in words[tokens].tolist()], pa.string()),
                    "label": pa.array([KINDS[label] for label in labels], pa.string()),
                }
            )

    def draw(self, count: int, random: np.random.Generator) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Sequences of token numbers, 0 = query, 1 and 2 = markers, and their labels, 0 or 1.

        Where markers of both kinds tie for the deciding place, the sequence is drawn anew.
        """
        kept: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]] = []
        missing = count
        while missing > 0:
            draws = missing + missing // 2 + 8
            places = random.random((draws, self.length)).argsort(1)
            query, markers = places[:, :1], places[:, 1 : 1 + self.markers]
            kinds = random.integers(1, 1 + len(KINDS), (draws, self.markers))
            tokens = random.integers(1 + len(KINDS), 1 + len(KINDS) + FILLERS, (draws, self.length))
            np.put_along_axis(tokens, query, 0, 1)
            np.put_along_axis(tokens, markers, kinds, 1)
            distances = np.abs(markers - query)
            best = distances.min(1) if self.variant == "nearest" else distances.max(1)
            deciding = distances == best[:, None]
            label = (kinds * deciding).max(1)
            clear = np.flatnonzero(((kinds == label[:, None]) | ~deciding).all(1))[:missing]
            kept.append((tokens[clear], label[clear] - 1))
            missing -= len(clear)
        return np.concatenate([part[0] for part in kept]), np.concatenate([part[1] for part in kept])
