"""A net's stages run on a batch: tiles of samples in chunks, chunks over threads."""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from itertools import accumulate, starmap
from typing import Any

import numpy as np

from stepnet.checkpoints import Checkpoints
from stepnet.engines.numba_engine.codegen.blas import SINGLE_THREAD
from stepnet.engines.numba_engine.layers.matrix_products import TILE
from stepnet.engines.numba_engine.layers.stage_runs import NOTHING, NetStage
from stepnet.engines.numba_engine.layers.stage_sweeps import Memory, sweep, sweep_and_turn
from stepnet.engines.numba_engine.layers.tapes import NetTape
from stepnet.engines.reconstruction import drift_limit, warn_of_drift
from stepnet.ensembles.ensemble import count_usable_cores
from stepnet.fields import Chain, Depth
from stepnet.nets.design import Block, Design
from stepnet.nets.memory_split import MemorySplit, count_chunk_bytes, split_memory

__all__ = ["CHUNK", "SINGLE_THREAD", "TILE", "Execution", "build_stage", "sweep", "tile", "untile"]

CHUNK = 4  # tiles that share the weights in the cache
AUTOMATIC_BYTES = 2**28  # what "auto" may store, and what is put by of a kind to be used again
AHEAD = 2  # gradients of chunks for every thread that wait to be added up


def build_stage(record: Chain | Block, dtype: np.dtype) -> NetStage:
    """What the engine makes of a part of a net."""
    if isinstance(record, Block):
        return NetStage(record.field, record.motion, record.steps, record.length, record.depth, dtype)
    return NetStage(record, NOTHING, 1, 1.0, Depth(1), dtype)


def tile(x: np.ndarray) -> np.ndarray:
    """(batch, features) -> (tiles, features, TILE), zeros behind the last sample; a view if there are none."""
    n, padded = -(-len(x) // TILE), x
    if n * TILE != len(x):
        padded = np.zeros((n * TILE, x.shape[1]), x.dtype)
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
        self.stages = [build_stage(record, dtype) for _, record in design.stages()]
        ends = list(accumulate(stage.n_parameters for stage in self.stages))
        self.places = list(zip([0, *ends], ends, strict=False))
        self._workers = workers or count_usable_cores()
        self._threads: tuple[int, ThreadPoolExecutor] | None = None
        self._free: dict[tuple[int, bool], list[NetTape]] = {}
        self._portions: dict[tuple[int, Memory], MemorySplit] = {}
        self._alone = SINGLE_THREAD if any(stage.calls_blas for stage in self.stages) else nullcontext()

    @property
    def _pool(self) -> ThreadPoolExecutor:
        # A forked process inherits the pool, but none of its threads.
        if self._threads is None or self._threads[0] != os.getpid():
            self._threads = os.getpid(), ThreadPoolExecutor(self._workers)
        return self._threads[1]

    def over(self, function: Callable, *arrays) -> list:
        """function(one, ...) for all entries of some lists, over threads; values in order."""
        with self._alone:
            if len(arrays[0]) == 1 or self._workers == 1:
                return list(map(function, *arrays))
            return list(self._pool.map(function, *arrays))

    def added(self, function: Callable, theta: np.ndarray, *arrays, at_once: int | None = None) -> tuple:
        """The sum of what function(bar, one, ...) adds to each `bar`, and its values; few bars are there at once.

        They are added in order, so that bits do not depend on threads.
        """
        spare: list[np.ndarray] = []

        def run(*each):
            try:
                bar = spare.pop()
                bar.fill(0)
            except IndexError:
                bar = np.zeros(theta.shape, theta.dtype)
            return bar, function(bar, *each)

        total, values = None, []
        with self._alone:
            for bar, value in self._few(run, list(zip(*arrays, strict=True)), at_once or AHEAD * self._workers):
                values.append(value)
                if total is None:
                    total = bar
                else:
                    total += bar
                    spare.append(bar)
        return total, values

    def _few(self, function: Callable, arguments: list[tuple], at_once: int) -> Iterator:
        """Values in order, over threads; no more than `at_once` are under way or wait to be taken."""
        if min(len(arguments), self._workers, at_once) == 1:
            yield from starmap(function, arguments)
            return
        waiting: deque[Future] = deque()
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

    def own(self, theta: np.ndarray) -> list[np.ndarray]:
        """The parameters of every stage."""
        return [theta[a:b] for a, b in self.places]

    def forward(self, theta: np.ndarray, x: np.ndarray) -> np.ndarray:
        """Outputs of a batch."""
        own = self.own(theta)

        def run(y):
            for stage, some in zip(self.stages, own, strict=True):
                y = stage.forward(some, y)
            return y

        return untile(np.concatenate(self.over(run, split_into_chunks(tile(x)))), len(x))

    def features(self, theta: np.ndarray, x: np.ndarray, wanted: int) -> np.ndarray:
        """States inside the block that is stage `wanted`, after its opening and after every further step."""
        own = self.own(theta)

        def run(y):
            for stage, some in zip(self.stages[:wanted], own, strict=False):
                y = stage.forward(some, y)
            return self.stages[wanted].states(own[wanted], y)

        found = np.concatenate(self.over(run, split_into_chunks(tile(x))), axis=1)
        return np.stack([untile(each, len(x)) for each in found])

    def until(self, theta: np.ndarray, x: np.ndarray, wanted: int) -> np.ndarray:
        """The state that stage `wanted` begins with."""
        y = tile(x)
        with self._alone:
            for stage, some in zip(self.stages[:wanted], self.own(theta), strict=False):
                y = stage.forward(some, y)
        return untile(y, len(x))

    def tangent(self, theta, theta_dot, x, x_dot) -> tuple[np.ndarray, np.ndarray]:
        """Outputs and their tangents."""
        own, dots = self.own(theta), self.own(theta_dot)

        def run(y, y_dot):
            for stage, some, dot in zip(self.stages, own, dots, strict=True):
                y, y_dot = stage.tangent(some, dot, y, y_dot)
            return y, y_dot

        found = self.over(run, split_into_chunks(tile(x)), split_into_chunks(tile(x_dot)))
        one, other = (untile(np.concatenate(each), len(x)) for each in zip(*found, strict=True))
        return one, other

    def linearised(self, theta, x) -> tuple[np.ndarray, Callable, Callable]:
        """Outputs, their tangents by way of theta_dot, and gradients of theta from theirs; one run serves them all."""
        own, chunks = self.own(theta), split_into_chunks(tile(x))
        runs = self._passages(chunks, is_dual=True)

        def push(theta_dot):
            dots = self.own(theta_dot)
            return untile(join(self.over(lambda run: run.push(own, dots), runs)), len(x))

        def pull(outputs_bar):
            return self._pulled(runs, own, theta, outputs_bar, is_x_wanted=False)[0]

        outputs = untile(join(self.over(lambda run, y: run.run(own, y), runs, chunks)), len(x))
        weakref.finalize(pull, self._put_by, runs)
        return outputs, push, pull

    def sweep(self, theta, x, memory: Memory, is_x_wanted: bool = True) -> Generator[Any, Any, None]:
        """Outputs; once their gradient is sent, the gradients with respect to the parameters and to x."""
        own, chunks = self.own(theta), split_into_chunks(tile(x))
        portions = self._portions_of(memory, sum(map(len, chunks)))
        if portions.memories[0] == "all":
            runs = self._passages(chunks)
            y_bar = yield untile(join(self.over(lambda run, y: run.run(own, y), runs, chunks)), len(x))
            theta_bar, x_bars = self._pulled(runs, own, theta, y_bar, is_x_wanted)
            self._put_by(runs)
            yield theta_bar, untile(join(x_bars), len(x)) if is_x_wanted else None
            return

        def begin(y):
            sweeps = []
            for stage, some, memory in zip(self.stages, own, portions.memories, strict=True):
                sweeps.append(sweep_and_turn(stage, some, y, memory))
                y = next(sweeps[-1])
            return y, sweeps

        def finish(bar, sweeps, y_bar):
            drifts = []
            for each, some_bar in zip(reversed(sweeps), reversed(self.own(bar)), strict=True):
                y_bar, drift = each.send((y_bar, some_bar))
                drifts.append(drift)
                each.close()
            return y_bar, max(drifts)

        if portions.is_held:
            ends, started = zip(*self.over(begin, chunks), strict=True)
            y_bar = yield untile(join(ends), len(x))
            theta_bar, ended = self.added(finish, theta, started, split_into_chunks(tile(y_bar)))
        else:
            again = lambda bar, y, y_bar: finish(bar, begin(y)[1], y_bar)
            y_bar = yield self.forward(theta, x)
            theta_bar, ended = self.added(
                again, theta, chunks, split_into_chunks(tile(y_bar)), at_once=portions.at_once
            )
        x_bars, drifts = zip(*ended, strict=True)
        limit = drift_limit(np.finfo(theta.dtype).eps)
        if max(drifts) <= limit:
            yield theta_bar, untile(join(x_bars), len(x))
            return
        warn_of_drift(max(drifts), limit)
        yield self.gradient(theta, x, lambda _: y_bar, "auto", is_x_wanted)

    def _pulled(self, runs, own, theta, outputs_bar, is_x_wanted: bool) -> tuple[np.ndarray, Sequence[np.ndarray]]:
        """Gradients of theta, and of x chunk by chunk, from those of the outputs."""

        def back(bar, run, y_bar):
            return run.pull(own, self.own(bar), y_bar, is_x_wanted)

        return self.added(back, theta, runs, split_into_chunks(tile(outputs_bar)))

    def gradient(
        self, theta, x, end_gradient: Callable[[np.ndarray], np.ndarray], memory: Memory, is_x_wanted: bool = True
    ):
        """Gradients with respect to the parameters and to x; `end_gradient(outputs)` is asked once, in between."""
        sweep = self.sweep(theta, x, memory, is_x_wanted)
        return sweep.send(end_gradient(next(sweep)))

    # ---- memory -----------------------------------------------------------------------------------------------------

    def _passages(self, chunks, is_dual: bool = False) -> list[NetTape]:
        """For all chunks; if possible some that were put by, as new ones cost more."""
        return [self._passage(len(y), is_dual) for y in chunks]

    def _passage(self, tiles: int, is_dual: bool) -> NetTape:
        try:
            return self._free[tiles, is_dual].pop()
        except (KeyError, IndexError):
            return NetTape(self.stages, tiles, is_dual)

    def _put_by(self, runs: list[NetTape]) -> None:
        """They are not used any more."""
        for run in runs:
            free = self._free.setdefault((run.tiles, run.is_dual), [])
            if (len(free) + 1) * run.nbytes <= AUTOMATIC_BYTES:  # those of a kind are of one size
                free.append(run)

    def stored_bytes(self, tiles: int) -> int:
        """Memory of all that a gradient could keep."""
        return sum(stage.stored_bytes(tiles) for stage in self.stages if not stage.is_single)

    def can_be_kept(self, samples: int, memory: Memory) -> bool:
        """Whether a run with tangents may be kept as a whole."""
        return memory == "all" or (memory == "auto" and self.stored_bytes(-(-samples // TILE)) <= AUTOMATIC_BYTES)

    def _portions_of(self, memory: Memory, tiles: int) -> MemorySplit:
        key = tiles, memory
        if key not in self._portions:
            self._portions[key] = self._shared_out(memory, tiles)
        return self._portions[key]

    def _shared_out(self, memory: Memory, tiles: int) -> MemorySplit:
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
