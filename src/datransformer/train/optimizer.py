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
"""

import contextlib
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
STRONGEST_DECAY = 0.1  # lr λ: with more, 1 / W would leave the range of numbers within `LONGEST` steps
LAST, HISTORY = "last", "history"  # what a state has beside a dense AdamW's while rows are behind

Array = npt.NDArray[np.float64]


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
        self._logs = np.zeros(LONGEST + 1)  # log W, from the beginning on
        self._rates = np.zeros(LONGEST + 1)  # c
        ages = np.arange(LONGEST + 1)
        self._momentum = (betas[0] / betas[1] ** 0.5) ** ages  # ρᵏ
        self._growth = betas[1] ** (-ages / 2)  # β₂^(−k/2)
        self._roots = np.sqrt(-np.expm1(np.log(betas[1]) * (begin + ages)))  # √(1 − β₂ʲ)
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
        self._logs[count] = self._logs[count - 1] + np.log1p(-rate * weight_decay)
        self._rates[count] = rate * self._roots[count] / (1 - self.betas[0] ** self.end)
        past = slice(0, count)
        ages = slice(count, 0, -1)  # k of each
        shares = self._rates[count] * self._momentum[ages] * np.exp(self._logs[past] - self._logs[count])
        first = self._roots[1 : count + 1] * self._growth[1]
        distance = self._roots[count] * self._growth[ages] / first - 1
        for order in range(ORDERS):
            self._sums[order, past] += shares
            shares *= distance

    def waiting(self, places: Tensor) -> Tensor:
        """What it does to rows to have waited since ``places``, counted from the beginning, until now.

        Returns:
            [8, rows]: W; Σ wⱼ; e; κ₂; κ₃; the r up to which the remainder is below rounding; β₁ᵏ and β₂ᵏ, by which
            the moments shrink.
        """
        if self._waiting is None:
            self._waiting = torch.from_numpy(self._wait()).to(places.device)
        return self._waiting.index_select(1, places)

    def _wait(self) -> Array:
        count = self.steps
        sums = self._sums[:, : count + 1]
        # A row that waited for no step, or for steps with a rate of 0 only, has not moved.
        mean, second, third, fourth = sums[1:] / np.where(sums[0] > 0, sums[0], 1)
        unit = 1 + mean  # e, as a multiple of the first eⱼ, which is the smallest
        variance = np.maximum(second - mean**2, 0) / unit**2
        skewness = (third - 3 * mean * second + 2 * mean**3) / unit**3
        remainder = np.maximum(fourth - 4 * mean * third + 6 * mean**2 * second - 3 * mean**4, 0) / unit**3
        largest = (self.precision / np.maximum(remainder, self.precision / 16)) ** 0.25
        first = np.append(self._roots[1 : count + 1], self._roots[count]) * self._growth[1]
        decay = np.exp(self._logs[count] - self._logs[: count + 1])
        ages = np.arange(count, -1, -1)
        moments = self.betas[0] ** ages, self.betas[1] ** ages
        return np.stack([decay, sums[0], self.epsilon * first * unit, variance, skewness, largest, *moments])

    def add_up(self, places: npt.NDArray[np.int64], roots: Array) -> Array:
        """Σ wⱼ / (√v + eⱼ), term by term, for elements that wait since ``places`` and have √v = ``roots``."""
        distinct, rank = np.unique(places, return_inverse=True)
        reach = int(np.argmax(self._momentum < 1e-18)) or LONGEST  # ρᵏ: nothing is left to move
        ages = np.arange(1, max(min(self.steps - int(distinct[0]), reach), 1) + 1)
        steps = distinct[:, None] + ages  # [S, K]
        done = steps <= self.steps
        steps = np.minimum(steps, self.steps)
        shares = self._rates[steps] * self._momentum[ages] * np.exp(self._logs[distinct, None] - self._logs[steps])
        shares *= done
        offsets = self.epsilon * self._roots[steps] * self._growth[ages]
        total = np.empty_like(roots)
        for start in range(0, len(roots), ELEMENTS):
            part = slice(start, start + ELEMENTS)
            total[part] = (shares[rank[part]] / (roots[part, None] + offsets[rank[part]])).sum(1)
        return total

    def to_tensor(self) -> Tensor:
        """All that a checkpoint needs, [7, steps + 1]."""
        return torch.from_numpy(np.vstack([self._sums, self._logs, self._rates])[:, : self.steps + 1].copy())

    def fill(self, values: Tensor) -> None:
        """Go on from what `to_tensor` gave."""
        self.steps = values.shape[1] - 1
        kept = slice(0, self.steps + 1)
        array = values.numpy()
        self._sums[:, kept], self._logs[kept], self._rates[kept] = array[:ORDERS], array[ORDERS], array[ORDERS + 1]
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
        rows = rows.flatten().long()
        late = rows[self.last[rows] < self.history.end].unique()
        if len(late):
            self._bring(late)

    @torch.no_grad()
    def _bring(self, rows: Tensor) -> None:
        places = self.last[rows] - self.history.begin
        waited = self.history.waiting(places).to(self.weight.dtype).unsqueeze(2)
        decay, weight, offset, second, third, largest, first_moment, second_moment = waited  # [R, 1]
        average, square = self.state["exp_avg"][rows], self.state["exp_avg_sq"][rows]  # [R, D]
        inverse = square.sqrt().add_(offset).reciprocal_()
        ratio = inverse * offset
        move = torch.addcmul(second, ratio, third, value=-1).mul_(ratio).mul_(ratio).add_(1)
        move.mul_(inverse).mul_(weight)
        if bool((largest < 1).any()):
            coarse = (ratio > largest).logical_and_(average != 0).nonzero(as_tuple=True)
            if len(coarse[0]):
                roots = square[coarse].double().sqrt().cpu().numpy()
                exact = self.history.add_up(places[coarse[0]].cpu().numpy(), roots)
                move[coarse] = torch.from_numpy(exact).to(move)
        vectors = self.weight[rows].addcmul_(move, average, value=-1).mul_(decay)
        self.weight.index_copy_(0, rows, vectors)
        self.state["exp_avg"].index_copy_(0, rows, average.mul_(first_moment))
        self.state["exp_avg_sq"].index_copy_(0, rows, square.mul_(second_moment))
        self.last[rows] = self.history.end

    @torch.no_grad()
    def step(self) -> None:
        """One step with a sparse gradient: of the rows that have one, as dense AdamW does it, and of no other."""
        gradient, options = self.weight.grad, self.group
        assert gradient is not None
        if not self.state:
            self.state["step"] = torch.zeros(())
            self.state["exp_avg"] = torch.zeros_like(self.weight)
            self.state["exp_avg_sq"] = torch.zeros_like(self.weight)
        gradient = gradient.coalesce()
        rows = gradient.indices()[0]
        self.bring(rows)
        stores = (self.weight, self.state["exp_avg"], self.state["exp_avg_sq"])
        vectors, average, square = (store[rows] for store in stores)
        adamw(
            [vectors],
            [gradient.values()],
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
        for store, values in zip(stores, (vectors, average, square), strict=True):
            store.index_copy_(0, rows, values)
        self.history.append(options["lr"], options["weight_decay"])
        self.last[rows] = self.history.end
        if self.history.full:
            self.flush()


class RowAdamW(torch.optim.AdamW):
    """Fused AdamW, in which the rows of some embeddings wait until they are read.

    The state is a dense AdamW's after `flush`. Before, it says beside that which rows are behind, so that saving does
    not change what is saved: a run that was stopped at any step goes on bit for bit. Both kinds can be loaded, into an
    optimiser with other embeddings or none, too.

    Args:
        parameters: All parameters, those of the embeddings among them.
        embeddings: Those whose rows wait; their weights may be read through `waiting_rows` only.
        lr: Learning rate.
        weight_decay: Decoupled weight decay.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        embeddings: Iterable[nn.Embedding] = (),
        *,
        lr: float,
        weight_decay: float = 0.0,
    ) -> None:
        self._embeddings = list(embeddings)
        self._tables: dict[nn.Parameter, Table] = {}
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
