"""`sweep`: solve a problem over a grid of its numbers, chunk by chunk."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Executor, Future, wait
from dataclasses import dataclass, field
from functools import lru_cache
from inspect import signature
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from stepnet.ensembles.ensemble import solve_ensemble
from stepnet.ensembles.reductions import STATUSES, Chunk, Reduction, States
from stepnet.ensembles.sweeps.grid import GridBox, SweepGrid, build_grid
from stepnet.ensembles.sweeps.path_statistics import OverPaths, reduce_paths, validate_path_count
from stepnet.ensembles.sweeps.storage import COUNTS, FolderStorage, MemoryStorage, Part
from stepnet.problem import SDE, Langevin, Problem
from stepnet.records import explain_arguments, validate_count
from stepnet.schemes import catalogue
from stepnet.solution import Scheme, Status
from stepnet.solving.integrate import find_scheme
from stepnet.storage.atomic_files import validate_path

LEAST_CHUNK, MOST_CHUNK = 64, 8192  # members
CHUNK_BYTES = 2**26  # of states that a chunk holds
CHUNKS_OF_A_SWEEP = 64  # so that progress is visible and processes finish at about the same time
LEAST_SENT = 8  # chunks submitted to an executor at a time; more would only fill its queue
ONLY = "result"
PER_MEMBER = ("t_span", "rtol", "atol", "save_at")
OWN = {"y0": "its entries", "args": "names of arguments"}


@dataclass(frozen=True, eq=False)
class SweepResult:
    """The results of a sweep: `results` by the names of the reductions, `result` if there is only one.

    `grid` holds the values of each axis, `counts` the number of members with each status.

    Parameters
    ----------
    grid : dict
        The values of each axis.
    results : dict
        The result of each reduction, by its name.
    counts : dict
        The number of members with each status.
    scheme : Scheme
        The scheme that was used.
    path : Path, optional
        The folder of the stored sweep.

    Examples
    --------
    >>> import stepnet as sn
    >>> problem = sn.ODE(lambda t, y, k: -k * y, [1.0], (0.0, 1.0), args=(1.0,))
    >>> sn.sweep(problem, "rk4", {"k": [1.0, 2.0, 3.0]}, steps=10).result.y.shape
    (3, 1, 1)
    """

    grid: dict[str, np.ndarray]
    results: dict[str, object]
    counts: dict[Status, int]
    scheme: Scheme = field(repr=False)
    path: Path | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the grid, one axis per name."""
        return tuple(len(values) for values in self.grid.values())

    @property
    def result(self) -> Any:
        """The result of the only reduction."""
        if len(self.results) != 1:
            raise AttributeError(f"there are several results, use one of `results`: {', '.join(self.results)}")
        return next(iter(self.results.values()))

    def __repr__(self) -> str:
        lines = [f"SweepResult by {self.scheme.name}: {sum(self.counts.values())} members, grid {self.shape}"]
        lines += [f"  {name:<12} {v.min():g} to {v.max():g}, {len(v)} values" for name, v in self.grid.items()]
        lines += [f"  {count:<12} {status.value}" for status, count in self.counts.items()]
        return "\n".join([*lines, f"  results      {', '.join(self.results)}"])


class SweepTask(NamedTuple):
    """Everything needed to compute a chunk, in this process or another."""

    problem: Problem
    scheme: object
    grid: SweepGrid
    reductions: dict[str, Reduction]
    options: dict[str, Any]

    def part(self, first: int, last: int) -> Part:
        """The results of the reductions for some members, and the counts of their statuses."""
        chunk = Chunk(self.problem, self.scheme, self.grid.rows(first, last), self.options)
        if self.options.get("paths") is not None:
            own, counts = reduce_paths(chunk, self.reductions)  # type: ignore[arg-type]
            return {**own, COUNTS: {"fates": counts}}
        if isinstance(self.problem, (SDE, Langevin)):  # the same path for all members, in any chunk
            chunk.options = {**self.options, "paths": np.full(chunk.count, self.problem.path)}
        found = {name: reduction.reduce_chunk(chunk) for name, reduction in self.reductions.items()}
        return {**found, COUNTS: {"fates": np.bincount(chunk.statuses, minlength=len(STATUSES))}}


@explain_arguments(also=signature(solve_ensemble).parameters)
def sweep(
    problem: Problem,
    scheme: Any = None,
    grid: Mapping[str, Any] | None = None,
    *,
    reduce: Any = None,
    path: str | PathLike[str] | None = None,
    chunk: int | None = None,
    client: Any = None,
    workers: int | None = None,
    progress: bool = False,
    **options: Any,
) -> SweepResult:
    """Solve a problem for all combinations of values of some of its numbers, and reduce the results.

    Members are solved in chunks by `solve_ensemble`, and only the reductions of a chunk are kept.  Results do not
    depend on `workers`, `client`, or interruptions.

    Parameters
    ----------
    problem : ODE, Partitioned, SecondOrder, Split, SDE or Langevin
        What to solve.
    scheme : record or str, optional
        As in `solve`.
    grid : mapping of str to array_like
        Values by names: arguments of the right-hand side ("rho", "p[1]", or "args[1]" for number 1 of all arguments),
        and entries of the initial state ("y0[0]", "q0[1]").  The order of the names is that of the axes of the results.
    reduce : reduction, or mapping of str to reduction, optional
        What to keep; see `stepnet.ensembles.reductions`.  By default the states and the status of each member.
    path : str or Path, optional
        A folder in which results are stored chunk by chunk.  The same call continues from the chunks stored there.
    chunk : int, optional
        Maximum number of members solved at a time.
    client : dask.distributed.Client or concurrent.futures.Executor, optional
        Where the chunks are computed; results are written by this process.
    workers : int, optional
        Threads of `solve_ensemble`; always one for chunks computed by a `client`.
    progress : bool, optional
        Show a progress bar with the remaining time.
    **options
        As in `solve_ensemble`, for all members.  With a number of `paths` of an `SDE` or `Langevin`, every
        point of the grid is solved for these paths, reductions are over the paths of each point, and their results have
        the shape of the grid; the paths are solved in blocks and not stored.  Then the `grid` may be left out.  Without
        `paths` all members have the path of the problem.

    Returns
    -------
    SweepResult

    Examples
    --------
    >>> import stepnet as sn
    >>> problem = sn.ODE(lambda t, y, k: -k * y, [1.0], (0.0, 1.0), args=(1.0,))
    >>> sn.sweep(problem, "rk4", {"k": [0.5, 1.0], "y0[0]": [1.0, 2.0, 3.0]}, steps=50).result.y.shape
    (2, 3, 1, 1)
    """
    scheme = find_scheme(problem, scheme, options.get("steps"))
    paths = validate_path_count(problem, options.get("paths"))
    problem, axes = build_grid(problem, grid, may_be_empty=paths is not None)
    reductions = _validate_reductions(reduce)
    _check_options(options)
    if paths is not None:
        reductions, options = {name: OverPaths(each) for name, each in reductions.items()}, {**options, "paths": paths}
    size = _choose_chunk_size(chunk, problem, axes, options)
    work = SweepTask(problem, scheme, axes, reductions, {**options, "workers": 1 if client is not None else workers})
    boxes = list(axes.boxes(size))
    storage = _open_storage(path, work, boxes, options, size)
    with storage.lock():
        _complete(storage, work, boxes, client, progress)
        results, counts = storage.results()
    statuses = {status: int(count) for status, count in zip(STATUSES, counts, strict=True) if count}
    return SweepResult(axes.values, results, statuses, scheme, None if path is None else Path(path))


def _complete(
    storage: MemoryStorage | FolderStorage, work: SweepTask, boxes: list[GridBox], client: Any, progress: bool
) -> None:
    """Compute the chunks that are not finished."""
    finished = storage.finished
    left = [number for number in range(len(boxes)) if number not in finished]
    total = work.grid.count
    done = total - sum(boxes[number].last - boxes[number].first for number in left)
    try:
        with tqdm(total=total, initial=done, unit="members", disable=not progress) as bar:
            for number, part in _iterate_parts(work, boxes, left, client):
                storage.put(number, part)
                bar.update(boxes[number].last - boxes[number].first)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"interrupted with {_describe_progress(storage, boxes)}") from None
    except Exception as error:
        if not _is_process_error(error):
            raise
        raise RuntimeError(
            f"the processes of `client` ended before the sweep finished ({type(error).__name__}: {error!s:.200}), with "
            f"{_describe_progress(storage, boxes)}"
        ) from error


def _describe_progress(storage: MemoryStorage | FolderStorage, boxes: list[GridBox]) -> str:
    """The progress of the sweep, and how to continue it."""
    kept = "nothing is stored without `path`"
    if isinstance(storage, FolderStorage):
        kept = f"the same call resumes from {storage.path}"
    return f"{len(storage.finished)} of {len(boxes)} chunks done; {kept}"


def _is_process_error(error: Exception) -> bool:
    """Whether an executor lost its processes, or a dask client its workers; not an error of the task itself."""
    return isinstance(error, (BrokenExecutor, CancelledError)) or type(error).__module__.startswith("distributed.")


def _validate_reductions(reduce: Any) -> dict[str, Reduction]:
    chosen = reduce if isinstance(reduce, Mapping) else {ONLY: States() if reduce is None else reduce}
    for name, reduction in chosen.items():
        if isinstance(reduction, type) or not all(
            callable(getattr(reduction, verb, None)) for verb in ("reduce_chunk", "result")
        ):
            raise TypeError(
                f"`reduce` must be a reduction such as `stepnet.ensembles.reductions.Mean()`, or several by name; "
                f"found {reduction!r:.60}"
            )
        if not isinstance(name, str) or not name.isidentifier() or name == COUNTS:
            raise ValueError(f"`reduce` must have names like variables, and none called {COUNTS!r}; found {name!r:.60}")
    if not chosen:
        raise ValueError("`reduce` must name at least one reduction, found none")
    return dict(chosen)


def _check_options(options: dict[str, Any]) -> None:
    for name, what in OWN.items():
        if name in options:
            raise TypeError(f"`{name}` is not an option of a sweep; what differs is given in `grid`, by {what}")
    for name in PER_MEMBER:
        if np.ndim(options.get(name, 0)) > 1:
            raise ValueError(
                f"`{name}` must be the same for all members of a sweep, found the shape {np.shape(options[name])}"
            )


def _choose_chunk_size(chunk: Any, problem: Problem, grid: SweepGrid, options: dict[str, Any]) -> int:
    if chunk is not None:
        return validate_count("chunk", chunk, 1)
    if options.get("paths") is not None:
        return max(1, min(grid.count, MOST_CHUNK // options["paths"]))
    times = 1 if options.get("save_at") is None else max(1, np.size(options["save_at"]))
    most = min(MOST_CHUNK, max(1, CHUNK_BYTES // (times * max(1, problem.initial.nbytes))))
    return min(most, max(LEAST_CHUNK, -(-grid.count // CHUNKS_OF_A_SWEEP)))


def _open_storage(
    path: Any, work: SweepTask, boxes: list[GridBox], options: dict[str, Any], size: int
) -> MemoryStorage | FolderStorage:
    if path is None:
        return MemoryStorage(work.grid, boxes, work.reductions)
    from stepnet import __version__
    from stepnet.engines.numba_engine import problem_identity, value_identity

    facts = {
        "problem": problem_identity(work.problem),
        "scheme": value_identity(work.scheme),
        "grid": value_identity(list(work.grid.values.items())),
        "reduce": value_identity(work.reductions),
        "options": value_identity(options),
        "chunk": size,
        "version": __version__,
    }
    return FolderStorage(validate_path("path", path, "a folder"), facts, work.grid, boxes, work.reductions)


# ---- in this process or in others -----------------------------------------------------------------------------------


def _iterate_parts(work: SweepTask, boxes: list[GridBox], left: list[int], client: Any) -> Iterator[tuple[int, Part]]:
    """Yield the numbers of chunks with their parts, as they finish."""
    if client is None:
        yield from ((number, work.part(*boxes[number][1:])) for number in left)
        return
    packed = _pack(work)
    executor, wide = _open_executor(client)
    waiting, sent = iter(left), dict[Future[Any], int]()
    try:
        while True:
            for number in islice(waiting, wide - len(sent)):
                sent[executor.submit(_run_packed, packed, *boxes[number][1:])] = number
            if not sent:
                return
            for future in wait(sent, return_when=FIRST_COMPLETED).done:
                yield sent.pop(future), future.result()
    finally:
        for future in sent:
            future.cancel()


def _open_executor(client: Any) -> tuple[Executor, int]:
    """The executor for chunks, and how many to submit at a time."""
    if hasattr(client, "get_executor"):
        return client.get_executor(pure=False), max(LEAST_SENT, 2 * sum(client.nthreads().values()))
    if not isinstance(client, Executor):
        raise TypeError(
            f"`client` must be a dask.distributed Client or a concurrent.futures Executor, "
            f"found {type(client).__name__}"
        )
    return client, max(LEAST_SENT, 2 * (os.cpu_count() or 1))


def _pack(work: SweepTask) -> bytes:
    """Pickle the task, with a known scheme by its name, so that all chunks of a process share compiled code."""
    try:
        from cloudpickle import dumps  # installed with dask; pickles local functions too
    except ImportError:
        from pickle import dumps
    name = getattr(work.scheme, "name", "")
    is_known = name in catalogue.names() and catalogue.get(name) is work.scheme
    try:
        return dumps(work._replace(scheme=name if is_known else work.scheme))
    except Exception as error:
        raise TypeError(f"the problem cannot be sent to other processes: {error}") from error


@lru_cache(maxsize=4)
def _unpack(packed: bytes) -> SweepTask:
    work = pickle.loads(packed)
    return work._replace(scheme=catalogue.get(work.scheme))


def _run_packed(packed: bytes, first: int, last: int) -> Part:
    return _unpack(packed).part(first, last)
