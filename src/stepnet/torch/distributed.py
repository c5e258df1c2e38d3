"""A carrier that distributes work over the processes of torch.distributed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import torch.distributed as dist

from stepnet import validation as checks


def over_ranks(
    function: Callable[..., Any], *lists: Sequence[Any], group: dist.ProcessGroup | None = None
) -> list[Any]:
    """The values of a function at all entries of some lists, in order: each rank computes a part, all gather them.

    A `carrier` of `nets.mgrit_forward` and `nets.mgrit_gradient`, which all ranks of the group call with the same
    arguments.  An error on one rank is raised on all.

    Parameters
    ----------
    function : callable
        Called on each rank.
    *lists
        Lists of equal length.
    group : dist.ProcessGroup, optional
        Of `torch.distributed`; by default all ranks.

    Returns
    -------
    list

    Examples
    --------
    >>> import tempfile, torch.distributed as dist, stepnet.torch as snt
    >>> dist.init_process_group("gloo", init_method=f"file://{tempfile.mkdtemp()}/store", rank=0, world_size=1)
    >>> snt.over_ranks(lambda x: x**2, [1, 2, 3])
    [1, 4, 9]
    >>> dist.destroy_process_group()
    """
    if not dist.is_initialized():
        raise RuntimeError("`over_ranks` needs a group of processes; call torch.distributed.init_process_group first")
    checks.function("function", function)
    lists = tuple(checks.sequence(_accept)("lists", each) for each in lists)
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


def _accept(name: str, value: Any) -> Any:
    return value


def _try(function: Callable[..., Any], entries: list[tuple[Any, ...]]) -> tuple[list[Any], Exception | None]:
    """Return values, or the error raised, because other ranks wait for either."""
    try:
        return [function(*entry) for entry in entries], None
    except Exception as error:
        return [], error
