"""Work that the processes of torch.distributed share."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

import torch.distributed as dist

from stepnet import validation as checks


def over_ranks(function: Callable, *lists, group: dist.ProcessGroup | None = None) -> list:
    """The values of a function at all entries of some lists, in order: each rank computes a share, all gather them.

    A `carrier` of `nets.mgrit_forward` and `nets.mgrit_gradient`, which all ranks of the group call with the same
    arguments.  An error on one of them is one on all of them.
    """
    if not dist.is_initialized():
        raise RuntimeError("`over_ranks` needs a group of processes; call torch.distributed.init_process_group first")
    checks.function("function", function)
    lists = tuple(checks.sequence(_anything)("lists", each) for each in lists)
    if len({len(each) for each in lists}) > 1:
        raise ValueError(f"`lists` must be equally long, found {[len(each) for each in lists]}")
    entries, rank, size = list(zip(*lists, strict=True)), dist.get_rank(group), dist.get_world_size(group)
    if rank < 0:
        raise ValueError("`group` must hold this process; only its members call `over_ranks`")
    shares: list[Any] = [None] * size
    mine = entries[len(entries) * rank // size : len(entries) * (rank + 1) // size]
    values, error = _try(function, mine)
    dist.all_gather_object(shares, (values, None if error is None else repr(error)), group)
    if error is not None:
        raise error
    for place, (_, message) in enumerate(shares):
        if message is not None:
            raise RuntimeError(f"rank {place} of the group failed: {message}")
    return list(chain.from_iterable(values for values, _ in shares))


def _anything(name: str, value):
    return value


def _try(function: Callable, entries: list[tuple]) -> tuple[list, Exception | None]:
    """Values, or the error that came instead: others wait for either of them."""
    try:
        return [function(*entry) for entry in entries], None
    except Exception as error:
        return [], error
