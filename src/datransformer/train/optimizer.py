"""AdamW that pays for the rows of a table of word vectors that a batch reads, and not for all the others.

Dense AdamW moves every row in every step: without a gradient the momentum of a row decays and still moves it, and
weight decay shrinks it. All of that is known in advance, so a row can wait until it is read again. Let m and v be its
moments after step s, the last one that it took part in. Step j = s + k without a gradient does

    p ← p (1 − lr_j λ) − lr_j (m β₁ᵏ / (1 − β₁ʲ)) / (√(v β₂ᵏ / (1 − β₂ʲ)) + ε).

With cⱼ = lr_j √(1 − β₂ʲ) / (1 − β₁ʲ), ρ = β₁ / √β₂ and eⱼ = ε √(1 − β₂ʲ) / β₂^(k/2), the step subtracts
cⱼ ρᵏ m / (√v + eⱼ), and with the decay Wⱼ = Π (1 − lr_i λ) over the steps i from s + 1 to j,

    p after step t = W_t (p − m Σⱼ wⱼ / (√v + eⱼ)),    wⱼ = cⱼ ρᵏ / Wⱼ.

The weights wⱼ depend on s and t alone, so for ε = 0 the sum would be a number of the table of all s times 1 / √v. The
eⱼ differ little from one another. Expanded about their mean e by the weights, where the first order vanishes,

    Σⱼ wⱼ / (√v + eⱼ) ≈ (Σ wⱼ) q (1 + r² (κ₂ − r κ₃)),    q = 1 / (√v + e),  r = e q,

where κₙ are the central moments of the eⱼ in units of e. The remainder is at most r⁴ κ₄ max e / eⱼ of the whole: where
that is more than the rounding of the weights' own type — in the first hundreds of steps, for elements whose √v is not
large beside ε — the sum is taken term by term. So rows end up where dense AdamW takes them, to rounding.

On a CPU the loops over the rows are those of `row_kernels.cpp`, an extension that is optional at install; here they
are written in torch, for other types of numbers and where it is not built, which is slower.
"""

import contextlib
import ctypes
import importlib.util
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

LONGEST = 1024  # steps after which all rows are brought up to date, so that the tables stay small
ORDERS = 5  # moments 0 to 4
BLOCK = 2048  # rows at a time: what is computed on the way stays in the cache
ELEMENTS = 512  # at a time, for those that are added up term by term
STRONGEST_DECAY = 0.1  # lr λ: with much more, W would leave the range of numbers within `LONGEST` steps
AVERAGE, SQUARE = "exp_avg", "exp_avg_sq"  # m and v, as torch's AdamW names them
FACTOR = "factor"  # of a group: what the learning rate is multiplied by for it
DISTANCES = ("distance_weight", "distance_shift")  # how the w and v of a layer are called
VECTORS = "text.embedding.weight"  # how the word vectors of a model are called
LAST, HISTORY = "last", "history"  # what a state has beside a dense AdamW's while rows are behind

Array = npt.NDArray[np.float64]


class _Table(ctypes.Structure):
    """``Table`` in row_kernels.cpp."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("rows", "dim")),
        *((name, ctypes.c_void_p) for name in ("weight", "average", "square", "last")),
    )


class _History(ctypes.Structure):
    """``History`` in row_kernels.cpp."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("begin", "steps", "reach")),
        ("epsilon", ctypes.c_double),
        *((name, ctypes.c_void_p) for name in ("columns", "shares", "roots", "decay", "momentum", "growth")),
    )


class _Step(ctypes.Structure):
    """``Step`` in row_kernels.cpp."""

    _fields_ = (
        ("number", ctypes.c_int64),
        *((name, ctypes.c_double) for name in ("rate", "first_beta", "second_beta", "epsilon", "weight_decay")),
    )


def _load() -> ctypes.CDLL | None:
    """The compiled loops, if there are any."""
    found = importlib.util.find_spec("datransformer.train.row_kernels")
    if found is None or found.origin is None:
        return None
    try:
        return ctypes.CDLL(found.origin)
    except OSError:
        return None


KERNELS = _load()


class History:
    """The steps since all rows were last up to date: the sums Σ wⱼ uⱼⁿ for each s among them, in double precision.

    uⱼ = eⱼ / eₛ₊₁ − 1 instead of eⱼ keeps the digits that the central moments are the differences of.

    Args:
        begin: The number of steps before.
        betas: β₁ and β₂.
        epsilon: ε.
        precision: What rounding does to a weight, as a share of it.
    """

    def __init__(self, begin: int, betas: tuple[float, float], epsilon: float, precision: float) -> None:
        self.begin, self.betas, self.epsilon, self.precision = begin, betas, epsilon, precision
        self.steps = 0
        self._sums = np.zeros((ORDERS, LONGEST + 1))
        self._decay = np.ones(LONGEST + 1)  # W, from the beginning on
        self._shares = np.zeros(LONGEST + 1)  # c / W
        ages = np.arange(LONGEST + 1)
        self._decays = betas[0] ** ages, betas[1] ** ages
        self._momentum = (betas[0] / betas[1] ** 0.5) ** ages  # ρᵏ
        self._growth = betas[1] ** (-ages / 2)  # β₂^(−k/2)
        self._roots = np.sqrt(-np.expm1(np.log(betas[1]) * (begin + ages)))  # √(1 − β₂ʲ)
        # What ρᵏ leaves beyond is nothing.
        self._reach = int(np.argmax(self._momentum < precision / 128)) or LONGEST
        self._waiting: Tensor | None = None

    @property
    def end(self) -> int:
        """The number of steps done."""
        return self.begin + self.steps

    @property
    def full(self) -> bool:
        """Whether there is no place for another step."""
        return self.steps == LONGEST

    def append(self, rate: float, weight_decay: float) -> None:
        """Count one more step."""
        count = self.steps = self.steps + 1
        self._waiting = None
        self._decay[count] = self._decay[count - 1] * (1 - rate * weight_decay)
        self._shares[count] = rate * self._roots[count] / (1 - self.betas[0] ** self.end) / self._decay[count]
        past = slice(0, count)
        ages = slice(count, 0, -1)  # k of each
        shares = self._shares[count] * self._momentum[ages] * self._decay[past]
        first = self._roots[1 : count + 1] * self._growth[1]
        distance = self._roots[count] * self._growth[ages] / first - 1
        for order in range(ORDERS):
            self._sums[order, past] += shares
            shares *= distance

    def waiting(self, places: Tensor) -> Tensor:
        """What it does to rows to have waited since ``places``, counted from the beginning, until now.

        Returns:
            [8, rows]: W; Σ wⱼ; e; κ₂ Σ wⱼ; κ₃ Σ wⱼ; the r up to which the remainder is below rounding; β₁ᵏ and β₂ᵏ,
            by which the moments shrink.
        """
        return self._columns().to(places.device).index_select(1, places)

    def _columns(self) -> Tensor:
        if self._waiting is None:
            self._waiting = torch.from_numpy(self._wait())
        return self._waiting

    def for_kernels(self) -> _History:
        """As row_kernels.cpp reads it; good until the next step."""
        arrays = (self._shares, self._roots, self._decay, self._momentum, self._growth)
        addresses = (self._columns().data_ptr(), *(array.ctypes.data for array in arrays))
        return _History(self.begin, self.steps, self._reach, self.epsilon, *addresses)

    def _wait(self) -> Array:
        count = self.steps
        sums = self._sums[:, : count + 1]
        # A row that waited for no step, or for steps with a rate of 0 only, has not moved.
        mean, second, third, fourth = sums[1:] / np.where(sums[0] > 0, sums[0], 1)
        square = mean * mean
        unit = 1 + mean  # e, as a multiple of the first eⱼ, which is the smallest
        cube = unit * unit * unit
        variance = np.maximum(second - square, 0) * unit / cube
        skewness = (third - mean * (3 * second - 2 * square)) / cube
        remainder = (fourth - mean * (4 * third - 3 * mean * (2 * second - square))) / cube
        largest = np.sqrt(np.sqrt(self.precision / np.maximum(remainder, self.precision / 16)))
        first = np.append(self._roots[1 : count + 1], self._roots[count]) * self._growth[1]
        decay = self._decay[count] / self._decay[: count + 1]
        moments = (powers[count::-1] for powers in self._decays)
        offset = self.epsilon * first * unit
        return np.stack([decay, sums[0], offset, variance * sums[0], skewness * sums[0], largest, *moments])

    def add_up(self, places: npt.NDArray[np.int64], roots: Array) -> Array:
        """Σ wⱼ / (√v + eⱼ), term by term, for elements that wait since ``places`` and have √v = ``roots``."""
        distinct, rank = np.unique(places, return_inverse=True)
        ages = np.arange(1, max(min(self.steps - int(distinct[0]), self._reach), 1) + 1)
        steps = distinct[:, None] + ages  # [S, K]
        done = steps <= self.steps
        steps = np.minimum(steps, self.steps)
        shares = self._shares[steps] * self._momentum[ages] * self._decay[distinct, None] * done
        offsets = self.epsilon * self._roots[steps] * self._growth[ages]
        total = np.empty_like(roots)
        for start in range(0, len(roots), ELEMENTS):
            part = slice(start, start + ELEMENTS)
            total[part] = (shares[rank[part]] / (roots[part, None] + offsets[rank[part]])).sum(1)
        return total

    def to_tensor(self) -> Tensor:
        """All that a checkpoint needs, [7, steps + 1]."""
        return torch.from_numpy(np.vstack([self._sums, self._decay, self._shares])[:, : self.steps + 1].copy())

    def fill(self, values: Tensor) -> None:
        """Go on from what `to_tensor` gave."""
        self.steps = values.shape[1] - 1
        kept = slice(0, self.steps + 1)
        array = values.numpy()
        self._sums[:, kept], self._decay[kept], self._shares[kept] = array[:ORDERS], array[ORDERS], array[ORDERS + 1]
        self._waiting = None


class Table:
    """One table of word vectors, and which of its rows are behind.

    Args:
        weight: The table [rows, dim].
        state: Its entry in the optimiser's state; empty before the first step.
        group: Its options.
    """

    def __init__(self, weight: nn.Parameter, state: dict[str, Tensor], group: Mapping[str, Any]) -> None:
        self.weight, self.state, self.group = weight, state, group
        self.last = torch.zeros(len(weight), dtype=torch.int64, device=weight.device)
        self._start(int(state["step"]) if state else 0)

    def _start(self, step: int) -> None:
        self.last.fill_(step)
        self.history = self._history(step)

    def _history(self, begin: int) -> History:
        return History(begin, self.group["betas"], self.group["eps"], torch.finfo(self.weight.dtype).eps)

    @property
    def behind(self) -> bool:
        """Whether some row may be behind."""
        return self.history.steps > 0

    def save(self) -> dict[str, Tensor]:
        """Which rows are behind, and what they missed; nothing if none is."""
        return {LAST: self.last, HISTORY: self.history.to_tensor()} if self.behind else {}

    def load(self, saved: Mapping[str, Tensor]) -> None:
        """Go on from what `save` gave."""
        self.last.copy_(saved[LAST])
        self.history = self._history(int(self.state["step"]) - saved[HISTORY].shape[1] + 1)
        self.history.fill(saved[HISTORY])

    def flush(self) -> None:
        """Bring all rows up to date."""
        if not self.behind:
            return
        for rows in torch.arange(len(self.weight), device=self.weight.device).split(BLOCK):
            self._bring(rows)
        self._start(self.history.end)

    def bring(self, rows: Tensor) -> None:
        """Bring up to date what is about to be read; rows may repeat."""
        if not self.behind:
            return
        rows = rows.flatten().long().contiguous()
        if self._kernels is not None:
            self._bring(rows)
            return
        late = rows[self.last[rows] < self.history.end].unique()
        if len(late):
            self._bring(late)

    @property
    def _kernels(self) -> ctypes.CDLL | None:
        """The compiled loops, if they are for such a table."""
        weight = self.weight
        fits = weight.device.type == "cpu" and weight.dtype == torch.float32 and weight.is_contiguous()
        return KERNELS if fits else None

    def _for_kernels(self) -> _Table:
        addresses = (table.data_ptr() for table in (*self._stores(), self.last))
        return _Table(*self.weight.shape, *addresses)

    @torch.no_grad()
    def _bring(self, rows: Tensor) -> None:
        if self._kernels is not None:
            table, history = ctypes.byref(self._for_kernels()), ctypes.byref(self.history.for_kernels())
            self._kernels.bring_rows(table, history, ctypes.c_void_p(rows.data_ptr()), ctypes.c_int64(len(rows)))
            return
        places = self.last[rows] - self.history.begin
        waited = self.history.waiting(places).to(self.weight.dtype).unsqueeze(2)
        decay, weight, offset, second, third, largest, first_moment, second_moment = waited  # [R, 1]
        vectors, average, square = (table.index_select(0, rows) for table in self._stores())  # [R, D]
        inverse = square.sqrt().add_(offset).reciprocal_()
        ratio = inverse * offset
        move = (ratio * third).neg_().add_(second).mul_(ratio).mul_(ratio).add_(weight).mul_(inverse)
        if bool((largest < 1).any()):
            coarse = (ratio > largest).logical_and_(average != 0).nonzero(as_tuple=True)
            if len(coarse[0]):
                roots = square[coarse].double().sqrt().cpu().numpy()
                exact = self.history.add_up(places[coarse[0]].cpu().numpy(), roots)
                move[coarse] = torch.from_numpy(exact).to(move)
        vectors.sub_(move.mul_(average)).mul_(decay)
        self._store(rows, vectors, average.mul_(first_moment), square.mul_(second_moment))

    def _store(self, rows: Tensor, vectors: Tensor, average: Tensor, square: Tensor) -> None:
        for table, values in zip(self._stores(), (vectors, average, square), strict=True):
            table.index_copy_(0, rows, values)
        self.last.index_fill_(0, rows, self.history.end)

    def _stores(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.weight, self.state[AVERAGE], self.state[SQUARE]

    @torch.no_grad()
    def step(self) -> None:
        """One step with a sparse gradient: of the rows that have one, as dense AdamW does it, and of no other."""
        gradient, options = self.weight.grad, self.group
        assert gradient is not None
        if not self.state:
            self.state["step"] = torch.zeros(())
            self.state[AVERAGE] = torch.zeros_like(self.weight)
            self.state[SQUARE] = torch.zeros_like(self.weight)
        gradient = gradient.coalesce()
        rows = gradient.indices()[0]
        self.bring(rows)
        self.history.append(options["lr"], options["weight_decay"])
        if self._kernels is None:
            self._step(rows, gradient.values())
        else:
            numbers = (options["lr"], *options["betas"], options["eps"], options["weight_decay"])
            table, step, values = self._for_kernels(), _Step(self.history.end, *numbers), gradient.values().contiguous()
            addresses = ctypes.c_void_p(rows.data_ptr()), ctypes.c_void_p(values.data_ptr())
            self._kernels.step_rows(ctypes.byref(table), ctypes.byref(step), *addresses, ctypes.c_int64(len(rows)))
            self.state["step"] += 1
        if self.history.full:
            self.flush()

    def _step(self, rows: Tensor, gradient: Tensor) -> None:
        options = self.group
        vectors, average, square = (table.index_select(0, rows) for table in self._stores())
        adamw(
            [vectors],
            [gradient],
            [average],
            [square],
            [],
            [self.state["step"]],
            fused=True,
            amsgrad=False,
            beta1=options["betas"][0],
            beta2=options["betas"][1],
            lr=options["lr"],
            weight_decay=options["weight_decay"],
            eps=options["eps"],
            maximize=False,
        )
        self._store(rows, vectors, average, square)


class RowAdamW(torch.optim.AdamW):
    """Fused AdamW, in which the rows of some embeddings wait until they are read.

    The state is a dense AdamW's after `flush`. Before, it says beside that which rows are behind, so that saving does
    not change what is saved: a run that was stopped at any step goes on bit for bit. Both kinds can be loaded, into an
    optimiser with other embeddings or none, too.

    Args:
        parameters: All parameters, those of the embeddings among them, or groups of them.
        embeddings: Those whose rows wait; their weights may be read through `waiting_rows` only.
        lr: Learning rate.
        weight_decay: Decoupled weight decay.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter] | Iterable[dict[str, Any]],
        embeddings: Iterable[nn.Embedding] = (),
        *,
        lr: float,
        weight_decay: float = 0.0,
    ) -> None:
        self._embeddings = list(embeddings)
        self._tables: dict[Tensor, Table] = {}
        super().__init__(parameters, lr=lr, weight_decay=weight_decay, fused=True)

    def flush(self) -> None:
        """Bring all rows up to date, before weights or state are read."""
        for table in self._tables.values():
            table.flush()

    @contextlib.contextmanager
    def waiting_rows(self) -> Iterator[None]:
        """Let rows wait until the block ends: an embedding brings those up to date that it is asked for."""
        handles = []
        before = [(embedding, embedding.sparse) for embedding in self._embeddings]
        for embedding in self._embeddings:
            embedding.sparse = True
            handles.append(embedding.register_forward_pre_hook(self._read))
        try:
            yield
        finally:
            self.flush()
            for handle in handles:
                handle.remove()
            for embedding, sparse in before:
                embedding.sparse = sparse

    def _read(self, module: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        table = self._tables.get(module.get_parameter("weight"))
        if table is not None:
            table.bring(arguments[0])

    def step(self, closure: Any = None) -> Any:
        """One step; the gradients of the embeddings are sparse."""
        sparse = {
            parameter: (parameter.grad, group)
            for group in self.param_groups
            for parameter in group["params"]
            if parameter.grad is not None and parameter.grad.is_sparse
        }
        for parameter in sparse:
            parameter.grad = None
        loss = super().step(closure)
        for parameter, (gradient, group) in sparse.items():
            parameter.grad = gradient
            if parameter not in self._tables:
                self._tables[parameter] = Table(parameter, self.state[parameter], group)
            self._tables[parameter].step()
        return loss

    def state_dict(self) -> dict[str, Any]:
        saved = super().state_dict()
        state = dict(saved["state"])
        for index, parameter in enumerate(self._parameters()):
            if parameter in self._tables:
                state[index] = {**state[index], **self._tables[parameter].save()}
        return {**saved, "state": state}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        moments, waiting = {}, {}
        for index, values in state_dict["state"].items():
            # Kept from the base class, which turns all that it does not know into the type of the weights.
            waiting[index] = {name: value for name, value in values.items() if name in (LAST, HISTORY)}
            moments[index] = {name: value for name, value in values.items() if name not in waiting[index]}
        super().load_state_dict({**state_dict, "state": moments})
        self._tables.clear()
        rows = {embedding.weight for embedding in self._embeddings}
        groups = [group for group in self.param_groups for _ in group["params"]]
        for index, (parameter, group) in enumerate(zip(self._parameters(), groups, strict=True)):
            if waiting.get(index):
                table = Table(parameter, self.state[parameter], group)
                table.load(waiting[index])
                if parameter in rows:
                    self._tables[parameter] = table
                else:
                    table.flush()

    def _parameters(self) -> list[nn.Parameter]:
        return [parameter for group in self.param_groups for parameter in group["params"]]


def reason_against(rate: float, weight_decay: float) -> str | None:
    """Why rows should not wait in training at up to this rate; None if they may."""
    if KERNELS is None:
        return "the kernels are not built, and without them it is no quicker"
    if rate * weight_decay > STRONGEST_DECAY:
        return f"lr · weight_decay is {rate * weight_decay}, more than {STRONGEST_DECAY}"
    return None


def in_groups(model: nn.Module, *, distance_rate: float = 1.0, vector_rate: float = 1.0) -> list[dict[str, Any]]:
    """All parameters of a model, w and v of its heads and its word vectors apart: groups with multiples of the rate."""
    groups: dict[float, list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        is_distance = name.rpartition(".")[2].startswith(DISTANCES)
        factor = distance_rate if is_distance else vector_rate if name == VECTORS else 1.0
        groups.setdefault(factor, []).append(parameter)
    return [{"params": parameters, FACTOR: factor} for factor, parameters in groups.items()]


def own_tables(model: nn.Module) -> list[nn.Embedding]:
    """The embeddings of a model whose weights are trained, and read by nothing but a lookup."""
    tables = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    elsewhere = {
        parameter
        for module in model.modules()
        if not isinstance(module, nn.Embedding)
        for parameter in module.parameters(recurse=False)
    }
    return [
        table
        for table in tables
        if table.weight.requires_grad
        and table.weight not in elsewhere
        and table.max_norm is None
        and not table.scale_grad_by_freq
    ]


def gradients(parameters: Iterable[nn.Parameter]) -> list[Tensor]:
    """The gradients, of a sparse one the values of its rows, each row once."""
    values = []
    for parameter in parameters:
        if parameter.grad is None:
            continue
        if parameter.grad.is_sparse:
            parameter.grad = parameter.grad.coalesce()
            values.append(parameter.grad.values())
        else:
            values.append(parameter.grad)
    return values


def clip(parameters: Iterable[nn.Parameter], most: float, norm: Tensor) -> None:
    """Scale gradients of the given norm, dense and coalesced sparse ones, down to at most ``most``."""
    scale = (most / (norm + 1e-6)).clamp(max=1)
    dense = []
    for parameter in parameters:
        if parameter.grad is not None and parameter.grad.is_sparse:
            parameter.grad.values().mul_(scale)
        else:
            dense.append(parameter)
    torch.nn.utils.clip_grads_with_norm_(dense, most, norm)
