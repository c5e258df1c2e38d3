"""odeint_dense: the solution as a function of time."""

from __future__ import annotations

from bisect import bisect_left
from functools import cache

import torch
from torch import Tensor

from stepnet.engines.torch_engine.codegen.compilation import break_graph
from stepnet.engines.torch_engine.integrators.explicit_rk import build_interpolant, iterate_accepted_steps
from stepnet.engines.torch_engine.rhs.tensor_fields import join, part, validate_function
from stepnet.records import validate_number
from stepnet.schemes.conditions import is_pair
from stepnet.torch.methods import find_scheme
from stepnet.torch.options import build_control_settings, is_fixed, read_numbers, validate_options, validate_times
from stepnet.torch.states import pose_problem


def one_time(name: str, t) -> Tensor:
    """A time as a tensor without dimensions."""
    if isinstance(t, Tensor) and t.numel() == 1 and not t.is_complex():
        return t.detach().reshape(()).to(torch.float64)
    return torch.tensor(validate_number(name, t), dtype=torch.float64)


@break_graph
def odeint_dense(func, y0, t0, t1, *, rtol=1e-7, atol=1e-9, method=None, options=None):
    """The solution of y' = func(t, y), y(t0) = y0 up to t1, as a function of a tensor of times; with gradients.

    Arguments are those of `odeint`; `method` is a pair, whose steps are kept with their stages.
    """
    scheme, problem = find_scheme(method), pose_problem(func, y0)
    options = validate_options(scheme, options)
    if not is_pair(scheme) or is_fixed(scheme, options):
        raise ValueError(f"`method` must be a pair, which chooses its steps, found {scheme.name}")
    start, end = read_numbers(validate_times(torch.stack([one_time(name, t) for name, t in (("t0", t0), ("t1", t1))])))
    fun, y = validate_function(problem.field.whole, options.get("field_dtype")), join(problem.field, problem.state)
    steps = list(
        iterate_accepted_steps(fun, scheme, y, start, end, build_control_settings(problem, scheme, rtol, atol, options))
    )
    inside = cache(lambda i: build_interpolant(scheme, steps[i]))
    sign = 1.0 if end > start else -1.0
    ends = [sign * (step.t + step.h) for step in steps[:-1]]

    def at(t: Tensor):
        times = torch.as_tensor(t).reshape(-1).tolist()
        outside = [time for time in times if not min(start, end) <= time <= max(start, end)]
        if outside:
            raise ValueError(f"`t` must be between {start} and {end}, found {outside[:6]}")
        states = [inside(bisect_left(ends, sign * time))(time) for time in times]
        found = problem.trajectory([part(problem.field, state) for state in states])
        shaped = lambda x: x.reshape(*torch.as_tensor(t).shape, *x.shape[1:])
        return tuple(map(shaped, found)) if isinstance(found, tuple) else shaped(found)

    return at
