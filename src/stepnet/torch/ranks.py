"""Work that the processes of torch.distributed share."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

import torch.distributed as dist


def over_ranks(function: Callable, *lists) -> list:
    """The values of a function at all entries of some lists, in order: each rank computes a share, all gather them.

    A `carrier` of `nets.mgrit_forward` and `nets.mgrit_gradient`, which all ranks call with the same arguments.
    """
    if not dist.is_initialized():
        raise RuntimeError("`over_ranks` needs a group of processes; call torch.distributed.init_process_group first")
    entries, rank, size = list(zip(*lists, strict=True)), dist.get_rank(), dist.get_world_size()
    mine = entries[len(entries) * rank // size : len(entries) * (rank + 1) // size]
    shares: list[Any] = [None] * size
    dist.all_gather_object(shares, [function(*entry) for entry in mine])
    return list(chain.from_iterable(shares))
