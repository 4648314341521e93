"""Multi-head projections around any mixer, called like torch.nn.MultiheadAttention with batch_first=True."""

from typing import ClassVar, TypedDict, Unpack

import torch
from torch import Tensor, nn

from datransformer.nn.flat import Flat
from datransformer.ops.checks import (
    check_attn_mask,
    check_bool_mask,
    check_dropout,
    check_floating,
    check_length,
    check_positive_int,
    check_shape,
    check_tensor,
    under_autocast,
)
from datransformer.ops.fast_paths import is_transformed


class MixOptions(TypedDict):
    """What a mixer gets beside query, key and value: masks as `datransformer.distance_aware_attention` takes them."""

    key_padding_mask: Tensor | None
    attn_mask: Tensor | None
    causal: bool
    dropout_p: float


class MultiheadAttention(nn.Module):
    """Project, split into heads, mix, merge, project. A subclass says how to mix, in `mix`.

    The projections are named and shaped as in torch.nn.MultiheadAttention, so that where
    ``num_heads * head_dim == embed_dim`` a state dict of that module loads with ``strict=False``, into any mixer that
    projects query, key and value.

    Args:
        embed_dim: Width of the inputs and of the output.
        num_heads: Number of heads.
        head_dim: Width of a head, embed_dim / num_heads if None. The paper's models have 300-d inputs and 16 × 16.
        dropout: Probability of dropping an attention weight in training.
        bias: Whether the projections have a bias.
        projected: Which of query, key and value have an input projection; the others are only split into heads.
    """

    # Subclasses whose order information is added to the input embeddings, outside the attention, say so here.
    adds_positions_to_input: ClassVar[bool] = False

    # torch.nn.TransformerEncoderLayer reads these two. The second keeps it off its fused inference path, which
    # would compute plain softmax attention from the projections and never call this module.
    batch_first = True
    _qkv_same_embed_dim = False

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        head_dim: int | None = None,
        *,
        dropout: float = 0.0,
        bias: bool = True,
        projected: tuple[str, ...] = ("query", "key", "value"),
    ) -> None:
        super().__init__()
        check_positive_int("embed_dim", embed_dim)
        check_positive_int("num_heads", num_heads)
        check_dropout("dropout", dropout)
        if head_dim is None:
            if embed_dim % num_heads:
                raise ValueError(
                    f"embed_dim: got {embed_dim}, expected a multiple of num_heads = {num_heads}, or a head_dim"
                )
            head_dim = embed_dim // num_heads
        check_positive_int("head_dim", head_dim)
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.dropout = dropout
        self.projected = projected
        inner_dim = num_heads * head_dim
        self.in_proj_weight = nn.Parameter(torch.empty(len(projected) * inner_dim, embed_dim))
        self.in_proj_bias = nn.Parameter(torch.zeros(len(projected) * inner_dim)) if bias else None
        self.out_proj = nn.Linear(inner_dim, embed_dim, bias=bias)
        nn.init.xavier_uniform_(self.in_proj_weight)
        if bias:
            nn.init.zeros_(self.out_proj.bias)

    def mix(
        self, query: Tensor, key: Tensor, value: Tensor, *, return_weights: bool, **options: Unpack[MixOptions]
    ) -> tuple[Tensor, Tensor | None]:
        """Let each query gather from the values: [batch, heads, length, head_dim] in and out, and the weights."""
        raise NotImplementedError(f"{type(self).__name__} does not say how to mix; use a class of MIXERS")

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend from ``query`` to ``key`` and ``value``, arguments and results as torch.nn.MultiheadAttention.

        Three things are more lenient than there: ``is_causal`` needs no ``attn_mask`` beside it, key length may
        differ from query length with the queries aligned to the end of the keys, and a query with no visible key
        gets zeros from the mixer instead of NaN.

        Args:
            query: ``[batch, query_length, embed_dim]``, or without the batch axis in all three.
            key: ``[batch, key_length, embed_dim]``.
            value: ``[batch, key_length, embed_dim]``.
            key_padding_mask: ``[batch, key_length]``; bool, True = ignore, or float, added to the scores.
            need_weights: Whether to return the attention weights. No fast path forms them: pass False in training.
            attn_mask: ``[query_length, key_length]`` or ``[batch * num_heads, query_length, key_length]``; bool,
                True = ignore, or float, added to the scores.
            average_attn_weights: Whether the returned weights are averaged over the heads.
            is_causal: Hide the keys that lie after the query.

        Returns:
            The output, shaped as ``query``, and the weights ``[batch, query_length, key_length]``
            (``[batch, num_heads, query_length, key_length]`` if not averaged) or None.
        """
        self._check_inputs(query, key, value)
        if key_padding_mask is not None:
            check_tensor("key_padding_mask", key_padding_mask)
        if query.dim() == 2:
            output, weights = self(
                query.unsqueeze(0),
                key.unsqueeze(0),
                value.unsqueeze(0),
                None if key_padding_mask is None else key_padding_mask.unsqueeze(0),
                need_weights,
                attn_mask,
                average_attn_weights,
                is_causal,
            )
            return output.squeeze(0), None if weights is None else weights.squeeze(0)

        shape = (query.shape[0], self.num_heads, query.shape[1], key.shape[1])
        attn_mask = self._unfold_attn_mask(attn_mask, shape)
        key_padding_mask = _as_bool_padding(key_padding_mask)
        if is_causal and _is_causal_mask(attn_mask):
            attn_mask = None
        if key_padding_mask is not None and key_padding_mask.is_floating_point():
            # torch's own encoder layers turn a bool mask into 0 and −inf before they pass it on.
            check_shape("key_padding_mask", key_padding_mask, "(batch, key_length)", (shape[0], shape[3]))
            added = key_padding_mask[:, None, None, :].expand(-1, -1, shape[2], -1)  # [B, 1, Nq, Nk]
            attn_mask = added if attn_mask is None else _as_float(attn_mask, added.dtype) + added
            key_padding_mask = None
        if key_padding_mask is not None:
            check_bool_mask("key_padding_mask", key_padding_mask, "(batch, key_length)", (shape[0], shape[3]))

        mixed, weights = self.mix(
            *self.project(query, key, value),
            key_padding_mask=key_padding_mask,
            attn_mask=attn_mask,
            causal=is_causal,
            dropout_p=self.dropout if self.training else 0.0,
            return_weights=need_weights,
        )
        output = self.out_proj(mixed.transpose(1, 2).flatten(2))  # [B, Nq, E]
        if weights is not None and average_attn_weights:
            weights = weights.mean(1)  # [B, Nq, Nk]
        return output, weights

    @property
    def is_plain(self) -> bool:
        """Whether projections are used as here: a subclass may have its own ways, and a hook expects a call."""
        kind = type(self)
        is_own = kind.forward is MultiheadAttention.forward and kind.project is MultiheadAttention.project
        return is_own and not (self._forward_hooks or self._forward_pre_hooks)

    def forward_flat(self, inputs: Tensor, flat: Flat) -> Tensor:
        """Attend from every token to all of its text: [tokens, embed_dim] in and out."""
        if not self.is_plain:
            parts = [self(part, part, part, padding, need_weights=False)[0] for part, padding in flat.spread(inputs)]
            return flat.collect(parts)
        width = self.num_heads * self.head_dim
        rows = nn.functional.linear(inputs, self.in_proj_weight, self.in_proj_bias)  # [T, 3·H·D], fewer if not all are
        if len(self.projected) < 3:
            given = {"query": inputs, "key": inputs, "value": inputs}
            rows = torch.cat(list((given | dict(zip(self.projected, rows.split(width, -1), strict=True))).values()), -1)
        mixed = []
        for part, padding in flat.spread(rows):
            heads = part.unflatten(-1, (3, self.num_heads, self.head_dim)).permute(2, 0, 3, 1, 4)  # [3, B, H, N, D]
            output, _ = self.mix(
                *heads.unbind(),
                key_padding_mask=padding,
                attn_mask=None,
                causal=False,
                dropout_p=self.dropout if self.training else 0.0,
                return_weights=False,
            )
            mixed.append(output.transpose(1, 2).flatten(2))  # [B, N, H·D]
        collected: Tensor = self.out_proj(flat.collect(mixed))
        return collected  # [T, E]

    def _check_inputs(self, query: Tensor, key: Tensor, value: Tensor) -> None:
        for name, tensor in (("query", query), ("key", key), ("value", value)):
            if isinstance(tensor, Tensor) and tensor.is_nested:
                raise TypeError(
                    f"{name}: got a nested tensor, expected a padded one. A torch.nn.TransformerEncoder must be built "
                    "after self_attn is assigned, or with enable_nested_tensor=False"
                )
            check_floating(name, tensor)
            if tensor.dim() not in (2, 3) or tensor.shape[-1] != self.embed_dim:
                raise ValueError(
                    f"{name}: got shape {tuple(tensor.shape)}, expected (batch, length, embed_dim) or "
                    f"(length, embed_dim) with embed_dim = {self.embed_dim}"
                )
            weight = self.in_proj_weight
            if tensor.dtype != weight.dtype and not under_autocast(tensor):
                raise TypeError(f"{name}: got dtype {tensor.dtype}, expected that of the module, {weight.dtype}")
            if tensor.dim() != query.dim():
                raise ValueError(f"{name}: got {tensor.dim()} axes, expected as many as query has, {query.dim()}")
        check_length("query", query.shape[-2])
        check_shape("key", key, "(batch, key_length, embed_dim)", (*query.shape[:-2], *key.shape[-2:]))
        check_shape("value", value, "(batch, key_length, embed_dim)", key.shape)

    def _unfold_attn_mask(self, attn_mask: Tensor | None, shape: tuple[int, int, int, int]) -> Tensor | None:
        """Bring the [batch * num_heads, query, key] form to four axes and check the rest."""
        if attn_mask is None:
            return None
        check_tensor("attn_mask", attn_mask)
        batch, heads, query_length, key_length = shape
        if attn_mask.dim() == 3:
            expected = (batch * heads, query_length, key_length)
            check_shape("attn_mask", attn_mask, "(batch * num_heads, query_length, key_length)", expected)
            attn_mask = attn_mask.unflatten(0, (batch, heads))  # [B, H, Nq, Nk]
        check_attn_mask("attn_mask", attn_mask, shape)
        return attn_mask

    def project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Project and split into heads: three times [batch, heads, length, head_dim]."""
        inputs = {"query": query, "key": key, "value": value}
        parts = len(self.projected)
        if query is key and key is value:
            rows = nn.functional.linear(query, self.in_proj_weight, self.in_proj_bias)  # [B, N, 3·H·D]
            inputs.update(zip(self.projected, rows.chunk(parts, dim=-1), strict=True))
        else:
            biases = [None] * parts if self.in_proj_bias is None else self.in_proj_bias.chunk(parts)
            for name, weight, bias in zip(self.projected, self.in_proj_weight.chunk(parts), biases, strict=True):
                inputs[name] = nn.functional.linear(inputs[name], weight, bias)  # [B, N, H·D]
        query, key, value = (
            tensor.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2) for tensor in inputs.values()
        )  # [B, H, N, D]
        return query, key, value

    def extra_repr(self) -> str:
        return (
            f"embed_dim={self.embed_dim}, num_heads={self.num_heads}, head_dim={self.head_dim}, dropout={self.dropout}"
        )


def _can_be_read(mask: Tensor | None) -> bool:
    """Whether the content of a mask may decide what is computed: not while a program is being recorded."""
    return (
        mask is not None
        and not (mask.requires_grad or mask.is_meta or torch.compiler.is_compiling() or is_transformed())
        and not (mask.is_cuda and torch.cuda.is_current_stream_capturing())
    )


def _as_bool_padding(mask: Tensor | None) -> Tensor | None:
    """A mask of 0 and −inf, which is what torch's own encoder layers make of a bool one, as the bool that it was."""
    if mask is None or not mask.is_floating_point() or not _can_be_read(mask):
        return mask
    hidden = mask.isneginf()
    return hidden if ((mask == 0) | hidden).all() else mask


def _is_causal_mask(mask: Tensor | None) -> bool:
    """Whether a mask hides what ``is_causal`` hides and nothing else: torch's encoders pass both."""
    if mask is None or mask.dim() != 2 or not _can_be_read(mask):
        return False
    queries, keys = mask.shape
    later = torch.ones_like(mask, dtype=torch.bool).triu(keys - queries + 1)
    hidden = mask if mask.dtype == torch.bool else mask.isneginf()
    return bool((hidden == later).all() and (mask.dtype == torch.bool or (hidden | (mask == 0)).all()))


def _as_float(mask: Tensor, dtype: torch.dtype) -> Tensor:
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=dtype).masked_fill(mask, -torch.inf)
