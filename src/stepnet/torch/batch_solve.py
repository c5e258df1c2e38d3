"""solve: adaptive steps with per-sample step sizes, errors and end times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from stepnet.engines.torch_engine import (
    EVENT,
    STATUSES,
    BatchMembers,
    BatchOutcome,
    BatchPlan,
    TensorProblem,
    as_column,
    break_graph,
    build_tensor_batch,
    explain,
    run_ensemble,
    split_parts,
    validate_function,
)
from stepnet.schemes.conditions import is_pair
from stepnet.solution import Status
from stepnet.torch.methods import find_scheme
from stepnet.torch.options import SHARED, Tolerance, build_control_settings, is_fixed, move_times, validate_options
from stepnet.validation import check, validate_flag


@dataclass(frozen=True)
class BatchSolution:
    """The result of `solve`, sample by sample.

    Attributes
    ----------
    t, y
        Save times (batch, times) and the states there (batch, times, *shape), a tuple if y0 is one; NaN at times that a
        sample did not reach.
    t_end, y_end
        Where each sample ended: at its last time, at its event, or where it failed.
    accepted, rejected
        Steps of each sample.
    codes
        How each sample ended: indices into `per_sample_steps.STATUSES`; `status` gives them as text.
    inside
        With `dense=True` the dense output, evaluated by `at`.

    Examples
    --------
    >>> import torch, stepnet.torch as snt
    >>> solution = snt.solve(lambda t, y: -y, torch.ones(3, 2), torch.linspace(0.0, 1.0, 5))
    >>> solution.y.shape
    torch.Size([3, 5, 2])
    """

    t: Tensor
    y: Tensor | tuple[Tensor, ...]
    t_end: Tensor
    y_end: Tensor | tuple[Tensor, ...]
    accepted: Tensor
    rejected: Tensor
    codes: Tensor
    inside: Callable[[Tensor], Tensor | tuple[Tensor, ...]] | None = None

    def at(self, t: Tensor) -> Tensor | tuple[Tensor, ...]:
        """States at other times, (times,) or (batch, times), in the form of y; NaN outside the solution."""
        if self.inside is None:
            raise ValueError("`at` needs a solution with `dense=True`")
        if not isinstance(t, Tensor) or t.ndim not in (1, 2) or (t.ndim == 2 and len(t) != len(self.t)):
            raise ValueError(f"`t` must be a tensor (times,) or ({len(self.t)}, times)")
        return self.inside(t.expand(len(self.t), t.shape[-1]))

    @property
    def failed(self) -> Tensor:
        """Which samples reached neither their end nor an event, (batch,)."""
        return self.codes > EVENT

    @property
    def status(self) -> list[Status]:
        return [STATUSES[code] for code in self.codes.tolist()]


@break_graph
@check(dense=validate_flag)
def solve(
    func: Callable[..., Any], y0: Tensor | tuple[Tensor, ...], t: Tensor, *, rtol: Tolerance = 1e-7,
    atol: Tolerance = 1e-9, method: Any = None, options: dict[str, Any] | None = None,
    event_fn: Callable[..., Any] | None = None, dense: bool = False,
) -> BatchSolution:  # fmt: skip
    """Solve y' = func(t, y) for a batch with per-sample step sizes.

    Samples are independent, in their steps and in their failures.  Gradients are propagated through the states; step
    sizes are constants.

    Parameters
    ----------
    func : callable
        `func(t, y)` for a batch; t has the shape (batch, 1, ..., 1), so that it broadcasts against y.
    y0 : tensor or tuple of tensors
        (batch, *shape); t is (batch, 1) for a tuple.
    t : tensor
        Save times, increasing or decreasing: (times,), or (batch, times).
    rtol, atol : float, tensor that broadcasts against y0, or tuple with an entry for each tensor of y0
        Tolerances of the error of each sample.
    method : str or scheme, optional
        A pair; dopri5 by default.
    options : dict, optional
        As for adaptive steps in `odeint`; `norm` returns one number per sample.
    event_fn : callable, optional
        `event_fn(t, y)`, (batch,) or (batch, events): a sample ends where any of its entries changes sign.
    dense : bool
        Whether to store dense output for `solution.at(t)`.

    Returns
    -------
    BatchSolution

    Examples
    --------
    >>> import torch, stepnet.torch as snt
    >>> snt.solve(lambda t, y: -y, torch.ones(3, 1), torch.tensor([0.0, 1.0])).y[:, -1].shape
    torch.Size([3, 1])
    """
    problem = build_tensor_batch(func, y0)
    try:
        return _solve(problem, t, rtol, atol, find_scheme(method), options, event_fn, dense)
    except RuntimeError as error:
        explain(error, func, problem.state)
        raise


def _solve(
    problem: TensorProblem, t: Tensor, rtol: Tolerance, atol: Tolerance, scheme: Any, options: dict[str, Any] | None,
    event_fn: Callable[..., Any] | None, dense: bool,
) -> BatchSolution:  # fmt: skip
    options = validate_options(scheme, options)
    if not is_pair(scheme) or is_fixed(scheme, options):
        raise ValueError(f"`method` must be a pair, which chooses its steps, found {scheme.name}; use `odeint`")
    if shared := [name for name in options if name in SHARED]:
        raise ValueError(f"`options` {shared} cannot be used with per-sample step sizes; use `odeint`")
    how = build_control_settings(problem, scheme, rtol, atol, options)._replace(
        norm=_norm(problem, options.get("norm"))
    )
    y, wanted, sign = problem.state[0], *_validate_wanted_times(t, problem.state[0])
    fun = _orient_in_time(validate_function(problem.field.whole, options.get("field_dtype")), sign, sign)
    g = (
        None
        if event_fn is None
        else _require_positive(_orient_in_time(problem.convert_function(event_fn), sign, 1.0), wanted[:, 0], y)
    )
    outcome = run_ensemble(fun, scheme, BatchPlan(how, g, dense), BatchMembers(y, wanted))
    return _build_solution(problem, sign, wanted, outcome)


def _norm(problem: TensorProblem, chosen: Callable[..., Tensor] | None) -> Callable[[Tensor], Tensor] | None:
    """The error norm per sample: root mean square, the largest of these for a tuple, or the user's."""
    shapes = problem.shapes
    if shapes is None:
        return chosen
    rms: Callable[[Tensor], Tensor] = lambda x: (
        torch.linalg.vector_norm(x.reshape(len(x), -1), dim=1) * x[0].numel() ** -0.5
    )
    norm: Callable[..., Tensor] = chosen or (lambda parts: torch.stack([rms(part) for part in parts]).amax(0))
    return lambda x: norm(split_parts(x, shapes))


def _orient_in_time(
    function: Callable[[Tensor, Tensor], Tensor], sign: float, factor: float
) -> Callable[[Tensor, Tensor], Tensor]:
    """Transform a function of time and state to increasing times."""
    return function if sign > 0 else lambda t, y: factor * function(-t, y)


def _require_positive(
    event: Callable[[Tensor, Tensor], Tensor], t: Tensor, y: Tensor
) -> Callable[[Tensor, Tensor], Tensor]:
    """One number per sample, initially positive, that decreases to zero where any entry of the event is zero."""
    with torch.no_grad():
        found = event(as_column(t, y), y) if callable(event) else None
        if not isinstance(found, Tensor):
            raise TypeError(f"`event_fn` must be a function (t, y) that returns a tensor, found {type(event).__name__}")
        signs = torch.sign(found)
    if signs.ndim not in (1, 2) or len(signs) != len(y):
        raise ValueError(f"`event_fn` must return ({len(y)},) or ({len(y)}, events), found {tuple(signs.shape)}")
    return lambda t, y: (event(t, y) * signs).reshape(len(y), -1).amin(1)


def _validate_wanted_times(t: Any, y: Tensor) -> tuple[Tensor, float]:
    """Return increasing times (batch, times), and the sign by which they were multiplied."""
    if not isinstance(t, Tensor) or not t.is_floating_point():
        raise TypeError(f"`t` must be a floating-point tensor of times, found {getattr(t, 'dtype', type(t).__name__)}")
    if t.requires_grad:
        raise ValueError("`t` must not require a gradient with per-sample step sizes; detach it, or use `odeint`")
    if t.ndim not in (1, 2) or t.shape[-1] < 2 or (t.ndim == 2 and len(t) != len(y)):
        raise ValueError(f"`t` must be (times,) or ({len(y)}, times) with two times at least, found {tuple(t.shape)}")
    wanted = move_times(t.detach(), y.device).double().expand(len(y), t.shape[-1])
    sign = 1.0 if bool(wanted[0, 1] > wanted[0, 0]) else -1.0
    if not bool(wanted.isfinite().all()):
        raise ValueError("`t` must be finite, found NaN or infinity in it")
    if not bool(((sign * wanted).diff() > 0).all()):
        raise ValueError("`t` must be strictly increasing for all samples, or strictly decreasing for all")
    return (sign * wanted).contiguous(), sign


def _build_solution(problem: TensorProblem, sign: float, wanted: Tensor, outcome: BatchOutcome) -> BatchSolution:
    batch, (t_end, y_end, states), dense = outcome
    as_given: Callable[[Tensor], Tensor | tuple[Tensor, ...]] = lambda y: (
        y if problem.shapes is None else split_parts(y, problem.shapes)
    )
    read = lambda dense, t: as_given(torch.stack([dense.at(x) for x in (sign * t.detach().double()).unbind(1)], 1))
    is_event = (batch.status == EVENT).long()
    return BatchSolution(
        sign * wanted, as_given(states), sign * t_end, as_given(y_end), batch.accepted + is_event,
        batch.tried - batch.accepted - is_event, batch.status, dense and partial(read, dense),
    )  # fmt: skip
