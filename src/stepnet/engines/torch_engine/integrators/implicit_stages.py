"""Implicit stages and linear systems of a step on tensors, differentiated by the implicit function theorem.

A stage K = psi(K, ...) is solved without a graph.  Then psi is evaluated once with a graph, and the gradient that
arrives at K is multiplied by the inverse of I - (dpsi/dK)' before it enters this graph: the exact derivative at the
solved stage, independent of the iteration.
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
    mix_stages,
    push_forward,
)
from stepnet.schemes.step_program import LinearSolve, Solve

MOST_ITERATIONS = 25
MOST_DAMPED, HALVINGS = 100, 12  # damped iterations, and halvings of one Newton update
EPSILONS = 10.0  # an update of the state below so many units of rounding ends the iteration
FAST = 0.1  # a slower rate of convergence renews the Jacobians
STAGNANT = 1e-6  # a relative change below this that no longer decreases is rounding
NEAR = 1e-2  # fraction of the tolerance at which the iteration ends in adaptive steps


class NewtonError(RuntimeError):
    """Implicit stages that could not be solved."""


class NewtonSettings(NamedTuple):
    """Convergence criteria of implicit stages: a fraction of the tolerances if these are given, otherwise rounding.

    Stages that are not solved are NaN if `can_reject`, so that adaptive steps are rejected, and an error otherwise.
    If `are_samples` is set, the first axis of the state holds independent samples, and this is not tested; `is_pair`
    means that it holds (q, p).
    """

    rtol: float = 0.0
    atol: float = 0.0
    can_reject: bool = False
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
        self.rates: dict[int, Tensor | None] = {}
        self.matrices: dict[Any, StageMatrix] = {}
        self.stages: dict[Any, Tensor] = {}
        self.has_parameters: dict[int, bool] = {}
        self.layout: SampleLayout | None = None
        self.is_known = False

    def solve(self, operation: Solve, times: Sequence[Tensor], rows: Sequence[Tensor]) -> Tensor:
        """The row of implicit stages: sum_i b_i K_i."""
        base = rows[operation.row]
        key = operation.part, operation.row, operation.A, operation.c, operation.A_hat
        if key not in self.stages:
            self.stages[key] = self._find_stages(operation, times, base, rows[0])
        K = self.stages[key]
        if len(K) == 1:
            return K[0] if operation.b == (1.0,) else operation.b[0] * K[0]
        return torch.tensordot(_tensor(operation.b, K), K, 1)

    def solve_linear(self, operation: LinearSolve, time: Tensor, rows: Sequence[Tensor]) -> Tensor:
        """The row x with (I - gamma h J) x = row + delta h df/dt."""
        fun, base, row = self.functions[operation.part], rows[operation.base], rows[operation.row]
        if operation.delta and not isinstance(time, Tensor):
            raise TypeError(
                "Rosenbrock schemes need df/dt, which layers do not have; use an implicit Runge-Kutta scheme"
            )
        with torch.no_grad():
            point = self._find_point(operation.part, operation.base, time, base)
            matrix = self._find_matrix(((operation.gamma,),), [point], base)
            rate = self._find_rate(point) if operation.delta else None
            rhs = row.detach()
            if rate is not None:
                rhs = rhs + operation.delta * _detach(self.h) * rate
            x = matrix.solve(rhs[None])[0]
        if not self._needs_graph(operation.part, time, base, row):
            return x
        gamma, delta, h = operation.gamma, operation.delta, self.h

        def psi(x: Tensor) -> Tensor:
            y = _require_graph(base)
            t = _require_graph(time) if delta else time
            inputs, directions = (
                ((t, y), (delta * torch.ones_like(t), gamma * x[0])) if delta else ((y,), (gamma * x[0],))
            )
            return (row + h * push_forward(fun(t, y), inputs, directions, create_graph=True))[None]

        return attach(x[None], psi, matrix.solve_transposed)[0]

    def _needs_graph(self, part: int, time: Any, base: Tensor, row: Tensor) -> bool:
        """Whether a result has derivatives: inputs or tensors inside the right-hand side require them."""
        if not torch.is_grad_enabled():
            return False
        if any(isinstance(each, Tensor) and each.requires_grad for each in (time, base, row, self.h)):
            return True
        if part not in self.has_parameters:
            self.has_parameters[part] = self.functions[part](time, base).requires_grad
        return self.has_parameters[part]

    def _find_point(self, part: int, row: int, time: Tensor, y: Tensor) -> Linearisation:
        """The derivative of a part at a row, evaluated once in a step."""
        if (part, row) not in self.points:
            self.points[part, row] = Linearisation(self.functions[part], time, y)
        return self.points[part, row]

    def _find_rate(self, point: Linearisation) -> Tensor | None:
        """df/dt, found once in a step."""
        if id(point) not in self.rates:
            self.rates[id(point)] = point.find_time_derivative()
        return self.rates[id(point)]

    def _find_matrix(self, gammas: Any, points: list[Linearisation], y: Tensor) -> StageMatrix:
        """The matrix of systems with these coefficients, factorised once in a step."""
        key = gammas, *map(id, points)
        if key not in self.matrices:
            self.matrices[key] = self._build_matrix(gammas, points, y)
        return self.matrices[key]

    def _build_matrix(self, gammas: Any, points: list[Linearisation], y: Tensor) -> StageMatrix:
        return StageMatrix(_tensor(gammas, y), _detach(self.h), points, self._choose_layout(points[0], y))

    def _choose_layout(self, point: Linearisation, y: Tensor) -> SampleLayout | None:
        """How the state is divided into samples; samples that are found to be coupled are treated as one."""
        if not self.is_known:
            self.layout, self.is_known = choose_layout(y, self.settings.is_pair), True
            layout = self.layout
            are_tested = layout is not None and layout.n_samples > 1 and not self.settings.are_samples
            if are_tested and not point.is_divided(layout):  # type: ignore[arg-type]
                self.layout = choose_layout(y.reshape(-1))
        return self.layout

    # ---- Newton's iteration -----------------------------------------------------------------------------------------

    def _find_stages(self, operation: Solve, times: Sequence[Tensor], base: Tensor, start: Tensor) -> Tensor:
        fun, h, A = self.functions[operation.part], self.h, _tensor(_list_matrices(operation), base)

        def psi(K: Tensor) -> Tensor:
            return torch.stack([fun(t, y) for t, y in zip(times, _list_stages(base, h, A, K), strict=True)])

        with torch.no_grad():
            K = self._iterate(operation, times, base.detach(), A, start)
        final: list[StageMatrix] = []

        def matrix() -> StageMatrix:
            if not final:
                stages = _list_stages(base.detach(), _detach(h), A, K)
                points = [Linearisation(fun, *each) for each in zip(times, stages, strict=True)]
                final.append(self._build_matrix(_list_matrices(operation), points, base))
            return final[0]

        return attach(K, psi, lambda w: matrix().solve_transposed(w))

    def _iterate(self, operation: Solve, times: Sequence[Tensor], base: Tensor, A: Tensor, start: Tensor) -> Tensor:
        """Newton's method with the Jacobian at the start of the step, which is renewed where convergence is slow."""
        fun, h, s = self.functions[operation.part], _detach(self.h), len(operation.c)
        first = self._find_point(operation.part, 0, times[0], start)
        matrix, K = self._find_matrix(_list_matrices(operation), [first] * s, base), base.new_zeros(s, *base.shape)
        progress = NewtonProgress(base, s, self.layout, self.settings)
        for _ in range(MOST_ITERATIONS):
            stages = _list_stages(base, h, A, K)
            image = torch.stack([fun(t, y) for t, y in zip(times, stages, strict=True)])
            change = progress.select_active(matrix.solve(image - K))
            K = K + change
            is_slow = progress.note(h * change)
            if is_slow is None:
                break
            if is_slow:
                stages = _list_stages(base, h, A, K)
                points = [Linearisation(fun, *each) for each in zip(times, stages, strict=True)]
                matrix = self._build_matrix(_list_matrices(operation), points, base)
        if not (self.settings.can_reject or progress.is_complete):
            K, progress = self._iterate_damped(operation, times, base, A)
        return progress.finish(K)

    def _iterate_damped(
        self, operation: Solve, times: Sequence[Tensor], base: Tensor, A: Tensor
    ) -> tuple[Tensor, NewtonProgress]:
        """Damped Newton iteration with a new Jacobian each time, for steps that cannot be rejected.

        An update is accepted if the next one, with the same matrix, is smaller (Deuflhard's natural monotonicity test).
        """
        fun, h, s = self.functions[operation.part], _detach(self.h), len(operation.c)
        progress, K = NewtonProgress(base, s, self.layout, self.settings), base.new_zeros(s, *base.shape)
        share = torch.ones_like(progress.reach)
        for _ in range(MOST_DAMPED):
            stages = _list_stages(base, h, A, K)
            points = [Linearisation(fun, *each) for each in zip(times, stages, strict=True)]
            matrix = self._build_matrix(_list_matrices(operation), points, base)
            change = progress.select_active(matrix.solve(torch.stack([point.value.detach() for point in points]) - K))
            size = progress.measure(change)
            for _ in range(HALVINGS):
                trial = K + progress.spread(share, K) * change
                stages = _list_stages(base, h, A, trial)
                image = torch.stack([fun(t, y) for t, y in zip(times, stages, strict=True)])
                is_shorter = progress.measure(matrix.solve(image - trial)) <= (1.0 - 0.25 * share) * size
                is_shorter |= ~progress.is_active | (size == 0)
                if bool(is_shorter.all()):
                    break
                share = torch.where(is_shorter, share, 0.5 * share)
            K = trial
            if progress.note(h * change) is None:
                break
            share = (2.0 * share).clamp_max(1.0)
        return K, progress


class NewtonProgress:
    """The convergence of Newton's iteration, sample by sample."""

    def __init__(self, base: Tensor, n_stages: int, layout: SampleLayout | None, settings: NewtonSettings):
        self.layout, self.settings = layout, settings
        state = self._gather(base[None]).abs()
        self.weights = None
        if settings.is_adaptive:
            self.weights = (1.0 / (settings.atol + settings.rtol * state)).repeat(1, n_stages)
        self.reach = state.amax(1).clamp_min(torch.finfo(base.dtype).tiny)
        self.size = torch.full_like(self.reach, torch.inf)
        self.is_done = torch.zeros_like(self.reach, dtype=torch.bool)
        self.is_active = torch.ones_like(self.is_done)
        self.small = EPSILONS * torch.finfo(base.dtype).eps

    def _gather(self, x: Tensor) -> Tensor:
        return x.reshape(1, -1) if self.layout is None else self.layout.gather(x)

    @property
    def is_complete(self) -> bool:
        return bool(self.is_done.all())

    def measure(self, change: Tensor) -> Tensor:
        """The size of a change, sample by sample."""
        return self._gather(change).abs().amax(1)

    def spread(self, mask: Tensor, like: Tensor) -> Tensor:
        """One value per sample, for all entries of the stages."""
        if self.layout is None:
            return mask.expand(like.numel()).view(like.shape)
        return self.layout.scatter(mask[:, None].expand(-1, len(like) * self.layout.n), like)

    def select_active(self, change: Tensor) -> Tensor:
        """The updates of the samples that have not converged."""
        if len(self.is_active) == 1:
            return change
        return torch.where(self.spread(self.is_active, change), change, 0.0)

    def note(self, moved: Tensor) -> bool | None:
        """Measure an update of the stages; whether some sample converges slowly, or None if all are finished."""
        distance = self._gather(moved).abs()
        if self.weights is None:
            moved = distance.amax(1)
            self.reach = self.reach + moved  # no less than the largest entry of the stages
            size = moved / self.reach
            rate = size / self.size
            is_solved = (size <= self.small) | ((size <= STAGNANT) & (rate > 0.5))
        else:
            size = (distance * self.weights).amax(1)
            rate = size / self.size
            left = torch.where(rate < 1.0, rate / (1.0 - rate).clamp_min(1e-3), 1.0).clamp_min(1e-3)
            is_solved = torch.where(self.size < torch.inf, size * left, size) <= NEAR
        is_solved |= size == 0
        self.is_done |= self.is_active & is_solved
        self.is_active = self.is_active & ~is_solved & size.isfinite()
        self.size = size
        slowest = float(torch.where(self.is_active, rate, -1.0).amax())
        return None if slowest < 0.0 else slowest > FAST

    def finish(self, K: Tensor) -> Tensor:
        """The stages; samples that are not solved are NaN where steps can be rejected, and an error otherwise."""
        if self.is_complete:
            return K
        if self.settings.can_reject:
            return torch.where(self.spread(self.is_done, K), K, torch.nan)
        count = int((~self.is_done).sum())
        raise NewtonError(
            f"the implicit stages of {count} of {len(self.is_done)} samples were not solved: Newton's iteration does "
            "not converge; use shorter steps, or check `func` there"
        )


# ---- the implicit function theorem ----------------------------------------------------------------------------------

Psi = Callable[[Tensor], Tensor]


def attach(x: Tensor, psi: Psi, solve_transposed: Psi) -> Tensor:
    """x, which solves x = psi(x), with the derivative with respect to everything else that psi depends on."""
    if not torch.is_grad_enabled():
        return x
    image = psi(x)
    if not image.requires_grad:
        return x
    return _Attached.apply(image, x, solve_transposed)


class _Attached(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, image: Tensor, x: Tensor, solve_transposed: Psi) -> Tensor:
        ctx.solve_transposed = solve_transposed
        return x.clone()

    @staticmethod
    def backward(ctx: Any, bar: Tensor) -> Any:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "implicit steps on tensors have first derivatives only: leave out `create_graph`, or use `sn.hvp` for "
                "products with second derivatives"
            )
        return ctx.solve_transposed(bar), None, None


def _list_stages(base: Tensor, h: float | Tensor, A: Tensor, K: Tensor) -> list[Tensor]:
    """base + h sum_j A_ij K_j."""
    if len(K) == 1 and A.dim() == 2:
        return [base + h * (A[0, 0] * K[0])]
    return list((base + h * mix_stages(A, K)).unbind())


def _list_matrices(operation: Solve) -> Any:
    """The matrix of the stages, or both."""
    return (operation.A, operation.A_hat) if operation.A_hat else operation.A


def _require_graph(x: Tensor) -> Tensor:
    """x as an input of partial derivatives: a view, because the time of a step may also affect its initial state."""
    return x.view_as(x) if x.requires_grad else x.detach().requires_grad_()


def _detach(h: float | Tensor) -> float | Tensor:
    return h.detach() if isinstance(h, Tensor) else h


def _tensor(values: Any, like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device)
