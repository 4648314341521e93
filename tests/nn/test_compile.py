"""One graph, no break, any batch and length, for every mixer."""

import shutil

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

from datransformer import ADJUSTMENTS, MAPPINGS, MIXERS, Encoder

EMBED_DIM, HEADS, HEAD_DIM = 11, 3, 4
SHAPES = [(2, 5), (3, 7), (1, 2)]


def make_batch(batch: int, length: int) -> tuple[Tensor, Tensor]:
    padding = torch.zeros(batch, length, dtype=torch.bool)
    padding[0, length // 2 :] = True
    return torch.randn(batch, length, EMBED_DIM), padding


@pytest.fixture(autouse=True)
def _fresh_compiler() -> None:
    torch._dynamo.reset()


@pytest.mark.parametrize("mixer", MIXERS)
def test_compile_full_graph_with_gradients(mixer: str) -> None:
    encoder = Encoder(EMBED_DIM, HEADS, HEAD_DIM, mixer=mixer, num_layers=1)
    compiled = torch.compile(encoder, fullgraph=True, dynamic=True, backend="aot_eager")
    shapes = SHAPES if mixer == "distance_aware" else SHAPES[:2]  # a batch of one is compiled again, whatever the mixer
    for shape in shapes:
        batch = make_batch(*shape)
        expected = torch.autograd.grad(encoder(*batch).square().sum(), list(encoder.parameters()))
        got = torch.autograd.grad(compiled(*batch).square().sum(), list(encoder.parameters()))
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("mixer", MIXERS)
def test_export_with_dynamic_batch_and_length(mixer: str) -> None:
    encoder = Encoder(EMBED_DIM, HEADS, HEAD_DIM, mixer=mixer, num_layers=2).eval()
    axes = {0: Dim("batch"), 1: Dim("length")}
    program = torch.export.export(encoder, make_batch(2, 5), dynamic_shapes=(axes, axes))
    for shape in SHAPES:
        batch = make_batch(*shape)
        torch.testing.assert_close(program.module()(*batch), encoder(*batch))


class Beside(nn.Module):
    """Ours with every adjusting method, side by side: one export takes half the time of four."""

    def __init__(self, mapping: str) -> None:
        super().__init__()
        options = [{"mapping": mapping, "adjust": adjust} for adjust in ADJUSTMENTS]
        self.encoders = nn.ModuleList(Encoder(EMBED_DIM, HEADS, HEAD_DIM, mixer_options=one) for one in options)

    def forward(self, vectors: Tensor, padding: Tensor) -> list[Tensor]:
        return [encoder(vectors, padding) for encoder in self.encoders]


@pytest.mark.parametrize("mapping", MAPPINGS)
def test_every_variant_exports(mapping: str) -> None:
    encoders = Beside(mapping).eval()
    axes = {0: Dim("batch"), 1: Dim("length")}
    program = torch.export.export(encoders, make_batch(2, 5), dynamic_shapes=(axes, axes))
    batch = make_batch(3, 7)
    for adjust, got, expected in zip(ADJUSTMENTS, program.module()(*batch), encoders(*batch), strict=True):
        assert torch.allclose(got, expected, rtol=1.3e-6, atol=1e-5), adjust


@pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning")  # torch's own, inside inductor
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
def test_inductor_trains_at_any_length() -> None:
    encoder = Encoder(EMBED_DIM, HEADS, HEAD_DIM)
    compiled = torch.compile(encoder, fullgraph=True, dynamic=True)
    for shape in SHAPES[:2]:
        batch = make_batch(*shape)
        expected = torch.autograd.grad(encoder(*batch).square().sum(), list(encoder.parameters()))
        got = torch.autograd.grad(compiled(*batch).square().sum(), list(encoder.parameters()))
        torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)
