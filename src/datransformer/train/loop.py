"""The training loop, the only one: from batches to weights, and from a killed process back to where it was."""

import contextlib
import hashlib
import json
import math
import signal
import time
from collections.abc import Callable, Generator, Iterator, MutableMapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from datransformer.data.batches import Batch, plan_batches
from datransformer.data.errors import InputError
from datransformer.data.store import write_text
from datransformer.train.average import Average
from datransformer.train.checkpoint import checkpoints, load_checkpoint, load_weights, save_checkpoint, save_tensors
from datransformer.train.config import TrainConfig
from datransformer.train.errors import Interrupted, TrainingError
from datransformer.train.graphs import GraphedStep, Packed, pack
from datransformer.train.launch import worker_of
from datransformer.train.optimizer import FACTOR, RowAdamW, clip, gradients, in_groups, own_tables, reason_against
from datransformer.train.progress import Reporter
from datransformer.train.run import BOARD, CHECKPOINTS, METRICS, WEIGHTS
from datransformer.train.tasks import LOWER_IS_BETTER, Task

Plan = list[npt.NDArray[np.int64]]
Result = TypeVar("Result")
# A table of fewer rows than either is updated as a whole in less time than it takes to find those that were read.
LEAST_ROWS = 8192
ROWS_PER_TOKEN = 8  # of a step
MOST_LAUNCHED = 64  # steps that a GPU may be behind


@dataclass
class State:
    """Where a run is.

    With the weights and the optimiser's moments this is all there is to know: order, dropout and negatives are
    functions of seed, epoch and step.
    """

    step: int = 0
    epoch: int = 0
    group: int = 0  # optimiser steps done in this epoch
    best: float | None = None
    best_step: int = 0
    stale: int = 0  # evaluations since the best
    seconds: float = 0.0
    waited: float = 0.0
    tokens: int = 0
    done: bool = False


@dataclass(frozen=True)
class Outcome:
    """How training ended.

    Args:
        state: Where it was.
        dev: The dev metrics of the best weights, which are in ``model.safetensors``.
    """

    state: State
    dev: dict[str, float]


def train(
    task: Task,
    model: nn.Module,
    config: TrainConfig,
    folder: Path,
    fabric: Fabric,
    *,
    reporter: Reporter,
    resume: bool = False,
    packed: MutableMapping[tuple[int, int], Packed] | None = None,
    on_step: Callable[[int], None] | None = None,
    asked: Callable[[], bool] | None = None,
) -> Generator[None, None, Outcome]:
    """Train ``model`` in place; the best weights by the dev metric end up in it and in ``folder``.

    Yields after every step, so that several runs can take turns; on a GPU a step is then under way, not done.

    Args:
        task: Batches, loss and metrics.
        model: The model, on any device.
        config: How to train.
        folder: The run directory.
        fabric: A launched Fabric.
        reporter: Gets told.
        resume: Go on from the newest checkpoint in ``folder``.
        packed: Batches for a GPU by epoch and step, kept for other runs that have the same; None: not kept.
        on_step: Called with the number of each step that is done.
        asked: Whether to stop, asked after every step; None: whether a signal came.
    """
    loop = Loop(task, model, config, folder, fabric, reporter, packed)
    loop.restore(resume)
    stopping = stop_signals() if asked is None else contextlib.nullcontext(asked)
    try:
        with reporter.live(), stopping as asked, loop.board(), loop.rows.waiting_rows():
            yield from loop.run(asked, on_step)
        return loop.finish()
    except TrainingError:
        loop.save_best()
        raise
    finally:
        loop.release()


def exhaust(steps: Generator[None, None, Result]) -> Result:
    """Take all steps; what is returned after the last."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: Result = end.value
            return result


class Loop:
    """The parts of one training run."""

    def __init__(
        self,
        task: Task,
        model: nn.Module,
        config: TrainConfig,
        folder: Path,
        fabric: Fabric,
        reporter: Reporter,
        packed: MutableMapping[tuple[int, int], Packed] | None = None,
    ) -> None:
        self.task, self.raw, self.config, self.folder = task, model, config, folder
        self.fabric, self.reporter = fabric, reporter
        self.metric = task.metric
        self.sign = -1 if self.metric in LOWER_IS_BETTER else 1
        self.rows = RowAdamW(
            in_groups(model, distance_rate=config.distance_rate, vector_rate=config.vector_rate),
            self._waiting_tables(),
            lr=config.lr,
            weight_decay=config.weight_decay,
        )
        self.average = Average(model, config.average)
        compiled: Any = torch.compile(model, dynamic=True) if config.compile else model
        self.model, self.optimizer = fabric.setup(compiled, self.rows)
        self.worker = worker_of(fabric)
        self.state = State()
        self.per_epoch = max(len(self._groups(0)), 1)
        self.total = self.per_epoch * config.epochs
        if config.steps is not None:
            self.total = min(self.total, config.steps)
        self.dev: dict[str, float] = {}
        self._losses: list[float] = []
        self._board: Any = None
        self._best: dict[str, Tensor] = {}  # weights that are not on disk yet
        self._saved = time.monotonic()
        self._launched: list[tuple[int, int, int, Plan]] = []  # step, epoch, group of what was not waited for
        self._packed = packed
        self._graphed: GraphedStep | None = None
        alone = fabric.device.type == "cuda" and fabric.world_size == 1 and config.accumulate == 1
        if alone and config.cuda_graphs and not config.compile:
            self._graphed = GraphedStep(model, self.rows, task.losses, fabric.autocast, config.clip)

    def restore(self, resume: bool) -> None:
        """Start afresh, or where the newest checkpoint was."""
        if not resume:
            return
        saved, means, notes = load_checkpoint(self.folder / CHECKPOINTS, self.raw, self.rows)
        for note in notes:
            self.reporter.say(note)
        if saved is None:
            self.reporter.say("no checkpoint yet: starting at step 0")
        else:
            before, now = saved.pop("processes"), self.fabric.world_size
            if before != now:  # the batches are planned for all processes together
                raise InputError(f"{self.folder}: --resume with {now} processes, expected {before}, as the run began")
            self.dev = saved.pop("dev")
            self._losses = saved.pop("losses")
            self.average.load(means, saved.pop("averaged", 0))
            self.state = State(**saved)
            self.reporter.say(f"going on from step {self.state.step:,}, epoch {self.state.epoch + 1}")
        if self.fabric.is_global_zero:
            self._rewind_metrics()
            for folder in (self.folder, self.folder / CHECKPOINTS):
                for left in folder.glob(".*.part"):  # from a process that was killed while it wrote
                    left.unlink(missing_ok=True)

    def run(self, asked: Callable[[], bool], on_step: Callable[[int], None] | None) -> Iterator[None]:
        """Train until the last step, or until the dev metric no longer grows; yields after every step."""
        state, config = self.state, self.config
        while not state.done:
            groups = self._groups(state.epoch)
            for group in groups[state.group :]:
                self._step(group)
                state.step += 1
                state.group += 1
                if self.average.is_due(state.step):
                    self.rows.flush()
                    self.average.add(state.step)
                last = state.group == len(groups)
                end = (last and self._last_epoch()) or state.step == config.steps
                if end or (last if config.evaluate_every is None else state.step % config.evaluate_every == 0):
                    self._evaluate()
                state.done |= end
                if last:
                    state.epoch, state.group = state.epoch + 1, 0
                stopping = self._anywhere(asked())
                planned = last or state.done or state.step % config.checkpoint_every == 0
                if planned:  # whether it is written or not: that must not change the run
                    self.rows.flush()
                if stopping or (
                    planned and self._anywhere(time.monotonic() - self._saved >= config.checkpoint_seconds)
                ):
                    self._save()
                if on_step is not None:
                    on_step(state.step)
                if stopping and not state.done:
                    raise Interrupted(f"stopped after step {state.step:,}; --resume goes on from there")
                yield
                if last or state.done:
                    break

    def finish(self) -> Outcome:
        """Put the best weights into the model."""
        self.save_best()
        self.fabric.barrier()
        load_weights(self.raw, self.folder / WEIGHTS)
        self.raw.eval()
        return Outcome(self.state, self.dev)

    def _waiting_tables(self) -> list[nn.Embedding]:
        """The tables of word vectors whose rows wait until they are read: where that is quicker, and nowhere else."""
        config, fabric = self.config, self.fabric
        alone = fabric.device.type == "cpu" and fabric.world_size == 1 and not config.compile
        rate = config.lr * config.vector_rate
        if not alone or config.precision == "64-true" or reason_against(rate, config.weight_decay):
            return []
        tokens = float(np.mean(self.task.train.sizes)) * config.batch_size * config.accumulate
        least = max(LEAST_ROWS, ROWS_PER_TOKEN * tokens)
        return [table for table in own_tables(self.raw) if table.num_embeddings >= least]

    def _anywhere(self, asked: bool) -> bool:
        """Whether any process was asked to stop: a signal does not reach all of them between the same two steps."""
        if self.fabric.world_size == 1:
            return asked
        count = self.fabric.all_reduce(torch.tensor(float(asked), device=self.fabric.device), reduce_op="sum")
        assert isinstance(count, Tensor)
        return count.item() > 0

    def _last_epoch(self) -> bool:
        return self.state.epoch + 1 >= self.config.epochs

    def _groups(self, epoch: int) -> list[Plan]:
        """The batches of each optimiser step of an epoch, over all processes."""
        config, world = self.config, self.fabric.world_size
        plan = plan_batches(
            self.task.train.sizes,
            batch_size=config.batch_size * world,
            max_tokens=config.max_tokens * world,
            order=(config.seed, epoch),
        )
        return [plan[start : start + config.accumulate] for start in range(0, len(plan), config.accumulate)]

    def _step(self, group: Plan) -> None:
        """One optimiser step; a GPU is only told to do it."""
        began = time.perf_counter()
        state, config = self.state, self.config
        if not self.raw.training:  # it looks at every module
            self.model.train()
        if self._graphed is None:
            self._take_step(group)
        else:
            self._launch(self._graphed, group)
        state.seconds += time.perf_counter() - began
        if (state.step + 1) % config.log_every == 0:
            self._collect()
            self._log()

    def _take_step(self, group: Plan) -> None:
        for options in self.optimizer.param_groups:
            options["lr"] = self.config.lr * self._rate(self.state.step) * options[FACTOR]
        loss, norm = self._gradients(group)
        value, length = torch.stack((loss, norm.to(loss))).tolist()
        if not (math.isfinite(value) and math.isfinite(length)):
            raise TrainingError(self._explain(group, value))
        if self.config.clip and length > self.config.clip:
            clip(self.raw.parameters(), self.config.clip, norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self._losses.append(value)

    def _launch(self, graphed: GraphedStep, group: Plan) -> None:
        """As `_take_step`, for one process on a GPU and one batch a step, without waiting for what comes of it."""
        state = self.state
        waiting = time.perf_counter()
        place = state.epoch, state.group
        packed = None if self._packed is None else self._packed.get(place)
        if packed is None:
            packed = pack(self.task.train.batch(group[0], self._key(0)), len(group[0]))
            if self._packed is not None:
                self._packed[place] = packed
        state.waited += time.perf_counter() - waiting
        state.tokens += packed.tokens
        graphed(packed, self.config.lr * self._rate(state.step), self._step_seed())
        self._launched.append((state.step, state.epoch, state.group, group))
        if len(self._launched) >= MOST_LAUNCHED:
            self._collect()

    def _collect(self) -> None:
        """Wait for the steps that were launched, and see to it that they went well."""
        if self._graphed is None or not self._launched:
            return
        began = time.perf_counter()
        launched, self._launched = self._launched, []
        for (step, epoch, number, group), (loss, norm) in zip(launched, self._graphed.results(), strict=True):
            if not (math.isfinite(loss) and math.isfinite(norm)):  # nothing has changed since
                self.state.step, self.state.epoch, self.state.group = step, epoch, number
                self.optimizer.zero_grad()
                self._gradients(group)
                raise TrainingError(self._explain(group, loss))
            self._losses.append(loss)
        self.state.seconds += time.perf_counter() - began

    def _gradients(self, group: Plan) -> tuple[Tensor, Tensor]:
        """Compute the gradients of a step; its loss, and the norm of the gradients."""
        state, fabric = self.state, self.fabric
        torch.manual_seed(self._step_seed())
        total = sum(len(indices) for indices in group)
        loss = torch.zeros((), device=fabric.device)
        for number, indices in enumerate(group):
            waiting = time.perf_counter()
            batch, weight = self._batch(indices, number, fabric.global_rank)
            state.waited += time.perf_counter() - waiting
            state.tokens += batch.tokens * fabric.world_size
            with fabric.no_backward_sync(self.model, enabled=number + 1 < len(group)):
                losses = self.task.losses(self.model(**batch.inputs), batch)
                share = losses.sum() * (weight / total)
                # DDP averages over processes; the mean over examples is wanted.
                fabric.backward(share * fabric.world_size)
            loss += share.detach()
        norm = torch.nn.utils.get_total_norm(gradients(self.raw.parameters()))
        if fabric.world_size > 1:
            loss = fabric.all_reduce(loss, reduce_op="sum")  # type: ignore[assignment]
        return loss, norm

    def _step_seed(self) -> int:
        """Seeds what the model draws at random in this step."""
        return _seed(self.config.seed, self.state.step, self.fabric.global_rank)

    def _key(self, number: int) -> tuple[int, ...]:
        """Seeds what a batch of this step draws at random."""
        return (self.config.seed, self.state.epoch, self.state.group, number)

    def _batch(self, indices: npt.NDArray[np.int64], number: int, rank: int) -> tuple[Batch, float]:
        """The share of a process in a batch, on the device, and its weight: 1, or 0 if it has none."""
        world = self.fabric.world_size
        key = self._key(number)
        if rank < len(indices):
            batch, weight = self.task.train.batch(indices, key, rank, world), 1.0
        else:  # an example too few: compute one for nothing, so that all processes go the same way
            batch, weight = self.task.train.batch(indices[:1], key), 0.0
        device = self.fabric.device
        if device.type == "cpu":
            return batch, weight
        moved = {name: tensor.to(device, non_blocking=True) for name, tensor in batch.inputs.items()}
        targets = None if batch.targets is None else batch.targets.to(device, non_blocking=True)
        return Batch(moved, targets, batch.rows, batch.tokens), weight

    def _rate(self, step: int) -> float:
        """The learning rate at a step, as a share of the largest."""
        if step < self.config.warmup:
            return (step + 1) / self.config.warmup
        if self.config.schedule == "constant":
            return 1.0
        way = (step - self.config.warmup) / max(self.total - self.config.warmup, 1)
        return 0.5 * (1 + math.cos(math.pi * min(way, 1.0)))

    def _evaluate(self) -> None:
        """Measure on dev, and keep the weights if they are the best so far."""
        self._collect()
        self.rows.flush()
        self._check_weights()
        self.model.eval()
        state = self.state
        if self.average.is_due(state.step, at_once=True):
            self.average.add(state.step)
        with self.average.in_place():
            metrics = self.task.evaluate(self.raw, "dev", self.worker, self.reporter.stage)
            self._keep_if_best(metrics)
        self._append({"step": state.step, "epoch": state.epoch + 1, "dev": metrics})
        shown = ", ".join(f"{name} {number:.4f}" for name, number in metrics.items() if name != "impressions")
        self.reporter.say(f"step {state.step:,}, epoch {state.epoch + 1}: dev {shown}")

    def _keep_if_best(self, metrics: dict[str, float]) -> None:
        """Keep the weights that the model has now, if no others were as good on dev."""
        state, value = self.state, metrics[self.metric]
        if state.best is None or self.sign * value > self.sign * state.best:
            state.best, state.best_step, state.stale = value, state.step, 0
            self.dev = metrics
            if self.fabric.is_global_zero:
                self._best = {name: tensor.clone() for name, tensor in self.raw.state_dict().items()}
        else:
            state.stale += 1
            if self.config.patience is not None and state.stale >= self.config.patience:
                state.done = True

    def _log(self) -> None:
        state = self.state
        loss = math.fsum(self._losses) / len(self._losses)
        self._losses.clear()
        rate = state.tokens / max(state.seconds, 1e-9)
        line = {
            "step": state.step + 1,
            "epoch": state.epoch + 1,
            "loss": loss,
            "lr": self.config.lr * self._rate(state.step),
            "tokens_per_second": round(rate, 1),
            "seconds": round(state.seconds, 3),
        }
        self._append(line)
        best = "" if state.best is None else f", {self.metric} {state.best:.4f}"
        self.reporter.step(state.step + 1, self.total, f"loss {loss:.4f}{best}, {rate:,.0f} tokens/s")

    def _append(self, line: dict[str, Any]) -> None:
        if not self.fabric.is_global_zero:
            return
        try:
            with (self.folder / METRICS).open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            raise InputError(f"{self.folder / METRICS}: cannot be written ({error.strerror or error})") from error
        if self._board is not None:
            values = {f"dev/{name}": value for name, value in line.get("dev", {}).items()} or {
                f"train/{name}": line[name] for name in ("loss", "lr", "tokens_per_second")
            }
            for name, value in values.items():
                self._board.add_scalar(name, value, line["step"])

    def _rewind_metrics(self) -> None:
        """Drop the lines that were written after the checkpoint: they will be written again."""
        path = self.folder / METRICS
        if not path.exists():
            return
        kept = []
        try:
            for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
                with contextlib.suppress(ValueError, KeyError, TypeError):  # the last line may be cut off
                    if json.loads(line)["step"] <= self.state.step:
                        kept.append(line + "\n")
            write_text(path, "".join(kept))
        except OSError as error:
            raise InputError(f"{path}: cannot be written ({error.strerror or error})") from error

    def release(self) -> None:
        """Give the memory of graphs back, which the next run in this process may need."""
        if self._graphed is not None:
            self._graphed = None
            torch.cuda.empty_cache()

    def save_best(self) -> None:
        """Write the best weights, if they are not on disk yet."""
        if self._best:
            save_tensors(self.folder / WEIGHTS, self._best)
            self._best = {}

    def _save(self) -> None:
        self._collect()
        self._check_weights()
        self._saved = time.monotonic()
        self.save_best()
        if self.fabric.is_global_zero:
            processes = self.fabric.world_size
            about = {"dev": self.dev, "losses": self._losses, "processes": processes, "averaged": self.average.step}
            state = {**asdict(self.state), **about}
            save_checkpoint(self.folder / CHECKPOINTS, self.raw, self.rows, state, self.average.means)
        self.fabric.barrier()

    def _check_weights(self) -> None:
        """Raise before weights that are NaN or Inf are taken for good ones."""
        names = [name for name, _ in self.raw.named_parameters()]
        finite = torch.stack([parameter.isfinite().all() for parameter in self.raw.parameters()]).tolist()
        if not all(finite):
            raise TrainingError(
                f"step {self.state.step}, epoch {self.state.epoch + 1}: {names[finite.index(False)]!r} became NaN or "
                f"Inf; {self._kept()}. A smaller --lr may help"
            )

    def _kept(self) -> str:
        kept = checkpoints(self.folder / CHECKPOINTS)
        return f"the last good checkpoint is kept, {kept[0]}" if kept else "there is no checkpoint yet"

    def _explain(self, group: Plan, loss: float) -> str:
        """Which step, batch and layer first went wrong, and what to do; the same words in every process."""
        names = {parameter: name for name, parameter in self.raw.named_parameters()}
        broken = next((names[p] for p in names if not all(g.isfinite().all() for g in gradients([p]))), None)
        layer = None
        rows: set[int] = set()
        for rank in range(self.fabric.world_size):
            torch.manual_seed(_seed(self.config.seed, self.state.step, rank))
            for number, indices in enumerate(group):
                batch, _ = self._batch(indices, number, rank)
                with self.fabric.autocast():
                    layer = layer or first_broken_layer(self.raw, batch.inputs)
                rows.update(batch.rows.tolist())
        what = "loss" if not math.isfinite(loss) else "gradient"
        where = f"first in the output of {layer!r}" if layer else f"first in the gradient of {broken!r}"
        shown = ", ".join(str(row) for row in sorted(rows)[:8]) + (", …" if len(rows) > 8 else "")
        return (
            f"step {self.state.step + 1}, epoch {self.state.epoch + 1}: the {what} is NaN or Inf, {where}, "
            f"in the batch of rows {shown}; {self._kept()}. "
            "A smaller --lr or train.vector_rate, or train.clip, may help"
        )

    @contextlib.contextmanager
    def board(self) -> Iterator[None]:
        """Write a TensorBoard log, if one is wanted, until the block ends."""
        if not self.config.tensorboard or not self.fabric.is_global_zero:
            yield
            return
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise InputError("train.tensorboard: needs tensorboard: pip install datransformer[tensorboard]") from error
        # What was logged behind the checkpoint will be logged again.
        with SummaryWriter(str(self.folder / BOARD), purge_step=self.state.step + 1) as self._board:
            yield


def first_broken_layer(model: nn.Module, inputs: dict[str, Tensor]) -> str | None:
    """The name of the first module whose output holds NaN or Inf where nothing in its input did."""
    found: list[str] = []

    def broken(values: Any) -> bool:
        if isinstance(values, dict | tuple):
            return any(broken(value) for value in (values.values() if isinstance(values, dict) else values))
        return isinstance(values, Tensor) and values.is_floating_point() and not values.isfinite().all()

    def look(name: str) -> Callable[[nn.Module, Any, Any, Any], None]:
        def hook(module: nn.Module, arguments: Any, options: Any, output: Any) -> None:
            if broken(output) and not broken((arguments, options)):
                found.append(name)

        return hook

    # Not the model itself: a recommender's scores of padding are −inf by right.
    handles = [
        module.register_forward_hook(look(name), with_kwargs=True) for name, module in model.named_modules() if name
    ]
    try:
        with torch.no_grad():
            model(**inputs)
    finally:
        for handle in handles:
            handle.remove()
    return found[0] if found else None


def _seed(*parts: int) -> int:
    """A seed for one step of one process, unlike that of any other."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:7])


@contextlib.contextmanager
def stop_signals() -> Iterator[Callable[[], bool]]:
    """Turn Ctrl-C and SIGTERM into a question that the loop asks between steps; a second one stops at once."""
    received: list[int] = []

    def receive(number: int, frame: FrameType | None) -> None:
        received.append(number)
        signal.signal(number, previous[signal.Signals(number)])

    previous = {number: signal.getsignal(number) or signal.SIG_DFL for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        for number in previous:
            signal.signal(number, receive)
    except ValueError:  # not in the main thread, where signals do not arrive
        yield lambda: False
        return
    try:
        yield lambda: bool(received)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
