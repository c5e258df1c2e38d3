"""Gradients of many paths of a stochastic equation in SIMD lanes."""

from __future__ import annotations

from functools import partial
from math import isqrt

import numpy as np

from stepnet.engines.contract import FixedSteps, Members
from stepnet.engines.numba_engine.codegen.machine_code import LANES
from stepnet.engines.numba_engine.codegen.steps.fused_steps import NO_NOISE, write_reverse
from stepnet.engines.numba_engine.derivatives.scalar_loss import ScalarLoss
from stepnet.engines.numba_engine.ensembles.ensemble_runs import ATTEMPTS, ChunkRunner, ignore_progress, run_chunks
from stepnet.engines.numba_engine.ensembles.path_adjoint import (
    PathAdjoint,
    PathGradients,
    SegmentStates,
    pull_back_paths,
)
from stepnet.engines.numba_engine.ensembles.path_runs import (
    StochasticRun,
    allocate_group,
    collect_starts,
    find_address,
    generate_steps,
    generate_sweep,
    match_noise,
    prepare_run,
    split_into_groups,
)
from stepnet.engines.numba_engine.random.step_noise import round_to_cells
from stepnet.engines.numba_engine.rhs.arguments import flat_gradients, pack, unpack
from stepnet.problem import StochasticProblem

SEGMENT_BYTES = 2**22  # of states and random variables; drawing those of shorter segments twice takes longer


def differentiate_paths(
    problem: StochasticProblem,
    scheme,
    stepping: FixedSteps,
    members: Members,
    loss: ScalarLoss | None,
    end_bars: np.ndarray | None,
    workers: int,
) -> PathGradients:
    """Gradients of a traced loss of the end states, or of losses whose gradients are given; raises `NoLanes`."""
    own = prepare_run(problem, scheme, stepping)
    noise, rows = match_noise(own), own.program.step.n_rows * own.n
    bytes_of_step = 8 * LANES * (rows + own.layout.size)
    segment = max(isqrt(stepping.n_steps), SEGMENT_BYTES // bytes_of_step)
    segment = round_to_cells(noise, min(segment, stepping.n_steps))
    even = generate_steps(own, np.zeros(0, np.int64), segment)
    back, starts, n = _generate_adjoint(own, loss, segment), collect_starts(own, members), own.problem.initial.size
    count, n_parameters = members.number, members.args.shape[1]
    given = np.zeros((1, n)) if end_bars is None else end_bars
    bars = PathGradients(np.zeros(count), given, np.zeros((count, n)), np.zeros((count, n_parameters)))

    def begin(first: int, last: int):
        sizes = (rows * -(-stepping.n_steps // segment), rows * segment, rows, max(1, n_parameters))
        kept = SegmentStates(*(np.zeros((size, LANES)) for size in sizes), np.zeros((3, n)), np.zeros(1))
        group = allocate_group(own, noise, even, n_parameters, first, last)
        return partial(pull_back_paths, even, back, noise, starts, bars, group, kept, n, ATTEMPTS)

    chunks = split_into_groups(count, workers) if workers > 1 else [(0, count)]  # new memory takes time to map
    if not run_chunks(ChunkRunner(begin, "lanes"), chunks, workers, ignore_progress):
        raise KeyboardInterrupt
    block = pack(problem.args)
    unknown = np.isnan(flat_gradients(unpack(block.values, block.slots), problem.args))
    bars.p[:, unknown] = np.nan  # integers are constants of the code
    return bars


def _generate_adjoint(own: StochasticRun, loss: ScalarLoss | None, segment: int) -> PathAdjoint:
    """Sweeps and their adjoints in lanes, and the loss."""
    opening, step = own.program.opening, own.program.step

    def find(program, noise):
        write = partial(write_reverse, program, is_even=True, has_times=False, is_wide=True, noise=noise)
        return find_address(own, program, "reverse", write, noise)

    value, gradient = (0, 0) if loss is None else loss.find_addresses()
    return PathAdjoint(generate_sweep(own), find(step, own.layout), find(opening, NO_NOISE), value, gradient, segment)
