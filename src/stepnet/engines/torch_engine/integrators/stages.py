"""The stages of a Runge-Kutta step with per-sample lengths, in few tensor operations.

Row i holds h k_i of the whole batch, so y + h sum_j w_j k_j is one matrix-vector product.  Rows are padded to whole
tiles: then every number is processed by the same instructions, and a sample does not depend on its neighbours.  States
with few entries are stored entry by entry, because functions that index their components then run faster.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stepnet.engines.torch_engine.integrators.implicit_rk import find_pair_program, take_pair_step
from stepnet.engines.torch_engine.integrators.implicit_stages import NewtonSettings
from stepnet.engines.torch_engine.integrators.step_program import TensorProgram
from stepnet.schemes.tableau import dense_matrix

TILE = 64
FEW = 16


class StageRows:
    """Rows for a batch like `y`, (batch, *shape).

    Implicit schemes keep no stages: their step program is executed for the whole batch.
    """

    def __init__(self, scheme: Any, y: Tensor, newton: NewtonSettings):
        self.program, self.newton = find_pair_program(scheme), newton
        A = np.zeros((1, 1)) if self.program else scheme.continuous.A
        weights: Callable[[Any], Tensor] = lambda row: torch.as_tensor(np.array(row), dtype=y.dtype, device=y.device)
        self.shape, self.real, self.as_column = y.shape, y.real.dtype, (-1, *[1] * (y.ndim - 1))
        self.is_by_entry = y.ndim == 2 and y.shape[1] <= FEW
        self.is_last_new = self.program is not None or scheme.is_fsal
        width = _tile(len(y)) * y.shape[1] if self.is_by_entry else _tile(y.numel())
        self.strides = (1, _tile(len(y))) if self.is_by_entry else torch.empty(y.shape, device="meta").stride()
        self.rows = y.new_zeros(len(A), width)
        self.mean = y.real.new_full((y[0].numel(),), 1.0 / y[0].numel())
        self.row = [self.view_row(row) for row in self.rows]
        self.mask = torch.zeros_like(self.rows[0], dtype=torch.bool)
        self.mask_seen = self.view_row(self.mask)
        self.before = [self.rows[:i].t() for i in range(len(A) + 1)]
        self.weights = [weights(row[:i]) for i, row in enumerate(A)]
        self.error_rows: list[Tensor] = []
        if self.program:
            return
        self.b = weights(scheme.b)
        self.errors = [weights(np.subtract(scheme.b, hat.b)) for hat in scheme.embedded]
        self.dense = weights(dense_matrix(scheme))
        self.c = torch.tensor(scheme.continuous.c[:, None], dtype=torch.float64, device=y.device)

    def pad(self, y: Tensor) -> Tensor:
        """A copy of the state as a row."""
        row = torch.zeros_like(self.rows[0])
        self.view_row(row).copy_(y)
        return row

    def view_row(self, row: Tensor) -> Tensor:
        """A row, viewed as the state it holds."""
        return row.as_strided(self.shape, self.strides)

    def mask_of(self, samples: Tensor) -> Tensor:
        """A boolean per sample as a row, valid until the next call: selecting rows is faster this way."""
        self.mask_seen.copy_(samples.view(self.as_column))
        return self.mask

    def column(self, x: Tensor) -> Tensor:
        """One number per sample, in the precision of the state, shaped to broadcast against it."""
        return x.to(self.real).view(self.as_column)

    def spread(self, x: Tensor) -> Tensor:
        """As `column`, but expanded to all entries if this is faster than repeated broadcasting."""
        column = self.column(x)
        return column if self.is_by_entry else column.expand(self.shape).contiguous()

    def fill(self, fun: Callable[..., Tensor], t: Tensor, h: Tensor, y: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Compute all stages from the row y with the slope in row k; the new state as a row, and the last slope."""
        if self.program is not None:
            return self._solve(self.program, fun, t, h, y), self.view_row(k)
        length, s = self.spread(h), len(self.b)
        times = torch.addcmul(t, self.c[1:s], h).to(self.real).view(s - 1, *self.as_column).unbind()
        torch.mul(self.view_row(k), length, out=self.row[0])
        stage = y
        for i in range(1, s):
            stage = torch.addmv(y, self.before[i], self.weights[i])
            k = fun(times[i - 1], self.view_row(stage))
            torch.mul(k, length, out=self.row[i])
        return (stage if self.is_last_new else torch.addmv(y, self.before[s], self.b)), k

    def _solve(self, program: TensorProgram, fun: Callable[..., Tensor], t: Tensor, h: Tensor, y: Tensor) -> Tensor:
        """The new state of an implicit step as a row; it does not use the slope at the start."""
        times = [self.column(torch.add(t, h, alpha=node.c)) for node in program.nodes]
        y_new, error = take_pair_step(program, (fun,), times, self.column(h), self.view_row(y), self.newton)
        self.error_rows = [self.pad(error)]
        return self.pad(y_new)

    def extend(self, fun: Callable[..., Tensor], t: Tensor, h: Tensor, y: Tensor) -> None:
        """Compute the stages that only the continuous extension needs."""
        length = self.spread(h)
        for i in range(len(self.b), len(self.weights)):
            stage = torch.addmv(y, self.before[i], self.weights[i])
            k = fun(self.column(torch.addcmul(t, self.c[i], h)), self.view_row(stage))
            torch.mul(k, length, out=self.row[i])

    def estimates(self) -> list[Tensor]:
        """Error estimates, as rows."""
        if self.program is not None:
            return self.error_rows
        return [torch.mv(self.before[len(e)], e) for e in self.errors]

    def rms(self, row: Tensor) -> Tensor:
        """The root mean square of the entries of every sample, summed in an order independent of other samples."""
        if not self.is_by_entry:
            return (
                torch.linalg.vector_norm(self.view_row(row).reshape(self.shape[0], -1), dim=1) * len(self.mean) ** -0.5
            )
        squares = (row.abs() if row.is_complex() else row).square().view(self.shape[1], -1)
        return torch.mv(squares.t(), self.mean)[: self.shape[0]].sqrt_()

    def polynomial(self) -> list[Tensor]:
        """The coefficients of the polynomials of the continuous extension."""
        return [self.view_row(row) for row in torch.mm(self.dense, self.rows)]


def _tile(n: int) -> int:
    return -(-n // TILE) * TILE
