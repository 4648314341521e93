"""Where a run happens: one process, or many that torchrun started."""

import atexit
import logging
import os
import warnings
from typing import Any

import numpy as np
import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies.ddp import DDPStrategy

from datransformer.data.errors import InputError
from datransformer.train.tasks import Answers, Worker

DEVICES = ("auto", "cpu", "cuda")


def launch(device: str = "auto", precision: Any = "32-true", *, unused_parameters: bool = False) -> Fabric:
    """One process on one device, or the share of this process in a torchrun job (DDP).

    Args:
        device: ``auto`` takes a CUDA device where there is one.
        precision: As Fabric names it.
        unused_parameters: Whether some parameters get no gradient, which DDP has to be told.
    """
    if device not in DEVICES:
        raise InputError(f"--device: got {device!r}, expected one of: {', '.join(DEVICES)}")
    if device == "cuda" and not torch.cuda.is_available():
        raise InputError("--device: got 'cuda', but torch finds no CUDA device; expected auto or cpu")
    # torchrun's own variables are how it tells a process which one it is.
    world, local = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    strategy = DDPStrategy(find_unused_parameters=unused_parameters) if world > 1 else "auto"
    logging.getLogger("lightning.fabric").setLevel(logging.WARNING)  # what follows are hints, not about this run
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fabric = Fabric(
            accelerator=device, devices=local, num_nodes=world // local, precision=precision, strategy=strategy
        )
        fabric.launch()
    if world > 1:
        atexit.register(_leave)
    return fabric


def _leave() -> None:
    """Leave the group of processes before Python ends: gloo's threads would end the process with SIGABRT."""
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def worker_of(fabric: Fabric) -> Worker:
    """What evaluation needs to know of ``fabric``."""

    def add(array: Answers) -> Answers:
        if fabric.world_size == 1:
            return array
        total = fabric.all_reduce(torch.from_numpy(array).to(fabric.device), reduce_op="sum")
        assert isinstance(total, torch.Tensor)
        return np.asarray(total.cpu().numpy())

    return Worker(fabric.device, fabric.autocast, fabric.global_rank, fabric.world_size, add)
