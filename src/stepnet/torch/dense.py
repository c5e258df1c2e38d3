"""odeint_dense: the solution as a function of time."""

from __future__ import annotations

from bisect import bisect_left
from functools import cache

import torch
from torch import Tensor

from stepnet.engines.torch_engine.compilation import break_graph
from stepnet.engines.torch_engine.explicit_rk import accepted_steps, interpolant
from stepnet.engines.torch_engine.fields import checked, joined, parted
from stepnet.records import number
from stepnet.schemes.conditions import is_pair
from stepnet.torch.methods import scheme_of
from stepnet.torch.options import checked_options, checked_times, how_of, is_fixed, numbers_of
from stepnet.torch.states import posed


def one_time(name: str, t) -> Tensor:
    """A time as a tensor without dimensions."""
    if isinstance(t, Tensor) and t.numel() == 1 and not t.is_complex():
        return t.detach().reshape(()).to(torch.float64)
    return torch.tensor(number(name, t), dtype=torch.float64)


@break_graph
def odeint_dense(func, y0, t0, t1, *, rtol=1e-7, atol=1e-9, method=None, options=None):
    """The solution of y' = func(t, y), y(t0) = y0 up to t1, as a function of a tensor of times; with gradients.

    Arguments are those of `odeint`; `method` is a pair, whose steps are kept with their stages.
    """
    scheme, problem = scheme_of(method), posed(func, y0)
    options = checked_options(scheme, options)
    if not is_pair(scheme) or is_fixed(scheme, options):
        raise ValueError(f"`method` must be a pair, which chooses its steps, found {scheme.name}")
    start, end = numbers_of(checked_times(torch.stack([one_time(name, t) for name, t in (("t0", t0), ("t1", t1))])))
    fun, y = checked(problem.field.whole, options.get("field_dtype")), joined(problem.field, problem.state)
    steps = list(accepted_steps(fun, scheme, y, start, end, how_of(problem, scheme, rtol, atol, options)))
    inside = cache(lambda i: interpolant(scheme, steps[i]))
    sign = 1.0 if end > start else -1.0
    ends = [sign * (step.t + step.h) for step in steps[:-1]]

    def at(t: Tensor):
        times = torch.as_tensor(t).reshape(-1).tolist()
        outside = [time for time in times if not min(start, end) <= time <= max(start, end)]
        if outside:
            raise ValueError(f"`t` must be between {start} and {end}, found {outside[:6]}")
        states = [inside(bisect_left(ends, sign * time))(time) for time in times]
        found = problem.trajectory([parted(problem.field, state) for state in states])
        shaped = lambda x: x.reshape(*torch.as_tensor(t).shape, *x.shape[1:])
        return tuple(map(shaped, found)) if isinstance(found, tuple) else shaped(found)

    return at
