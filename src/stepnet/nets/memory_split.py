"""Distribution of a memory budget over the chunks and stages of a gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from stepnet.checkpoints import Checkpoints
from stepnet.checkpoints.budget import Memory
from stepnet.engines.numba_engine import TILE, NetStage, count_least_bytes, count_repeated_steps, is_kept


class MemorySplit(NamedTuple):
    """What each stage of a chunk may store, and whether all chunks are stored or how many are run again at a time."""

    memories: Sequence[Memory]
    is_held: bool
    at_once: int


def count_chunk_bytes(stages: Sequence[NetStage], tiles: int) -> int:
    """The minimum number of bytes for the gradient of one chunk."""
    return sum(count_least_bytes(stage, tiles) for stage in stages)


def split_memory(stages: Sequence[NetStage], limit: int, tiles: int, chunk: int, workers: int) -> MemorySplit:
    """Choose the cheaper of two strategies within a memory budget.

    Either all chunks are stored until the gradient of the outputs is known, or none is: then each chunk is run forward
    once more and shares the memory with only a few others.
    """
    n_chunks, chunk = -(-tiles // chunk), min(tiles, chunk)
    least = count_chunk_bytes(stages, chunk)
    if limit < least:
        raise ValueError(
            f"`memory` must be at least {least} bytes, which the gradient of {chunk * TILE} samples through this net "
            f"takes, found {limit}"
        )
    at_once = min(workers, n_chunks, limit // least)
    held, again = limit // n_chunks, limit // at_once
    once_more = sum(stage.cost * stage.n_steps for stage in stages)
    cost_again = (once_more + _estimate_cost(stages, again, chunk)) * workers / at_once
    if held >= least and _estimate_cost(stages, held, chunk) <= cost_again:
        return MemorySplit(_split_shares(stages, held, chunk), True, workers)
    return MemorySplit(_split_shares(stages, again, chunk), False, at_once)


def _estimate_cost(stages: Sequence[NetStage], limit: int, tiles: int) -> float:
    """The cost of all steps that are run again."""
    if limit < count_chunk_bytes(stages, tiles):
        return float("inf")
    shares = zip(stages, _split_shares(stages, limit, tiles), strict=True)
    return sum(stage.cost * count_repeated_steps(stage, tiles, share.bytes or 0) for stage, share in shares)


def _split_shares(stages: Sequence[NetStage], limit: int, tiles: int) -> list[Checkpoints]:
    """Give each stage its minimum, and divide the rest in proportion to the sizes of the tape records."""
    least = [count_least_bytes(stage, tiles) for stage in stages]
    records = [0 if is_kept(stage, "") else stage.count_stored_bytes(tiles) for stage in stages]
    rest = limit - sum(least)
    return [Checkpoints(bytes=a + rest * b // max(1, sum(records))) for a, b in zip(least, records, strict=True)]
