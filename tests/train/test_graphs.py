"""A step as a CUDA graph: padding to a grid changes nothing, and on a GPU the same comes out as eagerly."""

import contextlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from datransformer.data.batches import Batch
from datransformer.data.config import DataConfig
from datransformer.data.prepare import Progress, RowSplits, prepare_texts, probe_rows
from datransformer.data.probe import Probe
from datransformer.models.build import build_model
from datransformer.models.config import ModelConfig
from datransformer.nn.flat import Flat
from datransformer.nn.mixers import MIXERS
from datransformer.nn.vanilla import PlainAttention
from datransformer.ops.adjust import ADJUSTMENTS
from datransformer.ops.mapping import MAPPINGS
from datransformer.train.config import FileConfig, RunConfig, TrainConfig
from datransformer.train.errors import TrainingError
from datransformer.train.fit import Data, fit
from datransformer.train.graphs import (
    MOST,
    SHORT,
    TEXTS,
    GraphedStep,
    Packed,
    as_inputs,
    grid,
    lay_flat,
    own_stream,
    pack,
    pad_batch,
    unpack,
)
from datransformer.train.optimizer import in_groups
from datransformer.train.word_rows import WordRows

NONE = -1
TOKENS = torch.tensor([[3, 4, 5], [6, 7, 0]])
BATCHES = {
    "sentence": {"tokens": TOKENS},
    "document": {"tokens": TOKENS, "sentences": torch.tensor([[0, 1], [1, NONE]])},
    "recommend": {
        "titles": TOKENS,
        "history": torch.tensor([[0, 1], [NONE, NONE]]),
        "candidates": torch.tensor([[1, 0, NONE], [0, 1, 1]]),
    },
    "pair": {"first": TOKENS, "second": TOKENS[:, :2]},
}


def cross_entropies(answers: torch.Tensor, batch: Batch) -> torch.Tensor:
    assert batch.targets is not None
    return torch.nn.functional.cross_entropy(answers, batch.targets, reduction="none")


@pytest.mark.parametrize("long", [(), (0,), (1,), (0, 1)])
@pytest.mark.parametrize("task", BATCHES)
@pytest.mark.parametrize("attention", [*MIXERS, "adapted, projected"])
def test_a_padded_batch_has_the_same_loss_and_gradients(attention: str, task: str, long: tuple[int, ...]) -> None:
    """Of short texts, of long ones, and where they come in two parts, of both."""
    width = 11 if "," in attention else 12  # where heads do not fit, the adapted Transformer projects its keys too
    config = ModelConfig(
        attention=attention.partition(",")[0], layers=2, heads=2, head_dim=6, embed_dim=width, feedforward_dim=13,
        dropout=0.0, pair="siamese",
    )  # fmt: skip
    model = build_model(task, 9, 3, config)
    texts = dict(BATCHES[task])
    name = next(iter(texts))
    texts[name] = torch.nn.functional.pad(texts[name], (0, SHORT + 1))
    for row in long:
        texts[name][row, 3:] = torch.arange(SHORT + 1) % 8 + 1
    batch = Batch(texts, torch.tensor([0, 1]), np.array([1, 2]), 5)
    padded, weights = pad_batch(batch, 2)
    assert (f"{name}.1" in padded.inputs) == (len(long) == 1 and task in ("document", "recommend"))
    results = []
    for inputs, targets, scale in (
        (as_inputs(batch.inputs), batch.targets, torch.full((2,), 0.5)),
        (as_inputs(padded.inputs), padded.targets, weights),
    ):
        assert targets is not None
        model.zero_grad()
        losses = torch.nn.functional.cross_entropy(model(**inputs), targets, reduction="none")
        loss = (losses * scale).sum()
        loss.backward()
        gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        results.append((loss.detach(), gradients))
    assert all(size % 8 == 0 for name, t in padded.inputs.items() for size in t.shape if name != "candidates")
    torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-6)


def test_a_flat_batch_has_every_token_once_and_an_empty_slot_for_padding() -> None:
    texts = np.zeros((21, 40), np.int64)
    for row in range(1, 21):  # the first has no word at all
        texts[row, : 2 * row] = 100 * row + np.arange(2 * row)
    texts[5, 2] = 0  # a gap
    arrays, rows = lay_flat(texts, in_two=True)
    parts = [arrays["0"], arrays["1"]]
    assert [part.shape for part in parts] == [(16, 16), (16, 40)]  # rows 0 to 8 and 9 to 20
    slots = np.concatenate([arrays["tokens"][part].ravel() for part in parts])
    last = len(arrays["tokens"]) - 1
    assert arrays["tokens"][last] == 0
    taken = arrays["tokens"] != 0
    assert (slots[arrays["back"]] == arrays["tokens"]).all()
    assert len(set(arrays["back"][taken])) == taken.sum() == np.count_nonzero(texts)
    for row, where in enumerate(rows):
        own = parts[0][where] if where < 16 else parts[1][where - 16]
        assert (arrays["tokens"][own] == texts[row, : len(own)]).all()
        assert (arrays["order"][own[own != last]] == np.flatnonzero(texts[row])).all()
    arrays, _ = lay_flat(np.ones((8, 8), np.int64), in_two=False)  # no slot to spare
    assert arrays["0"].shape == (8, 16)
    assert set(arrays["0"].ravel()[arrays["back"][64:]]) == {len(arrays["tokens"]) - 1}


@pytest.mark.parametrize("task", BATCHES)
def test_a_packed_batch_holds_what_was_padded(task: str) -> None:
    targets = torch.tensor([2.5, 1.0]) if task == "document" else torch.tensor([0, 1])
    batch = Batch(BATCHES[task], targets, np.array([1, 2]), 5)
    padded, weights = pad_batch(batch, 2)
    packed = pack(batch, 2)
    found = unpack(packed.memory, packed.layout)
    words, starts, order = (found.pop(name) for name in ("words", "starts", "order"))
    expected = {**padded.inputs, "targets": padded.targets, "weights": weights}
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    tokens = next(tensor for name, tensor in padded.inputs.items() if name.endswith("tokens") or name == "titles")
    for slot, word in enumerate(words.tolist()):
        places = order[starts[slot] : starts[slot + 1]].tolist()
        expected_places = (tokens.flatten() == word).nonzero().flatten().tolist() if word else []
        assert places == expected_places
    assert sorted(words[words != 0].tolist()) == tokens[tokens != 0].unique().tolist()
    assert packed.tokens == 5
    assert hash(packed.layout) == hash(pack(batch, 2).layout)


def test_the_grid_never_shrinks_and_wastes_little() -> None:
    sizes = [grid(size) for size in range(1, 3000)]
    assert all(size <= wide < max(size + 8, 1.25 * size) for size, wide in enumerate(sizes, 1))
    assert sizes == sorted(sizes)
    assert len(set(sizes)) < 50


def train(folder: Path, name: str, **options: object) -> list[dict[str, float]]:
    def load(config: RunConfig, cache: Path, progress: Progress) -> Data:
        first, second = (
            probe_rows(Probe(rows=count, seed=seed, length=16, markers=4)) for seed, count in ((0, 700), (1, 100))
        )
        return prepare_texts(RowSplits(first, second), shape="sentence", rating=False, config=DataConfig(), cache=cache)

    config = RunConfig(
        model=ModelConfig(heads=2, head_dim=8, embed_dim=16, dropout=float(str(options.pop("dropout", 0.0)))),
        train=TrainConfig(epochs=2, batch_size=48, **{"log_every": 1, "checkpoint_every": 3, **options}),  # type: ignore[arg-type]
    )
    fit(config, folder / name, cache=folder / "cache", device="cuda", load=load)
    lines = (folder / name / "metrics.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, lines) if "loss" in line]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("rates", [{}, {"vector_rate": 10.0, "distance_rate": 10.0, "average": 0.9}])
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_graphs_train_as_eager_steps_do(tmp_path: Path, precision: str, rates: dict[str, float]) -> None:
    """The weights that are kept, too, which a running mean decides and no loss shows."""
    eager = train(tmp_path, "eager", cuda_graphs=False, precision=precision, **rates)
    graphed = train(tmp_path, "graphed", precision=precision, **rates)
    tolerance = 1e-4 if precision == "32-true" else 5e-3
    np.testing.assert_allclose([x["loss"] for x in graphed], [x["loss"] for x in eager], atol=tolerance)
    kept = [load_file(tmp_path / name / "model.safetensors") for name in ("eager", "graphed")]
    for name, values in kept[0].items():  # AdamW makes whole steps of gradients that are nothing but rounding
        assert (values - kept[1][name]).abs().mean() < 20 * tolerance, name


def losses_of_documents(folder: Path, device: str, *, graphs: bool) -> list[float]:
    """Sentences of 2 to 39 words, so that a batch comes in two parts; the label is their number."""
    random = np.random.default_rng(0)
    rows = ["text,label"]
    for _ in range(90):
        sentences = [
            " ".join(random.choice(list("abcdefgh"), random.integers(2, 40))) for _ in range(random.integers(1, 4))
        ]
        rows.append(f"{'. '.join(sentences)}.,{len(sentences)}")
    (folder / "rows.csv").write_text("\n".join(rows))
    config = RunConfig(
        task="document",
        files=FileConfig(train=(str(folder / "rows.csv"),), dev=str(folder / "rows.csv")),
        model=ModelConfig(heads=2, head_dim=8, embed_dim=16, dropout=0.0),
        train=TrainConfig(epochs=2, batch_size=16, log_every=1, cuda_graphs=graphs),
    )
    run = folder / f"run{graphs}"
    fit(config, run, cache=folder / "cache", device=device)
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [line["loss"] for line in lines if "loss" in line]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_documents_in_parts_train_as_whole_ones_do(tmp_path: Path) -> None:
    eager, graphed = (losses_of_documents(tmp_path, "cuda", graphs=graphs) for graphs in (False, True))
    assert len(eager) == 12
    np.testing.assert_allclose(graphed, eager, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_dropout_in_a_graph_follows_the_seed_of_the_step(tmp_path: Path) -> None:
    first, again = (train(tmp_path, name, dropout=0.5) for name in ("first", "again"))
    other = train(tmp_path, "other", dropout=0.5, seed=1)
    none = train(tmp_path, "none")
    assert [x["loss"] for x in first] == [x["loss"] for x in again]
    assert first[0]["loss"] != none[0]["loss"]
    assert [x["loss"] for x in first] != [x["loss"] for x in other]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_step_that_goes_wrong_is_found_a_few_steps_later_and_named(tmp_path: Path) -> None:
    """In steps that are not waited for, the first bad one is named, and nothing after it counts."""
    messages = []
    for name, graphs in (("eager", False), ("graphed", True)):
        with pytest.raises(TrainingError, match=r"the (loss|gradient) is NaN or Inf") as raised:
            train(tmp_path, name, cuda_graphs=graphs, lr=1e18, clip=0, log_every=50)
        messages.append(str(raised.value).split(" checkpoint")[0])
    assert messages[0].split(";")[0] == messages[1].split(";")[0]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_the_first_step_of_a_shape_is_as_those_from_its_graph() -> None:
    """A run that goes on from a checkpoint meets its shapes for the first time again."""
    torch.manual_seed(0)
    model = build_model("sentence", 9, 3, ModelConfig(heads=2, head_dim=6, embed_dim=12, dropout=0.5)).cuda().train()
    optimizer = torch.optim.AdamW(in_groups(model), lr=0.0, weight_decay=0.0)

    packed = pack(Batch(BATCHES["sentence"], torch.tensor([0, 1]), np.array([1, 2]), 5), 2)
    with own_stream():
        step = GraphedStep(model, optimizer, cross_entropies, lambda: torch.autocast("cuda", torch.bfloat16), 1.0)
        for seed in (1, 1, 1, 2):
            step(packed, 0.0, seed)
        eager, captured, replayed, other = step.results()
    assert eager == captured == replayed != other


ATTENTIONS = [
    *((name, {}) for name in MIXERS),
    *(("distance_aware", {"mapping": name}) for name in MAPPINGS),
    *(("distance_aware", {"adjust": name}) for name in ADJUSTMENTS),
]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("task", [*BATCHES, "frozen pair"])
@pytest.mark.parametrize(("attention", "options"), ATTENTIONS)
def test_replayed_steps_are_as_those_that_are_not_captured(
    attention: str, options: dict[str, str], task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rates, seeds and batches that are new to a graph, for all that the reproduction trains."""
    freeze, task = task.startswith("frozen"), task.removeprefix("frozen ")
    first = BATCHES[task]
    second = {name: torch.where(one > 0, 10 - one, 0) if name in TEXTS else one for name, one in first.items()}
    results = []
    for most in (MOST, 0):
        monkeypatch.setattr("datransformer.train.graphs.MOST", most)
        torch.manual_seed(0)
        config = ModelConfig(
            attention=attention, attention_options=options, heads=2, head_dim=6, embed_dim=12, width=14, dropout=0.1,
            freeze_vectors=freeze, pair="siamese",
        )  # fmt: skip
        model = build_model(task, 9, 3, config).cuda().train()
        optimizer = torch.optim.AdamW(in_groups(model, vector_rate=0.3), weight_decay=0.0)
        with own_stream():
            step = GraphedStep(model, optimizer, cross_entropies, lambda: torch.autocast("cuda", torch.bfloat16), 1.0)
            for number in range(6):
                batch = Batch(first if number % 2 else second, torch.tensor([0, 1]), np.array([1, 2]), 5)
                step(pack(batch, 2), 0.01 / (number + 1), number)
            assert len(step._graphs) == (most > 0)
            results.append(np.array(step.results()))
    np.testing.assert_allclose(results[0], results[1], rtol=1e-3)
    assert len(set(results[0][:, 0])) == 6


def new_step(*, width: int = 12, freeze: bool = False, **options: Any) -> tuple[torch.nn.Module, GraphedStep]:
    """A step that runs anywhere, if it is not captured: the same model each time."""
    torch.manual_seed(0)
    config = ModelConfig(heads=2, head_dim=6, embed_dim=width, dropout=0.0, freeze_vectors=freeze)
    model = build_model("sentence", 9, 3, config).train()
    optimizer = torch.optim.AdamW(in_groups(model), weight_decay=options.pop("weight_decay", 0.0))
    autocast = options.pop("autocast", contextlib.nullcontext)
    step = GraphedStep(model, optimizer, cross_entropies, autocast, options.pop("clip", 0.0))
    assert not options
    step._start_averages()
    return model, step


def packed_tokens(seed: int, rows: int = 4) -> Packed:
    """Of 8 rows, no padding."""
    tokens = torch.from_numpy(np.random.default_rng(seed).integers(1, 9, (rows, 8)))
    tokens[:, 0] = 3  # many times
    return pack(Batch({"tokens": tokens}, torch.arange(rows) % 3, np.arange(rows), 8 * rows), rows)


@pytest.mark.parametrize(
    ("width", "rows", "weight_decay", "clip"),
    [(12, 4, 0.0, 0.0), (16, 8, 0.1, 1e-2), (7, 8, 0.0, 1e-2), (100, 4, 0.1, 0.0)],
)
def test_word_vectors_move_as_torch_moves_a_whole_table(
    width: int, rows: int, weight_decay: float, clip: float
) -> None:
    """Words that a batch does not have, too, and the norm that gradients are clipped by is that of all."""
    ours, step = new_step(width=width, weight_decay=weight_decay, clip=clip)
    theirs, _ = new_step(width=width)
    optimizer = torch.optim.AdamW(theirs.parameters(), weight_decay=weight_decay)
    assert step._table is not None
    for number in range(6):
        packed = packed_tokens(number, rows)
        tensors = unpack(packed.memory, packed.layout)
        step._rate.fill_(0.01 / (number + 1))
        optimizer.param_groups[0]["lr"] = 0.01 / (number + 1)
        loss, norm = step._step(tensors).tolist()
        optimizer.zero_grad()
        (inputs,) = as_inputs({name: value for name, value in tensors.items() if name.startswith("tokens")}).values()
        assert isinstance(inputs, Flat) == (rows == 4)
        batch = Batch({}, tensors["targets"], np.empty(0, np.int64), 0)
        expected = (cross_entropies(theirs(inputs), batch) * tensors["weights"]).sum()
        expected.backward()
        length = torch.nn.utils.clip_grad_norm_(theirs.parameters(), clip or float("inf"))
        optimizer.step()
        np.testing.assert_allclose((loss, norm), (expected.item(), length.item()), rtol=1e-5)
    torch.testing.assert_close(dict(ours.named_parameters()), dict(theirs.named_parameters()), rtol=1e-5, atol=1e-6)
    state = step._optimizer.state[step._table.weight]
    expected_state = optimizer.state[theirs.get_parameter("text.embedding.weight")]
    assert state["step"] == 6
    torch.testing.assert_close(state["exp_avg_sq"], expected_state["exp_avg_sq"], rtol=1e-4, atol=1e-12)


def test_a_step_that_goes_wrong_moves_no_word() -> None:
    model, step = new_step()
    step._rate.fill_(0.01)
    packed = packed_tokens(0)
    tensors = unpack(packed.memory, packed.layout)
    step._step(tensors)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    tensors["weights"][0] = torch.nan
    step._step(tensors)
    assert step._broken == 1
    torch.testing.assert_close(dict(model.state_dict()), before, rtol=0, atol=0)
    assert step._table is not None
    assert step._optimizer.state[step._table.weight]["step"] == 1


@pytest.mark.parametrize("task", BATCHES)
@pytest.mark.parametrize("attention", MIXERS)
def test_rounding_all_parameters_at_once_changes_nothing(attention: str, task: str) -> None:
    """Mixed precision rounds them one by one."""
    gradients = []
    for at_once in (True, False):
        torch.manual_seed(0)
        config = ModelConfig(attention=attention, layers=2, heads=2, head_dim=6, embed_dim=12, width=14, pair="siamese")
        model = build_model(task, 9, 3, config)
        optimizer = torch.optim.AdamW(in_groups(model))
        step = GraphedStep(model, optimizer, cross_entropies, lambda: torch.autocast("cpu", torch.bfloat16), 1.0)
        assert len(step._halves) > 10
        if not at_once:
            step._halves = {}
        packed = pack(Batch(BATCHES[task], torch.tensor([0, 1]), np.array([1, 2]), 5), 2)
        torch.manual_seed(0)
        loss, words = step._differentiate(unpack(packed.memory, packed.layout))
        gradients.append(
            {"loss": loss, "words": words[0], **{n: p.grad for n, p in model.named_parameters() if p.grad is not None}}
        )
    assert len(gradients[0]) > 10
    torch.testing.assert_close(*gradients, rtol=0, atol=0)


def test_frozen_vectors_stay() -> None:
    model, step = new_step(freeze=True)
    assert step._table is None
    before = model.get_parameter("text.embedding.weight").clone()
    packed = packed_tokens(0)
    step._rate.fill_(0.01)
    step._step(unpack(packed.memory, packed.layout))
    assert torch.equal(model.get_parameter("text.embedding.weight"), before)


class Gated(PlainAttention):
    """With a forward of its own."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.gate = torch.nn.Parameter(torch.full((self.embed_dim,), 3.0))

    def forward(self, *arguments: Any, **options: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
        output, weights = super().forward(*arguments, **options)
        return output * self.gate, weights


class Normalised(PlainAttention):
    """With a projection of its own."""

    def project(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        query, key, value = super().project(query, key, value)
        return 8 * torch.nn.functional.normalize(query, dim=-1), torch.nn.functional.normalize(key, dim=-1), value


class Tabled(PlainAttention):
    """With a table of its own, which is not one of words."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.table = torch.nn.Embedding(2, self.head_dim)

    def mix(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, return_weights: bool, **options: Any
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        places = torch.arange(key.shape[-2], device=key.device)
        return super().mix(query, key + self.table(places % 2), value, return_weights=return_weights, **options)


class InFull(PlainAttention):
    """With a linear layer that is kept out of mixed precision."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.turn = torch.nn.Linear(self.head_dim, self.head_dim)

    def mix(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, return_weights: bool, **options: Any
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        with torch.autocast(query.device.type, enabled=False):
            query = self.turn(query.float())
        return super().mix(query.to(value.dtype), key, value, return_weights=return_weights, **options)


@pytest.mark.parametrize("freeze", [False, True])
@pytest.mark.parametrize("mixer", [Gated, Normalised, Tabled, InFull])
@pytest.mark.parametrize("mixed", [False, True])
def test_a_mixer_may_have_its_own_ways(
    mixer: type[PlainAttention], mixed: bool, freeze: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step has the loss and the gradients of the model as it is called."""
    monkeypatch.setitem(MIXERS, "own", mixer)
    config = ModelConfig(attention="own", heads=2, head_dim=6, embed_dim=12, dropout=0.0, freeze_vectors=freeze)
    model = build_model("sentence", 300, 3, config)
    tokens = torch.zeros(3, 11, dtype=torch.int64)
    tokens[0, :3], tokens[1, :2], tokens[2] = 299, 7, torch.arange(100, 111)
    batch = Batch({"tokens": tokens}, torch.tensor([0, 1, 2]), np.arange(3), 16)

    def autocast() -> torch.autocast:
        return torch.autocast("cpu", torch.bfloat16, enabled=mixed)

    step = GraphedStep(model, torch.optim.AdamW(in_groups(model)), cross_entropies, autocast, 0.0)
    step._start_averages()
    packed = pack(batch, 3)
    assert any(name == "tokens.tokens" for name, *_ in packed.layout)
    loss, norm = step._step(unpack(packed.memory, packed.layout)).tolist()
    model.zero_grad()
    with autocast():
        expected = cross_entropies(model(tokens), batch).mean()
    expected.backward()
    length = torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
    np.testing.assert_allclose((loss, norm), (expected.item(), length.item()), rtol=2e-2 if mixed else 1e-5)


def test_a_hook_on_attention_is_called() -> None:
    model, step = new_step()
    packed = packed_tokens(0)
    before = step._step(unpack(packed.memory, packed.layout))
    attention = model.get_submodule("text.sequence.encoder.layers.0.attention")
    attention.register_forward_hook(lambda module, arguments, output: (output[0] * 0, output[1]))
    assert not torch.equal(step._step(unpack(packed.memory, packed.layout)), before)  # the rate is 0


def test_which_tables_the_kernels_are_for() -> None:
    assert WordRows.fits(torch.empty(6, 2))
    assert not WordRows.fits(torch.empty(2, 8192))
    assert not WordRows.fits(torch.empty(6, 2).t())
    assert not WordRows.fits(torch.empty(6, 2, dtype=torch.float64))
