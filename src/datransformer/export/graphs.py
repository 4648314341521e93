"""The functions of a trained model that are worth having elsewhere, with names for their inputs and axes."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from datransformer.export.samples import SHAPES, Inputs, sample_clicks, sample_texts, sample_titles
from datransformer.models.recommender import Recommender
from datransformer.train.run import Run


@dataclass(frozen=True)
class Graph:
    """A function of a model.

    Args:
        name: Of the file, without what it ends in.
        module: Computes it; takes inputs by name.
        axes: The axes of each input: a name where any size may come, a number where one does.
        output: What comes out.
        output_axes: Its axes.
        batches: Inputs to hold it against torch with; the first is what it is traced with.
    """

    name: str
    module: nn.Module
    axes: Mapping[str, tuple[str | int, ...]]
    output: str
    output_axes: tuple[str | int, ...]
    batches: tuple[Inputs, ...]

    def trace(self) -> ExportedProgram:
        """The program that torch records, for any size of the axes that have a name."""
        sizes = {name: Dim(name) for axes in self.axes.values() for name in axes if isinstance(name, str)}
        dynamic = {
            argument: {place: sizes[name] for place, name in enumerate(axes) if isinstance(name, str)}
            for argument, axes in self.axes.items()
        }
        program = torch.export.export(self.module, (), dict(self.batches[0]), dynamic_shapes=dynamic)
        program.example_inputs = None  # torch would pickle them into the file
        for node in program.graph.nodes:
            node.meta.pop("stack_trace", None)  # names folders of this machine
        return program


class _Scores(nn.Module):
    """`Recommender.score` as a module, for only a module can be traced."""

    def __init__(self, model: Recommender) -> None:
        super().__init__()
        self.model = model

    def forward(self, news: Tensor, history: Tensor, candidates: Tensor) -> Tensor:
        return self.model.score(news, history, candidates)


# The arguments of the text models, by task shape.
AXES: dict[str, dict[str, tuple[str | int, ...]]] = {
    "sentence": {"tokens": ("batch", "length")},
    "joint": {"tokens": ("batch", "length")},
    "siamese": {"first": ("batch", "first_length"), "second": ("batch", "second_length")},
    "document": {"tokens": ("all_sentences", "length"), "sentences": ("batch", "sentences")},
}


def graphs_of(run: Run) -> Iterator[Graph]:
    """What a run exports, in float32: one graph that answers texts, or for a recommender one a level."""
    model = run.model.float()
    if isinstance(model, Recommender):
        yield from _recommender_graphs(run, model)
        return
    batches = tuple(sample_texts(run, shape) for shape in SHAPES)
    axes = AXES[run.config.shape]
    if run.config.rating:
        yield Graph("model", model, axes, "ratings", ("batch",), batches)
    else:
        model.head = nn.Sequential(model.get_submodule("head"), nn.Softmax(-1))
        yield Graph("model", model, axes, "probabilities", ("batch", len(run.labels.classes or ())), batches)


def _recommender_graphs(run: Run, model: Recommender) -> Iterator[Graph]:
    """Two graphs, so that a title is encoded once, however often it is a candidate."""
    text = model.text
    del model.text  # or its weights would lie in both files
    dim = text.width
    titles = tuple(sample_titles(run, shape) for shape in SHAPES)
    yield Graph("news", text, {"tokens": ("news", "length")}, "vectors", ("news", dim), titles)
    with torch.no_grad():
        clicks = tuple(
            {"news": text(**tokens), **sample_clicks(shape, len(tokens["tokens"]))}
            for tokens, shape in zip(titles, SHAPES, strict=True)
        )
    axes: dict[str, tuple[str | int, ...]] = {
        "news": ("news", dim),
        "history": ("batch", "clicked"),
        "candidates": ("batch", "candidates"),
    }
    yield Graph("scores", _Scores(model), axes, "scores", ("batch", "candidates"), clicks)
