"""The published data sets of the paper by name: which files they come in, and how these are split."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from datransformer.data.errors import InputError
from datransformer.data.readers import FORMATS, Columns


@dataclass(frozen=True)
class Source:
    """One file, or for MIND one folder, and how to read it.

    Args:
        path: Where it is.
        columns: What `read_rows` reads from it.
        format: How `read_rows` reads it; ``mind`` for a folder with news.tsv and behaviors.tsv.
    """

    path: Path
    columns: Columns
    format: str = "auto"


@dataclass(frozen=True)
class Splits:
    """Which files make up train, dev and test, and how many rows are held out of train where one has no file.

    Args:
        task: sentence, pair, document or recommend.
        train: The files to train on.
        dev: The file to choose by; None: hold ``dev_rows`` out of train.
        test: The file to report on; None: hold ``test_rows`` out of train.
        train_rows: How many rows to draw, with a seed, for training; None: all that are left.
        dev_rows: How many rows to hold out for dev, a count or a share.
        test_rows: How many rows to hold out for test.
        keep_labels: The labels whose rows are used, in every split; None: all.
    """

    task: str
    train: tuple[Source, ...]
    dev: Source | None = None
    test: Source | None = None
    train_rows: int | None = None
    dev_rows: int | float | None = None
    test_rows: int | None = None
    keep_labels: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Dataset:
    """A published data set.

    Args:
        name: What it is asked for by.
        task: sentence, pair, document or recommend.
        description: One line on what it holds.
        licence: Under what terms it may be used.
        homepage: Where it is to be had.
        expects: The names of its files.
        find: From the folder that holds them to its splits.
    """

    name: str
    task: str
    description: str
    licence: str
    homepage: str
    expects: tuple[str, ...]
    find: Callable[[Path], Splits]


def locate(folder: Path, choices: Sequence[tuple[str, ...]]) -> list[Path]:
    """The first of ``choices`` whose files are all in ``folder``."""
    if not folder.is_dir():
        found = "is a file" if folder.exists() else "there is no such folder"
        raise InputError(f"{folder}: {found}, expected a folder with {describe(choices)}")
    for names in choices:
        paths = [folder / name for name in names]
        if all(path.is_file() for path in paths):
            return paths
    entries = sorted(path.name for path in folder.iterdir())
    has = ", ".join(entries[:20]) + (f" and {len(entries) - 20} more" if len(entries) > 20 else "")
    raise InputError(f"{folder}: has {has or 'nothing'}, expected {describe(choices)}")


def describe(choices: Sequence[tuple[str, ...]]) -> str:
    """The choices in words."""
    return "; or ".join(", ".join(names) for names in choices)


def under(subfolder: str, names: tuple[str, ...]) -> list[tuple[str, ...]]:
    """``names`` in the folder itself or, as the published archive unpacks, in a folder below it."""
    return [names, tuple(f"{subfolder}/{name}" for name in names)]


def source(path: Path, format_name: str) -> Source:
    """A file in one of the published formats."""
    columns = FORMATS[format_name].columns
    assert columns is not None
    return Source(path, columns, format_name)


AG_FILES = ("train.csv", "test.csv")
AMAZON_FILE = "reviews_Electronics_5.json"
SST_FILES = ("train.txt", "dev.txt", "test.txt")
SNLI_FILES = {
    kind: tuple(f"snli_1.0_{split}.{kind}" for split in ("train", "dev", "test")) for kind in ("jsonl", "txt")
}
MIND_FILES = ("news.tsv", "behaviors.tsv")
MIND_FOLDERS = (
    ("MINDsmall_train", "MINDsmall_dev", "MINDsmall_test"),
    ("MINDlarge_train", "MINDlarge_dev", "MINDlarge_test"),
    ("train", "dev", "test"),
)


def find_ag(folder: Path) -> Splits:
    """AG has no dev set: a tenth of train is held out."""
    train, test = (source(path, "ag_news") for path in locate(folder, under("ag_news_csv", AG_FILES)))
    return Splits("sentence", (train,), test=test, dev_rows=0.1)


def find_amazon(folder: Path) -> Splits:
    """One file of 1.7 million reviews, from which the paper draws 50,000."""
    (path,) = locate(folder, [(AMAZON_FILE,), (f"{AMAZON_FILE}.gz",)])
    return Splits("document", (source(path, "amazon"),), train_rows=40_000, dev_rows=5_000, test_rows=5_000)


def find_sst(folder: Path) -> Splits:
    """Trees, of which the root alone is used."""
    train, dev, test = (source(path, "sst_trees") for path in locate(folder, under("trees", SST_FILES)))
    return Splits("sentence", (train,), dev, test)


def find_snli(folder: Path, train_rows: int | None = None, keep_labels: tuple[str, ...] | None = None) -> Splits:
    """The same rows come as jsonl and as txt."""
    choices = [names for kind in SNLI_FILES for names in under("snli_1.0", SNLI_FILES[kind])]
    train, dev, test = (source(path, f"snli_{path.suffix[1:]}") for path in locate(folder, choices))
    return Splits("pair", (train,), dev, test, train_rows=train_rows, keep_labels=keep_labels)


def find_mind(folder: Path) -> Splits:
    """A folder a split. The test set, whose clicks are not published, may be missing."""
    choices = [tuple(f"{name}/{file}" for name in names[:2] for file in MIND_FILES) for names in MIND_FOLDERS]
    train = locate(folder, choices)[0].parent
    names = next(names for names in MIND_FOLDERS if names[0] == train.name)
    columns = Columns(("title",), label=None)
    splits = [Source(folder / name, columns, "mind") for name in names]
    has_test = all((splits[2].path / file).is_file() for file in MIND_FILES)
    return Splits("recommend", (splits[0],), splits[1], splits[2] if has_test else None)


DATASETS: dict[str, Dataset] = {
    dataset.name: dataset
    for dataset in (
        Dataset(
            "ag",
            "sentence",
            "AG's news: title and description, 4 topics (Zhang et al. 2015)",
            "non-commercial use",
            "http://www.di.unipi.it/~gulli/AG_corpus_of_news_articles.html",
            AG_FILES,
            find_ag,
        ),
        Dataset(
            "amazon",
            "document",
            "Amazon reviews of electronics, 5-core, ratings from 1 to 5 (He and McAuley 2016)",
            "none stated; its authors ask for a citation",
            "https://jmcauley.ucsd.edu/data/amazon/",
            (AMAZON_FILE,),
            find_amazon,
        ),
        Dataset(
            "sst",
            "sentence",
            "Stanford Sentiment Treebank: sentences of film reviews, positive or negative (Socher et al. 2013)",
            "not stated",
            "https://nlp.stanford.edu/sentiment/",
            SST_FILES,
            find_sst,
        ),
        Dataset(
            "snli",
            "pair",
            "Stanford Natural Language Inference: pairs of sentences, 3 relations (Bowman et al. 2015)",
            "CC BY-SA 4.0",
            "https://nlp.stanford.edu/projects/snli/",
            SNLI_FILES["jsonl"],
            find_snli,
        ),
        Dataset(
            "snli2",
            "pair",
            "SNLI as in the paper's table, 55,000 pairs of 2 classes; it does not say which: entailment, contradiction",
            "CC BY-SA 4.0",
            "https://nlp.stanford.edu/projects/snli/",
            SNLI_FILES["jsonl"],
            partial(find_snli, train_rows=55_000, keep_labels=("entailment", "contradiction")),
        ),
        Dataset(
            "mind",
            "recommend",
            "MIND: news and the impressions of a news site's users, with their clicks (Wu et al. 2020)",
            "Microsoft Research License Terms",
            "https://msnews.github.io/",
            tuple(f"MINDsmall_{split}/{file}" for split in ("train", "dev") for file in MIND_FILES),
            find_mind,
        ),
    )
}
