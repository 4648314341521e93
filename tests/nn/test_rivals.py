"""Every mixer against what its own paper prints, pair by pair, and against what all of them must share."""

import cmath
import itertools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor, nn

from datransformer import MIXERS, Encoder, MultiheadAttention
from datransformer.nn.alibi import slopes
from datransformer.nn.t5_bias import bucket

BATCH, HEADS, LENGTH, HEAD_DIM = 2, 3, 5, 4
INNER_DIM = HEADS * HEAD_DIM
WIDTHS = [INNER_DIM, 11]  # heads that fill the embedding, and heads that do not
SHAPES = [(LENGTH, LENGTH), (LENGTH, 7), (7, LENGTH)]  # queries, keys
# Small enough that clipping and the logarithmic buckets take part within a handful of tokens.
OPTIONS: dict[str, dict[str, Any]] = {
    "rpr": {"max_distance": 2},
    "t5_bias": {"num_buckets": 8, "max_distance": 5},
}
ABSOLUTE = {"vanilla"}
BLIND_TO_DIRECTION = {"distance_aware", "alibi", "none"}
BLIND_TO_DISTANCE = {"none"}

Module = TypeVar("Module", bound=nn.Module)
Parameters = dict[str, Tensor]


def randomise(module: Module) -> Module:
    """fp64, and no parameter left at a zero or a one behind which a mistake could hide."""
    module.double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(std=0.5)
    return module


def make_mixer(mixer: str, embed_dim: int = INNER_DIM, dropout: float = 0.0) -> MultiheadAttention:
    return randomise(MIXERS[mixer](embed_dim, HEADS, HEAD_DIM, dropout=dropout, **OPTIONS.get(mixer, {})))


def make_encoder(mixer: str, embed_dim: int = INNER_DIM, num_layers: int = 2) -> Encoder:
    options = OPTIONS.get(mixer)
    return randomise(Encoder(embed_dim, HEADS, HEAD_DIM, num_layers=num_layers, mixer=mixer, mixer_options=options))


def make_inputs(query_length: int = LENGTH, key_length: int = LENGTH, embed_dim: int = INNER_DIM) -> list[Tensor]:
    """Query, key and value: one tensor thrice where the lengths agree, as self-attention has it, else three."""
    if query_length == key_length:
        return [torch.randn(BATCH, key_length, embed_dim, dtype=torch.float64, requires_grad=True)] * 3
    lengths = (query_length, key_length, key_length)
    return [torch.randn(BATCH, length, embed_dim, dtype=torch.float64, requires_grad=True) for length in lengths]


def make_padding(length: int = LENGTH, *, whole: bool = False) -> Tensor:
    """Padding at the start and in the middle of the first text, at the end or all through the second."""
    padding = torch.zeros(BATCH, length, dtype=torch.bool)
    padding[0, [0, 2]] = True
    padding[1, 0 if whole else -1 :] = True
    return padding


def as_float(mask: Tensor) -> Tensor:
    return torch.zeros(mask.shape, dtype=torch.float64).masked_fill(mask, -math.inf)


def sinusoid(position: int, dim: int) -> Tensor:
    """PE(p, 2i) = sin(p / 10000^(2i/dim)), PE(p, 2i+1) = cos(p / 10000^(2i/dim))."""
    angles = [position / 10000 ** (2 * (column // 2) / dim) for column in range(dim)]
    entries = [math.cos(angle) if column % 2 else math.sin(angle) for column, angle in enumerate(angles)]
    return torch.tensor(entries, dtype=torch.float64)


def t5_bucket(key_minus_query: int, num_buckets: int, max_distance: int) -> int:
    """T5's bidirectional rule for one pair; in fractions, so that no logarithm rounds across a bucket's edge."""
    side = num_buckets // 2
    exact = side // 2
    first = side if key_minus_query > 0 else 0
    distance = abs(key_minus_query)
    if distance < exact:
        return first + distance
    # floor(log(distance / exact) / log(max_distance / exact) · (side − exact)), capped.
    spaced, step = side - exact, 0
    while step < spaced - 1 and Fraction(distance, exact) ** spaced >= Fraction(max_distance, exact) ** (step + 1):
        step += 1
    return first + exact + step


def clip(x: int) -> int:
    """Row of Shaw's table: clip(x, k) counted from −k."""
    k: int = OPTIONS["rpr"]["max_distance"]
    return max(-k, min(k, x)) + k


def plain_score(p: Parameters, h: int, q: Tensor, k: Tensor, i: int, j: int) -> Tensor:
    return q @ k / math.sqrt(HEAD_DIM)


def distance_aware_score(p: Parameters, h: int, q: Tensor, k: Tensor, i: int, j: int) -> Tensor:
    w, v = p["distance_weight"][h].item(), p["distance_shift"][h].item()
    coefficient = (1 + math.exp(v)) / (1 + math.exp(v - w * abs(i - j)))
    return max(q @ k, torch.zeros_like(q[0])) * coefficient / math.sqrt(HEAD_DIM)


def rpr_score(p: Parameters, h: int, q: Tensor, k: Tensor, i: int, j: int) -> Tensor:
    return q @ (k + p["relative_key"][clip(j - i)]) / math.sqrt(HEAD_DIM)


def xl_score(p: Parameters, h: int, q: Tensor, k: Tensor, i: int, j: int) -> Tensor:
    matrix = p["position_proj.weight"][h * HEAD_DIM : (h + 1) * HEAD_DIM]
    relative = matrix @ sinusoid(i - j, matrix.shape[1])
    u, v = p["content_bias"][h], p["position_bias"][h]
    return (q @ k + q @ relative + u @ k + v @ relative) / math.sqrt(HEAD_DIM)


def adapted_score(p: Parameters, h: int, q: Tensor, k: Tensor, i: int, j: int) -> Tensor:
    relative = sinusoid(i - j, HEAD_DIM)
    u, v = p["content_bias"][h], p["position_bias"][h]
    return q @ k + q @ relative + u @ k + v @ relative


def rotary_score(p: Parameters, h: int, q: Tensor, k: Tensor, i: int, j: int) -> Tensor:
    total = 0.0
    for pair in range(HEAD_DIM // 2):
        theta = 10000 ** (-2 * pair / HEAD_DIM)
        turned_q = complex(q[2 * pair], q[2 * pair + 1]) * cmath.exp(1j * i * theta)
        turned_k = complex(k[2 * pair], k[2 * pair + 1]) * cmath.exp(1j * j * theta)
        total += (turned_q * turned_k.conjugate()).real
    return q.new_tensor(total / math.sqrt(HEAD_DIM))


def alibi_score(p: Parameters, h: int, q: Tensor, k: Tensor, i: int, j: int) -> Tensor:
    slope = (1 / 16, 1 / 256, 1 / 4)[h]  # both slopes of two heads, then the first of four
    return plain_score(p, h, q, k, i, j) - slope * abs(i - j)


def t5_bias_score(p: Parameters, h: int, q: Tensor, k: Tensor, i: int, j: int) -> Tensor:
    return plain_score(p, h, q, k, i, j) + p["relative_bias"][h, t5_bucket(j - i, **OPTIONS["t5_bias"])]


# One pair's score: parameters, head, the head's query and key vectors, their positions.
LITERAL_SCORES: dict[str, Callable[[Parameters, int, Tensor, Tensor, int, int], Tensor]] = {
    "distance_aware": distance_aware_score,
    "vanilla": plain_score,
    "rpr": rpr_score,
    "xl": xl_score,
    "adapted": adapted_score,
    "rotary": rotary_score,
    "alibi": alibi_score,
    "t5_bias": t5_bias_score,
    "none": plain_score,
}


def literal_heads(mixer: str, p: Parameters, inputs: list[Tensor]) -> list[Tensor]:
    """Project and cut into heads: [batch, length, heads, head_dim], thrice."""
    tensors = dict(zip(("query", "key", "value"), inputs, strict=True))
    keys_as_they_are = mixer == "adapted" and inputs[1].shape[-1] == INNER_DIM
    names = [name for name in tensors if not (keys_as_they_are and name == "key")]
    matrices, biases = p["in_proj_weight"].split(INNER_DIM), p["in_proj_bias"].split(INNER_DIM)
    for name, matrix, bias in zip(names, matrices, biases, strict=True):
        tensors[name] = tensors[name] @ matrix.T + bias
    return [tensor.unflatten(-1, (HEADS, HEAD_DIM)) for tensor in tensors.values()]


def literal_weights(
    mixer: str, p: Parameters, inputs: list[Tensor], padding: Tensor, causal: bool = False
) -> tuple[Tensor, Tensor]:
    """The weights [batch, heads, query, key], and the mixer's output for them, one pair at a time."""
    query, key, _ = literal_heads(mixer, p, inputs)
    (query_length, key_length), score = (query.shape[1], key.shape[1]), LITERAL_SCORES[mixer]
    weights = torch.zeros(BATCH, HEADS, query_length, key_length, dtype=torch.float64)
    for b, h, row in itertools.product(range(BATCH), range(HEADS), range(query_length)):
        i = row + key_length - query_length
        seen = [j for j in range(key_length) if not padding[b, j] and not (causal and j > i)]
        scores = {j: math.exp(score(p, h, query[b, row, h], key[b, j, h], i, j)) for j in seen}
        for j in seen:
            weights[b, h, row, j] = scores[j] / sum(scores.values())
    return weights, literal_output(mixer, p, inputs, weights)


def literal_output(mixer: str, p: Parameters, inputs: list[Tensor], weights: Tensor) -> Tensor:
    """z_i = Σ_j α_ij v_j, in Shaw's case Σ_j α_ij (v_j + a^V_clip(j−i)), and the output projection."""
    value = literal_heads(mixer, p, inputs)[2]
    query_length, key_length = weights.shape[2:]
    mixed = torch.zeros(BATCH, query_length, HEADS, HEAD_DIM, dtype=torch.float64)
    for b, h, row, j in itertools.product(*map(range, weights.shape)):
        i = row + key_length - query_length
        gathered = value[b, j, h] + (p["relative_value"][clip(j - i)] if mixer == "rpr" else 0)
        mixed[b, row, h] += weights[b, h, row, j] * gathered
    return mixed.flatten(2) @ p["out_proj.weight"].T + p["out_proj.bias"]


@torch.no_grad()
@pytest.mark.parametrize(("query_length", "key_length"), SHAPES)
@pytest.mark.parametrize("embed_dim", WIDTHS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("mixer", MIXERS)
def test_matches_its_paper_pair_by_pair(
    mixer: str, causal: bool, embed_dim: int, query_length: int, key_length: int
) -> None:
    module = make_mixer(mixer, embed_dim)
    inputs = make_inputs(query_length, key_length, embed_dim)
    padding = make_padding(key_length)
    expected_weights, expected = literal_weights(mixer, dict(module.named_parameters()), inputs, padding, causal)
    output, weights = module(*inputs, padding, average_attn_weights=False, is_causal=causal)
    fused, nothing = module(*inputs, padding, need_weights=False, is_causal=causal)
    torch.testing.assert_close(weights, expected_weights)
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(fused, expected)
    assert nothing is None


ATTN_MASKS: dict[str, Callable[[int, int], Tensor | None]] = {
    "no mask": lambda rows, columns: None,
    "bool": lambda rows, columns: torch.rand(rows, columns) < 0.4,
    "bool per head": lambda rows, columns: torch.rand(BATCH * HEADS, rows, columns) < 0.4,
    "float": lambda rows, columns: torch.randn(rows, columns, dtype=torch.float64),
    "float per head": lambda rows, columns: as_float(torch.rand(BATCH * HEADS, rows, columns) < 0.4) + 0.3,
}


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize(("query_length", "key_length"), SHAPES)
@pytest.mark.parametrize("mask", ATTN_MASKS)
@pytest.mark.parametrize("mixer", ["vanilla", "none"])
def test_plain_attention_is_torchs(mixer: str, mask: str, query_length: int, key_length: int, batched: bool) -> None:
    theirs = randomise(nn.MultiheadAttention(INNER_DIM, HEADS, batch_first=True))
    ours = make_mixer(mixer)
    ours.load_state_dict(theirs.state_dict())
    inputs, padding = make_inputs(query_length, key_length), make_padding(key_length)
    attn_mask = ATTN_MASKS[mask](query_length, key_length)
    if attn_mask is not None:
        attn_mask[..., 3] = 0  # a key that no padding hides: torch has no answer for a query that sees nothing
    if not batched:
        inputs, padding = [tensor[0] for tensor in inputs], padding[0]
        attn_mask = attn_mask[:HEADS] if attn_mask is not None and attn_mask.dim() == 3 else attn_mask
    # torch deprecates a bool padding beside a float mask. Ours takes both together.
    is_float = attn_mask is not None and attn_mask.is_floating_point()
    same_padding = as_float(padding) if is_float else padding
    for need_weights, average in [(False, True), (True, True), (True, False)]:
        arguments = {"need_weights": need_weights, "attn_mask": attn_mask, "average_attn_weights": average}
        expected = theirs(*inputs, same_padding, **arguments)
        for either in (padding, as_float(padding)):
            torch.testing.assert_close(ours(*inputs, either, **arguments), expected)


@pytest.mark.parametrize("embed_dim", WIDTHS)
def test_vanilla_encoder_adds_sinusoids_once(embed_dim: int) -> None:
    vanilla, plain = make_encoder("vanilla", embed_dim), make_encoder("none", embed_dim)
    plain.load_state_dict(vanilla.state_dict())
    inputs, padding = make_inputs(embed_dim=embed_dim)[0], make_padding()
    positions = torch.stack([sinusoid(position, embed_dim) for position in range(LENGTH)])
    torch.testing.assert_close(vanilla(inputs, padding), plain(inputs + positions, padding))


def test_alibi_slopes() -> None:
    eight = [2.0**-k for k in range(1, 9)]
    for heads, expected in ((8, eight), (12, eight + [2.0**-k for k in (0.5, 1.5, 2.5, 3.5)])):
        torch.testing.assert_close(slopes(heads), torch.tensor(expected))


@pytest.mark.parametrize(("num_buckets", "max_distance"), [(32, 128), (8, 5), (12, 20), (4, 2), (64, 256)])
def test_t5_buckets(num_buckets: int, max_distance: int) -> None:
    key_minus_query = range(-300, 301)
    expected = [t5_bucket(x, num_buckets, max_distance) for x in key_minus_query]
    assert bucket(-torch.tensor(key_minus_query), num_buckets, max_distance).tolist() == expected
    assert set(expected) == set(range(num_buckets)) - {num_buckets // 2}  # no key lies 0 tokens to the right


@torch.no_grad()
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("mixer", MIXERS)
def test_padding_in_front_matters_to_absolute_positions_only(mixer: str, causal: bool) -> None:
    encoder, inputs, padding = make_encoder(mixer), make_inputs()[0], make_padding()
    front = torch.randn(BATCH, 7, INNER_DIM, dtype=torch.float64)
    longer = encoder(
        torch.cat((front, inputs), 1),
        torch.cat((torch.ones(BATCH, 7, dtype=torch.bool), padding), 1),
        causal=causal,
    )
    change = (longer[:, 7:] - encoder(inputs, padding, causal=causal)).abs()[~padding].max()
    assert change > 1e-2 if mixer in ABSOLUTE else change < 1e-10


@torch.no_grad()
@pytest.mark.parametrize("mixer", MIXERS)
def test_who_knows_direction(mixer: str) -> None:
    encoder, inputs, padding = make_encoder(mixer), make_inputs()[0], make_padding()
    change = (encoder(inputs.flip(1), padding.flip(1)).flip(1) - encoder(inputs, padding)).abs()[~padding].max()
    assert change < 1e-10 if mixer in BLIND_TO_DIRECTION else change > 1e-2


@torch.no_grad()
@pytest.mark.parametrize("mixer", MIXERS)
def test_who_knows_distance(mixer: str) -> None:
    """What the first token gives to the only other one, when that stands next to it and when it stands farther off."""
    encoder, tokens = make_encoder(mixer, num_layers=1), make_inputs()[0][:, :2]
    attention = encoder.get_submodule("layers.0.attention")
    seen: list[Tensor] = []  # what the encoder hands to its attention, positions added
    attention.register_forward_pre_hook(lambda module, arguments: seen.append(arguments[0]))
    weights = []
    for place in (1, 4):
        inputs = torch.zeros(BATCH, LENGTH, INNER_DIM, dtype=torch.float64)
        padding = torch.ones(BATCH, LENGTH, dtype=torch.bool)
        inputs[:, [0, place]], padding[:, [0, place]] = tokens, False
        encoder(inputs, padding)
        weights.append(attention(*[seen[-1]] * 3, padding, average_attn_weights=False)[1][:, :, 0, place])
    change = (weights[1] - weights[0]).abs().max()
    assert change < 1e-10 if mixer in BLIND_TO_DISTANCE else change > 1e-2


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize(("query_length", "key_length", "embed_dim"), [(LENGTH, LENGTH, INNER_DIM), (LENGTH, 7, 11)])
@pytest.mark.parametrize("mixer", MIXERS)
def test_gradcheck(mixer: str, query_length: int, key_length: int, embed_dim: int, need_weights: bool) -> None:
    module = make_mixer(mixer, embed_dim)
    names, parameters = zip(*module.named_parameters(), strict=True)
    inputs = make_inputs(query_length, key_length, embed_dim)
    distinct = inputs[:1] if query_length == key_length else inputs
    arguments = {"key_padding_mask": make_padding(key_length, whole=True), "need_weights": need_weights}

    def attend(*tensors: Tensor) -> tuple[Tensor, ...]:
        given = tensors[: len(distinct)] * (3 // len(distinct))
        state = dict(zip(names, tensors[len(distinct) :], strict=True))
        results: tuple[Tensor | None, ...] = torch.func.functional_call(module, state, given, arguments)
        return tuple(result for result in results if result is not None)

    assert torch.autograd.gradcheck(attend, (*distinct, *parameters))


@pytest.mark.parametrize("float_padding", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("query_length", "key_length"), SHAPES)
@pytest.mark.parametrize("mixer", MIXERS)
def test_not_asking_for_weights_changes_nothing(
    mixer: str, query_length: int, key_length: int, causal: bool, float_padding: bool
) -> None:
    module, inputs = make_mixer(mixer), make_inputs(query_length, key_length)
    padding = make_padding(key_length, whole=True)
    given = as_float(padding) if float_padding else padding
    upstream = torch.randn(BATCH, query_length, INNER_DIM, dtype=torch.float64)
    results: list[list[Tensor]] = []
    for need_weights in (False, True):
        with torch.autograd.set_detect_anomaly(True):  # no NaN on the way back either, not even one masked later
            output, weights = module(*inputs, given, need_weights=need_weights, is_causal=causal)
            gradients = torch.autograd.grad(output, (*dict.fromkeys(inputs), *module.parameters()), upstream)
        assert (weights is not None) == need_weights
        # Nothing to see: the mixer gives zeros, of which the output projection makes its bias.
        torch.testing.assert_close(output[1], module.out_proj.bias.expand_as(output[1]), rtol=0, atol=0)
        assert all(gradient.isfinite().all() for gradient in gradients)
        results.append([output, *gradients])
    torch.testing.assert_close(*results)


@torch.no_grad()
@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("mixer", MIXERS)
def test_dropout_drops_weights_in_training_only(mixer: str, need_weights: bool) -> None:
    module, inputs, padding = make_mixer(mixer, dropout=0.5), make_inputs(), make_padding()
    arguments: dict[str, Any] = {"need_weights": need_weights, "average_attn_weights": False}
    first, weights = module(*inputs, padding, **arguments)
    assert not torch.allclose(first, module(*inputs, padding, **arguments)[0])
    module.eval()
    steady, whole = module(*inputs, padding, **arguments)
    assert torch.equal(steady, module(*inputs, padding, **arguments)[0])
    assert not torch.allclose(first, steady)
    if need_weights:
        kept = weights != 0
        assert 0.25 < kept[whole != 0].double().mean() < 0.75
        torch.testing.assert_close(weights, kept * whole / 0.5)
        # What is dropped is dropped everywhere, from Shaw's value embeddings too.
        torch.testing.assert_close(first, literal_output(mixer, dict(module.named_parameters()), inputs, weights))


@pytest.mark.parametrize("mixer", MIXERS)
def test_a_text_of_nothing_but_padding_spoils_no_gradient(mixer: str, device: str) -> None:
    """Kernels of torch that a GPU chooses put NaN into the gradients of a row of keys that are all hidden."""
    attention = MIXERS[mixer](16, 2, 16).to(device)
    inputs = torch.randn(3, 24, 16, device=device)
    padding = torch.arange(24, device=device) >= torch.tensor([[24], [0], [9]], device=device)
    low = torch.bfloat16 if device == "cuda" else torch.float32
    with torch.autocast(device, low, enabled=device == "cuda"):
        output, _ = attention(inputs, inputs, inputs, padding, need_weights=False)
    output.float().square().sum().backward()
    for name, parameter in attention.named_parameters():
        assert parameter.grad is None or parameter.grad.isfinite().all(), name
