"""What the runs of a reproduction have left, by study, variant and seed."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datransformer.data.errors import InputError
from datransformer.data.forms import check_form
from datransformer.experiments.beyond import FROM_ZERO, GONE_BEYOND
from datransformer.experiments.heads import starting_distances
from datransformer.experiments.paper import OURS
from datransformer.experiments.reproduce import BEYOND, CALLED, CALLS, SEARCH
from datransformer.experiments.runs import (
    DISTANCES,
    MADE_OF,
    RESULTS,
    RUNS,
    SETTINGS,
    Record,
    decisive,
    reported,
    without_seed,
)
from datransformer.experiments.search import SEARCHED
from datransformer.experiments.studies import LINEAR, PRECISION, STUDIES, VARIANTS
from datransformer.report.statistics import RESAMPLED, Floats, Items
from datransformer.train.run import RESULT, read_json
from datransformer.train.tasks import CLASS_METRICS, RATING_METRICS

OWN = ("settings.model.attention", "settings.model.attention_options")  # settings of a method
PER_MILLE = 1000  # the unit in which a record keeps what each item came to
ABOUT = {"study": str, "variant": str, "seed": int, "failed?": str}
FINISHED = {
    "metrics": {"dev": dict, "test?": dict},
    "examples": {str: int},
    "caveat": str,
    "device": str,
    "wall_seconds": float,
    "steps?": int,
    "settings?": SETTINGS,
    **{f"{name}?": str for name in MADE_OF},
    "commit?": (str,),  # null where the code is in no repository
    "vector_width?": int,
    "mean_length?": float,
    "distances?": DISTANCES,
    "heads?": {str: {"entropy": [float], "keys": [float], "distance": [float]}},
    "without_distances?": {str: float},
    "items?": {str: [float]},
    "maps?": {"tokens": [str], "levels": {str: [[[float]]]}},
}


class Results:
    """Records by study and variant.

    Args:
        records: As `datransformer.experiments.reproduce.reproduce` returns and writes them.
        search: How the settings were found, if that is known.
        beyond: What changes that the paper does not have came to, if there were any.
        calls: What `datransformer.experiments.reproduce.reproduce` wrote of itself, if it did.
    """

    def __init__(
        self,
        records: Iterable[Record],
        search: Record | None = None,
        beyond: Record | None = None,
        calls: Sequence[Record] = (),
    ) -> None:
        self.records: dict[str, dict[str, dict[int, Record]]] = {}
        self.failed: list[Record] = []
        self.search, self.beyond, self.calls = search, beyond, calls
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

    def runs(self, study: str, variant: str) -> list[Record]:
        """By seed."""
        found = self.records.get(study, {}).get(variant, {})
        return [found[seed] for seed in sorted(found)]

    def any_run(self, study: str) -> Record:
        """One of a study, for what all have in common."""
        return next(iter(next(iter(self.records[study].values())).values()))

    def scores(self, study: str, variant: str, metric: str) -> dict[int, float]:
        """A metric by seed."""
        return {record["seed"]: reported(record)[metric] for record in self.runs(study, variant)}

    def mean(self, study: str, variant: str, metric: str) -> float | None:
        """A metric over seeds; None if there is no run."""
        values = list(self.scores(study, variant, metric).values())
        return float(np.mean(values)) if values else None

    def learned(self, study: str, name: str) -> dict[str, Floats]:
        """W or v of ours by level, [runs, heads]."""
        return _by_level(self.runs(study, OURS), name)

    def from_zero(self, study: str, name: str, option: str = FROM_ZERO) -> dict[str, Floats]:
        """As `learned`, of runs beyond the paper in which w and v of every head start at 0 and learn fast.

        Those that have other settings than the runs of the study tell nothing of these.
        """
        return _by_level(self.rows_from_zero(study, option), name)

    def rows_from_zero(self, study: str, option: str = FROM_ZERO) -> list[Record]:
        """The rows that `from_zero` reads, one a seed.

        Where w and v go is no matter of a few bits: any precision will do, but that of the study is preferred.
        """
        others = self.runs(study, OURS) and not self.plain(study)
        rows = [] if self.beyond is None or others else self.beyond["rows"]
        found = [row for row in rows if (row["study"], row["option"]) == (study, option) and row.get("distances")]
        return list({row["seed"]: row for row in sorted(found, key=self.as_precise)}.values())

    def plain(self, study: str) -> list[Record]:
        """Runs of ours that options beyond the paper can be held against: those that have the settings of theirs."""
        settings = {} if self.beyond is None else self.beyond.get("settings", {})
        if study not in settings:
            return self.runs(study, OURS)
        theirs = _anywhere(settings[study])
        return [run for run in self.runs(study, OURS) if _anywhere(run.get("settings", {})) == theirs]

    def as_precise(self, row: Mapping[str, Any]) -> bool:
        """Whether a run beyond the paper was trained in the precision of those of its study, which devices decide."""
        settings = {} if self.beyond is None else self.beyond.get("settings", {})
        known = [run["settings"] for run in self.plain(row["study"]) if "settings" in run]
        known += [settings[row["study"]]] if row["study"] in settings else []
        if not known or "device" not in row:
            return True
        precision: str = decisive(known[0])["train"]["precision"]
        return precision == PRECISION["cpu" if row["device"] == "cpu" else "cuda"]

    def started(self, study: str, name: str, heads: int) -> list[float]:
        """W or v of ours before training, by head; the runs of a study start alike."""
        first = next(record for record in self.runs(study, OURS) if record.get("distances"))
        return starting_distances(_options(first), heads)[name]

    def reach(self, study: str, variant: str) -> list[dict[str, float]]:
        """How far-sighted the heads of each run of a variant are, the mean over them, by level."""
        return [
            {level: float(np.mean(found["distance"])) for level, found in record["heads"].items()}
            for record in self.runs(study, variant)
            if record.get("heads")
        ]

    def measured(self, study: str, variant: str, name: str) -> Floats:
        """How sharp, sparse or far-sighted all heads of a variant are, [runs, heads], each run sorted."""
        runs = [
            sorted(number for level in record["heads"].values() for number in level[name])
            for record in self.runs(study, variant)
            if record.get("heads")
        ]
        return np.array(runs)


def items_of(record: Record, metric: str) -> Items | None:
    """What was kept of every test item for a metric: the answer, or the metric itself; None where nothing was."""
    if "items" in record:
        found = record["items"].get(metric)
        return None if found is None else np.array(found) / PER_MILLE
    return as_numbers(record["answers"]) if "answers" in record and metric in RESAMPLED else None


def as_numbers(values: str | list[float]) -> NDArray[Any]:
    """Classes, which are kept as digits, or ratings."""
    return np.array([int(sign) for sign in values] if isinstance(values, str) else values)


def read_results(folder: Path) -> Results:
    """All records below a folder, or below its folder `RESULTS`, as a reproduction makes it.

    One that is not what a run leaves is an error that names its file.
    """
    begun = any((place / RUNS).is_dir() for place in (folder, folder.parent))
    folder = folder / RESULTS if (folder / RESULTS).is_dir() else folder
    beside = (folder / SEARCH, folder / BEYOND, folder / CALLS)
    paths = sorted(folder.glob("*/*.json"))
    if not paths and begun:
        raise InputError(f"{folder}: no run has ended yet; the same `datransformer reproduce` goes on with those begun")
    if not paths or (folder / RESULT).is_file():
        raise InputError(f"{folder}: holds no result, expected the folder of a reproduction or its folder results")
    records = [_read_checked(path, _check_record) for path in paths]
    first: dict[tuple[str, str], tuple[Any, Path]] = {}
    for path, record in zip(paths, records, strict=True):
        for key, value in _common(record).items():
            known, there = first.setdefault((record["study"], key), (value, path))
            if known != value:
                raise InputError(f"{path}: {key}: not as in {there}, expected the same in all runs of a study")
        run = record["study"], f"{record['variant']}, seed {record['seed']}"
        if (there := first.setdefault(run, (None, path))[1]) != path:
            raise InputError(f"{path}: {run[1]}: is in {there} too, expected one record a run")
    checks = (_check_search, _check_beyond, _check_calls)
    search, beyond, calls = (
        _read_checked(path, check) if path.is_file() else None for path, check in zip(beside, checks, strict=True)
    )
    return Results(records, search, beyond, calls["calls"] if calls is not None else ())


def _anywhere(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings without what is unlike in the runs of one method, and on another kind of device."""
    found = without_seed(settings)
    del found["train"]["precision"]
    return found


def _by_level(records: Iterable[Record], name: str) -> dict[str, Floats]:
    levels: dict[str, list[list[float]]] = {}
    for record in records:
        for level, numbers in record.get("distances", {}).items():
            levels.setdefault(level, []).append(numbers[name])
    return {level: np.array(runs) for level, runs in levels.items()}


def _read_checked(path: Path, check: Callable[[Record], None]) -> Record:
    values = read_json(path)
    try:
        check(values)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    return values


def _options(record: Record) -> dict[str, Any]:
    options: dict[str, Any] = record.get("settings", {}).get("model", {}).get("attention_options", {})
    return options


def _check_record(record: Record) -> None:
    check_form("", record, ABOUT)
    _check_known("", record)
    if "failed" in record:
        return
    check_form("", record, FINISHED)
    if record["seed"] < 0:
        raise InputError(f"seed: got {record['seed']}, expected 0 or more")
    study = STUDIES[record["study"]]
    check_form("metrics", reported(record), dict.fromkeys(study.metrics, float))
    check_form("metrics.dev", record["metrics"]["dev"], {f"{name}?": float for name in study.metrics})
    _check_answers(record, study.metrics)
    if record.get("mean_length", 1) <= 0:
        raise InputError(f"mean_length: got {record['mean_length']}, expected more than 0")
    for level, numbers in record.get("distances", {}).items():
        _check_counts(f"distances.{level}", *numbers.values())
        if record["variant"] == OURS:
            try:
                starting_distances(_options(record), len(numbers["distance_weight"]))
            except (TypeError, ValueError) as error:
                raise InputError(f"settings.model.attention_options: {error}") from error
    for level, numbers in record.get("heads", {}).items():
        _check_counts(f"heads.{level}", *(numbers[name] for name in ("entropy", "keys", "distance")))
    _check_counts("items", *record.get("items", {}).values())
    if "maps" in record:
        words = record["maps"]["tokens"]
        for level, heads in record["maps"]["levels"].items():
            _check_counts(f"maps.{level}", heads, *record.get("distances", {}).get(level, {}).values())
            for head in heads:
                _check_counts(f"maps.{level}", words, head, *head)


def _check_known(where: str, row: Record) -> None:
    for key, known in (("study", STUDIES), ("variant", VARIANTS)):
        if key in row and row[key] not in known:
            raise InputError(f"{where}{key}: got {row[key]!r}, expected one of: {', '.join(known)}")


def _check_counts(where: str, *lists: list[Any]) -> None:
    counts = {len(one) for one in lists}
    if len(counts) > 1 or 0 in counts:
        raise InputError(f"{where}: got lists of {', '.join(map(str, sorted(counts)))}, expected them equally long")


def _check_answers(record: Record, metrics: tuple[str, ...]) -> None:
    if "answers" not in record:
        return
    for key in ("answers", "truth"):
        check_form("", record, {key: [float] if metrics == RATING_METRICS else str})
        if metrics == CLASS_METRICS and not (record[key].isascii() and record[key].isdigit()):
            raise InputError(f"{key}: expected digits")
    _check_counts("answers", record["answers"], record["truth"])


def _check_search(values: Record) -> None:
    check_form("", values, SEARCHED)
    _check_rows("trials", values["trials"])


def _check_beyond(values: Record) -> None:
    check_form("", values, GONE_BEYOND)
    _check_rows("rows", values["rows"])
    heads: dict[tuple[str, str], Any] = {}  # of each level, by study and option
    runs: set[tuple[Any, ...]] = set()
    for number, row in enumerate(values["rows"]):
        run = row["study"], row["option"], row["seed"], row.get("device")
        if run in runs:
            raise InputError(f"rows[{number}]: {row['option']!r}, seed {row['seed']}: is there twice, expected once")
        runs.add(run)
        for level, reach in row.get("attended", {}).items():
            if level not in row.get("distances", {}) or reach < 0:
                raise InputError(f"rows[{number}].attended.{level}: expected 0 or more, of a level that has distances")
        for level, numbers in row.get("distances", {}).items():
            _check_counts(f"rows[{number}].distances.{level}", *numbers.values())
        if "distances" in row:
            found = _counts(row["distances"])
            if found != heads.setdefault((row["study"], row["option"]), found):
                raise InputError(f"rows[{number}].distances: expected as many heads as {row['option']!r} has elsewhere")


def _check_calls(values: Record) -> None:
    check_form("", values, CALLED)
    for number, call in enumerate(values["calls"]):
        for key, least in {"runs": 0, "seconds": 0, "together": 1, "processes": 1}.items():
            if call.get(key, least) < least:
                raise InputError(f"calls[{number}].{key}: got {call[key]}, expected {least} or more")


def _check_rows(name: str, rows: list[Record]) -> None:
    """Whether the study of each is known, and the metric that decides in it is there."""
    for number, row in enumerate(rows):
        _check_known(f"{name}[{number}].", row)
        check_form(f"{name}[{number}].dev", row["dev"], {STUDIES[row["study"]].metrics[0]: float})


def _counts(levels: Record) -> dict[str, int]:
    """How many heads each level has."""
    return {level: len(next(iter(numbers.values()))) for level, numbers in levels.items()}


def _common(record: Record) -> dict[str, Any]:
    """What has to be the same in all runs of a study: data, settings but for the method's own, items, levels, heads."""
    common: dict[str, Any] = {"truth": record["truth"]} if "answers" in record else {}
    common |= {key: record[key] for key in ("caveat", "examples", *MADE_OF) if key in record}
    if record["variant"] != LINEAR and "settings" in record:
        common |= _flat("settings", without_seed(record["settings"]))
    if record["variant"] == OURS and record.get("distances"):
        common["settings.model.attention_options"] = _options(record)
    for key in ("distances", "heads"):
        if record.get(key):
            common[key] = _counts(record[key])
    if "items" in record:
        common["items"] = {metric: len(numbers) for metric, numbers in record["items"].items()}
    return common


def _flat(prefix: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by their whole names, without those that a method may have for itself."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        place = f"{prefix}.{name}"
        if place not in OWN:
            flat |= _flat(place, value) if isinstance(value, dict) else {place: value}
    return flat
