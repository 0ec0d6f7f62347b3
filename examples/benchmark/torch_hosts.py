"""PyTorch on all hosts of a slice: one process per host, by the slice's own variables."""

from __future__ import annotations

import atexit
import os

import torch
from torch import distributed

_PORT = 29500


def join() -> int:
    """Join the other hosts; return how many there are."""
    hosts = int(os.environ.get("BASTION_NUM_HOSTS", "1"))
    addresses = os.environ.get("TPU_WORKER_HOSTNAMES", "")
    first = addresses.split(",")[0] or "127.0.0.1"
    distributed.init_process_group(
        "gloo",
        init_method=f"tcp://{first}:{_PORT}",
        world_size=hosts,
        rank=int(os.environ.get("BASTION_HOST_INDEX", "0")),
    )
    # Otherwise its threads abort the interpreter.
    atexit.register(distributed.destroy_process_group)
    return hosts


def mean(tensor: torch.Tensor) -> torch.Tensor:
    """Replace the tensor by its mean over all hosts."""
    distributed.all_reduce(tensor)
    return tensor.div_(distributed.get_world_size())
