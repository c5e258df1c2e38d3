"""The adjoint equation along dense output, (a, g)' = (-a df/dy, -a df/dp), as a right-hand side in machine code."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import carray

from stepnet.engines.numba_engine.codegen.intrinsics.address_calls import call_vjp_at, view_reals
from stepnet.engines.numba_engine.codegen.kernels import FieldKernel, inlined
from stepnet.engines.numba_engine.derivatives.augmented_problems import refuse_singular_mass
from stepnet.engines.numba_engine.derivatives.pullbacks import PartPullback, build_parts
from stepnet.engines.numba_engine.rhs.callback import SIGNATURE
from stepnet.problem import ODE
from stepnet.solution import Pieces

HEADER = 9  # integers before the workspace for a state


class InterpolatedAdjoint(NamedTuple):
    """The adjoint equation as a problem, from the end to the beginning, and the right-hand side it is built from."""

    problem: ODE
    part: PartPullback


def interpolated_problem(
    problem: ODE, pieces: Pieces, end_gradient: np.ndarray, differences: bool
) -> InterpolatedAdjoint:
    """The adjoint equation along the polynomials of a solution."""
    refuse_singular_mass(problem, '`memory`="interpolated"')
    (part,) = build_parts(problem, is_joined=True, differences=differences)
    p, n = part.field.p, problem.initial.size
    arrays = tuple(map(np.ascontiguousarray, (pieces.t, pieces.h, pieces.data, p)))
    header = (n, p.size, len(pieces.t), pieces.data.shape[1], part.vjp, *(array.ctypes.data for array in arrays))
    block = np.concatenate((np.array(header, np.int64).view(float), np.zeros(n + 1)))
    function = SIGNATURE(_evaluate_adjoint.address(np.dtype(float)))
    function.keep_alive = arrays, part  # type: ignore[attr-defined]
    start = np.concatenate((end_gradient, np.zeros(p.size)))
    return InterpolatedAdjoint(ODE(function, start, problem.t_span[::-1], (block,)), part)


@inlined
def _find_piece(t, starts, lengths):
    """The polynomial that contains a time: the last one that does not begin after it."""
    sign = np.sign(lengths[0])
    low, high = 0, starts.shape[0]
    while high - low > 1:
        middle = (low + high) // 2
        if sign * starts[middle] <= sign * t:
            low = middle
        else:
            high = middle
    return low


@inlined
def _state_in(piece, x, h, out):
    """out = y at the fraction x of a step of length h, as in `Pieces`."""
    m = 1.0 - x
    for k in range(piece.shape[1]):
        ends = m * m * (1.0 + 2.0 * x) * piece[0, k] + x * x * (3.0 - 2.0 * x) * piece[1, k]
        slopes = h * x * m * (m * piece[2, k] - x * piece[3, k])
        correction = 0.0
        for row in range(piece.shape[0] - 1, 3, -1):
            correction = correction * (x - 0.5) + piece[row, k]
        out[k] = ends + slopes + (x * m) ** 2 * correction


@FieldKernel
def _evaluate_adjoint(t, z_, dz_, block_, size):
    """Pullbacks add to the gradients, so these are zeroed first; their signs are changed at the end."""
    header = carray(block_, (HEADER,)).view(np.int64)
    n, n_parameters, count, rows = header[0], header[1], header[2], header[3]
    workspace = carray(block_, (HEADER + n + 1,))[HEADER:]
    starts, lengths = carray(view_reals(header[5]), (count,)), carray(view_reals(header[6]), (count,))
    i = _find_piece(t, starts, lengths)
    _state_in(carray(view_reals(header[7]), (count, rows, n))[i], (t - starts[i]) / lengths[i], lengths[i], workspace)
    dz = carray(dz_, (n + n_parameters,))
    dz[:] = 0.0
    z, y_bar, p_bar = carray(z_, (n,)).ctypes.data, dz.ctypes.data, dz[n:].ctypes.data
    status = call_vjp_at(header[4], t, workspace.ctypes.data, header[8], z, workspace[n:].ctypes.data, y_bar, p_bar, n)
    for k in range(n + n_parameters):
        dz[k] = -dz[k]
    return status
