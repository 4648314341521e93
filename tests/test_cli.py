"""The command line as a user meets it: what works, and one clear line for everything that does not."""

import csv
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file, save_file

from datransformer import __version__, cli
from datransformer.data.datasets import DATASETS
from datransformer.data.errors import InputError
from datransformer.data.readers import read_whole_rows
from datransformer.train.predict import write_records

ROWS = [(f"{word} film number {index % 7}", label) for index in range(40)
        for word, label in (("good", "positive"), ("bad", "negative"))]  # fmt: skip
TINY = ["--set", "model.embed_dim=8", "--set", "model.heads=2", "--set", "model.head_dim=4", "--device", "cpu"]


class Called:
    """What a command left: its exit status and what it wrote."""

    def __init__(self, status: int, out: str, err: str) -> None:
        self.status, self.out, self.err = status, out, err

    @property
    def error(self) -> str:
        """The one line that a failed command must end in."""
        assert self.status not in (0, None), self.out + self.err
        lines = [line for line in self.err.splitlines() if line.startswith("error: ")]
        assert len(lines) == 1, self.err
        assert "Traceback" not in self.err
        return lines[0]


Call = Callable[..., Called]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Call:
    """Run the command line in this process."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def run(*arguments: object) -> Called:
        monkeypatch.setattr(sys, "argv", ["datransformer", *map(str, arguments)])
        status = 0
        try:
            cli.main()
        except SystemExit as ended:
            status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        captured = capsys.readouterr()
        return Called(status, captured.out, captured.err)

    return run


def write_csv(path: Path, rows: Sequence[tuple[str, ...]], header: tuple[str, ...] = ("text", "label")) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
    return path


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained run, which no test may change."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        train = write_csv(folder / "train.csv", ROWS)
        patch.setattr(
            sys,
            "argv",
            ["x", "train", "--train", str(train), "--test", str(train), "--out", str(folder / "run"), "--epochs", "8",
             "--batch-size", "8", "--lr", "0.01", *TINY],
        )  # fmt: skip
        cli.app(standalone_mode=False)
    return folder / "run"


def test_words_that_a_run_does_not_know_are_told(call: Call, run_folder: Path, tmp_path: Path) -> None:
    told = "67% of the words are not in the vocabulary of the run"
    assert told in call("predict", run_folder, "--text", "zzzz qqqq film", "--device", "cpu").err
    assert (
        told in call("evaluate", run_folder, "--data", write_csv(tmp_path / "t.csv", [("zz qq film", "positive")])).err
    )
    assert "vocabulary" not in call("predict", run_folder, "--text", "good film", "--device", "cpu").err


@pytest.fixture
def run_copy(run_folder: Path, tmp_path: Path) -> Path:
    """A copy of the run to be spoilt."""
    target = tmp_path / "run"
    for path in run_folder.rglob("*"):
        if path.is_file():
            (target / path.relative_to(run_folder)).parent.mkdir(parents=True, exist_ok=True)
            (target / path.relative_to(run_folder)).write_bytes(path.read_bytes())
    return target


def test_a_run_holds_what_it_should(run_folder: Path) -> None:
    names = {str(path.relative_to(run_folder)) for path in run_folder.rglob("*") if path.is_file()}
    wanted = {"config.yaml", "vocab/tokenizer.json", "vocab/labels.json", "model.safetensors", "metrics.jsonl"}
    assert wanted | {"result.json"} <= names
    result = json.loads((run_folder / "result.json").read_text())
    assert result["metrics"]["dev"]["accuracy"] == 1.0
    assert result["metrics"]["test"]["macro_f1"] == 1.0
    (distances,) = result["distances"].values()
    assert len(distances["distance_weight"]) == len(distances["distance_shift"]) == 2
    assert {"versions", "wall_seconds", "data_fingerprint", "waiting_share"} <= set(result)
    assert result["notes"] == ["held out 8 of 80 rows for development, seed 0"]


def test_evaluate_prints_one_json_object(call: Call, run_folder: Path, tmp_path: Path) -> None:
    data = write_csv(tmp_path / "c.csv", ROWS)
    done = call("evaluate", run_folder, "--data", data, "--json", "--device", "cpu")
    assert done.status == 0
    assert json.loads(done.out) == {"accuracy": 1.0, "macro_f1": 1.0}
    assert "accuracy 1.0000" in call("evaluate", run_folder, "--data", data, "--device", "cpu").out


def test_evaluate_reads_other_columns(call: Call, run_folder: Path, tmp_path: Path) -> None:
    data = write_csv(tmp_path / "c.csv", [(b, a) for a, b in ROWS], header=("stars", "review"))
    options = ("--text-column", "review", "--label-column", "stars", "--json", "--device", "cpu")
    assert json.loads(call("evaluate", run_folder, "--data", data, *options).out)["accuracy"] == 1.0


def test_predict_texts(call: Call, run_folder: Path) -> None:
    done = call("predict", run_folder, "--text", "a good film", "--text", "bad, bad film", "--device", "cpu")
    rows = list(csv.DictReader(done.out.splitlines()))
    assert [row["prediction"] for row in rows] == ["positive", "negative"]
    for row in rows:
        assert abs(float(row["probability_negative"]) + float(row["probability_positive"]) - 1) < 1e-5


def test_predict_a_file_into_a_file(call: Call, run_folder: Path, tmp_path: Path) -> None:
    data = write_csv(tmp_path / "in.csv", [(text,) for text, _ in ROWS], header=("text",))
    for name in ("out.csv", "out.tsv", "out.jsonl"):
        assert call("predict", run_folder, "--data", data, "--out", tmp_path / name, "--device", "cpu").status == 0
    records = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [record["row"] for record in records] == list(range(1, 81))
    assert [record["prediction"] for record in records] == [label for _, label in ROWS]
    with (tmp_path / "out.tsv").open() as file:
        assert [row["prediction"] for row in csv.DictReader(file, delimiter="\t")] == [label for _, label in ROWS]


def test_predictions_come_after_all_columns_of_the_input(call: Call, run_folder: Path, tmp_path: Path) -> None:
    header, rows = ("id", "text", "prediction", "id"), [("7", "a good film", "none", ""), ("8", " ", "", "x"),
                                                        ("9", "bad,\r bad", "\r", "y")]  # fmt: skip
    data = write_csv(tmp_path / "in.csv", rows, header)
    options = ("--bad-rows", "skip", "--device", "cpu")
    done = call("predict", run_folder, "--data", data, "--out", tmp_path / "out.csv", *options)
    assert "the rows have a column 'prediction' already: ours is called 'prediction_'" in done.err
    with (tmp_path / "out.csv").open(newline="") as file:
        head, *lines = csv.reader(file)
    assert head[:6] == ["id", "text", "prediction", "id_", "row", "prediction_"]
    assert [line[:6] for line in lines] == [
        ["7", "a good film", "none", "", "1", "positive"],
        ["9", "bad,\r bad", "\r", "y", "3", "negative"],
    ]


def test_json_lines_keep_what_they_hold(call: Call, run_folder: Path, tmp_path: Path) -> None:
    lines = [{"text": "good", "id": 7, "more": {"a": [1, None]}, "half": "\ud83d"}, {"seen": True, "text": "bad"}]
    data = tmp_path / "in.jsonl"
    data.write_text("\n".join(["{", *map(json.dumps, lines)]))
    for name in ("out.jsonl", "out.csv"):
        options = ("--out", tmp_path / name, "--bad-rows", "skip", "--device", "cpu")
        assert call("predict", run_folder, "--data", data, *options).status == 0
    for line, before in zip((tmp_path / "out.jsonl").read_text().splitlines(), lines, strict=True):
        record = json.loads(line)
        assert list(record)[: len(before)] == list(before)
        assert {name: record[name] for name in before} == before
    head, first, second = csv.reader((tmp_path / "out.csv").read_text().splitlines())
    assert head[:7] == ["text", "id", "more", "half", "seen", "row", "prediction"]
    assert first[:7] == ["good", "7", '{"a": [1, null]}', "\\ud83d", "", "2", "positive"]
    assert second[:7] == ["bad", "", "", "", "true", "3", "negative"]


def test_parquet_columns_are_carried_over(call: Call, run_folder: Path, tmp_path: Path) -> None:
    table = pa.table({"n": [1.5, float("nan")], "text": ["good", "bad"], "when": [datetime(2021, 2, 3), None]})
    pq.write_table(table, tmp_path / "in.parquet")
    done = call("predict", run_folder, "--data", tmp_path / "in.parquet", "--json", "--device", "cpu")
    first, second = map(json.loads, done.out.splitlines())
    assert (first["n"], first["when"], first["prediction"]) == (1.5, "2021-02-03 00:00:00", "positive")
    assert (second["n"], second["when"], second["prediction"]) == (None, None, "negative")


def test_values_that_neither_python_nor_json_can_hold(call: Call, run_folder: Path, tmp_path: Path) -> None:
    nanosecond, endless = pa.array([1], pa.time64("ns")), [[1.0, float("inf")]]
    pq.write_table(pa.table({"text": ["good"], "t": nanosecond, "list": endless}), tmp_path / "in.parquet")
    done = call("predict", run_folder, "--data", tmp_path / "in.parquet", "--json", "--device", "cpu")
    record = json.loads(done.out, parse_constant=pytest.fail)
    assert (record["t"], record["list"], record["prediction"]) == ("00:00:00.000000001", [1.0, None], "positive")


def test_bytes_that_are_no_text_are_marked_where_they_are_carried_over(
    call: Call, run_folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "in.csv").write_bytes(b"text,other\ngood,caf\xe9\n")
    done = call("predict", run_folder, "--data", tmp_path / "in.csv", "--json", "--device", "cpu")
    assert json.loads(done.out)["other"] == "caf\ufffd"


def test_every_format_gives_its_rows_whole(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("(3 (2 a) (4 b))\n(1 (2 c) (2 d))\n")
    names, rows = read_whole_rows(tmp_path / "a", [2], format="sst_trees")
    assert (names, list(rows)) == (["tree", "root"], [{"tree": "c d", "root": "1"}])
    (tmp_path / "a").write_text('"3","t","d"\n')
    names, rows = read_whole_rows(tmp_path / "a", [1], format="ag_news")
    assert (names, list(rows)) == (
        ["class", "title", "description"],
        [{"class": "3", "title": "t", "description": "d"}],
    )
    with pytest.raises(InputError, match="row 2 is gone, expected a file that does not change"):
        list(read_whole_rows(tmp_path / "a", [2], format="ag_news")[1])


def test_a_label_with_a_carriage_return_is_quoted() -> None:
    file = io.StringIO()
    write_records(file, ["prediction", "probability_a\rb"], [{"prediction": 'a\rb"', "probability_a\rb": 1.0}], "csv")
    assert file.getvalue() == 'prediction,"probability_a\rb"\n"a\rb""",1.0\n'
    assert list(csv.reader(io.StringIO(file.getvalue(), newline=""))) == [["prediction", "probability_a\rb"],
                                                                          ['a\rb"', "1.0"]]  # fmt: skip


def test_standard_input_is_called_so_in_messages(call: Call, run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def predict(content: bytes, *options: str) -> Called:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
        return call("predict", run_folder, "--data", "-", "--device", "cpu", *options)

    assert predict(b"text\ngood\n,x\n").error.startswith("error: standard input, row 2, column 'text': ")
    assert predict(b"words\ngood\n").error.startswith("error: standard input: no column 'text'")
    assert predict(b"").error.startswith("error: standard input: the file is empty")
    skipped = predict(b"text,n\ngood,1\n ,2\n", "--bad-rows", "skip")
    assert "1 rows: empty text (first: standard input, row 2" in skipped.err
    assert skipped.out.splitlines()[1].startswith("good,1,1,positive,")


def test_a_reader_that_has_seen_enough_ends_it_quietly(run_folder: Path, tmp_path: Path) -> None:
    data = write_csv(tmp_path / "in.csv", [(text,) for text, _ in ROWS] * 100, header=("text",))
    command = [
        sys.executable,
        "-m",
        "datransformer",
        "predict",
        str(run_folder),
        "--data",
        str(data),
        "--device",
        "cpu",
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline().startswith("text,row,prediction")
    process.stdout.close()
    said = process.stderr.read()
    process.stderr.close()
    assert process.wait() in (0, 141)
    assert all(line.startswith("predicting ") for line in said.splitlines())  # how far it is, where that takes long


def test_predict_through_pipes(run_folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "datransformer", "predict", str(run_folder), "--data", "-", "--device", "cpu"],
        input='text\n"a good, good film"\nbad\n',
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert [row["prediction"] for row in csv.DictReader(done.stdout.splitlines())] == ["positive", "negative"]


def test_predict_under_torchrun_is_one_ordered_output(run_folder: Path, tmp_path: Path) -> None:
    data = write_csv(tmp_path / "in.csv", [(text,) for text, _ in ROWS], header=("text",))
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone", "-m", "datransformer",
        "predict", str(run_folder), "--data", str(data), "--out", str(tmp_path / "out.csv"), "--device", "cpu",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    with (tmp_path / "out.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["row"]) for row in rows] == list(range(1, 81))
    assert [row["prediction"] for row in rows] == [label for _, label in ROWS]


def test_an_error_under_torchrun_is_said_once(run_folder: Path, tmp_path: Path) -> None:
    data = write_csv(tmp_path / "in.csv", [("", "positive")])
    for arguments in (["predict", run_folder], ["train", "--out", tmp_path / "run", "--train"]):
        flag = ["--data"] if arguments[0] == "predict" else []
        command = [
            sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone", "-m", "datransformer",
            *map(str, arguments), *flag, str(data), "--device", "cpu",
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        assert done.returncode == 1
        assert done.stderr.count("row 1, column 'text': empty text") == 1, done.stderr


def test_settings_from_a_file_from_flags_and_from_set(call: Call, tmp_path: Path) -> None:
    train = write_csv(tmp_path / "train.csv", ROWS)
    (tmp_path / "config.yaml").write_text(
        "train: {epochs: 9, lr: 1e-3, batch_size: 20}\nmodel: {embed_dim: 8, heads: 2, head_dim: 4}\n"
    )
    done = call(
        "train", "--train", train, "--out", tmp_path / "run", "--config", tmp_path / "config.yaml", "--epochs", 1,
        "--set", "train.batch_size=40", "--set", "model.attention_options={mapping: clip}", "--device", "cpu",
    )  # fmt: skip
    assert done.status == 0, done.err
    written = (tmp_path / "run" / "config.yaml").read_text()
    for line in ("epochs: 1", "lr: 0.001", "batch_size: 40", "mapping: clip", "embed_dim: 8"):
        assert line in written


def test_pairs_documents_and_ratings(call: Call, tmp_path: Path) -> None:
    pairs = write_csv(
        tmp_path / "pairs.csv",
        [(f"{a} thing", f"{b} thing", str(a == b)) for _ in range(10) for a in "xy" for b in "xy"],
        header=("one", "two", "same"),
    )
    columns = ("--text-column", "one", "--text-pair-column", "two", "--label-column", "same")
    for form in ("joint", "siamese"):
        out = tmp_path / form
        done = call("train", "--task", "pair", "--pair", form, "--train", pairs, *columns, "--out", out,
                    "--epochs", 1, *TINY)  # fmt: skip
        assert done.status == 0, done.err
        assert "accuracy" in call("evaluate", out, "--data", pairs, "--json", "--device", "cpu").out
        said = call("predict", out, "--text", "x thing", "--text-pair", "y thing", "--device", "cpu").out
        assert said.startswith("row,prediction,probability_False,probability_True\n1,")
    reviews = write_csv(
        tmp_path / "reviews.csv", [(f"Fine. {'Very ' * stars}nice!", str(stars)) for stars in (1, 3, 5)] * 8,
    )  # fmt: skip
    done = call("train", "--task", "document", "--head", "rating", "--train", reviews, "--out", tmp_path / "rating",
                "--epochs", 1, *TINY)  # fmt: skip
    assert done.status == 0, done.err
    done = call("evaluate", tmp_path / "rating", "--data", reviews, "--json", "--device", "cpu")
    assert set(json.loads(done.out)) == {"rmse", "mae"}
    assert call("predict", tmp_path / "rating", "--text", "Nice.", "--device", "cpu").out.startswith("row,prediction\n")


def write_mind(folder: Path, labelled: bool = True) -> Path:
    folder.mkdir()
    titles = {f"N{index}": ("sport match" if index % 2 else "money market") + f" {index}" for index in range(1, 9)}
    (folder / "news.tsv").write_text("".join(f"{key}\tc\ts\t{title}\t\t\t[]\t[]\n" for key, title in titles.items()))
    lines = []
    for index in range(24):
        likes = index % 2
        shown = [f"N{number}-{int(number % 2 == likes)}" for number in (3, 4, 5, 6)]
        if not labelled:
            shown = [news[:-2] for news in shown]
        lines.append(f"{index + 1}\tU{index}\t11/11/2019 9:05:58 AM\tN{1 if likes else 2} N{7 if likes else 8}\t")
        lines[-1] += " ".join(shown) + "\n"
    (folder / "behaviors.tsv").write_text("".join(lines))
    return folder


def test_recommend(call: Call, tmp_path: Path) -> None:
    train, test = write_mind(tmp_path / "train"), write_mind(tmp_path / "test", labelled=False)
    out = tmp_path / "run"
    done = call("train", "--task", "recommend", "--train", train, "--dev", train, "--out", out, "--epochs", 1, *TINY)
    assert done.status == 0, done.err
    metrics = json.loads(call("evaluate", out, "--data", train, "--json", "--device", "cpu").out)
    assert {"auc", "mrr", "ndcg@5", "ndcg@10"} <= set(metrics)
    done = call("predict", out, "--data", test, "--out", tmp_path / "prediction.txt", "--device", "cpu")
    assert done.status == 0, done.err
    lines = (tmp_path / "prediction.txt").read_text().splitlines()
    assert len(lines) == 24
    name, ranks = lines[0].split(" ")
    assert name == "1"
    assert sorted(json.loads(ranks)) == [1, 2, 3, 4]
    assert "vocabulary" not in done.err
    (train / "news.tsv").write_text((train / "news.tsv").read_text().replace("sport match", "zz qq"))
    told = "of the words are not in the vocabulary of the run"
    assert f"33% {told}" in call("evaluate", out, "--data", train, "--device", "cpu").err
    assert f"33% {told}" in call("predict", out, "--data", train, "--out", tmp_path / "p.txt", "--device", "cpu").err


def test_without_files_the_probe_is_trained_on(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datransformer.train.fit.PROBE_ROWS", 400)
    done = call("train", "--out", tmp_path / "run", "--set", "train.steps=2", *TINY)
    assert done.status == 0, done.err
    assert "built-in probe" in done.err


def test_help_reads_like_a_page_of_the_manual(call: Call) -> None:
    for arguments in (
        ["--help"],
        *([name, "--help"] for name in ("demo", "train", "evaluate", "predict", "export", "data")),
    ):
        done = call(*arguments)
        assert done.status == 0
        assert "Usage" in done.out
    assert call("--version").out.strip() == __version__


def test_help_does_not_wait_for_the_heavy_libraries() -> None:
    code = """
import sys
from datransformer import cli
sys.argv = ["datransformer", "train", "--help"]
try:
    cli.main()
except SystemExit:
    sys.exit(", ".join({"torch", "lightning_fabric", "pyarrow", "matplotlib", "numpy"} & set(sys.modules)) or 0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr.strip()) == (0, "")


GOOD = "text,label\n" + "good,a\nbad,b\n" * 5


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "train.csv"),
        (b"text,label\n", "train.csv"),
        (b"words,label\nx,a\n", "'text'"),
        (GOOD.encode() + b"caf\xe9,a\n", "row 11, column 'text': bytes that are not UTF-8"),
        (GOOD.encode() + b"x,a,b,c\n", "row 11"),
        (GOOD.encode() + b"x\n", "row 11"),
        (GOOD.encode() + b",a\n", "row 11, column 'text': empty text"),
        (GOOD.encode() + b"x,\n", "row 11, column 'label': no label"),
        (GOOD.encode() + b"x\x00y,a\n", "row 11, column 'text': NUL byte"),
        (GOOD.encode() + b"x,c\n", "row 11, column 'label': 1 example of the class 'c'"),
        (b"text,label\n" + b"x,a\n" * 9, "every row has the label 'a'"),
    ],
)
def test_a_bad_training_file_is_one_clear_line(call: Call, tmp_path: Path, content: bytes, expected: str) -> None:
    (tmp_path / "train.csv").write_bytes(content)
    done = call("train", "--train", tmp_path / "train.csv", "--out", tmp_path / "run", *TINY)
    assert expected in done.error
    assert "train.csv" in done.error
    assert not (tmp_path / "run").exists()


def test_bad_rows_can_be_skipped_and_are_counted(call: Call, tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_bytes(GOOD.encode() + b",a\n ,b\nx\xff,a\nx,a,b\n")
    done = call("train", "--train", tmp_path / "train.csv", "--out", tmp_path / "run", "--bad-rows", "skip",
                "--epochs", 1, *TINY)  # fmt: skip
    assert done.status == 0, done.err
    assert "2 rows: empty text" in done.err
    notes = json.loads((tmp_path / "run" / "result.json").read_text())["notes"]
    assert len(notes) == 4  # what was held out, and three kinds of bad rows


def test_a_very_long_text_is_cut_and_said(call: Call, run_folder: Path, tmp_path: Path) -> None:
    data = write_csv(tmp_path / "c.csv", [("good " * 50_000, "positive"), ("bad", "negative")])
    done = call("evaluate", run_folder, "--data", data, "--json", "--device", "cpu")
    assert json.loads(done.out)["accuracy"] == 1.0
    assert "1 rows: text too long, its end was cut off (first: " in done.err


def test_a_file_is_dev_or_test_as_it_was_called(call: Call, tmp_path: Path) -> None:
    train, other = write_csv(tmp_path / "a.csv", ROWS), write_csv(tmp_path / "b.csv", ROWS[:9])
    for flag, expected in (("--dev", {"train": 80, "dev": 9}), ("--test", {"train": 72, "dev": 8, "test": 9})):
        out = tmp_path / flag.strip("-")
        assert call("train", "--train", train, flag, other, "--out", out, "--epochs", 1, *TINY).status == 0
        assert json.loads((out / "result.json").read_text())["examples"] == expected


def test_files_of_nothing_but_bad_rows(call: Call, run_folder: Path, tmp_path: Path) -> None:
    blank = write_csv(tmp_path / "c.csv", [(" ", "positive"), ("", "negative")])
    skip = ("--bad-rows", "skip", "--device", "cpu")
    for command in ("predict", "evaluate"):
        assert "no row can be used (2 rows: empty text" in call(command, run_folder, "--data", blank, *skip).error
    train, unknown = write_csv(tmp_path / "a.csv", ROWS), write_csv(tmp_path / "b.csv", [("x", "other")] * 3)
    done = call("train", "--train", train, "--dev", unknown, "--out", tmp_path / "r", "--bad-rows", "skip", *TINY)
    assert "b.csv: no row can be used" in done.error


def test_a_model_that_diverged_is_not_taken_for_one_that_answers(call: Call, tmp_path: Path) -> None:
    train = write_csv(tmp_path / "a.csv", ROWS)
    done = call("train", "--train", train, "--out", tmp_path / "r", "--lr", "1e30", "--set", "train.steps=1", *TINY)
    assert "NaN or Inf" in done.error


def test_resume_keeps_to_the_width_of_the_run(call: Call, run_copy: Path) -> None:
    (run_copy / "result.json").unlink()
    done = call("train", "--resume", "--out", run_copy, "--set", "model.embed_dim=12", "--device", "cpu")
    assert "--resume with another model.embed_dim (12, was 8)" in done.error


def test_predictions_do_not_overwrite_what_they_are_made_from(call: Call, run_folder: Path, tmp_path: Path) -> None:
    device = ("--device", "cpu")
    data = write_csv(tmp_path / "in.csv", ROWS)
    error = call("predict", run_folder, "--data", data, "--out", run_folder / "x.csv", *device).error
    assert "inside the run" in error
    folder = write_mind(tmp_path / "m")
    error = call("predict", run_folder, "--data", folder, "--out", folder / "behaviors.tsv", *device).error
    assert "inside it" in error


def test_a_label_unseen_in_training(call: Call, run_folder: Path, tmp_path: Path) -> None:
    data = write_csv(tmp_path / "c.csv", [*ROWS, ("x", "neutral")])
    error = call("evaluate", run_folder, "--data", data, "--device", "cpu").error
    assert "row 81, column 'label': label 'neutral', expected one of the training labels" in error


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["train", "--train", "none.csv", "--out", "run"], "none.csv: there is no such file"),
        (["train", "--train", ".", "--out", "run"], "expected a file"),
        (["train", "--train", "t.csv", "--out", "t.csv"], "is a file, expected a folder"),
        (["train", "--train", "t.csv", "--out", "full"], "holds files that are not a run"),
        (["train", "--train", "t.csv", "--out", "run", "--attention", "flash"], "attention: got 'flash'"),
        (["train", "--train", "t.csv", "--out", "run", "--set", "train.rate=1"], "unknown setting 'rate'"),
        (["train", "--train", "t.csv", "--out", "run", "--set", "train.rate=1"], "datransformer settings says what"),
        (["train", "--train", "t.csv", "--out", "run", "--set", "train.lr"], "expected key=value"),
        (["train", "--train", "t.csv", "--out", "run", "--set", "train.rate=1"], "error: --set train.rate: unknown se"),
        (["train", "--train", "t.csv", "--out", "run", "--set", "rate=1"], "error: --set rate: unknown setting 'rate'"),
        (["train", "--train", "t.csv", "--out", "run", "--epochs", "0"], "error: --epochs: got 0, expected"),
        (["train", "--train", "t.csv", "--out", "run", "--attention", "x"], "error: --attention: got 'x', expected"),
        (["train", "--train", "t.csv", "--out", "run", "--task", "x"], "error: --task: got 'x', expected"),
        (
            ["train", "--train", "t.csv", "--out", "run", "--epochs", "1", "--set", "train.epochs=many"],
            "error: --set train.epochs: got 'many', expected a whole number",
        ),
        (
            ["train", "--train", "t.csv", "--out", "run", "--config", "c.yaml", "--lr", "1"],
            "error: c.yaml: train.epochs: got 0, expected",
        ),
        (["train", "--train", "t.csv", "--out", "run", "--config", "bad.yaml"], "bad.yaml: not YAML"),
        (["train", "--train", "t.csv", "--out", "run", "--config", "key.yaml"], "unknown setting 'optimizer'"),
        (["train", "--train", "t.csv", "--out", "run", "--config", "none.yaml"], "none.yaml: there is no such file"),
        (["train", "--train", "t.csv", "--out", "run", "--vectors", "none.txt"], "none.txt: there is no such file"),
        (["train", "--train", "t.csv", "--out", "run", "--vectors", "wide.txt"], "wide.txt, row 2"),
        (["train", "--train", "t.csv", "--out", "run", "--vectors", "odd.txt"], "odd.txt, row 2"),
        (
            ["train", "--train", "t.csv", "--out", "run", "--vectors", "v.txt", "--set", "model.embed_dim=300"],
            "model.embed_dim: got 300, but the vectors of v.txt are 2 wide; expected 2, or no such setting",
        ),
        (["train", "--train", "t.csv", "--out", "run", "--tokenizer", "bad.yaml"], "not a tokenizer.json"),
        (["train", "--train", "t.csv", "--out", "run", "--task", "pair"], "--text-pair-column"),
        (["train", "--train", "t.csv", "--out", "run", "--text-pair-column", "label"], "with --task pair only"),
        (["train", "--train", "t.csv", "--out", "run", "--dataset", "probe"], "expected one of them"),
        (["train", "--train", "t.csv", "--out", "run", "--set", "data.split_seed=-1"], "split_seed: got -1"),
        (["train", "--train", "t.csv", "--out", "run", "--set", "model.embed_dim=99999"], "embed_dim: got 99999"),
        (["train", "--train", "t.csv", "--out", "run", "--set", "train.lr=2020-13-45"], "train.lr"),
        (["train", "--train", "/dev/zero", "--out", "run"], "not a regular file"),
        (["train", "--train", "x\x1b[31m.csv", "--out", "run"], "x\\x1b[31m.csv"),
        (["train", "--train", "t.csv", "--out", "run", "--task", "poem"], "task: got 'poem', expected one of"),
        (["train", "--train", "t.csv", "--out", "run", "--format", "xls"], "unknown format 'xls'"),
        (["train", "--train", "t.csv", "--out", "run", "--bad-rows", "drop"], "--bad-rows: got 'drop'"),
        (["train", "--train", "t.csv", "--out", "run", "--head", "rating"], "label 'a', expected a number"),
        (["train", "--train", "t.csv", "--out", "run", "--task", "recommend"], "t.csv"),
        (["train", "--dataset", "imdb", "--out", "run"], "--dataset: got 'imdb', expected one of: probe"),
        (["train", "--dataset", "sst", "--data-dir", "full", "--out", "run"], "full: has"),
        (["train", "--dev", "t.csv", "--out", "run"], "--train: got nothing"),
        (["train", "--train", "t.csv", "--out", "run", "--device", "tpu"], "--device: got 'tpu'"),
        (["evaluate", "none", "--data", "t.csv"], "none: there is no such folder"),
        (["evaluate", "full", "--data", "t.csv"], "full: has no config.yaml"),
        (["predict", "none", "--text", "x"], "none: there is no such folder"),
        (["export", "none", "--to", "torch-export", "out"], "none: there is no such folder"),
        (["export", "full", "--to", "tflite", "out"], "--to: got 'tflite', expected one of: onnx, torch-export, hf"),
        (["export", "full", "--to", "onnx", "t.csv"], "t.csv: is a file, expected a folder for the export"),
        (["export", "full", "--to", "onnx", "other"], "other: holds files already; --overwrite replaces an export"),
        (["export", "full", "--to", "onnx", "full/out"], "full/out: is the run or inside it"),
        (["data", "get", "imdb"], "expected one of"),
        (["reproduce", "imdb"], "got 'imdb', expected one of: ag, amazon, sst, snli, mind, probe, all"),
        (["reproduce", "ag"], "--data-dir: got nothing, expected the folder that holds the data"),
        (["reproduce", "ag", "--data-dir", "full"], "`datransformer data get ag --out full`"),
        (["reproduce", "probe", "--device", "tpu"], "--device: got 'tpu'"),
        (["reproduce", "probe", "--method", "bert"], "--method: got 'bert', expected one of: distance_aware, "),
        (["report", "none"], "none: holds no result"),
        (["report", "full"], "full: holds no result, expected the folder of a reproduction"),
        (["report", "none", "--out", "page.pdf"], "page.pdf: got the ending '.pdf', expected .md or .html"),
        (["data", "get", "mind"], "mind"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_clear_line(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], expected: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("t.csv").write_text(GOOD)
    Path("full").mkdir()
    Path("full/precious.txt").write_text("keep me")
    Path("other").mkdir()
    Path("other/precious.txt").write_text("keep me too")
    Path("bad.yaml").write_text("a: [")
    Path("key.yaml").write_text("optimizer: sgd")
    Path("c.yaml").write_text("train: {epochs: 0}")
    Path("wide.txt").write_text("good 0.1 0.2\nbad 0.1 0.2 0.3\n")
    Path("v.txt").write_text("good 0.1 0.2\nbad 0.1 0.2\n")
    Path("odd.txt").write_text("good 0.1 0.2\nbad 0.1 x\n")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    device = [] if "--device" in arguments or arguments[0] in ("data", "export", "report") else ["--device", "cpu"]
    assert expected in call(*arguments, *device).error
    for path, content in before.items():
        assert path.read_bytes() == content


def test_a_run_is_not_overwritten_unless_told(call: Call, run_copy: Path, tmp_path: Path) -> None:
    train = write_csv(tmp_path / "t.csv", ROWS)
    weights = (run_copy / "model.safetensors").read_bytes()
    assert "holds a run already" in call("train", "--train", train, "--out", run_copy, *TINY).error
    assert (run_copy / "model.safetensors").read_bytes() == weights
    assert "has ended already" in call("train", "--resume", "--out", run_copy, *TINY).out
    assert call("train", "--train", train, "--out", run_copy, "--epochs", 1, "--overwrite", *TINY).status == 0
    assert (run_copy / "model.safetensors").read_bytes() != weights


def spoil_weights(run: Path) -> None:
    content = bytearray((run / "model.safetensors").read_bytes())
    content[-3] ^= 1
    (run / "model.safetensors").write_bytes(content)


def spoil_header(run: Path) -> None:
    (run / "model.safetensors").write_bytes(b"\xff" * 64)


def make_newer(run: Path) -> None:
    config = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(config.replace("format: 1", "format: 2") + "future: 1\n")


def add_key(run: Path) -> None:
    (run / "config.yaml").write_text((run / "config.yaml").read_text() + "future: 1\n")


def cut_result(run: Path) -> None:
    (run / "result.json").write_text((run / "result.json").read_text()[:40])


def change_shape(run: Path) -> None:
    weights = load_file(run / "model.safetensors")
    save_file({name: torch.zeros(1) for name in weights}, run / "model.safetensors")


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (spoil_weights, "model.safetensors: was changed after training"),
        (spoil_header, "model.safetensors: was changed after training"),
        (change_shape, "model.safetensors: was changed after training"),
        (make_newer, "config.yaml: the run is of a newer version, format 2"),
        (add_key, "config.yaml: unknown setting 'future', expected one of: task"),
        (cut_result, "result.json: not JSON"),
        (lambda run: (run / "result.json").unlink(), "training has not ended"),
        (lambda run: (run / "model.safetensors").unlink(), "model.safetensors: no such file"),
        (lambda run: (run / "vocab/tokenizer.json").write_text("{}"), "tokenizer.json: was changed after training"),
    ],
)
def test_a_spoilt_run_is_one_clear_line(
    call: Call, run_copy: Path, spoil: Callable[[Path], None], expected: str
) -> None:
    spoil(run_copy)
    assert expected in call("predict", run_copy, "--text", "x", "--device", "cpu").error


def test_predict_needs_texts_and_leaves_its_input_alone(call: Call, run_folder: Path, tmp_path: Path) -> None:
    data = write_csv(tmp_path / "in.csv", ROWS)
    device = ("--device", "cpu")
    assert "either --text or --data" in call("predict", run_folder, *device).error
    assert "either --text or --data" in call("predict", run_folder, "--text", "x", "--data", data, *device).error
    assert "which is --data" in call("predict", run_folder, "--data", data, "--out", data, *device).error
    assert "empty text" in call("predict", run_folder, "--text", " ", *device).error
    assert "no --text-pair" in call("predict", run_folder, "--text", "x", "--text-pair", "y", *device).error
    assert "ends in .csv" in call("predict", run_folder, "--data", data, "--out", tmp_path / "x.xls", *device).error
    assert "column" in call("predict", run_folder, "--data", data, "--text-column", "body", *device).error
    assert next(csv.DictReader(data.read_text().splitlines()))["text"] == ROWS[0][0]


def test_messages_are_printed_as_they_are(call: Call, tmp_path: Path) -> None:
    assert "[red]none.csv" in call("train", "--train", "[red]none.csv", "--out", tmp_path / "run").error


def test_the_data_sets_are_listed(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    done = call("data", "list")
    assert done.status == 0
    for name in ("probe", *DATASETS):
        assert f" {name} " in done.out
    for entry in DATASETS.values():  # whole, on a terminal of 80 columns
        for text in (entry.homepage, entry.licence, *entry.expects):
            assert text in done.out
    assert max(map(len, done.out.splitlines())) <= 80


def test_the_settings_are_listed(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    table, listed = call("settings"), json.loads(call("settings", "--json").out)
    assert table.status == 0
    assert max(map(len, table.out.splitlines())) <= 80
    keys = [line.split()[0] for line in table.out.splitlines() if line.strip() and not line.startswith("  ")]
    assert [setting["key"] for setting in listed] == keys[2:]  # behind the heading and its line
    assert {
        "key": "data.split_seed",
        "kind": "whole number",
        "default": 0,
        "meaning": "Which rows those are.",
    } in listed
    assert "datransformer settings" in " ".join(call("train", "--help").out.replace("│", " ").split())
    some = call("settings", "vector").out
    assert "data.vector_words" in some
    assert "train.vector_rate" in some
    assert "train.lr" not in some
    assert "…" not in table.out
    assert "nope: no setting has this in its name" in call("settings", "nope").error


@pytest.mark.parametrize(
    ("typed", "key"),
    [
        (["--dropout", "0.1"], "model.dropout"),
        (["--layers=2"], "model.layers"),
        (["--head-dim", "8"], "model.head_dim"),
        (["--train.patience", "3"], "train.patience"),
    ],
)
def test_a_setting_typed_as_an_option_is_pointed_to(call: Call, typed: list[str], key: str) -> None:
    done = call("train", "--out", "run", *typed)
    assert (done.status, done.error) == (
        2,
        f"error: {typed[0].partition('=')[0]}: no such option, expected --set {key}=VALUE",
    )


def test_an_option_that_is_like_no_setting_is_left_to_typer(call: Call) -> None:
    done = call("train", "--out", "run", "--epoch", "3")
    assert done.status == 2
    assert "--epochs" in done.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "--out", "run", "--train", "none.csv"],
        ["train", "--out", "run", "--train", "t.csv", "--vectors", "none.txt"],
        ["evaluate", "none", "--data", "t.csv"],
        ["predict", ".", "--data", "none.csv"],
    ],
)
def test_what_is_not_there_is_said_before_torch_is_imported(tmp_path: Path, arguments: list[str]) -> None:
    (tmp_path / "t.csv").write_text(GOOD)
    code = f"""
import sys
from datransformer import cli
sys.argv = ["datransformer", *{arguments!r}]
try:
    cli.main()
finally:
    assert not {{"torch", "numpy", "pyarrow"}} & sys.modules.keys()
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(cli.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert re.fullmatch(r"error: none\S*: there is no such (file or )?folder.*\n", done.stderr)


def test_resume_of_nothing_trains_nothing(call: Call, tmp_path: Path) -> None:
    done = call("train", "--resume", "--out", tmp_path / "typo", "--device", "cpu")
    assert "typo: there is no run to resume; expected its folder, or the settings to start it with" in done.error
    assert not (tmp_path / "typo").exists()
