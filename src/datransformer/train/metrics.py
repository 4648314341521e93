"""The numbers a run is judged by: classes, ratings, and candidates ranked within an impression."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int_]


def classification_metrics(predicted: Ints, labels: Ints, classes: int) -> dict[str, float]:
    """Accuracy, and F1 averaged over the classes that occur in ``labels`` or ``predicted``.

    A class in neither has no F1, and one in only one of them has an F1 of 0, as in scikit-learn.
    """
    predicted, labels = np.asarray(predicted), np.asarray(labels)
    _check_pair("predicted", predicted, "labels", labels)
    for name, array in (("predicted", predicted), ("labels", labels)):
        if array.dtype.kind not in "iu":
            raise ValueError(f"{name}: got dtype {array.dtype}, expected integers")
        if array.min() < 0 or array.max() >= classes:
            raise ValueError(f"{name}: got values {array.min()} to {array.max()}, expected 0 to {classes - 1}")
    right = np.bincount(labels[predicted == labels], minlength=classes)  # [classes]
    given = np.bincount(predicted, minlength=classes) + np.bincount(labels, minlength=classes)  # [classes]
    occurs = given > 0
    return {
        "accuracy": float(np.mean(predicted == labels)),
        "macro_f1": float(np.mean(2 * right[occurs] / given[occurs])),
    }


def rating_metrics(predicted: NDArray[np.floating], ratings: NDArray[np.floating]) -> dict[str, float]:
    """Root mean squared error and mean absolute error."""
    predicted, ratings = np.asarray(predicted, np.float64), np.asarray(ratings, np.float64)
    _check_pair("predicted", predicted, "ratings", ratings)
    for name, array in (("predicted", predicted), ("ratings", ratings)):
        if not np.isfinite(array).all():
            raise ValueError(f"{name}: {np.count_nonzero(~np.isfinite(array))} values are NaN or infinite")
    error = predicted - ratings
    return {"rmse": float(np.sqrt(np.mean(error**2))), "mae": float(np.mean(np.abs(error)))}


def ranking_metrics(
    scores: NDArray[np.floating], clicked: NDArray[np.bool_], offsets: Ints
) -> tuple[dict[str, float], dict[str, int]]:
    """AUC, MRR, nDCG@5 and nDCG@10 of each impression, averaged, as in the evaluation script of MIND (Wu et al. 2020).

    That script reads ranks and so knows no ties. Here candidates that tie share the credit in the AUC, and elsewhere
    the earlier one is ranked first, which is the order of a prediction file. An impression without a click, or with
    nothing else, has no AUC and is left out of all averages.

    Args:
        scores: [candidates], higher is better; the candidates of an impression stand next to each other.
        clicked: [candidates], True or 1 where the candidate was clicked.
        offsets: [impressions + 1], where each impression starts; the last entry is the number of candidates.

    Returns:
        The metrics, and how many ``impressions`` they average, with ``impressions_left_out`` where there are any.
    """
    values = rank_impressions(scores, clicked, offsets)
    averaged, count = values.shape[1], len(offsets) - 1
    counts = {"impressions": averaged}
    if averaged < count:
        counts["impressions_left_out"] = count - averaged
    return dict(zip(("auc", "mrr", "ndcg@5", "ndcg@10"), values.mean(1).tolist(), strict=True)), counts


def rank_impressions(scores: NDArray[np.floating], clicked: NDArray[np.generic], offsets: Ints) -> Floats:
    """The metrics of `ranking_metrics` for each impression that has both kinds of candidates, [4, impressions]."""
    scores = np.asarray(scores, np.float64)
    clicked, offsets = _check_ranking(scores, np.asarray(clicked), np.asarray(offsets))
    lengths = np.diff(offsets)  # [impressions]
    before = np.concatenate([[0], np.cumsum(clicked)])  # [candidates + 1]
    clicks = before[offsets[1:]] - before[offsets[:-1]]  # [impressions]
    kept = (clicks > 0) & (clicks < lengths)
    if not kept.any():
        raise ValueError(f"clicked: none of the {len(kept)} impressions has both a click and a candidate without one")
    blocks = []
    for start in range(0, len(kept), _BLOCK):
        block = slice(start, start + _BLOCK)
        if kept[block].any():
            span = slice(offsets[start], offsets[min(start + _BLOCK, len(kept))])
            of_kept = np.repeat(kept[block], lengths[block])  # [candidates of the block]
            blocks.append(
                _rank(
                    scores[span][of_kept],
                    clicked[span][of_kept],
                    lengths[block][kept[block]],
                    clicks[block][kept[block]],
                )
            )
    return np.concatenate(blocks, axis=1)


_BLOCK = 4096  # impressions sorted at a time: what a sort touches stays in the processor's cache


def _rank(scores: Floats, clicked: NDArray[np.bool_], lengths: Ints, clicks: Ints) -> Floats:
    """The four metrics of impressions that all have both kinds of candidates, [4, impressions]."""
    starts = np.cumsum(lengths) - lengths  # [impressions]
    impression = np.repeat(np.arange(len(lengths)), lengths)  # [candidates]
    order = np.lexsort((-scores, impression))  # stable: of two that tie the earlier stays first
    scores, clicked = scores[order], clicked[order]
    rank = np.arange(len(scores)) - starts[impression] + 1  # [candidates]

    # AUC = (Σ over clicked of (L + 1 − r) − c (c + 1) / 2) / (c (L − c)), for L candidates, c clicks, ranks r from the
    # top; candidates that tie have the mean of the ranks they occupy.
    first = np.flatnonzero((rank == 1) | (scores != np.roll(scores, 1)))  # [runs]
    run = np.diff(first, append=len(scores))
    mean_rank = np.repeat(rank[first] + (run - 1) / 2, run)  # [candidates]
    above = np.add.reduceat(clicked * (lengths[impression] + 1 - mean_rank), starts) - clicks * (clicks + 1) / 2
    auc = above / (clicks * (lengths - clicks))

    mrr = np.add.reduceat(clicked / rank, starts) / clicks
    gain = clicked / np.log2(rank + 1)  # 2^y − 1 is y for a click or none
    best = np.concatenate([[0.0], np.cumsum(1 / np.log2(np.arange(1, 11) + 1))])  # the ideal DCG by number of clicks
    ndcg = [np.add.reduceat(gain * (rank <= k), starts) / best[np.minimum(clicks, k)] for k in (5, 10)]
    return np.stack([auc, mrr, *ndcg])


def _check_pair(name: str, array: NDArray[np.generic], other_name: str, other: NDArray[np.generic]) -> None:
    if array.ndim != 1 or len(array) == 0:
        raise ValueError(f"{name}: got shape {array.shape}, expected one axis that is not empty")
    if other.shape != array.shape:
        raise ValueError(f"{other_name}: got shape {other.shape}, expected {array.shape} as for {name}")


def _check_ranking(
    scores: NDArray[np.floating], clicked: NDArray[np.generic], offsets: Ints
) -> tuple[NDArray[np.bool_], Ints]:
    """``clicked`` as bools and ``offsets`` as signed integers, once all three fit together."""
    _check_pair("scores", scores, "clicked", clicked)
    if np.isnan(scores).any():
        raise ValueError(f"scores: {np.count_nonzero(np.isnan(scores))} values are NaN")
    clicks = clicked.astype(np.bool_)
    if not (clicks == clicked).all():
        raise ValueError("clicked: got values other than 0 and 1, expected True or 1 where a candidate was clicked")
    if offsets.ndim != 1 or len(offsets) < 2 or offsets.dtype.kind not in "iu":
        raise ValueError(f"offsets: got {offsets.dtype} of shape {offsets.shape}, expected integers [impressions + 1]")
    if offsets[0] != 0 or offsets[-1] != len(scores) or (offsets[1:] < offsets[:-1]).any():
        raise ValueError(f"offsets: expected 0 to {len(scores)} without a step back")
    return clicks, offsets.astype(np.int_)
