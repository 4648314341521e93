"""What a user would pick instead: TF-IDF of words and word pairs, and logistic regression. Seconds on a CPU.

No Transformer of one layer trained from scratch should be shown without it: where a bag of words does as well, the data
set says little about attention. It needs scikit-learn, ``pip install datransformer[linear]``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datransformer.data.errors import InputError
from datransformer.train.metrics import classification_metrics

Label = int | str
Ints = NDArray[np.int_]

STRENGTHS = (0.3, 1.0, 3.0, 10.0, 30.0)
WORD = r"(?u)\b\w+\b"  # words of one letter too, unlike scikit-learn: the t of n't is a negation
LEAST_TEXTS = 2  # a word or pair in fewer texts has nothing to teach
ITERATIONS = 2000


@dataclass(frozen=True)
class Texts:
    """Texts and their labels.

    Args:
        texts: The texts.
        labels: One for each, numbers or names, not both.
    """

    texts: Sequence[str]
    labels: Sequence[Label]

    def __post_init__(self) -> None:
        if len(self.texts) == 0:
            raise InputError("texts: got none, expected at least one")
        if len(self.labels) != len(self.texts):
            raise InputError(f"labels: got {len(self.labels)}, expected {len(self.texts)} as of texts")


@dataclass(frozen=True)
class LinearResult:
    """What the linear model reached.

    Args:
        classes: The labels of all splits, in order; predictions are places in it.
        predicted: The answer to each test text.
        labels: The right answer to each, for `datransformer.report.statistics.bootstrap_difference`.
        test: Accuracy and macro-F1 on test.
        dev: The same on dev.
        strength: The chosen C, the inverse of the regularisation.
        dev_accuracy: The accuracy on dev of every C that was tried.
        features: How many words and pairs there are.
    """

    classes: tuple[Label, ...]
    predicted: Ints
    labels: Ints
    test: Mapping[str, float]
    dev: Mapping[str, float]
    strength: float
    dev_accuracy: Mapping[float, float]
    features: int


def fit_linear(
    train: Texts, dev: Texts, test: Texts, *, strengths: Sequence[float] = STRENGTHS, seed: int = 0
) -> LinearResult:
    """Train once for each strength, choose by accuracy on dev, and answer test once.

    Of strengths that tie on dev the smallest wins, the simplest model. The solver draws nothing at random, so that
    every seed gives the same answers: show the result as one run, not as several without spread.

    Args:
        train: What to learn from; it alone gives the words and their weights.
        dev: What to choose the strength by.
        test: What to report on.
        strengths: The values of C to try.
        seed: Handed to scikit-learn.

    Raises:
        InputError: scikit-learn is missing, or train has fewer than two classes or no words to go by.
    """
    if not strengths or min(strengths) <= 0:
        raise InputError(f"strengths: got {list(strengths)}, expected at least one, all positive")
    make_vectorizer, make_classifier = _scikit_learn()
    classes = _classes(train, dev, test)
    answers = {name: _places(part, classes) for name, part in (("train", train), ("dev", dev), ("test", test))}
    if len(np.unique(answers["train"])) < 2:
        raise InputError(f"train: got the label {train.labels[0]!r} alone, expected at least two")
    # Logarithms of counts, as a word said twice does not say twice as much.
    vectorizer = make_vectorizer(ngram_range=(1, 2), sublinear_tf=True, min_df=LEAST_TEXTS, token_pattern=WORD)
    try:
        known = vectorizer.fit_transform(train.texts)  # [texts, features]
    except ValueError as error:
        raise InputError(f"train: no word is in {LEAST_TEXTS} of the {len(train.texts)} texts") from error
    held_out = vectorizer.transform(dev.texts)
    models: dict[float, Any] = {}
    found: dict[float, dict[str, float]] = {}
    for strength in sorted(set(strengths)):
        model = make_classifier(C=strength, max_iter=ITERATIONS, random_state=seed).fit(known, answers["train"])
        models[strength] = model
        found[strength] = classification_metrics(model.predict(held_out), answers["dev"], len(classes))
    chosen = max(models, key=lambda strength: found[strength]["accuracy"])  # the first of several: the smallest
    predicted: Ints = models[chosen].predict(vectorizer.transform(test.texts))
    return LinearResult(
        classes=classes,
        predicted=predicted,
        labels=answers["test"],
        test=classification_metrics(predicted, answers["test"], len(classes)),
        dev=found[chosen],
        strength=chosen,
        dev_accuracy={strength: metrics["accuracy"] for strength, metrics in found.items()},
        features=known.shape[1],
    )


def _scikit_learn() -> tuple[type[Any], type[Any]]:
    """Imported when asked for, since nothing else of the library needs it."""
    try:
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.linear_model import LogisticRegression
    except ImportError as error:
        raise InputError("the linear baseline needs scikit-learn: pip install datransformer[linear]") from error
    return TfidfVectorizer, LogisticRegression


def _classes(*parts: Texts) -> tuple[Label, ...]:
    """The labels of all parts in order; one that train does not have is known too, and always got wrong."""
    labels = {label for part in parts for label in part.labels}
    if len({isinstance(label, str) for label in labels}) > 1:
        raise InputError("labels: got names and numbers, expected one of the two")
    return tuple(sorted(labels))


def _places(part: Texts, classes: Sequence[Label]) -> Ints:
    place = {label: index for index, label in enumerate(classes)}
    return np.array([place[label] for label in part.labels], np.int_)
