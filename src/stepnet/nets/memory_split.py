"""How a number of bytes is shared out among the chunks and stages of a gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from stepnet.checkpoints import Checkpoints
from stepnet.engines.numba_engine.layers.matrix_products import TILE
from stepnet.engines.numba_engine.layers.stage_runs import NetStage
from stepnet.engines.numba_engine.layers.stage_sweeps import Memory, count_least_bytes, count_repeated_steps, is_kept


class MemorySplit(NamedTuple):
    """What each stage of a chunk may keep, whether all chunks do so until the turn, else how many run again at once."""

    memories: Sequence[Memory]
    is_held: bool
    at_once: int


def count_chunk_bytes(stages: Sequence[NetStage], tiles: int) -> int:
    """Bytes that the gradient of one chunk takes at least."""
    return sum(count_least_bytes(stage, tiles) for stage in stages)


def split_memory(stages: Sequence[NetStage], limit: int, tiles: int, chunk: int, workers: int) -> MemorySplit:
    """The cheaper of two ways to stay within some bytes.

    Either all chunks are kept until their outputs have a gradient, or none is: then every chunk runs forward once more,
    and has the memory to itself and a few others.
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
    """Of all steps that are run again."""
    if limit < count_chunk_bytes(stages, tiles):
        return float("inf")
    shares = zip(stages, _split_shares(stages, limit, tiles), strict=True)
    return sum(stage.cost * count_repeated_steps(stage, tiles, share.bytes or 0) for stage, share in shares)


def _split_shares(stages: Sequence[NetStage], limit: int, tiles: int) -> list[Checkpoints]:
    """What each stage takes at least, and of the rest as much as its part of all records."""
    least = [count_least_bytes(stage, tiles) for stage in stages]
    records = [0 if is_kept(stage, "") else stage.stored_bytes(tiles) for stage in stages]
    rest = limit - sum(least)
    return [Checkpoints(bytes=a + rest * b // max(1, sum(records))) for a, b in zip(least, records, strict=True)]
