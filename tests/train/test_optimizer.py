"""Rows that wait end up where dense AdamW takes them, whatever happens to a run on the way."""

import copy
import math
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load
from torch import Tensor, nn

from datransformer.train import loop as loop_module
from datransformer.train import optimizer as optimizer_module
from datransformer.train.errors import Interrupted, TrainingError
from datransformer.train.optimizer import FACTOR, VECTORS, RowAdamW, Table, clip, gradients, in_groups, own_tables
from datransformer.train.tasks import TextTask

if TYPE_CHECKING:
    from tests.train.conftest import Bench

ROWS, DIM = 61, 7
STEPS = 400
built = pytest.mark.skipif(optimizer_module.KERNELS is None, reason="the kernels are not built")
# The loops in torch, in both types, and the compiled ones, in theirs.
PATHS = [
    pytest.param((torch.float32, True), marks=built, id="compiled"),
    pytest.param((torch.float32, False), id="float32"),
    pytest.param((torch.float64, False), id="float64"),
]


class Siamese(nn.Module):
    """Word vectors that are read twice in a step, and a weight that is not a table."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(ROWS, DIM, padding_idx=0)
        self.scale = nn.Parameter(torch.ones(DIM))

    def forward(self, tokens: Tensor, push: Tensor) -> Tensor:
        one, other = tokens.chunk(2)
        both = torch.cat([self.embedding(one), self.embedding(other)])
        return (both * self.scale * push).sum()


def draw(step: int) -> tuple[Tensor, Tensor]:
    """Frequent words, rare ones and some that never come, padding; gradients of all sizes, most of them not tiny."""
    random = torch.Generator().manual_seed(step)
    chances = 1 / torch.arange(1, ROWS + 1) ** 1.5
    chances[-9:] = 0
    tokens = torch.multinomial(chances, 10, replacement=True, generator=random).view(2, 5)
    sizes = 10 ** (-9 * torch.rand(2, 5, DIM, generator=random, dtype=torch.float64) ** 2)
    return tokens, sizes * torch.randn(2, 5, DIM, generator=random, dtype=torch.float64)


def rate(step: int) -> float:
    return 0.01 * min((step + 1) / 20, 1) * 0.5 * (1 + math.cos(math.pi * step / STEPS))


def advance(model: Siamese, optimizer: torch.optim.Optimizer, steps: range, then: Callable[[int], None]) -> None:
    """Train with warm-up, cosine schedule and clipping as the loop does."""
    for step in steps:
        optimizer.param_groups[0]["lr"] = rate(step)
        tokens, push = draw(step)
        for half in range(2):  # two batches a step
            model(tokens.roll(half, 1)[:, half:], push[:, half:].to(model.scale.dtype)).backward()
        norm = torch.nn.utils.get_total_norm(gradients(model.parameters()))
        if norm > 0.5:
            clip(model.parameters(), 0.5, norm)
        optimizer.step()
        optimizer.zero_grad()
        then(step)


def dense(dtype: torch.dtype, decay: float, steps: int = STEPS) -> tuple[Siamese, torch.optim.AdamW]:
    torch.manual_seed(0)
    model = Siamese().to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=decay, fused=True)
    advance(model, optimizer, range(steps), lambda step: None)
    return model, optimizer


def rowwise(dtype: torch.dtype, decay: float) -> tuple[Siamese, RowAdamW]:
    torch.manual_seed(0)
    model = Siamese().to(dtype)
    return model, RowAdamW(model.parameters(), [model.embedding], lr=1.0, weight_decay=decay)


def nothing(step: int) -> None:
    pass


def errors(model: nn.Module, truth: nn.Module) -> dict[str, float]:
    pairs = zip(model.state_dict().items(), truth.state_dict().values(), strict=True)
    return {name: float((tensor.double() - other.double()).abs().max()) for (name, tensor), other in pairs}


@pytest.fixture(params=PATHS)
def dtype(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> torch.dtype:
    dtype, compiled = request.param
    if not compiled:
        monkeypatch.setattr(optimizer_module, "KERNELS", None)
    assert isinstance(dtype, torch.dtype)
    return dtype


@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_rows_end_up_where_dense_adamw_takes_them(dtype: torch.dtype, decay: float) -> None:
    truth, exact = dense(torch.float64, decay)
    model, optimizer = rowwise(dtype, decay)
    with optimizer.waiting_rows():
        advance(model, optimizer, range(STEPS), nothing)
        assert errors(model, truth)["embedding.weight"] > 1e-3  # rows are behind
        optimizer.flush()
        reached = errors(model, truth)
        state, wanted = optimizer.state[model.embedding.weight], exact.state[truth.embedding.weight]
    # float64: rounding; float32: no farther from the truth than a dense AdamW of the same type.
    allowed = dict.fromkeys(reached, 1e-12) if dtype == torch.float64 else errors(dense(dtype, decay)[0], truth)
    for name, error in reached.items():
        assert error <= 1.5 * allowed[name], name
    assert state["step"] == wanted["step"] == STEPS
    for name in ("exp_avg", "exp_avg_sq"):
        scale = float(wanted[name].abs().max())
        torch.testing.assert_close(state[name].double(), wanted[name], rtol=2e-4, atol=1e-7 * scale)
    assert torch.equal(state["exp_avg"][0], torch.zeros(DIM, dtype=dtype))  # padding


def test_what_is_read_is_up_to_date(dtype: torch.dtype) -> None:
    truth = rowwise(torch.float64, 0.01)[0]
    exact = torch.optim.AdamW(truth.parameters(), weight_decay=0.01, fused=True)
    model, optimizer = rowwise(dtype, 0.01)
    read = []

    def compare(step: int) -> None:
        tokens = draw(step + 7)[0]
        model.eval()
        read.append(float((model.embedding(tokens).double() - truth.embedding(tokens)).detach().abs().max()))
        assert int((optimizer._tables[model.embedding.weight].last <= step).sum()) > 9  # and the rest is not

    with optimizer.waiting_rows():
        for step in range(150):
            advance(truth, exact, range(step, step + 1), nothing)
            advance(model, optimizer, range(step, step + 1), compare)
    assert max(read) < (1e-13 if dtype == torch.float64 else 2e-5)


def replay(
    vector: float, average: float, square: float, begin: int, rates: list[float], decay: float
) -> tuple[float, float, float]:
    """Steps of AdamW without a gradient, one by one."""
    for step, now in enumerate(rates, begin + 1):
        average, square = 0.9 * average, 0.999 * square
        vector *= 1 - now * decay
        root = math.sqrt(square / (1 - 0.999**step)) + 1e-8
        vector -= now * average / (1 - 0.9**step) / root
    return vector, average, square


def wait(
    dtype: torch.dtype, values: tuple[Tensor, Tensor, Tensor], begin: int, rates: list[float], decay: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The same at once."""
    vectors, average, square = (tensor.to(dtype).clone() for tensor in values)
    state = {"step": torch.tensor(float(begin)), "exp_avg": average, "exp_avg_sq": square}
    table = Table(nn.Parameter(vectors), state, {"betas": (0.9, 0.999), "eps": 1e-8})
    for now in rates:
        table.history.append(now, decay)
    table.flush()
    return table.weight.detach(), average, square


def check_wait(dtype: torch.dtype, logs: list[float], begin: int, rates: list[float], decay: float) -> None:
    """From vectors of 0, so that nothing but the move is left: its own digits are compared, not those of a weight."""
    sizes = 10 ** torch.tensor(logs, dtype=torch.float64)  # of the last gradient
    square = (0.001 * sizes**2).to(dtype).double()
    average = (0.1 * sizes).to(dtype).double()
    vectors = torch.zeros_like(sizes)
    moved = wait(dtype, (vectors[:, None], average[:, None], square[:, None]), begin, rates, decay)
    numbers = zip(vectors.tolist(), average.tolist(), square.tolist(), strict=True)
    wanted = torch.tensor([replay(*each, begin, rates, decay) for each in numbers], dtype=torch.float64).T
    precision = torch.finfo(dtype).eps * (8 if dtype == torch.float32 else 64)
    tiniest = float(torch.finfo(dtype).tiny)
    for got, expected in zip(moved, wanted, strict=True):
        torch.testing.assert_close(got[:, 0].double(), expected, rtol=precision, atol=tiniest)


@pytest.mark.parametrize("begin", [1, 2, 10, 100, 1000, 30_000])
@pytest.mark.parametrize("steps", [1, 2, 9, 70, 800])
def test_to_wait_is_to_take_step_after_step(dtype: torch.dtype, begin: int, steps: int) -> None:
    """Down to gradients that ε swallows."""
    rates = [0.01 * (0.1 + abs(math.sin(step))) for step in range(steps)]
    # Below 1e-16 the square of a gradient is no normal number of float32.
    check_wait(dtype, [0.0, -2.0, -4.0, -5.0, -6.0, -6.5, -7.0, -7.5, -8.0, -9.0, -12.0], begin, rates, 0.05)


@given(
    logs=st.lists(st.floats(-12, 3), min_size=1, max_size=5),
    begin=st.integers(1, 3000),
    rates=st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=60),
    decay=st.floats(0, 0.1),
)
@settings(max_examples=60, deadline=None)
def test_to_wait_is_to_take_step_after_step_at_any_rate(
    logs: list[float], begin: int, rates: list[float], decay: float
) -> None:
    for dtype in (torch.float32, torch.float64):
        check_wait(dtype, logs, begin, rates, decay)


def test_a_row_without_moments_only_shrinks(dtype: torch.dtype) -> None:
    zeros = torch.zeros(1, 3)
    values = (torch.tensor([[1.0, -2.0, 3.0]]), zeros, zeros)
    for decay in (0.0, 0.1):
        vectors, average, square = wait(dtype, values, 0, [0.5, 0.0, 0.25], decay)
        factor = (1 - 0.5 * decay) * (1 - 0.25 * decay)
        torch.testing.assert_close(vectors, values[0].to(dtype) * factor)
        assert not average.any()
        assert not square.any()


def test_steps_at_a_rate_of_zero_move_nothing(dtype: torch.dtype) -> None:
    values = tuple(torch.tensor([[number]]) for number in (1.0, 0.5, 0.25))
    vectors, average, square = wait(dtype, values, 5, [0.0, 0.0], 0.1)  # type: ignore[arg-type]
    assert vectors.item() == 1
    assert average.item() == pytest.approx(0.5 * 0.81)
    assert square.item() == pytest.approx(0.25 * 0.999**2)


def test_often_or_seldom_brought_up_to_date(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    models = []
    for longest, every in ((1024, 1000), (1024, 13), (17, 1000)):
        monkeypatch.setattr(optimizer_module, "LONGEST", longest)
        model, optimizer = rowwise(dtype, 0.01)
        most: list[int] = []
        with optimizer.waiting_rows():

            def then(step: int, every: int = every, optimizer: RowAdamW = optimizer, most: list[int] = most) -> None:
                most.append(optimizer._tables[optimizer._embeddings[0].weight].history.steps)
                if step % every == every - 1:
                    optimizer.flush()

            advance(model, optimizer, range(200), then)
        assert max(most) == min(200, longest - 1, every)
        models.append(model)
    for other in models[1:]:
        assert 0 < errors(other, models[0])["embedding.weight"] < (1e-13 if dtype == torch.float64 else 2e-5)


def pause(dtype: torch.dtype, flushed: bool) -> tuple[Siamese, Siamese, tuple[dict[str, Any], dict[str, Any]]]:
    """A model after 99 steps, after 60 of them, and what would have been saved then."""
    model, optimizer = rowwise(dtype, 0.01)
    with optimizer.waiting_rows():
        advance(model, optimizer, range(60), nothing)
        if flushed:
            optimizer.flush()
        saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
        advance(model, optimizer, range(60, 99), nothing)
    return model, dense(dtype, 0.01, 60)[0], saved


@pytest.mark.parametrize("flushed", [True, False])
def test_a_state_is_restored_bit_for_bit(dtype: torch.dtype, flushed: bool) -> None:
    whole, _, saved = pause(dtype, flushed)
    names = {"step", "exp_avg", "exp_avg_sq"}
    assert set(saved[1]["state"][1]) == (names if flushed else names | {"last", "history"})
    model, optimizer = rowwise(dtype, 0.01)
    model.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    with optimizer.waiting_rows():
        advance(model, optimizer, range(60, 99), nothing)
    assert all(torch.equal(tensor, whole.state_dict()[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("flushed", [True, False])
def test_a_dense_adamw_goes_on_from_rows_that_waited(dtype: torch.dtype, flushed: bool) -> None:
    whole, half, saved = pause(dtype, flushed)
    torch.manual_seed(0)
    model = Siamese().to(dtype)
    optimizer = RowAdamW(model.parameters(), lr=1.0, weight_decay=0.01)
    model.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    close = 1e-13 if dtype == torch.float64 else 2e-5
    assert errors(model, half)["embedding.weight"] < close
    assert "last" not in optimizer.state_dict()["state"][1]
    advance(model, optimizer, range(60, 99), nothing)
    assert errors(model, whole)["embedding.weight"] < close


def test_rows_wait_from_the_state_of_a_dense_adamw_on(dtype: torch.dtype) -> None:
    truth, before = dense(dtype, 0.01, 60)
    model, optimizer = rowwise(dtype, 0.01)
    model.load_state_dict(truth.state_dict())
    optimizer.load_state_dict(copy.deepcopy(before.state_dict()))
    advance(truth, before, range(60, 99), nothing)
    with optimizer.waiting_rows():
        advance(model, optimizer, range(60, 99), nothing)
    assert errors(model, truth)["embedding.weight"] < (1e-13 if dtype == torch.float64 else 2e-5)


def test_a_block_leaves_the_embedding_as_it_was(dtype: torch.dtype) -> None:
    model, optimizer = rowwise(dtype, 0.0)
    with optimizer.waiting_rows():
        assert model.embedding.sparse
        advance(model, optimizer, range(3), nothing)
        with pytest.raises(IndexError):  # torch's own, no access to memory
            model.embedding(torch.tensor([1, ROWS, -1]))
        assert optimizer._tables[model.embedding.weight].behind
    assert not model.embedding.sparse
    assert not model.embedding._forward_pre_hooks
    assert not optimizer._tables[model.embedding.weight].behind


def test_only_tables_that_nothing_else_reads() -> None:
    tied = nn.Linear(DIM, ROWS, bias=False)
    embeddings = [nn.Embedding(ROWS, DIM) for _ in range(4)]
    tied.weight = embeddings[1].weight
    embeddings[2].weight.requires_grad_(False)
    embeddings[3].max_norm = 1.0
    assert own_tables(nn.ModuleList([*embeddings, tied])) == embeddings[:1]


# Whole runs


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], list[int]]:
    """Turns waiting on or off for tables of any size; the number of tables that waited in each run that followed."""
    counts: list[int] = []
    choose = loop_module.Loop._waiting_tables

    def watch(loop: loop_module.Loop) -> list[nn.Embedding]:
        counts.append(len(choose(loop)))
        return choose(loop)

    def turn(on: bool) -> list[int]:
        monkeypatch.setattr(loop_module, "LEAST_ROWS", 1 if on else 10**9)
        monkeypatch.setattr(loop_module, "ROWS_PER_TOKEN", 0)
        return counts

    monkeypatch.setattr(loop_module.Loop, "_waiting_tables", watch)
    return turn


@built
@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize(("task", "accumulate"), [("sentence", 1), ("sentence", 3), ("recommend", 1)])
def test_a_run_is_the_same(
    bench: "Bench", waiting: Callable[[bool], list[int]], task: str, accumulate: int, decay: float
) -> None:
    config = bench.config(
        task=task, train_accumulate=accumulate, train_weight_decay=decay, train_epochs=3, train_lr=0.003,
        train_schedule="cosine", train_warmup=4, train_clip=0.5, model_dropout=0.1,
    )  # fmt: skip
    for name in ("dense", "rows"):
        counts = waiting(name == "rows")
        bench.fit(config, name)
    assert counts == [0, 1]
    assert bench.losses("rows") == pytest.approx(bench.losses("dense"), abs=1e-5)
    for reached, wanted in zip(bench.dev("rows"), bench.dev("dense"), strict=True):
        assert reached == pytest.approx(wanted, abs=1e-6)
    weights, others = load(bench.weights("rows")), load(bench.weights("dense"))
    for name, tensor in weights.items():
        torch.testing.assert_close(tensor, others[name], rtol=0, atol=1e-4)


@built
@pytest.mark.parametrize("stop", range(1, 12))
def test_a_run_that_is_stopped_goes_on_bit_for_bit(
    bench: "Bench", waiting: Callable[[bool], list[int]], stop: int
) -> None:
    waiting(True)
    config = bench.config(
        train_checkpoint_every=3, train_evaluate_every=5, train_steps=13, train_weight_decay=0.1, model_dropout=0.2
    )
    bench.fit(config, "whole")
    with pytest.raises(Interrupted, match=f"after step {stop + 1}"):  # it comes when a step is over
        bench.fit(config, on_step=lambda step: signal.raise_signal(signal.SIGINT) if step == stop else None)
    bench.fit(config, resume=True)
    assert bench.weights() == bench.weights("whole")
    assert bench.lines() == bench.lines("whole")


@built
def test_a_run_that_crashed_goes_on_bit_for_bit(bench: "Bench", waiting: Callable[[bool], list[int]]) -> None:
    waiting(True)
    config = bench.config(train_checkpoint_every=3, train_evaluate_every=5, train_steps=13, train_weight_decay=0.1)
    bench.fit(config, "whole")
    for crash in (5, 7, 9):
        with pytest.raises(ZeroDivisionError):
            bench.fit(config, resume=True, on_step=lambda step, crash=crash: 1 // (step - crash) and None)
    bench.fit(config, resume=True)
    assert bench.weights() == bench.weights("whole")


@built
@pytest.mark.parametrize("first", [True, False])
def test_checkpoints_of_both_kinds_are_resumed_by_the_other(
    bench: "Bench", waiting: Callable[[bool], list[int]], first: bool
) -> None:
    """Stopped where no checkpoint was planned, with rows behind, and where one was: its content is a dense AdamW's."""
    for stop in (3, 4):
        config = bench.config(train_checkpoint_every=4, train_steps=9, train_weight_decay=0.1)
        waiting(first)
        bench.fit(config, "whole", overwrite=True)
        with pytest.raises(Interrupted):
            bench.fit(
                config,
                overwrite=True,
                on_step=lambda step, stop=stop: signal.raise_signal(signal.SIGINT) if step == stop - 1 else None,
            )
        content = load((bench.folder / "run" / "checkpoints" / f"{stop:09d}.safetensors").read_bytes())
        assert any(name.endswith(".last") for name in content) == (first and stop == 3)
        counts = waiting(not first)
        bench.fit(config, resume=True)
        assert counts[-3:] == [first, first, not first]
        assert bench.losses() == pytest.approx(bench.losses("whole"), abs=1e-5)


@built
@pytest.mark.parametrize(
    ("settings", "tables"),
    [
        ({}, 1),
        ({"train_precision": "bf16-mixed"}, 1),
        ({"train_precision": "64-true"}, 0),
        ({"train_weight_decay": 11.0}, 0),
    ],
)
def test_where_rows_wait(
    bench: "Bench", waiting: Callable[[bool], list[int]], settings: dict[str, Any], tables: int
) -> None:
    counts = waiting(True)
    bench.fit(bench.config(**settings, train_steps=3))
    assert counts == [tables]


@built
def test_small_tables_do_not_wait(bench: "Bench", waiting: Callable[[bool], list[int]]) -> None:
    counts = waiting(True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop_module, "ROWS_PER_TOKEN", 8)
        bench.fit(bench.config(train_steps=1))
    assert counts == [0]


@built
def test_a_gradient_that_is_not_a_number_is_found(
    bench: "Bench", waiting: Callable[[bool], list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = TextTask.losses

    def broken(task: TextTask, answers: Tensor, batch: Any) -> Tensor:
        return losses(task, answers, batch) + torch.sqrt(answers[:, 0] * 0)  # its derivative is infinite times 0

    waiting(True)
    monkeypatch.setattr(TextTask, "losses", broken)
    with pytest.raises(TrainingError, match=r"the gradient is NaN or Inf, first in the gradient of 'text\.embedding"):
        bench.fit(bench.config())


def test_history_grows_no_longer_than_it_may() -> None:
    history = optimizer_module.History(0, (0.9, 0.999), 1e-8, 1e-7)
    for _ in range(optimizer_module.LONGEST):
        assert not history.full
        history.append(0.1, optimizer_module.STRONGEST_DECAY / 0.1)
    assert history.full
    assert np.isfinite(history.waiting(torch.arange(optimizer_module.LONGEST + 1)).numpy()).all()


@pytest.mark.parametrize("rate", [1.0, 25.0])
def test_w_and_v_learn_at_a_multiple_of_the_rate(bench: "Bench", rate: float) -> None:
    """The first step of Adam is as long as the learning rate, whatever the gradient."""
    first = {"distance_weight": 0.25, "distance_shift": 0.5}
    start = {f"{name}_init": number for name, number in first.items()}
    config = bench.config(train_steps=1, train_lr=1e-3, train_distance_rate=rate, model_attention_options=start)
    for layer in bench.fit(config)["distances"].values():
        for name, numbers in layer.items():
            np.testing.assert_allclose(np.abs(np.array(numbers) - first[name]), 1e-3 * rate, rtol=2e-3)


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("rate", [1.0, 0.25])
def test_word_vectors_learn_at_a_multiple_of_the_rate_and_nothing_else_does(
    bench: "Bench", waiting: Callable[[bool], list[int]], rate: float, waits: bool
) -> None:
    waiting(waits)
    ends = {}
    for name, lr in (("start", 1e-9), ("end", 1e-3)):
        config = bench.config(train_steps=1, train_lr=lr, train_vector_rate=rate, model_dropout=0.0)
        bench.fit(config, name)
        ends[name] = load(bench.weights(name))
    ways = {name: (ends["end"][name] - ends["start"][name]).abs().max().item() for name in ends["end"]}
    vectors = ways.pop("text.embedding.weight")
    assert vectors == pytest.approx(1e-3 * rate, rel=2e-3)
    assert max(ways.values()) == pytest.approx(1e-3, rel=2e-3)


class WithTables(nn.Module):
    """A model of which more than the word vectors is called an embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.text = nn.ModuleDict({"embedding": nn.Embedding(3, 2), "position_embedding": nn.Embedding(3, 2)})


def test_other_tables_of_a_model_learn_at_the_rate_of_all() -> None:
    model = WithTables()
    slow = [group["params"] for group in in_groups(model, vector_rate=0.1) if group[FACTOR] != 1]
    assert [list(map(id, group)) for group in slow] == [[id(model.get_parameter(VECTORS))]]
    assert len([name for name, _ in model.named_parameters() if name.endswith("embedding.weight")]) == 2
