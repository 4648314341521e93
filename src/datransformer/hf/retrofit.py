"""Distance-aware attention in stock models of transformers, through its attention interface."""

import functools
from collections.abc import Sequence
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.auto import modeling_auto

from datransformer.hf.masking import split_mask
from datransformer.nn.distance_aware import initial_distances
from datransformer.ops.adjust import ADJUSTMENTS
from datransformer.ops.attention import AttentionOptions, distance_aware_attention
from datransformer.ops.checks import check_choice
from datransformer.ops.mapping import MAPPINGS

ATTENTION = "distance_aware"  # the name in transformers' attention interface

# The models that can be turned, and the class of their self-attention.
SELF_ATTENTION = {
    "bert": "BertSelfAttention",
    "roberta": "RobertaSelfAttention",
    "distilbert": "DistilBertSelfAttention",
    "vit": "ViTAttention",
}
PREFIX = "distance_aware_"  # of the model types of the turned


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    output_attentions: bool | None = None,
    **others: Any,
) -> tuple[Tensor, Tensor | None]:
    """Eq. 6 as a function of the attention interface: [batch, heads, length, head_dim] to [batch, length, heads, …]."""
    if not hasattr(module, "distance_weight"):
        raise ValueError(f"{type(module).__name__} has no w and v, expected a model that make_distance_aware made")
    key_padding_mask, attn_mask = split_mask(attention_mask)
    inputs = (query, key, value, module.get_parameter("distance_weight"), module.get_parameter("distance_shift"))
    config: Any = module.config
    options: AttentionOptions = {
        "mapping": config.distance_mapping,
        "adjust": config.distance_adjust,
        "key_padding_mask": key_padding_mask,
        "attn_mask": attn_mask,
        "causal": bool(is_causal) and attn_mask is None,
        "dropout_p": dropout,
        "scale": scaling,
    }
    if config.output_attentions if output_attentions is None else output_attentions:
        output, weights = distance_aware_attention(*inputs, return_weights=True, **options)
        return output.transpose(1, 2).contiguous(), weights  # [B, N, H, D]
    return distance_aware_attention(*inputs, **options).transpose(1, 2).contiguous(), None


def padding_mask(*, kv_length: int, attention_mask: Tensor | None = None, **others: Any) -> Tensor | None:
    """A function of the mask interface: the mask over tokens as it is, for pairs of tokens are never laid out."""
    return None if attention_mask is None else attention_mask[:, -kv_length:]


class DistanceAware:
    """What a stock model gets beside its own class: w and v in each layer, and no other attention."""

    _keep_in_fp32_modules_strict = ("distance_weight", "distance_shift")
    _supports_sdpa = _supports_flash_attn = _supports_flex_attn = False

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)  # type: ignore[call-arg]
        first = initial_distances(config.num_attention_heads, config.distance_mapping, None, None)
        add_distances(self, *first)  # type: ignore[arg-type]

    def get_correct_attn_implementation(self, requested_attention: str | None, is_init_check: bool = False) -> str:
        """Refuse another attention, which would leave w and v out without a word; "eager", the model's own, is this."""
        if requested_attention not in (None, "eager", ATTENTION):
            raise ValueError(f"attn_implementation: got {requested_attention!r}, expected {ATTENTION!r}")
        return ATTENTION

    @classmethod
    def from_pretrained(cls, *args: Any, output_loading_info: bool = False, **kwargs: Any) -> Any:
        """As that of the stock model; the files must hold w and v."""
        model, found = super().from_pretrained(*args, output_loading_info=True, **kwargs)  # type: ignore[misc]
        missing = [name for name in sorted(found["missing_keys"]) if name.rpartition(".")[2].startswith("distance_")]
        if missing:
            raise ValueError(
                f"the files have no {missing[0]}, expected those of a distance-aware model: load the stock model and "
                "call make_distance_aware on it"
            )
        return (model, found) if output_loading_info else model


def make_distance_aware(
    model: PreTrainedModel,
    *,
    mapping: str = "learnable_sigmoid",
    adjust: str = "early_multiply",
    distance_weight_init: float | Sequence[float] | Tensor | None = None,
    distance_shift_init: float | Sequence[float] | Tensor | None = None,
) -> PreTrainedModel:
    """Turn the self-attention of a stock BERT, RoBERTa, DistilBERT or ViT into distance-aware attention, in place.

    All weights stay; each layer gets ``distance_weight`` and ``distance_shift``, w and v of its heads. With the
    default ``adjust`` the function changes even at w = 0, where f = 1: Eq. 6 puts a ReLU on the scores. So train the
    model before you use it. ``adjust="late_multiply"`` with ``distance_weight_init=0`` starts where the stock model is.

    The model's type becomes ``distance_aware_bert`` and so on: after ``save_pretrained`` the Auto classes read it again
    wherever `datransformer.hf` is imported, and nowhere else. The positions that the model adds to its input stay. For
    a ViT the distance is that in its sequence of patches, class token first.

    Args:
        model: A model, with any head.
        mapping: A key of `MAPPINGS`.
        adjust: A key of `ADJUSTMENTS`.
        distance_weight_init: First value of w: a number for all heads, or one per head; None: evenly spread over
            [−0.5, 0.5].
        distance_shift_init: First value of v, likewise; None: 0 (1 for ``clip`` and ``linear``).

    Returns:
        The same model.
    """
    check_choice("mapping", mapping, MAPPINGS)
    check_choice("adjust", adjust, ADJUSTMENTS)
    if isinstance(model, DistanceAware):
        raise ValueError(f"model: got a {type(model).__name__}, which is distance-aware already")  # noqa: TRY004
    turned = turned_classes().get(type(model))
    if turned is None:
        raise ValueError(
            f"model: got {type(model).__name__}, expected a model of transformers of the type "
            f"{', '.join(SELF_ATTENTION)}"
        )
    config: Any = model.config
    if getattr(config, "is_decoder", False):
        raise ValueError("model: got a decoder, expected an encoder: config.is_decoder = False")
    first = initial_distances(config.num_attention_heads, mapping, distance_weight_init, distance_shift_init)
    model.set_attn_implementation(ATTENTION)
    config.__class__ = turned.config_class
    config.distance_mapping, config.distance_adjust = mapping, adjust
    add_distances(model, *first)
    model.__class__ = turned
    # Where transformers looks up, by class, which outputs a model can hand out; a model built anew enters itself.
    vars(transformers.modeling_utils).get("_CAN_RECORD_REGISTRY", {})[str(turned)] = model._can_record_outputs
    model._weight_conversions = None  # names of older files that the stock class would write again
    return model


def add_distances(model: nn.Module, weight: Tensor, shift: Tensor) -> None:
    """Give each self-attention of ``model`` its w and v, in fp32: a step of 1e-4 on w = 0.5 is lost in bf16."""
    config: Any = model.config
    name = SELF_ATTENTION[config.model_type.removeprefix(PREFIX)]
    layers = [module for module in model.modules() if type(module).__name__ == name]
    assert len(layers) == config.num_hidden_layers, f"{name}: found {len(layers)}, expected {config.num_hidden_layers}"
    for layer in layers:
        device = next(layer.parameters()).device
        for part, first in (("distance_weight", weight), ("distance_shift", shift)):
            layer.register_parameter(part, nn.Parameter(first.to(device, torch.float32, copy=True)))  # [H]


@functools.cache
def turned_classes() -> dict[type, Any]:
    """The distance-aware class of each stock class that an Auto class knows."""
    return {stock: turned for _, stock, turned in auto_classes()}


@functools.cache
def auto_classes() -> tuple[tuple[Any, type, Any], ...]:
    """(Auto class, stock class, distance-aware class) of all heads of all models that can be turned."""
    found = []
    made: dict[type, Any] = {}
    autos = [value for name, value in vars(modeling_auto).items() if name.startswith("AutoModel")]
    for model_type in SELF_ATTENTION:
        stock_config = transformers.CONFIG_MAPPING[model_type]
        config = turned_config(stock_config)
        for auto in autos:
            mapping = getattr(auto, "_model_mapping", {})
            if stock_config in mapping:
                stock = mapping[stock_config]
                if stock not in made:
                    body = {"config_class": config, "__module__": __name__, "__doc__": DistanceAware.__doc__}
                    made[stock] = type(f"DistanceAware{stock.__name__}", (DistanceAware, stock), body)
                found.append((auto, stock, made[stock]))
    return tuple(found)


def turned_config(stock: type[PreTrainedConfig]) -> type[PreTrainedConfig]:
    """The config of a stock model, and how distances are mapped and scores adjusted."""
    # transformers' own property refuses to be set with any attention but "eager".
    attentions = property(
        lambda self: self._output_attentions, lambda self, value: setattr(self, "_output_attentions", value)
    )
    fields = {"distance_mapping": "learnable_sigmoid", "distance_adjust": "early_multiply"}
    body = {
        "model_type": f"{PREFIX}{stock.model_type}",
        "__annotations__": dict.fromkeys(fields, str),
        "__module__": __name__,
        "__doc__": stock.__doc__,
        "output_attentions": attentions,
        **fields,
    }
    return type(f"DistanceAware{stock.__name__}", (stock,), body)
