"""The models by task."""

from collections.abc import Callable

from torch import nn

from datransformer.models.config import ModelConfig
from datransformer.models.document import DocumentModel
from datransformer.models.pair import SiameseModel
from datransformer.models.recommender import Recommender
from datransformer.models.sentence import SentenceModel
from datransformer.ops.checks import check_choice


def _pair(vocabulary: int, classes: int, config: ModelConfig) -> nn.Module:
    shape = SiameseModel if config.pair == "siamese" else SentenceModel  # a joint pair is one sequence
    return shape(vocabulary, classes, config)


def _recommender(vocabulary: int, classes: int, config: ModelConfig) -> nn.Module:
    return Recommender(vocabulary, config)


MODELS: dict[str, Callable[[int, int, ModelConfig], nn.Module]] = {
    "sentence": SentenceModel,
    "pair": _pair,
    "document": DocumentModel,
    "recommend": _recommender,
}


def build_model(task: str, vocabulary: int, classes: int, config: ModelConfig) -> nn.Module:
    """The model for ``task``, a key of `MODELS`, with fresh weights."""
    check_choice("task", task, MODELS)
    return MODELS[task](vocabulary, classes, config)
