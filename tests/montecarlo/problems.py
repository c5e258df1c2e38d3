"""Equations whose expectations are known in closed form."""

from __future__ import annotations

import signal
from math import erf, exp, log, sqrt

import numpy as np

import stepnet as sn

RATE, VOLATILITY = 0.05, 0.2


def normal(z: float) -> float:
    """The distribution function of a normal variable."""
    return 0.5 * (1.0 + erf(z / sqrt(2.0)))


def black_scholes(x: float, strike: float = 1.0, rate: float = RATE, sigma: float = VOLATILITY) -> float:
    """The price of a call at time 1 before it expires."""
    d = (log(x / strike) + rate + 0.5 * sigma**2) / sigma
    return x * normal(d) - strike * exp(-rate) * normal(d - sigma)


def call(y):
    return np.maximum(y[0] - 1.0, 0.0)


def discount(t, y):
    return RATE


def gbm(seed: int = 0, **changes) -> sn.SDE:
    return sn.SDE(grow, scatter, [1.0], (0.0, 1.0), seed=seed, **changes)


def grow(t, y):
    return RATE * y


def scatter(t, y):
    return VOLATILITY * y


def relax(t, y):
    return -y


def shake(t, y):
    return 0.5 + 0.0 * y


def ou(n: int = 1, seed: int = 0) -> sn.SDE:
    """Independent Ornstein-Uhlenbeck processes."""
    return sn.SDE(relax, shake, np.ones(n), (0.0, 1.0), noise="diagonal", seed=seed)


def rest(t, y):
    return 0.0 * y


def spread(t, y):
    return 1.0 + 0.0 * y


def brownian(n: int, t1: float = 1.0, seed: int = 0) -> sn.SDE:
    return sn.SDE(rest, spread, np.zeros(n), (0.0, t1), seed=seed)


def interrupt_call(monkeypatch, module, number: int) -> None:
    """Ctrl-C while a module samples a block of paths for the `number`-th time."""
    sample, calls = module.sample, []

    def interrupted(*args, **named):
        calls.append(1)
        if len(calls) == number:
            signal.raise_signal(signal.SIGINT)
        return sample(*args, **named)

    monkeypatch.setattr(module, "sample", interrupted)
