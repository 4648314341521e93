"""Every task shape with every mixer: shapes, gradients, and answers that do not depend on the batch around them."""

import pytest
import torch
from torch import Tensor, nn

from datransformer.data.tokenizer import PADDING as DATA_PADDING
from datransformer.models.build import MODELS, build_model
from datransformer.models.config import ModelConfig
from datransformer.models.heads import RatingHead
from datransformer.models.text import PADDING, TextEncoder, gather
from datransformer.nn.mixers import MIXERS
from datransformer.nn.pooling import POOLINGS

VOCABULARY, CLASSES = 23, 3
SHAPES = ["sentence", "joint", "siamese", "document", "document rating", "recommend"]


def model_of(shape: str, attention: str = "distance_aware", **options: object) -> nn.Module:
    task = {"joint": "pair", "siamese": "pair"}.get(shape, shape.split()[0])
    config = ModelConfig(
        attention=attention,
        heads=2,
        head_dim=6,
        feedforward_dim=13,
        layers=2,
        pair="siamese" if shape == "siamese" else "joint",
        head="rating" if "rating" in shape else "class",
        **{"embed_dim": 11, **options},  # type: ignore[arg-type]
    )
    torch.manual_seed(0)
    return build_model(task, VOCABULARY, CLASSES, config).eval()


def words(*lengths: int, width: int | None = None) -> Tensor:
    """Token ids of texts with the given lengths; the same text for the same length, whatever stands beside it."""
    rows = torch.zeros(len(lengths), width or max(lengths), dtype=torch.long)
    for row, length in zip(rows, lengths, strict=True):
        row[:length] = torch.randint(1, VOCABULARY, (length,), generator=torch.Generator().manual_seed(length))
    return rows


def one_and_many(shape: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The same first example alone, without any padding, and in a batch that pads it on every axis."""
    if shape in ("sentence", "joint"):
        return {"tokens": words(5)}, {"tokens": words(5, 17, 1, width=19)}
    if shape == "siamese":
        return (
            {"first": words(5), "second": words(3)},
            {"first": words(5, 17, 1), "second": words(3, 2, 11, width=13)},
        )
    none = -1
    if shape.startswith("document"):
        return (
            {"tokens": words(5, 3), "sentences": torch.tensor([[0, 1]])},
            {
                "tokens": words(7, 5, 11, 3, 2, width=13),
                "sentences": torch.tensor([[1, 3, none, none, none], [0, 2, 4, 0, 2], [4, none, none, none, none]]),
            },
        )
    return (
        {"titles": words(5, 3, 2), "history": torch.tensor([[0, 1]]), "candidates": torch.tensor([[2, 0]])},
        {
            "titles": words(7, 5, 3, 11, 2, width=13),
            "history": torch.tensor([[1, 2, none, none], [0, 3, 4, 1], [none] * 4]),
            "candidates": torch.tensor([[4, 1, none], [0, 1, 2], [3, 0, 1]]),
        },
    )


@pytest.mark.parametrize("attention", MIXERS)
@pytest.mark.parametrize("shape", SHAPES)
def test_an_answer_does_not_change_with_the_batch(shape: str, attention: str) -> None:
    model = model_of(shape, attention)
    alone, together = one_and_many(shape)
    with torch.no_grad():
        expected, got = model(**alone)[0], model(**together)[0]
    assert got.isfinite().any()
    torch.testing.assert_close(got[: len(expected)] if expected.dim() else got, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("shape", SHAPES)
def test_nor_with_any_pooling(shape: str, pooling: str) -> None:
    model = model_of(shape, pooling=pooling)
    alone, together = one_and_many(shape)
    with torch.no_grad():
        expected, got = model(**alone)[0], model(**together)[0]
    torch.testing.assert_close(got[: len(expected)] if expected.dim() else got, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("attention", MIXERS)
def test_texts_in_groups_by_length_have_the_same_vectors_and_gradients(attention: str) -> None:
    encoder = model_of("recommend", attention).get_submodule("text")
    assert isinstance(encoder, TextEncoder)
    tokens = words(7, 2, 13, 1, 0, 5, 11, 3, 2, width=17)
    weights = torch.randn(9, 11)
    seen: list[tuple[int, ...]] = []
    encoder.embedding.register_forward_hook(lambda module, inputs, output: seen.append(tuple(inputs[0].shape)))
    results = []
    for encode in (encoder, encoder.in_groups):
        encoder.zero_grad()
        vectors = encode(tokens)
        (vectors * weights).sum().backward()
        gradients = {name: p.grad for name, p in encoder.named_parameters() if p.grad is not None}
        results.append((vectors.detach(), gradients))
    assert seen == [(9, 17), (3, 2), (2, 3), (2, 7), (2, 13)]
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", SHAPES)
def test_every_parameter_gets_a_finite_gradient(shape: str) -> None:
    model = model_of(shape)
    _, together = one_and_many(shape)
    answer = model(**together)
    answer.masked_fill(answer == -torch.inf, 0.0).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
    padding_row = model.get_parameter("text.embedding.weight").grad
    assert padding_row is not None
    assert not padding_row[PADDING].any()


@pytest.mark.parametrize("shape", SHAPES)
def test_words_are_scaled_then_projected(shape: str) -> None:
    """A model whose word vectors were scaled and projected by hand answers the same."""
    wide, plain = model_of(shape, embed_dim=9, width=14, embed_scale=2.5), model_of(shape, embed_dim=14)
    weights = dict(wide.state_dict())
    projection = weights.pop("text.projection.weight"), weights.pop("text.projection.bias")
    table = 2.5 * weights["text.embedding.weight"]
    plain.load_state_dict({**weights, "text.embedding.weight": nn.functional.linear(table, *projection)})
    inputs = one_and_many(shape)[1]
    torch.testing.assert_close(plain(**inputs), wide(**inputs))


@pytest.mark.parametrize("shape", SHAPES)
def test_word_vectors_can_be_frozen_and_all_else_learns(shape: str) -> None:
    model = model_of(shape, freeze_vectors=True)
    answer = model(**one_and_many(shape)[1])
    answer.masked_fill(answer == -torch.inf, 0.0).square().sum().backward()
    idle = [name for name, parameter in model.named_parameters() if parameter.grad is None]
    assert idle == ["text.embedding.weight"]


def test_the_order_of_the_texts_of_a_pair_matters() -> None:
    model = model_of("siamese")
    with torch.no_grad():
        assert not torch.allclose(model(words(5), words(3)), model(words(3), words(5)))


def test_a_pair_needs_two_texts() -> None:
    with pytest.raises(TypeError, match=r"second: got None, expected the second text of each pair"):
        model_of("siamese")(words(4))


def test_the_siamese_model_compares_as_the_equation_says() -> None:
    model = model_of("siamese")
    with torch.no_grad():
        u, v = model.get_submodule("text")(words(5)), model.get_submodule("text")(words(3))
        compared = model.get_submodule("compare")(torch.cat([u, v, abs(u - v), u * v], 1))
        torch.testing.assert_close(model(words(5), words(3)), model.get_submodule("head")(compared))


def test_a_document_of_the_same_words_in_other_sentences_is_another_document() -> None:
    model = model_of("document")
    tokens = words(5, 3)
    with torch.no_grad():
        first = model(tokens, torch.tensor([[0, 1]]))
        twice = model(tokens, torch.tensor([[0, 1, 1]]))
    assert not torch.allclose(first, twice)


def test_a_click_score_is_the_dot_product_of_user_and_news() -> None:
    model = model_of("recommend")
    titles = words(7, 5, 3)
    history, candidates = torch.tensor([[0, 1]]), torch.tensor([[2, 1, -1]])
    with torch.no_grad():
        news = model.get_submodule("text")(titles)
        user = model.get_submodule("user")(news[:2].unsqueeze(0), torch.zeros(1, 2, dtype=torch.bool))
        scores = model(titles, history, candidates)
    torch.testing.assert_close(scores[0, :2], torch.stack([user[0] @ news[2], user[0] @ news[1]]))
    assert scores[0, 2] == -torch.inf


def test_a_user_without_history_scores_all_alike() -> None:
    scores = model_of("recommend")(words(7, 5), torch.tensor([[-1, -1]]), torch.tensor([[0, 1]]))
    assert scores.tolist() == [[0.0, 0.0]]


def test_gather_puts_zeros_where_there_is_none() -> None:
    rows, padding = gather(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[1, -1], [0, 1]]))
    assert rows.tolist() == [[[3, 4], [0, 0]], [[1, 2], [3, 4]]]
    assert padding.tolist() == [[False, True], [False, False]]


def test_a_rating_is_on_the_scale_of_the_ratings() -> None:
    head = RatingHead(2)
    head.set_scale(torch.tensor([1.0, 5.0, 5.0, 5.0]))
    nn.init.zeros_(head.linear.weight)
    nn.init.constant_(head.linear.bias, 0.5)
    expected = 4.0 + 0.5 * 3**0.5  # mean 4, deviation √((9 + 1 + 1 + 1) / 4)
    torch.testing.assert_close(head(torch.zeros(3, 2)), torch.full((3,), expected))


def test_ratings_that_are_all_alike_leave_a_head_that_can_learn() -> None:
    head = RatingHead(2)
    head.set_scale(torch.tensor([3.0, 3.0]))
    assert head.deviation > 0


def test_padding_is_one_and_the_same_id() -> None:
    assert PADDING == DATA_PADDING


@pytest.mark.parametrize("task", MODELS)
def test_the_defaults_are_the_papers(task: str) -> None:
    config = ModelConfig()
    assert (config.layers, config.heads, config.head_dim, config.embed_dim) == (1, 16, 16, 300)
    model = build_model(task, VOCABULARY, CLASSES, config)
    assert model.get_parameter("text.sequence.encoder.layers.0.attention.distance_weight").shape == (16,)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attention": "flash"}, "attention"),
        ({"pooling": "median"}, "pooling"),
        ({"pair": "cross"}, "pair"),
        ({"head": "rank"}, "head"),
        ({"layers": 0}, "layers"),
        ({"dropout": 1.5}, "dropout"),
        ({"feedforward_dim": -1}, "feedforward_dim"),
    ],
)
def test_a_wrong_setting_is_named(options: dict[str, object], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        ModelConfig(**options)  # type: ignore[arg-type]


def test_an_unknown_task_is_named() -> None:
    with pytest.raises(ValueError, match="task"):
        build_model("translate", VOCABULARY, CLASSES, ModelConfig())
