"""Training in one process or, under `torchrun`, in several."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist
from torch import nn


class DistributedContext:
    """Rank, number of processes and device; as a context it joins and leaves the group."""

    def __init__(self) -> None:
        self.rank = int(os.environ.get("RANK", 0))
        self.count = int(os.environ.get("WORLD_SIZE", 1))
        local = int(os.environ.get("LOCAL_RANK", 0))
        self.device = torch.device(f"cuda:{local}" if torch.cuda.is_available() else "cpu")

    @property
    def first(self) -> bool:
        """Whether this process logs, validates and saves."""
        return self.rank == 0

    def __enter__(self) -> DistributedContext:
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        if self.count > 1:
            dist.init_process_group("nccl" if self.device.type == "cuda" else "gloo")
        return self

    def __exit__(self, *exception: object) -> None:
        if self.count > 1:
            dist.destroy_process_group()

    def wrap(self, model: nn.Module) -> nn.Module:
        """`model`, with gradients averaged over all processes."""
        return nn.parallel.DistributedDataParallel(model) if self.count > 1 else model

    def any(self, flag: bool) -> bool:
        """Whether `flag` is set in any process; a signal may reach them at different steps."""
        if self.count == 1:
            return flag
        flags = torch.tensor(float(flag), device=self.device)
        dist.all_reduce(flags)
        return bool(flags > 0)

    def broadcast(self, value: Any) -> Any:
        """The value of the first process, in every process."""
        if self.count == 1:
            return value
        holder = [value]
        dist.broadcast_object_list(holder, src=0, device=self.device)
        return holder[0]
