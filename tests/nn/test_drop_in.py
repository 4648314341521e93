"""DistanceAwareAttention where torch.nn.MultiheadAttention is expected."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from datransformer import (
    MAPPINGS,
    MIXERS,
    DistanceAwareAttention,
    RelativePositionAttention,
    T5BiasAttention,
    distance_aware_attention,
)

BATCH, LENGTH, HEADS, HEAD_DIM = 2, 5, 3, 4
EMBED_DIM = HEADS * HEAD_DIM


def make_padding(length: int = LENGTH) -> Tensor:
    padding = torch.zeros(BATCH, length, dtype=torch.bool)
    padding[0, 3:] = True
    return padding


def make_layer(mixer: str = "distance_aware", **options: Any) -> nn.TransformerEncoderLayer:
    layer = nn.TransformerEncoderLayer(EMBED_DIM, HEADS, dim_feedforward=17, dropout=0.0, batch_first=True, **options)
    layer.self_attn = MIXERS[mixer](EMBED_DIM, HEADS)  # type: ignore[assignment]
    return layer


def test_is_projections_around_the_function() -> None:
    attention = DistanceAwareAttention(EMBED_DIM, HEADS, distance_weight_init=[-0.3, 0.1, 0.9], distance_shift_init=0.4)
    query, key, value = torch.randn(BATCH, 3, EMBED_DIM), *torch.randn(2, BATCH, LENGTH, EMBED_DIM)
    output, weights = attention(query, key, value, make_padding(), average_attn_weights=False)

    def heads(tensor: Tensor, part: int) -> Tensor:
        assert attention.in_proj_bias is not None
        rows = slice(part * EMBED_DIM, (part + 1) * EMBED_DIM)
        projected = tensor @ attention.in_proj_weight[rows].T + attention.in_proj_bias[rows]
        return projected.view(BATCH, -1, HEADS, HEAD_DIM).permute(0, 2, 1, 3)

    mixed, expected_weights = distance_aware_attention(
        heads(query, 0),
        heads(key, 1),
        heads(value, 2),
        torch.tensor([-0.3, 0.1, 0.9]),
        torch.full((HEADS,), 0.4),
        key_padding_mask=make_padding(),
        return_weights=True,
    )
    torch.testing.assert_close(weights, expected_weights)
    torch.testing.assert_close(output, attention.out_proj(mixed.permute(0, 2, 1, 3).reshape(BATCH, 3, EMBED_DIM)))


@pytest.mark.parametrize("options", [{}, {"mapping": "clip"}, {"adjust": "late_add"}, {"bias": False}])
def test_exactly_two_parameters_a_head_more(options: dict[str, Any]) -> None:
    plain = nn.MultiheadAttention(EMBED_DIM, HEADS, bias=options.get("bias", True))
    count = sum(parameter.numel() for parameter in DistanceAwareAttention(EMBED_DIM, HEADS, **options).parameters())
    assert count == sum(parameter.numel() for parameter in plain.parameters()) + 2 * HEADS


def test_loads_the_weights_of_plain_attention() -> None:
    plain = nn.MultiheadAttention(EMBED_DIM, HEADS, batch_first=True)
    missing = DistanceAwareAttention(EMBED_DIM, HEADS).load_state_dict(plain.state_dict(), strict=False)
    assert missing.unexpected_keys == []
    assert missing.missing_keys == ["distance_weight", "distance_shift"]


def test_same_shapes_as_plain_attention() -> None:
    plain = nn.MultiheadAttention(EMBED_DIM, HEADS, batch_first=True)
    ours = DistanceAwareAttention(EMBED_DIM, HEADS)
    query, key = torch.randn(BATCH, 3, EMBED_DIM), torch.randn(BATCH, LENGTH, EMBED_DIM)
    for unbatched in (False, True):
        inputs = (query[0], key[0], key[0]) if unbatched else (query, key, key)
        padding = make_padding()[0] if unbatched else make_padding()
        for options in ({}, {"need_weights": False}, {"average_attn_weights": False}):
            theirs = plain(*inputs, padding, **options)
            got = ours(*inputs, padding, **options)
            assert len(got) == 2
            assert [None if x is None else x.shape for x in got] == [None if x is None else x.shape for x in theirs]


@pytest.mark.parametrize("mixer", MIXERS)
def test_without_bias_between_two_texts(mixer: str) -> None:
    attention = MIXERS[mixer](EMBED_DIM, HEADS, bias=False)
    query, key = torch.randn(BATCH, 3, EMBED_DIM), torch.randn(BATCH, LENGTH, EMBED_DIM)
    output, _ = attention(query, key, key, make_padding())
    assert output.shape == query.shape
    # Nothing but linear maps of the values: twice the values, twice the output.
    if mixer != "rpr":
        torch.testing.assert_close(attention(query, key, 2 * key, make_padding())[0], 2 * output)


def test_initial_values_that_are_not_zero_and_defaults() -> None:
    for mixer, names in {"xl": ["position_proj.weight"], "rpr": ["relative_key", "relative_value"]}.items():
        parameters = dict(MIXERS[mixer](EMBED_DIM, HEADS).named_parameters())
        assert all(parameters[name].count_nonzero() > 0 for name in names)
    assert RelativePositionAttention(EMBED_DIM, HEADS).max_distance == 16
    t5 = T5BiasAttention(EMBED_DIM, HEADS)
    assert (t5.num_buckets, t5.max_distance) == (32, 128)
    shifts = {name: DistanceAwareAttention(8, 2, mapping=name).distance_shift.tolist() for name in MAPPINGS}
    assert shifts == {name: [1.0, 1.0] if name in ("clip", "linear") else [0.0, 0.0] for name in MAPPINGS}


@pytest.mark.parametrize("mixer", MIXERS)
def test_bf16_counts_positions_in_fp32(mixer: str) -> None:
    """Over 1,200 tokens, of which bf16 can count 256: as near to fp64 as plain attention is."""
    errors = {}
    for name in (mixer, "none"):
        torch.manual_seed(0)
        attention = MIXERS[name](12, 3).to(torch.bfloat16)
        inputs = torch.randn(1, 1200, 12, dtype=torch.bfloat16)
        for need_weights in (False, True):
            rough, _ = attention(inputs, inputs, inputs, need_weights=need_weights)
            exact, _ = copy.deepcopy(attention).double()(*[inputs.double()] * 3, need_weights=need_weights)
            errors[name, need_weights] = ((rough.double() - exact).norm() / exact.norm()).item()
    for need_weights in (False, True):
        assert errors[mixer, need_weights] < 5 * errors["none", need_weights] + 0.02


@pytest.mark.parametrize("mixer", MIXERS)
def test_is_built_on_meta_and_filled_from_a_state_dict(mixer: str) -> None:
    built = MIXERS[mixer](EMBED_DIM, HEADS)
    with torch.device("meta"):
        empty = MIXERS[mixer](EMBED_DIM, HEADS)
    empty.load_state_dict(built.state_dict(), assign=True)
    inputs = torch.randn(BATCH, LENGTH, EMBED_DIM)
    torch.testing.assert_close(empty(inputs, inputs, inputs), built(inputs, inputs, inputs))


def test_initial_values() -> None:
    attention = DistanceAwareAttention(10, 5, distance_shift_init=torch.arange(5.0))
    torch.testing.assert_close(attention.distance_weight.detach(), torch.linspace(-0.5, 0.5, 5))
    torch.testing.assert_close(attention.distance_shift.detach(), torch.arange(5.0))
    assert DistanceAwareAttention(8, 1).distance_weight.item() == 0.0
    assert DistanceAwareAttention(8, 2, distance_weight_init=-1).distance_weight.tolist() == [-1.0, -1.0]
    assert isinstance(attention.distance_shift, nn.Parameter)


@pytest.mark.parametrize("mixer", MIXERS)
@pytest.mark.parametrize("norm_first", [False, True])
def test_in_an_encoder_layer_it_is_called_in_training_and_in_evaluation(mixer: str, norm_first: bool) -> None:
    """In evaluation torch's layer would like to run a fused plain attention instead of its self_attn."""
    layer = make_layer(mixer, norm_first=norm_first)
    inputs, padding = torch.randn(BATCH, LENGTH, EMBED_DIM), make_padding()
    trained = layer(inputs, src_key_padding_mask=padding)
    trained.sum().backward()
    assert all(parameter.grad is not None for parameter in layer.parameters())
    layer.eval()
    with torch.no_grad():
        torch.testing.assert_close(layer(inputs, src_key_padding_mask=padding), trained.detach())

    attended = layer.norm1(inputs) if norm_first else inputs
    mixed, _ = layer.self_attn(attended, attended, attended, key_padding_mask=padding)
    hidden = inputs + mixed if norm_first else layer.norm1(inputs + mixed)
    forward = layer.linear2(layer.linear1(layer.norm2(hidden) if norm_first else hidden).relu())
    expected = hidden + forward if norm_first else layer.norm2(hidden + forward)
    torch.testing.assert_close(trained, expected)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
def test_nests_in_transformer_encoder(device: str) -> None:
    encoder = nn.TransformerEncoder(make_layer(), num_layers=2).to(device)
    inputs, padding = torch.randn(BATCH, LENGTH, EMBED_DIM, device=device), make_padding().to(device)
    trained = encoder(inputs, src_key_padding_mask=padding)
    (trained * torch.randn_like(trained)).sum().backward()  # the plain sum of what is normalised is a constant
    assert encoder.layers[1].self_attn.distance_weight.grad.count_nonzero() == HEADS
    encoder.eval()
    with torch.no_grad():
        evaluated = encoder(inputs, src_key_padding_mask=padding)
        cut = encoder(inputs[:1, :3])
    torch.testing.assert_close(evaluated, trained.detach())
    torch.testing.assert_close(evaluated[:1, :3], cut)


def test_causal_in_transformer_encoder() -> None:
    encoder = nn.TransformerEncoder(make_layer(), num_layers=2, enable_nested_tensor=False).eval()
    inputs = torch.randn(BATCH, LENGTH, EMBED_DIM)
    mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)
    whole = encoder(inputs, mask=mask, is_causal=True)
    torch.testing.assert_close(whole[:, :2], encoder(inputs[:, :2], mask=mask[:2, :2]))


@pytest.mark.parametrize("kind", ["padding", "causal", "both"])
def test_masks_of_torchs_encoders_reach_the_mixer_as_no_backend_objects_to(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They turn a bool padding mask into 0 and −inf, and hand a causal mask on beside is_causal."""
    encoder = nn.TransformerEncoder(make_layer(), num_layers=1, enable_nested_tensor=False)
    inputs = torch.randn(BATCH, LENGTH, EMBED_DIM)
    masks: dict[str, Any] = {}
    if kind != "causal":
        masks["src_key_padding_mask"] = make_padding()
    if kind != "padding":
        masks |= {"mask": torch.ones(LENGTH, LENGTH).triu(1).bool(), "is_causal": True}
    seen: dict[str, Any] = {}
    mix = DistanceAwareAttention.mix

    def watch(self: DistanceAwareAttention, *tensors: Tensor, **options: Any) -> Any:
        seen.update(options)
        return mix(self, *tensors, **options)

    with monkeypatch.context() as patch:
        patch.setattr(DistanceAwareAttention, "mix", watch)
        fast = encoder(inputs, **masks)
    assert seen["attn_mask"] is None
    assert seen["causal"] == (kind != "padding")
    assert (seen["key_padding_mask"] is not None) == (kind != "causal")
    monkeypatch.setattr("datransformer.nn.multihead._can_be_read", lambda mask: False)
    torch.testing.assert_close(fast, encoder(inputs, **masks))


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
def test_a_mask_beside_is_causal_that_says_more_is_heeded(dtype: torch.dtype) -> None:
    attention = DistanceAwareAttention(EMBED_DIM, HEADS)
    inputs = torch.randn(BATCH, LENGTH, EMBED_DIM)
    hidden = torch.ones(LENGTH, LENGTH).triu(1).bool()
    hidden[4, 1] = True
    mask = hidden if dtype == torch.bool else torch.zeros(LENGTH, LENGTH).masked_fill(hidden, -torch.inf)
    _, weights = attention(inputs, inputs, inputs, attn_mask=mask, is_causal=True)
    assert weights[:, 4, 1].count_nonzero() == 0
    biased = torch.zeros(LENGTH, LENGTH).masked_fill(torch.ones(LENGTH, LENGTH).triu(1).bool(), -torch.inf)
    biased[3, 0] = 9.0
    _, weights = attention(inputs, inputs, inputs, attn_mask=biased, is_causal=True)
    assert (weights[:, 3, 0] > 0.9).all()


def test_a_padding_mask_of_numbers_is_added() -> None:
    attention = DistanceAwareAttention(EMBED_DIM, HEADS)
    inputs, padding = torch.randn(BATCH, LENGTH, EMBED_DIM), torch.zeros(BATCH, LENGTH)
    padding[:, 2] = 9.0
    _, weights = attention(inputs, inputs, inputs, key_padding_mask=padding)
    assert (weights[:, :, 2] > 0.9).all()
    padding.zero_().requires_grad_()
    attention(inputs, inputs, inputs, key_padding_mask=padding)[0].sum().backward()
    assert padding.grad is not None


def test_batch_first_is_the_only_way() -> None:
    DistanceAwareAttention(EMBED_DIM, HEADS, batch_first=True)
    with pytest.raises(ValueError, match="batch_first: got False, expected True"):
        DistanceAwareAttention(EMBED_DIM, HEADS, batch_first=False)


def test_in_a_decoder_layer() -> None:
    layer = nn.TransformerDecoderLayer(EMBED_DIM, HEADS, dim_feedforward=17, batch_first=True)
    layer.self_attn = DistanceAwareAttention(EMBED_DIM, HEADS)  # type: ignore[assignment]
    layer.multihead_attn = DistanceAwareAttention(EMBED_DIM, HEADS)  # type: ignore[assignment]
    target, memory = torch.randn(BATCH, 3, EMBED_DIM), torch.randn(BATCH, LENGTH, EMBED_DIM)
    output = layer(target, memory, tgt_is_causal=True, memory_key_padding_mask=make_padding())
    assert output.shape == target.shape
    assert output.isfinite().all()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype")
def test_swapping_into_a_finished_transformer_encoder_says_what_to_do() -> None:
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, batch_first=True), num_layers=1)
    encoder.layers[0].self_attn = DistanceAwareAttention(8, 2)
    encoder.eval()
    with torch.no_grad(), pytest.raises(TypeError, match="built after self_attn is assigned, or with enable_nested_t"):
        encoder(torch.randn(BATCH, LENGTH, 8), src_key_padding_mask=make_padding())


def test_is_causal_needs_no_mask_and_masks_add_up() -> None:
    attention = DistanceAwareAttention(EMBED_DIM, HEADS)
    inputs = torch.randn(BATCH, LENGTH, EMBED_DIM)
    mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
    padding = make_padding()
    float_padding = torch.zeros(BATCH, LENGTH).masked_fill(padding, -torch.inf)
    expected = attention(inputs, inputs, inputs, padding, attn_mask=mask)
    per_head = mask.expand(BATCH * HEADS, -1, -1)
    for arguments in (
        {"key_padding_mask": padding, "is_causal": True},
        {"key_padding_mask": padding, "attn_mask": mask, "is_causal": True},
        {"key_padding_mask": float_padding, "attn_mask": mask},
        {"key_padding_mask": float_padding, "is_causal": True},
        {"key_padding_mask": padding, "attn_mask": per_head},
        {"key_padding_mask": float_padding, "attn_mask": torch.zeros(mask.shape).masked_fill(mask, -torch.inf)},
    ):
        torch.testing.assert_close(attention(inputs, inputs, inputs, **arguments), expected)


def test_a_mask_per_head_reaches_its_head() -> None:
    attention = DistanceAwareAttention(EMBED_DIM, HEADS)
    inputs = torch.randn(BATCH, LENGTH, EMBED_DIM)
    mask = torch.zeros(BATCH, HEADS, LENGTH, LENGTH, dtype=torch.bool)
    mask[1, 2, :, 4] = True
    _, weights = attention(inputs, inputs, inputs, attn_mask=mask.flatten(0, 1), average_attn_weights=False)
    assert ((weights == 0) == mask).all()


def test_copies_and_half_precision() -> None:
    attention = copy.deepcopy(DistanceAwareAttention(EMBED_DIM, HEADS)).to(torch.bfloat16)
    inputs = torch.randn(BATCH, LENGTH, EMBED_DIM, dtype=torch.bfloat16)
    output, weights = attention(inputs, inputs, inputs, make_padding())
    assert output.dtype == weights.dtype == torch.bfloat16


GOOD = torch.zeros(BATCH, LENGTH, EMBED_DIM)
WRONG_CALLS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"query": GOOD[None]}, ValueError, r"query: got shape \(1, 2, 5, 12\), expected \(batch, length, embed_dim\)"),
    ({"key": GOOD[..., :7]}, ValueError, r"key: got shape \(2, 5, 7\), expected .* embed_dim = 12"),
    ({"key": GOOD[0]}, ValueError, "key: got 2 axes, expected as many as query has, 3"),
    ({"key": GOOD[:1]}, ValueError, r"key: got shape \(1, 5, 12\), expected .* = \(2, 5, 12\)"),
    ({"value": GOOD[:, :4]}, ValueError, r"value: got shape \(2, 4, 12\), expected .* = \(2, 5, 12\)"),
    ({"value": GOOD.double()}, TypeError, "value: got dtype torch.float64, expected that of the module, torch.float32"),
    ({"key_padding_mask": [[False] * 5] * 2}, TypeError, "key_padding_mask: got list, expected a torch.Tensor"),
    ({"value": None}, TypeError, "value: got NoneType, expected a torch.Tensor"),
    ({"query": GOOD[:, :0]}, ValueError, "query: got length 0, expected at least one token"),
    ({"key_padding_mask": torch.zeros(2, 4).bool()}, ValueError, r"key_padding_mask: got shape \(2, 4\), expected"),
    ({"key_padding_mask": torch.zeros(2, 4)}, ValueError, r"key_padding_mask: got shape \(2, 4\), expected"),
    ({"key_padding_mask": torch.zeros(2, 5).long()}, TypeError, "key_padding_mask: got dtype torch.int64, expected"),
    ({"attn_mask": torch.zeros(5, 5, 5).bool()}, ValueError, r"attn_mask: got shape \(5, 5, 5\), expected .* = \(6, 5"),
    ({"attn_mask": torch.zeros(4, 5).bool()}, ValueError, r"attn_mask: got shape \(4, 5\), expected"),
]  # fmt: skip


@pytest.mark.parametrize(("wrong", "error", "message"), WRONG_CALLS)
@pytest.mark.parametrize("mixer", MIXERS)
def test_bad_calls_are_named(mixer: str, wrong: dict[str, Any], error: type[Exception], message: str) -> None:
    attention = MIXERS[mixer](EMBED_DIM, HEADS)
    with pytest.raises(error, match=f"^{message}"):
        attention(**{"query": GOOD, "key": GOOD, "value": GOOD, **wrong})


WRONG_BUILDS: list[tuple[str, dict[str, Any], type[Exception], str]] = [
    ("distance_aware", {"embed_dim": 10}, ValueError, "embed_dim: got 10, expected a multiple of num_heads = 3, or a"),
    ("distance_aware", {"num_heads": True}, TypeError, "num_heads: got bool True, expected a positive int"),
    ("distance_aware", {"num_heads": 0}, ValueError, "num_heads: got 0, expected a positive int"),
    ("distance_aware", {"head_dim": 2.0}, TypeError, "head_dim: got float 2.0, expected a positive int"),
    ("distance_aware", {"dropout": 1.0}, ValueError, r"dropout: got 1.0, expected a float in \[0, 1\)"),
    ("distance_aware", {"mapping": "cosine"}, ValueError, "mapping: got 'cosine', expected one of 'clip', "),
    ("distance_aware", {"adjust": "never"}, ValueError, "adjust: got 'never', expected one of 'early_multiply', "),
    ("distance_aware", {"backend": "magic"}, ValueError, "backend: got 'magic', expected one of 'auto', "),
    ("distance_aware", {"distance_weight_init": [1.0]}, ValueError, r"distance_weight_init: got shape \(1,\), ex"),
    ("distance_aware", {"distance_weight_init": "a"}, TypeError, "distance_weight_init: got .a., expected a number"),
    ("distance_aware", {"distance_shift_init": float("nan")}, ValueError, r"distance_shift_init: got \[?nan.*finite"),
    ("rotary", {"head_dim": 3}, ValueError, "head_dim: got 3, expected an even number"),
    ("rpr", {"max_distance": 0}, ValueError, "max_distance: got 0, expected a positive int"),
    ("t5_bias", {"num_buckets": 6}, ValueError, "num_buckets: got 6, expected a multiple of 4"),
    ("t5_bias", {"max_distance": 8}, ValueError, "max_distance: got 8, expected more than num_buckets / 4 = 8"),
]  # fmt: skip


@pytest.mark.parametrize(("mixer", "wrong", "error", "message"), WRONG_BUILDS)
def test_bad_builds_are_named(mixer: str, wrong: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{message}"):
        MIXERS[mixer](**{"embed_dim": EMBED_DIM, "num_heads": HEADS, **wrong})
