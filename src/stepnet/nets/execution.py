"""Execution of net stages on a batch: tiles of samples in chunks, chunks over threads."""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from itertools import accumulate, starmap
from typing import Any, TypeVar, cast

import numpy as np

from stepnet.checkpoints import Checkpoints
from stepnet.checkpoints.budget import AUTOMATIC_BYTES, Memory
from stepnet.engines.numba_engine import (
    NOTHING,
    SINGLE_THREAD,
    TILE,
    NetStage,
    NetTape,
    TileNoise,
    fill_paths,
    sweep,
    sweep_and_turn,
)
from stepnet.engines.reconstruction import drift_limit, warn_of_drift
from stepnet.ensembles.ensemble import count_usable_cores
from stepnet.fields import Chain, Depth
from stepnet.nets.design import Block, Design
from stepnet.nets.memory_split import MemorySplit, count_chunk_bytes, split_memory
from stepnet.nets.sample_noise import SampleNoise

__all__ = ["CHUNK", "SINGLE_THREAD", "TILE", "Execution", "build_stage", "sweep", "tile", "untile"]

CHUNK = 4  # tiles that share the weights in the cache
AHEAD = 2  # maximum number of gradients of chunks per thread that wait to be summed

Found = TypeVar("Found")
LinearMap = Callable[[np.ndarray], np.ndarray]
StageNoise = list[TileNoise | None]  # one for each stage
DEFAULT_NOISE = SampleNoise()


def build_stage(record: Chain | Block, dtype: np.dtype, name: str = "the net") -> NetStage:
    """Build the engine's net stage of a chain or block, with its name for errors."""
    if isinstance(record, Block):
        return NetStage(
            record.field, record.scheme_program, record.steps, record.length, record.depth, dtype, name=name
        )
    return NetStage(record, NOTHING, 1, 1.0, Depth(1), dtype)


def tile(x: np.ndarray, filling: np.ndarray | float = 0.0) -> np.ndarray:
    """(batch, features) -> (tiles, features, TILE), padded with zeros or a sample; a view if there is no padding."""
    n, padded = -(-len(x) // TILE), x
    if n * TILE != len(x):
        padded = np.full((n * TILE, x.shape[1]), filling, x.dtype)
        padded[: len(x)] = x
    return padded.reshape(n, TILE, -1).swapaxes(1, 2)


def untile(tiles: np.ndarray, batch: int) -> np.ndarray:
    """(tiles, features, TILE) -> (batch, features)."""
    return np.ascontiguousarray(tiles.swapaxes(1, 2).reshape(-1, tiles.shape[1])[:batch])


class Execution:
    """The compiled stages of a design.

    Results do not depend on `workers`: chunks are the same, and their gradients are added in order.
    """

    def __init__(self, design: Design, dtype: np.dtype, workers: int | None = None):
        self.stages = [build_stage(record, dtype, name) for name, record in design.stages()]
        self._is_implicit = design.is_implicit
        ends = list(accumulate(stage.n_parameters for stage in self.stages))
        self.places = list(zip([0, *ends], ends, strict=False))
        self._workers = workers or count_usable_cores()
        self._threads: tuple[int, ThreadPoolExecutor] | None = None
        self._free: dict[tuple[int, bool], list[NetTape]] = {}
        self._memory_splits: dict[tuple[int, Memory], MemorySplit] = {}
        self._alone = SINGLE_THREAD if any(stage.calls_blas for stage in self.stages) else nullcontext()

    @property
    def _pool(self) -> ThreadPoolExecutor:
        # A forked process inherits the pool, but none of its threads.
        if self._threads is None or self._threads[0] != os.getpid():
            self._threads = os.getpid(), ThreadPoolExecutor(self._workers)
        return self._threads[1]

    def map_over(self, function: Callable[..., Found], *arrays: Sequence[Any]) -> list[Found]:
        """Apply a function to all entries of the lists, over threads; return the values in order."""
        with self._alone:
            if len(arrays[0]) == 1 or self._workers == 1:
                return list(map(function, *arrays))
            return list(self._pool.map(function, *arrays))

    def sum_over(
        self, function: Callable[..., Found], theta: np.ndarray, *arrays: Sequence[Any], at_once: int | None = None
    ) -> tuple[np.ndarray, list[Found]]:
        """The sum of what function(bar, one, ...) adds to each `bar`, and its values; few bars exist at a time.

        They are summed in order, so that results do not depend on threads.
        """
        spare: list[np.ndarray] = []

        def run(*each: Any) -> tuple[np.ndarray, Found]:
            try:
                bar = spare.pop()
                bar.fill(0)
            except IndexError:
                bar = np.zeros(theta.shape, theta.dtype)
            return bar, function(bar, *each)

        total, values = None, []
        with self._alone:
            for bar, value in self._yield_in_order(
                run, list(zip(*arrays, strict=True)), at_once or AHEAD * self._workers
            ):
                values.append(value)
                if total is None:
                    total = bar
                else:
                    total += bar
                    spare.append(bar)
        return cast(np.ndarray, total), values

    def _yield_in_order(
        self, function: Callable[..., Found], arguments: list[tuple[Any, ...]], at_once: int
    ) -> Iterator[Found]:
        """Yield values in order, over threads; at most `at_once` are being computed or waiting."""
        if min(len(arguments), self._workers, at_once) == 1:
            yield from starmap(function, arguments)
            return
        waiting: deque[Future[Found]] = deque()
        try:
            for each in arguments:
                if len(waiting) == at_once:
                    yield waiting.popleft().result()
                waiting.append(self._pool.submit(function, *each))
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()

    def split_parameters(self, theta: np.ndarray) -> list[np.ndarray]:
        """The parameters of each stage."""
        return [theta[a:b] for a, b in self.places]

    def assign_noise(self, x: np.ndarray, noise: SampleNoise | None) -> list[StageNoise]:
        """The noise of each chunk, for each stage: None for stages without diffusion."""
        n_tiles = -(-len(x) // TILE)
        if not any(stage.has_noise for stage in self.stages):
            return [[None] * len(self.stages)] * -(-n_tiles // CHUNK)
        noise = DEFAULT_NOISE if noise is None else noise
        paths = fill_paths(n_tiles * TILE)
        paths[: len(x)] = noise.find_paths(x)
        if self._is_implicit:  # filled up by the last sample, see `_tile`
            paths[len(x) :] = paths[len(x) - 1]
        return [
            [
                TileNoise(noise.find_seed(i), some, noise.find_cells(stage.n_steps)) if stage.has_noise else None
                for i, stage in enumerate(self.stages)
            ]
            for some in split_into_chunks(paths.reshape(n_tiles, TILE))
        ]

    def _tile(self, x: np.ndarray) -> np.ndarray:
        """Inputs as tiles; the last sample fills up implicit nets, as what fills them up must be solved as well."""
        return tile(x, x[-1] if self._is_implicit and len(x) else 0.0)

    def forward(self, theta: np.ndarray, x: np.ndarray, noise: SampleNoise | None = None) -> np.ndarray:
        """Outputs of a batch."""
        own = self.split_parameters(theta)

        def run(y: np.ndarray, draws: StageNoise) -> np.ndarray:
            for stage, some, drawn in zip(self.stages, own, draws, strict=True):
                y = stage.forward(some, y, drawn)
            return y

        found = self.map_over(run, split_into_chunks(self._tile(x)), self.assign_noise(x, noise))
        return untile(np.concatenate(found), len(x))

    def features(self, theta: np.ndarray, x: np.ndarray, wanted: int, noise: SampleNoise | None = None) -> np.ndarray:
        """States inside the block that is stage `wanted`: its first state and the state after each further step."""
        own = self.split_parameters(theta)

        def run(y: np.ndarray, draws: StageNoise) -> np.ndarray:
            for stage, some, drawn in zip(self.stages[:wanted], own, draws, strict=False):
                y = stage.forward(some, y, drawn)
            return self.stages[wanted].states(own[wanted], y, draws[wanted])

        found = self.map_over(run, split_into_chunks(self._tile(x)), self.assign_noise(x, noise))
        return np.stack([untile(each, len(x)) for each in np.concatenate(found, axis=1)])

    def run_to_stage(self, theta: np.ndarray, x: np.ndarray, wanted: int) -> np.ndarray:
        """The input of stage `wanted`."""
        y = self._tile(x)
        with self._alone:
            for stage, some in zip(self.stages[:wanted], self.split_parameters(theta), strict=False):
                y = stage.forward(some, y)
        return untile(y, len(x))

    def tangent(
        self, theta: np.ndarray, theta_dot: np.ndarray, x: np.ndarray, x_dot: np.ndarray,
        noise: SampleNoise | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
        """Outputs and their tangents."""
        own, dots = self.split_parameters(theta), self.split_parameters(theta_dot)

        def run(y: np.ndarray, y_dot: np.ndarray, draws: StageNoise) -> tuple[np.ndarray, np.ndarray]:
            for stage, some, dot, drawn in zip(self.stages, own, dots, draws, strict=True):
                y, y_dot = stage.tangent(some, dot, y, y_dot, drawn)
            return y, y_dot

        draws = self.assign_noise(x, noise)
        found = self.map_over(run, split_into_chunks(self._tile(x)), split_into_chunks(tile(x_dot)), draws)
        one, other = (untile(np.concatenate(each), len(x)) for each in zip(*found, strict=True))
        return one, other

    def linearise(
        self, theta: np.ndarray, x: np.ndarray, noise: SampleNoise | None = None
    ) -> tuple[np.ndarray, LinearMap, LinearMap]:
        """Outputs, and functions for tangents from theta_dot and gradients of theta, all from one run."""
        own, chunks = self.split_parameters(theta), split_into_chunks(self._tile(x))
        runs = self._take_tapes(chunks, is_dual=True)

        def push(theta_dot: np.ndarray) -> np.ndarray:
            dots = self.split_parameters(theta_dot)
            return untile(join(self.map_over(lambda run: run.push(own, dots), runs)), len(x))

        def pull(outputs_bar: np.ndarray) -> np.ndarray:
            return self._pull_back(runs, own, theta, outputs_bar, is_x_wanted=False)[0]

        draws = self.assign_noise(x, noise)
        outputs = untile(join(self.map_over(lambda run, y, drawn: run.run(own, y, drawn), runs, chunks, draws)), len(x))
        weakref.finalize(pull, self._return_to_pool, runs)
        return outputs, push, pull

    def sweep(
        self, theta: np.ndarray, x: np.ndarray, memory: Memory, is_x_wanted: bool = True,
        noise: SampleNoise | None = None,
    ) -> Generator[Any, np.ndarray, None]:  # fmt: skip
        """Yield the outputs and, when their gradient is sent, the gradients with respect to the parameters and x."""
        own, chunks, draws = self.split_parameters(theta), split_into_chunks(self._tile(x)), self.assign_noise(x, noise)
        split = self._find_memory_split(memory, sum(map(len, chunks)))
        if split.memories[0] == "all":
            runs = self._take_tapes(chunks)
            run_one = lambda run, y, drawn: run.run(own, y, drawn)
            y_bar = yield untile(join(self.map_over(run_one, runs, chunks, draws)), len(x))
            theta_bar, x_bars = self._pull_back(runs, own, theta, y_bar, is_x_wanted)
            self._return_to_pool(runs)
            yield theta_bar, untile(join(cast("list[np.ndarray]", x_bars)), len(x)) if is_x_wanted else None
            return

        def begin(y: np.ndarray, drawn: StageNoise) -> tuple[np.ndarray, list[Generator[Any, Any, None]]]:
            sweeps = []
            for stage, some, memory, each in zip(self.stages, own, split.memories, drawn, strict=True):
                sweeps.append(sweep_and_turn(stage, some, y, memory, each))
                y = next(sweeps[-1])
            return y, sweeps

        def finish(
            bar: np.ndarray, sweeps: list[Generator[Any, Any, None]], y_bar: np.ndarray
        ) -> tuple[np.ndarray, float]:
            drifts = []
            for each, some_bar in zip(reversed(sweeps), reversed(self.split_parameters(bar)), strict=True):
                y_bar, drift = each.send((y_bar, some_bar))
                drifts.append(drift)
                each.close()
            return y_bar, max(drifts)

        if split.is_held:
            ends, started = zip(*self.map_over(begin, chunks, draws), strict=True)
            y_bar = yield untile(join(ends), len(x))
            theta_bar, ended = self.sum_over(finish, theta, started, split_into_chunks(tile(y_bar)))
        else:
            again = lambda bar, y, drawn, y_bar: finish(bar, begin(y, drawn)[1], y_bar)
            y_bar = yield self.forward(theta, x, noise)
            bars = split_into_chunks(tile(y_bar))
            theta_bar, ended = self.sum_over(again, theta, chunks, draws, bars, at_once=split.at_once)
        x_bars, drifts = zip(*ended, strict=True)
        limit = drift_limit(np.finfo(theta.dtype).eps)
        if max(drifts) <= limit:
            yield theta_bar, untile(join(x_bars), len(x))
            return
        warn_of_drift(max(drifts), limit)
        yield self.gradient(theta, x, lambda _: y_bar, "auto", is_x_wanted, noise)

    def _pull_back(
        self, runs: list[NetTape], own: list[np.ndarray], theta: np.ndarray, outputs_bar: np.ndarray, is_x_wanted: bool
    ) -> tuple[np.ndarray, list[np.ndarray | None]]:
        """Gradients with respect to theta, and to x by chunks, from those of the outputs."""

        def back(bar: np.ndarray, run: NetTape, y_bar: np.ndarray) -> np.ndarray | None:
            return run.pull(own, self.split_parameters(bar), y_bar, is_x_wanted)

        return self.sum_over(back, theta, runs, split_into_chunks(tile(outputs_bar)))

    def gradient(
        self, theta: np.ndarray, x: np.ndarray, end_gradient: Callable[[np.ndarray], np.ndarray], memory: Memory,
        is_x_wanted: bool = True, noise: SampleNoise | None = None,
    ) -> tuple[np.ndarray, np.ndarray | None]:  # fmt: skip
        """Gradients with respect to the parameters and x; `end_gradient(outputs)` is called once."""
        sweep = self.sweep(theta, x, memory, is_x_wanted, noise)
        return sweep.send(end_gradient(next(sweep)))

    # ---- memory -----------------------------------------------------------------------------------------------------

    def _take_tapes(self, chunks: Sequence[np.ndarray], is_dual: bool = False) -> list[NetTape]:
        """Tapes for all chunks, from the pool where possible, because allocation is expensive."""
        return [self._take_tape(len(y), is_dual) for y in chunks]

    def _take_tape(self, tiles: int, is_dual: bool) -> NetTape:
        try:
            return self._free[tiles, is_dual].pop()
        except (KeyError, IndexError):
            return NetTape(self.stages, tiles, is_dual)

    def _return_to_pool(self, runs: list[NetTape]) -> None:
        """Return tapes to the pool."""
        for run in runs:
            free = self._free.setdefault((run.tiles, run.is_dual), [])
            if (len(free) + 1) * run.nbytes <= AUTOMATIC_BYTES:  # tapes of one kind have equal sizes
                free.append(run)

    def count_stored_bytes(self, tiles: int) -> int:
        """The memory of a gradient that stores everything."""
        return sum(stage.count_stored_bytes(tiles) for stage in self.stages if not stage.is_single)

    def can_be_kept(self, samples: int, memory: Memory) -> bool:
        """Whether the memory policy allows storing a whole run with tangents."""
        return memory == "all" or (memory == "auto" and self.count_stored_bytes(-(-samples // TILE)) <= AUTOMATIC_BYTES)

    def _find_memory_split(self, memory: Memory, tiles: int) -> MemorySplit:
        key = tiles, memory
        if key not in self._memory_splits:
            self._memory_splits[key] = self._build_memory_split(memory, tiles)
        return self._memory_splits[key]

    def _build_memory_split(self, memory: Memory, tiles: int) -> MemorySplit:
        if self.can_be_kept(tiles * TILE, memory):
            memory = "all"
        limit = memory.bytes if isinstance(memory, Checkpoints) else None
        if memory == "auto":
            limit = max(AUTOMATIC_BYTES, count_chunk_bytes(self.stages, min(tiles, CHUNK)))
        if limit is None:
            return MemorySplit([memory] * len(self.stages), True, self._workers)
        return split_memory(self.stages, limit, tiles, CHUNK, self._workers)


def join(chunks: Sequence[np.ndarray]) -> np.ndarray:
    return chunks[0] if len(chunks) == 1 else np.concatenate(chunks)


def split_into_chunks(tiles: np.ndarray) -> list[np.ndarray]:
    return [tiles[i : i + CHUNK] for i in range(0, len(tiles), CHUNK)]
