"""Distance-aware models for Hugging Face's transformers. Imported, it registers them with the Auto classes."""

from datransformer.data.errors import InputError


class MissingExtraError(InputError, ImportError):
    """transformers is not there, or too old."""


try:
    import transformers
except ImportError:
    raise MissingExtraError("datransformer.hf needs transformers: pip install datransformer[hf]") from None
if tuple(int(part) for part in transformers.__version__.split(".")[:2]) < (5, 17):
    raise MissingExtraError(
        f"datransformer.hf: got transformers {transformers.__version__}, expected 5.17 or newer: "
        "pip install datransformer[hf]"
    )

from datransformer.hf.configuration import DATransformerConfig  # noqa: E402
from datransformer.hf.modeling import (  # noqa: E402
    DATransformerForCausalLM,
    DATransformerForMaskedLM,
    DATransformerForSequenceClassification,
    DATransformerModel,
    DATransformerPreTrainedModel,
)
from datransformer.hf.parameters import parameter_groups  # noqa: E402
from datransformer.hf.register import register  # noqa: E402
from datransformer.hf.retrofit import make_distance_aware  # noqa: E402
from datransformer.hf.tokenizer import DATransformerTokenizer  # noqa: E402

__all__ = [
    "DATransformerConfig",
    "DATransformerForCausalLM",
    "DATransformerForMaskedLM",
    "DATransformerForSequenceClassification",
    "DATransformerModel",
    "DATransformerPreTrainedModel",
    "DATransformerTokenizer",
    "MissingExtraError",
    "make_distance_aware",
    "parameter_groups",
]

register()
