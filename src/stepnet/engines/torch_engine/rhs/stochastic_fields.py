"""Drift and diffusion on tensors, with the derivative of the diffusion along its columns.

The state is (batch, n).  The diffusion is (batch, n) if it is multiplied elementwise or by one number for each sample,
(batch, n, m) if it is a matrix.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from stepnet.engines.torch_engine.rhs.tensor_fields import Function, validate_function
from stepnet.engines.torch_engine.runs.rng_and_autocast import is_autocast
from stepnet.problem import ProblemForm
from stepnet.schemes.step_program import MATRIX

Multiply = Callable[[Tensor], Tensor]
"""A diffusion that is available only through its products with vectors."""


@cache
def _load_forward_mode() -> None:
    """Load what torch loads at the first derivative in forward mode, without the warning about its own code."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`torch.jit.script` is deprecated", DeprecationWarning)
        import torch._decomp.decompositions_for_jvp  # noqa: F401


@dataclass(frozen=True)
class StochasticField:
    """dy = drift(t, y) dt + diffusion(t, y) dW; `kind` says how a diffusion is multiplied by noise.

    `diffusion` may return a function that multiplies, where a scheme needs products only.  `n_states` is two if the
    second row of a reversible scheme is part of the state.
    """

    drift: Function
    diffusion: Callable[..., Tensor | Multiply]
    kind: str
    n_components: int
    n_states: int = 1

    form = ProblemForm.STOCHASTIC

    @property
    def functions(self) -> tuple[Callable[..., Tensor | Multiply], ...]:
        """The functions of the parts `DRIFT`, `DIFFUSION` and `DIFFUSION_DERIVATIVE`, with checked results."""
        return validate_function(self.drift, name="f"), self.evaluate_diffusion, self.differentiate_diffusion

    def whole(self, t: Tensor, y: Tensor) -> Tensor:
        return self.drift(t, y)

    def evaluate_diffusion(self, t: Tensor, y: Tensor) -> Tensor | Multiply:
        """The diffusion, its shape and dtype checked."""
        g = self.diffusion(t, y)
        if not isinstance(g, Tensor):
            return g
        shape = (*y.shape, self.n_components) if self.kind == MATRIX else y.shape
        if g.shape != shape:
            raise ValueError(f"`g` must return the shape {tuple(shape)}, found {tuple(g.shape)}")
        if is_autocast(y.device.type):
            return g.to(y.dtype)
        if (g.dtype, g.device) != (y.dtype, y.device):
            raise TypeError(f"`g` must return {y.dtype} on {y.device} as the state is, found {g.dtype} on {g.device}")
        return g

    def differentiate_diffusion(self, t: Tensor, y: Tensor) -> Tensor:
        """(dg/dy) g, or (dg_j/dy) g_k for all pairs of columns, (batch, n, m m) with the pairs (k, j) in order."""
        if not torch.compiler.is_compiling():
            _load_forward_mode()
        function: Callable[[Tensor], Tensor] = lambda y: self.evaluate_diffusion(t, y)  # type: ignore[assignment, return-value]
        g = function(y)
        if self.kind != MATRIX:
            return torch.func.jvp(function, (y,), (g,))[1]
        columns = [torch.func.jvp(function, (y,), (column,))[1] for column in g.unbind(-1)]
        return torch.stack(columns, dim=-2).flatten(-2)
