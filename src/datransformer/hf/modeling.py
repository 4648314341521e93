"""The DA-Transformer as models of transformers: encoder, classifier, masked and causal language model."""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, DynamicCache, GenerationMixin, PreTrainedModel
from transformers import initialization as init
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import (
    BaseModelOutputWithPast,
    CausalLMOutputWithPast,
    MaskedLMOutput,
    SequenceClassifierOutput,
)
from transformers.utils import ModelOutput, can_return_tuple

from datransformer.hf.configuration import DATransformerConfig
from datransformer.hf.masking import split_mask
from datransformer.nn.distance_aware import DistanceAwareAttention
from datransformer.nn.dropout import Dropout
from datransformer.nn.embedding import sinusoids
from datransformer.nn.encoder import EncoderLayer
from datransformer.nn.mixers import MIXERS
from datransformer.nn.multihead import MultiheadAttention
from datransformer.nn.pooling import POOLINGS


def build_attention(config: DATransformerConfig) -> MultiheadAttention:
    """One layer's attention."""
    return MIXERS[config.attention](
        config.hidden_size,
        config.num_attention_heads,
        config.head_dim,
        dropout=config.attention_probs_dropout_prob,
        **(config.attention_options or {}),
    )


class DATransformerLayer(GradientCheckpointingLayer, EncoderLayer):
    """The library's encoder layer, with a cache of keys and values and its attention weights handed out."""

    def __init__(self, config: DATransformerConfig, index: int) -> None:
        assert config.intermediate_size is not None  # set by the config's own init
        super().__init__(
            build_attention(config), feedforward_dim=config.intermediate_size, dropout=config.hidden_dropout_prob
        )
        self.index = index

    def forward(  # type: ignore[override] # only DATransformerModel calls it
        self,
        inputs: Tensor,
        *,
        past_key_values: Cache | None,
        key_length: int,
        key_padding_mask: Tensor | None,
        attn_mask: Tensor | None,
        causal: bool,
        return_weights: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """[batch, length, hidden_size] in and out, and the weights [batch, heads, length, key_length] or None."""
        attention = self.attention
        query, key, value = attention.project(inputs, inputs, inputs)  # [B, H, N, D]
        if past_key_values is not None:
            key, value = past_key_values.update(key, value, self.index)
            # A static cache is longer than what is in it; queries are aligned to the end of the keys.
            key, value = key[:, :, :key_length], value[:, :, :key_length]  # [B, H, Nk, D]
        mixed, weights = attention.mix(
            query,
            key,
            value,
            key_padding_mask=key_padding_mask,
            attn_mask=attn_mask,
            causal=causal,
            dropout_p=attention.dropout if attention.training else 0.0,
            return_weights=return_weights,
        )
        mixed = attention.out_proj(mixed.transpose(1, 2).flatten(2))  # [B, N, E]
        return self.add_and_feed(inputs, mixed), weights


class DATransformerPreTrainedModel(PreTrainedModel):
    """Initial values, and what transformers wants to know of a family of models."""

    config_class = DATransformerConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ("DATransformerLayer",)
    _skip_keys_device_placement = ("past_key_values",)

    def __init__(self, config: DATransformerConfig) -> None:
        super().__init__(config)
        if issubclass(MIXERS[config.attention], DistanceAwareAttention):
            # A step of 1e-4 on w = 0.5 is lost in bf16.
            self._keep_in_fp32_modules_strict = {"distance_weight", "distance_shift"}

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, MultiheadAttention):
            with torch.device(module.in_proj_weight.device):
                fresh = build_attention(self.config)
            for name, parameter in module.named_parameters(recurse=False):
                init.copy_(parameter, fresh.get_parameter(name))


class DATransformerModel(DATransformerPreTrainedModel):
    """Token ids to token vectors: embedding, then the layers of the paper's encoder.

    Args:
        config: The parts.
    """

    def __init__(self, config: DATransformerConfig) -> None:
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, padding_idx=config.pad_token_id)
        self.dropout = Dropout(config.hidden_dropout_prob)
        self.layers = nn.ModuleList(DATransformerLayer(config, index) for index in range(config.num_hidden_layers))
        self.gradient_checkpointing = False
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
    ) -> BaseModelOutputWithPast:
        """Encode a batch.

        Args:
            input_ids: ``[batch, length]``, or ``inputs_embeds`` ``[batch, length, hidden_size]``.
            attention_mask: ``[batch, length]``, with what is in the cache counted; 0 = ignore. Or, over pairs of
                tokens, ``[batch, heads, length, length]``, which no fast path takes.
            past_key_values: What a causal model returned for the tokens before these.
            inputs_embeds: Word vectors in place of ids.
            use_cache: Whether to return keys and values; only a causal model does.
            output_attentions: Whether to return attention weights, which no fast path forms.
            output_hidden_states: Whether to return the input of the first layer and the output of each.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("expected either input_ids or inputs_embeds")
        config = self.config
        if inputs_embeds is None:
            inputs_embeds = self.embed_tokens(input_ids)  # [B, N, E]
        if past_key_values is not None and not config.is_causal:
            raise ValueError("past_key_values: got a cache, expected None: the model is not causal")
        if use_cache is None:
            use_cache = config.use_cache
        use_cache = use_cache and config.is_causal and not (self.gradient_checkpointing and self.training)
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache(config=config)
        past = 0 if past_key_values is None else int(past_key_values.get_seq_length())
        key_length = past + inputs_embeds.shape[1]
        if attention_mask is not None:
            attention_mask = attention_mask[..., :key_length]
        key_padding_mask, attn_mask = split_mask(attention_mask)

        hidden = self.dropout(inputs_embeds)
        if MIXERS[config.attention].adds_positions_to_input:
            hidden = hidden + self._positions(inputs_embeds, key_padding_mask, past)
        if output_attentions is None:
            output_attentions = config.output_attentions
        if output_hidden_states is None:
            output_hidden_states = config.output_hidden_states
        states, attentions = [hidden], []
        for layer in self.layers:
            hidden, weights = layer(
                hidden,
                past_key_values=past_key_values,
                key_length=key_length,
                key_padding_mask=key_padding_mask,
                attn_mask=attn_mask,
                causal=config.is_causal and attn_mask is None,  # a mask over pairs says all
                return_weights=bool(output_attentions),
            )
            states.append(hidden)
            attentions.append(weights)
        return BaseModelOutputWithPast(
            last_hidden_state=hidden,
            past_key_values=past_key_values if use_cache else None,
            hidden_states=tuple(states) if output_hidden_states else None,
            attentions=tuple(attentions) if output_attentions else None,
        )

    def _positions(self, vectors: Tensor, key_padding_mask: Tensor | None, past: int) -> Tensor:
        """Sinusoids of the places of tokens, padding not counted: [batch or 1, length, hidden_size]."""
        if key_padding_mask is None:
            places = torch.arange(past, past + vectors.shape[1], device=vectors.device).unsqueeze(0)  # [1, N]
        else:
            places = key_padding_mask.logical_not().cumsum(-1)[:, past:] - 1  # [B, N]
        waves: Tensor = sinusoids(places.flatten(), vectors.shape[-1], vectors.dtype)  # [(B or 1)·N, E]
        positions: Tensor = waves.unflatten(0, places.shape)  # [B or 1, N, E]
        return positions


class _WithHead(DATransformerPreTrainedModel):
    """An encoder and a head: encode, score, and hold the scores against labels."""

    output_class: type[ModelOutput]

    def _score(self, hidden: Tensor, attention_mask: Tensor | None) -> Tensor:
        """The head, on token vectors [batch, length, hidden_size]."""
        raise NotImplementedError

    def _loss(self, logits: Tensor, labels: Tensor, **options: Any) -> Tensor:
        raise NotImplementedError

    def _answer(
        self, labels: Tensor | None, loss_options: dict[str, Any], kept: slice | Tensor = slice(None), **inputs: Any
    ) -> ModelOutput:
        """Encode ``inputs``, and score those of the tokens that are ``kept``."""
        outputs = dict(self.model(**inputs))
        logits = self._score(outputs.pop("last_hidden_state")[:, kept], inputs["attention_mask"])
        loss = None if labels is None else self._loss(logits, labels, **loss_options)
        return self.output_class(loss=loss, logits=logits, **outputs)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        **kwargs: Any,
    ) -> ModelOutput:
        """As `DATransformerModel`, and ``labels`` to get a loss; ``kwargs`` go to the loss.

        Labels are [batch] of a classifier, [batch, length] of a language model, where −100 = none.
        """
        return self._answer(
            labels,
            kwargs,
            input_ids=input_ids,
            attention_mask=attention_mask,
            inputs_embeds=inputs_embeds,
            use_cache=False,
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
        )


class DATransformerForSequenceClassification(_WithHead):
    """Encoder, pooling, classes; or a number with ``num_labels=1``.

    Args:
        config: The parts.
    """

    output_class = SequenceClassifierOutput

    def __init__(self, config: DATransformerConfig) -> None:
        super().__init__(config)
        self.model = DATransformerModel(config)
        self.pooling = POOLINGS[config.pooling](config.hidden_size)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    def _score(self, hidden: Tensor, attention_mask: Tensor | None) -> Tensor:
        key_padding_mask, _ = split_mask(attention_mask)
        logits: Tensor = self.classifier(self.pooling(hidden, key_padding_mask))
        return logits  # [B, C]

    def _loss(self, logits: Tensor, labels: Tensor, **options: Any) -> Tensor:
        loss: Tensor = self.loss_function(labels=labels, pooled_logits=logits, config=self.config, **options)
        return loss


class _LanguageModel(_WithHead):
    """Encoder and, for each token, a score of every word."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012

    def __init__(self, config: DATransformerConfig) -> None:
        super().__init__(config)
        self.model = DATransformerModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size)
        self.post_init()

    def _score(self, hidden: Tensor, attention_mask: Tensor | None) -> Tensor:
        logits: Tensor = self.lm_head(hidden)
        return logits  # [B, N, V]

    def _loss(self, logits: Tensor, labels: Tensor, **options: Any) -> Tensor:
        loss: Tensor = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **options)
        return loss


class DATransformerForMaskedLM(_LanguageModel):
    """Encoder and, for each token, a score of every word.

    Distances have no direction: with ``attention="distance_aware"`` the words left and right of a gap can change
    places. Where that matters, choose a mixer that knows directions, ``rotary`` for example.

    Args:
        config: The parts.
    """

    output_class = MaskedLMOutput


class DATransformerForCausalLM(_LanguageModel, GenerationMixin):
    """Encoder that sees no later token and, for each token, a score of every word to come next.

    Args:
        config: The parts; ``is_causal`` becomes True in the model's own copy.
    """

    output_class = CausalLMOutputWithPast

    def __init__(self, config: DATransformerConfig) -> None:
        config = copy.deepcopy(config)
        config.is_causal = True
        super().__init__(config)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **kwargs: Any,
    ) -> ModelOutput:
        """As `DATransformerModel`, and ``labels`` [batch, length], −100 = none, to get a loss.

        ``logits_to_keep`` asks for the scores of that many tokens at the end, or of the tokens that it names; 0: all.
        """
        return self._answer(
            labels,
            kwargs,
            kept=slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep,
            input_ids=input_ids,
            attention_mask=attention_mask,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
        )
