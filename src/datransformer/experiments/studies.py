"""What the reproduction runs: data sets, methods, tables, and every choice that the paper leaves open, in one place."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from datransformer.data.datasets import DATASETS
from datransformer.data.errors import InputError
from datransformer.experiments.paper import METHODS, OURS
from datransformer.experiments.pieces import MADE, PIECES, SPLITS, has_pieces, write_pieces
from datransformer.nn.mixers import MIXERS
from datransformer.ops.adjust import ADJUSTMENTS
from datransformer.ops.mapping import MAPPINGS
from datransformer.train.config import RunConfig, from_dict
from datransformer.train.tasks import CLASS_METRICS, RANKING_METRICS, RATING_METRICS

Settings = Mapping[str, Any]  # keys as ``train.lr``


@dataclass(frozen=True)
class Choice:
    """A setting that holds for every method.

    Args:
        value: What it is set to.
        why: Where it comes from.
    """

    value: Any
    why: str


CHOICES: dict[str, Choice] = {
    "model.layers": Choice(1, "the paper, Section 4.1"),
    "model.heads": Choice(16, "the paper, Section 4.1"),
    "model.head_dim": Choice(16, "the paper, Section 4.1"),
    "train.lr": Choice(1e-3, "the paper, Section 4.1; the same for w and v"),
    "train.weight_decay": Choice(0.0, "the paper names Adam and nothing beside it"),
    "train.schedule": Choice("cosine", "open; not searched"),
    "train.batch_size": Choice(64, "open; searched: 128 and 256 were worse on AG, and on average on SST"),
    "train.epochs": Choice(
        5,
        "open; searched: 3 and 10 were worse on AG, 2 and 3 on Amazon. The best epoch on dev is kept",
    ),
    "train.clip": Choice(1.0, "open; not searched"),
    "train.log_every": Choice(50, "how often the loss is written down, which changes nothing"),
    "train.checkpoint_seconds": Choice(180.0, "most runs end sooner; one that was stopped leaves a checkpoint anyway"),
    "model.dropout": Choice(
        0.2,
        "open; as in NRMS, whose training the paper follows on MIND; searched: 0.1 and 0.3 were within 0.2 points on "
        "AG, one run each; on SST 0.1 was better for vanilla (81.2 against 80.5 %) and the same for ours",
    ),
    "model.attention_dropout": Choice(
        0.0, "open; searched: on SST 0.1 was 0.6 points better for vanilla and 0.2 worse for ours"
    ),
    "model.freeze_vectors": Choice(False, "open; searched: frozen ones were worse on AG, Amazon and SST"),
    "model.pooling": Choice(
        "additive",
        "open; attention over words, as in NRMS; searched: on SST the mean was worse, and the largest value within 0.2 "
        "points",
    ),
    "model.embed_scale": Choice(
        1.0,
        "open; what word vectors are multiplied by before positions are added; searched: on SST 2 and 4 lift vanilla "
        "(from 82.6 to 83.2 % both, five runs each), and not ours (from 83.4 to 83.1 and 82.8 %): each at its best, "
        "they are 0.2 points apart there",
    ),
    "model.width": Choice(None, "open; that of the word vectors; searched: 256 was no better on AG and SST"),
    "data.vector_words": Choice(False, "open; tried on SST, and once on Amazon"),
    "train.vector_rate": Choice(1.0, "open; that of all; tried on SST, and once on Amazon"),
    "train.average": Choice(0.0, "open; no mean of the weights; tried on SST, and once on Amazon"),
}

# What the models and the data come with, which no study changes.
DEFAULTS: dict[str, Choice] = {
    "w at the start": Choice(
        "-0.5 to 0.5, evenly over the heads",
        "open; half of the heads near, half far; searched: on SST 0.1 and 1 were within 0.1 points",
    ),
    "v at the start": Choice(0, "open; f is then 2 at most; searched: on SST 1 was 0.3 points worse, which is noise"),
    "rate of w and v": Choice("that of all", "open; higher ones are tried beyond the paper"),
    "T of clip": Choice("1 at the start, learned like v", "open; searched: on SST 0.5, 2 and 4 were within 0.2 points"),
    "k of Transformer-RPR": Choice(
        16, "open; as in the base model of its paper; searched: on SST 4, 8 and 32 were within 0.3 points"
    ),
    "how a pair enters": Choice("joint and siamese", "open; so both are run"),
    "word vectors": Choice("GloVe; words without one start at random", "the paper, Section 4.1, which has 300-d ones"),
    "`train.max_tokens`": Choice(
        32_768, "of a batch, padding included; with their histories 57 or so examples of MIND fill one"
    ),
}

PUBLISHED = "the published files"
# Where word vectors are looked for in a folder of data; of several in an archive the largest are read.
VECTORS = ("glove.6B.300d.txt", "glove.6B.zip", "glove/glove.6B.300d.txt", "glove/vectors.f16.npy")
# What choices come to where there are no word vectors.
NO_VECTORS: Settings = {"data.vector_words": False, "model.freeze_vectors": False}

# Weights, moments and sums are kept in full; a CPU has nothing to gain from less.
PRECISION = {"cpu": "32-true", "cuda": "bf16-mixed"}


@dataclass(frozen=True)
class Variant:
    """A method, or a part of ours exchanged.

    Args:
        label: What tables call it.
        settings: On top of the choices for all.
        in_paper: Whether the paper has it.
    """

    label: str
    settings: Settings
    in_paper: bool = True


LABELS = {**METHODS, "none": "no positions", "rotary": "rotary", "alibi": "ALiBi", "t5_bias": "T5 bias"}
LINEAR = "linear"  # no Transformer, but what a user would pick instead
CONTROL = "none"  # attention that knows nothing of places
MAPPING, ADJUSTMENT = "learnable_sigmoid", "early_multiply"  # ours


def _exchanged(part: str, name: str) -> Variant:
    settings = {"model.attention": OURS, "model.attention_options": {part: name}}
    return Variant(name.replace("_", " "), settings)


VARIANTS: dict[str, Variant] = {
    **{name: Variant(LABELS.get(name, name), {"model.attention": name}, name in METHODS) for name in MIXERS},
    LINEAR: Variant("TF-IDF, logistic regression", {}, in_paper=False),
    **{f"mapping_{name}": _exchanged("mapping", name) for name in MAPPINGS if name != MAPPING},
    **{f"adjust_{name}": _exchanged("adjust", name) for name in ADJUSTMENTS if name != ADJUSTMENT},
}

# Tables by name, each the variants that stand in it. Ours is one run in all of them.
TABLES: dict[str, tuple[str, ...]] = {
    "methods": (*METHODS, *(name for name in MIXERS if name not in METHODS), LINEAR),
    "mappings": (*(name for name in VARIANTS if name.startswith("mapping_")), OURS),
    "adjustments": (*(name for name in VARIANTS if name.startswith("adjust_")), OURS),
}


@dataclass(frozen=True)
class Study:
    """One data set read in one way.

    Args:
        title: What tables call it.
        data: A key of `PIECES` and `DATASETS`, or ``probe``.
        metrics: What is reported, the first decides on dev.
        tables: Keys of `TABLES`.
        settings: On top of the choices for all.
        choices: Those of its own, for every method alike.
        beside: Whether methods that the paper does not have run too; the control without positions always does.
    """

    title: str
    data: str
    metrics: tuple[str, ...] = CLASS_METRICS
    tables: tuple[str, ...] = ("methods",)
    settings: Settings = field(default_factory=dict)
    choices: Mapping[str, Choice] = field(default_factory=dict)
    beside: bool = True

    @property
    def variants(self) -> tuple[str, ...]:
        """Every variant that one of the tables needs, once; a linear model where texts have classes."""
        has_linear = self.metrics == CLASS_METRICS and self.data != "probe"
        names = dict.fromkeys(name for table in self.tables for name in TABLES[table])
        known = [name for name in names if self.beside or VARIANTS[name].in_paper or name in (CONTROL, LINEAR)]
        return tuple(name for name in known if name != LINEAR or has_linear)


ALL_TABLES = tuple(TABLES)
PAIR = {"task": "pair", "data.text_pair_column": "text_pair"}
SIAMESE = {**PAIR, "model.pair": "siamese"}
# Elsewhere a wider encoder and more epochs changed little, or for the worse.
PAIR_CHOICES = {
    "model.width": Choice(256, "searched: from 68 to 73 % for vanilla, from 73 to 77 % for ours"),
    "model.dropout": Choice(0.1, "searched: from 66 to 68 % for vanilla, from 67 to 70 % for ours"),
    "train.epochs": Choice(10, "searched: from 66 to 68 % for vanilla, from 67 to 72 % for ours"),
    "train.batch_size": Choice(128, "searched: as good as 64, and quicker"),
    "model.freeze_vectors": Choice(
        True, "searched: from 73 to 75 % for vanilla, from 76.6 to 77.3 % for ours; and quicker"
    ),
}
SST_CHOICES = {
    "data.vector_words": Choice(
        True, "searched: from 81.2 to 81.8 % for vanilla, from 82.4 to 83.0 % for ours, five runs each"
    ),
    "train.epochs": Choice(
        10, "searched, with words of the vectors: from 81.8 to 82.5 % for vanilla, the same for ours"
    ),
    "train.vector_rate": Choice(
        0.3, "searched, with both: from 82.5 to 82.6 % for vanilla, from 83.1 to 83.4 % for ours"
    ),
}
PHRASE_CHOICES = {
    "data.vector_words": Choice(
        True, "searched: from 81.8 to 82.7 % for vanilla, from 81.5 to 83.4 % for ours, one run each"
    ),
    "train.average": Choice(0.99, "searched, with the rate of vectors"),
    "train.vector_rate": Choice(0.1, "searched, with all three: 84.2 % for vanilla, 83.6 % for ours"),
    "train.epochs": Choice(
        10, "searched, with all of these: from 84.5 to 85.4 % for vanilla, from 83.5 to 84.2 % for ours, one run each"
    ),
}
RANKING_CHOICES = {
    "train.batch_size": Choice(
        256,
        "searched, with the rate: the AUC went from 53.8 to 55.3 % for vanilla, from 54.1 to 55.5 % for ours; "
        "train.max_tokens ends batches sooner",
    ),
    "train.lr": Choice(2e-3, "searched, with the batch; the paper has 0.001"),
}
DOCUMENT = {"task": "document"}
STUDIES: dict[str, Study] = {
    "ag": Study("AG", "ag", tables=ALL_TABLES),
    "amazon": Study("Amazon", "amazon", tables=ALL_TABLES, settings=DOCUMENT),
    "amazon_rating": Study(
        "Amazon, rating regression", "amazon", RATING_METRICS, settings={**DOCUMENT, "model.head": "rating"},
        beside=False,
    ),
    "sst": Study("SST", "sst", choices=SST_CHOICES),
    "sst_phrases": Study("SST, trained on phrases too", "sst_phrases", choices=PHRASE_CHOICES, beside=False),
    "snli": Study("SNLI, 3 classes, joint", "snli", settings=PAIR, choices=PAIR_CHOICES),
    "snli_siamese": Study(
        "SNLI, 3 classes, siamese", "snli", settings=SIAMESE, choices=PAIR_CHOICES, beside=False
    ),
    "snli2": Study("SNLI, 2 classes, joint", "snli2", settings=PAIR, choices=PAIR_CHOICES, beside=False),
    "snli2_siamese": Study(
        "SNLI, 2 classes, siamese", "snli2", settings=SIAMESE, choices=PAIR_CHOICES, beside=False
    ),
    "mind": Study("MIND", "mind", RANKING_METRICS, ALL_TABLES, {"task": "recommend"}, RANKING_CHOICES),
    "probe": Study(
        "probe", "probe", tables=ALL_TABLES,
        settings={
            "model.embed_dim": 64, "model.heads": 8, "model.head_dim": 8, "model.dropout": 0.0,
            "train.lr": 2e-3, "train.epochs": 3, "train.schedule": "constant",
        },
    ),
}  # fmt: skip

# What a person asks for, and the studies that are meant.
GROUPS: dict[str, tuple[str, ...]] = {
    "ag": ("ag",),
    "amazon": ("amazon", "amazon_rating"),
    "sst": ("sst", "sst_phrases"),
    "snli": ("snli", "snli_siamese", "snli2", "snli2_siamese"),
    "mind": ("mind",),
    "probe": ("probe",),
}
ALL = "all"  # every group that needs data


@dataclass(frozen=True)
class Planned:
    """A run to be.

    Args:
        study: A key of `STUDIES`.
        variant: A key of `VARIANTS`.
        seed: Of weights, order and dropout.
        caveat: How its data differ from the paper's.
        config: All of its settings.
        folder: Where its results lie below the folder of all, if not in one of the study.
    """

    study: str
    variant: str
    seed: int
    caveat: str
    config: RunConfig
    folder: str | None = None

    @property
    def name(self) -> str:
        """Where its results lie below the folder of all."""
        return f"{self.folder or self.study}/{self.variant}-{self.seed}"


def studies_of(groups: tuple[str, ...]) -> tuple[str, ...]:
    """The studies that a person asked for."""
    chosen = tuple(name for name in GROUPS if name != "probe") if ALL in groups else groups
    for name in chosen:
        if name not in GROUPS and name not in STUDIES:
            parts = ", ".join(study for study in STUDIES if study not in GROUPS)
            raise InputError(f"got {name!r}, expected one of: {', '.join([*GROUPS, ALL])}; or a part: {parts}")
    return tuple(dict.fromkeys(study for name in chosen for study in GROUPS.get(name, (name,))))


def plan_study(study: str, seeds: int, data: Settings, caveat: str = "", device: str = "cpu") -> list[Planned]:
    """All runs of a study, seed by seed.

    Args:
        study: A key of `STUDIES`.
        seeds: How often each variant is trained.
        data: Where the rows and word vectors are, as `find_data` says it.
        caveat: What it says about them.
        device: ``cpu`` or ``cuda``.
    """
    data = {**data, "train.precision": PRECISION[device]}
    return [
        Planned(study, variant, seed, caveat, config_of(study, variant, seed, data))
        for seed in range(seeds)
        for variant in STUDIES[study].variants
        if seed == 0 or variant != LINEAR  # which draws nothing at random
    ]


def folder_of(*parts: str) -> str:
    """A folder's name for what is called so: other things beside it may come and go."""
    return re.sub(r"[^a-z0-9.]+", "_", "-".join(parts).lower())


def spread(widest: float) -> list[float]:
    """First values of w for the paper's heads, evenly from −``widest`` to it."""
    heads = CHOICES["model.heads"].value
    return [widest * (2 * head / (heads - 1) - 1) for head in range(heads)]


def config_of(study: str, variant: str, seed: int, data: Settings, changed: Settings | None = None) -> RunConfig:
    """The settings of one run: the choices for all, those of the study, of the data, of the variant, and changes."""
    chosen = {name: choice.value for name, choice in {**CHOICES, **STUDIES[study].choices}.items()}
    if "data.vectors" not in data:
        chosen |= NO_VECTORS
    own = {**VARIANTS[variant].settings, **(changed or {}), "train.seed": seed}
    settings = {**chosen, **STUDIES[study].settings, **data, **own}
    values: dict[str, Any] = {}
    for name, value in settings.items():
        *parents, last = name.split(".")
        place = values
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = value
    return from_dict(RunConfig, values, "")


def find_data(study: str, folder: Path | None, out: Path, vectors: Path | None) -> tuple[Settings, str]:
    """Where a study's rows are, as settings, and what is to be said about them.

    The published files are taken where they are; parts of them are brought into form below ``out``.
    """
    name = STUDIES[study].data
    if name == "probe":
        return {"files.dataset": "probe"}, "generated: the label is a matter of distance alone"
    if folder is None:
        raise InputError(f"--data-dir: got nothing, expected the folder that holds the data: {study} needs it")
    words: Settings = {} if vectors is None else {"data.vectors": str(vectors.resolve())}
    if has_pieces(name, folder):
        return {**_as_files(write_pieces(name, folder, out / name)), **words}, PIECES[name].caveat
    try:
        if name in MADE:
            made = MADE[name]
            return {**_as_files(made.write(folder, out / name)), **words}, f"{PUBLISHED}{made.note}"
        DATASETS[name].find(folder)
    except InputError as error:
        known = {"snli2": "snli", "sst_phrases": "sst"}.get(name, name)  # what `data get` calls it
        told = f"`datransformer data get {known} --out {folder}` downloads it, or says where it is to be had"
        raise InputError(f"{error}; {told}") from error
    return {"files.dataset": name, "files.data_dir": str(folder.resolve()), **words}, PUBLISHED


def _as_files(paths: Mapping[str, Path]) -> Settings:
    """The settings that name the files of the splits."""
    train, dev, test = (str(paths[split].resolve()) for split in SPLITS)
    return {"files.train": [train], "files.dev": dev, "files.test": test}


def find_vectors(folder: Path | None) -> Path | None:
    """Word vectors in a folder of data, the paper's first."""
    found = (folder / name for name in VECTORS if folder is not None)
    return next((path for path in found if path.is_file()), None)
