"""Weights and training state on disk: safetensors, whole or not there, never pickled."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from datransformer.data.errors import InputError
from datransformer.data.store import atomic_path

KEPT = 2
MEANS = "mean."


def save_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write tensors to one file. If the disk is full, what was there before stays as it is."""
    try:
        path.parent.mkdir(exist_ok=True)
        with atomic_path(path) as temporary:
            ready = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
            temporary.touch()
            mode = temporary.stat().st_mode  # as other files get it; safetensors lets nobody else read
            save_file(ready, temporary, metadata=dict(metadata or {}))
            temporary.chmod(mode)
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path}: cannot be written ({error}); what was written before is kept") from error


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and the text beside them."""
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118
    except FileNotFoundError:
        raise InputError(f"{path}: no such file, expected weights") from None
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path}: damaged or not a safetensors file ({error})") from error


def load_weights(model: nn.Module, path: Path) -> None:
    """Fill a model, every tensor of it and no other."""
    tensors, _ = load_tensors(path)
    fill(model, tensors, path)


def fill(model: nn.Module, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Copy tensors into a model after checking that names, shapes and types are those of the model."""
    own = model.state_dict()
    if set(own) != set(tensors):
        odd = sorted(set(own) ^ set(tensors))
        raise InputError(f"{path}: does not fit the model: {odd[0]!r} is in one of them only")
    for name, tensor in tensors.items():
        if tensor.shape != own[name].shape or tensor.dtype != own[name].dtype:
            raise InputError(
                f"{path}: does not fit the model: {name!r} is {tensor.dtype} {tuple(tensor.shape)}, "
                f"expected {own[name].dtype} {tuple(own[name].shape)}"
            )
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise InputError(f"{path}: {name!r} holds NaN or Inf, expected finite weights")
    model.load_state_dict(dict(tensors))


def save_checkpoint(
    folder: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    state: Mapping[str, Any],
    means: Mapping[str, Tensor] | None = None,
) -> Path:
    """Write model, optimiser, means and ``state``, which must be JSON, under the step's name; keep the last two."""
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    tensors |= {f"{MEANS}{name}": tensor for name, tensor in (means or {}).items()}
    for index, values in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{name}": value for name, value in values.items()}
    tensors = {name: tensor.detach().cpu() for name, tensor in tensors.items()}
    path = folder / f"{state['step']:09d}.safetensors"
    save_tensors(path, tensors, {"state": json.dumps(state), "sha256": _digest(tensors)})
    # One of a later step is of a run that went on from before it.
    kept = [one for one in checkpoints(folder) if one <= path][:KEPT]
    for old in set(checkpoints(folder)) - set(kept):
        old.unlink(missing_ok=True)
    return path


def _digest(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of tensors, which safetensors does not keep."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints in a folder, newest first."""
    return sorted(folder.glob("*[0-9].safetensors"), reverse=True)


def load_checkpoint(
    folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[dict[str, Any] | None, dict[str, Tensor], list[str]]:
    """Restore the newest checkpoint that can be read.

    Returns:
        Its state, None if there is none, the means of weights in it, and what to say about it.
    """
    notes = []
    for path in checkpoints(folder):
        try:
            tensors, metadata = load_tensors(path)
            if metadata.get("sha256") != _digest(tensors):
                raise InputError(f"{path}: damaged: its SHA-256 is not the one that was written into it")  # noqa: TRY301
            state: dict[str, Any] = json.loads(metadata["state"])
        except (InputError, KeyError, ValueError) as error:
            notes.append(f"{error}; trying the checkpoint before it")
            continue
        # A whole checkpoint that does not fit is of another run: to start anew would throw it away.
        fill(model, {name[6:]: tensor for name, tensor in tensors.items() if name.startswith("model.")}, path)
        moments: dict[int, dict[str, Tensor]] = {}
        for name, tensor in tensors.items():
            if name.startswith("optimizer."):
                _, index, part = name.split(".", 2)
                moments.setdefault(int(index), {})[part] = tensor
        optimizer.load_state_dict(optimizer.state_dict() | {"state": moments})
        means = {name.removeprefix(MEANS): tensor for name, tensor in tensors.items() if name.startswith(MEANS)}
        return state, means, notes
    return None, {}, notes
