"""Rows of random numbers: normals on one core against NumPy, and random-access Brownian queries against torchsde."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from benchmarks.timing import Answer, Prepared, Row, by_turns, first_line

WORKLOAD = "noise"
NORMALS, LANES = 2**16, 2**10
QUERIES, T_END = 1000, 1.0
SECONDS = 4.0
OURS, NUMPY = "stepnet normals", "numpy Generator normals"
BATCH, SINGLE, TORCHSDE = "stepnet queries", "stepnet queries one by one", "torchsde BrownianInterval queries"


def rows(name: str = WORKLOAD) -> Iterator[Row]:
    """Seconds for one normal number, and for one query of an increment between two random times."""
    prepared, failed = {}, {}
    for who, (prepare, _) in CONTENDERS.items():
        try:
            prepared[who] = prepare()
        except ImportError as exception:
            failed[who] = exception
    found = failed | by_turns(prepared, SECONDS)
    for who, (_, count) in CONTENDERS.items():
        measured, package = found[who], who.split()[0]
        if isinstance(measured, Exception):
            yield Row(WORKLOAD, who, package, note=first_line(measured))
        else:
            yield Row(WORKLOAD, who, package, time=measured.time / count, calls=measured.calls)


def prepare_kernel() -> Prepared:
    """Increments of cells in blocks of paths, as a step kernel draws them."""
    from stepnet.engines.numba_engine.codegen.kernels import Kernel
    from stepnet.engines.numba_engine.random.increments import draw_increments

    def draw_cells(seed, cells, out):
        for cell in range(cells):
            draw_increments(seed, 0, cell, 1.0, 1.5 * 2.0**20, out)

    kernel, out = Kernel(draw_cells), np.empty((1, LANES))
    return Prepared(lambda: kernel(np.uint64(1), NORMALS // LANES, out), lambda _: Answer(out))


def prepare_numpy() -> Prepared:
    generator, out = np.random.default_rng(0), np.empty(LANES)

    def call():
        for _ in range(NORMALS // LANES):
            generator.standard_normal(out=out)

    return Prepared(call, lambda _: Answer(out))


def intervals() -> np.ndarray:
    return np.sort(T_END * np.random.default_rng(0).random((QUERIES, 2)), axis=1)


def prepare_batch() -> Prepared:
    """All queries in one call of the public method."""
    import stepnet as sn
    from stepnet.engines.numba_engine.random import paths  # noqa: F401  evaluates queries once it is loaded

    W, t = sn.noise.BrownianPath(1, t_span=(0.0, T_END)), intervals()
    return Prepared(lambda: W.increment(t[:, 0], t[:, 1]), Answer)


def prepare_single() -> Prepared:
    """One call for each query."""
    import stepnet as sn
    from stepnet.engines.numba_engine.random import paths  # noqa: F401  as above

    W, t = sn.noise.BrownianPath(1, t_span=(0.0, T_END)), intervals().tolist()
    return Prepared(lambda: [W.increment(a, b) for a, b in t], lambda found: Answer(np.array(found)))


def prepare_torchsde() -> Prepared:
    import torch
    import torchsde

    torch.set_num_threads(1)
    t = intervals().tolist()

    def call():
        bm = torchsde.BrownianInterval(0.0, T_END, size=(1, 1), dtype=torch.float64, entropy=1)
        return [bm(a, b) for a, b in t]

    return Prepared(call, lambda found: Answer(torch.cat(found).numpy()))


CONTENDERS = {
    OURS: (prepare_kernel, NORMALS),
    NUMPY: (prepare_numpy, NORMALS),
    BATCH: (prepare_batch, QUERIES),
    SINGLE: (prepare_single, QUERIES),
    TORCHSDE: (prepare_torchsde, QUERIES),
}
