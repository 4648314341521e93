"""The settings of a model, under the names that users of transformers know."""

from typing import Any

from transformers import PreTrainedConfig

from datransformer.models.config import ModelConfig


class DATransformerConfig(PreTrainedConfig):
    """What a DA-Transformer is made of. The defaults are the paper's, where it names them.

    Args:
        vocab_size: Number of token ids.
        hidden_size: Width of the word vectors and of the encoder.
        num_hidden_layers: Encoder layers.
        num_attention_heads: Attention heads.
        head_dim: Width of a head.
        intermediate_size: Inner width of the feed-forward network, 4 · hidden_size if None.
        attention: A key of `MIXERS`: ``distance_aware``, or one of the methods that it is compared with.
        attention_options: Further arguments of the mixer, for example ``{"mapping": "clip"}``.
        pooling: A key of `POOLINGS`, for sequence classification.
        hidden_dropout_prob: On word vectors, on the output of each sub-layer and inside the feed-forward network.
        attention_probs_dropout_prob: On attention weights.
        is_causal: Whether a token sees only itself and what comes before it. `DATransformerForCausalLM` sets it.
        initializer_range: Standard deviation of the first values of embeddings and linear layers. Those of w, v and
            whatever else belongs to a mixer are the library's own.
        use_cache: Whether a causal model returns its keys and values.
        pad_token_id: The id of padding.
        bos_token_id: The id that a text starts with, or None.
        eos_token_id: The id that a text ends with, or None.
        sep_token_id: The id between the two texts of a pair, or None.
        tie_word_embeddings: Whether the language models' heads share the word vectors.
    """

    model_type = "datransformer"
    keys_to_ignore_at_inference = ["past_key_values"]  # noqa: RUF012, to which transformers adds a list

    vocab_size: int = 30_522
    hidden_size: int = 300
    num_hidden_layers: int = 1
    num_attention_heads: int = 16
    head_dim: int = 16
    intermediate_size: int | None = None
    attention: str = "distance_aware"
    attention_options: dict[str, Any] | None = None
    pooling: str = "additive"
    hidden_dropout_prob: float = 0.2
    attention_probs_dropout_prob: float = 0.0
    is_causal: bool = False
    initializer_range: float = 0.02
    use_cache: bool = True
    pad_token_id: int | None = 0
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    sep_token_id: int | None = None
    tie_word_embeddings: bool = True

    def __post_init__(self, **kwargs: Any) -> None:
        if self.intermediate_size is None:
            self.intermediate_size = 4 * self.hidden_size
        self.parts()  # raises where a value is not possible
        super().__post_init__(**kwargs)

    def parts(self) -> ModelConfig:
        """The same settings as the library's own models take them."""
        return ModelConfig(
            attention=self.attention,
            attention_options=dict(self.attention_options or {}),
            layers=self.num_hidden_layers,
            heads=self.num_attention_heads,
            head_dim=self.head_dim,
            embed_dim=self.hidden_size,
            feedforward_dim=self.intermediate_size,
            dropout=self.hidden_dropout_prob,
            attention_dropout=self.attention_probs_dropout_prob,
            pooling=self.pooling,
        )

    @classmethod
    def from_parts(cls, parts: ModelConfig, **others: Any) -> "DATransformerConfig":
        """The settings of one of the library's own models."""
        return cls(
            hidden_size=parts.encoder_dim,
            num_hidden_layers=parts.layers,
            num_attention_heads=parts.heads,
            head_dim=parts.head_dim,
            intermediate_size=parts.feedforward_dim,
            attention=parts.attention,
            attention_options=dict(parts.attention_options),
            pooling=parts.pooling,
            hidden_dropout_prob=parts.dropout,
            attention_probs_dropout_prob=parts.attention_dropout,
            **others,
        )
