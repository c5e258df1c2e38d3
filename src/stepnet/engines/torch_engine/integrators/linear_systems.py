"""Linear systems with Jacobians on tensors: blocks of independent samples factorised together, GMRES for large ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stepnet.engines.torch_engine.integrators.krylov import solve_by_gmres

MOST_DENSE = 256  # entries of a sample, up to which its Jacobian is stored
FEW_ROWS = 8  # up to here separate pullbacks are faster than one batched pullback
REFINEMENTS = 3
EPSILONS = 10.0  # a residual of so many units of rounding counts as zero
POOR = 1e-6  # a relative residual above this would be an error in gradients
COUPLING = 1e4  # units of rounding, in the derivative in one direction, that show coupled samples


class SampleLayout(NamedTuple):
    """How a state is divided into samples with `n` entries each; the two halves of a pair (q, p) are joined."""

    n_samples: int
    n: int
    is_pair: bool = False

    def gather(self, x: Tensor) -> Tensor:
        """(stages, *state) as (samples, stages * n)."""
        s, halves = len(x), 2 if self.is_pair else 1
        parts = x.reshape(s, halves, self.n_samples, self.n // halves)
        return parts.permute(2, 0, 1, 3).reshape(self.n_samples, s * self.n)

    def scatter(self, x: Tensor, like: Tensor) -> Tensor:
        """The inverse of `gather`, in the shape of `like`."""
        s, halves = len(like), 2 if self.is_pair else 1
        return x.reshape(self.n_samples, s, halves, self.n // halves).permute(1, 2, 0, 3).reshape(like.shape)


def choose_layout(y: Tensor, is_pair: bool = False) -> SampleLayout | None:
    """Samples along the first axis if there are more axes and a sample is small, else one; None if that is large."""
    n, inner = y.numel(), y.shape[1:] if is_pair else y.shape
    if len(inner) > 1 and n // max(inner[0], 1) <= MOST_DENSE:
        return SampleLayout(inner[0], n // inner[0], is_pair)
    return SampleLayout(1, n, is_pair) if n <= MOST_DENSE else None


class Linearisation:
    """The derivative of F(y) = f(t, y) at one state, by autograd; layers take their weights in place of a time."""

    def __init__(self, fun: Callable[..., Tensor], t: Any, y: Tensor):
        with torch.enable_grad():
            self.t = t.detach().requires_grad_() if isinstance(t, Tensor) else t
            self.y = y.detach().requires_grad_()
            self.value = fun(self.t, self.y)
        self.is_constant = not self.value.requires_grad
        self.known: dict[SampleLayout, Tensor] = {}

    def pull_back(self, w: Tensor) -> Tensor:
        """J' w."""
        if self.is_constant:
            return torch.zeros_like(self.y)
        (found,) = torch.autograd.grad(self.value, self.y, w, retain_graph=True, allow_unused=True)
        return torch.zeros_like(self.y) if found is None else found

    def push_forward(self, v: Tensor) -> Tensor:
        """J v."""
        return push_forward(self.value, (self.y,), (v,))

    def find_time_derivative(self) -> Tensor | None:
        """df/dt, None if f does not depend on time."""
        if self.is_constant:
            return None
        ones = torch.ones_like(self.value)
        (rate,) = torch.autograd.grad(self.value, self.t, ones, retain_graph=True, allow_unused=True)
        return None if rate is None else push_forward(self.value, (self.t,), (torch.ones_like(self.t),))

    def find_blocks(self, layout: SampleLayout) -> Tensor:
        """The Jacobians of all samples, (samples, n, n)."""
        if layout not in self.known:
            self.known[layout] = self._build_blocks(layout)
        return self.known[layout]

    def _build_blocks(self, layout: SampleLayout) -> Tensor:
        if self.is_constant:
            return self.y.new_zeros(layout.n_samples, layout.n, layout.n)
        with torch.enable_grad():
            sums = layout.gather(self.value[None]).sum(0)
            each_sum = sums.unbind()
        if layout.n > FEW_ROWS:
            try:
                return self._pull_back_together(sums, layout)
            except RuntimeError:  # of functions that cannot be batched
                pass
        rows = [torch.autograd.grad(each, self.y, retain_graph=True, allow_unused=True)[0] for each in each_sum]
        zero = torch.zeros_like(self.y)
        return torch.stack([layout.gather((zero if row is None else row)[None]) for row in rows], 1)

    def _pull_back_together(self, sums: Tensor, layout: SampleLayout) -> Tensor:
        (found,) = torch.autograd.grad(
            sums, self.y, torch.eye(layout.n, dtype=sums.dtype, device=sums.device), retain_graph=True,
            allow_unused=True, is_grads_batched=True,
        )  # fmt: skip
        if found is None:
            return self.y.new_zeros(layout.n_samples, layout.n, layout.n)
        return layout.gather(found).view(layout.n_samples, layout.n, layout.n)

    def is_divided(self, layout: SampleLayout) -> bool:
        """Whether samples are independent: the blocks give the derivative in a random direction."""
        generator = torch.Generator().manual_seed(0)
        w = torch.rand(self.y.shape, generator=generator, dtype=torch.float64).to(self.y)
        found = layout.gather(self.pull_back(w)[None])
        wanted = torch.einsum("bij,bi->bj", self.find_blocks(layout), layout.gather(w[None]))
        return bool((found - wanted).abs().max() <= COUPLING * torch.finfo(w.dtype).eps * wanted.abs().max())


def push_forward(value: Tensor, inputs: tuple[Tensor, ...], directions: tuple[Tensor, ...], **how: bool) -> Tensor:
    """The derivative of a recorded value in a direction: its pullback is linear in w, and is pulled back again."""
    with torch.enable_grad():
        w = torch.zeros_like(value).requires_grad_()
        known = [(x, v) for x, v in zip(inputs, directions, strict=True) if x.requires_grad]
        if not value.requires_grad or not known:
            return torch.zeros_like(value)
        bars = torch.autograd.grad(value, [x for x, _ in known], w, create_graph=True, allow_unused=True)
        pairs = [(bar, v) for bar, (_, v) in zip(bars, known, strict=True) if bar is not None and bar.requires_grad]
        if not pairs:
            return torch.zeros_like(value)
        (found,) = torch.autograd.grad(
            [bar for bar, _ in pairs], w, [v for _, v in pairs], retain_graph=True, allow_unused=True, **how
        )
    return torch.zeros_like(value) if found is None else found


class StageMatrix:
    """I - h (A x J) for stages with the matrix A, and systems with it; J_i is the Jacobian at stage i.

    The blocks of independent samples are factorised; where they are not the whole Jacobian, or are too large, systems
    are solved by GMRES with products of the Jacobian.
    """

    def __init__(self, A: Tensor, h: float | Tensor, points: list[Linearisation], layout: SampleLayout | None):
        self.A, self.h, self.points, self.layout = A, h, points, layout
        self.factors: tuple[Tensor, Tensor] | None = None

        if layout is not None:
            self.factors = self._factorise(layout)

    def _factorise(self, layout: SampleLayout) -> tuple[Tensor, Tensor]:
        s, n, blocks = len(self.A), layout.n, [point.find_blocks(layout) for point in self.points]
        h = self.h.detach().reshape(-1, 1, 1) if isinstance(self.h, Tensor) else self.h
        if s == 1:
            products = blocks[0] * float(self.A[0, 0])
        else:
            products = torch.einsum("ij,ibac->biajc", self.A, torch.stack(blocks)).reshape(-1, s * n, s * n)
        matrix = torch.eye(s * n, dtype=products.dtype, device=products.device) - h * products
        factors, pivots, _ = torch.linalg.lu_factor_ex(matrix)
        return factors, pivots

    def multiply(self, v: Tensor) -> Tensor:
        """(I - h A x J) v."""
        mixed = torch.tensordot(self.A, v, 1)
        return v - self.h * torch.stack(
            [point.push_forward(each) for point, each in zip(self.points, mixed, strict=True)]
        )

    def multiply_transposed(self, w: Tensor) -> Tensor:
        """(I - h A x J)' w."""
        pulled = torch.stack([point.pull_back(self.h * each) for point, each in zip(self.points, w, strict=True)])
        return w - torch.tensordot(self.A.t(), pulled, 1)

    def solve(self, rhs: Tensor) -> Tensor:
        """Solve (I - h A x J) x = rhs, by the factors alone if there are any."""
        if self.factors is None:
            return solve_by_gmres(self.multiply, rhs)
        return self._solve_blocks(rhs, False)

    def solve_transposed(self, rhs: Tensor) -> Tensor:
        """Solve (I - h A x J)' x = rhs, refined with pullbacks to rounding."""
        if self.factors is not None:
            return self._refine(self.multiply_transposed, lambda r: self._solve_blocks(r, True), rhs)
        x = solve_by_gmres(self.multiply_transposed, rhs)
        if bool(torch.linalg.vector_norm(self.multiply_transposed(x) - rhs) > POOR * torch.linalg.vector_norm(rhs)):
            raise RuntimeError("GMRES did not solve the transposed system of a gradient; use shorter steps")
        return x

    def _refine(self, multiply: Callable[[Tensor], Tensor], solve: Callable[[Tensor], Tensor], rhs: Tensor) -> Tensor:
        x = solve(rhs)
        small = EPSILONS * torch.finfo(rhs.dtype).eps
        for _ in range(REFINEMENTS):
            residual = rhs - multiply(x)
            change = solve(residual)
            if bool(change.abs().max() <= small * x.abs().max()):
                return x
            x = x + change
        return solve_by_gmres(multiply, rhs, solve, x)

    def _solve_blocks(self, rhs: Tensor, is_transposed: bool) -> Tensor:
        factors, pivots = self.factors  # type: ignore[misc]
        rows = self.layout.gather(rhs)[..., None]  # type: ignore[union-attr]
        found = torch.linalg.lu_solve(factors, pivots, rows, adjoint=is_transposed)[..., 0]
        return self.layout.scatter(found, rhs)  # type: ignore[union-attr]
