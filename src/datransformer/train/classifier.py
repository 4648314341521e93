"""The interface that scikit-learn users know: fit, predict, predict_proba, score, save, load."""

import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from datransformer.data.errors import BadRows, InputError
from datransformer.data.prepare import Progress, Rows, RowSplits, prepare_texts
from datransformer.train.config import RunConfig, from_dict
from datransformer.train.fit import Data, fit
from datransformer.train.predict import answer_rows, rows_of_texts
from datransformer.train.progress import Reporter
from datransformer.train.run import Run, load_run

_GROUPS = {"attention": "model", "embed_dim": "model", "layers": "model", "heads": "model", "head_dim": "model",
           "dropout": "model", "epochs": "train", "batch_size": "train", "lr": "train", "seed": "train",
           "vectors": "data"}  # fmt: skip

VALUES = "vocab/values.json"  # the classes with their types; labels.json has their names
Texts = Sequence[Any] | npt.NDArray[Any]


class TextClassifier:
    """Classify texts with a one-layer encoder, the `sentence` model.

    Args:
        attention: A key of `MIXERS`.
        embed_dim: Width of the word vectors; a file of vectors brings its own.
        layers: Encoder layers.
        heads: Attention heads.
        head_dim: Width of a head.
        dropout: Dropout everywhere but on attention weights.
        epochs: Passes over the training texts.
        batch_size: Texts a batch.
        lr: Learning rate.
        seed: Seeds weights, order, dropout and what is held out.
        vectors: A file of word vectors, or None.
        device: ``auto``, ``cpu`` or ``cuda``.
        verbose: Whether to show progress.
        settings: Any other setting of a run, nested as in a ``config.yaml``, ``{"train": {"patience": 2}}``, or with
            the name that the command line has for it, ``{"train.patience": 2}``.
    """

    def __init__(
        self,
        attention: str = "distance_aware",
        *,
        embed_dim: int = 300,
        layers: int = 1,
        heads: int = 16,
        head_dim: int = 16,
        dropout: float = 0.2,
        epochs: int = 5,
        batch_size: int = 64,
        lr: float = 1e-3,
        seed: int = 0,
        vectors: str | None = None,
        device: str = "auto",
        verbose: bool = False,
        settings: dict[str, Any] | None = None,
    ) -> None:
        self.attention = attention
        self.embed_dim = embed_dim
        self.layers = layers
        self.heads = heads
        self.head_dim = head_dim
        self.dropout = dropout
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.seed = seed
        self.vectors = vectors
        self.device = device
        self.verbose = verbose
        self.settings = settings

    def fit(self, texts: Texts, labels: Texts, dev: tuple[Texts, Texts] | None = None) -> "TextClassifier":
        """Train on texts and their labels; without ``dev`` a tenth is held out to choose the best epoch by."""
        train = _labelled("texts", texts, labels)
        held_out = None if dev is None else _labelled("dev", *dev)
        config = self._config()

        def load(config: RunConfig, cache: Path, progress: Progress) -> Data:
            splits = RowSplits(train, held_out, dev_rows=config.data.dev_share)
            return prepare_texts(
                splits, shape="sentence", rating=False, config=config.data, cache=cache, progress=progress
            )

        with tempfile.TemporaryDirectory(prefix="datransformer-") as name:
            folder = Path(name) / "run"
            fit(
                config,
                folder,
                cache=Path(name) / "cache",
                device=self.device,
                reporter=Reporter(enabled=self.verbose),
                load=load,
            )
            shutil.rmtree(folder / "checkpoints")
            self._files = {
                str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()
            }
            run, originals = load_run(folder), {str(label): label for label in _values(labels)}
        assert run.labels.classes is not None
        classes = [originals[name] for name in run.labels.classes]
        if all(isinstance(label, str | int | float) for label in classes):  # and bool, which is an int
            self._files[VALUES] = json.dumps(classes).encode()
        self._take(run, classes)
        return self

    def predict(self, texts: Texts) -> npt.NDArray[Any]:
        """The most likely label of each text."""
        probabilities = self.predict_proba(texts)
        return np.asarray(self.classes_[probabilities.argmax(1)])

    def predict_proba(self, texts: Texts) -> npt.NDArray[np.float32]:
        """Probabilities [texts, classes], classes in the order of ``classes_``."""
        run = self._fitted()
        if isinstance(texts, str):
            raise InputError("texts: got one text, expected a list of texts")
        if not len(texts):
            return np.zeros((0, len(self.classes_)), np.float32)
        every_row = replace(run.config.data, bad_rows="stop")  # an answer for each text, or none at all
        return answer_rows(run, rows_of_texts(list(texts)), labelled=False, data=every_row).answers

    def score(self, texts: Texts, labels: Texts) -> float:
        """The share of texts that get their label."""
        pairs = zip(self.predict(texts).tolist(), _values(labels), strict=True)
        # A run of the command line has the names of its labels alone.
        return float(np.mean([given == label or str(given) == str(label) for given, label in pairs]))

    def save(self, folder: str | Path) -> None:
        """Write a run directory, which the command line reads too."""
        self._fitted()
        target = Path(folder)
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise InputError(f"{target}: is there already, expected a new or empty folder")
        for name, content in self._files.items():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            (target / name).write_bytes(content)

    @classmethod
    def load(cls, folder: str | Path) -> "TextClassifier":
        """Read a run directory of the task `sentence`, whether `save` or the command line wrote it."""
        run = load_run(Path(folder))
        if run.config.task != "sentence" or run.labels.classes is None:
            raise InputError(f"{folder}: a run of the task {run.config.task!r}, expected classes of sentences")
        values = {name: getattr(getattr(run.config, group), name) for name, group in _GROUPS.items()}
        classifier = cls(**values)
        names = (
            "config.yaml",
            "model.safetensors",
            "metrics.jsonl",
            "result.json",
            "vocab/tokenizer.json",
            "vocab/labels.json",
            VALUES,
        )
        classifier._files = {
            name: (Path(folder) / name).read_bytes() for name in names if (Path(folder) / name).exists()
        }
        classifier._take(run, _read_values(Path(folder), run.labels.classes))
        return classifier

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The constructor's arguments, as scikit-learn asks for them."""
        return {name: getattr(self, name) for name in (*_GROUPS, "device", "verbose", "settings")}

    def set_params(self, **values: Any) -> "TextClassifier":
        """Change constructor arguments."""
        for name, value in values.items():
            if name not in self.get_params():
                raise ValueError(f"{name}: unknown, expected one of: {', '.join(self.get_params())}")
            setattr(self, name, value)
        return self

    def __sklearn_tags__(self) -> Any:
        """Tell scikit-learn, which alone asks for it, that this is a classifier of texts."""
        from sklearn.utils import ClassifierTags, InputTags, Tags, TargetTags

        return Tags(
            estimator_type="classifier",
            target_tags=TargetTags(required=True),
            classifier_tags=ClassifierTags(),
            input_tags=InputTags(string=True, two_d_array=False),
        )

    def _config(self) -> RunConfig:
        values: dict[str, Any] = {"data": {"split_seed": self.seed}, "model": {}, "train": {}}
        for name, group in _GROUPS.items():
            values[group][name] = getattr(self, name)
        for name, options in (self.settings or {}).items():
            for part in reversed(str(name).split(".")):
                options = {part: options}
            values = _merged(values, options)
        config = from_dict(RunConfig, values, "settings")
        if config.task != "sentence" or config.rating:
            raise InputError("settings: a TextClassifier finds classes of sentences; other tasks have the command line")
        return config

    def _take(self, run: Run, classes: Sequence[Any]) -> None:
        self.run_ = run
        self.classes_ = np.array(classes)

    def _fitted(self) -> Run:
        if not hasattr(self, "run_"):
            raise InputError("this TextClassifier is not fitted yet; call fit, or TextClassifier.load")
        return self.run_


def _merged(values: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """``values`` with ``more`` on top, groups within groups; what should be a group and is not stays, to be refused."""
    merged = {**values, **more}
    for name in values.keys() & more.keys():
        before, now = values[name], more[name]
        if isinstance(now, dict):
            merged[name] = _merged(before, now) if isinstance(before, dict) else before
    return merged


def _read_values(folder: Path, names: Sequence[str]) -> Sequence[Any]:
    """The labels as they were given to `TextClassifier.fit`, or their names, if that is all there is."""
    if not (folder / VALUES).is_file():
        return names
    try:
        values = json.loads((folder / VALUES).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{folder / VALUES}: cannot be read ({error})") from error
    plain = isinstance(values, list) and all(isinstance(value, str | int | float) for value in values)
    if not plain or [str(value) for value in values] != list(names):
        raise InputError(f"{folder / VALUES}: expected a list of the labels {', '.join(map(repr, names))}")
    return list(values)


def _values(labels: Texts) -> list[Any]:
    """Plain Python values, also from numpy and pandas."""
    return list(np.asarray(labels).tolist())


def _labelled(name: str, texts: Texts, labels: Texts) -> Rows:
    if isinstance(texts, str):
        raise InputError(f"{name}: got one text, expected a list of texts")
    values = [str(label) for label in _values(labels)]
    if len(texts) != len(values):
        raise InputError(f"{name}: got {len(texts)} texts and {len(values)} labels, expected as many of both")
    if not values:
        raise InputError(f"{name}: got no texts, expected at least two classes of them")
    plain = rows_of_texts(list(texts), name=name)

    def read(bad_rows: BadRows) -> Iterator[pa.RecordBatch]:
        for batch in plain.read(bad_rows):
            kept = pa.array([values[row - 1] for row in batch["row"].to_pylist()], pa.string())
            yield batch.append_column("label", kept)

    return Rows(name, name, read)
