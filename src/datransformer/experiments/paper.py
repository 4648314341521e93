"""What the paper reports: every table of Section 4 as printed, and its claims in our words.

The figures cannot be given as numbers: their source is pictures, without coordinates, and the text names no
values. What the text says of them is among the `CLAIMS`.

The names are the library's own: data sets as in `datransformer.data.datasets.DATASETS`, metrics as in
`datransformer.train.metrics`, methods as in `datransformer.nn.mixers.MIXERS`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

RUNS = 5  # "Each experiment is repeated 5 times independently", Section 4.1

METHODS = {
    "vanilla": "Transformer",
    "rpr": "Transformer-RPR",
    "xl": "Transformer-XL",
    "adapted": "Adapted Transformer",
    "distance_aware": "DA-Transformer",
}
OURS = "distance_aware"

METRICS = {
    "accuracy": "Accuracy",
    "macro_f1": "Macro-F",
    "auc": "AUC",
    "mrr": "MRR",
    "ndcg@5": "nDCG@5",
    "ndcg@10": "nDCG@10",
}


@dataclass(frozen=True)
class Printed:
    """A number of a table of results, in percent: the mean of `RUNS` runs and their standard deviation."""

    mean: float
    deviation: float


@dataclass(frozen=True)
class TextStatistics:
    """A row of Table 1, whose counts are printed in thousands.

    Args:
        train: Texts to train on.
        dev: Texts to choose by.
        test: Texts to report on.
        classes: How many classes they fall into.
        mean_length: Their mean length in words.
    """

    train: int
    dev: int
    test: int
    classes: int
    mean_length: int


@dataclass(frozen=True)
class NewsStatistics:
    """Table 2."""

    users: int
    news: int
    impressions: int
    mean_title_length: float
    clicks: int
    non_clicks: int


@dataclass(frozen=True)
class Claim:
    """Something the paper says that runs can bear out or not.

    Args:
        says: The claim, in our words.
        where: Where it stands.
        own_numbers: What the paper's own tables say of it; None where it rests on a figure or on the text alone.
    """

    says: str
    where: str
    own_numbers: str | None = None


def _rows(*rows: Sequence[tuple[float, float]]) -> dict[str, tuple[Printed, ...]]:
    """The rows of a table, in the order of `METHODS`."""
    return {method: tuple(Printed(*cell) for cell in row) for method, row in zip(METHODS, rows, strict=True)}


def _columns(metrics: Sequence[str], rows: dict[str, tuple[Printed, ...]], first: int) -> dict[str, dict[str, Printed]]:
    """Some columns of a table, by metric and method."""
    return {
        metric: {method: row[first + place] for method, row in rows.items()} for place, metric in enumerate(metrics)
    }


_CLASSES = ("accuracy", "macro_f1")
_RANKS = ("auc", "mrr", "ndcg@5", "ndcg@10")

_TABLE_3 = _rows(  # AG: accuracy, macro-F; Amazon: accuracy, macro-F
    [(93.01, 0.13), (93.00, 0.13), (65.15, 0.40), (42.14, 0.41)],
    [(93.14, 0.12), (93.13, 0.13), (65.29, 0.38), (42.40, 0.40)],
    [(93.35, 0.10), (93.34, 0.11), (65.50, 0.40), (42.88, 0.43)],
    [(93.28, 0.13), (93.27, 0.14), (65.47, 0.39), (42.69, 0.42)],
    [(93.72, 0.11), (93.70, 0.12), (66.38, 0.39), (44.29, 0.40)],
)
_TABLE_4 = _rows(  # SST: accuracy, macro-F; SNLI: accuracy, macro-F
    [(89.67, 0.22), (89.59, 0.24), (81.45, 0.30), (81.42, 0.31)],
    [(89.94, 0.19), (89.90, 0.20), (82.20, 0.31), (82.18, 0.31)],
    [(90.06, 0.20), (90.02, 0.21), (83.19, 0.29), (83.15, 0.30)],
    [(90.15, 0.19), (90.10, 0.1), (82.35, 0.28), (82.31, 0.30)],  # 0.1 has one digit in print; one may be lost
    [(90.49, 0.17), (90.43, 0.19), (84.18, 0.27), (84.16, 0.29)],
)
_TABLE_5 = _rows(  # MIND: AUC, MRR, nDCG@5, nDCG@10
    [(67.76, 0.18), (33.05, 0.16), (35.94, 0.19), (41.63, 0.20)],
    [(67.81, 0.16), (33.10, 0.17), (35.98, 0.20), (41.65, 0.21)],
    [(67.92, 0.16), (33.15, 0.16), (36.04, 0.20), (41.70, 0.19)],
    [(67.70, 0.22), (33.01, 0.20), (35.89, 0.17), (41.58, 0.23)],
    [(68.32, 0.15), (33.36, 0.16), (36.34, 0.14), (42.07, 0.17)],
)

# By data set, metric and method.
RESULTS: dict[str, dict[str, dict[str, Printed]]] = {
    "ag": _columns(_CLASSES, _TABLE_3, first=0),
    "amazon": _columns(_CLASSES, _TABLE_3, first=2),
    "sst": _columns(_CLASSES, _TABLE_4, first=0),
    "snli": _columns(_CLASSES, _TABLE_4, first=2),
    "mind": _columns(_RANKS, _TABLE_5, first=0),
}

# Table 1 gives SNLI 55k texts and 2 classes, where the published set has 550k and 3; and SST the 8k/1k/2k of its five
# classes, where the two that are used have 6,920/872/1,821. Both are kept as printed.
TEXT_STATISTICS = {
    "ag": TextStatistics(train=108_000, dev=12_000, test=7_600, classes=4, mean_length=44),
    "amazon": TextStatistics(train=40_000, dev=5_000, test=5_000, classes=5, mean_length=133),
    "sst": TextStatistics(train=8_000, dev=1_000, test=2_000, classes=2, mean_length=19),
    "snli": TextStatistics(train=55_000, dev=10_000, test=10_000, classes=2, mean_length=22),
}
NEWS_STATISTICS = NewsStatistics(
    users=1_000_000,
    news=161_013,
    impressions=500_000,
    mean_title_length=11.52,
    clicks=5_597_979,
    non_clicks=136_162_621,
)

AS_IT_SAYS = "They say so."
CLAIMS: dict[str, Claim] = {
    "first_everywhere": Claim(
        "The distance-aware Transformer is better than each of the four others in every metric on all five data sets.",
        "Section 4.2, Tables 3 to 5",
        AS_IT_SAYS,
    ),
    "significant": Claim(
        "Its lead over the second best is significant everywhere, at p < 0.05 in a t-test that is not named further.",
        "Section 4.2, captions of Tables 3 to 5",
        "Welch's test on the printed means and deviations, five runs each, bears that out in every metric but the MRR "
        "on MIND (p = 0.07); after Holm's correction over the twelve metrics both of SST and both nDCG on MIND fall "
        "out as well (p = 0.06).",
    ),
    "regression_alike": Claim(
        "Predicting Amazon's stars as numbers gives the same picture as predicting them as classes.",
        "Section 4.2, Figure 3",
    ),
    "distance_helps": Claim(
        "Each baseline that knows of distance is better than the vanilla Transformer, always.",
        "Section 4.2, first observation",
        "On MIND the adapted Transformer is below the vanilla one in all four metrics.",
    ),
    "rpr_weakest": Claim(
        "Of the methods that know of distance RPR is the weakest, for want of exact long distances.",
        "Section 4.2, second observation",
        "On MIND the adapted Transformer is below RPR in all four metrics.",
    ),
    "adapted_on_short_texts": Claim(
        "The adapted Transformer beats Transformer-XL on SST, whose sentences are short, and loses to it elsewhere.",
        "Section 4.2, third observation",
        AS_IT_SAYS,
    ),
    "learnable_sigmoid_best": Claim(
        "Of the five mappings the learnable sigmoid is best and the plain sigmoid next, before the exponent; neither "
        "clip nor linear is optimal.",
        "Section 4.3, Figure 4",
    ),
    "early_multiply_best": Claim(
        "Adjusting before the softmax is better than after it, and multiplying better than adding, so that early "
        "multiplying with a ReLU is best of the four.",
        "Section 4.4, Figure 5",
    ),
    "half_near_half_far": Claim(
        "On AG half of the heads look near (w < 0) and half look far (w > 0), averaged over runs after sorting.",
        "Section 4.5, Figure 6",
    ),
    "mild_on_ag": Claim(
        "On AG most heads learn v < 0, a mild adjustment, and the rest v > 0.",
        "Section 4.5, Figure 6",
    ),
    "words_look_far": Claim(
        "In the titles of MIND the far is somewhat more important than the near.",
        "Section 4.5, Figure 7a",
    ),
    "one_near_head": Claim(
        "At the news level of MIND one head alone looks near, strongly; all others look far.",
        "Section 4.5, Figure 7b",
    ),
    "all_shifts_positive": Claim(
        "On MIND every v is positive, at both levels.",
        "Section 4.5, Figures 7c and 7d",
    ),
    "sharper_attention": Claim(
        "Its attention weights are sparser and more focused than those of the vanilla Transformer, which are too soft "
        "to read.",
        "Section 4.5, Figure 8",
    ),
    "length_does_not_decide": Claim(
        "The length of the texts has no significant correlation with the signs of w.",
        "Section 4.5, last footnote",
    ),
}
