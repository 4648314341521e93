import sys
from dataclasses import replace

import numpy as np
import pytest

from datransformer.data.errors import InputError
from datransformer.experiments.linear import STRENGTHS, Texts, fit_linear
from datransformer.report.statistics import bootstrap_difference
from datransformer.train.metrics import classification_metrics

GOOD = ["a fine film", "a great plot", "great fun", "fine acting", "fun and fine", "a great film"]
BAD = ["a dull film", "a poor plot", "poor fun", "dull acting", "poor and dull", "a dull mess"]
TRAIN = Texts(GOOD + BAD, ["good"] * 6 + ["bad"] * 6)
DEV = Texts(["great acting", "dull plot", "a fine plot", "a poor film"], ["good", "bad", "good", "bad"])
TEST = Texts(["fine and great", "so dull", "poor poor film"], ["good", "bad", "good"])


def test_words_that_tell_are_learned() -> None:
    found = fit_linear(TRAIN, DEV, TEST)
    assert found.classes == ("bad", "good")
    assert found.predicted.tolist() == [1, 0, 0]
    assert found.labels.tolist() == [1, 0, 1]
    # Two of three are right. F1: bad 2·1 / (2 + 1), good 2·1 / (1 + 2).
    assert found.test == {"accuracy": pytest.approx(2 / 3), "macro_f1": pytest.approx(2 / 3)}
    assert found.dev == {"accuracy": 1, "macro_f1": 1}


def test_features_are_words_and_pairs_in_two_texts_of_train() -> None:
    # Words: a, film, fine, plot, great, fun, acting, and, dull, poor, but mess is in one; pairs: a great, a dull.
    assert fit_linear(TRAIN, DEV, TEST).features == 10 + 2
    more = replace(DEV, texts=["mess mess", *DEV.texts[1:]])
    assert fit_linear(TRAIN, more, TEST).features == 12


def test_pairs_tell_what_words_do_not() -> None:
    """Both classes have the same words, equally often; only their order differs."""
    train = Texts(["not good but bad", "not bad but good"] * 4, [0, 1] * 4)
    test = Texts(["but bad", "but good", "not good", "not bad"], [0, 1, 0, 1])
    assert fit_linear(train, test, test).test["accuracy"] == 1


def test_words_of_one_letter_count() -> None:
    train = Texts(["i do n't", "i do s"] * 4, [0, 1] * 4)
    assert fit_linear(train, train, train).test["accuracy"] == 1


def test_strength_is_chosen_on_dev_alone() -> None:
    found = fit_linear(TRAIN, DEV, TEST)
    assert tuple(found.dev_accuracy) == STRENGTHS
    assert found.strength == min(STRENGTHS)  # all are right on dev: the simplest
    assert fit_linear(TRAIN, DEV, replace(TEST, labels=["bad", "good", "bad"])).strength == found.strength


def test_a_weaker_penalty_wins_where_dev_asks_for_it() -> None:
    """One text in nine is of the rare class: a strong penalty leaves everything to the frequent one."""
    train = Texts(["common word"] * 40 + ["rare word"] * 5, [0] * 40 + [1] * 5)
    test = Texts(["rare", "common"], [1, 0])
    found = fit_linear(train, test, test, strengths=(100.0, 0.001))
    assert found.dev_accuracy == {0.001: 0.5, 100.0: 1.0}
    assert (found.strength, found.test["accuracy"]) == (100.0, 1)


def test_a_class_that_train_lacks_is_known_and_missed() -> None:
    found = fit_linear(TRAIN, DEV, replace(TEST, labels=["good", "bad", "ugly"]))
    assert found.classes == ("bad", "good", "ugly")
    assert found.test == classification_metrics(np.array([1, 0, 0]), np.array([1, 0, 2]), 3)


def test_numbers_are_labels_too_and_every_seed_agrees() -> None:
    stars = {"good": 5, "bad": 1}
    parts = [replace(part, labels=[stars[str(label)] for label in part.labels]) for part in (TRAIN, DEV, TEST)]
    found, again = fit_linear(*parts, seed=0), fit_linear(*parts, seed=1)
    assert found.classes == (1, 5)
    np.testing.assert_array_equal(found.predicted, again.predicted)


def test_answers_go_into_the_bootstrap() -> None:
    found = fit_linear(TRAIN, DEV, TEST)
    interval = bootstrap_difference(found.labels, found.predicted, found.labels, "accuracy", resamples=50)
    assert interval.difference == pytest.approx(1 / 3)


def test_missing_scikit_learn_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.linear_model", None)
    with pytest.raises(InputError, match=r"needs scikit-learn: pip install datransformer\[linear\]"):
        fit_linear(TRAIN, DEV, TEST)


def test_refusals() -> None:
    with pytest.raises(InputError, match="texts: got none, expected at least one"):
        Texts([], [])
    with pytest.raises(InputError, match="labels: got 1, expected 2 as of texts"):
        Texts(["a", "b"], [0])
    with pytest.raises(InputError, match="train: got the label 'good' alone, expected at least two"):
        fit_linear(Texts(GOOD, ["good"] * 6), DEV, TEST)
    with pytest.raises(InputError, match="train: no word is in 2 of the 2 texts"):
        fit_linear(Texts(["one", "two"], ["good", "bad"]), DEV, TEST)
    with pytest.raises(InputError, match="labels: got names and numbers, expected one of the two"):
        fit_linear(TRAIN, replace(DEV, labels=[0, 1, 0, 1]), TEST)
    with pytest.raises(InputError, match=r"strengths: got \[0\.0\], expected at least one, all positive"):
        fit_linear(TRAIN, DEV, TEST, strengths=[0.0])
