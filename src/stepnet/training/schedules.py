"""Learning-rate schedules: records that are called with a time in epochs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import cos, floor, inf, pi
from typing import Any

from stepnet.records import find_by_name, keep, keep_numbers
from stepnet.validation import check, real

Schedule = Callable[[float], float]

POSITIVE, SHARE = "(0, inf)", "(0, 1]"


__all__ = [
    "Constant",
    "Cosine",
    "Exponential",
    "InverseTime",
    "SCHEDULES",
    "StepDecay",
    "WarmUp",
    "get",
    "names",
    "schedule",
]


def __dir__() -> list[str]:
    return __all__


@dataclass(frozen=True)
class Constant:
    """rate.

    Parameters
    ----------
    rate : float
        The learning rate.

    Examples
    --------
    >>> from stepnet import training
    >>> training.Constant(0.1)(3.0)
    0.1
    """

    rate: float

    def __post_init__(self) -> None:
        keep_numbers(self, rate=POSITIVE)

    @check(epoch=real())
    def __call__(self, epoch: float) -> float:
        return self.rate


def _power(factor: float, exponent: float) -> float:
    """factor^exponent, infinite on overflow."""
    try:
        return factor**exponent
    except OverflowError:
        return inf


@dataclass(frozen=True)
class StepDecay:
    """rate factor^floor(t / every).

    Parameters
    ----------
    rate : float
        The first learning rate.
    every : float, optional
        Epochs between two decreases.
    factor : float, optional
        The factor of each decrease.

    Examples
    --------
    >>> from stepnet import training
    >>> round(training.StepDecay(0.1, every=10.0)(25.0), 12)
    0.001
    """

    rate: float
    every: float = 30.0
    factor: float = 0.1

    def __post_init__(self) -> None:
        keep_numbers(self, rate=POSITIVE, every=POSITIVE, factor=SHARE)

    @check(epoch=real())
    def __call__(self, epoch: float) -> float:
        return self.rate * _power(self.factor, floor(epoch / self.every))


@dataclass(frozen=True)
class Exponential:
    """rate factor^t.

    Parameters
    ----------
    rate : float
        The first learning rate.
    factor : float, optional
        The ratio of consecutive epochs.

    Examples
    --------
    >>> from stepnet import training
    >>> training.Exponential(0.1, factor=0.5)(1.0)
    0.05
    """

    rate: float
    factor: float = 0.95

    def __post_init__(self) -> None:
        keep_numbers(self, rate=POSITIVE, factor=SHARE)

    @check(epoch=real())
    def __call__(self, epoch: float) -> float:
        return self.rate * _power(self.factor, epoch)


@dataclass(frozen=True)
class Cosine:
    """last + (rate - last) (1 + cos(pi t / epochs)) / 2, then last.  Loshchilov & Hutter (2017), arXiv:1608.03983.

    Parameters
    ----------
    rate : float
        The first learning rate.
    epochs : float
        After which the last one is reached.
    last : float, optional
        The last learning rate.

    Examples
    --------
    >>> from stepnet import training
    >>> round(training.Cosine(0.1, epochs=10)(5.0), 12)
    0.05
    """

    rate: float
    epochs: float
    last: float = 0.0

    def __post_init__(self) -> None:
        keep_numbers(self, rate=POSITIVE, epochs=POSITIVE, last="[0, inf)")

    @check(epoch=real())
    def __call__(self, epoch: float) -> float:
        return self.last + (self.rate - self.last) * (1 + cos(pi * min(epoch / self.epochs, 1.0))) / 2


@dataclass(frozen=True)
class InverseTime:
    """rate / (1 + t / half): half the rate after `half` epochs.  Robbins & Monro (1951), Ann. Math. Statist. 22:400.

    Parameters
    ----------
    rate : float
        The first learning rate.
    half : float, optional
        Epochs after which it is half.

    Examples
    --------
    >>> from stepnet import training
    >>> training.InverseTime(0.1, half=10.0)(10.0)
    0.05
    """

    rate: float
    half: float = 10.0

    def __post_init__(self) -> None:
        keep_numbers(self, rate=POSITIVE, half=POSITIVE)

    @check(epoch=real())
    def __call__(self, epoch: float) -> float:
        return self.rate / (1 + epoch / self.half)


@dataclass(frozen=True)
class WarmUp:
    """Another schedule, times a factor that grows linearly from `first` to one over `epochs` epochs.

    Parameters
    ----------
    then
        The other schedule, or a number.
    epochs : float, optional
        Epochs until the factor is one.
    first : float, optional
        The first factor.

    Examples
    --------
    >>> from stepnet import training
    >>> round(training.WarmUp(0.1, epochs=4.0)(4.0), 12)
    0.1
    """

    then: Any  # a schedule, or a number for a constant one
    epochs: float = 5.0
    first: float = 0.1

    def __post_init__(self) -> None:
        keep(self, then=schedule(self.then))
        keep_numbers(self, epochs=POSITIVE, first=SHARE)

    @check(epoch=real())
    def __call__(self, epoch: float) -> float:
        grown = self.first + (1 - self.first) * min(epoch / self.epochs, 1.0)
        return grown * self.then(epoch)


SCHEDULES = {
    "constant": Constant, "step": StepDecay, "exponential": Exponential, "cosine": Cosine, "inverse_time": InverseTime,
    "warm_up": WarmUp,
}  # fmt: skip


def schedule(rate: Any) -> Schedule:
    """Return a schedule unchanged, and a number as a constant schedule.

    Parameters
    ----------
    rate
        A number, or a schedule.

    Returns
    -------
    schedule

    Examples
    --------
    >>> from stepnet.training import schedules
    >>> schedules.schedule(0.1)
    Constant(rate=0.1)
    """
    return rate if callable(rate) and not isinstance(rate, type) else Constant(rate)


def get(name: str | Schedule, **numbers: Any) -> Schedule:
    """The schedule of this name, as in `get("cosine", rate=0.1, epochs=50)`, or a schedule unchanged.

    Parameters
    ----------
    name : str or Schedule
        A name, or a schedule.
    **numbers
        Arguments of the record.

    Returns
    -------
    schedule

    Examples
    --------
    >>> from stepnet.training import schedules
    >>> schedules.get("cosine", rate=0.1, epochs=50).rate
    0.1
    """
    return schedule(find_by_name("schedule", SCHEDULES, name, numbers))


def names() -> list[str]:
    """The names that `get` knows, sorted.

    Returns
    -------
    list of str

    Examples
    --------
    >>> from stepnet.training import schedules
    >>> "cosine" in schedules.names()
    True
    """
    return sorted(SCHEDULES)
