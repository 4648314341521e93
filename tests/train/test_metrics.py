import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.metrics import accuracy_score, f1_score, mean_absolute_error, mean_squared_error, ndcg_score, roc_auc_score

from datransformer.train import metrics
from datransformer.train.metrics import classification_metrics, ranking_metrics, rating_metrics

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


def test_classification_by_hand() -> None:
    labels = np.array([0, 0, 0, 1, 1, 2])
    predicted = np.array([0, 0, 1, 1, 0, 3])
    # right: 3 of 6. F1 = 2 tp / (predicted + labelled): class 0: 2·2/(3+3) = 2/3; class 1: 2·1/(2+2) = 1/2;
    # class 2 is never predicted and class 3 never right: 0 each; class 4 does not occur and does not count.
    found = classification_metrics(predicted, labels, classes=5)
    assert found == {"accuracy": 0.5, "macro_f1": pytest.approx((2 / 3 + 1 / 2 + 0 + 0) / 4)}


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=30))
def test_classification_agrees_with_sklearn(pairs: list[tuple[int, int]]) -> None:
    predicted, labels = np.array(pairs).T
    found = classification_metrics(predicted, labels, classes=5)
    assert found["accuracy"] == pytest.approx(accuracy_score(labels, predicted))
    assert found["macro_f1"] == pytest.approx(f1_score(labels, predicted, average="macro", zero_division=0))


@pytest.mark.parametrize(
    ("predicted", "labels", "message"),
    [
        ([], [], r"predicted: got shape \(0,\), expected one axis that is not empty"),
        ([[0]], [[0]], r"predicted: got shape \(1, 1\)"),
        ([0, 1], [0], r"labels: got shape \(1,\), expected \(2,\) as for predicted"),
        ([0, 3], [0, 1], "predicted: got values 0 to 3, expected 0 to 2"),
        ([0, 1], [-1, 1], "labels: got values -1 to 1, expected 0 to 2"),
        ([0.5, 1], [0, 1], "predicted: got dtype float64, expected integers"),
    ],
)
def test_classification_refuses(predicted: list[int], labels: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        classification_metrics(np.array(predicted), np.array(labels), classes=3)


def test_ratings_by_hand() -> None:
    # errors 0, 3, −4: √((0 + 9 + 16) / 3) and (0 + 3 + 4) / 3
    found = rating_metrics(np.array([1.0, 5.0, 1.0]), np.array([1.0, 2.0, 5.0]))
    assert found == {"rmse": pytest.approx(math.sqrt(25 / 3)), "mae": pytest.approx(7 / 3)}


@given(st.lists(st.tuples(st.floats(-10, 10), st.integers(1, 5)), min_size=1, max_size=30))
def test_ratings_agree_with_sklearn(pairs: list[tuple[float, int]]) -> None:
    predicted, ratings = np.array(pairs).T
    found = rating_metrics(predicted, ratings)
    assert found["rmse"] ** 2 == pytest.approx(mean_squared_error(ratings, predicted))
    assert found["mae"] == pytest.approx(mean_absolute_error(ratings, predicted))


def test_ratings_in_half_precision_do_not_overflow() -> None:
    found = rating_metrics(np.array([60000.0], np.float16), np.array([0.0], np.float16))
    assert found["rmse"] == pytest.approx(60000)


def test_ratings_refuse_nan() -> None:
    with pytest.raises(ValueError, match="predicted: 1 values are NaN or infinite"):
        rating_metrics(np.array([1.0, np.nan]), np.array([1.0, 2.0]))


def test_ranking_by_hand() -> None:
    # First impression, by score: click, none, click, none → ranks of the clicks 1 and 3.
    #   AUC: pairs (click, none): 1 beats both, 3 beats one of two → 3/4.  MRR: (1/1 + 1/3) / 2 = 2/3.
    #   DCG: 1/log2(2) + 1/log2(4) = 1.5; ideal 1/log2(2) + 1/log2(3).
    # Second: the click is last of seven → AUC 0, MRR 1/7, nDCG@5 0, nDCG@10 1/log2(8) = 1/3.
    scores = np.array([0.1, 0.9, 0.5, 0.7, 7.0, 6.0, 5.0, 1.0, 4.0, 3.0, 2.0])
    clicked = np.array([0, 1, 1, 0, 0, 0, 0, 1, 0, 0, 0])
    found, counts = ranking_metrics(scores, clicked.astype(bool), np.array([0, 4, 11]))
    first = 1.5 / (1 + 1 / math.log2(3))
    assert found == {
        "auc": pytest.approx((3 / 4 + 0) / 2),
        "mrr": pytest.approx((2 / 3 + 1 / 7) / 2),
        "ndcg@5": pytest.approx((first + 0) / 2),
        "ndcg@10": pytest.approx((first + 1 / 3) / 2),
    }
    assert counts == {"impressions": 2}
    assert all(type(value) is float for value in found.values())


def test_ties_share_the_auc_and_otherwise_rank_the_earlier_first() -> None:
    # All tie: AUC 1/2. The click stands second of three → MRR 1/2, nDCG 1/log2(3).
    found, _ = ranking_metrics(np.zeros(3), np.array([False, True, False]), np.array([0, 3]))
    share = pytest.approx(1 / math.log2(3))
    assert found == {"auc": 0.5, "mrr": 0.5, "ndcg@5": share, "ndcg@10": share}


def test_ties_do_not_reach_across_impressions() -> None:
    scores, clicked, offsets = np.zeros(4), np.array([True, False, False, True]), np.array([0, 2, 4])
    found, _ = ranking_metrics(scores, clicked, offsets)
    assert found["auc"] == 0.5
    assert found["mrr"] == pytest.approx((1 + 1 / 2) / 2)


def test_impressions_without_both_kinds_are_left_out_and_counted() -> None:
    # none clicked; all clicked; empty; and one that counts
    scores = np.array([1.0, 2.0, 3.0, 4.0, 2.0, 1.0])
    clicked = np.array([0, 0, 1, 1, 1, 0])
    found, counts = ranking_metrics(scores, clicked.astype(bool), np.array([0, 2, 4, 4, 6]))
    assert found == {"auc": 1.0, "mrr": 1.0, "ndcg@5": 1.0, "ndcg@10": 1.0}
    assert counts == {"impressions": 1, "impressions_left_out": 3}


def mind_mrr(labels: Floats, scores: Floats) -> float:
    """The formula of MIND's evaluation script, one impression; a stable sort where that has no ties."""
    ranked = labels[np.argsort(-scores, kind="stable")]
    return float(np.sum(ranked / (np.arange(len(ranked)) + 1)) / np.sum(ranked))


def mind_ndcg(labels: Floats, scores: Floats, k: int) -> float:
    def dcg(ranked: Floats) -> float:
        return float(np.sum((2 ** ranked[:k] - 1) / np.log2(np.arange(len(ranked[:k])) + 2)))

    return dcg(labels[np.argsort(-scores, kind="stable")]) / dcg(np.sort(labels)[::-1])


def make_impressions(seed: int, levels: int) -> list[tuple[Floats, Bools]]:
    """Impressions of 2 to 30 candidates with both kinds; few levels make ties."""
    random = np.random.default_rng(seed)
    made = []
    for _ in range(random.integers(1, 20)):
        clicked = random.random(random.integers(2, 30)) < 0.3
        clicked[:2] = [True, False]
        random.shuffle(clicked)
        made.append((random.integers(0, levels, len(clicked)) / levels, clicked))
    return made


def flat(impressions: list[tuple[Floats, Bools]]) -> tuple[Floats, Bools, NDArray[np.int_]]:
    offsets = np.cumsum([0] + [len(scores) for scores, _ in impressions])
    return np.concatenate([s for s, _ in impressions]), np.concatenate([c for _, c in impressions]), offsets


@given(st.integers(0, 2**32), st.sampled_from([2, 5, 2**40]))
def test_ranking_agrees_with_sklearn_and_the_script_of_mind(seed: int, levels: int) -> None:
    impressions = make_impressions(seed, levels)
    found, counts = ranking_metrics(*flat(impressions))
    assert counts == {"impressions": len(impressions)}
    assert found["auc"] == pytest.approx(np.mean([roc_auc_score(clicked, scores) for scores, clicked in impressions]))
    labelled = [(clicked.astype(float), scores) for scores, clicked in impressions]
    assert found["mrr"] == pytest.approx(np.mean([mind_mrr(*pair) for pair in labelled]))
    for k in (5, 10):
        assert found[f"ndcg@{k}"] == pytest.approx(np.mean([mind_ndcg(*pair, k) for pair in labelled]))


@given(st.integers(0, 2**32))
def test_ndcg_agrees_with_sklearn_where_nothing_ties(seed: int) -> None:
    impressions = make_impressions(seed, 2**40)  # sklearn averages over the orders of a tie; we do not
    found, _ = ranking_metrics(*flat(impressions))
    for k in (5, 10):
        expected = [ndcg_score([clicked.astype(float)], [scores], k=k) for scores, clicked in impressions]
        assert found[f"ndcg@{k}"] == pytest.approx(np.mean(expected))


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    scores, clicked, offsets = flat([pair for seed in range(7) for pair in make_impressions(seed, 5)])
    clicked[: offsets[5]] = False  # whole blocks, and parts of some, are left out
    whole, counts = ranking_metrics(scores, clicked, offsets)
    monkeypatch.setattr(metrics, "_BLOCK", 3)
    parts, counts_of_parts = ranking_metrics(scores, clicked, offsets)
    assert parts == pytest.approx(whole)
    assert counts_of_parts == counts


def test_infinite_scores_tie_with_each_other() -> None:
    scores = np.array([np.inf, np.inf, -np.inf, 0.0])
    found, _ = ranking_metrics(scores, np.array([True, False, False, True]), np.array([0, 4]))
    assert found["auc"] == pytest.approx((0.5 + 1 + 0 + 1) / 4)


@pytest.mark.parametrize(
    ("scores", "clicked", "offsets", "message"),
    [
        ([1.0, np.nan], [1, 0], [0, 2], "scores: 1 values are NaN"),
        ([1.0, 2.0], [1], [0, 2], r"clicked: got shape \(1,\), expected \(2,\) as for scores"),
        ([1.0, 2.0], [2, 0], [0, 2], "clicked: got values other than 0 and 1"),
        ([1.0, 2.0], [1, 0], [0, 1], "offsets: expected 0 to 2 without a step back"),
        ([1.0, 2.0], [1, 0], [0, 2, 1, 2], "offsets: expected 0 to 2 without a step back"),
        ([1.0, 2.0], [1, 0], [0.0, 2.0], "offsets: got float64 of shape"),
        ([1.0, 2.0], [1, 1], [0, 2], "clicked: none of the 1 impressions has both"),
    ],
)
def test_ranking_refuses(scores: list[float], clicked: list[int], offsets: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ranking_metrics(np.array(scores), np.array(clicked), np.array(offsets))
