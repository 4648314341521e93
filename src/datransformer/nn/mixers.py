"""The mixers by name."""

from datransformer.nn.adapted import AdaptedAttention
from datransformer.nn.alibi import AlibiAttention
from datransformer.nn.distance_aware import DistanceAwareAttention
from datransformer.nn.multihead import MultiheadAttention
from datransformer.nn.rotary import RotaryAttention
from datransformer.nn.rpr import RelativePositionAttention
from datransformer.nn.t5_bias import T5BiasAttention
from datransformer.nn.vanilla import PlainAttention, VanillaAttention
from datransformer.nn.xl import TransformerXLAttention

MIXERS: dict[str, type[MultiheadAttention]] = {
    "distance_aware": DistanceAwareAttention,
    "vanilla": VanillaAttention,
    "rpr": RelativePositionAttention,
    "xl": TransformerXLAttention,
    "adapted": AdaptedAttention,
    "rotary": RotaryAttention,
    "alibi": AlibiAttention,
    "t5_bias": T5BiasAttention,
    "none": PlainAttention,
}
