"""Implicit stages and linear systems of a step on tensors, differentiated by the implicit function theorem.

A stage K = psi(K, ...) is solved without a graph.  Then psi is evaluated once with a graph, and the gradient that
arrives at K is multiplied by the inverse of I - (dpsi/dK)' before it enters this graph: the exact derivative at the
solved stage, whatever the iteration was.  The multiplied gradient solves an equation of the same form, so derivatives
of every order exist.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stepnet.engines.torch_engine.integrators.linear_systems import (
    Linearisation,
    SampleLayout,
    StageMatrix,
    choose_layout,
    push_forward,
)
from stepnet.schemes.step_program import LinearSolve, Solve

MOST_ITERATIONS = 25
EPSILONS = 10.0  # a change of the state by so many units of rounding ends the iteration
FAST = 0.1  # a slower rate of convergence renews the Jacobians
STAGNANT = 1e-6  # a relative change below this that no longer decreases is rounding
NEAR = 1e-2  # of the tolerance of adaptive steps


class NewtonError(RuntimeError):
    """Implicit stages that could not be solved."""


class NewtonSettings(NamedTuple):
    """When stages count as solved: with tolerances, at a fraction of them; otherwise at rounding.

    Without convergence, stages are NaN with tolerances, and an error otherwise.  If `are_samples` is set, the first axis
    of the state holds independent samples, and this is not tested; `is_pair` means that it holds (q, p).
    """

    rtol: float = 0.0
    atol: float = 0.0
    are_samples: bool = False
    is_pair: bool = False

    @property
    def is_adaptive(self) -> bool:
        return self.atol > 0.0 or self.rtol > 0.0


TO_ROUNDING = NewtonSettings()


class StepSystems:
    """The systems of one step: Jacobians and solved stages are shared by its operations."""

    def __init__(self, functions: Sequence[Callable[..., Tensor]], h: float | Tensor, settings: NewtonSettings):
        self.functions, self.h, self.settings = functions, h, settings
        self.points: dict[tuple[int, int], Linearisation] = {}
        self.blocks: dict[int, Tensor | None] = {}
        self.matrices: dict[Any, StageMatrix] = {}
        self.stages: dict[Any, Tensor] = {}
        self.layout: SampleLayout | None = None
        self.is_known = False

    def solve(self, operation: Solve, times: Sequence[Tensor], rows: Sequence[Tensor]) -> Tensor:
        """The row of implicit stages: sum_i b_i K_i."""
        base = rows[operation.row]
        key = operation.part, operation.row, operation.A, operation.c
        if key not in self.stages:
            self.stages[key] = self._find_stages(operation, times, base, rows[0])
        K = self.stages[key]
        if len(K) == 1:
            return K[0] if operation.b == (1.0,) else operation.b[0] * K[0]
        return torch.tensordot(_tensor(operation.b, K), K, 1)

    def solve_linear(self, operation: LinearSolve, time: Tensor, rows: Sequence[Tensor]) -> Tensor:
        """The row x with (I - gamma h J) x = row + delta h df/dt."""
        fun, base, row = self.functions[operation.part], rows[operation.base], rows[operation.row]
        with torch.no_grad():
            matrix, point = self._linearise(operation, time, base)
            rate = point.find_time_derivative() if operation.delta else None
            rhs = row.detach()
            if rate is not None:
                rhs = rhs + operation.delta * _detach(self.h) * rate
            is_exact = self.settings.are_samples and not torch.is_grad_enabled()
            x = (matrix.solve if is_exact else matrix.solve_refined)(rhs[None])[0]
        gamma, delta, h = operation.gamma, operation.delta, self.h

        def psi(x: Tensor) -> Tensor:
            y, t = _require_graph(base), _require_graph(time)
            value = fun(t, y)
            directions = delta * torch.ones_like(t), gamma * x[0]
            return (row + h * push_forward(value, (t, y), directions, create_graph=True))[None]

        return attach(x[None], psi, matrix.solve_transposed, matrix.solve_refined)[0]

    def _linearise(self, operation: LinearSolve, time: Tensor, base: Tensor) -> tuple[StageMatrix, Linearisation]:
        key = operation.part, operation.base
        if key not in self.points:
            self.points[key] = Linearisation(self.functions[operation.part], time, base)
        point = self.points[key]
        if (key, operation.gamma) not in self.matrices:
            A = _tensor([[operation.gamma]], base)
            self.matrices[key, operation.gamma] = self._factorise(A, [point], base)
        return self.matrices[key, operation.gamma], point

    def _factorise(self, A: Tensor, points: list[Linearisation], like: Tensor) -> StageMatrix:
        matrix = StageMatrix(A, _detach(self.h), points, self._choose_layout(points[0], like))
        return matrix.factorise(None if matrix.layout is None else [self._find_blocks(point) for point in points])

    def _find_blocks(self, point: Linearisation) -> Tensor:
        if id(point) not in self.blocks:
            self.blocks[id(point)] = point.build_blocks(self.layout)  # type: ignore[arg-type]
        return self.blocks[id(point)]  # type: ignore[return-value]

    def _choose_layout(self, point: Linearisation, y: Tensor) -> SampleLayout | None:
        """How the state is divided; samples that turn out to depend on each other form one."""
        if self.is_known:
            return self.layout
        self.layout, self.is_known = choose_layout(y, self.settings.is_pair), True
        layout = self.layout
        if layout is not None and layout.n_samples > 1 and not self.settings.are_samples:
            blocks = self._find_blocks(point)
            if not point.is_divided(layout, blocks):
                self.blocks.clear()
                self.layout = choose_layout(y.reshape(-1))
        return self.layout

    # ---- Newton's iteration -----------------------------------------------------------------------------------------

    def _find_stages(self, operation: Solve, times: Sequence[Tensor], base: Tensor, start: Tensor) -> Tensor:
        fun, h, A = self.functions[operation.part], self.h, _tensor(operation.A, base)

        def psi(K: Tensor) -> Tensor:
            return torch.stack([fun(t, y) for t, y in zip(times, _list_stages(base, h, A, K), strict=True)])

        with torch.no_grad():
            K = self._iterate(operation, times, base.detach(), A, start)
        final: list[StageMatrix] = []

        def matrix() -> StageMatrix:
            if not final:
                stages = _list_stages(base.detach(), _detach(h), A, K)
                final.append(
                    self._factorise(A, [Linearisation(fun, *each) for each in zip(times, stages, strict=True)], base)
                )
            return final[0]

        return attach(K, psi, lambda w: matrix().solve_transposed(w), lambda v: matrix().solve_refined(v))

    def _iterate(
        self, operation: Solve, times: Sequence[Tensor], base: Tensor, A: Tensor, start: Tensor
    ) -> Tensor:
        """Newton's method with the Jacobian at the start of the step, which is renewed where convergence is slow."""
        fun, h, s = self.functions[operation.part], _detach(self.h), len(operation.c)
        first = self._linearise(LinearSolve(operation.part, 0, 0, operation.A[0][0]), times[0], start.detach())[1]
        key = operation.part, operation.A
        if key not in self.matrices:
            self.matrices[key] = self._factorise(A, [first] * s, base)
        matrix, K = self.matrices[key], base.new_zeros(s, *base.shape)
        progress = Progress(base, self.layout, h, self.settings)
        for _ in range(MOST_ITERATIONS):
            stages = _list_stages(base, h, A, K)
            image = torch.stack([fun(t, y) for t, y in zip(times, stages, strict=True)])
            change = matrix.solve(image - K)
            K = torch.where(progress.select_active(K), K + change, K)
            progress.note(change, K)
            if progress.is_over():
                break
            if progress.is_slow():
                points = [Linearisation(fun, *each) for each in zip(times, _list_stages(base, h, A, K), strict=True)]
                matrix = self._factorise(A, points, base)
                self.blocks = {key: value for key, value in self.blocks.items() if key == id(first)}
        return progress.finish(K)


class Progress:
    """The convergence of Newton's iteration, sample by sample."""

    def __init__(self, base: Tensor, layout: SampleLayout | None, h: float | Tensor, settings: NewtonSettings):
        self.layout, self.settings, self.base = layout, settings, base
        self.h = h
        n = 1 if layout is None else layout.n_samples
        self.size = base.new_full((n,), torch.inf)
        self.rate = base.new_zeros(n)
        self.is_done = torch.zeros(n, dtype=torch.bool, device=base.device)
        self.is_lost = torch.zeros_like(self.is_done)
        self.small = EPSILONS * torch.finfo(base.dtype).eps

    def _gather(self, x: Tensor) -> Tensor:
        return x.reshape(1, -1) if self.layout is None else self.layout.gather(x)

    def _spread(self, mask: Tensor, like: Tensor) -> Tensor:
        if self.layout is None:
            return mask.expand(like.numel()).view(like.shape)
        return self.layout.scatter(mask[:, None].expand(-1, len(like) * self.layout.n), like)

    def select_active(self, K: Tensor) -> Tensor:
        """The entries that still change."""
        return self._spread(~(self.is_done | self.is_lost), K)

    def note(self, change: Tensor, K: Tensor) -> None:
        """Measure a change of the stages, and decide which samples are done or lost."""
        moved, state = self._gather(self.h * change).abs(), self._gather(self.base[None]).abs()
        largest = state.amax(1) + self._gather(self.h * K).abs().amax(1)
        if self.settings.is_adaptive:
            scale = self.settings.atol + self.settings.rtol * state
            size = (moved.view(len(state), -1, state.shape[1]) / scale[:, None]).flatten(1).amax(1)
            goal, limit = NEAR, torch.inf
        else:
            size, goal, limit = moved.amax(1) / largest.clamp_min(torch.finfo(largest.dtype).tiny), self.small, STAGNANT
        size = torch.where(moved.amax(1) == 0, 0.0, size)
        rate = size / self.size.clamp_min(torch.finfo(size.dtype).tiny)
        active = ~(self.is_done | self.is_lost)
        is_still = (size <= self.small * 100) & (rate > 0.5) if limit == torch.inf else (size <= limit) & (rate > 0.5)
        expected = size * torch.where((rate < 1) & (self.size < torch.inf), rate / (1 - rate).clamp_min(1e-3), 1.0)
        self.is_done |= active & ((expected if self.settings.is_adaptive else size) <= goal) | (active & is_still)
        self.is_lost |= active & ~size.isfinite()
        if self.settings.is_adaptive:
            self.is_lost |= active & ~self.is_done & (rate > 2.0) & (self.size < torch.inf)
        self.size, self.rate = torch.where(active, size, self.size), rate

    def is_over(self) -> bool:
        return bool((self.is_done | self.is_lost).all())

    def is_slow(self) -> bool:
        """Whether some sample that is not solved converges slowly."""
        return bool(((self.rate > FAST) & ~(self.is_done | self.is_lost)).any())

    def finish(self, K: Tensor) -> Tensor:
        """The stages; samples that are not solved are NaN in adaptive steps, and an error otherwise."""
        if self.settings.is_adaptive:
            return torch.where(self._spread(self.is_done, K), K, torch.nan)
        if not bool(self.is_done.all()):
            count = int((~self.is_done).sum())
            raise NewtonError(
                f"the implicit stages of {count} of {len(self.is_done)} samples were not solved: Newton's iteration "
                "does not converge; take shorter steps, or look at `func` there"
            )
        return K


# ---- the implicit function theorem ----------------------------------------------------------------------------------

Psi = Callable[[Tensor], Tensor]


def attach(x: Tensor, psi: Psi, solve_transposed: Psi, solve: Psi) -> Tensor:
    """x, which solves x = psi(x), with the derivative with respect to everything else that psi depends on."""
    if not torch.is_grad_enabled():
        return x
    image = psi(x)
    return _Attached.apply(image, x, psi, solve_transposed, solve) if image.requires_grad else x


class _Attached(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, image: Tensor, x: Tensor, psi: Psi, solve_transposed: Psi, solve: Psi) -> Tensor:
        found = x.clone()
        ctx.save_for_backward(found)
        ctx.rules = psi, solve_transposed, solve
        return found

    @staticmethod
    def backward(ctx: Any, bar: Tensor) -> Any:  # type: ignore[override]
        psi, solve_transposed, solve = ctx.rules
        (x,) = ctx.saved_tensors
        with torch.no_grad():
            u = solve_transposed(bar)
        if torch.is_grad_enabled() and x.requires_grad:

            def pull_back(u: Tensor) -> Tensor:
                with torch.enable_grad():
                    image = psi(x)
                    (found,) = torch.autograd.grad(image, x, u, create_graph=True, allow_unused=True)
                return bar if found is None else bar + found

            u = attach(u, pull_back, solve, solve_transposed)
        return u, None, None, None, None


def _list_stages(base: Tensor, h: float | Tensor, A: Tensor, K: Tensor) -> list[Tensor]:
    """base + h sum_j A_ij K_j."""
    if len(K) == 1:
        return [base + h * (A[0, 0] * K[0])]
    return list((base + h * torch.tensordot(A, K, 1)).unbind())


def _require_graph(x: Tensor) -> Tensor:
    return x if x.requires_grad else x.detach().requires_grad_()


def _detach(h: float | Tensor) -> float | Tensor:
    return h.detach() if isinstance(h, Tensor) else h


def _tensor(values: Any, like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device)
