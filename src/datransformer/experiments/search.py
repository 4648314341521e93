"""The search for the one recipe of the reproduction: trials on dev, with no test set in sight.

    python -m datransformer.experiments.search --data-dir D --out DIR [--trial NAME ...] [--study NAME ...] [ROUND ...]

Every trial changes some settings of `BASE` for all methods alike. What came of it is a line of ``search.json``, which
`datransformer report` turns into tables.
"""

import argparse
import json
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datransformer.data.errors import InputError
from datransformer.data.store import write_text
from datransformer.experiments.paper import OURS
from datransformer.experiments.processes import STOPPED, process_count, share_out
from datransformer.experiments.reproduce import CALLS, DATA, LANES, SEARCH
from datransformer.experiments.runs import (
    RESULTS,
    SETTINGS,
    Place,
    Record,
    Shelf,
    read_form,
    run_all,
    settings_of,
    without_seed,
)
from datransformer.experiments.studies import (
    CONTROL,
    PRECISION,
    STUDIES,
    Planned,
    Settings,
    config_of,
    find_data,
    find_vectors,
    folder_of,
    spread,
)
from datransformer.train.config import RunConfig
from datransformer.train.errors import Interrupted
from datransformer.train.fit import differences
from datransformer.train.launch import launch
from datransformer.train.progress import Reporter, printable
from datransformer.train.run import locked

SEARCHED = {
    "note": str,
    "settings?": {str: SETTINGS},
    "made_of?": {str: {str: str}},
    "trials": [
        {
            "round": str,
            "trial?": str,
            "study": str,
            "variant": str,
            "settings": dict,
            "seed": int,
            "dev": dict,
            "commit?": (str,),
            "device?": str,
        }
    ],
    "chosen": dict,
}
# What the first round starts from: the paper's settings, and for what it leaves open those of NRMS or common ones.
BASE: Settings = {
    "train.lr": 1e-3,
    "train.weight_decay": 0.0,
    "train.warmup": 0,
    "train.schedule": "cosine",
    "train.batch_size": 64,
    "train.epochs": 5,
    "train.clip": 1.0,
    "train.label_smoothing": 0.0,
    "model.dropout": 0.2,
    "model.attention_dropout": 0.0,
    "model.pooling": "additive",
    "model.embed_scale": 1.0,
    "model.freeze_vectors": False,
    "model.width": None,
    "data.vector_words": False,
    "train.vector_rate": 1.0,
    "train.average": 0.0,
}


@dataclass(frozen=True)
class Round:
    """Trials that are held against each other.

    Args:
        trials: By name, the settings that are unlike `BASE`.
        seeds: By study, how often each trial is run.
        variants: The methods.
    """

    trials: Mapping[str, Settings]
    seeds: Mapping[str, int]
    variants: tuple[str, ...]


ONE_BY_ONE: dict[str, Settings] = {
    "base": {},
    "batch 128": {"train.batch_size": 128},
    "batch 256, rate 2e-3": {"train.batch_size": 256, "train.lr": 2e-3},
    "rate 5e-4": {"train.lr": 5e-4},
    "rate 2e-3": {"train.lr": 2e-3},
    "3 epochs": {"train.epochs": 3},
    "10 epochs": {"train.epochs": 10},
    "dropout 0.1": {"model.dropout": 0.1},
    "dropout 0.3": {"model.dropout": 0.3},
    "attention dropout 0.1": {"model.attention_dropout": 0.1},
    "decay 0.05": {"train.weight_decay": 0.05},
    "warm-up 300": {"train.warmup": 300},
    "smoothing 0.1": {"train.label_smoothing": 0.1},
    "mean pooling": {"model.pooling": "mean"},
    "vectors x 3": {"model.embed_scale": 3.0},
    "width 256": {"model.width": 256},
    "width 256, vectors x 3": {"model.width": 256, "model.embed_scale": 3.0},
}
LARGE = ("base", "batch 256, rate 2e-3", "rate 5e-4", "10 epochs", "dropout 0.3", "vectors x 3", "width 256")

# Less dropout, more epochs and a wider encoder helped on SNLI, and cost little elsewhere.
COMBINED: dict[str, Settings] = {
    "10 epochs": {"train.epochs": 10},
    "10 epochs, batch 128": {"train.epochs": 10, "train.batch_size": 128},
    "10 epochs, batch 256, rate 2e-3": {"train.epochs": 10, "train.batch_size": 256, "train.lr": 2e-3},
    "10 epochs, batch 128, width 256": {"train.epochs": 10, "train.batch_size": 128, "model.width": 256},
    "10 epochs, batch 128, attention dropout 0.1": {
        "train.epochs": 10, "train.batch_size": 128, "model.attention_dropout": 0.1
    },
    "10 epochs, batch 128, decay 0.05": {
        "train.epochs": 10, "train.batch_size": 128, "train.weight_decay": 0.05
    },
    "15 epochs, batch 128": {"train.epochs": 15, "train.batch_size": 128},
    "width 256": {"model.width": 256},
    "vectors x 3": {"model.embed_scale": 3.0},
}  # fmt: skip
COMBINED = {f"dropout 0.1, {name}": {"model.dropout": 0.1, **settings} for name, settings in COMBINED.items()}
# What was seen so far looks like too many parameters for too few texts.
FROZEN: dict[str, Settings] = {
    "frozen": {},
    "frozen, width 256": {"model.width": 256},
    "frozen, width 256, dropout 0.3": {"model.width": 256, "model.dropout": 0.3},
    "frozen, width 256, 10 epochs": {"model.width": 256, "train.epochs": 10},
}
FROZEN = {name: {"model.freeze_vectors": True, **settings} for name, settings in FROZEN.items()}
FEW_EPOCHS: dict[str, Settings] = {
    "base": {},
    "3 epochs": {"train.epochs": 3},
    "2 epochs": {"train.epochs": 2},
    "rate 5e-4, 3 epochs": {"train.lr": 5e-4, "train.epochs": 3},
    "dropout 0.3": {"model.dropout": 0.3},
    "smoothing 0.1": {"train.label_smoothing": 0.1},
}
MANY_EPOCHS: dict[str, Settings] = {
    "base": {},
    "10 epochs, batch 256, rate 2e-3": {"train.epochs": 10, "train.batch_size": 256, "train.lr": 2e-3},
    "10 epochs, dropout 0.3": {"train.epochs": 10, "model.dropout": 0.3},
}
PAIRS: dict[str, Settings] = {"dropout 0.1, 10 epochs, batch 128, width 256, frozen": {
    "model.dropout": 0.1, "train.epochs": 10, "train.batch_size": 128, "model.width": 256, "model.freeze_vectors": True
}}  # fmt: skip
# The unknown word stands for one of twenty on SST, nearly all of which have a vector; vectors that move far leave those
# that training does not have behind; and the best epoch is not the last one, so that its weights have come from a rate
# that is still high.
WORDS: Settings = {"data.vector_words": True}
MEAN: Settings = {"train.average": 0.99}
STEADY: dict[str, Settings] = {
    "base": {},
    "mean 0.99": MEAN,
    "words": WORDS,
    "words, vectors at 0.3": {**WORDS, "train.vector_rate": 0.3},
    "words, mean 0.99": {**WORDS, **MEAN},
    "words, mean 0.99, vectors at 0.3": {**WORDS, **MEAN, "train.vector_rate": 0.3},
    "words, mean 0.99, vectors at 0.1": {**WORDS, **MEAN, "train.vector_rate": 0.1},
    "words, mean 0.99, dropout 0.3": {**WORDS, **MEAN, "model.dropout": 0.3},
    "words, mean 0.99, smoothing 0.1": {**WORDS, **MEAN, "train.label_smoothing": 0.1},
}
STEADY_PAIRS = {
    trial: {**pairs, **STEADY[trial]}
    for pairs in PAIRS.values()
    for trial in ("base", "mean 0.99", "words", "words, mean 0.99")  # vectors are frozen
}
# With more words known there is more to be learned before a model knows its training texts by heart.
LONGER: dict[str, Settings] = {
    "words, 10 epochs": {"train.epochs": 10},
    "words, dropout 0.1": {"model.dropout": 0.1},
    "words, 10 epochs, vectors at 0.3": {"train.epochs": 10, "train.vector_rate": 0.3},
    "words, 10 epochs, rate 5e-4": {"train.epochs": 10, "train.lr": 5e-4},
    "words, 10 epochs, vectors at 0.3, max pooling": {
        "train.epochs": 10, "train.vector_rate": 0.3, "model.pooling": "max"
    },
}  # fmt: skip
LONGER = {trial: {**WORDS, **settings} for trial, settings in LONGER.items()}
# Where a mean of the weights and slow vectors helped most: with phrases, of which there are many and much alike.
SLOW: Settings = {**WORDS, **MEAN, "train.vector_rate": 0.1}
SLOWER: dict[str, Settings] = {
    "slow": {},
    "slow, vectors at 0.03": {"train.vector_rate": 0.03},
    "slow, mean 0.999": {"train.average": 0.999},
    "slow, rate 5e-4": {"train.lr": 5e-4},
    "slow, dropout 0.3": {"model.dropout": 0.3},
    "slow, dropout 0.3, width 256": {"model.dropout": 0.3, "model.width": 256},
    "slow, decay 0.05": {"train.weight_decay": 0.05},
    "slow, 10 epochs": {"train.epochs": 10},
    "slow, max pooling": {"model.pooling": "max"},
    "slow, max pooling, 10 epochs": {"model.pooling": "max", "train.epochs": 10},
}
SLOWER = {trial: {**SLOW, **settings} for trial, settings in SLOWER.items()}
SLOW_DOCUMENTS: dict[str, Settings] = {
    "base": {},
    **{trial: SLOWER[trial] for trial in ("slow", "slow, dropout 0.3", "slow, dropout 0.3, width 256")},
    "slow, smoothing 0.1": {**SLOW, "train.label_smoothing": 0.1},
}
# Where slow vectors were worse: quicker ones, and what else had not been tried there.
DOCUMENTS: dict[str, Settings] = {
    "vectors at 3": {"train.vector_rate": 3.0},
    "width 256": {"model.width": 256},
    "words, mean 0.999, dropout 0.3, 10 epochs": {
        **WORDS, "train.average": 0.999, "model.dropout": 0.3, "train.epochs": 10
    },
    "words, mean 0.99, smoothing 0.1": STEADY["words, mean 0.99, smoothing 0.1"],
}  # fmt: skip
# Of how a text becomes one vector only the mean had been tried, on SST.
POOLED: dict[str, Settings] = {
    "base": {},
    "max pooling": {"model.pooling": "max"},
    "max pooling, words, mean 0.99": {"model.pooling": "max", **WORDS, **MEAN},
    "max pooling, words, mean 0.99, smoothing 0.1": {
        "model.pooling": "max", **STEADY["words, mean 0.99, smoothing 0.1"]
    },
}  # fmt: skip
# How large word vectors are beside the sinusoids of the Transformer, which is behind no positions on SST.
SCALES = (1.0, 2.0, 4.0)
SCALED: dict[str, Settings] = {f"vectors x {scale:g}": {"model.embed_scale": scale} for scale in SCALES}
SCALED_WORDS = {
    f"words, 10 epochs, {trial}": {**LONGER["words, 10 epochs, vectors at 0.3"], **settings}
    for trial, settings in SCALED.items()
}
SCALED_PAIRS = {
    f"{trial}, {scaled}": {**pairs, **settings} for trial, pairs in PAIRS.items() for scaled, settings in SCALED.items()
}
# What methods have for themselves, each tried as often as the others' own.
REACHES: dict[str, Settings] = {f"k = {k}": {"model.attention_options": {"max_distance": k}} for k in (4, 8, 16, 32)}
CLIPPED: dict[str, Settings] = {
    f"T = {most}": {"model.attention_options": {"mapping": "clip", "distance_shift_init": most}}
    for most in (0.5, 1.0, 2.0, 4.0)
}
STARTS: dict[str, Settings] = {
    f"w to {widest}, v = {shift}": {
        "model.attention_options": {"distance_weight_init": spread(widest), "distance_shift_init": shift}
    }
    for widest, shift in ((0.1, 0.0), (0.5, 0.0), (1.0, 0.0), (0.5, 1.0))
}
BOTH = ("vanilla", "distance_aware")  # one that knows of distance and one that does not
ROUNDS: dict[str, Round] = {
    "one by one": Round(ONE_BY_ONE, {"sst": 3, "ag": 1, "snli": 1}, BOTH),
    "one by one, large": Round({name: ONE_BY_ONE[name] for name in LARGE}, {"mind": 1, "amazon": 1}, BOTH),
    "combined": Round(COMBINED, {"sst": 3, "ag": 1, "snli": 1}, BOTH),
    "combined, large": Round(dict(list(COMBINED.items())[:4]), {"mind": 1, "amazon": 1}, BOTH),
    "frozen": Round(FROZEN, {"sst": 3, "ag": 1, "amazon": 1}, BOTH),
    "few epochs": Round(FEW_EPOCHS, {"amazon": 1}, BOTH),
    "frozen, pairs": Round(PAIRS, {"snli": 1}, BOTH),
    "frozen, ranking": Round(FROZEN, {"mind": 2}, BOTH),
    "many epochs": Round(MANY_EPOCHS, {"mind": 2}, BOTH),
    "steady": Round(STEADY, {"sst": 5}, BOTH),
    "steady, phrases": Round(STEADY, {"sst_phrases": 1}, BOTH),
    "steady, large": Round(STEADY, {"ag": 2, "amazon": 2}, BOTH),
    "steady, pairs": Round(STEADY_PAIRS, {"snli": 1}, BOTH),
    "longer": Round(LONGER, {"sst": 5}, BOTH),
    "slow": Round(SLOWER, {"sst": 5}, BOTH),
    "slow, phrases": Round(SLOWER, {"sst_phrases": 1}, BOTH),
    "slow, large": Round(SLOW_DOCUMENTS, {"amazon": 1, "ag": 1}, BOTH),
    "documents": Round(DOCUMENTS, {"amazon": 1}, BOTH),
    "pooled": Round(POOLED, {"sst": 5, "amazon": 2, "ag": 1, "sst_phrases": 1}, BOTH),
    "scaled": Round(SCALED_WORDS, {"sst": 5}, BOTH),
    "scaled, large": Round(SCALED, {"ag": 2, "amazon": 2}, BOTH),
    "scaled, pairs": Round(SCALED_PAIRS, {"snli": 2}, BOTH),
    "k of RPR": Round(REACHES, {"sst": 5}, ("rpr",)),
    "T of clip": Round(CLIPPED, {"sst": 5}, (OURS,)),
    "w and v at first": Round(STARTS, {"sst": 5}, (OURS,)),
}


def plan_round(
    name: str,
    data_dir: Path,
    out: Path,
    device: str,
    trials: Collection[str] = (),
    studies: Collection[str] = (),
) -> Iterator[tuple[str, Planned]]:
    """All runs of a round, or those of some trials and studies, each with the name of its trial."""
    chosen = ROUNDS[name]
    wanted = {trial: settings for trial, settings in chosen.trials.items() if not trials or trial in trials}
    counts = {study: seeds for study, seeds in chosen.seeds.items() if wanted and (not studies or study in studies)}
    found = {study: data_of(study, data_dir, out, device) for study in counts}
    for trial, settings in wanted.items():
        for study, seeds in counts.items():
            data = {**BASE, **found[study], **settings}
            for variant in chosen.variants:
                for seed in range(seeds):
                    config = config_of(study, variant, seed, data)
                    yield trial, Planned(study, variant, seed, "", config, folder_of(name, trial, study))


def data_of(study: str, data_dir: Path, out: Path, device: str) -> Settings:
    """Where a study's rows and word vectors are, and the precision of a device, as settings."""
    found, _ = find_data(study, data_dir, out / DATA, find_vectors(data_dir))
    return {**found, "train.precision": PRECISION[device]}


def note_trials(
    todo: Sequence[Planned],
    row_of: Callable[[Planned], Record],
    about: Record,
    rows: list[Record],
    path: Path,
    *,
    device: str,
    where: str,
    reporter: Reporter,
    more: Callable[[Planned, Record], Record],
) -> None:
    """Run without a test set, on a GPU several at a time, and write what came of each as it ends.

    Args:
        todo: The runs.
        row_of: What names a run among the rows.
        about: What the file holds.
        rows: Those in it that are added to.
        path: The file, in the folder of the runs.
        device: ``auto``, ``cpu`` or ``cuda``.
        where: The kind of device that it is.
        reporter: Gets told.
        more: What is kept of a run's record beside the metrics.
    """
    out, failed = path.parent, 0
    place = Place(out, out / "cache", device, LANES if where == "cuda" else 1, test=False)
    processes = process_count(where)
    ended = share_out(todo, place, processes) if processes > 1 else run_all(todo, place, Shelf(place.test))
    for planned, record in ended:
        row = row_of(planned)
        told = ", ".join(str(value) for name, value in row.items() if name != "seed")
        if "failed" in record:
            failed += 1
            reporter.say(f"{told}: {record['failed']}")
            continue
        kept = {"dev": record["metrics"]["dev"], "commit": record["commit"], "device": record["device"]}
        rows.append({**row, **more(planned, record), **kept})
        reporter.say(f"{len(rows)}: {told}: {kept['dev']}")
        write_text(path, json.dumps(about, indent=1, ensure_ascii=False))
    if failed:
        raise InputError(f"{failed} of {len(todo)} runs failed, which the same command tries again")


def search(
    names: Sequence[str],
    data_dir: Path,
    out: Path,
    *,
    trials: Collection[str] = (),
    studies: Collection[str] = (),
    device: str = "auto",
    reporter: Reporter,
) -> Path:
    """Run rounds, and add what came of them to ``search.json``; what is there already is not run again.

    Args:
        names: Keys of `ROUNDS`.
        data_dir: Folder with the data.
        out: Folder for runs and what came of them.
        trials: The trials of those rounds; all if there are none.
        studies: The studies of those rounds; all if there are none.
        device: ``auto``, ``cpu`` or ``cuda``.
        reporter: Gets told.
    """
    check_apart(out)
    where = launch(device, "32-true").device.type
    plan = [
        (name, trial, planned)
        for name in dict.fromkeys(names)
        for trial, planned in plan_round(name, data_dir, out, where, trials, studies)
    ]
    if not plan:
        raise InputError("nothing to run: no round that is named has such trials of such studies")
    origins = {planned.name: (name, trial) for name, trial, planned in plan}
    todo = [planned for _, _, planned in plan]
    path = out / SEARCH
    about = read_form(path, {"note": "", "chosen": {}, "settings": {}, "made_of": {}, "trials": []}, SEARCHED)
    rows: list[dict[str, Any]] = about["trials"]
    seen = {(row["round"], row.get("trial"), row["study"], row["variant"], row["seed"]) for row in rows}
    todo = [one for one in todo if (*origins[one.name], one.study, one.variant, one.seed) not in seen]
    base = {
        study: config_of(study, CONTROL, 0, {**BASE, **data_of(study, data_dir, out, where)})
        for study in dict.fromkeys(planned.study for planned in todo)
    }
    settle(about, base, {row["study"] for row in rows}, path, out / "cache")

    def row_of(planned: Planned) -> Record:
        name, trial = origins[planned.name]
        return {
            "round": name,
            "trial": trial,
            "study": planned.study,
            "variant": planned.variant,
            "seed": planned.seed,
        }

    def settings_tried(planned: Planned, record: Record) -> Record:
        name, trial = origins[planned.name]
        return {"settings": dict(ROUNDS[name].trials[trial])}

    note_trials(todo, row_of, about, rows, path, device=device, where=where, reporter=reporter, more=settings_tried)
    return path


def check_apart(out: Path) -> None:
    """Raise where the runs of a reproduction are, whose page is made of all records there."""
    if (out / RESULTS / CALLS).exists():
        raise InputError(f"{out}: holds a reproduction, expected another --out for what is tried")


def settle(
    about: dict[str, Any], now: Mapping[str, RunConfig], studies: Collection[str], path: Path, cache: Path
) -> None:
    """Note what runs start from and are made of, by study; rows of something else are not to be added to.

    Args:
        about: What the file holds, the settings and data so far among it.
        now: The settings to be, seeds apart.
        studies: Which there are rows of already.
        path: Where it lies.
        cache: Folder for encoded data.
    """
    settings, made_of = about["settings"], about["made_of"]
    if unknown := set(studies) & now.keys() - (settings.keys() & made_of.keys()):
        raise InputError(f"{path}: holds rows on {min(unknown)} of unknown settings or data; expected another --out")
    shelf = Shelf()
    for study, config in now.items():
        started = without_seed(settings_of(config))
        if changed := differences(without_seed(settings.setdefault(study, started)), started):
            raise InputError(f"{path}: {study} was tried with another {changed[0]}; expected another --out")
        found = shelf.made_of(config, cache)
        if made_of.setdefault(study, found) != found:
            raise InputError(f"{path}: {study} was tried on other rows or word vectors; expected another --out")


@contextmanager
def ending_in_words(stopped: str = STOPPED) -> Iterator[None]:
    """Let a script that is ``stopped``, or given what it cannot use, end in a line and not in a traceback."""
    try:
        yield
    except InputError as error:
        print(printable(str(error)), file=sys.stderr)  # noqa: T201
        sys.exit(1)
    except OSError as error:
        print(printable(f"{error.filename}: {error.strerror or error}"), file=sys.stderr)  # noqa: T201
        sys.exit(1)
    except Interrupted:
        print(stopped, file=sys.stderr)  # noqa: T201
        sys.exit(130)


def main() -> None:
    """Run the rounds that are named, all if none is."""
    rounds = "; ".join(f'"{name}"' for name in ROUNDS)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True, help="folder with the data sets and word vectors")
    parser.add_argument("--out", type=Path, required=True, help="folder for runs and search.json")
    every = {trial: None for one in ROUNDS.values() for trial in one.trials}
    parser.add_argument(
        "--trial", action="append", default=[], choices=list(every), metavar="NAME",
        help="this trial alone, as \"base\"; may be repeated. A name that is none is answered with all",
    )  # fmt: skip
    parser.add_argument(
        "--study", action="append", default=[], choices=list(STUDIES), metavar="NAME",
        help=f"this data set alone, one of {', '.join(STUDIES)}; may be repeated",
    )  # fmt: skip
    parser.add_argument("rounds", nargs="*", help=f"all if none is named: {rounds}")
    arguments = parser.parse_args()
    if odd := set(arguments.rounds) - set(ROUNDS):
        parser.error(f"rounds: got {odd.pop()!r}, expected some of: {rounds}")
    with ending_in_words(), locked(arguments.out):
        path = search(
            arguments.rounds or list(ROUNDS),
            arguments.data_dir,
            arguments.out,
            trials=arguments.trial,
            studies=arguments.study,
            reporter=Reporter(),
        )
        print(path)  # noqa: T201


if __name__ == "__main__":
    main()
