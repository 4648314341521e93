"""What the runs of a reproduction have left, by study, variant and seed."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from datransformer.data.errors import InputError
from datransformer.experiments.paper import OURS
from datransformer.experiments.reproduce import Record, reported
from datransformer.experiments.studies import STUDIES
from datransformer.train.run import read_json


class Results:
    """Records by study and variant.

    Args:
        records: As `datransformer.experiments.reproduce.reproduce` returns and writes them.
    """

    def __init__(self, records: Iterable[Record]) -> None:
        self.records: dict[str, dict[str, dict[int, Record]]] = {}
        self.failed: list[Record] = []
        for record in records:
            if "failed" in record:
                self.failed.append(record)
            else:
                runs = self.records.setdefault(record["study"], {}).setdefault(record["variant"], {})
                runs[record["seed"]] = record

    @property
    def studies(self) -> list[str]:
        """Those of which there is anything, in the order of `STUDIES`."""
        return [study for study in STUDIES if study in self.records]

    @property
    def judged(self) -> list[str]:
        """By which the paper's claims are judged: its own data sets, or the probe where there is nothing else."""
        return [study for study in self.studies if study != "probe"] or self.studies

    def runs(self, study: str, variant: str) -> list[Record]:
        """By seed."""
        found = self.records.get(study, {}).get(variant, {})
        return [found[seed] for seed in sorted(found)]

    def scores(self, study: str, variant: str, metric: str) -> dict[int, float]:
        """A metric by seed."""
        return {record["seed"]: reported(record)[metric] for record in self.runs(study, variant)}

    def mean(self, study: str, variant: str, metric: str) -> float | None:
        """A metric over seeds; None if there is no run."""
        values = list(self.scores(study, variant, metric).values())
        return float(np.mean(values)) if values else None

    def distances(self, study: str, name: str) -> dict[str, list[float]]:
        """W or v of ours by level, sorted, averaged over runs after sorting, as the paper's figures have them."""
        levels: dict[str, list[list[float]]] = {}
        for record in self.runs(study, OURS):
            for level, numbers in record["distances"].items():
                levels.setdefault(level, []).append(sorted(numbers[name]))
        return {level: np.mean(runs, axis=0).tolist() for level, runs in levels.items()}


def read_results(folder: Path) -> Results:
    """All records below a folder."""
    paths = sorted(folder.glob("*/*.json"))
    if not paths:
        raise InputError(f"{folder}: holds no result, expected the folder results of a reproduction")
    return Results(read_json(path) for path in paths)
