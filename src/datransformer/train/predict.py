"""What a trained run answers: to texts, to files, to impressions."""

import csv
import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa

from datransformer.data.config import DataConfig
from datransformer.data.datasets import Source
from datransformer.data.encode import Examples
from datransformer.data.errors import BadRows, InputError
from datransformer.data.mind import write_predictions
from datransformer.data.news import Impressions, encode_impressions
from datransformer.data.prepare import Progress, Rows, encode_texts, file_rows, no_progress
from datransformer.data.store import atomic_path
from datransformer.train.fit import columns_of
from datransformer.train.metrics import classification_metrics, rating_metrics
from datransformer.train.run import Run
from datransformer.train.tasks import ALONE, Answers, Worker, answer_texts, rank_scores, rankable, score_impressions

OUTPUTS = ("csv", "tsv", "jsonl")


@dataclass(frozen=True)
class Answered:
    """Answers to the rows of a file.

    Args:
        rows: The rows of the file that were answered, counted from 1.
        answers: Probabilities [rows, classes], or ratings [rows].
        examples: The rows as token ids, with labels if the file has them.
        notes: What there is to say about the rows.
    """

    rows: Sequence[int]
    answers: Answers
    examples: Examples
    notes: list[str]


def answer_rows(
    run: Run,
    rows: Rows,
    *,
    labelled: bool,
    data: DataConfig | None = None,
    worker: Worker = ALONE,
    progress: Progress = no_progress,
) -> Answered:
    """The run's answers to rows of text.

    Args:
        run: The trained run.
        rows: Where the texts come from.
        labelled: Whether the rows have labels, which are then checked.
        data: How to read them, if not as in training.
        worker: Where to compute, and with whom to share.
        progress: Called with a stage's name, rows done, and how many there are, if known.
    """
    with tempfile.TemporaryDirectory(prefix="datransformer-") as folder:
        examples, notes = encode_texts(
            rows,
            shape=run.config.shape,
            tokenizer=run.tokenizer,
            labels=run.labels if labelled else None,
            config=data or run.config.data,
            folder=Path(folder),
            progress=progress,
        )
        answers = answer_texts(run.model.to(worker.device), examples, run.config, worker, progress)
    return Answered(examples.rows.tolist(), answers, examples, notes)


def rows_of(run: Run, path: Path, data: DataConfig, *, labelled: bool) -> Rows:
    """The rows of a file as the run's task reads them."""
    columns = columns_of(data, run.config.task, labelled=labelled)
    return file_rows(Source(path, columns, data.format))


def rows_of_texts(texts: Sequence[str], pairs: Sequence[str] | None = None, name: str = "texts") -> Rows:
    """Rows from memory; a text of nothing but spaces is a bad row there too."""

    def read(bad_rows: BadRows) -> Iterator[pa.RecordBatch]:
        columns: dict[str, Sequence[Any]] = {"row": range(1, len(texts) + 1), "text": texts}
        if pairs is not None:
            columns["text_pair"] = pairs
        good = np.ones(len(texts), bool)
        for column in list(columns)[1:]:
            for index, text in enumerate(columns[column]):
                if not isinstance(text, str):
                    raise InputError(f"{name}, row {index + 1}: got {type(text).__name__}, expected a text")
                if "\0" in text or not _encodable(text):
                    raise InputError(f"{name}, row {index + 1}: holds a NUL byte or half a character, expected a text")
                if not text.strip():
                    bad_rows.meet(name, index + 1, column, "empty text", "some text")
                    good[index] = False
        batch = pa.RecordBatch.from_pydict(
            {column: pa.array(values, pa.int64() if column == "row" else pa.string())
             for column, values in columns.items()}
        )  # fmt: skip
        yield batch.filter(pa.array(good))

    return Rows(name, "", read)


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def evaluate_rows(run: Run, answered: Answered) -> dict[str, float]:
    """The metrics of answers to labelled rows."""
    labels = answered.examples.labels
    assert labels is not None
    if run.labels.classes is None:
        return rating_metrics(answered.answers, labels)
    return classification_metrics(answered.answers.argmax(1), labels, len(run.labels.classes))


def open_impressions(
    run: Run, source: Path, folder: Path, *, labelled: bool, bad_rows: BadRows, progress: Progress = no_progress
) -> Impressions:
    """Encode a folder of MIND files for a run, into ``folder``."""
    encode_impressions(
        source,
        folder,
        tokenizer=run.tokenizer,
        config=run.config.data,
        bad_rows=bad_rows,
        labelled=labelled,
        progress=progress,
    )
    return Impressions.open(folder)


def evaluate_impressions(
    run: Run, source: Path, *, bad_rows: BadRows, worker: Worker = ALONE, progress: Progress = no_progress
) -> dict[str, float]:
    """The ranking metrics on a folder of MIND files."""
    with tempfile.TemporaryDirectory(prefix="datransformer-") as folder:
        impressions = open_impressions(run, source, Path(folder), labelled=True, bad_rows=bad_rows, progress=progress)
        if not rankable(impressions):
            raise InputError(f"{source}: no impression has both a click and a candidate without one, expected some")
        scores, offsets = score_impressions(run.model.to(worker.device), impressions, run.config, worker, progress)
        return rank_scores(impressions, scores, offsets)


def predict_impressions(
    run: Run,
    source: Path,
    target: Path,
    *,
    labelled: bool,
    bad_rows: BadRows,
    worker: Worker = ALONE,
    progress: Progress = no_progress,
) -> int:
    """Write MIND's ``prediction.txt`` for a folder of MIND files; how many impressions it ranks."""
    with tempfile.TemporaryDirectory(prefix="datransformer-") as folder:
        impressions = open_impressions(
            run, source, Path(folder), labelled=labelled, bad_rows=bad_rows, progress=progress
        )
        scores, offsets = score_impressions(run.model.to(worker.device), impressions, run.config, worker, progress)
        if worker.rank == 0:
            pairs = (
                (impressions.name(impression), scores[offsets[place] : offsets[place + 1]].tolist())
                for place, impression in enumerate(impressions.members)
            )
            write_predictions(target, pairs)
        return len(impressions)


def prediction_fields(run: Run) -> list[str]:
    """The columns of a file of predictions."""
    if run.labels.classes is None:
        return ["row", "prediction"]
    return ["row", "prediction", *(f"probability_{name}" for name in run.labels.classes)]


def prediction_records(run: Run, answered: Answered) -> Iterator[dict[str, Any]]:
    """One record a row: its number, the answer, and the probability of each class."""
    fields = prediction_fields(run)
    for row, answer in zip(answered.rows, answered.answers, strict=True):
        if run.labels.classes is None:
            yield dict(zip(fields, (row, round(float(answer), 6)), strict=True))
        else:
            best = run.labels.classes[int(answer.argmax())]
            yield dict(zip(fields, (row, best, *(round(float(value), 6) for value in answer)), strict=True))


def write_records(file: IO[str], fields: list[str], records: Iterator[dict[str, Any]], form: str) -> None:
    """Write records as csv, tsv or JSON lines."""
    if form == "jsonl":
        for record in records:
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
        return
    writer = csv.DictWriter(file, fields, delimiter="\t" if form == "tsv" else ",", lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)


def save_records(path: Path, fields: list[str], records: Iterator[dict[str, Any]]) -> None:
    """Write records to a file in the form that its name tells."""
    form = path.suffix.lower().removeprefix(".")
    if form not in OUTPUTS:
        raise InputError(f"--out {path}: the name does not tell the format, expected it to end in .csv, .tsv or .jsonl")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
            write_records(file, fields, records, form)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror})") from error


def reading(run: Run, **changes: Any) -> DataConfig:
    """How a run reads a new file: as in training but for what is given and not None."""
    return replace(run.config.data, **{name: value for name, value in changes.items() if value is not None})
