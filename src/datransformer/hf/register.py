"""What transformers' Auto classes and interfaces have to know: a registry, so here global state is the point."""

from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)

from datransformer.hf.configuration import DATransformerConfig
from datransformer.hf.modeling import (
    DATransformerForCausalLM,
    DATransformerForMaskedLM,
    DATransformerForSequenceClassification,
    DATransformerModel,
)
from datransformer.hf.retrofit import ATTENTION, attend, auto_classes, padding_mask
from datransformer.hf.tokenizer import DATransformerTokenizer

AUTO_MODELS = {
    AutoModel: DATransformerModel,
    AutoModelForSequenceClassification: DATransformerForSequenceClassification,
    AutoModelForMaskedLM: DATransformerForMaskedLM,
    AutoModelForCausalLM: DATransformerForCausalLM,
}


def register() -> None:
    """Make our models known, and those that `make_distance_aware` makes."""
    AutoConfig.register(DATransformerConfig.model_type, DATransformerConfig, exist_ok=True)
    AutoTokenizer.register(DATransformerConfig, fast_tokenizer_class=DATransformerTokenizer, exist_ok=True)
    for auto, model in AUTO_MODELS.items():
        auto.register(DATransformerConfig, model, exist_ok=True)
    AttentionInterface.register(ATTENTION, attend)
    AttentionMaskInterface.register(ATTENTION, padding_mask)
    for auto, _, turned in auto_classes():
        AutoConfig.register(turned.config_class.model_type, turned.config_class, exist_ok=True)
        auto.register(turned.config_class, turned, exist_ok=True)
