"""odeint_dense: the solution as a function of time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from stepnet.engines.torch_engine import (
    AdaptiveSolve,
    EvaluationOptions,
    break_graph,
    build_tensor_problem,
    read_numbers,
    solve_densely,
)
from stepnet.records import validate_number
from stepnet.schemes.conditions import is_pair
from stepnet.torch.methods import find_scheme
from stepnet.torch.options import Tolerance, build_control_settings, is_fixed, validate_options, validate_times

if TYPE_CHECKING:
    from stepnet.torch.torchdiffeq_interface import Func


def validate_time(name: str, t: Any) -> Tensor:
    """Return a time as a zero-dimensional tensor."""
    if isinstance(t, Tensor) and t.numel() == 1 and not t.is_complex():
        return t.detach().reshape(()).to(torch.float64)
    return torch.tensor(validate_number(name, t), dtype=torch.float64)


@break_graph
def odeint_dense(
    func: Func, y0: Tensor | tuple[Tensor, ...], t0: float | Tensor, t1: float | Tensor, *, rtol: Tolerance = 1e-7,
    atol: Tolerance = 1e-9, method: Any = None, options: dict[str, Any] | None = None,
) -> Callable[[Tensor], Any]:  # fmt: skip
    """The solution of y' = func(t, y), y(t0) = y0 up to t1, as a differentiable function of a tensor of times.

    Arguments are those of `odeint`; `method` is a pair, whose steps and stages are stored.

    Parameters
    ----------
    func, y0, rtol, atol, method, options
        As in `odeint`.
    t0, t1 : float or Tensor
        Initial and final time.

    Returns
    -------
    callable

    Examples
    --------
    >>> import torch, stepnet.torch as snt
    >>> solution = snt.odeint_dense(lambda t, y: -y, torch.ones(1), 0.0, 1.0, method="dopri5")
    >>> solution(torch.tensor(0.5))
    tensor([0.6065])
    """
    scheme, problem = find_scheme(method), build_tensor_problem(func, y0)
    options = validate_options(scheme, options)
    if not is_pair(scheme) or is_fixed(scheme, options):
        raise ValueError(f"`method` must be a pair, which chooses its steps, found {scheme.name}")
    start, end = read_numbers(
        validate_times(torch.stack([validate_time(name, t) for name, t in (("t0", t0), ("t1", t1))]))
    )
    how = build_control_settings(problem, scheme, rtol, atol, options)
    solution = solve_densely(
        AdaptiveSolve(problem, scheme, how, EvaluationOptions(options.get("field_dtype"))), start, end
    )

    def at(t: Tensor) -> Tensor | tuple[Tensor, ...]:
        times = torch.as_tensor(t).reshape(-1).tolist()
        outside = [time for time in times if not min(start, end) <= time <= max(start, end)]
        if outside:
            raise ValueError(f"`t` must be between {start} and {end}, found {outside[:6]}")
        found = problem.trajectory([solution(time) for time in times])
        shaped: Callable[[Tensor], Tensor] = lambda x: x.reshape(*torch.as_tensor(t).shape, *x.shape[1:])
        return tuple(map(shaped, found)) if isinstance(found, tuple) else shaped(found)

    return at
