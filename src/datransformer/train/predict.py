"""What a trained run answers: to texts, to files, to impressions."""

import itertools
import json
import math
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa

from datransformer.data.config import DataConfig
from datransformer.data.datasets import Source
from datransformer.data.encode import Examples, Labels
from datransformer.data.errors import BadRows, InputError
from datransformer.data.mind import write_predictions
from datransformer.data.news import Impressions, encode_impressions
from datransformer.data.prepare import Progress, Rows, encode_texts, file_rows, no_progress
from datransformer.data.readers import unlike
from datransformer.data.store import Array, atomic_path
from datransformer.data.tokenizer import WordTokenizer
from datransformer.train.fit import UNKNOWN_HINT, columns_of, unknown_share
from datransformer.train.metrics import classification_metrics, rating_metrics
from datransformer.train.run import Run
from datransformer.train.tasks import ALONE, Answers, Worker, answer_texts, rank_scores, rankable, score_impressions

OUTPUTS = ("csv", "tsv", "jsonl")
HALVES = "backslashreplace"  # how half a character, which JSON can escape and UTF-8 cannot hold, is written


@dataclass(frozen=True)
class Answered:
    """Answers to rows of text.

    Args:
        rows: The rows that were answered, counted from 1.
        answers: Probabilities [rows, classes], or ratings [rows].
        examples: The rows as token ids, with labels if there are any.
        cut: Which of them were too long and lost their end.
        notes: What there is to say about the rows.
    """

    rows: Sequence[int]
    answers: Answers
    examples: Examples
    cut: Array
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
    with nullcontext("") if rows.small else tempfile.TemporaryDirectory(prefix="datransformer-") as folder:
        examples, cut, notes = encode_texts(
            rows,
            shape=run.config.shape,
            tokenizer=run.tokenizer,
            labels=run.labels if labelled else None,
            config=data or run.config.data,
            folder=Path(folder),
            progress=progress,
        )
        if next(run.model.parameters()).device != worker.device:  # to look at every parameter takes time
            run.model.to(worker.device)
        answers = answer_texts(run.model, examples, run.config, worker, progress)
        notes += unknown_note(run, examples.tokens.values)
    return Answered(examples.rows.tolist(), answers, examples, cut, notes)


def unknown_note(run: Run, tokens: Array) -> list[str]:
    """A line on words that the run does not know, where there are many; other tokenizers may have no such."""
    share = unknown_share(tokens) if isinstance(run.tokenizer, WordTokenizer) else 0.0
    if share <= UNKNOWN_HINT:
        return []
    return [f"{share:.0%} of the words are not in the vocabulary of the run, and are all the same to it"]


def answer_each(run: Run, rows: Sequence[Sequence[str]], worker: Worker = ALONE) -> list[dict[str, Any]]:
    """The run's answers to texts, or pairs of them, each as `answer_record` has it; none of them is empty."""
    answered = answer_rows(run, rows_of_texts(*zip(*rows, strict=True)), labelled=False, worker=worker)
    return [answer_record(run, answered, place) for place in range(len(rows))]


def answer_record(run: Run, answered: Answered, place: int) -> dict[str, Any]:
    """One answer for programs: prediction, probabilities by class (None of a rating), truncated."""
    best, *values = spell_answer(run.labels, answered.answers[place])
    classes = run.labels.classes
    named = None if classes is None else dict(zip(classes, values, strict=True))
    return {"prediction": best, "probabilities": named, "truncated": bool(answered.cut[place])}


def rows_of(run: Run, path: Path, data: DataConfig, *, labelled: bool) -> Rows:
    """The rows of a file as the run's task reads them."""
    columns = columns_of(data, run.config.task, labelled=labelled)
    return file_rows(Source(path, columns, data.format))


def rows_of_texts(texts: Sequence[str], pairs: Sequence[str] | None = None, *, name: str = "texts") -> Rows:
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
                if not is_plain(text):
                    raise InputError(f"{name}, row {index + 1}: holds a NUL byte or half a character, expected a text")
                if not text.strip():
                    bad_rows.meet(name, index + 1, column, "empty text", "some text")
                    good[index] = False
        batch = pa.RecordBatch.from_pydict(
            {column: pa.array(values, pa.int64() if column == "row" else pa.string())
             for column, values in columns.items()}
        )  # fmt: skip
        yield batch if good.all() else batch.filter(pa.array(good))

    return Rows(name, "", read, small=True)


def is_plain(text: str) -> bool:
    """Whether a text is free of NUL bytes and halves of characters, which Arrow and UTF-8 cannot hold."""
    if "\0" in text:
        return False
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
) -> tuple[dict[str, float], list[str]]:
    """The ranking metrics on a folder of MIND files, and what there is to say about them."""
    with tempfile.TemporaryDirectory(prefix="datransformer-") as folder:
        impressions = open_impressions(run, source, Path(folder), labelled=True, bad_rows=bad_rows, progress=progress)
        if not rankable(impressions):
            raise InputError(f"{source}: no impression has both a click and a candidate without one, expected some")
        scores, offsets = score_impressions(run.model.to(worker.device), impressions, run.config, worker, progress)
        notes = unknown_note(run, impressions.titles.values) + bad_rows.lines()
        return rank_scores(impressions, scores, offsets), notes


def predict_impressions(
    run: Run,
    source: Path,
    target: Path,
    *,
    labelled: bool,
    bad_rows: BadRows,
    worker: Worker = ALONE,
    progress: Progress = no_progress,
) -> tuple[int, list[str]]:
    """Write MIND's ``prediction.txt`` for a folder of MIND files; how many impressions it ranks, and notes."""
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
        return len(impressions), unknown_note(run, impressions.titles.values) + bad_rows.lines()


def predictions(
    run: Run, answered: Answered, columns: Sequence[str] = (), values: Iterable[dict[str, Any]] | None = None
) -> tuple[list[str], Iterator[dict[str, Any]], list[str]]:
    """The fields of a file of predictions, a record a row, and what there is to say about them.

    A record has the row's number, the answer, and the probability of each class.

    Args:
        run: The trained run.
        answered: Its answers.
        columns: What the rows had before, which comes first. An answer whose name is among it gets another.
        values: The rows' values of ``columns``.
    """
    names = ["row", "prediction", *(f"probability_{name}" for name in run.labels.classes or ())]
    own = unlike(names, columns)
    notes = [
        f"the rows have a column {name!r} already: ours is called {other!r}"
        for name, other in zip(names, own, strict=True)
        if name != other
    ]

    def records() -> Iterator[dict[str, Any]]:
        before = itertools.repeat({}, len(answered.rows)) if values is None else values
        for carried, row, answer in zip(before, answered.rows, answered.answers, strict=True):
            yield carried | dict(zip(own, [row, *spell_answer(run.labels, answer)], strict=True))

    return [*columns, *own], records(), notes


def spell_answer(labels: Labels, answer: Any) -> list[Any]:
    """An answer as people read it: the rating, or the best class and then the probability of each."""
    if labels.classes is None:
        return [round(float(answer), 6)]
    return [labels.classes[int(answer.argmax())], *(round(float(value), 6) for value in answer)]


def write_records(file: IO[str], fields: Sequence[str], records: Iterable[dict[str, Any]], form: str) -> None:
    """Write records as csv, tsv or JSON lines."""
    if form == "jsonl":
        for record in records:
            file.write(json.dumps(_finite(record), ensure_ascii=False, default=str, allow_nan=False) + "\n")
        return
    delimiter = "\t" if form == "tsv" else ","
    special = re.compile(f'["\r\n{delimiter}]')  # Python's csv, before 3.13, leaves a lone \r without quotes

    def cell(value: object) -> str:
        text = json.dumps(value, default=str) if isinstance(value, bool | dict | list) else str(value)
        return "" if value is None else '"' + text.replace('"', '""') + '"' if special.search(text) else text

    file.write(delimiter.join(map(cell, fields)) + "\n")
    for record in records:
        file.write(delimiter.join(cell(record.get(field)) for field in fields) + "\n")


def save_records(path: Path, fields: Sequence[str], records: Iterable[dict[str, Any]]) -> None:
    """Write records to a file in the form that its name tells."""
    form = path.suffix.lower().removeprefix(".")
    if form not in OUTPUTS:
        raise InputError(f"--out {path}: the name does not tell the format, expected it to end in .csv, .tsv or .jsonl")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8", errors=HALVES, newline="") as file:
            write_records(file, fields, records, form)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror})") from error


def reading(run: Run, **changes: Any) -> DataConfig:
    """How a run reads a new file: as in training but for what is given and not None."""
    return replace(run.config.data, **{name: value for name, value in changes.items() if value is not None})


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: None in their place, at any depth."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
