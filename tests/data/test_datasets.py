import gzip
import re
from pathlib import Path

import pytest

from datransformer.data.datasets import DATASETS, Source
from datransformer.data.errors import BadRows, InputError
from datransformer.data.readers import FORMATS, read_rows

AMAZON_ROW = '{"reviewerID": "A1", "reviewText": "Works well.", "overall": 5.0, "summary": "Good"}\n'
SNLI_ROW = '{"gold_label": "neutral", "sentence1": "A man.", "sentence2": "He sleeps."}\n'
SNLI_TXT = "gold_label\tsentence1\tsentence2\nneutral\tA man.\tHe sleeps.\n"
CONTENT = {
    ".csv": '"3","Title","Description"\n',
    ".json": AMAZON_ROW,
    ".jsonl": SNLI_ROW,
    ".txt": "(3 (2 Good) (2 film))\n",
    ".tsv": "N1\ta\tb\tc\n",
}


def fill(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(CONTENT[path.suffix], encoding="utf-8")


def texts(source: Source) -> list[str]:
    batches = read_rows(source.path, source.columns, BadRows(), format=source.format)
    return [text for batch in batches for text in batch["text"].to_pylist()]


@pytest.mark.parametrize("name", DATASETS)
def test_every_dataset_finds_the_files_that_it_expects(tmp_path: Path, name: str) -> None:
    dataset = DATASETS[name]
    assert dataset.name == name
    assert all((dataset.description, dataset.licence, dataset.homepage.startswith("http")))
    fill(tmp_path, *dataset.expects)
    splits = dataset.find(tmp_path)
    assert splits.task == dataset.task
    for source in splits.train:
        assert source.path.exists()
        if source.format in FORMATS:
            assert texts(source)


@pytest.mark.parametrize("name", DATASETS)
def test_a_folder_without_the_files_is_told_what_it_has_and_what_is_expected(tmp_path: Path, name: str) -> None:
    (tmp_path / "notes.md").touch()
    expected = f"^{re.escape(str(tmp_path))}: has notes.md, expected .*{re.escape(DATASETS[name].expects[0])}"
    with pytest.raises(InputError, match=expected):
        DATASETS[name].find(tmp_path)
    with pytest.raises(InputError, match=r"gone: there is no such folder, expected a folder with .*"):
        DATASETS[name].find(tmp_path / "gone")
    with pytest.raises(InputError, match=r"notes.md: is a file, expected a folder with .*"):
        DATASETS[name].find(tmp_path / "notes.md")


def test_an_empty_and_a_crowded_folder_fit_on_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has nothing, expected train.csv, test.csv; or ag_news_csv/train.csv"):
        DATASETS["ag"].find(tmp_path)
    for number in range(23):
        (tmp_path / f"{number:02}").touch()
    with pytest.raises(InputError, match=r"has 00, .*, 19 and 3 more, expected"):
        DATASETS["ag"].find(tmp_path)


@pytest.mark.parametrize("below", ["", "ag_news_csv/"])
def test_ag_holds_a_tenth_of_train_out_for_dev(tmp_path: Path, below: str) -> None:
    fill(tmp_path, f"{below}train.csv", f"{below}test.csv")
    splits = DATASETS["ag"].find(tmp_path)
    assert splits.test is not None
    assert (splits.train[0].path, splits.test.path) == (tmp_path / f"{below}train.csv", tmp_path / f"{below}test.csv")
    assert (splits.dev, splits.dev_rows, splits.train_rows) == (None, 0.1, None)
    assert texts(splits.test) == ["Title Description"]


def test_amazon_draws_from_the_one_file_packed_or_not(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "reviews_Electronics_5.json.gz", "wt", encoding="utf-8") as file:
        file.write(AMAZON_ROW)
    splits = DATASETS["amazon"].find(tmp_path)
    assert (splits.train_rows, splits.dev_rows, splits.test_rows) == (40_000, 5_000, 5_000)
    assert texts(splits.train[0]) == ["Works well."]


@pytest.mark.parametrize("below", ["", "trees/"])
def test_sst_has_three_files_of_trees(tmp_path: Path, below: str) -> None:
    fill(tmp_path, *(f"{below}{split}.txt" for split in ("train", "dev", "test")))
    splits = DATASETS["sst"].find(tmp_path)
    assert splits.dev is not None
    assert splits.test is not None
    assert [source.path.name for source in (splits.train[0], splits.dev, splits.test)] == [
        "train.txt",
        "dev.txt",
        "test.txt",
    ]
    assert texts(splits.dev) == ["Good film"]


@pytest.mark.parametrize("below", ["", "snli_1.0/"])
def test_snli_prefers_jsonl_and_takes_txt(tmp_path: Path, below: str) -> None:
    for split in ("train", "dev", "test"):
        path = tmp_path / f"{below}snli_1.0_{split}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text(SNLI_TXT, encoding="utf-8")
    splits = DATASETS["snli"].find(tmp_path)
    assert splits.train[0].format == "snli_txt"
    assert texts(splits.train[0]) == ["A man."]
    fill(tmp_path, *(f"{below}snli_1.0_{split}.jsonl" for split in ("train", "dev", "test")))
    splits = DATASETS["snli"].find(tmp_path)
    assert splits.train[0].format == "snli_jsonl"
    assert texts(splits.train[0]) == ["A man."]
    assert splits.keep_labels is None
    two = DATASETS["snli2"].find(tmp_path)
    assert (two.train_rows, two.keep_labels) == (55_000, ("entailment", "contradiction"))


@pytest.mark.parametrize("prefix", ["MINDsmall_", "MINDlarge_", ""])
def test_mind_has_a_folder_a_split_and_the_test_set_may_be_missing(tmp_path: Path, prefix: str) -> None:
    files = ("news.tsv", "behaviors.tsv")
    fill(tmp_path, *(f"{prefix}{split}/{file}" for split in ("train", "dev") for file in files))
    splits = DATASETS["mind"].find(tmp_path)
    assert splits.dev is not None
    assert (splits.train[0].path, splits.dev.path) == (tmp_path / f"{prefix}train", tmp_path / f"{prefix}dev")
    assert splits.test is None
    fill(tmp_path, *(f"{prefix}test/{file}" for file in files))
    test = DATASETS["mind"].find(tmp_path).test
    assert test is not None
    assert test.path == tmp_path / f"{prefix}test"


def test_mind_without_behaviors_is_refused(tmp_path: Path) -> None:
    fill(tmp_path, "train/news.tsv", "dev/news.tsv", "dev/behaviors.tsv")
    with pytest.raises(InputError, match=r"has dev, train, expected MINDsmall_train/news.tsv"):
        DATASETS["mind"].find(tmp_path)
