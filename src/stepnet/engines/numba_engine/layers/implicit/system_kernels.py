"""Kernels for the linear systems of implicit layers: the Jacobians of a chain, and dense systems, sample by sample."""

from __future__ import annotations

from stepnet.engines.numba_engine.codegen.kernels import Kernel
from stepnet.engines.numba_engine.integrators.implicit.linear_systems import (
    DENSE,
    factorise,
    solve_factorised,
    solve_transposed,
)
from stepnet.engines.numba_engine.layers.chains import push_chain
from stepnet.engines.numba_engine.layers.layer_kernels import (
    locate,
    locate_dots,
    locate_tape,
    look_ahead,
    prepare,
)
from stepnet.engines.numba_engine.layers.node_operators import set_zero


@Kernel
def tabulate_jacobians(machine, chains, program, workspace, theta, no_dot, mixed_dot, step, jacobians):
    """df/dx of a single chain after its values, (tiles, samples, out, in): a tangent for every feature of x.

    `no_dot` and `mixed_dot` are zero, as the weights do not change.
    """
    direct = program.is_direct != 0
    weights, dots = theta if direct else workspace.mixed, no_dot if direct else mixed_dot
    memory, samples = workspace.memory, jacobians.shape[1]
    one = chains.sign.dtype.type(1.0)
    prepare(chains, program, workspace, theta, workspace.mixed, step)
    for tile in range(workspace.tiles):
        here, previous = locate(program, workspace, tile, 0)
        locate_dots(program, workspace, tile, 0)
        look_ahead(program, workspace, tile, 0, 0)
        tape = locate_tape(program, workspace, 0, here, previous)
        x_dot, f_dot = workspace.dot_at[0], workspace.dot_at[1]
        set_zero(memory, x_dot, jacobians.shape[3] * samples)
        for j in range(jacobians.shape[3]):
            memory[x_dot + j * samples : x_dot + (j + 1) * samples] = one
            push_chain(
                machine, chains, program.part[0], weights, dots, workspace.base, 0, program.times[step, 0], memory,
                workspace.at[0], x_dot, workspace.at[1], f_dot, tape, workspace.work, workspace.work_size,
            )  # fmt: skip
            for i in range(jacobians.shape[2]):
                for k in range(samples):
                    jacobians[tile, k, i, j] = memory[f_dot + i * samples + k]
            set_zero(memory, x_dot + j * samples, samples)
    return 0


@Kernel
def factorise_systems(matrices, pivots, is_chosen):
    """Replace the chosen ones of the matrices (samples, n, n) by their factors, singular ones by NaN."""
    for k in range(matrices.shape[0]):
        if is_chosen[k] and not factorise(matrices[k], pivots[k], DENSE, 0):
            matrices[k, :, :] = float("nan")
            pivots[k, :] = 0
    return 0


@Kernel
def solve_systems(matrices, pivots, rows, is_transposed):
    """Replace each of the right-hand sides (samples, n) by the solution of the system of its sample."""
    for k in range(rows.shape[0]):
        if is_transposed:
            solve_transposed(matrices[k], pivots[k], rows[k])
        else:
            solve_factorised(matrices[k], pivots[k], rows[k], DENSE, 0)
    return 0
