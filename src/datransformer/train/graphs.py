"""Whole steps as CUDA graphs. These models are small: eager, a GPU waits for Python most of the time.

A step is launched and not waited for, so that a process can launch those of other runs meanwhile, each run on its own
stream. Every run draws its dropout from a generator of its own: one that several runs share would be set by one of
them while a step of another reads it.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.optim.adamw import adamw

from datransformer.data.batches import Batch
from datransformer.nn.flat import Flat
from datransformer.nn.multihead import MultiheadAttention
from datransformer.ops.fused import HAS_TRITON
from datransformer.train.optimizer import FACTOR, gradients, own_tables

if TYPE_CHECKING:
    from datransformer.train.word_rows import WordRows

MOST = 128  # shapes that get a graph; others run eagerly, and so does the first step of each shape
# What an index has where there is nothing; candidates that do not exist would have no finite loss to be weighted by 0.
FILL = {"sentences": -1, "history": -1}
TEXTS = ("tokens", "titles", "first", "second")  # ids, 0 = padding; all other inputs are indices of their rows
FULL = 0.75  # the share of tokens in a padded batch from which on it is not worth while to leave padding out
SHORT = 16  # texts of up to so many tokens attend apart from longer ones, which most are not

Inputs = dict[str, Tensor | Flat]
Losses = Callable[[Tensor, Batch], Tensor]
Layout = tuple[tuple[str, torch.dtype, tuple[int, ...]], ...]  # name, type and shape of each tensor
TARGETS, WEIGHTS = "targets", "weights"
WORDS = ("words", "starts", "order")  # what `index_words` finds
ALIGNED = 16  # bytes
PACKAGE = __name__.partition(".")[0]


def grid(size: int, *, least: int = 8, steps: int = 4) -> int:
    """The next size on a grid coarse enough to be met again: multiples of ``least``, then ``steps`` a doubling."""
    step = max(least, (1 << (size - 1).bit_length()) // (2 * steps))
    return -(-size // step) * step


def pad_batch(batch: Batch, total: int) -> tuple[Batch, Tensor]:
    """The batch on the grid, and the weight of each example, 1 / total, or 0 for padding.

    Texts come end to end, unless there is one an example and little padding among them.

    The number of candidates is the same in all batches and stays. What a `Flat` holds is in several tensors, from which
    `as_inputs` makes it.
    """
    assert batch.targets is not None
    count = len(batch.targets)
    extra = grid(count) - count
    texts = [tensor for name, tensor in batch.inputs.items() if name in TEXTS]
    indices = {name: tensor for name, tensor in batch.inputs.items() if name not in TEXTS}
    if not indices:  # a row an example, and behind the first texts of all pairs the second ones
        longest = max(text.shape[1] for text in texts)
        texts = [torch.cat([F.pad(text, (0, longest - text.shape[1], 0, extra)) for text in texts])]
    name = next(iter(batch.inputs))
    wide = F.pad(texts[0], (0, grid(texts[0].shape[1]) - texts[0].shape[1]))
    if not indices and len(batch.inputs) == 1 and int(wide.count_nonzero()) >= FULL * wide.numel():
        inputs = {name: wide}
    else:
        flat, rows = lay_flat(texts[0].numpy(), in_two=bool(indices))
        inputs = {f"{name}.{part}": torch.from_numpy(values) for part, values in flat.items()}
    for name, index in indices.items():
        moved = torch.where(index < 0, index, torch.from_numpy(rows)[index.clamp(min=0)])
        more = 0 if name == "candidates" else grid(index.shape[1], steps=1) - index.shape[1]
        inputs[name] = F.pad(moved, (0, more, 0, extra), value=FILL.get(name, 0))
    weights = F.pad(torch.full((count,), 1 / total, dtype=torch.float32), (0, extra))
    return Batch(inputs, F.pad(batch.targets, (0, extra)), batch.rows, batch.tokens), weights


def lay_flat(texts: npt.NDArray[Any], *, in_two: bool) -> tuple[dict[str, npt.NDArray[Any]], npt.NDArray[np.int64]]:
    """The arrays of a `Flat` on the grid, and the row that each text has in it.

    Args:
        texts: Ids [texts, length], 0 = padding.
        in_two: Whether rows may be moved, so that texts up to `SHORT` come in a part of their own.
    """
    is_long = (texts[:, SHORT:] != 0).any(1) if in_two else np.zeros(len(texts), bool)
    wholes = [np.flatnonzero(~is_long), np.flatnonzero(is_long)]
    rows = np.empty(len(texts), np.int64)
    last = grid(int(np.count_nonzero(texts)) + 1, least=64) - 1  # the token that stands for padding
    tokens, order, back = np.zeros(last + 1, texts.dtype), np.zeros(last + 1, np.int32), np.empty(last + 1, np.int32)
    parts: dict[str, npt.NDArray[Any]] = {}
    above = begin = end = 0  # rows, slots and tokens of the parts before
    for which in wholes:
        if not len(which):
            continue
        own = texts if len(which) == len(texts) else texts[which]
        found = np.flatnonzero(own)
        text, place = np.divmod(found, own.shape[1])
        high = grid(len(which), least=16, steps=1) if in_two else len(texts)
        wide = grid(int(place.max(initial=0)) + 1)
        if len(found) == high * wide:  # padding needs an empty slot
            wide = grid(wide + 1)
        start, end = end, end + len(found)
        slots = text * wide + place
        part = np.full(high * wide, last, np.int32)
        part[slots] = np.arange(start, end)
        tokens[start:end], order[start:end], back[start:end] = own.ravel()[found], place, begin + slots
        back[end:] = begin + int((part == last).argmax())
        rows[which] = np.arange(above, above + len(which))
        parts[str(len(parts))] = part.reshape(high, wide)
        above, begin = above + high, begin + len(part)
    return {"tokens": tokens, "order": order, "back": back, **parts}, rows


def as_inputs(tensors: dict[str, Tensor]) -> Inputs:
    """What a model takes: the tensors of a `Flat` together."""
    inputs: Inputs = {}
    flat: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        whole, _, part = name.partition(".")
        if part:
            flat.setdefault(whole, {})[part] = tensor
        else:
            inputs[name] = tensor
    for name, parts in flat.items():
        tokens, order, back = (parts.pop(field) for field in ("tokens", "order", "back"))
        inputs[name] = Flat(tokens, order, back, tuple(parts.values()))
    return inputs


def index_words(tokens: npt.NDArray[Any]) -> tuple[npt.NDArray[np.int32], ...]:
    """Which words a batch has, and where.

    Args:
        tokens: Ids, 0 = padding, of any shape.

    Returns:
        The ids, each once, then zeros; where the tokens of each start in ``order``, and the last ones end; the places
        of all tokens, word by word. All of them as long as there are tokens, ``starts`` by one longer, so that their
        shapes do not depend on what is in the texts.
    """
    flat = tokens.ravel()
    order = np.argsort(flat, kind="stable").astype(np.int32)
    order = np.roll(order, -int(np.count_nonzero(flat == 0)))  # padding behind all words
    count = np.count_nonzero(flat)
    words = flat[order[:count]]
    first = np.flatnonzero(np.diff(words, prepend=0))
    ids, starts = np.zeros(len(flat), np.int32), np.full(len(flat) + 1, count, np.int32)
    ids[: len(first)], starts[: len(first)] = words[first], first
    return ids, starts, order


@dataclass(frozen=True)
class Packed:
    """A padded batch in one piece of memory, which a GPU copies at once. Runs with the same batches can share it.

    Args:
        memory: Bytes, pinned where there is CUDA.
        layout: What lies in it, one behind the other.
        tokens: Tokens that are not padding.
    """

    memory: Tensor
    layout: Layout
    tokens: int


def pack(batch: Batch, total: int) -> Packed:
    """A batch as `pad_batch` pads it, in one piece."""
    padded, weights = pad_batch(batch, total)
    assert padded.targets is not None
    words = index_words(next(tensor for name, tensor in padded.inputs.items() if _is_text(name)).numpy())
    tensors = {
        **padded.inputs,
        TARGETS: padded.targets,
        WEIGHTS: weights,
        **{name: torch.from_numpy(values) for name, values in zip(WORDS, words, strict=True)},
    }
    layout = tuple((name, tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items())
    size = sum(_room(tensor) for tensor in tensors.values())
    memory = torch.empty(size, dtype=torch.uint8, pin_memory=torch.cuda.is_available())
    for view, tensor in zip(unpack(memory, layout).values(), tensors.values(), strict=True):
        view.copy_(tensor)
    return Packed(memory, layout, batch.tokens)


def unpack(memory: Tensor, layout: Layout) -> dict[str, Tensor]:
    """The tensors that lie in ``memory``, as views of it."""
    views, start = {}, 0
    for name, dtype, shape in layout:
        size = dtype.itemsize * math.prod(shape)
        views[name] = memory[start : start + size].view(dtype).view(shape)
        start += -(-size // ALIGNED) * ALIGNED
    return views


def _is_text(name: str) -> bool:
    whole, _, part = name.partition(".")
    return whole in TEXTS and part in ("", "tokens")


def _room(tensor: Tensor) -> int:
    return -(-tensor.nbytes // ALIGNED) * ALIGNED


@contextmanager
def own_stream() -> Iterator[None]:
    """Work on a CUDA stream of its own, where there is CUDA: a graph cannot be captured on the default one."""
    if not torch.cuda.is_available():
        yield
        return
    before, stream = torch.cuda.current_stream(), torch.cuda.Stream()
    stream.wait_stream(before)
    with torch.cuda.stream(stream):
        yield
    before.wait_stream(stream)


def _linear_parameters(model: nn.Module) -> Iterator[Tensor]:
    """What is known to go through linear layers alone; modules that others add may do with theirs as they please."""
    mixers = [module for module in model.modules() if isinstance(module, MultiheadAttention)]
    inside = {module for mixer in mixers for module in mixer.modules()}
    for mixer in mixers:
        if mixer.is_plain:
            yield from (mixer.in_proj_weight, *mixer.out_proj.parameters())
            yield from () if mixer.in_proj_bias is None else (mixer.in_proj_bias,)
    ours = [module for module in model.modules() if type(module).__module__.startswith(f"{PACKAGE}.")]
    for module in ours:
        children = [*module.children()]
        children += [layer for child in children if type(child) is nn.Sequential for layer in child]
        for child in children if module not in inside else ():
            if type(child) is nn.Linear:
                yield from child.parameters()


class GraphedStep:
    """Steps of AdamW on batches of shapes that come again and again.

    Everything happens on the stream that is current when it is called, which must not be the default one and must be
    the same every time. Once a loss or a gradient is not finite, that step and all further ones change nothing.

    Args:
        model: On its CUDA device, in float32.
        optimizer: A torch.optim.AdamW of its parameters as `in_groups` has them; its state is used and changed, its
            ``step`` never called.
        losses: The loss of each example from the model's answers and a batch with targets.
        autocast: Enters mixed precision.
        clip: Largest norm of the gradient; 0 does not clip.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        losses: Losses,
        autocast: Callable[[], AbstractContextManager[Any]],
        clip: float,
    ) -> None:
        self._model, self._optimizer = model, optimizer
        self._losses, self._autocast, self._clip = losses, autocast, clip
        trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        self._device = next(iter(trained.values())).device
        self._table = self._find_table()
        self._parameters = [p for p in trained.values() if self._table is None or p is not self._table.weight]
        self._halves = self._find_halves(trained)
        self._random = torch.Generator(self._device)
        self._rate = torch.zeros((), device=self._device)
        self._broken = torch.zeros((), device=self._device)  # 1 once something was not finite
        self._seen: set[Layout] = set()
        self._graphs: dict[Layout, tuple[torch.cuda.CUDAGraph, Tensor, Tensor]] = {}
        self._pool: Any = None
        self._results: list[Tensor] = []

    def __call__(self, packed: Packed, rate: float, seed: int) -> None:
        """Launch a step at the learning ``rate``; ``seed`` sets the random state of dropout."""
        layout = packed.layout
        self._rate.fill_(rate)
        if layout not in self._graphs:
            memory = packed.memory.to(self._device, non_blocking=True)
            # Libraries set themselves up on first use, which cannot be captured; and many a shape comes only once.
            if layout not in self._seen or len(self._graphs) >= MOST:
                self._seen.add(layout)
                self._start_averages()
                with self._own_random(seed):
                    self._results.append(self._step(unpack(memory, layout)))
                return
            self._graphs[layout] = self._capture(memory, layout)
        graph, memory, results = self._graphs[layout]
        memory.copy_(packed.memory, non_blocking=True)
        self._random.manual_seed(seed)
        graph.replay()
        self._results.append(results.clone())

    def results(self) -> list[tuple[float, float]]:
        """Wait for all steps since the last call: the loss of each, and the norm of its gradient before clipping."""
        results, self._results = self._results, []
        return [(loss, norm) for loss, norm in torch.stack(results).tolist()] if results else []

    def _differentiate(self, tensors: dict[str, Tensor]) -> tuple[Tensor, list[Tensor]]:
        """The loss; the gradients are left where they belong, and those of the table's words returned."""
        inputs = dict(tensors)
        targets, weights = inputs.pop(TARGETS), inputs.pop(WEIGHTS)
        words = [inputs.pop(name) for name in WORDS]
        batch = Batch({}, targets, np.empty(0, np.int64), 0)
        for parameter in self._model.parameters():  # a gradient is written then, not added to zeros
            parameter.grad = None
        with nullcontext() if self._table is None else self._table.catch(), self._autocast():
            outputs = functional_call(self._model, self._cast(), (), as_inputs(inputs))
            losses = self._losses(outputs, batch)
        loss = (losses * weights.to(losses.dtype)).sum()
        loss.backward()
        self._cast_back()
        return loss.detach(), [] if self._table is None else [self._table.gradient(*words)]

    @torch.no_grad()
    def _cast(self) -> dict[str, Tensor]:
        """The parameters that mixed precision rounds, rounded all at once, by their names."""
        if self._halves:
            halves, wholes = zip(*self._halves.values(), strict=True)
            torch._foreach_copy_(halves, wholes)
            for half in halves:
                half.grad = None
        return {name: half for name, (half, _) in self._halves.items()}

    @torch.no_grad()
    def _cast_back(self) -> None:
        """Bring the gradients of rounded parameters to those that they were made of."""
        found = [(half.grad, whole) for half, whole in self._halves.values() if half.grad is not None]
        copies = [torch.empty_like(whole) for _, whole in found]
        if found:
            torch._foreach_copy_(copies, [gradient for gradient, _ in found])
        for copy, (_, whole) in zip(copies, found, strict=True):
            whole.grad = copy

    @torch.no_grad()
    def _update(self, loss: Tensor, words: list[Tensor]) -> Tensor:
        norm = torch.nn.utils.get_total_norm([*gradients(self._parameters), *words])
        finite = (loss.isfinite() & norm.isfinite()).to(self._broken.dtype)
        self._broken.copy_(torch.maximum(self._broken, 1 - finite))
        scale = (self._clip / (norm + 1e-6)).clamp(max=1) if self._clip else torch.ones_like(norm)
        if self._clip:
            torch._foreach_mul_(gradients(self._parameters), scale)
        for options in self._optimizer.param_groups:
            self._move([parameter for parameter in options["params"] if parameter.grad is not None], options)
        if self._table is not None:
            state = self._optimizer.state[self._table.weight]
            groups = self._optimizer.param_groups
            options = next(group for group in groups if any(one is self._table.weight for one in group["params"]))
            self._table.move(state, options, words[0], self._rate, scale, self._broken)
        return torch.stack((loss, norm.to(loss)))

    def _move(self, parameters: list[nn.Parameter], options: dict[str, Any]) -> None:
        """A step of AdamW."""
        states = [self._optimizer.state[parameter] for parameter in parameters]
        averages, squares, steps = ([state[name] for state in states] for name in ("exp_avg", "exp_avg_sq", "step"))
        adamw(
            parameters,  # type: ignore[arg-type]
            gradients(parameters),
            averages,
            squares,
            [],
            steps,
            fused=True,
            capturable=True,
            found_inf=self._broken,
            amsgrad=False,
            beta1=options["betas"][0],
            beta2=options["betas"][1],
            lr=self._rate if options[FACTOR] == 1 else self._rate * options[FACTOR],
            weight_decay=options["weight_decay"],
            eps=options["eps"],
            maximize=False,
        )

    def _step(self, tensors: dict[str, Tensor]) -> Tensor:
        return self._update(*self._differentiate(tensors))

    def _find_table(self) -> "WordRows | None":
        """The word vectors, if they are trained and read by nothing but a lookup."""
        if not HAS_TRITON:
            return None
        from datransformer.train.word_rows import WordRows

        tables = [module for module in self._model.modules() if isinstance(module, nn.Embedding)]
        if len(tables) != 1 or own_tables(self._model) != tables or not WordRows.fits(tables[0].weight):
            return None
        return WordRows(tables[0])

    def _find_halves(self, trained: dict[str, nn.Parameter]) -> dict[str, tuple[Tensor, nn.Parameter]]:
        """Room for what mixed precision makes of the parameters of linear layers, one by one and in every step."""
        with self._autocast():
            if not torch.is_autocast_enabled(self._device.type):
                return {}
            dtype = torch.get_autocast_dtype(self._device.type)
        linear = set(_linear_parameters(self._model))
        linear -= {module.weight for module in self._model.modules() if isinstance(module, nn.Embedding)}
        return {
            name: (torch.empty_like(parameter, dtype=dtype).requires_grad_(), parameter)
            for name, parameter in trained.items()
            if parameter in linear
        }

    def _start_averages(self) -> None:
        for parameter in self._model.parameters():
            if not parameter.requires_grad:
                continue
            state = self._optimizer.state[parameter]
            if not state:
                state["step"] = torch.zeros((), device=self._device)
                state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)

    def _capture(self, memory: Tensor, layout: Layout) -> tuple[torch.cuda.CUDAGraph, Tensor, Tensor]:
        tensors = unpack(memory, layout)
        graph = torch.cuda.CUDAGraph()
        with self._own_random(0):
            # Not torch.cuda.graph, which waits for the whole device and empties the caches of all runs.
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                results = self._step(tensors)
            except BaseException:
                with suppress(RuntimeError):  # which would hide what went wrong
                    graph.capture_end()
                raise
            graph.capture_end()
        self._pool = self._pool or graph.pool()
        return graph, memory, results

    @contextmanager
    def _own_random(self, seed: int) -> Iterator[None]:
        """Let everything draw from this run's generator, freshly seeded; what is captured goes on doing so."""
        default = torch.cuda.default_generators[self._device.index or 0]
        before = default.graphsafe_get_state()
        self._random.manual_seed(seed)
        default.graphsafe_set_state(self._random)
        try:
            yield
        finally:
            default.graphsafe_set_state(before)
