"""Right-hand sides on tensors: one function, a partitioned or second-order equation, or a sum of parts.

A record defines its state (`n_states` tensors) and how to write it as one equation y' = f(t, y) of one tensor, for
schemes that do not use the parts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stepnet.engines.torch_engine.rhs.linear_parts import LinearPart
from stepnet.engines.torch_engine.runs.rng_and_autocast import is_autocast
from stepnet.problem import Linear, ProblemForm
from stepnet.schemes.capabilities import moves_parts

Function = Callable[..., Tensor]
State = tuple[Tensor, ...]


def split_halves(y: Tensor) -> tuple[Tensor, ...]:
    """Positions and momenta of a state (2, *shape)."""
    if not isinstance(y, Tensor) or y.ndim == 0 or len(y) != 2:
        raise TypeError(
            f"`y` must be a tensor with two components (q, p) of shape (2, *shape), found {type(y).__name__}"
        )
    return y.unbind()


@dataclass(frozen=True)
class SingleField:
    """y' = fun(t, y)."""

    fun: Function

    n_states = 1
    form = ProblemForm.FIRST

    @property
    def functions(self) -> tuple[Function, ...]:
        return (self.fun,)

    def whole(self, t: Tensor, y: Tensor) -> Tensor:
        return self.fun(t, y)


@dataclass(frozen=True)
class Partitioned:
    """q' = dq(t, p), p' = dp(t, q); with `separable=False` both are called as (t, q, p).

    Parameters
    ----------
    dq, dp : Function
        Functions of tensors.
    separable : bool, optional
        Whether dq depends on p only and dp on q only.

    Examples
    --------
    >>> import torch, stepnet.torch as snt
    >>> pendulum = snt.Partitioned(lambda t, p: p, lambda t, q: -torch.sin(q))
    >>> q, p = snt.odeint(pendulum, (torch.ones(1), torch.zeros(1)), torch.linspace(0.0, 1.0, 11), method="verlet")
    >>> q.shape
    torch.Size([11, 1])
    """

    dq: Function
    dp: Function
    separable: bool = True

    n_states = 2

    @property
    def form(self) -> ProblemForm:
        return ProblemForm.PARTITIONED if self.separable else ProblemForm.COUPLED

    @property
    def functions(self) -> tuple[Function, ...]:
        return self.dq, self.dp

    def whole(self, t: Tensor, y: Tensor) -> Tensor:
        q, p = split_halves(y)
        slopes = (self.dq(t, p), self.dp(t, q)) if self.separable else (self.dq(t, q, p), self.dp(t, q, p))
        return torch.stack(slopes)


@dataclass(frozen=True)
class SecondOrder:
    """q'' = acceleration(t, q); the state is (q, v).

    Parameters
    ----------
    acceleration : Function
        A function of time and positions.

    Examples
    --------
    >>> import torch, stepnet.torch as snt
    >>> t = torch.linspace(0.0, 1.0, 11)
    >>> q, v = snt.odeint(snt.SecondOrder(lambda t, q: -q), (torch.ones(1), torch.zeros(1)), t, method="verlet")
    >>> q.shape
    torch.Size([11, 1])
    """

    acceleration: Function

    n_states = 2
    form = ProblemForm.SECOND

    @property
    def functions(self) -> tuple[Function, ...]:
        return _no_function, self.acceleration

    def whole(self, t: Tensor, y: Tensor) -> Tensor:
        q, v = split_halves(y)
        return torch.stack((v, self.acceleration(t, q)))


@dataclass(frozen=True)
class Split:
    """y' = parts[0](t, y) + parts[1](t, y) + ...

    Parameters
    ----------
    parts : tuple of Function or stepnet.Linear
        Functions of time and state, and linear parts.

    Examples
    --------
    >>> import torch, stepnet.torch as snt
    >>> parts = snt.Split((lambda t, y: -y, lambda t, y: 0.5 * y))
    >>> snt.odeint(parts, torch.ones(1), torch.linspace(0.0, 1.0, 11), method="strang").shape
    torch.Size([11, 1])
    """

    parts: tuple[Function, ...]

    n_states = 1
    form = ProblemForm.SUM

    @cached_property
    def functions(self) -> tuple[Function, ...]:
        return tuple(LinearPart(part) if isinstance(part, Linear) else part for part in self.parts)

    def whole(self, t: Tensor, y: Tensor) -> Tensor:
        if not isinstance(y, Tensor):
            raise TypeError(f"`y` must be a tensor, found {type(y).__name__}")
        total = self.functions[0](t, y)
        for part in self.functions[1:]:
            total = total + part(t, y)
        return total


Field = SingleField | Partitioned | SecondOrder | Split


def _no_function(t: Tensor, y: Tensor) -> Tensor:
    raise TypeError("the slope of q is v itself; there is no function to call")


def join(field: Field, state: State) -> Tensor:
    """The state as the single tensor that `field.whole` takes."""
    return state[0] if field.n_states == 1 else torch.stack(state)


def split(field: Field, y: Tensor) -> State:
    """The inverse of `join`."""
    return (y,) if field.n_states == 1 else y.unbind()


def validate_function(fun: Function, dtype: torch.dtype | None = None, name: str = "func") -> Function:
    """`fun` with the shape, dtype and device of its result checked against the state; evaluated in `dtype` if given.

    Errors call it by `name`.
    With bfloat16 as `dtype`, or chosen by autocast, and a float32 state, evaluations cost half and sums stay accurate.
    """

    if isinstance(fun, LinearPart):
        return fun

    def slope(t: Tensor, y: Tensor) -> Tensor:
        k: Any = fun(t, y) if dtype is None else fun(t.to(dtype), y.to(dtype))
        if not isinstance(k, Tensor):
            raise TypeError(f"`{name}` must return a tensor, found {type(k).__name__}")
        if k.shape != y.shape:
            raise ValueError(f"`{name}` must return the shape {tuple(y.shape)} of the state, found {tuple(k.shape)}")
        if k.device != y.device:
            raise ValueError(f"`{name}` must return a tensor on {y.device}, where the state is, found {k.device}")
        if dtype is not None or is_autocast(y.device.type):
            return k.to(y.dtype)
        if k.dtype != y.dtype:
            raise TypeError(f"`{name}` must return {y.dtype} as the state is, found {k.dtype}; cast `{name}` or `y0`")
        return k

    return slope


class SumFunction(NamedTuple):
    """The right-hand side of a sum, with its parts for schemes that treat them differently."""

    whole: Function
    parts: tuple[Function, ...]

    def __call__(self, t: Tensor, y: Tensor) -> Tensor:
        return self.whole(t, y)


def build_pair_function(field: Field, scheme: Any, dtype: torch.dtype | None = None) -> Any:
    """The validated right-hand side for adaptive steps; a `SumFunction` if the scheme treats the parts differently."""
    whole = validate_function(field.whole, dtype)
    if not moves_parts(scheme, field.form):
        return whole
    return SumFunction(whole, tuple(validate_function(part, dtype) for part in field.functions))
