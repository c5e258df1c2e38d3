"""Optimisers as records with pure updates of one flat vector.

`step(theta, gradient, slots, rate, count)` returns the new vector and the new slots, arrays of the same length by name,
initially zero; `count` is one in the first step.  The formulas are those of `torch.optim` with its defaults.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import wraps
from math import sqrt
from typing import Any, ClassVar, Protocol, TypeVar, cast

import numpy as np

from stepnet.nets import penalties
from stepnet.nets.penalties import Penalty
from stepnet.records import explain_arguments, find_by_name, keep, keep_numbers
from stepnet.training.schedules import schedule
from stepnet.validation import alike, array, arrays, check, having, real, whole

Slots = dict[str, np.ndarray]
Update = tuple[np.ndarray, Slots]
Step = TypeVar("Step", bound=Callable[..., Any])
Rate = Any  # a schedule, or a number for a constant one
INTERVALS = {"momentum": "[0, 1)", "beta1": "[0, 1)", "beta2": "[0, 1)", "eps": "(0, inf)", "decay": "[0, inf)"}


__all__ = [
    "AdaGrad",
    "Adam",
    "AdamW",
    "Momentum",
    "Nesterov",
    "OPTIMISERS",
    "Optimiser",
    "Proximal",
    "RMSprop",
    "SGD",
    "empty_slots",
    "get",
    "names",
]


def __dir__() -> list[str]:
    return __all__


class Optimiser(Protocol):
    """The interface of an optimiser."""

    @property
    def slots(self) -> tuple[str, ...]: ...

    @property
    def rate(self) -> Rate: ...

    def step(self, theta: np.ndarray, gradient: np.ndarray, slots: Slots, rate: float, count: int) -> Update: ...


def check_vectors(step: Step) -> Step:
    """Decorate a step to require vectors and slots of one length."""

    @check(theta=array(None), rate=real(), count=whole(1))
    @wraps(step)
    def call(self: Any, theta: np.ndarray, gradient: np.ndarray, slots: Slots, rate: float, count: int) -> Update:
        gradient, slots = alike("gradient", gradient, "theta", theta), arrays(*self.slots)("slots", slots)
        slots = {name: alike(f"slots[{name!r}]", slots[name], "theta", theta) for name in self.slots}
        return step(self, theta, gradient, slots, rate, count)

    return cast(Step, call)


def _check(record: SGD | Momentum | Nesterov | AdaGrad | RMSprop | Adam | AdamW) -> None:
    """Convert rates to schedules and check that all other numbers lie in their intervals."""
    keep(record, rate=schedule(record.rate))
    keep_numbers(record, **{each.name: INTERVALS[each.name] for each in fields(record) if each.name != "rate"})


@explain_arguments()
@dataclass(frozen=True)
class SGD:
    """theta - rate g.

    Parameters
    ----------
    rate : float or schedule, optional
        Learning rate, a number or a schedule.

    Examples
    --------
    >>> from stepnet import training
    >>> training.SGD(rate=0.05)
    SGD(rate=Constant(rate=0.05))
    """

    rate: Rate = 0.1
    slots: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        _check(self)

    @check_vectors
    def step(self, theta: np.ndarray, gradient: np.ndarray, slots: Slots, rate: float, count: int) -> Update:
        return theta - rate * gradient, {}


@explain_arguments()
@dataclass(frozen=True)
class Momentum:
    """theta - rate v, v = momentum v + g.  Polyak (1964), USSR Comput. Math. Math. Phys. 4:1.

    Parameters
    ----------
    rate : float or schedule, optional
        Learning rate, a number or a schedule.
    momentum : float, optional
        Decay of v.

    Examples
    --------
    >>> from stepnet import training
    >>> training.Momentum(0.1).momentum
    0.9
    """

    rate: Rate = 0.1
    momentum: float = 0.9
    slots: ClassVar[tuple[str, ...]] = ("velocity",)

    def __post_init__(self) -> None:
        _check(self)

    @check_vectors
    def step(self, theta: np.ndarray, gradient: np.ndarray, slots: Slots, rate: float, count: int) -> Update:
        v = self.momentum * slots["velocity"] + gradient
        return theta - rate * v, {"velocity": v}


@explain_arguments()
@dataclass(frozen=True)
class Nesterov:
    """theta - rate (g + momentum v), v = momentum v + g.  Sutskever et al. (2013), ICML.

    Parameters
    ----------
    rate : float or schedule, optional
        Learning rate, a number or a schedule.
    momentum : float, optional
        Decay of v.

    Examples
    --------
    >>> from stepnet import training
    >>> training.Nesterov(0.1).momentum
    0.9
    """

    rate: Rate = 0.1
    momentum: float = 0.9
    slots: ClassVar[tuple[str, ...]] = ("velocity",)

    def __post_init__(self) -> None:
        _check(self)

    @check_vectors
    def step(self, theta: np.ndarray, gradient: np.ndarray, slots: Slots, rate: float, count: int) -> Update:
        v = self.momentum * slots["velocity"] + gradient
        return theta - rate * (gradient + self.momentum * v), {"velocity": v}


@explain_arguments()
@dataclass(frozen=True)
class AdaGrad:
    """theta - rate g / (sqrt(s) + eps), s the sum of all g^2.  Duchi, Hazan & Singer (2011), JMLR 12:2121.

    Parameters
    ----------
    rate : float or schedule, optional
        Learning rate, a number or a schedule.
    eps : float, optional
        Added to the denominator.

    Examples
    --------
    >>> from stepnet import training
    >>> training.AdaGrad().rate
    Constant(rate=0.01)
    """

    rate: Rate = 0.01
    eps: float = 1e-10
    slots: ClassVar[tuple[str, ...]] = ("squares",)

    def __post_init__(self) -> None:
        _check(self)

    @check_vectors
    def step(self, theta: np.ndarray, gradient: np.ndarray, slots: Slots, rate: float, count: int) -> Update:
        s = slots["squares"] + gradient * gradient
        return theta - rate * gradient / (np.sqrt(s) + self.eps), {"squares": s}


@explain_arguments()
@dataclass(frozen=True)
class RMSprop:
    """theta - rate g / (sqrt(s) + eps), s the decaying mean of g^2.  Tieleman & Hinton (2012), lecture 6.5.

    Parameters
    ----------
    rate : float or schedule, optional
        Learning rate, a number or a schedule.
    beta2 : float, optional
        Decay of the mean of g^2.
    eps : float, optional
        Added to the denominator.

    Examples
    --------
    >>> from stepnet import training
    >>> training.RMSprop().beta2
    0.99
    """

    rate: Rate = 0.01
    beta2: float = 0.99
    eps: float = 1e-8
    slots: ClassVar[tuple[str, ...]] = ("squares",)

    def __post_init__(self) -> None:
        _check(self)

    @check_vectors
    def step(self, theta: np.ndarray, gradient: np.ndarray, slots: Slots, rate: float, count: int) -> Update:
        s = self.beta2 * slots["squares"] + (1 - self.beta2) * gradient * gradient
        return theta - rate * gradient / (np.sqrt(s) + self.eps), {"squares": s}


def _adam_step(
    record: Adam | AdamW, keep: float, theta: np.ndarray, gradient: np.ndarray, slots: Slots, rate: float, count: int
) -> Update:
    """keep theta minus the step of Adam, with decaying means of g and g^2 corrected for their zero initial values."""
    from stepnet.engines.numba_engine import adam  # imported when needed, because it loads the compiler

    rate, scale = rate / (1 - record.beta1**count), 1 / sqrt(1 - record.beta2**count)
    numbers = record.beta1, record.beta2, keep, rate, scale, record.eps
    theta, mean, squares = adam(theta, gradient, slots["mean"], slots["squares"], numbers)
    return theta, {"mean": mean, "squares": squares}


@explain_arguments()
@dataclass(frozen=True)
class Adam:
    """theta - rate m^ / (sqrt(s^) + eps), decaying means m of g and s of g^2.  Kingma & Ba (2015), arXiv:1412.6980.

    Parameters
    ----------
    rate : float or schedule, optional
        Learning rate, a number or a schedule.
    beta1, beta2 : float, optional
        Decay of the means of g and of g^2.
    eps : float, optional
        Added to the denominator.

    Examples
    --------
    >>> from stepnet import training
    >>> training.Adam(rate=training.Cosine(1e-2, 50)).beta1
    0.9
    """

    rate: Rate = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    slots: ClassVar[tuple[str, ...]] = ("mean", "squares")

    def __post_init__(self) -> None:
        _check(self)

    @check_vectors
    def step(self, theta: np.ndarray, gradient: np.ndarray, slots: Slots, rate: float, count: int) -> Update:
        return _adam_step(self, 1.0, theta, gradient, slots, rate, count)


@explain_arguments()
@dataclass(frozen=True)
class AdamW:
    """Adam after theta (1 - rate decay).  Loshchilov & Hutter (2019), arXiv:1711.05101.

    Parameters
    ----------
    rate : float or schedule, optional
        Learning rate, a number or a schedule.
    beta1, beta2 : float, optional
        Decay of the means of g and of g^2.
    eps : float, optional
        Added to the denominator.
    decay : float, optional
        Weight decay.

    Examples
    --------
    >>> from stepnet import training
    >>> training.AdamW().decay
    0.01
    """

    rate: Rate = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    decay: float = 1e-2
    slots: ClassVar[tuple[str, ...]] = ("mean", "squares")

    def __post_init__(self) -> None:
        _check(self)

    @check_vectors
    def step(self, theta: np.ndarray, gradient: np.ndarray, slots: Slots, rate: float, count: int) -> Update:
        return _adam_step(self, 1 - rate * self.decay, theta, gradient, slots, rate, count)


@dataclass(frozen=True)
class Proximal:
    """Another optimiser's step, then the proximal map of a penalty: theta = prox(rate penalty, step of theta).

    The penalty must not be part of the objective as well.  With `SGD` these are proximal gradients, which make weights
    exactly zero under an l1 penalty; thresholds are rate l1 for every optimiser, so Adam's scaling does not affect
    them.  Beck & Teboulle (2009), SIAM J. Imaging Sci. 2:183.

    Parameters
    ----------
    optimiser
        The other optimiser.
    penalty : Penalty
        The penalty whose proximal map is applied.

    Examples
    --------
    >>> from stepnet import nets, training
    >>> training.Proximal(training.SGD(0.1), nets.penalties.l1(1e-3)).penalty.l1
    0.001
    """

    optimiser: Any
    penalty: Penalty

    def __post_init__(self) -> None:
        keep(self, optimiser=get(self.optimiser), penalty=penalties.get(self.penalty))

    @property
    def slots(self) -> tuple[str, ...]:
        return self.optimiser.slots

    @property
    def rate(self) -> Rate:
        return self.optimiser.rate

    @check_vectors
    def step(self, theta: np.ndarray, gradient: np.ndarray, slots: Slots, rate: float, count: int) -> Update:
        new, slots = self.optimiser.step(theta, gradient, slots, rate, count)
        return self.penalty.proximal(new, rate), slots


OPTIMISERS = {each.__name__.lower(): each for each in (SGD, Momentum, Nesterov, AdaGrad, RMSprop, Adam, AdamW)}


def get(name: str | Optimiser, **numbers: Any) -> Optimiser:
    """The optimiser of this name, as in `get("adam", rate=1e-2)`; an optimiser is returned unchanged.

    Parameters
    ----------
    name : str or Optimiser
        A name, or an optimiser.
    **numbers
        Arguments of the record.

    Returns
    -------
    optimiser

    Examples
    --------
    >>> from stepnet.training import optimisers
    >>> optimisers.get("adam", beta1=0.8).beta1
    0.8
    """
    found = find_by_name("optimiser", OPTIMISERS, name, numbers)
    if not callable(getattr(found, "step", None)):
        raise TypeError(f"`optimiser` must be a name or have a `step`, found {found!r:.80} ({type(found).__name__})")
    return found


def names() -> list[str]:
    """The names that `get` knows, sorted.

    Returns
    -------
    list of str

    Examples
    --------
    >>> from stepnet.training import optimisers
    >>> "adam" in optimisers.names()
    True
    """
    return sorted(OPTIMISERS)


@check(optimiser=having("slots", "step", what="an optimiser"), theta=array())
def empty_slots(optimiser: Optimiser, theta: np.ndarray) -> Slots:
    """The initial slots, all zero.

    Parameters
    ----------
    optimiser : Optimiser
        The optimiser.
    theta : ndarray
        Parameters.

    Returns
    -------
    tuple of ndarray
        Arrays of the shape of `theta`.

    Examples
    --------
    >>> import numpy as np
    >>> from stepnet.training import optimisers
    >>> len(optimisers.empty_slots(optimisers.get("adam"), np.ones(3)))
    2
    """
    return {name: np.zeros_like(theta) for name in optimiser.slots}
