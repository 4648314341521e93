"""What training and evaluation need to know of a task: its batches, its loss, its answers, its metrics."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from datransformer.data.batches import Batch, BatchSource, TextBatches, plan_batches
from datransformer.data.encode import Examples
from datransformer.data.errors import InputError
from datransformer.data.news import ClickBatches, Impressions, NewsData, find_clicks, impression_batches
from datransformer.data.prepare import Progress, TextData, no_progress
from datransformer.data.store import spans
from datransformer.models.heads import RatingHead
from datransformer.models.recommender import Recommender
from datransformer.train.config import RunConfig
from datransformer.train.metrics import classification_metrics, ranking_metrics, rating_metrics

# What each kind of task is measured by; the first decides unless another is asked for.
CLASS_METRICS = ("accuracy", "macro_f1")
RATING_METRICS = ("rmse", "mae")
RANKING_METRICS = ("auc", "mrr", "ndcg@5", "ndcg@10")
LOWER_IS_BETTER = {"rmse", "mae"}
Answers = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Worker:
    """Where and with whom a model runs.

    Args:
        device: Where.
        autocast: Enters mixed precision.
        rank: Which process this is.
        world: Of how many.
        add: Adds an array up over all processes.
    """

    device: torch.device
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext
    rank: int = 0
    world: int = 1
    add: Callable[[Answers], Answers] = lambda array: array


ALONE = Worker(torch.device("cpu"))


class Task(Protocol):
    """A task with its data, and the dev metric that decides.

    ``answers`` are those to each split when it was last evaluated: what `answer_texts` or `score_impressions` gave.
    """

    metric: str
    classes: int
    answers: dict[str, Any]

    @property
    def train(self) -> BatchSource:
        """What to train on."""
        ...

    @property
    def splits(self) -> Mapping[str, Examples | Impressions]:
        """All data by split."""
        ...

    def start(self, model: nn.Module) -> None:
        """Set what the model takes from the training data beside its weights."""
        ...

    def losses(self, answers: Tensor, batch: Batch) -> Tensor:
        """The loss of each example."""
        ...

    def evaluate(
        self, model: nn.Module, split: str, worker: Worker, progress: Progress = no_progress
    ) -> dict[str, float]:
        """The metrics on a split."""
        ...


class TextTask:
    """Texts to classes or ratings.

    Args:
        data: The texts.
        config: The task's shape and head, batch sizes.
    """

    def __init__(self, data: TextData, config: RunConfig) -> None:
        self.splits: Mapping[str, Examples] = data.splits
        self.classes = len(data.labels.classes or ())
        self.metric = choose_metric(config.train.metric, RATING_METRICS if config.rating else CLASS_METRICS)
        self.config = config
        self.answers: dict[str, Any] = {}
        self.train: BatchSource = TextBatches(data.splits["train"], config.shape)
        self._spread = 1.0
        labels = data.splits["train"].labels
        if config.rating and labels is not None:
            self._spread = max(float(labels.var()), 1e-6)

    def start(self, model: nn.Module) -> None:
        labels = self.splits["train"].labels
        head = model.get_submodule("head")
        if isinstance(head, RatingHead) and labels is not None:
            head.set_scale(torch.from_numpy(np.array(labels)))

    def losses(self, answers: Tensor, batch: Batch) -> Tensor:
        assert batch.targets is not None
        if self.config.rating:
            return (answers - batch.targets).square() / self._spread
        smoothing = self.config.train.label_smoothing
        return F.cross_entropy(answers, batch.targets.long(), reduction="none", label_smoothing=smoothing)

    def evaluate(
        self, model: nn.Module, split: str, worker: Worker, progress: Progress = no_progress
    ) -> dict[str, float]:
        examples = self.splits[split]
        answers = answer_texts(model, examples, self.config, worker, progress, f"evaluating {split}")
        self.answers[split] = answers
        assert examples.labels is not None
        if self.config.rating:
            return rating_metrics(answers, examples.labels)
        return classification_metrics(answers.argmax(1), examples.labels, self.classes)


class RecommendTask:
    """Clicks to news scores.

    Args:
        data: News and impressions.
        config: Batch sizes, number of negatives.
    """

    classes = 0

    def __init__(self, data: NewsData, config: RunConfig) -> None:
        self.splits: Mapping[str, Impressions] = data.splits
        self.metric = choose_metric(config.train.metric, RANKING_METRICS)
        self.config = config
        self.answers: dict[str, Any] = {}
        self.train: BatchSource = ClickBatches(data.splits["train"], config.train.negatives)
        for name in set(data.splits) - {"train"}:
            if not rankable(data.splits[name]):
                raise InputError(f"{name}: no impression has both a click and a candidate without one, expected some")

    def start(self, model: nn.Module) -> None:
        """A recommender takes nothing but weights."""

    def losses(self, answers: Tensor, batch: Batch) -> Tensor:
        assert batch.targets is not None
        return F.cross_entropy(answers, batch.targets, reduction="none")

    def evaluate(
        self, model: nn.Module, split: str, worker: Worker, progress: Progress = no_progress
    ) -> dict[str, float]:
        impressions = self.splits[split]
        scores, offsets = score_impressions(model, impressions, self.config, worker, progress, f"evaluating {split}")
        self.answers[split] = scores, offsets
        return rank_scores(impressions, scores, offsets)


def choose_metric(wanted: str | None, known: tuple[str, ...]) -> str:
    """The metric that decides which weights are the best."""
    if wanted is not None and wanted not in known:
        raise InputError(f"train.metric: got {wanted!r}, expected one of: {', '.join(known)}")
    return wanted or known[0]


def rankable(impressions: Impressions) -> bool:
    """Whether some impression has both a click and a candidate without one."""
    return len(find_clicks(impressions)[0]) > 0


def rank_scores(impressions: Impressions, scores: Answers, offsets: npt.NDArray[np.int64]) -> dict[str, float]:
    """The ranking metrics of scores for all members of ``impressions``."""
    metrics, counts = ranking_metrics(scores, clicks_of(impressions), offsets)
    return {**metrics, **counts}


def clicks_of(impressions: Impressions) -> npt.NDArray[Any]:
    """Whether each candidate of each member was clicked, one impression after the other."""
    assert impressions.clicked is not None
    lengths = impressions.candidates.lengths[impressions.members]
    return impressions.clicked[spans(impressions.candidates.offsets[impressions.members], lengths)]


def answer_texts(
    model: nn.Module,
    examples: Examples,
    config: RunConfig,
    worker: Worker = ALONE,
    progress: Progress = no_progress,
    stage: str = "predicting",
) -> Answers:
    """Probabilities [examples, classes], or ratings [examples], in the order of the examples."""
    source = TextBatches(examples, config.shape)
    plan = plan_batches(source.sizes, batch_size=_wide(config), max_tokens=config.train.max_tokens)
    outputs: list[Tensor] = []  # waited for once, at the end: a GPU has more to do meanwhile
    done = 0
    mine = plan[worker.rank :: worker.world]
    for indices in mine:
        outputs.append(_answer(model, source.batch(indices, ()), worker).float())
        done += len(indices)
        progress(stage, done * worker.world, len(examples))
    if not outputs:  # more processes than batches
        shape = (len(examples),) if config.rating else (len(examples), _classes(model))
        return worker.add(np.zeros(shape, np.float32))
    output = torch.cat(outputs)
    if not output.isfinite().all():
        raise InputError(f"{stage}: the model answers NaN or Inf: its training diverged; a smaller --lr may help")
    answers = np.zeros((len(examples), *output.shape[1:]), np.float32)
    answers[np.concatenate(mine)] = (output if config.rating else output.softmax(-1)).cpu().numpy()
    return worker.add(answers)


def _wide(config: RunConfig) -> int:
    return 4 * config.train.batch_size  # no gradients, so there is room


def _classes(model: nn.Module) -> int:
    head = model.get_submodule("head")
    assert isinstance(head, nn.Linear)
    return head.out_features


@torch.no_grad()
def _answer(model: nn.Module, batch: Batch, worker: Worker) -> Tensor:
    inputs = {name: _moved(tensor, worker) for name, tensor in batch.inputs.items()}
    with worker.autocast():
        answers: Tensor = model(**inputs)
    return answers


def _moved(tensor: Tensor, worker: Worker) -> Tensor:
    """On the device, without waiting for it."""
    return tensor if worker.device.type == "cpu" else tensor.pin_memory().to(worker.device, non_blocking=True)


@torch.no_grad()
def score_impressions(
    model: nn.Module,
    impressions: Impressions,
    config: RunConfig,
    worker: Worker = ALONE,
    progress: Progress = no_progress,
    stage: str = "predicting",
) -> tuple[Answers, npt.NDArray[np.int64]]:
    """A score for every candidate of every member, one impression after the other, and where each starts.

    Every title that one of them names is encoded, and once.
    """
    assert isinstance(model, Recommender)
    titles = impressions.titles
    named = np.unique(
        np.concatenate(
            [lists.take(impressions.members).values for lists in (impressions.history, impressions.candidates)]
        )
    )
    lengths = titles.lengths[named]
    plan = plan_batches(lengths, batch_size=8 * config.train.batch_size, max_tokens=config.train.max_tokens)
    vectors = torch.zeros(len(titles), model.text.width, device=worker.device)
    done = 0
    for places in plan[worker.rank :: worker.world]:
        rows = named[places]
        tokens = _moved(torch.from_numpy(titles.take(rows).padded(0).astype(np.int64)), worker)
        with worker.autocast():
            vectors[_moved(torch.from_numpy(rows.astype(np.int64)), worker)] = model.text(tokens).float()
        done += len(rows)
        progress(f"{stage}: titles", done * worker.world, len(named))
    if worker.world > 1:
        vectors = torch.from_numpy(worker.add(vectors.cpu().numpy())).to(worker.device)
    news = vectors.to(model.text.embedding.weight.dtype)

    lengths = impressions.candidates.lengths[impressions.members]
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    place = np.zeros(len(impressions.names), np.int64)
    place[impressions.members] = np.arange(len(impressions))
    outputs: list[tuple[npt.NDArray[np.int64], Tensor]] = []
    done = 0
    for number, (chosen, history, candidates) in enumerate(impression_batches(impressions, _wide(config))):
        done += len(chosen)
        if number % worker.world != worker.rank:
            continue
        inputs = (_moved(torch.from_numpy(array.astype(np.int64)), worker) for array in (history, candidates))
        with worker.autocast():
            outputs.append((place[chosen], model.score(news, *inputs).float()))
        progress(stage, done, len(impressions))
    scores = np.zeros(offsets[-1], np.float32)
    for members, output in outputs:
        batch = output.cpu().numpy()
        if np.isnan(batch).any():
            raise InputError(f"{stage}: the model answers NaN: its training diverged; a smaller --lr may help")
        for row, impression in zip(batch, members, strict=True):
            scores[offsets[impression] : offsets[impression + 1]] = row[: lengths[impression]]
    return worker.add(scores), offsets
